"""A steady stream of requests through our own client, each followed to its end."""

import asyncio
from random import Random

from bench.chaos.audit import Seen
from pipeline.client import Client
from pipeline.errors import BusError, Overloaded, RequestError
from pipeline.messages import Request

TOKENS = (10, 80)
DEADLINE_MS = 120_000


class Load:
    """`rate` requests a second, Poisson, until `length_s`."""

    def __init__(self, client: Client, rate: float, seed: int) -> None:
        self._client = client
        self._rate = rate
        self._rng = Random(seed)
        self._prefix = f"chaos-{seed}"
        self.seen: list[Seen] = []

    async def run(self, length_s: float) -> None:
        """Returns when the last one sent has ended."""
        loop = asyncio.get_running_loop()
        started, at_s = loop.time(), 0.0
        async with asyncio.TaskGroup() as tasks:
            while at_s < length_s:
                await asyncio.sleep(max(0.0, started + at_s - loop.time()))
                one = Seen(f"{self._prefix}-{len(self.seen)}", loop.time() - started)
                self.seen.append(one)
                tasks.create_task(self._follow(one, self._rng.randint(*TOKENS), started))
                at_s += self._rng.expovariate(self._rate)

    async def _follow(self, one: Seen, tokens: int, started: float) -> None:
        request = Request(
            id=one.request,
            prompt=f"{one.request} tells of {tokens} tokens",
            max_tokens=tokens,
            ignore_eos=True,
            deadline_ms=DEADLINE_MS,
        )
        try:
            completion = await self._client.complete(request)
        except Overloaded as error:
            one.refused = error.code
        except BusError as error:
            # Whether it was stored nobody told; if it was, its result shows it.
            one.refused = type(error).__name__
        except RequestError as error:
            one.accepted, one.error = True, error.code
        else:
            one.accepted, one.text = True, completion.text
        one.ended_at_s = asyncio.get_running_loop().time() - started
