"""CHAIR: objects that a caption mentions and the picture does not show (Rohrbach and others, 2018).

CHAIR-i is the share of mentioned objects that are not there, CHAIR-s the share of captions that mention such a one:
both are better when low. What is there: the objects annotated in the picture, and those that its references mention.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy

from meshcap.errors import MeshcapError
from meshcap.files import read_json, read_text
from meshcap.metrics.bootstrap import Array, Measure
from meshcap.metrics.objects import COCO_OBJECTS, DOUBTFUL, FOLLOWS, IRREGULAR, NO_OBJECTS

Tokens = Sequence[str]


@dataclass(frozen=True)
class Synonyms:
    """Which phrases mean which object. `phrases` may name no object at all: "train track"."""

    phrases: Mapping[tuple[str, ...], str | None]
    source: str

    @classmethod
    def ours(cls) -> Synonyms:
        """COCO's 80 objects with the words of `meshcap.metrics.objects`."""
        phrases: dict[tuple[str, ...], str | None] = {}
        for line in COCO_OBJECTS.replace("\n    ", " ").strip().split("\n"):
            name, others = line.split(":")
            for phrase in (name, *others.split(",")):
                phrases[tuple(phrase.split())] = name
        phrases |= {tuple(phrase.split()): None for phrase in NO_OBJECTS.split(",")}
        return cls(phrases, "meshcap")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Synonyms:
        """The layout of CHAIR's own file: an object a line, its name first, then its synonyms, between commas."""
        phrases: dict[tuple[str, ...], str | None] = {}
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            words = [phrase.strip().lower() for phrase in line.split(",")]
            if words == [""]:
                continue
            if not words[0]:
                raise MeshcapError(
                    f"{path}: line {number} is {reprlib.repr(line)}, expected an object, then its synonyms"
                )
            for phrase in filter(None, words):
                phrases.setdefault(tuple(phrase.split()), words[0])
        if not phrases:
            raise MeshcapError(f"{path} holds no objects, expected one a line with its synonyms after commas")
        return cls(phrases, os.path.basename(path))

    def mentioned(self, words: Tokens) -> list[str]:
        """The objects that a caption mentions, as often as it does. The longest phrase at a place counts."""
        longest = max(map(len, self.phrases))
        found, place = [], 0
        while place < len(words):
            for size in range(min(longest, len(words) - place), 0, -1):
                phrase = self._known(words[place : place + size], words[place + size : place + size + 1])
                if phrase is not None:
                    if (name := self.phrases[phrase]) is not None:
                        found.append(name)
                    place += size
                    break
            else:
                place += 1
        return found

    def _known(self, words: Tokens, following: Tokens) -> tuple[str, ...] | None:
        """The phrase that these words are, in the singular or as they are."""
        if len(words) == 1 and words[0] in DOUBTFUL and following and following[0] not in FOLLOWS:
            return None
        as_said = tuple(words)
        for phrase in (as_said, (*as_said[:-1], singular(as_said[-1]))):
            if phrase in self.phrases:
                return phrase
        return None

    def object(self, name: str) -> str | None:
        """The object that an annotation's name means, or None."""
        words = name.lower().split()
        return self.phrases.get(tuple(words)) or self.phrases.get((*words[:-1], singular(words[-1]) if words else ""))


def singular(word: str) -> str:
    """The singular of an English noun, as far as objects need it."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


@dataclass(frozen=True)
class Objects:
    """The objects annotated in each picture."""

    shown: dict[str, set[str]]
    warnings: list[str]


def read_objects(path: str | os.PathLike[str], synonyms: Synonyms) -> Objects:
    """COCO's instances JSON, or `{id: [object names]}`.

    Raises:
        MeshcapError: another layout.
    """
    data = read_json(path)
    expected = "expected COCO's instances JSON or {id: [object names]}"
    if not isinstance(data, dict):
        raise MeshcapError(f"{path} holds a JSON {type(data).__name__}, {expected}")
    names: dict[str, list[str]] = {}
    if isinstance(data.get("categories"), list):
        try:
            kinds = {category["id"]: str(category["name"]) for category in data["categories"]}
            for image in data["images"]:
                shown = names.setdefault(str(image["id"]), [])
                if "file_name" in image:
                    names[str(image["file_name"])] = shown  # the same list under the picture's other name
            for annotation in data["annotations"]:
                names[str(annotation["image_id"])].append(kinds[annotation["category_id"]])
        except (KeyError, TypeError) as error:
            raise MeshcapError(f"{path} lacks {error} in its images, annotations or categories, {expected}") from None
    else:
        for id, those in data.items():
            if not isinstance(those, list) or not all(isinstance(name, str) for name in those):
                raise MeshcapError(f"{path}: {reprlib.repr(id)} has {reprlib.repr(those)}, {expected}")
            names[str(id)] = those
    found = {name: synonyms.object(name) for those in names.values() for name in those}
    unknown = [name for name, known in found.items() if known is None]
    warnings = []
    if unknown:
        warnings.append(
            f"{len(unknown):,} object names of {path} are unknown and cannot be found in captions "
            f"(first: {reprlib.repr(unknown[0])})"
        )
    shown_in = {id: {known for name in those if (known := found[name])} for id, those in names.items()}
    return Objects(shown_in, warnings)


def chair(
    candidates: Sequence[Tokens],
    references: Sequence[Sequence[Tokens]],
    shown: Sequence[Iterable[str]],
    synonyms: Synonyms,
) -> list[Measure]:
    """CHAIR-i and CHAIR-s of tokenized captions. A picture's CHAIR-i is NaN where its caption mentions nothing."""
    counts = numpy.zeros((len(candidates), 2))  # wrong, mentioned
    for row, one, those, objects in zip(counts, candidates, references, shown, strict=True):
        there = set(objects).union(*(synonyms.mentioned(words) for words in those))
        said = synonyms.mentioned(one)
        row[:] = sum(name not in there for name in said), len(said)
    wrong, all_said = counts.T
    each = numpy.divide(wrong, all_said, out=numpy.full(len(counts), numpy.nan), where=all_said > 0)
    return [Measure("CHAIR-i", each, counts, _share), Measure.mean("CHAIR-s", (wrong > 0).astype(float))]


def _share(sums: Array, _: int) -> Array:
    wrong, said = sums[..., 0], sums[..., 1]
    return numpy.divide(wrong, said, out=numpy.zeros_like(wrong), where=said > 0)
