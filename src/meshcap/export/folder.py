"""An exported folder: the two graphs, `runtime.json` and the vocabulary; and whether it says what the model says."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.export import ExportedProgram

from meshcap.backends.exported import FACTS, GRAPHS, ExportedFacts, StatePart
from meshcap.captioner import Captioner
from meshcap.decoding import Beam
from meshcap.errors import MeshcapError
from meshcap.export.graphs import folded, parts_of, trace
from meshcap.export.onnx_files import need_onnx, onnx_graphs, quietly, write_onnx
from meshcap.files import expect_free, new_folder, write_text
from meshcap.folders import VOCABULARY
from meshcap.models import CaptionModel
from meshcap.vision import VISIONS, Vision
from meshcap.vision.pictures import Source

Format = Literal["onnx", "torch"]


def export_captioner(
    captioner: Captioner, folder: str | Path, *, format: Format = "onnx", bits: Literal[8, 32] = 32
) -> list[Path]:
    """Write a captioner as graphs, into a folder that appears whole or not at all.

    Args:
        captioner: one by torch that was not optimized in place.
        folder: a new one, or an empty one.
        bits: 8 keeps large matrices in 8 bits or fewer in the file (ONNX alone): see `meshcap.export.onnx_files`.

    Returns:
        The files that were written.

    Raises:
        MeshcapError: a captioner without a vision of its own, one that cannot be exported, packages that are missing, a
            folder that is not empty.
    """
    if bits not in (8, 32):
        raise MeshcapError(f"bits is {bits!r}, expected 8 or 32")
    if format not in ("onnx", "torch"):
        raise MeshcapError(f"format is {format!r}, expected onnx or torch")
    if format == "torch" and bits != 32:
        raise MeshcapError("archives of torch keep weights in 32 bits: export to onnx for 8")
    expect_free(folder)
    if format == "onnx":
        need_onnx()
    vision, model = vision_of(captioner), model_of(captioner)
    size = vision.preprocess.size
    noise = torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        parts = parts_of(model, vision(noise))
    programs = trace(vision, model, parts)
    with new_folder(folder) as part:
        if format == "onnx":
            for name, graph in zip(GRAPHS, onnx_graphs(*programs, parts, bits=bits), strict=True):
                write_onnx(graph, part / f"{name}.onnx")
        else:
            for name, program in zip(GRAPHS, programs, strict=True):
                with quietly():
                    torch.export.save(without_unused(program), part / f"{name}.pt2")
        captioner.vocabulary.save(part / VOCABULARY)
        if captioner.calibration is not None:
            captioner.calibration.save(part)
        write_text(part / FACTS, facts_of(model, vision, parts, bits).to_json())
    return sorted(Path(folder).iterdir())


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


def facts_of(model: CaptionModel, vision: Vision, parts: tuple[StatePart, ...], bits: int) -> ExportedFacts:
    config = model.config
    return ExportedFacts(
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


def model_of(captioner: Captioner) -> CaptionModel:
    captioner.backend.expect_plain("exported")  # type: ignore[attr-defined]
    return copy.deepcopy(captioner.model).float().cpu().eval().requires_grad_(False)


def vision_of(captioner: Captioner) -> Vision:
    vision = captioner.vision
    if vision is None:
        raise MeshcapError("this captioner reads precomputed features: one with a vision of its own can be exported")
    if vision.name not in VISIONS:
        raise MeshcapError(f"a vision {vision.name!r} cannot be exported: expected one of {', '.join(VISIONS)}")
    return folded(vision)


@dataclass(frozen=True)
class Agreement:
    """How an exported captioner differs from the one that it was made of."""

    beams: int
    pictures: int
    same: int  # captions, word for word
    largest: float  # difference of two log-probabilities, in captions that are the same
    lost: float  # log-probability of a word by the first captioner, in its own captions and in the export's: the mean
    differing: tuple[tuple[str, str], ...]  # the other captions: the first captioner's, the export's


def compare(captioner: Captioner, exported: Captioner, pictures: Sequence[Source], *, beams: int = 5) -> Agreement:
    """Caption pictures with both."""
    pictures = list(pictures)
    ours, theirs = (one.caption(pictures, strategy=Beam(beams)) for one in (captioner, exported))
    pairs = list(zip(ours, theirs, strict=True))
    same = [(a, b) for a, b in pairs if a.words == b.words]
    differing = [number for number, (a, b) in enumerate(pairs) if a.words != b.words]
    lost = 0.0
    for number in differing:
        judged = captioner.score(pictures[number], " ".join(theirs[number].words))
        lost += statistics.fmean(ours[number].log_probs) - statistics.fmean(judged.log_probs)
    return Agreement(
        beams=beams,
        pictures=len(pairs),
        same=len(same),
        largest=max((abs(x - y) for a, b in same for x, y in zip(a.log_probs, b.log_probs, strict=True)), default=0.0),
        lost=lost / len(pairs),
        differing=tuple((pairs[n][0].text, pairs[n][1].text) for n in differing),
    )
