"""Asking NVML: what a card can't say, a card that is gone, and no NVML at all."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from faults.gpu import nvidia_library
from faults.gpu.broken import DeviceLost
from faults.gpu.nvidia import NvidiaNode
from faults.gpu.nvidia_cards import NvidiaCards
from faults.gpu.nvidia_library import Library, opened
from faults.gpu.refused import Refused


def failing(code: int) -> Any:
    def ask(*_: object, **__: object) -> None:
        raise pynvml.NVMLError(code)

    return ask


@pytest.fixture
def library() -> Library:
    return Library(pynvml)


def test_without_pynvml_cards_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Refused, match="pip install nvidia-ml-py"):
        opened()


def test_without_a_driver_cards_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", failing(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    with pytest.raises(Refused, match=r"takes NVIDIA's driver .*docker run --gpus all"):
        NvidiaNode.open()


def test_without_a_card_there_is_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_library, "opened", lambda: pynvml)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 0)
    with pytest.raises(Refused, match="shows no card"):
        NvidiaNode(Library(pynvml))


def test_what_a_card_can_not_say_is_one_thing_and_a_card_that_is_gone_another(library: Library) -> None:
    assert library.ask(3, failing(pynvml.NVML_ERROR_NOT_SUPPORTED), 7) == 7
    assert library.ask(3, failing(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND), 7) == 7
    with pytest.raises(DeviceLost, match="GPU 3 is lost"):
        library.ask(3, failing(pynvml.NVML_ERROR_GPU_IS_LOST), 7)
    with pytest.raises(pynvml.NVMLError):
        library.ask(3, failing(pynvml.NVML_ERROR_UNKNOWN), 7)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_NO_PERMISSION, "setting it: no permission: .* takes root"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "setting it: this card or its driver can't"),
        (pynvml.NVML_ERROR_IN_USE, "setting it: NVML says .+"),
    ],
)
def test_what_can_not_be_set_is_refused_with_the_reason(library: Library, code: int, words: str) -> None:
    with pytest.raises(Refused, match=words):
        library.change("setting it", failing(code))


def test_a_lost_card_says_only_that_it_is_lost(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda number: number)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", failing(pynvml.NVML_ERROR_GPU_IS_LOST))
    info = NvidiaCards(library, [0, 1]).info(1)
    assert (info.lost, info.sm_clock_mhz, info.power_w) == (1, 0, 0)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pynvml.NVML_VALUE_TYPE_DOUBLE, "dVal"),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal"),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal"),
    ],
)
def test_a_field_is_read_as_what_it_says_it_is(
    monkeypatch: pytest.MonkeyPatch, library: Library, kind: int, name: str
) -> None:
    value = SimpleNamespace(nvmlReturn=0, valueType=kind, value=SimpleNamespace(**{name: 5}))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda handle, wanted: [value])
    assert library.field(0, None, 94) == 5
    value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert library.field(0, None, 94) is None
