"""Weight surgery on model folders: a mean of two models, another picture size, fewer bits.

    python recipes/model_surgery.py blend run/before-scst run --share 0.8 --out blended
    python recipes/model_surgery.py resize run --size 352 --pre-resize 256 --out larger
    python recipes/model_surgery.py quantise run --bits 8 --out small

blend: self-critical training scores more and says fewer different words than the cross-entropy model that it began
with; weights between the two work, and better than a mean of what the two score (Wortsman et al. 2022, model soups;
Ramé et al. 2023, rewarded soups).

resize: training shows enlarged parts of pictures, so that things look larger than in whole pictures. An image encoder
that is shown whole pictures a little enlarged sees them as it learned them (Touvron et al. 2019, "Fixing the train-test
resolution discrepancy").

What a folder scores is measured by `meshcap evaluate`. A calibration is kept by quantise alone.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from meshcap.captioner import Captioner
from meshcap.errors import MeshcapError
from meshcap.training.build import resized

Module = TypeVar("Module", bound=nn.Module)
RELATED = "expected one that was trained on from the other"


def read(model: str | Path) -> Captioner:
    return Captioner.from_pretrained(model, device="cpu", dtype="float32", backend="torch")


@torch.no_grad()
def blend(first: Captioner, second: Captioner, share: float) -> Captioner:
    """Each weight a mean of two: `share` 0 is the first model, 1 the second.

    Raises:
        MeshcapError: the two differ in their settings, words or image encoders.
    """
    if not 0 <= share <= 1:
        raise MeshcapError(f"the share is {share}, expected a number from 0 to 1")
    if first.model.name != second.model.name or first.model.config != second.model.config:
        raise MeshcapError(f"the two models have different settings: {RELATED}")
    if first.vocabulary.words != second.vocabulary.words:
        raise MeshcapError(f"the two models have different words: {RELATED}")
    visions = [None if one.vision is None else (one.vision.name, one.vision.settings()) for one in (first, second)]
    if visions[0] != visions[1]:
        raise MeshcapError(f"the two models have different image encoders: {RELATED}")
    model = mean_of(first.model, second.model, share)
    if first.vision is None or second.vision is None:
        return Captioner(model, first.vocabulary)
    return Captioner(model, first.vocabulary, mean_of(first.vision, second.vision, share))


def mean_of(first: Module, second: Module, share: float) -> Module:
    found = copy.deepcopy(first).requires_grad_(False)
    ends = first.state_dict(), second.state_dict()
    for name, weight in found.state_dict().items():
        if weight.is_floating_point():
            # At 0 and 1 the ends themselves come out, to the bit.
            weight.copy_(ends[0][name] * (1 - share) + ends[1][name] * share)
    return found


def at_size(captioner: Captioner, size: int, pre_resize: int | None = None) -> Captioner:
    """The same captioner, reading squares of `size` pixels, made from squares of `pre_resize` (None: as it was)."""
    if captioner.vision is None:
        raise MeshcapError("this captioner reads precomputed features: there is no size to choose")
    return Captioner(captioner.model, captioner.vocabulary, resized(captioner.vision, size, pre_resize))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    operations = parser.add_subparsers(dest="operation", required=True)
    one = operations.add_parser("blend", help="a mean of two models")
    one.add_argument("model")
    one.add_argument("second", help="one that was trained on from it")
    one.add_argument("--share", type=float, default=0.5, help="of the second model, from 0 to 1")
    one = operations.add_parser("resize", help="the same model for another picture size")
    one.add_argument("model")
    one.add_argument("--size", type=int, required=True, help="pixels along a side of what the image encoder reads")
    one.add_argument("--pre-resize", type=int, help="first shrink pictures to so many pixels; 0: do not")
    one = operations.add_parser("quantise", help="weights of fewer bits in the files")
    one.add_argument("model")
    one.add_argument("--bits", type=int, choices=[4, 6, 8, 16], default=8)
    one.add_argument("--vision-bits", type=int, choices=[4, 6, 8, 16], help="of the vision, where it should differ")
    for one in operations.choices.values():
        one.add_argument("--out", type=Path, required=True, help="the model folder to make")
    given = parser.parse_args(arguments)
    try:
        run(given)
    except MeshcapError as error:
        sys.exit(f"error: {error}")


def run(given: argparse.Namespace) -> None:
    if given.out.exists() and (not given.out.is_dir() or any(given.out.iterdir())):
        raise MeshcapError(f"{given.out} exists and is not an empty folder: choose another one")
    captioner = read(given.model)
    if given.operation == "blend":
        captioner = blend(captioner, read(given.second), given.share)
    elif given.operation == "resize":
        captioner = at_size(captioner, given.size, given.pre_resize)
    bits = {"bits": given.bits, "vision_bits": given.vision_bits} if given.operation == "quantise" else {}
    captioner.save_pretrained(given.out, **bits)
    card = Path(given.model) / "README.md"
    if card.is_file():
        shutil.copyfile(card, given.out / card.name)
    size = sum(path.stat().st_size for path in given.out.rglob("*.safetensors"))
    print(f"{given.out}: {size / 1e6:.2f} MB of weights")


if __name__ == "__main__":
    main()
