"""The scores as a torchmetrics Metric: captions are collected with `update`, over any number of processes.

    from meshcap.metrics.for_torchmetrics import CaptionScores

    scores = CaptionScores()
    scores.update(["a man on a horse"], [["a man rides a horse", "someone on a horse"]])
    scores.compute()    # {"BLEU-1": tensor(…), …, "CIDEr": tensor(…)}

CIDEr weighs words by all references that were collected, so processes exchange captions, not scores: as bytes, since
torchmetrics gathers tensors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from meshcap.errors import MeshcapError
from meshcap.metrics.result import DEFAULT, chosen_metrics
from meshcap.metrics.score import score


class CaptionScores(Metric):
    """Scores of all captions since the last `reset`, as tensors by name.

    Args:
        metrics: as of `meshcap.metrics.score`; METEOR needs the extra `meteor`.
        tokenizer: "ptb" (the field's), "unicode" or "char".
        options: keywords of torchmetrics.Metric.

    Raises:
        MeshcapError: an unknown metric.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    records: Any  # JSON, a line a picture, as UTF-8 bytes: a list of tensors, or one where processes were joined

    def __init__(self, metrics: Sequence[str] | str = DEFAULT, tokenizer: str = "ptb", **options: Any) -> None:
        super().__init__(**options)
        self.metrics, self.tokenizer = chosen_metrics(metrics), tokenizer
        self.add_state("records", default=[], dist_reduce_fx="cat")

    def update(self, preds: str | Sequence[str], target: Sequence[str] | Sequence[Sequence[str]]) -> None:
        """Add captions.

        Args:
            preds: a caption, or one for each picture.
            target: the references of each picture; of one caption, its references.
        """
        captions = [preds] if isinstance(preds, str) else list(preds)
        references = [target] if isinstance(preds, str) else list(target)
        if len(captions) != len(references):
            raise MeshcapError(f"{len(captions)} captions and references of {len(references)} pictures were given")
        lists = ([those] if isinstance(those, str) else list(those) for those in references)
        lines = "".join(json.dumps(pair) + "\n" for pair in zip(captions, lists, strict=True)).encode()
        self.records.append(torch.frombuffer(bytearray(lines), dtype=torch.uint8).to(self.device))

    def compute(self) -> dict[str, Tensor]:
        """The scores of all that was added, by all processes."""
        parts = [self.records] if isinstance(self.records, Tensor) else self.records
        lines = b"".join(bytes(part.byte().cpu().tolist()) for part in parts).decode().splitlines()
        if not lines:
            raise MeshcapError("no captions were given: call update before compute")
        pairs = [json.loads(line) for line in lines]
        found = score(
            {place: one for place, (one, _) in enumerate(pairs)},
            {place: those for place, (_, those) in enumerate(pairs)},
            metrics=self.metrics,
            tokenizer=self.tokenizer,
            bootstrap=0,
        )
        if lacking := [name for name in self.metrics if name not in found.scores]:
            raise MeshcapError(next(line for line in found.warnings if line.startswith(lacking[0])))
        return {name: torch.tensor(value, device=self.device) for name, value in found.scores.items()}
