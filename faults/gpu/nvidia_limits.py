"""Clock locks and power limits of real cards, and the notes by which they are taken back.

Untested on hardware. A note is written before a limit is set and removed after it was taken back. So what a process
that was killed could not take back can be taken back later, by anybody who may: `repeat`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from faults.gpu.levers import LeverKind
from faults.gpu.nvidia_library import Library
from faults.gpu.owners import is_alive, start_ticks
from faults.gpu.refused import Refused
from faults.gpu.telemetry import Throttle

LIMITS = {LeverKind.SM_CLOCK_MHZ, LeverKind.MEM_CLOCK_MHZ, LeverKind.POWER_CAP_W}
NOTES = Path(".brownout") / "limits"


@dataclass(frozen=True)
class Note:
    """A limit in force: on which card, what it was before (None: free), and which process set it."""

    uuid: str
    kind: str
    value: float
    earlier: float | None
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether that process is still there."""
        return is_alive(self.pid, self.started)


def keep(
    library: Library, handle: Any, kind: LeverKind, value: float, folder: Path = NOTES
) -> Callable[[], None]:
    """Set a limit; what to call to take it back. Refused if it can't be set, or could not be taken back."""
    nvml = library.nvml
    uuid = nvml.nvmlDeviceGetUUID(handle)
    uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
    clocks_are_ours = any(note.uuid == uuid and note.pid == os.getpid() for note in _notes(folder).values())
    earlier = _earlier(library, handle, kind, value, clocks_are_ours)
    note = Note(uuid, kind.name, value, earlier, os.getpid(), start_ticks(os.getpid()) or 0)
    path = folder / f"{uuid}-{kind.name}.json"
    _write(note, path)

    def take_back() -> None:
        _restore(library, handle, note)
        path.unlink(missing_ok=True)

    try:
        library.change(f"setting {kind.name} to {value:g}", _setting(nvml, handle, kind, value))
    except Refused:
        path.unlink()  # nothing was set
        raise
    except BaseException:  # interrupted: it may have been set
        take_back()
        raise
    return take_back


def outstanding(folder: Path = NOTES) -> list[tuple[Path, Note]]:
    """Limits that nobody is left to take back."""
    return [(path, note) for path, note in _notes(folder).items() if not note.alive]


def repeat(library: Library, folder: Path = NOTES) -> list[Note]:
    """Take back what dead processes left; which limits. Refused if one can't be."""
    done = []
    for path, note in outstanding(folder):
        handle = library.nvml.nvmlDeviceGetHandleByUUID(note.uuid)
        _restore(library, handle, note)
        path.unlink(missing_ok=True)
        done.append(note)
    return done


def _write(note: Note, path: Path) -> None:
    """In one step: whoever reads finds a whole note or none. Refused if there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{note.pid}")
    draft.write_text(json.dumps(asdict(note)))
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        raise Refused(
            f"{note.kind} of {note.uuid} is limited already, or was left so by a process that was killed: see {path}"
        ) from None
    finally:
        draft.unlink()


def _notes(folder: Path) -> dict[Path, Note]:
    return {path: Note(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))}


def _earlier(
    library: Library, handle: Any, kind: LeverKind, value: float, clocks_are_ours: bool
) -> float | None:
    """What to go back to. ValueError if the limit makes no sense on this card."""
    nvml = library.nvml
    if kind == LeverKind.POWER_CAP_W:
        least, most = (watts / 1000 for watts in nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle))
        if not least <= value <= most:
            raise ValueError(f"a power limit of {value:g} W: this card takes {least:g} to {most:g} W")
        return float(nvml.nvmlDeviceGetPowerManagementLimit(handle)) / 1000
    reasons = library.ask(0, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle), 0)
    if reasons & Throttle.APPLICATIONS_CLOCKS and not clocks_are_ours:
        raise Refused(
            "somebody has set this card's clocks already, and NVML does not tell to what: they could not be put back "
            "(nvidia-smi -rgc and -rmc free them)"
        )
    clock = nvml.NVML_CLOCK_SM if kind == LeverKind.SM_CLOCK_MHZ else nvml.NVML_CLOCK_MEM
    best = nvml.nvmlDeviceGetMaxClockInfo(handle, clock)
    if not 0 < value <= best:
        raise ValueError(f"{kind.name} of {value:g}: this card's best is {best} MHz")
    return None


def _setting(nvml: Any, handle: Any, kind: LeverKind, value: float) -> Callable[[], object]:
    if kind == LeverKind.POWER_CAP_W:
        return lambda: nvml.nvmlDeviceSetPowerManagementLimit(handle, round(value * 1000))
    mhz = round(value)
    if kind == LeverKind.SM_CLOCK_MHZ:
        return lambda: nvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
    return lambda: nvml.nvmlDeviceSetMemoryLockedClocks(handle, mhz, mhz)


def _restore(library: Library, handle: Any, note: Note) -> None:
    nvml, kind = library.nvml, LeverKind[note.kind]
    resets = {
        LeverKind.SM_CLOCK_MHZ: nvml.nvmlDeviceResetGpuLockedClocks,
        LeverKind.MEM_CLOCK_MHZ: nvml.nvmlDeviceResetMemoryLockedClocks,
    }
    what = f"taking back {note.kind} of {note.uuid}"
    if note.earlier is not None:
        library.change(what, _setting(nvml, handle, kind, note.earlier))
    else:
        library.change(what, lambda: resets[kind](handle))
