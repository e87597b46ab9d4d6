"""Archives of torch.export that somebody prepared: nothing in them runs."""

import contextlib
import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import exported
from meshcap import Captioner, MeshcapError
from meshcap.backends.export_backend import safe_archive

pytest.importorskip("onnxscript")
Members = dict[str, bytes]


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.mark),)


def read(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {one: archive.read(one) for one in archive.namelist()}


def write(path: Path, members: Members, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def saved(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def name_of(members: Members, end: str) -> str:
    return next(name for name in members if name.endswith(end))


def pickled_weight(members: Members, mark: Path) -> None:
    name = name_of(members, "model_weights_config.json")
    config = json.loads(members[name])
    payload = next(iter(config["config"].values()))
    payload["use_pickle"] = True
    members[name] = json.dumps(config).encode()
    members[name_of(members, f"data/weights/{payload['path_name']}")] = saved(Runs(mark))


def legacy_weights(members: Members, mark: Path) -> None:
    members["see/data/weights/model.pt"] = saved(Runs(mark))


def custom_object(members: Members, mark: Path) -> None:
    name = name_of(members, "model_constants_config.json")
    config = json.loads(members[name])
    payload = next(iter(config["config"].values()))
    payload["path_name"] = "opaque_obj_0"
    members[name] = json.dumps(config).encode()
    members["see/data/constants/opaque_obj_0"] = pickle.dumps(Runs(mark))


def changed_graph(members: Members, change: Callable[[str], str]) -> None:
    name = name_of(members, "models/model.json")
    before = members[name].decode()
    members[name] = change(before).encode()
    assert members[name] != before.encode()


def system_call(members: Members, mark: Path) -> None:
    changed_graph(members, lambda text: text.replace("torch.ops.aten.linear.default", "torch.os.mkdir"))


def file_access(members: Members, mark: Path) -> None:
    changed_graph(members, lambda text: text.replace("aten.linear.default", "aten.from_file.default"))


def evaluated_size(members: Members, mark: Path) -> None:
    code = f"__import__('os').mkdir('{mark}')"
    changed_graph(members, lambda text: text.replace("Mul(Integer(2)", f"Mul({code}"))


def built_string(members: Members, mark: Path) -> None:
    changed_graph(members, lambda text: text.replace("Mul(Integer(2)", "Mul(eval(chr(49))"))


def deep(members: Members, mark: Path) -> None:
    members[name_of(members, "models/model.json")] = b"[" * 200_000


def other_case(members: Members, mark: Path) -> None:
    name = name_of(members, "models/model.json")
    members[name.upper()] = members[name]


HOSTILE = [
    pickled_weight, legacy_weights, custom_object, system_call, file_access, evaluated_size, built_string, deep,
    other_case,
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(exported.folder("torch"), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda one: one.__name__)
def test_hostile_archives_are_refused(attack: Callable[[Members, Path], None], folder: Path, tmp_path: Path) -> None:
    members, mark = read(folder / "see.pt2"), tmp_path / "ran"
    attack(members, mark)
    write(folder / "see.pt2", members)
    with pytest.raises(MeshcapError, match=r"see\.pt2 holds .*: expected an archive that") as told:
        Captioner.from_pretrained(folder)
    assert "\n" not in str(told.value)
    assert not mark.exists()


def test_sample_inputs_are_never_read(folder: Path, tmp_path: Path) -> None:
    members, mark = read(folder / "see.pt2"), tmp_path / "ran"
    members[name_of(members, "data/sample_inputs/model.pt")] = saved(Runs(mark))
    write(folder / "see.pt2", members)
    picture = exported.pictures()[0]
    assert Captioner.from_pretrained(folder).caption(picture).words == exported.captioner().caption(picture).words
    assert not mark.exists()
    guards = json.loads(read_members(safe_archive(folder / "say.pt2")))["guards_code"]
    assert guards == []  # Python code, in the archive as it is written


def read_members(archive: io.BytesIO) -> bytes:
    with zipfile.ZipFile(archive) as inside:
        return inside.read("say/models/model.json")


def test_damaged_archives(folder: Path) -> None:
    whole = (folder / "see.pt2").read_bytes()
    for content in (b"", b"PK", whole[: len(whole) // 2]):
        (folder / "see.pt2").write_bytes(content)
        with pytest.raises(MeshcapError, match="is not a readable archive"):
            Captioner.from_pretrained(folder)
    (folder / "see.pt2").write_bytes(whole)
    write(folder / "see.pt2", read(folder / "see.pt2"), zipfile.ZIP_DEFLATED)
    with pytest.raises(MeshcapError, match="is compressed"):
        Captioner.from_pretrained(folder)


def test_torch_itself_would_run_it(folder: Path, tmp_path: Path) -> None:
    """So that the archives above are refused for a reason; a torch that does not may go without the check."""
    members, mark = read(folder / "see.pt2"), tmp_path / "ran"
    pickled_weight(members, mark)
    write(folder / "see.pt2", members)
    with contextlib.suppress(Exception):
        torch.export.load(folder / "see.pt2")
    assert mark.exists()
