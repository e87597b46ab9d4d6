"""Vocabularies from elsewhere: the public M²'s `vocab.pkl`, JSON lists and tables, text files.

A pickle is a program. It is not run here, not even by a `pickle.Unpickler` with a filter on names: opcodes that reach
objects without asking the filter exist (the extension cache), `BUILD` writes on whatever stands on the stack, and a
memo index alone can make the C unpickler allocate gigabytes. Instead `pickletools.genops` splits the bytes, and the
few opcodes that a pickled vocabulary consists of are followed below on plain data. The names that may occur are marks,
not the objects that they name, so there is nothing to call.
"""

from __future__ import annotations

import os
import pickletools
import reprlib
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from meshcap.errors import MeshcapError
from meshcap.text.vocabulary import Vocabulary, from_tokenizers, in_id_order, parse_json, read_bytes

T = TypeVar("T")

MOST_STEPS = 5_000_000  # opcodes; the public file has 113,000. Bounds memory: one byte can make an object of 64


def read_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """Read a vocabulary in any form it is found in.

    A pickle of the public M² (`data.vocab.Vocab`), a JSON list of words in id order, a JSON table word -> id, this
    package's own `vocabulary.json`, or a text file with one word a line in id order. No code in the file is run.

    Raises:
        MeshcapError: a file that is none of these, asks for anything but plain data, or lacks a special word.
    """
    raw = read_bytes(path)
    suffix = Path(path).suffix.lower()
    try:
        # 0x80 opens every pickle since protocol 2, and never a UTF-8 text.
        if raw[:1] == b"\x80" or suffix in (".pkl", ".pickle"):
            return Vocabulary(_words_of_pickle(raw))
        if suffix == ".json":
            return _of_json(parse_json(raw))
        if suffix != ".txt":
            try:
                data = parse_json(raw)
            except MeshcapError:
                pass
            else:
                return _of_json(data)
        return Vocabulary(_words_of_text(raw))
    except MeshcapError as error:
        raise MeshcapError(f"vocabulary {os.fspath(path)!r}: {error}") from None


def _of_json(data: object) -> Vocabulary:
    if isinstance(data, list):
        return Vocabulary(data)
    if isinstance(data, dict) and isinstance(data.get("model"), dict):  # in a table "model" would be a word: an int
        return from_tokenizers(data)
    if isinstance(data, dict):
        return Vocabulary(in_id_order(data))
    raise MeshcapError(f"holds a JSON {type(data).__name__}, expected a list of words or a table word -> id")


def _words_of_text(raw: bytes) -> list[str]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MeshcapError("is neither a pickle, nor JSON, nor UTF-8 text with one word a line") from None
    # Not splitlines(): it also splits at characters that may stand inside a word.
    words = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    for number, word in enumerate(words, start=1):
        if word.split() != [word]:
            raise MeshcapError(f"line {number} is {reprlib.repr(word)}, expected one word a line and nothing else")
    return words


class _Name(Enum):
    """Every name that a pickled vocabulary may mention: marks that stand for the real things and can do nothing."""

    VOCAB = "data.vocab Vocab"
    UNKNOWN = "data.vocab _default_unk_index"
    COUNTER = "collections Counter"
    DEFAULTDICT = "collections defaultdict"


@dataclass(eq=False)
class _Vocab:
    """The pickled `Vocab` object, as the table of its attributes."""

    state: dict[str, Any] = field(default_factory=dict)


def _words_of_pickle(raw: bytes) -> list[str]:
    if raw[:1] != b"\x80":
        raise MeshcapError("is not a pickle of protocol 2 or later, expected the public M²'s vocab.pkl")
    try:
        found = _follow(raw)
    except MeshcapError:
        raise
    except Exception as error:  # a damaged pickle breaks in many ways, all with one meaning
        raise MeshcapError(f"is a damaged pickle ({type(error).__name__})") from None
    words = found.state.get("itos") if isinstance(found, _Vocab) else None
    if not isinstance(words, list):
        raise MeshcapError("is a pickle without the word list (`itos`) of the public M²'s Vocab")
    ids = found.state.get("stoi")
    if isinstance(ids, dict):
        # Only in this direction: looking up an unknown word in a defaultdict adds it, so `stoi` may hold more.
        for id, word in enumerate(words):
            if isinstance(word, str) and ids.get(word) != id:
                raise MeshcapError(f"{reprlib.repr(word)} is word {id} of `itos`, but `stoi` says otherwise")
    return words


def _follow(raw: bytes) -> Any:
    """What the pickle describes, made of plain data, `_Name` and `_Vocab`; any other opcode is refused."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def pop_to_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    argument: Any
    for step, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if step >= MOST_STEPS:
            raise MeshcapError(f"is a pickle of more than {MOST_STEPS:,} steps, which no vocabulary is")
        match opcode.name:
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8":
                stack.append(argument)
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "PROTO" | "FRAME":
                pass  # the version, and how much to read at once
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode.name == "NEWTRUE")
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [stack.pop() for _ in range(int(opcode.name[-1]))]
                stack.append(tuple(reversed(items)))
            case "APPEND":
                item = stack.pop()
                _plain(stack[-1], list).append(item)
            case "APPENDS":
                items = pop_to_mark()
                _plain(stack[-1], list).extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _fill(stack[-1], [key, value])
            case "SETITEMS":
                items = pop_to_mark()
                _fill(stack[-1], items)
            case "GLOBAL":
                stack.append(_allowed(argument))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_allowed(f"{_plain(module, str)} {_plain(name, str)}"))
            case "REDUCE" | "NEWOBJ":
                arguments, name = stack.pop(), stack.pop()
                stack.append(_made(opcode.name, name, arguments))
            case "BUILD":
                state = stack.pop()
                _plain(stack[-1], _Vocab).state.update(_plain(state, dict))
            case "STOP":
                return stack.pop()
            case other:
                raise MeshcapError(f"is a pickle with the opcode {other}, which no vocabulary needs: refused")
    raise MeshcapError("is a damaged pickle (it has no end)")


def _allowed(name: str) -> _Name:
    try:
        return _Name(name)
    except ValueError:
        raise MeshcapError(f"is a pickle that asks for {reprlib.repr(name)}, not a vocabulary's: refused") from None


def _plain(value: object, kind: type[T]) -> T:
    if type(value) is not kind:
        raise MeshcapError(f"is a pickle that uses a {type(value).__name__} as a {kind.__name__}: refused")
    return value


def _fill(table: object, items: list[Any]) -> None:
    keys, values = items[::2], items[1::2]
    _plain(table, dict).update(zip([_plain(key, str) for key in keys], values, strict=True))


def _made(opcode: str, name: object, arguments: object) -> object:
    """What calling a name would make, of the only calls that occur in a pickled vocabulary."""
    match opcode, name, _plain(arguments, tuple):
        case "NEWOBJ", _Name.VOCAB, ():
            return _Vocab()
        case "REDUCE", _Name.COUNTER, (dict() as counts,):
            return counts
        case "REDUCE", _Name.COUNTER | _Name.DEFAULTDICT, ():
            return {}
        case "REDUCE", _Name.DEFAULTDICT, (_Name.UNKNOWN,):
            return {}
    shown = name.value if isinstance(name, _Name) else type(name).__name__
    raise MeshcapError(f"is a pickle that calls {shown!r} in a way no vocabulary needs: refused")
