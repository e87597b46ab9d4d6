"""Pictures in a terminal: the right colours in the right places, and none where nobody could see them."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

import tiny_captioner
from meshcap.cli.caption_output import HALF_BLOCK, MAX_COLUMNS, MAX_ROWS, can_draw, gallery_entry, half_blocks
from meshcap.data.scenes import draw_scene

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def console(width: int = 80, **options) -> Console:
    settings = {"force_terminal": True, "color_system": "truecolor", "no_color": False, **options}
    return Console(file=io.StringIO(), width=width, **settings)


def printed(what, **options) -> str:
    screen = console(**options)
    screen.print(what)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_a_character_is_two_pixels() -> None:
    """A picture of 2 × 2 pixels worked out by hand: SGR 38 is the upper colour, 48 the lower."""
    picture = Image.new("RGB", (2, 2))
    picture.putdata([(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 8, 7)])
    assert printed(half_blocks(picture, 2, 1)).rstrip("\n") == (
        "\x1b[38;2;255;0;0;48;2;0;0;255m▀\x1b[0m\x1b[38;2;0;255;0;48;2;9;8;7m▀\x1b[0m"
    )


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (2000, 10), (10, 2000), (1, 1), (37, 37)])
def test_the_shape_is_kept(size: tuple[int, int]) -> None:
    rows = half_blocks(Image.new("RGB", size), 36, 14).plain.split("\n")
    across, down = len(rows[0]), len(rows)
    assert {len(row) for row in rows} == {across}
    assert 1 <= across <= 36 and 1 <= down <= 14
    assert across == 36 or down == 14
    if min(across, down) > 3:
        assert across / (2 * down) == pytest.approx(size[0] / size[1], rel=0.15)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_an_entry_fits_the_terminal(width: int) -> None:
    picture = draw_scene(1, 64).image
    said = ["A long sentence about a picture that needs more than one line of a narrow terminal.", "Another.", None]
    text = ESCAPE.sub("", printed(gallery_entry(picture, "a/[b].jpg", said, 0.834, 0.12, width), width=width))
    assert all(len(line) <= width for line in text.splitlines())
    assert max(line.count(HALF_BLOCK) for line in text.splitlines()) <= min(MAX_COLUMNS, width // 2)
    assert sum(HALF_BLOCK in line for line in text.splitlines()) <= MAX_ROWS
    letters = "".join(text.replace(HALF_BLOCK, " ").split())  # words too long for a line are folded
    for part in ("a/[b].jpg", "narrowterminal.", "Another.", "(withheld)", "83%·0.12s"):
        assert part in letters


def test_only_where_colours_are_seen() -> None:
    assert can_draw(console())
    assert can_draw(console(color_system="256"))
    assert not can_draw(console(color_system="standard"))
    assert not can_draw(console(no_color=True))
    assert not can_draw(console(force_terminal=False))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gallery")
    tiny_captioner.saved(folder / "model")
    (folder / "pictures").mkdir()
    for name in ("a", "b"):
        draw_scene(ord(name), 64).image.save(folder / "pictures" / f"{name}.png")
    (folder / "pictures" / "c.png").write_text("broken", encoding="utf-8")
    return folder


@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals")
@pytest.mark.parametrize("colours", [True, False])
def test_the_command_in_a_terminal(place: Path, colours: bool) -> None:
    """As `make demo` runs it: pictures in colours; with NO_COLOR, the plain lines."""
    import pty

    master, terminal = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "OMP_NUM_THREADS": "1"}
    if not colours:
        env["NO_COLOR"] = "1"
    words = ["caption", "pictures", "--model", "model", "--device", "cpu", "--show"]
    with subprocess.Popen(
        [sys.executable, "-m", "meshcap", *words], cwd=place, env=env, stdout=terminal, stderr=subprocess.PIPE
    ) as running:
        os.close(terminal)
        seen = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            seen += part
        assert running.stderr is not None
        told = running.stderr.read().decode()
    os.close(master)
    assert running.returncode == 1
    assert re.fullmatch(r"error: pictures/c.png is no picture: .*\n", told)
    text = seen.decode()
    assert "pictures/a.png" in text and "pictures/b.png" in text
    if colours:
        assert text.count(HALF_BLOCK) > 200 and "\x1b[38;2;" in text and "confidence" in text
    else:
        assert HALF_BLOCK not in text and "\x1b" not in text
        assert all(re.fullmatch(r"pictures/[ab]\.png\t[A-Z].*", line) for line in text.splitlines())


def test_the_command_in_a_pipe(place: Path) -> None:
    words = ["caption", "pictures", "--model", "model", "--device", "cpu", "--show", "--confidence"]
    env = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    env.pop("FORCE_COLOR", None)
    done = subprocess.run([sys.executable, "-m", "meshcap", *words], cwd=place, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"pictures/a\.png\t0\.\d\d\t.+\npictures/b\.png\t0\.\d\d\t.+\n", done.stdout)
