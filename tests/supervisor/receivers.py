"""Receivers of notifications on the loopback: one that takes them, one that answers as told, one that never answers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "nobody-may-read-this"


@dataclass
class Receiver:
    """What came, and how it is answered."""

    url: str = ""
    got: list[dict[str, Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """The codes of the next answers; then 200."""

    @property
    def titles(self) -> list[str]:
        """The titles that came, in order, without the run's name."""
        return [str(one["title"]).partition(": ")[2] for one in self.got]


@contextlib.contextmanager
def receiver(*answers: int) -> Iterator[Receiver]:
    """Take messages, with secrets in every part of the URL that can hold one."""
    kept = Receiver(answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(kept.answers.pop(0) if kept.answers else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    kept.url = f"json://me:{SECRET}@127.0.0.1:{server.server_port}/{SECRET}?+X-Key={SECRET}"
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def silence() -> Iterator[str]:
    """Take connections and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"json://127.0.0.1:{listening.getsockname()[1]}"
