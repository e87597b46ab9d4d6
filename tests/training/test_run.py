"""A run as a whole: what is written when something goes wrong in its middle, and what it does to memory."""

import errno
import gc
import json
import os
from pathlib import Path

import pytest
import torch

import tiny_data
from meshcap import Captioner
from meshcap import weights as storage
from meshcap.data.dataset import Dataset, Sample
from meshcap.training.checkpoint import latest
from meshcap.training.folder import COMPILED, fingerprint, keep_compiled
from meshcap.training.log import read_log
from meshcap.training.run import Run, with_val
from meshcap.training.tasks import CrossEntropy
from training.made_up import parts_of, scst_task, settings_of, trainer_of, xe_task


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data.scenes(tmp_path_factory.mktemp("scenes"))


def last_error(capsys: pytest.CaptureFixture[str]) -> str:
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    return told[0]


def test_a_loss_that_is_not_finite(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A learning rate beyond reason: the diagnosis names it, the checkpoint from before can be used."""
    real = CrossEntropy.backward

    def spoiled(self: CrossEntropy, everyone, step: int):
        measured = real(self, everyone, step)
        if step == 5:
            self.parts.model.decoder.words.weight.grad.fill_(float("nan"))
        return measured

    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CrossEntropy, "backward", spoiled)
        assert tiny_data.call(tiny_data.train_words(data, run, xe=8)) == 1
    told = last_error(capsys)
    assert "step 6" in told
    assert "learning rate" in told
    assert "no longer finite" in told
    assert latest(run)[0].step == 4
    assert Captioner.from_pretrained(run).caption(data.parent / "0.png").text
    assert tiny_data.call(tiny_data.train_words(data, run, "--resume")) == 0
    assert tiny_data.steps_of(run / "log.jsonl") == list(range(1, 9))


def test_the_disk_is_full_while_the_model_is_written(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a later validation: the model of the earlier one stays whole, and --resume works when there is room."""
    run, written = tmp_path / "run", []
    real = storage.save_file

    def full(weights: dict, path: Path, **options: object) -> None:
        if "model.safetensors" in str(path):
            written.append(path)
            if len(written) > 1:
                Path(path).write_bytes(b"half")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(weights, path, **options)

    words = tiny_data.train_words(data, run, xe=30, lr=5e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "save_file", full)
        assert tiny_data.call(words) == 2
    assert "No space left on device" in last_error(capsys)
    assert len(written) == 2
    assert Captioner.from_pretrained(run).caption(data.parent / "0.png").text
    assert latest(run) is not None
    assert not [path for path in run.rglob("*") if path.name.endswith(".part")]
    assert tiny_data.call([*words, "--resume"]) == 0
    assert json.loads((run / "scores.json").read_text())["steps"] == 30


def test_the_disk_is_full_while_a_checkpoint_is_written(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    from meshcap.training import checkpoint

    real = checkpoint.write_safetensors

    def full(weights: dict, path: Path) -> None:
        if (run / "checkpoints" / "000000004").exists():
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(weights, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write_safetensors", full)
        assert tiny_data.call(tiny_data.train_words(data, run, xe=8)) == 2
    assert "No space left on device" in last_error(capsys)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["000000004"]
    assert latest(run)[0].step == 4


def test_the_second_stage_begins_with_the_best_of_the_first(data: Path, tmp_path: Path) -> None:
    """And not with its last weights, which may be worse."""
    from meshcap.training.run import Run

    begun: list[dict[str, torch.Tensor]] = []
    real = Run.trainer

    def noted(self: Run, stage: str, position):
        if stage == "scst":
            begun.append({name: weight.clone() for name, weight in self.parts.model.state_dict().items()})
            begun.append(pretrained_weights(self.folder))
        return real(self, stage, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "trainer", noted)
        assert tiny_data.call(tiny_data.train_words(data, tmp_path / "run", xe=8, scst=1, lr=1e-2)) == 0
    first, best = begun
    assert first.keys() == best.keys()
    assert all(torch.equal(first[name], best[name]) for name in first)


def test_the_model_before_self_critical_training_is_kept(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert tiny_data.call(tiny_data.train_words(data, run, xe=8, scst=2, lr=1e-2)) == 0
    before = run / "before-scst"
    assert Captioner.from_pretrained(before).caption(data.parent / "0.png").text
    assert not (tmp_path / "alone" / "before-scst").exists()
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "alone", xe=2)) == 0
    assert not (tmp_path / "alone" / "before-scst").exists()


def pretrained_weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def sample(id: str, split: str = "train", *captions: str) -> Sample:
    return Sample(id, captions or ("a picture",), split, None)


def test_a_share_for_validation() -> None:
    data = Dataset("d", [sample(str(number)) for number in range(500)])
    split = with_val(data, 0.1)
    assert 30 < len(split.split("val")) < 70
    assert [one.id for one in split] == [one.id for one in data]
    # A picture stays where it is when others come: what was validated with is never learned from later.
    more = with_val(Dataset("d", [*data.samples, *(sample(f"new {number}") for number in range(300))]), 0.1)
    assert {one.id for one in split.split("val")} <= {one.id for one in more.split("val")}
    named = Dataset("d", [sample("1"), sample("2", "val")])
    assert with_val(named, 0.5) is named


@pytest.fixture
def no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has chosen where torch keeps what it compiles; afterwards it is as it was."""
    monkeypatch.setenv(COMPILED, "")
    monkeypatch.delenv(COMPILED)


def test_a_run_chooses_where_compiled_steps_are_kept(
    data: Path, tmp_path: Path, no_place: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda work, **options: work)
    kept = str(tmp_path / "kept")
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "one", xe=1, compile_cache=kept)) == 0
    assert COMPILED not in os.environ  # nothing is compiled
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "two", xe=1, compile=True, compile_cache=kept)) == 0
    assert os.environ[COMPILED] == kept


def test_where_compiled_steps_are_kept(tmp_path: Path, no_place: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's cache, unless the environment or the setting says otherwise."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert keep_compiled(None) == tmp_path / "meshcap" / "compiled"
    monkeypatch.delenv(COMPILED)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert keep_compiled(None) == Path.home() / ".cache" / "meshcap" / "compiled"
    monkeypatch.setenv(COMPILED, str(tmp_path / "theirs"))
    assert keep_compiled(None) == tmp_path / "theirs"
    assert keep_compiled("mine") == tmp_path / "mine" == Path(os.environ[COMPILED])


@pytest.mark.slow
def test_what_was_compiled_is_found_again(tmp_path: Path, no_place: None) -> None:
    from torch._dynamo.utils import counters

    keep_compiled(str(tmp_path / "kept"))
    for expected in ("fxgraph_cache_miss", "fxgraph_cache_hit"):
        torch._dynamo.reset()  # as in a new process
        counters.clear()
        assert torch.compile(lambda x: x.sin() + 1.25)(torch.zeros(3)).tolist() == [1.25] * 3
        assert {name: count for name, count in counters["inductor"].items() if "fxgraph" in name} == {expected: 1}
        assert any((tmp_path / "kept" / "fxgraph").rglob("*"))


def test_fingerprints_tell_data_apart() -> None:
    one, two = [sample("1", "train", "a", "b")], [sample("2", "val", "c")]
    same = fingerprint(one, two)
    assert same == fingerprint(list(one), list(two))
    others = [
        fingerprint(two, one),
        fingerprint([sample("1", "train", "a", "b!")], two),
        fingerprint([sample("1", "train", "ab")], two),
        fingerprint([sample("3", "train", "a", "b")], two),
        fingerprint([*one, *two], []),
    ]
    assert same not in others[:4]


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to ask for memory")
@pytest.mark.parametrize("kind", ["xe", "scst"])
def test_memory_stays_flat(kind: str, tmp_path: Path) -> None:
    """A graph or a batch that is kept by mistake would grow by more than this in a hundred steps."""
    task = (xe_task if kind == "xe" else scst_task)(parts_of(), settings := settings_of(validate_every=1000))
    trainer = trainer_of(task, tmp_path, settings, steps=10_000)
    task.ready()
    used = []
    for step in range(400):
        trainer.step(step)
        if step % 20 == 0:
            trainer.position.step = step + 1
            trainer._look()
        if step in (99, 399):
            gc.collect()
            used.append((resident(), sum(1 for one in gc.get_objects() if isinstance(one, torch.Tensor))))
    assert used[1][0] - used[0][0] < 8 * 2**20
    assert used[1][1] <= used[0][1] + 5


@pytest.mark.parametrize(("room", "kind"), [(2.0**40, "CachedRegions"), (1.0, "PixelViews")])
def test_regions_are_kept_where_there_is_room(
    room: float, kind: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen vision looks once, or in every step where what it sees would not fit; the losses are the same."""
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "usual", xe=3)) == 0
    made: list[object] = []
    make = Run._make_views

    def noted(self: Run, *given: object) -> object:
        made.append(make(self, *given))
        return made[-1]

    monkeypatch.setattr(Run, "_make_views", noted)
    monkeypatch.setattr("meshcap.training.pictures.free_memory", lambda: room)
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "run", xe=3)) == 0
    assert {type(one).__name__ for one in made} == {kind}
    usual, other = (
        [one["loss"] for one in read_log(tmp_path / name / "log.jsonl") if "loss" in one] for name in ("usual", "run")
    )
    assert len(usual) == 3
    assert other == pytest.approx(usual, rel=1e-6)
