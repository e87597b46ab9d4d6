"""An exported folder: the two graphs, `runtime.json` and the vocabulary; and whether it says what the model says."""

from __future__ import annotations

import copy
import secrets
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.export import ExportedProgram

from meshcap.captioner import VOCABULARY, Caption, Captioner, load_calibration
from meshcap.decoding import Beam
from meshcap.errors import MeshcapError
from meshcap.export.fold import folded
from meshcap.export.graphs import parts_of, trace
from meshcap.export.int8 import narrowed
from meshcap.export.onnx_files import need_onnx, onnx_graphs, quietly, write_onnx
from meshcap.folders import find_file
from meshcap.models import CaptionModel, load_model
from meshcap.models.packed import Int8Linear, PackedLinear
from meshcap.runtime import Captioner as Exported
from meshcap.runtime.facts import FACTS, GRAPHS, Facts, Part, expect_not_exported
from meshcap.text import Vocabulary
from meshcap.vision import VISIONS, Vision, load_vision
from meshcap.vision.pictures import Source

Format = Literal["onnx", "torch"]


def export_captioner(
    captioner: Captioner, folder: str | Path, *, format: Format = "onnx", bits: Literal[8, 32] = 32
) -> list[Path]:
    """Write a captioner as graphs, into a folder that appears whole or not at all.

    Args:
        captioner: one whose weights are as they were saved (`as_saved`), not laid out for the CPU.
        folder: a new one, or an empty one.
        bits: 8 keeps large matrices in 8 bits, one scale for each row (ONNX alone).

    Returns:
        The files that were written.

    Raises:
        MeshcapError: a captioner without eyes of its own, one that cannot be exported, packages that are missing, a
            folder that is not empty.
    """
    if bits not in (8, 32):
        raise MeshcapError(f"bits is {bits!r}, expected 8 or 32")
    if format not in ("onnx", "torch"):
        raise MeshcapError(f"format is {format!r}, expected onnx or torch")
    if format == "torch" and bits != 32:
        raise MeshcapError("archives of torch keep weights in 32 bits: export to onnx for 8")
    place = Path(folder).resolve()
    expect_free(place, folder)
    if format == "onnx":
        need_onnx()
    vision, model = eyes_of(captioner), brain_of(captioner)
    size = vision.preprocess.size
    noise = torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        parts = parts_of(model, vision(noise))
    programs = trace(vision, model, parts)
    part = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(parents=True)
        if format == "onnx":
            for name, graph in zip(GRAPHS, onnx_graphs(*programs, parts), strict=True):
                write_onnx(narrowed(graph) if bits == 8 else graph, part / f"{name}.onnx")
        else:
            for name, program in zip(GRAPHS, programs, strict=True):
                with quietly():
                    torch.export.save(without_unused(program), part / f"{name}.pt2")
        captioner.vocabulary.save(part / VOCABULARY)
        if captioner.calibration is not None:
            captioner.calibration.save(part)
        facts = facts_of(model, vision, parts, bits)
        (part / FACTS).write_text(facts.to_json(), encoding="utf-8")
        if place.exists():
            place.rmdir()
        part.rename(place)
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [Path(folder) / one.name for one in sorted(place.iterdir())]


def without_unused(program: ExportedProgram) -> ExportedProgram:
    """An archive keeps every weight of the captioner, also those that its graph never reads: let these be one zero,
    repeated. The one given is changed."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    weights = program.state_dict
    for node in program.graph.nodes:
        name = names.get(node.name)
        if node.op == "placeholder" and not node.users and name in weights:
            weight = weights[name]
            zeros = weight.new_zeros(()).expand(weight.shape)
            weights[name] = nn.Parameter(zeros, requires_grad=False) if isinstance(weight, nn.Parameter) else zeros
    return program


def expect_free(place: Path, folder: str | Path) -> None:
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise MeshcapError(f"{folder} exists and is not an empty folder: choose another one")


def facts_of(model: CaptionModel, vision: Vision, parts: tuple[Part, ...], bits: int) -> Facts:
    config = model.config
    return Facts(
        model=model.name,
        bits=bits,
        vocab_size=config.vocab_size,
        max_length=config.max_length,
        unk=config.unk,
        pad=config.pad,
        bos=config.bos,
        eos=config.eos,
        size=vision.preprocess.size,
        geometry=vision.preprocess.geometry,
        pre_resize=vision.preprocess.pre_resize,
        state=parts,
    )


def as_saved(name_or_folder: str | Path) -> Captioner:
    """A captioner to export: `Captioner.from_pretrained` would lay its weights out for this machine's CPU."""
    expect_not_exported(name_or_folder)
    vocabulary = Vocabulary.load(find_file(name_or_folder, VOCABULARY))
    return Captioner(
        load_model(name_or_folder), vocabulary, load_vision(name_or_folder), load_calibration(name_or_folder)
    )


def brain_of(captioner: Captioner) -> CaptionModel:
    if any(isinstance(module, PackedLinear | Int8Linear) for module in captioner.model.modules()):
        raise MeshcapError("weights laid out for the CPU cannot be exported: read the model with meshcap.load_model")
    return copy.deepcopy(captioner.model).float().cpu().eval().requires_grad_(False)


def eyes_of(captioner: Captioner) -> Vision:
    vision = captioner.vision
    if vision is None:
        raise MeshcapError("this captioner reads precomputed features: one with eyes of its own can be exported")
    if vision.name not in VISIONS:
        raise MeshcapError(f"a vision {vision.name!r} cannot be exported: expected one of {', '.join(VISIONS)}")
    return folded(vision)


@dataclass(frozen=True)
class Comparison:
    """How an exported captioner differs from the one that it was made of."""

    beams: int
    pictures: int
    same: int  # captions, word for word
    largest: float  # difference of two log-probabilities, in captions that are the same
    lost: float  # log-probability of a word by the first captioner, in its own captions and in the export's: the mean
    differing: tuple[tuple[str, str], ...]  # the other captions: the first captioner's, the export's


def compare(captioner: Captioner, exported: Exported, pictures: Sequence[Source], *, beams: int = 5) -> Comparison:
    """Caption pictures with both."""
    pictures = list(pictures)
    ours, theirs = (one.caption(pictures, strategy=Beam(beams)) for one in (captioner, exported))
    pairs = list(zip(ours, theirs, strict=True))
    same = [(a, b) for a, b in pairs if a.words == b.words]
    differing = [number for number, (a, b) in enumerate(pairs) if a.words != b.words]
    lost = 0.0
    if differing:
        judged = judge(captioner, [pictures[n] for n in differing], [theirs[n] for n in differing])
        lost = sum(statistics.fmean(ours[n].log_probs) - mean for n, mean in zip(differing, judged, strict=True))
    return Comparison(
        beams=beams,
        pictures=len(pairs),
        same=len(same),
        largest=max((abs(x - y) for a, b in same for x, y in zip(a.log_probs, b.log_probs, strict=True)), default=0.0),
        lost=lost / len(pairs),
        differing=tuple((pairs[n][0].text, pairs[n][1].text) for n in differing),
    )


@torch.no_grad()
def judge(captioner: Captioner, pictures: Sequence[Source], captions: Sequence[Caption]) -> list[float]:
    """What a captioner thinks of captions that another one gave: the mean log-probability of their words and end."""
    config, vocabulary, found = captioner.model.config, captioner.vocabulary, []
    for picture, caption in zip(pictures, captions, strict=True):
        said = [vocabulary.id(word) for word in caption.words] + [config.eos] * caption.finished
        read = torch.tensor([[config.bos, *said[:-1]]])
        log_probs = captioner.model(captioner.look([picture]), read)[0]  # (T, V)
        found.append(float(log_probs[torch.arange(len(said)), torch.tensor(said)].mean()))
    return found
