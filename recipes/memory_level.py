"""How the captioner in the package learned to read a memory: 3.6 M weights beside an M² that stays as it is.

    meshcap data pack dataset_coco.json.gz --pictures train2017 --out packed --size 224 --format avif --quality 50 \\
        --shard-mb 46 --skip-broken
    python recipes/memory_level.py prepare packed DATA     # or: dataset_coco.json.gz DATA --pictures train2017
    python recipes/memory_level.py train DATA OUT --objects objects.json.gz --minutes 12     # on one GPU of 80 GB

`prepare` writes the pictures as the captioner reads them (18 GB) and all captions as ids, on any machine; `look DATA`
keeps what the captioner sees of them, too (36 GB), which on a CPU takes longest. `train`:

1. looks at all pictures once, if `look` has not; their regions stay on the device;
2. finds, for each, the nearest among the training pictures (itself and ten duplicates of val and test left out);
3. lets the level learn, first by cross-entropy, of what the captioner says itself when it sees all of a picture, and
   of the two of people's captions that agree most with the others; then by self-critical training (CIDEr-D and
   objects, as in recipes/coco.sh);
4. chooses, by greedy captions of val, how many entries are read and how similar they must be;
5. captions val and test with and without memory, and test with stores of 10, 100 and 1,000 pictures and with any
   pictures, near or far: COCO's results files; it prints what memory changes in CIDEr-D.

It writes memory.safetensors, memory.json and centre.safetensors: a model folder with these reads memories. The level is
saved at every validation, so that a run that is stopped leaves one. `prepare --count 3000` and `train --minutes 1` try
it all within two minutes.

Afterwards, on any machine: differences with paired intervals, and CHAIR, of what was saved; then Flickr8k, untrained,
with what its 6,000 training pictures say.

    meshcap score OUT/test_{without,with,1000,100,10,far}.json \\
        --references dataset_coco.json.gz --subset --objects objects.json.gz
    meshcap remember "flickr8k/train-{0..2}.tar" --model MODEL --memory flickr8k-memory
    meshcap evaluate MODEL flickr8k/test-0.tar --out without
    meshcap evaluate MODEL flickr8k/test-0.tar --out with --memory flickr8k-memory
    python benchmarks/memory.py names --model MODEL

`centre` makes centre.safetensors alone, of 2,000 training pictures: that is how the one in the package was made, which
`train` keeps, so that what people remembered before stays valid.

What is remembered is drawn at random: how many entries, which of their captions, now and then those of any picture, so
that the gate learns to close. In a quarter of the pictures one noun of what is remembered is made a word that nobody
knows: saying it counts as the noun, saying the noun counts as nothing. So it learns to copy. 30 to 90 % of
the regions are hidden: the captioner has learned these very pictures, and would otherwise need no memory. Nothing is
learned from pictures without memory, since there the level changes nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meshcap import Captioner
from meshcap.data.dataset import Sample
from meshcap.data.read import read_dataset
from meshcap.data.workers import parallel_map, write_square
from meshcap.decoding import Beam, Graphs, Greedy, Rules, Sampling, Strategy, decode
from meshcap.folders import CENTRE
from meshcap.metrics.hallucination import Synonyms
from meshcap.metrics.reward import CiderReward
from meshcap.metrics.reward_objects import ObjectReward
from meshcap.models.memory_level import Memories, MemoryConfig, MemoryLevel, Remembering, picture_vectors
from meshcap.options import CaptionOptions
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.text.tokenizers import tokenize_each
from meshcap.training.losses import advantages
from meshcap.vision import Preprocess
from meshcap.weights import save_weights

REGIONS = "regions.npy"
SPLITS = {"train": 0, "val": 1, "test": 2}
# Training pictures that are also in val or test: `meshcap data check` finds them.
DUPLICATES = {113159, 139571, 212646, 23587, 388662, 397819, 445323, 484069, 48636, 75906}
LONGEST, READ = 21, 16  # words of a caption, and of a remembered one
STORES = (10, 100, 1000)  # pictures in small ones
NEAREST = 32  # that memories are drawn from
MADE_UP, FAR = 0.25, 0.15  # shares of pictures with a made-up word, and with memories of any other picture
HIDDEN = 0.3, 0.9  # of the regions, the least and the most
WAYS = {"12x1": (12, 1), "6x2": (6, 2), "4x3": (4, 3), "3x4": (3, 4), "1x5": (1, 5)}  # entries, captions of each
LEAST = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # similarities of which the least that is read is chosen
AFTER_NOUNS = "in on with and is are that next near standing sitting at of by , .".split()
NO_THINGS = "top front back side it other one lot couple group bunch pair ground two".split()
NO_NOUNS = """black orange dark cold wild bad late fair right last plain fenced filed boxed peaceful interior exterior
    """.split()  # "a black and white dog"


# Preparing.


def caption_table(samples: Sequence[Sample], vocabulary: Vocabulary) -> np.ndarray:
    """The first five captions of each picture as ids (P, 5, 21); where there are fewer, the first again."""
    texts = [sample.captions[:5] for sample in samples]
    tokens = tokenize_each(vocabulary.tokenizer, (text for five in texts for text in five))
    ids = np.full((len(texts), 5, LONGEST), vocabulary.pad, np.int16)
    for row, five in enumerate(texts):
        for place in range(5):
            if place < len(five):
                words = vocabulary.encode(next(tokens))[:LONGEST]
                ids[row, place, : len(words)] = words
            else:
                ids[row, place] = ids[row, 0]
    return ids


def nouns(ids: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Which words name things (V,): those that often stand between an article and what follows a noun, and COCO's
    objects."""
    flat = ids.reshape(-1, ids.shape[-1]).astype(np.int64)
    count = np.bincount(flat.ravel(), minlength=len(vocabulary))
    article = np.isin(flat, [vocabulary.id(word) for word in ("a", "an", "the")])
    after = np.isin(flat, [*(vocabulary.id(word) for word in AFTER_NOUNS), vocabulary.pad])
    hits = np.zeros(len(vocabulary))
    np.add.at(hits, flat[:, 1:-1][article[:, :-2] & after[:, 2:]], 1)
    found = (count >= 30) & (hits / np.maximum(count, 1) > 0.12)
    special = (vocabulary.unk, vocabulary.pad, vocabulary.bos, vocabulary.eos)
    objects = (phrase[0] for phrase, object in Synonyms.ours().phrases.items() if object and len(phrase) == 1)
    found[[vocabulary.id(word) for word in objects]] = True
    found[[*special, *(vocabulary.id(word) for word in (*NO_THINGS, *NO_NOUNS))]] = False
    return found


def is_there(sample: Sample) -> bool:
    return sample.picture is not None and sample.picture.path.is_file()


def evenly(rows: list[int], most: int | None) -> list[int]:
    return rows if most is None or most >= len(rows) else [rows[at * len(rows) // most] for at in range(most)]


def prepare(
    data: Path, pictures: Path | None, out: Path, model: str, most: int | None = None, held: int | None = None
) -> None:
    """`most`: of all pictures, or, with `held`, of the training pictures, beside so many of val and of test."""
    captioner = Captioner.from_pretrained(model, device="cpu")
    out.mkdir(parents=True, exist_ok=True)
    samples = list(read_dataset(data, pictures=pictures).samples)
    ids = caption_table(samples, captioner.vocabulary)
    split = np.array([SPLITS[sample.split] for sample in samples], np.int8)
    noun = nouns(ids[split == 0], captioner.vocabulary)
    there = [row for row, one in enumerate(samples) if is_there(one)]
    if held is None:
        there = evenly(there, most)
    else:
        parts = [[row for row in there if split[row] == one] for one in range(3)]
        there = sorted(row for part, own in zip(parts, (most, held, held), strict=True) for row in evenly(part, own))
    kept = np.array([int(samples[row].id) for row in there])
    np.savez(out / "captions.npz", names=kept, split=split[there], ids=ids[there], noun=noun)
    write_pixels(out / "pixels.npy", [samples[row] for row in there], captioner.backend.preprocess)


def write_pixels(path: Path, samples: Sequence[Sample], way: Preprocess, workers: int | None = None) -> None:
    """What the captioner reads of each picture (P, size, size, 3), by processes that write where it belongs: Pillow's
    AVIF decoder does not let go of the interpreter."""
    shape = (len(samples), way.size, way.size, 3)
    pixels = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    settings = {"size": way.size, "geometry": way.geometry, "pre_resize": way.pre_resize, "offset": pixels.offset}
    del pixels  # the processes have the file
    for _ in parallel_map(partial(write_square, str(path), len(samples), **settings), enumerate(samples), workers):
        pass


def keep_regions(data: Path, model: str, size: int = 8) -> None:
    """What the captioner sees of each picture, into a file in bfloat16; what is done is not done again."""
    captioner = Captioner.from_pretrained(model, device="cpu")
    assert captioner.vision is not None
    pixels, path = np.load(data / "pixels.npy", mmap_mode="r"), data / REGIONS
    with torch.no_grad():
        shape = (len(pixels), *captioner.vision(as_pictures(pixels[:1], captioner)).features.shape[1:])
        kept = np.lib.format.open_memmap(path, "r+" if path.is_file() else "w+", np.int16, shape)
        left = np.random.default_rng(0).permutation(np.flatnonzero(~kept[:, 0].any(-1)))  # stopped, it has some of all
        for start in range(0, len(left), size):
            rows = np.sort(left[start : start + size])
            features = captioner.vision(as_pictures(pixels[rows], captioner)).features.bfloat16()
            kept[rows] = features.view(torch.int16).numpy()
            if start // size % 125 == 124:
                print(f"{len(pixels) - len(left) + start + len(rows):,} of {len(pixels):,}", flush=True)


def as_pictures(pixels: np.ndarray, captioner: Captioner) -> Tensor:
    return torch.from_numpy(np.array(pixels)).to(captioner.device).permute(0, 3, 1, 2).contiguous()


# Memories.


@dataclass
class Pictures:
    """P pictures on the device: regions (P, N, F), vectors (P, F), captions (P, 5, 21)."""

    cells: Tensor
    boxes: Tensor
    vectors: Tensor
    captions: Tensor

    def regions(self, at: Tensor, hidden: float = 0.0) -> Regions:
        features, boxes = self.cells[at], self.boxes.expand(len(at), -1, -1)
        if hidden:
            keep = torch.rand(features.shape[:2], device=at.device).topk(round(features.shape[1] * (1 - hidden)))
            places = keep.indices[..., None]
            features = features.gather(1, places.expand(-1, -1, features.shape[-1]))
            boxes = boxes.gather(1, places.expand(-1, -1, 4))
        return Regions(features, boxes)


def look(captioner: Captioner, pixels: np.ndarray, size: int = 512) -> tuple[Tensor, Tensor]:
    """Regions (P, N, F) of pictures (P, H, W, 3) and their boxes (1, N, 4)."""
    assert captioner.vision is not None
    found, boxes = None, None
    with torch.no_grad(), ThreadPoolExecutor(8) as pool:
        starts = range(0, len(pixels), size)
        parts = pool.map(lambda start: np.array(pixels[start : start + size]), starts)
        for start, part in zip(starts, parts, strict=True):
            seen = captioner.vision(torch.from_numpy(part).to(captioner.device).permute(0, 3, 1, 2).contiguous())
            if found is None:
                shape = (len(pixels), *seen.features.shape[1:])
                found = torch.empty(shape, dtype=captioner.model.dtype, device=captioner.device)
                boxes = seen.boxes[:1].to(captioner.model.dtype)
            found[start : start + len(part)] = seen.features
    assert found is not None and boxes is not None
    return found, boxes


def regions_of(captioner: Captioner, data: Path) -> tuple[Tensor, Tensor, np.ndarray]:
    """What was kept, or what is seen now: regions (P, N, F), their boxes (1, N, 4), and of which pictures."""
    pixels, kept = np.load(data / "pixels.npy", mmap_mode="r"), data / REGIONS
    if not kept.is_file():
        return *look(captioner, pixels), np.arange(len(pixels))
    regions = np.load(kept, mmap_mode="r")
    rows = np.flatnonzero(regions[:, 0].any(-1))  # it may not have looked at all
    cells = torch.from_numpy(regions[rows]).view(torch.bfloat16).to(captioner.device, captioner.model.dtype)
    return cells, look(captioner, pixels[:1])[1], rows


def mean_vectors(cells: Tensor, centre: Tensor | None) -> Tensor:
    return torch.cat([picture_vectors(Regions(part), centre) for part in cells.split(1024)])


def centre_of(parts: Iterable[Tensor]) -> Tensor:
    """What the vectors of pictures have in common; regions (B, N, F) in parts."""
    return torch.cat([F.normalize(part.float(), dim=-1).mean(1) for part in parts]).mean(0)


def write_centre(data: Path, pictures: Path | None, out: Path, model: str, count: int) -> None:
    """The centre of some training pictures, into a model folder."""
    captioner = Captioner.from_pretrained(model)
    samples = read_dataset(data, pictures=pictures).samples
    order = np.random.default_rng(0).permutation([row for row, one in enumerate(samples) if one.split == "train"])
    chosen = list(islice((samples[row] for row in order if is_there(samples[row])), count))
    batches = (chosen[start : start + 8] for start in range(0, len(chosen), 8))
    centre = centre_of(captioner.see([captioner.read(one.picture.read()) for one in some]).features for some in batches)
    save_weights(out / CENTRE, {"centre": centre.cpu()})


def nearest(
    queries: Tensor, vectors: Tensor, store: Tensor, k: int, own: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k nearest of `store` (places in `vectors`) with similarities; `own`: places of the queries, left out."""
    places, similarities = [], []
    for start in range(0, len(queries), 2048):
        part = queries[start : start + 2048]
        found = part @ vectors[store].T
        if own is not None:
            found.masked_fill_(own[start : start + 2048, None] == store, -2)
        best = found.topk(min(k, len(store) - (own is not None)))
        places.append(store[best.indices])
        similarities.append(best.values)
    return torch.cat(places), torch.cat(similarities)


@dataclass
class Shelf:
    """Draws memories: ids (B, C, T), similarities and ranks (B, C)."""

    pictures: Pictures
    vocabulary: Vocabulary
    captions: int  # C
    least: float = -2.0  # similarity that is read

    def memories(self, entries: Tensor, similarity: Tensor, each: int, chosen: Tensor | None = None) -> list[Tensor]:
        """`each` captions of entries (B, n); `chosen` (B, n, each) says which of the five."""
        count, n = entries.shape
        if chosen is None:
            chosen = torch.arange(each, device=entries.device).expand(count, n, each)
        ids = self.pictures.captions[entries[..., None], chosen][..., :READ].flatten(1, 2)[:, : self.captions]
        similarity = similarity[..., None].expand(-1, -1, each).flatten(1)[:, : self.captions]
        rank = torch.arange(n, device=entries.device)[None, :, None].expand(count, -1, each).flatten(1)
        rank = rank[:, : self.captions]
        # Words that the vocabulary lacks are taken out, and what follows moves up.
        real = (ids != self.vocabulary.pad) & (ids != self.vocabulary.unk)
        order = (~real).int().sort(dim=-1, stable=True).indices
        ids = ids.masked_fill(~real, self.vocabulary.pad).gather(-1, order)
        ids = ids.masked_fill((similarity < self.least)[..., None], self.vocabulary.pad)
        missing = self.captions - ids.shape[1]
        ids = F.pad(ids, (0, 0, 0, missing), value=self.vocabulary.pad)
        return [ids, F.pad(similarity, (0, missing)), F.pad(rank, (0, missing))]

    def any_of(self, at: Tensor, store: Tensor, n: int, seed: int | None = None) -> tuple[Tensor, Tensor]:
        """n entries of a store at random, the most similar first."""
        generator = None if seed is None else torch.Generator(at.device).manual_seed(seed)
        entries = store[torch.randint(len(store), (len(at), n), device=at.device, generator=generator)]
        similarity = (self.pictures.vectors[entries] * self.pictures.vectors[at][:, None]).sum(-1)
        similarity, order = similarity.sort(-1, descending=True)
        return entries.gather(1, order), similarity

    def draw(
        self,
        at: Tensor,
        near: Tensor,
        similar: Tensor,
        store: Tensor,
        noun: Tensor,
        kin: Tensor,
        made_up: float = MADE_UP,
        far: float = FAR,
    ) -> tuple[Memories, Tensor, Tensor]:
        """Memories of training pictures `at`; the noun of each that became a new word (-1: none), and that word."""
        count, device, pad = len(at), at.device, self.vocabulary.pad
        n, each = [(12, 1), (12, 1), (6, 2), (4, 3), (3, 4), (2, 5), (1, 5)][int(torch.randint(7, ()))]
        n = min(n, near.shape[1])
        some = torch.rand(count, near.shape[1], device=device).topk(n).indices.sort(-1).values
        first = torch.arange(n, device=device).expand(count, -1)
        pick = torch.where(torch.rand(count, 1, device=device) < 0.7, first, some)
        entries, similarity = near[at].gather(1, pick), similar[at].gather(1, pick)
        others, apart = self.any_of(at, store, n)
        away = torch.rand(count, 1, device=device) < far
        entries, similarity = torch.where(away, others, entries), torch.where(away, apart, similarity)
        chosen = torch.rand(count, n, 5, device=device).topk(each).indices
        ids, similarity, rank = self.memories(entries, similarity, each, chosen)
        fewer = torch.randint(1, n + 1, (count, 1), device=device)
        there = torch.where(torch.rand(count, 1, device=device) < 0.6, n, fewer)
        ids = ids.masked_fill((rank >= there)[..., None], pad)
        # One noun becomes a word that nobody knows, read as itself or as another that is used alike.
        flat = ids.flatten(1)
        could = noun[flat].float()
        has = (could.sum(1) > 0) & (torch.rand(count, device=device) < made_up)
        word = torch.where(has, flat.gather(1, torch.multinomial(could + 1e-9, 1))[:, 0], -1)
        new = len(self.vocabulary) + torch.arange(count, device=device)
        ids = torch.where(ids == word[:, None, None], new[:, None, None], ids)
        alike = kin[word.clamp_min(0)].gather(1, torch.randint(kin.shape[1], (count, 1), device=device))[:, 0]
        stand_in = torch.where(torch.rand(count, device=device) < 0.5, word, alike)
        return Memories(ids, similarity, rank, torch.where(has, stand_in, self.vocabulary.unk)), word, new


def kin_of(captioner: Captioner, noun: Tensor, count: int = 4) -> Tensor:
    """(V, 4): of each noun, those whose embeddings are most alike."""
    table = F.normalize(captioner.model.decoder.words.weight.float(), dim=-1)
    ids = noun.nonzero()[:, 0]
    kin = torch.zeros(len(noun), count, dtype=torch.long, device=noun.device)
    if len(ids) > count:
        alike = table[ids] @ table[ids].T
        alike.fill_diagonal_(-2)
        kin[ids] = ids[alike.topk(count).indices]
    return kin


# Training.

MemoryOf = Callable[[Tensor], list[Tensor]]


def judged(ids: Tensor, word: Tensor, new: Tensor, bos: int) -> Tensor:
    """Captions (B, S, T) as a reward reads them: a made-up word as the noun it replaced, which itself is nothing."""
    found = torch.where(ids == word[:, None, None], bos, ids)
    return torch.where(ids == new[:, None, None], word[:, None, None], found)


def before(ids: Tensor, bos: int) -> Tensor:
    return torch.cat((torch.full_like(ids[..., :1], bos), ids[..., :-1]), -1)


def shell(count: int, like: Tensor) -> Regions:
    """Regions that only say how many pictures there are, where these are given encoded."""
    return Regions(like.new_zeros(count, 1, 1))


class Speaker:
    """Searches with a level's copy in the captioner's own numbers."""

    def __init__(self, captioner: Captioner, level: MemoryLevel, pictures: Pictures, words: int = 0):
        self.captioner, self.pictures = captioner, pictures
        self.level = copy.deepcopy(level).to(captioner.model.dtype).requires_grad_(False).eval()
        self.model = Remembering(captioner.model, self.level, words=words)
        self.graphs = Graphs(8)

    def use(self, level: MemoryLevel) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(self.level.parameters()), list(level.parameters()))

    @torch.no_grad()
    def search(self, at: Tensor, memory: Memories | list[Tensor] | None, strategy: Strategy, rules: Rules) -> Tensor:
        """The best caption's ids (B, L); memory None: the captioner as it is."""
        encoded = self.captioner.model.encode(self.pictures.regions(at))
        if memory is None:
            found = decode(
                self.captioner.model, shell(len(at), self.pictures.cells), strategy, rules,
                encoded=encoded, graphs=self.graphs,
            )  # fmt: skip
        else:
            if not isinstance(memory, Memories):
                memory = Memories(*memory, torch.zeros(0, dtype=torch.long, device=at.device))
            encoded = self.model.recall(encoded, memory.state())
            given = shell(len(at), self.pictures.cells)
            found = decode(self.model, given, strategy, rules, encoded=encoded, graphs=self.graphs)
        return found.ids[:, 0]


def batches(count: int, size: int, device: torch.device) -> Iterator[Tensor]:
    while True:
        order = torch.randperm(count, device=device)
        yield from (part for part in order.split(size) if len(part) == size)


def train(data: Path, out: Path, objects: str | None, args: argparse.Namespace) -> None:
    started = time.time()

    def log(*words: object) -> None:
        print(f"[{time.time() - started:6.1f} s]", *words, flush=True)

    def left() -> float:
        return 60 * args.minutes - (time.time() - started)

    torch.manual_seed(args.seed)
    out.mkdir(parents=True, exist_ok=True)
    dtype = args.dtype or ("bfloat16" if torch.cuda.is_available() else "float32")
    captioner = Captioner.from_pretrained(args.model, dtype=dtype)
    model, vocabulary, device = captioner.model.requires_grad_(False), captioner.vocabulary, captioner.model.device
    pad, bos, eos, unk = vocabulary.pad, vocabulary.bos, vocabulary.eos, vocabulary.unk
    cells, boxes, rows = regions_of(captioner, data)
    kept = dict(np.load(data / "captions.npz"))
    names, split, ids_of = (kept[name][rows] for name in ("names", "split", "ids"))
    split[(split == 0) & np.isin(names, list(DUPLICATES))] = -1
    captions = torch.from_numpy(ids_of.astype(np.int64)).to(device)
    train_at, val_at, test_at = (torch.from_numpy(np.nonzero(split == one)[0]).to(device) for one in range(3))
    noun = torch.from_numpy(kept["noun"]).to(device)
    centre = captioner.backend.centre  # that of memories which people have
    if centre is None:
        centre = centre_of(cells[part] for part in train_at.split(1024))
    save_weights(out / CENTRE, {"centre": centre.cpu()})
    pictures = Pictures(cells, boxes, mean_vectors(cells, centre), captions)
    log("looked at", len(cells), "pictures")
    everyone = torch.arange(len(cells), device=device)
    near, similar = nearest(pictures.vectors, pictures.vectors, train_at, NEAREST, own=everyone)
    log("nearest of val:", similar[val_at, 0].quantile(torch.tensor([0.05, 0.5, 0.95], device=device)).tolist())

    level = MemoryLevel(MemoryConfig.of(model)).to(device)
    level.nouns.copy_(noun)
    mean_level = copy.deepcopy(level).requires_grad_(False)  # of the latest steps: what is kept
    shelf = Shelf(pictures, vocabulary, level.config.captions)
    kin = kin_of(captioner, noun)
    speaker, drawer = Speaker(captioner, level, pictures), Speaker(captioner, level, pictures, words=args.batch)
    learner = Remembering(model, level, words=args.batch)
    rules = captioner.plan(CaptionOptions()).rules

    def references(at: Tensor) -> list[list[list[int]]]:
        return [[[word for word in one if word != pad] for one in five] for five in captions[at].tolist()]

    def remembered(at: Tensor, way: str) -> list[Tensor]:
        n, each = WAYS[way]
        return shelf.memories(near[at][:, :n], similar[at][:, :n], each)

    def any_of(at: Tensor) -> list[Tensor]:
        return shelf.memories(*shelf.any_of(at, train_at, 12, seed=7), 1)

    def small(size: int, way: str) -> MemoryOf:
        """What a store of so many pictures recalls."""
        n, each = WAYS[way]
        store = train_at[torch.randperm(len(train_at), generator=torch.Generator().manual_seed(5))[:size].to(device)]
        return lambda at: shelf.memories(*nearest(pictures.vectors[at], pictures.vectors, store, n), each)

    def said(part: Tensor, memory_of: MemoryOf | None, strategy: Strategy) -> Tensor:
        return torch.cat([speaker.search(at, memory_of and memory_of(at), strategy, rules) for at in part.split(250)])

    judges = {name: CiderReward(references(part), eos=eos, pad=pad, count_eos=False) for name, part in
              (("val", val_at), ("test", test_at))}  # fmt: skip

    def scores(ids: Tensor, name: str = "val") -> Tensor:
        """CIDEr-D of the first pictures of a split."""
        return 100 * judges[name](ids[:, None], torch.arange(len(ids), device=device))[:, 0]

    def greedy(memory_of: MemoryOf | None, count: int) -> float:
        return float(scores(said(val_at[:count], memory_of, Greedy())).mean())

    history: list[dict[str, object]] = []

    def copied(count: int) -> float:
        """Of captions of val for which a noun that people said was made a new word: the share that says it."""
        drawer.use(mean_level)
        own, asked = 0, 0
        for at in (part for part in val_at[:count].split(args.batch) if len(part) == args.batch):
            memory, word, new = shelf.draw(at, near, similar, train_at, noun, kin, made_up=1.0, far=0.0)
            found = drawer.search(at, memory, Greedy(), rules)
            meant = ((captions[at] == word[:, None, None]).any(-1).sum(-1) > 1) & (word >= 0)
            own += int(((found == new[:, None]).any(-1) & meant).sum())
            asked += int(meant.sum())
        return own / max(1, asked)

    def validate(step: int | str, count: int = args.validated) -> str:
        """The best way on the first so many pictures of val; saves the level."""
        log(f"a made-up word is said in {100 * copied(count):.1f} % of captions")
        speaker.use(mean_level)
        found = {way: greedy(partial(remembered, way=way), count) for way in WAYS}
        best = max(found, key=lambda name: found[name])
        history.append({"step": step, "without": greedy(None, count), "far": greedy(any_of, count), **found})
        log("val, greedy CIDEr-D:", {name: f"{value:.2f}" for name, value in history[-1].items() if name != "step"})
        mean_level.config = replace(mean_level.config, entries=WAYS[best][0])  # what the captioner asks a store for
        mean_level.save(out / "memory.safetensors", bits=8)
        (out / "history.json").write_text(json.dumps(history, indent=1))
        return best

    matrices = [p for p in level.parameters() if p.dim() > 1]
    vectors = [p for p in level.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=device.type == "cuda")
    cast = torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16", cache_enabled=False)

    def learn(loss: Tensor, rate: float, share: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(level.parameters(), 1.0)
        for parameter in level.parameters():  # one overflow must not end everything
            if parameter.grad is not None:
                parameter.grad.masked_fill_(~norm.isfinite(), 0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(mean_level.parameters()), list(level.parameters()), 1 - share)

    reward = CiderReward(references(train_at), eos=eos, pad=pad)
    place = torch.full((len(cells),), -1, device=device)
    place[train_at] = torch.arange(len(train_at), device=device)
    lessons = torch.full((len(cells), 3, LONGEST), pad, device=device)
    for at in train_at.split(250):
        own = speaker.search(at, None, Greedy(), rules)[:, :LONGEST]
        own = own.masked_fill(own == eos, pad)
        agreed = reward(captions[at], place[at]).to(device).topk(2).indices
        lessons[at, 0, : own.shape[1]] = own
        lessons[at, 1:] = captions[at[:, None], agreed]
    log("captions to learn from are ready")

    numbers = batches(len(train_at), args.batch, device)
    for step in range(args.xe_steps):
        at = train_at[next(numbers)]
        memory, word, new = shelf.draw(at, near, similar, train_at, noun, kin)
        with torch.no_grad():
            encoded = model.encode(pictures.regions(at, float(torch.empty(()).uniform_(*HIDDEN))))
        ids = F.pad(lessons[at][..., :20], (0, 1), value=pad)
        ids = ids.scatter(-1, (ids != pad).sum(-1, keepdim=True), eos)
        ids = torch.where(ids == word[:, None, None], new[:, None, None], ids)
        counted = (ids != pad) & (ids != unk)
        with cast:
            log_probs = learner.read(learner.recall(encoded, memory.state()), before(ids, bos), ids)
        loss = -log_probs.where(counted, 0).sum() / counted.sum()
        learn(loss, 5e-4 * min(1, (step + 1) / 50) * (1 - 0.7 * step / args.xe_steps), 0.0)
        if (step + 1) % 25 == 0 or step + 1 == args.xe_steps:
            log(f"cross-entropy: step {step + 1}, {float(loss.detach()):.4f}")
    validate("xe")

    there = None
    if objects is not None:
        named = [(str(name), f"{name:012d}.jpg") for name in names[train_at.cpu().numpy()].tolist()]
        there = ObjectReward.of_pictures(objects, named, vocabulary.words, penalty=0.2, bonus=0.05).to(device)
    step, finish, began = 0, args.finish, time.time()
    whole = max(1.0, left() - finish)
    while left() > finish:
        done = (time.time() - began) / whole
        at = train_at[next(numbers)]
        memory, word, new = shelf.draw(at, near, similar, train_at, noun, kin)
        drawer.use(level)
        with torch.no_grad():
            encoded = model.encode(pictures.regions(at, float(torch.empty(()).uniform_(*HIDDEN))))
            drawn = decode(
                drawer.model, shell(len(at), cells), Sampling(args.samples, seed=step), Rules(max_length=18),
                n_best=args.samples, graphs=drawer.graphs, encoded=drawer.model.recall(encoded, memory.state()),
                stop_early=device.type != "cuda",
            )  # fmt: skip
            ids = drawn.ids.clone()
            words = judged(ids, word, new, bos)
            earned = reward(words, place[at])
            advantage = advantages(earned if there is None else earned + there(words, place[at]))
        with cast:
            log_probs = learner.read(learner.recall(encoded, memory.state()), before(ids, bos), ids)
        real = ids != pad
        loss = -(advantage[..., None] * log_probs).where(real, 0).sum() / real.sum()
        rate = args.lr * min(1, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1, done))))
        learn(loss, rate, min(0.998, step / (step + 10)))
        step += 1
        if step % (args.every // 10 or 1) == 0:
            log(f"self-critical: step {step}, reward {float(earned.mean()):.4f}")
        if step % args.every == 0:
            validate(step)
    log("self-critical:", step, "steps")
    way = validate("end", args.watched)
    tried = {}
    for least in LEAST:
        shelf.least = least
        stores = [*(small(size, way) for size in STORES if size < len(train_at)), partial(remembered, way=way)]
        tried[least] = sum(greedy(one, args.watched) for one in stores) / len(stores)
    shelf.least = max(tried, key=lambda one: tried[one])
    log("least similarity:", {least: f"{value:.2f}" for least, value in tried.items()})
    mean_level.config = replace(mean_level.config, least_similarity=shelf.least)
    mean_level.save(out / "memory.safetensors", bits=8)

    parts = {"val": val_at, "test": test_at}
    jobs: list[tuple[str, str, MemoryOf | None]] = [
        ("val", "without", None),
        ("val", "with", partial(remembered, way=way)),
        ("test", "with", partial(remembered, way=way)),
        ("test", "without", None),
    ]
    jobs += [("test", str(size), small(size, way)) for size in reversed(STORES) if size < len(train_at)]
    jobs += [("test", "far", any_of)]
    found: dict[str, Tensor] = {}
    for name, kind, memory_of in jobs:
        ids = said(parts[name], memory_of, Beam(5))
        rows = zip(names[parts[name].cpu().numpy()].tolist(), map(vocabulary.sentence, ids.tolist()), strict=True)
        text = json.dumps([{"image_id": number, "caption": caption} for number, caption in rows])
        (out / f"{name}_{kind}.json").write_text(text)
        found[f"{name}_{kind}"] = scores(ids, name)
        log(f"captioned {name} {kind}: CIDEr-D {float(found[f'{name}_{kind}'].mean()):.2f}")
        for other in [one for one in found if one.startswith(name) and not one.endswith("_without")]:
            if f"{name}_without" in found and (kind == "without" or other == f"{name}_{kind}"):
                more = found[other] - found[f"{name}_without"]
                log(f"{other}: {float(more.mean()):+.2f} ± {1.96 * float(more.std()) / len(more) ** 0.5:.2f}")
    log(f"captions by {way}, of a similarity of {shelf.least} and more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "centre"):
        one = commands.add_parser(name)
        one.add_argument("captions", type=Path, help="a dataset: Karpathy's file, or a folder of shards")
        one.add_argument("data", type=Path, help="the folder that is written")
        one.add_argument("--pictures", type=Path, help="their folder, where the dataset holds none")
        one.add_argument("--count", type=int, help="of the pictures; centre: 2,000 unless told")
    commands.choices["prepare"].add_argument("--held", type=int, help="so many of val and of test; --count of train")
    commands.add_parser("look").add_argument("data", type=Path)
    two = commands.add_parser("train")
    for name in ("data", "out"):
        two.add_argument(name, type=Path)
    two.add_argument("--objects", help="which of COCO's objects are in each picture, as in recipes/coco.sh")
    two.add_argument("--dtype", choices=("bfloat16", "float32"), help="bfloat16 on a GPU unless told")
    two.add_argument("--minutes", type=float, default=12.0)
    two.add_argument("--finish", type=float, default=75.0, help="seconds of them for captions at the end")
    two.add_argument("--every", type=int, default=1000, help="self-critical steps between validations")
    two.add_argument("--validated", type=int, default=1000, help="pictures of val in each")
    two.add_argument("--watched", type=int, default=2500, help="pictures of val that decide at the end")
    two.add_argument("--xe-steps", type=int, default=500)
    two.add_argument("--batch", type=int, default=256)
    two.add_argument("--samples", type=int, default=5)
    two.add_argument("--lr", type=float, default=2e-4)
    two.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.command == "prepare":
        prepare(args.captions, args.pictures, args.data, args.model, args.count, args.held)
    elif args.command == "look":
        keep_regions(args.data, args.model)
    elif args.command == "centre":
        write_centre(args.captions, args.pictures, args.data, args.model, args.count or 2000)
    else:
        train(args.data, args.out, args.objects, args)


if __name__ == "__main__":
    main()
