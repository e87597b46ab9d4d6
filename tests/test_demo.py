"""The demo learns, tells the truth about how well, and leaves a picture."""

import re
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from meshcap import demo


@pytest.fixture(scope="module")
def data() -> demo.Scenes:
    return demo.prepare(200)


def test_the_loss_falls_and_the_seed_repeats(data: demo.Scenes) -> None:
    _, losses = demo.train(data, 40)
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert demo.train(data, 3, seed=1)[1] == demo.train(data, 3, seed=1)[1]
    assert demo.train(data, 3, seed=1)[1] != demo.train(data, 3, seed=2)[1]


def run(*words: str) -> str:
    import typer

    app = typer.Typer()
    app.command()(demo.main)
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def truth(printed: str) -> tuple[int, int]:
    found = re.search(r"said of them true: (\d+) of (\d+) unseen scenes", printed.replace("\n", " "))
    assert found is not None
    return int(found[1]), int(found[2])


def test_a_short_run_prints_and_draws(tmp_path: Path) -> None:
    printed = run("--steps", "5", "--scenes", "50", "--unseen", "9", "--out", str(tmp_path / "demo.png"))
    true, tried = truth(printed)
    assert tried == 9
    assert true <= 3  # five steps teach nothing, and the demo must say so
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.size[0] > 900
        colours = picture.convert("RGB").getcolors(2**24)
        assert colours is not None and len(colours) > 1000


@pytest.mark.slow
def test_the_whole_demo_learns_to_tell_what_is_there(tmp_path: Path) -> None:
    true, tried = truth(run("--out", str(tmp_path / "demo.png")))
    assert true >= 0.4 * tried
