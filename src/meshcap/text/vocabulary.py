"""Vocabulary: words to ids and back, kept in a JSON file that Hugging Face `tokenizers` reads too.

- The file is a `WordLevel` tokenizer with a `WhitespaceSplit` pre-tokenizer. It is written and read here as plain JSON,
  so that neither torch nor `tokenizers` is needed to turn ids into words.
- The four special words may have any ids; `Vocabulary.build` gives them 0-3, as the public M² does.
- A word may hold whitespace: the public M² has six such words, and their ids must keep their rows in the embedding.
  `build` refuses them, because there they mean that somebody passed sentences instead of tokens.
"""

from __future__ import annotations

import difflib
import json
import os
import reprlib
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, cast

from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.text.sentence import full_stop, join_words
from meshcap.text.tokenizers import TOKENIZERS, get_tokenizer

SPECIAL = ("<unk>", "<pad>", "<bos>", "<eos>")
LARGEST_FILE = 64 * 2**20  # bytes; the public vocabulary is 0.6 MB, so a larger file is a mistake or an attack
# Where the tokenizer's name lives. `tokenizers` refuses unknown keys at the top of its file, and drops those inside
# `model` by accident only; a pre-tokenizer ignores them by rule. A file saved again by `tokenizers` loses the key and
# reads as the default, "ptb".
NAME_KEY = "meshcap_tokenizer"


@dataclass(frozen=True)
class Coverage:
    """How much of some captions a vocabulary knows."""

    tokens: int
    unknown: int
    most_common_unknown: list[tuple[str, int]]

    @property
    def share(self) -> float:
        """The part of the tokens that is unknown, 0-1."""
        return self.unknown / self.tokens if self.tokens else 0.0


class Vocabulary:
    """Words with ids 0, 1, 2, … and the name of the tokenizer that makes such words from a sentence.

    Raises:
        MeshcapError: a word twice, an empty word, one that UTF-8 cannot hold, a special word missing.
    """

    def __init__(self, words: Iterable[str], *, tokenizer: str = "ptb") -> None:
        self._words = list(words)
        self._ids: dict[str, int] = {}
        for number, word in enumerate(self._words):
            if not isinstance(word, str) or not word:
                raise MeshcapError(f"word {number} is {reprlib.repr(word)}, expected a string that is not empty")
            if word in self._ids:
                raise MeshcapError(f"{reprlib.repr(word)} has two ids, {self._ids[word]} and {number}, expected one")
            try:
                word.encode()
            except UnicodeEncodeError:
                raise MeshcapError(f"word {number} is {reprlib.repr(word)}, which UTF-8 cannot hold") from None
            self._ids[word] = number
        missing = [word for word in SPECIAL if word not in self._ids]
        if missing:
            raise MeshcapError(f"the special words {' '.join(missing)} are missing, expected {' '.join(SPECIAL)}")
        if tokenizer not in TOKENIZERS:
            raise MeshcapError(f"tokenizer is {reprlib.repr(tokenizer)}, expected one of {', '.join(TOKENIZERS)}")
        self.tokenizer = tokenizer
        self.unk, self.pad, self.bos, self.eos = (self._ids[word] for word in SPECIAL)

    @classmethod
    def build(
        cls,
        token_lists: Iterable[Sequence[str]],
        minimum: int = 5,
        limit: int | None = None,
        *,
        tokenizer: str = "ptb",
    ) -> Vocabulary:
        """The special words, then every word seen `minimum` times: most frequent first, equals in code-point order.

        `limit` keeps only that many words beside the special ones. Special words inside the captions are not counted.

        Raises:
            MeshcapError: a caption that is a string, a token that holds whitespace, no word frequent enough.
        """
        counts = _count(token_lists)
        for word in SPECIAL:
            counts.pop(word, None)
        for word in counts:
            if word.split() != [word]:
                raise MeshcapError(f"token {reprlib.repr(word)} is not one word, expected captions split into tokens")
        kept = sorted((word for word in counts if counts[word] >= minimum), key=lambda word: (-counts[word], word))
        if limit is not None:
            kept = kept[: max(0, limit)]
        if not kept:
            raise MeshcapError(
                f"{len(counts)} different words, none kept with minimum {minimum} and limit {limit}: "
                "give more captions, a lower minimum or a higher limit"
            )
        return cls([*SPECIAL, *kept], tokenizer=tokenizer)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read what `save` wrote, or any WordLevel file of `tokenizers` that has the four special words.

        Raises:
            MeshcapError: a file that cannot be read, is not JSON, or holds no complete word-level vocabulary.
        """
        raw = read_bytes(path)
        try:
            return from_tokenizers(parse_json(raw))
        except MeshcapError as error:
            raise MeshcapError(f"vocabulary {os.fspath(path)!r}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write beside `path`, then rename: a reader sees the old file or the new one, never half of one."""
        text = json.dumps(self._as_tokenizers(), ensure_ascii=False, indent=2) + "\n"
        write_text(Path(path), text)

    def extended(self, words: Sequence[str]) -> Vocabulary:
        """The same with words for the moment, whose ids go on after its own. Capitals of a name need not be given.

        A word that it has already keeps its id, and the new id is another way of saying it.
        """
        if not words:
            return self
        larger = copy(self)
        added: dict[str, int] = {}
        for place, word in enumerate(words, len(self)):
            added.setdefault(word, place)
            added.setdefault(word.lower(), place)
        larger._words = [*self._words, *words]
        larger._ids = cast("dict[str, int]", ChainMap(self._ids, added))
        return larger

    @property
    def words(self) -> list[str]:
        """All words in id order (a copy)."""
        return list(self._words)

    @property
    def metadata(self) -> dict[str, str]:
        """What the file holds beside the words."""
        return {"tokenizer": self.tokenizer}

    @property
    def english(self) -> bool:
        """Whether what is known of English holds: endings, articles, plurals, keywords. `ptb` splits nothing else."""
        return self.tokenizer == "ptb"

    def __len__(self) -> int:
        return len(self._words)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and word in self._ids

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self._words == other._words and self.tokenizer == other.tokenizer

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words, tokenizer={self.tokenizer!r})"

    def id(self, word: str) -> int:
        """The id of a word, that of `<unk>` where the word is unknown (`ids_of` is the strict one)."""
        return self._ids.get(word, self.unk)

    def word(self, id: int) -> str:
        """The word of an id (an int, or a 0-d integer tensor)."""
        number = index(id)
        if not 0 <= number < len(self._words):
            raise MeshcapError(f"id {number} is outside this vocabulary, expected 0-{len(self._words) - 1}")
        return self._words[number]

    def tokens(self, caption: str) -> list[str]:
        """Split a caption as the captions were that this vocabulary was built from: `encode(tokens(caption))`."""
        return get_tokenizer(self.tokenizer)(caption)

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Ids of tokens, unknown ones as `<unk>`. Adds no `<bos>` or `<eos>`."""
        _refuse_string(tokens)
        return [self._ids.get(token, self.unk) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words up to the first `<eos>`, without `<pad>` and `<bos>`."""
        return self._spoken(map(self.word, ids))

    def ids_of(self, words: Iterable[str], *, purpose: str = "") -> list[int]:
        """Ids of words that a person asked for: a word that captions cannot hold is a mistake to tell, not `<unk>`.

        `purpose` says in the message what the words were for ("to ban", "to force").

        Raises:
            MeshcapError: names the first unknown word and the known ones nearest to it.
        """
        _refuse_string(words)
        words = list(words)
        for word in words:
            if word not in self._ids:
                near = difflib.get_close_matches(word.lower(), self._ids, n=3)
                hint = f"nearest known: {', '.join(near)}" if near else "no known word is near"
                wanted = f"{reprlib.repr(word)} {purpose}".rstrip()
                raise MeshcapError(f"unknown word {wanted}: this vocabulary has {len(self)} words, {hint}")
        return [self._ids[word] for word in words]

    def report(self, token_lists: Iterable[Sequence[str]], most_common: int = 10) -> Coverage:
        """How many tokens of these captions would be encoded as `<unk>`, and which most often."""
        counts = _count(token_lists)
        unknown = {word: count for word, count in counts.items() if self.id(word) == self.unk}
        worst = sorted(unknown.items(), key=lambda item: (-item[1], item[0]))[:most_common]
        return Coverage(counts.total(), sum(unknown.values()), worst)

    def sentence(self, ids_or_words: Iterable[int] | Iterable[str]) -> str:
        """As a person would write it: capital letter, no gaps before commas, "do n't" as "don't".

        English ends in a full stop where `<eos>` was said: a caption that was cut off has none.
        """
        _refuse_string(ids_or_words)
        given: list[Any] = list(ids_or_words)
        words = given if all(isinstance(one, str) for one in given) else [self.word(one) for one in given]
        text = join_words(self._spoken(words), self.tokenizer)
        return full_stop(text, self.tokenizer) if SPECIAL[3] in words else text

    @staticmethod
    def _spoken(words: Iterable[str]) -> list[str]:
        _, pad, bos, eos = SPECIAL
        spoken = []
        for word in words:
            if word == eos:
                break
            if word not in (pad, bos):
                spoken.append(word)
        return spoken

    def _as_tokenizers(self) -> dict[str, Any]:
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            # Repeated here as "special", so that the decode() of `tokenizers` leaves them out.
            "added_tokens": [{"id": self._ids[word], "content": word, **flags} for word in SPECIAL],
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit", NAME_KEY: self.tokenizer},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": self._ids, "unk_token": SPECIAL[0]},
        }


def _refuse_string(tokens: object) -> None:
    # A string is a sequence of strings, so this mistake would pass silently, letter by letter.
    if isinstance(tokens, str):
        raise MeshcapError(f"{reprlib.repr(tokens)} is a string, expected a list of words: tokenize it first")


def _count(token_lists: Iterable[Sequence[str]]) -> Counter[str]:
    _refuse_string(token_lists)
    counts: Counter[str] = Counter()
    for tokens in token_lists:
        _refuse_string(tokens)
        counts.update(tokens)
    return counts


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """A small file's bytes, with one-line errors."""
    shown = f"vocabulary {os.fspath(path)!r}"
    try:
        if not Path(path).is_file():  # also keeps out pipes and devices, which may never end
            what = "is not a file" if Path(path).exists() else "does not exist"
            raise MeshcapError(f"{shown} {what}, expected the path of a vocabulary file")
        with open(path, "rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise MeshcapError(f"{shown} cannot be read: {error.strerror}") from None
    if len(raw) > LARGEST_FILE:
        raise MeshcapError(f"{shown} is larger than {LARGEST_FILE // 2**20} MB, which no vocabulary is")
    return raw


def parse_json(raw: bytes) -> object:
    """JSON, or a MeshcapError whatever is wrong with it."""
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise MeshcapError(f"is not JSON ({error})") from None


def in_id_order(ids: Mapping[str, object]) -> list[str]:
    """The words of a word -> id table.

    Raises:
        MeshcapError: an id that is no whole number, an id given twice, a gap in the ids.
    """
    words: dict[int, str] = {}
    for word, id in ids.items():
        if not isinstance(id, int) or isinstance(id, bool):
            raise MeshcapError(f"{reprlib.repr(word)} has the id {reprlib.repr(id)}, expected a whole number")
        if id in words:
            raise MeshcapError(f"{reprlib.repr(words[id])} and {reprlib.repr(word)} share id {id}, expected one each")
        words[id] = word
    for id in range(len(words)):
        if id not in words:
            raise MeshcapError(f"no word has id {id}, expected ids 0-{len(words) - 1} for {len(words)} words")
    return [words[id] for id in range(len(words))]


def from_tokenizers(data: object) -> Vocabulary:
    """The vocabulary inside the parsed JSON of a WordLevel `tokenizers` file."""
    model = data.get("model") if isinstance(data, dict) else None
    kind = model.get("type", "WordLevel") if isinstance(model, dict) else None
    table = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(data, dict) or kind != "WordLevel" or not isinstance(table, dict):
        found = f"a {reprlib.repr(kind)} model" if kind not in (None, "WordLevel") else "JSON without one"
        raise MeshcapError(f"expected a word-level vocabulary as `tokenizers` saves it, found {found}")
    ids = dict(table)
    added = data.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        # Tokens added to a finished tokenizer stand only here; those of the model are repeated, and the model decides.
        if isinstance(token, dict) and isinstance(token.get("content"), str):
            ids.setdefault(token["content"], token.get("id"))
    splitter = data.get("pre_tokenizer")
    name = splitter.get(NAME_KEY, "ptb") if isinstance(splitter, dict) else "ptb"
    return Vocabulary(in_id_order(ids), tokenizer=name)
