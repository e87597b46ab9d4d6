"""Other things that a confidence could mean, beside the one that was chosen: docs/confidence.md says why.

Example: python recipes/confidence_meanings.py captions-val.json my-pictures.jsonl --split val
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy

from meshcap.calibration import Array
from meshcap.data import read_dataset
from meshcap.evaluation.calibration_fit import held_out, rank_correlation, reliability, signals_of
from meshcap.evaluation.content_words import people_words, used_share, used_shares
from meshcap.metrics import score
from meshcap.metrics.cider import cider_d
from meshcap.text.tokenizers import tokenize_each


@dataclass(frozen=True)
class Meaning:
    """How a meaning fares."""

    name: str
    mean: float  # over the model's captions
    people: float | None  # over captions of people, each against the other people's; None where there is one a picture
    explained: float  # of its variance, by held-out confidences
    error: float  # calibration error of those
    noise: float  # what that would be by chance
    order: float  # rank correlation of held-out confidences with it
    with_cider: float  # rank correlation of the meaning itself with CIDEr


def compare_meanings(
    captions: Sequence[str],
    references: Sequence[Sequence[str]],
    log_probs: Sequence[Sequence[float]],
    cider: Array,
    tokenizer: str = "ptb",
) -> list[Meaning]:
    """The share of words used by somebody; that all were; and CIDEr not below that of half the left-out people."""
    shares = numpy.array(used_shares(captions, references, tokenizer))
    others = [
        [used_share(one, [*lines[:at], *lines[at + 1 :]]) for at, one in enumerate(lines)]
        for lines in people_words(references, tokenizer)
        if len(lines) > 1
    ]
    humans = numpy.array([share for picture in others for share in picture])
    human_cider = left_out_cider(references, tokenizer)
    middle = float(numpy.median(human_cider)) if len(human_cider) else 0.0
    trials = [
        ("share of words used", shares, humans),
        ("all words used", (shares >= 1).astype(float), (humans >= 1).astype(float)),
        ("CIDEr of a median person", (cider >= middle).astype(float), (human_cider >= middle).astype(float)),
    ]
    signals = signals_of(log_probs)
    return [
        Meaning(
            name,
            float(truth.mean()),
            float(people.mean()) if len(people) else None,
            1 - found.squared_error / max(float(truth.var()), 1e-12),
            found.error,
            found.noise,
            found.order,
            rank_correlation(truth, cider),
        )
        for name, truth, people in trials
        for found in [reliability(held_out(signals, truth), truth)]
    ]


def left_out_cider(references: Sequence[Sequence[str]], tokenizer: str = "ptb") -> Array:
    """CIDEr of each person's caption against the other people's, over the pictures that two or more described."""
    tokens = tokenize_each(tokenizer, [line for lines in references for line in lines])
    pictures = [lines for lines in ([next(tokens) for _ in some] for some in references) if len(lines) > 1]
    found = []
    for place in range(max(map(len, pictures), default=0)):
        some = [lines for lines in pictures if place < len(lines)]
        rest = [[*lines[:place], *lines[place + 1 :]] for lines in some]
        found.append(cider_d([lines[place] for lines in some], rest).per_image)
    return numpy.concatenate(found) if found else numpy.zeros(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captions", type=Path, help="what train or evaluate wrote: image_id, caption, log_probs")
    parser.add_argument("data", help="the pictures' captions by people")
    parser.add_argument("--split", default="val")
    parser.add_argument("--tokenizer", default="ptb")
    given = parser.parse_args()
    records = json.loads(given.captions.read_text(encoding="utf-8"))
    people = {sample.id: list(sample.captions) for sample in read_dataset(given.data).split(given.split)}
    captions = {str(one["image_id"]): one["caption"] for one in records}
    references = {id: people[id] for id in captions}
    result = score(captions, references, tokenizer=given.tokenizer, metrics="CIDEr", bootstrap=0)
    cider = numpy.array([result.per_image[id]["CIDEr"] or 0.0 for id in captions])
    log_probs = [one["log_probs"] for one in records]
    found = compare_meanings(list(captions.values()), list(references.values()), log_probs, cider, given.tokenizer)
    for one in found:
        print(json.dumps(asdict(one)))


if __name__ == "__main__":
    main()
