"""The long-term memory: whether near pictures are alike, what a large store costs, whether names are right.

    python benchmarks/memory.py retrieval --cxc Crisscrossed-Captions/data --pictures train2017 --cache cxc.npz
    python benchmarks/memory.py cost --entries 10000 --entries 100000 --entries 1000000
    python benchmarks/memory.py caption --entries 100000 --threads 2
    python benchmarks/memory.py names

retrieval: people rated how similar pairs of COCO pictures are (Crisscrossed Captions, Parekh et al., 2021: sis_val.csv
and sis_test.csv); the rank correlation of their ratings with the cosines of each way to make one vector of a picture.
The way that ships was chosen on val. Pairs whose pictures are not in the folder are left out.

cost: made-up stores of each size, by engine: bytes, and the CPU time to fill, index and open them, to search (12
nearest) and to add one more. Their vectors vary in 64 directions and a little in all others, as pictures' do.
recall@10 is against exact search.

caption: CPU time of a picture with and without a store of so many entries, captions of as many words all. Weights that
read it need not be trained for that: without any, made-up ones of the shipped size listen. "new words": near captions
have names and words that the vocabulary lacks, which are asked for.

names: 40 drawn individuals, each a shape of a colour, at any place, before any background, with another beside it.
One, three or six pictures of each of 20 are remembered with a name, drawn a hundred times from six; fresh ones of these
and of 20 strangers are shown. The likeliest name counts where it is similar enough, which is chosen on one half (at
most 1 % of strangers get a name, so that 2 % are not exceeded elsewhere) and measured on the other. Where the model
reads a memory, captions are made as well: which name is in them.
"""

from __future__ import annotations

import csv
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
import typer
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import Json, Model, Threads, progress, report, set_up
from meshcap import Captioner
from meshcap.data.scenes import backdrop
from meshcap.data.shapes import BACKGROUNDS, COLOURS, SHAPES, draw_shape
from meshcap.errors import MeshcapError
from meshcap.memory import Entry, RamStore, Store, create_store, open_store
from meshcap.memory.places import ENGINES
from meshcap.memory.store import Likenesses
from meshcap.models import M2
from meshcap.models.memory_level import MemoryConfig, MemoryLevel
from meshcap.options import CaptionOptions

POOLINGS = {
    "mean": lambda features: features.mean(1),
    "mean of unit regions": lambda features: F.normalize(features, dim=-1).mean(1),
    "largest": lambda features: features.amax(1),
    "root of the mean square": lambda features: features.square().mean(1).sqrt(),
}
SHIPPED = "mean of unit regions"
EXAMPLES = Path(__file__).parents[1] / "examples"


# Retrieval.


@dataclass
class Correlation:
    """How one way to make a vector of a picture ranks pairs."""

    pooling: str
    val: float
    test: float
    missing: str | None = None

    def cells(self) -> list[str]:
        return [self.pooling, f"{self.val:.3f}", f"{self.test:.3f}"]


def read_pairs(path: Path, pictures: Path, most: int | None = None) -> tuple[list[tuple[int, int]], list[float]]:
    """Ids of the pictures of rated pairs that are there, the first `most` of them, and the ratings."""
    if not path.is_file():
        raise MeshcapError(f"{path} is not there: expected a folder with CxC's sis_val.csv and sis_test.csv")
    pairs, ratings = [], []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            first, second = (int(row[name].rpartition("_")[2].partition(".")[0]) for name in ("image1", "image2"))
            if all((pictures / f"{one:012d}.jpg").is_file() for one in (first, second)):
                pairs.append((first, second))
                ratings.append(float(row["agg_score"]))
    some = set(sorted({one for pair in pairs for one in pair})[:most])  # ids say nothing of what is shown
    kept = [place for place, pair in enumerate(pairs) if some.issuperset(pair)]
    return [pairs[place] for place in kept], [ratings[place] for place in kept]


def look(captioner: Captioner, pictures: Path, ids: Sequence[int], cache: Path | None) -> dict[str, np.ndarray]:
    """Vectors (P, D) of pictures by each pooling; those that a cache holds are not looked at again."""
    found: dict[int, np.ndarray] = {}
    if cache is not None and cache.is_file():
        kept = np.load(cache)
        found = dict(zip(kept["ids"].tolist(), kept["vectors"], strict=True))
    missing = [one for one in ids if one not in found]

    def keep() -> None:
        if cache is not None:
            np.savez(cache, ids=np.array(list(found)), vectors=np.stack(list(found.values())))

    for start in range(0, len(missing), 8):
        some = missing[start : start + 8]
        features = captioner.see([captioner.read(pictures / f"{one:012d}.jpg") for one in some]).features.float()
        pooled = torch.stack([pool(features) for pool in POOLINGS.values()], 1).cpu().numpy()  # (B, poolings, D)
        found |= zip(some, pooled, strict=True)
        if start % 200 == 0:
            progress(f"{start:,} of {len(missing):,} pictures")
            keep()
    if missing:
        keep()
    stacked = np.stack([found[one] for one in ids])
    return {name: stacked[:, place] for place, name in enumerate(POOLINGS)}


def ranks(values: np.ndarray) -> np.ndarray:
    """From 0, equal values in the middle of theirs."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middles: np.ndarray = (ends - (counts + 1) / 2)[where]
    return middles


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def bench_retrieval(
    captioner: Captioner, cxc: Path, pictures: Path, cache: Path | None, most: int | None = None
) -> list[Correlation]:
    rated = {split: read_pairs(cxc / f"sis_{split}.csv", pictures, most) for split in ("val", "test")}
    for split, (pairs, _) in rated.items():
        if not pairs:
            raise MeshcapError(f"no pair of {split} has both pictures in {pictures}: expected COCO's train2017")
        progress(f"{split}: {len(pairs):,} pairs of {len({one for pair in pairs for one in pair}):,} pictures")
    ids = sorted({one for pairs, _ in rated.values() for pair in pairs for one in pair})
    vectors: dict[str, Any] = look(captioner, pictures, ids, cache)
    centre = getattr(captioner.backend, "centre", None)
    if centre is not None:
        vectors[f"{SHIPPED}, centred (shipped)"] = vectors[SHIPPED] - centre.cpu().numpy()
    place = {one: number for number, one in enumerate(ids)}
    rows = []
    for name, given in vectors.items():
        unit = given / np.linalg.norm(given, axis=1, keepdims=True)
        row = Correlation(name, 0.0, 0.0)
        for split, (pairs, ratings) in rated.items():
            first, second = (unit[[place[pair[side]] for pair in pairs]] for side in (0, 1))
            setattr(row, split, rank_correlation((first * second).sum(1), np.array(ratings)))
        rows.append(row)
    return rows


# Cost.


@dataclass
class Cost:
    """A store of one engine and size; CPU seconds."""

    engine: str
    entries: int
    bytes: int = 0
    fill: float = 0.0
    index: float | None = None
    open: float = 0.0
    search: float = 0.0
    add: float = 0.0
    recall: float = 0.0
    missing: str | None = None

    def cells(self) -> list[str]:
        name = [self.engine, f"{self.entries:,}"]
        if self.missing is not None:
            return [*name, *[""] * 6, self.missing]
        index = "" if self.index is None else f"{self.index:.1f} s"
        size, search, add = f"{self.bytes / 2**20:,.0f} MiB", f"{1e3 * self.search:.1f} ms", f"{1e3 * self.add:.1f} ms"
        return [*name, size, f"{self.fill:.1f} s", index, f"{self.open:.2f} s", search, add, f"{self.recall:.3f}"]


WIDTH, DIRECTIONS, ADDED, ASKED, NEAR = 768, 64, 10_000, 20, 12


SAID = Entry(("a dog on the grass",))


def made_up(count: int, width: int, seed: int, spread: float = 0.3) -> np.ndarray:
    """Vectors (count, width) around as many places as there are directions."""
    directions = np.random.default_rng(0).normal(size=(DIRECTIONS, width)).astype(np.float32)
    random = np.random.default_rng(seed)
    along = random.standard_normal((count, DIRECTIONS), np.float32)
    return along @ directions + spread * DIRECTIONS**0.5 * random.standard_normal((count, width), np.float32)


def fill(store: Store, count: int) -> None:
    for start in range(0, count, ADDED):
        some = range(start, min(count, start + ADDED))
        entries = [Entry((f"a dog of number {n} on the grass",), source=f"photos/{n}.jpg", time=float(n)) for n in some]
        store.add(made_up(len(some), store.width, start), entries)


def spent(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def bench_cost(sizes: Sequence[int], engines: Sequence[str], folder: Path) -> list[Cost]:
    rows = []
    asked = made_up(ASKED, WIDTH, 10**9)
    for count in sizes:
        exact: list[set[str | None]] = []
        for engine in engines:
            row = Cost(engine, count)
            rows.append(row)
            with common.optional_row(lambda why, row=row: setattr(row, "missing", why)):  # type: ignore[misc]
                progress(f"{engine}: {count:,} entries")
                place = folder / f"{engine}-{count}"
                store: Any = create_store(place, vision="made up", width=WIDTH, engine=engine)
                row.fill = spent(partial(fill, store, count))
                if engine != "exact":
                    row.index = spent(partial(store.build_index, always=True))
                row.bytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
                row.open = spent(lambda place=place: len(open_store(place)))  # type: ignore[misc]
                store.nearest(asked[:1], NEAR)
                work = partial(lambda store: [store.nearest(one[None], NEAR)[0] for one in asked], store)
                row.search = spent(work) / ASKED
                found = work()
                near = [{one.source for one in each[:10]} for each in found]
                exact = exact or near
                row.recall = float(np.mean([len(a & b) / 10 for a, b in zip(near, exact, strict=True)]))
                row.add = spent(partial(lambda store: [store.add(one[None], [SAID]) for one in asked], store)) / ASKED
                shutil.rmtree(place)
    return rows


ROUNDS = 9
LENGTH = CaptionOptions(min_words=10, max_words=10)
KNOWN = [
    Entry(("a black and brown dog stands on the grass in a field",)),
    Entry(("two people sit at a table with food",)),
    Entry(("a close up of a plate with a sandwich and a cup of coffee",)),
]
NEW = [
    Entry(("Rex the whippet stands on the grass in a field",), ("Rex",)),
    Entry(("an okapi looks over the fence of a zoo",)),
    Entry(("a plate of mezze and a glass of ayran on the table",)),
]


@dataclass
class CaptionCost:
    """CPU seconds of a picture, from pixels to words."""

    memory: str
    seconds: float
    more: float = 0.0
    missing: str | None = None

    def cells(self) -> list[str]:
        return [self.memory, f"{1e3 * self.seconds:.1f} ms", f"{100 * self.more:+.1f} %" if self.more else ""]


def bench_caption(
    captioner: Captioner, sizes: Sequence[int], pictures: Sequence[Path], folder: Path
) -> list[CaptionCost]:
    backend: Any = captioner.backend
    if not backend.has_memory_level():
        progress("this model has no weights that read a memory: made-up ones of the shipped size")
        backend.level = made_up_level(backend.model)
    pixels = [captioner.read(path) for path in pictures]

    def rest(count: int, said: Sequence[Entry], name: str) -> Store:
        store = create_store(folder / name, vision=backend.fingerprint(), width=backend.settings.d_input)
        fill(store, count)
        for one in pixels:  # something near, so that there is something to read
            vector = captioner.embed(captioner.see([one])).float().numpy()
            near = vector + 0.5 * made_up(NEAR, store.width, 1) / (8 * store.width**0.5)
            store.add(near, (list(said) * NEAR)[:NEAR])
        return store

    stores: list[tuple[str, Store | None]] = [("none", None)]
    for count in sizes:
        stores.append((f"{count:,} entries", rest(count, KNOWN, str(count))))
        stores.append((f"{count:,} entries, new words", rest(count, NEW, f"{count}-new")))
    taken: dict[str, list[float]] = {name: [] for name, _ in stores}
    for _ in range(1 + ROUNDS):  # in turns: the machine is the same for all
        for name, store in stores:
            captioner.memory = store
            work = [partial(lambda one: captioner.describe(captioner.see([one]), LENGTH), one) for one in pixels]
            taken[name].append(sum(map(spent, work)) / len(pixels))
    seconds = {name: np.array(values[1:]) for name, values in taken.items()}
    more = {name: float(np.median(values / seconds["none"])) - 1 for name, values in seconds.items()}
    return [CaptionCost(name, float(np.median(seconds[name])), more[name]) for name, _ in stores]


def made_up_level(model: M2) -> MemoryLevel:
    """Weights whose gates are half open and which copy a little."""
    level = MemoryLevel(MemoryConfig.of(model))
    with torch.no_grad():
        for index in range(len(level.readers)):
            level.reader(index).output.weight.normal_(std=0.02)
        level.switch.bias.fill_(-2)
    return level.eval()


# Names.


@dataclass
class Naming:
    """How often names are right. Shares of fresh pictures."""

    by: str
    threshold: float
    right: float
    wrong: float
    strangers: float
    missing: str | None = None

    def cells(self) -> list[str]:
        shares = [f"{100 * share:.0f} %" for share in (self.right, self.wrong, self.strangers)]
        return [self.by, f"{self.threshold:.2f}", *shares]


SHOWN, FRESH, SIZE = (1, 3, 6), 6, 224
SAID_WITH = 3  # pictures of each, where captions are made
DRAWS = 100  # of those that are remembered
CALLED = "Rex Mia Bo Ida Tom Zoe Max Lou Eve Sam Kim Ray Amy Leo Fay Gus Nia Ben Una Jay".split()


def individuals() -> list[tuple[str, str]]:
    """40 pairs of shape and colour, no two of them next to each other in kind and in colour at once."""
    pairs = [(kind, colour) for kind in sorted(SHAPES) for colour in sorted(COLOURS)]
    return [pairs[at] for at in np.random.default_rng(1).permutation(len(pairs))[:40]]


def portrait(who: tuple[str, str], random: Random) -> Image.Image:
    """An individual large, somewhere, before some background, with something small beside it."""
    image = backdrop(random.choice(sorted(BACKGROUNDS)), SIZE, random)
    side = random.randint(SIZE // 2, 2 * SIZE // 3)
    x, y = random.randint(0, SIZE - side), random.randint(0, SIZE - side)
    small = SIZE // 5
    other = random.choice(sorted(SHAPES)), random.choice(sorted(COLOURS))
    corner = (0 if x > SIZE - side - x else SIZE - small), random.randint(0, SIZE - small)
    draw_shape(image, *other, (*corner, corner[0] + small, corner[1] + small))
    draw_shape(image, *who, (x, y, x + side, y + side))
    return image


@dataclass
class Half:
    """Ten individuals with a name and ten strangers; a vector of each picture."""

    shown: list[np.ndarray]  # of each, (6, D)
    fresh: list[np.ndarray]
    strangers: np.ndarray  # (10 · 6, D)
    seen: list[tuple[str, Any]]  # the fresh pictures: who, "" for strangers, and regions


def look_at(captioner: Captioner, half: int, random: Random) -> Half:
    everybody = individuals()

    def see(who: tuple[str, str], count: int) -> list[Any]:
        return [captioner.see([captioner.read(portrait(who, random))]) for _ in range(count)]

    def vectors(seen: Sequence[Any]) -> np.ndarray:
        found: np.ndarray = np.concatenate([captioner.embed(one).float().numpy() for one in seen])
        return found

    known = everybody[half:20:2]
    shown = [vectors(see(who, max(SHOWN))) for who in known]
    fresh = [see(who, FRESH) for who in known]
    strangers = [one for who in everybody[20 + half :: 2] for one in see(who, FRESH)]
    seen = [(name, one) for name, own in zip(CALLED[half::2], fresh, strict=True) for one in own]
    return Half(shown, [vectors(one) for one in fresh], vectors(strangers), seen + [("", one) for one in strangers])


def matched(half: Half, count: int) -> list[tuple[str, str, float]]:
    """(who, the likeliest name, how like), of all fresh pictures and strangers, with so many pictures remembered."""
    random, rows = np.random.default_rng(0), []
    for _ in range(DRAWS):
        known = Likenesses(half.strangers.shape[1])
        for who, own in enumerate(half.shown):
            for row in own[random.permutation(len(own))[:count]]:
                known.add([str(who)], row)
        asked = [*((str(who), own) for who, own in enumerate(half.fresh)), ("", half.strangers)]
        rows += [(who, *near[0]) for who, pictures in asked for near in known.nearest(pictures, 1)]
    return rows


def bench_names(captioner: Captioner) -> list[Naming]:
    random = Random(0)
    backend: Any = captioner.backend
    choosing, other = look_at(captioner, 0, random), look_at(captioner, 1, random)
    chosen = threshold_of([row for count in SHOWN for row in matched(choosing, count)])
    found = []
    for count in SHOWN:
        by = f"{count} picture{'s' * (count > 1)} of each"
        found.append(Naming(by, chosen, *shares(matched(other, count), chosen)))
    if backend.has_memory_level():
        store = RamStore(backend.fingerprint(), backend.settings.d_input)
        for name, rows in zip(CALLED[1::2], other.shown, strict=True):
            store.add(rows[:SAID_WITH], [Entry((f"{name} is here",), (name,))] * SAID_WITH)
        captioner.memory = store
        counts = []
        for who, seen in other.seen:
            words = captioner.describe(seen)[0].text.replace(".", "").split()
            said = next((name for name in CALLED if name in words), "")
            counts.append((who, said, 1.0 if said else 0.0))
        captioner.memory = None
        own = backend.memory_level().config.name_similarity
        found.append(Naming(f"captions, {SAID_WITH} pictures of each", own, *shares(counts, 0.5)))
    return found


def shares(rows: Sequence[tuple[str, str, float]], least: float) -> tuple[float, float, float]:
    """Of pictures as (true name, nearest's name, similarity): right, wrong, and strangers who are given a name."""
    own = [(name == told, near) for name, told, near in rows if name]
    others = [near for name, _, near in rows if not name]
    right = sum(same and near >= least for same, near in own) / len(own)
    wrong = sum(not same and near >= least for same, near in own) / len(own)
    return right, wrong, sum(near >= least for near in others) / len(others)


def threshold_of(rows: Sequence[tuple[str, str, float]]) -> float:
    """The least similarity at which at most 1 % of strangers are given a name: half of what others may be given."""
    steps = np.arange(0, 1.001, 0.01)
    return float(next((one for one in steps if shares(rows, one)[2] <= 0.01), 1.0))


def command(
    what: Annotated[Literal["retrieval", "cost", "caption", "names"], typer.Argument(help="What to measure.")],
    cxc: Annotated[Path, typer.Option(help="Folder with CxC's sis_val.csv and sis_test.csv.")] = Path("data"),
    pictures: Annotated[Path, typer.Option(help="Folder with COCO's train2017.")] = Path("train2017"),
    cache: Annotated[Path | None, typer.Option(help="Keeps the vectors of pictures that were seen.")] = None,
    most: Annotated[int | None, typer.Option(help="Pictures of each split to look at.", show_default="all")] = None,
    entries: Annotated[list[int] | None, typer.Option(min=1, help="Sizes of stores; may be given again.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="cost: engines.", show_default="all")] = None,
    photos: Annotated[Path, typer.Option(help="caption: a folder of pictures.")] = EXAMPLES,
    model: Model = "default",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """The long-term memory: whether near pictures are alike, what a large store costs, whether names are right."""
    device = set_up("cpu", threads)
    sizes = entries or [10_000, 100_000]
    if what == "cost":
        columns: tuple[str, ...] = ("engine", "entries", "bytes", "fill", "index", "open", "a search", "one more")
        columns = (*columns, "recall@10")
        with tempfile.TemporaryDirectory() as folder:
            costs = bench_cost(sizes, engine or ENGINES, Path(folder))
        report("stores", costs, device, json, columns)
        return
    captioner = Captioner.from_pretrained(model, device="cpu").optimize()
    if what == "retrieval":
        columns = ("one vector of", "val", "test")
        rated = bench_retrieval(captioner, cxc, pictures, cache, most)
        report("rank correlation with people's ratings", rated, device, json, columns)
    elif what == "caption":
        with tempfile.TemporaryDirectory() as folder:
            taken = bench_caption(captioner, sizes, sorted(photos.glob("*.jpg"))[:4], Path(folder))
        report("a caption with a memory", taken, device, json, ("memory", "a picture", "more"))
    else:
        columns = ("names of", "least similarity", "right", "wrong", "strangers named")
        report("names of drawn individuals", bench_names(captioner), device, json, columns)


if __name__ == "__main__":
    common.main(command)
