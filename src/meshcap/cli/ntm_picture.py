"""memory.png: what a Turing machine did with one sequence."""

from __future__ import annotations

from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from meshcap.memory.tasks import Batch
from meshcap.memory.turing import TuringMachine

PAPER, INK, SOFT = "#ffffff", "#1c2026", "#5c6470"
LOW, NONE, HIGH = torch.tensor([[212.0, 97, 28], [247, 247, 245], [31, 78, 168]])  # of -1, 0 and 1
CELL = 9  # pixels of a bit
TALL = 224  # of the rows of the memory, about
GAP, LEFT, TITLE = 14, 20, 22
MOMENTS = 6  # at which the memory is shown


class Panel(NamedTuple):
    title: str
    values: Tensor  # (rows, columns), -1 … 1
    cell: tuple[int, int]  # pixels across and down


@torch.no_grad()
def picture(machine: TuringMachine, batch: Batch) -> Image.Image:
    """The first sequence of a batch: heard, wanted, said; where heads wrote and read; the memory on the way.

    The memory has a row for each step, and no more, for nobody wants to see blank ones.
    """
    steps = batch.inputs.shape[1]
    rows = max(steps, 2 * machine.config.reach + 1)
    outputs, trace = machine.trace(batch.inputs[:1], machine.start(1, rows=rows))
    tall = max(2, TALL // rows)
    weights = trace["weights"][0]  # (T, H, M)
    said = outputs[0].float().sigmoid() * batch.mask[:, None]
    bits = (CELL, CELL)
    panels = [
        Panel("heard: bits, and signs below", batch.inputs[0].T / batch.inputs[0].abs().max(), bits),
        Panel("wanted", batch.targets[0].T, bits),
        Panel("said", said.T, bits),
    ]
    for head in range(machine.config.reads + machine.config.writes):
        reads = head < machine.config.reads
        number = head if reads else head - machine.config.reads
        many = machine.config.reads > 1 if reads else machine.config.writes > 1
        title = ("reading" if reads else "writing") + " weights" + f", head {number + 1}" * many
        panels.append(Panel(f"{title}: {rows} rows over time", weights[:, head].T, (CELL, tall)))
    memory = trace["memory"][0]  # (T, M, W)
    loudest = memory.abs().max().clamp_min(1e-6)
    width = max(2, (steps * CELL - (MOMENTS - 1) * GAP) // MOMENTS // memory.shape[-1])
    moments = [round((moment + 1) * steps / MOMENTS) for moment in range(MOMENTS)]
    snapshots = [Panel(f"step {m}", memory[max(m, 1) - 1] / loudest, (width, tall)) for m in moments]
    return laid_out(panels, snapshots)


def laid_out(panels: list[Panel], snapshots: list[Panel]) -> Image.Image:
    """Panels under each other, which share the time; snapshots beside each other below."""
    pictures = [painted(panel) for panel in panels]
    strip = [painted(panel) for panel in snapshots]
    across = max(max(one.width for one in pictures), sum(one.width + GAP for one in strip) - GAP)
    down = sum(one.height + TITLE + GAP for one in pictures) + 2 * TITLE + strip[0].height + 2 * GAP
    paper = Image.new("RGB", (across + 2 * LEFT, down), PAPER)
    pen, large, small = ImageDraw.Draw(paper), ImageFont.load_default(size=14), ImageFont.load_default(size=12)
    top = GAP
    for panel, one in zip(panels, pictures, strict=True):
        pen.text((LEFT, top), panel.title, INK, large)
        paper.paste(one, (LEFT, top + TITLE))
        top += one.height + TITLE + GAP
    pen.text((LEFT, top), "the memory itself, rows by numbers, after", INK, large)
    left = LEFT
    for panel, one in zip(snapshots, strip, strict=True):
        pen.text((left, top + TITLE), panel.title, SOFT, small)
        paper.paste(one, (left, top + 2 * TITLE))
        left += one.width + GAP
    return paper


def painted(panel: Panel) -> Image.Image:
    """Orange below zero, blue above."""
    values = panel.values.float().clamp(-1, 1)[..., None]
    colours = torch.where(values < 0, NONE + (LOW - NONE) * -values, NONE + (HIGH - NONE) * values)
    rows, columns = panel.values.shape
    picture = Image.frombytes("RGB", (columns, rows), colours.round().byte().contiguous().numpy().tobytes())
    return picture.resize((columns * panel.cell[0], rows * panel.cell[1]), Image.Resampling.NEAREST)
