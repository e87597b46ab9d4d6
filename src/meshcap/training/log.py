"""log.jsonl: what a training run noted, one JSON object a line, in the order it happened.

Steps count through all stages of a run, so that a step alone says where in the run a line belongs.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

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
