"""`astrolabe tagger | dispatcher | worker | predictor`: one component against any NATS server."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from pipeline.bus import Bus, BusSettings
from pipeline.cli.options import (
    DEFAULT_URL,
    Credentials,
    Format,
    Level,
    LogFormat,
    LogLevel,
    MetricsPort,
    Policy,
    Prefix,
    Url,
    bus_settings,
)
from pipeline.errors import EngineLost
from pipeline.instance_name import resolve_instance
from pipeline.metrics import serve_metrics
from pipeline.policies import DEFAULT_POLICY, check_policy
from pipeline.process import Serve, Stop, configure_logs, run_component
from pipeline.subjects import DEFAULT_PREFIX
from workers.engines import ENGINES


def _run(
    role: str,
    settings: BusSettings,
    serve: Serve,
    level: LogLevel,
    format_: LogFormat,
    metrics_port: int,
) -> None:
    configure_logs(level.value, format_.value)
    serve_metrics(metrics_port)
    raise typer.Exit(run_component(role, settings, serve))


def tagger(
    context: typer.Context,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
    estimator: Annotated[
        str,
        typer.Option(
            help="model: the length model. length: a rule of the prompt's length. constant: the "
            "running median of the last answers.",
        ),
    ] = "model",
    model: Annotated[
        Path | None,
        typer.Option(
            envvar="ASTROLABE_LENGTH_MODEL",
            help="Folder of an exported length model. Default: the packaged one.",
        ),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(
            help="[MODEL=]PATH of a served model's tokenizer.json, or its folder: prompts are then "
            "counted exactly. Default: a measured ratio.",
        ),
    ] = None,
    budget_ms: Annotated[
        float,
        typer.Option(
            min=1,
            max=10_000,
            help="Longest wait for a turn at the length model; past it the running median serves.",
        ),
    ] = 30.0,
    threads: Annotated[
        int, typer.Option(min=1, max=64, help="Prompts estimated at once, one core each.")
    ] = 1,
    log_level: Level = LogLevel.info,
    log_format: Format = LogFormat.console,
    metrics_port: MetricsPort = 0,
) -> None:
    """Estimate answer lengths: REQUESTS to TAGGED. Run as many as you like.

    With a subcommand: train, evaluate or export the length model instead.
    """
    if context.invoked_subcommand is not None:
        return
    from tagger.service import TaggerSettings, serve_tagger

    settings = TaggerSettings(
        estimator=estimator,  # type: ignore[arg-type]  # checked when made
        model=model,
        tokenizers=tuple(tokenizer or ()),
        budget_ms=budget_ms,
        threads=threads,
    )

    async def serve(bus: Bus, stop: Stop) -> None:
        await serve_tagger(bus, settings, stop)

    bus = bus_settings(url, prefix, credentials)
    _run("tagger", bus, serve, log_level, log_format, metrics_port)


def dispatcher(
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
    policy: Policy = DEFAULT_POLICY,
    probe_timeout_ms: Annotated[
        float,
        typer.Option(min=1, max=10_000, help="A predictor that is later is a candidate less."),
    ] = 50.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the random candidates; none draws fresh ones.")
    ] = None,
    log_level: Level = LogLevel.info,
    log_format: Format = LogFormat.console,
    metrics_port: MetricsPort = 0,
) -> None:
    """Put each tagged request into the inbox of the better instance. Run as many as you like."""
    from pipeline.dispatcher import Dispatcher, DispatcherSettings

    check_policy(policy)
    settings = DispatcherSettings(policy=policy, probe_timeout_ms=probe_timeout_ms, seed=seed)

    async def serve(bus: Bus, stop: Stop) -> None:
        await Dispatcher(bus, settings).serve(stop)

    bus = bus_settings(url, prefix, credentials)
    _run("dispatcher", bus, serve, log_level, log_format, metrics_port)


def predictor(
    instance: Annotated[
        str,
        typer.Option(help="Name of the instance beside it; @hostname, @dns: see worker."),
    ],
    score: Annotated[
        str,
        typer.Option(help="Cost of a forecast: e2e, ttft, preemption_averse, marginal, slo."),
    ] = "e2e",
    fit_folder: Annotated[
        Path | None,
        typer.Option(help="Keep learnt step times here. Default: learn anew at every start."),
    ] = None,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
    log_level: Level = LogLevel.info,
    log_format: Format = LogFormat.console,
    metrics_port: MetricsPort = 0,
) -> None:
    """Predict what a request would experience on one instance. One beside each worker."""
    from predictor.scores import check_score
    from predictor.service import Predictor, PredictorSettings

    instance = resolve_instance(instance)
    check_score(score)
    settings = PredictorSettings(instance=instance, score=score, fit_folder=fit_folder)

    async def serve(bus: Bus, stop: Stop) -> None:
        await Predictor(bus, settings).serve(stop)

    bus = bus_settings(url, prefix, credentials)
    _run(f"predictor-{instance}", bus, serve, log_level, log_format, metrics_port)


def worker(
    instance: Annotated[
        str,
        typer.Option(
            help="Name of this instance, unique in the stack and the same after a restart. "
            "@hostname: this host's. @dns: what the network calls this host, as the containers of "
            "one service in `docker compose`."
        ),
    ],
    engine: Annotated[str, typer.Option(help=f"One of: {', '.join(ENGINES)}.")] = "simulated",
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A setting of the engine; repeat it. openai: url, model, api_key_env, profile, "
            "rules, kv_blocks, block_size, max_num_seqs, max_num_batched_tokens, max_model_len, "
            "priority. simulated: profile, rules, the same limits, overhead_ms, noise, time_scale, "
            "seed, queue_max.",
        ),
    ] = None,
    with_predictor: Annotated[
        bool,
        typer.Option(
            "--with-predictor", help="Run the instance's predictor in this process as well."
        ),
    ] = False,
    grace_s: Annotated[
        float,
        typer.Option(
            min=0, max=3600, help="After SIGTERM, how long running requests may still take."
        ),
    ] = 30.0,
    url: Url = DEFAULT_URL,
    prefix: Prefix = DEFAULT_PREFIX,
    credentials: Credentials = None,
    log_level: Level = LogLevel.info,
    log_format: Format = LogFormat.console,
    metrics_port: MetricsPort = 0,
) -> None:
    """Drain one instance's inbox into its engine and stream the answers back."""
    from predictor.service import Predictor, PredictorSettings
    from workers.engines import make_engine
    from workers.worker import WorkerSettings, serve_worker

    instance = resolve_instance(instance)
    settings = WorkerSettings(instance=instance, grace_s=grace_s)
    made = make_engine(engine, engine_arg or [])
    bus_config = bus_settings(url, prefix, credentials)

    async def serve(bus: Bus, stop: Stop) -> None:
        # Tokens have a connection of their own: a slow reader of them cannot hold up the inbox.
        tokens_bus = await Bus.connect(bus_config, name=f"{instance}-tokens")
        lost = asyncio.create_task(_stop_when_closed(tokens_bus, stop))
        try:
            async with asyncio.TaskGroup() as tasks:
                if with_predictor:
                    tasks.create_task(Predictor(bus, PredictorSettings(instance)).serve(stop))
                broken = await serve_worker(bus, tokens_bus, made, settings, stop)
                stop.set()
        finally:
            lost.cancel()
            await tokens_bus.close()
        if broken is not None:
            raise EngineLost(f"{engine} engine of {instance}: {broken}")

    _run(f"worker-{instance}", bus_config, serve, log_level, log_format, metrics_port)


async def _stop_when_closed(bus: Bus, stop: Stop) -> None:
    await bus.closed.wait()
    stop.set()
