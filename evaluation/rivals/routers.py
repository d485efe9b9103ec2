"""The routers that we are compared with: which wheel, how they are started, with which policies.

Everything that is not named here is left at their default. A policy's arguments are the router's
own; the first policy of each router is the one that it has when nobody chooses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Router:
    """One router as its wheel installs it."""

    name: str
    wheel: str
    version: str
    command: tuple[str, ...]
    """Program in the environment's bin folder, and what comes before the options."""
    policies: Mapping[str, tuple[str, ...]]
    """Arguments by name of the policy."""

    @property
    def requirement(self) -> str:
        return f"{self.wheel}=={self.version}"

    def command_line(
        self, environment: Path, policy: str, port: int, metrics_port: int, workers: Sequence[str]
    ) -> list[str]:
        """How to start it in front of these workers' URLs."""
        program, *before = self.command
        return [
            *(str(environment / "bin" / program), *before),
            *("--host", HOST, "--port", str(port)),
            *("--prometheus-port", str(metrics_port)),
            *("--worker-urls", *workers),
            *self.policies[policy],
        ]


ROUTERS: Mapping[str, Router] = {
    router.name: router
    for router in (
        Router(
            "sglang-router",
            wheel="sglang-router",
            version="0.3.2",
            command=("python", "-m", "sglang_router.launch_router"),
            policies={
                "cache_aware": ("--policy", "cache_aware"),
                "power_of_two": ("--policy", "power_of_two"),
                "round_robin": ("--policy", "round_robin"),
            },
        ),
        Router(
            "vllm-router",
            wheel="vllm-router",
            version="0.1.17",
            command=("vllm-router",),
            policies={
                "cache_aware": ("--policy", "cache_aware"),
                "power_of_two": ("--policy", "power_of_two"),
                "round_robin": ("--policy", "round_robin"),
            },
        ),
        Router(
            "smg",
            wheel="smg",
            version="1.13.0",
            command=("smg", "launch"),
            policies={
                "cache_aware": ("--policy", "cache_aware"),
                "power_of_two": ("--policy", "power_of_two"),
                "power_of_two:least_requests": (
                    *("--policy", "power_of_two"),
                    *("--power-of-two-load-metric", "least_requests"),
                ),
                "round_robin": ("--policy", "round_robin"),
            },
        ),
    )
}
