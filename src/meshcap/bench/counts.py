"""Operations and bytes that an M² cannot do without, counted from its settings."""

from __future__ import annotations

from meshcap.models import M2Config


def matrices(config: M2Config) -> dict[str, int]:
    """Weights by who must multiply by them: each region, each (level, region), each word, each (level, word)."""
    d, inner, levels = (
        config.d_model,
        config.heads * config.head_width,
        config.encoder_layers if config.mesh == "full" else 1,
    )
    gates = levels * d * d if levels > 1 else 0
    feed_forward = 2 * d * config.d_ff
    return {
        "region": config.d_input * d + config.encoder_layers * (4 * d * inner + feed_forward),
        "region_level": config.decoder_layers * 2 * d * inner,
        "word": config.decoder_layers * (4 * d * inner + d * inner + gates + feed_forward) + d * config.vocab_size,
        "word_level": config.decoder_layers * (d * inner + (d * d if levels > 1 else 0)),
    }


def operations(config: M2Config, *, pictures: int, regions: int, words: int, history: int) -> float:
    """Multiplications and additions of one forward pass over `words` words of each picture.

    Args:
        history: how many earlier words each word attends to, at most.
    """
    m, inner = matrices(config), config.heads * config.head_width
    levels = config.encoder_layers if config.mesh == "full" else 1
    seen_by_region = regions + config.slots
    attention = float(config.encoder_layers * regions * seen_by_region * inner)
    attention += config.decoder_layers * words * (history / 2 + levels * regions) * inner
    weights = regions * (m["region"] + levels * m["region_level"]) + words * (m["word"] + levels * m["word_level"])
    return 2.0 * pictures * (weights + 2 * attention)


def decode_bytes(config: M2Config, *, pictures: int, regions: int, beams: int, steps: int, itemsize: int) -> float:
    """Bytes a beam search must read: the decoder's weights and the regions' keys and values at every step."""
    m, inner = matrices(config), config.heads * config.head_width
    levels = config.encoder_layers if config.mesh == "full" else 1
    looked_at = pictures * config.decoder_layers * levels * regions * 2 * inner
    said = pictures * beams * config.decoder_layers * (steps / 2) * 2 * inner
    once = m["region"] + m["region_level"] + pictures * regions * config.d_input
    weights = m["word"] + m["word_level"]
    if levels > 1:  # the gates' halves that read a level's context are one for each level; the rest is shared
        weights += (levels - 1) * config.decoder_layers * config.d_model**2
    return itemsize * (once + steps * (weights + looked_at + said))
