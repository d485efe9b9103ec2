"""A package that is not there, so far that it can be imported: every name of it and of its modules
is found, and whoever calls one is told."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _AnyAttribute(type):
    """Of a class: some are enumerations, which are read at import."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _named(f"{cls.__name__}.{name}")


def _named(name: str) -> Any:
    def refuse(self: object, *_: object, **__: object) -> None:
        raise NotImplementedError(f"{name} is not here: a stand-in was called")

    return _AnyAttribute(name, (), {"__init__": refuse})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _named(f"{self.__name__}.{name}")


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule of one package."""

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(self._prefix):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def stand_in(module: ModuleType) -> None:
    """From now on `module` has every name, and every submodule."""
    module.__class__ = _Module
    module.__path__ = []
    sys.meta_path.append(_Submodules(module.__name__))
