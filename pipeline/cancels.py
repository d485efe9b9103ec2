"""Requests that were cancelled lately. Every stage that holds requests keeps one of these.

The cancel may be older than this process (it was down) or older than the request's arrival at
this stage (it is still queued): so the recent ones are read at start and kept for a while.
"""

from collections import OrderedDict
from collections.abc import Callable

import structlog

from pipeline.bus import Bus, Subscription
from pipeline.bus.jetstream import READ_BATCH_MAX
from pipeline.codec import decode
from pipeline.errors import BadRequest
from pipeline.messages import Cancel
from pipeline.subjects import last_tokens

log = structlog.get_logger()

REMEMBERED_MAX = 10_000


class Cancels:
    """A bounded set of keys; `notify` is called with each new one."""

    def __init__(self, notify: Callable[[str], None] | None = None) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._notify = notify
        self._subscription: Subscription | None = None

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    async def start(self, bus: Bus) -> None:
        """Listen, then read what the stream still holds: nothing falls between the two."""
        self._subscription = await bus.subscribe(
            bus.subjects.all_cancels, lambda m: self._take(m.subject, m.data)
        )
        start = 1
        while True:
            stored = await bus.jetstream.read(
                bus.subjects.cancel_stream, bus.subjects.all_cancels, start=start
            )
            for message in stored:
                self._take(message.subject, message.data)
            if len(stored) < READ_BATCH_MAX:
                return
            start = stored[-1].sequence + 1

    async def close(self) -> None:
        """Stop listening, where the connection outlives this."""
        if self._subscription is not None:
            await self._subscription.close()

    def _take(self, subject: str, data: bytes) -> None:
        client, request = last_tokens(subject, 2)
        try:
            cancel = decode(data, Cancel)
        except BadRequest as error:
            # An empty or foreign body is no cancel: a server's acknowledgement can land here.
            log.warning("cancel_ignored", client=client, request=request, reason=error.message)
            return
        if cancel.id != request:
            log.warning("cancel_ignored", client=client, request=request, reason="id differs")
            return
        key = f"{client}.{request}"
        if key in self._keys:
            return
        self._keys[key] = None
        if len(self._keys) > REMEMBERED_MAX:
            self._keys.popitem(last=False)
        if self._notify is not None:
            self._notify(key)
