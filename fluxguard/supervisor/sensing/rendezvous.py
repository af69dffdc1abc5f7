"""Whether the address at which the machines of a training meet answers."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

import psutil

_ANY = 29400


@dataclass(frozen=True)
class Door:
    """The address of a rendezvous, as it was found."""

    words: str
    """What is to be said of it, such as "10.0.0.1:29400 answers"."""
    gone: bool
    """Whether it is on another machine and does not answer."""


def look(host: str, port: int | None, seconds: float) -> Door:
    """Knock at an address, for so many seconds at most. What is held by this machine itself is never called gone."""
    at = f"{host}:{port or _ANY}"
    if here(host):
        return Door(f"{at}, on this machine", gone=False)
    try:
        socket.create_connection((host, port or _ANY), timeout=seconds).close()
    except OSError as error:
        return Door(f"{at} does not answer ({str(error) or type(error).__name__})", gone=True)
    return Door(f"{at} answers", gone=False)


def here(host: str) -> bool:
    """Whether a name or an address is that of this machine."""
    if host in ("localhost", socket.gethostname()):
        return True
    mine = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    with contextlib.suppress(OSError, UnicodeError):
        return any(str(found[4][0]) in mine for found in socket.getaddrinfo(host, None))
    return False
