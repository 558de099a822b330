"""Errors in OpenAI's shape: what is wrong, with which field, and when to come back."""

from __future__ import annotations

import math
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from target.request import Finished, Rejected

TYPES = {
    400: "invalid_request_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
ENDED_EARLY = {  # how an answer that did not reach its end is told, before its first byte
    "failed": (500, "engine_failed", "the engine failed on this request"),
    "deadline": (504, "deadline_exceeded", "the request's timeout passed"),
    "cancelled": (503, "cancelled", "the service stopped working on this request"),
}


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @classmethod
    def of_rejection(cls, rejected: Rejected) -> ApiError:
        """The request was not taken on."""
        return cls(rejected.status, rejected.code, rejected.message, retry_after_s=rejected.retry_after_s)

    @classmethod
    def of_early_end(cls, finished: Finished) -> ApiError:
        """The answer ended, and neither by a stop nor by its length."""
        status, code, message = ENDED_EARLY.get(finished.reason, ENDED_EARLY["failed"])
        return cls(status, code, finished.message or message)

    @classmethod
    def of_validation(cls, error: ValidationError) -> ApiError:
        """The first bad field, by its path, and how many more there are."""
        problems = error.errors(include_url=False, include_context=False)
        where = ".".join(str(part) for part in problems[0]["loc"])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        message = str(problems[0]["msg"]).removeprefix("Value error, ")
        code = "unknown_parameter" if problems[0]["type"] == "extra_forbidden" else "invalid_value"
        return cls(400, code, f"{where}: {message}{more}" if where else message, param=where or None)

    def body(self) -> dict[str, Any]:
        """The JSON body; the same inside a stream."""
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, request_id: str) -> Response:
        """The HTTP answer. Retry-After is in whole seconds, rounded up; retry-after-ms is exact."""
        headers = {"x-request-id": request_id}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(math.ceil(self.retry_after_s), 1))
            headers["retry-after-ms"] = str(max(round(self.retry_after_s * 1000), 1))
        return JSONResponse(self.body(), self.status, headers)
