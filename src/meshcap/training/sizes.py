"""The same eyes for pictures of another size.

Training shows parts of pictures, enlarged, so that things look larger than they do in whole pictures. Eyes that are
shown whole pictures a little enlarged see things as they learned them: Touvron et al. 2019, "Fixing the train-test
resolution discrepancy".
"""

from __future__ import annotations

from dataclasses import replace

from meshcap.captioner import Captioner
from meshcap.errors import MeshcapError
from meshcap.vision.backbone import Vision


def at_size(captioner: Captioner, size: int, pre_resize: int | None = None) -> Captioner:
    """The same captioner, its eyes reading squares of `size` pixels; what was calibrated is no longer true of it.

    Args:
        pre_resize: pixels of the square that they are made from (see `Preprocess`); None: as it was.

    Raises:
        MeshcapError: its eyes read pictures of one size, or it has none.
    """
    vision = captioner.vision
    if vision is None:
        raise MeshcapError("this captioner reads precomputed features: there is no size to choose")
    return Captioner(captioner.model, captioner.vocabulary, resized(vision, size, pre_resize))


def resized(vision: Vision, size: int, pre_resize: int | None = None) -> Vision:
    settings = vision.settings()
    if "preprocess" not in settings:
        raise MeshcapError(f"{vision.name} reads pictures of one size: there is none to choose")
    between = vision.preprocess.pre_resize if pre_resize is None else pre_resize
    way = replace(vision.preprocess, size=size, pre_resize=between)
    other = type(vision)(**{**settings, "preprocess": way.to_dict()})
    other.load_state_dict(vision.state_dict())
    return other
