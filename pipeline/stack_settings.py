"""What a local stack consists of: its settings, and the command line of each component."""

import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.policies import DEFAULT_POLICY
from pipeline.subjects import DEFAULT_PREFIX

INSTANCES_MAX = 64  # each is two processes; more is a cluster, not a laptop
REPLICAS_MAX = 16


@dataclass(frozen=True, slots=True)
class StackSettings:
    """What a person can choose of a local stack."""

    instances: int = 4
    taggers: int = 1
    dispatchers: int = 1
    engine: str = "simulated"
    policy: str = DEFAULT_POLICY
    prefix: str = DEFAULT_PREFIX
    port: int | None = None
    """None: any free one."""
    store_dir: Path | None = None
    """Kept; None: a temporary folder, removed at the end."""
    seed: int | None = None
    """Makes the dispatchers' and the simulated engines' choices repeatable."""
    tagger_args: tuple[str, ...] = ()
    dispatcher_args: tuple[str, ...] = ()
    worker_args: tuple[str, ...] = ()
    predictor_args: tuple[str, ...] = ()
    worker_grace_s: float = 10.0
    """How long running requests may go on once the stack is told to stop."""
    restart: bool = False
    """Restart what exits, with growing waits. Tests that kill things leave it off."""
    log_level: str = "info"
    log_format: str = "console"
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "pipeline.cli")
    """What runs a component. `-P`: a folder called pipeline where the user stands is not ours."""
    engine_python: Path | None = None
    """Interpreter of the engine's own environment, for the workers; None: the same as for all."""

    def __post_init__(self) -> None:
        """Raises UsageError naming the setting."""
        for name, limit in (
            ("instances", INSTANCES_MAX),
            ("taggers", REPLICAS_MAX),
            ("dispatchers", REPLICAS_MAX),
        ):
            least = 0 if name == "taggers" else 1  # dispatchers stand in for a missing tagger
            if not least <= getattr(self, name) <= limit:
                raise UsageError(f"{name} {getattr(self, name)}: {least} to {limit}")
        if self.engine_python is not None and not self.engine_python.is_file():
            raise UsageError(f"engine_python {self.engine_python}: no such file")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise UsageError(f"port {self.port}: 1 to 65535, or none for a free one")

    @property
    def instance_names(self) -> list[str]:
        return [f"i{number}" for number in range(self.instances)]


def component_commands(settings: StackSettings, url: str) -> dict[str, tuple[str, ...]]:
    """Command line of every component by name, in the order in which they start."""
    bus = ("--url", url, "--prefix", settings.prefix)
    logs = ("--log-level", settings.log_level, "--log-format", settings.log_format)

    def line(role: str, *more: str) -> tuple[str, ...]:
        interpreter, *rest = settings.command
        if role == "worker" and settings.engine_python is not None:
            interpreter = str(settings.engine_python)
        return (interpreter, *rest, role, *bus, *logs, *more)

    def seed(number: int, option: str, form: str = "{}") -> tuple[str, ...]:
        return () if settings.seed is None else (option, form.format(settings.seed + number))

    commands: dict[str, tuple[str, ...]] = {}
    for number, name in enumerate(settings.instance_names):
        simulated = settings.engine == "simulated"
        commands[f"worker-{name}"] = line(
            "worker",
            *("--instance", name, "--engine", settings.engine),
            *("--grace-s", f"{settings.worker_grace_s:g}"),
            *(seed(number, "--engine-arg", "seed={}") if simulated else ()),
            *settings.worker_args,
        )
        commands[f"predictor-{name}"] = line(
            "predictor", "--instance", name, *settings.predictor_args
        )
    for number in range(settings.taggers):
        commands[f"tagger-{number}"] = line("tagger", *settings.tagger_args)
    for number in range(settings.dispatchers):
        commands[f"dispatcher-{number}"] = line(
            "dispatcher",
            *("--policy", settings.policy),
            *seed(number, "--seed"),
            *settings.dispatcher_args,
        )
    return commands
