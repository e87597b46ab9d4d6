"""Candidates and references from files. Nothing is skipped: what does not fit is refused, or counted in a warning."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from meshcap.errors import MeshcapError
from meshcap.metrics.layouts import Picture, pictures, short


@dataclass(frozen=True)
class References:
    """What a reference file says of its pictures, by the id that the candidates use."""

    captions: dict[str, list[str]]
    domains: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # the pictures' file names
    warnings: list[str] = field(default_factory=list)


def read_candidates(path: str | os.PathLike[str], *, split: str | None = None) -> dict[str, list[str]]:
    """The candidates of each picture, best first: one, or an n-best list.

    Raises:
        MeshcapError: a file in no known layout, or a picture that occurs twice.
    """
    candidates: dict[str, list[str]] = {}
    for picture in _chosen(path, split, must=False):
        if not picture.captions:  # no candidate, which is not an empty one; the picture will be missed
            continue
        if picture.id in candidates:
            raise MeshcapError(
                f"{path}: picture {short(picture.id)} has two candidates, expected one "
                "(an n-best list is written as one entry with a list of captions)"
            )
        candidates[picture.id] = picture.captions
    if not candidates:
        raise MeshcapError(f"{path} holds no captions, expected at least one")
    return candidates


def read_references(
    path: str | os.PathLike[str], *, split: str | None = None, like: Collection[str] = ()
) -> References:
    """The references of each picture.

    A file may know its pictures by several names (`cocoid`, `filename` and `imgid`; `id` and `file_name`). Those are
    taken under which all of the ids in `like` are found, or else the most of them.

    Args:
        split: of Karpathy's file, several joined by "+", or "all"; "test" unless told.

    Raises:
        MeshcapError: a file in no known layout, a split that it does not have, or no references at all.
    """
    known: dict[str, Picture] = {}
    for picture in _chosen(path, split, must=True):
        if picture.id in known:
            known[picture.id].captions.extend(picture.captions)
        else:
            known[picture.id] = picture
    told = [picture for picture in known.values() if picture.captions]
    if not told:
        raise MeshcapError(f"{path} holds no captions, expected references")
    named = _by_name(path, told, set(like))
    warnings = []
    if len(told) < len(known):
        first = next(picture.id for picture in known.values() if not picture.captions)
        warnings.append(f"{len(known) - len(told):,} pictures of {path} have no captions (first: {short(first)})")
    files = ((id, _file_name(picture)) for id, picture in named.items())
    return References(
        {id: picture.captions for id, picture in named.items()},
        {id: picture.domain for id, picture in named.items() if picture.domain},
        {id: file for id, file in files if file},
        warnings,
    )


def read_training(path: str | os.PathLike[str]) -> list[str]:
    """All captions of a file, whatever picture they belong to; of Karpathy's, those of the training splits.

    Raises:
        MeshcapError: a file in no known layout, or without such captions.
    """
    told = (picture for picture in pictures(path) if picture.split in (None, "train", "restval"))
    captions = [caption for picture in told for caption in picture.captions]
    if not captions:
        raise MeshcapError(f"{path} holds no captions of a training split, expected training captions")
    return captions


def _chosen(path: str | os.PathLike[str], split: str | None, *, must: bool) -> list[Picture]:
    """The pictures of a file; of a file with splits, those of the split.

    Args:
        must: refuse a split asked of a file that has none.
    """
    told = list(pictures(path))
    splits = Counter(picture.split for picture in told if picture.split is not None)
    if not splits:
        if split and must:
            raise MeshcapError(f"{path} has no splits, expected Karpathy's JSON for --split {split}")
        return told
    wanted = set((split or "test").split("+"))
    if wanted == {"all"}:
        return told
    if missing := sorted(wanted - set(splits)):
        found = ", ".join(f"{name} ({count:,} pictures)" for name, count in splits.items())
        raise MeshcapError(f"{path} has no split {missing[0]!r}, expected one of {found}, or all")
    return [picture for picture in told if picture.split in wanted]


def _by_name(path: object, told: list[Picture], wanted: set[str]) -> dict[str, Picture]:
    best: dict[str, Picture] = {}
    most = -1
    for kind in told[0].names:
        named = {picture.names[kind]: picture for picture in told if kind in picture.names}
        if len(named) < len(told):  # a name that some lack or share names no picture
            continue
        hits = len(wanted & named.keys())
        if hits > most:
            best, most = named, hits
    if most < 0:
        raise MeshcapError(f"{path}: no name ({', '.join(told[0].names)}) is there once for every picture")
    return best


def _file_name(picture: Picture) -> str | None:
    return next((name for kind, name in picture.names.items() if kind in ("file", "filename", "file_name")), None)
