"""NVLink degradation: links between cards lose bandwidth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from faults.base import Effect, Fault, Fidelity
from faults.gpu.base import Gpu
from faults.gpu.topology import nvlink

_PAIR = re.compile(r"(0|[1-9]\d{0,2})-(0|[1-9]\d{0,2})")


def _names_a_pair(pair: str) -> str:
    match = _PAIR.fullmatch(pair)
    if match is None or match[1] == match[2]:
        raise ValueError(f"{pair!r} names no pair of cards; write e.g. '0-1'")
    return pair


class NvlinkDegrade(Fault):
    """The NVLinks between pairs of cards, both directions, keep only `percent` of their nominal bandwidth.

    Of several degradations of one link the strongest counts. It acts on both cards of each pair, so
    `blast_radius.cards_max` must be at least 2. It wants links from card to card, so not a node with a switch.
    """

    kind: Literal["nvlink_degrade"] = "nvlink_degrade"
    links: tuple[Annotated[str, AfterValidator(_names_a_pair)], ...] = Field(
        default=("0-1",), min_length=1, description="Pairs of cards, e.g. '0-1'; both directions of each."
    )
    percent: float = Field(
        default=10, ge=1, le=99, description="Share of the nominal bandwidth that remains, in %."
    )

    less_is_stronger: ClassVar[bool] = True

    dose: ClassVar[str] = "% of the nominal bandwidth that remains"
    fidelity: ClassVar[dict[str, Fidelity]] = {"local": "simulated"}
    certifies: ClassVar[str] = (
        "What the service does when the links its cards exchange activations over get this much slower and "
        "stay up: collectives slow down to the slowest link, and the link's telemetry shows its capacity."
    )
    does_not_certify: ClassVar[str] = (
        "Links that go down or corrupt data, error counters and replays, hanging collectives, or what NCCL "
        "would do on real links (its algorithms choose other routes; the simulation has a direct link per "
        "pair)."
    )
    real_method: ClassVar[str] = (
        "Copies between the cards in a loop, as contention; or a lower NVLink bandwidth mode: for the whole system "
        "with nvmlSystemSetNvlinkBwMode (Hopper and later, refused while peers are mapped, so before the engine "
        "starts), for one card with nvmlDeviceSetNvlinkBwMode (Blackwell and later; both in nvml.h). Taken back by "
        "ending the copies, or by the full mode."
    )
    privileges: ClassVar[str] = "copies: none; bandwidth modes: root"

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of cards."""
        return tuple((int(a), int(b)) for a, b in (pair.split("-") for pair in self.links))

    @property
    def directed(self) -> tuple[str, ...]:
        """The names of the directed links, each once."""
        return tuple(dict.fromkeys(nvlink(*ends) for a, b in self.pairs for ends in ((a, b), (b, a))))

    def weakens(self) -> tuple[str, ...]:
        """The pairs."""
        return self.links

    def touches(self) -> frozenset[int]:
        """The cards at the links' ends."""
        return frozenset(card for pair in self.pairs for card in pair)

    def check_node(self, gpu: Gpu) -> None:
        """It wants links from card to card."""
        known = [name for name in gpu.links() if name.startswith("nvlink:")]
        if missing := [name for name in self.directed if name not in known]:
            raise ValueError(
                f"this node has no {missing[0]}: nvlink_degrade wants links from card to card; "
                f"its NVLinks are {', '.join(known) or 'none'}"
            )

    @contextmanager
    def inject(self, gpu: Gpu) -> Iterator[None]:
        """Keep a neighbour that holds the links down; ValueError, naming those there are, if it has no such links."""
        self.check_node(gpu)
        with gpu.neighbour("degrade", links=self.directed, factor=self.percent / 100):
            yield

    def took_effect(self, gpu: Gpu) -> Effect:
        """Visible while every one of the links has no more than the asked share of its nominal capacity.

        What is left of the fault are those of the links that are below their nominal capacity.
        """
        self.check_node(gpu)
        infos = [gpu.link(name) for name in self.directed]
        remains = [100 * info.capacity_bytes_per_s / info.nominal_bytes_per_s for info in infos]
        measured = max(remains)
        visible = measured <= self.percent * (1 + 1e-9)
        since_s = max(info.changed_s for info in infos) if visible else None
        detail = ", ".join(f"{name} {share:g} %" for name, share in zip(self.directed, remains, strict=True))
        weak = sum(info.capacity_bytes_per_s < info.nominal_bytes_per_s for info in infos)
        return Effect(visible, self.percent, measured, "% of nominal", since_s, detail, weak)
