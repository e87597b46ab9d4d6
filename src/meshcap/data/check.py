"""A dataset looked over before anybody trains on it: what is in it, what is broken, and what leaks between splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from meshcap.data.dataset import Dataset, FileSource, LeftOut, Sample, Source
from meshcap.data.fingerprints import Fingerprint, fingerprint, near_duplicates
from meshcap.data.workers import parallel_map
from meshcap.errors import MeshcapError
from meshcap.text.ptb import ptb_stream


class Broken(NamedTuple):
    """A picture that cannot be used."""

    id: str
    split: str
    why: str


class Pair(NamedTuple):
    """Two pictures that show the same."""

    first: str
    first_split: str
    second: str
    second_split: str

    @property
    def across(self) -> bool:
        return self.first_split != self.second_split


class Size(NamedTuple):
    width: int
    height: int
    id: str


class Advice(NamedTuple):
    """A line for a person to act on. What must be done makes `meshcap data check` fail."""

    must: bool
    text: str


LEAKS = (
    "scores on val and test flatter: write the training ones' ids with `meshcap data check --leave-out FILE`, then "
    "`meshcap train --without FILE`"
)
NAMED = 10  # broken pictures that an error names


@dataclass(frozen=True)
class DatasetReport:
    """What `check` found. Of pictures that were not opened, sizes and duplicates are None."""

    name: str
    splits: dict[str, int]
    captions: CaptionCounts
    left_out: LeftOut
    captions_alone: int  # samples that name no picture
    missing: list[Broken]
    unreadable: list[Broken]
    opened: int
    smallest: Size | None = None
    largest: Size | None = None
    flat: int | None = None  # pictures of one colour, which are not compared
    same: list[Pair] | None = None  # equal pixels; of several copies, each with the first
    near: list[Pair] | None = None  # equal but for size and compression

    @property
    def leaks(self) -> list[Pair]:
        """Pairs across splits: the model would be judged on what it has seen."""
        return [pair for pair in (*(self.same or ()), *(self.near or ())) if pair.across]

    @property
    def to_leave_out(self) -> list[str]:
        """Training pictures that val or test has too: who trains without them may report both."""
        # A copy is paired with the first of its kind only: pictures that show the same are found over several pairs.
        same_as: dict[str, set[str]] = {}
        splits: dict[str, str] = {}
        for pair in (*(self.same or ()), *(self.near or ())):
            splits |= {pair.first: pair.first_split, pair.second: pair.second_split}
            group = same_as.get(pair.first, {pair.first}) | same_as.get(pair.second, {pair.second})
            same_as |= dict.fromkeys(group, group)
        return sorted(
            id
            for id, group in same_as.items()
            if splits[id] == "train" and any(splits[other] != "train" for other in group)
        )

    def advice(self) -> list[Advice]:
        """What to do, the most urgent first."""
        leaks, out = len(self.leaks), self.left_out
        within = len(self.same or ()) + len(self.near or ()) - leaks
        skip = "or leave them out: --skip-broken of `meshcap train` and `meshcap data pack`"
        lines = (
            (True, "missing pictures", len(self.missing), f"say where they are by --pictures, {skip}"),
            (True, "unreadable pictures", len(self.unreadable), f"fetch them again, {skip}"),
            (True, "pairs in two splits", leaks, LEAKS),
            (False, "pairs within a split", within, "take one of each out, or it counts double"),
            (False, "pictures of one colour", self.flat or 0, "look whether they should be there"),
            (False, "pictures without captions", len(out.without_captions), "they are left out"),
            (False, "pictures in no split's list", out.in_no_list, "they are left out"),
            (False, "empty captions", out.empty_captions, "they are left out"),
            (
                False,
                "captions given twice for a picture",
                self.captions.repeated_of_picture,
                "keep one, if it is no vote",
            ),
            (False, "samples that name no picture", self.captions_alone, "their features must come from elsewhere"),
        )
        found = [Advice(must, f"{what}: {count:,} - {do}") for must, what, count, do in lines if count]
        absent = [split for split in ("train", "val") if split not in self.splits]
        return found + [Advice(False, f"no pictures in {split} - training needs some") for split in absent]

    @property
    def must_fix(self) -> bool:
        return any(line.must for line in self.advice())

    def to_dict(self) -> dict[str, Any]:
        content = asdict(self)
        for name in ("missing", "unreadable", "same", "near"):
            content[name] = None if content[name] is None else [one._asdict() for one in getattr(self, name)]
        for name in ("smallest", "largest"):
            content[name] = None if content[name] is None else getattr(self, name)._asdict()
        content["leaks"] = [pair._asdict() for pair in self.leaks]
        content["to_leave_out"] = self.to_leave_out
        content["advice"] = [line._asdict() for line in self.advice()]
        return content


def check(
    dataset: Dataset,
    *,
    fast: bool = False,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> DatasetReport:
    """Look a dataset over.

    Args:
        fast: only look whether pictures are there; open none.
        workers: processes; as many as there are cores by default.
        progress: called with the number of pictures done, now and then.
    """
    with_picture = [sample for sample in dataset if sample.picture is not None]
    missing = [
        Broken(sample.id, sample.split, f"{sample.picture} is not there")
        for sample in with_picture
        if isinstance(sample.picture, FileSource) and not sample.picture.path.is_file()
    ]
    gone = {broken.id for broken in missing}
    there = [sample for sample in with_picture if sample.id not in gone]
    counted = DatasetReport(
        name=dataset.name,
        splits=dataset.counts(),
        captions=count_captions(dataset.samples),
        left_out=dataset.left_out,
        captions_alone=len(dataset) - len(with_picture),
        missing=missing,
        unreadable=[],
        opened=0,
    )
    return counted if fast else _with_pictures(counted, there, workers, progress)


def _with_pictures(
    report: DatasetReport, samples: list[Sample], workers: int | None, progress: Callable[[int], object] | None
) -> DatasetReport:
    good: list[Sample] = []
    prints: list[Fingerprint] = []
    unreadable: list[Broken] = []
    sources = (sample.picture for sample in samples if sample.picture is not None)
    for number, (sample, seen) in enumerate(zip(samples, parallel_map(look, sources, workers), strict=True), start=1):
        if isinstance(seen, str):
            unreadable.append(Broken(sample.id, sample.split, seen))
        else:
            good.append(sample)
            prints.append(seen)
        if progress:
            progress(number)
    sizes = [Size(one.width, one.height, sample.id) for one, sample in zip(prints, good, strict=True)]
    first: dict[bytes, int] = {}
    same = [(first[one.pixels], n) for n, one in enumerate(prints) if first.setdefault(one.pixels, n) != n]
    return replace(
        report,
        unreadable=unreadable,
        opened=len(samples),
        smallest=min(sizes, key=_area, default=None),
        largest=max(sizes, key=_area, default=None),
        flat=sum(one.flat for one in prints),
        same=[_pair(good, i, j) for i, j in same],
        near=[_pair(good, i, j) for i, j in near_duplicates(prints, [sample.split for sample in good])],
    )


def _area(size: Size) -> int:
    return size.width * size.height


def _pair(samples: list[Sample], i: int, j: int) -> Pair:
    return Pair(samples[i].id, samples[i].split, samples[j].id, samples[j].split)


def readable(dataset: Dataset, *, skip_broken: bool, workers: int | None = None) -> Dataset:
    """The dataset with pictures that are there; without those that cannot be read, if `skip_broken` says so.

    Raises:
        MeshcapError: pictures are not there, all of which it counts; or none can be read.
    """
    with_picture = [sample for sample in dataset if sample.picture is not None]
    broken = {
        sample.id: f"{sample.picture} is not there"
        for sample in with_picture
        if isinstance(sample.picture, FileSource) and not sample.picture.path.is_file()
    }
    if broken and not skip_broken:
        raise MeshcapError(
            f"{len(broken):,} of {len(with_picture):,} pictures cannot be used: {some_of(list(broken.values()))}; say "
            "where they are by --pictures, or leave them out by --skip-broken"
        )
    if not skip_broken:
        return dataset
    there = [sample for sample in with_picture if sample.id not in broken]
    sources = (sample.picture for sample in there if sample.picture is not None)
    seen = zip(there, parallel_map(look, sources, workers), strict=True)
    broken |= {sample.id: why for sample, why in seen if isinstance(why, str)}
    kept = [sample for sample in dataset if sample.id not in broken]
    if not kept:
        raise MeshcapError(f"{dataset.name}: none of its pictures can be read ({next(iter(broken.values()))})")
    return replace(dataset, samples=kept, left_out=replace(dataset.left_out, unreadable=tuple(broken.values())))


def some_of(lines: Sequence[str]) -> str:
    """The first of many complaints, in one line."""
    return "; ".join(lines[:NAMED]) + (f"; and {len(lines) - NAMED:,} more" if len(lines) > NAMED else "")


def look(source: Source) -> Fingerprint | str:
    """A picture's fingerprint, or one line that says why it cannot be read. Runs in worker processes."""
    from meshcap.vision.score import picture_of

    try:
        return fingerprint(picture_of(source.read()))
    except MeshcapError as mistake:
        return str(mistake).replace("the picture", str(source), 1)


FREQUENT = 5  # times a word must be seen to enter the usual vocabularies of this field


@dataclass(frozen=True)
class CaptionCounts:
    """Words are those of the PTB tokenizer, which the vocabulary is made of."""

    captions: int
    fewest: int  # captions of a picture
    mean: float
    most: int
    words_mean: float  # of a caption
    words_95: float  # 95 of 100 captions are not longer
    words_most: int
    longest: str  # id of the picture with the longest caption
    vocabulary_of: str  # the split whose words are counted: those to learn from
    distinct_words: int
    frequent_words: int
    frequent_share: float  # of all words in that split's captions, repetitions counted
    repeated: int  # captions that were there before, letter for letter, of any picture
    repeated_of_picture: int  # … of the same picture


def count_captions(samples: Sequence[Sample]) -> CaptionCounts:
    """Of at least one sample."""
    split = "train" if any(sample.split == "train" for sample in samples) else samples[0].split
    words: Counter[str] = Counter()
    lengths: list[int] = []
    longest = (-1, "")
    tokens = ptb_stream(caption for sample in samples for caption in sample.captions)
    for sample in samples:
        for _ in sample.captions:
            caption = next(tokens)
            lengths.append(len(caption))
            longest = max(longest, (len(caption), sample.id), key=lambda pair: pair[0])
            if sample.split == split:
                words.update(caption)
    each = [len(sample.captions) for sample in samples]
    frequent = [count for count in words.values() if count >= FREQUENT]
    distinct = len({caption for sample in samples for caption in sample.captions})
    return CaptionCounts(
        captions=len(lengths),
        fewest=min(each),
        mean=sum(each) / len(each),
        most=max(each),
        words_mean=sum(lengths) / len(lengths),
        words_95=float(np.percentile(lengths, 95, method="inverted_cdf")),
        words_most=longest[0],
        longest=longest[1],
        vocabulary_of=split,
        distinct_words=len(words),
        frequent_words=len(frequent),
        frequent_share=sum(frequent) / max(1, words.total()),
        repeated=len(lengths) - distinct,
        repeated_of_picture=sum(len(sample.captions) - len(set(sample.captions)) for sample in samples),
    )
