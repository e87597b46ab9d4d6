"""A score without references: how much likelier a caption becomes by seeing its picture, to a captioner.

    PMI = mean over the caption's words of log p(word | words before it, picture)
        - the same, in the mean over other pictures

in nats a word: the pointwise mutual information of caption and picture, but for the mean of logarithms where a
marginal has the logarithm of a mean (which agrees less with people). What any picture would get is taken off, so fluent
words gain nothing. Words that the captioner does not know are read as `<unk>` and do not count.

The other pictures are OTHERS of those that are scored, evenly spaced in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

from meshcap.errors import MeshcapError
from meshcap.metrics.result import Array, Measure

OTHERS = 8
BATCH = 64  # captions that are read together


def pmi_scores(
    captioner: Any,
    pictures: Sequence[Path],
    systems: Sequence[Sequence[str]],
    report: Callable[[str], object] = lambda line: None,
) -> list[Measure]:
    """PMI of each system's captions, as they were written.

    Args:
        captioner: a `meshcap.Captioner` that reads pictures.

    Raises:
        MeshcapError: fewer than two pictures, or one that cannot be read.
    """
    rows = [text for captions in systems for text in captions]
    found = pmi(captioner, [*pictures] * len(systems), rows, report)
    return [Measure.mean("PMI", each) for each in found.reshape(len(systems), len(pictures))]


def pmi(
    captioner: Any,
    pictures: Sequence[Path],
    captions: Sequence[str],
    report: Callable[[str], object] = lambda line: None,
) -> Array:
    """(N,) of each caption and its picture; a picture may come several times."""
    owners: dict[Path, list[int]] = {}
    for row, path in enumerate(pictures):
        owners.setdefault(path, []).append(row)
    distinct = list(owners)
    if len(distinct) < 2:
        raise MeshcapError("PMI compares pictures with each other: expected captions of two or more")
    known = {text: _ids(captioner, text) for text in captions}
    texts = sorted(known, key=lambda text: len(known[text]))  # so that batches need little padding
    count = min(OTHERS, len(distinct))
    others = [distinct[len(distinct) * number // count] for number in range(count)]

    def likely(path: Path, said: Sequence[str]) -> dict[str, float]:
        return dict(zip(said, _likelihoods(captioner, path, [known[text] for text in said]), strict=True))

    table = {}  # of each other picture: how likely every caption is there
    for number, path in enumerate(others):
        report(f"PMI: other picture {number + 1} of {count}")
        table[path] = likely(path, texts)
    found = numpy.zeros(len(captions))
    for number, (path, mine) in enumerate(owners.items()):
        if not number % 10:
            report(f"PMI: {number:,} of {len(distinct):,} pictures")
        here = table[path] if path in table else likely(path, list({captions[row]: None for row in mine}))
        for row in mine:
            elsewhere = [values[captions[row]] for other, values in table.items() if other != path]
            found[row] = here[captions[row]] - numpy.mean(elsewhere)
    return found


def described(captioner: Any, pictures: int) -> str:
    """The captioner and what it was compared with, for a signature."""
    source = getattr(captioner.backend, "source", None)
    name = Path(str(source[0])).name if source else captioner.backend.name
    return f"{name},others={min(OTHERS, pictures)}"


def _ids(captioner: Any, text: str) -> list[int]:
    """A caption's words and its end; what is longer than the captioner reads is cut off."""
    vocabulary, settings = captioner.vocabulary, captioner.backend.settings
    ids = [*vocabulary.encode(vocabulary.tokens(text)), settings.eos]
    return ids[: settings.max_length]


def _likelihoods(captioner: Any, path: Path, rows: Sequence[list[int]]) -> list[float]:
    """The mean log-probability of the known words of each caption."""
    seen = captioner.see([captioner.read(path)])
    found: list[float] = []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        for ids, log_probs in zip(batch, captioner.backend.score(seen, batch), strict=True):
            values = [value for id, value in zip(ids, log_probs, strict=True) if id != captioner.vocabulary.unk]
            found.append(float(numpy.mean(values)) if values else 0.0)
    return found
