"""What people see while a drill runs."""

from __future__ import annotations

import io

import pytest

from harness.screen import Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


CLEAR = "\r\x1b[2K"


def line(phase: str, seconds: str, status: str) -> str:
    return f"  {phase:<34} {seconds:>5} s  {status}"


def test_a_log_has_one_line_a_phase_with_its_time_and_last_status_and_no_control_codes() -> None:
    out, clock = io.StringIO(), Clock()
    screen = Screen(out, clock)
    screen.say("a drill in the local world")
    screen.phase("baseline")
    for sent in range(100):
        clock.now += 0.1
        screen.status(f"sent {sent}")
    screen.phase("vram: recovery")
    clock.now += 2
    screen.finish()
    assert out.getvalue().splitlines() == [
        "a drill in the local world",
        line("baseline", "10.0", "sent 99"),
        line("vram: recovery", "2.0", ""),
    ]


def test_a_terminal_sees_the_status_move_a_few_times_a_second() -> None:
    out, clock = Terminal(), Clock()
    screen = Screen(out, clock)
    screen.phase("baseline")
    for sent in range(100):
        clock.now += 0.125
        screen.status(f"sent {sent}")
    screen.finish()
    drawn = out.getvalue().split(CLEAR)
    assert drawn[1:4] == [
        line("baseline", "0.1", "sent 0"),
        line("baseline", "0.4", "sent 2"),
        line("baseline", "0.6", "sent 4"),
    ]
    assert len(drawn) == 1 + 50 + 1
    assert drawn[-1] == line("baseline", "12.5", "sent 99") + "\n"


def test_a_line_of_its_own_takes_the_place_of_the_status_on_a_terminal() -> None:
    out = Terminal()
    screen = Screen(out, Clock())
    screen.phase("baseline")
    screen.status("sent 1")
    screen.say("the service died")
    assert out.getvalue().endswith(f"{CLEAR}the service died\n")


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()], ids=["log", "terminal"])
def test_nothing_is_told_of_a_phase_that_did_not_begin_or_is_over(out: io.StringIO) -> None:
    screen = Screen(out, Clock())
    screen.status("sent 1")
    screen.finish()
    assert out.getvalue() == ""
    screen.phase("baseline")
    screen.finish()
    told = out.getvalue()
    screen.finish()
    assert out.getvalue() == told


def test_people_read_standard_error_because_standard_output_is_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Screen().say("hello")
    assert capsys.readouterr() == ("", "hello\n")
