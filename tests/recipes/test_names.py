"""The recipe of the head for names: its pictures, what COCO's captions leave unsaid, and a head learned from both."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from meshcap import MeshcapError, Regions
from meshcap.names import NameKind, Names, Table
from recipes import names as recipe

ANIMAL = NameKind("animal", "animals", ("cat",), ("cats",), "cat", "cats")


def test_packed_pictures_are_those_of_the_listing(tmp_path: Path) -> None:
    Image.new("RGB", (40, 90), (200, 30, 30)).save(tmp_path / "red.png")
    Image.new("RGB", (90, 40), (30, 30, 200)).save(tmp_path / "blue.png")
    rows = [(str(tmp_path / "red.png"), "12", "train"), (str(tmp_path / "blue.png"), "000000000042", "coco")]
    with open(tmp_path / "listing.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    recipe.main(["pack", str(tmp_path / "listing.csv"), "--out", str(tmp_path / "packed")])
    listed, packed = recipe.Pictures(tmp_path / "listing.csv"), recipe.Pictures(tmp_path / "packed")
    assert [row[1:] for row in packed.rows] == [row[1:] for row in rows] == [row[1:] for row in listed.rows]
    for row in range(2):
        one, other = (pictures.square(row).getpixel((9, 9)) for pictures in (listed, packed))
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 12  # AVIF


def test_what_no_caption_says_is_silent() -> None:
    said = (("okapi", "okapis", "animal"), ("rocket", "rockets", "flying"))
    kinds = {"animal": ANIMAL, "flying": NameKind("", "", ("kite",), (), "kite", "kites")}
    table = Table(("tabby", "okapi", "missile"), said, (-1, 0, 1), kinds, ())
    found = recipe.silence(table, [{"a", "cat"}, {"two", "okapis"}, {"an", "animal"}, {"a", "rocket"}])
    assert found.tolist() == [[False, True, True], [False, False, True], [False, False, True], [False, True, False]]


@pytest.mark.parametrize("caption, raccoon", [("A cat on a bed.", None), ("A raccoon on a bed.", "raccoon")])
def test_a_head_learns_names_from_labels_and_silence_from_coco(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caption: str, raccoon: str | None
) -> None:
    """Names lie along axes of their own. COCO's pictures all look like the raccoon's; what do people call them?"""
    monkeypatch.setattr(recipe, "RATE", 0.4)  # a few steps are enough
    torch.manual_seed(0)
    axes, numbers = torch.eye(8) * 20, {"raccoon": 0, "657": 1, "281": 2}
    labelled = [(label, part) for label in numbers for part in ("train",) * 12 + ("held",) * 4]
    coco = [(f"{number:012d}", "coco" if number < 40 else "coco-held") for number in range(60)]
    mean = torch.stack([axes[numbers[label]] for label, _ in labelled] + [axes[0]] * len(coco))
    mean += torch.randn_like(mean)
    tensors = {"mean": mean, "soft": torch.zeros(len(mean), 1000), "row": torch.arange(len(mean))}
    save_file(tensors, tmp_path / "seen.safetensors", {"rows": json.dumps([*labelled, *coco])})
    images = [{"cocoid": number, "sentences": [{"raw": caption}] * 5} for number in range(60)]
    for name, content in (("captions", {"images": images}), ("objects", {})):
        with gzip.open(tmp_path / f"{name}.json.gz", "wt") as file:
            json.dump(content, file)
    (tmp_path / "classes.txt").write_text("".join(f"class_{number}\n" for number in range(1000)))
    out = tmp_path / "out"
    arguments = f"teach {tmp_path}/seen.safetensors --captions {tmp_path}/captions.json.gz --out {out} --device cpu"
    arguments += f" --objects {tmp_path}/objects.json.gz --classes {tmp_path}/classes.txt"
    recipe.main([*arguments.split(), "--steps", "200", "--batch", "16", "--decays", "0.1"])

    head = Names.load(out)
    assert head is not None
    chosen = head.choose(head.look(Regions(axes[:3, None])))
    assert [one and one[0] for one in chosen] == [raccoon, "rocket", None]  # class 281 is a cat, which captions say
    with pytest.raises(MeshcapError, match="8 numbers"):
        head.look(Regions(torch.zeros(1, 1, 7)))


def test_trust_is_fitted_to_what_came_true(capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    known, seen = random.uniform(0.5, 0.9, 2000), random.uniform(-3, 0, 2000)
    chances = 1 / (1 + np.exp(-(np.log(known / (1 - known)) + 0.5 * seen + 0.7)))
    came = (random.random(2000) < chances).astype(float)
    nothing = [None, *seen.tolist()]
    found = recipe.fit_trust([0.5, *known.tolist()], nothing, [1.0, *came.tolist()])
    assert found == pytest.approx((1.0, 0.5, 0.7), abs=0.25)
    assert "2,000 of 2,001 captions" in capsys.readouterr().out
