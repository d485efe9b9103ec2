"""Who lives, who may be judged, and how full each is, on a clock that the test turns."""

import pytest

from pipeline.fleet import GRACE_S, LEFT_OUT_MAX_S, LIVENESS_S, Fleet
from pipeline.messages import EngineLimits, Instance

LIMITS = EngineLimits(
    rules="vllm",
    block_size=16,
    kv_blocks=100,
    max_num_seqs=8,
    max_num_batched_tokens=512,
    max_model_len=1024,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    return Fleet(clock)


def instance(name: str = "a", boot: str = "1", **more: object) -> Instance:
    fields = {"model": "llama", "engine": "simulated", "state": "ready", **more}
    return Instance(
        instance=name,
        boot=boot,
        limits=LIMITS,
        sent_at_ms=0.0,
        **fields,  # type: ignore[arg-type]  # the test's own keywords
    )


def names(fleet: Fleet, model: str = "default") -> list[str]:
    return [target.instance for target in fleet.targets(model)]


def test_a_silent_instance_is_no_target(fleet: Fleet, clock: Clock) -> None:
    fleet.heard(instance())
    assert names(fleet) == ["a"]
    clock.now += LIVENESS_S + 0.1
    assert names(fleet) == []
    assert not fleet.lives("a", "1")


def test_nobody_is_judged_before_the_grace_period(fleet: Fleet, clock: Clock) -> None:
    judging = [fleet.may_judge]
    clock.now += GRACE_S + 0.1
    judging.append(fleet.may_judge)
    fleet.reconnected()
    judging.append(fleet.may_judge)
    assert judging == [False, True, False]


def test_a_reconnect_forgives_silence(fleet: Fleet, clock: Clock) -> None:
    fleet.heard(instance())
    clock.now += LIVENESS_S + 5
    fleet.reconnected()
    assert names(fleet) == ["a"]


def test_draining_gets_nothing_new_but_lives(fleet: Fleet) -> None:
    fleet.heard(instance(state="draining"))
    assert names(fleet) == []
    assert fleet.lives("a", "1")


def test_a_new_boot_replaces_the_old_one(fleet: Fleet) -> None:
    fleet.heard(instance(boot="1"))
    fleet.heard(instance(boot="2"))
    assert [t.boot for t in fleet.targets("default")] == ["2"]
    assert not fleet.lives("a", "1")


def test_a_goodbye_of_the_old_boot_does_not_remove_the_new_one(fleet: Fleet) -> None:
    fleet.heard(instance(boot="2"))
    fleet.heard(instance(boot="1", state="dead"))
    assert names(fleet) == ["a"]


def test_models_are_told_apart_and_default_is_any(fleet: Fleet) -> None:
    fleet.heard(instance("a", model="org/llama-3.1"))
    fleet.heard(instance("b", model="qwen"))
    assert names(fleet, "org_llama-3_1") == ["a"]
    assert sorted(names(fleet)) == ["a", "b"]
    assert fleet.knows_model("qwen")
    assert not fleet.knows_model("gpt")
    assert fleet.models() == ["org_llama-3_1", "qwen"]


def test_a_model_whose_instances_just_died_is_still_known(fleet: Fleet, clock: Clock) -> None:
    fleet.heard(instance(model="qwen"))
    clock.now += 60
    assert fleet.targets("qwen") == []
    assert fleet.knows_model("qwen")


def test_counts_follow_dispatches_ends_and_heartbeats(fleet: Fleet, clock: Clock) -> None:
    fleet.heard(instance(running=3, waiting=1, inbox_pending=2))
    assert fleet.targets("default")[0].in_flight == 6
    fleet.arrived("a", "c.1", 400.0)
    fleet.arrived("a", "c.1", 400.0)  # our own count and the server's echo
    fleet.departed("a", "c.0")
    assert fleet.targets("default")[0].in_flight == 6
    clock.now += 0.5
    fleet.heard(instance(running=6))
    assert fleet.targets("default")[0].in_flight == 6


def test_a_dispatch_just_before_the_heartbeat_is_not_forgotten(fleet: Fleet, clock: Clock) -> None:
    fleet.heard(instance())
    fleet.arrived("a", "c.1", 400.0)
    clock.now += 0.01
    fleet.heard(instance())
    assert fleet.targets("default")[0].in_flight == 1


def test_counts_never_go_below_zero(fleet: Fleet) -> None:
    fleet.heard(instance())
    for number in range(5):
        fleet.departed("a", f"c.{number}")
    assert fleet.targets("default")[0].in_flight == 0


def test_a_failing_predictor_leaves_its_instance_out_for_longer_and_longer(
    fleet: Fleet, clock: Clock
) -> None:
    fleet.heard(instance("a"))
    fleet.heard(instance("b"))
    fleet.probe_failed("a")
    assert names(fleet) == ["b"]
    clock.now += 0.6
    assert sorted(names(fleet)) == ["a", "b"]
    for _ in range(20):
        fleet.probe_failed("a")
    clock.now += LIVENESS_S - 0.7
    fleet.heard(instance("a"))
    fleet.heard(instance("b"))
    assert names(fleet) == ["b"]
    clock.now += LEFT_OUT_MAX_S
    fleet.heard(instance("a"))
    assert "a" in names(fleet)
    fleet.probe_answered("a")
    fleet.probe_failed("a")
    clock.now += 0.6
    assert "a" in names(fleet)


def test_with_all_left_out_all_are_used(fleet: Fleet) -> None:
    fleet.heard(instance("a"))
    fleet.probe_failed("a")
    assert names(fleet) == ["a"]


def test_the_registry_tells_of_models_and_of_the_dead_but_makes_no_targets(fleet: Fleet) -> None:
    fleet.heard(instance("a"))
    fleet.snapshot([instance("a"), instance("b", model="qwen")])
    assert names(fleet) == ["a"]
    assert fleet.knows_model("qwen")
    fleet.snapshot([instance("a", state="dead")])
    assert names(fleet) == []


def test_a_target_says_how_much_of_its_cache_is_promised(fleet: Fleet, clock: Clock) -> None:
    fleet.heard(instance())
    limits = instance().limits
    capacity = limits.kv_blocks * limits.block_size
    fleet.arrived("a", "c.1", 400.0)
    fleet.arrived("a", "c.2", 100.0)
    assert fleet.targets("default")[0].committed == pytest.approx(500 / capacity)
    fleet.departed("a", "c.1")
    assert fleet.targets("default")[0].committed == pytest.approx(100 / capacity)
    clock.now += 1.0
    fleet.heard(instance(running=0))  # its end was missed
    assert fleet.targets("default")[0].committed == 0
    fleet.heard(instance(running=2))  # from before we came
    assert fleet.targets("default")[0].committed == pytest.approx(2 * 512 / capacity)
