"""JPEG without a file, against Pillow's."""

import io

import numpy
import pytest
import torch
from PIL import Image

from meshcap.data.scenes import draw_scene
from meshcap.training.augment import compress_some, compressed, steps_at


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
