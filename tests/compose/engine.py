"""A compose stack of its own on the Docker engine of this machine: project, images, port."""

import functools
import json
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass

from tests.compose.files import ROOT

PROJECT = "astrolabe-test"
BUILD_TIMEOUT_S = 900
COMMAND_TIMEOUT_S = 240
DOCKER_TIMEOUT_S = 60


@functools.cache
def why_not() -> str | None:
    """None where an engine runs and a compose command is there, else what is missing."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    try:
        docker("info")
    except subprocess.TimeoutExpired:
        return "the Docker engine does not answer"
    except subprocess.CalledProcessError:
        return "no Docker engine runs here"
    return None if compose_command() else "neither `docker compose` nor docker-compose is there"


@functools.cache
def compose_command() -> tuple[str, ...]:
    """Compose v2 where there is one, else v1; empty where there is none."""
    try:
        docker("compose", "version")
    except subprocess.CalledProcessError:
        return ("docker-compose",) if shutil.which("docker-compose") else ()
    return ("docker", "compose")


def docker(*arguments: str) -> str:
    """Output of a short command. Raises CalledProcessError, TimeoutExpired."""
    done = subprocess.run(
        ["docker", *arguments],  # noqa: S607  wherever it is installed
        capture_output=True,
        text=True,
        timeout=DOCKER_TIMEOUT_S,
        check=True,
    )
    return done.stdout


@dataclass(frozen=True)
class ComposeStack:
    """`run("up", "-d")` is `docker compose up -d` of this stack."""

    port: int

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def run(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Its output; AssertionError with all that it said where it fails."""
        environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "ASTROLABE_VERSION": "0.0.test",
            "ASTROLABE_PORT": str(self.port),
            "ASTROLABE_SIMULATED_TIME_SCALE": "0.5",
        }
        done = subprocess.run(
            [*compose_command(), *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def containers(self) -> dict[str, "Container"]:
        """By name without the project: `worker-1`, ... Stopped ones too."""
        ids = self.run("ps", "-a", "-q").split()
        if not ids:
            return {}
        found = {}
        for container in json.loads(docker("inspect", *ids)):
            labels = container["Config"]["Labels"]
            name = "-".join(
                labels[f"com.docker.compose.{part}"] for part in ("service", "container-number")
            )
            state = container["State"]
            health = state.get("Health", {}).get("Status", "none")
            found[name] = Container(container["Id"], state["Running"], health, state["ExitCode"])
        return found


@dataclass(frozen=True)
class Container:
    """What the engine says of one."""

    id: str
    running: bool
    health: str
    exit_code: int


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
