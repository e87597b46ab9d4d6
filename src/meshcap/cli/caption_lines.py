"""How `meshcap caption` tells what it found: lines for people, objects for programs, pictures in a terminal."""

from __future__ import annotations

import json as json_format
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import typer

from meshcap.caption import Caption
from meshcap.cli.caption_sources import Told
from meshcap.errors import MeshcapError

MANY = 8  # pictures that are worth a progress bar


@dataclass
class Lines:
    """Prints captions as they come; `close` tells what could not be captioned."""

    json: bool = False
    alone: bool = False  # one picture, whose name everybody knows
    confidence: bool = False
    least: float | None = None  # captions below this confidence are withheld
    calibrated: bool = True
    broken: list[MeshcapError] = field(default_factory=list)
    withheld: int = 0  # pictures left without a caption
    lacking: int = 0  # captions without a word that was required

    def tell(self, source: object, found: Caption | MeshcapError) -> None:
        if isinstance(found, MeshcapError):
            self.broken.append(found)
            return
        self.count(found)
        name = shown(str(source))
        if self.json:
            typer.echo(json_format.dumps({"file": name, **self.as_json(found)}, ensure_ascii=False))
            return
        for one in (found, *found.alternatives):
            columns = [] if self.alone else [name]
            columns += [f"{one.confidence:.2f}"] if self.confidence else []
            columns += ["" if self.withholds(one) else one.text]
            if any(columns):  # of one picture and a caption withheld, not even an empty line
                typer.echo("\t".join(columns))

    def count(self, found: Caption) -> None:
        self.withheld += self.withholds(found)
        self.lacking += found.missing > 0

    def withholds(self, found: Caption) -> bool:
        return self.least is not None and found.confidence < self.least

    def as_json(self, found: Caption) -> dict[str, Any]:
        """What a program may want to know of a caption; of a withheld one, nothing that gives it away."""
        if self.withholds(found):
            said: dict[str, Any] = {"caption": "", "confidence": found.confidence, "withheld": True}
        else:
            said = {
                "caption": found.text,
                "confidence": found.confidence,
                "withheld": False,
                "probability": found.probability,
                "score": found.score,
                "words": found.words,
                "log_probs": found.log_probs,
                "finished": found.finished,
                "missing": found.missing,
            }
        if found.alternatives:
            said["alternatives"] = [self.as_json(one) for one in found.alternatives]
        return said

    def close(self) -> bool:
        """What happened besides, on stderr: a line for each picture that could not be read. Were there any?"""
        if self.withheld:
            how = "" if self.calibrated else " (this model is not calibrated: its confidence is the words' probability)"
            typer.echo(f"{_captions(self.withheld)} withheld: confidence below {self.least:g}{how}", err=True)
        if self.lacking:
            typer.echo(f"{_captions(self.lacking)} written without a word that --must asks for", err=True)
        for error in self.broken:
            typer.echo(f"error: {shown(str(error))}", err=True)
        return bool(self.broken)


def _captions(count: int) -> str:
    return "1 caption was" if count == 1 else f"{count:,} captions were"


def shown(text: str) -> str:
    """A name as one clean piece of a line: file names may hold tabs, line ends, escapes for a terminal, or no text."""
    clean = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in " ".join(text.splitlines()))
    return clean.encode("utf-8", "replace").decode("utf-8")


def watched(captions: Iterable[Told], total: int) -> Iterable[Told]:
    """With a bar on stderr, for many pictures, where somebody looks and the captions themselves go elsewhere."""
    if total < MANY or not sys.stderr.isatty() or sys.stdout.isatty():
        return captions
    from rich.console import Console
    from rich.progress import track

    return track(captions, "captions", total, console=Console(stderr=True))


def draw(captions: Iterable[Told], lines: Lines) -> bool:
    """Show pictures beside their captions. False, and nothing is drawn, where stdout is no terminal with colours."""
    from rich.console import Console

    from meshcap.cli.gallery import can_draw, entry

    console = Console(highlight=False)
    if not can_draw(console):
        return False
    start = time.perf_counter()
    for source, found in captions:
        seconds = time.perf_counter() - start
        if isinstance(found, MeshcapError):
            lines.tell(source, found)
        else:
            lines.count(found)
            texts = [None if lines.withholds(one) else one.text for one in (found, *found.alternatives)]
            console.print(entry(source, shown(str(source)), texts, found.confidence, seconds, console.width))
        start = time.perf_counter()
    return True
