"""Between two models: the ends are the models themselves, the middle is between them."""

from pathlib import Path

import pytest
import torch

import tiny_captioner
import tiny_data
from meshcap import Captioner
from meshcap.errors import MeshcapError
from meshcap.training.blend import Blend, unpacked


@pytest.fixture
def ends(tmp_path: Path) -> tuple[Path, Path]:
    for seed in (1, 2):
        tiny_captioner.build(seed=seed).save_pretrained(tmp_path / str(seed))
    return tmp_path / "1", tmp_path / "2"


def weights(captioner: Captioner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in captioner.model.state_dict().items()}


def test_shares(ends: tuple[Path, Path]) -> None:
    first, second = (unpacked(end) for end in ends)
    blend = Blend(first, second)
    one, other = weights(first), weights(second)
    found = weights(blend.set(0.25))
    for name, weight in found.items():
        torch.testing.assert_close(weight, one[name] * 0.75 + other[name] * 0.25)
    for share, expected in ((0.0, one), (1.0, other)):  # also after it was elsewhere
        found = weights(blend.set(share))
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert all(torch.equal(weights(first)[name], one[name]) for name in one)
    with pytest.raises(MeshcapError, match=r"share is 1\.5"):
        blend.set(1.5)


def test_only_relatives_blend(ends: tuple[Path, Path]) -> None:
    first, second = (unpacked(end) for end in ends)
    blind = Captioner(second.model, second.vocabulary)
    with pytest.raises(MeshcapError, match="see differently"):
        Blend(first, blind)
    second.vocabulary = type(second.vocabulary)([*tiny_captioner.WORDS[:-1], "other"])
    with pytest.raises(MeshcapError, match="different words"):
        Blend(first, second)
    second.model.config = type(second.model.config)(**{**second.model.config.to_dict(), "gates": "softmax"})
    with pytest.raises(MeshcapError, match="different settings"):
        Blend(first, second)


def test_command(ends: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tiny_data.scenes(tmp_path / "scenes")
    words = ["blend", str(ends[0]), str(ends[1])]
    assert tiny_data.call([*words, "--data", str(data), "--shares", "0,0.5,1", "--json"]) == 0
    told = capsys.readouterr().out
    assert told.count('"share"') == 3
    assert tiny_data.call([*words, "--shares", "0.5", "--out", str(tmp_path / "new")]) == 0
    found, expected = unpacked(tmp_path / "new"), Blend(*(unpacked(end) for end in ends)).set(0.5)
    assert all(torch.equal(weights(found)[name], weight) for name, weight in weights(expected).items())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "nothing to do"),
        (["--out", "new", "--shares", "0,1"], "2 shares"),
        (["--out", "new", "--shares", "2"], "--shares '2'"),
        (["--out", "new", "--shares", "half"], "--shares 'half'"),
        (["--out", "."], "not an empty folder"),
    ],
)
def test_mistakes(ends: tuple[Path, Path], more: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_data.call(["blend", str(ends[0]), str(ends[1]), *more]) == 2
    assert told in capsys.readouterr().err
