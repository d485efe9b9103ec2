"""The command's frame: what there is, and how an error looks (one line that names its cause)."""

import sys

import typer
from typer.exceptions import TyperException

from pipeline.cli import (
    components,
    evaluate,
    health,
    length_model,
    load,
    operate,
    replay,
    stack,
)
from pipeline.errors import AstrolabeError, EngineLost

app = typer.Typer(
    name="astrolabe",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Place each request of a large language model on the instance that will serve it best. "
    "Start with `astrolabe up`, then `astrolabe send 'Why is the sky blue?'`.",
)

LOCAL = "Try it and look at it"
OPERATE = "Operate it"
COMPONENTS = "One component"
MEASURE = "Measure it"

app.command(rich_help_panel=LOCAL)(stack.up)
app.command(rich_help_panel=LOCAL)(load.send)
app.command(rich_help_panel=LOCAL)(stack.status)
app.command(rich_help_panel=LOCAL)(load.demo)
app.command(rich_help_panel=OPERATE)(operate.explain)
app.command(rich_help_panel=OPERATE)(replay.replay)
app.command(rich_help_panel=OPERATE)(operate.drain)
app.command(rich_help_panel=OPERATE)(operate.doctor)
app.command(rich_help_panel=COMPONENTS)(components.dispatcher)
app.command(rich_help_panel=COMPONENTS)(components.worker)
app.command(rich_help_panel=COMPONENTS)(components.predictor)
app.command(rich_help_panel=COMPONENTS)(health.health)
app.command(rich_help_panel=MEASURE, help=evaluate.HELP)(evaluate.evaluate)

tagger_app = typer.Typer(invoke_without_command=True)
tagger_app.callback()(components.tagger)
tagger_app.command()(length_model.train)
tagger_app.command()(length_model.export)
tagger_app.command()(length_model.evaluate)
tagger_app.command()(length_model.collect)
app.add_typer(tagger_app, name="tagger", rich_help_panel=COMPONENTS)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status. Wrong usage is one line and status 2."""
    try:
        status = app(args=arguments, prog_name="astrolabe", standalone_mode=False)
    except TyperException as error:
        told = getattr(error, "format_message", None)
        return _complain(told() if told is not None else str(error))
    except EngineLost as error:  # nobody's wrong usage
        return _complain(str(error), status=1)
    except AstrolabeError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return status if isinstance(status, int) else 0


def _complain(message: str, status: int = 2) -> int:
    sys.stderr.write(f"astrolabe: {message.strip()}\n")
    return status
