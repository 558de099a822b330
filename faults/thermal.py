"""Slowdowns that the hardware orders: the card is too hot, or its power supply says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.clocks import why
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.gpu.telemetry import Throttle
from faults.kept import KeptCard
from faults.pace import node_now

_HOT = Throttle.HW_THERMAL | Throttle.SW_THERMAL
_AMPLE_C = 5.0  # on top, so that the asked temperature is passed and not just approached


class ThermalThrottle(KeptCard):
    """A card is heated from outside, past its slowdown temperature, and lowers its clocks.

    It warms up over seconds, as quickly as its profile says, and cools down as slowly.
    """

    kind: Literal["thermal_throttle"] = "thermal_throttle"
    over_c: float = Field(
        default=2,
        ge=0,
        le=20,
        description="°C above the card's slowdown temperature that it reaches at least.",
    )

    builds_up: ClassVar[bool] = True  # the clocks fall before it is as hot as asked

    dose: ClassVar[str] = "°C above the slowdown temperature"
    undo: ClassVar[str] = "its neighbour ends, and the card cools down"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when a hot card halves its SM clock, and temperature, reasons and the counter of "
        "throttled time say why."
    )
    does_not_certify: ClassVar[str] = (
        "How far a real card slows down at which temperature, and that one which gets hotter still shuts down: here "
        "it never does."
    )
    real_method: ClassVar[str] = (
        "Do not heat hardware on purpose. A low SM clock (see clock_lock) slows it as much, without the reason; "
        "dcgmi's test injection shows a temperature without the slowdown."
    )
    privileges: ClassVar[str] = "clocks: root; injection: to reach the DCGM host engine"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """Heat enough even if the card has nothing to do."""
        wanted_c = gpu.card(self.card).slowdown_c + self.over_c + _AMPLE_C
        return {LeverKind.HEAT_C: max(_AMPLE_C, wanted_c - gpu.profile.idle_c)}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the card is as hot as asked and says that it slows down for it. What is left: that it does."""
        info = gpu.card(self.card)
        slows, measured = bool(int(info.throttle) & _HOT), info.temperature_c - info.slowdown_c
        visible = slows and measured >= self.over_c
        since_s = node_now(gpu) if visible else None  # it got there by itself, some looks ago at most
        detail = f"{info.temperature_c:.0f} °C; SM {info.sm_clock_mhz:.0f} MHz; {why(info.throttle)}"
        return Effect(visible, self.over_c, measured, "°C above slowdown", since_s, detail, float(slows))


class PowerBrake(KeptCard):
    """A card's power supply asserts the power brake, and its clocks are halved at once."""

    kind: Literal["power_brake"] = "power_brake"

    dose: ClassVar[str] = "power brakes asserted"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when a card's SM clock is halved from one moment to the next."
    )
    does_not_certify: ClassVar[str] = (
        "How far and how long real cards brake; several of a chassis at a time is usual."
    )
    real_method: ClassVar[str] = (
        "None: the signal is a pin. A low SM clock (see clock_lock) slows it as much, without the reason."
    )
    privileges: ClassVar[str] = "clocks: root"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """The brake."""
        return {LeverKind.POWER_BRAKE: 1}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the card names the brake and its clock is lower. That it does is also what is left."""
        info = gpu.card(self.card)
        brakes = float(bool(int(info.throttle) & Throttle.HW_POWER_BRAKE))
        visible = bool(brakes) and info.sm_clock_mhz < info.sm_clock_max_mhz
        since_s = info.changed_s if visible else None
        detail = f"SM {info.sm_clock_mhz:.0f} of {info.sm_clock_max_mhz:.0f} MHz; {why(info.throttle)}"
        return Effect(visible, 1, brakes, "brakes asserted", since_s, detail, brakes)
