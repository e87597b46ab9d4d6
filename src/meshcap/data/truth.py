"""How many captions of drawn scenes are true: a score that needs no references, since what was drawn is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from meshcap.data.dataset import Sample
from meshcap.data.drawn import facts_of
from meshcap.data.tell import mistakes, statements


def truths(samples: Sequence[Sample], captions: Iterable[str]) -> dict[str, Any] | None:
    """Counts over captions of samples, in their order; None where a sample is no drawn scene, or there is none.

    Args:
        captions: words with spaces between, lower-case, as references of drawn scenes are.

    Returns:
        `of` captions, those where `objects` are all named with their colours and no others are, those where every
        statement is `true`; in `said` the statements of each kind, and in `wrong` the mistakes.
    """
    if not samples or any("facts" not in (sample.more or {}) for sample in samples):
        return None
    counts: Counter[str] = Counter()
    said: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for sample, caption in zip(samples, captions, strict=True):
        found = mistakes(caption, *facts_of(sample.more))
        counts["true"] += not found
        counts["objects"] += not any(one.about == "object" for one in found)
        said += statements(caption)
        wrong.update(one.about for one in found)
    return {
        "of": len(samples),
        "objects": counts["objects"],
        "true": counts["true"],
        "said": dict(said.most_common()),
        "wrong": dict(wrong.most_common()),
    }


def truth_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people to read."""
    told = ", ".join(f"{about} {count}" for about, count in found["wrong"].items())
    return [
        ("every statement true", f"{found['true']:,} of {found['of']:,}" + (f" (wrong: {told})" if told else "")),
        ("all objects named", f"{found['objects']:,} of {found['of']:,}"),
    ]
