"""The layout of a node file as C: the numbers that the NVML library reads it by, made from those of Python."""

from __future__ import annotations

from collections.abc import Iterator
from operator import or_

from faults.gpu import layout
from faults.gpu.identity import DRIVER_VERSION
from faults.gpu.layout import CARDS_MAX, Layout
from faults.gpu.profiles import PROFILES
from faults.gpu.telemetry import CARD_FIELDS, NVLINKS_MAX, EventType, Throttle
from faults.gpu.topology import NO_PEER, SWITCH

HEAD = ("MAGIC", "CARDS", "SEQUENCE", "TICKED", "EVENT_SERIAL", "NODE_ID", "PROFILE", "PRODUCT", "TOPOLOGY")
MONITORING = ("NVML_DELAY", "NVML_ERROR", "FROZEN")
SIZES = ("CELL", "CARDS_MAX", "OWNERS", "EVENTS", "EVENT_CELLS", "CARD_CELLS", "NAME_CELLS", "HEAD_CELLS")
PLACES = ("owner_pids", "owner_starts", "owner_busy", "card", "event", "links")

# PCI device ids by the PCI ID database; a profile that stands for no product has none of its own.
PCI_DEVICES = {"a100-sxm-80": 0x20B2, "h100-sxm-80": 0x2330, "h200-sxm-141": 0x2335, "l40s": 0x26B9}
NVIDIA = 0x10DE


def text() -> str:
    """The header, whole."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "/* Made by faults/gpu/nvml/header.py: don't edit. */"
    yield "#ifndef BROWNOUT_LAYOUT_H"
    yield "#define BROWNOUT_LAYOUT_H"
    yield "#include <stdint.h>"
    yield f"#define MAGIC_VALUE INT64_C({layout.MAGIC_VALUE})"
    yield f'#define DRIVER_VERSION "{DRIVER_VERSION}"'
    for name in SIZES:
        yield f"#define {name} {getattr(layout, name)}"
    for name in (*HEAD, *MONITORING):
        yield f"#define AT_{name} {getattr(layout, name)}"
    for place, name in enumerate(CARD_FIELDS):
        yield f"#define FIELD_{name} {place}"
    yield f"#define NVLINKS_MAX {NVLINKS_MAX}"
    yield f"#define SWITCH ({SWITCH})"
    yield f"#define NO_PEER ({NO_PEER})"
    yield f"#define THROTTLE_ALL {_all_bits(Throttle)}"
    yield f"#define EVENTS_ALL {_all_bits(EventType)}"
    yield from _places()
    yield from _profiles()
    yield "#endif"


def _places() -> Iterator[str]:
    """Where tables begin, in cells, by how many cards there are."""
    yield f"typedef struct {{ int64_t {', '.join(PLACES)}; }} Places;"
    yield "static const Places PLACES[] __attribute__((unused)) = {"
    yield "    {0},"
    for cards in range(1, CARDS_MAX + 1):
        at = Layout(cards, 0, 0)
        first = (at.owner_pids, at.owner_starts, at.owner_busy(0), at.card(0), at.event(0), at.link(0))
        yield f"    {{{', '.join(map(str, first))}}},"
    yield "};"


def _profiles() -> Iterator[str]:
    yield "typedef struct {"
    yield "    const char *name; int64_t memory_bytes, page_bytes, pages; unsigned pci_device_id;"
    yield "} Profile;"
    yield f"#define PROFILES {len(PROFILES)}"
    yield "static const Profile PROFILE_TABLE[] __attribute__((unused)) = {"
    for card in PROFILES.values():
        device = PCI_DEVICES.get(card.name, 0) << 16 | NVIDIA
        yield f'    {{"{card.name}", {card.memory_bytes}, {card.page_bytes}, {card.pages}, {device:#x}}},'
    yield "};"


def _all_bits(mask: type[Throttle] | type[EventType]) -> int:
    bits = 0
    for bit in mask:
        bits = or_(bits, int(bit))
    return bits
