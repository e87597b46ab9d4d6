"""What every search promises of the captions it returns, for every captioner."""

from math import inf

import pytest
import torch

import tiny
from meshcap.decoding import Beam, ConstrainedBeam, DiverseBeam, Greedy, Rules, Sampling, Strategy, decode

PICTURES = tiny.pictures(3, 6, 2)
RULES = Rules(max_length=7)
SEARCHES = {
    "greedy": Greedy(),
    "beam": Beam(4),
    "normalised beam": Beam(4, 0.7),
    "diverse": DiverseBeam(4, 2),
    "constrained": ConstrainedBeam([[[[7], [9, 4]], [[8]]]], 2),
    "normalised constrained": ConstrainedBeam([[[[7, 5]]]], 2, 0.7),
}
STRATEGIES = {**SEARCHES, "sample": Sampling(4, temperature=1.3, top_p=0.9)}
searches = pytest.mark.parametrize("strategy", SEARCHES.values(), ids=SEARCHES)
strategies = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


@strategies
def test_promises(captioner, strategy: Strategy) -> None:
    found = decode(captioner, PICTURES, strategy, RULES, n_best=strategy.width)
    pad, bos, eos = captioner.config.pad, captioner.config.bos, captioner.config.eos
    shape = (len(PICTURES), strategy.width)
    assert found.ids.shape == (*shape, RULES.max_length)
    assert found.ids.shape == found.log_probs.shape
    assert found.scores.shape == found.lengths.shape == found.finished.shape == found.confidence.shape == shape

    # ids: words, <eos> where finished, then <pad> to the end; lengths count all but the padding
    place = torch.arange(RULES.max_length)
    after_end = place >= found.lengths[..., None]
    assert (found.ids[after_end] == pad).all()
    assert (found.log_probs[after_end] == 0).all()
    ends = (found.ids == eos) & ~after_end
    assert torch.equal(ends.any(-1), found.finished)
    assert torch.equal(ends[found.finished].long().argmax(-1), found.lengths[found.finished] - 1)
    real = found.scores > -inf
    assert (found.lengths[real & ~found.finished] == RULES.max_length).all()
    if captioner.config.suppressed_ids is None:
        assert not torch.isin(found.ids[~after_end], torch.tensor([pad, bos])).any()

    # log_probs: the model's own, read again from the start
    spoken = torch.cat((torch.full_like(found.ids[..., :1], bos), found.ids[..., :-1]), -1)
    with torch.no_grad():
        expected = captioner(PICTURES, spoken).gather(-1, found.ids[..., None])[..., 0].masked_fill(after_end, 0)
    torch.testing.assert_close(found.log_probs[real], expected[real], atol=1e-4, rtol=1e-4)

    # scores: their sums, divided by length ** penalty; best first, where requirements come before scores
    sums = found.log_probs.sum(-1) / found.lengths.clamp_min(1) ** getattr(strategy, "length_penalty", 0.0)
    torch.testing.assert_close(found.scores[real], sums[real], atol=1e-5, rtol=1e-5)
    met = torch.zeros_like(found.scores) if found.satisfied is None else found.satisfied
    keys = [list(zip(*pair, strict=True)) for pair in zip(met.tolist(), found.scores.tolist(), strict=True)]
    assert all(row == sorted(row, reverse=True) for row in keys)
    assert (found.satisfied is not None) == isinstance(strategy, ConstrainedBeam)
    assert real[:, 0].all()

    # confidence: the geometric mean of the words' probabilities
    means = [log_probs[:length].exp().prod() ** (1 / length) for log_probs, length in zip(
        found.log_probs[:, 0], found.lengths[:, 0].tolist(), strict=True)]  # fmt: skip
    torch.testing.assert_close(found.confidence[:, 0], torch.stack(means), atol=1e-5, rtol=1e-4)
    assert ((found.confidence[real] > 0) & (found.confidence[real] <= 1)).all()


@strategies
def test_fewer_are_the_best_of_more(strategy: Strategy) -> None:
    model = tiny.shared("m2")
    one, all_of_them = (decode(model, PICTURES, strategy, RULES, n_best=n) for n in (1, strategy.width))
    for name in ("ids", "log_probs", "scores", "lengths", "finished"):
        assert torch.equal(getattr(one, name), getattr(all_of_them, name)[:, :1]), name


@searches
def test_company_changes_nothing(captioner, strategy: Strategy) -> None:
    """A picture alone and without padding gets the caption it gets in a batch with larger ones."""
    together = decode(captioner, PICTURES, strategy, RULES, n_best=strategy.width, attention=True)
    for picture in range(len(PICTURES)):
        alone = decode(captioner, tiny.one(PICTURES, picture), strategy, RULES, n_best=strategy.width, attention=True)
        real = alone.scores[0] > -inf
        assert torch.equal(real, together.scores[picture] > -inf)
        assert torch.equal(alone.ids[0][real], together.ids[picture][real])
        torch.testing.assert_close(alone.scores[0], together.scores[picture], atol=1e-4, rtol=1e-5)
        regions = alone.attention["words"].shape[-1]
        looks = together.attention["words"][picture][real]
        torch.testing.assert_close(alone.attention["words"][0][real], looks[..., :regions], atol=1e-4, rtol=1e-4)


def test_order_of_pictures_changes_nothing(captioner) -> None:
    order = torch.tensor([2, 0, 1])
    found = decode(captioner, PICTURES, Beam(3), RULES, n_best=3)
    shuffled = decode(captioner, PICTURES[order], Beam(3), RULES, n_best=3)
    assert torch.equal(found.ids[order], shuffled.ids)


def test_pictures_make_a_difference(captioner) -> None:
    assert decode(captioner, PICTURES, Beam(3), RULES).scores.std() > 0.01


def test_attention_is_a_share_of_the_real_regions(captioner) -> None:
    found = decode(captioner, PICTURES, Beam(3), RULES, n_best=2, attention=True)
    words = found.attention["words"]  # (B, n, T, N)
    assert words.shape[:3] == found.ids.shape
    assert (words >= 0).all()
    torch.testing.assert_close(words.sum(-1), torch.ones(words.shape[:3]))
    if not getattr(captioner.config, "attend_padding", 0):
        assert words.shape[-1] == PICTURES.features.shape[1]
        for picture, mask in enumerate(PICTURES.mask):
            assert (words[picture][..., ~mask] == 0).all()
            assert tiny.looks_hard(captioner) or (words[picture][..., mask] > 0).all()
    assert decode(captioner, PICTURES, Beam(3), RULES).attention is None


def test_defaults() -> None:
    """Five beams, twenty words, the best caption."""
    model = tiny.build("m2", max_length=20)
    found, spelled = decode(model, PICTURES), decode(model, PICTURES, Beam(5, 0.0), Rules(max_length=20), n_best=1)
    assert found.ids.shape == (3, 1, 20)
    assert torch.equal(found.ids, spelled.ids)


def test_stops_when_all_have_ended() -> None:
    """No word is computed once every caption has ended, dead places of a constrained search included."""
    model, steps = tiny.build("m2"), 0
    step = model.step

    def counted(ids, state):
        nonlocal steps
        steps += 1
        log_probs = step(ids, state)
        if steps >= 3:  # nothing but <eos> from here on
            log_probs.fill_(-inf)[..., model.config.eos] = 0
        return log_probs

    model.step = counted
    for strategy in (Greedy(), Beam(3), ConstrainedBeam([[[[7, 5]]]], 2)):
        steps = 0
        found = decode(model, PICTURES, strategy, Rules(max_length=9))
        assert found.finished.all()
        assert steps == 3, strategy


def test_leaves_the_model_alone(captioner) -> None:
    """Decoding twice is decoding once: no state is left behind, no gradient is kept."""
    before = {name: tensor.clone() for name, tensor in captioner.state_dict().items()}
    first, second = (decode(captioner, PICTURES, Beam(3), RULES) for _ in range(2))
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.scores, second.scores)
    assert not first.log_probs.requires_grad
    for name, tensor in captioner.state_dict().items():
        assert torch.equal(tensor, before[name]), name
