"""A dataset without some of its training pictures: those that `meshcap data check --leave-out` named, say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshcap.data.dataset import Dataset
from meshcap.errors import MeshcapError


def without(dataset: Dataset, file: Path) -> Dataset:
    """Leave out the training pictures whose ids a file names, one a line; lines that begin with # say something else.

    Raises:
        MeshcapError: the file cannot be read, or names a picture that is no training picture, or all of them.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise MeshcapError(f"{file} cannot be read ({error}): expected ids of pictures, one a line") from error
    ids = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    there = {sample.id for sample in dataset.split("train")}
    if missing := sorted(ids - there):
        raise MeshcapError(
            f"{file} names {missing[0]!r}, which is no training picture ({len(missing)} such): expected ids "
            f"like {dataset.split('train')[0].id!r}"
        )
    if ids == there:
        raise MeshcapError(f"{file} names all {len(there):,} training pictures: nothing is left to learn from")
    kept = [sample for sample in dataset if sample.split != "train" or sample.id not in ids]
    return replace(dataset, samples=kept)
