"""One connection to NATS: connect, publish, request, subscribe, close.

It knows nothing of JetStream; `Bus.jetstream` does. Callbacks given to the client library never
raise and never wait: an exception there would stop its read loop while it still claims to be
connected.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import nats.errors
import structlog
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from pipeline.errors import (
    BusMisconfigured,
    BusUnavailable,
    MessageTooLarge,
    NoResponders,
    RequestTimeout,
    ServiceFailed,
    ServiceRefused,
)
from pipeline.subjects import DEFAULT_PREFIX, Subjects

if TYPE_CHECKING:
    from nats.aio.client import Server

log = structlog.get_logger()

CONNECT_TIMEOUT_S = 10.0
PING_INTERVAL_S = 15  # twice this without a pong and a dead link is noticed
RECONNECT_WAIT_S = 0.25
DRAIN_TIMEOUT_S = 5
REFUSED_CODE = "422"  # of a service's error reply: what was asked is wrong, not the service
HEADER_OVERHEAD_BYTES = 12  # "NATS/1.0\r\n" and the closing "\r\n"


@dataclass(frozen=True, slots=True)
class BusSettings:
    """Where the bus is. User and password may stand in the URL."""

    url: str = "nats://127.0.0.1:4222"
    prefix: str = DEFAULT_PREFIX
    credentials_file: str | None = None

    @property
    def shown_url(self) -> str:
        """The URL for messages and logs: without user and password."""
        scheme, separator, rest = self.url.partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it came; `reply` is empty where none was asked for."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    reply: str = ""


@dataclass(slots=True)
class Subscription:
    """Handle to end a subscription."""

    _inner: NatsSubscription

    async def close(self) -> None:
        with contextlib.suppress(nats.errors.Error):
            await self._inner.unsubscribe()

    async def drain(self) -> None:
        """Stop receiving; what the server had sent already is still handled."""
        with contextlib.suppress(nats.errors.Error):
            await self._inner.drain()  # type: ignore[no-untyped-call]


@dataclass
class Bus:
    """A connected bus. `closed` is set when the client gave up for good: the process must end."""

    client: NatsClient
    settings: BusSettings
    closed: asyncio.Event
    reconnects: int = 0
    last_error: str = ""
    """What the server or the client library complained about last."""
    _on_reconnect: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        from pipeline.bus.jetstream import JetStream  # it needs Message from here

        self.subjects = Subjects(self.settings.prefix)
        self.jetstream = JetStream(self)

    @classmethod
    async def connect(
        cls, settings: BusSettings, *, name: str, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> "Bus":
        """Connect, and keep reconnecting with jitter until `close`.

        Raises BusUnavailable when no server answers within `timeout_s`.
        """
        check_credentials(settings)
        bus = cls(NatsClient(), settings, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await bus._connect(name)
        except TimeoutError:
            with contextlib.suppress(Exception):
                await bus.client.close()
            because = f": {bus.last_error}" if bus.last_error else ""
            raise BusUnavailable(
                f"no connection to NATS at {settings.shown_url} within {timeout_s:g} s{because}"
            ) from None
        except nats.errors.Error as error:
            raise BusUnavailable(f"NATS at {settings.shown_url}: {error}") from error
        except (OSError, ImportError) as error:  # its credentials file, or the package to read it
            raise BusUnavailable(f"NATS at {settings.shown_url}: {error}") from error
        return bus

    async def _connect(self, name: str) -> None:
        async def on_error(error: Exception) -> None:
            text = str(error) or type(error).__name__
            # The server says why it refuses, and then the socket says that it was closed.
            if not (isinstance(error, OSError) and self.last_error):
                self.last_error = text
            log.warning("bus_error", error=text)

        async def on_disconnect() -> None:
            if not self.client.is_closed:
                log.warning("bus_disconnected")

        async def on_reconnect() -> None:
            self.reconnects += 1
            log.info("bus_reconnected")
            for notify in list(self._on_reconnect):
                notify()

        async def on_closed() -> None:
            self.closed.set()

        def pick_server(
            servers: list["Server"], _info: Mapping[str, object]
        ) -> tuple["Server", float]:
            # The library's own wait is fixed: after a restart everybody would come at once.
            wait = RECONNECT_WAIT_S * (0.5 + random.random())
            return random.choice(servers), wait

        await self.client.connect(
            self.settings.url,
            name=name,
            error_cb=on_error,
            disconnected_cb=on_disconnect,
            reconnected_cb=on_reconnect,
            closed_cb=on_closed,
            max_reconnect_attempts=-1,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=2,
            drain_timeout=DRAIN_TIMEOUT_S,
            user_credentials=self.settings.credentials_file,
            reconnect_to_server_handler=pick_server,
        )

    def on_reconnect(self, notify: Callable[[], None]) -> None:
        """Call `notify` after each reconnect. It must not raise or wait."""
        self._on_reconnect.append(notify)

    def off_reconnect(self, notify: Callable[[], None]) -> None:
        """Undo `on_reconnect`."""
        if notify in self._on_reconnect:
            self._on_reconnect.remove(notify)

    @property
    def connected(self) -> bool:
        return self.client.is_connected

    @property
    def server_version(self) -> str:
        """Of the server that this connection goes to, such as 2.12.1."""
        told = self.client.connected_server_version
        return f"{told.major}.{told.minor}.{told.patch}"

    @property
    def max_payload(self) -> int:
        """The server's bound on headers + payload, in bytes."""
        return self.client.max_payload

    def check_server(self, max_payload_min: int) -> None:
        """Raises BusMisconfigured when the server cannot carry a full-size request."""
        if self.max_payload < max_payload_min:
            raise BusMisconfigured(
                f"NATS at {self.settings.shown_url} has max_payload {self.max_payload}; "
                f"set max_payload: {max_payload_min} or more in its configuration file"
            )

    def check_size(self, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Raises MessageTooLarge. The server counts headers too and closes the client for good."""
        size = len(data)
        if headers:
            size += HEADER_OVERHEAD_BYTES
            size += sum(len(k.encode()) + len(v.encode()) + 4 for k, v in headers.items())
        if size > self.max_payload:
            raise MessageTooLarge(size, self.max_payload)

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        reply: str = "",
    ) -> None:
        """Core publish: fast, and lost when nobody listens or the link is down."""
        self.check_size(data, headers)
        try:
            await self.client.publish(
                subject, data, reply=reply, headers=dict(headers) if headers else None
            )
        except nats.errors.Error as error:
            raise BusUnavailable(f"publish to {subject}: {error}") from error

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """Ask one responder.

        Raises NoResponders, RequestTimeout, ServiceFailed, ServiceRefused, BusUnavailable.
        """
        self.check_size(data, headers)
        try:
            reply = await self.client.request(
                subject, data, timeout=timeout_s, headers=dict(headers) if headers else None
            )
        except nats.errors.NoRespondersError:
            raise NoResponders(f"nobody listens on {subject}") from None
        except (nats.errors.TimeoutError, TimeoutError):
            raise RequestTimeout(f"no reply on {subject} within {timeout_s:g} s") from None
        except nats.errors.Error as error:
            raise BusUnavailable(f"request to {subject}: {error}") from error
        message = as_message(reply)
        # nats.micro reports errors as ordinary replies with two headers.
        if failure := message.headers.get("Nats-Service-Error"):
            code = message.headers.get("Nats-Service-Error-Code", "")
            kind = ServiceRefused if code == REFUSED_CODE else ServiceFailed
            raise kind(f"{subject}: {code} {failure}")
        return message

    async def subscribe(
        self, subject: str, handle: Callable[[Message], None], *, queue: str = ""
    ) -> Subscription:
        """Call `handle` for each message, in order. It only notes or spawns; it never waits."""

        async def deliver(message: Msg) -> None:
            try:
                handle(as_message(message))
            except (Exception, asyncio.CancelledError):
                # Nothing is awaited here, so a cancellation is the handler's own; let through, it
                # would end the subscription in silence.
                log.exception("subscription_handler_failed", subject=subject)

        try:
            inner = await self.client.subscribe(subject, queue=queue, cb=deliver)
        except nats.errors.Error as error:
            raise BusUnavailable(f"subscribe to {subject}: {error}") from error
        return Subscription(inner)

    def new_inbox(self) -> str:
        """A fresh subject under this connection's own inbox prefix."""
        return self.client.new_inbox()

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Push out what is buffered. Says nothing about delivery."""
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            await self.client.flush(timeout=max(1, round(timeout_s)))

    async def close(self) -> None:
        """Handle what has arrived, push out what is buffered, disconnect."""
        if self.client.is_closed:
            return
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S + 1):
                if self.client.is_connected:
                    await self.client.drain()
                else:
                    await self.client.close()
        except (nats.errors.Error, TimeoutError):
            with contextlib.suppress(Exception):
                await self.client.close()


def check_credentials(settings: BusSettings) -> None:
    """Raises BusUnavailable for a file that cannot be read: the client library looks at it only
    where the server asks, and a wrong path would pass until the day when it does."""
    path = settings.credentials_file
    if path is None:
        return
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise BusUnavailable(f"credentials file {path}: {error.strerror or error}") from error


def as_message(message: Msg) -> Message:
    """Our own view of the library's message."""
    return Message(message.subject, message.data, message.headers or {}, message.reply)
