"""NVIDIA's management library by way of pynvml: opened, or refused with what is missing.

Untested on hardware: held against the library of simulated nodes only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from faults.gpu.broken import DeviceLost
from faults.gpu.refused import Refused

T = TypeVar("T")

_TOO_FEW_RIGHTS = "setting clocks and power limits takes root (in a container: a privileged one)"


def opened() -> Any:
    """The module, initialised; Refused if it, the driver or its library is missing."""
    try:
        import pynvml
    except ImportError:
        raise Refused(
            "NVIDIA cards are read by nvidia-ml-py, which is missing: pip install nvidia-ml-py"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Refused(
            f"NVML does not come up ({error}): it takes NVIDIA's driver (does nvidia-smi work?), "
            "in a container with access to the cards (docker run --gpus all)"
        ) from error
    return pynvml


class Library:
    """Asks that end in a value, in `otherwise` where a card has no such value, or in DeviceLost."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self._absent = (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
            nvml.NVML_ERROR_NOT_FOUND,
        )

    def ask(self, card: int, question: Callable[[], T], otherwise: T) -> T:
        """A card that can't say is one thing; one that is gone, or a library that fails, is another."""
        try:
            return question()
        except self.nvml.NVMLError as error:
            if error.value == self.nvml.NVML_ERROR_GPU_IS_LOST:
                raise DeviceLost(card) from error
            if error.value in self._absent:
                return otherwise
            raise

    def change(self, what: str, deed: Callable[[], object]) -> None:
        """Set something of a card; Refused, with the reason, if it can't be set."""
        try:
            deed()
        except self.nvml.NVMLError as error:
            if error.value == self.nvml.NVML_ERROR_NO_PERMISSION:
                raise Refused(f"{what}: no permission: {_TOO_FEW_RIGHTS}") from error
            if error.value in self._absent:
                raise Refused(f"{what}: this card or its driver can't ({error})") from error
            raise Refused(f"{what}: NVML says {error}") from error

    def field(self, card: int, handle: object, number: int, scope: int = 0) -> float | None:
        """One of the values that have numbers (NVML_FI_...); None if the card doesn't have it."""
        values: list[Any] = self.ask(
            card, lambda: list(self.nvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])), []
        )
        if not values or values[0].nvmlReturn != self.nvml.NVML_SUCCESS:
            return None
        return _number(self.nvml, values[0])


def _number(nvml: Any, value: Any) -> float:
    name = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    }[value.valueType]
    return float(getattr(value.value, name))
