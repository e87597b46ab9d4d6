"""A whole training run: data in, a model folder out.

The run's folder is itself the model folder of the best weights so far, so `meshcap caption --model RUN` works from the
first validation on. Beside the model it holds `training.json` (every setting), `data.json` (what it learned from),
`log.jsonl`, `checkpoints/`, what trackers write, and in the end `report.html`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from meshcap.captioner import VOCABULARY, Captioner
from meshcap.data import Dataset, Sample, read_dataset
from meshcap.data.dataset import hashed_split, without
from meshcap.data.features import FeatureStore, open_features
from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.folders import CONFIG, WEIGHTS, find_file, read_config
from meshcap.metrics.reward import CiderReward
from meshcap.text import Vocabulary
from meshcap.training.augment import may_be_mirrored
from meshcap.training.captions import CaptionTable, tokenized
from meshcap.training.checkpoint import Position, fill_weights, latest, restore_optimiser
from meshcap.training.distributed import World
from meshcap.training.examine import Exam, Examiner
from meshcap.training.eyes import Eyes, Kept, Looking, Precomputed, bytes_of_regions
from meshcap.training.log import RunLog
from meshcap.training.optimiser import Average, make_optimiser, named_others, named_weights
from meshcap.training.pixels import Pixels, nearest_room, where_to_keep
from meshcap.training.plan import complete
from meshcap.training.progress import Watch
from meshcap.training.settings import TrainSettings
from meshcap.training.start import Tokens, begin, check_captions, check_coverage
from meshcap.training.tasks import CrossEntropy, Parts, SelfCritical, Task, precision
from meshcap.training.track import Tracker, open_trackers
from meshcap.training.trainer import Trainer
from meshcap.vision import Vision, load_vision
from meshcap.weights import load_weights

DATA, LOG = "data.json", "log.jsonl"
BEFORE = "before-scst"  # a model folder in the run's own


@dataclass
class Run:
    """Everything between reading the data and the last word of the report."""

    settings: TrainSettings
    folder: Path
    world: World
    data: Dataset
    train: list[Sample]
    val: list[Sample]
    tokens: Tokens
    parts: Parts
    store: FeatureStore | None
    table: CaptionTable
    watch: Watch
    log: RunLog | None = None
    tracker: Tracker | None = None
    started: float = field(default_factory=time.time)
    _pixels: dict[str, Pixels] = field(default_factory=dict)
    _eyes: dict[tuple[str, bool, float], Eyes] = field(default_factory=dict)

    @classmethod
    def prepare(cls, settings: TrainSettings, world: World, watch: Watch) -> Run:
        """Read the data, settle what was left open, make vocabulary and model. Writes nothing.

        Raises:
            MeshcapError: data, folder or settings that cannot work, each in one line.
        """
        if settings.start is not None and settings.vision is not None:
            raise MeshcapError(f"--vision and --from: {settings.start} keeps its own eyes, leave --vision out")
        if settings.start is not None and (given := own_settings(settings)):
            raise MeshcapError(f"{', '.join(given)} and --from: {settings.start} keeps its own, leave that out")
        data = with_val(
            read_dataset(settings.data, pictures=None if settings.pictures is None else Path(settings.pictures)),
            settings.val_share,
        )
        if settings.without is not None:
            data = without(data, Path(settings.without))
        train, val = data.split("train"), data.split("val")
        if settings.val_pictures:
            val = val[: settings.val_pictures]
        settings = complete(settings, pictures=len(train), device=world.device)
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        if min(settings.batch or 1, settings.scst_batch or 1) < world.size * settings.accumulate:
            raise MeshcapError(
                f"batches of {settings.batch} and {settings.scst_batch} pictures for {world.size} processes × "
                f"{settings.accumulate} parts: expected at least one picture for each"
            )
        if settings.start is not None:  # its words are those of its own tokenizer, its kind is its own
            known = Vocabulary.load(find_file(settings.start, VOCABULARY))
            kind = str(read_config(find_file(settings.start, CONFIG)).get("model"))
            settings = settings.but(tokenizer=known.tokenizer, model=kind)
        tokens = tokenized(train, settings.tokenizer)
        check_captions(tokens)
        store = None if settings.features is None else open_features(settings.features)
        torch.manual_seed(settings.seed)
        parts = begin(settings, tokens, store)
        check_coverage(parts.vocabulary, tokens)
        if settings.max_length > parts.model.config.max_length:
            settings = settings.but(max_length=parts.model.config.max_length)
        parts.model.to(world.device)
        if parts.vision is not None:
            parts.vision.to(world.device)
        world.same_weights(parts.model.parameters())
        table = CaptionTable.build(tokens, parts.vocabulary, settings.max_length)
        return cls(settings, Path(settings.out), world, data, train, val, tokens, parts, store, table, watch)

    def open_eyes(self) -> None:
        """Read the pictures or find the features of the first stage: what is missing is told before a file is made."""
        xe = self.settings.stages[0] == "xe"
        sees = self.sees(self.settings.stages[0])
        self.eyes("train", sees, self.settings.augment or 0.0 if xe else self.settings.scst_augment)
        self.eyes("val", sees)

    def sees(self, stage: str) -> bool:
        """Whether the vision learns in a stage."""
        settings = self.settings
        return self.parts.vision is not None and bool(
            settings.train_vision if stage == "xe" else settings.scst_lr_vision
        )

    def fit(self, *, resume: bool = False) -> Position:
        """All stages, from the start or from the last checkpoint."""
        order = self.settings.stages
        position, tensors, average_steps = Position(order[0]), None, 0
        if resume:
            self.check_same_data()
            found = latest(self.folder)
            if found is not None:
                position, average_steps, tensors, complaints = found
                for line in complaints:
                    self.watch.say(f"{line}: going on from the one before")
                self.event(position, f"resumed at step {position.step:,}")
                if position.stage == "scst":  # what cross-entropy taught the vision is in no later checkpoint
                    self.load_vision()
        elif self.world.first:
            self.settings.save(self.folder)
            self.save_data()
        if self.world.first:
            self.log = self.log or RunLog(self.folder / LOG)
            if resume:  # also from the very start, where the first part was killed before it saved anything
                self.log.rewind(position.step)
            self.tracker = open_trackers(
                self.settings.track,
                self.folder,
                self.settings.to_dict(),
                run_name=self.folder.resolve().name,
                resumed_at=position.step if resume else None,
                tell=self.watch.say,
            )
        try:
            return self._fit(position, tensors, average_steps)
        finally:
            if self.tracker is not None:
                self.tracker.close()

    def _fit(self, position: Position, tensors: dict[str, Tensor] | None, average_steps: int) -> Position:
        order = self.settings.stages
        for stage in order[order.index(position.stage) :]:
            if stage != position.stage:
                position = self.next_stage(position, stage)
                tensors = None
            if not position.done:
                trainer = self.trainer(stage, position)
                if tensors is not None:
                    fill_weights(trainer.weights, trainer.average, tensors, trainer.others)
                    restore_optimiser(trainer.optimiser, trainer.weights, tensors)
                    trainer.average.steps = average_steps
                elif position.step:  # this stage will replace the model that it begins with
                    trainer.checkpoint()
                trainer.fit()
                position.done = stage == order[-1]
                trainer.checkpoint()
        return position

    def next_stage(self, before: Position, stage: str) -> Position:
        """The best weights so far are where the next stage begins."""
        self.load_best()
        if self.world.first:
            self.keep_before()
        if self.settings.train_vision:
            self._eyes.clear()  # it sees otherwise than before
        return Position(stage, before.step, before.step, before.best, before.best_step, events=before.events)

    def load_best(self) -> None:
        if (self.folder / CONFIG).is_file():
            load_weights(self.parts.model, self.folder / WEIGHTS)
            self.load_vision()

    def keep_before(self) -> None:
        """What cross-entropy alone has taught is worth keeping: it says more different words."""
        before = self.folder / BEFORE
        if (self.folder / CONFIG).is_file() and not (before / CONFIG).is_file():
            Captioner(self.parts.model, self.parts.vocabulary, self.parts.vision).save_pretrained(before)

    def load_vision(self) -> None:
        if self.parts.vision is not None and (self.settings.train_vision or self.settings.scst_lr_vision):
            best = load_vision(self.folder)  # each kind has its own files, and some have no weights at all
            assert best is not None
            self.parts.vision.load_state_dict(best.state_dict())

    def trainer(self, stage: str, position: Position) -> Trainer:
        settings, parts, world = self.settings, self.parts, self.world
        assert settings.batch and settings.scst_batch and settings.xe_steps and settings.scst_steps
        assert settings.lr and settings.scst_lr and settings.lr_vision is not None
        xe = stage == "xe"
        sees = self.sees(stage)
        if parts.vision is not None:
            parts.vision.requires_grad_(sees)
            for weight in parts.vision.first_stages(settings.frozen_stages):
                weight.requires_grad_(False)
        weights = named_weights(parts.model, parts.vision)
        rate, rate_vision = (settings.lr, settings.lr_vision) if xe else (settings.scst_lr, settings.scst_lr_vision)
        optimiser = make_optimiser(
            weights, lr=rate, lr_vision=rate_vision, decay=settings.weight_decay if xe else 0.0, device=world.device
        )
        eyes = self.eyes("train", sees, settings.augment or 0.0 if xe else settings.scst_augment)
        compiled = bool(settings.compile)
        task: Task
        if xe:
            task = CrossEntropy(parts, eyes, self.table, settings, world, compiled=compiled)
        else:
            vocabulary = parts.vocabulary
            references = [[vocabulary.encode(caption) for caption in captions] for captions in self.tokens]
            reward = CiderReward(references, eos=vocabulary.eos, pad=vocabulary.pad)
            self.event(position, f"reward: {reward.signature}")
            task = SelfCritical(parts, eyes, reward, self.table, settings, world, compiled=compiled)
        return Trainer(
            task=task,
            weights=weights,
            optimiser=optimiser,
            average=Average(weights, settings.ema or 0.0 if xe else settings.scst_ema),
            position=position,
            steps=settings.xe_steps if xe else settings.scst_steps,
            batch=settings.batch if xe else settings.scst_batch,
            pictures=len(self.train),
            settings=settings,
            world=world,
            run=self.folder,
            examiner=self.examiner(sees),
            keep_best=self.keep,
            watch=self.watch,
            log=self.log,
            tracker=self.tracker,
            others=named_others(parts.model),
            last_rate=0.01 if xe else 0.1,
            look_every=20 if world.device.type == "cuda" else 1,
        )

    def eyes(self, split: str, sees: bool, augment: float = 0.0) -> Eyes:
        """How a split's pictures are seen: anew each time while the vision learns or views vary, else once."""
        key = (split, sees, augment)
        if key not in self._eyes:
            self._eyes[key] = self._make_eyes(split, sees, augment)
        return self._eyes[key]

    def _make_eyes(self, split: str, sees: bool, augment: float) -> Eyes:
        samples, device = (self.train if split == "train" else self.val), self.world.device
        if self.store is not None:
            return Precomputed(self.store, [sample.id for sample in samples], device)
        vision = self.parts.vision
        assert vision is not None
        compress = self.settings.compress if split == "train" else 0.0
        if sees or augment or compress:
            pixels = self.pixels(split, samples, vision)
            compiled = bool(self.settings.compile)
            return Looking(pixels, may_be_mirrored(samples), augment, compress, self.settings.turn, compiled=compiled)
        dtype = precision(self.settings)
        room = nearest_room(len(samples) * bytes_of_regions(vision, dtype), device)
        if room == "none":  # look anew in every step
            return Looking(self.pixels(split, samples, vision), may_be_mirrored(samples), 0.0)
        return Kept.look(
            vision,
            # Each picture is needed once, unless they are kept already.
            self._pixels.get(split)
            or Pixels(samples, vision.preprocess, keep="none", device=device, workers=self.settings.workers),
            dtype=dtype,
            place=device if room == "device" else torch.device("cpu"),
            tell=self.telling(f"looking at the {split} pictures"),
        )

    def pixels(self, split: str, samples: Sequence[Sample], vision: Vision) -> Pixels:
        if split not in self._pixels:
            keep, size = self.settings.cache, vision.preprocess.size
            self._pixels[split] = Pixels(
                samples,
                vision.preprocess,
                keep=where_to_keep(len(samples), size, self.world.device) if keep == "auto" else keep,
                device=self.world.device,
                workers=self.settings.workers,
                tell=self.telling(f"reading the {split} pictures"),
            )
        return self._pixels[split]

    def examiner(self, sees: bool, beams: int | None = None) -> Examiner:
        return Examiner(
            self.parts,
            self.eyes("val", sees),
            self.val,
            self.world,
            dtype=precision(self.settings),
            beams=beams or self.settings.val_beams,
            max_length=self.settings.max_length,
            tokenizer=self.settings.tokenizer,
        )

    def keep(self, exam: Exam) -> None:
        """These weights are the best so far: make them the model of the run's folder."""
        if self.world.first:
            Captioner(self.parts.model, self.parts.vocabulary, self.parts.vision).save_pretrained(self.folder)

    def event(self, position: Position, line: str) -> None:
        if line not in position.events:
            position.events.append(line)
            self.watch.say(line)

    def telling(self, what: str) -> Callable[[int, int], object]:
        last = 0.0

        def tell(done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last > 10 or done == total:
                last = time.monotonic()
                self.watch.say(f"{what}: {done:,} of {total:,}")

        return tell

    def save_data(self) -> None:
        text = json.dumps({"fingerprint": fingerprint(self.train, self.val), "pictures": self.data.counts()}) + "\n"
        write_text(self.folder / DATA, text)

    def check_same_data(self) -> None:
        try:
            saved = json.loads((self.folder / DATA).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise MeshcapError(f"{self.folder / DATA} cannot be read ({error}): begin a new run") from error
        if saved.get("fingerprint") != fingerprint(self.train, self.val):
            raise MeshcapError(
                f"{self.settings.data} is not what {self.folder} was learning from (ids or captions have changed): "
                "begin a new run"
            )


def fingerprint(*splits: Sequence[Sample]) -> str:
    """What a run learns from, in a few letters."""
    digest = hashlib.blake2b(digest_size=16)
    for samples in splits:
        for sample in samples:
            digest.update("\0".join((sample.id, sample.split, *sample.captions)).encode() + b"\n")
    return digest.hexdigest()


def own_settings(settings: TrainSettings) -> list[str]:
    """Those given that decide how a model is built, which one that exists already is."""
    names = ("geometry", "d_model", "heads", "d_ff", "encoder_layers", "decoder_layers", "slots", "dropout")
    return [name for name in names if getattr(settings, name) is not None] + list(settings.options)


def with_val(data: Dataset, share: float) -> Dataset:
    """A dataset without a val split gives a share of its training pictures away for one."""
    if "val" in data.counts() or not share:
        return data
    moved = [
        replace(sample, split="val")
        if sample.split == "train" and hashed_split(sample.id, val=share, test=0) == "val"
        else sample
        for sample in data.samples
    ]
    return Dataset(data.name, moved)
