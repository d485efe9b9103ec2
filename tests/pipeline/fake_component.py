"""Stands in for `python -m pipeline.cli` where a test is about processes and not about work.

Run as `fake_component.py ROLE --url … --prefix … [--instance NAME] [WHAT GOES WRONG]`.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
import threading

from pipeline.bus import Bus, BusSettings, Message
from pipeline.bus.service import serve
from pipeline.codec import encode
from pipeline.messages import EngineLimits, Instance, wall_ms


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    parser.add_argument("--url")
    parser.add_argument("--prefix")
    parser.add_argument("--instance", default="")
    parser.add_argument("--boom", action="store_true", help="end at once with status 3")
    parser.add_argument("--mute", action="store_true", help="never become ready")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--child", action="store_true", help="start a process, and leave it")
    parser.add_argument("--warn", action="store_true", help="log a warning now and then")
    return parser.parse_known_args()[0]


async def pong(_message: Message) -> bytes:
    return b"pong"


def heartbeat(instance: str) -> bytes:
    limits = EngineLimits(
        rules="vllm",
        block_size=16,
        kv_blocks=100,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        max_model_len=1024,
    )
    return encode(
        Instance(
            instance=instance,
            boot="b0",
            model="m",
            engine="fake",
            state="ready",
            limits=limits,
            sent_at_ms=wall_ms(),
        )
    )


async def run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(
        signal.SIGTERM, (lambda: None) if options.stubborn else (lambda: stop.set())
    )
    bus = await Bus.connect(BusSettings(options.url, options.prefix), name=options.role)
    if not options.mute and options.role != "worker":
        subject = bus.subjects.predict(options.instance or options.role)
        metadata = {"instance": options.instance}
        await serve(bus, options.role, "Fake.", metadata=metadata, endpoint=("a", subject, pong))
    while not stop.is_set():
        if not options.mute and options.role == "worker":
            await bus.publish(bus.subjects.heartbeat(options.instance), heartbeat(options.instance))
        if options.warn:
            sys.stderr.write("2026-01-01T00:00:00Z [warning  ] odd_thing\n")
            sys.stderr.write("2026-01-01T00:00:00Z [info     ] usual_thing\n")
        await asyncio.wait([asyncio.ensure_future(stop.wait())], timeout=0.1)
    sys.stderr.write(f"ends orderly with {threading.active_count()} thread\n")
    await bus.close()


if __name__ == "__main__":
    told = arguments()
    if told.boom:
        sys.stderr.write("first line\nsecond line: boom\n")
        sys.exit(3)
    if told.child:
        subprocess.Popen(["sleep", "600"])  # noqa: S607  any that stays
    asyncio.run(run(told))
