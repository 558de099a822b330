"""The fault that does nothing: it teaches the seam, and can be told to fail at any step of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fault, Fidelity
from faults.gpu.base import Gpu


class NoopError(RuntimeError):
    """A no-op that was told to fail, did."""


class Noop(Fault):
    """Nothing goes wrong with the node. It never shows an effect, so a drill with it can't pass."""

    kind: Literal["noop"] = "noop"
    fail_at: Literal["inject", "effect", "undo"] | None = Field(
        default=None, description="The step that raises NoopError: inject, effect or undo; none by default."
    )

    dose: ClassVar[str] = "none"
    undo: ClassVar[str] = "nothing to undo"
    fidelity: ClassVar[dict[str, Fidelity]] = {"virtual": "real", "local": "real", "live": "real"}
    certifies: ClassVar[str] = (
        "That the harness notices a fault without effect, and one that fails at a step."
    )
    does_not_certify: ClassVar[str] = "Anything about the service: nothing was done to it."
    real_method: ClassVar[str] = "Nothing is done on hardware either."
    privileges: ClassVar[str] = "none"

    def touches(self) -> frozenset[int]:
        """No card."""
        return frozenset()

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Do nothing, or fail on the way in or out."""
        self._fail("inject")
        try:
            yield
        finally:
            self._fail("undo")

    def took_effect(self, gpu: Gpu) -> Effect:
        """Never visible."""
        self._fail("effect")
        return Effect(visible=False, asked=0.0, measured=0.0, unit="none", detail="a no-op has no effect")

    def _fail(self, step: str) -> None:
        if self.fail_at == step:
            raise NoopError(f"noop: told to fail at {step}")
