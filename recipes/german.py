"""A captioner that speaks German: Flickr8k's pictures with the German captions that people wrote for Multi30k.

    python recipes/german.py MULTI30K FLICKR8K OUT [--train 2000 --val 200 --test 500] [--on-cpu]

MULTI30K is a copy of github.com/multi30k/dataset, FLICKR8K anything with Flickr8k's pictures that `meshcap train`
reads (its splits are kept). Of the 8,000 pictures, 7,391 have German captions, five each, written from the picture and
not translated. The
image encoder is the packaged captioner's; the words, and all that says them, are learned from nothing.

Not English changes one setting: `data.tokenizer=unicode`. Scores then count the same words.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshcap.cli import run as meshcap
from meshcap.data import Dataset, Sample, read_dataset
from meshcap.data.pack import PackSettings, pack
from meshcap.errors import MeshcapError

PARTS = ("train", "val", "test_2016")  # of Multi30k; the splits are Flickr8k's
WRITERS = range(1, 6)
# On one thread: an encoder that is frozen looks at each picture once, and a small captioner learns for minutes.
ON_CPU = (
    *("--stages", "xe", "--xe-steps", "700", "--batch-size", "32", "--lr", "1e-3"),
    *("--set", "model.d_model=256", "--set", "model.encoder_layers=1", "--set", "model.slots=40"),
)


def german_captions(multi30k: Path) -> dict[str, list[str]]:
    """The captions of each picture, by Flickr's number."""
    found: dict[str, list[str]] = {}
    task = multi30k / "data" / "task2"
    for part in PARTS:
        names = (task / "image_splits" / f"{part}_images.txt").read_text().split()
        for writer in WRITERS:
            with gzip.open(task / "raw" / f"{part}.{writer}.de.gz", "rt", encoding="utf-8") as file:
                captions = file.read().split("\n")[: len(names)]
            for name, caption in zip(names, captions, strict=True):
                if caption.strip():
                    found.setdefault(_number(name), []).append(caption.strip())
    return found


def _number(name: str) -> str:
    """1000268201 of 1000268201_693b08cb0e.jpg: Flickr8k and Flickr30k name the same pictures differently."""
    return Path(name).stem.partition("_")[0]


def in_german(dataset: Dataset, captions: dict[str, list[str]], most: dict[str, int | None]) -> Dataset:
    """The pictures that have German captions, with those; of each split at most so many, the first by their ids."""
    kept: list[Sample] = []
    for split in dataset.counts():
        there = [one for one in dataset.split(split) if _number(one.filename or one.id) in captions]
        there.sort(key=lambda one: one.id)
        kept += there[: most.get(split)]
    if not kept:
        raise MeshcapError(f"{dataset.name} shares no picture with Multi30k, expected those of Flickr8k or Flickr30k")
    german = [replace(one, captions=tuple(captions[_number(one.filename or one.id)])) for one in kept]
    return replace(dataset, samples=german)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("multi30k", type=Path)
    parser.add_argument("flickr8k", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, help="pictures to learn from; all by default")
    parser.add_argument("--val", type=int)
    parser.add_argument("--test", type=int)
    parser.add_argument("--vision", default="default")
    parser.add_argument("--on-cpu", action="store_true", help="a training of minutes on one thread")
    given, more = parser.parse_known_args(arguments)  # the rest is for meshcap train
    most = {"train": given.train, "val": given.val, "test": given.test}
    data = in_german(read_dataset(given.flickr8k), german_captions(given.multi30k), most)
    packed, captioner = given.out / "packed", given.out / "captioner"
    pack(data, packed, PackSettings(size=0))  # as they are
    words = ("--set", "data.tokenizer=unicode")
    training = (*words, *(ON_CPU if given.on_cpu else ()), *more)
    done = meshcap(["train", str(packed), "--out", str(captioner), "--vision", given.vision, *training])
    return done or meshcap(
        ["evaluate", str(captioner), str(packed), "--split", "test", "--out", str(given.out / "test")]
    )


if __name__ == "__main__":
    raise SystemExit(main())
