"""The closed union of fault kinds: an unknown one is refused with the list of the known."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from faults.base import Fault
from faults.noop import Noop
from faults.nvlink import NvlinkDegrade
from faults.pcie import PcieSaturation
from faults.vram import VramOom

AnyFault = Annotated[VramOom | PcieSaturation | NvlinkDegrade | Noop, Field(discriminator="kind")]

KINDS: dict[str, type[Fault]] = {
    "vram_oom": VramOom,
    "pcie_saturation": PcieSaturation,
    "nvlink_degrade": NvlinkDegrade,
    "noop": Noop,
}
