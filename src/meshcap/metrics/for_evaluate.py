"""The scores as a metric of Hugging Face's `evaluate`.

    from meshcap.metrics.for_evaluate import CaptionScores

    scores = CaptionScores()      # or evaluate.load(path of this file)
    scores.compute(predictions=["a man on a horse"], references=[["a man rides a horse", "someone on a horse"]])

`add`, `add_batch` and several processes (`num_process`, `process_id`) work as with any metric of that library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from meshcap.metrics.result import DEFAULT
from meshcap.metrics.score import score

DESCRIPTION = "BLEU, ROUGE-L and CIDEr of captions as coco-caption computes them; METEOR with the extra meteor."
INPUTS = """
Args:
    predictions: a caption for each picture.
    references: the captions that people gave each picture, a list for each.
    metrics: some of bleu, rouge-l, cider, cider-plain, meteor, spice, or all.
    tokenizer: ptb (the field's), unicode or char.
    bootstrap, seed: resamples of the pictures for 95 % intervals; 0 leaves them out.
Returns:
    the scores by name, "signature", "warnings", and "intervals" where there are any.
"""


class CaptionScores(evaluate.Metric):
    """See the head of this file."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        several = datasets.Sequence(text) if not hasattr(datasets, "List") else datasets.List(text)
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation="",
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": text, "references": several}),
            homepage="",
        )

    def _compute(
        self,
        *,
        predictions: Sequence[str],
        references: Sequence[Sequence[str]],
        metrics: Sequence[str] | str = DEFAULT,
        tokenizer: str = "ptb",
        bootstrap: int = 0,
        seed: int = 0,
    ) -> dict[str, Any]:
        found = score(
            dict(enumerate(predictions)),
            {place: list(those) for place, those in enumerate(references)},
            metrics=metrics,
            tokenizer=tokenizer,
            bootstrap=bootstrap,
            seed=seed,
        )
        more: dict[str, Any] = {"signature": found.signature, "warnings": found.warnings}
        return found.scores | more | ({"intervals": found.intervals} if found.intervals else {})
