"""What captioners make of regions: a set, each with its place, and nothing of what is padded."""

import pytest
import torch

import tiny
from meshcap.regions import Regions

PICTURES = tiny.pictures(3, 6, 2)
IDS = torch.tensor([[2, 4, 5, 6, 7]]).expand(3, -1)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@torch.no_grad()
def read(model, regions: Regions) -> torch.Tensor:
    """Probabilities, (B, T, V)."""
    return model(regions, IDS[: len(regions)]).exp()


def test_order_of_regions_changes_nothing(captioner) -> None:
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    shuffled = Regions(PICTURES.features[:, order], PICTURES.boxes[:, order], PICTURES.mask[:, order])
    torch.testing.assert_close(read(captioner, shuffled), read(captioner, PICTURES), **CLOSE)


def test_place_of_a_region_matters_where_boxes_are_read(captioner) -> None:
    boxes = PICTURES.boxes.clone()
    boxes[0, 1] = 1 - boxes[0, 1, [2, 3, 0, 1]]  # the other side of the picture
    moved, still = read(captioner, Regions(PICTURES.features, boxes, PICTURES.mask)), read(captioner, PICTURES)
    if captioner.config.boxes:
        assert (moved[0] - still[0]).abs().max() > 1e-4
    else:
        assert torch.equal(moved, still)
        assert torch.equal(read(captioner, Regions(PICTURES.features, None, PICTURES.mask)), still)
    torch.testing.assert_close(moved[1:], still[1:], **CLOSE)


def test_boxes_of_two_regions_are_not_interchangeable(captioner) -> None:
    """A box belongs to its region: exchanging boxes alone is not reordering."""
    exchanged = Regions(PICTURES.features, PICTURES.boxes[:, [1, 0, 2, 3, 4, 5]], PICTURES.mask)
    difference = (read(captioner, exchanged) - read(captioner, PICTURES)).abs().max()
    assert (difference > 1e-4) == captioner.config.boxes


def test_every_real_region_is_seen(captioner) -> None:
    before = read(captioner, PICTURES)
    for region in range(6):
        features = PICTURES.features.clone()
        features[1, region] += 1
        after = read(captioner, Regions(features, PICTURES.boxes, PICTURES.mask))
        assert (after[1] - before[1]).abs().max() > 1e-5
        torch.testing.assert_close(after[[0, 2]], before[[0, 2]], **CLOSE)


def test_padding_is_not_seen(captioner) -> None:
    hidden = ~PICTURES.mask[..., None]
    features = PICTURES.features.masked_fill(hidden, 100.0)
    boxes = PICTURES.boxes.masked_fill(hidden, 0.5)
    noisy = Regions(features, boxes, PICTURES.mask)
    torch.testing.assert_close(read(captioner, noisy), read(captioner, PICTURES), **CLOSE)
    together = read(captioner, PICTURES)
    for picture in range(3):
        alone = read(captioner, tiny.one(PICTURES, picture))
        torch.testing.assert_close(alone[0], together[picture], **CLOSE)


def test_a_mask_of_all_is_no_mask(captioner) -> None:
    full = tiny.pictures(4, 4)
    masked = Regions(full.features, full.boxes, torch.ones(2, 4, dtype=torch.bool))
    torch.testing.assert_close(read(captioner, masked), read(captioner, full), **CLOSE)


def test_attend_padding_looks_at_zeros() -> None:
    """Filled up to eight regions, whatever the batch; the same as giving eight regions oneself."""
    filled = tiny.build("m2-attend-padding")
    plain = tiny.build("m2-attend-padding", attend_padding=0)
    plain.load_state_dict(filled.state_dict())
    zeros = torch.zeros(3, 8, tiny.WIDTH)
    zeros[:, :6] = PICTURES.features.masked_fill(~PICTURES.mask[..., None], 0)
    torch.testing.assert_close(read(filled, PICTURES), read(plain, Regions(zeros)), **CLOSE)
    assert (read(filled, PICTURES) - read(plain, PICTURES)).abs().max() > 1e-3
    nine = tiny.pictures(9)
    torch.testing.assert_close(read(filled, nine), read(plain, nine), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_features_of_another_precision_are_taken(captioner, dtype: torch.dtype) -> None:
    expected = read(captioner, PICTURES.to(dtype=torch.float16).to(dtype=torch.float32))
    torch.testing.assert_close(read(captioner, PICTURES.to(dtype=torch.float16).to(dtype=dtype)), expected, **CLOSE)
