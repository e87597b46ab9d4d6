"""How long beam search takes with an M² of the paper's sizes and random weights.

python benchmarks/decode.py --pictures 1 --pictures 250 --device cuda
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import Rates, Row, decode_bytes, operations, report, set_up, timed
from meshcap.backends.packed import can_pack, pack
from meshcap.decoding import Beam, Graphs, Rules, decode
from meshcap.machine import peak_memory
from meshcap.models import M2, M2Config
from meshcap.regions import Regions

REGIONS = 50


def random_model(seed: int, **settings: int) -> M2:
    """Random weights, but an output as decided as a trained captioner's: near ties would make any rounding matter."""
    torch.manual_seed(seed)
    model = M2(M2Config(**{"vocab_size": 10_201, "boxes": False, **settings}))  # type: ignore[arg-type]
    with torch.no_grad():
        model.decoder.output.words.weight.mul_(20)
    return model.eval()


def random_regions(pictures: int, seed: int, width: int = 2048) -> Regions:
    generator = torch.Generator().manual_seed(seed)
    return Regions(torch.randn(pictures, REGIONS, width, generator=generator).relu())


def settings_of(device: torch.device) -> list[tuple[str, torch.dtype, bool]]:
    """(name, dtype, packed) worth comparing on a device; the first is the one that others are compared with."""
    if device.type != "cpu":
        return [("float32 (TF32)", torch.float32, False), ("bfloat16", torch.bfloat16, False)]
    rows = [("float32, not packed", torch.float32, False)]
    rows += [(f"{str(t)[6:]}, packed", t, True) for t in (torch.float32, torch.bfloat16, torch.int8) if can_pack(t)]
    return rows


def bench_decode(
    device: torch.device, *, pictures: tuple[int, ...], beams: int, length: int, repeat: int, compare: int, seed: int
) -> list[Row]:
    """A row for each number of pictures and each setting; `compare` pictures are captioned to count equal captions."""
    torch.backends.cuda.matmul.allow_tf32 = True  # as the public figures were measured
    base = random_model(seed)
    rules = Rules(max_length=length)
    rows: list[Row] = []
    reference: torch.Tensor | None = None
    for name, dtype, packed in settings_of(device):
        stored, dtype = dtype, torch.float32 if dtype == torch.int8 else dtype  # int8 weights compute in float32
        model = copy.deepcopy(base).to(device, dtype)
        if packed:
            pack(model, int8=stored == torch.int8)
        graphs = Graphs()
        rates = Rates.of(device, dtype)
        sample = decode(model, random_regions(compare, seed + 1).to(device, dtype), Beam(beams), rules).ids.cpu()
        reference = sample if reference is None else reference
        same = float((sample == reference).all(-1).float().mean())
        for count in pictures:
            regions = random_regions(count, seed).to(device, dtype)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)

            def work(model: M2 = model, regions: Regions = regions, graphs: Graphs = graphs) -> object:
                return decode(model, regions, Beam(beams), rules, graphs=graphs)

            seconds = timed(work, device, repeat)
            sizes = {"pictures": count, "regions": REGIONS}
            floor = rates.floor(
                operations(model.config, **sizes, words=beams * length, history=length),
                decode_bytes(model.config, **sizes, beams=beams, steps=length, itemsize=stored.itemsize),
            )
            rows.append(
                Row(
                    f"beam {beams} × {length}, {count} picture{'s' * (count > 1)}",
                    name,
                    seconds,
                    f"{count / seconds:,.0f} pictures/s",
                    peak_memory(device),
                    floor,
                    {"same captions as float32": f"{same:.1%} of {compare}"} if sample is not reference else {},
                )
            )
    return rows


def command(
    pictures: common.Batches = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 5,
    length: Annotated[int, typer.Option(min=2, max=54, help="Words of each caption.")] = 20,
    repeat: common.Repeat = 10,
    compare: Annotated[int, typer.Option(min=1, help="Pictures captioned to count equal captions.")] = 50,
    device: common.Device = "auto",
    threads: common.Threads = 1,
    seed: common.Seed = 0,
    json: common.Json = False,
) -> None:
    """Time beam search with an M² of the paper's sizes (random weights)."""
    where = set_up(device, threads, seed)
    counts = tuple(pictures or ((1, 250) if where.type == "cuda" else (1,)))
    rows = bench_decode(where, pictures=counts, beams=beams, length=length, repeat=repeat, compare=compare, seed=seed)
    report("Beam search", rows, where, json)


if __name__ == "__main__":
    common.main(command)
