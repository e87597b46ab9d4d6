"""Attacks and faults, seeded: what must not happen does not, or this says where.

    make campaign                                             # all of it: an hour on two cores
    python benchmarks/campaign.py --tries 500 --seconds 10    # a short form
    python benchmarks/campaign.py --only pictures --only batch
    python benchmarks/campaign.py --results campaign.jsonl    # keeps each finished round; the same call goes on

Each round counts its tries, its failures (a crash, a traceback, a hang of more than 10 seconds, code that ran, a lost,
doubled or different result, more memory than promised), the slowest try, and the most memory of the process under
attack. The captioner is a tiny one that speaks nonsense: what is tested stands around the model.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import http.client
import importlib
import io
import json
import os
import random
import re
import resource
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

import numpy as np
import typer
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

TOP = Path(__file__).parents[1]
sys.path[:0] = [str(TOP), str(TOP / "tests")]  # this repository, when run as a script, and its tiny captioners

from benchmarks.common import main, progress
from meshcap import Captioner, MeshcapError
from meshcap.data.scenes import draw_scene
from meshcap.files import read_text, write_text
from meshcap.vision.pictures import read_picture

HANG = 10.0  # seconds
PROMISED = 600  # MB above the model for one picture
ROUNDS = ("pictures", "scores", "folders", "archives", "memories", "gallery", "web", "schema", "programs",
          "corrections", "slow", "load", "stops", "batch", "trainer", "disk", "ray", "head")  # fmt: skip
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's 127.0.0.1 is this machine alone
    # Else a cluster asks for the token that another left in ~/.ray, and who comes by address does not give it.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


@dataclass
class Round:
    """What one kind of attack came to."""

    name: str
    tries: int = 0
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    memory: float = 0.0  # MB, the most of the process under attack
    kills: int = 0
    note: str = ""

    @contextlib.contextmanager
    def trying(self, what: str, *, hang: float = HANG, pid: int | None = None) -> Iterator[None]:
        """One try: a MeshcapError is a proper answer, any other exception a failure. `pid`: who works at it."""
        start = time.monotonic() - waited(pid)
        try:
            yield
        except MeshcapError as error:
            if "\n" in str(error):
                self.failures.append(f"{what}: an error of several lines")
        except Exception as error:
            self.failures.append(f"{what}: {type(error).__name__} {str(error)[:120]}")
        seconds = max(0.0, time.monotonic() - waited(pid) - start)
        self.tries += 1
        self.slowest = max(self.slowest, seconds)
        if seconds > hang:
            self.failures.append(f"{what}: {seconds:.1f} s")

    def expect(self, condition: bool, what: str) -> None:
        if not condition:
            self.failures.append(what)


def waited(pid: int | None = None) -> float:
    """Seconds that this thread, or a process and its children, were ready to work and others had the processor."""
    mine = [Path("/proc/thread-self")]
    if pid is not None:
        mine = [task for one in (pid, *(child for child, _ in descendants(pid)))
                for task in Path(f"/proc/{one}/task").glob("*")]  # fmt: skip
    seconds = 0.0
    for task in mine:
        with contextlib.suppress(OSError, IndexError):
            seconds += int((task / "schedstat").read_text().split()[1]) / 1e9
    return seconds


def memory(pid: int | str = "self", key: str = "VmHWM") -> float:
    """MB of a process: the most so far, or with VmRSS now."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith(key)).split()[1]) / 1000
    except (OSError, StopIteration):
        return 0.0


# Pictures.


def good_pictures() -> list[bytes]:
    """One of each format and mode that is read."""
    Image.init()
    scene = draw_scene(3, 64).image.convert("RGB")
    found = []
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        ("RGB", "JPEG", {}), ("RGB", "JPEG", {"progressive": True}), ("L", "JPEG", {}), ("CMYK", "JPEG", {}),
        ("RGB", "PNG", {}), ("RGBA", "PNG", {}), ("P", "PNG", {}), ("I;16", "PNG", {}), ("1", "PNG", {}),
        ("RGB", "WEBP", {}), ("RGBA", "WEBP", {"lossless": True}), ("P", "GIF", {}), ("RGB", "BMP", {}),
        ("RGB", "TIFF", {}), ("RGB", "TIFF", {"compression": "tiff_lzw"}), ("F", "TIFF", {}),
        ("RGB", "PPM", {}), ("L", "PPM", {}), ("RGB", "JPEG2000", {}), ("RGB", "AVIF", {}), ("RGBA", "ICO", {}),
    ]  # fmt: skip
    for mode, form, options in wanted:
        if form in Image.SAVE:
            image = scene.convert("L").convert("I;16") if mode == "I;16" else scene.convert(mode)
            file = io.BytesIO()
            image.save(file, form, **options)
            found.append(file.getvalue())
    return [*found, b"P3 2 2 255\n1 2 3 4 5 6 7 8 9 10 11 12\n"]


def broken(content: bytes, others: list[bytes], dice: random.Random) -> bytes:
    """A picture with something wrong with it."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 8))):
        place = dice.randrange(len(changed)) if changed else 0
        kind = dice.randrange(8)
        if kind == 0 and changed:
            changed[place] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del changed[place:]
        elif kind == 2:
            changed[place : place + 4] = struct.pack(">I", dice.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 65_535, 30_000)))
        elif kind == 3:
            changed[place : place + 2] = struct.pack("<H", dice.choice((0, 1, 16_383, 20_000, 65_535)))
        elif kind == 4:
            other = dice.choice(others)
            changed[place:] = other[dice.randrange(len(other)) :]
        elif kind == 5:
            changed[place:place] = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 40)))
        elif kind == 6:
            changed[place:place] = changed[place : place + dice.randrange(1, 200)] * dice.randrange(1, 50)
        else:
            del changed[place : place + dice.randrange(1, 60)]
    return bytes(changed)


def bombs() -> dict[str, bytes]:
    """Small files that ask for much."""

    def saved(image: Image.Image, form: str, **options: Any) -> bytes:
        file = io.BytesIO()
        image.save(file, form, **options)
        return file.getvalue()

    jpeg = saved(Image.new("RGB", (4000, 4000)), "JPEG", progressive=True)
    last = jpeg.rindex(b"\xff\xda")
    png = saved(Image.new("L", (8, 8)), "PNG")
    chunk = bytes(4) + b"zzZz" + zlib.crc32(b"zzZz").to_bytes(4, "big")
    body = bytes(4) + (11_999).to_bytes(3, "little") * 2
    webp = b"WEBPVP8X" + len(body).to_bytes(4, "little") + body
    huge = bytearray(png)
    huge[16:24] = struct.pack(">II", 60_000, 60_000)
    huge[29:33] = zlib.crc32(huge[12:29]).to_bytes(4, "big")
    return {
        "5,000 scans": jpeg[:-2] + jpeg[last:-2] * 5000 + jpeg[-2:],
        "90 scans": jpeg[:-2] + jpeg[last:-2] * 90 + jpeg[-2:],
        "2.4 million chunks": png[:33] + chunk * 2_400_000 + png[33:],
        "7 million segments": jpeg[:2] + b"\xff\xfe\0\2" * 7_000_000 + jpeg[2:],
        "30 MB of padding": jpeg[:2] + b"\xff" * 30_000_000 + jpeg[2:],
        "declared WebP": b"RIFF" + len(webp).to_bytes(4, "little") + webp,
        "declared PNG": bytes(huge),
        "float TIFF of 8,000²": saved(Image.new("F", (8000, 8000)), "TIFF", compression="tiff_lzw"),
        "RGBA PNG of 9,000²": saved(Image.new("RGBA", (9000, 9000)), "PNG"),
        "16-bit PNG of 9,000²": saved(Image.new("I;16", (9000, 9000)), "PNG"),
        "30 MB of comments": b"P5\n#" + b"a" * 30_000_000 + b"\n2 2 255\n0000",
        "comments in numbers": b"P2\n2 2 255\n" + b"#\n" * 5_000_000 + b"1 2 3 4",
    }


def pictures(found: Round, tries: int, seed: int, here: Path) -> None:
    dice = random.Random(seed)
    kinds = good_pictures()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for content in kinds:
            with found.trying("a good picture"):
                read_picture(content, at_least=48)
        before = memory(key="VmRSS")
        for number in range(tries):
            with found.trying(f"picture {number} of seed {seed}"):
                read_picture(broken(dice.choice(kinds), kinds, dice), at_least=48, most_pixels=64_000_000)
        found.expect(memory(key="VmRSS") - before < PROMISED, f"{memory(key='VmRSS') - before:.0f} MB were kept")
        made = bombs()
        names = list(made)
        for number, name in enumerate(names):
            (here / str(number)).write_bytes(made.pop(name))
        for number, name in enumerate(names):
            Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted anew
            before = memory(key="VmRSS")
            with found.trying(name):
                read_picture(here / str(number), at_least=48)
            above = memory() - before
            found.memory = max(found.memory, above)
            found.expect(above < PROMISED, f"{name}: {above:.0f} MB above the start")


# Scores.

ABC = b"""X:1\nT:A tune\nM:4/4\nL:1/8\nQ:1/4=120\n%%MIDI program 40\nK:G\nV:1
|: "G"GABc dedB | "C"c2ec B2dB |1 "D"A2FA DEFA :|2 "G"G8 |]\nV:2
[K:D] (3abc d>e f/2g/2 ~a {gf}e [CEG]4 | z8 | !trill!A4 B4- | B8 |\nw: la la\n"""


def hostile_scores(secret: Path) -> dict[str, bytes]:
    """Small files that ask for much, or for what is not theirs."""

    def far(ticks: int) -> bytes:  # a number as MIDI writes it
        return bytes([*(128 | ticks >> shift & 127 for shift in (21, 14, 7)), ticks & 127])

    def midi(*tracks: bytes, ticks: int = 480) -> bytes:
        head = b"MThd" + struct.pack(">IHHH", 6, 1, len(tracks), ticks)
        ended = [one + b"\0\xff\x2f\0" for one in tracks]
        return head + b"".join(b"MTrk" + struct.pack(">I", len(one)) + one for one in ended)

    note, pause = b"\0\x90\x3c\x40\x83\x60\x80\x3c\0", far(2**28 - 1) + b"\xb0\0\0"
    tempo, metre, text = b"\1\xff\x51\3\0\0\1", b"\1\xff\x58\4\1\6\x18\x08", b"\1\xff\x06\1C"
    found = {
        "no ticks": midi(note, ticks=0), "frames of SMPTE": midi(note, ticks=0xE250), "one tick": midi(note, ticks=1),
        "tempo of 0": midi(b"\0\xff\x51\3\0\0\0" + note), "500,000 tempos": midi(tempo * 500_000 + note),
        "metre 0/4": midi(b"\0\xff\x58\4\0\2\x18\x08" + note), "480,000 metres": midi(metre * 480_000 + note),
        "metre 4/2^255": midi(b"\0\xff\x58\4\4\xff\x18\x08" + note), "500,000 markers": midi(text * 500_000 + note),
        "19,000 metres": midi(metre * 19_000 + note), "19,000 markers": midi(text * 19_000 + note),
        "a note of ten hours": midi(b"\0\x90\x3c\x40" + far(480 * 2 * 36_000) + b"\x80\x3c\0"),
        "a note after years": midi(pause * 40 + note), "one of years": midi(note[:4] + pause * 40 + b"\0\x80\x3c\0"),
        "99,990 notes at once": midi(note[:4] * 99_990 + far(480 * 1990) + b"\x80\x3c\0"),
        "500,000 notes": midi(b"\0\x90\x3c\x40\1\x80\x3c\0" * 500_000), "60,000 tracks": midi(*[note] * 60_000),
        "1,000 tracks": midi(*[note] * 1000), "a track of 4 GB": midi(note)[:18] + b"\xff\xff\xff\xff" + note,
        "4 MB of zeros": b"MThd" + bytes(4 * 2**20 - 4), "5 MB": midi(note) + bytes(5 * 2**20),
    }  # fmt: skip
    head = b"X:1\nT:a\nM:4/4\nL:1/8\nQ:1/4=120\nK:C\n"
    places = {"metre": b"4/4", "unit": b"1/8", "tempo": b"1/4=120", "key": b"C\n"}
    for name, place in places.items():
        for value in (b"0/0", b"1/0", b"0", b"99999999999/4", b"1/4=99999999999", b"-1", b"^c" * 400, b"%n%s"):
            found[f"{name} {value[:16]!r}"] = head.replace(place, value + b"\n" * (name == "key")) + b"CDEF|\n"
    tunes = {
        "lengths": b"C99999999999 D/0 E/999999999|", "rests": b"z999999999 C|", "bars of rest": b"Z999999999 C|",
        "a long line": b"C" * 3_000_000, "octaves": b"c" + b"'" * 900 + b"C" + b"," * 900, "octaves too long":
        b"c" + b"'" * 2_000_000, "repeats": b"|:" * 20 + b"CDEF" + b":|" * 20, "tuplets": b"(999999999:0:0CDE (0CDE|",
        "braces": b"{" * 900 + b"C|", "slurs": b"(" * 900 + b"C|", "ties": b"C-" * 450, "endings": b"[1" * 400 + b"C|",
        "parts": b"P:((((A9)9)9)9)9\nCDEF|", "another file": b"%%abc-include " + bytes(secret) + b"\nC|",
        "a device": b"%%abc-include /dev/zero\nC|", "voices": b"".join(b"V:%d\nCDEF|\n" % n for n in range(20_000)),
        "zeros": bytes(100_000) + b"C|", "all bytes": bytes(range(256)) * 900, "words": b"CD|\nw:" + b"la-" * 300,
    }  # fmt: skip
    found |= {name: head + tune + b"\n" for name, tune in tunes.items()}
    found["parts times 10^9"] = head.replace(b"K:", b"P:A999999999\nK:") + b"P:A\nCDEF|\n"
    return found | {
        "many tunes": (head + b"CDEF|\n\n") * 20_000,
        "nothing": b"X:1",
        "macros": b"X:1\nm: ~n = ~n~n\nK:C\n~C|\n",
    }


def scores(found: Round, tries: int, seed: int, here: Path) -> None:
    """MIDI and ABC, read, measured and drawn."""
    try:
        importlib.import_module("symusic")
    except ImportError:
        found.note = "symusic is not installed: pip install 'meshcap[music]'"
        return
    from meshcap.music.roll import draw_roll
    from meshcap.music.score import read_score
    from meshcap.vision.score import ReadScore

    secret = here / "secret.abc"
    secret.write_bytes(b"GABc|\n" * 9)
    dice = random.Random(seed)
    midi = importlib.import_module("music_scores").EIGHT.to_midi()

    def attack(what: str, content: bytes) -> None:
        with found.trying(what):
            score = read_score(content)
            draw_roll(score)
            found.expect(bool(np.isfinite(ReadScore().read(content)).all()), f"{what}: features that are no numbers")
            found.expect(what != "another file" or len(score) < 9, "another file was read")

    attack("a good score", midi)
    attack("a good tune", ABC)
    before = memory(key="VmRSS")
    for number in range(max(100, tries // 8)):
        attack(f"MIDI {number} of seed {seed}", broken(midi, [midi], dice))
    for number in range(max(20, tries // 100)):
        attack(f"ABC {number} of seed {seed}", broken(ABC, [ABC], dice))
    for what, content in hostile_scores(secret).items():
        attack(what, content)
    found.memory = memory() - before
    found.expect(found.memory < PROMISED, f"{found.memory:.0f} MB above the start")
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    found.note = f"memory above the start; that of abc2midi: at most {children:.0f} MB"


# Memories.

WRITER = """if True:
    import sys, numpy as np
    from meshcap.memory.store import Entry, FolderStore
    folder, name, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
    kept, dice = FolderStore(folder), np.random.default_rng(int(name))
    for number in range(10**6):
        (id,) = kept.add(dice.normal(size=(1, width)), [Entry((f"{name} {number}",))])
        print(id, name, number, flush=True)"""


def memories(found: Round, tries: int, count: int, seed: int, here: Path) -> None:
    """Damaged and hostile stores; two writers at once, one killed: what was acknowledged is there, once."""
    from meshcap.memory.store import FRAME, MARK, Entry, FolderStore

    dice, width = random.Random(seed), 24
    vectors = np.random.default_rng(seed).normal(size=(30, width))
    good, folder, victim = here / "good", here / "hostile", here / "victim"
    kept = FolderStore.create(good, vision="v", width=width)
    kept.add(vectors, [Entry((f"a dog {n}",), ("Rex",), f"{n}.jpg", 1.0) for n in range(30)])
    files = sorted(one.name for one in good.iterdir() if one.name != "lock")
    said = {one.id: one.captions for one in kept.entries()}

    def forged(folder: Path) -> None:
        text = json.dumps({"captions": ["a dog"], "names": [], "source": None, "time": 1.0}).encode()
        payload = broken(text, [text], dice)
        rest = struct.pack("<QQI", *(dice.choice((0, 5, 40, 10**9, 2**63, 2**64 - 1)) for _ in range(2)), 0)
        head = MARK + struct.pack("<II", len(payload), zlib.crc32(payload, zlib.crc32(rest)))
        with open(folder / "entries-1.log", "ab") as file:
            file.write(head + rest + payload)

    def damaged(folder: Path) -> None:
        path = folder / dice.choice(files)
        path.write_bytes(broken(path.read_bytes(), [path.read_bytes()], dice))

    def set_to(name: str, value: Any) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            path = folder / "store.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

        return change

    def replaced(name: str, content: bytes | Path | None) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            (folder / name).unlink(missing_ok=True)
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            elif content is None:
                os.mkfifo(folder / name)
            else:
                (folder / name).symlink_to(content)

        return change

    values: list[Any] = [0, -1, 1.5, 10**18, 10**4000, None, "x", "../x", [], {}, True]
    attacks: list[tuple[str, Callable[[Path], None]]] = []
    for number in range(max(40, tries // 40)):
        attacks.append((f"{'forged' if number % 4 == 0 else 'damaged'} {number}", damaged if number % 4 else forged))
    for name in json.loads((good / "store.json").read_text()):
        for value in values:
            attacks.append((f"{name}={str(value)[:9]}", set_to(name, value)))
    endless = struct.pack("<4sII", MARK, 2**20, 1) + bytes(FRAME.size - 12)
    contents: dict[str, bytes | Path | None] = {
        "empty": b"", "marks": MARK * 10**7, "long frames": endless * 10**6, "deep": b"[" * 10**6, "a pipe": None,
        "a link": victim, "a link to nothing": here / "new", "a device": Path("/dev/zero"),
    }  # fmt: skip
    for name in (*files, "lock"):
        for what, content in contents.items():
            attacks.append((f"{name} is {what}", replaced(name, content)))
    victim.write_bytes(b"precious")
    for what, change in attacks:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good, folder)
        change(folder)
        with found.trying(what):
            hostile = FolderStore(folder)
            hostile.check()
            near = [one for row in hostile.nearest(vectors[:3], 4) for one in row]
            if not what.startswith("forged"):
                found.expect(all(said.get(one.id) == one.captions for one in near), f"{what}: another caption")
            hostile.find("dog")
            (id,) = hostile.add(vectors[:1] + 1, [Entry(("new",))])
            found.expect(
                any(one.id == id for one in hostile.nearest(vectors[:1] + 1, 3)[0]), f"{what}: new one missing"
            )
            found.expect(hostile.forget([id]) == 1, f"{what}: not forgotten")
        found.expect(victim.read_bytes() == b"precious" and not (here / "new").exists(), f"{what}: wrote elsewhere")
    for number in range(count):
        shutil.rmtree(folder, ignore_errors=True)
        FolderStore.create(folder, vision="v", width=width)
        told: list[str] = []
        with found.trying("a writer killed beside another", hang=300):
            words = [[sys.executable, "-c", WRITER, str(folder), str(2 * number + one), str(width)] for one in (0, 1)]
            writers = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True, env=environment()) for one in words]
            for writer, lines in zip(writers, (dice.randrange(5, 60), 20), strict=True):
                assert writer.stdout is not None
                told += [writer.stdout.readline() for _ in range(lines)]
                time.sleep(dice.uniform(0, 0.02))
                writer.kill()
                told += writer.stdout.readlines()
                writer.wait()
                found.kills += 1
            there = {one.id: one.captions[0] for one in FolderStore(folder).entries()}
            for line in told:
                if line.endswith("\n"):
                    number_, _, text = line.strip().partition(" ")
                    found.expect(there.get(int(number_)) == text, f"{line.strip()!r} is lost")
            found.expect(len(set(there.values())) == len(there), "remembered twice")
            found.expect(FolderStore(folder).check() == [], "damaged by a kill")
            found.expect(len(told) > 20, f"the writers told {told}")
    found.memory = memory()
    found.note = f"{found.kills} kills at work"


# Model folders and archives.


def hostile_folders(tiny: Path, dice: random.Random, count: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Names, and what is done to a copy of a good folder."""

    def config(name: str, **changes: Any) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            path = folder / name
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))

        return change

    def text(name: str, content: bytes) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            (folder / name).write_bytes(content)

        return change

    settings = json.loads((tiny / "config.json").read_text())
    values: list[Any] = [0, -1, 10**6, 10**9, 10**18, 10**4000, 1e308, None, "x", [], {}, True, [10**9] * 10]
    for name in settings:
        for value in values:
            yield f"config.json {name}={str(value)[:12]}", config("config.json", **{name: value})
    for name in json.loads((tiny / "vision/vision.json").read_text()):
        for value in [*values, {"size": 10**9}, {"size": "x"}, {"mean": [1e400] * 3}]:
            yield f"vision.json {name}={str(value)[:12]}", config("vision/vision.json", **{name: value})
    files = [path.relative_to(tiny) for path in tiny.rglob("*") if path.suffix in (".json", ".safetensors")]
    for file in files:
        for content in (b"", b"[" * 100_000, b'{"a":' * 100_000, b'{"x": ' + b"9" * 5000 + b"}", b"\xff\xfe", b"null"):
            yield f"{file} as {content[:8]!r}", text(str(file), content)
    for number in range(count):
        file = dice.choice(files)
        content = (tiny / file).read_bytes()
        yield f"{file} broken {number}", text(str(file), broken(content, [content], dice))


def folders(found: Round, tries: int, seed: int, here: Path) -> None:
    tiny = make_model(here)
    grey = np.full((50, 50, 3), 128, np.uint8)
    for name, change in hostile_folders(tiny, random.Random(seed), max(20, tries // 60)):
        folder = here / "hostile"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tiny, folder)
        change(folder)
        with found.trying(name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            caption = Captioner.from_pretrained(folder, device="cpu").caption(grey)
            found.expect(caption.confidence == caption.confidence and bool(json.dumps(caption.to_dict())), name)
    found.memory = memory()


def archives(found: Round, tries: int, seed: int, here: Path) -> None:
    """Archives of torch.export that would run code, hostile checkpoints, tar shards and lists."""
    import tarfile

    from meshcap.data.shards import members

    mark = here / "ran"
    try:
        exported = importlib.import_module("exported")
        attacks = importlib.import_module("backends.test_export_backend")
    except BaseException as error:  # pytest's own kind of skipping is no Exception
        found.note = f"torch.export archives are left out: {error}"
    else:
        for attack in attacks.HOSTILE:
            folder = here / "exported"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(exported.folder("torch"), folder)
            parts = attacks.read(folder / "see.pt2")
            attack(parts, mark)
            attacks.write(folder / "see.pt2", parts)
            with found.trying(attack.__name__):
                Captioner.from_pretrained(folder)
                found.failures.append(f"{attack.__name__} was loaded")
            found.expect(not mark.exists(), f"{attack.__name__} ran code")
    dice = random.Random(seed)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number in range(4):
            info = tarfile.TarInfo(f"{'long/' * 30}{number}.jpg")
            info.size = 100
            tar.addfile(info, io.BytesIO(bytes(100)))
    content = file.getvalue()
    for number in range(max(200, tries // 10)):
        with found.trying(f"tar {number}"):
            list(members(Path("a.tar"), broken(content, [content], dice)))
    found.memory = memory()


# Pages: the gallery of batch, the page of export.

EVIL = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"'><svg/onload=alert(1)>", "<!--", "]]>",
    "javascript:alert(1)", "&lt;b&gt;&#60;", "${alert(1)}", "`", "\\u003c/script>", "\u2028\u2029", "\u202egnp",
    "#p1",    "?a=%3Cb%3E", "%00", "--", "=1+1", "\ufeff", "\U0001f415", "{{7*7}}", "data:text/html,<script>", "a\nb",
    "\x1b[31m", "\x7f", "<title>", "<base href=//x>",
)  # fmt: skip


class Page(HTMLParser):
    """What a browser would find in a page: its elements, its text, its scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts = "", [""]
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.scripts.append("")
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [given for name, given in self.found if name == tag]


def check_gallery(found: Round, what: str, path: Path, count: int) -> None:
    """A page of so many pictures, in which nothing runs but its own script, and nothing comes from elsewhere."""
    content = path.read_bytes()
    page = Page(content.decode("utf-8"))
    known = (
        "html head meta title style body header h1 input output nav b a main ul figure figcaption span img small script"
    )
    strange = sorted({tag for tag, _ in page.found} - set(known.split()))
    found.expect(not strange, f"{what}: the page has {strange[:3]}")
    given = {name for _, some in page.found for name in some}
    found.expect(not any(name.startswith("on") for name in given), f"{what}: {sorted(given)}")
    policy = next((one["content"] or "" for one in page.of("meta") if one.get("http-equiv")), "")
    own = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    right = f"script-src 'sha256-{own}'" in policy and policy.startswith("default-src 'none'")
    found.expect(len(page.of("script")) == 2 and right, f"{what}: {len(page.of('script'))} scripts, {policy}")
    found.expect(len(page.of("figure")) == count, f"{what}: {len(page.of('figure'))} pictures, expected {count}")
    links = [link["href"] or "" for link in page.of("a")] + [other for other, *_ in json.loads(page.scripts[0])]
    for place in links:
        found.expect(re.match(r"[^/?#]*:|//", place) is None, f"{what}: a link to {place[:60]}")
        there = os.fsdecode(unquote_to_bytes(place))
        found.expect((path.parent / there).exists(), f"{what}: a link to nothing, {place[:60]}")
    own_pictures = all((one["src"] or "").startswith("data:image/") for one in page.of("img"))
    found.expect(own_pictures, f"{what}: a picture from elsewhere")


def gallery(found: Round, tries: int, seed: int, here: Path) -> None:
    """`batch --gallery` on hostile names and links, with a model whose words are HTML; and pages of random captions."""
    import tarfile

    from meshcap.batch import gallery as rooms
    from meshcap.batch.inputs import Picture

    dice, good = random.Random(seed), good_pictures()[0]
    photos, secret = here / "photos", here / "secret.txt"
    photos.mkdir()
    secret.write_text("a secret of somebody's")
    names = [f"{one.replace('/', '_')}.jpg" for one in EVIL]
    for name in names:
        (photos / name).write_bytes(good)
    with open(os.fsencode(photos) + b"/\xff\xed\xa0\x80.jpg", "wb") as file:
        file.write(good)
    (photos / "link.jpg").symlink_to(secret)
    (photos / "good link.jpg").symlink_to(photos / names[1])
    (photos / "loop.jpg").symlink_to(photos / "loop.jpg")
    (photos / "nothing.jpg").symlink_to(here / "nothing")
    (photos / "device.jpg").symlink_to("/dev/zero")
    os.mkfifo(photos / "pipe.jpg")
    with tarfile.open(here / "shard.tar", "w") as tar:
        for number, name in enumerate((*EVIL, "../../up", "/top", "a\udcff", "x" * 3000)):
            info = tarfile.TarInfo(f"{name}{number}.jpg")
            info.size = len(good)
            tar.addfile(info, io.BytesIO(good))
    model = make_model(here)
    vocabulary = json.loads((model / "vocabulary.json").read_text())
    words = vocabulary["model"]["vocab"]
    ordinary = [word for word in words if not word.startswith("<")]
    renamed = {word: EVIL[at] for at, word in enumerate(ordinary)}
    vocabulary["model"]["vocab"] = {renamed.get(word, word): id for word, id in words.items()}
    (model / "vocabulary.json").write_text(json.dumps(vocabulary))
    place = here / "pages"
    place.mkdir()
    for name in ("page.html", "a#b?c%20.html", "<b>'\".html", "javascript:alert(1).html"):
        with found.trying(f"batch --gallery {name}", hang=120):
            table = here / "captions.jsonl"
            given = ["batch", str(photos), str(here / "shard.tar"), "--model", str(model), "--device", "cpu",
                     "--max-words", "9", "--restart", "--out", str(table), "--gallery", str(place / name)]  # fmt: skip
            done = run(given, here)
            errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
            tidy = done.returncode in (0, 1) and "Traceback" not in done.stderr
            found.expect(tidy, f"--gallery {name}: {done.returncode} {done.stderr[-200:]}")
            rows = table.read_bytes().count(b"\n") if table.exists() else -1
            found.expect(rows >= 2 * len(EVIL) and bool(errors), f"--gallery {name}: {rows} rows, {len(errors)} errors")
            check_gallery(found, name, place / name, rows)
            found.expect(b"a secret of" not in (place / name).read_bytes(), f"{name}: the secret is in the page")
    usual, rooms.EACH, several = rooms.EACH, 3, 0
    try:
        for number in range(max(40, tries // 100)):
            with found.trying(f"pages {number} of seed {seed}"):

                def text(most: int = 4) -> str:
                    kinds = (*EVIL, "\udcff", chr(dice.randrange(1, 0xD800)))
                    return "".join(dice.choices(kinds, k=dice.randrange(1, most)))

                own = f"{text(3).replace('/', '_')}{chr(0xDCFF) * (number % 4 == 0)}.html"
                cards = []
                for at in range(dice.randrange(8)):
                    row = {"caption": text(), "tags": [{"name": text()}], "alternatives": [{"caption": text()}]}
                    path = photos / f"{text(3).replace('/', '_')}{at}.jpg"
                    if dice.random() < 0.7:
                        path.write_bytes(good if dice.random() < 0.5 else broken(good, [good], dice))
                    there = path if path.exists() else photos / names[0]
                    cards.append((Picture(str(there)), {"path": str(there), "confidence": 0.5, **row}))
                rooms.write_gallery(place / own, cards)
                if len(cards) > 3:
                    several += 1
                for page in range(max(1, -(-len(cards) // 3))):
                    one = place / own if page == 0 else (place / own).with_name(f"{(place / own).stem}-{page + 1}.html")
                    check_gallery(found, ascii(own), one, len(cards[3 * page : 3 * page + 3]))
    finally:
        rooms.EACH = usual
    found.expect(several > 5, f"{several} galleries of several pages")
    found.memory = memory()


def web(found: Round, tries: int, seed: int, here: Path) -> None:
    """`export --format web` of models with hostile words and names, with hostile copies of the runtime."""
    import tarfile

    try:
        importlib.import_module("onnxscript")
    except ImportError:
        found.note = "onnxscript is not installed: pip install 'meshcap[export]'"
        return
    from meshcap.export import web as room

    dice, secret = random.Random(seed), here / "secret"
    secret.write_bytes(b"a secret of somebody's")
    files = {
        "ort.wasm.min.mjs": b"import('ort-wasm-simd-threaded.mjs')", "ort-wasm-simd-threaded.mjs": b"glue",
        "ort-wasm-simd-threaded.wasm": b"wasm", "ort.webgpu.min.mjs": b"import('ort-wasm-simd-threaded.asyncify.mjs')",
        "ort-wasm-simd-threaded.asyncify.mjs": b"glue", "ort-wasm-simd-threaded.asyncify.wasm": b"wasm",
    }  # fmt: skip

    def packed(change: Callable[[Any, str, bytes], None] | None = None) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(f"package/dist/{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
                if change is not None:
                    change(archive, name, content)
        return file.getvalue()

    def linked(archive: Any, name: str, content: bytes) -> None:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo(f"package/dist/{name}")
            info.type, info.linkname = kind, str(secret)
            archive.addfile(info)

    def escaping(archive: Any, name: str, content: bytes) -> None:
        for path in (
            f"../{name}",
            f"package/dist/../../../{name}",
            f"/{name}",
            f"package/dist/{name}/../../x",
            "a/" * 900,
        ):
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

    def bomb(archive: Any, name: str, content: bytes) -> None:
        for number in range(2):  # 1.2 GB, in a few MB
            info = tarfile.TarInfo(f"package/dist/ort-wasm-simd-threaded.{zlib.crc32(name.encode())}{number}.wasm")
            info.size = 100_000_000
            archive.addfile(info, Zeros(info.size))

    good = packed()
    plain = gzip.decompress(good)
    archives = {
        "links": packed(linked),
        "escapes": packed(escaping),
        "a bomb": packed(bomb),
        "none": b"",
        "x": b"x" * 999,
    }
    for number in range(max(60, tries // 40)):
        archives[f"broken {number}"] = broken(good, [good], dice)
        archives[f"broken tar {number}"] = gzip.compress(broken(plain, [plain], dice), 1)
    package = here / "runtime.tgz"
    before = memory(key="VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted anew
    for what, content in archives.items():
        package.write_bytes(content)
        with found.trying(f"a runtime with {what}"):
            given: dict[str, bytes] = {}
            read = room.runtime_reader(package)
            for kind in ("wasm", "webgpu"):
                room.add_runtime(read, kind, given)
            found.expect(all(re.fullmatch(r"[\w.-]+", name) for name in given), f"{what}: files called {sorted(given)}")
            found.expect(not any(b"a secret of" in one for one in given.values()), f"{what}: another file was read")
    found.memory = memory() - before
    found.expect(found.memory < PROMISED, f"{found.memory:.0f} MB above the start")
    folder = here / "linked" / "dist"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "ort-wasm-simd-threaded.mjs").unlink()
    (folder / "ort-wasm-simd-threaded.mjs").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    package.write_bytes(good)
    model = make_model(here)
    shown = json.loads((model / "vocabulary.json").read_text())
    words = shown["model"]["vocab"]
    renamed = dict(zip((word for word in words if not word.startswith("<")), EVIL, strict=False))
    shown["model"]["vocab"] = {renamed.get(word, word): id for word, id in words.items()}
    evil = here / "<img src=x onerror=alert(1)>"
    shutil.copytree(model, evil)
    (evil / "vocabulary.json").write_text(json.dumps(shown))
    strange = Path(os.fsdecode(os.fsencode(here) + b"/\xff\xed\xa0\x80"))
    shutil.copytree(model, strange)
    taken, pointed = here / "taken", here / "pointed"
    taken.mkdir()
    (taken / "mine").write_text("mine")
    pointed.symlink_to(taken)
    out = here / "page"
    for what, folder_, runtime, place, wanted in (
        ("words of HTML", evil, package, out, 0), ("a name that is no text", strange, package, out, 2),
        ("a linked runtime", model, folder.parent, out, 2), ("a taken folder", model, package, taken, 2),
        ("a link to a taken folder", model, package, pointed, 2), ("no model", taken, package, out, 2),
    ):  # fmt: skip
        with found.trying(f"export with {what}", hang=120):
            shutil.rmtree(out, ignore_errors=True)
            given_words = ["export", str(folder_), "--format", "web", "--runtime", str(runtime), "--out", str(place)]
            done = run(given_words, here)
            found.expect(done.returncode == wanted, f"{what}: left with {done.returncode}: {done.stderr[-200:]}")
            one_line = len([line for line in done.stderr.splitlines() if line.startswith("error")]) == (wanted != 0)
            found.expect(one_line and "Traceback" not in done.stderr, f"{what}: not one line: {done.stderr[-200:]}")
            found.expect((out / "index.html").exists() == (wanted == 0), f"{what}: a page that is half there")
            if wanted == 0:
                about = json.loads((out / "model.json").read_text("utf-8"))
                found.expect(len(about["words"]) == len(words), f"{what}: other words")
                page = room.page((room.PAGE / "index.html").read_bytes().decode())
                found.expect((out / "index.html").read_bytes() == page, f"{what}: the page has something of the model")
                for path in out.iterdir():
                    found.expect(b"a secret of" not in path.read_bytes(), f"{what}: {path.name} has the secret")
        found.expect([one.name for one in taken.iterdir()] == ["mine"], f"{what}: wrote elsewhere")


class Zeros(io.RawIOBase):
    """As many zeros."""

    def __init__(self, size: int):
        self.left = size

    def read(self, size: int = -1) -> bytes:
        count = self.left if size < 0 else min(size, self.left)
        self.left -= count
        return bytes(count)


# A server.


def make_model(here: Path) -> Path:
    folder = here / "tiny"
    if not folder.exists():
        importlib.import_module("tiny_captioner").saved(folder)
    return folder


@contextlib.contextmanager
def server(here: Path, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    words = ["serve", "--model", str(make_model(here)), "--port", "0", "--device", "cpu", "--threads", "2", *more]
    with open(here / "server.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "meshcap", *words], stdout=subprocess.PIPE, stderr=log, env=environment()
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        yield process, int(line.split(":")[2].split("/")[0])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}  # another cluster's
    return {**inherited, **QUIET, "PYTHONPATH": os.pathsep.join([str(TOP / "src"), *sys.path])}


def ask(port: int, content: bytes | None, *, path: str = "/v1/caption", timeout: float = 120) -> tuple[int, bytes]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        line.request("GET" if content is None else "POST", path, content, {"Content-Type": "image/jpeg"})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def memory_of_all(process: subprocess.Popen[bytes]) -> float:
    """The server and its decoders, now."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    pids = [process.pid]
    for task in Path(f"/proc/{process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += map(int, task.read_text().split())
    return sum(memory(pid, "VmRSS") for pid in set(pids)) if children.exists() else 0.0


def schema(found: Round, tries: int, seed: int, here: Path) -> None:
    """schemathesis against what /openapi.json declares."""
    tool = os.environ.get("SCHEMATHESIS") or shutil.which("schemathesis")
    if tool is None:
        found.note = "schemathesis is not installed: a venv with it, and SCHEMATHESIS=path/to/schemathesis"
        return
    examples = max(20, min(100, tries // 60))
    with server(here) as (process, port):
        address = f"http://127.0.0.1:{port}"
        words = [tool, "run", f"{address}/openapi.json", "--url", address, "-n", str(examples), "--seed", str(seed)]
        start = time.monotonic()
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        done = subprocess.run([*words, "--checks", checks], capture_output=True, text=True, cwd=here)
        generated = re.search(r"([\d,]+) generated", done.stdout)
        found.tries = int(generated[1].replace(",", "")) if generated else examples
        found.memory = memory_of_all(process)
        text = ask(port, None, path="/metrics")[1].decode()
        counts = re.findall(r"requests_total\{path=./v1/caption.,status=.(\d+).\} (\d+)", text)
        found.note = f"{time.monotonic() - start:.0f} s in all; captions: " + ", ".join(f"{n} × {s}" for s, n in counts)
        found.expect(sum(int(n) for _, n in counts) > 50, f"hardly anything was asked: {found.note}")
        if done.returncode:
            (here / "schemathesis.txt").write_text(done.stdout)
            found.failures.append(f"schemathesis: {' '.join(done.stdout.split())[-400:]}")
        found.expect(process.poll() is None and ask(port, None, path="/health")[0] == 200, "the server is gone")


def hostile_requests(picture: bytes, dice: random.Random, count: int) -> Iterator[tuple[str, str, bytes]]:
    """What programs may send that speak Ollama's or OpenAI's interface: a name, a path, a body."""
    text = base64.b64encode(picture).decode()

    def openai(url: Any = f"data:image/jpeg;base64,{text}", prompt: Any = "Describe this.", **more: Any) -> bytes:
        parts = [{"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": url}}]
        return json.dumps({"model": "x", "messages": [{"role": "user", "content": parts}], **more}).encode()

    def ollama(images: Any = (text,), prompt: Any = "Describe this.", **more: Any) -> bytes:
        return json.dumps({"model": "x", "prompt": prompt, "images": images, "stream": False, **more}).encode()

    completions, generate, chat = "/v1/chat/completions", "/api/generate", "/api/chat"
    start = "data:image/jpeg;base64,"
    urls: list[Any] = ["", "data:", "data:,", "data:image/jpeg,x", start, f"{start}%%%", "x" * 10**6, None, 5, {}]
    urls += ["data:" + "a" * 10**6 + ";base64," + text, start + "=" * 10**6, "file:///etc/passwd", "http://127.0.0.1/"]
    urls += ["http://[::1]:1/", "gopher://x", "\ud800", f"{start}\0"]
    for url in urls:
        yield f"url {str(url)[:30]!r}", completions, openai(url)
        yield f"image {str(url)[:30]!r}", generate, ollama([url])
    for size in (1, 20, 30, 40, 100):
        yield f"{size} MB of base64", completions, openai("data:image/png;base64," + "A" * (size * 10**6))
    for name, bomb in bombs().items():
        if len(bomb) < 20_000_000:
            yield name, generate, ollama([base64.b64encode(bomb).decode()])
    words = ("a", "between ", "1 ", "at least ", "use 'dog' ", "'", '"', "avoid ", "no keywords ", "five very ", "1-",
             ".;", "\u0000", "\ud800", "\u202e", "🐕", "keywords ", "\n", "three 3 captions ")  # fmt: skip
    for word in words:
        prompt = (word * 10**6)[: 10**6]
        yield f"a prompt of {word[:9]!r}", generate, ollama(prompt=prompt)
        yield f"a prompt of {word[:9]!r}", completions, openai(prompt=prompt)
    deep: Any = {"type": "object"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"caption": deep}}
    wide = {"type": "object", "properties": {f"label{n}": {"type": "array"} for n in range(100_000)}}
    odd: list[Any] = [[], 5, {"type": ["array"]}, {"properties": 5}, {"type": {"a": 1}}, {"$ref": "#"}]
    for schema in ("json", deep, wide, *odd):
        yield f"a schema {str(schema)[:20]}", generate, ollama(format=schema)
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        yield f"a schema {str(schema)[:20]}", completions, openai(response_format=form)
    values: list[Any] = [0, -1, 10**9, 10**4000, 1e308, True, None, "x", [], {}]
    for value in values:
        yield f"n={str(value)[:9]}", completions, openai(n=value, max_tokens=value)
        yield f"num_predict={str(value)[:9]}", generate, ollama(options={"num_predict": value})
        fields = ({name: one} for name in ("messages", "images") for one in (value, [value] * 3))
        bodies: list[Any] = [value, *fields]
        for body in bodies:
            for path in (completions, generate, chat):
                yield f"{str(body)[:20]} to {path}", path, json.dumps(body).encode()
    yield "100,000 images", generate, ollama(["x"] * 100_000)
    yield "100,000 messages", chat, json.dumps({"messages": [{"role": "user", "content": "x"}] * 100_000}).encode()
    for content in (b"", b"[" * 10**6, b'{"messages":' * 10**5, b"9" * 10**6, b"\xff\xfe", b'{"n": NaN}', bytes(10**6)):
        for path in (completions, generate, chat):
            yield f"{content[:9]!r} to {path}", path, content
    for number in range(count):
        path, content = dice.choice(((completions, openai()), (generate, ollama())))
        yield f"broken {number}", path, broken(content, [content], dice)


def programs(found: Round, tries: int, seed: int, here: Path) -> None:
    """The interfaces of Ollama and OpenAI: hostile requests, clients that leave in the middle, and API keys."""
    dice, good = random.Random(seed), good_pictures()[0]
    keys, log = here / "keys", here / "server.log"
    keys.write_text("a-long-right-key\n")
    statuses: Counter[int] = Counter()
    with server(here, "--api-keys", str(keys)) as (process, port):
        idle = memory_of_all(process)

        def send(path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            try:
                sent = {"Content-Type": "application/json", "Authorization": "Bearer a-long-right-key"} | headers
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
                    line.request("POST", path, body, {name: value for name, value in sent.items() if value})
                answer = line.getresponse()
                return answer.status, answer.read()
            finally:
                line.close()

        def fine(path: str, body: bytes, what: str) -> None:
            status, content = send(path, body)
            statuses[status] += 1
            if status == 200:
                found.expect(bool(content), f"{what}: nothing was answered")
                return
            error = json.loads(content)["error"]
            message = error if path.startswith("/api/") else error["message"]
            found.expect(status in (400, 413, 422, 503, 504), f"{what}: {status} {message[:80]}")
            found.expect(
                isinstance(message, str) and "\n" not in message and len(message) < 1000, f"{what}: not one line"
            )

        usual = json.dumps({"images": [base64.b64encode(good).decode()]}).encode()
        for what, path, body in hostile_requests(good, dice, max(60, tries // 60)):
            with found.trying(what, pid=process.pid):
                fine(path, body, what)
            found.memory = max(found.memory, memory_of_all(process))
        for number in range(60):  # gone before, while or after the answer begins
            with found.trying(f"a client that leaves {number}"), socket.create_connection(("127.0.0.1", port)) as line:
                head = f"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(usual)}\r\n"
                sent = head.encode() + b"Authorization: Bearer a-long-right-key\r\n\r\n" + usual
                line.sendall(sent[: len(sent) if number % 3 else dice.randrange(len(sent))])
                if number % 3 == 2:
                    line.recv(dice.randrange(1, 400))
        key = "a-long-right-key"
        for given in ("", "Bearer", "Bearer ", f"Bearer {key[:-1]}", f"Bearer {key.upper()}", f"Basic {key}", key):
            for path in ("/api/generate", "/v1/chat/completions", "/v1/caption", "/v1/remember", "/metrics"):
                for host in ("127.0.0.1", "127.0.0.1/health?", "localhost/health#"):
                    with found.trying(f"{given!r} for {path} at {host}"):
                        status, _ = send(path, usual, Authorization=given, Host=host)
                        found.expect(status in (400, 401, 403), f"{given!r} for {path} at {host}: {status}")
        with found.trying("a good picture at the end", pid=process.pid):
            found.expect(send("/api/generate", usual)[0] == 200, "a good picture was not captioned at the end")
        found.expect(process.poll() is None and ask(port, None, path="/ready")[0] == 200, "not ready afterwards")
    above = found.memory - idle
    found.expect(above < 2 * PROMISED, f"{above:.0f} MB above the idle server")
    found.expect(log.stat().st_size < 100_000, "the log was flooded")
    found.expect(statuses[200] > 20 and statuses[422] > 20, f"hardly anything was asked: {statuses}")
    found.note = ", ".join(f"{count:,} × {status}" for status, count in sorted(statuses.items()))


def hostile_corrections(picture: bytes, dice: random.Random, count: int) -> Iterator[tuple[str, str, str, bytes]]:
    """What may be sent to be remembered: a name, a query, a content type, a body."""
    text, kind = base64.b64encode(picture).decode(), "application/json"

    def said(pictures: Any = None, **more: Any) -> bytes:
        return json.dumps({"pictures": [{"base64": text}] if pictures is None else pictures, **more}).encode()

    values: list[Any] = [None, 0, True, "", " ", "\ud800", "\udcff", "\0", "\u202e", "<script>", "a\nb", "x" * 2000]
    values += ["x" * 2001, "x" * 10**6, {}, [], [[]], [None], ["x"] * 100, ["x"] * 101, ["x"] * 10**5, 10**4000]
    values += [["\U0001f415" * 2000] * 100]
    for value in values:
        yield f"caption {str(value)[:9]!a}", "", kind, said(caption=value)
        yield f"names {str(value)[:9]!a}", "", kind, said(caption="a dog", names=value)
        yield f"pictures {str(value)[:9]!a}", "", kind, said(value, caption="a dog")
        yield f"picture {str(value)[:9]!a}", "", kind, said([{"base64": value}], caption="a dog")
        yield f"url {str(value)[:9]!a}", "", kind, said([{"url": value}], caption="a dog")
    yield "two pictures", "", kind, said([{"base64": text}] * 2, caption="a dog")
    yield "1,000 pictures", "", kind, said([{"base64": text}] * 1000, caption="a dog")
    yield "another field", "", kind, said(caption="a dog", id=1, memory="/etc/passwd", source="../x")
    for name in ("id", "source", "time", "memory", "beams", "caption"):
        yield f"?{name}", f"?{name}=%ff%ed%a0%80", "image/jpeg", picture
    for size in (31, 33, 60):
        yield f"{size} MB", "?caption=x", "image/jpeg", picture + bytes(size * 2**20)
    for name, bomb in bombs().items():
        if len(bomb) < 30_000_000:
            yield name, "?caption=x", "image/png", bomb
    form = b'--x\r\nContent-Disposition: form-data; name="caption"\r\n\r\na dog\r\n--x\r\n'
    form += b'Content-Disposition: form-data; name="picture"; filename="../../x"\r\n\r\n' + picture + b"\r\n--x--\r\n"
    multipart = "multipart/form-data; boundary=x"
    yield "a form", "", multipart, form
    yield "10,000 fields", "", multipart, form[:-7] + form[: form.index(b"a dog") + 7] * 10_000 + b"--x--\r\n"
    yield "a form without an end", "", multipart, form[:-9]
    yield "no boundary", "", "multipart/form-data", form
    yield "no type", "", "", form
    for content in (b"", b"[" * 10**6, b"9" * 10**6, b"\xff\xfe", b'{"pictures": NaN}', bytes(10**6)):
        yield f"{content[:9]!r}", "", kind, content
    for number in range(count):
        which, content = dice.choice(((kind, said(caption="a dog", names=["Rex"])), (multipart, form)))
        yield f"broken {number}", "", which, broken(content, [content], dice)


def corrections(found: Round, tries: int, count: int, seed: int, here: Path) -> None:
    """`POST /v1/remember`: hostile requests, other sites, no keys, and kills; what was acknowledged is there, once."""
    from meshcap.memory.store import FolderStore

    dice, key = random.Random(seed), "a-long-right-key"
    keys, store, log = here / "keys", here / "memory", here / "server.log"
    keys.write_text(key + "\n")
    more = ("--memory", str(store), "--remember", "--api-keys", str(keys))
    pictures = [picture_of_scene(number) for number in range(8)]
    told: set[int] = set()  # ids that were given
    statuses: Counter[int] = Counter()

    def send(port: int, body: bytes, path: str = "/v1/remember", **headers: str) -> tuple[int, bytes]:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            sent = {"Authorization": f"Bearer {key}", "Content-Type": "image/jpeg"} | headers
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
                line.request("POST", path, body, {name: value for name, value in sent.items() if value})
            answer = line.getresponse()
            return answer.status, answer.read()
        finally:
            line.close()

    with server(here, *more) as (process, port):
        idle = memory_of_all(process)
        for what, query, kind, body in hostile_corrections(pictures[0], dice, max(60, tries // 60)):
            with found.trying(what, pid=process.pid):
                status, content = send(port, body, f"/v1/remember{query}", **{"Content-Type": kind})
                statuses[status] += 1
                answer = json.loads(content)
                if status == 200:
                    told.add(answer["id"])
                    count_ = answer["entries"]
                    found.expect(count_ == len(told), f"{what}: {count_} entries, {len(told)} acknowledged")
                else:
                    message = answer["error"]["message"]
                    found.expect(status in (400, 413, 415, 422), f"{what}: {status} {message[:80]}")
                    found.expect("\n" not in message and len(message) < 1000, f"{what}: not one line")
            found.memory = max(found.memory, memory_of_all(process))
        query = "/v1/remember?caption=a+dog"
        foreign: list[dict[str, str]] = [
            {"Origin": one} for one in ("https://example.org", "null", "http://127.0.0.1:1")
        ]
        foreign += [{"Sec-Fetch-Site": one} for one in ("cross-site", "same-site")]
        hosts = ("example.org", f"example.org:{port}", "127.0.0.1.example.org", "x/health?")
        foreign += [{"Host": one} for one in hosts]
        wrong = ("", "Bearer", f"Bearer {key[:-1]}", f"Bearer {key}x", f"Basic {key}")
        foreign += [{"Authorization": one} for one in wrong]
        for headers in foreign:
            with found.trying(f"remembered for {headers}"):
                status, _ = send(port, pictures[0], query, **headers)
                found.expect(status in (400, 401, 403), f"remembered for {headers}: {status}")
        with found.trying("captions at the end", pid=process.pid):
            status, content = send(port, pictures[0], "/v1/caption")
            near = json.loads(content)["results"][0].get("similar") if status == 200 else None
            found.expect(bool(near), f"a picture like those that were remembered: {status} {content[:80]!r}")
        kept = [one.id for one in FolderStore(store).entries()]
        found.expect(sorted(kept) == sorted(told), f"{len(kept)} are remembered, {len(told)} were acknowledged")
    above = found.memory - idle
    found.expect(above < 2 * PROMISED, f"{above:.0f} MB above the idle server")
    found.expect(log.stat().st_size < 100_000, "the log was flooded")
    acknowledged: dict[int, str] = {}
    lock = threading.Lock()
    for number in range(count):
        how = signal.SIGTERM if number % 4 == 3 else signal.SIGKILL
        with found.trying("a server that remembers, killed", hang=120), server(here, *more) as (process, port):
            twice: list[int] = []

            def client(name: int, port: int = port, twice: list[int] = twice, number: int = number) -> None:
                for at in range(10**6):
                    said = f"{number}-{name}-{at}"
                    try:
                        status, content = send(port, pictures[name % 8], f"/v1/remember?caption={said}")
                    except (OSError, http.client.HTTPException):
                        return
                    if status == 200:
                        with lock:
                            id = json.loads(content)["id"]
                            twice += [id] * (id in acknowledged)
                            acknowledged[id] = said
                    elif status != 503:
                        found.failures.append(f"remember under load: {status} {content[:80]!r}")

            threads = [threading.Thread(target=client, args=(name,)) for name in range(16)]
            before = len(acknowledged)
            for thread in threads:
                thread.start()
            until = time.monotonic() + 60
            while len(acknowledged) < before + 20 and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(dice.uniform(0, 0.5))
            process.send_signal(how)
            process.wait(60)
            for thread in threads:
                thread.join(60)
            found.kills += how == signal.SIGKILL
            there = FolderStore(store)
            entries = {one.id: one.captions[0] for one in there.entries()}
            lost = [said for id, said in acknowledged.items() if entries.get(id) != said]
            found.expect(not lost, f"{len(lost)} of {len(acknowledged)} are lost: {lost[:3]}")
            own = Counter(said for id, said in entries.items() if id not in told)
            found.expect(max(own.values()) == 1 and not twice, f"remembered twice: {own.most_common(1)}, {twice[:3]}")
            found.expect(there.check() == [], f"damaged by a kill: {there.warnings}")
            found.expect(len(acknowledged) >= before + 20, "hardly anything was acknowledged")
    found.note = f"{len(acknowledged):,} acknowledged, {found.kills} kills; " + ", ".join(
        f"{n:,} × {status}" for status, n in sorted(statuses.items())
    )


def picture_of_scene(number: int) -> bytes:
    file = io.BytesIO()
    draw_scene(number, 64).image.convert("RGB").save(file, "JPEG")
    return file.getvalue()


def slow(found: Round, tries: int, seed: int, here: Path) -> None:
    """Unfinished headers, slow bodies, half-closed and broken connections; others are answered meanwhile."""
    good = good_pictures()[0]
    head = b"POST /v1/caption HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/jpeg\r\nContent-Length: 5000\r\n\r\n"
    log = here / "server.log"
    before = log.stat().st_size if log.exists() else 0
    lines: list[socket.socket] = []
    with server(here, "--max-seconds", "20") as (process, port):
        for count, start in ((500, b"GET / HTTP/1.1\r\nHost: 127."), (260, head + b"x"), (100, b"")):
            for _ in range(count):
                with contextlib.suppress(OSError):
                    line = socket.create_connection(("127.0.0.1", port), 5)
                    line.sendall(start)
                    lines.append(line)
            for _ in range(3):
                with found.trying(f"a good picture beside {len(lines)} slow ones", pid=process.pid):
                    found.expect(ask(port, good)[0] == 200, "a good picture was not captioned")
            found.tries += count
        for line in lines[::3]:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_WR)
        time.sleep(12)  # headers have their time
        for _ in range(300):  # above the number of connections
            with contextlib.suppress(OSError):
                lines.append(socket.create_connection(("127.0.0.1", port), 5))
        with found.trying("a good picture at the end", pid=process.pid):
            found.expect(ask(port, good)[0] == 200, "a good picture was not captioned at the end")
        for line in lines:
            line.close()
        found.memory = memory_of_all(process)
    found.expect(log.stat().st_size - before < 100_000, "the log was flooded")


def load(found: Round, seconds: float, clients: int, seed: int, here: Path) -> None:
    """Many clients at once with good, broken and hostile pictures."""
    kinds = good_pictures()
    hostile = [content for name, content in bombs().items() if len(content) < 2_000_000]
    until = time.monotonic() + seconds
    lock = threading.Lock()
    peak = [0.0]
    statuses: Counter[int] = Counter()

    with server(here) as (process, port):
        idle = memory_of_all(process)

        def client(number: int) -> None:
            dice = random.Random(seed * 1000 + number)
            while time.monotonic() < until:
                kind = dice.random()
                good = kind < 0.5
                content = dice.choice(kinds[:8]) if good else broken(dice.choice(kinds), kinds, dice)
                if kind > 0.97:
                    content = dice.choice(hostile)
                start, status = time.monotonic(), 0
                try:
                    status, body = ask(port, content)
                    json.loads(body)
                    proper = (200, 503) if good else (200, 413, 422, 503, 504)
                    wrong = None if status in proper else f"status {status}"
                except Exception as error:
                    wrong = f"{type(error).__name__} {error}"
                with lock:
                    found.tries += 1
                    found.slowest = max(found.slowest, time.monotonic() - start)
                    statuses[status] += 1
                    if wrong:
                        found.failures.append(wrong)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak[0] = max(peak[0], memory_of_all(process))
            time.sleep(0.2)
        found.expect(process.poll() is None and ask(port, None, path="/ready")[0] == 200, "not ready afterwards")
    found.memory = peak[0]
    found.note = ", ".join(f"{count:,} × {status}" for status, count in sorted(statuses.items()))
    found.expect(statuses[200] > found.tries // 4 and statuses[422] > 0, f"mostly refused: {found.note}")
    decoders = min(4, os.cpu_count() or 1)
    found.expect(peak[0] - idle < decoders * PROMISED, f"{peak[0] - idle:.0f} MB above the idle server")


def stops(found: Round, count: int, seed: int, here: Path) -> None:
    """SIGTERM and SIGKILL with clients inside: a whole answer or none, and an end in time."""
    dice = random.Random(seed)
    good = good_pictures()[0]
    for number in range(count):
        kill = number % 3 == 2
        name = "SIGKILL" if kill else "SIGTERM"
        with found.trying(name, hang=60), server(here, "--max-seconds", "10") as (process, port):
            answers: list[str] = []

            def client(port: int = port, answers: list[str] = answers) -> None:
                while True:
                    try:
                        status, body = ask(port, good, timeout=30)
                    except (OSError, http.client.HTTPException):
                        return
                    whole = status in (503, 504) or bool(json.loads(body).get("results"))
                    answers.append("" if whole else f"status {status}: {body[:80]!r}")

            threads = [threading.Thread(target=client) for _ in range(8)]
            for thread in threads:
                thread.start()
            time.sleep(dice.uniform(0.3, 1.5))
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            found.kills += 1
            code = process.wait(30)
            for thread in threads:
                thread.join(40)
            found.expect(code == (-signal.SIGKILL if kill else 0), f"the server left with {code}")
            wrong = [one for one in answers if one][:1] or [one.name for one in threads if one.is_alive()]
            found.expect(not wrong, f"not a whole answer or none: {wrong}")


# Killed and going on.


def run_and_kill(words: list[str], cwd: Path, ready: Callable[[], object], seconds: float) -> bool:
    """Start the command, kill it so long after `ready`. Whether it was still at work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meshcap", *words], cwd=cwd, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not ready():
        time.sleep(0.02)
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True


def run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meshcap", *words], cwd=cwd, env=environment(), capture_output=True, text=True
    )


def batch(found: Round, count: int, seed: int, here: Path) -> None:
    dice = random.Random(seed)
    photos = here / "photos"
    photos.mkdir(exist_ok=True)
    for number in range(300):
        draw_scene(number, 64).image.convert("RGB").save(photos / f"{number:03}.jpg")
    (photos / "100.jpg").write_bytes(b"no picture")
    common = ["batch", "photos", "--model", str(make_model(here)), "--batch-size", "2", "--device", "cpu", "--sidecar"]
    start = time.monotonic()
    straight = run([*common, "--out", "straight.jsonl"], here)
    usual = time.monotonic() - start
    found.expect(straight.returncode == 1, f"batch left with {straight.returncode}: {straight.stderr[-200:]}")
    for _ in range(count):
        with found.trying("batch killed", hang=600):
            (here / "killed.jsonl").unlink(missing_ok=True)
            for at in range(3):
                before = set((here / "killed.jsonl.parts").rglob("0*.jsonl"))

                def more(before: set[Path] = before) -> bool:
                    return set((here / "killed.jsonl.parts").rglob("0*.jsonl")) > before

                early = at == 1  # the start is killed as well
                killed = run_and_kill(
                    [*common, "--out", "killed.jsonl"], here, (lambda: True) if early else more,
                    dice.uniform(0, usual if early else 0.1 * usual),
                )  # fmt: skip
                found.kills += killed and more()
            done = run([*common, "--out", "killed.jsonl"], here)
            found.expect(done.returncode == 1 and "Traceback" not in done.stderr, f"batch: {done.stderr[-200:]}")
            same = (here / "killed.jsonl").read_bytes() == (here / "straight.jsonl").read_bytes()
            found.expect(same, "another table after kills")
            found.expect(not list(here.rglob("*.part*")), "something unfinished stayed")
            (here / ".killed.jsonl.job.json").unlink()
    found.expect(found.kills > 0, "nothing was killed")


def trainer(found: Round, count: int, seed: int, here: Path) -> None:
    tiny_data = importlib.import_module("tiny_data")
    dice = random.Random(seed)
    data = tiny_data.scenes(here / "scenes")
    options = {"xe": 12, "scst": 6, "checkpoint_every": 3}
    start = time.monotonic()
    whole = run(tiny_data.train_words(data, here / "straight", **options), here)
    usual = time.monotonic() - start
    found.expect(whole.returncode == 0, f"train left with {whole.returncode}: {whole.stderr[-300:]}")
    if whole.returncode:
        return
    for number in range(count):
        folder = here / f"killed{number}"
        with found.trying("train killed", hang=900):
            words = tiny_data.train_words(data, folder, **options)
            killed = True
            for at in range(3):
                log = folder / "log.jsonl"
                lines = len(read_text(log).splitlines()) if log.exists() else 0

                def further(log: Path = log, lines: int = lines) -> bool:
                    return log.exists() and log.read_bytes().count(b"\n") > lines

                early = at == 1  # the start is killed as well
                again = [*words, "--resume"] if log.exists() else words
                seconds = dice.uniform(0, usual if early else 0.2 * usual)
                killed = run_and_kill(again, here, (lambda: True) if early else further, seconds)
                if not killed:
                    break
                found.kills += further()
            if killed:
                run([*words, "--resume"], here)
            same = (folder / "model.safetensors").read_bytes() == (here / "straight/model.safetensors").read_bytes()
            found.expect(same, "other weights after kills")
        shutil.rmtree(folder, ignore_errors=True)
    found.expect(found.kills > 0, "nothing was killed")


def disk(found: Round, count: int, seed: int, here: Path) -> None:
    """A disk that is really full, in the middle of a job: one line, nothing half, and the same call goes on."""
    place, met = here / "full", 0
    place.mkdir()
    if os.name != "posix" or os.geteuid() or subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True
    ).returncode:  # fmt: skip
        found.note = "a small disk needs the right to mount one (root)"
        return
    try:
        photos = here / "few"
        photos.mkdir()
        for number in range(40):
            draw_scene(number, 64).image.convert("RGB").save(photos / f"{number:03}.jpg")
        words = ["batch", str(photos), "--model", str(make_model(here)), "--batch-size", "4", "--device", "cpu",
                 "--out", str(place / "captions.jsonl")]  # fmt: skip
        whole = run([*words[:-1], str(here / "expected.jsonl")], here)
        found.expect(whole.returncode == 0, f"batch left with {whole.returncode}")
        for left in (0, 2_000, 6_000, 12_000, 20_000, 40_000)[: max(2, count)]:
            with found.trying(f"{left} bytes left", hang=120):
                for file in place.iterdir():
                    shutil.rmtree(file) if file.is_dir() else file.unlink()
                filler = place / "filler"
                with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file_:
                    while True:
                        file_.write(bytes(4096))
                os.truncate(filler, max(0, filler.stat().st_size - left))
                done = run(words, here)
                lines = [line for line in done.stderr.splitlines() if "error" in line]
                met += done.returncode != 0
                tidy = done.returncode in (0, 1, 2) and "Traceback" not in done.stderr and len(lines) <= 1
                found.expect(tidy, f"with {left} bytes left: {done.returncode} {done.stderr[-200:]}")
                filler.unlink()
                again = run(words, here)
                found.expect(again.returncode == 0, f"after room was made: {again.stderr[-200:]}")
                same = (place / "captions.jsonl").read_bytes() == (here / "expected.jsonl").read_bytes()
                found.expect(same, "another table after a full disk")
        found.note = f"{met} of {found.tries} jobs met the full disk"
        found.expect(met > 0, "no job met the full disk")
    finally:
        subprocess.run(["umount", str(place)], capture_output=True)


def ray(found: Round, count: int, seed: int, here: Path) -> None:
    """Workers of a Ray cluster of this machine, killed while they caption; each fifth time, what starts them."""
    common = ray_job(found, here)
    dice = random.Random(seed)
    for number in range(count if common else 0):
        with found.trying("ray workers killed", hang=600):
            words = [*common, "--out", f"ray{number}.jsonl", "--ray", "local", "--workers", "2", "--threads", "1"]
            process = begun(words, here, f"ray{number}.jsonl")
            time.sleep(dice.uniform(0, 0.3))
            for pid, name in descendants(process.pid):
                worker = name.startswith("ray::") and "IDLE" not in name and "Agent" not in name
                if worker if number % 5 else "/raylet/raylet" in name.split(" ")[0]:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                        found.kills += 1
                    break
            errors = process.communicate()[1]
            if process.returncode:
                lines = [line for line in errors.splitlines() if "error" in line]
                found.expect(len(lines) == 1 and "Traceback" not in errors, f"not one line: {errors[-300:]}")
                found.expect(run(words, here).returncode == 0, "the same call did not go on")
            same = (here / f"ray{number}.jsonl").read_bytes() == (here / "alone.jsonl").read_bytes()
            found.expect(same, "another table with Ray")
    found.expect(found.kills > 0 or not common, "no worker was killed")


def head(found: Round, count: int, seed: int, here: Path) -> None:
    """The head of a Ray cluster, killed in the middle of a job: one line, and the same call goes on when it is back."""
    common = ray_job(found, here)
    dice = random.Random(seed)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    for number in range(max(2, count // 4) if common else 0):
        gone = (("gcs_server", "raylet"), ("gcs_server",), ("raylet",))[number % 3]
        out = f"head{number}.jsonl"
        words = [*common, "--out", out, "--ray", address, "--workers", "1", "--threads", "1"]
        with found.trying(f"ray {' and '.join(gone)} killed", hang=900):
            with ray_head(port, here) as cluster:
                process = begun(words, here, out)
                time.sleep(dice.uniform(0, 0.3))
                for pid, name in descendants(cluster.pid):
                    if any(one in name.split(" ")[0] for one in gone):
                        os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                errors = process.communicate()[1]
            seconds = time.monotonic() - killed
            rows = [path.read_text() for path in sorted((here / f"{out}.parts").rglob("0*.jsonl"))]
            if process.returncode:  # else the job was faster
                found.kills += 1
                lines = [line for line in errors.splitlines() if "error" in line]
                found.expect(len(lines) == 1 and "Traceback" not in errors, f"not one line: {errors[-300:]}")
                found.expect(bool(rows), "nothing was kept")
                found.expect(seconds < 60, f"{seconds:.0f} s until the job saw that the head was gone")
                found.note = f"{found.kills} kills at work; {seconds:.0f} s until the last was seen"
                with ray_head(port, here):
                    again = run(words, here)
                    found.expect(again.returncode == 0, f"the same call did not go on: {again.stderr[-200:]}")
            same = (here / out).read_bytes() == (here / "alone.jsonl").read_bytes()
            found.expect(same, "another table after the head was killed")
    found.expect(found.kills > 0 or not common, "no head was killed")


def ray_job(found: Round, here: Path) -> list[str]:
    """The words of a job on 200 pictures, which has been done once without Ray; none where Ray is not installed."""
    try:
        import ray as _  # noqa: F401
    except ImportError:
        found.note = "ray is not installed: pip install 'meshcap[scale]'"
        return []
    photos = here / "ray"
    photos.mkdir()
    for number in range(200):
        draw_scene(number, 64).image.convert("RGB").save(photos / f"{number:03}.jpg")
    common = ["batch", "ray", "--model", str(make_model(here)), "--batch-size", "4", "--device", "cpu"]
    found.expect(run([*common, "--out", "alone.jsonl"], here).returncode == 0, "batch failed without Ray")
    return common


def begun(words: list[str], here: Path, out: str) -> subprocess.Popen[str]:
    """A job whose first rows are there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meshcap", *words], cwd=here, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < until and not list((here / f"{out}.parts").rglob("0*.jsonl")):
        time.sleep(0.02)
    return process


ASK_RAY = """if True:
    import sys, ray
    ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
    print(ray.get(ray.remote(lambda: "works").remote(), timeout=60))"""


@contextlib.contextmanager
def ray_head(port: int, here: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A cluster of this machine that works, apart from the job; all of it is killed at the end.

    Raises:
        RuntimeError: it does no work within three minutes.
    """
    words = ["start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(port), "--num-cpus", "2",
             "--object-store-memory", "200000000", "--include-dashboard", "false", "--disable-usage-stats"]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # names of sockets are short
        with open(here / "head.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", *words, "--temp-dir", folder], env=environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            until, problem = time.monotonic() + 180, ""
            while process.poll() is None and time.monotonic() < until:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    asked = subprocess.run(
                        [sys.executable, "-c", ASK_RAY, f"127.0.0.1:{port}"], env=environment(),
                        capture_output=True, text=True, timeout=until - time.monotonic(),
                    )  # fmt: skip
                    if "works" in asked.stdout:
                        break
                    problem = (asked.stderr.splitlines() or [""])[-1]
            else:
                raise RuntimeError(f"no cluster at work: {problem} {(here / 'head.log').read_text()[-200:]}")
            yield process
        finally:
            while left := [pid for pid in session(process.pid) if pid != process.pid]:
                for pid in left:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
            process.kill()
            process.wait()


def session(pid: int) -> list[int]:
    """The processes of a session that are not over, also those whose parents are."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, *numbers = path.read_text().rpartition(")")[2].split()[:4]
            if int(numbers[2]) == pid and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def descendants(pid: int) -> list[tuple[int, str]]:
    """The processes below one, and their command lines."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            below.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, waiting = [], [pid]
    while waiting:
        for child in below.get(waiting.pop(), []):
            waiting.append(child)
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                found.append((child, name))
    return found


def campaign(
    tries: Annotated[int, typer.Option(min=1, help="Broken pictures; other rounds follow it.")] = 24_000,
    seconds: Annotated[float, typer.Option(min=1, help="Of the round with many clients.")] = 180.0,
    clients: Annotated[int, typer.Option(min=1, help="Of that round.")] = 64,
    kills: Annotated[int, typer.Option(min=1, help="Of batch, the trainer, the server and others, each.")] = 20,
    only: Annotated[list[str] | None, typer.Option(help=f"Rounds: {', '.join(ROUNDS)}.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    kept: Annotated[
        Path | None, typer.Option("--results", help="Keep finished rounds here; only failed ones are run again.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Attack whatever reads and the server; kill the server, batch, the trainer and writers; fill a disk."""
    unknown = set(only or ()) - set(ROUNDS)
    if unknown:
        raise MeshcapError(f"no round is called {sorted(unknown)[0]!r}: expected {', '.join(ROUNDS)}")
    rounds: dict[str, Callable[[Round, Path], None]] = {
        "pictures": lambda one, here: pictures(one, tries, seed, here),
        "scores": lambda one, here: scores(one, tries, seed, here),
        "memories": lambda one, here: memories(one, tries, kills, seed, here),
        "gallery": lambda one, here: gallery(one, tries, seed, here),
        "web": lambda one, here: web(one, tries, seed, here),
        "corrections": lambda one, here: corrections(one, tries, kills, seed, here),
        "programs": lambda one, here: programs(one, tries, seed, here),
        "folders": lambda one, here: folders(one, tries, seed, here),
        "archives": lambda one, here: archives(one, tries, seed, here),
        "schema": lambda one, here: schema(one, tries, seed, here),
        "slow": lambda one, here: slow(one, tries, seed, here),
        "load": lambda one, here: load(one, seconds, clients, seed, here),
        "stops": lambda one, here: stops(one, kills, seed, here),
        "batch": lambda one, here: batch(one, kills, seed, here),
        "trainer": lambda one, here: trainer(one, kills, seed, here),
        "disk": lambda one, here: disk(one, kills, seed, here),
        "ray": lambda one, here: ray(one, kills, seed, here),
        "head": lambda one, here: head(one, kills, seed, here),
    }
    settings = {"tries": tries, "seconds": seconds, "clients": clients, "kills": kills, "seed": seed}
    before = read_results(kept, settings)
    results = []
    with tempfile.TemporaryDirectory(prefix="meshcap-campaign-") as folder:
        for name in ROUNDS:
            if name in before and not before[name].failures:
                results.append(before[name])
                continue
            if only and name not in only:
                continue
            progress(f"{name} …")
            found = Round(name)
            here = Path(folder) / name
            here.mkdir()
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted anew
            rounds[name](found, here)
            for failure in found.failures[:20]:
                progress(f"  failed: {failure}")
            results.append(found)
            if kept is not None:
                add_result(kept, found, settings)
    report(results, json_)
    if any(one.failures for one in results):
        raise typer.Exit(1)


def read_results(path: Path | None, settings: dict[str, Any]) -> dict[str, Round]:
    """The rounds that a file holds; the last of a name counts, since failed ones are run again.

    Raises:
        MeshcapError: they were run with other settings.
    """
    found = {}
    for line in read_text(path).splitlines() if path is not None and path.exists() else ():
        row = json.loads(line)
        row.pop("code")
        if row.pop("settings") != settings:
            raise MeshcapError(f"{path} holds rounds with other settings: give another file to --results")
        found[row["name"]] = Round(**row)
    return found


def add_result(path: Path, one: Round, settings: dict[str, Any]) -> None:
    code = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=TOP, capture_output=True, text=True).stdout
    before = read_text(path) if path.exists() else ""
    row = json.dumps(vars(one) | {"code": code.strip(), "settings": settings}, ensure_ascii=False)
    write_text(path, before + row + "\n")


def report(results: list[Round], json_: bool) -> None:
    if json_:
        rows = [vars(one) for one in results]
        print(json.dumps(rows, ensure_ascii=False))
        return
    table = Table("round", "tries", "failures", "slowest", "most memory", "")
    for one in results:
        shown = [f"{one.slowest:.1f} s", f"{one.memory:,.0f} MB" if one.memory else ""]
        note = escape(one.note or (f"{one.kills} kills at work" if one.kills else ""))
        table.add_row(one.name, f"{one.tries:,}", str(len(one.failures)), *shown, note)
    Console().print(table)


if __name__ == "__main__":
    main(campaign)
