"""What all captioning models share: their settings, and how they are written to and read from a folder.

A model folder holds `config.json` (the settings and the model's name) and `model.safetensors`. Reading one executes
no code of the folder's, and a file that does not fit is refused with its first mismatch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, overload

import torch
from huggingface_hub import ModelHubMixin
from torch import Tensor, nn

from meshcap.attention import State
from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.folders import CONFIG, WEIGHTS, Bits, find_file, read_config
from meshcap.regions import Regions
from meshcap.weights import build_for, load_weights, save_weights, stored


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The settings that every captioning model has."""

    vocab_size: int
    d_input: int = 2048  # numbers of a region
    d_model: int = 512
    dropout: float = 0.1
    max_length: int = 54  # words of a caption, <eos> included
    boxes: bool = True  # embed each region's own box
    boost_low_frequencies: bool = False  # of boxes: see `BoxEmbedding`
    tied_words: bool = False  # the output's matrix is the word embedding: see `Words`
    unk: int = 0
    pad: int = 1
    bos: int = 2
    eos: int = 3
    suppressed_ids: tuple[int, ...] | None = None  # ids that no caption contains; None: <pad> and <bos>

    def __post_init__(self) -> None:
        if isinstance(self.suppressed_ids, list):  # as JSON has it
            object.__setattr__(self, "suppressed_ids", tuple(self.suppressed_ids))
        self.check()

    @property
    def suppressed(self) -> tuple[int, ...]:
        return (self.pad, self.bos) if self.suppressed_ids is None else self.suppressed_ids

    def check(self) -> None:
        """Refuse settings that cannot work.

        Raises:
            MeshcapError: naming the setting, its value and what is expected.
        """
        self.expect_at_least(vocab_size=5, d_input=1, d_model=2, max_length=2)
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise MeshcapError(f"dropout is {self.dropout!r}, expected a share from 0 to below 1")
        for name in ("boxes", "tied_words"):
            if not isinstance(getattr(self, name), bool):
                raise MeshcapError(f"{name} is {getattr(self, name)!r}, expected true or false")
        specials = (self.unk, self.pad, self.bos, self.eos)
        if not self.has_words(specials) or len(set(specials)) < 4:
            raise MeshcapError(
                f"special ids {specials} are not four different ids of a vocabulary of {self.vocab_size}"
            )
        if not self.has_words(self.suppressed):
            raise MeshcapError(
                f"suppressed_ids is {self.suppressed_ids!r}, expected ids of a vocabulary of {self.vocab_size}"
            )
        if self.eos in self.suppressed:
            raise MeshcapError(f"suppressed_ids contains {self.eos}, the id that ends a caption: no caption could end")

    def has_words(self, ids: object) -> bool:
        return isinstance(ids, tuple) and all(isinstance(one, int) and 0 <= one < self.vocab_size for one in ids)

    def expect_at_least(self, **least: int) -> None:
        for name, value in least.items():
            given = getattr(self, name)
            if not isinstance(given, int) or isinstance(given, bool) or given < value:
                raise MeshcapError(f"{name} is {given!r}, expected a whole number of at least {value}")

    def expect_share_of_loss(self, *names: str) -> None:
        for name in names:
            given = getattr(self, name)
            if not isinstance(given, int | float) or isinstance(given, bool) or not 0 <= given < float("inf"):
                raise MeshcapError(f"{name} is {given!r}, expected a number of at least 0")

    def expect_one_of(self, name: str, choices: tuple[str, ...]) -> None:
        if getattr(self, name) not in choices:
            raise MeshcapError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(choices)}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}
        for name in settings:
            if name not in known:
                raise MeshcapError(
                    f"unknown setting {name!r} for {cls.__name__}: was the model made by a newer meshcap?"
                )
        if "vocab_size" not in settings:
            raise MeshcapError("the settings say no vocab_size, and a model cannot be built without")
        return cls(**settings)


CARD = """---
{{ card_data }}
---

A captioning model of [meshcap](https://pypi.org/project/meshcap/). Read it with `meshcap.load_model("…")`, or with
`meshcap.Captioner.from_pretrained("…")` where a vocabulary lies beside it.
"""


class CaptionModel(
    nn.Module,
    ModelHubMixin,
    library_name="meshcap",
    license="apache-2.0",
    pipeline_tag="image-to-text",
    tags=["image-captioning"],
    model_card_template=CARD,
):
    """Base of all captioning models. Subclasses name themselves and their settings."""

    name: ClassVar[str]
    config_class: ClassVar[type[ModelConfig]]

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    # What a captioner does; `meshcap.decoding.search` says what each method promises.
    def encode(self, regions: Regions) -> State:
        raise NotImplementedError

    def start(self, encoded: State, *, width: int, length: int) -> State:
        raise NotImplementedError

    def step(self, ids: Tensor, state: State) -> Tensor:
        raise NotImplementedError

    def reorder(self, state: State, parents: Tensor) -> None:
        raise NotImplementedError

    def read(self, encoded: State, ids: Tensor) -> Tensor:
        """Teacher-forced over pictures looked at already, with gradients: ids (B, S, T) -> log-probs (B, S, T, V).

        Training reads captions of different lengths in several such passes and encodes the pictures once.
        """
        raise NotImplementedError

    @overload
    def __call__(self, regions: Regions, ids: Tensor, *, attention: Literal[False] = ...) -> Tensor: ...
    @overload
    def __call__(self, regions: Regions, ids: Tensor, *, attention: Literal[True]) -> tuple[Tensor, State]: ...
    def __call__(self, regions: Regions, ids: Tensor, *, attention: bool = False) -> Any:
        return super().__call__(regions, ids, attention=attention)

    def expect_regions(self, regions: Regions) -> None:
        """By their shapes alone.

        Raises:
            MeshcapError: features of another width, or no boxes where they are read.
        """
        width = regions.features.shape[-1]
        if width != self.config.d_input:
            raise MeshcapError(f"regions have {width} numbers each, this model expects {self.config.d_input}")
        if self.config.boxes and regions.boxes is None:
            raise MeshcapError(
                "this model reads each region's box, and the regions came without boxes: give Regions(features, boxes) "
                "with x1, y1, x2, y2 from 0 to 1, or use a model made with boxes=False"
            )

    def expect_length(self, length: int) -> None:
        if not 1 <= length <= self.config.max_length:
            raise MeshcapError(f"captions of {length} words, and this model writes 1 to {self.config.max_length}")

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        bits: Bits = 32,
        push_to_hub: bool = False,
        repo_id: str | None = None,
        model_card_kwargs: dict[str, Any] | None = None,
        config: Any = None,  # the mixin hands it around; ours is the model's own
        **hub: Any,
    ) -> str | None:
        """Write a model folder. (The mixin would begin by deleting the settings of the model that is there.)

        Args:
            bits: 32 writes weights as they are; 16, 8, 6 and 4 round matrices, for a smaller file.
        """
        if push_to_hub and bits != 32:
            raise MeshcapError(f"the hub is given 32 bits: save {bits} bits into a folder and upload that")
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        self._save_pretrained(folder, bits)
        card = folder / "README.md"
        if not card.exists():
            write_text(card, self.generate_model_card(**(model_card_kwargs or {})).content)
        if not push_to_hub:
            return None
        return self.push_to_hub(repo_id or folder.name, model_card_kwargs=model_card_kwargs, **hub)

    def _save_pretrained(self, save_directory: Path, bits: Bits = 32) -> None:
        settings = json.dumps({"model": self.name, **self.config.to_dict()}, indent=2) + "\n"
        save_weights(save_directory / WEIGHTS, stored(self, bits))
        write_text(save_directory / CONFIG, settings)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, *, dtype: torch.dtype = torch.float32, **hub: Any
    ) -> Self:
        """Read a model folder or a model on the hub. (Instead of the mixin, whose errors are of another kind.)"""
        return cls._from_pretrained(model_id=pretrained_model_name_or_path, dtype=dtype, **hub)

    @classmethod
    def _from_pretrained(cls, *, model_id: str | Path, dtype: torch.dtype = torch.float32, **hub: Any) -> Self:
        hub = {
            key: hub[key]
            for key in ("revision", "cache_dir", "force_download", "local_files_only", "token")
            if key in hub
        }
        settings = read_config(find_file(model_id, CONFIG, **hub))
        name = settings.pop("model", None)
        if name != cls.name:
            raise MeshcapError(
                f"{model_id} holds a model {name!r}, and {cls.__name__} reads {cls.name!r}: use meshcap.load_model"
            )
        config = cls.config_class.from_dict(settings)
        weights = find_file(model_id, WEIGHTS, **hub)
        model = build_for(lambda: cls(config), settings, weights, dtype=dtype)
        load_weights(model, weights)
        return model.eval()
