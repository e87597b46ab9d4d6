"""How well the warning about required words tells words that suit a picture from words that do not.

    python recipes/required_words.py --model default

Each word is required of a picture in `examples/`. Printed for several thresholds: the share of suiting words that would
get a warning, and the share of others that would. `meshcap.say.UNSUITED` is the threshold in use.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from meshcap import Captioner

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHOWN = {
    "astronaut": "woman smiling suit flag orange person",
    "cat": "cat orange looking camera close eyes",
    "coffee": "coffee cup spoon table saucer drink",
    "cow": "cow grass field standing grassy green",
    "dog": "dog grass brown standing running field",
    "giraffes": "giraffe giraffes two trees standing neck",
    "horses": "horses grass field brown white group",
    "photographer": "man camera field standing tripod coat",
    "raccoon": "animal leaves green small plant looking",
    "rocket": "tower smoke sky night building tall",
}
OTHERS = """
    pizza toilet surfboard elephant train kitchen umbrella skateboard keyboard snowboard banana refrigerator motorcycle
    giraffe cake tennis bus zebra laptop bathroom
""".split()


def ratios(captioner: Captioner, *, shown: bool) -> np.ndarray:
    """How likely captions with each word are, beside captions without."""
    found = []
    for name, words in SHOWN.items():
        regions = captioner.see([captioner.read(EXAMPLES / f"{name}.jpg")])
        for word in words.split() if shown else [one for one in OTHERS if one not in words]:
            hypotheses = captioner.search(regions, must=word)
            found.append(float(hypotheses.confidence[0, 0]) / float(hypotheses.unconstrained[0]))
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    captioner = Captioner.from_pretrained(parser.parse_args().model).optimize()
    suiting, others = ratios(captioner, shown=True), ratios(captioner, shown=False)
    print(f"{len(suiting)} words that suit, {len(others)} that do not")
    for threshold in np.arange(0.3, 0.85, 0.05):
        false, caught = (suiting < threshold).mean(), (others < threshold).mean()
        print(f"{threshold:.2f}: {false:.0%} and {caught:.0%} get a warning")


if __name__ == "__main__":
    main()
