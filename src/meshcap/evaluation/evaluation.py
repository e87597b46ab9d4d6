"""`evaluate`: caption a split, score the captions as the field does, calibrate confidences, write a report.

The trainer calls it at every validation and at the end of a run, `meshcap evaluate` for a finished model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from PIL import Image

from meshcap.calibration import FEWEST
from meshcap.data import Dataset, read_dataset
from meshcap.data.dataset import Sample
from meshcap.data.features import FeatureStore, open_features
from meshcap.errors import MeshcapError
from meshcap.evaluation.calibration_fit import Trial, try_calibration
from meshcap.evaluation.drawing import trial_drawing
from meshcap.evaluation.page import ReportContent, SampleCard, picks, write_report
from meshcap.files import read_json, write_text
from meshcap.machine import machine
from meshcap.metrics import Result, score
from meshcap.metrics.result import DEFAULT
from meshcap.options import BEAMS, CaptionOptions
from meshcap.regions import Regions
from meshcap.vision.score import picture_of

if TYPE_CHECKING:
    from meshcap.caption import Caption
    from meshcap.captioner import Captioner

SHOWN = 256  # pixels of a picture in a report
AS_PUBLISHED = CaptionOptions(good_endings=False, shorten=False, names=False)
Pixels = TypeVar("Pixels")
Progress = Callable[[int, int], object]  # done, of how many


@dataclass(frozen=True)
class WrittenCaption:
    """A caption as its file keeps it (`Evaluation.write_captions`)."""

    text: str
    log_probs: list[float]
    confidence: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """The captions of a split, their scores, and how far their confidences hold."""

    samples: Sequence[Sample]
    captions: Sequence[Caption | WrittenCaption]  # of the samples, in their order
    result: Result
    trial: Trial | None = None  # the calibration that was fitted on these captions
    facts: dict[str, str] = field(default_factory=dict)  # what was evaluated, for people to read

    @property
    def cider(self) -> float:
        return self.result.scores["CIDEr"]

    @property
    def bad_endings(self) -> float:
        """The share of captions that end on "a", "of", "with" and the like."""
        return self.result.diversity.get("bad endings", 0.0)

    @property
    def words(self) -> int:
        """Different words in all captions together."""
        return int(self.result.diversity.get("vocabulary", 0))

    def to_dict(self) -> dict[str, Any]:
        """What `meshcap evaluate --json` prints."""
        confidence = {} if self.trial is None else {"confidence": self.trial.to_dict(self.ciders())}
        return self.result.to_dict() | confidence

    def ciders(self) -> list[float]:
        """CIDEr of each caption."""
        own = (self.result.per_image[sample.id].get("CIDEr") for sample in self.samples)
        return [0.0 if value is None else value for value in own]

    def calibrated(self) -> Evaluation:
        """The same captions with the confidences that were measured on them."""
        if self.trial is None:
            return self
        apply = self.trial.calibration.apply
        return replace(self, captions=[replace(one, confidence=apply(one.log_probs)) for one in self.captions])

    def write_captions(self, path: Path) -> None:
        """As COCO's results, which `meshcap score` and every other tool of the field reads; a line a caption."""
        lines = []
        for sample, caption in zip(self.samples, self.captions, strict=True):
            record: dict[str, Any] = {"image_id": sample.id, "caption": caption.text}
            if caption.confidence is not None:
                record["confidence"] = round(caption.confidence, 4)
            record["log_probs"] = [round(value, 4) for value in caption.log_probs]
            lines.append(json.dumps(record, ensure_ascii=False))
        write_text(path, "[\n" + ",\n".join(lines) + "\n]\n")

    def cards(self, **options: int) -> dict[str, list[SampleCard]]:
        """Captions to look at: many at random, some of the best and of the worst. Options are those of `picks`."""
        by_id = {sample.id: (sample, caption) for sample, caption in zip(self.samples, self.captions, strict=True)}
        found: dict[str, list[SampleCard]] = {}
        for title, ids in picks(self.result, **options).items():
            found[title] = [
                SampleCard(
                    image=thumbnail_of(sample),
                    caption=caption.text,
                    confidence=caption.confidence,
                    score=self.result.per_image[id].get("CIDEr"),
                    references=sample.captions,
                    id=id,
                )
                for id in ids
                for sample, caption in [by_id[id]]
            ]
        return found

    def write(self, folder: Path, split: str, title: str) -> Path:
        """Captions, scores and report of a split into a folder; returns the report's path."""
        self.write_captions(folder / f"captions-{split}.json")
        write_json(folder / f"scores-{split}.json", self.to_dict())
        report = folder / f"report-{split}.html"
        write_report(
            report,
            ReportContent(
                title=title,
                facts=list(self.facts.items()),
                results={split: self.result},
                samples=self.cards(),
                confidence=None if self.trial is None else trial_drawing(f"Confidence on {split}", self.trial),
            ),
        )
        return report


def evaluate(
    captioner: Captioner | None,
    data: str | Path | Dataset | Sequence[Sample],
    *,
    split: str = "test",
    options: CaptionOptions = AS_PUBLISHED,
    out: str | Path | None = None,
    pictures: str | Path | None = None,
    features: str | Path | None = None,
    captions: Sequence[Caption | WrittenCaption] | None = None,
    metrics: Sequence[str] = DEFAULT,
    bootstrap: int = 1000,
    calibrate: bool = False,
    batch_size: int = 64,
    tokenizer: str | None = None,
    name: str = "",
    data_name: str = "",
    progress: Progress | None = None,
) -> Evaluation:
    """Caption a split and score the captions.

    Args:
        captioner: may be None where `captions` are given.
        data: a path that `meshcap.data.read_dataset` reads, a Dataset, or the samples themselves.
        split: a part of the data, or "all"; of samples, only their name in files.
        options: how to caption; as published figures are made, where captions may end on any word.
        out: a folder for captions, scores and report.
        pictures: the folder of the pictures, where the data is a file of captions alone.
        features: precomputed regions instead of pictures.
        captions: captions of the samples made before, in their order; nothing is captioned.
        metrics: as of `meshcap.metrics.score`.
        bootstrap: resamples for the 95 % intervals; 0: no intervals.
        calibrate: fit a calibration to the captions and give them the confidences it measured.
        tokenizer: of the references; None: the captioner's.
        name, data_name: of the model and of the data, for the report.
        progress: called with the number of captioned pictures and of all.

    Raises:
        MeshcapError: data, pictures, options or metrics that cannot be used, each in one line.
    """
    samples = samples_of(data, split, pictures)
    if calibrate and len(samples) < FEWEST:
        raise MeshcapError(f"{len(samples)} pictures in {split}: expected {FEWEST} at least to calibrate on")
    if out is not None:
        out = make_folder(out)
    if captions is None:
        if captioner is None:
            raise MeshcapError("neither a captioner nor captions were given: expected one of them")
        store = None if features is None else open_features(features)
        captions = caption_samples(captioner, samples, store, options, batch_size=batch_size, progress=progress)
    if tokenizer is None:
        tokenizer = "ptb" if captioner is None else captioner.vocabulary.tokenizer
    texts = {sample.id: caption.text for sample, caption in zip(samples, captions, strict=True)}
    references = {sample.id: list(sample.captions) for sample in samples}
    result = score(texts, references, tokenizer=tokenizer, metrics=metrics, bootstrap=bootstrap)
    where = data_name or (Path(data).name if isinstance(data, str | Path) else getattr(data, "name", "data"))
    facts = {
        "model": name,
        "data": f"{where}, {split}: {len(samples):,} pictures",
        "search": _search_text(options, captioner),
    }
    if captioner is not None:
        facts["machine"] = machine(torch.device(captioner.device))
    trial = None
    if calibrate:
        trial = try_calibration(
            [caption.text for caption in captions],
            [sample.captions for sample in samples],
            [caption.log_probs for caption in captions],
            tokenizer=tokenizer,
            fitted_on={"data": where, "split": split}
            | ({} if captioner is None else {"beams": options.beams or BEAMS}),
        )
    found = Evaluation(samples, captions, result, trial, {key: value for key, value in facts.items() if value})
    found = found.calibrated()
    if out is not None:
        found.write(Path(out), split, f"{name or 'model'} on {where}, {split}")
    return found


def samples_of(
    data: str | Path | Dataset | Sequence[Sample], split: str, pictures: str | Path | None = None
) -> Sequence[Sample]:
    """The samples of a split ("all": of all), or those that were given."""
    if isinstance(data, str | Path):
        data = read_dataset(str(data), pictures=None if pictures is None else Path(pictures))
    if isinstance(data, Dataset):
        return list(data) if split == "all" else data.split(split)
    return data


def caption_samples(
    captioner: Captioner,
    samples: Sequence[Sample],
    store: FeatureStore | None = None,
    options: CaptionOptions = AS_PUBLISHED,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> list[Caption]:
    """Captions by a finished captioner; the next pictures are read while it searches.

    Raises:
        MeshcapError: pictures or features that are missing or cannot be read.
    """
    found: list[Caption] = []
    for regions in regions_of(captioner, samples, store, batch_size=batch_size):
        found += captioner.describe(regions, options)
        if progress is not None:
            progress(len(found), len(samples))
    return found


def regions_of(
    captioner: Captioner, samples: Sequence[Sample], store: FeatureStore | None = None, *, batch_size: int
) -> Iterator[Regions]:
    """The Regions of samples, a batch at a time; the next pictures are read meanwhile.

    Raises:
        MeshcapError: pictures or features that are missing or cannot be read.
    """
    blocks = [samples[start : start + batch_size] for start in range(0, len(samples), batch_size)]
    if store is not None:
        store.require([sample.id for sample in samples])
        for block in blocks:
            yield store.regions([sample.id for sample in block]).to(captioner.model.device)
        return
    if not captioner.reads_pictures:
        raise MeshcapError("this model reads precomputed features and cannot look at pictures: give --features")
    with ThreadPoolExecutor() as pool:

        def submit(place: int) -> list[Future[np.ndarray]]:
            block = blocks[place] if place < len(blocks) else []
            return [pool.submit(read_sample, sample, captioner.read) for sample in block]

        waiting = submit(0)
        for place in range(len(blocks)):
            current, waiting = waiting, submit(place + 1)
            yield captioner.see([job.result() for job in current])


def read_sample(sample: Sample, read: Callable[[bytes], Pixels]) -> Pixels:
    """What `read` makes of a sample's picture.

    Raises:
        MeshcapError: it has none, or it cannot be read.
    """
    if sample.picture is None:
        raise MeshcapError(f"{sample.id} has captions but no picture: give the folder of the pictures (--pictures)")
    try:
        return read(sample.picture.read())
    except MeshcapError as error:
        what = "meshcap data check lists all such pictures, meshcap train --skip-broken leaves them out"
        raise MeshcapError(f"{sample.picture}: {error} ({what})") from error


def thumbnail_of(sample: Sample) -> Image.Image | None:
    """A sample's picture for a report, where it has one that can be read."""
    if sample.picture is None:
        return None
    try:
        return picture_of(sample.picture.read(), at_least=SHOWN)
    except MeshcapError:
        return None


def read_captions(path: Path) -> dict[str, WrittenCaption]:
    """Captions by picture, from what train or evaluate wrote.

    Raises:
        MeshcapError: another file, or a picture that is there twice.
    """
    content = read_json(path)
    known: dict[str, WrittenCaption] = {}
    for one in content if isinstance(content, list) else [content]:
        if not isinstance(one, dict) or "image_id" not in one or not isinstance(one.get("caption"), str):
            raise MeshcapError(f"{path} holds no records with image_id and caption: expected what evaluate writes")
        id, given = str(one["image_id"]), one.get("log_probs")
        if not isinstance(given, list) or not given or not all(type(value) in (int, float) for value in given):
            raise MeshcapError(f"{path}: the caption of {id!r} has no log_probs: write it anew with meshcap evaluate")
        if id in known:
            raise MeshcapError(f"{path}: picture {id!r} has two captions, expected one")
        known[id] = WrittenCaption(one["caption"], list(map(float, given)))
    return known


def named_samples(samples: Sequence[Sample], ids: Collection[str], where: str) -> list[Sample]:
    """The samples that captions are of, in the order of the captions, which name them by id or by file.

    Raises:
        MeshcapError: a caption of a picture that is not among them.
    """
    by_id = {sample.id: sample for sample in samples}
    by_file = {sample.filename: sample for sample in samples if sample.filename is not None}
    names: Mapping[str, Sample] = max((by_id, by_file), key=lambda names: len(names.keys() & set(ids)))
    missing = [id for id in ids if id not in names]
    if missing:
        raise MeshcapError(
            f"{len(missing):,} of the {len(ids):,} captions are of no picture in {where} (first: {missing[0]}): "
            "expected those of the same data and split; --split all takes every split"
        )
    return [names[id] for id in ids]


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def make_folder(folder: str | Path) -> Path:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be made: {error.strerror}") from error
    return Path(folder)


def _search_text(options: CaptionOptions, captioner: Captioner | None) -> str:
    if captioner is None:
        return ""
    return f"beam {options.beams or BEAMS}" if options.strategy == "beam" else str(options.strategy)
