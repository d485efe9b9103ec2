"""Makes the engine from vLLM's own flags. Blocks while the model loads: not for the event loop."""

from collections.abc import Callable
from typing import Any

import structlog

from pipeline.errors import UsageError
from workers.vllm_engine import internals
from workers.vllm_engine.settings import VLLMSettings

log = structlog.get_logger()

Counted = Callable[[Any, Any], None]
"""Takes vLLM's statistics of the scheduler and of the step, after each step."""


def made(settings: VLLMSettings, socket: str, counted: Counted) -> tuple[Any, bool]:
    """The engine, and whether its scheduler reports. Blocks while the model loads."""
    try:
        import vllm
    except ImportError:
        raise UsageError(
            "--engine vllm: vllm is not in this environment; the worker runs in vLLM's own "
            "(docs/engines.md)"
        ) from None
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="args", add_help=False))
    try:
        parsed = parser.parse_args(settings.flags)
    except SystemExit:
        raise UsageError(
            f"args {settings.args!r}: not flags of vLLM (its reason is above)"
        ) from None
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    exact = settings.exact
    if exact and not internals.knows(vllm.__version__):
        log.warning("vllm_scheduler_unknown", version=vllm.__version__, state="its statistics")
        exact = False
    if exact:
        try:
            internals.report_to(config, socket)
        except (AttributeError, ImportError, TypeError) as error:
            log.warning("vllm_scheduler_not_reporting", error=str(error), state="its statistics")
            exact = False
    engine = AsyncLLM.from_vllm_config(config, stat_loggers=[_logger_of(counted)])
    return engine, exact


def _logger_of(counted: Counted) -> Any:
    """A class as vLLM wants them, made here because vLLM must not be imported before."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Logger(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            counted(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None:
            pass

    return Logger
