"""`python -m engines [NAME …]`: sets up real engines here; what is there already is kept."""

import sys
import time
from collections.abc import Callable

from rich.console import Console

from engines.folder import FOLDER, VARIABLE
from engines.sglang import sglang_steps
from engines.steps import Step, StepFailed, vllm_steps

ENGINES: dict[str, Callable[[], list[Step]]] = {"vllm": vllm_steps, "sglang": sglang_steps}


def main(names: list[str]) -> int:
    console = Console()
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        console.print(f"engine {unknown[0]}: choose from {', '.join(ENGINES)}")
        return 2
    console.print(f"into {FOLDER} (another folder: {VARIABLE})")
    for name in names or ENGINES:
        for step in ENGINES[name]():
            if step.done():
                console.print(f"  there    {step.name}")
                continue
            started = time.monotonic()
            try:
                with console.status(f"{step.name} …"):
                    step.make()
            except StepFailed as error:
                console.print(f"  failed   {step.name}\n{error}", markup=False)
                return 1
            console.print(f"  made     {step.name} ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
