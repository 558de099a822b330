"""Which links a node has, and how fast they are when nothing is wrong.

Every card has PCIe both ways, and its compute (`sm:CARD`) and memory bandwidth (`hbm:CARD`), which are shared like
links: they move one second of work at full clocks per second. NVLinks are wired in one of the TOPOLOGIES.
"""

from __future__ import annotations

from faults.gpu.profiles import CardProfile

DIRECTIONS = ("h2d", "d2h")
TOPOLOGIES = {
    "mesh": "each card has links to each other card",
    "nvswitch": "each card has all of its links to a switch",
    "pairs": "cards 0 and 1, 2 and 3, ... are bridged; others meet over PCIe",
    "none": "no NVLink: cards meet over PCIe",
}
SWITCH = -1  # the peer of a link that goes to a switch
NO_PEER = -2  # a link that leads nowhere


def pcie(card: int, direction: str) -> str:
    """The name of a card's PCIe link; `direction` is `h2d` or `d2h`."""
    return f"pcie:{card}:{direction}"


def nvlink(source: int, to: int) -> str:
    """The name of the directed NVLink from one card to another."""
    return f"nvlink:{source}>{to}"


def upward(card: int) -> str:
    """The name of a card's way to the NVSwitch."""
    return f"nvlink:{card}>switch"


def downward(card: int) -> str:
    """The name of the way from the NVSwitch to a card."""
    return f"nvlink:switch>{card}"


def compute(card: int) -> str:
    """The name of a card's compute, in seconds of work at full clock."""
    return f"sm:{card}"


def bandwidth(card: int) -> str:
    """The name of a card's memory bandwidth, in seconds of work at full clock."""
    return f"hbm:{card}"


class Wiring:
    """The links of one node."""

    def __init__(self, profile: CardProfile, cards: int, topology: str) -> None:
        if topology not in TOPOLOGIES:
            raise ValueError(f"unknown topology {topology!r}; known: {', '.join(TOPOLOGIES)}")
        if topology != "none" and not profile.nvlinks:
            raise ValueError(f"{profile.name} cards have no NVLink; their topology can only be none")
        self.profile, self.cards, self.topology = profile, cards, topology
        self.peers = [self._peers(card) for card in range(cards)]
        self._nominal = self._all()
        self.names = tuple(self._nominal)

    def nominal(self, name: str) -> tuple[float, float]:
        """A link's undisturbed rate per second and its latency in seconds."""
        return self._nominal[name]

    def ends(self, name: str) -> tuple[int, ...]:
        """The cards that a link touches."""
        kind, _, rest = name.partition(":")
        if kind == "nvlink":
            return tuple(int(end) for end in rest.split(">") if end != "switch")
        return (int(rest.partition(":")[0]),)

    def route(self, source: int, to: int) -> tuple[str, ...]:
        """The links that bytes from one card to another go over, all at the same time."""
        if self.topology == "nvswitch":
            return upward(source), downward(to)
        direct = nvlink(source, to)
        if direct in self._nominal:
            return (direct,)
        return pcie(source, "d2h"), pcie(to, "h2d")

    def physical(self, card: int, name: str) -> list[int]:
        """Which of a card's physical NVLinks make up a directed link at it."""
        others = [end for end in self.ends(name) if end != card]
        peer = others[0] if others else SWITCH
        return [place for place, each in enumerate(self.peers[card]) if each == peer]

    def _peers(self, card: int) -> list[int]:
        """What each physical NVLink of a card leads to; dealt out to the peers in turn."""
        count = self.profile.nvlinks
        if self.topology == "nvswitch":
            return [SWITCH] * count
        if self.topology == "pairs":
            partner = card ^ 1
            return [partner if partner < self.cards else NO_PEER] * count
        if self.topology == "none" or self.cards < 2:
            return [NO_PEER] * count
        others = [other for other in range(self.cards) if other != card]
        dealt = count // len(others) * len(others)
        return [others[place % len(others)] if place < dealt else NO_PEER for place in range(count)]

    def _all(self) -> dict[str, tuple[float, float]]:
        card, found = self.profile, dict[str, tuple[float, float]]()
        for each in range(self.cards):
            for direction in DIRECTIONS:
                found[pcie(each, direction)] = card.pcie_bytes_per_s, card.pcie_latency_s
        for a in range(self.cards):
            for b in range(self.cards):
                if links := self.peers[a].count(b):
                    rate = card.nvlink_bytes_per_s * links / card.nvlinks
                    found[nvlink(a, b)] = rate, card.nvlink_latency_s
        if self.topology == "nvswitch":
            for each in range(self.cards):
                found[upward(each)] = found[downward(each)] = card.nvlink_bytes_per_s, card.nvlink_latency_s
        for each in range(self.cards):
            found[compute(each)] = found[bandwidth(each)] = 1.0, 0.0
        return found
