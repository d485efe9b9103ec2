"""`python -m engines.demo vllm`: `astrolabe demo` on two real engines, with a load for them."""

import os
import subprocess
import sys

from engines.folder import TINY_LLAMA, VLLM, VLLM_ENVIRONMENT, is_complete, python_of

VLLM_ARGS = (
    "--dtype bfloat16 --enforce-eager --block-size 32 --kv-cache-memory-bytes 134217728 "
    "--max-model-len 2048 --max-num-seqs 16 --max-num-batched-tokens 512"
)
INSTANCES, REQUESTS, RATE = 2, 60, 2.0


def main(names: list[str]) -> int:
    if names != ["vllm"]:
        sys.stderr.write("python -m engines.demo vllm\n")
        return 2
    if not is_complete(VLLM) or not TINY_LLAMA.is_dir():
        sys.stderr.write(f"no vLLM in {VLLM}: `make engines` sets one up\n")
        return 2
    command = [
        *(sys.executable, "-P", "-m", "pipeline.cli", "demo", "--engine", "vllm"),
        *("--engine-python", str(python_of(VLLM))),
        *("--engine-arg", f"model={TINY_LLAMA}", "--engine-arg", f"args={VLLM_ARGS}"),
        *("--instances", str(INSTANCES), "--requests", str(REQUESTS), "--rate", str(RATE)),
    ]
    return subprocess.run(command, env={**os.environ, **VLLM_ENVIRONMENT}, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
