"""Settings that cannot work are refused by name, and the registry knows its captioners."""

import json
import os
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tiny
from meshcap import weights as storage
from meshcap.errors import MeshcapError
from meshcap.models import (
    M2,
    MODELS,
    M2Config,
    ModelConfig,
    Transformer,
    TransformerConfig,
    create_model,
    list_models,
    load_model,
    register,
)
from meshcap.models.base import CaptionModel
from meshcap.weights import SkipInit


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 4}, "vocab_size is 4, expected a whole number of at least 5"),
        ({"vocab_size": "200"}, "vocab_size is '200', expected a whole number of at least 5"),
        ({"d_model": 64.0}, "d_model is 64.0, expected a whole number of at least 2"),
        ({"heads": True}, "heads is True, expected a whole number of at least 1"),
        ({"heads": 7}, "d_model is 512, expected a multiple of heads = 7 (or set d_head)"),
        ({"d_head": 0}, "d_head is 0, expected a whole number of at least 1"),
        ({"d_head": -4}, "d_head is -4, expected a whole number of at least 1"),
        ({"d_head": "64"}, "d_head is '64', expected a whole number of at least 1"),
        ({"dropout": 1}, "dropout is 1, expected a share from 0 to below 1"),
        ({"dropout": -0.1}, "dropout is -0.1, expected a share from 0 to below 1"),
        ({"dropout": "0.1"}, "dropout is '0.1', expected a share from 0 to below 1"),
        ({"dropout": None}, "dropout is None, expected a share from 0 to below 1"),
        ({"boxes": "false"}, "boxes is 'false', expected true or false"),
        ({"tied_words": 1}, "tied_words is 1, expected true or false"),
        ({"max_length": 1}, "max_length is 1, expected a whole number of at least 2"),
        ({"eos": 2}, "special ids (0, 1, 2, 2) are not four different ids of a vocabulary of 100"),
        ({"eos": 100}, "special ids (0, 1, 2, 100) are not four different ids of a vocabulary of 100"),
        ({"unk": -1}, "special ids (-1, 1, 2, 3) are not four different ids of a vocabulary of 100"),
        ({"unk": "0"}, "special ids ('0', 1, 2, 3) are not four different ids of a vocabulary of 100"),
        ({"suppressed_ids": (1, 100)}, "suppressed_ids is (1, 100), expected ids of a vocabulary of 100"),
        ({"suppressed_ids": 5}, "suppressed_ids is 5, expected ids of a vocabulary of 100"),
        ({"suppressed_ids": (1, 3)}, "suppressed_ids contains 3, the id that ends a caption: no caption could end"),
        ({"encoder_layers": 0}, "encoder_layers is 0, expected a whole number of at least 1"),
        ({"slots": -1}, "slots is -1, expected a whole number of at least 0"),
        ({"attend_padding": -1}, "attend_padding is -1, expected a whole number of at least 0"),
        ({"mesh": "half"}, "mesh is 'half', expected one of full, last, one-to-one"),
        ({"gates": "tanh"}, "gates is 'tanh', expected one of sigmoid, softmax"),
        (
            {"mesh": "one-to-one", "encoder_layers": 2},
            "mesh 'one-to-one' joins equal stacks, and there are 2 encoder and 3 decoder layers",
        ),
        ({"attend_padding": 50}, "attend_padding fills up with regions that have no box: set boxes to false"),
    ],
)
def test_refused(settings: dict, message: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        M2Config(**{"vocab_size": 100, **settings})
    assert str(caught.value) == message


def test_the_papers_settings_are_the_defaults() -> None:
    config = M2Config(vocab_size=10201)
    assert (config.encoder_layers, config.decoder_layers, config.slots, config.mesh) == (3, 3, 40, "full")
    assert (config.d_model, config.heads, config.head_width, config.d_ff) == (512, 8, 64, 2048)
    assert (config.d_input, config.dropout, config.max_length) == (2048, 0.1, 54)
    assert config.suppressed == (1, 2)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_settings_come_back_from_json(name: str) -> None:
    config = tiny.build(name, suppressed_ids=(1,), boxes=False, dropout=0).config
    again = type(config).from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert set(config.to_dict()) == {field.name for field in fields(config)}


def test_unknown_and_missing_settings() -> None:
    with pytest.raises(MeshcapError, match="unknown setting 'slot' for M2Config: was the model made by a newer"):
        M2Config.from_dict({"vocab_size": 100, "slot": 3})
    with pytest.raises(MeshcapError, match="the settings say no vocab_size"):
        M2Config.from_dict({})


def test_transformer_has_no_memory_and_no_mesh() -> None:
    for settings in ({"slots": 40}, {"mesh": "full"}):
        with pytest.raises(MeshcapError, match="a plain Transformer has no slots and looks at the last level"):
            TransformerConfig(vocab_size=100, **settings)
    names = set(tiny.build("transformer").state_dict())
    assert not [name for name in names if "memory" in name or "gates" in name]
    assert isinstance(create_model("transformer", **tiny.sizes("transformer"), slots=0), Transformer)


def test_registry() -> None:
    assert {"m2", "transformer"} <= set(MODELS)
    for name, model in MODELS.items():
        assert model.name == name
        assert issubclass(model, CaptionModel)
        assert issubclass(model.config_class, ModelConfig)
    with pytest.raises(MeshcapError, match=r"no captioner is called 'm3': expected one of .*m2.*transformer"):
        create_model("m3", vocab_size=10)
    with pytest.raises(MeshcapError, match="a captioner called 'm2' is registered already"):
        register(type("Other", (CaptionModel,), {"name": "m2"}))
    assert register(MODELS["m2"]) is MODELS["m2"]


def test_list_models() -> None:
    assert list_models() == sorted(MODELS) and "m2" in list_models()
    assert list_models("*former") == ["transformer"]
    assert list_models("h*") == ["hierarchical", "hopfield"]
    assert list_models("nothing") == []


# Model folders: what is written comes back; what does not fit is refused; nothing is left half-written.

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
def test_loaded_in_half_precision(captioner, tmp_path: Path) -> None:
    """Every weight, and what is not in the file, as if the whole model had been converted."""
    captioner.save_pretrained(tmp_path)
    found, expected = load_model(tmp_path, dtype=torch.bfloat16), load_model(tmp_path).to(torch.bfloat16)
    for own, other in ((found.named_parameters(), expected), (found.named_buffers(), expected)):
        for name, tensor in own:
            one = other.get_parameter(name) if isinstance(tensor, nn.Parameter) else other.get_buffer(name)
            assert tensor.dtype == one.dtype and torch.equal(tensor, one), name
    assert torch.equal(found(PICTURES.to(dtype=torch.bfloat16), IDS), expected(PICTURES.to(dtype=torch.bfloat16), IDS))


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


# Networks built to be filled: nothing is drawn, and everything that is not drawn is as ever.

DRAW = [
    nn.init.normal_, nn.init.uniform_, nn.init.xavier_uniform_, nn.init.xavier_normal_,
    nn.init.kaiming_uniform_, nn.init.kaiming_normal_,
]  # fmt: skip


@pytest.mark.parametrize("draw", DRAW)
def test_nothing_is_drawn(draw) -> None:
    weight = nn.Parameter(torch.full((3, 4), 7.0))
    before = torch.random.get_rng_state()
    with SkipInit():
        draw(weight)
    assert (weight == 7).all()
    assert torch.equal(torch.random.get_rng_state(), before)
    draw(weight)
    assert not (weight == 7).any()


def test_the_rest_is_as_ever() -> None:
    with SkipInit():
        norm = nn.LayerNorm(4)
        table = torch.arange(6.0).view(2, 3).cos()
    assert (norm.weight == 1).all() and (norm.bias == 0).all()
    assert torch.equal(table, torch.arange(6.0).view(2, 3).cos())


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_what_is_read_is_whole(captioner, bits: int, tmp_path: Path) -> None:
    """Buffers that files do not keep included; twice, as memory that holds anything may hold the right numbers once."""
    captioner.save_pretrained(tmp_path, bits=bits)
    first, second = load_model(tmp_path), load_model(tmp_path)
    tensors = dict(second.named_parameters()) | dict(second.named_buffers())
    for name, tensor in [*first.named_parameters(), *first.named_buffers()]:
        assert torch.equal(tensor, tensors[name]), name
    if bits == 32:
        expected = dict(captioner.named_parameters()) | dict(captioner.named_buffers())
        for name, tensor in tensors.items():
            assert torch.equal(tensor, expected[name]), name


def test_tiny_models_are_read_without_touching_the_dice(tmp_path: Path) -> None:
    tiny.build("m2").save_pretrained(tmp_path)
    before = torch.random.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


HOSTILE = {
    "many layers": {"encoder_layers": 10**6},
    "wide": {"d_model": 10**9},
    "wide in small steps": {"d_model": 60_000, "d_ff": 60_000},
    "long captions": {"max_length": 10**7},
    "many words": {"vocab_size": 10**12},
    "many digits": {"d_ff": 10**4000},
}


@pytest.mark.parametrize("settings", HOSTILE.values(), ids=HOSTILE)
def test_sizes_are_checked_against_the_file_before_anything_is_allocated(
    settings: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.build("m2").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    sizes: list[int] = []
    empty = torch.empty
    with torch.device("meta"):  # which learns the names of torch's functions at its first use
        empty(1)

    def counted(*size: object, **options: object) -> torch.Tensor:
        made = empty(*size, **options)
        sizes.append(made.numel() if made.device.type != "meta" else 0)
        return made

    monkeypatch.setattr(torch, "empty", counted)
    with pytest.raises(MeshcapError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert not any(sizes)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"d_model": ' + "9" * 5000 + "}", '{"a":' * 100_000])
def test_settings_that_json_cannot_read_are_one_line(text: str, tmp_path: Path) -> None:
    tiny.build("m2").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(MeshcapError, match=r"config\.json is not readable JSON"):
        load_model(tmp_path)
