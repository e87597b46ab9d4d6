"""What a run writes down and shows: `RunLog`, the lines of log.jsonl, and `Watch`, the line in the terminal.

log.jsonl has one JSON object a line, in the order it happened. Steps count through all stages of a run, so that a step
alone says where in the run a line belongs.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from meshcap.errors import MeshcapError
from meshcap.files import write_text

Record = dict[str, Any]


class RunLog:
    """Appends to a log. A run killed in the middle of a line loses that line and no other.

        with RunLog(folder / "log.jsonl") as log:
            log.write("train", 120, stage="xe", loss=2.31, rate=812.0)

    In a run of several processes one of them has the log.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                _drop_torn_line(path)
        except OSError as error:
            raise MeshcapError(f"{path} cannot be written: {error.strerror}") from error
        self._file: IO[str] = self._open()

    def write(self, kind: str, step: int, **numbers: Any) -> None:
        """Add a record. Numbers that are not finite become null, which every JSON reader knows.

        Raises:
            MeshcapError: the disk is full, or the like.
        """
        record = {"kind": kind, "step": step, "time": round(time.time(), 3)} | numbers
        try:
            # One write of a whole line, handed to the system at once: whoever watches the file sees it now.
            self._file.write(json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise MeshcapError(f"{self.path} cannot be written: {error.strerror}") from error

    def rewind(self, step: int) -> None:
        """Forget what came after `step`, where a resumed run takes up again: no curve has a part twice."""
        kept = [record for record in read_log(self.path) if record["step"] <= step]
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept)
        self.close()  # before the rename: some systems refuse to replace an open file
        write_text(self.path, lines)
        self._file = self._open()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> IO[str]:
        try:
            return open(self.path, "a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise MeshcapError(f"{self.path} cannot be written: {error.strerror}") from error


def read_log(path: Path) -> list[Record]:
    """The records of a log, also of a run that is writing it or was killed while it did.

    Raises:
        MeshcapError: no such file, or a line that is no record and not the last.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise MeshcapError(f"{path} cannot be read: {error.strerror}") from error
    records: list[Record] = []
    # What follows the last newline is nothing, or half a line.
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int) or "kind" not in record:
                raise ValueError("no record")
        except ValueError as error:
            if number == len(lines) - 1:  # a crash of the machine may leave a last line of zeros
                break
            raise MeshcapError(f"line {number} of {path} is not a record of a training run") from error
        records.append(record)
    return records


def _drop_torn_line(path: Path) -> None:
    """Cut the file behind its last newline, lest the next record continue half of one."""
    with open(path, "rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


def _plain(value: Any) -> Any:
    """The same in what JSON knows: numbers of numpy and torch as Python's, the non-finite as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    number = float(value)
    if not math.isfinite(number):
        return None
    return number


EVERY = 30.0  # seconds between the lines that a log file gets
REFRESH = 0.2  # and between two states of the live line: steps may be much faster than a reader
MEMORY_OF = 50  # steps that the running mean of the loss reaches back, about


class Watch:
    """Shows how far a run is, how well it does and how long it will still take.

        with Watch(total_steps=20_000, console=Console(stderr=True)) as watch:
            watch.step("xe", 1, loss=9.2, rate=800.0)
            watch.validated("xe", 500, cider=0.61, best=0.61, samples=["a man on a horse"])

    Args:
        total_steps: of all stages together; a resumed run starts somewhere on the way.
        quiet: plain lines even on a terminal.
        every: seconds between plain lines.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        total_steps: int,
        console: Console,
        quiet: bool = False,
        *,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._console, self._every, self._clock = total_steps, console, every, clock
        self._live = not quiet and console.is_terminal
        self._stage = ""
        self._loss, self._weight, self._last_loss = 0.0, 0.0, math.nan
        self._last = 0  # the last step shown
        self._began = (0, 0.0)  # step and time from which the pace is measured
        self._told = -math.inf  # when this was last shown
        self._cider: tuple[float, float] | None = None  # last and best
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=16),
            # One line, however narrow the window: what matters less comes later and is cut.
            TextColumn("{task.fields[line]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            auto_refresh=self._live,
            disable=not self._live,
            transient=True,  # what stays are the lines of the validations
        )

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def expect(self, total_steps: int) -> None:
        """Say how many steps there will be, where that was not known at first."""
        self._total = total_steps

    def step(self, stage: str, step: int, *, loss: float, rate: float) -> None:
        """A step was made, or several. loss: their mean; rate: pictures a second."""
        now = self._clock()
        if stage != self._stage:  # another loss, another pace
            self._stage, self._loss, self._weight = stage, 0.0, 0.0
            self._began, self._last = (step, now), step - 1
        if math.isfinite(loss):
            keep = (1 - 1 / MEMORY_OF) ** (step - self._last)  # whether each step is reported or every fiftieth
            self._loss, self._weight = keep * self._loss + (1 - keep) * loss, keep * self._weight + 1 - keep
        self._last_loss, self._last = loss, step
        if now - self._told < (REFRESH if self._live else self._every) and step < self._total:
            return
        self._told = now
        line = self._line(step, rate, now)
        if not self._live:
            self.say(f"{stage} {line}")
        elif self._task is None:
            self._task = self._progress.add_task(stage, total=self._total, completed=step, line=line)
        else:
            self._progress.update(self._task, description=stage, total=self._total, completed=step, line=line)

    def validated(self, stage: str, step: int, cider: float, best: float, samples: Sequence[str] = ()) -> None:
        """The model was scored. cider, best: fractions, of now and of the best step so far; samples: some captions."""
        self._cider = (cider, best)
        place = "best so far" if cider >= best else f"best {100 * best:.1f}"
        self.say(f"{stage} step {step:,}: CIDEr {100 * cider:.1f} ({place})")
        for caption in samples[:2]:
            self.say(f"    “{caption}”")

    def say(self, line: str) -> None:
        """Print a line that stays, above the live one."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _line(self, step: int, rate: float, now: float) -> str:
        # A loss that is not finite is news; the mean of the others would hide it.
        loss = self._loss / self._weight if math.isfinite(self._last_loss) else self._last_loss
        parts = [f"{step:,}/{self._total:,}"]
        if (done := step - self._began[0]) > 0:
            parts.append(f"{_span((self._total - step) * (now - self._began[1]) / done)} left")
        parts.append(f"loss {loss:.3f}")
        if self._cider:
            parts.append(f"CIDEr {100 * self._cider[0]:.1f} (best {100 * self._cider[1]:.1f})")
        parts.append(f"{rate:,.0f} pictures/s")
        if memory := _gpu_memory():
            parts.append(f"{memory / 2**30:.1f} GiB")
        return " · ".join(parts)


def _span(seconds: float) -> str:
    minutes, seconds = divmod(round(max(0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _gpu_memory() -> int:
    """Bytes on the GPU at the worst moment so far, 0 without one."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
