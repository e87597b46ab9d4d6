"""Every setting of a training run, in one record that is saved with it.

None means "choose for me": `plan.complete` fills those in from the data's size and the device before a run begins, and
what it chose is what is saved, so that a run can be read, repeated and resumed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from meshcap.errors import MeshcapError
from meshcap.files import write_text

SETTINGS = "training.json"
STAGES = ("xe", "scst")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Batches count pictures; lengths count words and `<eos>`; a learning rate is the highest of its schedule."""

    # What to learn from, and where it goes
    data: str
    out: str
    pictures: str | None = None  # the folder of the pictures, where DATA is a file of captions alone
    features: str | None = None  # precomputed regions instead of pictures
    val_share: float = 0.05  # of pictures whose file names no split
    without: str | None = None  # a file of ids, one a line, of training pictures to leave out

    # The captioner
    model: str = "m2"
    start: str | None = None  # --from: a model folder to go on from
    vision: str | None = None
    size: int | None = None  # pixels along a side; None: the vision's own
    geometry: Literal["squash", "crop"] | None = None
    train_vision: bool | None = None
    frozen_stages: int = 0  # first stages of the vision that never learn: edges are edges, and they cost the most
    d_model: int | None = None
    heads: int | None = None
    d_ff: int | None = None
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    slots: int | None = None
    dropout: float | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of this model alone, such as mesh or gates

    # Words
    tokenizer: str = "ptb"
    min_count: int | None = None  # words seen less often are unknown
    max_words: int | None = None
    max_length: int = 21

    # Cross-entropy
    stages: tuple[str, ...] = STAGES
    xe_steps: int | None = None
    xe_epochs: float | None = None
    batch: int | None = None
    captions: int | None = None  # of each picture in a step
    lr: float | None = None
    lr_vision: float | None = None
    warmup: float = 0.05  # share of the steps
    label_smoothing: float | None = None
    weight_decay: float = 0.05
    clip: float = 1.0
    ema: float | None = None  # decay of the averaged weights that are validated and kept; 0: none
    augment: float | None = None  # strength from 0 to 1
    compress: float = 0.0  # share of the views, in both stages, that look like badly compressed JPEG
    turn: float = 0.0  # degrees that augmented views, in both stages, are turned by at most
    region_dropout: float | None = None  # share of the regions hidden in a step

    # Self-critical training
    scst_steps: int | None = None
    scst_epochs: float | None = None
    scst_batch: int | None = None
    scst_lr: float | None = None
    scst_lr_vision: float = 0.0  # 0: the vision is frozen, and looks at each picture once
    scst_augment: float = 0.0  # strength from 0 to 1; above 0 pictures are looked at anew in every step
    scst_region_dropout: float = 0.0  # share of the regions hidden while a picture is spoken of
    scst_ema: float = 0.0
    samples: int = 5
    scst_length: int | None = None  # of what is drawn; None: max_length. Every caption costs as much as the longest
    search: Literal["sample", "beam"] = "sample"
    temperature: float = 1.0
    top_k: int = 0
    xe_weight: float | None = None  # of cross-entropy mixed in, against drift
    xe_captions: int | None = None  # of each picture in that mixture; None: as many as in cross-entropy

    # The run
    seed: int = 0
    precision: Literal["float32", "bfloat16"] | None = None
    compile: bool | None = None
    threads: int | None = None  # of the CPU; None: torch's choice
    cache: Literal["auto", "device", "memory", "none"] = "auto"
    workers: int | None = None
    accumulate: int = 1  # parts a batch is computed in, where memory is short
    validate_every: int | None = None  # steps
    val_pictures: int = 0  # at most; 0: all
    val_beams: int = 3
    checkpoint_every: int | None = None  # steps; None: with every validation
    patience: int | None = None  # validations without a new best before a stage ends; 0: never early
    keep: Literal["best", "last"] = "best"  # by validation CIDEr; "last": a stage's end, where CIDEr is not all
    track: tuple[str, ...] | None = None  # None: TensorBoard, where it is installed

    def __post_init__(self) -> None:
        for name in ("stages", "track"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(given.split(",") if isinstance(given, str) else given))
        for name, hint in get_type_hints(type(self)).items():
            if not _fits(getattr(self, name), hint):
                raise MeshcapError(f"{name} is {getattr(self, name)!r}, expected {_told(hint)}")
        if (
            not self.stages
            or any(stage not in STAGES for stage in self.stages)
            or len(set(self.stages)) < len(self.stages)
        ):
            raise MeshcapError(f"stages are {','.join(self.stages)!r}, expected xe, scst or xe,scst")
        if self.stages == ("scst", "xe"):
            raise MeshcapError("stages are scst,xe: self-critical training comes after cross-entropy, say xe,scst")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise MeshcapError(f"{name} is {value}, expected more than 0")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise MeshcapError(f"{name} is {value}, expected 0 or more")
        for name in _SHARES:
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise MeshcapError(f"{name} is {value}, expected a share from 0 to below 1")
        if self.samples < 2:
            raise MeshcapError(f"samples is {self.samples}, expected at least 2: each is judged by the others")
        for name in ("max_length", "scst_length"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise MeshcapError(f"{name} is {value}, expected at least a word and its end")
        for name in ("augment", "scst_augment"):
            strength = getattr(self, name)
            if strength is not None and not 0 <= strength <= 1:
                raise MeshcapError(f"{name} is {strength}, expected a strength from 0 to 1")
        if not 0 <= self.turn <= 180:
            raise MeshcapError(f"turn is {self.turn}, expected degrees from 0 to 180")
        if self.xe_steps is not None and self.xe_epochs is not None:
            raise MeshcapError("both xe_steps and xe_epochs were given, expected one of them")
        if self.scst_steps is not None and self.scst_epochs is not None:
            raise MeshcapError("both scst_steps and scst_epochs were given, expected one of them")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        known = {one.name for one in fields(cls)}
        for name in given:
            if name not in known:
                raise MeshcapError(f"unknown training setting {name!r}: was the run made by a newer meshcap?")
        return cls(**given)

    def save(self, folder: Path) -> None:
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        write_text(folder / SETTINGS, text)

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / SETTINGS
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise MeshcapError(f"{folder} holds no run ({SETTINGS} is not there): leave out --resume") from None
        except (OSError, ValueError) as error:
            raise MeshcapError(f"{path} cannot be read ({error}): expected the settings of a run") from None
        if not isinstance(given, dict):
            raise MeshcapError(f"{path} holds a {type(given).__name__}, expected the settings of a run")
        return cls.from_dict(given)


_POSITIVE = (
    "size d_model heads d_ff encoder_layers decoder_layers min_count max_words xe_steps xe_epochs batch captions lr "
    "clip scst_steps scst_epochs scst_batch scst_lr temperature workers accumulate validate_every val_beams "
    "checkpoint_every xe_captions"
).split()
_NOT_NEGATIVE = (
    "slots lr_vision weight_decay scst_lr_vision top_k xe_weight seed val_pictures patience "
    "frozen_stages"
).split()
_SHARES = ("val_share dropout warmup label_smoothing ema scst_ema region_dropout scst_region_dropout compress").split()


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a kind that a hint names: values come from command lines and files."""
    for kind in _kinds(hint):
        if get_origin(kind) is Literal:
            if value in get_args(kind):
                return True
        elif kind in (int, float):
            if isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool):
                return True
        elif isinstance(value, get_origin(kind) or kind):
            return True
    return False


def _told(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    found: list[str] = []
    for kind in _kinds(hint):
        if get_origin(kind) is Literal:
            found += get_args(kind)
        elif kind is not NoneType:
            found.append(names.get(kind, "a list of names" if get_origin(kind) is tuple else "an object"))
    return " or ".join(found)
