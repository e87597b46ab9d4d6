"""A demo in Gradio: `pip install gradio`, then `python examples/gradio_demo.py`."""

from __future__ import annotations

from functools import cache
from typing import Any

import gradio

from meshcap import Captioner, MeshcapError


@cache
def captioner() -> Captioner:
    return Captioner.from_pretrained()


def describe(picture: Any, count: float, most: float, avoid: str) -> tuple[str, str, dict[str, float]]:
    """The caption, the others, and keywords with their probabilities."""
    if picture is None:
        raise gradio.Error("Give a picture first.")
    try:
        found = captioner().caption(
            picture, n=int(count), max_words=int(most) or None, must_not=avoid.strip() or (), tags=True
        )
    except MeshcapError as error:
        raise gradio.Error(str(error)) from error
    others = "\n".join(f"{one.confidence:.0%}  {one.text}" for one in found.alternatives)
    return f"{found.text}  ({found.confidence:.0%})", others, {tag.name: tag.probability for tag in found.tags}


def build() -> gradio.Interface:
    return gradio.Interface(
        describe,
        inputs=[
            gradio.Image(type="pil", label="Picture"),
            gradio.Slider(1, 8, value=3, step=1, label="Captions"),
            gradio.Slider(0, 19, value=0, step=1, label="Words at most (0: as many as it takes)"),
            gradio.Textbox(label="Words to avoid, between commas"),
        ],
        outputs=[
            gradio.Textbox(label="Caption"),
            gradio.Textbox(label="Others", lines=4),
            gradio.Label(label="Keywords"),
        ],
        title="meshcap",
        flagging_mode="never",
    )


if __name__ == "__main__":
    build().launch()
