"""The parts of the adapter for OpenAI servers: events, counts, errors, loads, limits, times."""

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import (
    BadRequest,
    EngineFailed,
    Overloaded,
    PromptTooLong,
    RequestError,
    UsageError,
)
from predictor.fit import OnlineFit
from predictor.step_time import PROFILES, StepLoad, scaled, step_ms
from workers.openai_engine import wire
from workers.openai_engine.limits import read_limits
from workers.openai_engine.load import ServerLoad, read_loads, read_metrics
from workers.openai_engine.settings import OpenAISettings
from workers.openai_engine.stream import Counted, decoded, events
from workers.token_times import WINDOW_S, TokenTimes

# ------------------------------------------------------------------ events


async def lines_of(text: bytes) -> AsyncIterator[bytes]:
    for line in text.splitlines(keepends=True):
        yield line


async def read(text: bytes) -> list[bytes]:
    return [data async for data in events(lines_of(text))]


async def test_events_end_at_the_mark_and_the_rest_is_passed_over() -> None:
    text = b': ping\n\nevent: x\ndata: {"a":1}\n\ndata:{"b":2}\r\n\r\nid: 3\n\n'
    text += b"data: [DONE]\n\ndata: x\n\n"
    assert await read(text) == [b'{"a":1}', b'{"b":2}']


async def test_an_event_over_several_lines_is_one() -> None:
    assert await read(b"data: a\ndata: b\n\ndata: c\n") == [b"a\nb", b"c"]


@given(st.lists(st.text(alphabet=st.characters(blacklist_categories=["Cs"])), max_size=8))
async def test_any_text_survives(texts: list[str]) -> None:
    sent = [json.dumps({"choices": [{"text": text}]}).encode() for text in texts]
    got = await read(b"".join(b"data: " + data + b"\n\n" for data in sent) + b"data: [DONE]\n\n")
    assert got == sent


# ------------------------------------------------------------------ counts


def taken(*bodies: dict[str, Any]) -> tuple[list[tuple[str, int]], Counted]:
    counted = Counted()
    found = [counted.take(decoded(json.dumps(body).encode())) for body in bodies]
    return [(delta.text, delta.tokens) for delta in found if delta is not None], counted


def test_counts_in_every_event_are_believed() -> None:
    deltas, counted = taken(
        {"choices": [{"text": "a b"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
        {"choices": [{"text": ""}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
        {
            "choices": [{"text": "c", "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 4},
        },
    )
    assert deltas == [("a b", 2), ("", 1), ("c", 1)]
    last = counted.last()
    assert (last.tokens, last.finish_reason, last.prompt_tokens) == (0, "stop", 5)


def test_counts_at_the_end_correct_what_was_counted_by_event() -> None:
    deltas, counted = taken(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"content": "b c"}}]},
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}},
    )
    assert deltas == [("a", 1), ("b c", 1), ("", 3)]
    last = counted.last()
    assert (last.tokens, last.finish_reason, last.prompt_tokens) == (0, "length", 9)


def test_token_ids_are_counted_where_there_are_some() -> None:
    deltas, _ = taken({"choices": [{"text": "abc", "token_ids": [1, 2, 3]}]})
    assert deltas == [("abc", 3)]


def test_a_stream_that_stops_in_the_middle_is_a_failure() -> None:
    _, counted = taken({"choices": [{"text": "a"}]})
    with pytest.raises(EngineFailed, match="middle"):
        counted.last()


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter"])
def test_an_end_that_is_none_is_a_failure(reason: str) -> None:
    _, counted = taken({"choices": [{"text": "a", "finish_reason": reason}]})
    with pytest.raises(EngineFailed, match=reason):
        counted.last()


@pytest.mark.parametrize("data", [b"{", b'"x"', b'{"choices": 5}', b"\xff"])
def test_what_is_no_event_is_a_failure_in_words(data: bytes) -> None:
    with pytest.raises(EngineFailed, match="cannot be read"):
        decoded(data)


# ------------------------------------------------------------------ errors

VLLM_TOO_LONG = (
    "This model's maximum context length is 512 tokens. However, your request has 600 input "
    "tokens. Please reduce the length of the input messages."
)
SGLANG_TOO_LONG = "The input (600 tokens) is longer than the model's context length (512 tokens)."
SGLANG_SUM = (
    "Requested token count exceeds the model's maximum context length of 512 tokens. You requested "
    "a total of 540 tokens: 500 tokens from the input messages and 40 tokens for the completion."
)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": {"message": VLLM_TOO_LONG, "code": 400}}, PromptTooLong),
        (400, {"object": "error", "message": SGLANG_TOO_LONG, "code": 400}, PromptTooLong),
        (400, {"error": {"message": SGLANG_TOO_LONG}}, PromptTooLong),
        (
            400,
            {"error": {"code": 400, "message": "the request exceeds the available context size"}},
            PromptTooLong,
        ),
        (
            422,
            {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 512"},
            PromptTooLong,
        ),
        (413, {"error": "Payload too large"}, PromptTooLong),
        (400, {"error": {"message": "temperature must be non-negative"}}, BadRequest),
        (422, {"detail": "field required"}, BadRequest),
        (429, {"error": {"message": "Rate limit"}}, Overloaded),
        (503, {"error": {"message": "Service Unavailable"}}, Overloaded),
        (500, {"error": {"message": "boom"}}, EngineFailed),
        (404, {"error": {"message": "no such model"}}, EngineFailed),
        (502, "<html>bad gateway</html>", EngineFailed),
    ],
)
def test_errors_of_all_kinds_of_servers(
    status: int, body: object, kind: type[RequestError]
) -> None:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    error = wire.error_of(status, data)
    assert type(error) is kind
    assert error.message


def test_overload_says_when_to_come_back() -> None:
    assert wire.error_of(503, b"{}", "2.5").retry_after_ms == 2_500
    assert wire.error_of(503, b"{}", "soon").retry_after_ms == wire.RETRY_AFTER_MS


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"message": "queue full", "code": 503}}, Overloaded),
        ({"error": {"message": SGLANG_TOO_LONG, "code": 400}}, PromptTooLong),
        ({"object": "error", "message": "x", "code": 500}, EngineFailed),
        ({"error": "words alone"}, EngineFailed),
        ({"error": {"message": "x", "code": "BadRequest"}}, EngineFailed),
    ],
)
def test_errors_inside_a_stream(body: dict[str, Any], kind: type[RequestError]) -> None:
    error = wire.error_in(decoded(json.dumps(body).encode()))
    assert type(error) is kind


def test_no_error_is_none() -> None:
    assert wire.error_in(decoded(b'{"choices": []}')) is None


def test_a_refused_sum_tells_the_prompts_tokens() -> None:
    error = wire.error_of(400, json.dumps({"error": {"message": SGLANG_SUM}}).encode())
    assert wire.is_of_the_sum(error)
    assert wire.room_told(error.message) == 500
    plain = wire.error_of(400, json.dumps({"error": {"message": SGLANG_TOO_LONG}}).encode())
    assert not wire.is_of_the_sum(plain)


# ------------------------------------------------------------------ loads

LOADS = {
    "vllm": (
        'vllm:num_requests_running{model_name="m",engine="0"} 3.0\n'
        'vllm:num_requests_waiting{model_name="m",engine="0"} 2.0\n'
        'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.25\n'
        'vllm:num_preemptions_total{model_name="m"} 4.0\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="101"} 1.0\n',
        ServerLoad(3, 2, 0.25, 4, {"block_size": "16", "num_gpu_blocks": "101"}),
    ),
    "vllm, two engines": (
        'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 1.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n',
        ServerLoad(4, None, 0.375, None),
    ),
    "sglang": (
        'sglang:num_running_reqs{model_name="m"} 5.0\nsglang:num_queue_reqs{model_name="m"} 1.0\n'
        'sglang:token_usage{model_name="m"} 0.5\nsglang:num_retracted_requests_total{} 2.0\n',
        ServerLoad(5, 1, 0.5, 2),
    ),
    "llama.cpp": (
        "# HELP llamacpp:requests_processing x\n# TYPE llamacpp:requests_processing gauge\n"
        "llamacpp:requests_processing 2\nllamacpp:requests_deferred 7\n",
        ServerLoad(2, 7),
    ),
    "tgi": ("tgi_batch_current_size 6\ntgi_queue_size 8\n", ServerLoad(6, 8)),
    "another": ("python_gc_objects_collected_total 5\n", ServerLoad()),
    "nothing": ("", ServerLoad()),
}


@pytest.mark.parametrize("name", LOADS)
def test_what_servers_tell_of_their_load(name: str) -> None:
    text, expected = LOADS[name]
    assert read_metrics(text) == expected


def test_sglangs_own_route() -> None:
    rank = {
        "num_running_reqs": 2,
        "num_waiting_reqs": 3,
        "num_used_tokens": 100,
        "max_total_num_tokens": 400,
    }
    assert read_loads({"loads": [rank, rank]}) == ServerLoad(4, 6, 0.25)
    for wrong in (None, 5, {"loads": 5}, {"loads": [5]}):
        with pytest.raises(ValueError, match="loads"):
            read_loads(wrong)


# ------------------------------------------------------------------ limits


async def limits_of(
    routes: dict[str, Any], load: ServerLoad | None = None, **settings: Any
) -> tuple[str, Any]:
    async def get(path: str) -> Any:
        return routes.get(path)

    return await read_limits(get, load or ServerLoad(), OpenAISettings(url="http://h", **settings))


MODELS = {"/v1/models": {"data": [{"id": "m", "max_model_len": 2_048}]}}


async def test_vllm_tells_length_and_blocks() -> None:
    cache = {"block_size": "16", "num_gpu_blocks": "101"}
    model, limits = await limits_of(MODELS, ServerLoad(cache=cache), max_num_seqs=64)
    assert model == "m"
    assert (limits.rules, limits.max_model_len, limits.max_num_seqs) == ("vllm", 2_048, 64)
    assert (limits.block_size, limits.kv_blocks) == (16, 100), "one is the null block"


async def test_sglang_tells_all() -> None:
    info = {
        "context_length": None,
        "max_total_num_tokens": 1_024,
        "page_size": 16,
        "max_running_requests": 8,
        "chunked_prefill_size": 256,
        "schedule_conservativeness": 0.5,
    }
    _, limits = await limits_of({**MODELS, "/server_info": info})
    assert limits.rules == "sglang"
    assert (limits.kv_blocks, limits.block_size, limits.max_num_seqs) == (64, 16, 8)
    assert limits.max_num_batched_tokens == 256
    assert limits.max_model_len == 2_048
    assert limits.new_token_ratio_start == pytest.approx(0.35)


async def test_llama_cpp_has_slots() -> None:
    props = {"default_generation_settings": {"n_ctx": 4_096}, "total_slots": 4}
    _, limits = await limits_of({"/v1/models": {"data": [{"id": "m"}]}, "/props": props})
    assert (limits.max_model_len, limits.max_num_seqs) == (4_096, 4)
    assert limits.kv_blocks * limits.block_size >= 4 * 4_096, "its slots never run out of blocks"


async def test_tgi_tells_tokens() -> None:
    info = {
        "max_total_tokens": 4_096,
        "max_batch_total_tokens": 50_000,
        "max_batch_prefill_tokens": 4_096,
        "max_concurrent_requests": 128,
    }
    _, limits = await limits_of({"/v1/models": {"data": [{"id": "m"}]}, "/info": info})
    assert (limits.max_model_len, limits.kv_blocks, limits.block_size) == (4_096, 50_000, 1)


async def test_a_setting_beats_the_server() -> None:
    _, limits = await limits_of(MODELS, max_model_len=1_000, kv_blocks=70, rules="sglang")
    assert (limits.max_model_len, limits.kv_blocks, limits.rules) == (1_000, 70, "sglang")


async def test_what_cannot_be_known_is_asked_for() -> None:
    with pytest.raises(UsageError, match="max_model_len"):
        await limits_of({"/v1/models": {"data": [{"id": "m"}]}})
    with pytest.raises(UsageError, match="names no model"):
        await limits_of({})
    with pytest.raises(UsageError, match="serves m"):
        await limits_of(MODELS, model="other")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"url": "localhost:8000"}, "url"),
        ({"profile": "none"}, "profile"),
        ({"api_key_env": "sk-secret/key"}, "api_key_env"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"hang_timeout_s": 0.0}, "hang_timeout_s"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        OpenAISettings(**{"url": "http://h", **settings})


def test_a_key_that_was_given_for_its_variable_is_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        OpenAISettings(url="http://h", api_key_env="sk-secret/key")
    assert "secret" not in str(caught.value)


# ------------------------------------------------------------------ step times


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_token_times_alone_teach_the_decode_step() -> None:
    """Streams over HTTP from an engine half as fast as told: the network delays each token, some
    streams stall, batches come and go."""
    profile = PROFILES["a30-llama-2-7b"]
    truth, fit = scaled(profile, 2.0), OnlineFit(profile)
    clock, rng = Clock(), random.Random(3)
    times = TokenTimes(clock)
    for batch in range(120):
        streams = rng.choice((1, 4, 16, 40))
        contexts = {f"{batch}.{n}": rng.randint(20, 600) for n in range(streams)}
        for key in contexts:
            times.began(key)
        for _ in range(40):
            context = sum(contexts.values())
            clock.now += step_ms(truth, StepLoad(streams, 0, context, streams)) / 1000
            began = clock.now
            for key in contexts:
                clock.now = began + rng.expovariate(1 / 0.0004)
                if rng.random() < 0.01:
                    clock.now += 0.3
                times.grew(key, 1, contexts[key])
                contexts[key] += 1
            clock.now = began
        for key in contexts:
            times.ended(key)
        for sample in times.take():
            load = StepLoad(sample.tokens, 0, sample.context_tokens, sample.sequences)
            fit.observe(load, sample.duration_ms)
    for n in (4, 16, 40):
        load = StepLoad(n, 0, 300 * n, n)
        assert step_ms(fit.coefficients, load) == pytest.approx(step_ms(truth, load), rel=0.06)


def test_nothing_is_learned_while_a_prompt_is_computed() -> None:
    clock = Clock()
    times = TokenTimes(clock)
    times.began("a")
    times.grew("a", 1, 10)
    times.began("b")
    for _ in range(100):
        clock.now += WINDOW_S / 10
        times.grew("a", 1, 10)
    assert times.take() == []
    times.grew("b", 1, 10)
    for _ in range(100):
        clock.now += WINDOW_S / 10
        times.grew("a", 1, 10)
        times.grew("b", 1, 10)
    samples = times.take()
    assert samples
    assert {sample.sequences for sample in samples} == {2}
    assert all(sample.duration_ms == pytest.approx(WINDOW_S * 100) for sample in samples)


def test_several_tokens_in_one_event_are_several_steps() -> None:
    clock = Clock()
    times = TokenTimes(clock)
    times.began("a")
    times.grew("a", 1, 10)
    for _ in range(20):
        clock.now += 0.06
        times.grew("a", 3, 10)
    assert all(sample.duration_ms == pytest.approx(20) for sample in times.take())
