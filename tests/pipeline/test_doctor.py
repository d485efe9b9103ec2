"""`astrolabe doctor`: it finds what is wrong, says what to do, and changes nothing."""

import asyncio
import json
from pathlib import Path

import pytest

from pipeline import doctor
from pipeline.bus import Bus, BusSettings
from pipeline.cli.app import main
from pipeline.doctor import Finding, of_environment, of_server, worst
from pipeline.nats_server import NatsServer
from tagger.model import LengthModel


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


async def test_a_good_server_is_well(bus: Bus) -> None:
    found = by_name(await of_server(bus.settings))
    assert set(found) == {"NATS server", "max_payload", "JetStream"}
    assert worst(list(found.values())) == "well"
    assert "streams" in found["JetStream"].found


async def test_a_poor_server_is_told_with_what_to_do(tmp_path: Path) -> None:
    config = tmp_path / "poor.conf"
    config.write_text("max_payload: 1MB")
    async with NatsServer(tmp_path / "poor", config=config) as server:
        found = by_name(await of_server(BusSettings(url=server.url)))
    assert found["max_payload"].verdict == found["JetStream"].verdict == "trouble"
    assert "max_payload:" in found["max_payload"].do
    assert "jetstream" in found["JetStream"].do


async def test_no_server_is_one_finding() -> None:
    (found,) = await of_server(BusSettings(url="nats://127.0.0.1:1"))
    assert (found.what, found.verdict) == ("NATS server", "trouble")
    assert found.do


def test_two_onnxruntimes_are_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _: "1.31.1")
    found = by_name(of_environment(LengthModel.load))
    assert found["onnxruntime"].verdict == "trouble"
    assert "uninstall" in found["onnxruntime"].do
    assert "length model" not in found, "which of the two would load is a matter of luck"


def test_no_onnxruntime_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _: None)
    assert by_name(of_environment(LengthModel.load))["onnxruntime"].verdict == "note"


def test_what_is_really_bound_is_told() -> None:
    assert "CPUExecutionProvider" in by_name(of_environment(LengthModel.load))["length model"].found


async def test_the_command_ends_with_the_verdict(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    well = ["doctor", "--json", "--url", bus.settings.url]
    assert await asyncio.to_thread(main, well) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"what", "verdict", "found", "do"} >= set(told[0])
    assert await asyncio.to_thread(main, ["doctor", "--url", "nats://127.0.0.1:1"]) == 1
    assert "trouble" in capsys.readouterr().out
