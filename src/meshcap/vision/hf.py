"""Backbones and detectors of the Hugging Face hub as visions: `create_hf("openai/clip-vit-base-patch16")`."""

from __future__ import annotations

from typing import Any

from meshcap.errors import MeshcapError
from meshcap.vision import hf_files
from meshcap.vision.base import Geometry
from meshcap.vision.hf_base import HFVision
from meshcap.vision.hf_detector import HFDetector
from meshcap.vision.hf_grid import WHOLE, HFGrid, backbone_config

__all__ = ["HFDetector", "HFGrid", "create_hf"]


def create_hf(
    name: str, *, size: int | None = None, geometry: Geometry | None = None, keep: int | None = None
) -> HFVision:
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
    if kind not in (*WHOLE, *HFGrid.kinds, *HFDetector.kinds):
        raise MeshcapError(
            f"{name} is a {kind!r}, expected a backbone ({', '.join((*WHOLE, *HFGrid.kinds))}) "
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
    return HFGrid(config=backbone_config(content), **settings)
