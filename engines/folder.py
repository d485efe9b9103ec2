"""Where the engines and their models lie."""

import os
from pathlib import Path

VARIABLE = "ASTROLABE_ENGINES"
FOLDER = Path(os.environ.get(VARIABLE) or Path(__file__).parent.parent / ".engines").absolute()
VLLM = FOLDER / "vllm"
SGLANG = FOLDER / "sglang"
TINY_LLAMA = FOLDER / "models" / "tiny-llama"
SMOLLM2 = FOLDER / "models" / "smollm2-135m-instruct"

VLLM_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else all of them bind themselves to one core
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""For a vLLM on a processor: it asks nobody on the internet, and two fit beside each other."""

SGLANG_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
}
"""For an SGLang on a processor."""


def python_of(environment: Path) -> Path:
    """Its interpreter; there is one when the environment is complete."""
    return environment / "bin" / "python"


def is_complete(environment: Path) -> bool:
    """Whether the set-up ran to its end: an interrupted one is done again."""
    return (environment / ".complete").is_file()
