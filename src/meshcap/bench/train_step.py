"""How fast cross-entropy training runs: an M² of the paper's sizes, random data, everything a real step does."""

from __future__ import annotations

import torch

from meshcap.bench.counts import operations
from meshcap.bench.decode import REGIONS, random_regions
from meshcap.bench.measure import Rates, Row, peak_memory, timed
from meshcap.models import M2, M2Config
from meshcap.training.xe import xe_loss


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
        floor = rates.floor(
            3 * forward, weights * 4 * 7
        )  # gradients and AdamW: each weight read and written seven times
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
