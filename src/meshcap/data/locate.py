"""From what a person writes (a file, a folder, a pattern) to the files that hold a dataset, and its pictures."""

from __future__ import annotations

import glob
import os
import re
from itertools import product
from pathlib import Path

from meshcap.data.splits import MEANINGS, split_in_name
from meshcap.errors import MeshcapError

TABLES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv")
# What `meshcap.vision.pictures` reads, in the order to try; a list of our own, because that file needs torch.
PICTURES = tuple(
    ".jpg .jpeg .png .webp .avif .gif .bmp .tif .tiff .jpe .jfif .mpo .apng .dib .heic .heif .hif .jp2 .j2k "
    ".ppm .pgm .pbm .pnm .ico".split()
)
LAYOUTS = (
    "tar shards, captions.jsonl, metadata.jsonl, captions.csv, captions.tsv, captions.txt, "
    "captions_*.json of COCO, dataset_*.json of Karpathy, or Flickr8k.token.txt"
)
# Folders that pictures are usually kept in beside their captions.
USUAL_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images")


def dataset_files(path: str | Path) -> list[Path]:
    """The files that a path names: all of them shards, or all of them caption files.

    Raises:
        MeshcapError: nothing there, nothing of a known kind, or a folder that could be read in several ways.
    """
    path = Path(path)
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [path]
    patterns = expand_braces(str(path))
    files: list[Path] = []
    for pattern in patterns:
        found = (
            sorted(glob.glob(pattern), key=_in_order)
            if glob.has_magic(pattern)
            else [pattern] * os.path.exists(pattern)
        )
        if not found and len(patterns) > 1:
            raise MeshcapError(f"{pattern}, which is one of {path}, is not there")
        files += map(Path, found)
    files = [file for file in dict.fromkeys(files) if file.is_file()]
    if not files:
        raise MeshcapError(f"{path} is not there, expected a folder or file with captions: {LAYOUTS}")
    shards = [file for file in files if file.suffix == ".tar"]
    return shards or files


def _in_folder(folder: Path) -> list[Path]:
    try:
        seen = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
        files = sorted(seen, key=_in_order)
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be read: {error.strerror or error}") from error
    if shards := [file for file in files if file.suffix == ".tar"]:
        return shards
    found = [file for file in files if _is_usual(file.name.lower())]
    found = found or [file for file in files if file.name.lower().removesuffix(".gz").endswith(TABLES)]
    if len(found) > 1:
        # One file a split is a dataset in several files; anything else could be the same dataset several times.
        splits = [split_in_name(file.name) for file in found]
        if None in splits or len(set(splits)) < len(splits) or len({_ending(file) for file in found}) > 1:
            names = ", ".join(file.name for file in found)
            raise MeshcapError(f"{folder} holds {names}: name the one that is meant")
    if not found:
        raise MeshcapError(f"{folder} holds no captions, expected {LAYOUTS}")
    return found


def _in_order(path: str | Path) -> list[tuple[int, str]]:
    """Numbers by their size: train-2.tar before train-10.tar."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _is_usual(name: str) -> bool:
    name = name.removesuffix(".gz")
    stem, ending = os.path.splitext(name)
    if name.endswith((".token", ".token.txt")):
        return "lemma" not in name  # Flickr8k's words without their endings
    if ending == ".txt":
        return stem == "captions"
    return ending in TABLES and (stem.startswith(("captions", "metadata", "dataset")) or stem in MEANINGS)


def _ending(file: Path) -> str:
    return Path(file.name.lower().removesuffix(".gz")).suffix


def expand_braces(pattern: str) -> list[str]:
    """`train-{0..2}.tar` and `{train,val}-0.tar` as shells and WebDataset write them; 00..12 keeps its zeros."""
    parts = re.split(r"\{([^{}]+)\}", pattern)
    choices: list[list[str]] = []
    for place, part in enumerate(parts):
        numbers = re.fullmatch(r"(\d+)\.\.(\d+)", part)
        if place % 2 == 0:
            choices.append([part])
        elif numbers:
            first, last = numbers.groups()
            choices.append([str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)])
        elif "," in part:
            choices.append(part.split(","))
        else:
            choices.append([f"{{{part}}}"])
    return ["".join(chosen) for chosen in product(*choices)]


class PictureFolder:
    """Finds pictures by the names that a caption file gives them, and only below one folder."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise MeshcapError(f"{folder} is not a folder, expected one with pictures")
        self.folder = folder
        self._whole = os.path.abspath(folder)
        self._usual = [name for name in USUAL_FOLDERS if (folder / name).is_dir()]
        self._names: dict[str, frozenset[str]] = {}  # of each folder that was looked into
        self._hit = 0  # which of the guesses was right last time: mostly it is again

    def find(self, guesses: list[str]) -> Path:
        """The first of the names that is a file here or in a usual folder; the first of all if none is.

        Raises:
            MeshcapError: a name that leads out of the folder.
        """
        guesses = guesses + [os.path.join(usual, guess) for usual in self._usual for guess in guesses]
        if self._hit < len(guesses) and self._is_there(guesses[self._hit]):
            return Path(self._inside(guesses[self._hit]))
        for place, guess in enumerate(guesses):
            if self._is_there(guess):
                self._hit = place
                return Path(self._inside(guess))
        return Path(self._inside(guesses[0]))

    def _inside(self, name: str) -> str:
        # By the words of the path, not by where links lead: people do link their pictures into a folder.
        whole = os.path.normpath(os.path.join(self._whole, name))
        root = self._whole.rstrip(os.sep) + os.sep
        if "\0" in name or not whole.startswith(root):
            raise MeshcapError(f"the picture {name!r} is outside of {self.folder}: expected a path below it")
        return os.path.join(self.folder, whole[len(root) :])

    def _is_there(self, name: str) -> bool:
        # A folder is listed once; asking the system for each of 120,000 pictures in each of several places takes long.
        folder, _, name = name.rpartition("/")
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(os.path.join(self._whole, folder)))
            except (OSError, ValueError):
                self._names[folder] = frozenset()
        return name in self._names[folder]
