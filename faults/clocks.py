"""Clocks and power that somebody set lower: a card works on, more slowly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.gpu.telemetry import Throttle
from faults.kept import KeptCard

_SAME = 1 + 1e-9


class ClockLock(KeptCard):
    """A card's clocks are locked below their best: SM, memory, or both."""

    kind: Literal["clock_lock"] = "clock_lock"
    sm_mhz: float | None = Field(
        default=600, ge=100, le=5000, description="The SM clock, in MHz; none: free."
    )
    memory_mhz: float | None = Field(
        default=None, ge=100, le=20_000, description="The memory clock, in MHz; none: free."
    )

    less_is_stronger: ClassVar[bool] = True

    dose: ClassVar[str] = "clock in MHz"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when compute-bound work (a low SM clock) or memory-bound work (a low memory clock) "
        "slows down in proportion, and the card says that its clocks were set."
    )
    does_not_certify: ClassVar[str] = (
        "How much a real kernel slows down at a given clock: few are bound by one thing alone."
    )
    real_method: ClassVar[str] = (
        "nvmlDeviceSetGpuLockedClocks and nvmlDeviceSetMemoryLockedClocks, or nvidia-smi -lgc and -lmc (memory from "
        "Ampere on). Taken back by -rgc and -rmc; also lost when the driver is reloaded (nvml.h)."
    )
    privileges: ClassVar[str] = "root"

    @model_validator(mode="after")
    def _locks_something(self) -> Self:
        if self.sm_mhz is None and self.memory_mhz is None:
            raise ValueError("give sm_mhz, memory_mhz or both: a lock of neither clock is none")
        return self

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """The clocks; ValueError if one is no lower than the card's best."""
        info = gpu.card(self.card)
        for name, mhz, best in (
            ("sm_mhz", self.sm_mhz, info.sm_clock_max_mhz),
            ("memory_mhz", self.memory_mhz, info.mem_clock_max_mhz),
        ):
            if mhz is not None and mhz >= best:
                raise ValueError(f"{name}: {mhz:g} is no lock: card {self.card}'s best is {best:g} MHz")
        asked = {LeverKind.SM_CLOCK_MHZ: self.sm_mhz, LeverKind.MEM_CLOCK_MHZ: self.memory_mhz}
        return {kind: mhz for kind, mhz in asked.items() if mhz is not None}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while each clock is as low as asked, because somebody set it. That is also what is left of it.

        The dose is the SM clock, or the memory clock if only that is locked.
        """
        info = gpu.card(self.card)
        pairs = [(self.sm_mhz, info.sm_clock_mhz), (self.memory_mhz, info.mem_clock_mhz)]
        locked = [(asked, shown) for asked, shown in pairs if asked is not None]
        was_set = bool(int(info.throttle) & Throttle.APPLICATIONS_CLOCKS)
        visible = was_set and all(shown <= asked * _SAME for asked, shown in locked)
        since_s = info.changed_s if visible else None
        detail = f"SM {info.sm_clock_mhz:.0f} MHz, memory {info.mem_clock_mhz:.0f} MHz; {why(info.throttle)}"
        return Effect(visible, *locked[0], "MHz", since_s, detail, float(was_set))


class PowerCap(KeptCard):
    """A card may draw no more than `watts`, and lowers its SM clock to keep to it."""

    kind: Literal["power_cap"] = "power_cap"
    watts: float = Field(default=300, ge=50, le=2000, description="The power limit, in W.")

    less_is_stronger: ClassVar[bool] = True

    dose: ClassVar[str] = "power limit in W"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when a card with a lower power limit computes more slowly, while memory-bound work "
        "goes on as before, and limit and reason are shown."
    )
    does_not_certify: ClassVar[str] = (
        "Which clock a real card takes at a given limit: that depends on what it computes, and here power goes with "
        "the clock in a straight line."
    )
    real_method: ClassVar[str] = (
        "nvmlDeviceSetPowerManagementLimit or nvidia-smi -pl, within the limits that the card tells. Taken back by "
        "setting the earlier value; also lost when the driver is reloaded (nvml.h)."
    )
    privileges: ClassVar[str] = "root"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """The limit; ValueError if the card takes no such limit."""
        info = gpu.card(self.card)
        if not info.power_min_w <= self.watts < info.power_default_w:
            raise ValueError(
                f"watts: {self.watts:g}: card {self.card} can be capped from {info.power_min_w:g} W to below its "
                f"default of {info.power_default_w:g} W"
            )
        return {LeverKind.POWER_CAP_W: self.watts}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the limit in force is as low as asked. What is left: how far it is below the default."""
        info = gpu.card(self.card)
        visible = info.power_limit_w <= self.watts * _SAME
        since_s = info.changed_s if visible else None
        detail = f"draws {info.power_w:.0f} W; SM {info.sm_clock_mhz:.0f} MHz; {why(info.throttle)}"
        lower = max(0.0, info.power_default_w - info.power_limit_w)
        return Effect(visible, self.watts, info.power_limit_w, "W", since_s, detail, lower)


def why(throttle: float) -> str:
    """Throttle reasons in words."""
    reasons = [reason.name.lower() for reason in Throttle if int(throttle) & reason and reason.name]
    return "throttled: " + (", ".join(reasons) or "no")
