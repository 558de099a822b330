"""The bodies of requests: which fields there are, and what each may be."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from target.api.errors import ApiError

# Parameters of the OpenAI API that this service lacks; each is accepted at the value that changes nothing, and
# null is as good as absent.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": (),
    "logprobs": (False,),
    "top_logprobs": (),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
}
# Accepted at any value, because none would change the answer: nothing here reasons, stores or bills.
IGNORED = {
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention", "reasoning_effort"),
}
# The same of an assistant's message, which clients send back as they got it.
NEUTRAL_IN_MESSAGE: dict[str, tuple[Any, ...]] = {"tool_calls": ([],), "annotations": ([],)}
MAX_STOPS = 4
HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")


def _as_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _without_nulls(fields: Any) -> Any:
    if not isinstance(fields, dict):
        return fields
    return {name: value for name, value in fields.items() if value is not None}


Stops = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS), BeforeValidator(_as_list)
]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: bool = False  # padding against eavesdroppers: accepted, and there is none

    _nulls = model_validator(mode="before")(_without_nulls)


class GenerationBody(BaseModel):
    """What both kinds of requests can say."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Stops | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed together with stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody):
    """POST /v1/completions: one prompt, as text or as token ids."""

    prompt: str | list[int]

    @field_validator("prompt", mode="before")
    @classmethod
    def _is_one_prompt(cls, prompt: Any) -> Any:
        several = isinstance(prompt, list) and prompt and all(isinstance(part, str | list) for part in prompt)
        if several and len(prompt) > 1:
            raise ValueError(f"one prompt per request, got {len(prompt)}")
        if several:
            prompt = prompt[0]
        if isinstance(prompt, str) and prompt:
            return prompt
        if isinstance(prompt, list) and prompt and all(type(part) is int and part >= 0 for part in prompt):
            return prompt
        raise ValueError("must be a text or a list of token ids (whole numbers from 0 on), and not empty")


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a chat; its parts are joined, and only text is understood. An assistant may have said nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: list[TextPart]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_it_was_got(cls, fields: Any) -> Any:
        fields = _without_nulls(fields)
        if not isinstance(fields, dict) or fields.get("role") != "assistant":
            return fields
        said = {
            name: value
            for name, value in fields.items()
            if not _is_one_of(value, NEUTRAL_IN_MESSAGE.get(name, ()))
        }
        return {"content": "", **said}

    @field_validator("content", mode="before")
    @classmethod
    def _in_parts(cls, content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    def plain(self) -> dict[str, str]:
        return {"role": self.role, "content": "".join(part.text for part in self.content)}


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)


Body = TypeVar("Body", bound=GenerationBody)


def read_body(kind: type[Body], raw: bytes) -> Body:
    """The body as a value; ApiError 400 that names the first field that is not as it must be."""
    try:
        fields = json.loads(raw)
        if HALF_CHARACTER.search(raw):
            json.dumps(fields, ensure_ascii=False).encode()  # fails if the other half is missing
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "invalid_json", "the body must be a JSON object")
    try:
        return kind.model_validate(_without_neutral(fields))
    except ValidationError as error:
        raise ApiError.of_validation(error) from None


def _without_neutral(fields: dict[str, Any]) -> dict[str, Any]:
    fields = _without_nulls(fields)
    for name, allowed in NEUTRAL.items():
        if name in fields and not _is_one_of(fields[name], allowed):
            raise ApiError(
                400, "unsupported_parameter", f"{name}: {fields[name]!r} is not supported here", param=name
            )
    return {name: value for name, value in fields.items() if name not in NEUTRAL and name not in IGNORED}


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """As JSON has it: 0 is 0.0, but not false."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)
