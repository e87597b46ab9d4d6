"""How long the tokenizer, the metrics and the rewards take, beside pycocoevalcap where it is installed.

python benchmarks/score.py --data dataset_coco.json.gz
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import chain, cycle
from pathlib import Path
from typing import Annotated, Any

import numpy
import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import Row, report, set_up, timed
from meshcap.errors import MeshcapError
from meshcap.metrics.cider import DocumentFrequencies, cider, cider_d
from meshcap.metrics.meteor import find_data, meteor
from meshcap.metrics.ngrams import bleu, rouge_l
from meshcap.metrics.reward import BleuReward, CiderReward, MixedReward, RougeReward
from meshcap.metrics.reward_kernels import compiled
from meshcap.text.ptb import ptb_tokenize_all
from meshcap.text.vocabulary import Vocabulary

CPU = torch.device("cpu")
SAMPLES, LENGTH = 5, 20  # candidates of a picture and words of a candidate, as self-critical training draws them

Raw = list[list[str]]  # captions of each picture, as people wrote them
Tokens = list[list[list[str]]]


def read_captions(path: Path) -> tuple[Raw, Raw]:
    """Captions of the test and the training pictures (train and restval) of a Karpathy file, gzipped or not."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            images = json.load(file)["images"]
        splits: dict[str, Raw] = {}
        for image in images:
            splits.setdefault(image["split"], []).append([sentence["raw"] for sentence in image["sentences"]])
    except OSError as error:
        raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise MeshcapError(f"{path} is not a dataset_*.json of Karpathy's: {error!r}") from None
    training = splits.get("train", []) + splits.get("restval", [])
    if not splits.get("test") or not training:
        raise MeshcapError(f"{path} has the splits {sorted(splits)}, expected test and train")
    return splits["test"], training


def make_captions(pictures: int, seed: int) -> Raw:
    """Captions of nothing: words drawn as often as in English, five captions a picture that share some of them."""
    luck = numpy.random.default_rng(seed)
    chances = 1 / (numpy.arange(10_000) + 2.7)
    chances /= chances.sum()
    captions = []
    for lengths in luck.normal(10.5, 2.0, (pictures, 5)).clip(6, 30).astype(int):
        subject = luck.choice(len(chances), 12, p=chances)
        captions.append([" ".join(f"w{word}" for word in luck.choice(subject, length)) + "." for length in lengths])
    return captions


def bench_score(
    device: torch.device, *, data: Path | None, pictures: int, training: int, repeat: int, compare: bool, seed: int
) -> list[Row]:
    """Metrics on `pictures` test pictures, frequencies and rewards of `training` ones, and pycocoevalcap's metrics.

    Args:
        data: a Karpathy file; None makes captions up.
        compare: time pycocoevalcap too, if it is there.
    """
    raw, learnt = (
        (make_captions(pictures, seed), make_captions(training, seed + 1)) if data is None else read_captions(data)
    )
    raw, learnt = raw[:pictures], learnt[:training]
    said, raw = [captions[0] for captions in raw], [captions[1:] or captions for captions in raw]
    rows, seconds = own_rows(said, raw, repeat)
    if compare:
        rows += peer_rows(said, raw, seconds)
    tokens = [ptb_tokenize_all(captions) for captions in learnt]
    frequencies = DocumentFrequencies.build(tokens)
    took = timed(lambda: DocumentFrequencies.build(tokens), CPU, 1)
    rate = f"{len(learnt) / took:,.0f} pictures/s"
    rows.append(Row("document frequencies", f"{len(learnt):,} pictures", took, rate, frequencies.nbytes))
    return rows + bench_reward(device, tokens, repeat=repeat, seed=seed)


def own_rows(said: list[str], raw: Raw, repeat: int) -> tuple[list[Row], float]:
    """Our tokenizer and metrics one by one and together, and the seconds of all, the first time."""
    setting = f"{len(raw):,} pictures × {len(raw[0])}"
    metrics: dict[str, Callable[[Any, Any], object]] = {
        "BLEU-1 to 4": bleu,
        "ROUGE-L": rouge_l,
        "CIDEr-D": cider_d,
        "CIDEr": cider,
    }
    if find_data() is not None:
        meteor([[["a"]]], [[["a"]]])  # the paraphrases are indexed once for a machine
        metrics["METEOR"] = lambda candidates, references: meteor([candidates], references)

    def all_of_it() -> None:
        tokens = _tokenize(said, raw)
        for metric in metrics.values():
            metric(*tokens)

    count = len(said) + sum(map(len, raw))
    start = time.process_time()  # before anything else: the tokenizer remembers what it has seen
    all_of_it()
    first = time.process_time() - start
    took = timed(lambda: _tokenize(said, raw), CPU, repeat)
    rows = [Row("tokenize", setting, took, f"{count / took:,.0f} captions/s", traced(lambda: _tokenize(said, raw)))]
    candidates, references = _tokenize(said, raw)
    for name, metric in metrics.items():
        took = timed(lambda metric=metric: metric(candidates, references), CPU, repeat)  # type: ignore[misc]
        memory = traced(lambda metric=metric: metric(candidates, references))  # type: ignore[misc]
        rows.append(Row(name, setting, took, f"{len(raw) / took:,.0f} pictures/s", memory))
    memory = traced(all_of_it)
    for name, took in (("all of these, first time", first), ("all of these, again", timed(all_of_it, CPU, repeat))):
        rows.append(Row(name, setting, took, f"{len(raw) / took:,.0f} pictures/s", memory))
    return rows, first


def peer_rows(said: list[str], raw: Raw, ours: float) -> list[Row]:
    """The same work by pycocoevalcap, or a row that says it is missing; without Java its metrics read our tokens."""
    try:
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.meteor.meteor import Meteor
        from pycocoevalcap.rouge.rouge import Rouge
        from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
    except ImportError:
        return [Row("all of these", "pycocoevalcap", None, missing='pip install "meshcap[meteor]"')]
    setting, total, rows = "pycocoevalcap", 0.0, []
    written = {i: [{"caption": caption} for caption in captions] for i, captions in enumerate(raw)}
    spoken = {i: [{"caption": caption}] for i, caption in enumerate(said)}
    java = shutil.which("java") is not None
    if java:
        start = spent()
        with quiet():
            gts, res = PTBTokenizer().tokenize(written), PTBTokenizer().tokenize(spoken)
        total = spent() - start
        rate = f"{(len(said) + sum(map(len, raw))) / total:,.0f} captions/s"
        rows.append(Row("tokenize", f"{setting}, Java", total, rate, 0.0, notes={"memory": "without that of Java"}))
    else:
        candidates, references = _tokenize(said, raw)
        gts = {i: [" ".join(caption) for caption in captions] for i, captions in enumerate(references)}
        res = {i: [" ".join(caption)] for i, caption in enumerate(candidates)}
    for name, metric in (("BLEU-1 to 4", Bleu()), ("ROUGE-L", Rouge()), ("CIDEr-D", Cider())):
        start = time.process_time()
        with quiet():
            metric.compute_score(gts, res)
        took = time.process_time() - start
        total += took
        with quiet():
            memory = traced(lambda metric=metric: metric.compute_score(gts, res))  # type: ignore[misc]
        rows.append(Row(name, setting, took, f"{len(raw) / took:,.0f} pictures/s", memory))
    if java:
        start = spent()
        Meteor().compute_score(gts, res)  # gone at once, and with it the Java program, whose time then is known
        took = spent() - start
        total += took
        rate = f"{len(raw) / took:,.0f} pictures/s"
        rows.append(Row("METEOR", f"{setting}, Java", took, rate, 0.0, notes={"memory": "without that of Java"}))
    memory = max(row.memory for row in rows)
    note = {"ours": f"{total / ours:.1f} times as fast, CIDEr besides"}
    return [*rows, Row("all of these", setting, total, f"{len(raw) / total:,.0f} pictures/s", memory, notes=note)]


def spent() -> float:
    """CPU seconds of this process and of those that it started and saw end."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def bench_reward(
    device: torch.device, tokens: Tokens | None = None, *, repeat: int = 20, seed: int = 0, training: int = 20_000
) -> list[Row]:
    """Rewards against these training captions (or made-up ones): on a CPU, and on the device if it is a GPU."""
    if tokens is None:
        tokens = [[caption[:-1].split() for caption in captions] for captions in make_captions(training, seed)]
    vocabulary = Vocabulary.build(chain.from_iterable(tokens), minimum=5)
    references = [[vocabulary.encode(caption) for caption in captions] for captions in tokens]
    eos, pad = vocabulary.eos, vocabulary.pad
    start = time.process_time()
    reward = CiderReward(references, eos=eos, pad=pad)
    took = time.process_time() - start
    rate = f"{len(references) / took:,.0f} pictures/s"
    rows = [Row("CIDEr-D reward, index", f"{len(references):,} pictures", took, rate, reward.nbytes)]
    luck = numpy.random.default_rng(seed)

    def batches(count: int) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
        """Fresh ones for each call, as in training: the index is larger than a processor's cache."""
        return cycle([draw(references, vocabulary, count, luck) for _ in range(20)])

    rewards: list[tuple[str, Any]] = [("CIDEr-D reward", reward)]
    if compiled() is None:
        rewards[0] = ("CIDEr-D reward, without numba", reward)
    bleu_reward, rouge_reward = BleuReward(references, eos=eos, pad=pad), RougeReward(references, eos=eos, pad=pad)
    rewards += [("BLEU-4 reward", bleu_reward), ("ROUGE-L reward", rouge_reward)]
    rewards += [("CIDEr-D + BLEU-4", MixedReward([(1.0, reward), (1.0, bleu_reward)]))]
    given = batches(50)
    for name, score in rewards:
        took = timed(lambda score=score: score(*next(given)), CPU, max(20, repeat))  # type: ignore[misc]
        rows.append(reward_row(name, "CPU", 50, took, reward))
    full = cycle([draw(references, vocabulary, 50, luck, full=True) for _ in range(20)])
    took = timed(lambda: reward(*next(full)), CPU, max(20, repeat))
    rows.append(reward_row(f"{rewards[0][0]}, all of {LENGTH} words", "CPU", 50, took, reward))
    if device.type == "cuda":
        many = batches(256)
        tensors = cycle([[torch.from_numpy(array).to(device) for array in next(many)] for _ in range(20)])
        took = timed(lambda: reward(*next(tensors)), device, max(20, repeat))
        rows.append(reward_row("CIDEr-D reward", "GPU", 256, took, reward))
        took = graph_seconds(reward, tensors, repeat)
        rows.append(reward_row("CIDEr-D reward", "GPU, in a graph", 256, took, reward))
    return rows


def graph_seconds(reward: CiderReward, batches: Iterator[list[torch.Tensor]], repeat: int) -> float:
    """Of a replay of a CUDA graph, with new candidates copied in before: what is left without Python's part."""
    held = [tensor.clone() for tensor in next(batches)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        reward(*held)

    def replay() -> None:
        for tensor, new in zip(held, next(batches), strict=True):
            tensor.copy_(new)
        graph.replay()

    return timed(replay, held[0].device, max(20, repeat))


def reward_row(name: str, setting: str, pictures: int, seconds: float, reward: CiderReward) -> Row:
    count = pictures * SAMPLES
    rate = f"{count / seconds:,.0f} candidates/s"
    exact = {"time": f"{seconds * 1e3:.3f} ms"}  # the table's tenths of a millisecond are too coarse
    return Row(name, f"{setting}, {count:,} candidates", seconds, rate, reward.nbytes, notes=exact)


def draw(
    references: list[list[list[int]]],
    vocabulary: Vocabulary,
    pictures: int,
    luck: numpy.random.Generator,
    *,
    full: bool = False,
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Candidates (B, S, T) like samples of a trained model: references with one word in seven changed; and pictures.

    full: as many references one after the other as fill all of T, without an end.
    """
    chosen = luck.integers(0, len(references), pictures)
    ids = numpy.full((pictures, SAMPLES, LENGTH), vocabulary.pad)
    for row, picture in zip(ids, chosen, strict=True):
        for caption in row:
            words: list[int] = []
            while not words or (full and len(words) < LENGTH):
                words += references[picture][luck.integers(len(references[picture]))] or [vocabulary.eos]
            words = words[: LENGTH if full else LENGTH - 1]
            caption[: len(words)] = words
            changed = numpy.flatnonzero(luck.random(len(words)) < 1 / 7)
            caption[changed] = luck.integers(4, len(vocabulary), len(changed))
            caption[len(words) :][:1] = vocabulary.eos
    return ids, chosen


def traced(work: Callable[[], object]) -> float:
    """The most bytes that Python and numpy held at once on behalf of `work`. Tracing slows it: never timed."""
    tracemalloc.start()
    try:
        work()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """pycocoevalcap prints as it goes."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _tokenize(said: list[str], raw: Raw) -> tuple[list[list[str]], Tokens]:
    words = iter(ptb_tokenize_all(chain(said, chain.from_iterable(raw))))
    return [next(words) for _ in said], [[next(words) for _ in captions] for captions in raw]


def command(
    data: Annotated[
        Path | None, typer.Option(help="Karpathy's dataset_coco.json, or .json.gz.", show_default="made-up captions")
    ] = None,
    pictures: Annotated[int, typer.Option(min=2, help="Test pictures to score.")] = 5000,
    training: Annotated[
        int | None,
        typer.Option(
            min=2, help="Training pictures for frequencies and rewards.", show_default="all, or 20000 made up"
        ),
    ] = None,
    repeat: common.Repeat = 5,
    compare: Annotated[bool, typer.Option(help="Time pycocoevalcap too.")] = True,
    device: common.Device = "auto",
    threads: common.Threads = 1,
    seed: common.Seed = 0,
    json: common.Json = False,
) -> None:
    """Time the tokenizer, the metrics and the rewards of self-critical training, beside pycocoevalcap."""
    where = set_up(device, threads, seed)
    training = training or (20_000 if data is None else 10**9)
    rows = bench_score(
        where, data=data, pictures=pictures, training=training, repeat=repeat, compare=compare, seed=seed
    )
    report("Scores and rewards", rows, where, json)


if __name__ == "__main__":
    common.main(command)
