"""Names for instances that come in numbers, where nobody can write `--instance` by hand.

A name has to be unique in the stack and the same after a restart: results, metrics and learnt step
times go by it. A container of `docker compose up --scale worker=8` knows only a random host name;
but the network's own name server knows it by its service and number.
"""

import socket
import time

from pipeline.errors import UsageError
from pipeline.subjects import valid_token

BY_HOSTNAME = "@hostname"
BY_DNS = "@dns"
DNS_WAIT_S = 5.0  # the name server learns of a container while it starts
DNS_POLL_S = 0.2


def resolve_instance(given: str) -> str:
    """The instance's name: `given` itself, or what the machine is called.

    `@hostname`: the host's name up to the first dot, as of a StatefulSet's pod. `@dns`: the name
    that the network's name server has for this host's address. Raises UsageError.
    """
    if given == BY_HOSTNAME:
        name = socket.gethostname()
    elif given == BY_DNS:
        name = _name_in_dns()
    else:
        name = given
    name = name if name == given else name.partition(".")[0]
    if not valid_token(name):
        raise UsageError(
            f"--instance {given}: {name!r} has to be 1-64 characters of A-Z a-z 0-9 _ -"
            f" (or {BY_HOSTNAME}, {BY_DNS})"
        )
    return name


def _name_in_dns() -> str:
    """Of this host's own address. Raises UsageError where no server knows it in time."""
    host = socket.gethostname()
    give_up_at = time.monotonic() + DNS_WAIT_S
    while True:
        try:
            name = socket.gethostbyaddr(socket.gethostbyname(host))[0]
        except OSError as error:
            name, reason = "", str(error)
        else:
            reason = f"it is called {name!r} there too"
        # The hosts file knows the address by the host's own name: no news.
        if name and name.partition(".")[0] != host:
            return name
        if time.monotonic() >= give_up_at:
            raise UsageError(f"--instance {BY_DNS}: no name server has a name for {host}: {reason}")
        time.sleep(DNS_POLL_S)
