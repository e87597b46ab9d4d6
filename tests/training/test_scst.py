"""Self-critical training: one policy in both passes, and the gradient that the mathematics asks for."""

import pytest
import torch
from torch import Tensor

import tiny
from meshcap.decoding import Rules, Sample, decode
from meshcap.models import CaptionModel
from meshcap.regions import Regions
from meshcap.training.losses import advantages, scst_sum
from meshcap.training.tasks import Sampler
from meshcap.training.trainer import ROUNDING

LENGTH = 7


def sampler_of(model: CaptionModel, **options: object) -> Sampler:
    return Sampler(model, dtype=torch.float32, samples=4, max_length=LENGTH, **options)


def gap_of(model: CaptionModel, regions: Regions, sampler: Sampler, seed: int = 1, **options: object) -> float:
    """The mean difference of a word's log-probability between the two passes."""
    found = sampler.draw(regions, seed)
    _, gap = scst_sum(model, regions, found.ids, found.log_probs, torch.zeros(found.ids.shape[:2]), **options)
    return gap.item() / int((found.ids != model.config.pad).sum())


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 3}, {"temperature": 1.5, "top_k": 4}])
@pytest.mark.parametrize("name", tiny.names())
def test_both_passes_agree(name: str, options: dict) -> None:
    model = tiny.build(name)
    counts = (4, 4, 4) if name == "m2-attend-padding" else (3, 5, 4)
    gap = gap_of(model, tiny.pictures(*counts), sampler_of(model, **options), **options)
    assert gap < 1e-5
    assert gap < ROUNDING["float32"]


def test_a_speaker_follows_the_model() -> None:
    model = tiny.build("m2")
    sampler = sampler_of(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    assert gap_of(model, tiny.pictures(4, 4), sampler) < 1e-5
    assert not any(weight.requires_grad for weight in sampler.copy.parameters())
    assert all(weight.requires_grad for weight in model.parameters())


def test_a_word_that_only_the_search_bans_is_noticed_in_the_gradient_pass_too() -> None:
    """Where the sampler's copy never says a word that the model may say, the rest of its words are likelier."""
    model = tiny.build("m2", suppressed_ids=(1, 2))
    other = tiny.build("m2", suppressed_ids=(0, 1, 2))  # the same weights
    sampler = sampler_of(other)
    assert gap_of(other, tiny.pictures(4, 4), sampler) < 1e-5
    assert gap_of(model, tiny.pictures(4, 4), sampler) > 5 * ROUNDING["float32"]


def test_dropout_in_one_pass_is_noticed() -> None:
    model = tiny.build("m2", dropout=0.2)
    sampler = sampler_of(model)
    assert gap_of(model.train(), tiny.pictures(4, 4), sampler) > 5 * ROUNDING["float32"]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6, "top_k": 3}])
def test_gradient_is_reinforce(options: dict) -> None:
    """Against a plain graph: each caption read alone, -A log q(word) added up word by word."""
    model = tiny.build("m2", suppressed_ids=(0, 1, 2))
    regions = tiny.pictures(4, 4)
    found = sampler_of(model, **options).draw(regions, 3)
    advantage = torch.randn(2, 4)
    temperature, top_k = options.get("temperature", 1.0), options.get("top_k", 0)
    expected = torch.zeros(())
    for picture in range(2):
        for sample in range(4):
            words = [word for word in found.ids[picture, sample].tolist() if word != model.config.pad]
            assert 3 not in words[:-1]
            read = torch.tensor([[2, *words[:-1]]])
            log_probs = model(regions[picture : picture + 1], read)[0]
            for place, word in enumerate(words):
                odds = log_probs[place].exp() ** (1 / temperature)
                if top_k:
                    odds = odds * (odds >= odds.sort(descending=True).values[top_k - 1])
                expected = expected - advantage[picture, sample] * (odds[word] / odds.sum()).log()
    loss, _ = scst_sum(model, regions, found.ids, found.log_probs, advantage, temperature, top_k)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    weights = list(model.parameters())
    gradients = zip(torch.autograd.grad(loss, weights), torch.autograd.grad(expected, weights), strict=True)
    for own, other in gradients:
        torch.testing.assert_close(own, other, atol=5e-5, rtol=1e-3)


def test_the_gradient_is_that_of_the_expected_reward() -> None:
    """Captions of one or two words can all be counted: the mean gradient of many draws must be the true one."""
    model = tiny.build("m2", suppressed_ids=(0, 1, 2, 7, 8, 9))  # <eos> and three words
    regions = tiny.pictures(4)
    worth = {3: 0.0, 4: 1.0, 5: -0.5, 6: 0.3}
    weight = model.decoder.output.words.weight

    first = model(regions, torch.tensor([[2]]))[0, 0].exp()
    expected_reward = torch.zeros(())
    for one, value in worth.items():
        if one == 3:
            continue
        second = model(regions, torch.tensor([[2, one]]))[0, 1].exp()
        for two, more in worth.items():
            expected_reward = expected_reward + first[one] * second[two] * (value + more)
    (true,) = torch.autograd.grad(expected_reward, weight)

    samples = 6000
    sampler = Sampler(model, dtype=torch.float32, samples=samples, max_length=2)
    found = sampler.draw(regions, 11)
    values = torch.zeros(10)
    for word, value in worth.items():
        values[word] = value
    rewards = values[found.ids].where(found.ids != 1, 0).sum(-1)
    loss, _ = scst_sum(model, regions, found.ids, found.log_probs, advantages(rewards))
    (drawn,) = torch.autograd.grad(loss / samples, weight)
    assert true.norm() > 0.01
    assert (drawn + true).norm() < 0.1 * true.norm()


def test_leave_one_out() -> None:
    rewards = torch.rand(3, 5)
    for picture in range(3):
        for sample in range(5):
            others = [rewards[picture, other].item() for other in range(5) if other != sample]
            own = rewards[picture, sample].item() - sum(others) / 4
            assert advantages(rewards)[picture, sample].item() == pytest.approx(own, abs=1e-6)
    assert advantages(torch.full((2, 4), 0.7)).abs().max() < 1e-6


def said_share(model: CaptionModel, regions: Regions, word: int) -> float:
    found = decode(model, regions, Sample(200, seed=9), Rules(max_length=LENGTH), n_best=200)
    return float((found.ids == word).any(-1).float().mean())


@pytest.mark.parametrize("word", [5, 3])
def test_what_is_rewarded_is_said_more_often(word: int) -> None:
    """A word, and the end of a caption, which must be learnable like one."""
    model = tiny.build("m2", suppressed_ids=(0, 1, 2))
    regions = tiny.pictures(4, 4, 4)
    before = said_share(model, regions, word)
    sampler = sampler_of(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(40):
        found = sampler.draw(regions, step)
        rewards = (found.ids == word).any(-1).float()
        loss, _ = scst_sum(model, regions, found.ids, found.log_probs, advantages(rewards))
        optimizer.zero_grad()
        (loss / 50).backward()
        optimizer.step()
    assert said_share(model, regions, word) > min(0.95, before + 0.2)


def test_beams_instead_of_samples() -> None:
    model = tiny.build("m2", suppressed_ids=(0, 1, 2))
    regions = tiny.pictures(4, 4)
    found = sampler_of(model, search="beam").draw(regions, 0)
    assert found.ids.shape[:2] == (2, 4)
    for captions in found.ids.tolist():
        assert len({tuple(one) for one in captions}) == 4  # beams differ, draws may not
    again = sampler_of(model, search="beam").draw(regions, 1)
    assert torch.equal(found.ids, again.ids)  # and no seed moves them
    assert gap_of(model, regions, sampler_of(model, search="beam")) < 1e-5
    loss, _ = scst_sum(model, regions, found.ids, found.log_probs, advantages(torch.rand(2, 4)))
    loss.backward()
    assert any(weight.grad.abs().sum() > 0 for weight in model.parameters() if weight.grad is not None)


def test_seeds_draw_the_same_or_other_captions() -> None:
    model = tiny.build("m2")
    regions = tiny.pictures(4, 4)

    def ids(seed: int) -> Tensor:
        return sampler_of(model).draw(regions, seed).ids

    assert torch.equal(ids(2**61), ids(2**61))
    assert not torch.equal(ids(1), ids(2))


def test_padding_gives_no_gradient() -> None:
    """However far beyond their end captions are filled up, the loss is the same."""
    model = tiny.build("m2", suppressed_ids=(0, 1, 2))
    regions = tiny.pictures(4)
    ids = torch.tensor([[[4, 3, 1, 1], [5, 6, 4, 3]]])
    drawn = torch.zeros(1, 2, 4)
    advantage = torch.tensor([[1.0, -1.0]])
    loss, gap = scst_sum(model, regions, ids, drawn, advantage)
    longer = torch.nn.functional.pad(ids, (0, 3), value=1)
    other, other_gap = scst_sum(model, regions, longer, torch.zeros(1, 2, 7), advantage)
    assert loss.item() == pytest.approx(other.item(), rel=1e-6)
    assert gap.item() == pytest.approx(other_gap.item(), rel=1e-6)
    assert torch.isfinite(loss)
