"""Random models of every architecture that meshcap reads from Hugging Face, small enough for a test."""

import json
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

BODY = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
TOWER = {**BODY, "intermediate_size": 32}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 50}
CONV = {"hidden_sizes": [4, 8, 12, 16], "depths": [1, 1, 1, 1]}
RESNET = {**CONV, "embedding_size": 4, "layer_type": "basic"}
DETR = {
    "num_queries": 7,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "id2label": {0: "cat", 1: "dog", 2: "kite"},
}
RT_DETR = {
    **DETR,
    "encoder_hidden_dim": 16,
    "encoder_in_channels": [8, 12, 16],
    "decoder_in_channels": [16, 16, 16],
}

# As the hub's preprocessor_config.json have them. 64 pixels: twice what the tower's positions were made for.
SQUARE = {
    "do_normalize": True,
    "size": {"height": 64, "width": 64},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.3, 0.4],
}
GRIDS = ("clip", "clip-vision", "siglip", "siglip-vision", "dinov2", "registers", "vit", "convnext", "v2", "resnet")
DETECTORS = ("detr", "rt_detr", "rt_detr_v2")


def model(name: str) -> nn.Module:
    t = transformers
    rt_backbone = {**RESNET, "out_features": ["stage2", "stage3", "stage4"]}
    made = {
        "clip": lambda: t.CLIPModel(t.CLIPConfig(text_config=TEXT, vision_config=TOWER, projection_dim=8)),
        "clip-vision": lambda: t.CLIPVisionModel(t.CLIPVisionConfig(**TOWER)),
        "siglip": lambda: t.SiglipModel(t.SiglipConfig(text_config=TEXT, vision_config=TOWER)),
        "siglip-vision": lambda: t.SiglipVisionModel(t.SiglipVisionConfig(**TOWER)),
        "dinov2": lambda: t.Dinov2Model(t.Dinov2Config(**BODY)),
        "registers": lambda: t.Dinov2WithRegistersModel(t.Dinov2WithRegistersConfig(**BODY, num_register_tokens=3)),
        "vit": lambda: t.ViTForImageClassification(t.ViTConfig(**TOWER)),
        "convnext": lambda: t.ConvNextForImageClassification(t.ConvNextConfig(**CONV)),
        "v2": lambda: t.ConvNextV2Model(t.ConvNextV2Config(**CONV)),
        "resnet": lambda: t.ResNetForImageClassification(t.ResNetConfig(**RESNET)),
        "detr": lambda: t.DetrForObjectDetection(
            t.DetrConfig(
                use_timm_backbone=False, backbone_config=t.ResNetConfig(**RESNET, out_features=["stage4"]), **DETR
            )
        ),
        "rt_detr": lambda: t.RTDetrForObjectDetection(
            t.RTDetrConfig(backbone_config=t.RTDetrResNetConfig(**rt_backbone), **RT_DETR)
        ),
        "rt_detr_v2": lambda: t.RTDetrV2ForObjectDetection(
            t.RTDetrV2Config(backbone_config=t.RTDetrResNetConfig(**rt_backbone), **RT_DETR)
        ),
    }
    torch.manual_seed(0)
    network = made[name]()
    with torch.no_grad():  # as random as trained ones: not zero where networks begin at zero
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


def save(network: nn.Module, folder: Path, preprocess: dict) -> str:
    network.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocess), encoding="utf-8")
    return str(folder)


def own_features(name: str, network: nn.Module, pixels: Tensor) -> Tensor:
    """(B, N, F) from the network as transformers documents it. 64 pixels are 8 × 8 patches."""
    anywhere = {"interpolate_pos_encoding": True}
    if name in ("clip", "clip-vision"):
        tower = network.vision_model if name == "clip" else network
        return tower(pixels, output_hidden_states=True, **anywhere).hidden_states[-2][:, 1:]
    if name in ("siglip", "siglip-vision"):
        tower = network.vision_model if name == "siglip" else network
        return tower(pixels, **anywhere).last_hidden_state
    if name == "vit":
        return network.vit(pixels, **anywhere).last_hidden_state[:, 1:]
    if name in ("dinov2", "registers"):
        return network(pixels).last_hidden_state[:, 1 if name == "dinov2" else 4 :]
    body = {"convnext": "convnext", "resnet": "resnet"}.get(name)
    maps = (getattr(network, body) if body else network)(pixels).last_hidden_state
    return torch.stack([maps[:, :, row, column] for row in range(2) for column in range(2)], 1)
