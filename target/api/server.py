"""The HTTP server that the application runs in."""

from __future__ import annotations

import socket

import uvicorn
from starlette.applications import Starlette


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. OSError if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError:
        listening.close()
        raise
    return listening


def server(app: Starlette, shutdown_s: int = 5) -> uvicorn.Server:
    """A server to `await serve(sockets=[listen(…)])`; set its `should_exit` to end it within `shutdown_s`."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        backlog=2048,
        timeout_graceful_shutdown=shutdown_s,
    )
    return uvicorn.Server(config)
