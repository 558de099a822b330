"""What a tenant hears from a card or a context that is broken."""

from __future__ import annotations

# The CUDA runtime's error codes and names.
CUDA_ERRORS = {
    100: "no CUDA-capable device is detected",
    214: "an uncorrectable ECC error was encountered",
    700: "an illegal memory access was encountered",
    710: "device-side assert triggered",
    719: "unspecified launch failure",
}


class DeviceLost(RuntimeError):
    """A card has fallen off the bus; every call on it fails for as long as it is gone."""

    def __init__(self, card: int) -> None:
        super().__init__(card)
        self.card = card

    def __str__(self) -> str:
        return f"CUDA error: GPU {self.card} is lost (it has fallen off the bus)"


class ContextBroken(RuntimeError):
    """A process's context is stuck in an error; every call fails until it opens a new context."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"CUDA error {self.code}: {CUDA_ERRORS.get(self.code, 'unknown error')}"
