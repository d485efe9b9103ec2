"""What of the vLLM adapter runs without vLLM: its settings, its report, what it makes of both."""

import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.messages import STEPS_REPORTED_MAX, StepSample
from workers.engines import make_engine
from workers.report import ROWS_MAX, Receiver, Report, Row, Sender
from workers.vllm_engine import internals
from workers.vllm_engine.settings import VLLMSettings
from workers.vllm_engine.state import VLLMState


def nobody(_: str) -> None:
    """The worker has no request with this id."""


STEP = StepSample(3, 1.0, 2, 1, 4.0)


def report(running: list[Row], waiting: list[Row], step: StepSample | None = STEP) -> Report:
    return Report(7, running, waiting, len(waiting), 30, 2, step)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["args=--dtype float16"], "model=FOLDER"),
        (["model="], "model"),
        (["model=m", "profile=none"], "profile"),
        (["model=m", "requests_max=0"], "requests_max"),
        (["model=m", "hang_timeout_s=0.1"], "hang_timeout_s"),
        (["model=m", 'args=--x "'], "args"),
        (["model=m", "max_num_seqs=3"], "max_num_seqs"),
    ],
)
def test_a_wrong_setting_is_named(settings: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        make_engine("vllm", settings)


def test_vllms_own_flags_are_handed_through() -> None:
    settings = VLLMSettings("m", args="--max-num-seqs 8 --config 'my file.yaml'")
    assert settings.flags == [
        *("--model", "m"),
        *("--max-num-seqs", "8"),
        *("--config", "my file.yaml"),
    ]


# ---------------------------------------------------------------- the report

ROWS = st.lists(
    st.builds(
        Row,
        st.text(max_size=20),
        st.integers(1, 10**6),
        st.integers(0, 10**6),
        st.integers(0, 10**6),
        st.integers(0, 9),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(ROWS, ROWS)
def test_reports_arrive_as_they_were_sent(running: list[Row], waiting: list[Row]) -> None:
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "s")
        receiver, sender = Receiver(path), Sender(path)
        sender.send(report(running, waiting))
        sender.send(report(waiting, running, None))
        assert list(receiver.take()) == [report(running, waiting), report(waiting, running, None)]
        assert not receiver.take()
        receiver.close()
        sender._socket.close()


def test_a_sender_is_held_up_by_nobody(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    sender = Sender(path)
    full = report([Row("r" * 16, 10**6, 10**6, 10**6, 1)] * ROWS_MAX, [])
    sender.send(full)  # nobody listens yet
    receiver = Receiver(path)
    for _ in range(200):
        sender.send(full)  # nobody reads
    assert 0 < len(receiver.take(at_most=1_000)) < 200
    sender.send(full)
    assert len(receiver.take()) == 1  # and it goes on
    receiver.close()
    sender._socket.close()


def test_what_is_no_report_is_skipped(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    receiver, sender = Receiver(path), Sender(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"\x00", b"\xc1" * 50, b"{}"):
            stranger.sendto(data, path)
    sender.send(report([], []))
    assert list(receiver.take()) == [report([], [])]
    receiver.close()
    sender._socket.close()


# ---------------------------------------------------------------- what is made of it


def test_the_queues_are_told_in_their_order_with_their_phases() -> None:
    state = VLLMState({"i1": "a", "i2": "b", "i3": "c", "i4": "d"}.get)
    running = [
        Row("i2", 10, 14, 5, 0),  # decodes
        Row("i1", 10, 4, 0, 0),  # its prompt is half computed
        Row("i3", 10, 4, 8, 1),  # was preempted, and computes its past again
        Row("warm-up", 3, 3, 1, 0),  # nobody's
    ]
    state.reported(report(running, [Row("i4", 9, 0, 4, 2)]))
    stats = state.stats(kv_blocks=40, unfinished=4)
    assert [(key, p.phase) for key, p in stats.progress.items()] == [
        ("b", "decoding"),
        ("a", "prefilling"),
        ("c", "prefilling"),
        ("d", "preempted"),
    ]
    assert stats.progress["c"].prompt_tokens == 10
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (4, 1, 10)
    assert (stats.preemptions, stats.steps, stats.source) == (2, 7, "exact")


def test_one_on_its_way_to_the_scheduler_waits() -> None:
    state = VLLMState(nobody)
    state.reported(report([Row("i", 1, 1, 1, 0)], []))
    assert state.stats(40, unfinished=3).waiting == 2


def test_without_reports_vllms_statistics_are_told() -> None:
    state = VLLMState(nobody)
    assert state.stats(40, 2).waiting == 2
    counts = SimpleNamespace(num_running_reqs=3, num_waiting_reqs=1, kv_cache_usage=0.5)
    state.counted(counts, SimpleNamespace(num_preempted_reqs=2))
    state.counted(None, SimpleNamespace(num_preempted_reqs=1))
    stats = state.stats(40, 5)
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (3, 2, 20)
    assert (stats.preemptions, stats.source, dict(stats.progress)) == (3, "reported", {})


def test_steps_are_taken_once_and_bounded() -> None:
    state = VLLMState(nobody)
    for _ in range(STEPS_REPORTED_MAX + 5):
        state.reported(report([], []))
    state.reported(report([], [], None))
    assert state.take_steps() == [STEP] * STEPS_REPORTED_MAX
    assert state.take_steps() == []


# ---------------------------------------------------------------- vLLM's insides


def config(**scheduler: object) -> SimpleNamespace:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=8,
            max_num_batched_tokens=256,
            enable_chunked_prefill=True,
            scheduler_cls=None,
            async_scheduling=False,
            **scheduler,
        ),
        cache_config=SimpleNamespace(block_size=32, num_gpu_blocks=41),
        model_config=SimpleNamespace(max_model_len=512),
        additional_config={"theirs": 1},
    )


def test_limits_are_vllms_own_without_the_null_block() -> None:
    limits = internals.limits_of(config(watermark=0.1, scheduler_reserve_full_isl=False))
    assert (limits.kv_blocks, limits.block_size, limits.max_model_len) == (40, 32, 512)
    assert (limits.watermark, limits.reserve_full_isl) == (0.1, False)


def test_the_scheduler_reports_and_what_was_configured_stays() -> None:
    theirs = config()
    internals.report_to(theirs, "/tmp/s")  # noqa: S108
    assert theirs.additional_config == {"theirs": 1, internals.SOCKET: "/tmp/s"}  # noqa: S108
    assert theirs.scheduler_config.scheduler_cls == internals.SCHEDULERS[False]


def test_somebodys_own_scheduler_is_left_alone() -> None:
    theirs = config()
    theirs.scheduler_config.scheduler_cls = "collections.deque"
    with pytest.raises(TypeError, match="of your own"):
        internals.report_to(theirs, "/tmp/s")  # noqa: S108


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.32.0", True), ("0.32.1+cpu", True), ("0.33.0", False), ("0.3", False)],
)
def test_only_versions_that_were_held_beside_ours_report(version: str, known: bool) -> None:
    assert internals.knows(version) == known


def test_a_client_id_is_found_again() -> None:
    assert internals.client_id("0a1b2c3d-12ab34cd") == "0a1b2c3d"
