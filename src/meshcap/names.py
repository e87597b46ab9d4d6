"""Names: what captions have no word for, read from the cells of an image encoder by a linear head.

COCO's captions never name a raccoon or a rocket, so a captioner that learned from them says "cat" or "tower". A head on
the mean of the encoder's cells knows such names (softmax over ImageNet's classes and some more) and which things and
places people would mention (a sigmoid each). It is used for keywords (`Names.tags`) and for captions: where the head is
sure of a name, the name takes that share of the probability of the words that it is mistaken for
(`meshcap.decoding.extension`); where it is sure of the kind alone ("bird", "insect", "animal"), that word does.

A model folder keeps it in two files: `names.safetensors` (weights, 8 bits) and `names.json` (what they mean).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from meshcap.caption import Tag
from meshcap.decoding.extension import Extension, Shares
from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.folders import NAMES, NAMES_TABLE, find_optional, read_config
from meshcap.regions import Regions
from meshcap.tags import keyword
from meshcap.text import Vocabulary
from meshcap.weights import dequantise, quantise, read_weights, save_weights

SURE, SURE_OF_KIND = 0.4, 0.6  # least probabilities of a name and of a kind that captions may say
LEAST_ASKED = 1e-6  # the least share of a name that a caption must say
LEAST_SEEN = 1e-3  # less counts as little as this, where a caption is trusted by what the head sees
UNSAID = 0.7  # least probability of a thing that is a keyword though no caption names it
READ, SEEN = 3, 0.01  # how many names are told of where one was said, and how likely each is at least
TENSORS = ("names.weight", "names.bias", "words.weight", "words.bias", "centre", "spread")


class Named(NamedTuple):
    """What the head says of B pictures."""

    names: Tensor  # (B, C) probabilities that sum to 1
    words: Tensor  # (B, K) a probability each

    def to_host(self) -> Named:
        """The same in main memory. From a GPU nothing is waited for: read it once the device has got so far."""
        return Named(*(one.to("cpu", non_blocking=True) for one in self))


class Reading(NamedTuple):
    """What the head saw where captions say a word of it."""

    word: str  # in the singular
    probability: float
    names: tuple[tuple[str, float], ...]  # the likeliest of those that are called so

    def to_dict(self) -> dict[str, Any]:
        names = [{"name": name, "probability": chance} for name, chance in self.names]
        return {"word": self.word, "probability": self.probability, "names": names}


@dataclass(frozen=True)
class NameKind:
    """Names of one kind, and what captions say in their place."""

    word: str  # a broad word for all of them; empty: there is none
    plural: str
    kin: tuple[str, ...]  # words of captions that it is mistaken for
    plural_kin: tuple[str, ...]
    stand_in: str  # read back where the vocabulary has no such name
    plural_stand_in: str


class Word(NamedTuple):
    """What captions may say."""

    plural: str
    kind: NameKind
    classes: Tensor  # (C) 1 for the names that are called so


class Trust(NamedTuple):
    """How what the head sees changes the confidence c in a caption: logit c′ = own · logit c + seen · s + offset.

    s is the mean log-probability, by the head, of what the caption names, each no less than that of 0.001.
    """

    own: float
    seen: float
    offset: float


@dataclass(frozen=True)
class Table:
    """What the outputs mean.

    `said` has the names that captions may use, each with its plural and its kind; `said_as` says which of them each
    class is called (-1: none; captions have words for it, or it is not said).
    """

    names: tuple[str, ...]  # (C) as tags have them
    said: tuple[tuple[str, str, str], ...]  # (S) word, plural, kind
    said_as: tuple[int, ...]  # (C)
    kinds: Mapping[str, NameKind]
    words: tuple[tuple[str, str], ...]  # (K) word, and whether it is an object or a scene
    sure: float = SURE
    sure_of_kind: float = SURE_OF_KIND
    trust: Trust | None = None
    source: Mapping[str, Any] = field(default_factory=dict)  # for people to read

    def __post_init__(self) -> None:
        if len(self.names) != len(self.said_as) or not all(-1 <= one < len(self.said) for one in self.said_as):
            raise MeshcapError(f"{len(self.names)} names are said as {len(self.said_as)} others: expected one for each")
        for word, _, kind in self.said:
            if kind not in self.kinds:
                raise MeshcapError(f"{word!r} is of the kind {kind!r}, which is not described")

    def to_dict(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "said": [list(one) for one in self.said],
            "said_as": list(self.said_as),
            "kinds": {name: vars(kind) for name, kind in self.kinds.items()},
            "words": [list(one) for one in self.words],
            "sure": self.sure,
            "sure_of_kind": self.sure_of_kind,
            "trust": None if self.trust is None else self.trust._asdict(),
            "source": dict(self.source),
        }

    def save(self, folder: str | Path) -> None:
        """Write `names.json` into a model folder."""
        lines = (
            f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in self.to_dict().items()
        )
        write_text(Path(folder) / NAMES_TABLE, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """
        Raises:
            MeshcapError: something is missing, or of another form.
        """
        try:
            kinds = {
                str(name): NameKind(
                    word=str(kind["word"]),
                    plural=str(kind["plural"]),
                    kin=tuple(map(str, kind["kin"])),
                    plural_kin=tuple(map(str, kind["plural_kin"])),
                    stand_in=str(kind["stand_in"]),
                    plural_stand_in=str(kind["plural_stand_in"]),
                )
                for name, kind in given["kinds"].items()
            }
            return cls(
                names=tuple(map(str, given["names"])),
                said=tuple((str(word), str(plural), str(kind)) for word, plural, kind in given["said"]),
                said_as=tuple(int(one) for one in given["said_as"]),
                kinds=kinds,
                words=tuple((str(word), str(kind)) for word, kind in given["words"]),
                sure=float(given["sure"]),
                sure_of_kind=float(given["sure_of_kind"]),
                trust=None if given.get("trust") is None else Trust(**{k: float(v) for k, v in given["trust"].items()}),
                source=dict(given.get("source", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MeshcapError(f"the table of names cannot be read: {type(error).__name__} {error}") from error


class Names:
    """The head. `look` at Regions, then ask for tags or for words that a search may say."""

    def __init__(self, weights: Mapping[str, Tensor], table: Table):
        missing = [name for name in TENSORS if name not in weights]
        if missing:
            raise MeshcapError(f"the head for names lacks {missing[0]}")
        for name in TENSORS:
            if weights[name].is_complex() or not bool(torch.isfinite(weights[name]).all()):
                raise MeshcapError(f"{name} of the head for names has NaN, infinite or complex numbers: it is damaged")
        self.table, self.weights = table, {name: weights[name].float() for name in TENSORS}
        self._weights = {torch.device("cpu"): self.weights}  # where they were needed
        self.width = self.weights["centre"].numel()
        shapes = {
            "names.weight": (len(table.names), self.width),
            "names.bias": (len(table.names),),
            "words.weight": (len(table.words), self.width),
            "words.bias": (len(table.words),),
            "spread": (self.width,),
        }
        for name, shape in shapes.items():
            if tuple(self.weights[name].shape) != shape:
                raise MeshcapError(f"{name} of the head for names is {tuple(weights[name].shape)}, expected {shape}")
        said = torch.zeros(len(table.names), len(table.said))
        for place, one in enumerate(table.said_as):
            if one >= 0:
                said[place, one] = 1
        self.said = said  # (C, S) which names are said as which words
        kinds = {name: place for place, name in enumerate(table.kinds)}
        self.of_kind = torch.zeros(len(table.said), len(kinds))
        for place, (_, _, kind) in enumerate(table.said):
            self.of_kind[place, kinds[kind]] = 1
        self.words: dict[str, Word] = {}
        for place, (word, plural, kind) in enumerate(table.said):
            self._add(word, plural, table.kinds[kind], said[:, place])
        for name, of_it in table.kinds.items():
            if of_it.word:
                self._add(of_it.word, of_it.plural, of_it, said @ self.of_kind[:, kinds[name]])
        self.things = {word: place for place, (word, _) in enumerate(table.words)}
        self.forms = {form: word for word, one in self.words.items() for form in (one.plural, word)}

    def _add(self, word: str, plural: str, kind: NameKind, classes: Tensor) -> None:
        if word in self.words:  # of two kinds, or a name and its kind
            classes = (classes + self.words[word].classes).clamp(max=1)
        self.words[word] = Word(plural, kind, classes)

    @classmethod
    def load(cls, name_or_folder: str | Path, **hub: Any) -> Self | None:
        """The head of a model folder, or of a model on the hub; None where it has none.

        Raises:
            MeshcapError: files that do not fit each other.
        """
        path = find_optional(name_or_folder, NAMES, **hub)
        table = None if path is None else find_optional(name_or_folder, NAMES_TABLE, **hub)
        if path is None or table is None:
            return None
        try:
            return cls(dequantise(read_weights(path), owner=str(path)), Table.from_dict(read_config(table)))
        except MeshcapError as error:
            raise MeshcapError(f"{path}: {error}") from error

    def save(self, folder: str | Path) -> None:
        """Write both files into a model folder."""
        folder = Path(folder)
        save_weights(folder / NAMES, quantise(self.weights, exact=("centre", "spread")))
        self.table.save(folder)

    @torch.no_grad()
    def look(self, regions: Regions) -> Named:
        """
        Raises:
            MeshcapError: cells of another encoder.
        """
        if regions.features.shape[-1] != self.width:
            raise MeshcapError(
                f"the head for names reads {self.width} numbers a cell, not {regions.features.shape[-1]}"
            )
        pooled = _mean(regions)  # (B, D)
        own = self._weights_on(pooled.device)
        pooled = (pooled - own["centre"]) / own["spread"]
        names = pooled @ own["names.weight"].T + own["names.bias"]
        words = pooled @ own["words.weight"].T + own["words.bias"]
        return Named(names.softmax(-1), words.sigmoid())

    def _weights_on(self, device: torch.device) -> Mapping[str, Tensor]:
        if device not in self._weights:
            self._weights[device] = {name: one.to(device) for name, one in self.weights.items()}
        return self._weights[device]

    def tags(self, named: Named, picture: int, said: Sequence[Tag]) -> list[Tag]:
        """Keywords of a picture: what its captions name (`said`), what the head sees, and names.

        What captions do not name must be surer. What a name is mistaken for is as likely as the name is not there.
        """
        (chosen,) = self.choose(Named(*(one[picture : picture + 1] for one in named)))
        names, words = (one[picture].tolist() for one in named)
        known = {tag.name for tag in said}
        tags = [Tag(name, "name", p) for name, p in zip(self.table.names, names, strict=True) if p >= self.table.sure]
        things = [Tag(word, kind, p) for (word, kind), p in zip(self.table.words, words, strict=True)]
        doubted: set[str] = set()
        if chosen is not None:
            tags.append(Tag(chosen[0], "name", chosen[1]))
            kind = self.words[chosen[0]].kind
            doubted = {keyword(one) for one in (*kind.kin, *kind.plural_kin)} - {chosen[0], kind.word}
        for tag in (*said, *things):
            share = 1 - chosen[1] if chosen is not None and tag.name in doubted else 1.0
            if tag.name in known or share * tag.probability >= UNSAID:
                tags.append(replace(tag, probability=share * tag.probability))
        return tags

    def seen(self, named: Named, picture: int, words: Sequence[str]) -> float | None:
        """The mean log-probability of what a caption of the picture names; None: nothing that the head knows."""
        names, things = (one[picture].cpu() for one in named)
        found = []
        for word in dict.fromkeys(words):
            form, thing = self.forms.get(word), self.things.get(keyword(word))
            chances = [] if form is None else [float(names @ self.words[form].classes)]
            chances += [] if thing is None else [float(things[thing])]
            found += [math.log(max(*chances, LEAST_SEEN))] if chances else []
        return sum(found) / len(found) if found else None

    def trust(self, confidence: float, named: Named, picture: int, words: Sequence[str]) -> float:
        """The confidence in a caption of these words, with what the head sees."""
        seen = None if self.table.trust is None else self.seen(named, picture, words)
        if self.table.trust is None or seen is None:
            return confidence
        own, weight, offset = self.table.trust
        known = min(max(confidence, 1e-6), 1 - 1e-6)
        return 1 / (1 + math.exp(-(own * math.log(known / (1 - known)) + weight * seen + offset)))

    def choose(self, named: Named, but: Collection[str] = ()) -> list[tuple[str, float] | None]:
        """For each picture the word that captions may say: a name, or the word for its kind; and its probability.

        Words of `but` are not chosen: of a name, its kind may be.
        """
        said = named.names.cpu() @ self.said  # (B, S)
        kinds = said @ self.of_kind  # (B, kinds)
        said[:, [place for place, (word, _, _) in enumerate(self.table.said) if word in but]] = 0
        broad = ["" if kind.word in but else kind.word for kind in self.table.kinds.values()]
        chosen: list[tuple[str, float] | None] = []
        best = (*said.max(-1), *kinds.max(-1))
        for by_name, name, by_kind, kind in zip(*(one.tolist() for one in best), strict=True):
            if by_name >= self.table.sure:
                chosen.append((self.table.said[name][0], by_name))
            elif broad[kind] and by_kind >= self.table.sure_of_kind:
                chosen.append((broad[kind], by_kind))
            else:
                chosen.append(None)
        return chosen

    def read(self, named: Named, form: str) -> Reading:
        """What the head saw in the first picture of a word that captions say of it, in the singular or the plural."""
        word = self.forms[form]
        likely = named.names[0].cpu() * self.words[word].classes
        (chosen,) = self.choose(Named(*(one[:1] for one in named)))
        probability = chosen[1] if chosen is not None and chosen[0] == word else float(likely.sum())
        best = likely.topk(min(READ, int((likely >= SEEN).sum())))
        names = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return Reading(word, probability, tuple((self.table.names[place], chance) for place, chance in names))

    def extension(
        self,
        named: Named,
        vocabulary: Vocabulary,
        *,
        but: Sequence[str] = (),
        where: Sequence[bool] | None = None,
        must: Sequence[str] = (),
        must_not: Sequence[str] = (),
    ) -> Extension | None:
        """Words that a search over these pictures may say beside its own; None: there are none.

        Each comes in the singular and in the plural, and takes its probability as a share of that of its kin.

        Args:
            but: words that are left out: something else says them already.
            where: of each picture, whether it may be named; all may, unless told.
            must: of the options; a name in it may be said whatever its probability.
            must_not: of the options; a name in it is not said, nor its plural unless that is in `must`.
        """
        asked = self.among(must, vocabulary)
        phrases = [phrase for entry in must_not for phrase in entry.split("|")]
        avoided = {form for phrase in phrases if (form := self._form(phrase, vocabulary)) is not None}
        avoided |= {self.words[one].plural for one in avoided if one in self.words} - asked
        chosen = self.choose(named, avoided)
        if where is not None:
            chosen = [one if may else None for one, may in zip(chosen, where, strict=True)]
        new = {self.forms[form] for form in asked if form not in vocabulary}
        receivers, among, rows = list[str](), list[list[int]](), list[list[float]]()
        for word in dict.fromkeys((*(one[0] for one in chosen if one is not None), *sorted(new))):
            plural, kind, classes = self.words[word]
            row = [one[1] if one is not None and one[0] == word else 0.0 for one in chosen]
            if word in new:
                likely = (named.names.cpu() @ classes).tolist()
                row = [share or max(LEAST_ASKED, probability) for share, probability in zip(row, likely, strict=True)]
            plural_kin = [one for one in kind.plural_kin if one not in kind.kin]  # "sheep" is both, and gives once
            if plural in asked:
                plural_kin = plural_kin or list(kind.kin)
            for form, kin in ((word, kind.kin), (plural, plural_kin)):
                ids = [vocabulary.id(one) for one in kin if one in vocabulary and one not in (word, plural)]
                if ids and form not in (*receivers, *but, *avoided):
                    receivers.append(form)
                    among.append(ids)
                    rows.append(row)
        if not receivers:
            return None
        # A word of the vocabulary that was asked for takes its share itself, others are words for the moment.
        words = [form for form in receivers if form not in asked or form not in vocabulary]
        known = len(vocabulary)
        ids = [known + words.index(form) if form in words else vocabulary.id(form) for form in receivers]
        shares = Shares(tuple(ids), tuple(map(tuple, among)), fitting(torch.tensor(rows).T, among))
        return Extension(tuple(words), tuple(self._stand_in(form, vocabulary) for form in words), shares)

    def _stand_in(self, form: str, vocabulary: Vocabulary) -> int:
        if form in vocabulary:
            return vocabulary.id(form)
        kind = self.words[self.forms[form]].kind
        return vocabulary.id(kind.stand_in if form in self.words else kind.plural_stand_in)

    def among(self, entries: Sequence[str], vocabulary: Vocabulary) -> set[str]:
        """What these entries of `must` have of words that the head may say, as it says them."""
        phrases = [phrase for entry in entries for phrase in entry.split("|")]
        found = [self._form(one, vocabulary) for phrase in phrases for one in (phrase, *vocabulary.tokens(phrase))]
        return {one for one in found if one is not None}

    def _form(self, phrase: str, vocabulary: Vocabulary) -> str | None:
        phrase = " ".join(vocabulary.tokens(phrase))
        return phrase if phrase in self.forms else None

    def plurals(self) -> dict[str, str]:
        """The plural of every word that `extension` may give."""
        return {word: one.plural for word, one in self.words.items()}


def fitting(share: Tensor, kin: Sequence[Sequence[int]]) -> Tensor:
    """Shares (B, S), scaled down where all together would take more of a word than it has."""
    among = {one: place for place, one in enumerate(sorted({one for ids in kin for one in ids}))}
    member = torch.zeros(len(kin), len(among))
    for row, ids in enumerate(kin):
        member[row, [among[one] for one in ids]] = 1
    return share / (share @ member).amax(1, keepdim=True).clamp_min(1)


def _mean(regions: Regions) -> Tensor:
    """The mean of the cells that are there: (B, D)."""
    features = regions.features.float()
    if regions.mask is None:
        return features.mean(1)
    there = regions.mask[..., None].float()
    return (features * there).sum(1) / there.sum(1).clamp_min(1)


def agree(
    words: Sequence[str], places: Sequence[int], plurals: Mapping[str, str], kept: Collection[str] = ()
) -> dict[int, str]:
    """Words at these places in the number that the words before them ask for: "a camels" as "a camel".

    Plurals of `kept` stay: the article before them is empty instead.
    """
    singular = {plural: word for word, plural in plurals.items()}
    found: dict[int, str] = {}
    for place in places:
        for before in range(place - 1, max(-1, place - 5), -1):
            if words[before] in ("a", "an", "one"):
                alone = singular.get(words[place], words[place])
                found |= {before: ""} if words[place] in kept and alone != words[place] else {place: alone}
                break
            if words[before] in ("of", "two", "three", "four", "five", "several", "some", "many", "are"):
                found[place] = plurals.get(words[place], words[place])
                break
    return found
