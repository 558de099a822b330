"""What is answered when a handler raises."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from target.api.errors import ApiError
from target.api.request_id import client_id


async def _on_api_error(request: Request, error: ApiError) -> Response:
    return error.response(client_id(request))


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return ApiError(error.status_code, code, message).response(client_id(request))


async def _on_gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _on_bug(request: Request, error: Exception) -> Response:
    return ApiError(500, "internal_error", "an error inside the service").response(client_id(request))


HANDLERS: dict[Any, Any] = {
    ApiError: _on_api_error,
    HTTPException: _on_http_error,
    ClientDisconnect: _on_gone,
    Exception: _on_bug,
}
