"""`meshcap tokenize`."""

from __future__ import annotations

import codecs
import json as json_format
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

AT_ONCE = 2**16  # bytes; what a pipe holds


def tokenize(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Text, one caption a line; - or nothing: standard input.")
    ] = None,
    tokenizer: Annotated[
        Literal["ptb", "unicode", "char"],
        typer.Option(help="ptb: as coco-caption does; unicode: words of any language; char: characters."),
    ] = "ptb",
    json: options.Json = False,
) -> None:
    """Split captions into tokens: a line of tokens for each line, even an empty one.

    Lines end at line feeds only. With --json each line is a list of strings.

    Example: meshcap tokenize captions.txt --tokenizer ptb > tokens.txt
    """
    from meshcap.text.tokenizers import tokenize_each

    paths = files or [Path("-")]
    for path in paths:
        if str(path) != "-" and (not path.exists() or path.is_dir()):
            what = "is a folder" if path.is_dir() else "does not exist"
            raise MeshcapError(f"{path} {what}, expected a text file with one caption a line")
    lines = Lines(paths)
    out = sys.stdout.buffer
    for tokens in tokenize_each(tokenizer, lines):
        text = json_format.dumps(tokens, ensure_ascii=False) if json else " ".join(tokens)
        out.write(text.encode() + b"\n")
    out.flush()
    if lines.damaged:
        has = "line has" if lines.damaged == 1 else "lines have"
        print(f"warning: {lines.damaged:,} {has} bytes that are not UTF-8, read as \ufffd", file=sys.stderr)


class Lines:
    """The lines of some files. Before it waits for more to read, it hands on what was written so far."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.damaged = 0

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            if str(path) == "-":
                yield from self._of(sys.stdin.buffer)
                continue
            try:
                file = open(path, "rb")  # noqa: SIM115  # closed by the next line
            except OSError as error:
                raise MeshcapError(f"{path} cannot be read: {error.strerror}") from None
            with file:
                yield from self._of(file)

    def _of(self, file: BinaryIO) -> Iterator[str]:
        parts: list[bytes] = []  # of a line whose end has not come yet
        mark = codecs.BOM_UTF8
        while chunk := self._more(file):
            first, *others = chunk.split(b"\n")
            parts.append(first)
            for part in others:
                yield self._text(b"".join(parts).removeprefix(mark))
                mark, parts = b"", [part]
        if any(parts):
            yield self._text(b"".join(parts).removeprefix(mark))

    @staticmethod
    def _more(file: BinaryIO) -> bytes:
        sys.stdout.buffer.flush()
        return file.read1(AT_ONCE)  # type: ignore[attr-defined]  # what is there, without waiting for the rest

    def _text(self, line: bytes) -> str:
        line = line.removesuffix(b"\r")
        try:
            return line.decode()
        except UnicodeDecodeError:
            self.damaged += 1
            return line.decode(errors="replace")
