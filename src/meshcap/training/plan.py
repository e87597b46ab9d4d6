"""Sensible settings for what a person did not decide, from the size of the data and the device; and what they cost."""

from __future__ import annotations

from typing import Any

import torch

from meshcap.training.settings import TrainSettings

FROM_SCRATCH = ("small-cnn",)  # visions that know nothing before training
WITHOUT_WEIGHTS = ("patches",)


def complete(settings: TrainSettings, *, pictures: int, device: torch.device) -> TrainSettings:
    """Fill in everything that is None but what the model folder of `start` decides.

    Args:
        pictures: to learn from.
    """
    gpu = device.type == "cuda"
    large = pictures >= 20_000
    chosen: dict[str, Any] = {}

    def choose(name: str, value: Any) -> Any:
        if getattr(settings, name) is None:
            chosen[name] = value
        return chosen.get(name, getattr(settings, name))

    if settings.start is None and settings.features is None:
        choose("vision", "efficientnet-lite2")
    vision = settings.vision or chosen.get("vision")
    scratch = vision in (*FROM_SCRATCH, *WITHOUT_WEIGHTS)
    learns_to_see = choose(
        "train_vision",
        settings.features is None and vision not in WITHOUT_WEIGHTS and (gpu or scratch),
    )
    if settings.start is None:
        width = choose("d_model", (512 if gpu else 256) if pictures >= 5_000 and not scratch else 128)
        choose("heads", max(2, width // (32 if scratch else 64)))
        choose("d_ff", (2 if scratch else 4) * width)
        layers = 3 if gpu and not scratch else 2
        # A second encoder layer blurs what eyes that know nothing begin to tell apart: learning takes twice as long.
        choose("encoder_layers", 1 if scratch else layers)
        choose("decoder_layers", layers)
        if settings.model == "m2":
            choose("slots", 40 if width >= 256 else 10)
        choose("dropout", 0.1 if large else 0.0 if scratch else 0.2)
        if scratch:
            chosen["options"] = {"boost_low_frequencies": True, **settings.options}
    choose("min_count", 5 if pictures >= 5_000 else 2 if pictures >= 500 else 1)

    fine_tuning = settings.start is not None
    minutes = fine_tuning and not gpu  # a trained model has to be told little, and little is what a CPU can do
    batch = min(pictures, choose("batch", (256 if large else 128) if gpu else 16 if minutes else 32))
    if batch != settings.batch:
        chosen["batch"] = batch
    choose("captions", 2 if scratch or minutes else 5)  # new pictures teach eyes more than other words for the same
    choose("lr", (1e-4 if fine_tuning else 5e-4) if not scratch else 1e-3)
    choose("lr_vision", (settings.lr or chosen["lr"]) * (1.0 if scratch else 0.3))
    choose("label_smoothing", 0.0 if scratch else 0.1)
    choose("augment", 0.5 if learns_to_see and not scratch else 0.0)
    choose("region_dropout", 0.1 if learns_to_see and not scratch else 0.0)
    choose("ema", 0.98 if scratch else 0.999 if gpu and not fine_tuning else 0.99)
    if scratch and not settings.xe_epochs:  # it is steps that eyes need, however few the pictures
        choose("xe_steps", max(800, round(4 * pictures / batch)))
    elif settings.xe_steps is None:
        epochs = settings.xe_epochs or (5 if minutes else 10 if fine_tuning else 15 if large else 30 if gpu else 10)
        # Epochs over a handful of pictures are too few steps to learn to speak.
        least = 1 if settings.xe_epochs else 60 if minutes else 100 if fine_tuning else 500
        chosen["xe_steps"], chosen["xe_epochs"] = max(least, round(epochs * pictures / batch)), None
    scst_batch = min(pictures, choose("scst_batch", 16 if scratch else batch))
    if scst_batch != settings.scst_batch:
        chosen["scst_batch"] = scst_batch
    choose("scst_lr", 1e-4 if scratch else 2e-5 if large or not gpu else 4e-5)
    choose("xe_weight", 1.0 if scratch else 0.0)  # a minute of cross-entropy has not taught everything yet
    choose("patience", 0 if scratch or not gpu else 5)
    if scratch and not settings.scst_epochs:
        choose("scst_steps", max(140, round(0.35 * pictures / scst_batch)))
    elif settings.scst_steps is None:
        epochs = settings.scst_epochs or (5 if large else 24 if gpu else 1 if minutes else 3)
        least = 1 if settings.scst_epochs else 20 if minutes else 50
        chosen["scst_steps"], chosen["scst_epochs"] = max(least, round(epochs * pictures / scst_batch)), None
    if scratch and not gpu:
        choose("threads", 1)  # threads would mostly wait for each other over matrices this small
    choose("precision", "bfloat16" if gpu else "float32")
    steps = settings.xe_steps or chosen["xe_steps"]
    choose("compile", gpu and steps > 1_500)
    if settings.validate_every is None:
        # Once an epoch, but of few pictures not after every other step, and at least four times (three, where it takes
        # longer than the steps between).
        least = steps // 3 if minutes else steps // 30
        chosen["validate_every"] = max(1, min(max(round(pictures / batch), least), steps // (3 if minutes else 4)))
    return settings.but(**chosen)


def describe(settings: TrainSettings, counts: dict[str, int], weights: int, words: int) -> list[tuple[str, str]]:
    """The plan in words: what a person reads before hours are spent."""
    told = [
        ("data", f"{settings.data}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items())),
        ("captioner", f"{settings.model}, {weights / 1e6:.1f} M weights, {words:,} words"),
        ("sees with", settings.vision or settings.features or f"as {settings.start}"),
    ]
    if settings.vision:
        told[-1] = (told[-1][0], f"{settings.vision}, {'learning too' if settings.train_vision else 'frozen'}")
    if "xe" in settings.stages:
        told.append(
            (
                "cross-entropy",
                f"{settings.xe_steps:,} steps of {settings.batch} pictures × {settings.captions} captions, "
                f"learning rate {settings.lr:g}",
            )
        )
    if "scst" in settings.stages:
        told.append(
            (
                "self-critical",
                f"{settings.scst_steps:,} steps of {settings.scst_batch} pictures × {settings.samples} captions, "
                f"learning rate {settings.scst_lr:g}",
            )
        )
    return told
