"""What the service is started with, and what the engine makes of it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from target.config import Countermeasures
from target.settings import Settings


def test_countermeasures_are_turned_off_by_name() -> None:
    settings = Settings.model_validate_json('{"countermeasures": {"pcie": false}}')
    assert settings.engine_config().countermeasures == Countermeasures(pcie=False)


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ('{"countermeasures": {"pci": false}}', ("countermeasures", "pci")),
        ('{"countermeasures": {"pcie": "perhaps"}}', ("countermeasures", "pcie")),
        ('{"drain_ready_s": -1}', ("drain_ready_s",)),
        ('{"max_runing": 3}', ("max_runing",)),
    ],
)
def test_a_bad_field_is_named_with_its_path(words: str, where: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate_json(words)
    assert [error["loc"] for error in caught.value.errors()] == [where]


@pytest.mark.parametrize(("most", "throttled"), [(16, 3), (8, 1), (3, 1), (1, 1)])
def test_while_memory_is_short_a_fifth_runs_at_once_and_at_least_one(most: int, throttled: int) -> None:
    assert Settings(max_running=most).engine_config().max_running_throttled == throttled
