"""Small datasets of drawn scenes on disk, and training runs so small that a test can afford them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from meshcap import cli
from meshcap.data.scenes import draw_scene
from meshcap.training.settings import setting_names

# The smallest captioner that still has every part: two layers would test nothing more.
SMALL = {
    "d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1, "slots": 2,
    "workers": 1, "val_beams": 2, "scst_batch": 4, "validate_every": 4, "captions": 3, "lr": 5e-4,
    "scst_captions": 3, "samples": 3, "min_count": 1,
}  # fmt: skip


def setting_name(name: str) -> str:
    """The full name of a setting that a keyword names: lr is xe.lr, scst_lr is scst.lr, d_model is model.d_model."""
    known = list(setting_names())
    stage, _, own = name.partition("_")
    if stage in ("xe", "scst") and f"{stage}.{own}" in known:
        return f"{stage}.{own}"
    return next((one for one in known if one.partition(".")[2] == name), f"model.{name}")


def scenes(folder: Path, *, train: int = 20, val: int = 4, test: int = 0, size: int = 48) -> Path:
    """Drawn pictures as PNG, and captions.jsonl beside them with a split for each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    splits = ["train"] * train + ["val"] * val + ["test"] * test
    for number, split in enumerate(splits):
        scene = draw_scene(number, size)
        scene.image.save(folder / f"{number}.png")
        lines.append({"image": f"{number}.png", "captions": scene.captions, "split": split})
    return write_lines(folder / "captions.jsonl", lines)


def write_lines(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


SIZES = ("d_model", "heads", "d_ff", "encoder_layers", "decoder_layers", "slots", "dropout")  # --from has its own


def train_words(
    data: Path, out: Path, *more: object, xe: int = 8, scst: int = 0, vision: str | None = "patches", **settings: object
) -> list[str]:
    """The command line of a tiny run; settings go in by --set, on top of `SMALL`."""
    stages = ",".join(name for name, steps in (("xe", xe), ("scst", scst)) if steps)
    steps = [word for name, count in (("xe", xe), ("scst", scst)) if count for word in (f"--{name}-steps", count)]
    words: list[object] = ["train", data, "--out", out, "--stages", stages, *steps, "--batch-size", 4]
    words += ["--device", "cpu", "--threads", 1, "--track", "none"]
    if vision is not None:
        words += ["--vision", vision]
        if vision == "patches":
            words += ["--size", 48]
    small = {name: value for name, value in SMALL.items() if not ("--from" in more and name in SIZES)}
    for name, value in {**small, **settings}.items():
        words += ["--set", f"{setting_name(name)}={json.dumps(value)}"]
    return [str(word) for word in [*words, *more]]


def call(words: list[str]) -> int:
    """Run a command in this process and return its exit code."""
    try:
        cli.main(words)
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def bench(command: Callable[..., None], *words: object) -> int:
    """Run a benchmark's command in this process and return its exit code."""
    from benchmarks.common import main

    try:
        main(command, [str(word) for word in words])
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def quiet_environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"}


def start(words: list[str]) -> subprocess.Popen[str]:
    """The command in a process of its own, which can be killed."""
    return subprocess.Popen(
        [sys.executable, "-m", "meshcap", *words],
        env=quiet_environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def signal_at(words: list[str], log: Path, step: int, number: int = signal.SIGKILL) -> tuple[int, str]:
    """Run the command and send it a signal as soon as its log shows a step: exit code and stderr."""
    process = start(words)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if steps_of(log)[-1:] >= [step]:
            process.send_signal(number)
            break
        time.sleep(0.002)
    try:
        _, told = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, told


def steps_of(log: Path) -> list[int]:
    """The steps whose training losses a log holds, also while it is being written."""
    if not log.exists():
        return []
    found = []
    for line in log.read_text(encoding="utf-8").split("\n")[:-1]:
        record = json.loads(line)
        if record["kind"] == "train":
            found.append(record["step"])
    return found


def losses(run: Path) -> list[tuple[int, str, float, float]]:
    """Step, stage, loss and gradient norm of every line of training in a run's log."""
    return [
        (one["step"], one["stage"], one["loss"], one["gradient"])
        for one in read_lines(run / "log.jsonl")
        if one["kind"] == "train"
    ]
