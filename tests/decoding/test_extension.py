"""Words for the moment: probabilities by closed form, searched and spelled like words of the vocabulary."""

import pytest
import torch

import tiny
import tiny_captioner
from decoding import naive
from meshcap.decoding import Beam, ConstrainedBeam, DiverseBeam, Extended, Extension, Greedy, Rules, Sampling, Shares
from meshcap.decoding import decode as search
from meshcap.decoding.extension import extend, join
from meshcap.errors import MeshcapError
from meshcap.text.sentence import fit_articles, with_article

PICTURES = tiny.pictures(3, 6, 2)
RULES = Rules(max_length=6, no_repeat_ngram=2)
V = tiny.VOCAB
SHARE = torch.tensor([[0.5, 0.25], [0.0, 0.0], [0.75, 0.0]])


def extension(kin: tuple[int, ...] = (5, 6)) -> Extension:
    """Two words that take from 5 and 6, and from 6 alone."""
    return Extension(("okapi", "red panda"), (5, 6), Shares((V, V + 1), (kin, (6,)), SHARE))


class InTheOpen:
    """The same probabilities, made one by one."""

    def __init__(self, model, extension: Extension, picture: int) -> None:
        self.model, self.extension, self.picture = model, extension, picture
        self.config = Extended(model, extension).config

    def __call__(self, regions, ids):
        known = ids.clone()
        for place, stand_in in enumerate(self.extension.stand_in):
            known[ids == V + place] = stand_in
        before = self.model(regions, known).double().exp()
        after = torch.cat((before, torch.zeros(*ids.shape, 2, dtype=torch.double)), -1)
        shares = self.extension.shares
        for column, (id, kin) in enumerate(zip(shares.ids, shares.kin, strict=True)):
            for one in kin:
                moved = before[..., one] * float(shares.share[self.picture, column])
                after[..., id] += moved
                after[..., one] -= moved
        return after.log()


def test_probabilities_move_and_still_sum_to_one() -> None:
    before = torch.randn(3, 4, V).log_softmax(-1)
    kin, taken = extension().shares.table()
    after = extend(before, 2, (torch.tensor([V, V + 1]), kin, taken)).exp()
    p = before.exp()
    torch.testing.assert_close(after.sum(-1), torch.ones(3, 4))
    torch.testing.assert_close(after[0, :, V], 0.5 * p[0, :, 5] + 0.5 * p[0, :, 6])
    torch.testing.assert_close(after[0, :, V + 1], 0.25 * p[0, :, 6])
    torch.testing.assert_close(after[0, :, 5], 0.5 * p[0, :, 5])
    torch.testing.assert_close(after[0, :, 6], 0.25 * p[0, :, 6])
    assert torch.equal(after[1, :, :V], p[1])  # no shares, no change
    assert not after[1, :, V:].any()


@pytest.mark.parametrize("strategy", [Greedy(), Beam(4), ConstrainedBeam([[[[V]]]], 3)], ids=str)
def test_room_for_more_words_changes_nothing(strategy) -> None:
    roomy = Extended(tiny.shared("m2"), extension(), roomy=True)
    assert roomy.config.vocab_size == V + 16
    assert {name: tensor.shape[-1] for name, tensor in roomy.tensors(torch.device("cpu")).items()} == {
        f"extension.{name}": 16 for name in ("stand_in", "receivers", "kin", "taken")
    }
    expected = search(Extended(tiny.shared("m2"), extension()), PICTURES, strategy, RULES)
    for given in ({}, {"encoded": roomy.encode(PICTURES)}):
        found = search(roomy, PICTURES, strategy, RULES, **given)
        assert torch.equal(found.ids, expected.ids)
        torch.testing.assert_close(found.scores, expected.scores)


def test_one_key_for_words_that_take_as_much_room() -> None:
    model = tiny.shared("m2")
    keys = [Extended(model, one, roomy=True).key for one in (extension(), extension((5,)), Extension(("Rex",), (5,)))]
    assert keys[0] == keys[1] != keys[2]
    many = Extension(tuple(f"word{n}" for n in range(17)), (5,) * 17)
    assert Extended(model, many, roomy=True).key != keys[2]
    assert Extended(tiny.build("m2"), extension(), roomy=True).key != keys[0]


def test_filled_up_pictures_are_like_the_last() -> None:
    filled = extension().filled_up(4)
    assert filled.shares is not None
    assert filled.shares.share.tolist() == [*SHARE.tolist(), SHARE[-1].tolist()]
    assert extension().filled_up(3).shares.share is SHARE


def test_a_word_of_the_vocabulary_may_take_a_share() -> None:
    before = torch.randn(1, 2, V).log_softmax(-1)
    shares = Shares((7,), ((5,),), torch.tensor([[1.0]]))
    after = extend(before, 0, (torch.tensor([7]), *shares.table())).exp()
    torch.testing.assert_close(after[..., 7], before.exp()[..., 7] + before.exp()[..., 5])
    assert not after[..., 5].any()
    torch.testing.assert_close(after.sum(-1), torch.ones(1, 2))


@pytest.mark.parametrize("strategy", [Greedy(), Beam(3), ConstrainedBeam([[[[V + 1]]]], 2)], ids=repr)
def test_searches_find_what_a_plain_search_finds(strategy) -> None:
    model, given = tiny.shared("m2"), extension(tuple(range(4, V)))
    found = search(Extended(model, given), PICTURES, strategy, RULES, n_best=1)
    for picture in range(len(PICTURES)):
        plain = InTheOpen(model, given, picture)
        alone = tiny.one(PICTURES, picture)
        if isinstance(strategy, Greedy):
            expected = naive.greedy(plain, alone, RULES)
        elif isinstance(strategy, Beam):
            expected = naive.beam(plain, alone, 3, RULES)
        else:
            expected = naive.constrained(plain, alone, strategy.constraints[0], 2, RULES)
        naive.expect_same(found, picture, expected[:1])
    said = (found.ids >= V).any(-1)[:, 0].tolist()
    assert said[0]
    assert not said[1]


@pytest.mark.parametrize("name", ["m2", "seq2seq", "hopfield"])
def test_steps_are_the_teacher_forced_pass(name) -> None:
    model = Extended(tiny.shared(name), extension())
    found = search(model, PICTURES, Sampling(4, seed=3), RULES, n_best=4, attention=True)
    before = torch.cat((torch.full_like(found.ids[..., :1], model.config.bos), found.ids[..., :-1]), -1)
    with torch.no_grad():
        log_probs, seen = model(PICTURES, before, attention=True)
    real = found.ids != model.config.pad
    forced = log_probs.gather(-1, found.ids[..., None])[..., 0]
    torch.testing.assert_close(found.log_probs[real], forced[real], atol=1e-5, rtol=1e-5)
    assert (found.ids >= V).any()
    assert seen["words"].shape[:3] == found.ids.shape


def test_without_extra_words_it_is_the_model() -> None:
    model = tiny.shared("m2")
    for strategy in (Beam(3), DiverseBeam(4, 2), Sampling(3)):
        alone, extended = (
            search(one, PICTURES, strategy, RULES, n_best=2, attention=True)
            for one in (model, Extended(model, Extension((), ())))
        )
        assert torch.equal(alone.ids, extended.ids)
        assert torch.equal(alone.log_probs, extended.log_probs)
        assert torch.equal(alone.attention["words"], extended.attention["words"])


def test_extensions_nest() -> None:
    """Ids of the outer words follow those of the inner ones; the outer may take from the inner."""
    inner = Extended(tiny.shared("m2"), extension())
    outer = Extension(("Rex",), (5,), Shares((V + 2,), ((V, 5),), torch.ones(3, 1)), proper=(True,))
    outer.check(inner.config, 3)
    found = search(Extended(inner, outer), PICTURES, Beam(3), RULES)
    assert (found.ids == V + 2).any()
    assert not ((found.ids == 5) | (found.ids == V)).any()
    both = join(extension(), None, outer)
    assert both.words == ("okapi", "red panda", "Rex")
    assert both.proper == (False, False, True)


def test_one_that_moves_shares_alone_keeps_them_below_another() -> None:
    """As names of a memory do below a head for names: both have the same first id."""
    inner = Extended(tiny.shared("m2"), Extension((), (), Shares((6,), ((5,),), torch.ones(3, 1))))
    outer = Extension(("Rex",), (7,), Shares((V,), ((7,),), torch.ones(3, 1)))
    ids = search(Extended(inner, outer), PICTURES, Beam(3), RULES).ids
    assert not ((ids == 5) | (ids == 7)).any() and ((ids == 6) | (ids == V)).any()


REFUSED = [
    (lambda: Extension(("a",), ()), "expected one each"),
    (lambda: Extension(("a", "a"), (5, 5)), "given twice"),
    (lambda: Shares((V,), ((5,),), torch.ones(3)), "expected as many of each"),
    (lambda: Shares((V,), ((V,),), torch.ones(3, 1)), "its own kin"),
    (lambda: Shares((V, V), ((5,), (6,)), torch.ones(3, 2)), "twice"),
    (lambda: Shares((V, V + 1), ((5,), (5,)), torch.ones(3, 2)).table(), "more than 1"),
    (lambda: Shares((V,), ((5,),), -torch.ones(3, 1)).table(), "below 0"),
    (
        lambda: Extension(("a",), (V,)).check(tiny.shared("m2").config, 3),
        "words of the vocabulary of 10, and 10 is not",
    ),
    (lambda: extension().check(tiny.shared("m2").config, 2), "shares of 3 pictures were given for 2"),
    (lambda: Extension((), (), Shares((3,), ((5,),), torch.ones(3, 1))).check(tiny.shared("m2").config, 3), "id 3"),
]


@pytest.mark.parametrize("make, message", REFUSED, ids=[message for _, message in REFUSED])
def test_what_makes_no_sense_is_refused(make, message) -> None:
    with pytest.raises(MeshcapError, match=message):
        make()


# Through a captioner.


def animals(speaker, share: float = 1.0, words=("okapi", "Rex"), proper=(False, True)) -> Extension:
    """Words that are said wherever a dog or a cat would be."""
    dog, cat = speaker.vocabulary.ids_of(["dog", "cat"])
    known = len(speaker.vocabulary)
    shares = Shares((known, known + 1), ((dog,), (cat,)), torch.full((2, 2), share))
    return Extension(words, (dog, cat), shares, proper)


@pytest.fixture(scope="module")
def speaker():
    return tiny_captioner.build()


@pytest.fixture(scope="module")
def regions(speaker):
    generator = torch.Generator().manual_seed(0)
    return speaker.see([torch.randint(0, 256, (3, 48, 48), generator=generator).byte().numpy() for _ in range(2)])


def test_captioner_spells_them(speaker, regions) -> None:
    found = speaker.search(regions, must="okapi, Rex", attention=True, extension=animals(speaker), n=3)
    for caption in speaker.say(found, must="okapi, Rex", attention=True, n=3):
        for one in (caption, *caption.alternatives):
            assert "okapi" in one.text.lower()
            assert "Rex" in one.text
            assert " a okapi" not in f" {one.text}".lower()
            assert "a Rex" not in one.text
            assert "the Rex" not in one.text
            assert "dog" not in one.words
            assert len(one.words) == len(one.attention) == len(one.log_probs) - one.finished
            assert sum(one.log_probs) == pytest.approx(one.score, abs=1e-3)
            assert one.missing == 0
            assert 0 < one.confidence <= 1


def test_must_not_names_them_too(speaker, regions) -> None:
    given = animals(speaker, words=("red panda", "Rex"))
    found = speaker.search(regions, extension=given, must_not="red panda, rex")
    assert int(found.ids.max()) < len(speaker.vocabulary)
    with pytest.raises(MeshcapError, match="unknown word 'okapi' to mention"):
        speaker.search(regions, extension=given, must="okapi")


def test_without_shares_captions_are_as_before(speaker, regions) -> None:
    plain = speaker.describe(regions, n=3)
    same = speaker.say(speaker.search(regions, n=3, extension=animals(speaker, share=0.0)), n=3)
    assert plain == same


@pytest.mark.parametrize(
    "word, article",
    [("okapi", "an"), ("raccoon", "a"), ("unicorn", "a"), ("umbrella", "an"), ("hourglass", "an"), ("ewe", "a"),
     ("Eurasian otter", "a"), ("one-way street", "a"), ("house", "a"), ("uninhabited island", "an")],
)  # fmt: skip
def test_articles(word, article) -> None:
    assert with_article(word) == article


def test_articles_before_other_words_stay() -> None:
    words = "a okapi sees an elk and a Rex on a apple".split()
    fitted = fit_articles(words, {1, 4, 7}, {7})
    assert " ".join(fitted.values()) == "an okapi sees an elk and Rex on a apple"
    assert 6 not in fitted


def test_how_somebody_looks_is_left_out_before_a_name() -> None:
    words = "a small black Rex sees the brown Mia and two black Bob".split()
    assert " ".join(fit_articles(words, {3, 7, 11}, {3, 7, 11}).values()) == "Rex sees Mia and two black Bob"
