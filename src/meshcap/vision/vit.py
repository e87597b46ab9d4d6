"""Vision Transformers in our own code: CLIP's image tower and DINOv2. Reading them needs no transformers.

A patch is a region, row by row. Which numbers describe it:
- DINOv2: the last layer's output after the final norm.
- CLIP: what the last layer *reads*. CLIP was trained through its class token alone, so nothing ever asked the last
  layer's output for a patch to mean something; that layer is not built.

The class token takes part in attention and is dropped at the end: it has no place in the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.kernels import attend_by_products, can_attend_by_products
from meshcap.regions import Regions
from meshcap.vision.backbone import Vision, grid_boxes
from meshcap.vision.preprocess import Preprocess, preprocess_of
from meshcap.weights import read_weights

Activation = Literal["quick_gelu", "gelu"]
CLIP_COLOURS = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}


class ViT(Vision):
    """A grid of square patches, `width` numbers each.

    Args:
        grid: patches along a side that positions were learned for; other sizes interpolate them.
        pre_norm: a norm before the first layer, as CLIP has.
        final_norm: a norm after the last layer, as DINOv2 has.
        layer_scale: a learned factor for each channel of a layer's output, as DINOv2 has.
        source: where the first weights came from, for people to know.
    """

    name: ClassVar[str] = "vit"

    def __init__(
        self,
        *,
        width: int = 768,
        layers: int = 11,
        heads: int = 12,
        d_ff: int = 3072,
        patch: int = 16,
        grid: int = 14,
        activation: Activation = "quick_gelu",
        norm_eps: float = 1e-5,
        pre_norm: bool = True,
        final_norm: bool = False,
        layer_scale: bool = False,
        patch_bias: bool = False,
        source: str = "",
        preprocess: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        sizes = {"width": width, "layers": layers, "heads": heads, "d_ff": d_ff, "patch": patch, "grid": grid}
        for name, value in sizes.items():
            if type(value) is not int or value < 1:
                raise MeshcapError(f"{name} is {value!r}, expected a whole number above 0")
        if width % heads:
            raise MeshcapError(f"width is {width} and heads is {heads}: expected a width that heads divide")
        if activation not in ("quick_gelu", "gelu"):
            raise MeshcapError(f"activation is {activation!r}, expected quick_gelu or gelu")
        self.options: dict[str, Any] = {
            **sizes, "activation": activation, "norm_eps": norm_eps, "pre_norm": pre_norm, "final_norm": final_norm,
            "layer_scale": layer_scale, "patch_bias": patch_bias, "source": source,
        }  # fmt: skip
        self.width, self.patch, self.grid = width, patch, grid
        self.preprocess = preprocess_of(preprocess, size=patch * grid, **CLIP_COLOURS)
        self._cells(self.preprocess.size, self.preprocess.size)
        self.patches = nn.Conv2d(3, width, patch, patch, bias=patch_bias)
        self.class_token = nn.Parameter(nn.init.normal_(torch.empty(width), std=0.02))
        places = 1 + grid * grid  # the class token's first
        self.positions = nn.Parameter(nn.init.normal_(torch.empty(places, width), std=0.02))
        self.pre_norm = nn.LayerNorm(width, norm_eps) if pre_norm else nn.Identity()
        self.layers = nn.ModuleList(
            Layer(width, heads, d_ff, activation=activation, norm_eps=norm_eps, layer_scale=layer_scale)
            for _ in range(layers)
        )
        self.final_norm = nn.LayerNorm(width, norm_eps) if final_norm else nn.Identity()

    def forward(self, pixels: Tensor) -> Regions:
        rows, columns = self._cells(*pixels.shape[-2:])
        x = self.patches(self.preprocess.normalised(pixels, self.dtype))  # (B, D, rows, columns)
        x = x.flatten(2).transpose(1, 2)  # (B, N, D)
        x = torch.cat((self.class_token.to(x.dtype).expand(x.shape[0], 1, -1), x), 1)
        x = self.pre_norm(x + self._positions(rows, columns).to(x.dtype))
        for layer in self.layers:
            x = layer(x)
        x = self.final_norm(x[:, 1:])
        return Regions(x, grid_boxes(rows, columns, x.device).expand(x.shape[0], -1, -1))

    def _cells(self, height: int, width: int) -> tuple[int, int]:
        if height % self.patch or width % self.patch:
            raise MeshcapError(f"size is {height} × {width}, this vision reads multiples of {self.patch} pixels")
        return height // self.patch, width // self.patch

    def _positions(self, rows: int, columns: int) -> Tensor:
        """(1 + rows · columns, D), interpolated where the grid is not the learned one."""
        if (rows, columns) == (self.grid, self.grid):
            return self.positions
        learned = self.positions[1:].float().T.view(1, self.width, self.grid, self.grid)
        resized = F.interpolate(learned, (rows, columns), mode="bicubic", align_corners=False)
        return torch.cat((self.positions[:1].float(), resized[0].flatten(1).T))

    def stages(self) -> list[list[nn.Parameter]]:
        """Patches and positions, then each layer; the final norm belongs to the last."""
        first = [*self.patches.parameters(), self.class_token, self.positions, *self.pre_norm.parameters()]
        found: list[list[nn.Parameter]] = [first, *(list(layer.parameters()) for layer in self.layers)]
        found[-1] += list(self.final_norm.parameters())
        return found

    def settings(self) -> dict[str, Any]:
        return {**self.options, "preprocess": self.preprocess.to_dict()}

    @classmethod
    def from_huggingface(cls, folder: Path, config: Mapping[str, Any], *, source: str, preprocess: Preprocess) -> Self:
        """A CLIP image tower or a DINOv2 from a folder of Hugging Face's.

        Args:
            config: its `config.json`; of a whole CLIP, the image tower alone is read.

        Raises:
            MeshcapError: another architecture, settings that are missing, or weights that do not fit.
        """
        kind = config.get("model_type")
        if kind not in KINDS:
            raise MeshcapError(f"{source} is a {kind!r}, expected one of {', '.join(KINDS)}")
        clip = kind != "dinov2"
        given = {**(CLIP if clip else DINOV2), **(config.get("vision_config") or {} if kind == "clip" else config)}
        if not clip and given["use_swiglu_ffn"]:
            raise MeshcapError(f"{source} has gated feed-forward layers (use_swiglu_ffn), which are not supported")
        vision = cls(
            width=given["hidden_size"],
            layers=given["num_hidden_layers"] - clip,
            heads=given["num_attention_heads"],
            d_ff=given["intermediate_size"] if clip else int(given["hidden_size"] * given["mlp_ratio"]),
            patch=given["patch_size"],
            grid=given["image_size"] // given["patch_size"],
            activation=given["hidden_act"],
            norm_eps=given["layer_norm_eps"],
            pre_norm=clip,
            final_norm=not clip,
            layer_scale=not clip,
            patch_bias=not clip,
            source=source,
            preprocess=preprocess.to_dict(),
        )
        path = folder / "model.safetensors"
        if not path.is_file():
            pickled = any(folder.glob("pytorch_model*.bin"))
            hint = ": pickled weights can run code and are not read" if pickled else ""
            raise MeshcapError(f"{folder} has no {path.name}{hint}")
        vision._fill(read_weights(path), NAMES["clip" if clip else "dinov2"], str(folder))
        return vision

    @torch.no_grad()
    def _fill(self, given: Mapping[str, Tensor], names: Mapping[str, str], source: str) -> None:
        given = {name.removeprefix("vision_model."): tensor for name, tensor in given.items()}
        for own, target in self.state_dict().items():
            head, _, rest = own.partition(".")
            place = ""
            if head == "layers":
                place, _, rest = rest.partition(".")
                own = f"layers.*.{rest}"
            parts = [name.replace("*", place) for name in names[own].split()]
            missing = [name for name in parts if name not in given]
            if missing:
                raise MeshcapError(f"the weights in {source} lack {missing[0]}: expected a whole image encoder")
            value = torch.cat([given[name].float() for name in parts])
            if value.numel() != target.numel():
                shapes = f"{tuple(value.shape)}, expected {tuple(target.shape)}"
                raise MeshcapError(f"the weights in {source} have {parts[0]} of shape {shapes}")
            target.copy_(value.view_as(target))


class Layer(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(
        self, width: int, heads: int, d_ff: int, *, activation: Activation, norm_eps: float, layer_scale: bool
    ):
        super().__init__()
        self.heads, self.activation = heads, activation
        self.norm1 = nn.LayerNorm(width, norm_eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, norm_eps)
        self.fc1 = nn.Linear(width, d_ff)
        self.fc2 = nn.Linear(d_ff, width)
        self.scale1 = nn.Parameter(torch.ones(width)) if layer_scale else None
        self.scale2 = nn.Parameter(torch.ones(width)) if layer_scale else None

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, heads, N, d) each
        attend = attend_by_products if can_attend_by_products(q, k) else F.scaled_dot_product_attention
        attended = attend(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self._scaled(self.out(attended), self.scale1)
        hidden = self.fc1(self.norm2(x))
        hidden = hidden * torch.sigmoid(1.702 * hidden) if self.activation == "quick_gelu" else F.gelu(hidden)
        return x + self._scaled(self.fc2(hidden), self.scale2)

    @staticmethod
    def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
        return x if scale is None else x * scale


KINDS = ("clip", "clip_vision_model", "dinov2")  # model_type of what `from_huggingface` reads

# What their files may leave out: the defaults of their settings.
CLIP: dict[str, Any] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "patch_size": 32, "image_size": 224, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
}  # fmt: skip
DINOV2: dict[str, Any] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "mlp_ratio": 4,
    "patch_size": 14, "image_size": 224, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "use_swiglu_ffn": False,
}  # fmt: skip

# Our names -> those of a Hugging Face checkpoint; several are put one below the other.
NAMES: dict[str, dict[str, str]] = {
    "clip": {
        "patches.weight": "embeddings.patch_embedding.weight",
        "class_token": "embeddings.class_embedding",
        "positions": "embeddings.position_embedding.weight",
        "pre_norm.weight": "pre_layrnorm.weight",
        "pre_norm.bias": "pre_layrnorm.bias",
    },
    "dinov2": {
        "patches.weight": "embeddings.patch_embeddings.projection.weight",
        "patches.bias": "embeddings.patch_embeddings.projection.bias",
        "class_token": "embeddings.cls_token",
        "positions": "embeddings.position_embeddings",
        "final_norm.weight": "layernorm.weight",
        "final_norm.bias": "layernorm.bias",
        "layers.*.scale1": "encoder.layer.*.layer_scale1.lambda1",
        "layers.*.scale2": "encoder.layer.*.layer_scale2.lambda1",
    },
}
for _part in ("weight", "bias"):
    NAMES["clip"] |= {
        f"layers.*.norm1.{_part}": f"encoder.layers.*.layer_norm1.{_part}",
        f"layers.*.qkv.{_part}": " ".join(f"encoder.layers.*.self_attn.{one}_proj.{_part}" for one in "qkv"),
        f"layers.*.out.{_part}": f"encoder.layers.*.self_attn.out_proj.{_part}",
        f"layers.*.norm2.{_part}": f"encoder.layers.*.layer_norm2.{_part}",
        f"layers.*.fc1.{_part}": f"encoder.layers.*.mlp.fc1.{_part}",
        f"layers.*.fc2.{_part}": f"encoder.layers.*.mlp.fc2.{_part}",
    }
    NAMES["dinov2"] |= {
        f"layers.*.norm1.{_part}": f"encoder.layer.*.norm1.{_part}",
        f"layers.*.qkv.{_part}": " ".join(
            f"encoder.layer.*.attention.attention.{one}.{_part}" for one in ("query", "key", "value")
        ),
        f"layers.*.out.{_part}": f"encoder.layer.*.attention.output.dense.{_part}",
        f"layers.*.norm2.{_part}": f"encoder.layer.*.norm2.{_part}",
        f"layers.*.fc1.{_part}": f"encoder.layer.*.mlp.fc1.{_part}",
        f"layers.*.fc2.{_part}": f"encoder.layer.*.mlp.fc2.{_part}",
    }
