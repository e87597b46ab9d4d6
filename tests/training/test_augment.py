"""Other views of pictures: parts, light, mirror images, fewer regions, and JPEG's traces."""

import io

import numpy
import pytest
import torch
from PIL import Image

from meshcap.data.dataset import Sample
from meshcap.data.scenes import draw_scene
from meshcap.regions import Regions
from meshcap.training.augment import augment, compress_some, compressed, hide_some, may_be_mirrored, steps_at


def noise(count: int = 16, side: int = 24) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("caption", "allowed"),
    [
        ("a dog on a bright path", True),
        ("an upright piano", True),
        ("a star to the left of a square", False),
        ("Right, a man", False),
        ("the leftmost of three cups", False),
        ("a left-handed player", False),
        ("wheels that turn counter-clockwise", False),
        ("cars that turn anticlockwise", False),
        ("a bird flying leftwards", False),
        ("a righthand glove", False),
    ],
)
def test_sides_forbid_mirror_images(caption: str, allowed: bool) -> None:
    samples = [Sample("1", ("a plain one", caption), "train", None), Sample("2", ("plain",), "train", None)]
    assert may_be_mirrored(samples).tolist() == [allowed, True]


def test_strength_0_shows_the_picture_itself() -> None:
    pixels = noise()
    seen = augment(pixels, torch.zeros(16, dtype=torch.bool), 0.0)
    assert (seen - pixels).abs().max() < 0.01


def test_mirroring_only_where_it_is_allowed_and_half_of_the_time() -> None:
    pixels = noise(400, 8)
    mirror = torch.arange(400) % 2 == 0
    seen = augment(pixels, mirror, 0.0)
    mirrored = (seen - pixels.flip(-1)).abs().flatten(1).amax(1) < 0.01
    same = (seen - pixels).abs().flatten(1).amax(1) < 0.01
    assert (mirrored | same).all()
    assert same[~mirror].all()
    assert 60 < int(mirrored[mirror].sum()) < 140


def test_views_are_turned_about_their_middle() -> None:
    """A bright spot to the right of the middle comes to stand on a circle, as far as views are turned at most."""
    side, count, most = 65, 400, 30.0
    pixels = torch.zeros(count, 3, side, side, dtype=torch.uint8)
    middle, radius = side // 2, 20
    pixels[:, :, middle - 1 : middle + 2, middle + radius - 1 : middle + radius + 2] = 255
    seen = augment(pixels, torch.zeros(count, dtype=torch.bool), 0.0, turn=most)[:, 0]
    places = torch.arange(side) - middle
    weight = seen.sum((1, 2))
    x, y = (seen.sum(1) * places).sum(1) / weight, (seen.sum(2) * places).sum(1) / weight
    torch.testing.assert_close(torch.hypot(x, y), torch.full((count,), float(radius)), atol=0.5, rtol=0)
    angles = torch.rad2deg(torch.atan2(y, x))
    assert angles.abs().max() < most + 1.5 and angles.std() > most / 2.2
    assert abs(angles.mean()) < 4


@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_views_are_pictures(strength: float) -> None:
    pixels = noise(32)
    seen = augment(pixels, torch.ones(32, dtype=torch.bool), strength)
    assert seen.shape == pixels.shape
    assert seen.dtype == torch.float32
    assert seen.min() >= 0 and seen.max() <= 255
    assert torch.isfinite(seen).all()
    assert (seen - pixels).abs().flatten(1).mean(1).min() > 1  # each is another view


def test_a_view_lies_inside_the_picture() -> None:
    """Red tells the column and green the row, so a view says itself which part of the picture it shows."""
    side, count = 32, 300
    steps = torch.arange(side) * 8
    pixels = torch.stack((steps.expand(side, side), steps[:, None].expand(side, side), torch.zeros(side, side)))
    pixels = pixels.to(torch.uint8).expand(count, 3, side, side)
    torch.manual_seed(1)
    # Light alone may change by nothing here: at strength 1 it would hide the places.
    rand, calls = torch.rand, []

    def middling(*shape: int, **options: object) -> torch.Tensor:
        calls.append(shape)
        return torch.full(shape, 0.5) if len(calls) > 5 else rand(*shape, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", middling)
        seen = augment(pixels, torch.zeros(count, dtype=torch.bool), 1.0)
    width = (seen[:, 0, :, -1] - seen[:, 0, :, 0]).mean(1) / (8 * (side - 1))
    height = (seen[:, 1, -1] - seen[:, 1, 0]).mean(1) / (8 * (side - 1))
    area = width * height
    assert len(calls) == 8
    assert area.min() > 0.33 and area.max() <= 1.01  # 40 % at least, less what the edges blur
    assert area.min() < 0.5 and area.max() > 0.85
    ratio = width / height
    assert ratio.min() > 0.7 and ratio.max() < 1.4
    # No view leaves the picture: nothing is the border said again, which would be a flat margin.
    assert ((seen[:, 0, 0, 1:] - seen[:, 0, 0, :-1]) > 1).float().mean() > 0.93


def test_hidden_regions_leave_with_their_boxes() -> None:
    features = torch.randn(5, 10, 4)
    regions = Regions(features, features * 2)
    left = hide_some(regions, 0.3)
    assert left.features.shape == (5, 7, 4)
    assert torch.equal(left.boxes, left.features * 2)
    for picture in range(5):
        rows = [features[picture].tolist().index(row) for row in left.features[picture].tolist()]
        assert len(set(rows)) == 7
    assert not torch.equal(left.features[0], hide_some(regions, 0.3).features[0])


def test_every_region_is_hidden_equally_often() -> None:
    features = torch.arange(6.0).expand(2000, 6)[..., None]
    kept = hide_some(Regions(features), 0.5).features
    seen = torch.bincount(kept.long().flatten(), minlength=6)
    assert seen.sum() == 6000
    assert (abs(seen - 1000) < 120).all()


def test_hiding_nothing_or_padded_regions_changes_nothing() -> None:
    regions = Regions(torch.randn(2, 3, 4))
    assert hide_some(regions, 0.0) is regions
    assert hide_some(regions, 0.9).features.shape[1] == 1
    padded = Regions(torch.randn(2, 3, 4), mask=torch.tensor([[True, True, False], [True] * 3]))
    assert hide_some(padded, 0.5) is padded


def pictures(count: int = 3, width: int = 52, height: int = 44) -> torch.Tensor:
    """Drawn scenes with some noise, floats (B, 3, H, W)."""
    found = [numpy.asarray(draw_scene(n, 64).image.convert("RGB").resize((width, height))) for n in range(count)]
    noise = numpy.random.default_rng(0).normal(0, 12, (count, height, width, 3))
    return torch.from_numpy((numpy.stack(found) + noise).clip(0, 255).round()).permute(0, 3, 1, 2).float()


def by_pillow(picture: torch.Tensor, quality: int) -> torch.Tensor:
    buffer = io.BytesIO()
    image = Image.fromarray(picture.byte().permute(1, 2, 0).numpy())
    image.save(buffer, "JPEG", quality=quality, subsampling=0)
    return torch.from_numpy(numpy.asarray(Image.open(buffer)).copy()).permute(2, 0, 1).float()


@pytest.mark.parametrize("quality", [5, 10, 35, 50, 75, 92])
def test_steps_are_those_of_a_file(quality: int) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG", quality=quality, subsampling=0)
    expected = [Image.open(buffer).quantization[number] for number in (0, 1, 1)]
    found = steps_at(torch.tensor([float(quality)]))[0].flatten(1)
    # Files hold a table in rows, as Pillow gives it; the standard's whole-number arithmetic may round one down.
    assert (found - torch.tensor(expected)).abs().max() <= 1


@pytest.mark.parametrize("quality", [10, 35, 60])
def test_as_pillow_does(quality: int) -> None:
    given = pictures()
    found = compressed(given, torch.full((3,), float(quality)))
    expected = torch.stack([by_pillow(one, quality) for one in given])
    # Pillow works with whole numbers, so that some frequencies are rounded to the step beside.
    assert (found - expected).abs().mean() < 0.16 * (given - expected).abs().mean()
    assert (found - expected).abs().median() < 1


def test_some_pictures_and_each_its_own_quality() -> None:
    given = pictures(1).expand(200, -1, -1, -1)
    assert torch.equal(compress_some(given, 0.0), given)
    found = compress_some(given, 0.5)
    error = (found - given).abs().flatten(1).mean(1)
    assert int((error > 0).sum()) == 100
    assert error[error > 0].std() > 0.3
    assert found.min() >= 0 and found.max() <= 255


def test_right_on_average_in_small_batches() -> None:
    torch.manual_seed(0)
    given = pictures(1)
    changed = sum(not torch.equal(compress_some(given, 0.3), given) for _ in range(200))
    assert 40 < changed < 80
