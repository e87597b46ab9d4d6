"""Searches on arrays give what those in torch give: the same words, scores and order, of every captioner."""

import numpy as np
import pytest
import torch

import tiny
from meshcap.backends.exported import ExportedBackend, ExportedFacts
from meshcap.decoding import Beam, ConstrainedBeam, DiverseBeam, Greedy, Rules, Sampling, decode
from meshcap.errors import MeshcapError
from meshcap.export.graphs import Say, parts_of
from meshcap.models import CaptionModel
from meshcap.regions import Regions


class Eager(ExportedBackend):
    """The two graphs of a captioner that nobody traced."""

    name = "eager"

    def __init__(self, model: CaptionModel, regions: Regions):
        self.model, self.regions = model, regions
        self.parts = parts_of(model, regions)
        config = model.config
        super().__init__(ExportedFacts(
            model=model.name, bits=32, vocab_size=config.vocab_size, max_length=config.max_length, unk=config.unk,
            pad=config.pad, bos=config.bos, eos=config.eos, size=8, geometry="squash", pre_resize=0, state=self.parts,
        ))  # fmt: skip

    @torch.no_grad()
    def run_see(self, pixels):
        state = self.model.start(self.model.encode(self.regions[: len(pixels)]), width=1, length=1)
        return {part.name: state[part.name].numpy() for part in self.parts if part.seen}

    @torch.no_grad()
    def run_say(self, ids, state):
        given = tuple(torch.from_numpy(np.ascontiguousarray(state[part.name])) for part in self.parts)
        log_probs, *changed = Say(self.model, self.parts)(torch.from_numpy(ids), given)
        names = [part.name for part in self.parts if part.changes]
        return log_probs.numpy(), {name: one.numpy() for name, one in zip(names, changed, strict=True)}


REGIONS = tiny.pictures(4, 4, 4, 4)
WAYS = [
    (Beam(1), {}),
    (Beam(5), {}),
    (Beam(4, 1.0), {"min_length": 3, "max_length": 7}),
    (Beam(6, 0.5), {"no_repeat_ngram": 1, "banned": (4, 7)}),
    (Beam(3), {"no_repeat_ngram": 2, "bad_endings": (5, 6, 8)}),
    (Beam(4), {"banned_phrases": ((4, 5), (5, 6, 7), (8, 8))}),
    (Beam(4), {"once": (4, 5, 6, 7, 8, 9)}),
    (Beam(5), {"end_in_time": True, "max_length": 4, "bad_endings": (4, 5, 6, 7)}),
    (Beam(12), {"max_length": 2, "min_length": 2}),  # more beams than words
    (Greedy(), {}),
    (DiverseBeam(6, 3), {}),
    (DiverseBeam(4, 4, 0.0), {"bad_endings": (5, 6)}),
    (DiverseBeam(6, 2, 0.8, 0.7), {"max_length": 6}),
    (ConstrainedBeam([[[[7], [9, 4]], [[8]]]], 2), {}),
    (ConstrainedBeam([[[[7]]], [[[9, 4], [5, 6]], [[8]]], [], [[[4, 5]]]], 3, 0.5), {"max_length": 6}),
    (Sampling(4, top_k=1), {}),  # nothing left to draw
]


def agree(model: CaptionModel, way: tuple) -> None:
    strategy, rules = way
    eager = Eager(model, REGIONS)
    rules = Rules(**{"max_length": 9, **rules})
    ours = eager.search(eager.see(np.zeros((4, 3, 8, 8))), strategy, rules, n_best=strategy.width)
    theirs = decode(model, REGIONS, strategy, rules, n_best=strategy.width)
    alive = theirs.scores.numpy() > -np.inf  # what follows a search that found fewer is in no order
    assert alive.any()
    np.testing.assert_allclose(ours.scores, theirs.scores.numpy(), atol=1e-4)
    for name in ("ids", "lengths", "finished"):
        np.testing.assert_array_equal(getattr(ours, name)[alive], getattr(theirs, name).numpy()[alive])
    np.testing.assert_allclose(ours.log_probs[alive], theirs.log_probs.numpy()[alive], atol=1e-4)
    np.testing.assert_allclose(ours.confidence[alive], theirs.confidence.numpy()[alive], atol=1e-4)
    if theirs.satisfied is not None:
        np.testing.assert_array_equal(ours.satisfied[alive], theirs.satisfied.numpy()[alive])
        np.testing.assert_allclose(ours.unconstrained, theirs.unconstrained.numpy(), atol=1e-4)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_rule(way: tuple) -> None:
    agree(tiny.shared("m2"), way)


def test_every_captioner(captioner: CaptionModel) -> None:
    agree(captioner, WAYS[1])


def test_draws_follow_the_model() -> None:
    """The first words of many samples come as often as the model says."""
    model = tiny.shared("m2")
    eager = Eager(model, REGIONS)
    seen = eager.see(np.zeros((1, 3, 8, 8)))
    strategy = Sampling(4000, temperature=1.3, top_p=0.9, seed=3)
    found = eager.search(seen, strategy, Rules(max_length=1), n_best=4000)
    shares = np.bincount(found.ids[0, :, 0], minlength=tiny.VOCAB) / 4000
    theirs = decode(model, REGIONS[:1], strategy, Rules(max_length=1), n_best=4000).ids[0, :, 0]
    expected = np.bincount(theirs.numpy(), minlength=tiny.VOCAB) / 4000
    np.testing.assert_allclose(shares, expected, atol=0.03)
    assert (found.ids == eager.search(seen, strategy, Rules(max_length=1), n_best=4000).ids).all()


def test_scores_of_given_words() -> None:
    model = tiny.shared("m2")
    eager = Eager(model, REGIONS)
    ids = [[4, 5, 3], [7, 7, 8, 9, 3], [3]]
    found = eager.score(eager.see(np.zeros((1, 3, 8, 8))), ids)
    for words, log_probs in zip(ids, found, strict=True):
        before = torch.tensor([[model.config.bos, *words[:-1]]])
        with torch.no_grad():
            expected = model(REGIONS[:1], before)[0].gather(-1, torch.tensor(words)[:, None])[:, 0]
        assert log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_captions_end_in_time_or_by_themselves() -> None:
    """The comparison above means something: there are captions of both kinds, and several lengths."""
    found = decode(tiny.shared("m2"), REGIONS, Beam(5), Rules(max_length=9), n_best=5)
    assert len(set(found.lengths.flatten().tolist())) > 2
    assert set(found.finished.flatten().tolist()) == {True, False}


def test_what_has_no_sense_is_refused() -> None:
    eager = Eager(tiny.shared("m2"), REGIONS)

    seen = eager.see(np.zeros((4, 3, 8, 8)))
    for message, beam, rules, n_best in (
        ("at most 9 words", Beam(), Rules(max_length=10), 1),
        ("6 captions of each", Beam(5), Rules(max_length=5), 6),
        ("word id 10", Beam(), Rules(max_length=5, banned=(10,)), 1),
        ("<eos> is banned", Beam(), Rules(max_length=5, banned=(eager.facts.eos,)), 1),
        ("required word id 10", ConstrainedBeam([[[[10]]]]), Rules(max_length=5), 1),
    ):
        with pytest.raises(MeshcapError, match=message):
            eager.search(seen, beam, rules, n_best=n_best)
    with pytest.raises(MeshcapError, match="attention is not part of an exported model"):
        eager.search(seen, Beam(), Rules(max_length=5), attention=True)
    with pytest.raises(MeshcapError, match="says the words of its vocabulary alone"):
        eager.search(seen, Beam(), Rules(max_length=5), extension=("okapi",))
    with pytest.raises(MeshcapError, match="reads pictures, not Regions"):
        eager.search(REGIONS, Beam(), Rules(max_length=5))
