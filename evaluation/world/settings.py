"""What a simulated cluster is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from pipeline.errors import UsageError
from pipeline.messages import EngineLimits, StepTime
from pipeline.policies import DEFAULT_POLICY
from predictor.coming import PROBED_EXPIRES_S
from predictor.scores import DEFAULT_SCORE
from predictor.step_time import DEFAULT_PROFILE, LIMITS, PROFILES, scaled

OVERHEAD_MS = 0.7
"""Engine time a step that no profile has and no predictor is told. Fitted so that the policies that
look at no load are as good as the paper's: `astrolabe evaluate calibrate`, docs/evaluation.md."""


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """One instance: its engine's truth, and what that engine would report of itself."""

    profile: str = DEFAULT_PROFILE
    limits: EngineLimits = LIMITS[DEFAULT_PROFILE]
    overhead_ms: float = OVERHEAD_MS
    noise: float = 0.05
    """Sigma of the log-normal factor, of mean 1, on every step."""
    slowdown: float = 1.0
    """Factor on the profile; the predictor starts from the profile without it."""

    @property
    def step_time(self) -> StepTime:
        """What a step takes, but for overhead and noise."""
        return scaled(PROFILES[self.profile], self.slowdown)


def instance(
    profile: str = DEFAULT_PROFILE,
    *,
    overhead_ms: float = OVERHEAD_MS,
    noise: float = 0.05,
    slowdown: float = 1.0,
    limits: Mapping[str, object] | None = None,
) -> InstanceSettings:
    """An instance with the profile's own limits, save those given. Raises UsageError."""
    if profile not in PROFILES:
        raise UsageError(f"profile {profile!r}: choose from {', '.join(PROFILES)}")
    return InstanceSettings(
        profile, replace(LIMITS[profile], **(limits or {})), overhead_ms, noise, slowdown
    )


@dataclass(frozen=True, slots=True)
class Delays:
    """What the pipeline itself takes, as measured on a local stack (docs/benchmarks.md)."""

    tagger_ms: float = 6.0
    """From the client's publish until a dispatcher has the tagged request."""
    probe_ms: float = 2.5
    """From asking predictors until their answers are there; half of it is the way to them."""
    hop_ms: float = 1.5
    """One message: to an inbox, to an instance, or a worker's state to whoever listens."""


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """How eagerly running requests move, and at what price (evaluation/world/migration.py)."""

    every_ms: float = 1000.0
    moves_max: int = 4
    """Of one pair of instances, each time."""
    link_gb_s: float = 3.1
    """25 Gb/s Ethernet."""
    kv_bytes: float = 524_288.0
    """Of one token: Llama-2-7B in 16 bits."""
    stall_ms: float = 20.0
    """That either engine loses by a move."""
    out_below: float = 0.0
    """Freeness below which an instance gives requests away: what waits needs more than is free."""
    in_above: float = 1.0
    """Freeness above which one takes them."""

    def __post_init__(self) -> None:
        for name in ("every_ms", "moves_max", "link_gb_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"migration {name} {getattr(self, name)}: must be above 0")

    def transfer_ms(self, computed_tokens: int) -> float:
        """For how long a request with so many KV entries is on its way."""
        return computed_tokens * self.kv_bytes / (self.link_gb_s * 1e6)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A cluster and how it places requests."""

    instances: tuple[InstanceSettings, ...] = (InstanceSettings(),) * 12
    policy: str = DEFAULT_POLICY
    score: str = DEFAULT_SCORE
    dispatchers: int = 1
    delays: Delays = field(default_factory=Delays)
    state_every_ms: float = 20.0
    """Least time between two states of an instance; the worker's."""
    state_refresh_ms: float = 200.0
    """Longest time between two while something is in hand; the worker's."""
    tentative_ms: float = 1000 * PROBED_EXPIRES_S
    """For how long a predictor counts a request that it was asked about as on its way to it."""
    hears_dispatches: bool = True
    """Whether predictors know of requests that are on their way. Without, they see what the engine
    reports and nothing else, as the paper's artefact does."""
    latency_noise: float = 0.0
    """Every predicted cost is multiplied by 1 + N(0, this), within 0.1 and 5: the paper's."""
    migration: MigrationSettings | None = None
    """Live migration on top of the placement; None: requests stay where they were put."""
    clone_every: int = 0
    """Every so many decisions the candidates are copied and run; 0: never."""
    seed: int = 0
    """Of the engines' noise and of all random choices; arrivals have their own."""

    def __post_init__(self) -> None:
        if not self.instances:
            raise UsageError("instances: at least one")
        if self.dispatchers < 1:
            raise UsageError(f"dispatchers {self.dispatchers}: at least one")
        if not 0 <= self.latency_noise <= 10:
            raise UsageError(f"latency_noise {self.latency_noise}: must be from 0 to 10")
        if self.tentative_ms < 0:
            raise UsageError(f"tentative_ms {self.tentative_ms}: must not be negative")
        if self.clone_every < 0:
            raise UsageError(f"clone_every {self.clone_every}: 0, or a number of decisions")
