"""What a reader of the documentation has in their folder: pictures, captions, models, all tiny.

A name that a new example needs is one more line here.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import sys
import tarfile
import types
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import h5py
import numpy

import tiny
from meshcap.calibration import Calibration
from meshcap.captioner import Captioner
from meshcap.data.scenes import draw_scene
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.vision import create_vision

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "tests" / "fixtures" / "small.pth"  # of the public implementation, 200 words
CHECKPOINT_WIDTH, CHECKPOINT_WORDS = 48, 200
SPECIAL = ["<unk>", "<pad>", "<bos>", "<eos>"]
SAID = "a the on in of with and dog puppy cat man woman ball red beach grass runs star house near".split()
SENTENCES = ["a dog runs on the grass", "a puppy with a red ball", "a man and a woman on a beach", "a house and a cat"]
PICTURES = [
    "photo.jpg", "photo.webp", "a.jpg", "b.jpg", "b.png", "more/c.jpg",
    "holiday/beach.jpg", "holiday/1.jpg", "holiday/2.jpg", "photos/1.jpg", "photos/2.jpg", "photos/old/3.jpg",
    "site/dog.jpg", "rex.jpg",
]  # fmt: skip
MODELS = ["my-captioner", "run", "FOLDER", "default"]


def make(folder: Path) -> None:
    for number, name in enumerate(PICTURES):
        picture(folder / name, number)
    dataset(folder / "my-pictures.jsonl", folder / "pictures", train=24, val=24, test=24)
    shutil.copy(folder / "my-pictures.jsonl", folder / "scenes.jsonl")
    captions(folder)
    shards(folder / "shards")
    (folder / "site" / "index.html").write_text('<!doctype html><p><img src="dog.jpg"></p>\n', encoding="utf-8")
    (folder / "docs" / "images").mkdir(parents=True)
    for name in ("benchmarks", "recipes"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "captions").mkdir()
    first, *others = MODELS
    captioner().save_pretrained(folder / first)
    for name in others:
        shutil.copytree(folder / first, folder / name)
    public(folder)


def picture(path: Path, number: int, size: int = 96) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_scene(number, size).image.save(path)


def dataset(lines: Path, pictures: Path, **splits: int) -> None:
    told = []
    for split, count in splits.items():
        for _ in range(count):
            number = 100 + len(told)
            picture(pictures / f"{number}.jpg", number)
            said = [*draw_scene(number, 96).captions[:2], SENTENCES[number % len(SENTENCES)]]
            told.append({"image": f"{pictures.name}/{number}.jpg", "captions": said, "split": split})
    lines.write_text("".join(json.dumps(line) + "\n" for line in told), encoding="utf-8")


def captions(folder: Path) -> None:
    """Candidates and references in the field's layouts, of the same forty pictures."""
    ids = range(1, 41)
    said = {id: SENTENCES[id % 4] for id in ids}
    meant = {id: [SENTENCES[id % 4], f"{SENTENCES[(id + 1) % 4]} in the grass"] for id in ids}

    def write(name: str, content: Any) -> None:
        raw = json.dumps(content).encode()
        (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)

    results = [{"image_id": id, "caption": text} for id, text in said.items()]
    for name in ("captions.json", "results.json", "mine.json"):
        write(name, results)
    for name in ("theirs.json", "other.json"):
        write(name, [{"image_id": id, "caption": meant[id][1]} for id in ids])
    for name in ("references.json", "refs.json"):
        write(name, meant)
    write("captions_val2014.json", {
        "images": [{"id": id, "file_name": f"{id}.jpg"} for id in ids],
        "annotations": [{"image_id": id, "id": 10 * id + n, "caption": text}
                        for id in ids for n, text in enumerate(meant[id])],
    })  # fmt: skip
    for name, split in (("dataset_coco.json", "test"), ("dataset_coco.json.gz", "val")):
        write(name, {"images": [
            {"cocoid": id, "imgid": id, "filename": f"{id}.jpg", "split": split,
             "sentences": [{"raw": text} for text in meant[id]]} for id in ids
        ]})  # fmt: skip
    write("captions-val.json", [
        {"image_id": id, "caption": text, "log_probs": [-0.1 * (1 + id % 7)] * (len(text.split()) + 1)}
        for id, text in said.items()
    ])  # fmt: skip


def shards(folder: Path) -> None:
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(3):
                raw = io.BytesIO()
                draw_scene(50 + 3 * shard + number, 96).image.save(raw, "JPEG")
                entry = tarfile.TarInfo(f"{shard}{number}.jpg")
                entry.size = raw.tell()
                raw.seek(0)
                tar.addfile(entry, raw)


def captioner() -> Captioner:
    vision = create_vision("patches", size=48)
    words = Vocabulary([*SPECIAL, *SAID])
    model = tiny.build("m2", seed=10, vocab_size=len(words), d_input=vision.width, max_length=25)
    return Captioner(model, words, vision, Calibration({"mean": 1.0}, (-3.0, 0.0), (0.2, 0.9)))


def public(folder: Path) -> None:
    """What belongs to the public M²: checkpoint, pickled vocabulary, features, and the folder that they become."""
    from meshcap.data import read_dataset
    from meshcap.data.features import as_name
    from meshcap.models.reference import read_reference

    shutil.copy(CHECKPOINT, folder / "meshed_memory_transformer.pth")
    words = [*SPECIAL, *SAID, *(f"word{n}" for n in range(CHECKPOINT_WORDS - len(SPECIAL) - len(SAID)))]
    (folder / "vocab.pkl").write_bytes(pickled(words))
    Captioner(read_reference(CHECKPOINT), Vocabulary(words)).save_pretrained(folder / "m2-public")
    random = numpy.random.default_rng(0)

    def features() -> numpy.ndarray:
        return random.normal(size=(7, CHECKPOINT_WIDTH)).astype("float32")

    (folder / "features").mkdir()
    for number in range(1, 4):
        numpy.save(folder / "features" / f"{number}.npy", features())
    data = read_dataset(folder / "my-pictures.jsonl")
    with h5py.File(folder / "features.hdf5", "w") as file:
        for split in ("train", "val", "test"):
            for sample in data.split(split):
                file[f"{as_name(sample.id)}_features"] = features()


def pickled(words: list[str]) -> bytes:
    """As the public implementation pickles its vocabulary: an object of a module that is not here."""
    module = types.ModuleType("data.vocab")
    exec("class Vocab: pass\ndef _default_unk_index(): return 0", module.__dict__)
    found: Any = module.__dict__["Vocab"]()
    found.freqs, found.itos, found.vectors = Counter(words), words, None
    found.stoi = defaultdict(module.__dict__["_default_unk_index"], {word: id for id, word in enumerate(words)})
    package = types.ModuleType("data")
    before = {name: sys.modules.get(name) for name in ("data", "data.vocab")}
    sys.modules.update({"data": package, "data.vocab": module})
    try:
        return pickle.dumps(found)
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


def names() -> dict[str, Any]:
    """What a reader has in Python: examples use these without making them."""
    import torch

    image = draw_scene(7, 96).image
    raw = io.BytesIO()
    image.save(raw, "PNG")
    references = {id: [SENTENCES[id % 4], SENTENCES[(id + 1) % 4]] for id in range(8)}
    return {
        "image": image, "array": numpy.asarray(image), "data": raw.getvalue(),
        "captioner": captioner(), "captions": SENTENCES, "n": 100,
        "first": {id: SENTENCES[id % 4] for id in range(8)}, "second": dict.fromkeys(range(8), "a dog"),
        "references": references,
        "regions": Regions(torch.randn(2, 5, 1280), torch.rand(2, 5, 4)),
        "ids": torch.tensor([[[2, 7, 8]], [[2, 9, 5]]]),
    }  # fmt: skip
