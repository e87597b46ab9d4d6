"""How fast training runs: one cross-entropy step of the paper's sizes, and the steps of real runs on made-up data.

    python benchmarks/train.py --device cuda
    python benchmarks/train.py --work step --step-pictures 512

Captions have the lengths of COCO's (10.5 words, between 7 and 20), words are drawn by rank as in English, and pictures
are noise: nothing in a step depends on what they show.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy
import torch
import typer
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import Rates, Row, operations, optional_row, paced, report, set_up, timed
from benchmarks.decode import REGIONS, random_regions
from meshcap.errors import MeshcapError
from meshcap.machine import peak_memory
from meshcap.metrics.reward import CiderReward
from meshcap.models import M2, M2Config
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.training.augment import augment
from meshcap.training.build import Parts
from meshcap.training.captions import CaptionTable
from meshcap.training.checkpoint import Position
from meshcap.training.distributed import World
from meshcap.training.losses import xe_loss
from meshcap.training.optimizer import Average, make_optimizer, named_weights
from meshcap.training.pictures import CachedRegions, View
from meshcap.training.settings import RunSettings, SCSTSettings, XESettings
from meshcap.training.tasks import CrossEntropy, SelfCritical
from meshcap.training.trainer import Trainer
from meshcap.vision import Vision, create_vision, load_vision
from meshcap.vision.backbone import grid_boxes

WORDS = 10_201  # of the paper's vocabulary
CELLS, WIDTH = 64, 1280  # what the embedded backbone makes of 256 pixels
WORK = ("step", "cells", "pictures", "scst", "scst-pictures")
NAMES = {
    "cells": "XE, cached cells",
    "pictures": "XE, decoded pictures, vision learning",
    "scst": "SCST, cached cells",
    "scst-pictures": "SCST, decoded pictures, vision learning",
}


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
    """Augmented noise: everything `PixelViews` does but reading files."""

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
    """A row for each of `work`: "cells" (XE, frozen vision), "pictures" (XE, vision learning), "scst" (frozen),
    "scst-pictures" (vision learning).

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
    rows: list[Row] = []

    def measured(kind: str) -> Row:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        sees = kind in ("pictures", "scst-pictures")
        count = min(pictures, batch * 4 if kind == "cells" else batch)
        xe = XESettings(steps=10_000, batch=count, label_smoothing=0.1, augment=0.5, region_dropout=0.0)
        options: dict[str, Any] = {"precision": torch.bfloat16, "compiled": compiled}
        vision = image_encoder(vision_name, size).to(device) if sees else None
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
        views: Noise | CachedRegions
        if vision is not None:
            views = Noise(min(pictures, 4 * batch), vision.preprocess.size, device, 0.5)
        else:
            some = min(pictures, 16 * batch)
            views = CachedRegions(noise_cells(some, device), device, count=some)
        task: CrossEntropy | SelfCritical
        if kind.startswith("scst"):
            references = [[vocabulary.encode(caption) for caption in captions] for captions in tokens]
            reward = CiderReward(references, eos=vocabulary.eos, pad=vocabulary.pad)
            scst = SCSTSettings(steps=10_000, batch=count, lr_vision=1e-5 if vision is not None else 0.0)
            task = SelfCritical(parts, views, reward, table, scst, world, max_length=21, **options)
        else:
            task = CrossEntropy(parts, views, few(table, len(views)), xe, world, **options)
        return timed_row(kind, task, parts, world, count, steps, rates, compiled=compiled)

    for kind in work:
        with optional_row(lambda why, kind=kind: rows.append(Row(NAMES[kind], "", None, missing=why))):  # type: ignore[misc]
            rows.append(measured(kind))
    return rows


def image_encoder(name: str, size: int) -> Vision:
    """An image encoder by name, or that of a model folder ("default": of the captioner that ships)."""
    found = load_vision(name) if name == "default" or Path(name).is_dir() else create_vision(name, size=size)
    if found is None:
        raise MeshcapError(f"{name} has no vision: give another model folder")
    return found


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
        optimizer=make_optimizer(weights, lr=1e-4, lr_vision=1e-5, weight_decay=0.05, device=world.device),
        average=Average(weights, 0.0),
        position=Position(kind),
        pictures=len(task.views),
        stage=task.settings,
        settings=RunSettings(out="", precision="bfloat16"),
        world=world,
        folder=None,  # type: ignore[arg-type]
        validator=None,  # type: ignore[arg-type]
        keep=lambda: None,
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
    samples = task.settings.samples if isinstance(task, SelfCritical) else task.captions
    captions = count * samples
    config = parts.model.config
    assert isinstance(config, M2Config)
    looking, cells = (0.0, CELLS) if parts.vision is None else vision_operations(parts.vision)
    forward = operations(
        config, pictures=count, regions=cells, words=round(captions / count * words), history=round(words)
    )
    forward += count * looking
    said = f"{samples} {'samples' if isinstance(task, SelfCritical) else 'captions'}"
    notes = {"pictures/s": f"{count / seconds:,.0f}"}
    if len(memory) > 3:
        notes["memory from step 3 to the last"] = f"{(memory[-1] - memory[2]) / 2**20:+.1f} MiB"
    return Row(
        f"{NAMES[kind]}, {count} pictures × {said}",
        f"width {config.d_model}, bfloat16{', compiled' * compiled}",
        seconds,
        f"{captions / seconds:,.0f} captions/s",
        peak_memory(world.device),
        rates.floor((4 if isinstance(task, SelfCritical) else 3) * forward, 0.0),  # self-critical training also speaks
        notes,
    )


def vision_operations(vision: Vision) -> tuple[float, int]:
    """Multiplications and additions of looking at one picture, and how many regions come of it."""
    side = vision.preprocess.size
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        seen = vision(torch.zeros(1, 3, side, side, dtype=torch.uint8, device=vision.device))
    return float(counter.get_total_flops()), seen.features.shape[1]


def bench_train_step(
    device: torch.device,
    *,
    pictures: tuple[int, ...],
    captions: int,
    length: int,
    repeat: int,
    compiled: bool,
    seed: int,
) -> list[Row]:
    """A row for each batch size: `captions` captions of `length` positions of each picture, dropout on, bf16."""
    torch.manual_seed(seed)
    model = M2(M2Config(vocab_size=10_201, boxes=False)).to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=device.type == "cuda")
    loss = torch.compile(xe_loss, dynamic=False) if compiled else xe_loss
    rates = Rates.of(device, torch.bfloat16)
    rows = []
    for count in pictures:
        regions = random_regions(count, seed).to(device)
        ids = torch.randint(4, model.config.vocab_size, (count, captions, length + 1), device=device)
        ids[..., 0] = model.config.bos
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

        def step(regions=regions, ids=ids) -> None:  # type: ignore[no-untyped-def]
            with torch.autocast(device.type, torch.bfloat16):
                value = loss(model, regions, ids)
            value.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        seconds = timed(step, device, repeat)
        forward = operations(model.config, pictures=count, regions=REGIONS, words=captions * length, history=length)
        weights = sum(p.numel() for p in model.parameters())
        # Gradients and AdamW: each weight is read and written seven times.
        floor = rates.floor(3 * forward, weights * 4 * 7)
        rows.append(
            Row(
                f"XE step, {count} pictures × {captions} captions × {length} words",
                f"bfloat16 autocast, AdamW{', compiled' * compiled}",
                seconds,
                f"{count * captions / seconds:,.0f} captions/s",
                peak_memory(device),
                floor,
            )
        )
    return rows


def command(
    work: Annotated[
        list[str] | None,
        typer.Option(
            help="step, cells, pictures, scst or scst-pictures; may be given several times.", show_default="all"
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=2, help="Pictures of a step; four times as many of cells.")] = 256,
    pictures: Annotated[int, typer.Option(min=8, help="Made-up pictures with captions.")] = 20_000,
    steps: Annotated[int, typer.Option(min=1, help="Steps to time.")] = 20,
    width: Annotated[int, typer.Option(min=64, help="Width of the model.")] = 512,
    layers: Annotated[int, typer.Option(min=1, help="Of encoder and decoder each.")] = 3,
    vision: Annotated[
        str, typer.Option(help="The image encoder that learns, or a model folder's.")
    ] = "efficientnet-lite2",
    size: Annotated[int, typer.Option(min=32, help="Pixels of a picture.")] = 256,
    step_pictures: Annotated[
        list[int] | None, typer.Option(help="Batch sizes of the plain step; may be given several times.")
    ] = None,
    captions: Annotated[int, typer.Option(min=1, help="Captions of each picture, in the plain step.")] = 5,
    length: Annotated[int, typer.Option(min=2, max=54, help="Words of each caption, in the plain step.")] = 20,
    compiled: Annotated[bool, typer.Option(help="Compile the steps (CUDA only).")] = True,
    device: common.Device = "auto",
    threads: common.Threads = None,
    seed: common.Seed = 0,
    json: common.Json = False,
) -> None:
    """Time training: a plain cross-entropy step of the paper's sizes (step), and the steps of real runs:
    cross-entropy with a frozen (cells) and a learning image encoder (pictures), and self-critical, likewise (scst,
    scst-pictures)."""
    chosen = tuple(work or WORK)
    for one in chosen:
        if one not in WORK:
            raise MeshcapError(f"--work is {one!r}, expected step, cells, pictures or scst")
    where = set_up(device, threads, seed)
    on_gpu = where.type == "cuda"
    rows = []
    if "step" in chosen:
        rows += bench_train_step(
            where,
            pictures=tuple(step_pictures or ((256, 512, 1024) if on_gpu else (10,))),
            captions=captions,
            length=length,
            repeat=10 if on_gpu else 3,
            compiled=compiled and on_gpu,
            seed=seed,
        )
    if real := tuple(one for one in chosen if one != "step"):
        rows += bench_train(
            where,
            work=real,
            batch=batch,
            pictures=pictures,
            steps=steps,
            compiled=compiled and on_gpu,
            d_model=width,
            layers=layers,
            vision_name=vision,
            size=size,
            seed=seed,
        )
    report("Training", rows, where, json)


if __name__ == "__main__":
    common.main(command)
