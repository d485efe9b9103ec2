"""A fixed number of streams, each read by our own client; one that ends is followed by another."""

import asyncio
from collections import Counter
from contextlib import aclosing
from random import Random

from pipeline.client import Client
from pipeline.errors import AstrolabeError
from pipeline.messages import Request

TOKENS = (60, 120)
DEADLINE_MS = 600_000


class Streams:
    """What `count` readers have open, and how what they read has ended."""

    def __init__(self, client: Client, count: int, seed: int) -> None:
        self._client = client
        self._count = count
        self._rng = Random(seed)
        self._sent = 0
        self.open = 0
        """Streams with a first token and no end yet."""
        self.tokens = 0
        self.done = 0
        self.errors: Counter[str] = Counter()

    async def run(self, length_s: float, ramp_s: float) -> None:
        """New streams until `length_s`; the first ones spread over `ramp_s`. Returns when the
        last has ended."""
        stop_at = asyncio.get_running_loop().time() + length_s
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._count):
                wait_s = ramp_s * number / self._count
                tasks.create_task(self._one_after_the_other(wait_s, stop_at))

    async def _one_after_the_other(self, wait_s: float, stop_at: float) -> None:
        await asyncio.sleep(wait_s)
        while asyncio.get_running_loop().time() < stop_at:
            try:
                await self._read(self._next_request())
            except AstrolabeError as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(1.0)  # a refusal is not answered by a flood

    def _next_request(self) -> Request:
        self._sent += 1
        tokens = self._rng.randint(*TOKENS)
        return Request(
            id=f"soak-{self._sent}",
            prompt=f"Number {self._sent} tells of {tokens} tokens",
            max_tokens=tokens,
            ignore_eos=True,
            deadline_ms=DEADLINE_MS,
        )

    async def _read(self, request: Request) -> None:
        begun = False
        try:
            async with aclosing(self._client.stream(request)) as events:
                async for event in events:
                    if event.event == "tokens" and not begun:
                        begun = True
                        self.open += 1
                    self.tokens += event.event == "tokens"
                    if event.error is not None:
                        self.errors[event.error.code] += 1
                    elif event.final:
                        self.done += 1
        finally:
            self.open -= begun
