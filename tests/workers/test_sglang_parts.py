"""What of the SGLang adapter runs without SGLang: settings, events, limits, state, the plug-in's
reading of a scheduler, and how it meets a server that breaks."""

import asyncio
import json
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadRequest, EngineFailed, Overloaded, PromptTooLong, UsageError
from pipeline.messages import Admission, Request, StepSample
from tests.waiting import eventually
from tests.workers.conformance import answer, asked, tokens_of
from tests.workers.sglang_server import Ways, served
from workers.engines import make_engine
from workers.openai_engine.load import ServerLoad
from workers.report import Receiver, Report, Row, Sender
from workers.sglang_engine import plugin, wire
from workers.sglang_engine.engine import SGLangEngine
from workers.sglang_engine.limits import read
from workers.sglang_engine.settings import SGLangSettings
from workers.sglang_engine.state import SGLangState
from workers.simulated_settings import SimulatedSettings

SETTINGS = SimulatedSettings(
    rules="sglang",
    block_size=16,
    max_model_len=512,
    max_num_seqs=4,
    kv_blocks=200,
    time_scale=0.1,
    noise=0,
)

# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ([], "url=http"),
        (["url=http://h", "model=m"], "url=http"),
        (["url=h:1"], "url"),
        (["url=http://h", "args=--x"], "args"),
        (["model=m", "args=--port 3"], "args: --port"),
        (["model=m", "args=--host=h"], "args: --host"),
        (["model=m", 'args=--x "'], "args"),
        (["model=m", "socket=/tmp/s"], "socket"),
        (["model=m", "profile=none"], "profile"),
        (["model=m", "requests_max=0"], "requests_max"),
        (["model=m", "hang_timeout_s=0.1"], "hang_timeout_s"),
        (["model=m", "stall_timeout_s=0"], "stall_timeout_s"),
        (["model=m", "api_key_env=sk-secret/key"], "api_key_env"),
        (["model=m", "max_num_seqs=3"], "max_num_seqs"),
    ],
)
def test_a_wrong_setting_is_named(settings: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        make_engine("sglang", settings)


def test_sglangs_own_flags_are_handed_through() -> None:
    command = SGLangSettings(model="m", args="--page-size 16", python="py").command(7)
    assert command[:5] == ["py", "-m", "sglang.launch_server", "--model-path", "m"]
    assert "--page-size 16" in " ".join(command)
    assert command[-3:] == ["--incremental-streaming-output", "--log-level-http", "warning"]


# ---------------------------------------------------------------- events


def event(text: str, tokens: int, reason: dict[str, Any] | None = None, **meta: Any) -> bytes:
    told = {"completion_tokens": tokens, "finish_reason": reason, **meta}
    return json.dumps({"text": text, "meta_info": told}).encode()


@given(
    st.lists(st.tuples(st.text(max_size=6), st.integers(0, 4)), min_size=1, max_size=12),
    st.booleans(),
)
def test_both_kinds_of_streams_add_up(parts: list[tuple[str, int]], incremental: bool) -> None:
    counted = wire.Counted(incremental=incremental)
    text, tokens, got = "", 0, []
    for number, (added, more) in enumerate(parts, 1):
        text, tokens = text + added, tokens + more
        ends = {"type": "length", "length": tokens} if number == len(parts) else None
        delta = counted.take(event(added if incremental else text, tokens, ends, prompt_tokens=5))
        got += [] if delta is None else [delta]
    assert "".join(delta.text for delta in got) == text
    assert sum(delta.tokens for delta in got) == tokens
    assert (got[-1].finish_reason, got[-1].prompt_tokens) == ("length", 5)
    assert all(delta.text or delta.tokens for delta in got[:-1])


def test_retractions_are_told_as_preemptions() -> None:
    counted = wire.Counted(incremental=True)
    delta = counted.take(event("a", 1, {"type": "stop", "matched": 2}, num_retractions=3))
    assert delta is not None and (delta.preemptions, delta.finish_reason) == (3, "stop")


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"message": "m", "code": 400}, BadRequest),
        ({"message": "m", "code": 503}, Overloaded),
        ({"message": "m"}, EngineFailed),
        (
            {"message": "The input (9 tokens) is longer than the model's context", "code": 400},
            PromptTooLong,
        ),
    ],
)
def test_an_event_of_an_error_is_one(told: dict[str, Any], kind: type[Exception]) -> None:
    counted = wire.Counted(incremental=True)
    with pytest.raises(kind):
        counted.take(json.dumps({"error": told}).encode())


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (wire.Reason("abort", "The request queue is full.", 503), Overloaded),
        (wire.Reason("abort", "bad", 400, "BadRequestError"), BadRequest),
        (
            wire.Reason(
                "abort",
                "Input length (600 tokens) exceeds the maximum allowed length (506 tokens)",
                400,
            ),
            PromptTooLong,
        ),
        (wire.Reason("abort", "boom", 500), EngineFailed),
        (wire.Reason("abort", "Aborted"), EngineFailed),
    ],
)
def test_an_abort_that_nobody_asked_for_has_a_meaning(
    reason: wire.Reason, kind: type[Exception]
) -> None:
    assert isinstance(wire.error_of_abort(reason), kind)


@pytest.mark.parametrize("data", [b"{", b'{"meta_info": 3}', b"\xff"])
def test_what_is_no_event_is_a_failure_in_words(data: bytes) -> None:
    with pytest.raises(EngineFailed, match="cannot be read"):
        wire.Counted(incremental=True).take(data)


def test_what_is_asked_for_is_clipped_and_what_is_not_set_is_left_out() -> None:
    request = Request(id="r", prompt="x", max_tokens=900, stop=["a"], seed=7)
    body = wire.generate_body(request, [1, 2], 100, "rid", None)
    assert body["sampling_params"] == {"max_new_tokens": 100, "stop": ["a"], "sampling_seed": 7}
    assert "priority" not in body


# ---------------------------------------------------------------- limits

INFO = {"max_total_num_tokens": 1_290, "max_running_requests": 8, "page_size": 16}
MODELS = {"data": [{"id": "m", "max_model_len": 2_048}]}


def test_limits_are_read_from_the_server() -> None:
    told = read({**INFO, "chunked_prefill_size": 256, "schedule_conservativeness": 0.5}, MODELS)
    limits = told.limits
    assert (limits.rules, limits.block_size, limits.kv_blocks) == ("sglang", 16, 80)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (8, 256)
    assert (limits.max_model_len, limits.chunked_prefill) == (2_048, True)
    assert limits.new_token_ratio_start == pytest.approx(0.35)
    assert not told.unlike and told.reports


def test_a_chunk_size_below_zero_is_none() -> None:
    limits = read({**INFO, "chunked_prefill_size": -1, "max_prefill_tokens": 4_096}, MODELS).limits
    assert (limits.chunked_prefill, limits.max_num_batched_tokens) == (False, 4_096)


@pytest.mark.parametrize(
    ("info", "sign"),
    [
        ({}, 0),
        ({"enable_priority_scheduling": True}, -1),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, 1),
    ],
)
def test_lower_is_sooner_whatever_the_server_thinks(info: dict[str, Any], sign: int) -> None:
    assert read({**INFO, **info}, MODELS).priority_sign == sign


def test_what_is_not_simulated_is_named() -> None:
    told = read({**INFO, "schedule_policy": "lpm", "dp_size": 2}, MODELS)
    assert told.unlike == {"schedule_policy": "lpm", "dp_size": 2}
    assert not told.reports


@pytest.mark.parametrize(("info", "models"), [(None, MODELS), ({}, MODELS), (INFO, {"data": []})])
def test_another_server_is_told_apart(info: Any, models: Any) -> None:
    with pytest.raises(UsageError, match=r"SGLang|names no model"):
        read(info, models)


# ---------------------------------------------------------------- state

LIMITS = read(INFO, MODELS).limits
STEP = StepSample(2, 0.0, 30, 2, 5.0)


def test_the_schedulers_word_beats_the_polled_counts() -> None:
    state = SGLangState({"a": "c.a", "b": "c.b"}.get)
    assert state.stats(LIMITS, 1).source == "ledger"
    state.polled(ServerLoad(running=3, waiting=1, kv_share=0.5))
    assert (state.stats(LIMITS, 1).running, state.stats(LIMITS, 1).kv_blocks_used) == (3, 40)
    running, waiting = [Row("a", 10, 14, 5, 0)], [Row("x", 3, 0, 0, 0), Row("b", 20, 0, 7, 1)]
    state.reported(Report(9, running, waiting, 2, 70, 1, STEP, Admission(0.4, True)))
    stats = state.stats(LIMITS, 3)
    assert (stats.source, stats.running, stats.waiting, stats.kv_blocks_used) == ("exact", 1, 2, 10)
    assert {key: one.phase for key, one in stats.progress.items()} == {
        "c.a": "decoding",
        "c.b": "preempted",
    }
    assert stats.admission == Admission(0.4, True)
    assert (state.take_steps(), state.take_steps()) == ([STEP], [])


def nobody(_: str) -> None:
    """The worker has no request with this id."""


def test_counts_that_stay_as_they_are_are_no_sign_of_life() -> None:
    now = [0.0]
    state = SGLangState(nobody, clock=lambda: now[0])
    load = ServerLoad(running=1, waiting=0, kv_share=0.1)
    state.polled(load)
    now[0] = 7.0
    state.polled(load)
    assert state.still_s() == 7.0
    state.polled(ServerLoad(running=1, waiting=0, kv_share=0.2))
    assert state.still_s() == 0.0


# ---------------------------------------------------------------- the plug-in


def request_in(rid: str, prompt: int, generated: int, **more: Any) -> Any:
    fields = {
        "rid": rid,
        "origin_input_ids": [0] * prompt,
        "output_ids": [0] * generated,
        "retraction_count": 0,
        "prefix_len": 0,
        "extend_end": None,
        "kv": object(),
        "finished": lambda: False,
    }
    return SimpleNamespace(**{**fields, **more})


def batch_of(*requests: Any, extend: bool = False, full: bool = False, cut: Any = None) -> Any:
    mode = SimpleNamespace(is_extend=lambda: extend)
    return SimpleNamespace(
        reqs=list(requests), forward_mode=mode, batch_is_full=full, chunked_req=cut
    )


def scheduler_of(running: Any, waiting: list[Any], cut: Any = None) -> Any:
    return SimpleNamespace(
        running_batch=running,
        waiting_queue=waiting,
        chunked_req=cut,
        page_size=16,
        token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: 320),
        tree_cache=SimpleNamespace(evictable_size=lambda: 160),
        new_token_ratio_tracker=SimpleNamespace(current=0.3),
    )


class Kept:
    """In place of the socket."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def send(self, report: Report) -> None:
        self.reports.append(report)


def reporter(clock: list[float]) -> tuple[plugin.Reporter, Kept]:
    kept = Kept()
    return plugin.Reporter(kept, lambda: True, clock=lambda: clock[0]), kept  # type: ignore[arg-type]


def test_a_prefill_step_is_told_with_the_request_that_was_cut() -> None:
    now = [1.0]
    told, kept = reporter(now)
    whole = request_in("a", 30, 0, extend_end=30)
    cut = request_in("b", 100, 0, prefix_len=0, extend_end=34)
    batch = batch_of(whole, cut, extend=True, cut=cut)
    decoding = request_in("d", 10, 4)
    waiting = [request_in("w", 9, 0), request_in("r", 20, 6, retraction_count=1)]
    scheduler = scheduler_of(batch_of(decoding, full=True), waiting, cut)
    told.began(scheduler, batch)
    now[0] = 1.02
    whole.output_ids.append(0)
    told.ended(None, scheduler, batch, None)
    (report,) = kept.reports
    assert report.running == [
        Row("d", 10, 13, 4, 0),
        Row("a", 30, 30, 1, 0),
        Row("b", 100, 34, 0, 0),
    ]
    assert report.waiting == [Row("w", 9, 0, 0, 0), Row("r", 20, 0, 6, 1)]
    assert (report.blocks_free, report.steps) == (30, 1)
    assert report.step is not None
    assert (report.step.tokens, report.step.sequences, report.step.context_tokens) == (64, 2, 0)
    assert report.step.prefill_work == 30 * 15 + 34 * 17
    assert report.step.duration_ms == pytest.approx(20)
    assert report.admission == Admission(0.3, False), "what was cut opens the batch"


def test_a_decode_step_is_told_and_who_leaves_opens_the_batch() -> None:
    now = [1.0]
    told, kept = reporter(now)
    stays, leaves = request_in("a", 30, 3), request_in("b", 10, 5)
    batch = batch_of(stays, leaves, full=True)
    scheduler = scheduler_of(batch, [request_in("w", 9, 0)])
    for _ in range(2):
        told.began(scheduler, batch)
        told.ended(None, scheduler, batch)
        leaves.finished = lambda: True
    full, opened = kept.reports
    assert full.step is not None and full.step.context_tokens == 32 + 14
    assert full.admission == Admission(0.3, True)
    assert [one.request_id for one in opened.running] == ["a"]
    assert opened.admission == Admission(0.3, False)


def test_steps_that_overlap_are_timed_from_the_end_of_the_one_before() -> None:
    now = [0.0]
    told, kept = reporter(now)
    batch = batch_of(request_in("a", 3, 1))
    scheduler = scheduler_of(batch, [])
    told.began(scheduler, batch)
    now[0] = 0.004
    told.began(scheduler, batch)
    for now[0] in (0.010, 0.015):
        told.ended(None, scheduler, batch)
    durations = [report.step.duration_ms for report in kept.reports if report.step]
    assert durations == pytest.approx([10, 5])


def test_an_idle_scheduler_says_so_once() -> None:
    told, kept = reporter([0.0])
    batch = batch_of(request_in("a", 3, 1))
    told.began(None, batch)
    told.ended(None, scheduler_of(batch, [request_in("w", 9, 0)]), batch)
    idle = scheduler_of(batch_of(), [])
    told.idles(None, idle)
    told.idles(None, idle)
    assert [(len(r.running), r.waiting_count) for r in kept.reports] == [(1, 1), (0, 0)]


def test_a_scheduler_that_is_another_ends_the_reports_and_goes_on() -> None:
    told, kept = reporter([0.0])
    told.began(None, SimpleNamespace())
    told.ended(None, SimpleNamespace(), SimpleNamespace())
    told.idles(None, SimpleNamespace())
    assert not kept.reports


def test_without_a_path_the_plug_in_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.SOCKET, raising=False)
    plugin.register()
    assert "sglang" not in sys.modules


# ---------------------------------------------------------------- a server that breaks


async def test_a_silent_server_has_failed_and_everybody_is_told() -> None:
    async with served(SETTINGS) as (server, url):
        engine = SGLangEngine(SGLangSettings(url=url, hang_timeout_s=0.5))
        await engine.start()
        run = asyncio.create_task(answer(engine, asked("c.r", max_tokens=400, ignore_eos=True)))
        await eventually(lambda: engine.stats().running > 0, what="a run")
        server.stands_still.set()
        server.hangs.set()
        async with asyncio.timeout(5):
            assert "no answer" in await engine.wait_failed()
            with pytest.raises(EngineFailed):
                await run
        await engine.close()


async def test_a_scheduler_that_stands_still_has_failed_but_not_while_it_is_idle() -> None:
    async with served(SETTINGS) as (server, url):
        engine = SGLangEngine(SGLangSettings(url=url, stall_timeout_s=1.0))
        await engine.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await engine.wait_failed()
        server.stands_still.set()
        run = asyncio.create_task(answer(engine, asked("c.r", max_tokens=4, ignore_eos=True)))
        async with asyncio.timeout(5):
            assert "did nothing" in await engine.wait_failed()
            with pytest.raises(EngineFailed):
                await run
        await engine.close()


async def test_priorities_are_turned_where_higher_is_sooner() -> None:
    async with served(SETTINGS, Ways(priority=True)) as (server, url):
        engine = SGLangEngine(SGLangSettings(url=url))
        await engine.start()
        await answer(engine, asked("c.r", max_tokens=2, priority=5))
        assert server.bodies[-1]["priority"] == -5
        await engine.close()


async def test_who_stops_reading_is_aborted_by_name() -> None:
    async with served(SETTINGS) as (server, url):
        engine = SGLangEngine(SGLangSettings(url=url))
        await engine.start()
        deltas = engine.generate(asked("c.r", max_tokens=400, ignore_eos=True))
        await anext(deltas)
        await deltas.aclose()
        await eventually(lambda: bool(server.aborts), what="an abort")
        assert server.aborts == [server.bodies[-1]["rid"]]
        await engine.close()


async def test_a_server_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "launch_server.py").write_text("raise SystemExit('no such model')")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncd {tmp_path}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    log_file = str(tmp_path / "log")
    engine = SGLangEngine(SGLangSettings(model="m", python=str(python), log_file=log_file))
    with pytest.raises(UsageError, match="no such model"):
        await engine.start()
    await engine.close()


async def test_reports_of_a_running_server_are_taken_where_it_sends_them(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    async with served(SETTINGS) as (_, url):
        engine = SGLangEngine(SGLangSettings(url=url, socket=path))
        await engine.start()  # with a warning: nothing has come yet
        assert engine.stats().source == "reported"
        sender = Sender(path)
        with closing(sender._socket):
            sender.send(Report(1, [Row("x", 4, 4, 1, 0)], [], 0, 190, 0, STEP))
        await eventually(lambda: engine.stats().source == "exact", what="a report")
        assert engine.take_steps() == [STEP]
        assert tokens_of(await answer(engine, asked("c.r", max_tokens=3, ignore_eos=True))) == 3
        await engine.close()


def test_what_the_plug_in_sends_is_what_the_worker_reads(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    sender = Sender(path)
    with closing(Receiver(path)) as receiver, closing(sender._socket):
        told = plugin.Reporter(sender, lambda: True)
        batch = batch_of(request_in("a", 3, 1))
        told.began(None, batch)
        told.ended(None, scheduler_of(batch, []), batch)
        (report,) = receiver.take()
    assert report.running == [Row("a", 3, 3, 1, 0)]
    assert report.admission == Admission(0.3, False)
