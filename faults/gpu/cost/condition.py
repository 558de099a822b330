"""What faults do to the hardware, and nothing else: fractions of what a healthy card gives.

A clock that is throttled, a memory that is slow, links that are narrow, lost or shared. What they do to a step is
arithmetic elsewhere; no fault multiplies a latency.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankCondition:
    """One card: the clock of its SMs and of its memory, as fractions of nominal."""

    sm_clock: float = 1.0
    memory_clock: float = 1.0


@dataclass(frozen=True)
class Condition:
    """A group of cards. Ranks that are not named are healthy."""

    ranks: tuple[RankCondition, ...] = ()
    nvlink: float = 1.0  # fraction of the bandwidth of the links that are up
    nvlinks_lost: int = 0  # of the worst card; all of them: collectives go over PCIe
    pcie: float = 1.0  # the share of PCIe that is left for us

    def __post_init__(self) -> None:
        fractions = [self.nvlink, self.pcie]
        fractions += [part for rank in self.ranks for part in (rank.sm_clock, rank.memory_clock)]
        if not all(0 < fraction <= 1 for fraction in fractions):
            raise ValueError(f"a fraction of what is healthy lies above 0 and is at most 1: {self}")
        if self.nvlinks_lost < 0:
            raise ValueError(f"cannot lose {self.nvlinks_lost} links")

    def kinds_of_rank(self, degree: int) -> frozenset[RankCondition]:
        """The conditions that occur among the ranks of a group."""
        named = self.ranks[:degree]
        return frozenset(named) | ({RankCondition()} if len(named) < degree else set())


HEALTHY = Condition()
