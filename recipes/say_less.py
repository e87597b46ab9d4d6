"""What shortening does to captions that are trusted little: python recipes/say_less.py CAPTIONS --objects OBJECTS

CAPTIONS is what `meshcap evaluate` wrote (image_id, caption, log_probs), OBJECTS says which of COCO's objects are in
each picture. For several thresholds: the share of captions that are shortened, and of those the share that names an
object that is not there (CHAIR-s) and the objects that they name, before and after.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from pathlib import Path

from meshcap.calibration import Calibration
from meshcap.folders import PACKAGED
from meshcap.metrics.hallucination import Synonyms
from meshcap.text.ptb import ptb_tokenize
from meshcap.text.sentence import phrase_starts


def end_of(words: list[str], log_probs: list[float], doubted: float) -> int | None:
    """Where a caption ends before what is not sure, as `Captioner` does it; None: it stays whole."""
    unsure = [place for place in range(2, len(words)) if log_probs[place] < math.log(doubted)]
    starts = phrase_starts(words)
    return max((one for one in starts if one <= unsure[0]), default=starts[0]) if unsure and starts else None


def main() -> None:
    parser = argparse.ArgumentParser(description="What shortening does to captions that are trusted little.")
    parser.add_argument("captions", type=Path)
    parser.add_argument("--objects", type=Path, required=True)
    options = parser.parse_args()
    opened = gzip.open if options.objects.suffix == ".gz" else open
    with opened(options.objects, "rt") as file:
        there = {int(name): set(found) for name, found in json.load(file).items()}
    calibration, synonyms = Calibration.load(PACKAGED), Synonyms.ours()
    rows = []
    for one in json.loads(options.captions.read_text(encoding="utf-8")):
        words = ptb_tokenize(one["caption"])
        if len(words) + 1 == len(one["log_probs"]) and int(one["image_id"]) in there:
            rows.append((words, one["log_probs"], calibration.apply(one["log_probs"]), there[int(one["image_id"])]))
    print(f"{len(rows):,} captions\nbelow  doubted  shortened  words less  CHAIR-s          objects named")
    for level in (0.65, 0.7, 0.75, 0.8):
        for doubted in (0.4, 0.5, 0.6):
            less = [
                (words, words[:end], present)
                for words, log_probs, confidence, present in rows
                if confidence < level and (end := end_of(words, log_probs, doubted)) is not None
            ]
            named = [[synonyms.mentioned(words) for words, _, _ in less], [synonyms.mentioned(s) for _, s, _ in less]]
            here = [present for _, _, present in less]
            wrong = [sum(bool(set(said) - has) for said, has in zip(part, here, strict=True)) for part in named]
            count = max(1, len(less))
            cut = sum(len(whole) - len(short) for whole, short, _ in less) / count
            objects = [sum(map(len, part)) / count for part in named]
            print(
                f"{level:5.2f}  {doubted:7.1f}  {len(less) / len(rows):9.1%}  {cut:10.1f}  "
                f"{wrong[0] / count:6.1%} -> {wrong[1] / count:5.1%}  {objects[0]:.2f} -> {objects[1]:.2f}"
            )


if __name__ == "__main__":
    main()
