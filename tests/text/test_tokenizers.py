"""The three tokenizers by hand and by properties; `ptb` itself has a file of its own."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshcap.errors import MeshcapError
from meshcap.text import Vocabulary
from meshcap.text.ptb import ptb_tokenize, ptb_tokenize_all
from meshcap.text.sentence import join_words
from meshcap.text.tokenizers import get_tokenizer, tokenize_each
from meshcap.text.vocabulary import TOKENIZERS

FAMILY, THUMB, FLAGS, KEYCAP, HEART = "👨\u200d👩\u200d👧", "👍🏽", ["🇩🇪", "🇫🇷"], "1\ufe0f\u20e3", "❤\ufe0f"
WALES = "\U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f"  # a flag written with tags

# Letters, marks, jamo, joiners, emoji, spaces and whatever else there is.
texts = (
    st.text(st.sampled_from("aZß'’.,5٣½ée\u0301\u0327ÅΣİ中々かアー\u3099한\u1112\u1161\u11ab") | st.characters())
    | st.text()
)


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("", []),
        ("A man's dog: 'don’t!' (o'clock)", ["a", "man's", "dog", "don't", "o'clock"]),
        ("3.5 km, 1,000 x. 3D t-shirt 5'6 a.b", ["3.5", "km", "1,000", "x", "3d", "t", "shirt", "5'6", "a", "b"]),
        ("Ein Mädchen auf der Straße.", ["ein", "mädchen", "auf", "der", "straße"]),
        ("L'été, aujourd'hui ; l·l", ["l'été", "aujourd'hui", "l·l"]),
        ("e\u0301te\u0301", ["été"]),
        ("Кіт п'є молоко — так", ["кіт", "п'є", "молоко", "так"]),
        ("Μια ΓΑΤΑΣ;", ["μια", "γατας"]),
        ("قِطَّة تجلس، على كرسي", ["قِطَّة", "تجلس", "على", "كرسي"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("\u200fחתול\u200f צה״ל", ["חתול", "צה״ל"]),
        ("हिन्दी में एक बिल्ली।", ["हिन्दी", "में", "एक", "बिल्ली"]),
        ("고양이가 의자에 있다.", ["고양이가", "의자에", "있다"]),
        ("一只猫坐在椅子上。", list("一只猫坐在椅子上")),
        ("猫がテーブルの上", ["猫", "が", "テーブル", "の", "上"]),
        ("か\u3099", ["が"]),
        ("a dog 😀 ❤️ © → a\xadb", ["a", "dog", "ab"]),
        ("𝐀 𠀀𠀁", ["𝐀", "𠀀", "𠀁"]),
    ],
)
def test_unicode_by_hand(caption: str, words: list[str]) -> None:
    assert get_tokenizer("unicode")(caption) == words


@pytest.mark.parametrize(
    ("caption", "signs"),
    [
        ("", []),
        ("A cat's", ["a", "c", "a", "t", "'", "s"]),
        ("一只 猫。", ["一", "只", "猫", "。"]),
        ("e\u0301 é", ["é", "é"]),
        ("q\u0301\u0323x", ["q\u0323\u0301", "x"]),
        ("हिन्दी", ["हि", "न्", "दी"]),
        ("\u1112\u1161\u11ab국", ["한", "국"]),
        ("\u1112\u119e\u11ab", ["\u1112\u119e\u11ab"]),
        (
            f"{FAMILY}{THUMB} {''.join(FLAGS)}{KEYCAP}{HEART}{WALES}!",
            [FAMILY, THUMB, *FLAGS, KEYCAP, HEART, WALES, "!"],
        ),
        ("a\u200b\u200e\0\x1f\x7f\ufeffb\u2028c", ["a", "b", "c"]),
        ("\u0301a", ["\u0301", "a"]),
    ],
)
def test_char_by_hand(caption: str, signs: list[str]) -> None:
    assert get_tokenizer("char")(caption) == signs


def test_ptb_is_the_fields() -> None:
    assert get_tokenizer("ptb") is ptb_tokenize


@pytest.mark.parametrize("name", ["", "PTB", "bpe", "unicode "])
def test_other_names_are_refused(name: str) -> None:
    for use in (get_tokenizer, lambda name: tokenize_each(name, [])):
        with pytest.raises(MeshcapError, match="expected one of ptb, unicode, char"):
            use(name)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_each(name: str) -> None:
    captions = ["A man's dog.", "", "the letter S.", "The cat"]
    one = get_tokenizer(name)
    expected = ptb_tokenize_all(captions) if name == "ptb" else [one(caption) for caption in captions]
    assert list(tokenize_each(name, iter(captions))) == expected
    with pytest.raises(MeshcapError, match="put it into a list"):
        list(tokenize_each(name, "a dog"))


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts)
@settings(max_examples=300)
def test_any_string_gives_clean_tokens(name: str, caption: str) -> None:
    for token in get_tokenizer(name)(caption):
        assert token and token.split() == [token]


@pytest.mark.parametrize("name", ["unicode", "char"])
@given(texts)
@settings(max_examples=300)
def test_composed_and_decomposed_text_are_the_same(name: str, caption: str) -> None:
    # In lower case already: "İ" in pieces has a lower case of its own.
    caption = caption.lower()
    split = get_tokenizer(name)
    assert split(unicodedata.normalize("NFD", caption)) == split(unicodedata.normalize("NFC", caption))


@given(texts)
@settings(max_examples=300)
def test_no_letter_or_digit_is_lost(caption: str) -> None:
    # Without signs that cannot be seen: where one is left out, an accent may find another letter.
    caption = "".join(sign for sign in caption if unicodedata.category(sign) != "Cf")
    kept = unicodedata.normalize("NFC", caption.lower())
    alphanumeric = [sign for sign in kept if sign.isalpha() or sign.isdecimal()]
    assert [
        sign for token in get_tokenizer("unicode")(caption) for sign in token if sign.isalpha() or sign.isdecimal()
    ] == alphanumeric
    seen = [sign for sign in kept if not sign.isspace() and unicodedata.category(sign)[0] != "C"]
    told = [sign for token in get_tokenizer("char")(caption) for sign in token if unicodedata.category(sign)[0] != "C"]
    assert told == seen


@given(st.text(st.characters(max_codepoint=126)))
@settings(max_examples=300)
def test_words_of_ascii_are_what_a_simple_pattern_finds(caption: str) -> None:
    import re

    pattern = r"[a-z0-9](?:[a-z0-9]|'(?=[a-z0-9])|(?<=[0-9])[.,](?=[0-9]))*"
    assert get_tokenizer("unicode")(caption) == re.findall(pattern, caption.lower())
    assert "".join(get_tokenizer("char")(caption)) == re.sub(r"[\0-\x20]", "", caption.lower())


@pytest.mark.parametrize("name", ["unicode", "char"])
@pytest.mark.parametrize("part", ["a", "a ", "猫", "\u0301\u0327", "👍🏽", "\u1112", "👩\u200d", "'", "🇩"])
def test_a_megabyte(name: str, part: str) -> None:
    tokens = get_tokenizer(name)(part * (2**20 // len(part)))
    assert all(tokens)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_vocabulary_splits_as_it_was_built(name: str) -> None:
    captions = ["A man's dog.", "The dog of 2 men", "猫 和 dog"]
    vocabulary = Vocabulary.build(tokenize_each(name, captions), minimum=1, tokenizer=name)
    for caption in captions:
        tokens = vocabulary.tokens(caption)
        assert tokens == get_tokenizer(name)(caption)
        assert vocabulary.decode(vocabulary.encode(tokens)) == tokens


@pytest.mark.parametrize("tokenizer", ["unicode", "char"])
@pytest.mark.parametrize("caption", ["一只狗在草地上跑", "犬がボールで遊んでいる", "3只猫穿着t恤"])
def test_chinese_and_japanese_come_back_without_spaces(caption: str, tokenizer: str) -> None:
    tokens = get_tokenizer(tokenizer)(caption)
    assert len(tokens) > 3 and join_words(tokens, tokenizer) == caption


def test_korean_and_german_keep_their_spaces() -> None:
    for caption in ("개가 공을 쫓는다", "Ein hund und zwei männer"):
        assert join_words(get_tokenizer("unicode")(caption), "unicode") == caption
