"""What a worker tells Prometheus of requests and of its engine."""

from prometheus_client import REGISTRY

from pipeline.messages import EngineLimits, Instance, Result, Trace, Usage
from workers.gauges import STAGES, EngineGauges, count_result, stage_seconds

LIMITS = EngineLimits(
    rules="vllm",
    block_size=16,
    kv_blocks=200,
    max_num_seqs=8,
    max_num_batched_tokens=512,
    max_model_len=2048,
)
TRACE = Trace(
    accepted_at_ms=1_000.0,
    tagger_received_at_ms=1_002.0,
    tagged_at_ms=1_010.0,
    dispatcher_received_at_ms=1_011.0,
    probed_at_ms=1_016.0,
    dispatched_at_ms=1_017.0,
    worker_received_at_ms=1_015.0,  # that host's clock is behind
    engine_accepted_at_ms=1_020.0,
    first_token_at_ms=1_220.0,
    finished_at_ms=2_220.0,
)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_stages_are_times_between_instants_and_never_below_nothing() -> None:
    found = stage_seconds(TRACE)
    assert list(found) == list(STAGES)
    assert found["tagger"] == 0.008 and found["probes"] == 0.005
    assert found["inbox"] == 0.0
    assert found["generation"] == 1.0
    assert stage_seconds(Trace(accepted_at_ms=1.0)) == {}


def test_latencies_are_of_answered_requests_alone() -> None:
    def sums() -> list[float]:
        return [
            value("astrolabe_e2e_request_latency_seconds_sum"),
            value("astrolabe_time_to_first_token_seconds_sum"),
            value("astrolabe_request_time_per_output_token_seconds_sum"),
            value("astrolabe_generation_tokens_total"),
        ]

    result = Result(
        id="r",
        client="c",
        model="m",
        status="done",
        attempt=1,
        usage=Usage(prompt_tokens=7, completion_tokens=11),
        trace=TRACE,
    )
    before = sums()
    count_result(result)
    grown = [round(now - then, 6) for now, then in zip(sums(), before, strict=True)]
    assert grown == [1.22, 0.22, 0.1, 11.0]
    before = sums()
    failed = Result(id="r", client="c", model="m", status="error", attempt=1, trace=TRACE)
    count_result(failed)
    assert sums() == before


def test_preemptions_are_counted_on_over_a_restart_of_the_engine() -> None:
    def show(preemptions: int) -> None:
        gauges.show(
            Instance(
                instance="i",
                boot="b",
                model="m",
                engine="e",
                state="ready",
                limits=LIMITS,
                running=3,
                kv_blocks_used=50,
                preemptions=preemptions,
                sent_at_ms=0.0,
            )
        )

    gauges = EngineGauges()
    before = value("astrolabe_num_preemptions_total")
    for preemptions in (2, 5, 5, 1):
        show(preemptions)
    assert value("astrolabe_num_preemptions_total") - before == 6
    assert value("astrolabe_kv_cache_usage_perc") == 0.25
    assert value("astrolabe_num_requests_running") == 3
