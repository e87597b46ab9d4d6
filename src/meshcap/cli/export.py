"""`meshcap export`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.export import Agreement


def export(
    model: Annotated[str, typer.Argument(help="A model folder, a run, a name on the Hugging Face hub, or default.")],
    format: Annotated[
        Literal["onnx", "torch", "web"],
        typer.Option("--format", help="ONNX graphs, archives of torch.export (.pt2), or a page for any web host."),
    ] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder to make.", show_default="MODEL-onnx, MODEL-torch, MODEL-web"),
    ] = None,
    bits: Annotated[Literal["8", "32"], typer.Option(help="Bits of a weight, of large matrices (ONNX).")] = "32",
    check: Annotated[
        list[Path] | None,
        typer.Option(
            "--check",
            help="A picture, or a folder of them, to caption with both and compare; may be given several times.",
        ),
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(
            "--runtime",
            help="Of web: onnxruntime-web, as `npm pack onnxruntime-web` or `npm install` brings it.",
            show_default="node_modules/onnxruntime-web",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a captioner for other runtimes, such as onnxruntime: captions without torch.

    With --format web, a folder that any web host serves: a page that captions pictures in the browser.

    With --check, pictures are captioned before and after, greedily and with five beams, and the command says how many
    captions are the same, word for word, and what is lost where they are not.

    Example: meshcap export my-captioner --format onnx --bits 8 --check holiday/
    """
    if format == "torch" and bits == "8":
        raise MeshcapError("archives of torch keep weights in 32 bits: leave out --bits, or give --format onnx")
    if runtime is not None and format != "web":
        raise MeshcapError("--runtime is for --format web: leave it out")
    if format == "web" and check:
        raise MeshcapError("--check compares ONNX files: check them with --format onnx --bits 8, which web holds")
    if out is None:
        name = Path(model).resolve().name if Path(model).is_dir() else model.rsplit("/", 1)[-1]
        out = Path(f"{name}-{format}" + "-int8" * (bits == "8" and format == "onnx"))
    pictures = pictures_of(check or [])

    from meshcap.captioner import Captioner
    from meshcap.export import compare, export_captioner, export_web

    captioner = Captioner.from_pretrained(model, device="cpu", dtype="float32", backend="torch")
    if format == "web":
        name = Path(model).resolve().name if Path(model).is_dir() else model
        runtime = runtime or Path("node_modules/onnxruntime-web")
        show(out, export_web(captioner, out, runtime=runtime, name=name), [], json)
        return
    written = export_captioner(captioner, out, format=format, bits=8 if bits == "8" else 32)
    found: list[Agreement] = []
    if pictures:
        exported = Captioner.from_pretrained(out, device="cpu")
        found = [compare(captioner, exported, pictures, beams=beams) for beams in (1, 5)]
    show(out, written, found, json)


def pictures_of(paths: list[Path]) -> list[Path]:
    from meshcap.batch.inputs import list_pictures
    from meshcap.vision.pictures import read_picture

    if Path("-") in paths:
        raise MeshcapError("--check needs pictures to caption twice: give files, not standard input")
    if not paths:
        return []
    found = [Path(one.path) for one in list_pictures([str(path) for path in paths]) if one.tar is None]
    for path in found:  # now, and not after a minute of exporting
        read_picture(path, at_least=1)
    return found


def show(out: Path, written: list[Path], found: list[Agreement], json: bool) -> None:
    sizes = {path.name: path.stat().st_size for path in written}
    if json:
        from dataclasses import asdict

        typer.echo(json_format.dumps({"folder": str(out), "files": sizes, "checks": [asdict(one) for one in found]}))
        return
    typer.echo(f"{out}: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items() if size > 10**5))
    for one in found:
        way = "greedy" if one.beams == 1 else f"beam {one.beams}"
        line = f"{way}: {one.same} of {one.pictures} captions are the same"
        if one.same:
            line += f", their words' log-probabilities to {one.largest:.1e}"
        if one.differing:
            line += f"; {one.lost:.3f} of a word's log-probability lost"
        typer.echo(line)
        for before, after in one.differing:
            typer.echo(f"  - {before}\n  + {after}")
