"""Runs an engine's side in the engine's own environment."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

import msgspec

from engines.folder import (
    SGLANG,
    SGLANG_ENVIRONMENT,
    TINY_LLAMA,
    VLLM,
    VLLM_ENVIRONMENT,
    is_complete,
    python_of,
)
from evaluation.engine.cases import Group
from evaluation.engine.steps import Script, Step, Trace, Traced
from pipeline.errors import AstrolabeError, UsageError

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 600.0


class EngineSideFailed(AstrolabeError):
    """The other environment's process did not end well."""


def check_installed() -> None:
    """Raises UsageError where there is no real vLLM here."""
    if not is_complete(VLLM) or not TINY_LLAMA.is_dir():
        raise UsageError(f"no vLLM in {VLLM}: `make engines` sets one up")


def run(group: Group) -> dict[str, list[Step]]:
    """vLLM's steps by case. Blocks for the time of an engine's start and more."""
    lines = _told(group, "vLLM", VLLM, VLLM_ENVIRONMENT, "evaluation.engine.vllm_steps")
    traces = [msgspec.json.decode(line, type=Trace) for line in lines]
    return {trace.case: trace.steps for trace in traces}


def run_sglang(group: Group) -> list[Traced]:
    """SGLang's steps of each case, with the arrivals as they were. Blocks as long."""
    module = "evaluation.engine.sglang_steps"
    lines = _told(group, "SGLang", SGLANG, SGLANG_ENVIRONMENT, module)
    return [msgspec.json.decode(line, type=Traced) for line in lines]


def _told(
    group: Group, name: str, environment: Path, variables: Mapping[str, str], module: str
) -> list[bytes]:
    """The lines that the module writes in the engine's environment."""
    script = Script(str(TINY_LLAMA), group.limits, group.prefix_caching, group.cases)
    with TemporaryFile() as errors:
        ended = subprocess.run(  # noqa: S603  no shell, and the command is ours
            [str(python_of(environment)), "-P", "-m", module],
            input=msgspec.json.encode(script),
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
            timeout=TIMEOUT_S,
            check=False,
        )
        if ended.returncode:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").splitlines()[-12:]
            raise EngineSideFailed(f"{name}'s side ended badly:\n" + "\n".join(tail))
    return ended.stdout.splitlines()
