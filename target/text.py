"""From tokens to text, one token at a time: whole characters only, and nothing past a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
CUT_CHARACTER = "�"


class TextStream:
    """Decodes an answer as it grows. Text that may turn out to begin a stop string is held back."""

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stop for stop in stops if stop)
        self._tokens: list[int] = []
        self._given = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Text that is now certain; sets `stopped` when a stop string is complete."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        ends = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if ends:
            self.stopped = True
            return self._give(text[: min(ends)])
        if text.endswith(CUT_CHARACTER):
            return ""
        return self._give(text[: len(text) - self._held_back(text)])

    def finish(self) -> str:
        """What was held back, once it is known that no more tokens come."""
        return "" if self.stopped else self._give(self._decode(self._tokens))

    def _held_back(self, text: str) -> int:
        lengths = (n for stop in self._stops for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
        return max(lengths, default=0)

    def _give(self, text: str) -> str:
        delta = text[len(self._given) :]
        self._given += delta
        return delta
