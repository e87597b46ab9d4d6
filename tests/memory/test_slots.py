"""Memory slots: what is appended, by hand; how they begin; who asks them for what."""

import pytest
import torch

from meshcap.errors import MeshcapError
from meshcap.memory import MemorySlots, slot_use


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


def by_hand(weights: torch.Tensor, slots: int, mask: torch.Tensor) -> tuple[list[float], list[list[tuple[int, int]]]]:
    """Share of each slot, and all (picture, region) in the order in which they ask it, with loops."""
    shares, orders = [], []
    for slot in range(slots):
        asked = {
            (b, n): weights[b, :, n, weights.shape[2] + slot].mean().item()
            for b in range(len(weights))
            for n in range(weights.shape[2])
            if mask[b, n]
        }
        shares.append(sum(asked.values()) / len(asked))
        orders.append(sorted(asked, key=lambda place: -asked[place]))
    return shares, orders


def test_slot_use_by_hand() -> None:
    weights = torch.randn(3, 2, 4, 4 + 5).mul(2).softmax(-1)
    mask = torch.tensor([[True] * 4, [True] * 3 + [False], [True, True, False, False]])
    use = slot_use(weights, 5, mask=mask, top=3)
    shares, orders = by_hand(weights, 5, mask)
    torch.testing.assert_close(use.share, torch.tensor(shares))
    assert [[tuple(place) for place in one] for one in use.regions.tolist()] == [order[:3] for order in orders]
    asking = torch.stack([weights[b, :, mask[b]][..., 4:].mean((0, 1)) for b in range(3)])  # (B, S)
    torch.testing.assert_close(use.asking, asking)
    assert use.pictures.tolist() == asking.T.argsort(dim=1, descending=True)[:, :3].tolist()
    for slot, (picture, region) in enumerate(use.regions[:, 0].tolist()):
        assert use.weights[slot, 0].item() == pytest.approx(weights[picture, :, region, 4 + slot].mean().item())


def test_padding_asks_nothing_even_if_fewer_regions_are_real_than_asked_for() -> None:
    weights = torch.zeros(1, 1, 4, 6)
    weights[..., 5] = 1  # everybody asks the second slot alone
    use = slot_use(weights, 2, mask=torch.tensor([[False, True, True, False]]), top=9)
    assert use.share.tolist() == [0, 1]
    assert sorted(use.regions[1].tolist()) == [[0, 1], [0, 2]]
    assert use.pictures.tolist() == [[0], [0]]


def test_slot_use_of_a_model_agrees_with_what_it_says_of_its_memory() -> None:
    from meshcap.models import M2, M2Config
    from meshcap.regions import Regions

    model = M2(M2Config(vocab_size=11, d_input=6, d_model=16, heads=2, d_ff=16, encoder_layers=2, slots=3, boxes=False))
    model.eval()
    regions = Regions(torch.randn(2, 5, 6), mask=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
    trace: dict[str, list[torch.Tensor]] = {"encoder": [], "regions": [], "gates": []}
    with torch.no_grad():
        model.encode(regions, trace)
        _, seen = model(regions, torch.tensor([[2, 4], [2, 5]]), attention=True)
    for layer, weights in enumerate(trace["encoder"]):
        use = slot_use(weights, 3, mask=regions.mask)
        expected = seen["memory"][layer][regions.mask].mean()
        torch.testing.assert_close(use.share.sum(), expected)


def test_slot_use_mistakes() -> None:
    with pytest.raises(MeshcapError, match="expected \\(pictures, heads, N, N \\+ slots\\)"):
        slot_use(torch.zeros(1, 2, 4, 6), 3)
