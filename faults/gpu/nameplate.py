"""What a card's telemetry begins with, by its profile: its limits, and its state when nothing has happened yet."""

from __future__ import annotations

from faults.gpu.profiles import CardProfile


def nameplate(card: CardProfile) -> dict[str, float]:
    """Figures of CardInfo, by name."""
    major, minor = card.compute_capability
    return {
        "sm_clock_max_mhz": card.sm_clock_mhz,
        "mem_clock_max_mhz": card.mem_clock_mhz,
        "power_default_w": card.power_w,
        "power_min_w": card.power_min_w,
        "power_w": card.idle_w,
        "temperature_c": card.idle_c,
        "slowdown_c": card.slowdown_c,
        "shutdown_c": card.shutdown_c,
        "pcie_gen_max": card.pcie_gen,
        "pcie_width_max": card.pcie_width,
        "compute_major": major,
        "compute_minor": minor,
        "nvlinks": card.nvlinks,
        "nvlink_bytes_per_s": card.nvlink_bytes_per_s / card.nvlinks if card.nvlinks else 0.0,
    }
