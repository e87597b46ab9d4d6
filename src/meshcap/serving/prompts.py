"""What of a prompt this server can honour, and answers as text or JSON.

A captioner takes options, not instructions. Programs that were made for chat models send prompts all the same, so a few
phrases of English are understood: how many captions, how many words, words to use or to avoid, keywords. The rest of a
prompt is ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshcap.caption import Caption
from meshcap.errors import MeshcapError
from meshcap.evaluation.content_words import FUNCTION_WORDS, stem
from meshcap.options import CaptionOptions
from meshcap.serving.limits import RefusalError
from meshcap.serving.service import Service

KEYWORDS, MOST_KEYWORDS = 10, 50  # unless a prompt says how many, and at most
MOST_CAPTIONS = 20
LONGEST = 4_000  # letters of a prompt that are read
DEPTH, FIELDS = 8, 1000  # of a JSON schema

_NAMES = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen".split()
_NUMBERS = {name: number for number, name in enumerate(_NAMES, 1)} | {"twenty": 20, "a single": 1}
_N = rf"(\d{{1,3}}|{'|'.join(_NUMBERS)})"
_LABELS = r"(?:key-?\s?words?|tags|labels?|hash-?tags)"
_RANGE = re.compile(rf"\b(?:between )?{_N} ?(?:-|–|to|and) ?{_N} words\b")
_LEAST = r"at least|minimum of|minimum|(?<!no )(?<!not )more than|no fewer than|no less than"
_BELOW = r"under|(?<!no )fewer than|(?<!no )less than|below"
_WORDS = re.compile(rf"(?:\b({_LEAST}) |\b({_BELOW}) |\b(exactly) )?\b{_N} words?\b")
_CAPTION_NOUNS = "captions|descriptions|alternatives|variants|variations|versions|suggestions|titles"
_CAPTIONS = re.compile(rf"\b{_N} (?:[\w-]{{1,30}} ){{0,2}}(?:{_CAPTION_NOUNS})\b")
_KEYWORDS = re.compile(rf"\b{_N} (?:[\w-]{{1,30}} ){{0,3}}{_LABELS}\b")
_ASKS_KEYWORDS = re.compile(rf"\b{_LABELS}\b")
_ASKS_CAPTION = re.compile(r"\b(captions?|describe|descriptions?|sentences?|alt[ -]text|titles?|summar(y|ise|ize))\b")
_NEGATED = re.compile(r"\b(no|not|never|without|avoid|don'?t|omit|exclude)\b")
_QUOTED = re.compile(r"[\"“'`‘]([^\"”'`’\n]{1,40})[\"”'`’]")
_ABOUT_WORDS = r"(?: using| saying)?(?: (?:the|any of|these|following))* ?(words?|terms?|phrases?)?:? ?"
_AVOID = re.compile(
    r"\b(?:avoid|without|omit|exclude|leave out|(?:do not|don't|never) (?:use|say|mention|include))" + _ABOUT_WORDS
)
_USE = re.compile(r"\b(?:use|using|includ(?:e|es|ing)|mention|contain(?:s|ing)?|with)" + _ABOUT_WORDS)


@dataclass(frozen=True)
class PromptRequest:
    """What a prompt asks for, as far as it can be had."""

    options: CaptionOptions
    keywords: int = 0  # how many; 0: none
    sentence: bool = True  # False: keywords alone
    schema: Mapping[str, Any] | None = None  # answer with JSON of this schema; without properties: of the usual ones


def read_prompt(
    prompt: str, service: Service, *, schema: Mapping[str, Any] | None = None, n: int = 1, max_words: int | None = None
) -> PromptRequest:
    """What a prompt asks for. A prompt can never be wrong: what cannot be had is ignored.

    Args:
        schema: of a JSON answer, if that is wanted.
        n, max_words: as the request's own fields say.

    Raises:
        RefusalError: 422: a schema of too many properties.
    """
    if schema is not None and _fields(schema, 0) > FIELDS:
        raise RefusalError(422, f"the schema has more than {FIELDS:,} properties: ask for fewer")
    text = " ".join(prompt[:LONGEST].split())
    lower = text.lower()
    most = service.captioner.backend.settings.max_length - 1
    given: dict[str, Any] = {"n": max([n, *(_number(found[1]) for found in _CAPTIONS.finditer(lower))])}
    given["n"] = min(given["n"], MOST_CAPTIONS)
    given |= _lengths(lower, most)
    if max_words is not None and 0 < max_words < given.get("max_words", most):
        given["max_words"] = max_words
    if given.get("min_words", 1) > given.get("max_words", most):
        del given["min_words"]
    asks, keywords = False, KEYWORDS
    for sentence in re.split(r"[.!?;\n]", lower):
        found = _ASKS_KEYWORDS.search(sentence)
        if found and not _NEGATED.search(sentence[: found.start()]):
            asks = True
            count = _KEYWORDS.search(sentence)
            keywords = min(_number(count[1]), MOST_KEYWORDS) if count else keywords
    asked = schema is not None and _mentions_list(schema, 0)
    if asks or asked:
        given["n"] = max(given["n"], 5)  # keywords come from several captions
    given |= _words(text, service, given)
    try:
        options = service.options(given)
        service.check(options)
    except MeshcapError:
        options = service.options({})
    return PromptRequest(
        options,
        keywords if asks or asked else 0,
        not asks or _ASKS_CAPTION.search(lower) is not None,
        schema,
    )


def _number(word: str) -> int:
    return max(1, int(word) if word.isdecimal() else _NUMBERS[word])


def _lengths(text: str, most: int) -> dict[str, int]:
    """Fewest and most words; what the model cannot reach anyhow is left out."""
    found = {}
    if range_ := _RANGE.search(text):
        found = {"min_words": _number(range_[1]), "max_words": _number(range_[2])}
    elif words := _WORDS.search(text):
        number = _number(words[4])
        if words[1]:
            found = {"min_words": number}
        elif words[2]:
            found = {"max_words": max(1, number - 1)}
        else:
            found = {"min_words": number, "max_words": number} if words[3] else {"max_words": number}
    return {name: value for name, value in found.items() if value < most}


def _words(text: str, service: Service, given: Mapping[str, Any]) -> dict[str, list[str]]:
    """Words to use and to avoid that the model knows, and that it can be told of together with the rest."""
    found: dict[str, list[str]] = {"must": [], "must_not": []}
    for sentence in re.split(r"(?<=[.!?;])\s", text):
        for name, pattern in (("must_not", _AVOID), ("must", _USE)):
            verb = pattern.search(sentence.lower())
            if verb is None:
                continue
            rest = sentence[verb.end() :]
            quoted = _QUOTED.findall(rest)
            if verb[1] or _QUOTED.match(rest):
                found[name] += quoted or re.split(r",\s*|\s+(?:and|or)\s+", rest.strip(" .!?;:"))
                break  # "do not use" holds "use"
    known: dict[str, list[str]] = {}
    for name, entries in found.items():
        for entry in entries[:8]:
            entry = " ".join(re.sub(r"[|,]", " ", entry).split())
            try:
                service.check(service.options({**given, **known, name: [*known.get(name, []), entry]}))
            except MeshcapError:
                continue
            known.setdefault(name, []).append(entry)
    return known


@dataclass(frozen=True)
class Keyword:
    name: str
    confidence: float


def keywords_of(caption: Caption, most: int) -> list[Keyword]:
    """The words of a caption and its alternatives that say something, each once, the surest first."""
    captions = [one for one in (caption, *caption.alternatives) if not one.withheld and one.words]
    if not captions:
        return []
    likely = [sum(one.log_probs) for one in captions]
    weights = [math.exp(one - max(likely)) for one in likely]
    shares: dict[str, float] = {}
    names: dict[str, str] = {}
    for one, weight in zip(captions, weights, strict=True):
        for word in dict.fromkeys(one.words):
            if word not in FUNCTION_WORDS and any(letter.isalpha() for letter in word):
                shares[stem(word)] = shares.get(stem(word), 0.0) + weight / sum(weights)
                names.setdefault(stem(word), word)
    ranked = sorted(shares, key=lambda key: -shares[key])[:most]
    return [Keyword(names[key], round(min(1.0, shares[key]) * caption.confidence, 4)) for key in ranked]


def answer(captions: Sequence[Caption], wanted: PromptRequest, *, n: int = 1) -> list[str]:
    """What is said of the pictures, `n` times where a client asked for several choices."""
    if wanted.schema is not None:
        found = [fill(wanted.schema, captions, wanted)] * n
        return [json.dumps(one, ensure_ascii=False) for one in found]
    if n > 1:
        said = [[one.text for one in (caption, *caption.alternatives)] for caption in captions]
        return [_lines([texts[min(at, len(texts) - 1)] for texts in said]) for at in range(min(n, max(map(len, said))))]
    return [_lines([_said(caption, wanted) for caption in captions])]


def _said(caption: Caption, wanted: PromptRequest) -> str:
    words = ", ".join(one.name for one in keywords_of(caption, wanted.keywords)) if wanted.keywords else ""
    if not wanted.sentence:
        return words
    count = wanted.options.n if not wanted.keywords else 1
    texts = [one.text for one in (caption, *caption.alternatives)[:count]]
    return "\n".join(texts) + (f"\n\nKeywords: {words}" if words else "")


def _lines(said: Sequence[str]) -> str:
    """One picture's answer as it is; those of several by their numbers."""
    return said[0] if len(said) == 1 else "\n".join(f"{at}. {one}" for at, one in enumerate(said, 1))


# JSON answers.

_CAPTION_NAMES = re.compile(r"caption|descri|title|text|summary|sentence|alt|response|answer|content")
_LIST_NAMES = re.compile(r"key-?_?words?|tags?|labels?|objects?|subjects?|categor|words")
USUAL = {"properties": {"caption": {"type": "string"}, "keywords": {"type": "array", "items": {"type": "string"}}}}
USUAL_LABELS = {"properties": {"labels": {"type": "array", "items": {"type": "object"}}}}


def _fields(schema: Any, depth: int) -> int:
    """How many properties an answer would have."""
    properties = schema.get("properties") if isinstance(schema, Mapping) and depth <= DEPTH else None
    inside = list(properties.values()) if isinstance(properties, Mapping) else []
    items = schema.get("items") if isinstance(schema, Mapping) and depth <= DEPTH else None
    return len(inside) + sum(_fields(one, depth + 1) for one in [*inside, items] if isinstance(one, Mapping))


def _mentions_list(schema: Any, depth: int) -> bool:
    """Whether a schema has a list, which keywords go into."""
    if not isinstance(schema, Mapping) or depth > DEPTH:
        return False
    properties = schema.get("properties")
    inside = properties.values() if isinstance(properties, Mapping) else ()
    return schema.get("type") == "array" or any(_mentions_list(one, depth + 1) for one in inside)


def fill(schema: Mapping[str, Any], captions: Sequence[Caption], wanted: PromptRequest) -> Any:
    """JSON of a schema: texts are captions, lists are keywords, and what is asked besides is empty.

    Without a schema of its own: labels with their confidence where labels are asked for, else caption and keywords.
    """
    if not isinstance(schema.get("properties"), Mapping) and schema.get("type") in (None, "object"):
        labels = wanted.keywords and not wanted.sentence
        plain = {"properties": {"caption": {"type": "string"}}}
        schema = USUAL_LABELS if labels else USUAL if wanted.keywords else plain
    return _filled(schema, "", captions, wanted, 0)


def _filled(schema: Any, name: str, captions: Sequence[Caption], wanted: PromptRequest, depth: int) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    kind = schema.get("type")
    kind = next((one for one in kind if one != "null"), None) if isinstance(kind, list) else kind
    properties = schema.get("properties")
    if depth <= DEPTH and isinstance(properties, Mapping):
        return {str(key): _filled(one, str(key), captions, wanted, depth + 1) for key, one in properties.items()}
    caption = captions[0]
    if kind == "array":
        items = schema.get("items")
        items = items if isinstance(items, Mapping) else {}
        if _CAPTION_NAMES.search(name.lower()) and not _LIST_NAMES.search(name.lower()):
            return [one.text for one in captions] if len(captions) > 1 else [
                one.text for one in (caption, *caption.alternatives)[: wanted.options.n]
            ]  # fmt: skip
        words = keywords_of(caption, wanted.keywords or KEYWORDS)
        if items.get("type") == "object" or isinstance(items.get("properties"), Mapping):
            return [_label(items, one) for one in words]
        return [one.name for one in words] if items.get("type") in (None, "string") else []
    if kind in ("number", "integer"):
        number = caption.confidence if re.search("confiden|score|probab", name.lower()) else 0.0
        return round(number, 4) if kind == "number" else int(number)
    if kind == "boolean":
        return False
    if kind in (None, "string") and "enum" not in schema:
        asked = not name or _CAPTION_NAMES.search(name.lower())
        if _LIST_NAMES.search(name.lower()) and not asked:
            return ", ".join(one.name for one in keywords_of(caption, wanted.keywords or KEYWORDS))
        return "\n".join(one.text for one in captions) if asked else ""
    return {} if kind == "object" else None


def _label(items: Mapping[str, Any], word: Keyword) -> dict[str, Any]:
    """A keyword as an object: its name, and how sure and how central it is."""
    properties = items.get("properties")
    names = list(properties) if isinstance(properties, Mapping) else ["name", "confidence", "topicality"]
    found: dict[str, Any] = {}
    for name in names:
        about = properties.get(name) if isinstance(properties, Mapping) else None
        kind = about.get("type") if isinstance(about, Mapping) else None
        if re.search("confiden|score|topical|probab|relevan|weight", name) and "nsfw" not in name:
            found[name] = word.confidence
        elif kind == "boolean":
            found[name] = False
        elif kind in ("number", "integer"):
            found[name] = 0
        elif kind in (None, "string"):
            found[name] = word.name if re.search("name|label|tag|keyword|word|text|title", name) else ""
        else:
            found[name] = [] if kind == "array" else None
    return found
