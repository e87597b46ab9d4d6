"""`meshcap remember`, `meshcap recall` and `meshcap forget`."""

from __future__ import annotations

import json as json_format
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.captioner import Captioner
    from meshcap.memory import Store

NAMED = 10  # pictures that could not be read and are named
Place = Annotated[
    str | None, typer.Option("--memory", help="The memory's folder.", show_default="in your data folder")
]


def remember(
    shown: Annotated[
        str,
        typer.Argument(
            metavar="PHOTO|FILE|FOLDER",
            help="A picture; or pictures with captions: .jsonl, .csv, COCO's JSON, tar shards, a folder with texts "
            "beside its pictures, another memory.",
        ),
    ],
    said: Annotated[list[str] | None, typer.Argument(metavar="CAPTION...", help="What to remember of PHOTO.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="Of who or what is in PHOTO; may be given again.")] = None,
    source: Annotated[str | None, typer.Option(help="What to know PHOTO by.", show_default="its path")] = None,
    memory: Place = None,
    engine: Annotated[
        Literal["exact", "usearch", "lance"] | None,
        typer.Option(
            help="Of a new memory: exact to a million pictures, usearch for more, lance for many machines.",
            show_default="exact; lance at s3://… and the like",
        ),
    ] = None,
    model: options.Model = "default",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Remember pictures and what you say of them; captions know it from then on.

    Kept are a vector of what the model sees and your words, never the picture itself. Nothing leaves this machine.

    Example: meshcap remember rex.jpg "Rex on the sofa" --name Rex
    """
    from meshcap.batch.remember import read_shown, remember_all
    from meshcap.memory import default_place, is_address, is_store

    captions = [one for one in said or [] if one.strip()]
    several = is_address(shown) or Path(shown).is_dir() or not _is_picture(shown)
    if several and (said or name or source):
        raise MeshcapError(f"{shown} says itself what to remember: captions, --name and --source are for one picture")
    if not several and not captions:
        raise MeshcapError(f'an empty caption was given: say what to remember, meshcap remember {shown} "Rex at home"')
    place = memory or str(default_place())
    if several and is_store(shown) and (shown == place or os.path.realpath(shown) == os.path.realpath(place)):
        raise MeshcapError(f"{shown} would be remembered in itself: name a new --memory")
    listed = read_shown(shown) if several else []
    captioner = options.load_captioner(model, device, dtype, threads)
    if not captioner.reads_pictures:
        raise MeshcapError(f"{model} reads region features and cannot see pictures: expected one with a vision")
    store: Any = captioner.open_memory(place, engine=engine)
    _warn(store)
    if not several:
        id = captioner.remember(shown, captions, names=name or [], source=source)
        if json:
            typer.echo(json_format.dumps({"id": id, "memory": place}))
        else:
            typer.echo(f"remembered as {id} in {place}")
        return

    from meshcap.cli.progress import progress

    with progress(len(listed), 0) as report:
        found = remember_all(captioner, listed, store, progress=report)
    if hasattr(store, "build_index"):
        store.build_index()
    for problem in found.errors[:NAMED]:
        typer.echo(f"error: {' '.join(problem.split())}", err=True)
    if len(found.errors) > NAMED:
        typer.echo(f"error: {len(found.errors) - NAMED:,} more", err=True)
    counts = {"added": found.added, "known": found.known, "errors": len(found.errors), "memory": place}
    if json:
        typer.echo(json_format.dumps(counts))
    else:
        known = f", {found.known:,} were known" if found.known else ""
        typer.echo(f"remembered {found.added:,} pictures in {place}{known}")
    if found.errors:
        raise typer.Exit(1)


def recall(
    photo: Annotated[str | None, typer.Argument(metavar="[PHOTO]", help="A picture to find others like it.")] = None,
    text: Annotated[str | None, typer.Option(help="Words to find in what was said.")] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Most pictures to show.")] = 5,
    memory: Place = None,
    model: options.Model = "default",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Show what is remembered: of pictures like one, with certain words, or the newest.

    A line each: similarity (1: the same picture) where a picture was given, id, what was said, names, source.

    Example: meshcap recall photo.jpg
    """
    if photo is not None and text is not None:
        raise MeshcapError("recall takes a picture or --text: leave one out")
    store = _open(memory)
    found: list[Any]
    if photo is not None:
        from meshcap.vision.pictures import read_picture

        read_picture(photo, at_least=1)  # says what is wrong, before a model is loaded
        captioner: Captioner = options.load_captioner(model, device, dtype, threads)
        captioner.memory = store
        found = captioner.recall(photo, k=k)
    else:
        found = list(store.find(text or "", k))
    _warn(store)
    one: Any
    for one in found:
        row: dict[str, Any] = {"id": one.id, "captions": one.captions, "names": one.names}
        row |= {"source": one.source, "time": one.time}
        if photo is not None:
            row = {"similarity": round(one.similarity, 4), **row}
        if json:
            typer.echo(json_format.dumps(row, ensure_ascii=False))
        else:
            columns = [f"{one.similarity:.3f}"] if photo is not None else [_day(one.time)]
            columns += [str(one.id), " / ".join(one.captions), ", ".join(one.names), one.source or ""]
            typer.echo("\t".join(_clean(column) for column in columns).rstrip("\t"))
    if not found:
        typer.echo("nothing like that is remembered", err=True)


def forget(
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID...]", help="As recall shows them.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="All pictures with this name.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="All from this path or source.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="The whole memory.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    memory: Place = None,
    json: options.Json = False,
) -> None:
    """Remove what was remembered: from the files, not only from view.

    Example: meshcap forget --name Rex
    """
    if not (ids or name or source or everything):
        raise MeshcapError("nothing to forget was named: give ids, --name, --source or --all")
    store = _open(memory)
    names = {one.casefold() for one in name or []}
    sources = {form for one in source or [] for form in (one, os.path.abspath(one))}
    gone = {
        one.id
        for one in store.entries()
        if everything
        or one.id in (ids or ())
        or one.source in sources
        or names & {called.casefold() for called in one.names}
    }
    missing = sorted(set(ids or ()) - gone)
    if missing:
        raise MeshcapError(f"there is no entry {missing[0]} in {store.place}: see meshcap recall")
    if everything and gone and not yes:
        if not sys.stdin.isatty():
            raise MeshcapError(f"--all forgets {len(gone):,} pictures, and nobody is there to confirm: give --yes")
        typer.confirm(f"Forget all {len(gone):,} pictures in {store.place}?", abort=True, err=True)
    count = store.forget(gone) if gone else 0
    if json:
        typer.echo(json_format.dumps({"forgotten": count}))
    else:
        typer.echo(f"forgot {count:,} {'picture' if count == 1 else 'pictures'}")


def _open(memory: str | None) -> Store:
    from meshcap.memory import default_place, is_store, open_store

    place = memory or default_place()
    if memory is None and not is_store(place):
        raise MeshcapError('nothing is remembered yet: begin with meshcap remember PHOTO "what it shows"')
    return open_store(place)


def _warn(store: Store) -> None:
    for line in store.warnings:
        typer.echo(f"warning: {line}", err=True)


def _is_picture(name: str) -> bool:
    """By its name; a file of captions is known by its own."""
    from meshcap.data.read import TABLES

    lower = name.lower().removesuffix(".gz")
    return not lower.endswith((*TABLES, ".tar", ".txt", ".token")) and "{" not in name and "*" not in name


def _day(moment: float | None) -> str:
    return "" if moment is None else time.strftime("%Y-%m-%d", time.localtime(moment))


def _clean(text: str) -> str:
    from meshcap.cli.caption_output import printable

    return printable(text)
