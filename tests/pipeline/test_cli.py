"""The command as a person meets it: help that is there, errors that name their cause in a line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.cli.load import make_requests
from pipeline.messages import Request

COMMANDS = [
    (),
    ("up",),
    ("send",),
    ("status",),
    ("demo",),
    ("tagger",),
    ("tagger", "train"),
    ("tagger", "export"),
    ("tagger", "evaluate"),
    ("dispatcher",),
    ("worker",),
    ("predictor",),
    ("health",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    assert "Usage: astrolabe" in capsys.readouterr().out


WRONG = [
    (["nonsense"], "nonsense"),
    (["up", "--instances", "0"], "--instances"),
    (["up", "--instances", "many"], "--instances"),
    (["up", "--port", "70000"], "--port"),
    (["up", "--seed", "-1"], "--seed"),
    (["up", "--engine", "steam"], "--engine steam"),
    (["up", "--policy", "best"], "--policy best"),
    (["up", "--engine-arg", "kv_blocks"], "--engine-arg"),
    (["up", "--engine-arg", "invented=1"], "invented"),
    (["demo", "--rate", "0"], "--rate"),
    (["demo", "--engine-arg", "noise=9"], "noise"),
    (["send"], "prompt"),
    (["send", "hello", "--file", "x.jsonl"], "--file"),
    (["send", "hello", "--requests", "5"], "--requests"),
    (["send", "--file", "sample", "--max-tokens", "5"], "--max-tokens"),
    (["send", "--file", "no-such-file.jsonl"], "no-such-file.jsonl"),
    (["send", "hello", "--client", "a.b"], "--client"),
    (["send", "hello", "--url", "localhost"], "--url"),
    (["send", "hello", "--prefix", "A.B"], "prefix"),
    (["send", "hello", "--url", "nats://127.0.0.1:1"], "127.0.0.1:1"),
    (["status", "--url", "nats://127.0.0.1:1"], "127.0.0.1:1"),
    (["worker"], "--instance"),
    (["worker", "--instance", "a.b"], "--instance"),
    (["worker", "--instance", "a", "--grace-s", "-1"], "--grace-s"),
    (["predictor", "--instance", "*"], "--instance"),
    (["predictor", "--instance", "a", "--score", "luck"], "--score luck"),
    (["dispatcher", "--probe-timeout-ms", "0"], "--probe-timeout-ms"),
    (["dispatcher", "--log-level", "loud"], "--log-level"),
    (["tagger", "--budget-ms", "soon"], "--budget-ms"),
    (["tagger", "--metrics-port", "-1"], "--metrics-port"),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=lambda value: str(value)[:60])
def test_a_wrong_value_is_refused_in_one_line_that_names_it(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("astrolabe: ")
    assert error.count("\n") == 1
    assert named in error


def test_a_wrong_environment_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASTROLABE_METRICS_PORT", "many")
    assert main(["dispatcher"]) == 2
    assert "METRICS_PORT" in capsys.readouterr().err.upper().replace("-", "_")


def test_the_same_seed_sends_the_same_requests() -> None:
    def without_ids(requests: list[Request]) -> list[dict[str, object]]:
        return [
            {name: getattr(r, name) for name in Request.__struct_fields__ if name != "id"}
            for r in requests
        ]

    one, two = make_requests(None, 50, 7), make_requests(None, 50, 7)
    assert without_ids(one) == without_ids(two)
    assert without_ids(one) != without_ids(make_requests(None, 50, 8))
    assert not {r.id for r in one} & {r.id for r in two}, "a repeated id would not run again"


def test_starting_the_command_imports_nothing_heavy() -> None:
    heavy = ("onnxruntime", "torch", "transformers", "scipy", "sklearn", "tokenizers", "vllm")
    program = (
        "import sys; from pipeline.cli import main; main(['--help']); "
        f"sys.exit(','.join(n for n in {heavy!r} if n in sys.modules) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_script_is_installed(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "astrolabe"
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [str(script), "status", "--url", "nats://127.0.0.1:1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("astrolabe: ")
