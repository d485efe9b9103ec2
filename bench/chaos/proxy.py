"""A wire between one component and the bus that can be cut."""

import asyncio
import contextlib

CHUNK_BYTES = 1 << 16


class Wire:
    """Listens on a port of its own and hands everything through, both ways, until it is cut.

    A cut wire is silent, not closed: as a network that loses every packet. Nobody is told.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._ways: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """The port to connect to."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._whole.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            way = asyncio.create_task(self._hand_on(source, sink))
            self._ways.add(way)
            way.add_done_callback(self._ways.discard)

    async def _hand_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(CHUNK_BYTES):
                    await self._whole.wait()
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.close()
