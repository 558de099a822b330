"""Memory errors: bits of a card's memory flip. One that ECC corrects costs nothing; one it can't, a process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from faults.base import Effect, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.levers import LeverKind
from faults.kept import KeptCard, spelled
from faults.pace import REACHED, Pace

UNCORRECTABLE = 214  # cudaErrorECCUncorrectable
RESET = 1  # NVML's field 230, the recovery action
_CORRECTED = Pace()


class EccErrors(KeptCard):
    """Bits of a card's memory flip and are corrected, `per_s` times a second. Nothing else happens."""

    kind: Literal["ecc_errors"] = "ecc_errors"
    per_s: float = Field(default=100, ge=10, le=1e6, description="Corrected errors a second.")

    dose: ClassVar[str] = "corrected errors per second"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = "That corrected errors, of which counters tell, change nothing for users."
    does_not_certify: ClassVar[str] = (
        "That memory with so many of them keeps well: on real cards they precede row remapping and errors that "
        "can't be corrected."
    )
    real_method: ClassVar[str] = (
        "The counters alone, by dcgmi's test injection into DCGM; no errors are made. Taken back by injecting a good "
        "value. The open kernel modules define a control to inject ECC errors, for which there is no public tool."
    )
    privileges: ClassVar[str] = "to reach the DCGM host engine"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """The rate."""
        return {LeverKind.ECC_CORRECTED_PER_S: self.per_s}

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while the volatile counter moves at the asked rate. What is left is the rate."""
        info = gpu.card(self.card)
        measured = _CORRECTED.per_s(gpu, self.card, info.ecc_corrected_volatile)
        visible = measured >= REACHED * self.per_s
        since_s = info.changed_s if visible else None
        detail = f"{info.ecc_corrected_volatile:.0f} volatile, {info.ecc_corrected:.0f} aggregate"
        return Effect(visible, self.per_s, measured, "corrected/s", since_s, detail, measured)


class EccUncorrectable(KeptCard):
    """A card meets an error that ECC can't correct: a row waits to be remapped, and contexts die of it.

    Xid 94 is contained: one process dies. 95 is not, and 48 is that of cards which contain none: whoever is on
    the card dies. Its context is stuck in CUDA error 214, and stays so until the process ends or, in the simulation
    alone, opens another.
    """

    kind: Literal["ecc_uncorrectable"] = "ecc_uncorrectable"
    xid: Literal[48, 94, 95] = Field(default=94, description="What the driver reports; 94 is contained.")
    victim: Literal["neighbour", "tenant"] = Field(
        default="neighbour",
        description="Whom a contained error hits: a bystander, or the card's biggest tenant.",
    )

    dose: ClassVar[str] = "rows that wait to be remapped"
    undo: ClassVar[str] = (
        "its neighbour ends, for the reset; a tenant's context stays broken until the tenant ends or, in the "
        "simulation alone, lets go of it and opens another"
    )
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "That an error in somebody else's memory stays with them (94); or what the service does when every call on "
        "its cards fails in the context it has (94 on a tenant, 48, 95), while counters, Xid and recovery action say "
        "why."
    )
    does_not_certify: ClassVar[str] = (
        "That only a new process helps, as it does on real hardware: in the simulation a process may let go of its "
        "broken context and open another without ending, and the bundled service does. A card's reset and the "
        "remapping of its row, rows that can't be remapped (Xid 64), and data that was wrong before the error was "
        "found."
    )
    real_method: ClassVar[str] = (
        "None that is public and safe: dcgmi's test injection moves what DCGM shows, and a line in the kernel's log "
        "what reads it. Neither breaks a context. A real one is taken back by a reset of the card."
    )
    privileges: ClassVar[str] = "to reach the DCGM host engine, or to write to the kernel's log (root)"

    def levers(self, gpu: Gpu) -> Mapping[LeverKind, float]:
        """The row that waits, and what the driver recommends."""
        return {LeverKind.REMAP_PENDING: 1, LeverKind.RECOVERY_ACTION: RESET}

    def xids(self) -> tuple[int, ...]:
        """The error, and that a row is to be remapped."""
        return (self.xid, 63)

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that keeps the row waiting; what it breaks stays broken."""
        with gpu.neighbour(
            "keep",
            card=self.card,
            levers=spelled(self.levers(gpu)),
            xids=self.xids(),
            counts=["ecc_uncorrected_volatile=1", "ecc_uncorrected=1", "remapped_uncorrected=1"],
            error=UNCORRECTABLE,
            victim=self.victim if self.xid == 94 else "all",
        ):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while a row waits and a reset is recommended; counters and contexts are told, not judged.

        They do not go back: what is left of the fault is the row, and every tenant that is stuck in the error.
        """
        info, on_card = gpu.card(self.card), gpu.memory(self.card).used_by.keys() & gpu.tenants()
        stuck = sum(gpu.context_errors().get(pid) == UNCORRECTABLE for pid in on_card)
        visible = bool(info.remap_pending) and info.recovery_action >= RESET
        since_s = info.changed_s if visible else None
        detail = f"Xid {info.last_xid:.0f} last; {info.ecc_uncorrected_volatile:.0f} uncorrected, {stuck} tenants stuck"
        left = info.remap_pending + stuck
        return Effect(visible, 1, info.remap_pending, "rows pending", since_s, detail, left)
