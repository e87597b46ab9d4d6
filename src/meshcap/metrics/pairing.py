"""Which pictures are scored: those that candidates and references agree on, and a word about every other one."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence

from meshcap.errors import MeshcapError

Given = Mapping[object, str | Sequence[str]]  # id -> caption, or id -> captions


def named(given: Mapping[object, str] | Given, what: str) -> dict[str, list[str]]:
    """Captions by id as a string; pictures with an empty list of captions have none and are left out.

    Raises:
        MeshcapError: two ids that are the same string, or something that is no caption.
    """
    if not isinstance(given, Mapping):
        raise MeshcapError(f"the {what} are a {type(given).__name__}, expected a dict from ids to captions")
    found: dict[str, list[str]] = {}
    for key, value in given.items():
        id = str(key)
        captions = [value] if isinstance(value, str) else value
        if not isinstance(captions, (list, tuple)) or not all(isinstance(caption, str) for caption in captions):
            raise MeshcapError(f"picture {id!r} has {reprlib.repr(value)} among the {what}, expected captions")
        if id in found:
            raise MeshcapError(f"picture {id!r} is among the {what} twice, as a number and as a string")
        if captions:
            found[id] = list(captions)
    return found


def pair(
    systems: Sequence[dict[str, list[str]]], references: dict[str, list[str]], *, subset: bool
) -> tuple[list[str], list[str]]:
    """The ids to score, in the order of the references, and warnings about those left out.

    Args:
        systems: the candidates; more than one are compared, and then a picture needs one of each.
        subset: leave out what has no counterpart instead of refusing it.

    Raises:
        MeshcapError: nothing in common, or a picture without its counterpart and not `subset`.
    """
    warnings = []
    ids = [id for id in references if all(id in candidates for candidates in systems)]
    if not ids:
        raise MeshcapError(
            f"no candidate has references: candidates are named as {_first(systems[0])}, "
            f"references as {_first(references)}"
        )
    names = ["candidates"] if len(systems) == 1 else ["candidates", "candidates of the other system"]
    for candidates, name in zip(systems, names, strict=True):
        if extra := [id for id in candidates if id not in references]:
            warnings.append(_told(len(extra), name, "no references", extra[0], subset))
        if missed := [id for id in references if id not in candidates]:
            other = name.replace("candidates", "candidate", 1)
            warnings.append(_told(len(missed), "pictures", f"references and no {other}", missed[0], subset))
    return ids, warnings


def _told(count: int, what: str, lack: str, first: str, subset: bool) -> str:
    line = f"{count:,} {what} {'have' if count > 1 else 'has'} {lack} (first: {first!r})"
    if count == 1:
        line = line.replace("candidates", "candidate", 1).replace("pictures", "picture", 1)
    if not subset:
        raise MeshcapError(f"{line}: add them, or score what has both with --subset (subset=True)")
    return f"{line}: left out"


def _first(captions: Mapping[str, object]) -> str:
    return reprlib.repr(next(iter(captions), "(none)"))
