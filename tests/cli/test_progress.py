"""How fast, and when it will be done: by hand."""

import pytest

from meshcap.cli.progress import Clock, duration, progress


def test_rate_and_time_left() -> None:
    now = 100.0
    clock = Clock(1000, 200, lambda: now)
    assert str(clock) == "starting"
    now = 110.0
    clock.add(50)
    assert clock.rate == 5.0  # the 200 of an earlier run do not count
    assert str(clock) == "5.0/s, 2 min 30 s left"
    clock.add(750)
    assert str(clock) == "80.0/s, 0 s left"
    assert clock.summary() == "800 pictures in 10 s, 80.0/s"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3725, "1 h 2 min"), (100_000, "1 d 3 h")]
)
def test_times(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def test_lines_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(2000, 100, every=0) as tell:
        tell(900, 0)
        tell(1000, 3)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 4
    assert lines.pop(0) == "1,900 pictures to do, 100 are done"
    assert lines[0].startswith("1,000 of 2,000 pictures, ") and lines[0].endswith(" left") and "/s" in lines[0]
    assert lines[1].startswith("2,000 of 2,000 pictures, ") and lines[1].endswith(", 3 failed")
    assert lines[2].startswith("1,900 pictures in ")


def test_silence_where_nothing_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(10, 10):
        pass
    assert capsys.readouterr().err == ""
