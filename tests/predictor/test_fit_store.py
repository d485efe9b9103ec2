"""Fits from one life to the next, and files that must not be believed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from pipeline.messages import StepTime
from predictor import fit_store
from predictor.fit import OnlineFit
from predictor.fit_store import FitStore
from predictor.step_time import DEFAULT_PROFILE, PROFILES, StepLoad, scaled, step_ms

A30 = PROFILES[DEFAULT_PROFILE]
DECODE = StepLoad(30, 0, 9_000, 30)


def store(folder: Path, **other: str) -> FitStore:
    key = {"instance": "gpu-0", "model": "meta-llama/Llama-2-7b", "engine": "simulated", **other}
    return FitStore(folder, **key)


def fitted(steps: int = 200, factor: float = 0.5) -> OnlineFit:
    """A fit to an engine `factor` times as slow as its start."""
    fit = OnlineFit(A30)
    for n in range(steps):
        load = StepLoad(1 + n % 40, 0, 300 * (1 + n % 40), 1 + n % 40)
        fit.observe(load, factor * step_ms(A30, load))
    return fit


def test_what_was_saved_is_where_the_next_life_starts(tmp_path: Path) -> None:
    fit = fitted()
    assert store(tmp_path / "new" / "folder").save(fit, at_ms=1.0)
    again = store(tmp_path / "new" / "folder").fit(A30, tokens_max=512)
    assert step_ms(again.coefficients, DECODE) == pytest.approx(step_ms(fit.coefficients, DECODE))
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [
        store(tmp_path).path.name
    ]


def test_a_reloaded_fit_still_learns_a_new_speed(tmp_path: Path) -> None:
    store(tmp_path).save(fitted(), at_ms=1.0)
    again = store(tmp_path).fit(A30, tokens_max=512)
    for _ in range(60):
        again.observe(DECODE, 2 * step_ms(A30, DECODE))
    assert step_ms(again.coefficients, DECODE) == pytest.approx(2 * step_ms(A30, DECODE), rel=0.03)


def test_without_a_file_it_starts_from_the_profile_and_says_nothing(tmp_path: Path) -> None:
    with capture_logs() as logs:
        fit = store(tmp_path).fit(A30, tokens_max=512)
    assert step_ms(fit.coefficients, DECODE) == pytest.approx(step_ms(A30, DECODE))
    assert logs == []


def test_every_key_has_a_file_of_its_own(tmp_path: Path) -> None:
    odd = ["a/b", "a.b", "a_b", "../../a", "ü", "\udc80", "x" * 500, ""]
    paths = {store(tmp_path, model=model).path for model in odd}
    paths |= {store(tmp_path, instance="gpu-1").path, store(tmp_path, engine="vllm").path}
    assert len(paths) == len(odd) + 2
    assert all(path.parent == tmp_path and len(path.name) < 200 for path in paths)


def with_step_time(**change: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda content: {**content, "step_time": {**content["step_time"], **change}}


@pytest.mark.parametrize(
    "damage",
    [
        with_step_time(base_ms=-1.0),
        with_step_time(token_ms=-1e-9),
        with_step_time(base_ms=0.0, flat_ms=0.0),
        with_step_time(base_ms=1e300),
        lambda content: {**content, "step_time": {"base_ms": 1.0}},
        lambda content: {**content, "step_time": {**content["step_time"], "flat_ms": None}},
        lambda content: {**content, "version": 2},
        lambda content: {**content, "model": "another"},
        lambda content: {**content, "instance": "gpu-7"},
        lambda content: {**content, "engine": "vllm"},
        lambda content: {**content, "steps": 3},
        lambda content: {**content, "error": 0.9},
        lambda content: {**content, "error": None},
        lambda content: [content],
    ],
)
def test_a_file_that_is_not_believed_is_told_and_the_profile_taken(
    tmp_path: Path, damage: Callable[[dict[str, Any]], Any]
) -> None:
    kept = store(tmp_path)
    kept.save(fitted(), at_ms=1.0)
    kept.path.write_bytes(msgspec.json.encode(damage(msgspec.json.decode(kept.path.read_bytes()))))
    with capture_logs() as logs:
        fit = kept.fit(A30, tokens_max=512)
    assert step_ms(fit.coefficients, DECODE) == pytest.approx(step_ms(A30, DECODE))
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("fit_refused", "warning")
    assert line["file"] == kept.path.name and line["reason"]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'{"version": 1e999}', b"[" * 10_000])
def test_garbage_is_told_and_the_profile_taken(tmp_path: Path, data: bytes) -> None:
    kept = store(tmp_path)
    kept.path.write_bytes(data)
    with capture_logs() as logs:
        assert kept.load() is None
    assert [line["event"] for line in logs] == ["fit_refused"]


def test_a_fit_that_nobody_would_believe_does_not_replace_a_good_one(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.save(fitted(), at_ms=1.0)
    before = kept.path.read_bytes()
    assert not kept.save(fitted(steps=20), at_ms=2.0)
    assert kept.path.read_bytes() == before


def test_a_write_that_is_cut_off_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = store(tmp_path)
    kept.save(fitted(), at_ms=1.0)
    before = kept.path.read_bytes()

    def full_disk(path: Path, data: bytes) -> None:
        path.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fit_store, "_write", full_disk)
    with capture_logs() as logs:
        assert not kept.save(fitted(factor=2.0), at_ms=2.0)
    assert [line["event"] for line in logs] == ["fit_not_saved"]
    assert kept.path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [kept.path]


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = store(tmp_path / "file")
    with capture_logs() as logs:
        assert kept.load() is None
        assert not kept.save(fitted(), at_ms=1.0)
    assert [line["event"] for line in logs] == ["fit_not_read", "fit_not_saved"]


def test_every_coefficient_survives_exactly(tmp_path: Path) -> None:
    kept = store(tmp_path)
    fit = fitted()
    kept.save(fit, at_ms=5.0)
    stored = kept.load()
    assert stored is not None
    assert stored.step_time == fit.coefficients != scaled(A30, 1.0)
    assert isinstance(stored.step_time, StepTime)
    assert (stored.steps, stored.saved_at_ms) == (200, 5.0)
