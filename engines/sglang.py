"""The steps of `make engines` for SGLang: its own server, on a processor.

Its declared dependencies are those of one kind of graphics card, and it has no kernels for
processors on a package index. So exactly the lock is installed, without them; what SGLang imports
of them at its start is in `sglang_stand_ins`, and none of it is called.
"""

import hashlib
import venv
from pathlib import Path

from engines.folder import SGLANG, is_complete, python_of
from engines.steps import BUS, TESTS, Step, model_steps, run

HERE = Path(__file__).parent
LOCK = HERE / "sglang-cpu.lock"
STAND_INS = HERE / "sglang_stand_ins"


def sglang_steps() -> list[Step]:
    """A real SGLang for processors, with the plug-in that its scheduler reports with."""
    return [
        Step("SGLang 0.5.23 for processors (3.4 GB)", _is_there, _make),
        *model_steps(SGLANG),
    ]


def _make() -> None:
    log = SGLANG.parent / "sglang.log"
    venv.create(SGLANG, with_pip=True, clear=True)
    pip: list[str | Path] = [
        *(python_of(SGLANG), "-m", "pip", "install"),
        *("--quiet", "--disable-pip-version-check"),
    ]
    run([*pip, "--no-deps", "-r", LOCK], log)
    # The plug-in needs nothing that SGLang has not; a worker that runs here does.
    run([*pip, *BUS, *TESTS], log)
    run([*pip, "--no-deps", "-e", HERE.parent], log)
    (packages,) = SGLANG.glob("lib/python*/site-packages")
    (packages / "sglang_stand_ins.pth").write_text(f"{STAND_INS}\n")
    (SGLANG / ".complete").write_text(_stamp())


def _is_there() -> bool:
    return is_complete(SGLANG) and (SGLANG / ".complete").read_text() == _stamp()


def _stamp() -> str:
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()
