"""Sensible settings for what a person did not decide, from the size of the data and the device."""

from __future__ import annotations

from typing import Any

import torch

from meshcap.backends.packed import multiplies_bfloat16
from meshcap.training.settings import TrainSettings

FROM_SCRATCH = ("small-cnn",)  # visions that know nothing before training
WITHOUT_WEIGHTS = ("patches", "score")


def complete(settings: TrainSettings, *, pictures: int, device: torch.device) -> TrainSettings:
    """Fill in everything that is None but what the model folder of `model.start` decides.

    Args:
        pictures: to learn from.
    """
    gpu = device.type == "cuda"
    large = pictures >= 20_000
    chosen: dict[str, Any] = {}

    def value(name: str) -> Any:
        return chosen.get(name, settings.get(name))

    def choose(name: str, default: Any) -> Any:
        if settings.get(name) is None:
            chosen[name] = default
        return value(name)

    new = settings.model.start is None
    if new and settings.data.features is None:
        choose("model.vision", "efficientnet-lite2")
    vision = value("model.vision")
    scratch = vision in (*FROM_SCRATCH, *WITHOUT_WEIGHTS)
    if new:
        width = choose("model.d_model", (512 if gpu else 256) if pictures >= 5_000 and not scratch else 128)
        choose("model.heads", max(2, width // (32 if scratch else 64)))
        choose("model.d_ff", (2 if scratch else 4) * width)
        layers = 3 if gpu and not scratch else 2
        # A second encoder layer blurs what a vision that knows nothing begins to tell apart: learning takes twice as
        # long.
        choose("model.encoder_layers", 1 if scratch else layers)
        choose("model.decoder_layers", layers)
        if settings.model.arch == "m2":
            choose("model.slots", 40 if width >= 256 else 10)
        choose("model.dropout", 0.1 if large else 0.0 if scratch else 0.2)
        if scratch:
            chosen["model.options"] = {"boost_low_frequencies": True, **settings.model.options}
    choose("data.min_count", 5 if pictures >= 5_000 else 2 if pictures >= 500 else 1)

    minutes = not new and not gpu  # a trained model has little to learn, and little is what a CPU can do
    few = not new and pictures < 500  # which it soon knows by heart: smaller steps, fewer of them, and varied pictures
    batch = min(pictures, choose("xe.batch", (256 if large else 50 if few else 128) if gpu else 16 if minutes else 32))
    if batch != settings.xe.batch:
        chosen["xe.batch"] = batch
    captions = choose("xe.captions", 2 if scratch or minutes else 5)  # new pictures teach a vision more than words do
    rate = choose("xe.lr", 1e-3 if scratch else 5e-4 if new else 5e-5 if few else 1e-4)
    can_learn = settings.data.features is None and vision not in WITHOUT_WEIGHTS and (gpu or scratch)
    rate_vision = choose("xe.lr_vision", rate * (1.0 if scratch else 0.2 if few else 0.3) if can_learn else 0.0)
    choose("xe.layer_decay", 0.85 if few else 1.0)
    varied = rate_vision > 0 and not scratch
    choose("xe.label_smoothing", 0.0 if scratch else 0.1)
    choose("xe.augment", 0.5 if varied else 0.0)
    choose("xe.region_dropout", 0.1 if varied else 0.0)
    choose("xe.ema", 0.98 if scratch else 0.999 if gpu and new else 0.99)
    if scratch and not settings.xe.epochs:  # it is steps that a vision needs, however few the pictures
        choose("xe.steps", max(800, round(4 * pictures / batch)))
    elif settings.xe.steps is None:
        epochs = settings.xe.epochs or (5 if minutes else 10 if not new else 15 if large else 30 if gpu else 10)
        # Epochs over a handful of pictures are too few steps to learn captions.
        least = 1 if settings.xe.epochs else 30 if few else 60 if minutes else 100 if not new else 500
        chosen["xe.steps"], chosen["xe.epochs"] = max(least, steps_of(epochs, pictures, batch)), None

    scst_batch = min(pictures, choose("scst.batch", 16 if scratch else batch))
    if scst_batch != settings.scst.batch:
        chosen["scst.batch"] = scst_batch
    choose("scst.captions", captions)
    choose("scst.lr", 1e-4 if scratch else 2e-5 if large or few or not gpu else 4e-5)
    learns_on = choose("scst.lr_vision", 5e-6 if few and can_learn else 0.0) > 0 and few
    choose("scst.layer_decay", 0.85 if few else 1.0)
    choose("scst.augment", 0.25 if learns_on else 0.0)
    choose("scst.ema", 0.99 if learns_on else 0.0)
    choose("scst.xe_weight", 1.0 if scratch else 0.0)  # a minute of cross-entropy has not taught everything yet
    if scratch and not settings.scst.epochs:
        choose("scst.steps", max(140, round(0.35 * pictures / scst_batch)))
    elif settings.scst.steps is None:
        epochs = settings.scst.epochs or (5 if large else 24 if gpu else 1 if minutes else 3)
        least = 1 if settings.scst.epochs else 20 if minutes else 60 if few else 50
        chosen["scst.steps"], chosen["scst.epochs"] = max(least, steps_of(epochs, pictures, scst_batch)), None

    choose("run.patience", 0 if scratch or not gpu else 5)
    if scratch and not gpu:
        choose("run.threads", 1)  # threads would mostly wait for each other over matrices this small
    # Half the time of a step on a CPU that can; a model from nothing has the small rates of its last steps to lose.
    choose("run.precision", "bfloat16" if gpu or (minutes and multiplies_bfloat16()) else "float32")
    steps = value("xe.steps")
    choose("run.compile", gpu and steps > 1_500)
    # Once an epoch, but of few pictures not after every other step, and at least four times (three, where it takes
    # longer than the steps between).
    least = steps // 3 if minutes else steps // (6 if few else 30)
    choose("run.validate_every", max(1, min(max(round(pictures / batch), least), steps // (3 if minutes else 4))))
    return settings.but(chosen)


def steps_of(epochs: float, pictures: int, batch: int) -> int:
    """Steps of a batch that go through the pictures so often."""
    return max(1, round(epochs * pictures / batch))


def total_steps(settings: TrainSettings) -> int:
    """Of all stages together, of a plan that is complete."""
    return sum(settings.stage(stage).steps or 0 for stage in settings.run.stages)


def describe(settings: TrainSettings, counts: dict[str, int], weights: int, words: int) -> list[tuple[str, str]]:
    """The plan in words: what a person reads before hours are spent."""
    model, xe, scst = settings.model, settings.xe, settings.scst
    looks = model.vision or settings.data.features or f"that of {model.start}"
    if model.vision:
        looks += ", learning too" if xe.lr_vision else ", frozen"
    lines = [
        ("data", f"{settings.data.path}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items())),
        ("captioner", f"{model.arch}, {weights / 1e6:.1f} M weights, {words:,} words"),
        ("vision", looks),
    ]
    for stage, name, captions in (("xe", "cross-entropy", xe.captions), ("scst", "self-critical", scst.samples)):
        own = settings.stage(stage)
        if stage in settings.run.stages:
            what = f"{own.steps:,} steps of {own.batch} pictures × {captions} captions"
            lines.append((name, f"{what}, learning rate {own.lr:g}"))
    return lines
