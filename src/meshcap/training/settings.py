"""The settings of a training run: records for data, model, cross-entropy, self-critical training and the run itself.

A setting's name is its record's and its own, as in `xe.lr` or `model.d_model`: so it is given to `--set`, saved in the
run's folder and named in errors. None means that `plan.complete` chooses, from the data's size and the device; what it
chose is saved, so that a run can be read, repeated and resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.models.registry import model_class

SETTINGS = "training.json"
STAGES = ("xe", "scst")
OTHER = "was the run made by another meshcap?"


def more_than_zero(default: Any = None) -> Any:
    return field(default=default, metadata={"check": lambda value: value > 0, "expected": "more than 0"})


def zero_or_more(default: Any = None) -> Any:
    return field(default=default, metadata={"check": lambda value: value >= 0, "expected": "0 or more"})


def share(default: Any = None) -> Any:
    check = {"check": lambda value: 0 <= value < 1, "expected": "a share from 0 to below 1"}
    return field(default=default, metadata=check)


def strength(default: Any = None) -> Any:
    check = {"check": lambda value: 0 <= value <= 1, "expected": "a strength from 0 to 1"}
    return field(default=default, metadata=check)


class Record:
    """Base of the records: values come from command lines and files, so each is checked."""

    prefix: ClassVar[str]

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for one in fields(self):  # type: ignore[arg-type]
            value, hint = getattr(self, one.name), hints[one.name]
            if not _fits(value, hint):
                raise MeshcapError(f"{self.prefix}.{one.name} is {value!r}, expected {_kinds_text(hint)}")
            if value is not None and "check" in one.metadata and not one.metadata["check"](value):
                raise MeshcapError(f"{self.prefix}.{one.name} is {value}, expected {one.metadata['expected']}")


@dataclass(frozen=True, kw_only=True)
class DataSettings(Record):
    """What to learn from, and which words. Lengths count words and `<eos>`."""

    prefix: ClassVar[str] = "data"

    path: str  # a folder, a file or a pattern
    pictures: str | None = None  # the folder of the pictures, where the path is a file of captions alone
    features: str | None = None  # precomputed regions instead of pictures
    without: str | None = None  # a file of ids, one a line, of training pictures to leave out
    skip_broken: bool = False  # leave out records that make no sense and pictures that cannot be read
    val_share: float = share(0.05)  # of pictures whose file names no split
    val_pictures: int = zero_or_more(0)  # at most; 0: all
    tokenizer: str = "ptb"
    min_count: int | None = more_than_zero()  # words seen less often are unknown
    vocabulary: int | None = more_than_zero()  # words at most
    max_length: int = 21
    size: int | None = more_than_zero()  # pixels that training pictures are kept with; None: what the vision reads
    cache: Literal["auto", "device", "memory", "none"] = "auto"  # where decoded pictures are kept
    workers: int | None = more_than_zero()

    def __post_init__(self) -> None:
        super().__post_init__()
        _expect_length("data.max_length", self.max_length)


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Record):
    """The captioner. With `start` a model folder decides most of it."""

    prefix: ClassVar[str] = "model"

    arch: str = "m2"  # as in `meshcap.list_models()`
    start: str | None = None  # --from: a model folder to go on from
    vision: str | None = None
    size: int | None = more_than_zero()  # pixels along a side; None: the vision's own
    geometry: Literal["squash", "crop"] | None = None
    d_model: int | None = more_than_zero()
    heads: int | None = more_than_zero()
    d_ff: int | None = more_than_zero()
    encoder_layers: int | None = more_than_zero()
    decoder_layers: int | None = more_than_zero()
    slots: int | None = zero_or_more()
    dropout: float | None = share()
    options: dict[str, Any] = field(default_factory=dict)  # of this model alone, such as mesh or gates

    def built(self) -> dict[str, Any]:
        """What was given that decides how a model is built, which one that exists already is."""
        names = ("geometry", "d_model", "heads", "d_ff", "encoder_layers", "decoder_layers", "slots", "dropout")
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None} | self.options


@dataclass(frozen=True, kw_only=True)
class StageSettings(Record):
    """What cross-entropy and self-critical training share. A batch counts pictures; rates are a schedule's highest.

    A stage of the vision learns at lr_vision · layer_decay^(stages above it).
    """

    steps: int | None = more_than_zero()
    epochs: float | None = more_than_zero()  # instead of steps
    batch: int | None = more_than_zero()
    captions: int | None = more_than_zero()  # of each picture in a step
    lr: float | None = more_than_zero()
    lr_vision: float | None = zero_or_more()  # 0: frozen
    layer_decay: float | None = more_than_zero()
    frozen_stages: int = zero_or_more(0)  # first stages of the vision (`Vision.stages`) that do not learn
    warmup: float = share(0.05)  # of the steps
    last_rate: float = share(0.01)  # where the rate ends, as a share of the highest
    weight_decay: float = zero_or_more(0.0)
    clip: float = more_than_zero(1.0)
    ema: float | None = share(0.0)  # decay of the averaged weights that are validated and kept; 0: none
    augment: float | None = strength(0.0)
    compress: float = share(0.0)  # of the views that look like badly compressed JPEG
    turn: float = field(
        default=0.0, metadata={"check": lambda value: 0 <= value <= 180, "expected": "degrees from 0 to 180"}
    )  # that augmented views are turned by at most
    region_dropout: float | None = share(0.0)  # of the regions hidden in a step

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            name = self.prefix
            raise MeshcapError(f"both {name}.steps and {name}.epochs were given, expected one of them")


@dataclass(frozen=True, kw_only=True)
class XESettings(StageSettings):
    """Cross-entropy."""

    prefix: ClassVar[str] = "xe"

    weight_decay: float = zero_or_more(0.05)
    ema: float | None = share()
    augment: float | None = strength()
    region_dropout: float | None = share()
    label_smoothing: float | None = share()


@dataclass(frozen=True, kw_only=True)
class SCSTSettings(StageSettings):
    """Self-critical training. `captions` are those of people, where cross-entropy is mixed in."""

    prefix: ClassVar[str] = "scst"

    lr_vision: float | None = zero_or_more()  # 0: frozen, and unaugmented pictures are looked at once
    ema: float | None = share()
    augment: float | None = strength()
    last_rate: float = share(0.1)
    samples: int = field(
        default=5,
        metadata={"check": lambda value: value > 1, "expected": "at least 2: each is judged by the others"},
    )
    max_length: int | None = None  # of what is drawn; None: data.max_length. Every caption costs as much as the longest
    search: Literal["sample", "beam"] = "sample"
    temperature: float = more_than_zero(1.0)
    top_k: int = zero_or_more(0)
    xe_weight: float | None = zero_or_more()  # of cross-entropy mixed in, against drift
    objects: str | None = None  # a file of the objects in each picture: see `metrics.reward_objects`
    object_penalty: float = zero_or_more(0.2)  # of each object named that is not there (CIDEr-D of 100 is 1)
    object_bonus: float = zero_or_more(0.05)  # of each that is
    facts: bool = False  # reward true statements about scores whose samples have facts: see `metrics.reward_facts`
    fact_penalty: float = zero_or_more(1.0)  # of each statement that is false
    fact_bonus: float = zero_or_more(0.15)  # of each that is true

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None:
            _expect_length("scst.max_length", self.max_length)


@dataclass(frozen=True, kw_only=True)
class RunSettings(Record):
    """How a run is carried out, and where it goes."""

    prefix: ClassVar[str] = "run"

    out: str
    stages: tuple[str, ...] = STAGES
    seed: int = zero_or_more(0)
    precision: Literal["float32", "bfloat16"] | None = None
    compile: bool | None = None
    compile_cache: str | None = None  # folder of what was compiled, for other runs; None: see `folder.keep_compiled`
    threads: int | None = more_than_zero()  # of the CPU; None: torch's choice
    accumulate: int = more_than_zero(1)  # parts a batch is computed in, where memory is short
    validate_every: int | None = more_than_zero()  # steps
    val_beams: int = more_than_zero(3)
    checkpoint_every: int | None = more_than_zero()  # steps; None: with every validation
    patience: int | None = zero_or_more()  # validations without a new best before a stage ends; 0: never early
    keep: Literal["best", "last"] = "best"  # which model stays in the folder: the best by CIDEr, or a stage's last
    track: tuple[str, ...] | None = None  # None: TensorBoard, where it is installed

    def __post_init__(self) -> None:
        for name in ("stages", "track"):  # as a command line and JSON have them
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(given.split(",") if isinstance(given, str) else given))
        super().__post_init__()
        known = all(stage in STAGES for stage in self.stages)
        if not self.stages or not known or len(set(self.stages)) < len(self.stages):
            raise MeshcapError(f"stages are {','.join(self.stages)!r}, expected xe, scst or xe,scst")
        if self.stages == ("scst", "xe"):
            raise MeshcapError("stages are scst,xe: self-critical training comes after cross-entropy, say xe,scst")


RECORDS: dict[str, type[Record]] = {
    "data": DataSettings,
    "model": ModelSettings,
    "xe": XESettings,
    "scst": SCSTSettings,
    "run": RunSettings,
}


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Every setting of a training run."""

    data: DataSettings
    run: RunSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    xe: XESettings = field(default_factory=XESettings)
    scst: SCSTSettings = field(default_factory=SCSTSettings)

    @classmethod
    def named(cls, given: Mapping[str, Any]) -> Self:
        """From names with a dot: `TrainSettings.named({"data.path": "scenes", "run.out": "run", "xe.lr": 1e-3})`."""
        parts = _by_record(given, str(given.get("model.arch", ModelSettings.arch)))
        records: dict[str, Any] = {name: RECORDS[name](**parts.get(name, {})) for name in RECORDS}
        return cls(**records)

    def but(self, given: Mapping[str, Any]) -> Self:
        """With some settings changed, by names with a dot."""
        parts = _by_record(given, str(given.get("model.arch", self.model.arch)))
        if "options" in parts.get("model", {}):
            parts["model"]["options"] = self.model.options | parts["model"]["options"]
        return replace(self, **{name: replace(getattr(self, name), **changes) for name, changes in parts.items()})

    def get(self, name: str) -> Any:
        """A setting by its name with a dot; of a model's own options None, where one was not given."""
        record, _, own = name.partition(".")
        if record == "model" and own not in _known("model"):
            return self.model.options.get(own)
        return getattr(getattr(self, record), own)

    def stage(self, name: str) -> StageSettings:
        """The settings of the stage "xe" or "scst"."""
        return {"xe": self.xe, "scst": self.scst}[name]

    def flat(self) -> dict[str, Any]:
        """By names with a dot, as `named` takes them."""
        return {f"{record}.{name}": value for record, own in asdict(self).items() for name, value in own.items()}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """What `to_dict` gave."""
        names: dict[str, Any] = {}
        for record, content in given.items():
            if record not in RECORDS or not isinstance(content, Mapping):
                raise MeshcapError(f"unknown training setting {record!r}: {OTHER}")
            for name, value in content.items():
                if name not in _known(record):
                    raise MeshcapError(f"unknown training setting {record}.{name}: {OTHER}")
                names[f"{record}.{name}"] = value
        return cls.named(names)

    def save(self, folder: Path) -> None:
        write_text(folder / SETTINGS, json.dumps(self.to_dict(), indent=2) + "\n")

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


def setting_names() -> Iterator[str]:
    """The names of all settings, as `--set` takes them; a model's own options are not among them."""
    for record, kind in RECORDS.items():
        yield from (f"{record}.{one.name}" for one in fields(kind) if one.name != "options")  # type: ignore[arg-type]


def parse(text: str) -> tuple[str, Any]:
    """Name and value of what `--set` was given: "xe.lr=1e-4"; values are JSON, or else text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise MeshcapError(f"--set {text!r}: expected name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _by_record(given: Mapping[str, Any], model: str) -> dict[str, dict[str, Any]]:
    """Values by record; what only the model itself knows goes into its options."""
    parts: dict[str, dict[str, Any]] = {}
    options: dict[str, Any] = {}
    for name, value in given.items():
        record, dot, own = name.partition(".")
        if not dot or record not in RECORDS:
            raise MeshcapError(f"there is no setting {name!r}: expected a name such as xe.lr, scst.lr or model.d_model")
        if own in _known(record):
            parts.setdefault(record, {})[own] = value
        elif record == "model" and own in {one.name for one in fields(model_class(model).config_class)}:
            options[own] = value
        else:
            known = ", ".join(sorted(_known(record) - {"options"}))
            more = f", or one of {model}'s own" if record == "model" else ""
            raise MeshcapError(f"there is no setting {name!r}: expected {record}. and one of {known}{more}")
    if options:
        parts.setdefault("model", {}).setdefault("options", {})
        parts["model"]["options"] = {**parts["model"]["options"], **options}
    return parts


def _known(record: str) -> set[str]:
    return {one.name for one in fields(RECORDS[record])}  # type: ignore[arg-type]


def _expect_length(name: str, length: int) -> None:
    if length < 2:
        raise MeshcapError(f"{name} is {length}, expected at least a word and its end")


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a kind that a hint names."""
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


def _kinds_text(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    found: list[str] = []
    for kind in _kinds(hint):
        if get_origin(kind) is Literal:
            found += get_args(kind)
        elif kind is not NoneType:
            found.append(names.get(kind, "a list of names" if get_origin(kind) is tuple else "an object"))
    return " or ".join(found)
