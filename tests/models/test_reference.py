"""Reading public checkpoints: genuine ones whatever else they hold; hostile and spoilt ones are refused."""

import os
import pickle
import random
import zipfile
from pathlib import Path

import numpy
import pytest
import torch

import tiny
from meshcap.errors import MeshcapError
from meshcap.models import load_model, reference
from meshcap.models.reference import read_reference
from meshcap.regions import Regions

SMALL = Path(__file__).parents[1] / "fixtures" / "small.pth"


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return torch.load(SMALL, weights_only=True)["state_dict"]


@pytest.fixture
def read(tmp_path: Path):
    """Write a checkpoint and read it."""

    def read(content: object):
        torch.save(content, tmp_path / "written.pth")
        return read_reference(tmp_path / "written.pth", regions=12, d_head=16)

    return read


@pytest.fixture
def read_tensors(monkeypatch: pytest.MonkeyPatch):
    """Read tensors as if from a file, which is quicker."""

    def read(tensors: dict[str, torch.Tensor]):
        kept = {name: tensor for name, tensor in tensors.items() if not reference.IGNORED.match(name)}
        monkeypatch.setattr(reference, "read_state_dict", lambda path: kept)
        return read_reference("spoilt.pth", regions=12, d_head=16)

    return read


def refused(call) -> str:
    with pytest.raises(MeshcapError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@torch.no_grad()
def expect_small(model) -> None:
    regions, ids = Regions(torch.randn(2, 12, 48)), torch.tensor([[2, 9, 8, 7]]).expand(2, -1)
    expected = read_reference(SMALL, regions=12, d_head=16)
    torch.testing.assert_close(model(regions, ids), expected(regions, ids))


@pytest.fixture
def as_trained(state) -> dict[str, object]:
    """What the public training script writes: random states of Python, numpy and torch, and numpy numbers, as well."""
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(3))], lr=1)
    return {
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.get_rng_state(),
        "numpy_rng_state": numpy.random.get_state(),
        "random_rng_state": random.getstate(),
        "epoch": 28,
        "val_loss": 2.5,
        "val_cider": numpy.float64(1.31),
        "state_dict": state,
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0).state_dict(),
        "patience": 0,
        "best_cider": numpy.float64(1.31),
        "use_rl": True,
    }


def test_a_checkpoint_with_all_that_training_writes(as_trained: dict, read) -> None:
    expect_small(read(as_trained))


def test_a_checkpoint_of_its_time(as_trained: dict, tmp_path: Path) -> None:
    """Written by a torch that did not zip and a numpy whose modules had other names."""
    path = tmp_path / "old.pth"
    torch.save(as_trained, path, _use_new_zipfile_serialization=False)
    written = path.read_bytes()
    for name in (b"scalar", b"_reconstruct"):
        new, old = b"cnumpy._core.multiarray\n" + name, b"cnumpy.core.multiarray\n" + name
        written = written.replace(new, old)
        assert old in written
    path.write_bytes(written)
    expect_small(read_reference(path, regions=12, d_head=16))


def test_weights_alone(state, read) -> None:
    expect_small(read(state))


def test_half_precision_is_widened(state, read) -> None:
    model = read({"state_dict": {name: t.half() if t.is_floating_point() else t for name, t in state.items()}})
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_imported_models_are_saved_like_others(tmp_path: Path) -> None:
    read_reference(SMALL, regions=12, d_head=16).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert (model.config.attend_padding, model.config.boxes, model.config.suppressed_ids) == (12, False, ())
    expect_small(model)


def test_head_width() -> None:
    message = refused(lambda: read_reference(SMALL, d_head=24))
    assert message.startswith("heads together are 64 wide, and 24 does not divide that")
    assert read_reference(SMALL).config.heads == 1
    assert read_reference(SMALL).config.attend_padding == 50


class Hostile:
    """Runs a command when it is unpickled by anybody who trusts it."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("where", ["beside the weights", "as a weight", "alone"])
def test_nothing_in_a_checkpoint_runs(where: str, state, tmp_path: Path, read) -> None:
    trace = tmp_path / "it-ran"
    hostile = Hostile(f"touch {trace}")
    content = {
        "beside the weights": {"state_dict": state, "epoch": hostile},
        "as a weight": {"state_dict": {**state, "encoder.fc.bias": hostile}},
        "alone": hostile,
    }[where]
    message = refused(lambda: read(content))
    assert message.endswith("cannot be read as tensors alone and is refused (it asks for posix.system)")
    assert not trace.exists()
    # It would have run: the same file, read by somebody who trusts it.
    torch.load(tmp_path / "written.pth", weights_only=False)
    assert trace.exists()


def test_a_bare_pickle_does_not_run(tmp_path: Path) -> None:
    trace, path = tmp_path / "it-ran", tmp_path / "bare.pth"
    path.write_bytes(pickle.dumps(Hostile(f"touch {trace}"), protocol=2))
    assert "is refused" in refused(lambda: read_reference(path))
    assert not trace.exists()


def test_numpy_objects_do_not_bring_others(state, tmp_path: Path, read) -> None:
    """Arrays of Python objects hold pickles of their own."""
    trace = tmp_path / "it-ran"
    smuggled = numpy.array([Hostile(f"touch {trace}")], dtype=object)
    refused(lambda: read({"state_dict": state, "numpy_rng_state": smuggled}))
    assert not trace.exists()


def test_no_file(tmp_path: Path) -> None:
    assert refused(lambda: read_reference(tmp_path / "none.pth")).startswith(f"{tmp_path / 'none.pth'} is not a file")
    assert "is not a file" in refused(lambda: read_reference(tmp_path))


@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_truncated(part: float, tmp_path: Path) -> None:
    path = tmp_path / "cut.pth"
    whole = SMALL.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    message = refused(lambda: read_reference(path, d_head=16))
    assert message.startswith(f"{path} cannot be read as tensors alone and is refused (")


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    path.write_text("a caption\nis no checkpoint\n")
    assert "is refused" in refused(lambda: read_reference(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no tensors here")
    assert "is refused" in refused(lambda: read_reference(path))


@pytest.mark.parametrize("content", [[1, 2], {}, {"state_dict": {}}, {"state_dict": 3}, {"epoch": 3}, torch.zeros(3)])
def test_content_that_is_no_checkpoint(content, read) -> None:
    assert "holds no 'state_dict' of tensors: expected a checkpoint of the public M²" in refused(lambda: read(content))


def test_another_model(read) -> None:
    message = refused(lambda: read({"state_dict": {"layer.weight": torch.zeros(3, 3)}}))
    assert message.startswith("the checkpoint lacks encoder.fc.weight: is it one of the public M² implementation?")
    message = refused(lambda: read({"state_dict": tiny.build("m2").state_dict()}))
    assert message.startswith("the checkpoint lacks encoder.fc.weight")


def test_extra_tensor(state, read) -> None:
    message = refused(lambda: read({"state_dict": {**state, "decoder.bias": torch.zeros(2)}}))
    assert message == "the checkpoint has decoder.bias, which the public M² does not: another model?"


def names() -> list[str]:
    """Every tensor of a checkpoint that has a meaning."""
    return [name for name in torch.load(SMALL, weights_only=True)["state_dict"] if "running_" not in name]


def test_every_tensor_is_needed(state, read_tensors) -> None:
    assert len(names()) == 157
    expect_small(read_tensors(state))
    for name in names():
        less = {other: tensor for other, tensor in state.items() if other != name}
        assert refused(lambda less=less: read_tensors(less)).startswith(f"the checkpoint lacks {name}")


def test_whole_stacks_missing(state, read) -> None:
    for prefix in ("decoder.layers.", "encoder.layers.", "decoder.", "encoder."):
        less = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}
        assert refused(lambda less=less: read({"state_dict": less})).startswith(f"the checkpoint lacks {prefix}")


@pytest.mark.parametrize("spoilt", [torch.zeros(3), torch.zeros(3, 5), torch.zeros(())], ids=["1", "2", "0"])
def test_every_tensor_must_fit(spoilt: torch.Tensor, state, read_tensors) -> None:
    for name in names():
        message = refused(lambda name=name: read_tensors({**state, name: spoilt}))
        assert "expected" in message or "give --head-width" in message, name


def test_numbers_must_be_finite(state, read_tensors) -> None:
    for name in names()[::10]:
        for number in (float("nan"), float("inf")):
            spoilt = state[name].clone()
            spoilt.view(-1)[-1] = number
            message = refused(lambda name=name, spoilt=spoilt: read_tensors({**state, name: spoilt}))
            assert "holds NaN or infinite numbers: corrupted?" in message


def test_odd_names(state, read) -> None:
    for name in ("decoder.layers.x.weight", "encoder.layers.", "decoder.layers.99999999999.pwff.fc1.weight"):
        refused(lambda name=name: read({"state_dict": {**state, name: torch.zeros(2)}}))
    refused(lambda: read({"state_dict": {**state, 7: torch.zeros(2)}}))


def hostile_tensors() -> dict[str, torch.Tensor]:
    return {
        "expanded": torch.zeros(1).expand(500_000_000),
        "sparse": torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (1_000_000, 1_000_000)),
        "meta": torch.empty(1_000_000, 1_000_000, device="meta"),
        "quantised": torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8),
        "complex": torch.zeros(4, dtype=torch.complex64),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["expanded", "sparse", "meta", "quantised", "complex"])
def test_tensors_that_are_not_plain_numbers_are_refused(kind: str, tmp_path: Path) -> None:
    state = torch.load(SMALL, weights_only=True)["state_dict"]
    state["encoder.fc.weight"] = hostile_tensors()[kind]
    torch.save({"state_dict": state}, tmp_path / "hostile.pth")
    with pytest.raises(MeshcapError, match=r"expected numbers|in a file of|is refused"):
        read_reference(tmp_path / "hostile.pth")


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(SMALL) as given, zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as out:
        for one in given.infolist():
            out.writestr(one.filename, given.read(one))
    with pytest.raises(MeshcapError, match="a compressed archive"):
        read_reference(tmp_path / "bomb.pth")
