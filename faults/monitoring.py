"""Trouble of the monitoring alone: the cards are well, but whoever asks through NVML hears otherwise, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol, runtime_checkable

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.gpu.telemetry import CardInfo
from faults.kept import KeptMonitoring

_ERRORS = {"driver_not_loaded": 9, "timeout": 10, "library_not_found": 12}  # nvml.h
VERSION_MISMATCH = 18

_PRELOADED = (
    "A library of one's own in the place of libnvidia-ml.so.1, in the environment of what monitors. Taken back by a "
    "restart of that without it."
)
_PRIVILEGES = "to start what monitors with another environment"
_NOT_THE_REST = (
    "Monitoring that does not go through NVML, and processes that hold on to what they read before."
)


class NvmlSlow(KeptMonitoring):
    """Every NVML call takes `delay_ms` longer."""

    kind: Literal["nvml_slow"] = "nvml_slow"
    delay_ms: float = Field(default=500, ge=1, le=30_000, description="How much longer a call takes, in ms.")

    dose: ClassVar[str] = "ms that a call takes longer"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = "That users do not wait for those who watch the cards."
    does_not_certify: ClassVar[str] = _NOT_THE_REST
    real_method: ClassVar[str] = _PRELOADED
    privileges: ClassVar[str] = _PRIVILEGES

    def levers(self) -> Mapping[LeverKind, float]:
        """The delay."""
        return {LeverKind.NVML_DELAY_S: self.delay_ms / 1000}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while calls take that much longer. What is left of it: any delay."""
        now = gpu.monitoring()
        delay_ms = 1000 * now.delay_s
        visible = delay_ms >= self.delay_ms * (1 - 1e-9)
        return Effect(
            visible, self.delay_ms, delay_ms, "ms", now.changed_s if visible else None, "", delay_ms
        )


class NvmlUnavailable(KeptMonitoring):
    """NVML is not to be had: every call fails with `error`, nvmlInit included."""

    kind: Literal["nvml_unavailable"] = "nvml_unavailable"
    error: Literal["library_not_found", "driver_not_loaded", "timeout"] = Field(
        default="library_not_found", description="What every call answers, nvmlInit included."
    )

    dose: ClassVar[str] = "the code that calls answer"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = "That the service serves on while nobody can see the cards."
    does_not_certify: ClassVar[str] = (
        f"A service that is started meanwhile and asks NVML first. {_NOT_THE_REST}"
    )
    real_method: ClassVar[str] = _PRELOADED
    privileges: ClassVar[str] = _PRIVILEGES

    def levers(self) -> Mapping[LeverKind, float]:
        """The code."""
        return {LeverKind.NVML_ERROR: _ERRORS[self.error]}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while calls answer with that code. That they do is also what is left of it."""
        return answering(gpu, _ERRORS[self.error])


class DriverMismatch(KeptMonitoring):
    """Library and kernel module are of different versions, as after an upgrade without a reboot: NVML answers 18."""

    kind: Literal["driver_mismatch"] = "driver_mismatch"

    dose: ClassVar[str] = "the code that calls answer"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "That a running service, whose contexts are older than the mismatch, serves on while nvidia-smi and exporters "
        "fail."
    )
    does_not_certify: ClassVar[str] = (
        f"A service that is started meanwhile: it finds no card. {_NOT_THE_REST}"
    )
    real_method: ClassVar[str] = (
        "An upgrade of the driver's user-space packages without a reload of the module. Taken back by the reload or "
        f"a reboot. Or: {_PRELOADED[0].lower()}{_PRELOADED[1:]}"
    )
    privileges: ClassVar[str] = f"packages: root; else {_PRIVILEGES}"

    def levers(self) -> Mapping[LeverKind, float]:
        """The code."""
        return {LeverKind.NVML_ERROR: VERSION_MISMATCH}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while calls answer with that code. That they do is also what is left of it."""
        return answering(gpu, VERSION_MISMATCH)


class TelemetryFrozen(KeptMonitoring):
    """Whatever NVML shows of the cards stands still; calls succeed, and nothing says that it is old."""

    kind: Literal["telemetry_frozen"] = "telemetry_frozen"

    dose: ClassVar[str] = "1 while values stand still"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = "That users are served as before by a service whose dashboards show the past."
    does_not_certify: ClassVar[str] = (
        f"Whether an alarm on stale values exists; what acts on them acts on the past. {_NOT_THE_REST}"
    )
    real_method: ClassVar[str] = (
        f"dcgmi test --pause for what DCGM shows, taken back by --resume. Or: {_PRELOADED[0].lower()}{_PRELOADED[1:]}"
    )
    privileges: ClassVar[str] = f"to reach the DCGM host engine; else {_PRIVILEGES}"

    def levers(self) -> Mapping[LeverKind, float]:
        """That it stands still."""
        return {LeverKind.FROZEN: 1}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the energy that is shown of every card lags behind what the card has used by then.

        That it does for any card is what is left of it. On a node that shows no figures but the true ones, never.
        """
        behind_j = [lag_j(gpu, card) for card in range(gpu.cards)] if isinstance(gpu, ShowsCards) else []
        stale = sum(lag > 0 for lag in behind_j)
        visible = 0 < stale == len(behind_j)
        since_s = gpu.monitoring().changed_s if visible else None
        detail = (
            f"{stale} of {len(behind_j)} cards shown as they were; card 0 lags by {sum(behind_j[:1]):.3g} J"
        )
        return Effect(visible, 1, float(visible), "standing still", since_s, detail, stale)


@runtime_checkable
class ShowsCards(Protocol):
    """A node whose monitoring may show something else than what is."""

    def shown_card(self, card: int) -> CardInfo:
        """One card as monitoring shows it."""
        ...


def lag_j(gpu: Gpu, card: int) -> float:
    """By how much the energy that is shown of a card lags behind. It never falls, so what is current is no less."""
    assert isinstance(gpu, ShowsCards)
    used_j = gpu.card(card).energy_j  # before the look at what is shown
    return max(0.0, used_j - gpu.shown_card(card).energy_j)


def answering(gpu: Gpu, code: int) -> Effect:
    """The effect of a code that calls answer with; of several codes the node shows the largest."""
    now = gpu.monitoring()
    since_s = now.changed_s if now.error == code else None
    return Effect(now.error == code, code, now.error, "NVML code", since_s, "", float(now.error == code))
