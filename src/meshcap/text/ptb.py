"""Captions to words as coco-caption does it: Stanford's PTBTokenizer in lower case, then its punctuation list dropped.

- The tool is a longest-match lexer. The first half of this file holds its rules, `_lex` applies them.
- Hardly any rule looks past a space, so a caption is split at spaces and each piece is looked up in a table of pieces
  seen before. Only new pieces, and captions in which a rule does look past a space ("1 1/2-inch", "no. 5"), are lexed.
- Characters outside ASCII are lexed by their kind: rules run on the shape of a text, tokens are cut from the text.

The rules say what PTBTokenizer of Stanford CoreNLP 3.4.1 does with -preserveLines -lowerCase. Each was settled by
running the tool: on every character of the basic plane, every word of up to five letters with a full stop, every short
one with an apostrophe, each ASCII character at each place of an address, and some million random strings.

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
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain

from meshcap.errors import MeshcapError

# Characters outside ASCII have a kind, and one of each kind stands for all of them in the shape that rules see.
LETTER, MARK, DIGIT, SYMBOL, HYPHEN, RAISED, POINT, SLASH, GONE = "é", "\u0301", "٠", "§", "‐", "²", "٫", "⁄", "\x01"
MARKS = """
    2c2-2c5 2d2-2df 2e5-2eb 2ed 2ef-36f 375 378-379 384-385 3f6 483-487 55a-55f 591-5bd 5bf 5c1-5c2 5c4-5c5 5c7 615-61a
    64b-65e 670 6d6-6e4 6e7-6ed 6fd-6fe 70f 711 730-74c 7a6-7b0 7eb-7f3 900-903 93c 93e-94e 951-955 962-963 981-983 9bc
    9be-9c4 9c7-9c8 9cb-9cd 9d7 9e2-9e3 a01-a03 a3c a3e-a4f a81-a83 abc abe-acf b82 bbe-bc2 bc6-bc8 bca-bcd c01-c03
    c3e-c56 d3e-d44 d46-d48 e31 e34-e3a e47-e4e eb1 eb4-ebc ec8-ecd
"""
SYMBOLS = """
    80 a1-a9 ac ae-b1 b4 b6-b8 bc-bf d7 f7 37e 387 589 5be 5c0 5c3 5c6 5f3-5f4 600-603 606-60c 614 61b 61e-61f 66a 66d
    6d4 700-70d 7f6-7f8 964-965 e3f e4f 1fbd 2016-2017 2020-2023 2030-2038 203b 203e-2042 207a-207e 208a-208e 20a0
    20a4 20ac 2100-2101 2103-2106 2108-2109 2114 2116-2118 211e-2123 2125 2127 2129 212e 213a-213b 2140-2144 214a-214d
    214f 2153-215e 2190-2bff 3001-3002 3012 30fb ff01-ff0f ff1a-ff20 ff3b-ff40 ff5b-ff65 ffe0-ffe1 ffe5-ffe6
"""
KINDS = {
    MARK: MARKS,
    SYMBOL: SYMBOLS,
    HYPHEN: "58a 2010-2011",
    RAISED: "b2-b3 b9 2070 2074-2079 2080-2089",
    POINT: "66b-66c",
    SLASH: "2044",
    "’": "92 2019",
    "‘": "91 2018 201b",
    "“": "93-94 ab bb 201a 201c-201f 2039-203a",  # all other quotation marks
    "—": "85 96-97 2013-2015 2026",  # dashes and the ellipsis, which are dropped
}

# Abbreviations keep their full stop: of months, days, states, companies, addresses;
PLACES = r"""
    al ala apr ariz assn aug bancorp bhd bldg blvd bros calif co colo conn corp cos ct dak dec ed\.d esq est etc ext feb
    fla fri ga inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont neb nev nov oct okla penn ph\.d
    plc pp?t[ey]s? rd rt sep sept seq sq sr sys tel tenn thu thurs tue tues univ va vt wed wis wisc wyo
"""
CAPITAL_PLACES = "ark az del ill la mass miss ore pa tex wash"  # words, too, when they begin with a small letter
# titles, and whatever else stands before a name;
TITLES = """
    adj adm adv alex assoc asst atty attys ave brig capt cf cie cmdr col comdr cpl dept det dr drs elec ens ft gen gov
    govs hon insp invt jos lieut lt maj messrs mfg mlle mme mr mrs ms msgr mt mtg natl pfc ph pres prof profs pvt rep
    reps rev sen sens sfc sgt spc st ste supt supts treas vs wm
"""
NUMBERED = "art ca fig figs no nos op pp prop"  # and these before a number.
# After one of these an initial is none: its full stop ends a sentence.
OPENERS = r"""
    A About According Additionally After An As At But Earlier He Her Here However If In It Last Many More Mr\. Ms\. Now
    Once One Other Our She Since So Some Such That The Their Then There These They This We What When While Yet You
"""
SUFFIXES = """
    c h x gz pl ps py bat bmp cgi cpp dll doc docx exe gif htm html jar java jpg jpeg mov mp3 pdf php png ppt sql tar
    txt wav xml zip
"""
# Words with an apostrophe that no rule explains.
APOSTROPHE_WORDS = r"""
    'n 'n' 'em 'til 'till 'cause '[2-9]0s d' j' l' ol' dunkin' somethin' c'est c'mon cap'n cont'd\. e'er ev'ry li'l
    nat'l nor'easter s'mores
"""


def _any(words: str) -> str:
    return f"(?:{'|'.join(sorted(words.split(), key=len, reverse=True))})"


def _capital(words: str) -> str:
    """Any of the words, its first letter a capital, the others in either case."""
    return _any(" ".join(f"{word[0].upper()}(?i:{word[1:]})" for word in words.split()))


L = f"A-Za-z{LETTER}"
D = f"0-9{DIGIT}"
A, B = "['’]", "['’`‘]"  # apostrophes; with those that people write instead
# No quantifier below gives back what it took where that could help no match: ++ and *+.
WORD = f"[{L}{MARK}][{L}{MARK}{D}]*+(?:[.!?][{L}{MARK}][{L}{MARK}{D}]*+)*+"  # wow!great is one
_LINK = f"(?:[dDlLoO]{B}[{L}{D}])?[{L}{D}]++"  # o'clock
COMPOUND = f"{_LINK}(?:[-_{HYPHEN}]{_LINK})*"
CAPITALS = "[A-Z]++(?:[&+][A-Z]++)+"  # AT&T
INITIALS = r"[A-Za-z](?:\.[A-Za-z])*"
WITH_POINTS = r"[A-Za-z0-9][A-Za-z0-9.,]*+(?:-(?:[A-Za-z](?:\.[A-Za-z])+\.|[A-Za-z0-9]+))+"  # U.S.-based, 3.5-inch
CLITIC = f"{A}(?i:s|m|d|re|ve|ll)"
NOT = f"(?i:n){B}(?i:t)"
NUMBER = f"(?:[{D}]*(?:[.:,{POINT}][{D}]++)++|[{D}]++)"
_NAME = "[A-Za-z][A-Za-z0-9_:.-]*+"
_ATTRIBUTE = rf" +{_NAME}(?: *= *(?:'[^'\n]*'|\"[^\"\n]*\"))?"
TAG = rf"<(?:[!?][A-Za-z-][^>\n]*|/{_NAME}|{_NAME}(?:{_ATTRIBUTE})* *+/?) *+>"
_ENDS = r" \t\n\"<>|()"  # an address goes on until one of these …
_PATH = rf"/[^{_ENDS}]{{2,}}(?<![.!?{{}},-])"  # … and does not end in punctuation
_HOST = rf"[a-z#%&*+~{GONE}\x80-\uffff]+"
_DOMAIN = rf"[^{_ENDS}{{}}.]+"
_HALF = r"[A-Za-z0-9]++(?:-[A-Za-z]++){0,2}"
_EYE = "[~^=x<>'-]"

# Where a rule may begin: a letter, 0 digit, ' or ’, < itself, . all others. What becomes of the token. What it
# takes, and what must follow. The rule that reaches furthest wins, what must follow included; else the earlier one.
RULES: list[tuple[str, str, str, str]] = [
    ("a", "", "(?i:can)", "(?i:not)"),
    ("a", "", "(?i:gon|wan)", "(?i:na)"),
    ("a", "", "(?i:got)", "(?i:ta)"),
    ("a", "", "(?i:gim|lem)", "(?i:me)"),
    ("'", "", "'(?i:t)", "(?i:is|was)"),
    ("<", "", TAG, ""),
    ("a", "", WORD, CLITIC),
    ("a", "", "[A-Za-z]+?(?<![nN])", NOT),
    ("a", "", WORD, ""),
    ("a'", "", f"(?i:{_any(APOSTROPHE_WORDS).replace(chr(39), A)})", ""),
    ("a", "", f"(?i:o{B}o)|(?![IY])[A-Zn]{B}[{L}]{{2,}}+", ""),  # K'nex
    ("a", "", f"[{L}]+[aeiouyAEIOUY]{B}[aeiouA-Z][{L}]*+", ""),  # ma'am
    ("a", "", r"(?i:c\+\+|c#|f#)", ""),
    ("a", "initial", rf"{INITIALS}\.", rf"\s+(?:{_capital(OPENERS)}|{TAG})\s"),
    ("a", "", f"(?i:y){A}", f"[{L}]"),  # y'all
    ("a", "", rf"(?i:https?)://[^{_ENDS}{{}}]{{2,}}(?<![.!?,-])", ""),
    ("a", "", rf"(?i:www)(?:\.[^{_ENDS}.!?{{}},]+)+\.[A-Za-z]{{2,4}}(?:{_PATH})?", ""),
    ("a0'.", "", rf"(?:{_HOST}\.)+(?i:com|net|org|edu)(?:{_PATH})?", ""),
    ("a0<", "", rf"<?[A-Za-z0-9][^{_ENDS}{{}}]*@{_DOMAIN}(?:\.{_DOMAIN})*>?", ""),
    (".", "", "@[A-Za-z_][A-Za-z_0-9]*+", ""),
    (".", "", f"#[{L}{MARK}]++", ""),
    ("'", "quotes", CLITIC, "[^A-Za-z]"),
    ("a", "quotes", NOT, "[^A-Za-z]"),
    ("'", "", "'", r"[A-Za-z][^ \t\n]"),  # an opening quotation mark
    ("'", "quotes", CLITIC, ""),
    ("0", "", f"[{D}]{{1,2}}[-/][{D}]{{1,2}}[-/][{D}]{{2,4}}", ""),
    ("0.", "", f"[-+]?{NUMBER}", ""),
    ("0", "", rf"(?:[{D}]{{1,4}}[- ])?[{D}]{{1,4}}(?:\\?/|{SLASH})[{D}]{{1,4}}", ""),
    ("a.", "", r"(?i:-[lr][rcs]b-|c\.d\.s|pro-|anti-|s&p-500|s&ls)", ""),
    ("'", "", f"{A}[0-9][0-9]", r"[ \t\n]"),
    ("a", "", rf"(?:(?i:{_any(PLACES)})|{_capital(CAPITAL_PLACES)})\.", r"[\s\S]{0,2}"),
    ("a", "", rf"(?:(?i:{_any(TITLES)})|{INITIALS})\.", ""),
    ("a", "", rf"(?i:{_any(NUMBERED)})\.", rf"[ \t\n]?[{D}]"),
    *(("a0", "", rf"{word}\.", "[,;:、]") for word in (WORD, COMPOUND, CAPITALS, WITH_POINTS)),
    (
        "0.",
        "brackets",
        r"(?:\([0-9]{2,3}\) ?|\+{0,2}(?:[0-9]{2,4}[- ]){1,2})[0-9]{3,4}[- ]?[0-9]{3,5}",
        "",
    ),  # telephone
    ("0.", "", r"(?:\+{0,2}[0-9]{2,4}\.)?[0-9]{2,4}\.[0-9]{3,4}\.[0-9]{3,5}", ""),
    ("a0", "", COMPOUND, ""),
    ("a", "", CAPITALS, ""),
    ("a0", "", rf"{_HALF}(?:\\?/{_HALF}){{1,2}}", ""),  # and/or
    ("a0", "", WITH_POINTS, ""),
    ("a0", "", rf"[{L}{D}]++(?:\.[{L}{D}]++)*\.(?i:{_any(SUFFIXES)})", r"[ \t\n.?!,]"),  # img5.jpg
    ("a.", "", r"[A-Z]*\$", ""),
    ("<.", "brackets", r"[<>]?[:;=]['*o-]?[@DOPdp(){|\\\[\]]", "[^A-Za-z0-9]"),  # :-)
    ("a'<.", "brackets", rf"{_EYE}_{_EYE}|\({_EYE}[_.]?{_EYE}\)|\((?!-){_EYE}-(?!-)(?:{_EYE}|`)\)", ""),  # ^_^
    (".", "entity", "&(?:(?i:lt|gt|quot|nbsp|mdash|ndash)|#[0-9]+);", ""),
    (".", "drop", r"\.{3,5}|-{1,4}", ""),
    (".", "", rf"-{{5,}}+|[!?]++|\*++|_++|#++|@++|>>|(?:\\\*){{1,3}}|{RAISED}++", ""),
    ("'<", "", "''|<<", ""),
    ("'.", "quotes", "[’‘“`]{1,2}", ""),
]

Match = Callable[[str, int, int], re.Match[str] | None]


@cache  # compiled when first needed: `meshcap --help` need not wait for it
def rules() -> dict[str, list[tuple[Match, str]]]:
    """Where a rule may begin -> the rules, each with what becomes of its token. Group 1 of a match is the token."""
    compiled = [
        (starts, re.compile(f"({takes})(?:{follows})").match, change) for starts, change, takes, follows in RULES
    ]
    return {kind: [(match, change) for starts, match, change in compiled if kind in starts] for kind in "a0'<."}


class Shapes(dict[int, str]):
    """Code point -> the character that stands for it, for `str.translate`."""

    def __init__(self) -> None:
        super().__init__((point, chr(point)) for point in range(0x80))
        for shape, ranges in KINDS.items():
            for part in ranges.split():
                first, _, last = part.partition("-")
                self.update(dict.fromkeys(range(int(first, 16), int(last or first, 16) + 1), shape))

    def __missing__(self, point: int) -> str:
        character, shape = chr(point), GONE
        if point <= 0xFFFF:
            if character.isalpha():
                shape = LETTER
            elif character.isdecimal():
                shape = DIGIT
            elif character.isspace():
                shape = " " if point == 0xA0 else "\t"
        self[point] = shape
        return shape


@cache
def shapes() -> Shapes:
    return Shapes()


# Applying the rules.

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
