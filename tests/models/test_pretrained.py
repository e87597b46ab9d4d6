"""Model folders: what is written comes back; what does not fit is refused; nothing is left half-written."""

import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from meshcap import weights as storage
from meshcap.errors import MeshcapError
from meshcap.models import M2, MODELS, Transformer, load_model

PICTURES = tiny.pictures(3, 6)
IDS = torch.tensor([[2, 4, 5, 6]]).expand(2, -1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder to spoil."""
    tiny.build("m2").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def refused(call) -> str:
    with pytest.raises(MeshcapError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@torch.no_grad()
def test_round_trip(captioner, tmp_path: Path) -> None:
    captioner.save_pretrained(tmp_path / "model")
    expected = captioner(PICTURES, IDS)
    folder = tmp_path / "model"
    for again in (load_model(folder), load_model(str(folder)), type(captioner).from_pretrained(folder)):
        assert type(again) is type(captioner)
        assert again.config == captioner.config
        assert not again.training
        assert torch.equal(again(PICTURES, IDS), expected)
        assert list(again.state_dict()) == list(captioner.state_dict())


@torch.no_grad()
@pytest.mark.parametrize(
    "settings",
    [
        {"mesh": "one-to-one", "d_head": 5, "suppressed_ids": (1, 2, 7), "dropout": 0, "boxes": False},
        {"gates": "softmax", "slots": 0, "encoder_layers": 3, "unk": 4, "eos": 0, "max_length": 30},
        {"boxes": False, "attend_padding": 12, "suppressed_ids": ()},
    ],
)
def test_round_trip_of_other_settings(settings: dict, tmp_path: Path) -> None:
    model = tiny.build("m2", **settings)
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert again.config == model.config
    assert {name: getattr(again.config, name) for name in settings} == settings
    assert torch.equal(again(PICTURES, IDS), model(PICTURES, IDS))


def test_folder_is_json_and_safetensors(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    settings = json.loads((folder / "config.json").read_text())
    assert settings["model"] == "m2"
    assert settings["vocab_size"] == tiny.VOCAB
    expected = tiny.build("m2").state_dict()
    written = load_file(folder / "model.safetensors")
    assert set(written) == set(expected)
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())


def test_saving_again_replaces(folder: Path) -> None:
    tiny.build("m2", seed=1, d_ff=32).save_pretrained(folder)
    assert load_model(folder).config.d_ff == 32


def test_no_such_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for call in (load_model, M2.from_pretrained):
        message = refused(lambda call=call: call("somebody/not-a-model"))
        assert message.startswith("no model 'somebody/not-a-model': neither a folder here nor found on the hub (")
        message = refused(lambda call=call: call(tmp_path / "nothing" / "to" / "find"))
        assert message.startswith(f"no model '{tmp_path}/nothing/to/find': neither a folder")


@pytest.mark.parametrize("call", [load_model, M2.from_pretrained])
def test_folder_that_is_none(call, tmp_path: Path) -> None:
    assert refused(lambda: call(tmp_path)).startswith(f"{tmp_path} has no config.json: expected a model folder")
    file = tmp_path / "file"
    file.write_text("")
    assert refused(lambda: call(file)).startswith(f"{file} is a file, expected a model folder")


@pytest.mark.parametrize("call", [load_model, M2.from_pretrained])
def test_spoilt_settings(call, folder: Path) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text())

    path.write_text('{"model": "m2", ')
    assert refused(lambda: call(folder)).startswith(f"{path} is not readable JSON (")
    path.write_bytes(b"\xff\xfe\x00")
    assert refused(lambda: call(folder)).startswith(f"{path} is not readable JSON (")
    path.write_text("[1, 2]")
    assert refused(lambda: call(folder)) == f"{path} holds a list, expected an object with the settings of a model"
    path.write_text(json.dumps({**settings, "colour": "red"}))
    assert "unknown setting 'colour' for M2Config" in refused(lambda: call(folder))
    path.write_text(json.dumps({name: value for name, value in settings.items() if name != "vocab_size"}))
    assert "no vocab_size" in refused(lambda: call(folder))
    path.write_text(json.dumps({**settings, "heads": "many"}))
    assert refused(lambda: call(folder)) == "heads is 'many', expected a whole number of at least 1"
    path.unlink()
    assert refused(lambda: call(folder)).startswith(f"{folder} has no config.json")


def test_another_model(folder: Path) -> None:
    message = refused(lambda: Transformer.from_pretrained(folder))
    assert message == f"{folder} holds a model 'm2', and Transformer reads 'transformer': use meshcap.load_model"
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "model": "m3"}))
    known = ", ".join(sorted(MODELS))
    assert refused(lambda: load_model(folder)) == f"no captioner is called 'm3': expected one of {known}"
    del settings["model"]
    path.write_text(json.dumps(settings))
    assert "holds a model None" in refused(lambda: M2.from_pretrained(folder))
    assert "no captioner is called 'None'" in refused(lambda: load_model(folder))


@pytest.mark.parametrize("call", [load_model, M2.from_pretrained])
def test_spoilt_weights(call, folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}  # not views of a file that changes

    for part in (0, 7, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:part])
        assert refused(lambda: call(folder)).startswith(f"{path} is not a readable safetensors file (")
    path.write_bytes(b"\x80\x04" + b"x" * 100)  # as a pickle begins
    assert refused(lambda: call(folder)).startswith(f"{path} is not a readable safetensors file (")

    # The first that does not fit, in the order of the model: here two do not.
    other = {**tensors, "encoder.norm.bias": torch.zeros(7), "decoder.words.weight": torch.zeros(11, 16)}
    save_file(other, path)
    assert refused(lambda: call(folder)) == f"{path} has encoder.norm.bias of shape (7,), expected (16,)"
    less = {name: tensor for name, tensor in tensors.items() if name != "decoder.positions"}
    save_file(less, path)
    assert refused(lambda: call(folder)) == (
        f"{path} lacks decoder.positions (10, 16), which the settings beside it call for"
    )
    save_file({**tensors, "decoder.extra": torch.zeros(2)}, path)
    assert refused(lambda: call(folder)) == f"{path} has decoder.extra, which the settings beside it do not call for"
    path.unlink()
    assert refused(lambda: call(folder)).startswith(f"{folder} has no model.safetensors")


def test_settings_and_weights_of_different_models(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "slots": 4}))
    message = refused(lambda: load_model(folder))
    assert "encoder.layers.0.attention.memory.keys of shape (3, 16), expected (4, 16)" in message


def test_refused_weights_change_nothing(folder: Path) -> None:
    model = tiny.build("m2", seed=3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = folder / "model.safetensors"
    save_file({**tiny.build("m2").state_dict(), "decoder.extra": torch.zeros(2)}, path)
    refused(lambda: storage.load_weights(model, path))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@contextmanager
def small_disk(most: int):
    """No file may grow beyond so many bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failing_save_leaves_the_old_model(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with small_disk(5000):
        message = refused(lambda: tiny.build("m2", seed=1).save_pretrained(folder))
    assert message.startswith(f"{folder / 'model.safetensors'} cannot be written: ")
    assert "File too large" in message
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    load_model(folder)


def test_settings_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "config.json").read_bytes()

    def full(file: int) -> None:
        if "config.json" in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("meshcap.files.os.fsync", full)
    message = refused(lambda: tiny.build("m2", seed=1).save_pretrained(folder))
    assert message == f"{folder / 'config.json'} cannot be written: No space left on device"
    assert (folder / "config.json").read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    load_model(folder)
