"""Cross-entropy against torch's own, however the captions are cut into rectangles."""

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tiny
from meshcap.models import CaptionModel
from meshcap.text import Vocabulary
from meshcap.training.captions import CaptionTable
from meshcap.training.losses import targets, xe_loss, xe_sum

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
