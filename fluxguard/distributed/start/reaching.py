"""The store in which the ranks meet: opened by rank 0 or the launcher, reached by all; a failure names its cause."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from fluxguard.distributed import bounded
from fluxguard.distributed.start.environment import Place, host, source
from fluxguard.errors import DeadlineExceeded, SetupFailed

_POLL = 0.1
_KNOCK = 3.0  # for one try to connect; a machine that drops packets answers none
_LONG = 86400.0  # stands for no limit
_LOOPBACK = "127.0.0.1"
_ENDING = 0.3  # before the limit passes: what is found then has to be said within it
_IN_USE = ("EADDRINUSE", "address already in use")


def reach(
    dist: Any,
    place: Place,
    until: float,
    ours: Callable[[Any], bool] = lambda store: False,
    tell: Callable[[SetupFailed], None] = lambda error: None,
    more: Callable[[], float] = lambda: 0.0,
) -> Any:
    """Return a torch store in which the ranks of `place` meet, before `until` (monotonic).

    `ours` says of the store of another process, which has the port already, whether this process belongs to it. `tell`
    is told what would be wrong if it went no further. `more` is asked, when nobody has opened the port by then, for
    how many seconds more to wait for rank 0.

    Raises SetupFailed when the port is taken, the name does not resolve, or nobody answers there. May block for longer
    when somebody else answers; the caller bounds it.
    """
    if place.path:
        return dist.FileStore(place.path, place.size)
    if place.rank == 0 and not place.by_launcher:
        return _opened(dist, place, until, ours)
    until = _knock(place, until - _ENDING, tell, more) + _ENDING
    tell(stranger(place))
    try:
        # The name stays as it is given: torch tries each of its addresses.
        return dist.TCPStore(place.address, place.port, place.size, False, _left(until))
    except RuntimeError as error:
        raise _wrong(place, "MASTER_PORT", f"what listens on {place.door} is no store of torch ({error})") from None


def slow(place: Place) -> SetupFailed:
    """Return the error for a process that came nowhere in its time."""
    reason = f"this process did not get as far as {place.door}: is its machine overloaded, or a disk or driver stuck?"
    return _wrong(place, "setup", reason)


def stranger(place: Place) -> SetupFailed:
    """Return the error for an address where something listens, but gives no answer that a store would give."""
    reason = (
        f"is {place.port}, where something listens on {place.address} that does not answer as the ranks' store: "
        "another program has the port, or the process that keeps the store is stopped; choose another MASTER_PORT"
    )
    return _wrong(place, "MASTER_PORT", reason)


def silent(place: Place) -> SetupFailed:
    """Return the error for a store that answers no more."""
    reason = (
        f"the store of the ranks at {place.door} does not answer any more: {_keeper(place)}, which keeps it, is "
        "stopped, or its machine was cut off"
    )
    return _wrong(place, "MASTER_ADDR", reason)


def unconnected(place: Place, backend: str, why: str) -> SetupFailed:
    """Return the error for ranks that have met in the store and cannot connect to each other."""
    variable = "NCCL_SOCKET_IFNAME" if "nccl" in backend else "GLOO_SOCKET_IFNAME"
    reason = (
        f"all ranks have met at {place.door}, but {backend} cannot connect them ({why}): a rank has just died, or the "
        f"machines see each other on another network interface than {backend} takes; name it in {variable} (ip addr)"
    )
    return _wrong(place, variable, reason)


def lost(place: Place, error: Exception) -> SetupFailed:
    """Return the error for a store that went away during the roll call."""
    keeper = "the launcher" if place.by_launcher else "rank 0"
    reason = (
        f"the connection to {place.door} was lost: {keeper}, which keeps the store there, has ended; look at its log"
    )
    return _wrong(place, "MASTER_ADDR", f"{reason}; look at its log ({first_line(error)})")


def not_ours(place: Place) -> str:
    """Return a remark when the address of rank 0, by which the others look for it, is not one of this machine."""
    if not place.address or place.by_launcher or _is_ours(place.address):
        return ""
    return f"MASTER_ADDR is {place.address}, which is no address of {host()}, the machine of rank 0"


def _opened(dist: Any, place: Place, until: float, ours: Callable[[Any], bool]) -> Any:
    try:
        # Reached by the loopback, so that a wrong MASTER_ADDR does not keep rank 0 from saying who is missing.
        return dist.TCPStore(
            _LOOPBACK, place.port, place.size, True, _left(until), wait_for_workers=False, multi_tenant=True
        )
    except RuntimeError as error:
        if any(word in str(error) for word in _IN_USE):
            guest = _guest(dist, place)
            if guest is not None and ours(guest):
                return guest
            reason = (
                f"is {place.port}, which another program on {host()} uses already (an earlier training?); choose "
                "another MASTER_PORT (--master-port), or let torchrun choose one with --standalone"
            )
            raise _wrong(place, "MASTER_PORT", reason) from None
        reason = f"the store of the ranks cannot be opened on port {place.port} ({first_line(error)})"
        raise _wrong(place, "MASTER_PORT", reason) from None


def _guest(dist: Any, place: Place) -> Any | None:
    """Return the store that another process of this machine has opened at our port; None where it is no store."""
    try:
        return bounded.within(
            _KNOCK,
            "asking who has the port",
            lambda: dist.TCPStore(_LOOPBACK, place.port, place.size, False, timedelta(seconds=_KNOCK)),
        )
    except (DeadlineExceeded, RuntimeError):
        return None


def _knock(place: Place, until: float, tell: Callable[[SetupFailed], None], more: Callable[[], float]) -> float:
    """Wait until somebody listens; return until when there is time then. Raises SetupFailed with why nobody does."""
    while True:
        refused = False
        left = until - time.monotonic()
        try:
            with socket.create_connection((place.address, place.port), max(_POLL, min(_KNOCK, left))) as door:
                if door.getsockname() != door.getpeername():
                    return until
                # A port of our own machine that nobody has: by chance the connection met itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except OSError as error:
            failed = _unreached(place, error)
            refused = error.errno == errno.ECONNREFUSED
        tell(failed)
        if time.monotonic() + _POLL >= until:
            longer = more() if refused and not place.by_launcher else 0.0
            if longer <= 0:
                raise failed
            until = time.monotonic() + longer
        time.sleep(_POLL)


def _unreached(place: Place, error: OSError) -> SetupFailed:
    keeper = _keeper(place)
    if isinstance(error, socket.gaierror):
        reason = f"is {place.address!r}, which does not resolve on {host()}; use an IP address, or put it in /etc/hosts"
    elif error.errno == errno.ECONNREFUSED:
        reason = (
            f"is {place.address}, where nobody listens on port {place.port} (MASTER_PORT): {keeper} has not started, "
            "has failed (look at its log), or has another MASTER_PORT"
        )
    else:
        why = error.strerror or "no answer"
        reason = (
            f"is {place.address}, which cannot be reached from {host()} on port {place.port} ({why.lower()}): is it an "
            f"address of the machine of {keeper}, and does a firewall let the port through?"
        )
    return _wrong(place, "MASTER_ADDR", reason)


def _keeper(place: Place) -> str:
    return "the launcher of rank 0" if place.by_launcher else "rank 0"


def _is_ours(address: str) -> bool:
    """Return whether this machine can listen on an address; True where that cannot be told."""
    try:
        family, _, _, _, at = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    except OSError:
        return False
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(at)
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def _left(until: float) -> timedelta:
    return timedelta(seconds=min(_LONG, max(_POLL, until - time.monotonic())))


def _wrong(place: Place, variable: str, reason: str) -> SetupFailed:
    return SetupFailed(source(place.rank), reason, variable, place.rank)


def first_line(error: Exception) -> str:
    """Return what an error of torch says, without the stack of its C++ part."""
    return str(error).strip().partition("\n")[0]
