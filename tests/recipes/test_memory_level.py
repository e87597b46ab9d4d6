"""recipes/memory_level.py: what memories are drawn for training, and all of it on a handful of pictures."""

import argparse
import json

import numpy as np
import pytest
import torch
from PIL import Image

import tiny_captioner
from meshcap.models.memory_level import MemoryLevel
from meshcap.weights import read_weights
from recipes import memory_level as recipe

PLAIN = "a dog on the grass", "a red dog in grass", "the dog", "a dog with a cat", "a dog of the horse"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A model, and 20 pictures of it in DATA."""
    folder = tmp_path_factory.mktemp("recipe")
    tiny_captioner.saved(folder / "model")
    (folder / "pictures").mkdir()
    random, images = np.random.default_rng(0), []
    for number in range(1, 21):
        pixels = random.integers(0, 256, (48, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{number:012d}.jpg")
        split = "val" if number > 17 else "test" if number > 14 else "restval" if number % 2 else "train"
        said = [{"raw": text} for text in PLAIN]
        images.append({"cocoid": number, "filename": f"{number:012d}.jpg", "split": split, "sentences": said})
    images.append({**images[-1], "cocoid": 99, "filename": "99.jpg"})  # no such picture
    (folder / "captions.json").write_text(json.dumps({"images": images}))
    recipe.prepare(folder / "captions.json", folder / "pictures", folder / "data", str(folder / "model"))
    return folder


def test_prepared(prepared) -> None:
    kept = np.load(prepared / "data" / "captions.npz")
    vocabulary = tiny_captioner.build().vocabulary
    assert kept["names"].tolist() == list(range(1, 21))
    assert kept["split"].tolist() == [0] * 14 + [2] * 3 + [1] * 3
    assert vocabulary.decode(kept["ids"][0, 3].tolist()) == "a dog with a cat".split()
    assert np.load(prepared / "data" / "pixels.npy").shape == (20, 48, 48, 3)


def test_prepared_of_shards(prepared, tmp_path) -> None:
    from meshcap.data.pack import PackSettings, pack
    from meshcap.data.read import read_dataset

    dataset = read_dataset(prepared / "captions.json", pictures=prepared / "pictures")
    pack(dataset, tmp_path / "packed", PackSettings(size=0), skip_broken=True, workers=1)
    recipe.prepare(tmp_path / "packed", None, tmp_path / "data", str(prepared / "model"))
    ours, theirs = (np.load(folder / "data" / "captions.npz") for folder in (tmp_path, prepared))
    order = np.argsort(ours["names"])
    for name in ("names", "split", "ids"):
        assert np.array_equal(ours[name][order], theirs[name])
    assert np.array_equal(ours["noun"], theirs["noun"])
    pixels = np.load(tmp_path / "data" / "pixels.npy")
    assert np.array_equal(pixels[order], np.load(prepared / "data" / "pixels.npy"))


def test_pixels_by_processes_are_what_the_captioner_reads(prepared, tmp_path) -> None:
    from meshcap.data.read import read_dataset

    random = np.random.default_rng(1)
    (tmp_path / "pictures").mkdir()
    for number in range(1, 21):  # not of the captioner's size, nor square
        image = Image.fromarray(random.integers(0, 256, (30 + number, 90, 3), dtype=np.uint8))
        image.save(tmp_path / "pictures" / f"{number:012d}.jpg")
    samples = list(read_dataset(prepared / "captions.json", pictures=tmp_path / "pictures").samples)[:20]
    captioner = tiny_captioner.build()
    recipe.write_pixels(tmp_path / "pixels.npy", samples, captioner.backend.preprocess, workers=2)
    pixels = np.load(tmp_path / "pixels.npy")
    for sample, found in zip(samples, pixels, strict=True):
        assert np.array_equal(found.transpose(2, 0, 1), captioner.read(sample.picture.read()))


def test_some_pictures_of_each_split(prepared, tmp_path) -> None:
    data = prepared / "captions.json", prepared / "pictures", tmp_path, str(prepared / "model")
    recipe.prepare(*data, most=10)
    assert np.load(tmp_path / "captions.npz")["split"].tolist() == [0] * 7 + [2] * 2 + [1]


def test_the_centre_is_what_pictures_share(prepared, tmp_path) -> None:
    recipe.write_centre(prepared / "captions.json", prepared / "pictures", tmp_path, str(prepared / "model"), 14)
    pixels = np.load(prepared / "data" / "pixels.npy")[:14].transpose(0, 3, 1, 2)
    features = tiny_captioner.build().see(list(pixels)).features
    expected = (features / features.norm(dim=-1, keepdim=True)).mean((0, 1))
    torch.testing.assert_close(read_weights(tmp_path / "centre.safetensors")["centre"], expected)


def test_nouns_stand_between_articles_and_what_follows_nouns() -> None:
    vocabulary = tiny_captioner.build().vocabulary
    ids = np.full((40, 5, 21), vocabulary.pad, np.int16)
    for place, text in enumerate(PLAIN):
        words = vocabulary.encode(text.split())
        ids[:, place, : len(words)] = words
    found = recipe.nouns(ids, vocabulary)
    assert {word for word in vocabulary.words if found[vocabulary.id(word)]} == {"dog", "cat", "grass", "horse"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_trained(prepared, tmp_path, monkeypatch, capsys, dtype) -> None:
    given = argparse.Namespace(
        minutes=0.0, finish=-1e9, xe_steps=1, batch=4, samples=2, lr=1e-3, seed=0, model=str(prepared / "model"),
        watched=3, validated=3, every=1000, dtype=dtype,
    )  # fmt: skip
    monkeypatch.setattr(recipe, "WAYS", {"2x2": (2, 2)})
    steps = iter([1, 1, -1])
    monkeypatch.setattr(recipe, "DUPLICATES", {3})
    original = recipe.judged

    def once(*args):  # ends after the second step of self-critical training
        if next(steps) < 0:
            given.minutes = -1e12
        return original(*args)

    monkeypatch.setattr(recipe, "judged", once)
    recipe.train(prepared / "data", tmp_path, None, given)
    level = MemoryLevel.load(tmp_path / "memory.safetensors")
    assert level.nouns.nonzero().tolist() == [[tiny_captioner.WORDS.index("dog")]]  # others are seen too rarely
    for name in ("val_with", "val_without", "test_with", "test_without", "test_10", "test_far"):
        rows = json.loads((tmp_path / f"{name}.json").read_text())
        assert len(rows) == 3
        assert all(row["caption"] for row in rows)
    assert level.config.entries == 2
    assert level.config.least_similarity in recipe.LEAST
    printed = capsys.readouterr().out
    assert "self-critical: 3 steps" in printed
    for name in ("val_with", "test_with", "test_10", "test_far"):
        assert f"{name}: +" in printed or f"{name}: -" in printed


def test_captions_below_the_least_similarity_are_not_read() -> None:
    vocabulary = tiny_captioner.build().vocabulary
    ids = torch.full((4, 5, 21), vocabulary.id("dog"))
    shelf = recipe.Shelf(recipe.Pictures(*torch.zeros(3, 4, 1, 1), ids), vocabulary, captions=3, least=0.5)
    found, _, rank = shelf.memories(torch.tensor([[0, 1]]), torch.tensor([[0.6, 0.4]]), 1)
    assert (found[0] != vocabulary.pad).any(-1).tolist() == [True, False, False]
    assert rank.tolist() == [[0, 1, 0]]


def test_made_up_words() -> None:
    """Drawn for a quarter of pictures; a caption with one is judged as if it had the noun, and the noun as nothing."""
    captioner = tiny_captioner.build()
    vocabulary = captioner.vocabulary
    ids = torch.full((8, 5, 21), vocabulary.pad)
    words = torch.tensor(vocabulary.encode("a dog on the grass".split()))
    ids[..., :5] = words
    vectors = torch.nn.functional.normalize(torch.randn(8, 6), dim=-1)
    pictures = recipe.Pictures(torch.zeros(8, 2, 6), torch.zeros(1, 2, 4), vectors, ids)
    shelf = recipe.Shelf(pictures, vocabulary, captions=12)
    everyone = torch.arange(8)
    near, similar = recipe.nearest(vectors, vectors, everyone, 5, own=everyone)
    assert not (near == everyone[:, None]).any()
    assert (similar.diff(dim=-1) <= 0).all()
    noun = torch.zeros(len(vocabulary), dtype=torch.bool)
    noun[vocabulary.id("dog")] = True
    kin = recipe.kin_of(captioner, torch.ones(len(vocabulary), dtype=torch.bool))
    torch.manual_seed(0)
    seen = 0
    for _ in range(10):
        memory, word, new = shelf.draw(everyone, near, similar, everyone, noun, kin)
        has = (memory.ids == new[:, None, None]).flatten(1).any(1)
        assert torch.equal(has, word >= 0)
        assert set(word.tolist()) <= {-1, vocabulary.id("dog")}
        assert not ((memory.ids == vocabulary.id("dog")).flatten(1).any(1) & has).any()
        assert memory.ids.shape == (8, 12, 16)
        seen += int(has.sum())
    assert 5 < seen < 40
    dog, bos = vocabulary.id("dog"), vocabulary.bos
    said = torch.tensor([[[dog, 30, 4]], [[dog, 31, 4]]])
    assert recipe.judged(said, torch.tensor([dog, -1]), torch.tensor([30, 31]), bos).tolist()[0] == [[bos, dog, 4]]
