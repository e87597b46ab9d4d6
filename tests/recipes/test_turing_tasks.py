"""The tasks: what is heard, what is wanted and when, read back from the tensors."""

import pytest
import torch

from meshcap.errors import MeshcapError
from recipes.turing_machine import TASKS, Batch, loss, repeat_copy, wrong_bits


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def answer(batch: Batch) -> torch.Tensor:
    assert bool((batch.targets[:, ~batch.mask] == 0).all())
    assert bool((batch.inputs[:, batch.mask] == 0).all())  # nothing is heard while answering
    return batch.targets[:, batch.mask]


def test_copy() -> None:
    batch = TASKS["copy"].batch(4, 5, 3, generator())
    assert batch.inputs.shape == (4, 11, 4) and batch.targets.shape == (4, 11, 3) and batch.mask.shape == (11,)
    assert batch.mask.tolist() == [False] * 6 + [True] * 5
    assert torch.equal(answer(batch), batch.inputs[:, :5, :3])
    assert batch.inputs[0, :, 3].tolist() == [0.0] * 5 + [1.0] + [0.0] * 5
    assert bool((batch.inputs[:, 5, :3] == 0).all())


@pytest.mark.parametrize("repeats", [1, 3])
def test_repeat_copy(repeats: int) -> None:
    batch = repeat_copy(2, 4, 3, generator(), repeats=repeats)
    heard, said = batch.inputs[:, :4, :3], answer(batch)
    assert said.shape == (2, 4 * repeats + 1, 4)
    for again in range(repeats):
        assert torch.equal(said[:, 4 * again : 4 * again + 4, :3], heard)
    assert said[0, :, 3].tolist() == [0.0] * 4 * repeats + [1.0]  # then the sign, and with it no bits
    assert bool((said[:, -1, :3] == 0).all())
    assert batch.inputs[0, 4, 3].item() == 1
    assert batch.inputs[0, 4, 4].item() == pytest.approx((repeats - 3) / 2**0.5)


def test_repeat_copy_repeats_as_often_as_it_likes() -> None:
    draw = generator()
    lengths = {TASKS["repeat-copy"].batch(1, 2, 1, draw).inputs.shape[1] for _ in range(60)}
    assert lengths == {4 + 2 * repeats for repeats in range(1, 6)}


def test_associative_recall() -> None:
    batch = TASKS["associative-recall"].batch(30, 4, 6, generator())
    said = answer(batch)
    assert batch.inputs.shape == (30, 4 * 4 + 5 + 3, 8) and said.shape == (30, 3, 6)
    found = set()
    for one, wanted in zip(batch.inputs, said, strict=True):
        starts = one[:, 6].nonzero()[:, 0].tolist()
        assert starts == [0, 4, 8, 12]
        items = [one[start + 1 : start + 4, :6] for start in starts]
        assert one[:, 7].nonzero()[:, 0].tolist() == [16, 20]
        asked = [torch.equal(one[17:20, :6], item) for item in items].index(True)
        assert torch.equal(wanted, items[asked + 1])
        found.add(asked)
    assert found == {0, 1, 2}


@pytest.mark.parametrize("name", TASKS)
def test_seeds_repeat_and_channels_are_as_promised(name: str) -> None:
    task = TASKS[name]
    first, again, other = (task.batch(3, 4, 5, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs) and torch.equal(first.targets, again.targets)
    assert first.inputs.shape != other.inputs.shape or not torch.equal(first.inputs, other.inputs)
    assert first.inputs.shape[-1] == 5 + task.heard and first.targets.shape[-1] == 5 + task.said
    assert first.inputs.shape[:2] == first.targets.shape[:2] == (3, len(first.mask))


def test_wrong_bits_and_loss_count_the_answer_alone() -> None:
    batch = TASKS["copy"].batch(3, 4, 2, generator())
    logits = batch.targets * 20 - 10
    assert wrong_bits(logits, batch).tolist() == [0, 0, 0]
    logits[:, ~batch.mask] = 99  # says nonsense while it listens
    assert wrong_bits(logits, batch).tolist() == [0, 0, 0]
    assert loss(logits, batch).item() < 1e-3
    logits[1, -1] *= -1
    logits[2, -1, 0] *= -1
    assert wrong_bits(logits, batch).tolist() == [0, 2, 1]
    assert loss(logits, batch).item() == pytest.approx(3 * 10 / 24, rel=1e-3)


def test_mistakes() -> None:
    with pytest.raises(MeshcapError, match="length 2"):
        TASKS["associative-recall"].batch(1, 1, 3, generator())
    with pytest.raises(MeshcapError, match="length 0"):
        TASKS["copy"].batch(1, 0, 3, generator())
