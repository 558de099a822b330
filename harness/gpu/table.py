"""A simulated node as a table for the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

MIB = 2**20
_EVENTS = 3  # the latest are shown


def screen(look: dict[str, Any]) -> RenderableType:
    """What `top` shows of a look at a node: clocks are of SM and memory, PCIe is both ways together."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("card", "use", "MiB", "W", "°C", "MHz", "PCIe", "NVLinks"):
        table.add_column(name, justify="right", no_wrap=True)
    for card in look["cards"]:
        table.add_row(*(_lost(card) if card["lost"] else _row(card)))
    head = Text(f"{look['node']}: {look['product']} ({look['profile']}), {look['topology']}")
    return Group(head, table, *_notes(look))


def _row(card: dict[str, Any]) -> list[str]:
    up, links = int(card["nvlinks_active"]).bit_count(), int(card["nvlinks"])
    moved = card["pcie_rx_bytes_per_s"] + card["pcie_tx_bytes_per_s"]
    return [
        str(card["card"]),
        f"{card['gpu_util_percent']:.0f} %",
        f"{(card['total_bytes'] - card['free_bytes']) / MIB:.0f}/{card['total_bytes'] / MIB:.0f}",
        f"{card['power_w']:.0f}/{card['power_limit_w']:.0f}",
        f"{card['temperature_c']:.0f}",
        f"{card['sm_clock_mhz']:.0f}/{card['mem_clock_mhz']:.0f}",
        f"{moved / 1e9:.2f} GB/s" if moved >= 1e8 else f"{moved / 1e6:.1f} MB/s",
        f"{up}/{links} up" if links else "none",
    ]


def _lost(card: dict[str, Any]) -> list[str]:
    return [str(card["card"]), "lost", *[""] * 6]


def _notes(look: dict[str, Any]) -> list[Text]:
    notes = []
    for card in look["cards"]:
        told = [why.replace("_", " ") for why in card["reasons"]]
        if errors := int(card["ecc_corrected"]) + int(card["ecc_uncorrected"]):
            told.append(f"{errors} memory errors, {int(card['ecc_uncorrected'])} of them uncorrected")
        if card["remap_pending"]:
            told.append("a row is to be remapped")
        if card["last_xid"]:
            told.append(f"last Xid {int(card['last_xid'])}")
        told += [
            f"process {pid}{' (neighbour)' if int(pid) in look['neighbours'] else ''} holds {held / MIB:.0f} MiB"
            for pid, held in card["used_by"].items()
        ]
        if told:
            notes.append(Text(f"card {card['card']}: {', '.join(told)}"))
    seen = look["monitoring"]
    if seen["delay_s"] or seen["error"] or seen["frozen"]:
        words = [f"{seen['delay_s']:g} s a call"] * bool(seen["delay_s"])
        words += [f"NVML error {seen['error']}"] * bool(seen["error"]) + ["values stand still"] * seen[
            "frozen"
        ]
        notes.append(Text(f"monitoring: {', '.join(words)}"))
    latest = look["events"][-_EVENTS:]
    notes += [Text(f"event {each['serial']}: card {each['card']}, Xid {each['data']}") for each in latest]
    return notes
