"""Backbones of Hugging Face: every patch, or every cell of the last feature map, is a region.

Which numbers describe a patch:
- SigLIP, DINOv2, ViT: the last hidden state, after the network's final norm. What comes before the patches (class
  token, registers) is dropped: it has no place in the picture.
- CLIP: what the last layer *reads*, not what it writes. CLIP is trained through its class token alone, so nothing ever
  asked the last layer's output for a patch to mean something. That layer is not built.
- ConvNeXt, ResNet: the last feature map.

Parts that do not lead to these numbers (poolers, a norm of the pooled vector) are left out, so that every parameter
gets a gradient when the backbone is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.regions import Regions
from meshcap.vision import hf_files
from meshcap.vision.base import Preprocess, grid_boxes
from meshcap.vision.hf_base import HFVision

# Repositories that hold more than a backbone: their model_type -> the class of their settings.
WHOLE = {"clip": "CLIPConfig", "siglip": "SiglipConfig"}

# What only the pooled vector needs; transformers 4 has CLIP's one level deeper.
UNUSED = {
    "clip_vision_model": ("post_layernorm", "vision_model.post_layernorm"),
    "dinov2": ("embeddings.mask_token",),
    "dinov2_with_registers": ("embeddings.mask_token",),
    "convnext": ("layernorm",),
    "convnextv2": ("layernorm",),
}


class HFGrid(HFVision):
    """A backbone of transformers. Its regions are the cells of a grid, row by row."""

    name = "hf-grid"
    kinds = {  # noqa: RUF012 - a table, read alone
        "clip_vision_model": "CLIPVision",
        "siglip_vision_model": "SiglipVision",
        "dinov2": "Dinov2",
        "dinov2_with_registers": "Dinov2WithRegisters",
        "vit": "ViT",
        "convnext": "ConvNext",
        "convnextv2": "ConvNextV2",
        "resnet": "ResNet",
    }

    def __init__(
        self,
        *,
        source: str,
        config: dict[str, Any],
        preprocess: Preprocess | dict[str, Any],
        weights: Path | None = None,
    ):
        super().__init__(source=source, config=config, preprocess=preprocess, weights=weights)
        sizes = getattr(self.config, "hidden_sizes", None)
        self.width = sizes[-1] if sizes else self.config.hidden_size
        self._cells(self.preprocess.size, self.preprocess.size)

    def make_config(self, content: dict[str, Any]) -> Any:
        config = hf_files.make_config(f"{self.kinds[self.kind]}Config", content)
        if self.kind == "siglip_vision_model":
            config.vision_use_head = False  # the pooler
        return config

    def make_network(self, weights: Path | None) -> nn.Module:
        options = {"add_pooling_layer": False} if self.kind == "vit" else {}
        unused = UNUSED.get(self.kind, ())
        name = f"{self.kinds[self.kind]}Model"
        if weights is None:
            network = hf_files.transformers_part(name)(self.config, **options)
        else:
            network = hf_files.load_network(name, self.config, weights, spare=unused, **options)
        for path in unused:
            _remove(network, path)
        return network

    @property
    def stride(self) -> int:
        """Pixels of a cell's side."""
        config = self.config
        if self.kind == "resnet":
            return 2 ** (len(config.depths) + 1 + bool(config.downsample_in_first_stage))
        if self.kind in ("convnext", "convnextv2"):
            return config.patch_size * 2 ** (len(config.depths) - 1)
        return config.patch_size

    def _cells(self, height: int, width: int) -> tuple[int, int]:
        if height % self.stride or width % self.stride:
            raise MeshcapError(f"size is {height} × {width}, {self.source} reads multiples of {self.stride} pixels")
        return height // self.stride, width // self.stride

    def forward(self, pixels: Tensor) -> Regions:
        rows, columns = self._cells(*pixels.shape[-2:])
        options: dict[str, Any] = {}
        if self.kind in ("clip_vision_model", "siglip_vision_model", "vit"):
            native = self.config.image_size
            # The others do this unasked, or have no positions.
            options["interpolate_pos_encoding"] = tuple(pixels.shape[-2:]) != (native, native)
        seen = self.preprocess.normalised(pixels, self.dtype)
        features = self.network(pixel_values=seen, **options).last_hidden_state
        if features.dim() == 4:  # (B, F, rows, columns)
            features = features.flatten(2).transpose(1, 2)
        features = features[:, -rows * columns :]  # (B, rows · columns, F)
        boxes = grid_boxes(rows, columns, features.device)
        return Regions(features, boxes.expand(len(features), -1, -1))


def backbone_config(content: dict[str, Any]) -> dict[str, Any]:
    """The settings of the backbone alone, out of those of a repository; others come back as they are."""
    kind = content.get("model_type")
    config = hf_files.make_config(WHOLE[kind], content).vision_config if kind in WHOLE else None
    if config is None and kind == "clip_vision_model":
        config = hf_files.make_config("CLIPVisionConfig", content)
    if config is None:
        return content
    if config.model_type == "clip_vision_model":
        config.num_hidden_layers -= 1  # see the top of the file
    return config.to_dict()


def _remove(network: nn.Module, path: str) -> None:
    """Take a module or a parameter out of a network, where there is one at this path."""
    *above, last = path.split(".")
    parent: Any = network
    for name in above:
        parent = getattr(parent, name, None)
    if isinstance(getattr(parent, last, None), nn.Module):
        setattr(parent, last, nn.Identity())
    elif getattr(parent, last, None) is not None:
        setattr(parent, last, None)
