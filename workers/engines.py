"""Engines by name. Each adapter is imported only when it is chosen: they are heavy."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pipeline.errors import UsageError
from workers.engine import Engine

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def make_engine(name: str, arguments: Sequence[str]) -> Engine:
    """The engine called `name` with NAME=VALUE settings. Raises UsageError naming the wrong one."""
    settings = _pairs(arguments)
    if name == "simulated":
        from workers.simulated import SimulatedEngine
        from workers.simulated_settings import SimulatedSettings

        return SimulatedEngine(_convert(settings, SimulatedSettings))
    raise UsageError(f"--engine {name}: choose from simulated")


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
