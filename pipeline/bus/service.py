"""A component as a NATS service, so that `nats micro ls|info|stats` shows a running system."""

import socket
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog
from nats.micro import add_service
from nats.micro.request import Request as ServiceRequest
from nats.micro.service import Service, ServiceConfig

from pipeline.bus.connection import REFUSED_CODE, Message

if TYPE_CHECKING:
    from pipeline.bus.connection import Bus

__all__ = ["Answer", "Service", "ServiceError", "ServiceRefusal", "serve"]

log = structlog.get_logger()

Answer = Callable[[Message], Awaitable[bytes]]


class ServiceError(Exception):
    """The handler cannot answer; the requester gets ServiceFailed with this text."""

    code = "503"


class ServiceRefusal(ServiceError):
    """The handler never will answer this; the requester gets ServiceRefused with this text."""

    code = REFUSED_CODE


async def serve(
    bus: "Bus",
    role: str,
    description: str,
    *,
    metadata: dict[str, str] | None = None,
    endpoint: tuple[str, str, Answer] | None = None,
) -> Service:
    """Register the service; `endpoint` is (name, subject, answer). Its metadata tell the host too.

    Requests to one endpoint are answered one after another, so `answer` must be short.
    """
    service = await add_service(
        bus.client,
        ServiceConfig(
            name=bus.subjects.service(role),
            version=version("astrolabe"),
            description=description,
            metadata={**(metadata or {}), "host": socket.gethostname()},
        ),
    )
    if endpoint is not None:
        name, subject, answer = endpoint

        async def handle(request: ServiceRequest) -> None:
            try:
                reply = await answer(Message(request.subject, request.data, request.headers or {}))
            except ServiceError as error:
                await request.respond_error(error.code, str(error))
            except Exception as error:
                log.exception("service_failed", role=role)
                await request.respond_error("500", type(error).__name__)
            else:
                await request.respond(reply)

        await service.add_endpoint(name=name, subject=subject, handler=handle)
    return service
