"""Memory slots: what is appended, by hand; and how they begin."""

import pytest
import torch

from meshcap.memory import MemorySlots


def test_slots_are_appended_to_whole_rows() -> None:
    """As the paper has it: [K; √d · M_k] and [V; √m · M_v], before heads are split."""
    slots = MemorySlots(3, 2, 4)
    keys, values = torch.randn(2, 5, 6, 8)  # (B, N, H·d) each
    with torch.no_grad():
        found = slots(keys, values)
    for b in range(5):
        torch.testing.assert_close(found[0][b], torch.cat((keys[b], 4**0.5 * slots.keys)))
        torch.testing.assert_close(found[1][b], torch.cat((values[b], 3**0.5 * slots.values)))


def test_slots_learn() -> None:
    slots = MemorySlots(3, 2, 4)
    keys, values = slots(*torch.zeros(2, 5, 6, 8))
    (keys.sum() + values.sum()).backward()
    torch.testing.assert_close(slots.keys.grad, torch.full((3, 8), 5 * 4**0.5))
    torch.testing.assert_close(slots.values.grad, torch.full((3, 8), 5 * 3**0.5))


def test_half_precision_keys_stay_so() -> None:
    keys, values = MemorySlots(3, 2, 4)(*torch.zeros(2, 5, 6, 8, dtype=torch.bfloat16))
    assert keys.dtype == values.dtype == torch.bfloat16


def test_slots_begin_small() -> None:
    slots = MemorySlots(200, 8, 16)
    assert slots.keys.std().item() == pytest.approx(1 / 16, rel=0.05)
    assert slots.values.std().item() == pytest.approx(1 / 200, rel=0.05)
    assert abs(slots.keys.mean().item()) < 0.003
