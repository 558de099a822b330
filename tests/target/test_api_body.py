"""Whatever a client sends as JSON is read or refused, never a crash."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from target.api.body import ChatBody, CompletionBody, GenerationBody, read_body
from target.api.errors import ApiError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text("aé\n\0", max_size=4)
NAMES = st.sampled_from(
    [*ChatBody.model_fields, *CompletionBody.model_fields, "n", "role", "content", "type", "text"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy


@patient
@given(st.dictionaries(NAMES, VALUES, max_size=5))
@pytest.mark.parametrize("kind", [CompletionBody, ChatBody])
def test_any_object_is_read_or_refused(kind: type[GenerationBody], fields: dict[str, Any]) -> None:
    with suppress(ApiError):
        read_body(
            kind,
            json.dumps({"prompt": "a", "messages": [{"role": "user", "content": "a"}], **fields}).encode(),
        )


@patient
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(ApiError):
        read_body(CompletionBody, raw)
