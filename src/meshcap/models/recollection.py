"""From what a store remembers to what a search reads: which captions, which new words, whose names.

A store gives, for each picture, the nearest entries with their similarities, captions and names. Of these

- entries below `least_similarity` are left out: a picture without near ones is captioned as without a store;
- words that the vocabulary lacks become words for the moment, where half of the entries have them and more than one,
  or one that is as near as `name_similarity`: a word for something else would be said of this picture, too;
- a name counts where the picture is as like the mean of those that have it (`memory.store.Likenesses`) as
  `name_similarity`, or nearly the same as one of them. Then it takes the place of the word for its kind ("a dog on the
  sofa" becomes "Rex on the sofa"). Captions with other names are left out: a stranger gets nobody's name.

`stand_ins` asks the captioner itself what it would say in the place of a new word: that is how the word is read back,
and for a name, the kind whose place it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from meshcap.attention import State
from meshcap.models.m2 import M2
from meshcap.models.memory_level import Memories, MemoryConfig, pack_memories
from meshcap.text import Vocabulary

WORDS = 16  # of a remembered caption that are read
ADJECTIVES, KINDS = 8, 4  # words before what somebody is called, and what that may be
KIN = 0.3  # of the likeliest's probability, the least of others whose place a name takes
READ = ("levels", "visible")  # of encoded pictures, what is not made of the rest
SAME = 0.95  # similarity of two pictures that show the same, whatever else is known by their names
ARTICLES = ("a", "an", "the")
# Who a name may belong to is said in many ways, and the captioner may waver between them.
PEOPLE = "man woman boy girl person child kid guy lady gentleman toddler baby female male".split()


class Remembered(Protocol):
    """A remembered picture, as a store gives it."""

    @property
    def similarity(self) -> float: ...
    @property
    def captions(self) -> Sequence[str]: ...
    @property
    def names(self) -> Sequence[str]: ...


class Recalled(NamedTuple):
    """One caption that is read."""

    ids: list[int]  # from V on: words for the moment
    similarity: float
    rank: int  # of its entry among the nearest
    text: str


@dataclass(frozen=True)
class Recollection:
    """What is read for each of B pictures, and the words for the moment in it."""

    captions: list[list[Recalled]]
    entries: list[list[Any]]  # the neighbours that the captions belong to, by rank
    words: tuple[str, ...]
    proper: tuple[bool, ...]  # which of the words are names
    names: list[tuple[int, ...]]  # of each picture, the words that are names of what is likely in it
    vocabulary: Vocabulary

    def __bool__(self) -> bool:
        return any(self.captions) or any(self.names)

    def memories(self, stand_in: Sequence[int], config: MemoryConfig) -> Memories:
        rows = [[(one.ids, one.similarity, one.rank) for one in picture] for picture in self.captions]
        return pack_memories(rows, stand_in, pad=config.pad, most=config.captions)


def recollect(
    found: Sequence[Sequence[Remembered]],
    vocabulary: Vocabulary,
    config: MemoryConfig,
    named: Sequence[Sequence[tuple[str, float]]],
) -> Recollection | None:
    """What a store found for B pictures, as a search reads it; None where nothing is near.

    Args:
        named: for each picture, how like it is to those of a name.
    """
    new: dict[tuple[str, bool], int] = {}
    captions, entries, names = [], [], []
    for neighbours, likenesses in zip(found, named, strict=True):
        near = [one for one in neighbours if one.similarity >= config.least_similarity][: config.entries]
        who = _names_of(near, likenesses, config.name_similarity)
        common = _common(near, vocabulary, config.name_similarity)
        read: list[Recalled] = []
        each = max(1, config.captions // max(1, len(near)))
        for rank, one in enumerate(near):
            texts = [text for text in one.captions if set(one.names) <= who.keys() or not _names_in(text, one.names)]
            for text in texts[: min(each, config.captions - len(read))]:
                spoken = _words(text, [name for name in one.names if name in who], vocabulary)
                spoken = [word for word in spoken if isinstance(word, int) or word[1] or word[0].lower() in common]
                if spoken:  # only what is read becomes a word for the moment
                    known = len(vocabulary)
                    ids = [word if isinstance(word, int) else _new(word, new, known) for word in spoken[:WORDS]]
                    read.append(Recalled(ids, one.similarity, rank, text))
        captions.append(read)
        entries.append(near)
        names.append(tuple(_new((name, True), new, len(vocabulary)) for name in who))
    words = tuple(word for word, _ in new)
    recollection = Recollection(captions, entries, words, tuple(proper for _, proper in new), names, vocabulary)
    return recollection or None


def _names_of(near: Sequence[Remembered], likenesses: Sequence[tuple[str, float]], least: float) -> dict[str, None]:
    """Who is in a picture: the likeliest, and those who are as likely and have been seen with them."""
    like = dict(likenesses)
    for one in near:
        if one.similarity >= SAME:
            like |= {name: max(one.similarity, like.get(name, 0.0)) for name in one.names}
    likely = sorted((name for name, similarity in like.items() if similarity >= least), key=lambda name: -like[name])
    with_them = {name for one in near if likely and likely[0] in one.names for name in one.names}
    return dict.fromkeys(name for name in likely if name == likely[0] or name in with_them)


def _common(near: Sequence[Remembered], vocabulary: Vocabulary, least: float) -> set[str]:
    """New words that half of the entries have, or one that is as near as a name has to be."""
    seen: Counter[str] = Counter()
    for one in near:
        seen.update({token for text in one.captions for token in vocabulary.tokens(text) if token not in vocabulary})
    close = (text for one in near if one.similarity >= least for text in one.captions)
    return {word for word, count in seen.items() if count >= max(2, len(near) / 2)} | {
        token for text in close for token in vocabulary.tokens(text)
    }


def _new(word: tuple[str, bool], new: dict[tuple[str, bool], int], known: int) -> int:
    return new.setdefault(word, known + len(new))


def _names_in(text: str, names: Iterable[str]) -> bool:
    return any(name.lower() in text.lower() for name in names)


def _words(text: str, names: Sequence[str], vocabulary: Vocabulary) -> list[int | tuple[str, bool]]:
    """The words of a caption: ids, or what the vocabulary lacks and whether it is a name.

    A name is one word, with an article before it, as its kind would have one.
    """
    tokens = vocabulary.tokens(text)
    as_tokens = {tuple(vocabulary.tokens(name)): name for name in names}
    ids: list[int | tuple[str, bool]] = []
    at = 0
    while at < len(tokens):
        length = next((len(one) for one in as_tokens if one and tuple(tokens[at : at + len(one)]) == one), 0)
        if length:
            if "a" in vocabulary and (not at or tokens[at - 1] not in ARTICLES):
                ids.append(vocabulary.id("a"))
            ids.append((as_tokens[tuple(tokens[at : at + length])], True))
        elif tokens[at] in vocabulary:
            ids.append(vocabulary.id(tokens[at]))
        elif any(map(str.isalpha, tokens[at])):
            ids.append((_spelled(tokens[at], text), False))
        at += max(1, length)
    return ids


def _spelled(token: str, text: str) -> str:
    """A token as it was written: with capitals, where they are not those of a sentence's beginning."""
    written = [one.strip(".,;:!?\"'()[]") for one in text.split()]
    found = next((one for one in written[1:] if one.lower() == token), token)
    return found if found != found.upper() or len(found) < 2 else token


@torch.no_grad()
def stand_ins(
    model: M2, encoded: State, recollection: Recollection, nouns: Tensor
) -> tuple[list[int], list[tuple[int, ...]]]:
    """For each word for the moment a word of the vocabulary that the captioner would say in its place, and its kin.

    Args:
        encoded: the pictures, as the model encodes them.
        nouns: (V,) which words name things: nothing else stands in for a name, or for what follows an article.
    """
    vocabulary = recollection.vocabulary
    places = _places(recollection, len(vocabulary))
    if not places:
        return [], []
    article, bos, pad = vocabulary.id("a"), vocabulary.bos, vocabulary.pad
    before = [[bos, article] if word is None else [bos, *_known(word, vocabulary)] for _, word in places]
    longest = min(max(map(len, before)), model.config.max_length)
    before = [one[-longest:] for one in before]
    # Words that begin alike, as two of one caption, are read together.
    asked: list[list[list[int]]] = [[] for _ in recollection.captions]  # of each picture
    at = torch.empty(len(places), 3, dtype=torch.long)  # of each word: its picture, what was asked of that, the place
    for word in sorted(range(len(places)), key=lambda word: -len(before[word])):
        picture, begun = places[word][0], before[word]
        rows = asked[picture]
        row = next((row for row, one in enumerate(rows) if one[: len(begun)] == begun), len(rows))
        rows += [begun] if row == len(rows) else []
        at[word] = torch.tensor((picture, row, len(begun) - 1))
    ids = torch.full((len(asked), max(map(len, asked)), longest), pad)
    for picture, rows in enumerate(asked):
        for row, begun in enumerate(rows):
            ids[picture, row, : len(begun)] = torch.tensor(begun)
    log_probs = model.read(encoded, ids.to(nouns.device))[tuple(at.to(nouns.device).T)]  # (E, V)
    articles = [vocabulary.id(word) for word in ARTICLES]
    log_probs[:, [*articles, vocabulary.eos, vocabulary.unk]] = float("-inf")
    after_article = torch.tensor([one[-1] in articles for one in before], device=nouns.device)
    only_nouns = after_article[:, None] & bool(nouns.any())
    best = log_probs.masked_fill(only_nouns & (nouns == 0), float("-inf")).argmax(-1).tolist()
    kin: list[tuple[int, ...]] = [(one,) for one in best]
    names = [word for word, (_, caption) in enumerate(places) if caption is None]
    if names and bool(nouns.any()):
        pictures = [places[word][0] for word in names]
        for word, found in zip(
            names, _kinds(model, encoded, pictures, log_probs[names], nouns, (bos, article)), strict=True
        ):
            best[word], kin[word] = found[0], tuple(found)
    people = {vocabulary.id(word) for word in PEOPLE if word in vocabulary}
    return best, [tuple(sorted(people)) if one in people else own for one, own in zip(best, kin, strict=True)]


def _kinds(
    model: M2, encoded: State, pictures: Sequence[int], log_probs: Tensor, nouns: Tensor, begun: tuple[int, int]
) -> list[list[int]]:
    """What the captioner would call who is in each picture, the likeliest first: "a dog", "a black dog".

    Args:
        log_probs: (n, V) of the word after `begun`.
    """
    first = log_probs.exp() * (nouns == 0)
    likely = first.topk(ADJECTIVES)  # (n, A)
    ids = torch.tensor(begun, device=nouns.device).expand(*likely.indices.shape, 2)
    ids = torch.cat((ids, likely.indices[..., None]), -1)  # (n, A, 3)
    at = torch.tensor(pictures, device=nouns.device)
    shown = {name: one[:, at] if name == "levels" else one[at] for name, one in encoded.items() if name in READ}
    second = model.read(shown, ids)[:, :, -1].exp()  # (n, A, V)
    share = (log_probs.exp() + (likely.values[..., None] * second).sum(1)) * (nouns > 0)
    found = []
    for row in share:
        best = row.topk(KINDS)
        found.append(
            [id for id, one in zip(*(t.tolist() for t in reversed(best)), strict=True) if one >= KIN * best[0][0]]
        )
    return found


def _places(recollection: Recollection, known: int) -> list[tuple[int, list[int] | None]]:
    """Of each word for the moment, a picture that it is remembered of, and the words before it; None of a name."""
    found: dict[int, tuple[int, list[int] | None]] = {}
    for picture, names in enumerate(recollection.names):
        for word in names:
            found.setdefault(word, (picture, None))
    for picture, captions in enumerate(recollection.captions):
        for one in captions:
            for at, word in enumerate(one.ids):
                if word >= known:
                    found.setdefault(word, (picture, None if recollection.proper[word - known] else one.ids[:at]))
    return [found[known + place] for place in range(len(recollection.words))]


def _known(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    return [one if one < len(vocabulary) else vocabulary.unk for one in ids]
