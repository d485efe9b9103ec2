"""compose/ as files: pinned, without privileges, documented, and in the shape that is required."""

import re
from typing import Any

import pytest

from tests.compose.files import (
    COMPOSE,
    DASHBOARDS,
    ROOT,
    compose_file,
    dashboard,
    rules,
    services,
    variables,
)

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
ON_A_GPU = {"worker-vllm", "sglang"}  # they compile kernels into their own file system, as root
OURS = sorted(services().keys() - ON_A_GPU)


def service(name: str) -> dict[str, Any]:
    return services()[name]


def test_the_root_names_the_file() -> None:
    settings = dict(
        line.split("=", 1)
        for line in (ROOT / ".env").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert (ROOT / settings["COMPOSE_FILE"]).is_file()


@pytest.mark.parametrize("name", sorted(services()))
def test_every_image_is_pinned(name: str) -> None:
    image, _, tag = service(name)["image"].rpartition(":")
    assert image and re.search(r"\d+\.\d+", tag), service(name)["image"]


@pytest.mark.parametrize("name", sorted(services()))
def test_nobody_has_privileges(name: str) -> None:
    found = service(name)
    assert "no-new-privileges:true" in found["security_opt"]
    for forbidden in ("privileged", "cap_add", "network_mode", "pid", "ipc"):
        assert forbidden not in found
    assert not any("docker.sock" in str(volume) for volume in found.get("volumes", []))
    assert found["restart"] == "unless-stopped"
    assert found["logging"]["options"]["max-size"]


@pytest.mark.parametrize("name", OURS)
def test_no_root_no_writing_and_bounds(name: str) -> None:
    found = service(name)
    user = found["user"].partition(":")[0]
    assert int(user) > 0
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["mem_limit"]
    assert found["pids_limit"]
    assert found["init"] is True  # else a signal at start-up is lost


@pytest.mark.parametrize("name", sorted(services().keys() - {"prometheus", "grafana"}))
def test_health_is_checked(name: str) -> None:
    check = service(name)["healthcheck"]
    assert check["test"][0] == "CMD"
    assert check["interval"] and check["timeout"] and check["retries"]


@pytest.mark.parametrize(
    "name", [name for name in OURS if name not in ("nats", "prometheus", "grafana")]
)
def test_components_wait_for_a_healthy_bus(name: str) -> None:
    assert service(name)["depends_on"]["nats"] == {"condition": "service_healthy"}


def test_a_worker_has_longer_to_stop_than_its_grace() -> None:
    workers = [found for name, found in services().items() if name.startswith("worker")]
    assert len(workers) == 4
    for found in workers:
        (grace,) = [word for word in found["command"] if word.startswith("--grace-s=")]
        assert int(found["stop_grace_period"].removesuffix("s")) > int(grace.partition("=")[2])


def test_ports_are_open_on_this_machine_alone() -> None:
    ports = [port for found in services().values() for port in found.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_named_volumes_exist() -> None:
    named = {
        volume.partition(":")[0]
        for found in services().values()
        for volume in found.get("volumes", [])
        if not volume.startswith(".")
    }
    assert named == set(compose_file()["volumes"])


@pytest.mark.parametrize("variable", sorted(variables()))
def test_every_variable_is_documented(variable: str) -> None:
    assert f"`{variable}`" in OPERATIONS


def test_the_image_runs_as_nobody_and_brings_no_torch() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", text, re.M)
    assert "torch" not in text and "['train']" not in text
    targets = {found["build"]["target"] for found in services().values() if "build" in found}
    assert targets <= set(re.findall(r"AS ([a-z-]+)$", text, re.M))


def test_every_scaled_role_is_scraped() -> None:
    text = (COMPOSE / "prometheus" / "prometheus.yml").read_text()
    scraped = set(re.search(r"names: \[(.*)\]", text).group(1).split(", "))  # type: ignore[union-attr]
    exposed = {name for name, found in services().items() if "expose" in found}
    assert scraped == exposed


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_every_alert_says_what_it_is_and_the_docs_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    assert f"`{rule['alert']}`" in OPERATIONS


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_a_dashboard_has_the_shape_that_grafana_loads(path: Any) -> None:
    board = dashboard(path)
    assert board["uid"] == f"astrolabe-{path.stem}"
    assert board["title"].endswith("?") and board["schemaVersion"] >= 39
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) >= 8
    taken = set()
    for panel in board["panels"]:
        assert panel["type"] == "timeseries" and panel["title"] and panel["targets"]
        assert panel["datasource"]["uid"] == "astrolabe-prometheus"
        at = panel["gridPos"]
        assert 0 <= at["x"] <= 24 - at["w"]
        taken.add((at["x"], at["y"]))
    assert len(taken) == len(ids)


def test_the_data_source_is_the_one_that_panels_name() -> None:
    folder = COMPOSE / "grafana" / "provisioning"
    assert "uid: astrolabe-prometheus" in (folder / "datasources" / "prometheus.yml").read_text()
    environment = service("grafana")["environment"]
    home = environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].rpartition("/")[2]
    assert home in [path.name for path in DASHBOARDS]
