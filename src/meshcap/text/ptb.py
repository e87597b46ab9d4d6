"""Captions to words as coco-caption does it: Stanford's PTBTokenizer in lower case, then its punctuation list dropped.

- The tool is a longest-match lexer. `ptb_rules` holds its rules, `_lex` applies them.
- Hardly any rule looks past a space, so a caption is split at spaces and each piece is looked up in a table of pieces
  seen before. Only new pieces, and captions in which a rule does look past a space ("1 1/2-inch", "no. 5"), are lexed.
- Characters outside ASCII are lexed by their kind: rules run on the shape of a text, tokens are cut from the text.

Every caption gives exactly one list. Differences from the tool, all on purpose:

- Line breaks inside a caption (CR, vertical tab, form feed, U+2028, U+2029) are spaces, as coco-caption makes LF one.
  The tool ends a line at each of them, and every later caption gets the tokens of a neighbour.
- The tool marks a space inside a token by U+00A0 ("1\\xa01/2"). The metrics split there, and so do we.
- Letters that Unicode got after version 6 are letters; the tool throws them away. So it does with all characters
  outside the basic plane, emoji among them, and with rare symbols: these are left out here, too.
- Soft hyphens are left out before anything else, and HTML entities are known only by the usual names.
- No rule looks further than 500 characters; the tool may look at megabytes, and take hours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from meshcap.errors import MeshcapError
from meshcap.text.ptb_rules import DIGIT, GONE, HYPHEN, LETTER, MARK, NUMBERED, POINT, rules, shapes

MOST_PIECES = 2**17  # in the table; COCO's 616,767 captions have some 60,000 different ones
LONGEST_PIECE = 50  # longer ones do not come back
REACH = 500
# Marks among the tokens of a piece: the pieces around it matter; a number behind it does.
AROUND, BEHIND = "\n", "\f"

DROPPED = frozenset([*"'`.?!,:-;\"", "''", "``", "--", "..."])
# Brackets survive: the list of dropped punctuation has them in capitals, and is compared with lower-case tokens.
NAMES = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
NAMES |= {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
NAMES |= {"\x80": "$", "¤": "$", "₠": "$", "€": "$", "£": "#", "¢": "cents"}
ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&nbsp;": ".", "&mdash;": "-", "&ndash;": "-"}
PARTED = {whole: (whole[:3], whole[3:]) for whole in "cannot gonna gotta wanna gimme lemme".split()}
QUOTES = str.maketrans(
    dict.fromkeys("\x91‘‛‹", "`")
    | dict.fromkeys("\x92’›", "'")
    | dict.fromkeys("\x93“«", "``")
    | dict.fromkeys("\x94”»", "''")
)

# The last token of a piece is an initial, or "no" and its like: the next word says whether the full stop belongs to it.
_LOOKS_FURTHER = re.compile(rf"(?:[a-z]\.|{NUMBERED.replace(' ', '|')})$")
_NUMBERS_IN_A_ROW = re.compile(r"\d\)?[ \n\xa0]\d")  # fractions and telephone numbers hold spaces
_LINE_BREAKS = re.compile(r"[\n\r\v\f\u2028\u2029]")
_LONG = re.compile(f"[A-Za-z0-9{LETTER}{MARK}{DIGIT}]*")


def ptb_tokenize(caption: str) -> list[str]:
    """The words of one caption, as the tool gives them for a file with this one line."""
    return next(ptb_stream((caption,)))


def ptb_tokenize_all(captions: Iterable[str]) -> list[list[str]]:
    """The words of each caption, as the tool gives them for a file with these lines.

    The tool looks past the end of a line, and so does this: in "… the letter S." the full stop belongs to the S if the
    next caption begins with "Birds", and ends the sentence if it begins with "The". 22 of COCO's 616,767 captions are
    of this kind. No other caption depends on its neighbours.
    """
    return list(ptb_stream(captions))


def ptb_stream(captions: Iterable[str]) -> Iterator[list[str]]:
    """As `ptb_tokenize_all`, each list as soon as it is known.

    Raises:
        MeshcapError: a string instead of captions.
    """
    if isinstance(captions, str):
        raise MeshcapError("a string was given, expected several captions: put it into a list")
    tokens_of = _PIECES.__getitem__
    waiting: list[str] = []  # a caption that depends on the next one, and blank ones after it
    for caption in captions:
        if waiting:
            if not caption or caption.isspace():
                waiting.append(caption)
                continue
            yield from _with_next(waiting, caption)
            waiting = []
        tokens = list(chain.from_iterable(map(tokens_of, caption.split())))
        if AROUND in tokens:
            if caption.rstrip().endswith("."):
                waiting.append(caption)
                continue
            tokens = _lex(caption)
        elif BEHIND in tokens:
            in_a_row = _NUMBERS_IN_A_ROW.search(caption)
            tokens = _lex(caption) if in_a_row else [token for token in tokens if token != BEHIND]
        yield tokens
    if waiting:
        yield from _with_next(waiting, "")


def _with_next(waiting: list[str], following: str) -> Iterator[list[str]]:
    caption, *blank = waiting
    yield _lex(caption, f"\n{following[:REACH]}\n")
    for _ in blank:
        yield []


class _Pieces(dict[str, tuple[str, ...]]):
    """Piece of a caption -> its tokens. `AROUND` or `BEHIND` among them: they may be others beside other pieces."""

    def __missing__(self, piece: str) -> tuple[str, ...]:
        tokens: tuple[str, ...]
        if piece.isascii() and piece.isalpha():
            word = piece.lower()
            tokens = PARTED.get(word) or (word,)
        else:
            tokens = tuple(_lex(piece))
            # A tag may hold spaces.
            if "<" in piece or (piece[-1] == "." and tokens and _LOOKS_FURTHER.match(tokens[-1])):
                tokens += (AROUND,)
            elif piece[-1] == ")" or piece[-1].isdecimal():
                tokens += (BEHIND,)
        if len(piece) <= LONGEST_PIECE:
            if len(self) >= MOST_PIECES:
                self.clear()
            self[piece] = tokens
        return tokens


_PIECES = _Pieces()


def _lex(text: str, following: str = "\n\n") -> list[str]:
    """The tokens that are kept. `following` is what rules see behind the text."""
    text = _LINE_BREAKS.sub(" ", text)
    if "&" in text:
        text = text.replace("&amp;", "&").replace("&apos;", "'")
    shape = text + following
    if not shape.isascii():
        text = text.replace("\xad", "")
        shape = (text + following).translate(shapes())
    by_kind = rules()
    tokens: list[str] = []
    place, end = 0, len(text)
    while place < end:
        kind = _kind(shape[place])
        if kind == " ":
            place += 1
            continue
        furthest, stop, change = place, place + 1, "single"
        for match, does in by_kind[kind]:
            found = match(shape, place, place + REACH)
            if found and found.end() > furthest:
                furthest, stop, change = found.end(), found.end(1), does
        if stop == place + REACH:  # the rest of a very long word
            stop = _LONG.match(shape, stop).end()  # type: ignore[union-attr]  # it matches nothing, too
        token = text[place:stop]
        if change:
            token = _changed(token, shape[place], change)
        place = stop
        if token not in DROPPED:
            tokens += token.lower().split()
    return tokens


def _kind(character: str) -> str:
    """The key of the rules for tokens that begin so."""
    if character.isalpha() or character == MARK:
        return "a"
    if character.isdecimal():
        return "0"
    if character in "'’":
        return "'"
    return " " if character in " \t\n" else "<" if character == "<" else "."


def _changed(token: str, shape: str, change: str) -> str:
    match change:
        case "single" if token in NAMES:
            return NAMES[token]
        case "single":  # a character that no rule knows
            return "." if shape < " " or shape in (GONE, HYPHEN, POINT, "—", "\x7f") else token
        case "quotes":  # also it’s -> it 's
            return token.translate(QUOTES)
        case "initial":
            return token[0] if len(token) == 2 else token
        case "brackets":  # :) -> :-rrb-
            return token.replace("(", "-lrb-").replace(")", "-rrb-")
        case "entity":
            return ENTITIES.get(token.lower(), token)
    return "."  # which is dropped
