"""Who is taken on, and when those who are not should come again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from target.config import EngineConfig
from target.request import GenerationRequest, Rejected

ANSWERS_REMEMBERED = 16


class Admission:
    """Checks a request against the models (name: longest context) and the queue."""

    def __init__(self, config: EngineConfig, contexts: Mapping[str, int]) -> None:
        self._config = config
        self._contexts = contexts
        self._ends_s: deque[float] = deque(maxlen=ANSWERS_REMEMBERED)

    def refusal(self, request: GenerationRequest, waiting: int) -> Rejected | None:
        """Why a request can't be taken on; None if it can."""
        if request.model is not None and request.model not in self._contexts:
            known = ", ".join(self._contexts)
            return Rejected(404, "model_not_found", f"no model {request.model!r}; there are: {known}", None)
        longest = len(request.prompt_ids) + request.max_tokens
        most = min(self._contexts.values())  # whichever model answers, it must fit
        if longest > most:
            return Rejected(
                400,
                "context_length_exceeded",
                f"prompt ({len(request.prompt_ids)}) and max_tokens ({request.max_tokens}) "
                f"make {longest} tokens; this model's context is {most}",
                None,
            )
        if waiting >= self._config.max_queue:
            return Rejected(
                429, "queue_full", f"{waiting} requests are waiting", self._retry_after_s(waiting)
            )
        return None

    def ended(self, now: float) -> None:
        """A request ended."""
        self._ends_s.append(now)

    def _retry_after_s(self, waiting: int) -> float:
        """When the queue should have drained, from the rate of the last answers; between 1 and 30 s."""
        if len(self._ends_s) < 2 or self._ends_s[-1] == self._ends_s[0]:
            return 1.0
        rate = (len(self._ends_s) - 1) / (self._ends_s[-1] - self._ends_s[0])
        return min(30.0, max(1.0, math.ceil(waiting / rate)))
