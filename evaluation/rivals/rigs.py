"""Two engines with something in front, and handles to break them by: a router's, and ours."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import ClientError

from evaluation.rivals.bus_client import BusClient
from evaluation.rivals.engines import Engines
from evaluation.rivals.http_client import HttpClient
from evaluation.rivals.routers import Router
from evaluation.rivals.seen import Seen
from evaluation.rivals.servers import EngineServers
from evaluation.rivals.targets import reach_all, running_router, stack_settings
from evaluation.rivals.workload import Arrival
from pipeline.bus import Bus, Message
from pipeline.child import Child
from pipeline.messages import StateUpdate
from pipeline.policies import DEFAULT_POLICY
from pipeline.stack import LocalStack

EXIT_S = 30.0


class Rig(Protocol):
    """What the fault cases need of whatever they break."""

    names: list[str]
    """Of the engines."""

    async def send(self, arrival: Arrival, due_at: float, *, within_s: float) -> Seen: ...

    async def leave(self, arrival: Arrival, after_s: float, *, stream: bool) -> None:
        """Send a request and go away from it."""
        ...

    async def cancel(self, arrival: Arrival, after_s: float) -> float | None:
        """Send a request and ask for its end. When it was asked for, by the monotonic clock; None
        where there is no way to ask."""
        ...

    async def in_engines(self) -> int:
        """Requests that the engines have in hand, by what they say themselves."""
        ...

    def kill(self, number: int) -> None:
        """One engine's process, as a crash would."""
        ...

    async def restart(self, number: int) -> None:
        """That engine again, where it was."""
        ...

    async def end_dispatching(self) -> float | None:
        """SIGTERM to what stands in front; seconds until it was gone, None if it stayed."""
        ...

    def names_a_worker(self, text: str) -> bool:
        """Whether a client that is told this can read a worker's address from it."""
        ...


EnterRig = Callable[[Engines, Path], AbstractAsyncContextManager[Rig]]


def router_rig(router: Router, policy: str, environment: Path) -> EnterRig:
    """A router in front of servers."""

    @asynccontextmanager
    async def enter(engines: Engines, folder: Path) -> AsyncGenerator[Rig, None]:
        arguments = [engines.arguments(number) for number in range(engines.count)]
        async with (
            EngineServers.running(folder, arguments) as servers,
            running_router(router, policy, environment, servers, folder) as (child, url),
            HttpClient.connect(url, engines.ordinary.model) as client,
        ):
            await reach_all(client.send, servers.names)
            yield RouterRig(servers, child, client)

    return enter


class RouterRig:
    def __init__(self, servers: EngineServers, child: Child, client: HttpClient) -> None:
        self.names = servers.names
        self.send = client.send
        self.kill = servers.kill
        self.restart = servers.restart
        self._servers = servers
        self._child = child
        self._client = client

    async def leave(self, arrival: Arrival, after_s: float, *, stream: bool) -> None:
        await self._client.open_and_leave(arrival, after_s, stream=stream)

    async def cancel(self, arrival: Arrival, after_s: float) -> float | None:
        del arrival, after_s
        return None  # in this API, going away is the only way

    async def in_engines(self) -> int:
        total = 0
        for url in self._servers.urls:
            try:
                loads = msgspec.json.decode(await self._client.get("/v1/loads", url=url))
            except ClientError:  # a killed one has nothing in hand
                continue
            total += loads["loads"][0]["num_total_reqs"]
        return total

    async def end_dispatching(self) -> float | None:
        return await _end([self._child])

    def names_a_worker(self, text: str) -> bool:
        return any(url.removeprefix("http://") in text for url in self._servers.urls)


@asynccontextmanager
async def our_rig(engines: Engines, folder: Path) -> AsyncGenerator[Rig, None]:
    """Our stack, over a real NATS server."""
    del folder  # a stack has one of its own
    async with (
        LocalStack(stack_settings(engines, DEFAULT_POLICY)) as stack,
        BusClient.connect(stack.bus_settings, "told") as client,
    ):
        bus = await Bus.connect(stack.bus_settings, name="rivals-watch")
        try:
            rig = OurRig(stack, client)
            for name in rig.names:
                await bus.subscribe(bus.subjects.state(name), rig.on_state)
            yield rig
        finally:
            await bus.close()


class OurRig:
    def __init__(self, stack: LocalStack, client: BusClient) -> None:
        self.names = stack.settings.instance_names
        self.send = client.send
        self._stack = stack
        self._client = client
        self._in_hand: dict[str, int] = {}
        self._decode = msgspec.msgpack.Decoder(StateUpdate).decode

    def on_state(self, message: Message) -> None:
        update = self._decode(message.data)
        self._in_hand[update.instance] = len(update.requests)

    async def leave(self, arrival: Arrival, after_s: float, *, stream: bool) -> None:
        request = msgspec.structs.replace(self._client.request(arrival), stream=stream)
        try:
            async with (
                asyncio.timeout(after_s),
                aclosing(self._client.client.stream(request)) as events,
            ):
                async for event in events:
                    if event.final:
                        raise RuntimeError(f"{arrival.id} was over before its client left")
        except TimeoutError:
            return

    async def cancel(self, arrival: Arrival, after_s: float) -> float | None:
        await self.leave(arrival, after_s, stream=True)
        asked_at = time.monotonic()
        await self._client.client.cancel(self._client.request(arrival).id)
        return asked_at

    async def in_engines(self) -> int:
        return sum(self._in_hand.values())

    def kill(self, number: int) -> None:
        self._stack.kill(f"worker-{self.names[number]}")
        self._in_hand.pop(self.names[number], None)

    async def restart(self, number: int) -> None:
        await self._stack.restart(f"worker-{self.names[number]}")

    async def end_dispatching(self) -> float | None:
        roles = ("tagger", "dispatcher")
        return await _end(
            [child for name, child in self._stack.processes.items() if name.split("-")[0] in roles]
        )

    def names_a_worker(self, text: str) -> bool:
        return self._stack.url.removeprefix("nats://") in text


async def _end(children: list[Child]) -> float | None:
    started = time.monotonic()
    for child in children:
        child.send(signal.SIGTERM)
    ended = await asyncio.gather(*(child.wait(EXIT_S) for child in children))
    return time.monotonic() - started if all(ended) else None
