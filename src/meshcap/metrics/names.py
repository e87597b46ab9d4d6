"""The metrics' names, and the line that says how scores were made."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import meshcap
from meshcap.errors import MeshcapError
from meshcap.metrics.rouge import BETA

BLEU = tuple(f"BLEU-{n}" for n in (1, 2, 3, 4))
METRICS = (*BLEU, "METEOR", "ROUGE-L", "CIDEr", "CIDEr-plain", "SPICE")  # in the order of the tables
DEFAULT = (*BLEU, "ROUGE-L", "CIDEr")
ALSO = {"bleu": BLEU, "rouge": ("ROUGE-L",), "cider-d": ("CIDEr",), "all": METRICS}

# How each is computed. df: where CIDEr counts in how many pictures an n-gram occurs.
HOW = {
    "BLEU": "coco,n=1-4,closest",
    "METEOR": "1.5,en,norm",
    "ROUGE-L": f"beta={BETA}",
    "CIDEr": "D,n=1-4,sigma=6,df=references",
    "CIDEr-plain": "n=1-4,df=references",
    "SPICE": "1.0",
}


def chosen_metrics(asked: Sequence[str] | str) -> list[str]:
    """Names as in `METRICS`, from names in any case, "bleu" for four of them, and "all".

    Raises:
        MeshcapError: an unknown name, or none.
    """
    known = {name.lower(): (name,) for name in METRICS} | ALSO
    wanted: set[str] = set()
    for name in [asked] if isinstance(asked, str) else asked:
        if name.lower() not in known:
            raise MeshcapError(f"there is no metric {name!r}, expected some of bleu, {', '.join(METRICS)}, or all")
        wanted.update(known[name.lower()])
    if not wanted:
        raise MeshcapError(f"no metric was asked for, expected some of bleu, {', '.join(METRICS)}, or all")
    return [name for name in METRICS if name in wanted]


def signature(
    found: Collection[str],
    *,
    tokenizer: str,
    pictures: int,
    references: int,
    bootstrap: int,
    seed: int,
    more: Sequence[str] = (),
) -> str:
    """One line: two figures can be compared where their lines agree, but for bootstrap and seed.

    Args:
        found: the metrics that were computed.
        more: "name:how" of what else was.
    """
    parts = [f"meshcap:{meshcap.__version__}", f"tokenizer:{tokenizer}", "eos:no"]
    kinds = {"BLEU" if name in BLEU else name for name in found}
    parts += [f"{name}:{how}" for name, how in HOW.items() if name in kinds]
    drawn = f"{bootstrap},seed={seed},percentile,95%" if bootstrap else "no"
    return "|".join([*parts, *more, f"pictures:{pictures}", f"references:{references}", f"bootstrap:{drawn}"])
