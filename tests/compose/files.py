"""The files of compose/, read as their programs read them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
DASHBOARDS = sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))

_VARIABLE = re.compile(r"\$\{([A-Z_]+)(?::-([^{}]*))?\}")
_METRIC = re.compile(r"\b(?:astrolabe|process)_[a-z0-9_]+")


def compose_file() -> dict[str, Any]:
    """With every variable at its default."""
    text = (COMPOSE / "compose.yaml").read_text()
    loaded: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(lambda m: m[2] or "", text))
    return loaded


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose_file()["services"]
    return found


def variables() -> set[str]:
    """Every environment variable that the compose file reads."""
    return {name for name, _ in _VARIABLE.findall((COMPOSE / "compose.yaml").read_text())}


def rules() -> list[dict[str, Any]]:
    """Every rule of every group."""
    groups = yaml.safe_load((COMPOSE / "prometheus" / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def queries() -> Iterator[tuple[str, str]]:
    """Every query of a rule or a panel, with where it stands."""
    for rule in rules():
        yield f"rule {rule['alert']}", rule["expr"]
    for path in DASHBOARDS:
        for panel in dashboard(path)["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]


def metrics_of(query: str) -> set[str]:
    """Names of the metrics in a query. Ours and the process's: there are no others."""
    return set(_METRIC.findall(query))
