"""Which code a result depends on: a hash over the sources of all modules that a run imports.

Found by following imports through the sources, so that a change of the dispatcher's logging does
not throw results away, and a change of the predictor does.
"""

import ast
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import evaluation

ROOT = Path(evaluation.__file__).parents[1]
STARTS = (
    "evaluation.world.cluster",
    "evaluation.workloads.presets",
    "evaluation.experiments.pairwise",
)
PACKAGES = frozenset({"evaluation", "pipeline", "predictor", "tagger", "workers"})


@lru_cache(maxsize=1)
def code_version() -> str:
    """Of the code as it lies on disk when it is first asked for."""
    digest = sha256()
    for path in sorted(sources(STARTS)):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def sources(starts: tuple[str, ...]) -> set[Path]:
    """The files of these modules and of all of ours that they import, directly or not."""
    found: set[Path] = set()
    todo = list(starts)
    while todo:
        path = _file_of(todo.pop())
        if path is not None and path not in found:
            found.add(path)
            todo += _imports(path)
    return found


def _file_of(module: str) -> Path | None:
    """None for what is no module of ours, such as a name inside one."""
    if module.partition(".")[0] not in PACKAGES:
        return None
    base = ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
