"""Runs vLLM's side in vLLM's own environment."""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryFile

import msgspec

from engines.folder import TINY_LLAMA, VLLM, VLLM_ENVIRONMENT, is_complete, python_of
from evaluation.engine.cases import Group
from evaluation.engine.steps import Script, Step, Trace
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
    script = Script(str(TINY_LLAMA), group.limits, group.prefix_caching, group.cases)
    with TemporaryFile() as errors:
        ended = subprocess.run(  # noqa: S603  no shell, and the command is ours
            [str(python_of(VLLM)), "-P", "-m", "evaluation.engine.vllm_steps"],
            input=msgspec.json.encode(script),
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **VLLM_ENVIRONMENT, "PYTHONPATH": str(ROOT)},
            timeout=TIMEOUT_S,
            check=False,
        )
        if ended.returncode:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").splitlines()[-12:]
            raise EngineSideFailed("vLLM's side ended badly:\n" + "\n".join(tail))
    traces = [msgspec.json.decode(line, type=Trace) for line in ended.stdout.splitlines()]
    return {trace.case: trace.steps for trace in traces}
