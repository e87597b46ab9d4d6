"""Scores through the captioner, its training and its commands, beside pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny_captioner
from meshcap import cli
from meshcap.captioner import Captioner
from meshcap.data import read_dataset
from meshcap.errors import MeshcapError
from meshcap.explain import explain
from meshcap.folders import PACKAGED_MUSIC
from meshcap.metrics.reward_facts import FactReward
from meshcap.music.facts import facts_of
from meshcap.music.harmony import Chord, Key
from meshcap.options import CaptionOptions
from meshcap.vision.score import picture_of
from music_scores import EIGHT, song

pytest.importorskip("symusic")


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(word) for word in words])
    return int(caught.value.code or 0)


@pytest.fixture(scope="module")
def of_music() -> Captioner:
    return tiny_captioner.of_music()


@pytest.fixture
def songs(tmp_path: Path) -> list[str]:
    pieces = {"long": EIGHT, "short": song(["Am", "F"], [[57, 60], [65]], metre=(3, 4))}
    for name, piece in pieces.items():
        (tmp_path / f"{name}.mid").write_bytes(piece.to_midi())
    Image.new("RGB", (64, 48), "red").save(tmp_path / "red.png")
    return [str(tmp_path / name) for name in ("long.mid", "red.png", "short.mid")]


def test_a_piece_is_captioned_the_same_alone_and_among_longer_ones(of_music: Captioner, songs: list[str]) -> None:
    together = of_music.caption([songs[0], songs[2]])
    alone = [of_music.caption(songs[0]), of_music.caption(Path(songs[2]).read_bytes())]
    assert [one.words for one in together] == [one.words for one in alone]
    np.testing.assert_allclose(together[1].log_probs, alone[1].log_probs, atol=1e-4)
    found = alone[0].to_dict()["facts"]
    assert found["piece"]["bars"] == 8 and found["piece"]["metre"] == "4/4" and found["piece"]["climax"] == 3
    json.dumps(found)


def test_bars_are_a_set(of_music: Captioner, songs: list[str]) -> None:
    regions = of_music.see([of_music.read(songs[0])])
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    turned = regions.each(lambda part: part[:, order])
    assert of_music.describe(turned)[0].words == of_music.describe(regions)[0].words


def test_pictures_and_scores_mix(of_music: Captioner, songs: list[str]) -> None:
    both = tiny_captioner.build()
    with pytest.raises(MeshcapError, match=r"long\.mid"):
        both.caption(songs[0])
    both._of_scores = lambda: of_music
    found = dict(both.stream(songs))
    assert found[songs[1]].words == both.caption(songs[1]).words and found[songs[1]].facts is None
    for place in (0, 2):
        assert found[songs[place]].words == of_music.caption(songs[place]).words
        assert both.caption(songs[place]).facts == of_music.caption(songs[place]).facts
    assert [one.words for one in both.caption(songs)] == [found[one].words for one in songs]
    broken = dict(both.stream([b"MThd broken", songs[1]]))
    assert isinstance(broken[b"MThd broken"], MeshcapError) and not isinstance(broken[songs[1]], MeshcapError)


def test_a_score_may_have_a_long_caption_and_has_no_keywords(of_music: Captioner, songs: list[str]) -> None:
    assert of_music.plan(CaptionOptions()).rules.max_length == 24
    assert of_music.plan(CaptionOptions(max_words=9)).rules.max_length == 10
    assert tiny_captioner.build().plan(CaptionOptions()).rules.max_length == 20
    assert of_music.caption(songs[0], must=["bars"], tags=True).tags == ()


def test_the_packaged_captioner_says_what_is_true_of_a_piece(tmp_path: Path) -> None:
    assert sum(file.stat().st_size for file in PACKAGED_MUSIC.rglob("*") if file.is_file()) < 4_000_000
    captioner = Captioner.from_pretrained("music", device="cpu")
    caption = captioner.caption(EIGHT.at_tempo(0.7).to_midi())
    assert caption.facts is not None
    said = caption.facts["statements"]
    assert len(said) >= 4 and all(one["agrees"] for one in said)
    higher = captioner.caption(EIGHT.at_tempo(0.7).transposed(2).to_midi())
    assert higher.facts is not None and [
        one["agrees"] for one in higher.facts["statements"] if one["kind"] == "key"
    ] == [True]


def test_a_picture_is_no_score(of_music: Captioner, songs: list[str]) -> None:
    for source in (songs[1], Image.new("RGB", (8, 8)), Path(songs[1]).read_bytes()):
        with pytest.raises(MeshcapError, match=r"picture|score"):
            of_music.caption(source)


def test_saved_loaded_and_explained(of_music: Captioner, songs: list[str], tmp_path: Path) -> None:
    of_music.save_pretrained(tmp_path / "model")
    again = Captioner.from_pretrained(tmp_path / "model", device="cpu", dtype="float32")
    assert again.caption(songs[0]).words == of_music.caption(songs[0]).words
    found = explain(again, songs[0], attribution=False)
    assert found.picture is not None and found.words[0].attention.shape == (8,)
    assert found.window == (0.0, 0.0, 1.0, 1.0)
    out = tmp_path / "page.html"
    assert run("explain", songs[0], "--model", tmp_path / "model", "--out", out) == 0 and out.stat().st_size > 10_000


def test_the_roll_shows_notes_where_boxes_are() -> None:
    image = np.asarray(picture_of(EIGHT.to_midi()))
    height, width = image.shape[:2]
    red = (image[..., 0] > 150) & (image[..., 1] < 100)  # the melody
    rows, columns = np.nonzero(red)
    assert abs(rows.min() / height - (1 - 75 / 128)) < 0.02  # D5, the highest
    assert columns.min() < 4 and columns.max() > width - 6


@pytest.mark.slow
def test_a_dataset_of_scores_is_read_and_trained_on(
    songs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = []
    for number in range(6):
        name = f"song-{number}.mid"
        (folder / name).write_bytes(EIGHT.transposed(number).excerpt(0, 3 + number % 3).to_midi())
        split = "val" if number == 5 else "train"
        rows.append({"image": name, "captions": [f"a slow piece {number}", "a moderate piece"], "split": split})
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_dataset(folder).counts() == {"train": 5, "val": 1}
    assert run("data", "check", folder) == 0
    assert run("data", "pack", folder, "--out", tmp_path / "packed") == 0
    assert read_dataset(tmp_path / "packed").counts() == {"train": 5, "val": 1}
    common = ["train", tmp_path / "packed", "--vision", "score", "--device", "cpu"]
    for setting in ("xe.steps=2", "scst.steps=1", "model.d_model=32", "model.heads=2", "run.track=[]"):
        common += ["--set", setting]
    assert run(*common, "--out", tmp_path / "run") == 0
    assert Captioner.from_pretrained(tmp_path / "run", device="cpu").caption(songs[0]).facts is not None
    assert run(*common, "--out", tmp_path / "other", "--set", "scst.facts=true") == 2
    assert "no facts of a piece of music" in capsys.readouterr().err


def test_true_statements_are_rewarded() -> None:
    words = ["<unk>", "<pad>", "<bos>", "<eos>", *"a moderate slow piece in c-major g-major".split()]
    place = {word: at for at, word in enumerate(words)}
    facts = facts_of(EIGHT, Key(0, "major"), (Chord(0, "major"),) * 8)
    reward = FactReward([facts], words, eos=3, penalty=1.0, bonus=0.25)
    captions = [
        "a moderate piece in c-major",
        "a slow piece in c-major",
        "a moderate piece in g-major in c-major",
        "a in",
    ]
    rows = [[*(place[word] for word in one.split()), 3] for one in captions]
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[1] * (longest - len(row))] for row in rows])
    # the third says two keys, one of them false; the fourth says nothing
    np.testing.assert_allclose(reward(ids[None], torch.tensor([0]))[0], [0.5, -0.75, 0.5 - 1 - 0.5, 0.0])
    cut_off = torch.tensor([[[place["slow"], place["piece"]]]])
    np.testing.assert_allclose(reward(cut_off, torch.tensor([0])), [[-1.5]])
