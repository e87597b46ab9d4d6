"""docs/mechanisms.md tells of every captioner and of each of its settings."""

from dataclasses import fields
from pathlib import Path

import pytest

from meshcap.models import MODELS, M2Config
from meshcap.models.base import ModelConfig

PAGE = (Path(__file__).parents[2] / "docs" / "mechanisms.md").read_text(encoding="utf-8")
OF_MODEL_PAGE = {field.name for config in (ModelConfig, M2Config) for field in fields(config)}


@pytest.mark.parametrize("name", MODELS)
def test_every_captioner_and_setting_is_told(name: str) -> None:
    assert f"| `{name}` |" in PAGE
    for field in fields(MODELS[name].config_class):
        if field.name not in OF_MODEL_PAGE:
            assert f"`{field.name}`" in PAGE, field.name


def test_the_defaults_are_those_of_the_code() -> None:
    configs = {name: model.config_class(vocab_size=100) for name, model in MODELS.items()}
    for model, setting, told in (
        ("show-attend-tell", "attention", "`soft`"),
        ("show-attend-tell", "score", "`additive`"),
        ("show-attend-tell", "doubly_stochastic", "0"),
        ("show-attend-tell", "entropy", "0"),
        ("hopfield", "patterns", "64"),
        ("hopfield", "beta", "null"),
        ("hopfield", "retrieval_steps", "1"),
        ("hopfield", "self_attention", "true"),
    ):
        assert f"| `{setting}` | {told} |" in PAGE, setting
        value = getattr(configs[model], setting)
        assert told.strip("`") == (
            "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value).lower()
        )
    ntm = configs["ntm"]
    assert f"| `memory_rows`, `memory_width` | {ntm.memory_rows}, {ntm.memory_width} |" in PAGE
    assert f"| `read_heads`, `write_heads` | {ntm.read_heads}, {ntm.write_heads} |" in PAGE
    assert f"`groups` × `groups` grid (default {configs['hierarchical'].groups})" in PAGE
