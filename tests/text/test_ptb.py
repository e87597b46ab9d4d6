"""The PTB tokenizer against the Java tool: its answers on COCO captions and by hand here, the tool itself if asked."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshcap.errors import MeshcapError
from meshcap.text import ptb
from meshcap.text.ptb import ptb_stream, ptb_tokenize, ptb_tokenize_all

FIXTURE = Path(__file__).parent.parent / "fixtures" / "ptb_coco.jsonl.gz"
# coco-caption's own list.
PUNCTUATION = "'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split()
LINE_BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\u2028", "\u2029", "\x85", "\x1c", "\x1d", "\x1e"]

# What rules are about, so that random captions meet them.
TELLING = """
    a s t n d m o S I dog can cannot gonna The A No no fig St. Jan jan U.S re ll ve em is 1 5 10 555 1234 1/2
    . . , , ' ' - - / ! ? ; : " ( ) & $ # @ % _ + * = < > \\ ` [ ] { } ~ ^ é 日 \u0301 ٠ ’ ‘ “ ” — ‐ … ½ € £ ² 😀
    .com www. http:// &amp; &lt; <b> n't 's
"""
fragments = st.sampled_from([*TELLING.split(), *"    \t\xa0\n\r"])
captions = st.lists(fragments, max_size=12).map("".join)


def coco() -> tuple[dict[str, str], list[str], list[list[str]]]:
    with gzip.open(FIXTURE, "rt", encoding="utf-8") as file:
        head, *rows = (json.loads(line) for line in file)
    return head, [caption for caption, _ in rows], [tokens.split() for _, tokens in rows]


def test_hard_coco_captions_as_the_java_tool_splits_them() -> None:
    head, given, expected = coco()
    assert "COCO" in head["captions"] and "CC BY 4.0" in head["captions"] and "CoreNLP 3.4.1" in head["tokens"]
    assert len(given) > 4000
    # They are hard: the usual split at \w+ gets most of them wrong.
    usual = [re.findall(r"\w+", caption.lower()) for caption in given]
    assert sum(one != tokens for one, tokens in zip(usual, expected, strict=True)) > 3900
    found = ptb_tokenize_all(given)
    assert [row for row in zip(given, found, expected, strict=True) if row[1] != row[2]] == []


# The Java tool's answers, as a slow test below makes sure.
BY_HAND = [
    ("", ""),
    (" \t ", ""),
    ("A man's dog.", "a man 's dog"),
    ("It’s a dog‘s", "it 's a dog s"),
    ("Don't can't won't AIN'T shouldn't've", "do n't ca n't wo n't ai n't should n't 've"),
    ("don’t isn`t", "do n't is n`t"),
    ("cannot CANNOT cannots gonna wanna gimme", "can not can not cannots gon na wan na gim me"),
    ("rock 'n' roll 'til '90s '90 'tis", "rock 'n' roll 'til '90s '90 't is"),
    ("'no' 'neon' 'n", "no neon 'n"),
    ("o'clock d'etat y'all ma'am K'nex jack-o'-lantern", "o'clock d'etat y' all ma'am k'nex jack-o lantern"),
    ("Mr. Smith St. etc. jr. U.S. e.g. Ph.D. dog. cat.", "mr. smith st. etc. jr. u.s. e.g. ph.d. dog cat"),
    ("wash. Wash. ill. Ill.", "wash wash. ill ill."),
    ("No. 5 no. dogs no.5 fig. 3 art. x", "no. 5 no dogs no. 5 fig. 3 art x"),
    ("J. R. R. Tolkien. Letter S. The end", "j. r. r. tolkien letter s the end"),
    ("dog., cat.; cow.: x-y., a/b.,", "dog. cat. cow. x-y. a/b"),
    ("toilet.Next wow!great 5.5 .38 5p.m.", "toilet.next wow!great 5.5 .38 5p m."),
    ("t-shirt 3.5-inch U.S.-based x--y pro-", "t-shirt 3.5-inch u.s.-based x y pro-"),
    ("and/or a/b/c/d 9/11 he/she's", "and/or a/b/c / d 9/11 he/she 's"),
    ("AT&T r&b A&W M&Ms S&P-500", "at&t r & b a&w m&m s s&p-500"),
    ("1 1/2-inch 1/2-inch 4 1/2", "1 1/2 inch 1/2-inch 4 1/2"),
    ("(555) 123-4567 (555) dogs", "-lrb-555-rrb- 123-4567 -lrb- 555 -rrb- dogs"),
    ("$5 US$5 5% #1 #dog @dog", "$ 5 us$ 5 5 % # 1 #dog @dog"),
    ("(x) [x] {x}", "-lrb- x -rrb- -lsb- x -rsb- -lcb- x -rcb-"),
    (":) :-( ;D ^_^ (^_^)", ":-rrb- :--lrb- ;d ^_^ -lrb-^_^-rrb-"),
    ("! !! ?! ... .... -- ----- ***", "!! ?! ----- ***"),
    ('<b>x</b> < y > <a href="u v">', '<b> x </b> < y > <a href="u v">'),
    ("x &amp; y &lt;b&gt; AT&amp;T &quot;z&quot;", "x & y < b > at&t z"),
    ("http://foo.com/x. www.foo.com, x@y.com img5.jpg", "http://foo.com/x www.foo.com x@y.com img5.jpg"),
    ("C++ c# .NET", "c++ c# net"),
    ("café Straße 日本語。 ไทย हिन्दी العربية", "café straße 日本語 。 ไทย हिन्दी العربية"),
    ("½ 5½ €5 £5 5¢ 5° x² ™", "1/2 5 1/2 $ 5 # 5 5 cents 5 ° x ² ™"),
    ("x—y x…y x‐y “x” «x» ‘x’ “‘x’”", "x y x y x‐y x x x ``` x '''"),
    ("a dog 😀 a😀b 𝐱", "a dog a b"),
    ("ΟΔΟΣ İ", "οδος i̇"),
]


@pytest.mark.parametrize(("caption", "tokens"), BY_HAND)
def test_by_hand(caption: str, tokens: str) -> None:
    assert ptb_tokenize(caption) == tokens.split()


def test_an_initial_at_the_end_looks_at_the_next_caption() -> None:
    # The tool reads a file: "S.\nThe" is the end of a sentence to it, "S.\nBirds" may be a name.
    assert ptb_tokenize_all(["the letter S.", "The dog"]) == [["the", "letter", "s"], ["the", "dog"]]
    assert ptb_tokenize_all(["the letter S.", "Birds"]) == [["the", "letter", "s."], ["birds"]]
    assert ptb_tokenize_all(["the letter S.", "", " ", "A dog"]) == [["the", "letter", "s"], [], [], ["a", "dog"]]
    assert ptb_tokenize_all(["the letter S."]) == [ptb_tokenize("the letter S.")] == [["the", "letter", "s."]]
    assert ptb_tokenize_all(["room no.", "5 dogs", "room no.", "dogs"])[::2] == [["room", "no."], ["room", "no"]]


def test_a_stream_waits_for_nothing_else() -> None:
    asked = []

    def given() -> object:
        for caption in ("a dog.", "letter S.", "the cat", "end"):
            asked.append(caption)
            yield caption

    stream = ptb_stream(given())  # type: ignore[arg-type]
    assert next(stream) == ["a", "dog"]
    assert asked == ["a dog."]
    assert next(stream) == ["letter", "s."]
    assert asked == ["a dog.", "letter S.", "the cat"]


@pytest.mark.parametrize("line_break", LINE_BREAKS, ids=ascii)
def test_line_breaks_are_spaces_and_shift_nothing(line_break: str) -> None:
    caption = f"a{line_break}dog's {line_break}{line_break} tail.{line_break}"
    assert ptb_tokenize_all([caption, "a cat"]) == [["a", "dog", "'s", "tail"], ["a", "cat"]]
    # also where the whole caption has to be lexed
    caption = f"no.{line_break}dogs <b>{line_break}5"
    assert ptb_tokenize_all([caption, "a cat"]) == [["no", "dogs", "<b>", "5"], ["a", "cat"]]


@given(st.lists(captions | st.text(), max_size=5))
@settings(max_examples=300)
def test_one_list_of_clean_tokens_for_each_caption(given: list[str]) -> None:
    found = ptb_tokenize_all(given)
    assert len(found) == len(given)
    for tokens in found:
        for token in tokens:
            assert token and token.split() == [token]
            assert token == token.lower()
            assert token not in PUNCTUATION


@given(captions | st.text())
@settings(max_examples=1000)
def test_pieces_add_up_to_what_the_rules_say_of_the_whole(caption: str) -> None:
    # The table of pieces is a shortcut: it must not change anything.
    assert ptb_tokenize(caption) == ptb._lex(caption)
    ptb._PIECES.clear()
    assert ptb_tokenize(caption) == ptb._lex(caption)


@given(st.lists(captions, max_size=5))
def test_captions_that_end_in_no_full_stop_ignore_their_neighbours(given: list[str]) -> None:
    given = [f"{caption} end" for caption in given]
    assert ptb_tokenize_all(given) == [ptb_tokenize(caption) for caption in given]


@pytest.mark.parametrize(
    "part",
    ["a", "a ", "é", "\u0301", "a-", "5.", "!", "www."]
    + [pytest.param(part, marks=pytest.mark.slow) for part in ("a,", "ab'", "<a ", "S. ", "😀", "\0")],
)
def test_a_megabyte(part: str) -> None:
    caption = part * (2**20 // len(part))
    tokens = ptb_tokenize(caption)
    if part in ("a", "é", "\u0301"):
        assert tokens == [caption]
    assert all(token and not token.isspace() for token in tokens)


def test_the_table_of_pieces_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptb, "MOST_PIECES", 10)
    ptb._PIECES.clear()
    for number in range(100):
        assert ptb_tokenize(f"dog{number} cat's") == [f"dog{number}", "cat", "'s"]
        assert len(ptb._PIECES) <= 10
    ptb_tokenize("x" * 1000)
    assert "x" * 1000 not in ptb._PIECES


def test_a_string_is_no_list_of_captions() -> None:
    with pytest.raises(MeshcapError, match="put it into a list"):
        ptb_tokenize_all("a dog")


def test_every_rule_can_begin_where_it_says() -> None:
    # A rule listed under too few first characters would never be asked.
    tried = [chr(point) for point in range(33, 127)] + list(ptb.KINDS) + [ptb.LETTER, ptb.DIGIT]
    for starts, _, takes, follows in ptb.RULES:
        pattern = re.compile(f"(?:{takes})(?:{follows})")
        for first in tried:
            if ptb._kind(first) not in starts:
                for rest in ("", "a", "aa b", "5", "55 ", ".com ", "_^", "' ", "s ", "n't", "@b", first, first * 2):
                    match = pattern.match(f"{first}{rest} \n")
                    assert match is None, (takes, first + rest)


def test_neither_torch_nor_numpy_is_imported() -> None:
    script = (
        "import sys; from meshcap.text.ptb import ptb_tokenize; from meshcap.text.tokenizers import get_tokenizer\n"
        "[get_tokenizer(name)('A dog’s') for name in ('ptb', 'unicode', 'char')]\n"
        "print({'torch', 'numpy', 'tokenizers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


class Tool:
    """The Java tool, as pycocoevalcap calls it."""

    def __init__(self, folder: Path) -> None:
        found = importlib.util.find_spec("pycocoevalcap")
        if found is None or not found.submodule_search_locations or not shutil.which("java"):
            pytest.skip("needs pycocoevalcap and java")
        self.home = Path(found.submodule_search_locations[0])
        self.folder = folder

    def __call__(self, captions: list[str]) -> list[list[str]]:
        text = self.folder / "captions.txt"
        text.write_bytes("\n".join(caption.replace("\n", " ") for caption in captions).encode())
        jar = self.home / "tokenizer" / "stanford-corenlp-3.4.1.jar"
        command = ["java", "-cp", jar, "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase", text]
        lines = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\n")
        assert len(lines) - len(captions) in (0, 1)
        kept = (" ".join(word for word in line.rstrip().split(" ") if word not in PUNCTUATION) for line in lines)
        return [line.split() for line in kept][: len(captions)]

    def coco(self, part: str) -> list[str]:
        jar = self.home / "spice" / "spice-1.0.jar"
        if not jar.is_file():
            pytest.skip("pycocoevalcap came without its spice jar, which holds COCO's captions")
        with zipfile.ZipFile(jar) as held, held.open(f"coco/annotations/captions_{part}.json") as file:
            return [one["caption"] for one in json.load(file)["annotations"]]


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "count"), [("train2014", 414_113), ("val2014", 202_654)])
def test_all_of_coco_equals_the_java_tool(tool: Tool, part: str, count: int) -> None:
    given = tool.coco(part)
    assert len(given) == count
    found, expected = ptb_tokenize_all(given), tool(given)
    assert [row for row in zip(given, found, expected, strict=True) if row[1] != row[2]] == []


@pytest.mark.slow
def test_by_hand_is_what_the_java_tool_says(tool: Tool) -> None:
    given = [caption for caption, _ in BY_HAND]
    assert tool(given) == [tokens.split() for _, tokens in BY_HAND]


@pytest.mark.slow
def test_the_fixture_is_what_the_java_tool_says(tool: Tool) -> None:
    _, given, expected = coco()
    assert tool(given) == expected


@pytest.mark.slow
def test_random_strings_equal_the_java_tool(tool: Tool) -> None:
    chance = random.Random(0)
    words = (
        "a b d l m n o s t x y A D I N O S T X re ll ve is cannot gonna The jan mr no st foo dog U.S com jpg".split()
    )
    signs = [*".,'-/&", *".,!?;:'\"-()/&$#@%_+*=<>\\`~|^[]{}", *"éÉ日٠’‘“”—‐…½€°²😀"]
    kinds = [words, words, words, "0 1 2 5 9 10 555 1234".split(), signs, signs, [" "]]
    given = []
    for _ in range(30_000):
        # A word at the end: no line looks at the next one.
        parts = [chance.choice(chance.choice(kinds)) for _ in range(chance.randint(1, 9))]
        given.append("".join(parts).strip() + " dog")
    assert [row for row in zip(given, ptb_tokenize_all(given), tool(given), strict=True) if row[1] != row[2]] == []
