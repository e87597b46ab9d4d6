"""Names: a head over cells, what it may say, and captions that say it."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from meshcap import Captioner, CaptionOptions, MeshcapError, Regions
from meshcap.calibration import Calibration
from meshcap.caption import Tag
from meshcap.decoding import Hypotheses
from meshcap.decoding.extension import Extension
from meshcap.names import NameKind, Names, Table, Trust, agree
from meshcap.say import Speaker
from meshcap.text import Vocabulary
from meshcap.text.sentence import phrase_starts

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "cat", "dog", "cats", "animal", "sits"]
ANIMAL = NameKind("animal", "animals", ("cat", "dog", "animal"), ("cats",), "cat", "cats")
TABLE = Table(
    names=("tabby", "okapi", "red panda", "wombat"),
    said=(("okapi", "okapis", "animal"), ("red panda", "red pandas", "animal"), ("wombat", "wombats", "animal")),
    said_as=(-1, 0, 1, 2),
    kinds={"animal": ANIMAL},
    words=(("grass", "object"), ("zoo", "scene")),
    sure=0.6,
    sure_of_kind=0.7,
)
CELL = tiny.WIDTH


def head(table: Table = TABLE, scale: float = 8.0) -> Names:
    """Name c is read from number c of the cells, word k from number 4 + k."""
    names, words = torch.eye(len(table.names), CELL) * scale, torch.zeros(2, CELL)
    words[0, 4] = words[1, 5] = scale
    return Names(
        {
            "names.weight": names, "names.bias": torch.zeros(len(names)), "words.weight": words,
            "words.bias": torch.full((2,), -scale / 2), "centre": torch.zeros(CELL), "spread": torch.ones(CELL),
        },
        table,
    )  # fmt: skip


def cells(*rows: dict[int, float]) -> Regions:
    """Two cells a picture whose mean has these numbers."""
    mean = torch.zeros(len(rows), CELL)
    for at, row in enumerate(rows):
        for place, value in row.items():
            mean[at, place] = value
    return Regions(torch.stack((mean * 0.5, mean * 1.5), 1))


def test_the_head_reads_the_mean_of_the_cells() -> None:
    named = head().look(cells({1: 1.0}, {4: 1.0}))
    weight = torch.tensor([0.0, 8.0, 0.0, 0.0]).exp()
    assert torch.allclose(named.names[0], weight / weight.sum())
    assert torch.allclose(named.words[1], torch.tensor([1 / (1 + torch.e**-4), 1 / (1 + torch.e**4)]).float())
    padded = Regions.collate([torch.eye(CELL)[:1], torch.zeros(2, CELL)])
    assert torch.allclose(head().look(padded).names[0], head().look(cells({0: 1.0})).names[0])
    with pytest.raises(MeshcapError, match="6 numbers a cell, not 3"):
        head().look(Regions(torch.zeros(1, 2, 3)))


def test_a_name_is_said_where_it_is_sure_and_its_kind_where_only_that_is() -> None:
    unsure = {1: 0.5, 2: 0.5, 3: 0.5}
    chosen = head().choose(head().look(cells({2: 1.0}, unsure, {0: 1.0}, {})))
    assert [None if one is None else one[0] for one in chosen] == ["red panda", "animal", None, "animal"]
    assert chosen[0][1] == pytest.approx(0.999, abs=1e-3)


def test_files_keep_a_head(tmp_path: Path) -> None:
    table = replace(TABLE, trust=Trust(0.9, 1.5, -1.0))
    head(table).save(tmp_path)
    again = Names.load(tmp_path)
    assert again is not None and again.table == table
    regions = cells({1: 0.7, 5: 1.0})
    for ours, theirs in zip(head().look(regions), again.look(regions), strict=True):
        assert torch.allclose(ours, theirs, atol=0.02)
    (tmp_path / "names.json").write_text('{"names": []}')
    with pytest.raises(MeshcapError, match=r"names\.safetensors.*table of names"):
        Names.load(tmp_path)
    assert Names.load(tmp_path / "..") is None


def test_names_take_from_what_they_are_mistaken_for() -> None:
    vocabulary = Vocabulary(WORDS)
    found = head().extension(head().look(cells({1: 1.0}, {0: 1.0})), vocabulary)
    assert found is not None and found.words == ("okapi", "okapis")
    assert found.stand_in == (vocabulary.id("cat"), vocabulary.id("cats"))
    assert found.shares.kin == (tuple(vocabulary.id(w) for w in ("cat", "dog", "animal")), (vocabulary.id("cats"),))
    assert found.shares.share[1].tolist() == [0.0, 0.0]  # of the tabby, a cat
    assert found.shares.share[0, 0] > 0.99
    broad = head().extension(head().look(cells({})), vocabulary)
    assert broad is not None and broad.words == ("animal", "animals")
    assert vocabulary.id("animal") not in broad.shares.kin[0]
    assert head().extension(head().look(cells({0: 1.0})), vocabulary) is None


def test_a_word_that_is_its_own_plural_gives_once() -> None:
    kind = replace(ANIMAL, plural_kin=("cats", "dog"))
    found = head(replace(TABLE, kinds={"animal": kind})).extension(head().look(cells({1: 1.0})), Vocabulary(WORDS))
    assert found is not None and found.words == ("okapi", "okapis")
    assert not set(found.shares.kin[0]) & set(found.shares.kin[1])


def test_captions_say_names_with_the_right_article_and_number() -> None:
    model = tiny.build("m2-no-boxes", seed=10, vocab_size=len(WORDS))
    plain = Captioner(model, Vocabulary(WORDS))
    named = Captioner(model, Vocabulary(WORDS), names=head())
    regions = cells({1: 1.0})
    without = plain.caption(regions, max_words=6)[0].words
    said = named.caption(regions, max_words=6)[0].words
    assert not {"cat", "dog", "animal"} & set(said)
    assert {"cat", "dog", "animal", "cats"} & set(without) and {"okapi", "okapis"} & set(said)
    assert all(after != "okapis" for before, after in pairwise(said) if before == "a")
    assert named.caption(regions, max_words=6, names=False)[0].words == without


def speaking(**given) -> Captioner:
    model = tiny.build("m2-no-boxes", seed=15, vocab_size=len(WORDS))
    return Captioner(model, Vocabulary(WORDS), names=head(**given))


@pytest.mark.parametrize("must", ["wombat", "Wombats", "red panda", "wombat|dog", "a wombat"])
def test_a_name_that_is_required_is_said_whatever_its_probability(must: str) -> None:
    regions = cells({1: 1.0}, {0: 1.0})  # an okapi, a cat
    for caption in speaking().caption(regions, must=must, max_words=6):
        said = " ".join(caption.words)
        assert caption.missing == 0 and any(one.lower() in said for one in must.split("|"))
    named = head().look(regions)
    found = head().extension(named, Vocabulary(WORDS), must=["wombat"])
    assert found is not None and {"okapi", "wombat", "wombats"} <= set(found.words)
    assert bool((found.shares.share > 0)[:, found.words.index("wombat")].all())
    assert bool((found.shares.table()[1].sum(1) <= 1 + 1e-6).all())


def test_a_name_to_avoid_is_not_said_nor_its_plural() -> None:
    captioner, regions = speaking(), cells({1: 1.0})
    assert {"okapi", "okapis"} & set(captioner.caption(regions, max_words=6)[0].words)
    words = captioner.caption(regions, max_words=6, must_not="Okapi")[0].words
    assert "animal" in words and not {"okapi", "okapis"} & set(words)  # its kind, of which the head is as sure
    words = captioner.caption(regions, max_words=6, must_not="okapi,animal")[0].words
    assert not {"okapi", "okapis", "animal", "animals"} & set(words)
    words = captioner.caption(regions, max_words=6, must_not="okapi", must="okapis")[0].words
    assert "okapis" in words and "okapi" not in words
    for never in ("wombat", "a wombat", "red panda"):  # nobody would say it
        assert captioner.caption(regions, must_not=never)[0] == captioner.caption(regions)[0]
    assert "sits okapi" not in captioner.caption(regions, must_not="sits okapi", max_words=6)[0].text.lower()


def test_names_that_nobody_knows_are_refused_where_options_are() -> None:
    captioner, regions = speaking(), cells({1: 1.0})
    for refused, told in (
        ({"must": "wombot"}, "unknown word 'wombot' to mention.*nearest known: wombat"),
        ({"must_not": "wombot"}, "unknown word 'wombot' to avoid"),
        ({"must": "wombat", "names": False}, "unknown word 'wombat'"),
        ({"must": "wombat", "must_not": "wombat"}, "must has 'wombat', which is in must_not, too"),
        ({"must": "wombat", "must_not": "wombat", "max_words": 4}, "in must_not, too"),
    ):
        with pytest.raises(MeshcapError, match=told):
            captioner.plan(CaptionOptions(**refused))
        with pytest.raises(MeshcapError, match=told):
            captioner.caption(regions, **refused)
    unlike = replace(TABLE, kinds={"animal": replace(ANIMAL, kin=("yak",), plural_kin=())})
    with pytest.raises(MeshcapError, match="must has 'wombat', which is a name that is like no word of this model"):
        speaking(table=unlike).caption(regions, must="wombat")


def test_a_word_of_the_vocabulary_takes_the_share_of_its_name_where_it_must_be_said() -> None:
    vocabulary = Vocabulary([*WORDS, "okapi"])
    found = head().extension(head().look(cells({1: 1.0})), vocabulary, must=["okapi"])
    assert found is not None and found.words == ("okapis",)
    assert found.shares.ids == (vocabulary.id("okapi"), len(vocabulary))


def test_number_agrees_with_what_comes_before() -> None:
    plurals = {"camel": "camels", "okapi": "okapis"}
    assert agree("a brown camels standing".split(), [2], plurals) == {2: "camel"}
    assert agree("a herd of camel".split(), [3], plurals) == {3: "camels"}
    assert agree("two big okapi".split(), [2], plurals) == {2: "okapis"}
    assert agree("the camel".split(), [1], plurals) == {}
    assert agree("a brown camels".split(), [2], plurals, kept=("camels",)) == {0: ""}


def test_keywords_are_what_captions_name_and_what_the_head_is_sure_of() -> None:
    def tags(row: dict[int, float], *said: Tag) -> dict[str, tuple[str, float]]:
        found = head().tags(head().look(cells({}, row)), 1, said)
        return {tag.name: (tag.kind, round(tag.probability, 3)) for tag in found}

    dog, animal, grass = (Tag(name, "object", 0.5) for name in ("dog", "animal", "grass"))
    assert tags({4: 1.0}) == {"animal": ("name", 0.75), "grass": ("object", 0.982)}
    assert "grass" not in tags({4: 0.6})  # 0.69: not sure enough
    assert tags({4: 0.6}, grass)["grass"] == ("object", 0.69)  # unless captions say so
    found = tags({1: 0.3}, dog, animal)
    assert found["okapi"] == ("name", 0.786)
    assert found["dog"] == ("object", 0.107)  # which an okapi is mistaken for
    assert found["animal"] == ("object", 0.5)  # which it is
    assert tags({0: 1.0}) == {"tabby": ("name", 0.999)}


def test_a_caption_is_trusted_by_what_the_head_sees_of_it() -> None:
    table = replace(TABLE, trust=Trust(1.0, 2.0, 1.0))
    names, named = head(table), head(table).look(cells({}, {1: 0.3, 4: 0.6}))
    assert names.seen(named, 1, ["an", "okapi", "on", "the", "grass"]) == pytest.approx(
        np.log([0.786, 0.690]).mean(), abs=1e-3
    )
    assert names.seen(named, 1, ["a", "cat"]) is None
    assert names.trust(0.5, named, 1, ["a", "cat"]) == 0.5
    assert names.trust(0.5, named, 1, ["okapis"]) == pytest.approx(1 / (1 + np.exp(-1 - 2 * np.log(0.786))), abs=1e-3)
    assert head().trust(0.5, named, 1, ["okapis"]) == 0.5  # nobody measured it
    captioner, regions = speaking(table=table), cells({1: 1.0})
    assert captioner.caption(regions)[0].confidence == captioner.caption(regions)[0].probability  # not calibrated
    captioner.calibration = Calibration({"mean": 1.0}, (-9.0, 0.0), (0.2, 0.3))
    said, plain = (captioner.caption(regions, shorten=False, names=names)[0] for names in (True, False))
    assert plain.confidence == pytest.approx(captioner.calibration.apply(plain.log_probs))
    assert said.confidence > captioner.calibration.apply(said.log_probs)
    assert captioner.caption(regions, shorten=False, tags=True)[0].confidence == said.confidence


def test_phrases_of_a_caption() -> None:
    def parts(text: str) -> list[str]:
        words = text.split()
        places = [0, *phrase_starts(words), len(words)]
        return [" ".join(words[a:b]) for a, b in pairwise(places)]

    assert parts("a black and white dog sitting on top of a bench") == [
        "a black and white dog", "sitting", "on top of a bench",
    ]  # fmt: skip
    assert parts("a man and a woman next to a car") == ["a man", "and a woman", "next to a car"]
    assert parts("a group of people") == ["a group of people"]


def test_a_caption_that_is_trusted_little_says_less() -> None:
    words = [*WORDS[:4], "a", "dog", "on", "the", "bed"]
    log_probs = {"a": -0.1, "dog": -0.2, "on": -0.1, "the": -0.1, "bed": -2.0}
    speaker = Captioner(tiny.build("m2", seed=10, vocab_size=len(words)), Vocabulary(words))
    (found,) = speaker.caption(tiny.pictures(3), max_words=5, n=1)
    likely = [*(log_probs[word] for word in words[4:]), -0.1]
    given = replace(found, words=words[4:], log_probs=likely, finished=True, confidence=0.6)
    options = CaptionOptions()
    say = Speaker(speaker.vocabulary)
    assert say.shorten(given, options) is given  # no measured confidence: nothing to go by
    say = Speaker(speaker.vocabulary, Calibration({"mean": 1.0}, (-3.0, 0.0), (0.0, 1.0)))
    less = say.shorten(given, options)
    assert (less.text, less.shortened, less.words) == ("A dog.", True, ["a", "dog"])
    assert (less.log_probs, less.confidence) == ([-0.1, -0.2], given.confidence)
    assert less.to_dict()["shortened"] is True
    assert say.shorten(replace(given, confidence=0.9), options).text == given.text
    assert say.shorten(given, replace(options, min_words=4)) is given
    assert say.shorten(given, replace(options, must=("bed",))) is given
    sure = replace(given, log_probs=[-0.3] * 6)
    assert say.shorten(sure, options) is sure  # unlikely as a whole, and no word of it stands out


@pytest.mark.parametrize(
    ("text", "less"),
    [
        ("a cat with eyes sitting next to a street", "A cat with eyes."),
        ("a cat sitting next to a street", "A cat sitting."),
        ("a cat with eyes sitting alone next to a street", "A cat with eyes sitting alone."),
    ],
)
def test_less_is_said_in_whole_phrases(text: str, less: str) -> None:
    words = text.split()
    say = Speaker(Vocabulary([*WORDS[:4], *dict.fromkeys(words)]), Calibration({"mean": 1.0}, (-3.0, 0.0), (0.4, 0.9)))
    given = replace(say.caption_of([], []), words=words, log_probs=[-0.1] * (len(words) - 1) + [-5.0, -0.1])
    assert say.shorten(replace(given, confidence=0.6), CaptionOptions()).text == less


def test_a_name_that_took_the_place_of_two_words_is_said_once() -> None:
    say = Speaker(Vocabulary(WORDS))
    ids = np.array([[[4, 10, 10, 9, 3]]])  # an okapi okapi sits
    found = Hypotheses(ids, np.full(ids.shape, -0.1), np.array([[-0.5]]), np.array([[5]]), np.array([[True]]))
    found = replace(found, extension=Extension(("okapi",), (5,)))
    (caption,) = say.captions(found, CaptionOptions())
    assert caption.words == "an okapi sits".split()
    assert caption.log_probs == pytest.approx([-0.1, -0.2, -0.1, -0.1])


def test_articles_fit_what_follows() -> None:
    say = Speaker(Vocabulary([*WORDS[:4], "a", "orange", "cat", "an", "on", "umbrella", "hour"]))
    ids = np.array([[[4, 5, 6, 8, 4, 9, 3]]])  # a orange cat on a umbrella
    found = Hypotheses(ids, np.full(ids.shape, -0.1), np.array([[-0.7]]), np.array([[7]]), np.array([[True]]))
    (caption,) = say.captions(found, CaptionOptions())
    assert caption.text == "An orange cat on an umbrella."
    assert caption.words == "an orange cat on an umbrella".split()
    assert caption.log_probs == pytest.approx([-0.1] * 7)
    (published,) = say.captions(found, CaptionOptions(good_endings=False))
    assert published.text == "A orange cat on a umbrella."


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1j])
def test_weights_that_are_no_numbers_are_refused(value: complex) -> None:
    good = head().weights
    for name in good:
        wrong = good[name].to(torch.complex64 if isinstance(value, complex) else torch.float32, copy=True)
        wrong.view(-1)[0] = value
        with pytest.raises(MeshcapError, match=f"{name} of the head for names has NaN"):
            Names({**good, name: wrong}, TABLE)
