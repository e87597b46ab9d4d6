"""What grids and detectors of Hugging Face share: settings, weights in a folder, frozen statistics."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from meshcap.errors import MeshcapError
from meshcap.files import write_files
from meshcap.vision import hf_files
from meshcap.vision.base import Preprocess, Vision
from meshcap.vision.preprocessing import preprocess_of


class HFVision(Vision):
    """A network of transformers with its preprocessing.

    Args:
        source: the name or folder it came from, for people to know.
        config: its settings as `config.json` of a Hugging Face model has them.
        preprocess: how it sees pictures, or that as a dict.
        weights: a folder to read its weights from; None leaves them random.
    """

    network: Any  # a PreTrainedModel
    kinds: ClassVar[dict[str, str]]  # model_type of the settings -> the class, less Config or Model

    def __init__(
        self,
        *,
        source: str,
        config: dict[str, Any],
        preprocess: Preprocess | dict[str, Any],
        weights: Path | None = None,
    ):
        super().__init__()
        self.source = source
        self.preprocess = preprocess if isinstance(preprocess, Preprocess) else preprocess_of(preprocess)
        self.kind = str(config.get("model_type"))
        if self.kind not in self.kinds:
            raise MeshcapError(f"{source} is a {self.kind!r}, expected one of {', '.join(self.kinds)}")
        self.config = self.make_config(config)
        self.network = self.make_network(weights)
        self.eval()

    def make_config(self, content: dict[str, Any]) -> Any:
        raise NotImplementedError

    def make_network(self, weights: Path | None) -> nn.Module:
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "config": json.loads(self.config.to_json_string()),
            "preprocess": self.preprocess.to_dict(),
        }

    def train(self, mode: bool = True) -> Self:
        """Batch norms keep the statistics they were trained with: batches of captioning are small and unlike theirs."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

    def save_weights(self, folder: str | Path) -> None:
        """Write `model.safetensors`, and the `config.json` with which transformers reads the folder as well."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MeshcapError(f"{folder} cannot be written: {error.strerror or error}") from error
        with hf_files.quiet():
            write_files(folder, lambda part: self.network.save_pretrained(part, max_shard_size="1000GB"))

    @classmethod
    def from_folder(cls, folder: str | Path, settings: dict[str, Any]) -> Self:
        """Read what `save_weights` wrote, with the `settings` of then. Needs no network.

        Raises:
            MeshcapError: settings or weights that do not fit.
        """
        known = {name for name in inspect.signature(cls).parameters if name != "weights"}
        for name in known ^ settings.keys():
            told = "unknown" if name in settings else "no"
            raise MeshcapError(f"{folder}: {told} setting {name!r}, expected {', '.join(sorted(known))}")
        if not isinstance(settings["config"], dict):
            raise MeshcapError(f"{folder}: config is {settings['config']!r}, expected an object")
        return cls(**settings, weights=Path(folder))
