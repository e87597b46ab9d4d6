"""Pictures on their way to the model: the same numbers however they are kept."""

import io
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

import tiny_data
from meshcap.data import read_dataset
from meshcap.data.dataset import FileSource, Sample
from meshcap.data.scenes import draw_scene
from meshcap.data.workers import most_in_flight
from meshcap.errors import MeshcapError
from meshcap.evaluation.evaluation import read_sample
from meshcap.training import pictures as pixels_module
from meshcap.training.pictures import CachedRegions, Pixels, PixelViews, free_memory, regions_of, where_to_keep
from meshcap.vision import create_vision
from meshcap.vision.pictures import read_picture
from meshcap.vision.preprocess import Preprocess

CPU = torch.device("cpu")
SMALL = Preprocess(size=16)


def decoded(sample: Sample, preprocess: Preprocess) -> torch.Tensor:
    return read_sample(sample, lambda content: preprocess.pixels(read_picture(content, at_least=preprocess.size)))


@dataclass(frozen=True)
class InMemory:
    """A picture that counts how often it is read."""

    number: int
    reads: list[int]

    def read(self) -> bytes:
        self.reads.append(self.number)
        buffer = io.BytesIO()
        draw_scene(self.number, 48).image.save(buffer, "PNG")
        return buffer.getvalue()


def some(count: int) -> tuple[list[Sample], list[int]]:
    reads: list[int] = []
    return [Sample(str(n), ("a picture",), "train", InMemory(n, reads)) for n in range(count)], reads


def test_kept_or_read_each_time_the_pixels_are_the_same() -> None:
    samples, reads = some(11)
    kept = Pixels(samples, SMALL, keep="memory", device=CPU, workers=2)
    assert sorted(reads) == list(range(11))
    reads.clear()
    wanted = torch.tensor([7, 2, 2, 10])
    expected = torch.stack([SMALL.pixels(draw_scene(number, 48).image.convert("RGB")) for number in wanted.tolist()])
    assert torch.equal(kept[wanted], expected)
    assert not reads
    fresh = Pixels(samples, SMALL, keep="none", device=CPU, workers=2)
    assert not reads
    assert torch.equal(fresh[wanted], expected)
    assert reads.count(2) == 2


def test_many_pictures_are_read_in_blocks_and_told() -> None:
    samples, _ = some(5)
    samples = [samples[n % 5] for n in range(1030)]
    told: list[tuple[int, int]] = []
    options = {"keep": "memory", "device": CPU, "workers": 2, "progress": lambda *n: told.append(n)}
    pixels = Pixels(samples, Preprocess(size=8), **options)
    assert told == [(512, 1030), (1024, 1030), (1030, 1030)]
    assert torch.equal(pixels.all[:5], pixels.all[1025:])
    assert not torch.equal(pixels.all[0], pixels.all[1])


def test_processes_read_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = []
    for number in range(30):
        path = tmp_path / f"{number}.png"
        draw_scene(number, 48).image.save(path)
        samples.append(Sample(str(number), ("a picture",), "train", FileSource(path)))
    here = Pixels(samples, SMALL, keep="memory", device=CPU)
    monkeypatch.setattr(pixels_module, "MANY", 20)
    monkeypatch.setattr(pixels_module, "cores", lambda: 4)
    told: list[tuple[int, int]] = []
    there = Pixels(samples, SMALL, keep="memory", device=CPU, progress=lambda *n: told.append(n))
    assert torch.equal(here.all, there.all)
    assert told == [(30, 30)]
    # More than there is room for at once: later pictures take the places of earlier ones.
    many = [samples[number % 30] for number in range(most_in_flight() + 1100)]
    again = Pixels(many, SMALL, keep="memory", device=CPU)
    assert torch.equal(again.all, here.all[torch.arange(len(many)) % 30])
    samples[7].picture.path.write_bytes(b"no picture")
    with pytest.raises(MeshcapError, match=r"7\.png.*meshcap data check"):
        Pixels(samples, SMALL, keep="memory", device=CPU)


def test_what_was_read_ahead_is_not_read_again() -> None:
    samples, reads = some(6)
    pixels = Pixels(samples, SMALL, keep="none", device=CPU, workers=1)
    first, second = torch.tensor([1, 3]), torch.tensor([4, 5])
    pixels.ahead(first)
    pixels.ahead(second)
    found = pixels[first]
    assert reads[:2] == [1, 3]
    assert torch.equal(pixels[second], torch.stack([decoded(samples[n], SMALL) for n in (4, 5)]))
    assert reads.count(4) == 2  # once ahead, once by this test
    assert not pixels.reading
    assert torch.equal(found, pixels[first])
    assert reads.count(1) == 2


def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    bad = Sample("9", ("a",), "train", FileSource(tmp_path / "bad.png"))
    gone = Sample("8", ("a",), "train", FileSource(tmp_path / "gone.png"))
    with pytest.raises(MeshcapError, match=r"bad\.png"):
        decoded(bad, SMALL)
    with pytest.raises(MeshcapError, match=r"gone\.png"):
        Pixels([*some(3)[0], gone], SMALL, keep="memory", device=CPU)
    with pytest.raises(MeshcapError, match="7 has captions but no picture"):
        decoded(Sample("7", ("a",), "train", None), SMALL)


def test_where_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_memory() > 2**20
    monkeypatch.setattr("meshcap.training.pictures.free_memory", lambda: 2.0 * 3 * 64 * 64 * 100)
    assert where_to_keep(99, 64, CPU) == "memory"
    assert where_to_keep(100, 64, CPU) == "none"


@pytest.mark.parametrize("name", ["patches", "small-cnn"])
def test_a_frozen_vision_looks_once_and_sees_the_same(name: str, tmp_path: Path) -> None:
    data = read_dataset(tiny_data.scenes(tmp_path, train=7, val=0))
    vision = create_vision(name, size=48).eval()
    pixels = Pixels(data.samples, vision.preprocess, keep="memory", device=CPU)
    kept = CachedRegions.compute(vision, pixels, dtype=torch.float32, batch=3)
    looking = PixelViews(pixels, torch.zeros(7, dtype=torch.bool), 0.0)
    assert len(kept) == len(looking) == 7
    wanted = torch.tensor([6, 0, 3])
    with torch.no_grad():
        fresh = regions_of(vision, looking.view(wanted, training=True))
    regions = kept.view(wanted, training=True)
    torch.testing.assert_close(regions.features, fresh.features)
    torch.testing.assert_close(regions.boxes, fresh.boxes)
    assert regions_of(None, regions) is regions


def test_only_training_shows_other_views(tmp_path: Path) -> None:
    data = read_dataset(tiny_data.scenes(tmp_path, train=4, val=0))
    pixels = Pixels(data.samples, SMALL, keep="memory", device=CPU)
    looking = PixelViews(pixels, torch.ones(4, dtype=torch.bool), 0.8)
    wanted = torch.arange(4)
    assert torch.equal(looking.view(wanted, training=False), pixels[wanted])
    assert not torch.equal(looking.view(wanted, training=True), looking.view(wanted, training=True))
    worse = PixelViews(pixels, torch.ones(4, dtype=torch.bool), 0.0, compress=0.9)
    assert torch.equal(worse.view(wanted, training=False), pixels[wanted])
    assert not torch.equal(worse.view(wanted, training=True), pixels[wanted].float())


def test_pictures_are_not_turned_or_swapped(tmp_path: Path) -> None:
    image = Image.new("RGB", (16, 16), (10, 20, 30))
    image.putpixel((15, 0), (200, 100, 50))  # right above
    image.save(tmp_path / "one.png")
    pixels = decoded(Sample("1", ("a",), "train", FileSource(tmp_path / "one.png")), SMALL)
    assert pixels[:, 0, 15].tolist() == [200, 100, 50]
    assert pixels[:, 15, 0].tolist() == [10, 20, 30]
