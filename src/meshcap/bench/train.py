"""How fast the three kinds of training run: the real tasks and the real step, on made-up pictures and captions.

Captions have the lengths of COCO's (10.5 words, between 7 and 20), words are drawn by rank as in English, and pictures
are noise: nothing in a step depends on what they show.
"""

from __future__ import annotations

import numpy
import torch
from torch.utils.flop_counter import FlopCounterMode

from meshcap.bench.counts import operations
from meshcap.bench.measure import Rates, Row, paced, peak_memory
from meshcap.metrics.reward import CiderReward
from meshcap.models import M2, M2Config
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.training.augment import augment
from meshcap.training.captions import CaptionTable
from meshcap.training.checkpoint import Position
from meshcap.training.distributed import World
from meshcap.training.eyes import Kept, View
from meshcap.training.optimiser import Average, make_optimiser, named_weights
from meshcap.training.settings import TrainSettings
from meshcap.training.tasks import CrossEntropy, Parts, SelfCritical, Task
from meshcap.training.trainer import Trainer
from meshcap.vision import Vision, create_vision
from meshcap.vision.base import grid_boxes

WORDS = 10_201  # of the paper's vocabulary
CELLS, WIDTH = 64, 1280  # what the embedded backbone makes of 256 pixels


def made_up_captions(pictures: int, rng: numpy.random.Generator) -> tuple[list[list[list[str]]], Vocabulary]:
    words = [f"w{number}" for number in range(WORDS - 4)]
    vocabulary = Vocabulary(["<unk>", "<pad>", "<bos>", "<eos>", *words])
    lengths = numpy.clip(numpy.round(rng.normal(10.5, 2.4, (pictures, 5))), 7, 20).astype(int)
    ranks = numpy.minimum(rng.zipf(1.3, (pictures, 5, 20)), len(words)) - 1
    tokens = [
        [[words[rank] for rank in ranks[one, two, : lengths[one, two]]] for two in range(5)] for one in range(pictures)
    ]
    return tokens, vocabulary


class Noise:
    """Eyes that show augmented noise: everything `Looking` does but reading files."""

    def __init__(self, count: int, size: int, device: torch.device, strength: float):
        self.pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, device=device)
        self.mirror, self.strength = torch.ones(count, dtype=torch.bool, device=device), strength

    def __len__(self) -> int:
        return len(self.pixels)

    def ahead(self, pictures: torch.Tensor) -> None:
        pass

    def view(self, pictures: torch.Tensor, *, training: bool) -> View:
        numbers = pictures.to(self.pixels.device)
        return augment(self.pixels[numbers], self.mirror[numbers], self.strength)


def bench_train(
    device: torch.device,
    *,
    work: tuple[str, ...],
    batch: int,
    pictures: int,
    steps: int,
    compiled: bool,
    d_model: int,
    layers: int,
    vision_name: str,
    size: int,
    seed: int,
) -> list[Row]:
    """A row for each of `work`: "cells" (XE, frozen vision), "pictures" (XE, vision learning), "scst".

    Args:
        batch: pictures of a step; of cells four times as many, as memory allows.
        pictures: made up.
        steps: timed after two that set things up.
    """
    torch.manual_seed(seed)
    rng = numpy.random.default_rng(seed)
    tokens, vocabulary = made_up_captions(pictures, rng)
    table = CaptionTable.build(tokens, vocabulary, 21)
    rates = Rates.of(device, torch.bfloat16)
    rows = []
    for kind in work:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        sees = kind == "pictures"
        count = min(pictures, batch * 4 if kind == "cells" else batch)
        settings = TrainSettings(
            data="", out="", batch=count, precision="bfloat16", label_smoothing=0.1, augment=0.5, region_dropout=0.0
        )
        vision: Vision | None = create_vision(vision_name, size=size).to(device) if sees else None
        world = World(device)
        model = M2(
            M2Config(
                vocab_size=WORDS,
                d_input=vision.width if vision is not None else WIDTH,
                d_model=d_model,
                heads=d_model // 64,
                d_ff=4 * d_model,
                encoder_layers=layers,
                decoder_layers=layers,
                max_length=21,
                suppressed_ids=(0, 1, 2),
            )
        ).to(device)
        parts = Parts(model, vocabulary, vision)
        task: Task
        if sees:
            eyes = Noise(min(pictures, 4 * batch), size, device, 0.5)
            task = CrossEntropy(parts, eyes, few(table, len(eyes)), settings, world, compiled=compiled)
        else:
            cells = Kept(noise_cells(min(pictures, 16 * batch), device), device, count=min(pictures, 16 * batch))
            if kind == "cells":
                task = CrossEntropy(parts, cells, few(table, len(cells)), settings, world, compiled=compiled)
            else:
                references = [[vocabulary.encode(caption) for caption in captions] for captions in tokens]
                reward = CiderReward(references, eos=vocabulary.eos, pad=vocabulary.pad)
                task = SelfCritical(parts, cells, reward, table, settings, world, compiled=compiled)
        rows.append(timed_row(kind, task, parts, settings, world, count, steps, rates, compiled=compiled))
    return rows


def few(table: CaptionTable, pictures: int) -> CaptionTable:
    """The captions of the first pictures."""
    end = int(table.first[pictures])
    return CaptionTable(
        table.ids[:end], table.lengths[:end], table.counts[:end], table.first[: pictures + 1], table.pad
    )


def noise_cells(count: int, device: torch.device) -> Regions:
    side = round(CELLS**0.5)
    features = torch.randn(count, CELLS, WIDTH, device=device, dtype=torch.bfloat16)
    return Regions(features, grid_boxes(side, side).to(device).expand(count, -1, -1))


def timed_row(
    kind: str,
    task: CrossEntropy | SelfCritical,
    parts: Parts,
    settings: TrainSettings,
    world: World,
    count: int,
    steps: int,
    rates: Rates,
    *,
    compiled: bool,
) -> Row:
    weights = named_weights(parts.model, parts.vision)
    trainer = Trainer(
        task=task,
        weights=weights,
        optimiser=make_optimiser(weights, lr=1e-4, lr_vision=1e-5, decay=0.05, device=world.device),
        average=Average(weights, 0.0),
        position=Position(kind),
        steps=10_000,
        batch=count,
        pictures=len(task.eyes),
        settings=settings,
        world=world,
        run=None,  # type: ignore[arg-type]
        examiner=None,  # type: ignore[arg-type]
        keep_best=lambda exam: None,
        watch=None,  # type: ignore[arg-type]
    )
    task.ready()
    done = 0
    memory: list[int] = []

    def step() -> None:
        nonlocal done
        trainer.step(done)
        done += 1
        if world.device.type == "cuda":
            memory.append(torch.cuda.memory_allocated(world.device))

    seconds = paced(step, world.device, steps)
    words = float(task.table.lengths.mean())
    captions = count * (settings.samples if kind == "scst" else task.captions)
    config = parts.model.config
    assert isinstance(config, M2Config)
    forward = operations(
        config, pictures=count, regions=CELLS, words=round(captions / count * words), history=round(words)
    )
    names = {
        "cells": f"XE, cached cells, {count} pictures × 5 captions",
        "pictures": f"XE, decoded pictures, vision learning, {count} pictures × 5 captions",
        "scst": f"SCST, cached cells, {count} pictures × {settings.samples} samples",
    }
    if parts.vision is not None:
        forward += count * vision_operations(parts.vision)
    notes = {"pictures/s": f"{count / seconds:,.0f}"}
    if len(memory) > 3:
        notes["memory from step 3 to the last"] = f"{(memory[-1] - memory[2]) / 2**20:+.1f} MiB"
    return Row(
        names[kind],
        f"width {config.d_model}, bfloat16{', compiled' * compiled}",
        seconds,
        f"{captions / seconds:,.0f} captions/s",
        peak_memory(world.device),
        rates.floor((4 if kind == "scst" else 3) * forward, 0.0),  # self-critical training also speaks
        notes,
    )


def vision_operations(vision: Vision) -> float:
    """Multiplications and additions of looking at one picture."""
    side = vision.preprocess.size
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        vision(torch.zeros(1, 3, side, side, dtype=torch.uint8, device=vision.device))
    return float(counter.get_total_flops())
