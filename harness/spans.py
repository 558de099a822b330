"""One breaker's moves while one step concerns it: from the injection to the next step's, or to the end."""

from __future__ import annotations

from dataclasses import dataclass

from harness.history import Event, History


@dataclass(frozen=True)
class Span:
    """What a breaker did in that time, and what it was before."""

    start: float
    end: float
    before: str  # its state at the start
    moves: tuple[Event, ...]
    watched_until: float  # the history's end, which may be later
    later: tuple[Event, ...] = ()  # its moves after the end

    @classmethod
    def of(cls, history: History, breaker: str, start: float) -> Span:
        end = step_end(history, start)
        moves = [move for move in history.of_kind("breaker") if move["name"] == breaker]
        earlier = [str(move["now"]) for move in moves if move["t"] < start]
        return cls(
            start,
            end,
            earlier[-1] if earlier else "closed",
            tuple(m for m in moves if start <= m["t"] <= end),
            float(history.events[-1]["t"]),
            tuple(m for m in moves if m["t"] > end),
        )

    @property
    def flaps(self) -> int:
        """How often it opened again after it had closed."""
        opened = sum(move["now"] == "open" and move.get("was") == "closed" for move in self.moves)
        return int(max(opened - (self.before == "closed"), 0))

    @property
    def opened(self) -> Event | None:
        """Its first opening."""
        return next((move for move in self.moves if move["now"] == "open"), None)

    def state(self, t: float) -> str:
        """Its state just before `t`."""
        return next((str(move["now"]) for move in reversed(self.moves) if move["t"] < t), self.before)

    def closed_before(self, t: float) -> float | None:
        """When it first closed, having opened, before `t`; None if it did not."""
        since = float(self.opened["t"]) if self.opened else t
        closed = [float(m["t"]) for m in self.moves if m["now"] == "closed" and since <= m["t"] < t]
        return closed[0] if closed else None

    def closed_for_good(self) -> float | None:
        """From when on it is closed until the span's end; None if it ends otherwise."""
        if self.state(float("inf")) != "closed":
            return None
        unclosed = [i for i, move in enumerate(self.moves) if move["now"] != "closed"]
        first_closed = unclosed[-1] + 1 if unclosed else 0
        if not unclosed and self.before == "closed":
            return self.start
        return float(self.moves[first_closed]["t"])

    def open_for(self) -> list[tuple[float, bool]]:
        """For each opening, how long it stayed open (also beyond the span's end), and whether that is known.

        Otherwise the history ends before the breaker moved on: it was open for at least that long.
        """
        moves = [*self.moves, *self.later]
        spans = []
        for i, move in enumerate(self.moves):
            if move["now"] == "open":
                known = i + 1 < len(moves)
                end = float(moves[i + 1]["t"]) if known else self.watched_until
                spans.append((end - float(move["t"]), known))
        return spans


def step_end(history: History, start: float) -> float:
    """When the step that was injected at `start` concerns nobody any more: the next injection, or the end."""
    later = [float(e["t"]) for e in history.of_kind("fault") if e["edge"] == "injecting" and e["t"] > start]
    return min(later, default=float(history.events[-1]["t"]))
