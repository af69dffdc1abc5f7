"""`python app/app.py` serves the page. Trainings it starts do not depend on it."""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

PORT = 7860
USER = "fluxguard"
PASSWORD_VARIABLE = "FLUXGUARD_PASSWORD"
INPUT = 2
_PORTS = 1 << 16


class Refused(Exception):
    """Raised when the page cannot be served as asked; its text says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page until Ctrl-C; return 0, or 2 after one line about what cannot be done."""
    arguments = _arguments(argv)
    try:
        password = _password(arguments.password_file)
        if not password and not _is_loopback(arguments.host):
            raise Refused(
                f"--host {arguments.host} would let others in without a password;"
                f" set {PASSWORD_VARIABLE} or give --password-file, or leave --host out and use an SSH tunnel"
            )
        listening = _listen(arguments.host, arguments.port)
    except Refused as error:
        sys.stderr.write(f"fluxguard: {error}\n")
        return INPUT
    # Gradio reads these when it is imported; a page that trains private pictures tells nobody anything.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    from fluxguard.app import serving

    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    sys.stderr.write(f"fluxguard: http://{host}:{arguments.port} (Ctrl-C ends this page, never a training)\n")
    serving.serve(listening, (USER, password) if password else None)
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="app.py", description="The web page of fluxguard.", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; others are let in by password only")
    parser.add_argument("--port", type=_port, default=PORT, help="default: %(default)s")
    parser.add_argument("--password-file", type=Path, help=f"its first line is the password of the user `{USER}`")
    return parser.parse_args(argv)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < _PORTS:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (1 to {_PORTS - 1})")
    return int(text)


def _password(file: Path | None) -> str | None:
    """Return the password, or None when none is given; it leaves the environment, so that no trainer inherits it."""
    from_environment = os.environ.pop(PASSWORD_VARIABLE, "").strip()
    if file is None:
        return from_environment or None
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--password-file: {file} cannot be read ({error})") from None
    if not lines or not lines[0].strip():
        raise Refused(f"--password-file: the first line of {file} is empty")
    return lines[0].strip()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """Return a bound socket. Raises Refused when the port is taken or not ours to take."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise Refused(f"cannot listen on {host}:{port} ({error})") from None
    if os.name != "nt":  # there it would let two programs share a port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise Refused(f"cannot listen on {host}:{port} ({reason}); choose another port with --port") from None
    return listening


if __name__ == "__main__":
    sys.exit(main())
