"""Engines by name. Each adapter is imported only when it is chosen: they are heavy."""

import dataclasses
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pipeline.errors import UsageError
from workers.engine import Engine

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ENGINES = ("simulated", "openai", "vllm", "sglang")

T = TypeVar("T", bound="DataclassInstance")


def make_engine(name: str, arguments: Sequence[str]) -> Engine:
    """The engine called `name` with NAME=VALUE settings. Raises UsageError naming the wrong one."""
    settings = _pairs(arguments)
    if name == "simulated":
        from workers.simulated import SimulatedEngine
        from workers.simulated_settings import SimulatedSettings

        return SimulatedEngine(_convert(settings, SimulatedSettings))
    if name == "openai":
        from workers.openai_engine.settings import OpenAISettings

        if "url" not in settings:
            raise UsageError("--engine openai: set --engine-arg url=http://HOST:PORT")
        if find_spec("aiohttp") is None:
            raise UsageError("--engine openai: pip install 'astrolabe[openai]'")
        from workers.openai_engine.engine import OpenAIEngine

        return OpenAIEngine(_convert(settings, OpenAISettings))
    if name == "vllm":
        from workers.vllm_engine.engine import VLLMEngine
        from workers.vllm_engine.settings import VLLMSettings

        if "model" not in settings:
            raise UsageError("--engine vllm: set --engine-arg model=FOLDER")
        return VLLMEngine(_convert(settings, VLLMSettings))
    if name == "sglang":
        from workers.sglang_engine.settings import SGLangSettings

        if find_spec("aiohttp") is None:
            raise UsageError("--engine sglang: pip install 'astrolabe[sglang]'")
        from workers.sglang_engine.engine import SGLangEngine

        return SGLangEngine(_convert(settings, SGLangSettings))
    raise UsageError(f"--engine {name}: choose from {', '.join(ENGINES)}")


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for argument in arguments:
        name, found, value = argument.partition("=")
        if not found or not name:
            raise UsageError(f"--engine-arg {argument!r}: write NAME=VALUE")
        pairs[name] = value
    return pairs


def _convert(pairs: dict[str, str], type_: type[T]) -> T:
    """Settings of `type_`, a dataclass, from text. Raises UsageError naming the setting."""
    names = [field.name for field in dataclasses.fields(type_)]
    for name in pairs:
        if name not in names:
            raise UsageError(f"--engine-arg {name}: choose from {', '.join(names)}")
    try:
        return msgspec.convert(pairs, type_, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"--engine-arg: {error}") from error
