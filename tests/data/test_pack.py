"""Packing: the same bytes however often it was stopped, and nothing lost."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops
from torch import Tensor

from meshcap.data import read_dataset
from meshcap.data.pack import MANIFEST, Pack, PackSettings, pack
from meshcap.data.shards import keys_of
from meshcap.errors import MeshcapError
from meshcap.vision.preprocess import Preprocess

SETTINGS = PackSettings(size=48, quality=60)
SHARD_MB = 0.02  # several pictures a shard, several shards a split


def picture(seed: int, size: tuple[int, int] = (90, 60)) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (10, 15, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    records = []
    for n in range(60):
        name = f"part.{n % 2}/picture {n}.png"
        (folder / name).parent.mkdir(exist_ok=True)
        picture(n).save(folder / name)
        records.append({"image": name, "captions": [f"number {n}", "ein Bild – schön"]})
    (folder / "captions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def packed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "new" / "folder"
    pack(read_dataset(data, val=0.3, test=0.1), out, SETTINGS, shard_mb=SHARD_MB, workers=1)
    return out


def test_packed_is_the_same_dataset(data: Path, packed: Path) -> None:
    before, after = read_dataset(data, val=0.3, test=0.1), read_dataset(packed)
    key = {sample.id: sample for sample in after}
    assert len(after) == len(before) == 60
    assert all((key[s.id].captions, key[s.id].split) == (s.captions, s.split) for s in before)
    shards = sorted(packed.glob("*.tar"))
    assert len({path.name.split("-")[0] for path in shards}) == 3 and len(shards) > 4
    assert all(path.stat().st_size <= SHARD_MB * 1e6 for path in shards)
    made = Pack.load(packed)
    assert made.complete and made.samples() == after.counts()


def test_pictures_are_cut_as_preprocess_would(data: Path, tmp_path: Path) -> None:
    for geometry in ("squash", "crop"):
        out = tmp_path / geometry
        pack(read_dataset(data), out, PackSettings(size=48, geometry=geometry, quality=100), workers=1)
        sample = read_dataset(out).samples[5]
        number = int(sample.id.split()[-1].removesuffix(".png"))
        expected = Preprocess(size=48, geometry=geometry).pixels(picture(number))
        found = Image.open(io.BytesIO(sample.picture.read())).convert("RGB")
        assert found.size == (48, 48)
        assert difference(found, expected) < 4
        other = Preprocess(size=48, geometry={"squash": "crop", "crop": "squash"}[geometry]).pixels(picture(number))
        assert difference(found, other) > 12


def difference(image: Image.Image, pixels: Tensor) -> float:
    """Of brightness, since WebP keeps colours at half the size."""
    other = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    return float(np.asarray(ImageChops.difference(image.convert("L"), other.convert("L"))).mean())


def test_headers_know_neither_time_nor_owner(packed: Path) -> None:
    for path in packed.glob("*.tar"):
        with tarfile.open(path) as shard:
            infos = shard.getmembers()
        assert {(i.mtime, i.uid, i.gid, i.uname, i.gname, i.mode) for i in infos} == {(0, 0, 0, "", "", 0o644)}
        # As WebDataset reads: a key ends at the first dot, and its members follow each other.
        keys = [info.name.split(".", 1) for info in infos]
        assert [ending for _, ending in keys] == ["webp", "json"] * (len(keys) // 2)
        assert all(a[0] == b[0] for a, b in zip(keys[::2], keys[1::2], strict=True))


KILLED = """
import os, signal, sys
from pathlib import Path
from meshcap.data import read_dataset
from meshcap.data.pack import PackSettings, pack

def progress(done):
    if done == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    dataset = read_dataset(sys.argv[1], val=0.3, test=0.1)
    pack(dataset, sys.argv[2], PackSettings(size=48, quality=60), shard_mb=0.02, workers=1, progress=progress)
"""


def test_a_killed_pack_goes_on_to_the_same_bytes(data: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for stop in (14, 47):
        done = subprocess.run([sys.executable, "-c", KILLED, data, out, str(stop)], check=False)
        assert done.returncode == -signal.SIGKILL
        manifest = Pack.load(out)
        assert manifest.shards and not manifest.complete
        assert list(out.glob(".*.part"))
        kept = {shard.name: (out / shard.name).stat().st_mtime_ns for shard in manifest.shards}
    pack(read_dataset(data, val=0.3, test=0.1), out, SETTINGS, shard_mb=SHARD_MB, workers=2)
    assert contents(out) == contents(packed)
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept  # those were not made again


def test_a_shard_written_but_not_entered_is_made_again(data: Path, packed: Path, tmp_path: Path) -> None:
    out = copy(packed, tmp_path)
    told = json.loads((out / MANIFEST).read_text())
    told["shards"], told["complete"] = told["shards"][:2], False
    (out / MANIFEST).write_text(json.dumps(told))
    pack(read_dataset(data, val=0.3, test=0.1), out, SETTINGS, shard_mb=SHARD_MB, workers=1)
    assert contents(out) == contents(packed)


def copy(folder: Path, to: Path) -> Path:
    out = to / "copy"
    out.mkdir()
    for path in folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    return out


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_damaged_shard_is_made_again(damage: str, data: Path, packed: Path, tmp_path: Path) -> None:
    out = copy(packed, tmp_path)
    shard = sorted(out.glob("train-*.tar"))[1]
    raw = bytearray(shard.read_bytes())
    if damage == "gone":
        shard.unlink()
    else:
        raw[700] ^= 1
        shard.write_bytes(raw[:-512] if damage == "cut" else raw)
    pack(read_dataset(data, val=0.3, test=0.1), out, SETTINGS, shard_mb=SHARD_MB, workers=1)
    assert contents(out) == contents(packed)


def test_a_finished_pack_is_left_as_it_is(data: Path, packed: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in packed.iterdir()}
    pack(read_dataset(data, val=0.3, test=0.1), packed, SETTINGS, shard_mb=SHARD_MB, workers=1)
    assert {path.name: path.stat().st_mtime_ns for path in packed.iterdir()} == before


def test_other_settings_or_data_are_refused(data: Path, packed: Path, tmp_path: Path) -> None:
    dataset, before = read_dataset(data, val=0.3, test=0.1), contents(packed)
    with pytest.raises(MeshcapError, match="was begun with size 48, and now it is 64: choose another folder"):
        pack(dataset, packed, PackSettings(size=64, quality=60), shard_mb=SHARD_MB, workers=1)
    with pytest.raises(MeshcapError, match=r"was begun with shard_mb 0.02, and now it is 0.03"):
        pack(dataset, packed, SETTINGS, shard_mb=0.03, workers=1)
    with pytest.raises(MeshcapError, match="was begun with other captions or pictures"):
        pack(read_dataset(data, val=0.2, test=0.1), packed, SETTINGS, shard_mb=SHARD_MB, workers=1)
    assert contents(packed) == before
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(MeshcapError, match=r"holds letter.txt and no pack.json: expected a new or empty folder"):
        pack(dataset, tmp_path, SETTINGS, workers=1)
    assert (tmp_path / "letter.txt").read_text() == "dear"
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(MeshcapError, match="was not written by"):
        pack(dataset, tmp_path, SETTINGS, workers=1)


def test_broken_pictures_are_named_or_left_out(data: Path, tmp_path: Path) -> None:
    lines = (data / "captions.jsonl").read_text().splitlines()[:12]
    for n in (3, 11):
        record = json.loads(lines[n])
        lines[n] = json.dumps(record | {"image": f"broken {n}.jpg"})
    (data / "broken 3.jpg").write_bytes(b"\xff\xd8 no picture")  # and 11 is not there
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    dataset = read_dataset(tmp_path / "c.jsonl", pictures=data, val=0.3, test=0.0)
    with pytest.raises(MeshcapError, match=r"broken \d+.jpg .*; --skip-broken leaves such pictures out"):
        pack(dataset, tmp_path / "out", SETTINGS, workers=1)
    made = pack(dataset, tmp_path / "out", SETTINGS, skip_broken=True, workers=1)  # goes on
    assert {one.id for failed in made.left_out.values() for one in failed} == {"broken 3.jpg", "broken 11.jpg"}
    assert len(read_dataset(tmp_path / "out")) == 10
    assert Pack.load(tmp_path / "out") == made


def test_what_failed_is_told_once_wherever_it_was_stopped(data: Path, tmp_path: Path) -> None:
    records = [{"image": f"part.0/picture {2 * n}.png" if n % 2 else f"no {n}.png", "caption": "a"} for n in range(10)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    dataset = read_dataset(tmp_path / "train.jsonl", pictures=data)

    def stopped(out: Path, at: int) -> None:
        def progress(done: int) -> None:
            if done == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pack(dataset, out, SETTINGS, shard_mb=0.001, skip_broken=True, workers=1, progress=progress)

    def whole(out: Path) -> dict[str, str]:
        pack(dataset, out, SETTINGS, shard_mb=0.001, skip_broken=True, workers=1)
        return contents(out)

    expected = whole(tmp_path / "whole")
    assert len(expected) == 6  # a shard for each picture
    for at in range(1, 11):
        stopped(tmp_path / str(at), at)
        assert whole(tmp_path / str(at)) == expected


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"image": "a.jpg", "caption": "a"}')
    with pytest.raises(MeshcapError, match="nothing was packed"):
        pack(read_dataset(tmp_path / "c.jsonl"), tmp_path / "out", SETTINGS, skip_broken=True, workers=1)


def test_size_0_keeps_every_byte(data: Path, tmp_path: Path) -> None:
    dataset = read_dataset(data)
    pack(dataset, tmp_path, PackSettings(size=0), workers=1)
    after = {sample.id: sample for sample in read_dataset(tmp_path)}
    for sample in dataset:
        assert after[sample.id].picture.read() == sample.picture.read()
        assert str(after[sample.id].picture).endswith(".png")


@pytest.mark.parametrize("form", ["jpg", "avif"])
def test_formats(form: str, data: Path, tmp_path: Path) -> None:
    dataset = read_dataset(data)
    few = type(dataset)(dataset.name, dataset.samples[:3])
    pack(few, tmp_path, PackSettings(size=48, format=form), workers=1)
    names = {"jpg": "JPEG", "avif": "AVIF"}
    for sample in read_dataset(tmp_path):
        assert Image.open(io.BytesIO(sample.picture.read())).format == names[form]


def test_no_room_loses_nothing(data: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, fsync, calls = read_dataset(data, val=0.3, test=0.1), os.fsync, []

    def full(file: int) -> None:
        calls.append(file)
        if len(calls) > 6:  # a manifest, then a shard and a manifest each
            raise OSError(28, "No space left on device")
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MeshcapError, match=r"cannot be written: No space left on device"):
        pack(dataset, tmp_path / "out", SETTINGS, shard_mb=SHARD_MB, workers=1)
    monkeypatch.undo()
    assert Pack.load(tmp_path / "out").shards and not list((tmp_path / "out").glob(".*.part"))
    pack(dataset, tmp_path / "out", SETTINGS, shard_mb=SHARD_MB, workers=1)
    assert contents(tmp_path / "out") == contents(packed)


def test_a_file_is_no_folder(data: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(MeshcapError, match="cannot be made a folder of shards"):
        pack(read_dataset(data), tmp_path / "out", SETTINGS, workers=1)


def test_settings_are_checked() -> None:
    for wrong in ({"size": 3}, {"quality": 0}, {"format": "tiff"}, {"geometry": "round"}):
        with pytest.raises(MeshcapError, match=next(iter(wrong))):
            PackSettings(**wrong)  # type: ignore[arg-type]


def test_keys_are_fit_for_tars_and_different() -> None:
    ids = ["a/b.jpg", "a_b.jpg", "a_b.png", "a.b", "ü 漢.webp", "x" * 300, "x" * 301, "..", ".jpg"]
    keys = list(keys_of(ids).values())
    assert len(set(keys)) == len(ids)
    assert keys[0] == "a_b"
    assert not any("." in key or "/" in key or not key or len(key) > 80 for key in keys)
