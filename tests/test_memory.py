"""A captioner with a memory: what is remembered is said, and without anything near all is as before."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import tiny_captioner
from meshcap.backends.packed import can_pack
from meshcap.captioner import Captioner
from meshcap.consensus import Consensus
from meshcap.decoding.records import Hypotheses, Rules
from meshcap.errors import MeshcapError
from meshcap.memory import Entry as MemoryEntry
from meshcap.memory import RamStore
from meshcap.metrics.cider import cider_d
from meshcap.models.memory_level import MemoryConfig, MemoryLevel
from meshcap.models.recollection import recollect, stand_ins
from meshcap.options import SEVERAL

SMALL = {"d_head": 8, "reader_head": 4, "d_ff": 12, "d_pointer": 8, "captions": 4, "entries": 4}


@dataclass(frozen=True)
class Entry:
    similarity: float
    captions: tuple[str, ...]
    names: tuple[str, ...] = ()
    id: int = 0


class Shelf:
    """A store that gives the same entries for every picture."""

    def __init__(self, *entries: Entry) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def nearest(self, vectors, k):
        return [list(self.entries[:k]) for _ in range(len(vectors))]

    def named(self, vectors, k):
        return [likenesses(self.entries)[:k] for _ in range(len(vectors))]

    def some(self, most):
        return list(self.entries)


def likenesses(entries) -> list[tuple[str, float]]:
    """Of names that have one picture each."""
    return [(name, one.similarity) for one in entries for name in one.names]


def build(*, copies: float = 8.0, **sizes) -> Captioner:
    """Whatever is remembered is copied; nouns are dog, cat and horse."""
    captioner = tiny_captioner.build()
    torch.manual_seed(0)
    level = MemoryLevel(MemoryConfig.of(captioner.model, **{**SMALL, "least_similarity": 0.3, **sizes}))
    with torch.no_grad():
        level.switch.bias.fill_(copies)
        level.nouns[captioner.vocabulary.ids_of(["dog", "cat", "horse"])] = 1
    captioner.backend.level = level.eval()
    return captioner


@pytest.fixture(scope="module")
def pixels():
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (3, 48, 48), dtype=np.uint8) for _ in range(2)]


def test_a_word_that_no_weight_knows_is_said(pixels) -> None:
    captioner = build()
    regions = captioner.see(pixels)
    before = captioner.describe(regions)
    captioner.memory = Shelf(Entry(0.9, ("an okapi on the grass",)))
    found = captioner.describe(regions, attention=True, n=2)
    for one, plain in zip(found, before, strict=True):
        assert "okapi" in one.words
        assert "okapi" not in plain.words
        assert len(one.memory) == len(one.words)
        assert min(one.memory) > 0.9  # the switch
        assert one.to_dict()["memory"] == one.memory
        assert 0 < one.confidence <= 1
    assert all("okapi" not in one.words for one in captioner.describe(regions, must_not="okapi"))
    assert all("Okapi" in one.text or "okapi" in one.text for one in captioner.describe(regions, must="okapi"))


@pytest.mark.parametrize("store", [Shelf(), Shelf(Entry(0.29, ("an okapi",)))], ids=["empty", "far"])
def test_nothing_near_is_as_before(pixels, store) -> None:
    captioner = build()
    regions = captioner.see(pixels)
    before = captioner.describe(regions, n=3)
    captioner.memory = store
    assert captioner.describe(regions, n=3) == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("optimized", [False, True])
def test_prepared_for_inference_it_says_the_same(pixels, dtype: str, optimized: bool) -> None:
    """Weights that are joined and laid out, memories without padding: the captions of the plain level."""
    if dtype != "float32" and not can_pack(getattr(torch, dtype)):
        pytest.skip("torch without such kernels")
    captioner, plain = build(copies=0.0), build(copies=0.0)
    for one in (captioner, plain):
        with torch.no_grad():
            torch.manual_seed(1)
            for reader in one.backend.level.readers:
                reader.output.weight.normal_(std=0.5)
                reader.gate_near.weight.normal_()
        one.memory = Shelf(
            Entry(0.9, ("an okapi on the grass with Rex",), ("Rex",)), Entry(0.7, ("a red dog", "zorbs"))
        )
    captioner.to(dtype=dtype)
    captioner.backend.prepare = True
    if optimized:
        captioner.optimize()
    for some in (pixels, pixels[:1]):
        found, expected = (one.search(one.see(some), n=3, attention=True) for one in (captioner, plain))
        if dtype == "float32":
            assert torch.equal(found.ids, expected.ids)
            torch.testing.assert_close(found.scores, expected.scores, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found.attention, expected.attention, atol=1e-5, rtol=1e-4)
        else:
            same = (found.ids[:, 0] == expected.ids[:, 0]).all(-1)
            torch.testing.assert_close(found.scores[:, 0][same], expected.scores[:, 0][same], atol=0.5, rtol=0.1)
    level = captioner.backend.prepared_level()
    assert level is captioner.backend.prepared_level()  # made once
    assert not any(type(one) is torch.nn.Linear for one in level.modules())
    assert (level is captioner.backend.level) == optimized
    if not optimized:  # a level that has changed is laid out again
        with torch.no_grad():
            captioner.backend.level.switch.bias.add_(1)
        assert captioner.backend.prepared_level() is not level


def test_each_picture_is_asked_for_its_own_words(pixels) -> None:
    """Stand-ins of several pictures with several words each are those of each picture alone."""
    captioner = build()
    regions = captioner.see([*pixels, pixels[0][:, ::-1]])
    near = [
        [Entry(0.9, ("an okapi on the zorb",)), Entry(0.8, ("a red qilin with Rex",), ("Rex",))],
        [],
        [Entry(0.9, ("a horse in snow",))],
    ]
    level = captioner.backend.memory_level()
    encoded = captioner.model.encode(regions)
    projected = captioner.model.project(encoded)
    together = recollect(near, captioner.vocabulary, level.config, [likenesses(one) for one in near])
    found = dict(zip(together.words, stand_ins(captioner.model, projected, together, level.nouns)[0], strict=True))
    for picture in (0, 2):
        alone = recollect([near[picture]], captioner.vocabulary, level.config, [likenesses(near[picture])])
        shown = {name: tensor[:, picture : picture + 1] for name, tensor in encoded.items()}
        for word, id in zip(alone.words, stand_ins(captioner.model, shown, alone, level.nouns)[0], strict=True):
            assert found.pop(word) == id
    assert not found


def test_a_name_takes_the_place_of_its_kind(pixels) -> None:
    """By shares alone: nothing is copied here."""
    captioner = build(copies=-30.0, name_similarity=0.8)
    regions = captioner.see(pixels)
    before = captioner.describe(regions, must="dog|cat|horse")
    captioner.memory = Shelf(Entry(0.9, ("Rex on the grass",), ("Rex",)))
    named = captioner.describe(regions, must="Rex")
    for one, plain in zip(named, before, strict=True):
        assert "Rex" in one.words
        assert not {"dog", "cat", "horse"} <= set(plain.words)
        assert " a Rex" not in f" {one.text}".replace("A", "a")
        assert one.missing == 0
    captioner.memory = Shelf(Entry(0.7, ("Rex on the grass", "a dog"), ("Rex",)))
    assert all("Rex" not in one.text for one in captioner.describe(regions))  # a stranger


def test_what_is_read() -> None:
    captioner = build()
    vocabulary, config = captioner.vocabulary, MemoryConfig.of(captioner.model, **SMALL, least_similarity=0.3)
    near = [
        Entry(0.95, ("Uncle Bob on the grass.", "A red okapi with Bob!"), ("Uncle Bob",)),
        Entry(0.6, ("Rex in the grass", "a dog"), ("Rex",)),
        Entry(0.2, ("a horse",)),
    ]
    found = recollect([near, []], vocabulary, config, [likenesses(near), []])
    assert found.words == ("Uncle Bob", "okapi", "Bob")
    assert found.proper == (True, False, False)
    words = vocabulary.extended(found.words)
    assert [" ".join(words.word(one) for one in caption.ids) for caption in found.captions[0]] == [
        "a Uncle Bob on the grass", "a red okapi with Bob", "a dog",
    ]  # fmt: skip
    assert [caption.rank for caption in found.captions[0]] == [0, 0, 1]
    assert found.captions[1] == []
    assert found.names == [(len(vocabulary),), ()]
    assert recollect([[near[-1]], []], vocabulary, config, [[], []]) is None
    config = MemoryConfig.of(captioner.model, **(SMALL | {"captions": 1}))
    few = recollect([near], vocabulary, config, [likenesses(near)])
    assert [caption.text for caption in few.captions[0]] == ["Uncle Bob on the grass."]
    assert few.words == ("Uncle Bob",)  # no word of what is not read


def test_nobody_is_in_a_caption_twice(pixels) -> None:
    captioner = build(name_similarity=0.8)
    captioner.memory = Shelf(Entry(0.9, ("Rex Rex Rex Rex",), ("Rex",)))
    for one in captioner.describe(captioner.see(pixels), min_words=6):
        assert one.words.count("Rex") == 1


def test_there_are_no_two_of_somebody(pixels) -> None:
    captioner = build(name_similarity=0.8)
    captioner.memory = Shelf(Entry(0.9, ("Rex on the grass",), ("Rex",)))
    rules: list[Rules] = []
    search = captioner.backend.search
    captioner.backend.search = lambda regions, strategy, given, **more: [
        rules.append(given), search(regions, strategy, given, **more)
    ][1]  # fmt: skip
    captioner.describe(captioner.see(pixels))
    known = captioner.vocabulary.extended(("Rex",))
    (name,) = rules[0].once
    assert known.word(name) == "Rex"
    said = {" ".join(map(known.word, phrase[:-1])) for phrase in rules[0].banned_phrases if phrase[-1] == name}
    assert said <= {f"{many}{an}" for many in SEVERAL for an in ("", " a", " the")}


def test_new_words_that_only_one_picture_has_are_left_out() -> None:
    """Unless it is as near as a name has to be."""
    captioner = build()
    config = MemoryConfig.of(captioner.model, **SMALL, name_similarity=0.9)
    near = [Entry(0.8, ("an okapi on the red couch",)), Entry(0.7, ("the Okapi on the grass",))]
    assert recollect([[*near, Entry(0.6, ("a quux",))]], captioner.vocabulary, config, [[]]).words == ("okapi", "Okapi")
    near.append(Entry(0.95, ("a quux",)))
    assert "quux" in recollect([near], captioner.vocabulary, config, [[]]).words


def test_whose_names_are_said() -> None:
    captioner = build()
    config = MemoryConfig.of(captioner.model, **SMALL, name_similarity=0.8)
    near = [
        Entry(0.85, ("Bob on the grass",), ("Bob",)),  # near, but not like Bob's other pictures
        Entry(0.7, ("Rex and Mia on the grass",), ("Rex", "Mia")),
        Entry(0.6, ("Zoe on the grass",), ("Zoe",)),
    ]

    def names(likenesses, near=near) -> list[str]:
        found = recollect([near], captioner.vocabulary, config, [likenesses])
        return [found.words[one - len(captioner.vocabulary)] for one in found.names[0]] if found else []

    assert names([("Rex", 0.9), ("Zoe", 0.85), ("Mia", 0.81), ("Bob", 0.7)]) == ["Rex", "Mia"]
    assert names([("Rex", 0.9), ("Mia", 0.79)]) == ["Rex"]
    assert names([("Zoe", 0.95), ("Rex", 0.9)]) == ["Zoe"]
    assert names([("Rex", 0.79), ("Bob", 0.7)]) == []
    same = [Entry(0.97, ("Bob on the grass",), ("Bob",)), *near[1:]]
    assert names([("Rex", 0.9), ("Bob", 0.7)], same) == ["Bob"]  # the very picture


def test_what_cannot_read_a_memory_says_so(pixels) -> None:
    captioner = tiny_captioner.build()
    captioner.memory = Shelf(Entry(0.9, ("an okapi",)))
    regions = captioner.see(pixels)
    with pytest.warns(UserWarning, match=r"has no memory\.safetensors"):
        found = captioner.describe(regions)
    captioner.memory = None
    assert captioner.describe(regions) == found
    with pytest.raises(MeshcapError, match=r"has no memory\.safetensors"):
        captioner.expect_reader()


def test_loaded_from_the_folder_when_it_is_needed(tmp_path, pixels) -> None:
    build().save_pretrained(tmp_path)
    assert (tmp_path / "memory.safetensors").is_file()
    captioner = Captioner.from_pretrained(tmp_path, dtype="float32")
    assert captioner.backend.level is None
    captioner.memory = Shelf(Entry(0.9, ("an okapi on the grass",)))
    assert all("okapi" in one.words for one in captioner.describe(captioner.see(pixels)))
    again = tiny_captioner.build()
    again.save_pretrained(tmp_path)  # another model, which has none
    assert not (tmp_path / "memory.safetensors").exists()


def test_explained(pixels) -> None:
    from meshcap.explain import explain
    from meshcap.explain.page import page

    captioner = build(name_similarity=0.8)
    regions = captioner.see(pixels[:1])
    assert explain(captioner, regions, attribution=False).remembered == ()
    captioner.memory = Shelf(Entry(0.9, ("an okapi with Rex",), ("Rex",)))
    found = explain(captioner, regions, attribution=True, steps=2)
    assert found.remembered == (("an okapi with Rex", 0.9),)
    assert any(one.word in ("okapi", "Rex") for one in found.words)
    for one in found.words:
        assert 0.9 < one.listened <= 1
        assert one.recalled.shape == (1,)
        assert one.attribution is not None
    assert found.to_dict()["remembered"] == [{"caption": "an okapi with Rex", "similarity": 0.9}]
    shown = page(found)
    assert "What it remembered" in shown
    assert "heard by" in shown
    mine = explain(captioner, regions, caption="a red okapi", attribution=False)
    assert [one.word for one in mine.words] == ["a", "red", "okapi", "(end)"]
    assert mine.words[2].probability > 0


def test_the_packaged_captioner_has_a_centre() -> None:
    from meshcap.folders import CENTRE, PACKAGED
    from meshcap.weights import read_weights

    centre = read_weights(PACKAGED / CENTRE)["centre"]
    assert centre.shape == (768,)
    assert 0 < float(centre.norm()) < 1  # a mean of vectors of length 1


# What was said of similar pictures decides between captions.


def three_captions(vocabulary, **more) -> Hypotheses:
    """Of two pictures: "a dog", "a cat on grass", "a red horse", ever less likely."""
    texts = ("a dog", "a cat on grass", "a red horse")
    ids = torch.full((2, 3, 6), vocabulary.pad)
    lengths = torch.zeros(2, 3, dtype=torch.long)
    for rank, text in enumerate(texts):
        words = [*vocabulary.encode(text.split()), vocabulary.eos]
        ids[:, rank, : len(words)], lengths[:, rank] = torch.tensor(words), len(words)
    scores = torch.tensor([[-1.0, -2.0, -3.0]]).repeat(2, 1)
    log_probs = torch.arange(36.0).neg().view(2, 3, 6)
    return Hypotheses(ids, log_probs, scores, lengths, torch.ones(2, 3, dtype=torch.bool), **more)


def said_before(*texts: str) -> RamStore:
    store = RamStore("v", 4)
    store.add(np.eye(len(texts), 4) + 0.1, [MemoryEntry((text,)) for text in texts])
    return store


def test_captions_that_agree_with_what_is_near_come_first() -> None:
    vocabulary = tiny_captioner.build().vocabulary
    store = said_before("a cat on grass", "a dog", "a horse", "red grass")
    consensus, found = Consensus(store, vocabulary), three_captions(vocabulary)
    near = [[Entry(0.9, ("a cat on grass",)), Entry(0.8, ("the cat on red grass",))], []]
    tokens = [text.split() for text in ("a dog", "a cat on grass", "a red horse")]
    references = [text.split() for text in ("a cat on grass", "the cat on red grass")]
    agreement = consensus.agreement(tokens, near[0])
    assert agreement == cider_d(tokens, [references] * 3, consensus.frequencies).per_image.tolist()
    assert agreement[1] > agreement[0]
    ordered = consensus.order(found, near, weight=16.0, most=2)
    assert ordered.ids[0, 0].tolist() == found.ids[0, 1].tolist()
    assert ordered.scores[0].tolist() == [-2.0, *sorted([-1.0, -3.0], reverse=ordered.scores[0, 1] == -1.0)]
    assert ordered.log_probs[0, 0].tolist() == found.log_probs[0, 1].tolist()
    assert torch.equal(ordered.ids[1], found.ids[1])  # nothing near
    assert consensus.order(found, [[], []], weight=16.0, most=2) is found
    # A little weight moves little: few are near of those that may be.
    assert consensus.order(found, near, weight=0.1, most=12) is found


def test_required_words_come_before_agreement() -> None:
    vocabulary = tiny_captioner.build().vocabulary
    consensus = Consensus(said_before("a cat on grass", "a dog"), vocabulary)
    found = three_captions(vocabulary, satisfied=torch.tensor([[1, 0, 1], [1, 1, 1]]))
    near = [[Entry(0.9, ("a cat on grass",))]] * 2
    assert consensus.order(found, near, 16.0, 1).satisfied.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert consensus.order(found, near, 16.0, 1).ids[1, 0].tolist() == found.ids[1, 1].tolist()


def test_what_was_seen_moves_with_its_caption() -> None:
    found = three_captions(tiny_captioner.build().vocabulary)
    attention = {"words": torch.rand(2, 3, 6, 5), "gates": torch.rand(4, 3, 2, 3, 6), "memory": torch.rand(4, 2, 5)}
    moved = replace(found, attention=attention).reordered([[2, 0, 1], [0, 1, 2]])
    assert torch.equal(moved.attention["words"][0], attention["words"][0, [2, 0, 1]])
    assert torch.equal(moved.attention["gates"][:, :, 0], attention["gates"][:, :, 0, [2, 0, 1]])
    assert torch.equal(moved.attention["words"][1], attention["words"][1])
    assert moved.attention["memory"] is attention["memory"]


def test_a_consensus_lasts_until_the_memory_has_grown() -> None:
    store = said_before("a cat", "a dog", "a horse")
    consensus = Consensus(store, tiny_captioner.build().vocabulary)
    assert consensus.serves(store) and not consensus.serves(said_before("a cat", "a dog", "a horse"))
    store.add(np.ones((4, 4)), [MemoryEntry(("a cat",))] * 4)
    assert not consensus.serves(store)
    assert Consensus(RamStore("v", 4), tiny_captioner.build().vocabulary).agreement([["a"]], []) == [0.0]


def test_without_new_words_the_captions_are_those_of_the_search(pixels) -> None:
    """In another order, and not shortened."""
    captioner = build(agreement=16.0)
    regions = captioner.see(pixels)
    plain = captioner.describe(regions, n=5)
    captioner.memory = Shelf(Entry(0.9, ("a dog on the red grass",)), Entry(0.8, ("the cat",)))
    found = captioner.describe(regions, n=5)
    for one, other in zip(found, plain, strict=True):
        assert {c.text for c in (one, *one.alternatives)} == {c.text for c in (other, *other.alternatives)}
