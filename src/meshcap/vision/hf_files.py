"""What a Hugging Face model keeps in files: its settings, its preprocessing, its weights.

Names are looked up on the hub once, for the few files needed; from there on everything is read from a folder. Weights
are safetensors alone, and classes come from transformers itself: nothing of a repository's is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from meshcap.errors import MeshcapError
from meshcap.files import why_not_json
from meshcap.vision.preprocess import Geometry, Preprocess, preprocess_of

CONFIG = "config.json"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
WEIGHTS, SHARDS = "model.safetensors", "model.safetensors.index.json"
WANTED = [CONFIG, PREPROCESSOR, PROCESSOR, WEIGHTS, SHARDS, "model-*-of-*.safetensors"]
CROP_BELOW = 384  # pixels; what the preprocessor of ConvNeXt and ResNet shows whole from here on
HF = 'pip install "meshcap[hf]"'


def transformers_part(name: str) -> Any:
    """A class of transformers by name, which takes seconds to import and is asked for only when used."""
    try:
        import transformers
    except ImportError:
        raise MeshcapError(f"Hugging Face models need transformers: {HF}") from None
    found = getattr(transformers, name, None)
    if found is None:
        raise MeshcapError(f"transformers {transformers.__version__} has no {name}, a newer one does: {HF} --upgrade")
    return found


def fetch(source: str) -> Path:
    """The folder of a model: the one named, or where the hub's files of NAME or NAME@REVISION lie after download.

    Raises:
        MeshcapError: no such folder, and no such name on the hub or among what was downloaded before.
    """
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    name, _, revision = source.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=WANTED))
    except (OSError, ValueError) as error:  # the hub's own errors, and those of a network, are one or the other
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise MeshcapError(f"no model {source!r}: neither a folder here nor found on the hub ({reason})") from error


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MeshcapError(f"{path.parent} has no {path.name}: expected a model as save_pretrained writes it")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise MeshcapError(f"{path} is not readable JSON ({why_not_json(error)})") from error
    if not isinstance(content, dict):
        raise MeshcapError(f"{path} holds a {type(content).__name__}, expected an object with settings")
    return content


def make_config(class_name: str, content: dict[str, Any]) -> Any:
    """Settings as transformers has them."""
    kind = transformers_part(class_name)
    try:
        with quiet():
            return kind.from_dict(content)
    except Exception as error:  # transformers checks in many ways, and with exceptions of its own
        reason = " ".join(str(error).split())
        raise MeshcapError(f"settings that {class_name} does not take ({type(error).__name__}: {reason})") from error


def load_network(class_name: str, config: Any, folder: Path, *, spare: Sequence[str] = (), **options: Any) -> nn.Module:
    """A network with the weights of a folder, in float32. `spare` are weights that may be missing: nothing uses them.

    Raises:
        MeshcapError: there is no file of safetensors, or it lacks weights or has them in other shapes.
    """
    kind = transformers_part(class_name)
    if not (folder / WEIGHTS).is_file() and not (folder / SHARDS).is_file():
        pickled = any(folder.glob("pytorch_model*.bin"))
        hint = ": pickled weights can run code and are not read" if pickled else ""
        raise MeshcapError(f"{folder} has no {WEIGHTS}{hint}")
    try:
        with quiet():
            network, report = kind.from_pretrained(
                folder, config=config, use_safetensors=True, local_files_only=True, output_loading_info=True, **options
            )
    except Exception as error:  # a broken file, another shape: transformers has an exception for each
        reason = " ".join(str(error).split())[:300]
        raise MeshcapError(f"the weights in {folder} cannot be read ({type(error).__name__}: {reason})") from error
    # transformers fills the gaps with random numbers; a caption made of those looks like any other.
    missing = sorted(
        key
        for key in report["missing_keys"]
        if not key.endswith("num_batches_tracked") and not key.startswith(tuple(spare))
    )
    if missing:
        raise MeshcapError(f"the weights in {folder} lack {len(missing):,} of a {class_name} (first: {missing[0]})")
    return network.float()


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and reports: what matters of them is raised."""
    logging = transformers_part("logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def read_preprocess(
    folder: Path, *, size: int | None = None, geometry: Geometry | None = None, normalises: bool = True
) -> Preprocess:
    """How a model wants to see pictures, from the file of its image processor.

    Where that one first cuts a margin off and then takes the middle square, ours takes the whole middle square: it
    shows a little more of the picture at the same size.

    Args:
        size, geometry: used instead of the file's.
        normalises: what the processor does where the file does not say.
    """
    path = folder / PREPROCESSOR
    if path.is_file() or not (folder / PROCESSOR).is_file():
        content = read_json(path)
    else:
        path = folder / PROCESSOR
        content = read_json(path).get("image_processor") or {}
    side, crops = _side(content)
    side = side if size is None else size
    if side is None:
        raise MeshcapError(f"{path} has size {content.get('size')!r}, expected a square: say size=… in pixels")
    mean, std = [0.0] * 3, [1.0] * 3
    if content.get("do_normalize", normalises):
        if not content.get("image_mean") or not content.get("image_std"):
            raise MeshcapError(f"{path} has no image_mean or image_std, and pictures are to be normalised by them")
        mean, std = content["image_mean"], content["image_std"]
    # The file's mean and std are of numbers that were multiplied by rescale_factor, ours of numbers from 0 to 1.
    scale = 255 * (content.get("rescale_factor") or 1 / 255) if content.get("do_rescale", True) else 255.0
    return preprocess_of(
        {"mean": [number / scale for number in mean], "std": [number / scale for number in std]},
        size=side,
        geometry=geometry or ("crop" if crops else "squash"),
    )


def _side(content: dict[str, Any]) -> tuple[int | None, bool]:
    """Pixels of a side, None if the picture is no square, and whether the middle is cut out."""
    size = content.get("size")
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    if "crop_pct" in content and edge is not None:
        return edge, edge < CROP_BELOW
    crops = bool(content.get("do_center_crop"))
    if crops and content.get("crop_size"):
        size = content["crop_size"]
    if isinstance(size, dict):
        height, width = (size.get(name, size.get("shortest_edge")) for name in ("height", "width"))
        return (height if height == width else None), crops
    return size, crops
