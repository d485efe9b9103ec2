"""The bus: the only package that imports the NATS client.

`connection` connects, publishes and asks; `jetstream` stores and reads; `work` drains a work
queue; `lease` holds a key in the registry; `topology` creates and checks the streams; `service`
shows a component to `nats micro`. docs/architecture.md names the trap behind each odd line.
"""

from pipeline.bus.connection import Bus, BusSettings, Message, Subscription
from pipeline.bus.jetstream import Stored, StoredMessage
from pipeline.bus.lease import Lease
from pipeline.bus.work import Delivery, WorkQueue

__all__ = [
    "Bus",
    "BusSettings",
    "Delivery",
    "Lease",
    "Message",
    "Stored",
    "StoredMessage",
    "Subscription",
    "WorkQueue",
]
