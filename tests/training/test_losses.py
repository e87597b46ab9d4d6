"""Cross-entropy against torch's own; self-critical training: one policy in both passes, and the right gradient."""

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tiny
from meshcap.decoding import Rules, Sampling, decode
from meshcap.models import CaptionModel
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.training.captions import CaptionTable
from meshcap.training.losses import advantages, scst_sum, targets, xe_loss, xe_sum
from meshcap.training.tasks import Sampler
from meshcap.training.trainer import ROUNDING

VOCABULARY = Vocabulary(["<unk>", "<pad>", "<bos>", "<eos>", *"abcdef"])
TOKENS = [
    [["a"], ["b", "c"], ["a", "strange", "d"], ["e", "f", "a", "b", "c", "d"]],
    [["c", "c"], ["strange"], ["d", "e"], ["f", "e", "d", "c", "b"]],
    [["f"], ["a", "b", "c", "d", "e", "f", "a"]],
]
TABLE = CaptionTable.build(TOKENS, VOCABULARY, 9)


def rectangles_of(shapes: list[tuple[int, int]]) -> list[Tensor]:
    chosen = TABLE.choose(numpy.arange(3), 4, numpy.random.default_rng(0))
    return TABLE.cut(chosen, shapes)


def caption_by_caption(model: CaptionModel, smoothing: float) -> tuple[Tensor, int]:
    """Sum and count of the words' losses, from logits, one caption at a time, by torch."""
    regions = tiny.pictures(4, 4, 4)
    suppressed = set(model.config.suppressed)
    sayable = [word for word in range(model.config.vocab_size) if word not in suppressed]
    total, count = torch.zeros(()), 0
    for picture, captions in enumerate(TOKENS):
        for caption in captions:
            words = [VOCABULARY.bos, *VOCABULARY.encode(caption), VOCABULARY.eos]
            log_probs = model(regions[picture : picture + 1], torch.tensor([words[:-1]]))[0]
            for place, word in enumerate(words[1:]):
                if word in suppressed:
                    continue
                # Words that are never said take no part: torch smooths over exactly those it is given.
                row, target = log_probs[place, sayable], torch.tensor(sayable.index(word))
                total = total + F.cross_entropy(row, target, label_smoothing=smoothing)
                count += 1
    return total, count


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("suppressed", [(0, 1, 2), (1, 2)])
def test_equals_torch_and_does_not_depend_on_the_rectangles(smoothing: float, suppressed: tuple[int, ...]) -> None:
    model = tiny.build("m2", suppressed_ids=suppressed)
    regions = tiny.pictures(4, 4, 4)
    expected, count = caption_by_caption(model, smoothing)
    for shapes in ([(4, 8)], [(2, 3), (2, 8)], [(1, 3), (3, 8)]):
        found = xe_sum(model, regions, rectangles_of(shapes), smoothing)
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    (ids,) = rectangles_of([(4, 8)])
    assert xe_loss(model, regions, ids, smoothing).item() == pytest.approx(expected.item() / count, rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_equal_torchs(smoothing: float) -> None:
    model = tiny.build("m2", suppressed_ids=(0, 1, 2))
    weights = list(model.parameters())
    expected = torch.autograd.grad(caption_by_caption(model, smoothing)[0], weights)
    regions = tiny.pictures(4, 4, 4)
    found = torch.autograd.grad(xe_sum(model, regions, rectangles_of([(2, 3), (2, 8)]), smoothing), weights)
    for one, other in zip(found, expected, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_unknown_words_count_only_where_they_may_be_said() -> None:
    ids = torch.tensor([[2, 4, 0, 5, 3, 1]])
    assert targets(ids, pad=1, unk=0, suppressed=(0, 1, 2)).tolist() == [[True, False, True, True, False]]
    assert targets(ids, pad=1, unk=0, suppressed=(1, 2)).tolist() == [[True, True, True, True, False]]


def test_an_unknown_word_is_read_but_not_learned() -> None:
    """What comes after `<unk>` still depends on it; what should have been `<unk>` gives no gradient."""
    model = tiny.build("m2", suppressed_ids=(0, 1, 2))
    regions = tiny.pictures(4)
    with_unk = torch.tensor([[2, 4, 0, 5, 3]])
    without = torch.tensor([[2, 4, 5, 3]])
    assert xe_loss(model, regions, with_unk).item() != pytest.approx(xe_loss(model, regions, without).item())
    log_probs = model(regions, with_unk[:, :-1])[0]
    expected = -(log_probs[0, 4] + log_probs[2, 5] + log_probs[3, 3]) / 3
    assert xe_loss(model, regions, with_unk).item() == pytest.approx(expected.item(), rel=1e-6)


def test_pictures_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build("m2", suppressed_ids=(0, 1, 2))
    looked = []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda regions: looked.append(len(regions)) or encode(regions))
    xe_sum(model, tiny.pictures(4, 4, 4), rectangles_of([(2, 3), (2, 8)]))
    assert looked == [3]


def test_nothing_to_count_is_zero_and_not_nan() -> None:
    model = tiny.build("m2", suppressed_ids=(0, 1, 2))
    loss = xe_loss(model, tiny.pictures(4), torch.full((1, 4), 1))
    assert loss.item() == 0
    loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)


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
    found = decode(model, regions, Sampling(200, seed=9), Rules(max_length=LENGTH), n_best=200)
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
