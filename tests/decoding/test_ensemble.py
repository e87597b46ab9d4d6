"""Ensembles: the mean of the members' probabilities, searched like one model."""

import pytest
import torch

import tiny
from decoding import naive
from meshcap.decoding import Beam, ConstrainedBeam, DiverseBeam, Ensemble, Rules, Sampling, decode
from meshcap.errors import MeshcapError

PICTURES = tiny.pictures(3, 6, 2)
RULES = Rules(max_length=6, no_repeat_ngram=2)


def test_of_one_model_twice_is_the_model(captioner) -> None:
    for strategy in (Beam(3), DiverseBeam(4, 2), ConstrainedBeam([[[[7]]]], 2), Sampling(3)):
        alone, twice = (
            decode(model, PICTURES, strategy, RULES, n_best=2, attention=True)
            for model in (captioner, Ensemble([captioner, captioner]))
        )
        assert torch.equal(alone.ids, twice.ids)
        torch.testing.assert_close(alone.log_probs, twice.log_probs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(alone.attention["words"], twice.attention["words"])


class Mean:
    """Members' probabilities averaged in the open, for the plain search."""

    def __init__(self, *members) -> None:
        self.members, self.config = members, members[0].config

    def __call__(self, regions, ids):
        return torch.stack([member(regions, ids).double().exp() for member in self.members]).mean(0).log()


def test_of_different_models_is_the_mean_of_their_probabilities(captioner) -> None:
    other = tiny.build("m2", seed=5)
    found = decode(Ensemble([captioner, other]), PICTURES, Beam(3), RULES, n_best=3)
    for picture in range(len(PICTURES)):
        alone = tiny.one(PICTURES, picture)
        naive.expect_same(found, picture, naive.beam(Mean(captioner, other), alone, 3, RULES))
    assert not torch.equal(found.ids, decode(captioner, PICTURES, Beam(3), RULES, n_best=3).ids)


def test_many_members() -> None:
    """Ten and more: the state of member 1 is not that of member 10."""
    members = [tiny.build("m2" if seed % 2 else "transformer", seed=seed) for seed in range(11)]
    found = decode(Ensemble(members), PICTURES, Beam(2), Rules(max_length=4), n_best=2)
    for picture in range(len(PICTURES)):
        expected = naive.beam(Mean(*members), tiny.one(PICTURES, picture), 2, Rules(max_length=4))
        naive.expect_same(found, picture, expected)


def test_attention_is_the_mean() -> None:
    members = [tiny.shared("m2"), tiny.build("m2", seed=5)]
    ids = torch.tensor([[2, 4, 5]]).expand(3, -1)
    with torch.no_grad():
        log_probs, seen = Ensemble(members)(PICTURES, ids, attention=True)
        each = [member(PICTURES, ids, attention=True)[1]["words"] for member in members]
        torch.testing.assert_close(log_probs, Ensemble(members)(PICTURES, ids))
    torch.testing.assert_close(seen["words"], (each[0] + each[1]) / 2)


def test_as_long_as_the_shortest() -> None:
    members = [tiny.shared("m2"), tiny.build("m2", max_length=5)]
    assert decode(Ensemble(members), PICTURES, Beam(2), Rules(max_length=5)).ids.shape[-1] == 5
    with pytest.raises(MeshcapError, match="max_length is 6, and this model can say at most 5 words"):
        decode(Ensemble(members), PICTURES, Beam(2), Rules(max_length=6))


def test_members_share_a_vocabulary() -> None:
    with pytest.raises(MeshcapError, match="member 1 has vocab_size 11 and the first has 10"):
        Ensemble([tiny.shared("m2"), tiny.build("m2", vocab_size=11)])
    with pytest.raises(MeshcapError, match="member 2 has eos 4 and the first has 3"):
        Ensemble([tiny.shared("m2"), tiny.shared("m2"), tiny.build("m2", eos=4)])
    with pytest.raises(MeshcapError, match="an ensemble of no models"):
        Ensemble([])


def test_members_may_fill_pictures_up_differently() -> None:
    members = [tiny.shared("m2-attend-padding"), tiny.build("m2-no-boxes", suppressed_ids=())]
    seen = decode(Ensemble(members), tiny.pictures(3, 5), Beam(2), Rules(max_length=5), attention=True).attention
    assert seen is not None
    assert seen["words"].shape[-1] == 8
    assert torch.allclose(seen["words"].sum(-1), torch.ones(2, 1, 5), atol=1e-5)
