"""Whole workloads: by name, paired by seed, from files that lie in one folder."""

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from evaluation.workloads.base import Arrival, compose
from evaluation.workloads.estimates import ESTIMATES
from evaluation.workloads.lengths import EstimateTable
from evaluation.workloads.presets import PRESETS, TRACE, load_lengths, make_workload
from evaluation.workloads.sources import FOLDER_VARIABLE, SOURCES
from evaluation.workloads.synthetic import synthetic_lengths
from evaluation.workloads.tagged import CACHE_VARIABLE
from pipeline.errors import UsageError

Lengths = list[tuple[int, int]]
BUT_THE_TAGGED = [name for name in PRESETS if name != "sharegpt-tagged"]  # it has a test of its own
needs_data = pytest.mark.skipif(
    not os.environ.get(FOLDER_VARIABLE),
    reason=f"{FOLDER_VARIABLE} does not name a folder with the sources' files",
)


def lengths(arrivals: list[Arrival]) -> Lengths:
    return [(arrival.prompt_tokens, arrival.response_tokens) for arrival in arrivals]


def times(arrivals: list[Arrival]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([arrival.at_ms for arrival in arrivals])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trace of 100 rows, one a second, one of them too long for most models."""
    rows = [f"{second},{10 + second},{20 + second}" for second in range(100)]
    rows[50] = "50,9000,20"
    text = "\n".join(["t,prompt_tokens,response_tokens", *rows])
    (tmp_path / "mooncake_conversation.csv.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_one_seed_is_one_workload_at_every_rate_and_burstiness() -> None:
    def made(rate: float, burstiness: float = 1.0, seed: int = 7) -> list[Arrival]:
        return make_workload("synthetic", requests=500, rate=rate, seed=seed, burstiness=burstiness)

    slow, fast, bursty = made(10), made(40), made(10, burstiness=0.5)
    assert made(10) == slow
    assert lengths(slow) == lengths(fast) == lengths(bursty)
    assert [a.estimate for a in slow] == [a.estimate for a in fast] == [a.estimate for a in bursty]
    np.testing.assert_allclose(times(slow), 4 * times(fast))
    other = made(10, seed=8)
    assert lengths(other) != lengths(slow)
    assert not np.allclose(times(other), times(slow))


def test_estimates_do_not_change_what_arrives() -> None:
    truth = make_workload("synthetic", requests=200, rate=5, seed=1, estimates="oracle")
    noisy = make_workload("synthetic", requests=200, rate=5, seed=1, estimates="noise:40")
    assert lengths(truth) == lengths(noisy)
    assert np.array_equal(times(truth), times(noisy))
    assert {arrival.estimate.source for arrival in noisy} == {"noise:40"}


def test_fewer_requests_are_the_first_of_more() -> None:
    few = make_workload("synthetic", requests=100, rate=5, seed=1)
    assert few == make_workload("synthetic", requests=3_000, rate=5, seed=1)[:100]


@pytest.mark.parametrize("name", ["synthetic", "mooncake", "mooncake-trace"])
def test_a_duration_leaves_the_first_of_more(folder: Path, name: str) -> None:
    whole = make_workload(name, requests=90, rate=10, seed=1, folder=folder)
    cut = make_workload(name, requests=90, rate=10, seed=1, folder=folder, duration_ms=4_000)
    assert cut == [arrival for arrival in whole if arrival.at_ms <= 4_000]
    assert 0 < len(cut) < 90


def test_the_default_estimates_are_as_good_as_the_shipped_model() -> None:
    arrivals = make_workload("synthetic", requests=10_000, rate=5, seed=1)
    said = [arrival.estimate.p50 for arrival in arrivals]
    truth = [arrival.response_tokens for arrival in arrivals]
    assert spearmanr(said, truth).statistic == pytest.approx(0.55, abs=0.025)


def test_requests_fit_the_model() -> None:
    arrivals = make_workload("synthetic", requests=2_000, rate=5, seed=1, max_model_len=600)
    assert max(sum(pair) for pair in lengths(arrivals)) <= 600


def test_a_trace_keeps_its_rows_and_its_pace(folder: Path) -> None:
    arrivals = make_workload("mooncake-trace", requests=40, rate=4, seed=3, folder=folder)
    assert times(arrivals)[0] == 0
    # 39 gaps at four requests per second, whatever the pace in the file.
    assert times(arrivals)[-1] == pytest.approx(39 / 4 * 1000)
    steps = np.diff([prompt for prompt, _ in lengths(arrivals)])
    assert set(steps) <= {1, 2}  # 2 where the row that did not fit was
    assert all(response == prompt + 10 for prompt, response in lengths(arrivals))
    starts = {
        make_workload("mooncake-trace", requests=40, rate=4, seed=seed, folder=folder)[
            0
        ].prompt_tokens
        for seed in range(20)
    }
    assert len(starts) > 10


def test_a_traces_lengths_can_come_at_gamma_times(folder: Path) -> None:
    arrivals = make_workload("mooncake", requests=250, rate=4, seed=3, folder=folder)
    counts = np.unique([prompt for prompt, _ in lengths(arrivals)], return_counts=True)[1]
    # 99 rows fit: none of them a fourth time before all came twice.
    assert (len(counts), counts.min(), counts.max()) == (99, 2, 3)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("sharegtp", {}, "workload 'sharegtp': not one of synthetic"),
        ("synthetic", {"requests": 0}, "requests: 0 given, must be 1 to"),
        ("synthetic", {"rate": 0}, "rate: 0 given"),
        ("synthetic", {"seed": -1}, "seed: -1 given"),
        ("synthetic", {"duration_ms": 1e-9}, "duration_ms: 1e-09 ends before the first"),
        ("synthetic", {"estimates": "recorded"}, "synthetic has none"),
        ("mooncake-trace", {"burstiness": 0.5}, "burstiness"),
        ("mooncake-trace", {"requests": 100}, "the trace has 99"),
        ("azure-conv", {}, r"AzureLLMInferenceTrace_conv\.csv is missing; fetch it from github"),
        ("arxiv", {"folder": Path("nowhere")}, "nowhere: no such folder"),
    ],
)
def test_what_cannot_be_made_is_named(
    folder: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    asked: dict[str, Any] = {"requests": 9, "rate": 1, "seed": 0, "folder": folder} | changes
    with pytest.raises(UsageError, match=said):
        make_workload(name, **asked)


def test_the_folder_may_be_named_by_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    assert len(load_lengths("mooncake")) == 100
    monkeypatch.delenv(FOLDER_VARIABLE)
    with pytest.raises(UsageError, match=f"give its folder, or set {FOLDER_VARIABLE}"):
        load_lengths("mooncake")


def test_parts_of_different_lengths_are_not_composed() -> None:
    rows = synthetic_lengths().take(np.arange(3))
    said = EstimateTable(np.ones((2, 3)), "mine")
    with pytest.raises(UsageError, match="3 rows, 3 times, 2 estimates"):
        compose(rows, np.zeros(3), said)


def test_presets_and_sources_name_the_same() -> None:
    assert {name.removesuffix(TRACE) for name in PRESETS} == {"synthetic", *SOURCES}


def test_the_docs_list_every_name() -> None:
    text = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text()
    for name in (*SOURCES, "synthetic", *ESTIMATES):
        assert f"`{name}`" in text, name
    for source in SOURCES.values():
        for file, _ in source.files:
            assert f"`{file}`" in text, file


@needs_data
@pytest.mark.parametrize("name", BUT_THE_TAGGED)
def test_every_preset_works_on_the_real_files(name: str) -> None:
    files = SOURCES[name.removesuffix(TRACE)].files if name != "synthetic" else ()
    folder = Path(os.environ[FOLDER_VARIABLE])
    if files and not any((folder / file).is_file() for file, _ in files):
        pytest.skip(f"{FOLDER_VARIABLE} has no {files[0][0]}")
    arrivals = make_workload(name, requests=2_000, rate=20, seed=1)
    assert len(arrivals) == 2_000
    assert 2_000 / times(arrivals)[-1] * 1000 == pytest.approx(20, rel=0.1)


@needs_data
def test_synthetic_is_close_to_the_real_table() -> None:
    made, real = synthetic_lengths().fitting(4096), load_lengths("sharegpt-llama2")
    for percent in (10, 25, 50, 75, 90, 95, 99):
        for title in ("prompt_tokens", "response_tokens"):
            here, there = (np.percentile(getattr(one, title), percent) for one in (made, real))
            assert here == pytest.approx(there, rel=0.07), (title, percent)


@needs_data
@pytest.mark.timeout(600)
def test_the_shipped_model_on_real_prompts_is_what_its_card_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    arrivals = make_workload(
        "sharegpt-tagged", requests=3_000, rate=20, seed=1, estimates="recorded"
    )
    said = [arrival.estimate.p50 for arrival in arrivals]
    truth = [arrival.response_tokens for arrival in arrivals]
    assert spearmanr(said, truth).statistic == pytest.approx(0.50, abs=0.03)
    within = [a.estimate.p10 <= a.response_tokens <= a.estimate.p90 for a in arrivals]
    assert np.mean(within) == pytest.approx(0.78, abs=0.03)
