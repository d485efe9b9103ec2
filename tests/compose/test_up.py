"""`docker compose up`, for real, where an engine runs: what people do with a stack, in order."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from pipeline.bus import Bus, BusSettings
from pipeline.client import Client, Completion
from pipeline.messages import Request
from pipeline.status import read_status
from tests.compose.engine import BUILD_TIMEOUT_S, ComposeStack, docker, free_port, why_not
from tests.waiting import eventually

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=f"docker compose: {why_not()}"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + 300),
]

DEFAULT = {"nats": 1, "tagger": 1, "dispatcher": 2, "worker": 4}
HEALTHY_WITHIN_S = 240  # eight interpreters start at once, and each check starts one more
IN_USE_WITHIN_S = 60
VICTIM = ("worker-2", "worker_2")  # Compose v1 has another separator


@pytest.fixture(scope="module")
def stack() -> Iterator[ComposeStack]:
    made = ComposeStack(free_port())
    made.run("build", timeout_s=BUILD_TIMEOUT_S)
    try:
        made.run("up", "-d")
        yield made
    finally:
        made.run("down", "-v", "--remove-orphans", "--timeout", "5")


def healthy(stack: ComposeStack) -> Counter[str]:
    return Counter(
        name.rpartition("-")[0]
        for name, container in stack.containers().items()
        if container.health == "healthy"
    )


async def complete(
    client: Client, name: str, count: int, *, max_tokens: int, ignore_eos: bool = False
) -> list[Completion]:
    return await asyncio.gather(
        *(
            client.complete(
                Request(
                    id=f"{name}-{n}",
                    prompt="Why is the sky blue?",
                    max_tokens=max_tokens,
                    ignore_eos=ignore_eos,
                )
            )
            for n in range(count)
        )
    )


async def test_everybody_becomes_healthy(stack: ComposeStack) -> None:
    def all_healthy() -> bool:
        return healthy(stack) == Counter(DEFAULT)

    await eventually(all_healthy, within_s=HEALTHY_WITHIN_S, what="every container healthy")


async def test_requests_from_the_host_and_from_a_container_stream_back(stack: ComposeStack) -> None:
    async with await Client.connect(BusSettings(url=stack.url)) as client:
        events = [
            event async for event in client.stream(Request(id="host", prompt="Why?", max_tokens=40))
        ]
    assert [event.event for event in events].count("tokens") > 1
    assert events[-1].event == "done"
    answer = stack.run("exec", "-T", "dispatcher", "astrolabe", "send", "Why?", "--max-tokens=9")
    assert answer.strip()


def test_nobody_is_root_and_nothing_can_be_written(stack: ComposeStack) -> None:
    for name in ("nats", "tagger", "dispatcher", "worker"):
        assert stack.run("exec", "-T", name, "id", "-u").strip() == "10001"
        tried = stack.run("exec", "-T", name, "sh", "-c", "touch /opt/x 2>&1 || echo refused")
        assert "Read-only file system" in tried and "refused" in tried


async def test_instances_are_named_by_number_and_keep_their_names(stack: ComposeStack) -> None:
    bus = await Bus.connect(BusSettings(url=stack.url), name="test")

    async def names() -> dict[str, str]:
        rows = (await read_status(bus)).instances
        return {row.instance.replace("_", "-"): row.boot for row in rows if row.state == "ready"}

    before = await names()
    assert sorted(before) == [f"astrolabe-test-worker-{n}" for n in range(1, 5)]
    stack.run("restart", "worker")

    async def all_again() -> bool:
        after = await names()
        return sorted(after) == sorted(before) and not set(after.values()) & set(before.values())

    await eventually(all_again, within_s=IN_USE_WITHIN_S, what="the same names with new boots")
    await bus.close()


async def test_more_workers_are_used_within_seconds(stack: ComposeStack) -> None:
    stack.run("up", "-d", "--no-recreate", "--scale", "worker=6")
    used: set[str | None] = set()
    async with await Client.connect(BusSettings(url=stack.url)) as client:
        for turn in range(IN_USE_WITHIN_S):
            answers = await complete(client, f"scale{turn}", 12, max_tokens=16)
            used |= {answer.instance for answer in answers}
            if len(used) == 6:
                break
            await asyncio.sleep(0.5)
    assert len(used) == 6


async def test_a_killed_worker_loses_nothing(stack: ComposeStack) -> None:
    bus = await Bus.connect(BusSettings(url=stack.url), name="test")
    async with await Client.connect(BusSettings(url=stack.url)) as client:
        asked = asyncio.create_task(
            complete(client, "kill", 60, max_tokens=800, ignore_eos=True)  # eight seconds or more
        )
        victim = stack.containers()["worker-2"]

        async def has_work() -> bool:
            rows = (await read_status(bus)).instances
            return any(row.running and row.instance[-8:] in VICTIM for row in rows)

        await eventually(has_work, what="work for the one that is killed")
        await asyncio.to_thread(docker, "kill", victim.id)
        answers = await asked
    await bus.close()
    assert [answer.usage and answer.usage.completion_tokens for answer in answers] == [800] * 60
    assert max(answer.attempt for answer in answers) > 1


async def test_an_upgrade_loses_nothing(stack: ComposeStack) -> None:
    """The steps of docs/operations.md, every container made anew, while requests come."""
    upgraded = asyncio.Event()

    async def keep_asking(client: Client) -> list[Completion]:
        answers: list[Completion] = []
        while not upgraded.is_set():
            answers += await complete(client, f"upgrade-{len(answers)}", 4, max_tokens=50)
        return answers

    async with await Client.connect(BusSettings(url=stack.url)) as client:
        asking = asyncio.create_task(keep_asking(client))
        for service in ("worker", "tagger", "dispatcher"):
            arguments = ("up", "-d", "--no-deps", "--force-recreate", service)
            await asyncio.to_thread(stack.run, *arguments)
        upgraded.set()
        answers = await asking
        answers += await complete(client, "upgraded", 4, max_tokens=50)
    assert len(answers) > 4
    assert all(answer.finish_reason for answer in answers)


async def test_metrics_are_served_by_name(stack: ComposeStack) -> None:
    program = (
        "import urllib.request as u;"
        "print(u.urlopen('http://worker:9464/metrics', timeout=5).read().decode())"
    )
    told = stack.run("exec", "-T", "dispatcher", "python", "-c", program)
    assert 'astrolabe_component_info{component="worker"' in told
    assert "astrolabe_num_requests_running" in told


def test_one_that_has_just_started_stops_at_once(stack: ComposeStack) -> None:
    """With no handler yet it dies of the signal; a status of 137 would say that it did not."""
    stack.run("up", "-d")  # the dead worker too, and back to four
    stack.run("restart", "-t", "0", "worker")
    stack.run("stop", "worker")
    statuses = {
        container.exit_code
        for name, container in stack.containers().items()
        if name.startswith("worker")
    }
    assert statuses <= {0, 143}


async def test_everybody_ends_by_themselves(stack: ComposeStack) -> None:
    stack.run("up", "-d")

    def all_healthy() -> bool:
        return healthy(stack) == Counter(DEFAULT)

    await eventually(all_healthy, within_s=HEALTHY_WITHIN_S, what="every container healthy")
    stack.run("stop")
    ends = {name: container.exit_code for name, container in stack.containers().items()}
    ends = {name: status for name, status in ends.items() if not name.startswith("nats")}
    assert ends and set(ends.values()) == {0}, json.dumps(ends)
