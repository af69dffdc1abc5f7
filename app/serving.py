"""The web server around the page: who may ask, what a browser may load, and nothing from anywhere else."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import gradio as gr
import uvicorn
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware

from . import page
from .desk import Desk
from .runs import FILE, Registry

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OWN_NAMES = ["localhost", "127.0.0.1", "[", "::1"]
_HEADERS = {
    # Gradio's own front end evaluates small scripts; the rule that counts is that nothing leaves this origin.
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LARGEST_UPLOAD = 1  # byte: the page takes no files
_LEAVE_WITHIN = 2  # seconds for open pages when the page is ended


def serve(listening: socket.socket, auth: tuple[str, str] | None) -> None:
    """Serve the page on a bound socket until the process is told to end."""
    # Both log every request of every second; a person at a terminal needs neither.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    config = uvicorn.Config(
        application(Desk(Registry(Path.cwd() / FILE)), auth),
        log_level="warning",
        timeout_graceful_shutdown=_LEAVE_WITHIN,
    )
    uvicorn.Server(config).run(sockets=[listening])


def application(desk: Desk, auth: tuple[str, str] | None) -> FastAPI:
    """Return the page as a web application; without `auth` it answers only to the names of this computer."""
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    outer.add_middleware(_Headers)
    if auth is None:
        # Else any web page could reach this one, under a name of its own that it points at 127.0.0.1.
        outer.add_middleware(TrustedHostMiddleware, allowed_hosts=_OWN_NAMES, www_redirect=False)
    mounted: FastAPI = gr.mount_gradio_app(
        outer,
        page.build(desk),
        path="",
        auth=auth,
        theme=page.theme(),
        css_paths=[Path(__file__).with_name("style.css")],
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        max_file_size=_LARGEST_UPLOAD,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        pwa=False,
        show_error=False,
    )
    return mounted


class _Headers:
    """Adds the headers to every response, streams included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)
