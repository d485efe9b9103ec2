"""The server beside its generations: whether it serves, what it tells of itself."""

import asyncio
from typing import Any, Literal, Protocol

import aiohttp
import structlog

from pipeline.errors import UsageError
from workers.openai_engine.load import ServerLoad, read_loads, read_metrics

log = structlog.get_logger()

CONNECT_S = 5.0
ANSWER_S = 5.0
"""For everything that is no generation."""
START_POLL_S = 0.5
WATCH_EVERY_S = 0.25
REFUSALS_MAX = 2
"""Checks in a row that find it not serving. One may be a connection that broke; after two, a server
that was started anew has lost what it held."""
LINE_BYTES_MAX = 1 << 20
HEALTH = "/health"
MODELS = "/v1/models"

Sick = tuple[Literal["refused", "silent"], str]
"""How a check failed, and in words why."""


class ServerSettings(Protocol):
    """What is to be known of a server."""

    @property
    def api_key(self) -> str | None: ...
    @property
    def api_key_env(self) -> str: ...
    @property
    def requests_max(self) -> int: ...
    @property
    def start_timeout_s(self) -> float: ...
    @property
    def hang_timeout_s(self) -> float: ...


class Server:
    """The server at `root`, without a closing slash, and the pool of connections to it."""

    def __init__(self, root: str, settings: ServerSettings) -> None:
        self._root = root
        self._settings = settings
        self._health = HEALTH
        key = settings.api_key
        self.session = aiohttp.ClientSession(
            root,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            connector=aiohttp.TCPConnector(limit=settings.requests_max + 8),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            read_bufsize=LINE_BYTES_MAX,
        )

    async def wait_serving(self) -> None:
        """Raises UsageError where it does not within the time that was set, or refuses our key."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._settings.start_timeout_s
        while (sick := await self._check(ANSWER_S)) is not None:
            if loop.time() >= give_up_at:
                raise UsageError(
                    f"{self._root} did not serve within "
                    f"{self._settings.start_timeout_s:g} s: {sick[1]}"
                )
            log.info("waiting_for_the_server", url=self._root, reason=sick[1])
            await asyncio.sleep(START_POLL_S)

    async def watch(self, route: str | None = None) -> str:
        """Returns why, when the server serves no more: it refuses twice, or is silent. `route` is
        one to look at instead of its health."""
        refusals = 0
        while True:
            sick = await self._check(self._settings.hang_timeout_s, route)
            refusals = 0 if sick is None else refusals + 1
            if sick is not None and (sick[0] == "silent" or refusals >= REFUSALS_MAX):
                return f"the server at {self._root}: {sick[1]}"
            await asyncio.sleep(WATCH_EVERY_S)

    async def get(self, path: str) -> Any:
        """JSON of a route; None where there is no such one, or no JSON in it."""
        try:
            async with asyncio.timeout(ANSWER_S), self.session.get(path) as response:
                return None if response.status != 200 else await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    async def load(self) -> ServerLoad:
        """By /metrics, else by SGLang's own route; empty where the server tells nothing."""
        try:
            async with asyncio.timeout(ANSWER_S), self.session.get("/metrics") as response:
                if response.status == 200:
                    load = await asyncio.to_thread(read_metrics, await response.text())
                    if load.tells:
                        return load
            loads = await self.get("/v1/loads?include=core")
            return ServerLoad() if loads is None else read_loads(loads)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return ServerLoad()  # the next look, or the watch, says more

    async def close(self) -> None:
        """Our connections; the server is not ours to stop."""
        await self.session.close()

    async def _check(self, within_s: float, route: str | None = None) -> Sick | None:
        """None where it serves."""
        path = route or self._health
        try:
            async with asyncio.timeout(within_s), self.session.get(path) as response:
                status = response.status
        except TimeoutError:
            return "silent", f"no answer within {within_s:g} s"
        except aiohttp.ClientError as error:
            return "refused", str(error) or type(error).__name__
        if status == 404 and path == HEALTH:
            self._health = MODELS  # of those that have no route for it
            return await self._check(within_s)
        if status in (401, 403):
            raise UsageError(f"{self._root} refused the key in {self._settings.api_key_env}")
        return None if status == 200 else ("refused", f"HTTP {status}")
