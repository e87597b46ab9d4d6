"""Regions: joining pictures of different sizes, checking, moving, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from meshcap.errors import MeshcapError
from meshcap.regions import Regions


def refused(call) -> str:
    with pytest.raises(MeshcapError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=5), with_boxes=st.booleans())
def test_collate(counts: list[int], with_boxes: bool) -> None:
    features = [torch.randn(count, 3) for count in counts]
    boxes = [torch.rand(count, 4) for count in counts] if with_boxes else None
    regions = Regions.collate(features, boxes)
    assert len(regions) == len(counts)
    assert regions.features.shape == (len(counts), max(counts), 3)
    assert (regions.mask is None) == (len(set(counts)) == 1)
    assert (regions.boxes is not None) == with_boxes
    for index, count in enumerate(counts):
        assert torch.equal(regions.features[index, :count], features[index])
        assert not regions.features[index, count:].any()
        if with_boxes:
            assert torch.equal(regions.boxes[index, :count], boxes[index])
            assert not regions.boxes[index, count:].any()
        if regions.mask is not None:
            assert regions.mask[index].tolist() == [True] * count + [False] * (max(counts) - count)


def test_collate_refuses() -> None:
    three, four = torch.zeros(3, 5), torch.zeros(4, 5)
    assert refused(lambda: Regions.collate([])).startswith("no pictures given")
    assert refused(lambda: Regions.collate([three, torch.zeros(2, 6)])) == (
        "pictures have features of different widths [5, 6], expected one width"
    )
    assert refused(lambda: Regions.collate([three, torch.zeros(0, 5)])) == (
        "picture 1 has features of shape (0, 5), expected (regions ≥ 1, width)"
    )
    assert refused(lambda: Regions.collate([torch.zeros(5)])).startswith("picture 0 has features of shape (5,)")
    assert refused(lambda: Regions.collate([torch.tensor(1.0)])).startswith("picture 0 has features of shape ()")
    assert refused(lambda: Regions.collate([three, four], [torch.zeros(3, 4)])) == (
        "1 sets of boxes for 2 pictures, expected one each"
    )
    assert refused(lambda: Regions.collate([three, four], [torch.zeros(3, 4), torch.zeros(3, 4)])) == (
        "picture 1 has boxes of shape (3, 4), expected (4, 4)"
    )


def test_shapes_are_refused() -> None:
    features = torch.zeros(2, 3, 5)
    assert refused(lambda: Regions(torch.zeros(3, 5))) == (
        "features have shape (3, 5), expected (pictures, regions, width)"
    )
    assert refused(lambda: Regions(torch.zeros(2, 0, 5))).startswith("zero regions")
    assert refused(lambda: Regions(features, torch.zeros(2, 3, 5))) == "boxes have shape (2, 3, 5), expected (2, 3, 4)"
    assert refused(lambda: Regions(features, None, torch.ones(2, 4, dtype=torch.bool))) == (
        "mask has shape (2, 4), expected (2, 3)"
    )
    assert refused(lambda: Regions(features, None, torch.ones(2, 3))).startswith("mask is torch.float32, expected")


def test_what_a_model_needs() -> None:
    features, boxes = torch.randn(2, 3, 5), torch.rand(2, 3, 4)
    with_boxes, without = (tiny.build("m2", d_input=5, boxes=boxes) for boxes in (True, False))
    with_boxes.expect_regions(Regions(features, boxes))
    without.expect_regions(Regions(features))
    # By shapes alone: the numbers are not read.
    without.expect_regions(Regions(torch.full((1, 2, 5), float("nan"))))
    wide = Regions(torch.randn(2, 3, 6), boxes)
    assert refused(lambda: with_boxes.expect_regions(wide)) == "regions have 6 numbers each, this model expects 5"
    assert refused(lambda: with_boxes.expect_regions(Regions(features))) == (
        "this model reads each region's box, and the regions came without boxes: give Regions(features, boxes) with "
        "x1, y1, x2, y2 from 0 to 1, or use a model made with boxes=False"
    )


def test_a_picture_without_regions() -> None:
    features, boxes = torch.randn(2, 3, 5), torch.rand(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    Regions(features, boxes, mask).expect_numbers()
    Regions(features).expect_numbers()
    nothing = Regions(features, boxes, torch.tensor([[True, False, False], [False, False, False]]))
    assert refused(nothing.expect_numbers).startswith("picture 1 has zero regions")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite(number: float) -> None:
    features, boxes = torch.randn(2, 3, 5), torch.rand(2, 3, 4)
    spoilt = features.clone()
    spoilt[1, 2, 0] = number
    assert refused(Regions(spoilt, boxes).expect_numbers) == (
        "picture 1 has features with NaN or infinite numbers, expected finite ones"
    )
    spoilt = boxes.clone()
    spoilt[0, 1, 3] = number
    assert refused(Regions(features, spoilt).expect_numbers).startswith("picture 0 has boxes with NaN")


def test_to() -> None:
    regions = Regions.collate([torch.randn(2, 3), torch.randn(1, 3)], [torch.rand(2, 4), torch.rand(1, 4)])
    half = regions.to("cpu", torch.float16)
    assert half.features.dtype == half.boxes.dtype == torch.float16
    assert half.mask.dtype == torch.bool
    assert torch.equal(half.features, regions.features.half())
    assert regions.to("cpu").features.dtype == torch.float32
    meta = regions.to("meta")
    assert meta.features.is_meta
    assert meta.boxes.is_meta
    assert meta.mask.is_meta
    assert Regions(regions.features).to("meta").mask is None


def test_some_pictures() -> None:
    regions = Regions.collate([torch.randn(count, 3) for count in (2, 1, 4)])
    chosen = regions[torch.tensor([2, 0])]
    assert torch.equal(chosen.features, regions.features[[2, 0]])
    assert torch.equal(chosen.mask, regions.mask[[2, 0]])
    assert chosen.boxes is None
    assert len(regions[1:]) == 2


def test_padded_to() -> None:
    noise = torch.randn(2, 3, 5)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    filled = Regions(noise, torch.rand(2, 3, 4), mask).padded_to(4)
    assert filled.features.shape == (2, 4, 5)
    assert filled.mask is None
    assert filled.boxes is None
    assert torch.equal(filled.features[0, :3], noise[0])
    assert torch.equal(filled.features[1, :1], noise[1, :1])
    assert not filled.features[1, 1:].any()
    assert not filled.features[:, 3:].any()
    assert torch.equal(Regions(noise).padded_to(2).features, noise)


def test_regions_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Regions(torch.zeros(1, 1, 1)).features = torch.ones(1, 1, 1)
