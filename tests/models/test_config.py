"""Settings that cannot work are refused by name, and the registry knows its captioners."""

import json
from dataclasses import fields

import pytest

import tiny
from meshcap.errors import MeshcapError
from meshcap.models import (
    MODELS,
    M2Config,
    ModelConfig,
    Transformer,
    TransformerConfig,
    create_model,
    list_models,
    register,
)
from meshcap.models.base import CaptionModel


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
