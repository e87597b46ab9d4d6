"""Detectors of Hugging Face: every object found is a region.

A DETR answers a fixed number of queries, each with a vector, a box and a class. The most confident of them are the
regions: always as many, so that no mask is needed and every picture costs the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.regions import Regions
from meshcap.vision import hf_files
from meshcap.vision.base import Preprocess
from meshcap.vision.hf_base import HFVision

KEEP = 50  # regions of a picture unless told; public features of detectors have 10 to 100


class HFDetector(HFVision):
    """A detector of transformers. Its regions are objects, the most confident first.

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
