"""POP909 (https://github.com/music-x-lab/POP909-Dataset, MIT) as a dataset of excerpts with captions made by rules.

    python recipes/pop909.py make POP909 --out excerpts       # songs in, shards of song.mid + captions out
    meshcap train excerpts --vision score --out run --set data.max_length=46 --set scst.facts=true
    meshcap evaluate run excerpts --split test --out scores
    python recipes/pop909.py check excerpts scores/captions-test.json
    python recipes/pop909.py compare excerpts --out compared --jobs 14    # one of each kind of captioner

The songs are performances: their beats are annotated in seconds. Notes are moved onto those beats, so that an excerpt
is an ordinary MIDI file with metre and tempo. Chords (`chord_midi.txt`) and keys (`key_audio.txt`) are annotations,
too; key signatures and markers hold them in every other excerpt, and the rest has notes alone.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symusic
import torch
import typer
from rich.console import Console
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this repository, when run as a script
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks.mechanisms import SLOW, cases, judged
from benchmarks.mechanisms_results import REFERENCE, Results, signature, summed_up
from benchmarks.side_by_side import Job, Work, failures, in_turn, side_by_side
from meshcap.data import Sample, read_dataset
from meshcap.data.dataset import hashed_place
from meshcap.data.pack import write_dataset
from meshcap.data.shards import Packed
from meshcap.errors import FailedError, MeshcapError
from meshcap.machine import machine
from meshcap.music import hearing
from meshcap.music.captions import KINDS, Statement, check_caption, read_caption, write_captions
from meshcap.music.facts import Facts, facts_of
from meshcap.music.harmony import ALL_CHORDS, Chord, Key, estimate_chords, estimate_key, parse_chord
from meshcap.music.score import BASS, Part, Score, read_score
from meshcap.training.distributed import World
from meshcap.training.folder import fingerprint
from meshcap.training.log import Watch
from meshcap.training.run import Run
from meshcap.training.settings import TrainSettings

Songs = dict[str, list[tuple[Score, list[Key | None]]]]

SHORTEST = 8  # bars of an excerpt
GRID = 24  # of a quarter note, where notes are moved to


def read_song(folder: Path) -> list[tuple[Score, list[Key | None]]]:
    """A song on its annotated beats, and the annotated key of each bar, None where there is none.

    In parts, where a bar is annotated with more or fewer beats than the others.
    """
    beats = np.array([[float(one) for one in line.split()] for line in _lines(folder / "beat_midi.txt")])
    triple = np.median(np.diff(np.flatnonzero(beats[:, 1] == 1))) == 3
    size = 3 if triple else 4
    firsts = np.flatnonzero(beats[:, 1 if triple else 2] == 1)
    runs, run = [], [int(firsts[0])]
    for place in firsts[1:]:
        if place - run[-1] != size:
            runs.append(run)
            run = []
        run.append(int(place))
    chords = [(float(a), float(b), parse_chord(c)) for a, b, c in map(str.split, _lines(folder / "chord_midi.txt"))]
    keys = [(float(a), float(b), c) for a, b, c in map(str.split, _lines(folder / "key_audio.txt"))]
    tracks = symusic.Score(str(folder / f"{folder.name}.mid")).to("second").tracks
    return [_run(tracks, beats[:, 0], one, size, chords, keys) for one in [*runs, run] if len(one) > SHORTEST]


def _run(
    tracks: Any, times: np.ndarray, places: list[int], size: int, chords: list[Any], keys: list[Any]
) -> tuple[Score, list[Key | None]]:
    count, times = len(places) - 1, times[places[0] :]
    parts = []
    for track in tracks:
        notes = track.notes.numpy()
        begin, end = _place(times, notes["time"]), _place(times, notes["time"] + notes["duration"])
        onset = np.rint(begin * GRID) / GRID
        inside = (onset >= 0) & (onset < count * size)
        order = np.lexsort((notes["pitch"][inside], onset[inside]))
        arrays = onset, np.maximum(end - begin, 1 / GRID), notes["pitch"].astype(int), notes["velocity"].astype(int)
        parts.append(Part(str(track.name), *(one[inside][order] for one in arrays), int(track.program)))
    seconds = times[np.arange(count + 1) * size]
    begun = tuple(_chord_at(chords, second) for second in seconds[:-1])
    bars = np.arange(count + 1) * float(size)
    score = Score(tuple(parts), bars, ((size, 4),) * count, 60 * size / np.diff(seconds), None, begun)
    return score, [_key_in(keys, *span) for span in pairwise(seconds)]


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.strip()]


def _place(times: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Beats of moments; before the first and after the last the beat goes on as it was."""
    step = float(np.median(np.diff(times)))
    steps = 8
    before, after = times[0] - step * np.arange(steps, 0, -1), times[-1] + step * np.arange(1, steps + 1)
    return np.interp(seconds, np.concatenate((before, times, after)), np.arange(-steps, len(times) + steps))


def _chord_at(chords: list[Any], second: float) -> Chord | None:
    for start, end, chord in chords:
        if start - 0.1 <= second < end - 0.1:
            return chord or None
    return None


def _key_in(keys: list[Any], start: float, end: float) -> Key | None:
    for first, last, name in keys:
        if first <= (start + end) / 2 < last:
            tonic, mode = name.split(":")
            chord = parse_chord(tonic)
            assert chord
            return Key(chord.root, "minor" if mode == "min" else "major")
    return None


def split_of(song: str) -> str:
    place = hashed_place(f"pop909-{song}")
    return "test" if place < 0.08 else "val" if place < 0.13 else "train"


@dataclass(frozen=True)
class Excerpt:
    """A part of a song as a file has it, and what the annotations say is true of it."""

    id: str
    song: str
    split: str
    score: Score
    facts: Facts
    captions: list[str]


def excerpts(songs: Songs, split: str, each: int, seed: int = 0) -> Iterator[Excerpt]:
    """Excerpts of 8 to 32 bars, splits by song; those to learn from are varied, see `_varied`.

    Of test and val, each comes twice: "-given" with key signature and chord symbols in the file, "-bare" without.
    """
    for song, runs in songs.items():
        if split_of(song) != split:
            continue
        rng = random.Random(f"{song}-{seed}")
        triple = runs and runs[0][0].metres[0][0] == 3
        for number in range(each * (5 if triple and split == "train" else 1)):
            drawn = _draw(runs, rng, varied=split == "train")
            if drawn is None:
                continue
            score, key, chords = drawn
            modes = [(rng.random() < 0.4, rng.random() < 0.4)] if split == "train" else [(True, True), (False, False)]
            for key_given, chords_given in modes:
                told = replace(score, key=key if key_given else None, chords=chords if chords_given else None)
                read = read_score(told.to_midi())
                if len(read) != len(score):
                    continue  # it begins or ends with silence
                facts = facts_of(read, key, chords)
                ending = "" if split == "train" else "-given" if key_given else "-bare"
                id = f"pop909-{song}-{number}{ending}"
                yield Excerpt(id, song, split, read, facts, write_captions(facts, random.Random(id)))


def _draw(runs: Any, rng: random.Random, *, varied: bool) -> tuple[Score, Key, tuple[Chord | None, ...]] | None:
    for _ in range(20):
        score, keys = rng.choices(runs, [len(run[0]) for run in runs])[0]
        size = rng.randint(8, 32)
        if varied and rng.random() < 0.3:  # pieces may be of any length
            size = rng.randint(2, 7) if rng.random() < 0.5 else rng.randint(33, 100)
        size = min(size, len(score))
        first = rng.randint(0, len(score) - size)
        found = set(keys[first : first + size])
        part = score.excerpt(first, first + size)
        if len(found) != 1 or None in found or not len(part.notes["pitch"]):
            continue
        key = keys[first]
        assert key is not None
        if varied:
            part, key = _varied(part, key, rng)
        return part, key, part.chords or ()
    return None


def _varied(score: Score, key: Key, rng: random.Random) -> tuple[Score, Key]:
    """Changes whose effect on the facts is known: another key, tempo, order of tracks or way of writing the metre."""
    up = rng.randint(-6, 5)
    score, key = score.transposed(up), key.transposed(up)
    if rng.random() < 0.6:
        score = score.at_tempo(rng.uniform(0.6, 1.7))
    score = score.reordered(rng.sample(range(len(score.parts)), len(score.parts)))
    if rng.random() < 0.2:
        score = renotated(score, rng)
    alone = rng.random()
    if alone < 0.08:  # without the melody, or without the rest, of which nobody hears chords
        kept = tuple(part for part in score.parts if (part.name == "MELODY") == (alone < 0.03) and len(part))
        if kept:
            silent = (None,) * len(score) if alone < 0.03 else score.chords
            score = replace(score, parts=kept, chords=silent)
    return score, key


def renotated(score: Score, rng: random.Random) -> Score:
    """The same music in notes of half the value: 4/4 becomes 2/4 or 4/8, 3/4 becomes 3/8 or, two bars in one, 6/8."""
    top, bottom = score.metres[0]
    bars, metre, chords = score.bars / 2, (top, 2 * bottom), score.chords
    tempos = score.tempos / 2
    if top == 4 and rng.random() < 0.7:
        metre = rng.choice([(2, 4), (2, 2)])
        if metre == (2, 2):
            return replace(score, metres=(metre,) * len(score))
    elif top == 3 and len(score) > 2 and rng.random() < 0.7:
        score = score.excerpt(0, len(score) // 2 * 2)
        bars, metre, chords, tempos = score.bars[::2] / 2, (6, 8), (score.chords or ())[::2], score.tempos[::2] / 2
    halved = tuple(replace(part, onset=part.onset / 2, duration=part.duration / 2) for part in score.parts)
    return Score(halved, bars, (metre,) * (len(bars) - 1), tempos, None, chords)


def learn_to_hear(songs: Songs, epochs: int = 12, hidden: int = 64) -> dict[str, Any]:
    """The weights of `meshcap.music.hearing`, from the training songs; prints how well it hears the others."""
    from torch import nn

    torch.manual_seed(0)
    rows: dict[str, list[Any]] = {}
    for song, runs in songs.items():
        for score, keys in runs:
            rows.setdefault(split_of(song), []).append((score, keys, hearing.chord_inputs(score)))

    def chords_of(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = [], []
        for score, _, made in rows[split]:
            there = [n for n, chord in enumerate(score.chords or ()) if chord is not None]
            inputs.append(made[there])
            targets += [ALL_CHORDS.index(score.chords[n]) for n in there]
        return torch.from_numpy(np.concatenate(inputs)), torch.tensor(targets)

    def fit(inputs: torch.Tensor, targets: torch.Tensor, classes: int, rate: float) -> nn.Module:
        network = nn.Sequential(
            nn.Linear(inputs.shape[-1], hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, classes)
        )
        optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=0.01)
        steps = epochs * (len(inputs) // 256)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1)
        for _ in range(epochs):
            order = torch.randperm(len(inputs))
            for part in order.split(256)[: len(inputs) // 256]:
                scores = network(inputs[part]).transpose(1, 2).flatten(1)
                loss = nn.functional.cross_entropy(scores, targets[part], label_smoothing=0.02)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        return network.eval()

    def right(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        with torch.no_grad():
            return float((network(inputs).transpose(1, 2).flatten(1).argmax(1) == targets).float().mean())

    chord = fit(*chords_of("train"), 5, 3e-3)
    for split in ("train", "val", "test"):
        print(f"chords of bars, {split}: {right(chord, *chords_of(split)):.4f}", flush=True)

    def keys_of(split: str, drawn: int) -> tuple[torch.Tensor, torch.Tensor]:
        rng = np.random.default_rng(0)
        inputs, targets = [], []
        for score, keys, made in rows[split]:
            with torch.no_grad():
                likely = chord(torch.from_numpy(made)).transpose(1, 2).flatten(1).softmax(1).numpy()
            for _ in range(drawn):
                size = int(rng.integers(8, 33))
                if size > len(score):
                    continue
                first = int(rng.integers(0, len(score) - size + 1))
                found = set(keys[first : first + size])
                if len(found) == 1 and None not in found:
                    part = score.excerpt(first, first + size)
                    if len(part.notes["onset"]):
                        inputs.append(hearing.key_inputs(part, likely[first : first + size]))
                        targets.append(hearing.place_of(keys[first]))
        return torch.from_numpy(np.stack(inputs)), torch.tensor(targets)

    key = fit(*keys_of("train", 12), 2, 2e-3)
    for split in ("train", "val", "test"):
        print(f"keys of excerpts, {split}: {right(key, *keys_of(split, 6)):.4f}", flush=True)
    weights = {}
    for name, network in (("chord", chord), ("key", key)):
        for place, to in ((0, 0), (3, 2)):
            for kind in ("weight", "bias"):
                weights[f"{name}.{to}.{kind}"] = getattr(network[place], kind).detach().half().numpy().copy()
    return weights


# What is called

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
Folder = Annotated[Path, typer.Argument(help="The folder POP909 of the dataset's repository.")]


def read_songs(folder: Path) -> Songs:
    found = {one.name: read_song(one) for one in sorted(folder.iterdir()) if (one / "beat_midi.txt").is_file()}
    if not found:
        raise MeshcapError(f"{folder} holds no songs: expected 001/beat_midi.txt and so on")
    return found


@app.command()
def make(folder: Folder, out: Annotated[Path, typer.Option()], each: int = 18) -> None:
    """Excerpts as tar shards of MIDI files, five captions each and their facts: what `meshcap train` reads."""
    songs = read_songs(folder)

    def begin(split: str, start: int) -> Iterator[Packed]:
        for number, one in enumerate(excerpts(songs, split, each if split == "train" else 8 if split == "test" else 4)):
            if number >= start:
                record = {"id": one.id, "filename": f"{one.id}.mid", "captions": one.captions, "split": split}
                yield Packed(number, one.id, "mid", one.score.to_midi(), {**record, "facts": one.facts.to_dict()})

    splits = {split: partial(begin, split) for split in ("test", "val", "train")}
    write_dataset(out, {"pop909": {"each": each}}, splits, shard_mb=20)  # type: ignore[arg-type]


@app.command()
def hear(folder: Folder, out: Annotated[Path, typer.Option()] = hearing.WEIGHTS) -> None:
    """Learn to hear keys and chords."""
    save_file(learn_to_hear(read_songs(folder)), out)


@app.command()
def check(
    data: Annotated[Path, typer.Argument(help="What `make` wrote.")],
    captions: Annotated[Path, typer.Argument(help="The captions-test.json that `meshcap evaluate` wrote.")],
    split: Annotated[str, typer.Option()] = "test",
) -> None:
    """How many statements of each kind are true, beside what simpler ways would have said of the same pieces."""
    said = {str(one["image_id"]): one["caption"] for one in json.loads(captions.read_text())}
    dataset = read_dataset(data)
    usual = most_common(map(truth, dataset.split("train")))
    samples = [sample for sample in dataset.split(split) if sample.id in said]
    for mode in ("bare", "given"):
        own = [sample for sample in samples if sample.id.endswith(mode)]
        pieces = [Piece.of(read_score(sample.picture.read()), said[sample.id], truth(sample)) for sample in own]
        report(f"{mode}: {len(pieces)} captions", pieces, usual)


@dataclass(frozen=True)
class Piece:
    """What was said of a piece, what is true of it, and what rules and the hearing alone would say."""

    statements: tuple[Statement, ...]
    unread: int  # words of no statement
    facts: Facts
    textbook: Facts  # Krumhansl and Schmuckler's key, template chords
    heard: Facts

    @classmethod
    def of(cls, score: Score, caption: str, facts: Facts) -> Piece:
        statements, left = read_caption(caption)
        bare = score.bare()
        key = estimate_key(hearing.chroma(bare).sum(0))
        chords = estimate_chords(hearing.chroma(bare, 0.5), hearing.chroma(bare, 0.5, BASS))
        heard = hearing.hear(score)
        by_ear = facts_of(score, heard.key, heard.best_chords())
        return cls(statements, len(left), facts, facts_of(bare, key, chords), by_ear)

    def without(self, kinds: Iterable[str]) -> Piece:
        """Of a piece of which nobody knows these."""
        return replace(self, statements=tuple(one for one in self.statements if one.kind not in kinds))


def truth(sample: Any) -> Facts:
    return Facts.from_dict((sample.more or {})["facts"])


def right(kind: str, found: Facts, facts: Facts) -> float:
    """Whether what would be said of one record of facts is true of the other; nan: nothing would be said."""
    ways = KINDS[kind].say(found)
    return right_words(kind, ways[0], facts) if ways else float("nan")


def right_words(kind: str, words: str, facts: Facts) -> float:
    return float(KINDS[kind].holds(KINDS[kind].read(words), facts))


def most_common(all_facts: Iterable[Facts]) -> dict[str, str]:
    """Of each kind, the words that are true most often."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for facts in all_facts:
        for kind, own in counts.items():
            if ways := KINDS[kind].say(facts):
                own[ways[0]] += 1
    return {kind: own.most_common(1)[0][0] for kind, own in counts.items()}


def report(title: str, pieces: list[Piece], usual: dict[str, str] | None = None) -> None:
    """A table in Markdown. Simpler ways are asked of those pieces alone of which the captioner said something."""
    rows: dict[str, list[tuple[bool, float, float, float]]] = {}
    for piece in pieces:
        for one in piece.statements:
            kind, facts = one.kind, piece.facts
            common = right_words(kind, usual[kind], facts) if usual else float("nan")
            row = one.holds(facts), right(kind, piece.heard, facts), right(kind, piece.textbook, facts), common
            rows.setdefault(kind, []).append(row)
            if isinstance(one.value, Key):
                modes = [float(key.mode == facts.key.mode) for key in (one.value, piece.heard.key, piece.textbook.key)]
                rows.setdefault("mode", []).append((bool(modes[0]), modes[1], modes[2], facts.key.mode == "major"))
    every = [row for kind, own in rows.items() for row in own if kind != "mode"]
    faultless = np.mean([all(one.holds(piece.facts) for one in piece.statements) for piece in pieces])
    unread, kinds = sum(piece.unread for piece in pieces), len({one.kind for p in pieces for one in p.statements})
    print(f"{title}, {len(every) / len(pieces):.2f} statements each of {kinds} kinds", end=", ")
    print(f"{faultless:.1%} of the captions true throughout, {unread} words of no statement\n")
    print("| kind | said | of pieces | true | as heard | textbook | most common |\n|---|---|---|---|---|---|---|")
    for kind, own in [*sorted(rows.items()), ("all", every)]:
        true, *others = (
            100 * np.nanmean(column) if not np.isnan(column).all() else np.nan for column in np.array(own, float).T
        )
        share = "" if kind == "all" else f"{100 * len(own) / len(pieces):.0f} %"
        print(f"| {kind} | {len(own)} | {share} | {true:.1f} | " + " | ".join(f"{one:.1f}" for one in others) + " |")
    print()


COMPARED = (  # of the bench's captioners
    "seq2seq", "show-attend-tell, soft, additive", "hierarchical", "ntm", "hopfield", "transformer, 2 layers",
    REFERENCE, "m2, no memory", "m2, last level", "m2, softmax gates",
)  # fmt: skip
SMALL: dict[str, Any] = {
    "data.max_length": 46, "data.workers": 1, "model.vision": "score", "model.d_model": 96,
    "model.encoder_layers": 2, "model.decoder_layers": 2, "xe.batch": 16, "xe.captions": 2, "xe.lr": 2e-3,
    "run.stages": ("xe",), "run.precision": "float32", "run.threads": 1, "run.track": (),
}  # fmt: skip


@app.command()
def compare(
    data: Annotated[Path, typer.Argument(help="What `make --each 4` wrote.")],
    out: Annotated[Path, typer.Option(help="Where results are kept; what is done is not done again.")],
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Of cross-entropy, for every captioner.")] = 1500,
    only: Annotated[list[str] | None, typer.Option(help="Beginning of a name; may be given several times.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, each with one thread.")] = 1,
) -> None:
    """Small captioners of every kind, trained alike: CIDEr and how much is true of what they say of val songs."""
    names = [name for name in COMPARED if not only or any(name.startswith(one) for one in only)]
    if not names:
        raise MeshcapError(f"no captioner begins with {', '.join(only or ())!r}: expected some of {COMPARED}")
    dataset = read_dataset(data)
    everything = fingerprint(dataset.split("train"), notes_alone(dataset.split("val")))
    results = Results.read(out, signature({**SMALL, "xe.steps": steps}, everything))
    left = [(name, seed) for seed, name in product(range(seeds), names) if (name, seed) not in results.runs]
    left.sort(key=lambda job: not job[0].startswith(SLOW))

    def finished(job: Job, line: dict[str, Any]) -> None:
        results.add(job[0], line, job[1])
        print(f"{job[0]}, seed {job[1]}: CIDEr {100 * line['CIDEr']:.1f}, {line['seconds']:.0f} s", flush=True)

    def lost(job: Job, why: str) -> None:
        print(f"{job[0]}, seed {job[1]} failed: {why}", flush=True)

    out.mkdir(parents=True, exist_ok=True)
    settings = TrainSettings.named({**SMALL, "data.path": str(data), "run.out": str(out), "xe.steps": steps})
    failed: dict[Job, str] = {}
    if left and jobs == 1:
        failed = in_turn(ready(settings), left, finished, lost)
    elif left:
        failed = side_by_side(partial(ready, settings), left, jobs, finished, lost)
    if failed:
        raise FailedError(failures(failed, len(left)))
    print_compared([[results.runs[name, seed] for seed in range(seeds)] for name in names])


def notes_alone(samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.id.endswith("-bare")]


def ready(settings: TrainSettings) -> Work:
    """The scores are read once for all runs of a process."""
    base = Run.prepare(settings, World(torch.device("cpu")), Watch(0, Console(quiet=True), quiet=True))
    base = replace(base, val=notes_alone(base.val))
    base.read_pictures()
    known = {case.name: case for case in cases(layers=2)}

    def work(job: Job) -> dict[str, Any]:
        line = judged(base, known[job[0]], job[1])
        found = [holds for one in base.val for _, holds in check_caption(line["said"][one.id], truth(one))]
        return {**line, "statements": len(found), "true": sum(found), "machine": machine(base.world.device)}

    return work


def print_compared(lines: list[list[dict[str, Any]]]) -> None:
    """A table in Markdown, a row for each captioner from the lines of its seeds."""
    first = lines[0][0]
    print(f"\n{len(first['said'])} pieces of val songs, notes alone; {first['machine']}\n")
    print("| captioner | CIDEr | of seeds | ahead of M² | statements true | of seeds | said | weights |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for row, runs in zip(summed_up(lines), lines, strict=True):
        ahead = "–"
        if row.ahead is not None and row.ahead_interval is not None:
            ahead = "{:+.1f} ({:+.1f} to {:+.1f})".format(row.ahead, *row.ahead_interval) + f", p {row.p:.3f}"
        true = [100 * run["true"] / max(1, run["statements"]) for run in runs]
        said = np.mean([run["statements"] / len(run["said"]) for run in runs])
        print(
            f"| {row.name} | {row.cider:.1f} ({row.interval[0]:.1f}–{row.interval[1]:.1f}) "
            f"| {row.lowest:.1f}–{row.highest:.1f} | {ahead} | {np.mean(true):.1f} | {min(true):.1f}–{max(true):.1f} "
            f"| {said:.1f} | {row.weights / 1e6:.2f} M |"
        )


if __name__ == "__main__":
    app()
