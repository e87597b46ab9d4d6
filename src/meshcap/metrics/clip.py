"""CLIPScore and RefCLIPScore (Hessel and others, 2021): how well a caption fits the picture itself, by a CLIP model.

CLIPScore is 2.5 · max(cos(picture, caption), 0), with "A photo depicts " before the caption; RefCLIPScore is the
harmonic mean of that and of the caption's largest cosine with a reference. The model is a folder as transformers saves
it (extra `hf`); nothing is downloaded. Pictures are prepared here with Pillow, as CLIP wants them: transformers would
ask for torchvision.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from meshcap.errors import MeshcapError
from meshcap.metrics.result import Array, Measure

if TYPE_CHECKING:
    import torch

WEIGHT = 2.5
PROMPT = "A photo depicts "
MEAN, SD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP's training pictures
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
BATCH = 64


def clip_scores(
    folder: str | os.PathLike[str],
    pictures: Sequence[Path],
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    report: Callable[[str], object] = lambda line: None,
) -> list[list[Measure]]:
    """CLIPScore and RefCLIPScore of each system's captions, as they were written (not tokenized).

    Where no picture has a reference there is no RefCLIPScore.

    Raises:
        MeshcapError: transformers is missing, the folder holds no CLIP, or a picture cannot be read.
    """
    model = Clip(folder)
    seen = model.see(pictures, report)  # (N, D)
    ends = numpy.cumsum([len(those) for those in references])
    texts = [text for those in references for text in those]
    known = model.read([text for captions in systems for text in captions] + texts, report)
    of_references = known[len(systems) * len(pictures) :]
    owner = numpy.repeat(numpy.arange(len(pictures)), [len(those) for those in references])
    found = []
    for number in range(len(systems)):
        said = known[number * len(pictures) : (number + 1) * len(pictures)]
        fits = WEIGHT * numpy.clip((seen * said).sum(-1), 0, None)
        if not texts:
            found.append([Measure.mean("CLIPScore", fits)])
            continue
        each = numpy.clip((of_references * said[owner]).sum(-1), 0, None)
        nearest = numpy.maximum.reduceat(each, numpy.append(0, ends[:-1]))
        both = fits + nearest
        joined = numpy.divide(2 * fits * nearest, both, out=numpy.zeros_like(both), where=both > 0)
        found.append([Measure.mean("CLIPScore", fits), Measure.mean("RefCLIPScore", joined)])
    return found


def find_pictures(
    folder: str | os.PathLike[str], ids: Sequence[str], files: Mapping[str, str] | None = None
) -> list[Path]:
    """Each picture's file: by the name that the references report, or by its id, with or without COCO's zeros.

    Raises:
        MeshcapError: a picture is not there.
    """
    if not Path(folder).is_dir():
        raise MeshcapError(f"{folder} is not a folder, expected one with the pictures")
    there = {path.name: path for path in sorted(Path(folder).rglob("*")) if path.suffix.lower() in SUFFIXES}
    stems = {path.stem: path for path in there.values()}
    stems |= {path.stem.rsplit("_", 1)[-1]: path for path in there.values() if path.stem.startswith("COCO_")}
    found, missing = [], []
    for id in ids:
        name = Path((files or {}).get(id, id)).name
        path = there.get(name) or stems.get(name) or stems.get(Path(name).stem) or stems.get(id.zfill(12))
        found.append(path or Path())
        if path is None:
            missing.append(id)
    if missing:
        raise MeshcapError(
            f"{len(missing):,} of {len(ids):,} pictures are not in {folder} (first: {missing[0]!r}), "
            f"expected files named by id or file name ({', '.join(SUFFIXES)})"
        )
    return found


class Clip:
    """A CLIP model that turns pictures and texts into unit vectors."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not (Path(folder) / "config.json").is_file():
            raise MeshcapError(f"{folder} holds no config.json, expected a CLIP folder as transformers saves it")
        try:
            from transformers import AutoTokenizer, CLIPModel
        except ImportError:
            raise MeshcapError('CLIPScore needs transformers: pip install "meshcap[hf]"') from None
        import torch

        try:
            self.model: Any = CLIPModel.from_pretrained(folder, local_files_only=True).eval()
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # transformers has many ways to say it
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise MeshcapError(f"{folder} cannot be loaded as a CLIP model: {line}") from None
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.to(self.device)
        self.mean, self.sd = _colours(Path(folder))

    def see(self, pictures: Sequence[Path], report: Callable[[str], object]) -> Array:
        """(N, D)"""
        import torch

        side = self.model.config.vision_config.image_size
        rows = []
        for start, batch in _batches(pictures):
            report(f"CLIPScore: {start:,} of {len(pictures):,} pictures")
            pixels = numpy.stack([_pixels(path, side, self.mean, self.sd) for path in batch])
            with torch.inference_mode():
                pooled = self.model.vision_model(pixel_values=torch.from_numpy(pixels).to(self.device)).pooler_output
                rows.append(_unit(self.model.visual_projection(pooled)))
        return numpy.concatenate(rows)

    def read(self, texts: Sequence[str], report: Callable[[str], object]) -> Array:
        """(N, D)"""
        import torch

        # Many captions are said more than once; long ones last, so that batches need little padding.
        distinct = sorted(set(texts), key=lambda text: (len(text), text))
        longest = self.model.config.text_config.max_position_embeddings
        rows = []
        for start, batch in _batches(distinct):
            report(f"CLIPScore: {start:,} of {len(distinct):,} captions")
            prompts = [PROMPT + text for text in batch]
            tokens = self.tokenizer(prompts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
            with torch.inference_mode():
                pooled = self.model.text_model(
                    input_ids=tokens["input_ids"].to(self.device),
                    attention_mask=tokens["attention_mask"].to(self.device),
                ).pooler_output
                rows.append(_unit(self.model.text_projection(pooled)))
        table = dict(zip(distinct, numpy.concatenate(rows), strict=True))
        return numpy.stack([table[text] for text in texts])


def _batches(items: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    return ((start, items[start : start + BATCH]) for start in range(0, len(items), BATCH))


def _unit(vectors: torch.Tensor) -> Array:
    return (vectors / vectors.norm(dim=-1, keepdim=True)).double().cpu().numpy()


def _pixels(path: Path, side: int, mean: Sequence[float], sd: Sequence[float]) -> Array:
    """(3, side, side): the shorter side scaled to `side`, the middle cut out, colours brought to CLIP's range."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            picture = file.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise MeshcapError(f"{path} cannot be read as a picture ({error})") from None
    scale = side / min(picture.size)
    # Rounded down, as CLIP's own preparation does, and never below the side itself.
    size = [max(side, int(length * scale)) for length in picture.size]
    picture = picture.resize((size[0], size[1]), Image.Resampling.BICUBIC)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    values = numpy.asarray(picture.crop((left, top, left + side, top + side)), numpy.float32) / 255
    return ((values - numpy.array(mean, numpy.float32)) / numpy.array(sd, numpy.float32)).transpose(2, 0, 1)


def _colours(folder: Path) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of the colours, where the folder has others than CLIP's."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        try:
            content = json.loads((folder / name).read_bytes())
            content = content.get("image_processor", content)
            mean, sd = [float(x) for x in content["image_mean"]], [float(x) for x in content["image_std"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if len(mean) == len(sd) == 3 and all(sd):
            return mean, sd
    return MEAN, SD
