"""Backbones and detectors of the Hugging Face hub: `create_hf("google/vit-base-patch16-224")`.

Of backbones, every patch or every cell of the last feature map is a region; of detectors, every object found. They
keep their statistics and preprocessing, and are saved as transformers saves them.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from meshcap.errors import MeshcapError
from meshcap.files import write_files
from meshcap.regions import Regions
from meshcap.vision import hf_files
from meshcap.vision.backbone import Vision, grid_boxes
from meshcap.vision.preprocess import Geometry, Preprocess, preprocess_of
from meshcap.vision.vit import KINDS, ViT


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
            kind_of_mistake = "unknown" if name in settings else "no"
            raise MeshcapError(f"{folder}: {kind_of_mistake} setting {name!r}, expected {', '.join(sorted(known))}")
        if not isinstance(settings["config"], dict):
            raise MeshcapError(f"{folder}: config is {settings['config']!r}, expected an object")
        return cls(**settings, weights=Path(folder))


# Repositories that hold more than a backbone: their model_type -> the class of their settings.
WHOLE = {"siglip": "SiglipConfig"}

# What only the pooled vector needs.
UNUSED = {
    "dinov2_with_registers": ("embeddings.mask_token",),
    "convnext": ("layernorm",),
    "convnextv2": ("layernorm",),
}


# How transformers names the parts of its backbones: encoder.layer.3., encoder.layers.3., layers.3., encoder.stages.3.
LAYER = re.compile(r"(?:^|\.)(?:layers?|stages)\.(\d+)\.")
BEFORE_LAYERS = re.compile(r"(?:^|\.)(?:embed|pre_layrnorm)")


class HFGrid(HFVision):
    """A backbone of transformers. Its regions are the cells of a grid, row by row.

    Which numbers describe a patch:

    - SigLIP, ViT, DINOv2 with registers: the last hidden state, after the network's final norm. What comes before the
      patches (class token, registers) is dropped: it has no place in the picture.
    - ConvNeXt, ResNet: the last feature map.

    CLIP and DINOv2 are `meshcap.vision.vit`: they need no transformers.

    Parts that do not lead to these numbers (poolers, a norm of the pooled vector) are left out, so that every parameter
    gets a gradient when the backbone is trained.
    """

    name = "hf-grid"
    kinds = {  # noqa: RUF012 - a table, read alone
        "siglip_vision_model": "SiglipVision",
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

    def stages(self) -> list[list[nn.Parameter]]:
        """The embeddings, then each layer of a transformer (each stage of a CNN); a last norm goes with the last."""
        found: dict[int, list[nn.Parameter]] = {}
        after: list[nn.Parameter] = []
        for name, weight in self.network.named_parameters():
            layer = LAYER.search(name)
            if layer is not None:
                found.setdefault(int(layer[1]) + 1, []).append(weight)
            elif BEFORE_LAYERS.search(name):
                found.setdefault(0, []).append(weight)
            else:
                after.append(weight)
        found[max(found)] += after
        return [found[place] for place in sorted(found)]

    def forward(self, pixels: Tensor) -> Regions:
        rows, columns = self._cells(*pixels.shape[-2:])
        options: dict[str, Any] = {}
        if self.kind in ("siglip_vision_model", "vit"):
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
    return hf_files.make_config(WHOLE[kind], content).vision_config.to_dict() if kind in WHOLE else content


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


KEEP = 50  # regions of a picture unless kind_of_mistake; public features of detectors have 10 to 100


class HFDetector(HFVision):
    """A detector of transformers. Its regions are objects, the most confident first.

    A DETR answers a fixed number of queries, each with a vector, a box and a class. The most confident of them are the
    regions: always as many, so that no mask is needed and every picture costs the same.

    When it is trained, the heads that only choose among queries get no gradient: choosing has none.

    Args:
        keep: regions of a picture; None: 50, or all queries where there are fewer.
    """

    name = "hf-detector"
    kinds = {"detr": "Detr", "rt_detr": "RTDetr", "rt_detr_v2": "RTDetrV2"}  # noqa: RUF012 - a table, read alone

    def __init__(
        self,
        *,
        source: str,
        config: dict[str, Any],
        preprocess: Preprocess | dict[str, Any],
        keep: int | None = None,
        weights: Path | None = None,
    ):
        super().__init__(source=source, config=config, preprocess=preprocess, weights=weights)
        queries = self.config.num_queries
        self.keep = min(KEEP, queries) if keep is None else keep
        if not isinstance(self.keep, int) or isinstance(self.keep, bool) or not 1 <= self.keep <= queries:
            raise MeshcapError(f"keep is {keep!r}, expected 1 to {queries}: {source} has so many queries")
        self.width = self.config.d_model
        self._expect_size(self.preprocess.size, self.preprocess.size)

    def make_config(self, content: dict[str, Any]) -> Any:
        config = hf_files.make_config(f"{self.kinds[self.kind]}Config", content)
        backbone = getattr(config, "backbone_config", None)
        if getattr(config, "use_timm_backbone", False) or getattr(backbone, "model_type", "timm") == "timm_backbone":
            raise MeshcapError(
                f"{self.source} has a backbone of timm, which meshcap does not use: choose a detector whose backbone "
                "is of transformers (PekingU/rtdetr_r50vd, facebook/detr-resnet-50@no_timm)"
            )
        if hasattr(config, "use_pretrained_backbone"):
            config.use_pretrained_backbone = False  # or building the network downloads weights, to overwrite them
        if hasattr(config, "anchor_image_size"):
            config.anchor_image_size = config.eval_size = None  # kept for one size, they refuse every other
        return config

    def make_network(self, weights: Path | None) -> nn.Module:
        name = f"{self.kinds[self.kind]}ForObjectDetection"
        if weights is None:
            return hf_files.transformers_part(name)(self.config)
        return hf_files.load_network(name, self.config, weights)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "keep": self.keep}

    def _expect_size(self, height: int, width: int) -> None:
        """RT-DETR joins maps of several strides, and takes its queries from their cells; DETR reads any size."""
        if self.kind == "detr":
            return
        strides, queries = self.config.feat_strides, self.config.num_queries
        if height % max(strides) or width % max(strides):
            raise MeshcapError(f"size is {height} × {width}, {self.source} reads multiples of {max(strides)} pixels")
        cells = sum((height // stride) * (width // stride) for stride in strides)
        if cells < queries:
            raise MeshcapError(f"size is {height} × {width}: {self.source} needs more for its {queries} queries")

    def forward(self, pixels: Tensor) -> Regions:
        return self._look(pixels)[0]

    @torch.no_grad()
    def detect(self, pixels: Tensor) -> tuple[Regions, list[list[str]], Tensor]:
        """Regions, what each is said to be, and the confidence (B, keep) in that."""
        regions, labels, scores = self._look(pixels)
        names = self.config.id2label
        return regions, [[names[label] for label in row] for row in labels.tolist()], scores

    def _look(self, pixels: Tensor) -> tuple[Regions, Tensor, Tensor]:
        self._expect_size(*pixels.shape[-2:])
        found = self.network(pixel_values=self.preprocess.normalised(pixels, self.dtype))
        logits = found.logits.float()  # (B, queries, classes)
        # DETR's last class is "no object"; RT-DETR says so by giving every class a small number.
        each = logits.softmax(-1)[..., :-1] if self.kind == "detr" else logits.sigmoid()
        confidence, labels = each.max(-1)
        # A stable sort, not topk: queries of equal confidence come in the same order everywhere.
        scores, best = (one[:, : self.keep] for one in confidence.sort(dim=-1, descending=True, stable=True))
        features = found.last_hidden_state.take_along_dim(best[..., None], 1)  # (B, keep, F)
        centre, extent = found.pred_boxes.float().take_along_dim(best[..., None], 1).chunk(2, -1)
        boxes = torch.cat((centre - extent / 2, centre + extent / 2), -1).clamp(0, 1)
        return Regions(features, boxes), labels.take_along_dim(best, 1), scores


def create_hf(
    name: str, *, size: int | None = None, geometry: Geometry | None = None, keep: int | None = None
) -> Vision:
    """A backbone or a detector by its name on the hub (NAME or NAME@REVISION), or by its folder.

    Args:
        size, geometry: how pictures are seen, where it should differ from the model's own preprocessing.
        keep: of detectors, regions of a picture.

    Raises:
        MeshcapError: no such model, one of another architecture, or a setting that does not fit it.
    """
    folder = hf_files.fetch(name)
    content = hf_files.read_json(folder / hf_files.CONFIG)
    kind = content.get("model_type")
    grids = (*KINDS, *WHOLE, *HFGrid.kinds)
    if kind not in (*grids, *HFDetector.kinds):
        raise MeshcapError(
            f"{name} is a {kind!r}, expected a backbone ({', '.join(grids)}) "
            f"or a detector ({', '.join(HFDetector.kinds)})"
        )
    # RT-DETR alone reads colours from 0 to 1 as they are, and its files need not say so.
    preprocess = hf_files.read_preprocess(
        folder, size=size, geometry=geometry, normalises=kind not in ("rt_detr", "rt_detr_v2")
    )
    settings: dict[str, Any] = {"source": name, "preprocess": preprocess, "weights": folder}
    if kind in HFDetector.kinds:
        return HFDetector(config=content, keep=keep, **settings)
    if keep is not None:
        raise MeshcapError(f"keep is {keep}, and {name} is a backbone: its regions are all cells of its grid")
    if kind in KINDS:
        return ViT.from_huggingface(folder, content, source=name, preprocess=preprocess)
    return HFGrid(config=backbone_config(content), **settings)
