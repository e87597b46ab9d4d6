"""Beam search on arrays gives what `meshcap.decoding` gives: the same words, scores and order, of every captioner."""

import numpy as np
import pytest
import torch

import tiny
from meshcap.decoding import Beam as TorchBeam
from meshcap.decoding import Rules as TorchRules
from meshcap.decoding import decode
from meshcap.errors import MeshcapError
from meshcap.export.graphs import Say, parts_of
from meshcap.models import CaptionModel
from meshcap.regions import Regions
from meshcap.runtime.facts import Facts
from meshcap.runtime.rules import Rules
from meshcap.runtime.search import Beam, search


class Eager:
    """The two graphs of a captioner that nobody traced."""

    def __init__(self, model: CaptionModel, regions: Regions):
        self.model, self.regions = model, regions
        self.parts = parts_of(model, regions)
        config = model.config
        self.facts = Facts(
            model=model.name, bits=32, vocab_size=config.vocab_size, max_length=config.max_length, unk=config.unk,
            pad=config.pad, bos=config.bos, eos=config.eos, size=8, geometry="squash", pre_resize=0, state=self.parts,
        )  # fmt: skip

    @torch.no_grad()
    def see(self, pixels):
        state = self.model.start(self.model.encode(self.regions[: len(pixels)]), width=1, length=1)
        return {part.name: state[part.name].numpy() for part in self.parts if part.seen}

    @torch.no_grad()
    def say(self, ids, state):
        given = tuple(torch.from_numpy(np.ascontiguousarray(state[part.name])) for part in self.parts)
        log_probs, *changed = Say(self.model, self.parts)(torch.from_numpy(ids), given)
        names = [part.name for part in self.parts if part.changes]
        return log_probs.numpy(), {name: one.numpy() for name, one in zip(names, changed, strict=True)}


REGIONS = tiny.pictures(4, 4, 4, 4)
WAYS = [
    (1, 0.0, {}, 1),
    (5, 0.0, {}, 5),
    (4, 1.0, {"min_length": 3, "max_length": 7}, 3),
    (6, 0.5, {"no_repeat_ngram": 1, "banned": (4, 7)}, 6),
    (3, 0.0, {"no_repeat_ngram": 2, "bad_endings": (5, 6, 8)}, 2),
    (5, 0.0, {"end_in_time": True, "max_length": 4, "bad_endings": (4, 5, 6, 7, 8)}, 5),
    (12, 0.0, {"max_length": 2, "min_length": 2}, 12),  # more beams than words
]


def agree(model: CaptionModel, way: tuple) -> None:
    beams, penalty, rules, n_best = way
    eager = Eager(model, REGIONS)
    rules = {"max_length": 9, **rules}
    ours = search(eager, eager.facts, np.zeros(4), Beam(beams, penalty), Rules(**rules), n_best=n_best)
    theirs = decode(model, REGIONS, TorchBeam(beams, penalty), TorchRules(**rules), n_best=n_best)
    alive = theirs.scores.numpy() > -np.inf  # what follows a search that found fewer is in no order
    assert alive.any()
    np.testing.assert_allclose(ours.scores, theirs.scores.numpy(), atol=1e-4)
    for name in ("ids", "lengths", "finished"):
        np.testing.assert_array_equal(getattr(ours, name)[alive], getattr(theirs, name).numpy()[alive])
    np.testing.assert_allclose(ours.log_probs[alive], theirs.log_probs.numpy()[alive], atol=1e-4)
    np.testing.assert_allclose(ours.probability[alive], theirs.confidence.numpy()[alive], atol=1e-4)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_rule(way: tuple) -> None:
    agree(tiny.shared("m2"), way)


def test_every_captioner(captioner: CaptionModel) -> None:
    agree(captioner, WAYS[1])


def test_captions_end_in_time_or_by_themselves() -> None:
    """The comparison above means something: there are captions of both kinds, and several lengths."""
    found = decode(tiny.shared("m2"), REGIONS, TorchBeam(5), TorchRules(max_length=9), n_best=5)
    assert len(set(found.lengths.flatten().tolist())) > 2
    assert set(found.finished.flatten().tolist()) == {True, False}


def test_what_has_no_sense_is_refused() -> None:
    eager = Eager(tiny.shared("m2"), REGIONS)

    def run(beam: Beam, rules: Rules, n_best: int = 1) -> None:
        search(eager, eager.facts, np.zeros(4), beam, rules, n_best=n_best)

    for message, beam, rules, n_best in (
        ("at most 9 words", Beam(), Rules(max_length=10), 1),
        ("6 captions of each", Beam(5), Rules(max_length=5), 6),
        ("word id 10", Beam(), Rules(max_length=5, banned=(10,)), 1),
        ("<eos> is banned", Beam(), Rules(max_length=5, banned=(eager.facts.eos,)), 1),
    ):
        with pytest.raises(MeshcapError, match=message):
            run(beam, rules, n_best)
    with pytest.raises(MeshcapError, match="beams is 0"):
        Beam(0)
    with pytest.raises(MeshcapError, match="1 ≤ min ≤ max"):
        Rules(min_length=5, max_length=4)
