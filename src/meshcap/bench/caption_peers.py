"""Captioners of transformers, of the sizes that were published and with random weights: nothing is downloaded.

Speed does not depend on what weights have learned, as long as captions are as long: each is made to say the same
number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PEERS = {"blip": "BLIP-base", "git": "GIT-base", "vit-gpt2": "ViT-GPT2"}


def have_transformers() -> bool:
    return find_spec("transformers") is not None


def build(name: str) -> Any:
    """A peer as its makers published it, but for the weights."""
    import transformers as hf

    if name == "blip":
        config = hf.BlipConfig(
            text_config={"num_attention_heads": 12, "vocab_size": 30524}, vision_config={"image_size": 384}
        )
        return hf.BlipForConditionalGeneration(config)
    if name == "git":
        return hf.GitForCausalLM(hf.GitConfig())
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        hf.ViTConfig(), hf.GPT2Config(add_cross_attention=True, is_decoder=True)
    )
    config.decoder_start_token_id = config.pad_token_id = config.eos_token_id = config.decoder.eos_token_id
    return hf.VisionEncoderDecoderModel(config=config)


def write_peer(name: str, folder: Path) -> None:
    """Files to start from, as large as the published ones."""
    import torch

    torch.manual_seed(0)
    build(name).save_pretrained(folder)


def load_peer(name: str, folder: Path, beams: int, words: int) -> tuple[Callable[[str], object], int]:
    """How to caption a photo, and how many weights that takes."""
    import torch
    import transformers as hf
    from PIL import Image

    classes = {
        "blip": hf.BlipForConditionalGeneration,
        "git": hf.GitForCausalLM,
        "vit-gpt2": hf.VisionEncoderDecoderModel,
    }
    model = classes[name].from_pretrained(folder).eval()
    size = 384 if name == "blip" else 224
    given = {"input_ids": torch.tensor([[101]])} if name == "git" else {}  # the others begin by themselves

    @torch.inference_mode()
    def caption(photo: str) -> object:
        with Image.open(photo) as image:
            small = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
        pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(size, size, 3)
        return model.generate(
            pixel_values=(pixels.permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.5,
            num_beams=beams,
            min_new_tokens=words,
            max_new_tokens=words,
            **given,
        )

    return caption, sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    import sys

    write_peer(sys.argv[1], Path(sys.argv[2]))
