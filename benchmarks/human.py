"""How far each metric agrees with people, beside what papers found.

    python benchmarks/human.py --expert ExpertAnnotations.txt --crowd CrowdFlowerAnnotations.txt \
        --flickr8k dataset_flickr8k.json --cxc sits_test.csv --coco captions_val2014.json

Flickr8k-Expert and CrowdFlower (Hodosh, Young and Hockenmaier, 2013) come with Flickr8k's captions; CxC (Parekh and
others, 2021) rates captions of COCO's val2014, whose annotation file has them. Nothing is downloaded. Conventions are
those of the papers that the published figures are from (Hessel and others, "CLIPScore", 2021, appendix A; CxC):

- Flickr8k-Expert: each of the three ratings of a pair is one; pairs whose caption is a reference of the picture are
  left out; Kendall's τ-c.
- CrowdFlower: the share of people who said yes; a caption that is judged is no reference of its picture; τ-b.
- CxC: a judged caption is no reference of its picture. Spearman's ρ of half of the captions, drawn at random, each with
  one of its pictures; the mean of many such draws.

CIDEr's document frequencies count every rating as a picture, as in those papers. Intervals are of 95 %: for τ by
drawing pictures with all their ratings, for ρ of CxC's own draws.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy
import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import progress, report
from meshcap import Captioner
from meshcap.data.caption_files import read_references
from meshcap.errors import MeshcapError
from meshcap.files import read_json
from meshcap.metrics import score
from meshcap.metrics.clip import SUFFIXES, clip_scores
from meshcap.metrics.pmi import pmi

Array = numpy.ndarray

# τ-c of Flickr8k-Expert and τ-b of CrowdFlower × 100: tables 1 and 2 of the CLIPScore paper.
PUBLISHED = {
    "BLEU-1": (32.3, None),
    "BLEU-4": (30.8, 16.9),
    "ROUGE-L": (32.3, 19.9),
    "METEOR": (41.8, 22.2),
    "CIDEr": (43.9, 24.6),
    "SPICE": (44.9, 24.4),
    "CLIPScore": (51.2, 34.4),
    "RefCLIPScore": (53.0, 36.4),
}
COLUMNS = ("metric", "Flickr8k-Expert, τ-c", "published", "CrowdFlower, τ-b", "published", "CxC, ρ", "notes")


@dataclass(frozen=True)
class Judged:
    """Captions of pictures with what people thought of them, a row a rating."""

    name: str
    pictures: list[str]  # file names
    captions: list[str]
    references: list[list[str]]
    ratings: Array
    notes: str = ""

    def take(self, rows: Sequence[int], notes: str) -> Judged:
        return Judged(
            self.name,
            [self.pictures[row] for row in rows],
            [self.captions[row] for row in rows],
            [self.references[row] for row in rows],
            self.ratings[numpy.array(rows, int)],
            notes,
        )


def read_judgements(path: Path, known: dict[str, list[str]]) -> list[tuple[str, str, list[float]]]:
    """Picture, caption and numbers of each line of Flickr8k's two files; lines that are none are counted."""
    found, broken = [], 0
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from None
    for line in lines:
        try:
            picture, caption, *numbers = line.decode().split("\t")
            name, _, number = caption.partition("#")
            found.append((picture, known[name][int(number)], [float(each) for each in numbers]))
            if len(numbers) != 3 or picture not in known:
                raise ValueError
        except (ValueError, KeyError, IndexError):
            broken += 1
    if broken > len(lines) // 10 or not found:
        raise MeshcapError(f"{path} holds no judgements of Flickr8k's pictures ({broken:,} of {len(lines):,} lines)")
    if broken:
        progress(f"{path.name}: {broken:,} of {len(lines):,} lines cannot be read and are left out")
    return found


def read_expert(path: Path, known: dict[str, list[str]]) -> Judged:
    """Three ratings from 1 to 4 of each pair."""
    rows = [row for row in read_judgements(path, known) if row[1] not in known[row[0]]]
    each = [(picture, caption, value) for picture, caption, values in rows for value in values]
    pictures, captions, ratings = zip(*each, strict=True)
    references = [known[picture] for picture in pictures]
    notes = f"{len(each):,} ratings of {len(set(pictures)):,} pictures"
    return Judged("expert", list(pictures), list(captions), references, numpy.array(ratings), notes)


def read_crowd(path: Path, known: dict[str, list[str]]) -> Judged:
    """The share of yes for each pair."""
    rows = read_judgements(path, known)
    judged: dict[str, set[str]] = {}
    for picture, caption, _ in rows:
        judged.setdefault(picture, set()).add(caption)
    references = [[text for text in known[picture] if text not in judged[picture]] for picture, _, _ in rows]
    notes = f"{len(rows):,} captions of {len(judged):,} pictures"
    shares = numpy.array([values[0] for _, _, values in rows])
    return Judged("crowd", [row[0] for row in rows], [row[1] for row in rows], references, shares, notes)


def read_cxc(path: Path, coco: Path) -> Judged:
    """CxC's caption–picture ratings from 0 to 5 (`sits_test.csv`, `sits_val.csv`), with the captions of COCO's file."""
    try:
        content = read_json(coco)
        texts = {entry["id"]: (entry["image_id"], entry["caption"]) for entry in content["annotations"]}
        files = {entry["file_name"]: entry["id"] for entry in content["images"]}
    except (KeyError, TypeError) as error:
        raise MeshcapError(f"{coco} is no annotation file of COCO's captions: {error!r}") from None
    of_picture: dict[int, list[tuple[int, str]]] = {}
    for number, (picture, text) in texts.items():
        of_picture.setdefault(picture, []).append((number, text))
    pictures, captions, references, ratings = [], [], [], []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                number = int(row["caption"].rpartition(":")[2])
                pictures.append(row["image"])
                captions.append(texts[number][1])
                references.append([text for other, text in of_picture[files[row["image"]]] if other != number])
                ratings.append(float(row["agg_score"]))
    except OSError as error:
        raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from None
    except (KeyError, ValueError, TypeError) as error:
        raise MeshcapError(f"{path} is not CxC's sits_*.csv for the captions of {coco}: {error!r}") from None
    notes = f"{len(pictures):,} pairs of {len(set(pictures)):,} pictures"
    return Judged("cxc", pictures, captions, references, numpy.array(ratings), notes)


def ranks(values: Array) -> Array:
    """From 1 on; equal values share the mean of their ranks."""
    _, place, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    found: Array = (counts.cumsum() - (counts - 1) / 2)[place]
    return found


def spearman(one: Array, other: Array) -> float:
    with numpy.errstate(invalid="ignore", divide="ignore"):  # nan where all are equal
        return float(numpy.corrcoef(ranks(one), ranks(other))[0, 1])


def kendall(scores: Array, ratings: Array, variant: str, weights: Array | None = None) -> float:
    """Kendall's τ-b or τ-c. weights: how often each row counts."""
    _, level = numpy.unique(ratings, return_inverse=True)
    _, group = numpy.unique(scores, return_inverse=True)
    weights = numpy.ones(len(scores)) if weights is None else weights
    groups, levels = int(group.max()) + 1, int(level.max()) + 1
    table = numpy.bincount(group * levels + level, weights, groups * levels).reshape(groups, levels)
    below = table.cumsum(0) - table  # of lower scores, by level
    lower = below.cumsum(1) - below
    ahead = (table * (2 * lower + below - below.sum(1, keepdims=True))).sum()  # concordant less discordant
    size = table.sum()
    pairs, tied = size * (size - 1) / 2, [(counts * (counts - 1)).sum() / 2 for counts in (table.sum(1), table.sum(0))]
    least = min((table.sum(0) > 0).sum(), (table.sum(1) > 0).sum())
    with numpy.errstate(invalid="ignore", divide="ignore"):  # nan where all are equal
        if variant == "c":
            return float(2 * ahead / (size**2 * (least - 1) / least))
        return float(ahead / numpy.sqrt((pairs - tied[0]) * (pairs - tied[1])))


def tau(judged: Judged, scores: Array, variant: str, draws: int, seed: int) -> tuple[float, Array]:
    """τ, and that of sets of pictures drawn with replacement."""
    random = numpy.random.default_rng(seed)
    _, picture = numpy.unique(judged.pictures, return_inverse=True)
    count = int(picture.max()) + 1
    drawn = [
        kendall(scores, judged.ratings, variant, numpy.bincount(random.integers(0, count, count), None, count)[picture])
        for _ in range(draws)
    ]
    return kendall(scores, judged.ratings, variant), numpy.array(drawn)


def rho(judged: Judged, scores: Array, draws: int, seed: int) -> tuple[float, Array]:
    """The mean of CxC's draws, and the draws."""
    random = numpy.random.default_rng(seed)
    _, caption = numpy.unique(judged.captions, return_inverse=True)
    order = caption.argsort(kind="stable")
    sizes = numpy.bincount(caption)
    firsts = sizes.cumsum() - sizes
    drawn = []
    for _ in range(max(1, draws)):
        chosen = random.permutation(len(sizes))[: max(2, len(sizes) // 2)]
        rows = order[firsts[chosen] + random.integers(0, sizes[chosen])]
        drawn.append(spearman(scores[rows], judged.ratings[rows]))
    return float(numpy.nanmean(drawn)), numpy.array(drawn)


@dataclass
class Agreement:
    """A metric's row: value and ends of the interval in each data set, × 100."""

    metric: str
    expert: tuple[float, float, float] | None = None
    crowd: tuple[float, float, float] | None = None
    cxc: tuple[float, float, float] | None = None
    missing: str | None = None

    def cells(self) -> list[str]:
        found = []
        for number, value in enumerate((self.expert, self.crowd, self.cxc)):
            found.append("" if value is None else "{:.1f} ({:.1f}–{:.1f})".format(*value))
            if number < 2:
                published = PUBLISHED.get(self.metric, (None, None))[number]
                found.append("" if published is None else f"{published}")
        return [self.metric, *found, self.missing or ""]


def agreements(
    given: Sequence[Judged],
    metrics: Sequence[str],
    *,
    draws: int = 1000,
    seed: int = 0,
    more: Callable[[Judged], dict[str, Array]] = lambda judged: {},
) -> list[Agreement]:
    """A row for each metric, those that cannot be computed with the reason.

    Args:
        metrics: as of `meshcap.metrics.score`.
        more: scores by other names for each row of a data set.
    """
    rows: dict[str, Agreement] = {}
    for judged in given:
        progress(f"{judged.name}: {judged.notes}")
        result = score(
            dict(enumerate(judged.captions)), dict(enumerate(judged.references)), metrics=metrics, bootstrap=0
        )
        for line in result.warnings:
            progress(f"{judged.name}: {line}")
        columns = {
            name: numpy.array([scores[name] for scores in result.per_image.values()], float) for name in result.scores
        }
        for name, scores in (columns | more(judged)).items():
            if judged.name == "cxc":
                value, drawn = rho(judged, scores, draws, seed)
            else:
                value, drawn = tau(judged, scores, "c" if judged.name == "expert" else "b", draws, seed)
            low, high = numpy.nanquantile(drawn, (0.025, 0.975)) if draws else (value, value)
            row = rows.setdefault(name, Agreement(name))
            setattr(row, judged.name, (100 * value, 100 * float(low), 100 * float(high)))
    published = [Agreement(name, missing="published alone") for name in PUBLISHED if name not in rows]
    return [*rows.values(), *published]


def with_pictures(judged: Judged, folders: Sequence[Path]) -> tuple[Judged, dict[str, Path]]:
    """The rows whose pictures are in some folder, and the files; COCO's may be named by number alone."""
    there = {path.stem: path for folder in folders for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES}
    files: dict[str, Path] = {}
    for name in set(judged.pictures):
        stem = Path(name).stem
        if path := there.get(stem) or there.get(stem.rsplit("_", 1)[-1] if stem.startswith("COCO_") else stem):
            files[name] = path
    if not files:
        raise MeshcapError(f"no picture of {judged.name} is in {', '.join(map(str, folders))}")
    rows = [row for row, name in enumerate(judged.pictures) if name in files]
    notes = f"{len(rows):,} of {len(judged.pictures):,} rows, {len(files):,} pictures"
    return judged.take(rows, notes), files


def by_looking(judged: Judged, files: dict[str, Path], captioner: Any, clip: Path | None) -> dict[str, Array]:
    """PMI by a captioner, CLIPScore and RefCLIPScore by a CLIP, of each row."""
    paths = [files[name] for name in judged.pictures]
    found = {}
    if captioner is not None:
        found["PMI"] = pmi(captioner, paths, judged.captions, progress)
    if clip is not None:
        (measures,) = clip_scores(clip, paths, [judged.captions], judged.references, progress)
        found |= {measure.name: measure.per_image for measure in measures}
    return found


def command(
    expert: Annotated[Path | None, typer.Option(help="Flickr8k's ExpertAnnotations.txt.")] = None,
    crowd: Annotated[Path | None, typer.Option(help="Flickr8k's CrowdFlowerAnnotations.txt.")] = None,
    flickr8k: Annotated[Path | None, typer.Option(help="Its captions: Karpathy's dataset_flickr8k.json.")] = None,
    cxc: Annotated[Path | None, typer.Option(help="CxC's sits_test.csv or sits_val.csv.")] = None,
    coco: Annotated[Path | None, typer.Option(help="COCO's captions_val2014.json.")] = None,
    metrics: Annotated[str, typer.Option(help="As of meshcap score.")] = "bleu,rouge-l,cider,cider-plain,meteor",
    pictures: Annotated[
        list[Path] | None, typer.Option(help="A folder of the pictures; several times for more. Only these are judged.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A captioner, for PMI.")] = None,
    clip: Annotated[Path | None, typer.Option(help="A CLIP folder, for CLIPScore.")] = None,
    draws: Annotated[int, typer.Option(min=0, help="For the intervals.")] = 1000,
    seed: common.Seed = 0,
    json: common.Json = False,
) -> None:
    """Correlation of every metric with people's judgements of captions."""
    if (expert or crowd) and not flickr8k:
        raise MeshcapError("--expert and --crowd need --flickr8k, the captions of the pictures")
    if cxc and not coco:
        raise MeshcapError("--cxc needs --coco, the captions of COCO's val2014 with their numbers")
    if (model or clip) and not pictures:
        raise MeshcapError("--model and --clip need --pictures")
    given = []
    if flickr8k:
        known = read_references(flickr8k, split="all", like=["2513260012_03d33305cf.jpg"]).captions
        given += [read_expert(expert, known)] if expert else []
        given += [read_crowd(crowd, known)] if crowd else []
    if cxc and coco:
        given.append(read_cxc(cxc, coco))
    if not given:
        raise MeshcapError("nothing to compare with: give --expert, --crowd or --cxc")
    files: dict[str, dict[str, Path]] = {}
    for place, judged in enumerate(given):
        if pictures:
            given[place], files[judged.name] = with_pictures(judged, pictures)
    captioner = Captioner.from_pretrained(model) if model else None

    def more(judged: Judged) -> dict[str, Array]:
        return by_looking(judged, files[judged.name], captioner, clip) if pictures else {}

    chosen = [name.strip() for name in metrics.split(",")]
    rows = agreements(given, chosen, draws=draws, seed=seed, more=more)
    report("Agreement with people × 100", rows, torch.device("cpu"), json, COLUMNS)


if __name__ == "__main__":
    common.main(command)
