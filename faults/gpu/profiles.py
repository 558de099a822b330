"""Cards by name: how big, how fast, how hot, and which real card they stand for."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True)
class CardProfile:
    """A card. Rates are per direction; NVLink's is that of all of a card's links together."""

    name: str
    product: str  # as NVML names it
    compute_capability: tuple[int, int]
    memory_bytes: int
    page_bytes: int
    pcie_gen: int
    pcie_width: int
    pcie_bytes_per_s: float
    pcie_latency_s: float
    nvlinks: int
    nvlink_bytes_per_s: float
    nvlink_latency_s: float
    sm_clock_mhz: float
    mem_clock_mhz: float
    power_w: float  # its limit by default
    power_min_w: float  # the lowest limit it takes
    idle_w: float
    idle_c: float
    loaded_c: float  # where it settles at full power
    settles_s: float  # time constant of its temperature
    slowdown_c: float
    shutdown_c: float
    stands_for_bytes: int  # memory of the card it stands for
    topology: str  # how such cards are wired unless one says otherwise
    source: str  # where the numbers come from

    @property
    def scale(self) -> float:
        """Bytes of the card it stands for per byte of this one."""
        return self.stands_for_bytes / self.memory_bytes

    @property
    def pages(self) -> int:
        """How many pages its memory has."""
        return self.memory_bytes // self.page_bytes


POCKET = CardProfile(
    name="pocket",
    product="brownout pocket",
    compute_capability=(9, 0),
    memory_bytes=48 * MIB,
    page_bytes=64 * KIB,
    pcie_gen=5,
    pcie_width=16,
    pcie_bytes_per_s=16e6,
    pcie_latency_s=20e-6,
    nvlinks=18,
    nvlink_bytes_per_s=288e6,
    nvlink_latency_s=5e-6,
    sm_clock_mhz=1980,
    mem_clock_mhz=2619,
    power_w=700,
    power_min_w=200,
    idle_w=70,
    idle_c=35,
    loaded_c=65,
    settles_s=0.5,
    slowdown_c=87,
    shutdown_c=92,
    stands_for_bytes=80 * GIB,
    topology="mesh",
    source=(
        "Chosen, not measured: a 25M-parameter fp32 model, tensor-parallel over 4 of these cards (23.6 MiB "
        "of weights a card, 4 KiB of KV cache a token a card), feels memory and links as a 70B-class model "
        "feels an 80 GiB card. Clocks and power are an H100's; it warms up and cools down within seconds, so "
        "that a drill need not wait for minutes."
    ),
)

_CHOSEN = (
    " Chosen, as no source gives them: latencies, idle power, temperatures and their time constant. Untested on "
    "hardware."
)

A100 = CardProfile(
    name="a100-sxm-80",
    product="NVIDIA A100-SXM4-80GB",
    compute_capability=(8, 0),
    memory_bytes=81_920 * MIB,
    page_bytes=2 * MIB,
    pcie_gen=4,
    pcie_width=16,
    pcie_bytes_per_s=26e9,
    pcie_latency_s=10e-6,
    nvlinks=12,
    nvlink_bytes_per_s=276e9,
    nvlink_latency_s=2e-6,
    sm_clock_mhz=1410,
    mem_clock_mhz=1593,
    power_w=400,
    power_min_w=100,
    idle_w=55,
    idle_c=30,
    loaded_c=65,
    settles_s=15,
    slowdown_c=87,
    shutdown_c=92,
    stands_for_bytes=81_920 * MIB,
    topology="nvswitch",
    source=(
        "NVLink and PCIe as measured in the README of NVIDIA's nvbandwidth (276 GB/s between two cards, 26 GB/s "
        "from the host); 12 NVLinks, clocks, power and memory by NVIDIA's A100 datasheet and nvidia-smi."
        + _CHOSEN
    ),
)

H100 = CardProfile(
    name="h100-sxm-80",
    product="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    memory_bytes=81_558 * MIB,
    page_bytes=2 * MIB,
    pcie_gen=5,
    pcie_width=16,
    pcie_bytes_per_s=55.6e9,
    pcie_latency_s=10e-6,
    nvlinks=18,
    nvlink_bytes_per_s=378e9,
    nvlink_latency_s=2e-6,
    sm_clock_mhz=1980,
    mem_clock_mhz=2619,
    power_w=700,
    power_min_w=200,
    idle_w=70,
    idle_c=30,
    loaded_c=65,
    settles_s=15,
    slowdown_c=87,
    shutdown_c=92,
    stands_for_bytes=81_558 * MIB,
    topology="nvswitch",
    source=(
        "NVLink 376 to 380 GB/s of 450, as measured in github.com/NVIDIA/nccl issue 1264; PCIe 55.6 GB/s by NVIDIA's "
        "post on nvbandwidth; 18 NVLinks, clocks, power and memory by NVIDIA's H100 datasheet and nvidia-smi "
        "(81,559 MiB, less the half page)." + _CHOSEN
    ),
)

H200 = CardProfile(
    name="h200-sxm-141",
    product="NVIDIA H200",
    compute_capability=(9, 0),
    memory_bytes=143_770 * MIB,
    page_bytes=2 * MIB,
    pcie_gen=5,
    pcie_width=16,
    pcie_bytes_per_s=55.6e9,
    pcie_latency_s=10e-6,
    nvlinks=18,
    nvlink_bytes_per_s=378e9,
    nvlink_latency_s=2e-6,
    sm_clock_mhz=1980,
    mem_clock_mhz=3201,
    power_w=700,
    power_min_w=200,
    idle_w=75,
    idle_c=30,
    loaded_c=65,
    settles_s=15,
    slowdown_c=87,
    shutdown_c=92,
    stands_for_bytes=143_770 * MIB,
    topology="nvswitch",
    source=(
        "Links as an H100's, which has the same; memory, clocks and power by NVIDIA's H200 datasheet and nvidia-smi "
        "(143,771 MiB, less the half page)." + _CHOSEN
    ),
)

L40S = CardProfile(
    name="l40s",
    product="NVIDIA L40S",
    compute_capability=(8, 9),
    memory_bytes=46_068 * MIB,
    page_bytes=2 * MIB,
    pcie_gen=4,
    pcie_width=16,
    pcie_bytes_per_s=26e9,
    pcie_latency_s=10e-6,
    nvlinks=0,
    nvlink_bytes_per_s=0,
    nvlink_latency_s=0,
    sm_clock_mhz=2520,
    mem_clock_mhz=9001,
    power_w=350,
    power_min_w=100,
    idle_w=35,
    idle_c=30,
    loaded_c=70,
    settles_s=20,
    slowdown_c=87,
    shutdown_c=95,
    stands_for_bytes=46_068 * MIB,
    topology="none",
    source=(
        "PCIe Gen4 x16 as measured in the README of NVIDIA's nvbandwidth (26 GB/s, on an A100); no NVLink, clocks, "
        "power and memory by NVIDIA's L40S datasheet and nvidia-smi." + _CHOSEN
    ),
)

PROFILES: dict[str, CardProfile] = {card.name: card for card in (POCKET, A100, H100, H200, L40S)}


def profile(name: str) -> CardProfile:
    """The profile of that name; ValueError, listing the known ones, if there is none."""
    if name not in PROFILES:
        raise ValueError(f"unknown card profile {name!r}; known: {', '.join(sorted(PROFILES))}")
    return PROFILES[name]
