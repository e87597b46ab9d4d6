"""Where a run can be watched besides its own folder: TensorBoard, Weights & Biases, trackio, or several at once.

A tracker is fed by the trainer and gives nothing back. Its package is imported when it is asked for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.vision.pictures import thumbnail

PROJECT = "meshcap"

Example = tuple[Image.Image | None, str, Sequence[str]]  # a picture, what the model said of it, what people said


class Tracker(Protocol):
    """What shows the numbers and captions of a run. Steps count through all stages."""

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None: ...

    def samples(self, step: int, samples: Sequence[Example]) -> None: ...

    def close(self) -> None: ...


def open_trackers(
    names: Sequence[str] | None,
    folder: Path,
    settings: Mapping[str, Any],
    *,
    run_name: str,
    resumed_at: int | None = None,
    report: Callable[[str], object] | None = None,
) -> Tracker:
    """One tracker that feeds all of these.

    Args:
        names: some of tensorboard, wandb, trackio, or none alone. None (nobody said anything): TensorBoard where it
            is installed.
        folder: of the run; what trackers keep on disk goes there, but for trackio's, which has a place of its own.
        settings: of the run, to be shown beside its numbers.
        resumed_at: the step after which this run continues an earlier one in the same folder.
        report: takes lines for the person who watches; to stderr if not given.

    Raises:
        MeshcapError: an unknown name, a package that is not installed, a tracker that refuses.
    """
    report = report or _to_stderr
    check_trackers(names)
    asked = ["tensorboard"] if names is None else list(dict.fromkeys(names))
    opened: dict[str, Tracker] = {}
    for name in asked:
        if name == "none":
            continue
        open_one, extra = TRACKERS[name]
        try:
            opened[name] = open_one(folder, settings, run_name, resumed_at)
        except ImportError as error:
            how = f'pip install "meshcap[{extra}]"'
            if names is not None:
                raise MeshcapError(f"{name} is not installed: {how}") from error
            report(f"no {name} here, so the run is not drawn there: {how}")
    return Trackers(opened, report)


def check_trackers(names: Sequence[str] | None) -> None:
    """Refuse names that mean nothing, or packages that are not installed, before anything is read.

    Raises:
        MeshcapError: which, and what to do.
    """
    asked = list(dict.fromkeys(names or ()))
    if "none" in asked and len(asked) > 1:
        raise MeshcapError(f"'none' and {len(asked) - 1} more trackers were asked for: leave 'none' out")
    for name in asked:
        if name not in (*TRACKERS, "none"):
            raise MeshcapError(f"there is no tracker {name!r}, expected some of {', '.join(TRACKERS)}, or none")
        if name != "none" and name not in sys.modules and importlib.util.find_spec(name) is None:
            raise MeshcapError(f'{name} is not installed: pip install "meshcap[{TRACKERS[name][1]}]"')


class Trackers:
    """Several as one. A run that took days must not end because something that shows it failed: that one is left."""

    def __init__(self, each: Mapping[str, Tracker], report: Callable[[str], object]):
        self.each = dict(each)
        self._report = report

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        self._all(lambda tracker: tracker.scalars(step, numbers))

    def samples(self, step: int, samples: Sequence[Example]) -> None:
        self._all(lambda tracker: tracker.samples(step, samples))

    def close(self) -> None:
        self._all(lambda tracker: tracker.close())
        self.each.clear()

    def _all(self, feed: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self.each.items()):
            try:
                feed(tracker)
            except Exception as error:
                del self.each[name]
                self._report(f"{name} failed and is left out from now on: {error or type(error).__name__}")


class TensorBoardTracker:
    """Event files in the folder `tensorboard` of the run, for `tensorboard --logdir`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], run_name: str, resumed_at: int | None):
        from torch.utils.tensorboard import SummaryWriter

        # Steps from purge_step on are those that an earlier, interrupted part of the run went through in vain.
        purge = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        if resumed_at is None:
            text = json.dumps(dict(settings), indent=2, default=str, ensure_ascii=False)
            indented = "".join(f"    {line}\n" for line in text.splitlines())  # a code block of Markdown
            self._writer.add_text("settings", f"{_cell(run_name)}\n\n{indented}", 0)

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def samples(self, step: int, samples: Sequence[Example]) -> None:
        from numpy import asarray

        rows = ["| picture | caption | references |", "|---|---|---|"]
        for place, (image, caption, references) in enumerate(samples):
            if image is not None:
                self._writer.add_image(f"samples/{place}", asarray(thumbnail(image)), step, dataformats="HWC")
            rows.append(f"| {place} | {_cell(caption)} | {' · '.join(map(_cell, references))} |")
        self._writer.add_text("samples", "\n".join(rows), step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """Weights & Biases. WANDB_MODE=offline keeps everything in the folder `wandb` of the run, for `wandb sync`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], run_name: str, resumed_at: int | None):
        import wandb

        self._wandb = wandb
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=run_name,
                id=_kept_id(folder / "wandb-id", new=resumed_at is None),
                resume=None if resumed_at is None else "allow",
                dir=str(folder),
                config=dict(settings),
            )
        except wandb.errors.Error as error:
            raise MeshcapError(f"wandb refused ({error}): try wandb login, or WANDB_MODE=offline") from error
        # wandb's own step can never go back, as that of a resumed run does: ours is a number beside the others.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({**numbers, "step": step})

    def samples(self, step: int, samples: Sequence[Example]) -> None:
        # Pictures go beside the table: inside one, they need the server to be seen again.
        table = self._wandb.Table(columns=["caption", "references"])
        pictures = []
        for image, caption, references in samples:
            table.add_data(caption, "\n".join(references))
            if image is not None:
                pictures.append(self._wandb.Image(thumbnail(image), caption=caption))
        self._run.log({"captions": table, "step": step} | ({"pictures": pictures} if pictures else {}))

    def close(self) -> None:
        self._run.finish()


class TrackioTracker:
    """trackio, on this machine unless TRACKIO_SPACE_ID or the like say otherwise; `trackio show` opens it."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], run_name: str, resumed_at: int | None):
        # trackio greets on stdout, which belongs to what the command itself has to say.
        with contextlib.redirect_stdout(sys.stderr):
            import trackio

            self._trackio = trackio
            try:
                self._run = trackio.init(
                    project=PROJECT,
                    name=run_name,
                    config=json.loads(json.dumps(dict(settings), default=str)),
                    resume="never" if resumed_at is None else "allow",
                )
            except ValueError as error:
                raise MeshcapError(f"trackio refused: {error}") from error

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def samples(self, step: int, samples: Sequence[Example]) -> None:
        shown: dict[str, Any] = {}
        for place, (image, caption, references) in enumerate(samples):
            said = " · ".join([caption, *references])
            shown[f"samples/{place}"] = said if image is None else self._trackio.Image(thumbnail(image), caption=said)
        if shown:
            self._run.log(shown, step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._trackio.finish()  # the module's: after the run's own it would finish once more when Python ends


# name -> how to open it, and the extra that installs its package
TRACKERS: dict[str, tuple[Callable[[Path, Mapping[str, Any], str, int | None], Tracker], str]] = {
    "tensorboard": (TensorBoardTracker, "train"),
    "wandb": (WandbTracker, "track"),
    "trackio": (TrackioTracker, "track"),
}


def _kept_id(path: Path, *, new: bool) -> str:
    """The name under which wandb knows this run, kept in its folder: a resumed run is the same one there."""
    if new or not path.exists():
        write_text(path, secrets.token_hex(8))
    return path.read_text(encoding="utf-8").strip()


def _cell(text: str) -> str:
    """Text inside a table of Markdown."""
    return " ".join(text.split()).replace("|", "\\|")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
