"""What running components export, read by Prometheus's own parser, and what is asked of it."""

import asyncio
import re
import socket
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from pipeline.client import Client
from pipeline.messages import Request
from pipeline.stack import LocalStack, StackSettings
from tests.compose.files import metrics_of, queries
from tests.waiting import eventually

REQUESTS = 20
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
LABELS = {
    *("stage", "code", "status", "source", "how", "model", "policy", "reason", "outcome"),
    *("figure", "quantile", "estimate", "component", "name", "stream"),
}


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def scrape(port: int) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def total(families: Mapping[str, Metric], sample: str) -> float:
    return sum(
        found.value
        for family in families.values()
        for found in family.samples
        if found.name == sample
    )


async def test_components_export_what_rules_and_panels_ask_for() -> None:
    ports = dict(zip(("tagger", "dispatcher", "worker", "predictor"), free_ports(4), strict=True))
    settings = StackSettings(
        instances=1,
        seed=1,
        tagger_args=(f"--metrics-port={ports['tagger']}",),
        dispatcher_args=(f"--metrics-port={ports['dispatcher']}",),
        worker_args=(f"--metrics-port={ports['worker']}", "--engine-arg=time_scale=0.1"),
        predictor_args=(f"--metrics-port={ports['predictor']}",),
    )
    async with LocalStack(settings) as stack:
        async with await Client.connect(stack.bus_settings) as client:
            answers = await asyncio.gather(
                *(
                    client.complete(
                        Request(id=f"m{n}", prompt="Why is the sky blue?", max_tokens=12)
                    )
                    for n in range(REQUESTS)
                )
            )

        async def all_counted() -> bool:
            worker = await asyncio.to_thread(scrape, ports["worker"])
            dispatcher = await asyncio.to_thread(scrape, ports["dispatcher"])
            return (
                total(worker, "astrolabe_results_total") == REQUESTS
                and total(dispatcher, "astrolabe_stream_messages") >= REQUESTS
                and total(dispatcher, "astrolabe_instances_alive") == 1
            )

        await eventually(all_counted, within_s=15, what="every request counted")
        found = {role: await asyncio.to_thread(scrape, port) for role, port in ports.items()}

    worker, dispatcher = found["worker"], found["dispatcher"]
    for name in (
        "astrolabe_time_to_first_token_seconds_count",
        "astrolabe_request_time_per_output_token_seconds_count",
        "astrolabe_e2e_request_latency_seconds_count",
    ):
        assert total(worker, name) == REQUESTS, name
    assert total(worker, "astrolabe_generation_tokens_total") == sum(
        answer.usage.completion_tokens for answer in answers if answer.usage
    )
    stages = {s.labels["stage"] for s in worker["astrolabe_stage_seconds"].samples}
    assert len(stages) == 8
    # On a busy machine a dispatcher stands in for the tagger, a probe is late, a step is repeated.
    both = {"tagger": found["tagger"], "dispatcher": dispatcher}
    assert sum(total(of, "astrolabe_tagged_total") for of in both.values()) >= REQUESTS
    assert total(dispatcher, "astrolabe_dispatched_total") >= REQUESTS
    assert total(dispatcher, "astrolabe_probes_total") >= REQUESTS
    assert total(found["predictor"], "astrolabe_predictions_total") > 0
    for role, families in found.items():
        assert total(families, "astrolabe_event_loop_lag_seconds_count") > 0, role
        (info,) = families["astrolabe_component_info"].samples
        assert info.labels["component"] == role
    for role in ("worker", "predictor"):
        assert found[role]["astrolabe_component_info"].samples[0].labels["name"] == "i0"

    exported = {
        family.name + suffix
        for families in found.values()
        for family in families.values()
        for suffix in SUFFIXES[family.type]
    }
    asked = list(queries())
    assert len(asked) > 50
    missing = [(where, names) for where, query in asked if (names := metrics_of(query) - exported)]
    assert missing == []
    assert all(metrics_of(query) for _, query in asked)
    check_joins(asked, found["worker"])
    check_names([family for families in found.values() for family in families.values()])


def check_joins(asked: list[tuple[str, str]], families: Mapping[str, Metric]) -> None:
    """A gauge without labels is 0 in components that it says nothing of: only a sum or a maximum
    may take them in."""
    bare = {
        name
        for name, family in families.items()
        if family.type == "gauge" and family.samples and not family.samples[0].labels
    }
    assert "astrolabe_num_requests_running" in bare
    for where, query in asked:
        if metrics_of(query) & bare:
            joined = "astrolabe_component_info{" in query
            assert joined or query.startswith(("sum(", "max(")), where


def check_names(families: list[Metric]) -> None:
    """Prometheus's conventions: one prefix, base units, and label sets that cannot grow."""
    ours = [family for family in families if family.name.startswith("astrolabe_")]
    assert len({family.name for family in ours}) > 40
    for family in ours:
        assert family.documentation, family.name
        assert not re.search(r"_(ms|millis|kb|mb|minutes)\b", family.name), family.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} <= LABELS, family.name
            assert not any(len(text) > 64 for text in sample.labels.values()), sample


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.cli import main

    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104  where a metrics port listens
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["dispatcher", f"--metrics-port={port}"]) == 2
    assert f"--metrics-port {port}" in capsys.readouterr().err
