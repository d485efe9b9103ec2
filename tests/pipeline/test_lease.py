"""The lease: compare-and-set decides who a boot belongs to."""

import pytest

from pipeline.bus import Bus, Lease
from pipeline.bus.lease import all_leases
from pipeline.bus.topology import SECOND_NS
from pipeline.errors import SequenceConflict
from tests.waiting import eventually

KEY = "i0.b0"


async def shorten_ttl(bus: Bus, seconds: int) -> None:
    name = f"KV_{bus.subjects.instances_bucket}"
    config = (await bus.jetstream.stream_info(name))["config"]
    shorter = {"max_age": seconds * SECOND_NS, "duplicate_window": seconds * SECOND_NS}
    await bus.jetstream.api(f"STREAM.UPDATE.{name}", {**config, **shorter})


async def test_is_made_and_renewed(bus: Bus) -> None:
    lease = Lease(bus, KEY)
    await lease.write(b"1")
    first = lease.revision
    await lease.write(b"2")
    assert lease.revision > first
    assert await all_leases(bus) == {KEY: b"2"}


async def test_of_two_holders_the_second_loses(bus: Bus) -> None:
    holder, other = Lease(bus, KEY), Lease(bus, KEY)
    await holder.write(b"mine")
    with pytest.raises(SequenceConflict):
        await other.write(b"theirs")
    assert await all_leases(bus) == {KEY: b"mine"}


async def test_who_is_fenced_cannot_renew(bus: Bus) -> None:
    holder = Lease(bus, KEY)
    await holder.write(b"alive")
    rescuer, seen = await Lease.find(bus, KEY)
    assert seen == b"alive"
    await rescuer.write(b"dead")
    with pytest.raises(SequenceConflict):
        await holder.write(b"alive again")
    with pytest.raises(SequenceConflict):
        await holder.write(b"alive again")


async def test_who_fences_too_late_loses(bus: Bus) -> None:
    holder = Lease(bus, KEY)
    await holder.write(b"1")
    rescuer, _ = await Lease.find(bus, KEY)
    await holder.write(b"2")
    with pytest.raises(SequenceConflict):
        await rescuer.write(b"dead")
    await holder.write(b"3")


async def test_a_lost_acknowledgement_is_no_conflict(bus: Bus) -> None:
    holder = Lease(bus, KEY)
    await holder.write(b"1")
    revision = holder.revision
    await holder.write(b"2")
    holder.revision = revision  # as if the acknowledgement of 2 had never come
    await holder.write(b"2")
    assert holder.revision > revision
    await holder.write(b"3")


async def test_a_key_that_ran_out_is_made_again(bus: Bus) -> None:
    await shorten_ttl(bus, 1)
    holder = Lease(bus, KEY)
    await holder.write(b"1")

    async def gone() -> bool:
        return await all_leases(bus) == {}

    await eventually(gone)
    lease, value = await Lease.find(bus, KEY)
    assert (lease.revision, value) == (0, None)
    await holder.write(b"2")
    assert await all_leases(bus) == {KEY: b"2"}


async def test_a_key_that_ran_out_and_was_taken_is_lost(bus: Bus) -> None:
    await shorten_ttl(bus, 1)
    holder = Lease(bus, KEY)
    await holder.write(b"1")

    async def gone() -> bool:
        return await all_leases(bus) == {}

    await eventually(gone)
    await Lease(bus, KEY).write(b"dead")
    with pytest.raises(SequenceConflict):
        await holder.write(b"2")
