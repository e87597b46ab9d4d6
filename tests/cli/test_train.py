"""`meshcap train` as people call it: what it refuses, what it leaves behind, and what it promises beforehand."""

import json
import os
import re
import shutil
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import tiny_data
from meshcap import Captioner
from meshcap.text import Vocabulary
from meshcap.training.folder import claimed
from meshcap.training.settings import RECORDS, TrainSettings, setting_names
from meshcap.training.trainer import Trainer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data.scenes(tmp_path_factory.mktemp("scenes"), train=16, val=3, test=2)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert tiny_data.call(tiny_data.train_words(data, folder, xe=6, scst=2)) == 0
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], message: str) -> str:
    """One line, exit code 2, and the disk as it was before."""
    before = content(tmp_path)
    capsys.readouterr()
    assert tiny_data.call(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: "), err
    assert err.count("\n") == 1
    assert message in err
    assert content(tmp_path) == before
    return err


def changed(data: Path, folder: Path, change) -> Path:
    """A copy of the dataset whose lines went through `change`."""
    shutil.copytree(data.parent, folder)
    return tiny_data.write_lines(folder / data.name, change(tiny_data.read_lines(data)))


def test_what_a_run_leaves_behind(data: Path, run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "model.safetensors", "vocabulary.json", "vision", "training.json", "data.json"} <= names
    assert {"log.jsonl", "checkpoints", "report.html", "scores.json", "captions-val.json"} <= names
    scores = json.loads((run / "scores.json").read_text())
    assert scores["steps"] == 8
    assert 0 < scores["best_step"] <= 8
    low, high = scores["val"]["intervals"]["CIDEr"]
    assert low <= scores["val"]["scores"]["CIDEr"] <= high
    captions = json.loads((run / "captions-val.json").read_text())
    assert [one["image_id"] for one in captions] == ["16.png", "17.png", "18.png"]


def test_the_run_folder_captions_pictures(data: Path, run: Path) -> None:
    """As the report says it did: the file of captions comes from the model that lies there."""
    captioner = Captioner.from_pretrained(run, dtype="float32")  # as the run itself computed
    for one in json.loads((run / "captions-val.json").read_text()):
        caption = captioner.caption(data.parent / one["image_id"], max_words=20, good_endings=False)
        assert caption.text == one["caption"]


def test_what_is_told_at_the_end_is_of_the_best_model(data: Path, tmp_path: Path) -> None:
    """And not of the last one, which is in memory."""
    validate = Trainer._validate

    def first_is_best(self: Trainer) -> None:
        validate(self)
        self.position.best = 1e9

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_validate", first_is_best)
        assert tiny_data.call(tiny_data.train_words(data, tmp_path / "run", xe=16, lr=3e-2)) == 0
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["best_step"] == 4
    captioner = Captioner.from_pretrained(tmp_path / "run")
    for one in json.loads((tmp_path / "run" / "captions-val.json").read_text()):
        caption = captioner.caption(data.parent / one["image_id"], max_words=20, good_endings=False)
        assert caption.text == one["caption"]
        assert caption.confidence == pytest.approx(one["confidence"], abs=1e-3)


def test_the_reward_of_a_run_sees_the_end_of_captions(run: Path) -> None:
    """Rewards without `<eos>` teach captions that stop in the middle; the run says how it was rewarded."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    events = json.loads((newest / "state.json").read_text())["events"]
    rewards = [line for line in events if line.startswith("reward: ")]
    assert len(rewards) == 1
    assert rewards[0].startswith("reward: CIDEr-D")
    assert "eos counted" in rewards[0]
    assert "16 pictures" in rewards[0]


def test_json_is_for_programs(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "run", "--json", xe=2)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == 2
    assert told["val"]["scores"].keys() >= {"CIDEr", "BLEU-4", "ROUGE-L"}


def test_dry_run_tells_and_writes_nothing(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "run", "--dry-run", xe=7, scst=3)) == 0
    _, err = capsys.readouterr()
    for told in ("train 16, val 3", "7 steps of 4 pictures × 3 captions", "3 steps of 4 pictures × 3 captions"):
        assert told in err
    assert "s a step" in err
    assert "GiB at most" in err
    assert "minutes" in err
    assert not content(tmp_path)


OTHER = {
    "data": {
        "path": "d", "pictures": "p", "features": "f", "without": "w", "skip_broken": True,
        "val_share": 0.3, "val_pictures": 34,
        "tokenizer": "char", "min_count": 9, "vocabulary": 10, "max_length": 11, "size": 50, "cache": "none",
        "workers": 31,
    },
    "model": {
        "arch": "transformer", "start": "s", "vision": "patches", "size": 48, "geometry": "crop",
        "d_model": 8, "heads": 4, "d_ff": 5, "encoder_layers": 6, "decoder_layers": 7, "slots": 0, "dropout": 0.5,
        "options": {"mesh": "last"},
    },
    "xe": {
        "steps": 12, "epochs": None, "batch": 13, "captions": 14, "lr": 0.15, "lr_vision": 0.0, "layer_decay": 0.75,
        "frozen_stages": 39,
        "warmup": 0.16, "last_rate": 0.02, "weight_decay": 0.18, "clip": 0.19, "ema": 0.2, "augment": 0.21,
        "compress": 0.44, "turn": 49.0, "region_dropout": 0.22, "label_smoothing": 0.17,
    },
    "scst": {
        "steps": None, "epochs": 2.5, "batch": 23, "captions": 42, "lr": 0.24, "lr_vision": 0.25, "layer_decay": 0.8,
        "frozen_stages": 40,
        "warmup": 0.1, "last_rate": 0.2, "weight_decay": 0.3, "clip": 0.4, "ema": 0.41, "augment": 0.4,
        "compress": 0.45, "turn": 3.0, "region_dropout": 0.43, "samples": 26, "max_length": 9, "search": "beam",
        "temperature": 0.27, "top_k": 28, "xe_weight": 0.29, "objects": "o.json", "object_penalty": 0.46,
        "object_bonus": 0.47, "facts": True, "fact_penalty": 0.48, "fact_bonus": 0.49,
    },
    "run": {
        "out": "o", "stages": ("scst",), "seed": 30, "precision": "bfloat16", "compile": False,
        "compile_cache": "compiled", "threads": 38,
        "accumulate": 32, "validate_every": 33, "val_beams": 35, "checkpoint_every": 36, "patience": 37,
        "keep": "last", "track": ("none",),
    },
}  # fmt: skip


def test_every_setting_survives(tmp_path: Path) -> None:
    """Each with a value that is not its default, so that none can be forgotten."""
    for record, content in OTHER.items():
        assert set(content) == {field.name for field in fields(RECORDS[record])}
    settings = TrainSettings.from_dict(OTHER)
    settings.save(tmp_path)
    assert TrainSettings.load(tmp_path) == settings
    assert settings.to_dict() == OTHER
    assert TrainSettings.named(settings.flat()) == settings


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_data.call(["train", "--help"]) == 0
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert {name.partition(".")[2] for name in setting_names()} <= words


def test_what_was_chosen_is_saved(run: Path) -> None:
    settings = TrainSettings.load(run)
    # Nothing that a run decided is left to decide again: a resumed run on another machine must not choose otherwise.
    names = ("xe.batch", "xe.lr", "xe.steps", "scst.steps", "run.precision", "model.dropout", "run.validate_every")
    for name in (*names, "data.min_count"):
        assert settings.get(name) is not None, name
    assert settings.model.d_model == 16
    assert settings.scst.samples == 3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("colour=red", "colour"),
        ("lr=1", "expected a name such as xe.lr"),
        ("xe.colour=red", "expected xe. and one of augment, batch"),
        ("model.colour=red", "or one of m2's own"),
        ("scst.max_length=1", "scst.max_length is 1, expected at least a word and its end"),
        ("model.d_model", "expected name=value"),
        ("model.d_model=wide", "model.d_model is 'wide', expected a whole number"),
        ("model.vision=5", "vision is 5, expected a text"),
        ("run.compile=perhaps", "expected true or false"),
        ("model.d_model=-4", "d_model is -4"),
        ("xe.turn=-3", "turn is -3, expected degrees"),
        ("run.keep=first", "keep is 'first', expected best or last"),
        ("model.heads=3", "multiple of heads"),
        ("model.dropout=1.5", "dropout is 1.5"),
        ("scst.samples=1", "samples is 1"),
        ("xe.captions=2.5", "captions is 2.5"),
        ("xe.batch=0", "batch is 0"),
        ("scst.search=greedy", "search is 'greedy'"),
        ("run.precision=fp16", "precision is 'fp16'"),
        ("data.cache=disk", "cache is 'disk'"),
        ("scst.top_k=-2", "top_k is -2"),
        ("xe.augment=2", "augment is 2"),
        ("scst.xe_weight=-1", "xe_weight is -1"),
        ("scst.augment=2", "scst.augment is 2"),
        ("scst.ema=1.5", "scst.ema is 1.5"),
        ("scst.region_dropout=1", "scst.region_dropout is 1"),
        ("xe.compress=-1", "compress is -1"),
        ("xe.layer_decay=0", "layer_decay is 0"),
        ("xe.frozen_stages=-1", "frozen_stages is -1"),
        ("run.patience=-1", "patience is -1"),
        ("model.mesh=diagonal", "diagonal"),
        ("model.vision=telescope", "telescope"),
        ("model.arch=m3", "m3"),
        ("model.size=50", "size is 50"),
        ("data.tokenizer=french", "french"),
    ],
)
def test_settings_that_make_no_sense(
    setting: str, message: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tiny_data.train_words(data, tmp_path / "run", "--set", setting)
    refused(capsys, tmp_path, words, message)


def test_models_own_settings_reach_the_model(data: Path, tmp_path: Path) -> None:
    words = tiny_data.train_words(data, tmp_path / "run", xe=1, mesh="last", gates="softmax", slots=3, d_ff=20)
    assert tiny_data.call(words) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["mesh"], config["gates"], config["slots"], config["d_ff"]) == ("last", "softmax", 3, 20)
    assert sorted(config["suppressed_ids"]) == [0, 1, 2]


@pytest.mark.parametrize("stages", ["xe,sct", "", "scst,xe", "xe,xe"])
def test_stages_misspelt(stages: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, tmp_path, tiny_data.train_words(data, tmp_path / "run", "--stages", stages), "stages are")


def test_steps_or_epochs(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = tiny_data.train_words(data, tmp_path / "run", "--xe-epochs", 1)
    refused(capsys, tmp_path, words, "both xe.steps and xe.epochs")


def test_nothing_to_learn_from(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    refused(capsys, tmp_path, tiny_data.train_words(tmp_path / "none.jsonl", out), "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    refused(capsys, tmp_path, tiny_data.train_words(empty, out), "empty.jsonl")
    bare = changed(data, tmp_path / "bare", lambda lines: [{**line, "captions": [" "]} for line in lines])
    refused(capsys, tmp_path, tiny_data.train_words(bare, out), "without captions")
    only = changed(data, tmp_path / "only", lambda lines: [{**line, "split": "val"} for line in lines])
    refused(capsys, tmp_path, tiny_data.train_words(only, out), "no pictures in the split 'train'")


def test_the_same_caption_for_all(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = changed(data, tmp_path / "same", lambda lines: [{**line, "captions": ["A picture."]} for line in lines])
    told = refused(capsys, tmp_path, tiny_data.train_words(same, tmp_path / "run"), "tell pictures apart")
    assert "a picture" in told


def test_a_vocabulary_that_is_too_small(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = tiny_data.train_words(data, tmp_path / "run", vocabulary=3)
    assert "%" in refused(capsys, tmp_path, words, "raise data.vocabulary")


def test_a_folder_that_is_taken(data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("years of work")
    refused(capsys, tmp_path, tiny_data.train_words(data, taken), "not empty")
    refused(capsys, tmp_path, tiny_data.train_words(data, taken / "thesis.tex"), "is a file")
    shutil.copytree(run, tmp_path / "run")
    refused(capsys, tmp_path, tiny_data.train_words(data, tmp_path / "run"), "holds a run already")


def test_a_folder_below_a_file(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "file" / "run")) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_no_right_to_write(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "locked" / "run")) == 2
    assert "cannot be made" in capsys.readouterr().err.splitlines()[-1]


def test_a_picture_that_cannot_be_read(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = changed(data, tmp_path / "bad", lambda lines: lines)
    (copy.parent / "5.png").write_bytes((copy.parent / "5.png").read_bytes()[:60])
    before = content(tmp_path)
    assert tiny_data.call(tiny_data.train_words(copy, tmp_path / "run")) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    assert "5.png" in told[0]
    assert content(tmp_path) == before
    (copy.parent / "5.png").unlink()
    assert tiny_data.call(tiny_data.train_words(copy, tmp_path / "run")) == 2
    assert "5.png" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def features_of(data: Path, path: Path, *, but: tuple[str, ...] = (), width: int = 12) -> Path:
    """Made-up regions of every picture in a safetensors file."""
    torch.manual_seed(0)
    tensors = {}
    for line in tiny_data.read_lines(data):
        if line["image"] not in but:
            tensors[f"{line['image']}_features"] = torch.randn(5, width)
            tensors[f"{line['image']}_boxes"] = torch.rand(5, 2, 2).sort(1).values.flatten(1)
    save_file(tensors, path)
    return path


def test_features_instead_of_pictures(data: Path, tmp_path: Path) -> None:
    features = features_of(data, tmp_path / "features.safetensors")
    run = tmp_path / "run"
    words = tiny_data.train_words(data, run, "--features", features, xe=2, scst=1, vision=None)
    assert tiny_data.call(words) == 0
    assert json.loads((run / "config.json").read_text())["d_input"] == 12
    assert not (run / "vision").exists()


def test_missing_features(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for gone in ("3.png", "17.png"):  # to learn from, to validate with
        features = features_of(data, tmp_path / f"{gone}.safetensors", but=(gone,))
        before = content(tmp_path)
        words = tiny_data.train_words(data, tmp_path / "run", "--features", features, vision=None)
        assert tiny_data.call(words) == 2
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(told) == 1
        assert f"first: {gone}" in told[0]
        assert content(tmp_path) == before


def test_from_keeps_the_old_words_and_adds_new_ones(data: Path, run: Path, tmp_path: Path) -> None:
    def speak_of_cats(lines: list[dict]) -> list[dict]:
        return [{**line, "captions": ["a zebra and an aardvark", *line["captions"]]} for line in lines]

    more = changed(data, tmp_path / "more", speak_of_cats)
    words = tiny_data.train_words(more, tmp_path / "tuned", "--from", run, xe=1, vision=None, lr=1e-9, ema=0)
    assert tiny_data.call(words) == 0
    old, new = (Vocabulary.load(folder / "vocabulary.json").words for folder in (run, tmp_path / "tuned"))
    assert new[: len(old)] == old
    assert {"zebra", "aardvark"} <= set(new[len(old) :])
    before, after = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "tuned"))
    for name, weight in before.items():
        # One step at no learning rate: the weights are those it began with, to a millionth.
        torch.testing.assert_close(after[name][: len(weight)], weight, atol=1e-6, rtol=1e-4)
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert config["vocab_size"] == len(new)
    assert sorted(config["suppressed_ids"]) == [0, 1, 2]


def test_from_a_model_of_another_width(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = features_of(data, tmp_path / "features.safetensors")
    words = tiny_data.train_words(data, tmp_path / "run", "--from", run, "--features", features, vision=None)
    refused(capsys, tmp_path, words, "12 numbers a region")
    words = tiny_data.train_words(data, tmp_path / "run", "--from", tmp_path / "nowhere", vision=None)
    refused(capsys, tmp_path, words, "nowhere")


def test_from_a_model_without_a_vision(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features = features_of(data, tmp_path / "features.safetensors")
    blind = tmp_path / "blind"
    words = tiny_data.train_words(data, blind, "--features", features, xe=1, vision=None)
    assert tiny_data.call(words) == 0
    again = tiny_data.train_words(data, tmp_path / "run", "--from", blind, vision=None)
    refused(capsys, tmp_path, again, "give --features")


def test_from_a_model_of_shorter_captions(data: Path, tmp_path: Path) -> None:
    """What it learns is cut to what it can say."""
    short = tmp_path / "short"
    assert tiny_data.call(tiny_data.train_words(data, short, xe=1, max_length=8)) == 0
    words = tiny_data.train_words(data, tmp_path / "run", "--from", short, xe=1, scst=1, vision=None)
    assert tiny_data.call(words) == 0


def test_from_a_model_with_another_tokenizer(data: Path, tmp_path: Path) -> None:
    """New words are what the model's own tokenizer makes of the captions: here single letters."""
    first = tmp_path / "letters"
    assert tiny_data.call(tiny_data.train_words(data, first, xe=1, tokenizer="char", max_length=12)) == 0
    other = changed(
        data, tmp_path / "q", lambda lines: [{**one, "captions": ["ЯЯ", *one["captions"]]} for one in lines]
    )
    assert tiny_data.call(tiny_data.train_words(other, tmp_path / "run", "--from", first, xe=1, vision=None)) == 0
    old, new = (Vocabulary.load(folder / "vocabulary.json").words for folder in (first, tmp_path / "run"))
    assert new[: len(old)] == old
    assert all(len(word) == 1 for word in new[len(old) :]), new[len(old) :]
    assert new[len(old) :]


def test_a_vision_that_learns(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = tiny_data.train_words(
        data, run, "--size", 32, xe=2, scst=2, vision="small-cnn", scst_lr_vision=1e-4, cache="none"
    )
    assert tiny_data.call(words) == 0
    assert (run / "vision" / "model.safetensors").is_file()
    assert Captioner.from_pretrained(run).caption(Image.new("RGB", (40, 30))).text


def test_a_vision_without_weights_may_be_asked_to_learn(data: Path, tmp_path: Path) -> None:
    words = tiny_data.train_words(data, tmp_path / "run", "--lr-vision", 1e-3, xe=2, scst=1)
    assert tiny_data.call(words) == 0


def test_a_vision_from_the_hub_that_learns(data: Path, tmp_path: Path) -> None:
    """They keep their weights in files of their own kind, which the second stage must be able to read."""
    pytest.importorskip("transformers")
    from vision import tiny_hf

    folder = tmp_path / "resnet"
    folder.mkdir()
    spec = "hf:" + tiny_hf.save(tiny_hf.model("resnet"), folder, tiny_hf.SQUARE)
    run = tmp_path / "run"
    words = tiny_data.train_words(data, run, "--lr-vision", 1e-2, xe=2, scst=1, vision=spec, lr=1e-2)
    assert tiny_data.call(words) == 0
    assert Captioner.from_pretrained(run).caption(data.parent / "0.png").text


def test_a_split_for_validation_is_made_where_there_is_none(data: Path, tmp_path: Path) -> None:
    plain = changed(data, tmp_path / "plain", lambda lines: [{**line, "split": "train"} for line in lines])
    run = tmp_path / "run"
    assert tiny_data.call(tiny_data.train_words(plain, run, xe=1, val_share=0.3)) == 0
    captions = json.loads((run / "captions-val.json").read_text())
    assert 0 < len(captions) < 15


def test_a_run_goes_on_with_its_own_settings(data: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = ["train", str(data), "--out", str(run), "--resume"]
    refused(capsys, run, [*again, "--lr", "0.1"], "lr is 0.1 and was")
    refused(capsys, run, [*again, "--set", "model.dropout=0.5"], "dropout is 0.5 and was")
    refused(capsys, run, [*again, "--set", "model.mesh=last"], "mesh is last and was None")


def test_epochs_and_batches_of_a_resumed_run(data: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """16 pictures in batches of 4, 6 steps: one and a half epochs."""
    again = ["train", str(data), "--out", str(run), "--resume", "--device", "cpu", "--threads", "1"]
    refused(capsys, run, [*again, "--xe-epochs", "3"], "xe.steps is 12 (3 epochs) and was 6")
    refused(capsys, run, [*again, "--batch-size", "8"], "xe.batch is 8 and was 4")
    assert tiny_data.call([*again, "--xe-epochs", "1.5", "--batch-size", "4"]) == 0


def test_a_resumed_run_may_be_tracked_elsewhere(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    assert tiny_data.call(tiny_data.train_words(data, run, xe=2)) == 0
    assert not (run / "tensorboard").exists()
    again = ["train", str(data), "--out", str(run), "--resume", "--device", "cpu"]
    assert tiny_data.call([*again, "--track", "tensorboard"]) == 0
    assert (run / "tensorboard").is_dir()


def test_one_run_at_a_time(data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second is refused, whether it goes on with the run or began when the folder was empty."""
    again = ["train", str(data), "--out", str(run), "--resume", "--device", "cpu"]
    with claimed(run, resume=True):
        refused(capsys, run, again, "is in use by another run")
    assert tiny_data.call(again) == 0  # free again
    other = tmp_path / "other"
    with claimed(other, resume=False):
        assert tiny_data.call(tiny_data.train_words(data, other, xe=1)) == 2
        assert "is in use by another run" in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in other.iterdir()] == [".lock"]
    assert tiny_data.call(tiny_data.train_words(data, other, xe=1)) == 0  # what is left behind keeps nobody out


def test_a_trained_model_keeps_its_kind_and_its_vision(
    data: Path, tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    words = tiny_data.train_words(data, first, xe=1, scst=1, slots=0)
    assert tiny_data.call([*words, "--arch", "transformer"]) == 0
    words = ["train", str(data), "--out", str(second), "--from", str(first), "--xe-steps", "1", "--stages", "xe"]
    refused(capsys, tmp_path, [*words, "--vision", "patches"], "keeps its own vision")
    assert tiny_data.call([*words, "--track", "none"]) == 0
    assert json.loads((second / "config.json").read_text())["model"] == "transformer"
    assert TrainSettings.load(second).model.arch == "transformer"


def test_every_part_of_a_batch_has_a_picture(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*tiny_data.train_words(data, tmp_path / "run", xe=1, scst=1), "--set", "run.accumulate=50"]
    refused(capsys, tmp_path, words, "50 parts: expected at least one picture for each")


def test_broken_data_is_told_at_once_or_skipped(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tiny_data.read_lines(data)
    for line in lines[:2]:
        line["image"] = f"gone-{line['image']}"
    folder = tmp_path / "data"
    path = changed(data, folder, lambda _: lines)
    words = tiny_data.train_words(path, tmp_path / "run", xe=1, scst=1)
    err = refused(capsys, tmp_path, words, "2 of 21 pictures cannot be used: ")
    assert "gone-0.png is not there; " in err and "gone-1.png is not there; say where" in err
    picture = folder / lines[2]["image"]
    picture.write_bytes(picture.read_bytes()[:100])
    path.write_text(path.read_text() + "{broken\n")
    refused(capsys, tmp_path, words, "line 22 is not JSON")
    assert tiny_data.call([*words, "--skip-broken"]) == 0
    err = capsys.readouterr().err
    assert "left out: 1 bad record:" in err and "line 22 is not JSON" in err
    assert "left out: 3 pictures" in err and "gone-1.png is not there" in err and str(picture) in err.replace("\n", "")
    assert "warning: 3 val pictures to choose the best step by" in err
    assert "train 13" in err


def test_a_tracker_that_is_not_installed_is_told_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    words = ["train", "not-there.jsonl", "--out", str(tmp_path / "run"), "--track", "wandb"]
    refused(capsys, tmp_path, words, 'wandb is not installed: pip install "meshcap[track]"')
