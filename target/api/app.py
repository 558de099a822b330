"""The routes of the service, for a Service behind them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from target.api.body import ChatBody, CompletionBody, GenerationBody, read_body
from target.api.errors import ApiError
from target.api.exchange import Exchange
from target.api.handlers import HANDLERS
from target.api.request_id import client_id
from target.api.service import ModelCard, Service
from target.api.shape import ChatShape, CompletionShape, Shape
from target.request import GenerationRequest

BODY_BYTES = 4 * 2**20
COMPLETION_TOKENS = 16  # max_tokens of a completion that does not say, as OpenAI has it
CHAT_TOKENS = 64


class Api:
    """The handlers."""

    def __init__(self, service: Service, clock: Callable[[], float], body_bytes: int) -> None:
        self._service = service
        self._clock = clock
        self._body_bytes = body_bytes

    async def completions(self, request: Request) -> Exchange:
        body = read_body(CompletionBody, await self._raw_body(request))
        card = self._card(body.model)
        prompt = self._service.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
        if body.max_tokens is None:
            body.max_tokens = COMPLETION_TOKENS
        return self._exchange(request, body, card, prompt, "prompt", CompletionShape)

    async def chat(self, request: Request) -> Exchange:
        body = read_body(ChatBody, await self._raw_body(request))
        card = self._card(body.model)
        prompt = self._service.chat_prompt([message.plain() for message in body.messages])
        body.max_tokens = body.max_completion_tokens or body.max_tokens
        if body.max_tokens is None:
            body.max_tokens = max(min(CHAT_TOKENS, card.max_context - len(prompt)), 1)
        return self._exchange(request, body, card, prompt, "messages", ChatShape)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_listed(card) for card in self._service.models()]})

    async def model(self, request: Request) -> Response:
        return JSONResponse(_listed(self._card(request.path_params["model_id"])))

    async def health(self, request: Request) -> Response:
        health = self._service.health()
        body = {
            "status": "ok" if health.stepping else "stalled",
            "last_step_age_s": round(health.last_step_age_s, 3),
            "detail": health.detail,
        }
        return JSONResponse(body, 200 if health.stepping else 503)

    async def ready(self, request: Request) -> Response:
        ready, reason = self._service.ready()
        return JSONResponse({"ready": ready, "reason": reason}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        # This version of the format only: a newer one would rename every metric with a colon.
        return Response(self._service.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _exchange(
        self,
        request: Request,
        body: GenerationBody,
        card: ModelCard,
        prompt: list[int],
        prompt_field: str,
        shape: type[Shape],
    ) -> Exchange:
        assert body.max_tokens is not None
        _check_prompt(prompt, body.max_tokens, card, prompt_field)
        engine_id = f"{shape.id_prefix}-{uuid.uuid4().hex}"
        generation = GenerationRequest(
            id=engine_id,
            prompt_ids=tuple(prompt),
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            stop=tuple(body.stop or ()),
            priority=body.priority,
            deadline_s=self._deadline(request),
            model=body.model,
            client_id=client_id(request),
        )
        return Exchange(self._service, generation, shape(engine_id), body.stream, body.include_usage)

    async def _raw_body(self, request: Request) -> bytes:
        """The body, read no further than the limit."""
        raw = bytearray()
        async for part in request.stream():
            raw += part
            if len(raw) > self._body_bytes:
                raise ApiError(413, "body_too_large", f"the body is larger than {self._body_bytes} bytes")
        return bytes(raw)

    def _card(self, model: str | None) -> ModelCard:
        cards = self._service.models()
        for card in cards:
            if model is None or card.id == model:
                return card
        known = ", ".join(card.id for card in cards)
        raise ApiError(404, "model_not_found", f"no model {model!r} here; there are: {known}", param="model")

    def _deadline(self, request: Request) -> float | None:
        """From the `timeout` header, in seconds from now."""
        text = request.headers.get("timeout")
        if text is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = float("nan")
        if not 0 < seconds < float("inf"):
            raise ApiError(
                400, "invalid_value", f"timeout: {text!r} is not a number of seconds above 0", "timeout"
            )
        return self._clock() + seconds


def create_app(
    service: Service, clock: Callable[[], float] = time.monotonic, body_bytes: int = BODY_BYTES
) -> Starlette:
    """The application; `clock` is the one that deadlines are told in."""
    api = Api(service, clock, body_bytes)
    return Starlette(
        routes=[
            Route("/v1/completions", api.completions, methods=["POST"]),
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/models", api.models),
            Route("/v1/models/{model_id:path}", api.model),
            Route("/health", api.health),
            Route("/ready", api.ready),
            Route("/metrics", api.metrics),
        ],
        exception_handlers=HANDLERS,
    )


def _listed(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": 0,
        "owned_by": "brownout",
        "max_model_len": card.max_context,
        "brownout": {"rung": card.rung},
    }


def _check_prompt(prompt: list[int], max_tokens: int, card: ModelCard, field: str) -> None:
    if not prompt:
        raise ApiError(400, "invalid_value", f"{field}: has no tokens", field)
    if len(prompt) + max_tokens > card.max_context:
        raise ApiError(
            400,
            "context_length_exceeded",
            f"{field}: {len(prompt)} tokens and max_tokens {max_tokens} exceed its {card.max_context}",
            field,
        )
    if card.vocab_size is not None and max(prompt) >= card.vocab_size:
        raise ApiError(
            400, "invalid_value", f"{field}: token id {max(prompt)} is not below {card.vocab_size}", field
        )
