"""The simulated engine, and servers around it of several kinds, as engines."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from tests.workers import sglang_server
from tests.workers.conformance import MAX_MODEL_LEN, MAX_NUM_SEQS, Conformance
from tests.workers.openai_server import Ways, served
from workers.engine import Engine
from workers.openai_engine.engine import OpenAIEngine
from workers.openai_engine.settings import OpenAISettings
from workers.sglang_engine.engine import SGLangEngine
from workers.sglang_engine.settings import SGLangSettings
from workers.simulated import SimulatedEngine
from workers.simulated_settings import SimulatedSettings

SETTINGS = SimulatedSettings(
    max_model_len=MAX_MODEL_LEN, max_num_seqs=MAX_NUM_SEQS, kv_blocks=200, time_scale=0.1, noise=0
)


class TestSimulated(Conformance):
    async def make(self) -> Engine:
        return SimulatedEngine(SETTINGS)


class BehindOpenAI(Conformance):
    ways = Ways()

    @pytest.fixture(autouse=True)
    async def servers(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as self._servers:
            yield

    async def make(self) -> Engine:
        _, url = await self._servers.enter_async_context(served(SETTINGS, self.ways))
        return OpenAIEngine(OpenAISettings(url=url, max_num_seqs=MAX_NUM_SEQS))


class TestLikeVLLM(BehindOpenAI):
    pass


class TestLikeSGLang(BehindOpenAI):
    ways = Ways(refuses_the_sum=True, errors_in_the_stream=True)


class TestPlain(BehindOpenAI):
    """A server that tells nothing of itself and counts at the end."""

    tells_blocks = False
    ways = Ways(continuous_usage=False, refuses_unknown_options=True, metrics=False)


class TestSGLangsOwnWay(Conformance):
    ways = sglang_server.Ways()

    @pytest.fixture(autouse=True)
    async def servers(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as self._servers:
            yield

    async def make(self) -> Engine:
        settings = replace(SETTINGS, rules="sglang", block_size=16)
        _, url = await self._servers.enter_async_context(sglang_server.served(settings, self.ways))
        return SGLangEngine(SGLangSettings(url=url))


class TestSGLangIncremental(TestSGLangsOwnWay):
    ways = sglang_server.Ways(incremental=True, refuses_outside_streams=True)
