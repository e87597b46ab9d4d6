"""The listing for `recipes/names.py`: labelled pictures of public repositories, and pictures of COCO.

    python recipes/names_listing.py labelled PICTURES --out LABELLED.csv --classes CLASSES.txt --without examples …
    python recipes/names_listing.py coco TRAIN2017 --captions dataset_coco.json.gz --out COCO.csv

PICTURES has a folder for each repository of `SOURCES`, unpacked as it is and called owner+name. Their pictures stay
outside the project and keep their owners' terms; what the repositories say of them:

    EliSchwartz/imagenet-sample-images: one of each of ImageNet's classes; no licence stated
    ndb796/Small-ImageNet-Validation-Dataset-1000-Classes: five of each, of its validation set; no licence stated
    ajschumacher/imagen: five of each of ImageNet's 200 classes to detect; "does not make or alter any copyright claims"
    InputBlackBoxOutput/popular-animals-dataset: about 90 of each of 22 animals, from the web; MIT
    Khoalearningcode/SAMPLE-90-Animals-CLassification-With-Pytorch: 60 of each of 90 animals, from the web; none stated
    MachineLearning2020/Homework2-Caltech101: Caltech-101; none stated there, CC BY 4.0 at Caltech
    abderrahimsikou/Rocket-Detection-Computer-Vision-Project-: rockets, turned and cut for training; none stated

ImageNet's own terms allow research that is not commercial. One picture in ten is held out, by its fingerprint. Of
pictures that look the same the first is taken, wherever it is from, and none that is in a folder of `--without`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from recipes.names import SETS

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
BLACK = 16
SAME_BITS = 3  # fingerprints of 64 bits that differ in no more are of the same picture
MOST = 30  # pictures of a folder of the further sources: as many as there are of other classes, and less to look at
# Folders whose pictures are photographs the right way up; the other ones of Caltech-101 are drawings, turned, or
# things that COCO has.
CALTECH = set(
    """
    Leopards beaver binocular butterfly cannon cougar_body crab crocodile dalmatian dolphin electric_guitar emu ferry
    flamingo gerenuk gramophone grand_piano hawksbill hedgehog helicopter ibis kangaroo llama lobster lotus mandolin
    nautilus okapi panda pigeon platypus pyramid revolver rhino rooster saxophone scorpion sea_horse starfish strawberry
    sunflower water_lilly wheelchair
    """.split()
)
POPULAR = {
    *"ape bison chicken deer dolphin duck eagle fish lion lobster pig rabbit shark snake spider turkey wolf".split()
}
# What folders are called, and what that is called here.
WORDS = {
    "Leopards": "leopard", "binocular": "binoculars", "cougar_body": "cougar", "electric_guitar": "electric guitar",
    "gerenuk": "antelope", "grand_piano": "grand piano", "hare": "rabbit", "hawksbill": "turtle", "ladybugs": "ladybug",
    "nautilus": "chambered nautilus", "panda": "giant panda", "rhino": "rhinoceros", "rooster": "cock",
    "sea_horse": "seahorse", "water_lilly": "lotus", "boar": "wild boar", "saxophone": "sax", "swine": "pig",
}  # fmt: skip
NOT_IMAGENETS = {"mouse"}  # its mouse lies beside a keyboard

Labels = Callable[[Path], str | None]  # of a picture; None: it is not taken


def by_class(path: Path) -> str | None:
    return path.parent.name if path.parent.name.isdigit() else None


def by_wnid(numbers: dict[str, int], path: Path) -> str | None:
    """Files called n02118333_27_fox: a class, or a word that stands for several."""
    wnid, _, rest = path.stem.partition("_")
    word = rest.split("_", 1)[-1]
    return str(numbers[wnid]) if wnid in numbers else word if word in SETS and word not in NOT_IMAGENETS else None


def by_folder(names: dict[str, int], only: set[str] | None, path: Path) -> str | None:
    folder = path.parent.name
    if "+" in folder:  # a picture of the repository itself
        return None
    word = WORDS.get(folder, folder)
    if only is not None and folder not in only:
        return None
    return word if word in SETS or word in NOT_IMAGENETS else str(names.get(word, word))


def upright_rockets(numbers: set[str], path: Path) -> str | None:
    """Files called missile-100-…: the first of each number that has no black corners; others are the same, turned."""
    match = re.match(r"missile-(\d+)-", path.name)
    if match is None:
        return None
    number = match[1]
    with Image.open(path) as image:
        grey = np.asarray(image.convert("L"))
    edges = (slice(8), slice(-8, None))
    corners = (grey[rows, columns].max() for rows, columns in product(edges, edges))
    if number in numbers or min(corners) < BLACK:
        return None
    numbers.add(number)
    return "rocket"


def fingerprint(path: Path) -> np.uint64:
    """Which of the neighbours in 8 rows of 9 grey cells is lighter."""
    with Image.open(path) as image:
        grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    return np.packbits(grey[:, 1:] > grey[:, :-1]).view(np.uint64)[0]


def pictures(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES)


class Seen:
    """Fingerprints, to find pictures that were there before."""

    def __init__(self, most: int):
        self.prints, self.count = np.zeros(most, np.uint64), 0

    def add(self, mark: np.uint64) -> bool:
        """Whether it is new."""
        apart = np.unpackbits((self.prints[: self.count] ^ mark).view(np.uint8).reshape(-1, 8), axis=1).sum(1)
        if (apart <= SAME_BITS).any():
            return False
        self.prints[self.count] = mark
        self.count += 1
        return True


def read_classes(folder: Path) -> tuple[dict[str, int], list[str]]:
    """WordNet's ids with their numbers, and names of ImageNet's classes, from files called n01440764_tench."""
    found = sorted(path.stem.split("_", 1) for path in pictures(folder))
    return {wnid: number for number, (wnid, _) in enumerate(found)}, [name for _, name in found]


def labelled(options: argparse.Namespace) -> None:
    samples = options.pictures / "EliSchwartz+imagenet-sample-images"
    numbers, classes = read_classes(samples)
    options.classes.write_text("".join(f"{name}\n" for name in classes))
    names = {name.replace("_", " "): number for number, name in enumerate(classes)}
    sources: dict[str, tuple[Labels, int]] = {
        "EliSchwartz+imagenet-sample-images": (partial(by_wnid, numbers), MOST),
        "ndb796+Small-ImageNet-Validation-Dataset-1000-Classes": (by_class, MOST),
        "ajschumacher+imagen": (partial(by_wnid, numbers), MOST),
        "InputBlackBoxOutput+popular-animals-dataset": (partial(by_folder, names, POPULAR), options.most),
        "Khoalearningcode+SAMPLE-90-Animals-CLassification-With-Pytorch": (
            partial(by_folder, names, None),
            options.most,
        ),
        "MachineLearning2020+Homework2-Caltech101": (partial(by_folder, names, CALTECH), options.most),
        "abderrahimsikou+Rocket-Detection-Computer-Vision-Project-": (
            partial(upright_rockets, set()),
            8 * options.most,
        ),
    }
    seen = Seen(100_000)
    for folder in options.without:
        for path in pictures(folder):
            seen.add(fingerprint(path))
    with open(options.out, "w", newline="") as file:
        writer = csv.writer(file)
        for source, (label_of, most) in sources.items():
            taken, same = Counter[str](), 0
            for path in pictures(options.pictures / source):
                label = label_of(path)
                if label is None or taken[label] == most:
                    continue
                try:
                    mark = fingerprint(path)
                except OSError:  # no picture, whatever it is called
                    continue
                if not seen.add(mark):
                    same += 1
                    continue
                taken[label] += 1
                writer.writerow((path, label, "held" if held(mark) else "train"))
            print(f"{source}: {taken.total()} pictures of {len(taken)} labels; {same} were there before")


def held(mark: np.uint64) -> bool:
    return hashlib.sha256(mark.tobytes()).digest()[0] < 26  # of 256


def coco(options: argparse.Namespace) -> None:
    """Pictures of Karpathy's train and val, as far as they are there."""
    with gzip.open(options.captions) as file:
        images = json.load(file)["images"]
    random = np.random.default_rng(0)
    with open(options.out, "w", newline="") as file:
        writer = csv.writer(file)
        for part, split, count in (("coco", "train", options.train), ("coco-held", "val", options.val)):
            there = [f"{one['cocoid']:012d}" for one in images if one["split"] == split]
            there = [name for name in there if (options.pictures / f"{name}.jpg").is_file()]
            chosen = random.permutation(there)[:count].tolist()
            writer.writerows((options.pictures / f"{name}.jpg", name, part) for name in chosen)
            print(f"{part}: {len(chosen)} pictures")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The listing for recipes/names.py.")
    commands = parser.add_subparsers(dest="command", required=True)
    repositories = commands.add_parser("labelled")
    repositories.add_argument("--classes", type=Path, required=True, help="where the names of classes go")
    repositories.add_argument("--without", type=Path, nargs="*", default=[], help="folders of pictures to leave out")
    repositories.add_argument("--most", type=int, default=MOST, help="pictures of a folder, where there are many")
    others = commands.add_parser("coco")
    others.add_argument("--captions", type=Path, required=True)
    others.add_argument("--train", type=int, default=8000)
    others.add_argument("--val", type=int, default=1500)
    for command in (repositories, others):
        command.add_argument("pictures", type=Path)
        command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    {"labelled": labelled, "coco": coco}[options.command](options)


if __name__ == "__main__":
    main()
