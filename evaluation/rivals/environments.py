"""A virtual environment for each router's wheel: their dependencies are none of ours.

Made where it is missing, under `.rivals/` in the folder where the command runs; some 150 MB each,
from the package index that pip is set up for.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from evaluation.rivals.routers import Router
from pipeline.errors import AstrolabeError

FOLDER = Path(".rivals")
INSTALL_TIMEOUT_S = 600.0
STAMP = ".installed"
REASON_CHARS_MAX = 300


class NotInstalledError(AstrolabeError):
    """The wheel cannot be had; the message says why."""


def place(router: Router, folder: Path = FOLDER) -> Path:
    """Where the router's environment is, or would be."""
    return (folder / f"{router.wheel}-{router.version}").absolute()


def installed(router: Router, folder: Path = FOLDER) -> bool:
    """Whether it is there, in the right version."""
    return (place(router, folder) / STAMP).exists()


def install(router: Router, folder: Path = FOLDER) -> None:
    """Make the router's environment where it is missing. Raises NotInstalledError.

    Blocks for the time of the download.
    """
    if installed(router, folder):
        return
    environment = place(router, folder)
    environment.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
        # A wheel or nothing: building one of these from source takes a Rust toolchain.
        wheel_only = ("--only-binary", router.wheel)
        pip_install = ("install", "--quiet", "--disable-pip-version-check", *wheel_only)
        _run(
            *(sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")),
            *(*pip_install, router.requirement),
        )
    except NotInstalledError:
        shutil.rmtree(environment, ignore_errors=True)
        raise
    (environment / STAMP).touch()


def _run(*command: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603  no shell, and the command is ours
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"not installed within {INSTALL_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1] if lines else done.stderr
        raise NotInstalledError(reason.strip()[-REASON_CHARS_MAX:])
