"""A request's name: the client's own if it has one, for correlation in headers and logs; never a key."""

from __future__ import annotations

import uuid

from starlette.requests import Request

MOST_CHARS = 128


def client_id(request: Request) -> str:
    """X-Request-Id if it is fit for a header and a log, else one made here, once per request."""
    if not hasattr(request.state, "client_id"):
        given = request.headers.get("x-request-id", "")
        fit = 0 < len(given) <= MOST_CHARS and given.isascii() and given.isprintable()
        request.state.client_id = given if fit else f"req-{uuid.uuid4().hex}"
    return str(request.state.client_id)
