"""The short form of `make chaos`: half a minute of faults on real processes."""

import pytest
from rich.console import Console

from bench.chaos.__main__ import run


@pytest.mark.timeout(240)
async def test_half_a_minute_of_faults_loses_nothing() -> None:
    figures = await run(seed=7, length_s=25.0, rate=4.0, console=Console(quiet=True))
    assert figures.accepted > 60
    assert sum(figures.faults.values()) >= 4
    assert (figures.lost, figures.duplicate_finals, figures.undetected_gaps) == (0, 0, 0)
    assert figures.done >= 0.97 * figures.accepted, figures.errors
