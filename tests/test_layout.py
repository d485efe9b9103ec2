"""What may import what (docs: architecture), read off the source of every module."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("evaluation", "pipeline", "predictor", "tagger", "workers")
MAY_IMPORT = {
    "evaluation": {"evaluation", "pipeline", "predictor", "tagger", "workers"},
    "pipeline": {"pipeline"},
    "predictor": {"pipeline", "predictor"},
    "tagger": {"pipeline", "tagger"},
    "workers": {"pipeline", "predictor", "workers"},
}
# Imported where they are used and never at start-up: they cost seconds, or are optional.
HEAVY = {
    "matplotlib",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "scipy",
    "sglang",
    "sklearn",
    "tokenizers",
    "torch",
    "transformers",
    "vllm",
}
MODULES = sorted(
    path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")
)


def imports(module: Path) -> Iterator[tuple[str, int]]:
    """Every imported module's full name with its line, wherever in the file it stands."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            yield node.module or "", node.lineno


def offences(module: Path, allowed: set[str]) -> list[str]:
    return [
        f"{module}:{line} imports {name}"
        for name, line in imports(module)
        if (top := name.split(".")[0]) in {*PACKAGES, "tests", "bench"} and top not in allowed
    ]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_point_one_way(module: Path) -> None:
    if module.is_relative_to("pipeline/cli"):  # the command line ties everything together
        return
    assert offences(module, MAY_IMPORT[module.parts[0]]) == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_only_the_bus_imports_the_client(module: Path) -> None:
    if module.is_relative_to("pipeline/bus"):
        return
    found = [f"{module}:{line}" for name, line in imports(module) if name.split(".")[0] == "nats"]
    assert found == []


def test_nothing_of_pipeline_but_the_command_line_imports_the_command_line() -> None:
    found = [
        f"{module}:{line}"
        for module in MODULES
        if not module.is_relative_to("pipeline/cli")
        for name, line in imports(module)
        if f"{name}.".startswith("pipeline.cli.")
    ]
    assert found == []


def test_the_command_line_starts_without_heavy_packages() -> None:
    program = "import sys, pipeline.cli; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert HEAVY & set(loaded) == set()


def test_the_servers_configuration_has_one_source() -> None:
    """compose/nats.conf adds to the file that the package ships; it repeats nothing of it."""
    compose = (ROOT / "compose" / "nats.conf").read_text()
    assert 'include "../pipeline/nats.conf"' in compose
    for key in ("max_payload", "jetstream", "max_file_store", "http"):
        assert key not in compose
