"""The folder of a run: whether it may be used, the lock that keeps a second run out, and how a run goes on.

The folder is the model folder of the weights that are kept, so `meshcap caption --model RUN` works from the first
validation on. Beside the model it holds `training.json` (every setting), `data.json` (what it learned from),
`log.jsonl`, `checkpoints/`, what trackers write, and in the end `report.html`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshcap.data.dataset import Sample
from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.training.plan import steps_of
from meshcap.training.settings import SETTINGS, TrainSettings

try:
    import fcntl
except ImportError:  # Windows: nothing keeps a second run out there
    fcntl = None  # type: ignore[assignment]

DATA, LOG, LOCK = "data.json", "log.jsonl", ".lock"
BEFORE_SCST = "before-scst"  # the model folder of what cross-entropy alone has taught

# What may be changed when a run goes on; everything else is the run's own.
CHANGEABLE = ("data.path", "run.out", "run.threads", "run.track", "run.compile_cache")
COMPILED = "TORCHINDUCTOR_CACHE_DIR"  # where torch looks for it, whenever it compiles


def keep_compiled(folder: str | None) -> Path:
    """Choose where torch keeps what it compiles, for later runs of the same shapes; returns the folder.

    Args:
        folder: None: the one of $TORCHINDUCTOR_CACHE_DIR, or else the user's cache. (Torch's own choice is below /tmp,
            where nothing outlives a restart.)
    """
    if folder is None and not (folder := os.environ.get(COMPILED)):
        home = os.environ.get("XDG_CACHE_HOME") or ""
        base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
        folder = str(base / "meshcap" / "compiled")
    os.environ[COMPILED] = os.path.abspath(folder)
    return Path(os.environ[COMPILED])


def check_folder(folder: Path, *, resume: bool) -> None:
    """Whether a run may live there; nothing is made yet.

    Raises:
        MeshcapError: it holds a run or something else already.
    """
    if resume:
        TrainSettings.load(folder)
    elif (folder / SETTINGS).exists():
        raise MeshcapError(f"{folder} holds a run already: go on with --resume, or choose another --out")
    elif folder.is_dir() and any(one.name != LOCK for one in folder.iterdir()):
        raise MeshcapError(f"{folder} is not empty and holds no run: choose another --out")
    elif folder.exists() and not folder.is_dir():
        raise MeshcapError(f"{folder} is a file, expected a folder for the run: choose another --out")


@contextmanager
def claimed(folder: Path, *, resume: bool) -> Iterator[None]:
    """The folder, made where it is not there, and locked against other runs until the block ends.

    The system lets go of the lock when the process ends, however it ends.

    Raises:
        MeshcapError: the folder cannot be made or written to, or another run is using it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise MeshcapError(f"{folder} cannot be written to: choose another --out")
    with open(folder / LOCK, "ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise MeshcapError(
                    f"{folder} is in use by another run that has not ended: wait for it, or choose another --out"
                ) from error
        check_folder(folder, resume=resume)  # another run may have come and gone since it was looked at
        yield


def resumed(folder: Path, given: Mapping[str, Any]) -> TrainSettings:
    """The settings of a run that goes on. The same settings again are fine; other ones are another run.

    Args:
        given: settings that were given now, by their names with a dot.

    Raises:
        MeshcapError: there is no run, or a setting that differs from the run's and cannot be changed.
    """
    saved = TrainSettings.load(folder)
    needed = {"data.path": saved.data.path, "run.out": saved.run.out, "model.arch": saved.model.arch}
    asked = TrainSettings.named(needed | dict(given))
    for name in given:
        stage, _, own = name.partition(".")
        old, new = saved.get(name), asked.get(name)
        if name in CHANGEABLE or new == old or new is None:
            continue
        if own == "batch" and min(new, _pictures(folder)) == old:  # it is no larger than the data
            continue
        if own == "epochs":  # they were turned into steps
            steps, had = steps_of(new, _pictures(folder), saved.stage(stage).batch or 1), saved.stage(stage).steps
            if steps == had:
                continue
            name, new, old = f"{stage}.steps", f"{steps:,} ({new:g} epochs)", had
        raise MeshcapError(f"{name} is {new} and was {old} in this run: --resume goes on with the run's settings")
    return saved.but({name: value for name, value in given.items() if name in CHANGEABLE})


def _pictures(folder: Path) -> int:
    """That a run learns from."""
    return int(saved_data(folder).get("pictures", {}).get("train", 0))


def save_data(folder: Path, counts: dict[str, int], *splits: Sequence[Sample]) -> None:
    """Note what a run learns from."""
    write_text(folder / DATA, json.dumps({"fingerprint": fingerprint(*splits), "pictures": counts}) + "\n")


def saved_data(folder: Path) -> dict[str, Any]:
    """What `save_data` wrote; nothing where a run was killed before that."""
    try:
        content = json.loads((folder / DATA).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MeshcapError(f"{folder / DATA} cannot be read ({error}): begin a new run") from error
    return content if isinstance(content, dict) else {}


def check_same_data(folder: Path, path: str, *splits: Sequence[Sample]) -> None:
    """
    Raises:
        MeshcapError: ids or captions are not those that the run was learning from.
    """
    if saved_data(folder).get("fingerprint") != fingerprint(*splits):
        raise MeshcapError(
            f"{path} is not what {folder} was learning from (ids or captions have changed): begin a new run"
        )


def fingerprint(*splits: Sequence[Sample]) -> str:
    """What a run learns from, in a few letters."""
    digest = hashlib.blake2b(digest_size=16)
    for samples in splits:
        for sample in samples:
            digest.update("\0".join((sample.id, sample.split, *sample.captions)).encode() + b"\n")
    return digest.hexdigest()
