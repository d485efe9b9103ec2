"""The predictor's rules of SGLang beside SGLang's own scheduler, every step of several cases."""

import pytest
from rich.console import Console

from engines.folder import SGLANG, TINY_LLAMA, is_complete
from evaluation.engine.conduct import sglang_step_by_step

pytestmark = [
    pytest.mark.skipif(not is_complete(SGLANG), reason="no real SGLang here: `make engines`"),
    pytest.mark.skipif(not TINY_LLAMA.is_dir(), reason="`make engines` makes the tiny Llama"),
    pytest.mark.timeout(900),
]


def test_every_step_is_that_of_sglang() -> None:
    compared = sglang_step_by_step(1, Console(quiet=True))
    assert [one.first_difference for one in compared] == [None] * 7
    assert sum(one.steps for one in compared) > 400
    assert sum(one.chunked for one in compared) > 20
    assert sum(one.preemptions for one in compared) > 3
