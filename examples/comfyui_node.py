"""A node for ComfyUI: put this file into `custom_nodes` and `pip install meshcap` into ComfyUI's Python.

IMAGE in (a batch, height × width × RGB from 0 to 1), STRING out: a caption for each picture of the batch, as a list.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from meshcap import Captioner


@cache
def captioner(model: str) -> Captioner:
    return Captioner.from_pretrained(model)


class MeshcapCaption:
    """Captions pictures."""

    CATEGORY = "image/text"
    FUNCTION = "describe"
    RETURN_TYPES = ("STRING", "FLOAT")
    RETURN_NAMES = ("caption", "confidence")
    OUTPUT_IS_LIST = (True, True)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, tuple[Any, ...]]]:  # noqa: N802
        return {
            "required": {"image": ("IMAGE",)},
            "optional": {
                "model": ("STRING", {"default": "default"}),
                "must": ("STRING", {"default": "", "tooltip": "Words that must appear, between commas."}),
                "must_not": ("STRING", {"default": "", "tooltip": "Words to avoid, between commas."}),
                "max_words": ("INT", {"default": 0, "min": 0, "max": 19, "tooltip": "0: as many as it takes."}),
                "prefix": ("STRING", {"default": "", "tooltip": "Written before each caption."}),
            },
        }

    def describe(
        self,
        image: Any,
        model: str = "default",
        must: str = "",
        must_not: str = "",
        max_words: int = 0,
        prefix: str = "",
    ) -> tuple[list[str], list[float]]:
        pictures = list((image.clamp(0, 1) * 255).round().byte().cpu().numpy())  # (height, width, 3) each
        found = captioner(model).caption(
            pictures, must=must.strip() or (), must_not=must_not.strip() or (), max_words=max_words or None
        )
        return [prefix + one.text for one in found], [one.confidence for one in found]


NODE_CLASS_MAPPINGS = {"MeshcapCaption": MeshcapCaption}
NODE_DISPLAY_NAME_MAPPINGS = {"MeshcapCaption": "Caption (meshcap)"}
