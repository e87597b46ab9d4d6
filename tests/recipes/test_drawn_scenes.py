"""The demo learns, tells the truth about how well, and leaves a picture."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from meshcap.data.scenes import draw_dataset
from meshcap.training.folder import LOG
from meshcap.training.log import read_log
from recipes import drawn_scenes as demo

ROOT = Path(__file__).parents[2]


def test_the_loss_falls_and_the_seed_repeats(tmp_path: Path) -> None:
    scenes = tmp_path / "scenes"
    draw_dataset(scenes, train=100, val=8, test=0, workers=1)

    def losses(steps: int, seed: int) -> list[float]:
        out = tmp_path / f"{steps}-{seed}-{len(list(tmp_path.iterdir()))}"
        demo.train(scenes, out, steps=steps, scst_steps=0, seed=seed)
        return [line["loss"] for line in read_log(out / LOG) if line["kind"] == "train"]

    falling = losses(40, 0)
    assert sum(falling[-5:]) < 0.6 * sum(falling[:5])
    assert losses(3, 1) == losses(3, 1) != losses(3, 2)


def run(*words: str) -> str:
    app = typer.Typer()
    app.command()(demo.main)
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def count(printed: str, what: str) -> tuple[int, int]:
    found = re.search(rf"{what}: (\d+) of (\d+)", printed.replace("\n", " "))
    assert found is not None
    return int(found[1]), int(found[2])


def test_a_short_run_prints_and_draws(tmp_path: Path) -> None:
    few = ("--steps", "5", "--scst-steps", "2", "--scenes", "50", "--unseen", "9")
    printed = run(*few, "--out", str(tmp_path / "demo.png"))
    true, tried = count(printed, "every statement true")
    right, _ = count(printed, "all objects named")
    assert tried == 9
    assert true <= right <= 3  # five steps teach nothing, and the demo must say so
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.size[0] > 900
        colours = picture.convert("RGB").getcolors(2**24)
        assert colours is not None and len(colours) > 1000


def test_a_wrong_folder_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["drawn_scenes.py", "--out", str(tmp_path / "nowhere" / "demo.png")])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / "recipes" / "drawn_scenes.py"), run_name="__main__")
    assert left.value.code == 2
    assert re.fullmatch(r"error: .*nowhere is not a folder.*\n", capsys.readouterr().err)


@pytest.mark.slow
def test_the_whole_demo_learns_to_tell_what_is_there(tmp_path: Path) -> None:
    printed = run("--out", str(tmp_path / "demo.png"))
    true, tried = count(printed, "every statement true")
    right, _ = count(printed, "all objects named")
    assert tried == 500
    assert right >= 0.93 * tried
    assert true >= 0.9 * tried
