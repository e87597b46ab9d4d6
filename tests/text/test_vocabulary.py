"""The vocabulary against `tokenizers` itself, hand-worked examples and properties."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import meshcap.text
from meshcap.errors import MeshcapError
from meshcap.text import Vocabulary
from meshcap.text.ptb import ptb_tokenize
from meshcap.text.sentence import CASED, full_stop
from meshcap.text.vocabulary import LARGEST_FILE, SPECIAL, join_words

WORDS = [*SPECIAL, "a", "man", "dog", "'s", "café", "猫", "🐕", "é"]


def no_surrogates(least: int = 0) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=least)


# Any words at all, whitespace included, around the four special ones in any order.
vocabularies = st.builds(
    lambda order, rest, name: Vocabulary([*order, *rest], tokenizer=name),
    st.permutations(SPECIAL),
    st.lists(no_surrogates(1).filter(lambda word: word not in SPECIAL), unique=True),
    st.sampled_from(["ptb", "unicode", "char"]),
)


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(WORDS)


def fails(path: Path, *parts: str) -> None:
    """Loading `path` is an error of one line that names the file and says `parts`."""
    with pytest.raises(MeshcapError) as caught:
        Vocabulary.load(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (path.name, *parts):
        assert part in message


def test_words_and_ids(vocabulary: Vocabulary) -> None:
    assert (vocabulary.unk, vocabulary.pad, vocabulary.bos, vocabulary.eos) == (0, 1, 2, 3)
    assert len(vocabulary) == 12
    assert vocabulary.words == WORDS
    assert vocabulary.id("dog") == 6
    assert vocabulary.id("zebra") == vocabulary.unk
    assert vocabulary.word(6) == "dog"
    assert "dog" in vocabulary and "zebra" not in vocabulary and 6 not in vocabulary


def test_words_is_a_copy(vocabulary: Vocabulary) -> None:
    vocabulary.words.append("zebra")
    assert vocabulary.words == WORDS


def test_encode_and_decode_by_hand(vocabulary: Vocabulary) -> None:
    assert vocabulary.encode(["a", "zebra", "dog"]) == [4, 0, 6]
    assert vocabulary.decode([2, 4, 1, 0, 6, 3, 5, 5]) == ["a", "<unk>", "dog"]


def test_special_words_may_have_any_ids() -> None:
    vocabulary = Vocabulary(["dog", "<eos>", "a", "<bos>", "<unk>", "<pad>"])
    assert (vocabulary.unk, vocabulary.pad, vocabulary.bos, vocabulary.eos) == (4, 5, 3, 1)
    assert vocabulary.decode([3, 2, 5, 0, 1, 0]) == ["a", "dog"]
    assert vocabulary.encode(["zebra"]) == [4]


@pytest.mark.parametrize("id", [-1, 12])
def test_an_id_outside_is_refused(vocabulary: Vocabulary, id: int) -> None:
    with pytest.raises(MeshcapError, match=rf"id {id} .* 0-11"):
        vocabulary.decode([id])


@given(vocabularies, st.data())
def test_what_is_known_comes_back(vocabulary: Vocabulary, data: st.DataObject) -> None:
    known = [word for word in vocabulary.words if word not in SPECIAL[1:]]
    tokens = data.draw(st.lists(st.sampled_from(known)))
    ids = [vocabulary.bos, *vocabulary.encode(tokens), vocabulary.eos, vocabulary.pad]
    assert vocabulary.decode(ids) == tokens


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([*SPECIAL, "a", "dog", "a"], "'a' has two ids, 4 and 6"),
        ([*SPECIAL, ""], "word 4 is ''"),
        ([*SPECIAL, 7], "word 4 is 7"),
        ([*SPECIAL, "\ud800"], "UTF-8"),
        (["<unk>", "<bos>", "a"], "<pad> <eos> are missing"),
    ],
)
def test_impossible_words_are_refused(words: list[Any], part: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        Vocabulary(words)
    assert part in str(caught.value)


def test_a_sentence_is_no_token_list(vocabulary: Vocabulary) -> None:
    # Each of these would otherwise go on letter by letter.
    for use in (vocabulary.encode, vocabulary.ids_of, vocabulary.sentence):
        with pytest.raises(MeshcapError, match="tokenize it first"):
            use("a dog")
    for count in (Vocabulary.build, vocabulary.report):
        with pytest.raises(MeshcapError, match="tokenize it first"):
            count(["a dog"])


def test_strict_ids(vocabulary: Vocabulary) -> None:
    assert vocabulary.ids_of(["dog", "a"]) == [6, 4]
    with pytest.raises(MeshcapError, match=r"unknown word 'Dogg' to ban: .* nearest known: dog"):
        vocabulary.ids_of(["a", "Dogg"], purpose="to ban")
    with pytest.raises(MeshcapError, match="no known word is near"):
        vocabulary.ids_of(["xylophone"])


def test_build_by_hand() -> None:
    captions = [["b", "d", "c"], ["b", "d"], ["b", "a"], ["a", "<eos>", "<eos>", "<eos>"]]
    # b 3; a 2, d 2; c 1. The <eos> inside a caption is not a fifth word.
    assert Vocabulary.build(captions, minimum=2).words == [*SPECIAL, "b", "a", "d"]
    assert Vocabulary.build(captions, minimum=1).words == [*SPECIAL, "b", "a", "d", "c"]
    assert Vocabulary.build(captions, minimum=1, limit=2).words == [*SPECIAL, "b", "a"]
    assert Vocabulary.build([["a"] * 5 + ["b"] * 4]).words == [*SPECIAL, "a"]
    assert Vocabulary.build(captions, 1, tokenizer="char").metadata == {"tokenizer": "char"}


@pytest.mark.parametrize("token", ["a dog", "", " ", "dog\n"])
def test_build_refuses_what_no_tokenizer_makes(token: str) -> None:
    with pytest.raises(MeshcapError, match="not one word"):
        Vocabulary.build([["a", token]], minimum=1)


def test_build_refuses_to_know_nothing() -> None:
    with pytest.raises(MeshcapError, match="2 different words, none kept with minimum 5"):
        Vocabulary.build([["a", "dog"]])


def test_report(vocabulary: Vocabulary) -> None:
    report = vocabulary.report([["a", "zebra"], ["a", "zebra", "aardvark", "<unk>"], ["yak"]], most_common=2)
    assert (report.tokens, report.unknown) == (7, 5)
    assert report.share == pytest.approx(5 / 7)
    assert report.most_common_unknown == [("zebra", 2), ("<unk>", 1)]
    assert vocabulary.report([]).share == 0


@given(vocabulary=vocabularies)
def test_saved_and_loaded_is_the_same(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> None:
    path = tmp_path_factory.mktemp("saved") / "vocabulary.json"
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    assert loaded == vocabulary
    assert loaded.words == vocabulary.words
    assert loaded.metadata == vocabulary.metadata


def test_equality_sees_words_and_tokenizer(vocabulary: Vocabulary) -> None:
    assert vocabulary == Vocabulary(WORDS)
    assert vocabulary != Vocabulary([*WORDS, "zebra"])
    assert vocabulary != Vocabulary(WORDS, tokenizer="char")
    assert vocabulary != WORDS


def test_the_tokenizers_library_reads_the_file_alike(tmp_path: Path) -> None:
    vocabulary = Vocabulary(["dog", *reversed(SPECIAL), *WORDS[7:], " ", "a"], tokenizer="unicode")
    vocabulary.save(tmp_path / "v.json")
    theirs = Tokenizer.from_file(str(tmp_path / "v.json"))
    tokens = ["<bos>", "a", "猫", "zebra", "'s", "🐕", "café", "dog", "<eos>"]
    assert theirs.encode(" ".join(tokens)).ids == vocabulary.encode(tokens)
    assert theirs.get_vocab() == {word: id for id, word in enumerate(vocabulary.words)}
    assert theirs.decode(vocabulary.encode(["<bos>", "a", "dog", "<eos>", "<pad>"])) == "a dog"


def test_a_file_saved_again_by_tokenizers_loses_only_the_name(tmp_path: Path, vocabulary: Vocabulary) -> None:
    Vocabulary(WORDS, tokenizer="char").save(tmp_path / "v.json")
    Tokenizer.from_file(str(tmp_path / "v.json")).save(str(tmp_path / "again.json"))
    assert Vocabulary.load(tmp_path / "again.json") == vocabulary


def test_tokens_added_to_a_finished_tokenizer_count(tmp_path: Path, vocabulary: Vocabulary) -> None:
    vocabulary.save(tmp_path / "v.json")
    theirs = Tokenizer.from_file(str(tmp_path / "v.json"))
    theirs.add_tokens(["zebra"])
    theirs.save(str(tmp_path / "v.json"))
    assert Vocabulary.load(tmp_path / "v.json").words == [*WORDS, "zebra"]


@pytest.mark.skipif(os.name != "posix", reason="elsewhere an open file cannot be replaced")
def test_a_reader_of_the_old_file_is_not_disturbed(tmp_path: Path, vocabulary: Vocabulary) -> None:
    path = tmp_path / "v.json"
    vocabulary.save(path)
    old = path.read_text(encoding="utf-8")
    with open(path, encoding="utf-8") as reader:
        Vocabulary(SPECIAL).save(path)
        assert reader.read() == old
    assert len(Vocabulary.load(path)) == 4


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_the_file_gets_the_usual_permissions(tmp_path: Path, vocabulary: Vocabulary) -> None:
    (tmp_path / "usual").touch()
    vocabulary.save(tmp_path / "v.json")
    assert (tmp_path / "v.json").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_saving_into_no_folder(tmp_path: Path, vocabulary: Vocabulary) -> None:
    with pytest.raises(MeshcapError, match="cannot be written"):
        vocabulary.save(tmp_path / "nowhere" / "v.json")


def test_load_says_what_is_wrong_with_a_path(tmp_path: Path) -> None:
    fails(tmp_path / "none.json", "does not exist")
    fails(tmp_path, "is not a file")
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(LARGEST_FILE + 1)
    fails(tmp_path / "huge.json", "larger than 64 MB")


@pytest.mark.parametrize("raw", [b"", b"a\ndog\n", b"\xff\xfe", b'{"model": ', b"[" * 100_000, b"9" * 5000])
def test_load_refuses_what_is_not_json(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "v.json").write_bytes(raw)
    fails(tmp_path / "v.json", "is not JSON")


IDS: dict[str, Any] = {word: id for id, word in enumerate(WORDS)}


def model(vocab: object, type: str = "WordLevel") -> dict[str, object]:
    return {"model": {"type": type, "vocab": vocab, "unk_token": "<unk>"}}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ([], "word-level"),
        (7, "word-level"),
        ({}, "word-level"),
        (IDS, "word-level"),
        ({"model": []}, "word-level"),
        (model([]), "word-level"),
        (model(IDS, type="BPE"), "a 'BPE' model"),
        (model({}), "are missing"),
        (model({word: id for word, id in IDS.items() if word != "<bos>"}), "no word has id 2"),
        (model({"<unk>": 0, "<pad>": 1, "<eos>": 2}), "<bos> are missing"),
        (model({**IDS, "zebra": 13}), "no word has id 12, expected ids 0-12 for 13 words"),
        (model({**IDS, "zebra": -1}), "no word has id 12"),
        (model({**IDS, "zebra": 4}), "'a' and 'zebra' share id 4"),
        (model({**IDS, "zebra": 12.0}), "'zebra' has the id 12.0"),
        (model({**IDS, "zebra": True}), "'zebra' has the id True"),
        (model({**IDS, "zebra": None}), "'zebra' has the id None"),
        (model({**IDS, "": 12}), "word 12 is ''"),
        ({**model(IDS), "added_tokens": [{"content": "zebra"}]}, "'zebra' has the id None"),
        ({**model(IDS), "pre_tokenizer": {"meshcap_tokenizer": "bpe"}}, "'bpe', expected one of ptb, unicode, char"),
    ],
)
def test_load_refuses_other_json(tmp_path: Path, data: object, part: str) -> None:
    (tmp_path / "v.json").write_text(json.dumps(data))
    fails(tmp_path / "v.json", part)


@pytest.mark.parametrize("name", ["spacy", "", "PTB"])
def test_only_known_tokenizers(name: str) -> None:
    with pytest.raises(MeshcapError, match="expected one of ptb, unicode, char"):
        Vocabulary(WORDS, tokenizer=name)


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        ("", ""),
        ("a man 's dog", "A man's dog"),
        ("i do n't know , he wo n't say .", "I don't know, he won't say."),
        ("they 're here ; i 'm not !", "They're here; I'm not!"),
        ("you can not see it", "You cannot see it"),
        ("the dogs ' tails", "The dogs' tails"),
        ("a sign that says ' stop ' here", "A sign that says 'stop' here"),
        ('a " stop " sign', 'A "stop" sign'),
        ("`` stop '' it says", "“Stop” it says"),
        ("a man -lrb- left -rrb- waves", "A man (left) waves"),
        ("-LSB- a dog -RSB-", "[A dog]"),
        ("it costs $ 5 or 10 % more", "It costs $5 or 10% more"),
        ("3 dogs", "3 dogs"),
        ("a dog . it runs", "A dog. It runs"),
        ("élan", "Élan"),
        ("ǆep", "ǅep"),  # one capital, not the two of upper()
        ("<bos> a <pad> <unk> dog <eos> a", "A <unk> dog."),
        ("a dog of <eos>", "A dog of."),
        ("a dog !  <eos>", "A dog!"),
        ("a dog -lrb- left -rrb- <eos>", "A dog (left)."),
        ("a bottle of vitamin c <eos>", "A bottle of vitamin c"),  # "c." would be another word
        ("at 10 a.m. <eos>", "At 10 a.m."),
        ("the dogs ' <eos>", "The dogs'."),
        ("<eos>", ""),
        ("a man and i watch tv in new york", "A man and I watch TV in New York"),
        ("big ben and a big clock", "Big Ben and a big clock"),
        ("iphone , new tvs and a christmas tree", "iPhone, new TVs and a Christmas tree"),
        ("a clock says 10 a.m. in a t-shirt shop", "A clock says 10 a.m. in a t-shirt shop"),
    ],
)
def test_sentence_by_hand(vocabulary: Vocabulary, tokens: str, sentence: str) -> None:
    assert vocabulary.sentence(tokens.split()) == sentence


def test_sentence_of_ids_and_of_odd_words(vocabulary: Vocabulary) -> None:
    assert vocabulary.sentence([2, 4, 5, 7, 6, 3, 6]) == "A man's dog."
    assert vocabulary.sentence([2, 4, 5, 7, 6]) == "A man's dog"  # cut off
    assert (
        vocabulary.sentence(["a", " ", "\n ", "new  york", "dog"]) == "A new york dog"
    )  # the public M² has such words


def test_sentence_follows_the_tokenizer() -> None:
    assert Vocabulary(WORDS, tokenizer="char").sentence([*"一只猫。", "iphone", "x"]) == "一只猫。iphone x"
    assert Vocabulary(WORDS, tokenizer="char").sentence(list("dog")) == "Dog"
    # In other languages than English "i" is a word of its own.
    assert Vocabulary(WORDS, tokenizer="unicode").sentence(["kot", "i", "pies", "<eos>"]) == "Kot i pies"


@given(st.lists(st.text()), st.sampled_from(["ptb", "unicode", "char"]))
def test_sentence_never_raises_and_is_one_clean_line(words: list[str], tokenizer: str) -> None:
    text = join_words(words, tokenizer)
    assert text == " ".join(text.split())


@pytest.mark.parametrize("word", sorted(CASED))
def test_capitals_do_not_change_what_metrics_read(word: str) -> None:
    for tokens in ([word], ["a", word], ["a", word, "on", "a", word, "'s", "dog"], ["new", word], ["big", word, "x"]):
        assert ptb_tokenize(join_words(tokens)) == ptb_tokenize(" ".join(tokens))
        assert ptb_tokenize(full_stop(join_words(tokens))) == ptb_tokenize(" ".join(tokens))


ENDINGS = "dog c mr st dr no etc u.s a.m. 5 5.5 t-shirt n't 's % ) & ... .. vs jr inc co ave 1st i x 's' tv".split()


@pytest.mark.parametrize("end", ENDINGS)
def test_the_full_stop_does_not_change_what_metrics_read(end: str) -> None:
    for tokens in (["a", "dog", end], [end], ["the", "sign", "of", "a", end]):
        text = join_words(tokens)
        assert ptb_tokenize(full_stop(text)) == ptb_tokenize(text)
        assert full_stop(full_stop(text)) == full_stop(text)


TOKENS = ["a", "dog", "i", "can", "not", "'", '"', ",", ".", "(", ")", "'s", "n't", "$", "5", "%", "gon", "na", "Café"]


@given(st.lists(st.sampled_from(TOKENS)))
def test_sentence_changes_nothing_but_spaces_and_case(words: list[str]) -> None:
    assert join_words(words).replace(" ", "").lower() == "".join(words).lower()


def test_text_needs_no_torch() -> None:
    # The package's own __init__ is left out: this room alone is asked.
    code = (
        "import sys, types; package = types.ModuleType('meshcap'); package.__path__ = [sys.argv[1]];"
        "sys.modules['meshcap'] = package; import meshcap.text, meshcap.text.vocabulary_import;"
        "sys.exit(' '.join({'torch', 'tokenizers'} & set(sys.modules)) or 0)"
    )
    root = str(Path(meshcap.text.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
