"""The long-term memory: whether near pictures are alike, what a large store costs, whether names are right.

    python benchmarks/memory.py retrieval --cxc Crisscrossed-Captions/data --pictures train2017 --cache cxc.npz

retrieval: people rated how similar pairs of COCO pictures are (Crisscrossed Captions, Parekh et al., 2021: sis_val.csv
and sis_test.csv); the rank correlation of their ratings with the cosines of each way to make one vector of a picture.
The way that ships was chosen on val. Pairs whose pictures are not in the folder are left out.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import Json, Model, Threads, progress, report, set_up
from meshcap import Captioner
from meshcap.errors import MeshcapError

POOLINGS = {
    "mean": lambda features: features.mean(1),
    "mean of unit regions": lambda features: F.normalize(features, dim=-1).mean(1),
    "largest": lambda features: features.amax(1),
    "root of the mean square": lambda features: features.square().mean(1).sqrt(),
}
SHIPPED = "mean of unit regions"


# Retrieval.


@dataclass
class Correlation:
    """How one way to make a vector of a picture ranks pairs."""

    pooling: str
    val: float
    test: float
    missing: str | None = None

    def cells(self) -> list[str]:
        return [self.pooling, f"{self.val:.3f}", f"{self.test:.3f}"]


def read_pairs(path: Path, pictures: Path, most: int | None = None) -> tuple[list[tuple[int, int]], list[float]]:
    """Ids of the pictures of rated pairs that are there, the first `most` of them, and the ratings."""
    if not path.is_file():
        raise MeshcapError(f"{path} is not there: expected a folder with CxC's sis_val.csv and sis_test.csv")
    pairs, ratings = [], []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            first, second = (int(row[name].rpartition("_")[2].partition(".")[0]) for name in ("image1", "image2"))
            if all((pictures / f"{one:012d}.jpg").is_file() for one in (first, second)):
                pairs.append((first, second))
                ratings.append(float(row["agg_score"]))
    some = set(sorted({one for pair in pairs for one in pair})[:most])  # ids say nothing of what is shown
    kept = [place for place, pair in enumerate(pairs) if some.issuperset(pair)]
    return [pairs[place] for place in kept], [ratings[place] for place in kept]


def look(captioner: Captioner, pictures: Path, ids: Sequence[int], cache: Path | None) -> dict[str, np.ndarray]:
    """Vectors (P, D) of pictures by each pooling; those that a cache holds are not looked at again."""
    found: dict[int, np.ndarray] = {}
    if cache is not None and cache.is_file():
        kept = np.load(cache)
        found = dict(zip(kept["ids"].tolist(), kept["vectors"], strict=True))
    missing = [one for one in ids if one not in found]

    def keep() -> None:
        if cache is not None:
            np.savez(cache, ids=np.array(list(found)), vectors=np.stack(list(found.values())))

    for start in range(0, len(missing), 8):
        some = missing[start : start + 8]
        features = captioner.see([captioner.read(pictures / f"{one:012d}.jpg") for one in some]).features.float()
        pooled = torch.stack([pool(features) for pool in POOLINGS.values()], 1).cpu().numpy()  # (B, poolings, D)
        found |= zip(some, pooled, strict=True)
        if start % 200 == 0:
            progress(f"{start:,} of {len(missing):,} pictures")
            keep()
    if missing:
        keep()
    stacked = np.stack([found[one] for one in ids])
    return {name: stacked[:, place] for place, name in enumerate(POOLINGS)}


def ranks(values: np.ndarray) -> np.ndarray:
    """From 0, equal values in the middle of theirs."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middles: np.ndarray = (ends - (counts + 1) / 2)[where]
    return middles


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def bench_retrieval(
    captioner: Captioner, cxc: Path, pictures: Path, cache: Path | None, most: int | None = None
) -> list[Correlation]:
    rated = {split: read_pairs(cxc / f"sis_{split}.csv", pictures, most) for split in ("val", "test")}
    for split, (pairs, _) in rated.items():
        if not pairs:
            raise MeshcapError(f"no pair of {split} has both pictures in {pictures}: expected COCO's train2017")
        progress(f"{split}: {len(pairs):,} pairs of {len({one for pair in pairs for one in pair}):,} pictures")
    ids = sorted({one for pairs, _ in rated.values() for pair in pairs for one in pair})
    vectors: dict[str, Any] = look(captioner, pictures, ids, cache)
    centre = getattr(captioner.backend, "centre", None)
    if centre is not None:
        vectors[f"{SHIPPED}, centred (shipped)"] = vectors[SHIPPED] - centre.cpu().numpy()
    place = {one: number for number, one in enumerate(ids)}
    rows = []
    for name, given in vectors.items():
        unit = given / np.linalg.norm(given, axis=1, keepdims=True)
        row = Correlation(name, 0.0, 0.0)
        for split, (pairs, ratings) in rated.items():
            first, second = (unit[[place[pair[side]] for pair in pairs]] for side in (0, 1))
            setattr(row, split, rank_correlation((first * second).sum(1), np.array(ratings)))
        rows.append(row)
    return rows


def command(
    what: Annotated[Literal["retrieval"], typer.Argument(help="What to measure.")],
    cxc: Annotated[Path, typer.Option(help="Folder with CxC's sis_val.csv and sis_test.csv.")] = Path("data"),
    pictures: Annotated[Path, typer.Option(help="Folder with COCO's train2017.")] = Path("train2017"),
    cache: Annotated[Path | None, typer.Option(help="Keeps the vectors of pictures that were seen.")] = None,
    most: Annotated[int | None, typer.Option(help="Pictures of each split to look at.", show_default="all")] = None,
    model: Model = "default",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """The long-term memory: whether near pictures are alike, what a large store costs, whether names are right."""
    device = set_up("cpu", threads)
    captioner = Captioner.from_pretrained(model, device="cpu").optimize()
    columns = ("one vector of", "val", "test")
    rows = bench_retrieval(captioner, cxc, pictures, cache, most)
    report("rank correlation with people's ratings", rows, device, json, columns)


if __name__ == "__main__":
    common.main(command)
