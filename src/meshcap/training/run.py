"""A whole training run: data in, a model folder out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshcap.calibration import FEWEST
from meshcap.captioner import Captioner
from meshcap.data import Dataset, Sample, read_dataset
from meshcap.data.check import readable, some_of
from meshcap.data.dataset import hashed_split, without
from meshcap.data.features import FeatureStore, open_features
from meshcap.errors import MeshcapError
from meshcap.evaluation.charts import curves_of
from meshcap.evaluation.drawing import trial_drawing
from meshcap.evaluation.evaluation import write_json
from meshcap.evaluation.page import ReportContent, write_report
from meshcap.folders import CONFIG, VOCABULARY, WEIGHTS, find_file, read_config
from meshcap.machine import machine, peak_memory
from meshcap.metrics.reward import CiderReward
from meshcap.metrics.reward_facts import FactReward
from meshcap.metrics.reward_objects import ObjectReward
from meshcap.text import Vocabulary
from meshcap.training.augment import may_be_mirrored
from meshcap.training.build import Parts, build
from meshcap.training.captions import CaptionTable, Tokens, check_captions, check_coverage, tokenized
from meshcap.training.checkpoint import Position, fill_weights, latest, restore_optimizer
from meshcap.training.distributed import World
from meshcap.training.folder import BEFORE_SCST, LOG, check_same_data, keep_compiled, save_data
from meshcap.training.log import RunLog, Watch, read_log
from meshcap.training.optimizer import Average, make_optimizer, named_others, named_weights
from meshcap.training.pictures import (
    CachedRegions,
    FeatureViews,
    Pixels,
    PixelViews,
    SetViews,
    Views,
    bytes_of_regions,
    nearest_room,
    where_to_keep,
)
from meshcap.training.plan import complete
from meshcap.training.settings import StageSettings, TrainSettings
from meshcap.training.tasks import CrossEntropy, SelfCritical, Task
from meshcap.training.track import Tracker, check_trackers, open_trackers
from meshcap.training.trainer import Trainer
from meshcap.training.validate import Validator
from meshcap.vision import Vision, load_vision
from meshcap.weights import load_weights

TIMED_STEPS = 3  # of an estimate; the first is left out: it sets things up
FEW = 50  # val pictures: with fewer, a score says little
FINAL_BEAMS = 5  # of the captions that a finished run is scored with
FINAL_METRICS = ("bleu", "ROUGE-L", "CIDEr")


@dataclass
class Run:
    """Everything between reading the data and the report."""

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
    _views: dict[tuple[object, ...], Views] = field(default_factory=dict)

    @classmethod
    def prepare(cls, settings: TrainSettings, world: World, watch: Watch) -> Run:
        """Read the data, settle what was left open, make vocabulary and model. Writes nothing.

        Raises:
            MeshcapError: data, folder or settings that cannot work, each in one line.
        """
        start = settings.model.start
        if start is not None and settings.model.vision is not None:
            raise MeshcapError(f"--vision and --from: {start} keeps its own vision, leave --vision out")
        if start is not None and (given := settings.model.built()):
            names = ", ".join(f"model.{name}" for name in given)
            raise MeshcapError(f"{names} and --from: {start} keeps its own, leave that out")
        check_trackers(settings.run.track)
        data = read_split_data(settings)
        train, val = data.split("train"), data.split("val")
        if settings.data.val_pictures:
            val = val[: settings.data.val_pictures]
        settings = complete(settings, pictures=len(train), device=world.device)
        if settings.run.threads is not None:
            torch.set_num_threads(settings.run.threads)
        if settings.run.compile:
            keep_compiled(settings.run.compile_cache)
        batches = settings.xe.batch or 1, settings.scst.batch or 1
        if min(batches) < world.size * settings.run.accumulate:
            raise MeshcapError(
                f"batches of {batches[0]} and {batches[1]} pictures for {world.size} processes × "
                f"{settings.run.accumulate} parts: expected at least one picture for each"
            )
        if start is not None:  # its words are those of its own tokenizer, its kind is its own
            known = Vocabulary.load(find_file(start, VOCABULARY))
            kind = str(read_config(find_file(start, CONFIG)).get("model"))
            settings = settings.but({"data.tokenizer": known.tokenizer, "model.arch": kind})
        tokens = tokenized(train, settings.data.tokenizer)
        check_captions(tokens)
        store = None if settings.data.features is None else open_features(settings.data.features)
        torch.manual_seed(settings.run.seed)
        parts = build(settings, tokens, store)
        check_coverage(parts.vocabulary, tokens)
        if settings.data.max_length > parts.model.config.max_length:
            settings = settings.but({"data.max_length": parts.model.config.max_length})
        parts.model.to(world.device)
        if parts.vision is not None:
            parts.vision.to(world.device)
        world.same_weights(parts.model.parameters())
        table = CaptionTable.build(tokens, parts.vocabulary, settings.data.max_length)
        return cls(settings, Path(settings.run.out), world, data, train, val, tokens, parts, store, table, watch)

    @property
    def precision(self) -> torch.dtype:
        return torch.bfloat16 if self.settings.run.precision == "bfloat16" else torch.float32

    def read_pictures(self) -> None:
        """Read the pictures or find the features of the first stage: what is missing is said before a file is made."""
        stage = self.settings.run.stages[0]
        self.views("train", stage)
        self.views("val", stage)

    def fit(self, *, resume: bool = False) -> Position:
        """All stages, from the start or from the last checkpoint."""
        position, tensors, average_steps = Position(self.settings.run.stages[0]), None, 0
        if resume:
            check_same_data(self.folder, self.settings.data.path, self.train, self.val)
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
            save_data(self.folder, self.data.counts(), self.train, self.val)
        if self.world.first:
            self.log = self.log or RunLog(self.folder / LOG)
            if resume:  # also from the very start, where the first part was killed before it saved anything
                self.log.rewind(position.step)
            self.tracker = open_trackers(
                self.settings.run.track,
                self.folder,
                self.settings.to_dict(),
                run_name=self.folder.resolve().name,
                resumed_at=position.step if resume else None,
                report=self.watch.say,
            )
        try:
            return self._fit(position, tensors, average_steps)
        finally:
            if self.tracker is not None:
                self.tracker.close()

    def _fit(self, position: Position, tensors: dict[str, Tensor] | None, average_steps: int) -> Position:
        stages = self.settings.run.stages
        for stage in stages[stages.index(position.stage) :]:
            if stage != position.stage:
                position = self.next_stage(position, stage)
                tensors = None
            if not position.done:
                trainer = self.trainer(stage, position)
                if tensors is not None:
                    fill_weights(trainer.weights, trainer.average, tensors, trainer.others)
                    restore_optimizer(trainer.optimizer, trainer.weights, tensors)
                    trainer.average.steps = average_steps
                elif position.step:  # this stage will replace the model that it begins with
                    trainer.checkpoint()
                trainer.fit()
                position.done = stage == stages[-1]
                trainer.checkpoint()
        return position

    def next_stage(self, before: Position, stage: str) -> Position:
        """The weights that were kept are where the next stage begins."""
        self.load_kept()
        if self.world.first:
            self.keep_before_scst()
        if self.settings.xe.lr_vision:
            self._views.clear()  # the vision sees otherwise than before
        return replace(before, stage=stage, stage_start=before.step, validations_since=0)

    def keep(self) -> None:
        """Make the weights of now the model of the run's folder."""
        if self.world.first:
            self.captioner().save_pretrained(self.folder)

    def keep_before_scst(self) -> None:
        """What cross-entropy alone has taught is worth keeping: it uses more different words."""
        before = self.folder / BEFORE_SCST
        if (self.folder / CONFIG).is_file() and not (before / CONFIG).is_file():
            self.captioner().save_pretrained(before)

    def captioner(self) -> Captioner:
        return Captioner(self.parts.model, self.parts.vocabulary, self.parts.vision)

    def load_kept(self) -> None:
        """The weights of the run's folder."""
        if (self.folder / CONFIG).is_file():
            load_weights(self.parts.model, self.folder / WEIGHTS)
            self.load_vision()

    def load_vision(self) -> None:
        if self.parts.vision is not None and (self.settings.xe.lr_vision or self.settings.scst.lr_vision):
            kept = load_vision(self.folder)  # each kind has its own files, and some have no weights at all
            assert kept is not None
            self.parts.vision.load_state_dict(kept.state_dict())

    def vision_learns(self, stage: StageSettings) -> bool:
        return self.parts.vision is not None and bool(stage.lr_vision)

    def trainer(self, stage: str, position: Position) -> Trainer:
        """The trainer of a stage, "xe" or "scst"."""
        own, parts, world = self.settings.stage(stage), self.parts, self.world
        if parts.vision is not None:
            parts.vision.requires_grad_(self.vision_learns(own))
            for weight in parts.vision.first_stages(own.frozen_stages):
                weight.requires_grad_(False)
        weights = named_weights(parts.model, parts.vision)
        task = self.cross_entropy() if stage == "xe" else self.self_critical(position)
        assert own.lr is not None and own.lr_vision is not None
        return Trainer(
            task=task,
            weights=weights,
            optimizer=make_optimizer(
                weights,
                lr=own.lr,
                lr_vision=own.lr_vision,
                weight_decay=own.weight_decay,
                device=world.device,
                stages=[] if parts.vision is None else parts.vision.stages(),
                layer_decay=own.layer_decay or 1.0,
            ),
            average=Average(weights, own.ema or 0.0),
            position=position,
            pictures=len(self.train),
            stage=own,
            settings=self.settings.run,
            world=world,
            folder=self.folder,
            validator=self.validator(stage),
            keep=self.keep,
            watch=self.watch,
            log=self.log,
            tracker=self.tracker,
            others=named_others(parts.model) | task.state(),
            look_every=20 if world.device.type == "cuda" else 1,
        )

    def cross_entropy(self) -> Task:
        run = self.settings.run
        return CrossEntropy(
            self.parts,
            self.views("train", "xe"),
            self.table,
            self.settings.xe,
            self.world,
            precision=self.precision,
            seed=run.seed,
            accumulate=run.accumulate,
            compiled=bool(run.compile),
        )

    def self_critical(self, position: Position) -> Task:
        run, vocabulary = self.settings.run, self.parts.vocabulary
        references = [[vocabulary.encode(caption) for caption in captions] for captions in self.tokens]
        reward = CiderReward(references, eos=vocabulary.eos, pad=vocabulary.pad)
        self.event(position, f"reward: {reward.signature}")
        return SelfCritical(
            self.parts,
            self.views("train", "scst"),
            reward,
            self.table,
            self.settings.scst,
            self.world,
            max_length=self.settings.data.max_length,
            precision=self.precision,
            seed=run.seed,
            accumulate=run.accumulate,
            compiled=bool(run.compile),
            objects=self.fact_reward(position) if self.settings.scst.facts else self.object_reward(position),
        )

    def fact_reward(self, position: Position) -> FactReward:
        """What true statements about music are worth."""
        own = self.settings.scst
        if own.objects is not None:
            raise MeshcapError("scst.objects and scst.facts: one is for photographs and one for scores, leave one out")
        facts = FactReward.of_samples(
            [(sample.id, sample.more) for sample in self.train],
            self.parts.vocabulary.words,
            eos=self.parts.vocabulary.eos,
            penalty=own.fact_penalty,
            bonus=own.fact_bonus,
        )
        self.event(position, f"facts: {facts.signature}")
        return facts

    def object_reward(self, position: Position) -> ObjectReward | None:
        """What naming objects is worth, where a file says which are there."""
        own, vocabulary = self.settings.scst, self.parts.vocabulary
        if own.objects is None:
            return None
        objects = ObjectReward.of_pictures(
            own.objects,
            [(sample.id, sample.picture) for sample in self.train],
            vocabulary.words,
            penalty=own.object_penalty,
            bonus=own.object_bonus,
        )
        self.event(position, f"objects: {objects.signature}")
        return objects.to(self.world.device)

    def validator(self, stage: str, beams: int | None = None) -> Validator:
        return Validator(
            self.parts,
            self.views("val", stage),
            self.val,
            self.world,
            dtype=self.precision,
            beams=beams or self.settings.run.val_beams,
            max_length=self.settings.data.max_length,
            tokenizer=self.settings.data.tokenizer,
        )

    def views(self, split: str, stage: str) -> Views:
        """How a split's pictures are seen in a stage: anew in each step while the vision learns or views vary, else
        once.
        """
        own = self.settings.stage(stage)
        learns = self.vision_learns(own)
        varied = (own.augment or 0.0, own.compress, own.turn) if split == "train" else (0.0, 0.0, 0.0)
        key = (split, learns, *varied)
        if key not in self._views:
            self._views[key] = self._make_views(split, learns, *varied)
        return self._views[key]

    def _make_views(self, split: str, learns: bool, augment: float, compress: float, turn: float) -> Views:
        samples, device = (self.train if split == "train" else self.val), self.world.device
        if self.store is not None:
            return FeatureViews(self.store, [sample.id for sample in samples], device)
        vision = self.parts.vision
        assert vision is not None
        if vision.sets:
            progress = self.progress(f"reading the {split} scores")
            return SetViews(vision, samples, device, workers=self.settings.data.workers, progress=progress)
        if learns or augment or compress:
            pixels = self.pixels(split, samples, vision)
            compiled = bool(self.settings.run.compile)
            size = vision.preprocess.size
            return PixelViews(pixels, may_be_mirrored(samples), augment, compress, turn, size=size, compiled=compiled)
        room = nearest_room(len(samples) * bytes_of_regions(vision, self.precision), device)
        if room == "none":  # look anew in every step
            pixels = self.pixels(split, samples, vision)
            return PixelViews(pixels, may_be_mirrored(samples), 0.0, size=vision.preprocess.size)
        kept = self._pixels.get(split)
        return CachedRegions.compute(
            vision,
            # Each picture is needed once, unless they are kept already.
            kept
            if kept is not None and kept.preprocess == vision.preprocess
            else Pixels(samples, vision.preprocess, keep="none", device=device, workers=self.settings.data.workers),
            dtype=self.precision,
            place=device if room == "device" else torch.device("cpu"),
            progress=self.progress(f"looking at the {split} pictures"),
        )

    def pixels(self, split: str, samples: Sequence[Sample], vision: Vision) -> Pixels:
        if split not in self._pixels:
            keep, preprocess = self.settings.data.cache, vision.preprocess
            if split == "train" and self.settings.data.size is not None:  # views are cut from larger pictures
                preprocess = replace(preprocess, size=self.settings.data.size)
            self._pixels[split] = Pixels(
                samples,
                preprocess,
                keep=where_to_keep(len(samples), preprocess.size, self.world.device) if keep == "auto" else keep,
                device=self.world.device,
                workers=self.settings.data.workers,
                progress=self.progress(f"reading the {split} pictures"),
            )
        return self._pixels[split]

    def event(self, position: Position, line: str) -> None:
        if line not in position.events:
            position.events.append(line)
            self.watch.say(line)

    def progress(self, what: str) -> Callable[[int, int], object]:
        last = 0.0

        def report(done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last > 10 or done == total:
                last = time.monotonic()
                self.watch.say(f"{what}: {done:,} of {total:,}")

        return report

    def estimate(self) -> list[tuple[str, str]]:
        """Seconds a step, time and memory of each stage: trains a few steps on some pictures, writes nothing."""
        settings = self.settings
        some = max(settings.xe.batch or 1, settings.scst.batch or 1)
        few = replace(
            self,
            # Compiling takes longer than this estimate should; what it saves later is not counted.
            settings=settings.but({"run.compile": False, "data.cache": "memory", "data.val_pictures": 8}),
            train=self.train[:some],
            val=self.val[:8],
            tokens=self.tokens[:some],
            table=CaptionTable.build(self.tokens[:some], self.parts.vocabulary, settings.data.max_length),
            _pixels={},
            _views={},
        )
        lines, total = [], 0.0
        for stage in settings.run.stages:
            steps = settings.stage(stage).steps or 0
            trainer = few.trainer(stage, Position(stage))
            trainer.task.ready()
            seconds = []
            for step in range(TIMED_STEPS):
                start = time.perf_counter()
                trainer.step(step)
                if self.world.device.type == "cuda":
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
            each = sum(seconds[1:]) / (TIMED_STEPS - 1)
            total += each * steps
            lines.append((stage, f"{each:.2f} s a step, {_duration(each * steps)} for {steps:,} steps"))
        lines.append(("together", f"about {_duration(total)}, without reading the pictures and validating"))
        lines.append(("memory", f"{peak_memory(self.world.device) / 2**30:.1f} GiB at most in these steps"))
        return lines

    def finish(self, position: Position) -> dict[str, Any]:
        """Score the kept model on the val split, calibrate it there, write report and scores.

        Validations searched less widely to save time; this one searches as a user would.
        """
        self.load_kept()
        data_name = Path(self.settings.data.path).name
        # The vision that was kept may be one that learned: what was cached before is no longer true of it.
        stage = "xe" if self.settings.xe.lr_vision else self.settings.run.stages[-1]
        calibrate = len(self.val) >= FEWEST and self.world.first
        validator = self.validator(stage, beams=FINAL_BEAMS)
        found = validator.validate(metrics=FINAL_METRICS, bootstrap=1000, calibrate=calibrate, data_name=data_name)
        result = found.result
        summary: dict[str, Any] = {
            "run": str(self.folder),
            "best_step": position.best_step,
            "kept_step": position.kept_step,
            "steps": position.step,
            "minutes": round((time.time() - self.started) / 60, 2),
            "val": {"scores": result.scores, "intervals": result.intervals, "diversity": result.diversity},
        }
        if not self.world.first:
            return summary
        trial = found.trial
        if trial is not None:
            trial.calibration.save(self.folder)
            summary["val"]["confidence"] = trial.figures()
        model, data = self.settings.model, self.settings.data
        facts = [
            ("captioner", f"{model.arch}, {_millions(self.parts.model)}"),
            ("vision", f"{model.vision or data.features or f'that of {model.start}'}, {_millions(self.parts.vision)}"),
            ("pictures", ", ".join(f"{name} {count:,}" for name, count in self.data.counts().items())),
            ("words", f"{len(self.parts.vocabulary):,}"),
            ("trained", f"{position.step:,} steps; the model is of step {position.kept_step:,}"),
            ("scores", f"by {FINAL_BEAMS} beams; the curve's, made while training, by {self.settings.run.val_beams}"),
            ("time", f"{summary['minutes']:.1f} minutes on {machine(self.world.device)}"),
        ]
        reward = next((line for line in position.events if line.startswith("reward: ")), "")
        report = self.folder / "report.html"
        write_report(
            report,
            ReportContent(
                title=f"{model.arch} on {data_name}",
                facts=facts,
                results={"val": result},
                curves=curves_of(read_log(self.folder / LOG)),
                samples=found.cards(),
                settings=self.settings.to_dict(),
                notes=position.events,
                confidence=None if trial is None else trial_drawing("Confidence on val", trial),
                reward=reward.removeprefix("reward: "),
            ),
        )
        write_json(self.folder / "scores.json", summary)
        found.write_captions(self.folder / "captions-val.json")
        low, high = (100 * end for end in result.intervals["CIDEr"])
        endings = f", bad endings {found.bad_endings:.1%}" if self.parts.vocabulary.english else ""
        self.watch.say(
            f"model of step {position.kept_step:,}: val CIDEr {100 * found.cider:.1f} ({low:.1f}-{high:.1f}) by beam "
            f"{FINAL_BEAMS}{endings}; see {report}"
        )
        return summary


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _millions(module: torch.nn.Module | None) -> str:
    count = 0 if module is None else sum(weight.numel() for weight in module.parameters())
    return f"{count / 1e6:.1f} M weights"


def read_split_data(settings: TrainSettings) -> Dataset:
    """The data with a val split, less the training pictures that are to be left out."""
    given = settings.data
    folder = None if given.pictures is None else Path(given.pictures)
    data = read_dataset(given.path, pictures=folder, skip_broken=given.skip_broken)
    if given.features is None:
        data = readable(data, skip_broken=given.skip_broken, workers=given.workers)
    data = with_val(data, given.val_share)
    return data if given.without is None else without(data, Path(given.without))


def warnings_of(data: Dataset, settings: TrainSettings) -> list[str]:
    """What a person should know before hours are spent."""
    out = data.left_out
    lines = (
        [f"left out: {len(out.broken):,} bad record{'s' * (len(out.broken) != 1)}: {some_of(out.broken)}"]
        if out.broken
        else []
    )
    lines += (
        [f"left out: {len(out.unreadable):,} picture{'s' * (len(out.unreadable) != 1)}: {some_of(out.unreadable)}"]
        if out.unreadable
        else []
    )
    val = min(len(data.split("val")), settings.data.val_pictures or len(data))
    if val < FEW:
        lines.append(
            f"warning: {val} val picture{'s' * (val != 1)} to choose the best step by, whose score is little more than "
            f"chance: {FEW} or more say something (--set data.val_share=0.2, or a split of your own)"
        )
    return lines


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
