"""`meshcap batch`."""

from __future__ import annotations

import glob
import json as json_format
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError
from meshcap.options import CaptionOptions

if TYPE_CHECKING:
    from meshcap.batch.inputs import Picture
    from meshcap.batch.per_shard import Blocks, Ready, Shards

NAMED = 10  # failed pictures that are named, where a file lists them all
BATCHES = 4  # of a block on a GPU: what is lost at most when a job is killed, times the blocks in work; 1 on a CPU
LANES = 8  # that share a model: more would wait for Python's one lock; --ray has none


@options.caption_options(without=("attention",))
def batch(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IN...",
            help="Pictures, folders, patterns, shards (.tar, .parquet), lists of paths (.csv, .tsv, .parquet, .txt).",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A .jsonl, .csv or .parquet file, or a folder.", show_default="none")
    ] = None,
    per_shard: Annotated[
        bool,
        typer.Option(
            "--per-shard", help="00000.captions.parquet for each 00000.tar, beside it or in the folder --out."
        ),
    ] = False,
    gallery: Annotated[
        Path | None, typer.Option(help="Also a page with the pictures, their captions and a search: a .html file.")
    ] = None,
    excel: Annotated[bool, typer.Option("--excel", help="Of CSV: so that Excel shows every letter.")] = False,
    model: options.Model = "default",
    memory: options.NamedMemory = None,
    sidecar: Annotated[
        bool, typer.Option("--sidecar", help="Also PICTURE.txt beside each picture, or inside the folder --out.")
    ] = False,
    write_exif: Annotated[bool, typer.Option("--write-exif", help="ImageDescription into JPEG.")] = False,
    write_xmp: Annotated[
        bool, typer.Option("--write-xmp", help="dc:description into JPEG and PNG, else PICTURE.EXT.xmp.")
    ] = False,
    write_iptc: Annotated[bool, typer.Option("--write-iptc", help="Caption into JPEG.")] = False,
    html: Annotated[
        list[str] | None, typer.Option(help="Pages, or a pattern: fill in what pictures lack as alt.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Change pictures and pages themselves, not copies in --out.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace texts and descriptions that are there.")
    ] = False,
    overwrite_alt: Annotated[
        bool, typer.Option("--overwrite-alt", help="Of --html: replace texts that are there, but alt=''.")
    ] = False,
    log_probs: Annotated[bool, typer.Option("--log-probs", help="Also each word's log-probability.")] = False,
    column: Annotated[
        str | None,
        typer.Option(help="Of lists and Parquet: the column with the paths or pictures.", show_default="by its name"),
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Only this share of the pictures, as 3/8.", show_default="all")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Caption on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local for one of this machine.",
            show_default="without Ray",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of --ray: models at work.", show_default="one a GPU, or a CPU")
    ] = None,
    batch_size: options.BatchSize = None,
    readers: Annotated[
        int | None, typer.Option(min=1, help="Threads or processes that read pictures.", show_default="one a CPU")
    ] = None,
    processes: Annotated[
        bool | None,
        typer.Option(
            help="Read pictures in processes instead of threads.", show_default="with a GPU, where there are many"
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what was done before.")] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
    **given: Any,
) -> None:
    """Caption many pictures; a job that was stopped goes on when it is called again.

    Pictures that cannot be read are listed in OUT.errors.jsonl, the others are captioned, and the exit code is 1.

    Example: meshcap batch photos/ 'shards/*.tar' --out captions.parquet
    """
    from meshcap.batch.alt_text import pictures_of
    from meshcap.batch.gallery import write_gallery
    from meshcap.batch.inputs import Picture, Share, list_pictures
    from meshcap.batch.job import (
        JOB,
        PAGES,
        Job,
        fill_pages,
        fingerprint,
        finish,
        finished_before,
        forget,
        record_file,
        run,
        state_folder,
        weights_of,
    )
    from meshcap.batch.local import BatchSettings, caption_in_threads
    from meshcap.batch.output import KINDS, Delivery
    from meshcap.cli.progress import progress, working

    names = inputs or []
    share = Share() if shard is None else Share.parse(shard)
    kinds = tuple(kind for kind, asked in zip(KINDS, (write_exif, write_xmp, write_iptc), strict=True) if asked)
    if not names and not html:
        raise MeshcapError("nothing to caption: name pictures, folders, tar shards, lists of paths or --html pages")
    if per_shard:
        if sidecar or kinds or html or (out is not None and out.suffix):
            raise MeshcapError(
                "--per-shard writes a Parquet file for each shard: expected a folder as --out, and no --sidecar, "
                "--write-… or --html"
            )
        table, folder = None, out
    else:
        table, folder = _output_paths(out)
    if (kinds or html) and not in_place and folder is None:
        raise MeshcapError("pictures and pages are not changed without --in-place: give it, or --out FOLDER for copies")
    if table is None and not (sidecar or kinds or html or per_shard):
        raise MeshcapError("nowhere to write to: give --out FILE.jsonl (or .csv, .parquet, a folder), or --sidecar")
    if html and shard is not None:
        raise MeshcapError("--shard splits pictures, and a page is filled in by one job: leave one out")
    if excel and (table is None or table.suffix != ".csv"):
        raise MeshcapError("--excel is for tables in CSV: give --out FILE.csv with it")
    if gallery is not None and (gallery.suffix.lower() not in (".html", ".htm") or not (table or per_shard)):
        raise MeshcapError("--gallery shows the captions of a table: give it a name that ends in .html, and --out too")
    wanted = CaptionOptions.parse(given)
    facts = {"model": weights_of(model), "dtype": dtype, "log_probs": log_probs, **asdict(wanted)}
    if memory not in (None, "none"):
        facts["memory"] = memory
    if excel:
        facts["excel"] = True

    def ready() -> Ready:
        """Load the model: what captions blocks, with which settings, and the pictures of a block."""
        with working(f"loading {model}"):
            cluster: Cluster | None = None
            if ray:
                from meshcap.batch.ray import Cluster

                cluster = Cluster(ray, cpus=None if workers is None else workers * (threads or 1))
                captioner = options.load_captioner(model, "cpu", "auto", 1)  # of this process, which checks options
                where = "cuda" if cluster.wait() and device in ("auto", "cuda") else "cpu"
            else:
                captioner = options.load_captioner(model, device, dtype, 1)  # threads are shared out among lanes, below
                where = str(captioner.device).partition(":")[0]
            options.attach_memory(captioner, memory)
            if not captioner.reads_pictures:
                raise MeshcapError(f"{model} reads region features and cannot see pictures: expected one with a vision")
            captioner.plan(wanted)  # options without sense are refused before a cluster works or a file is written
        cpus = threads or os.cpu_count() or 1
        lanes = 1 if where != "cpu" or ray else min(cpus, LANES)
        per_lane = max(1, cpus // lanes) if where == "cpu" else threads or 1  # a GPU's cores are those of its readers
        settings = BatchSettings(
            wanted,
            batch_size or (128 if where == "cuda" else 16),
            max(1, (readers or cpus) // lanes),
            processes,
            log_probs,
        )

        def caption(blocks: list[tuple[int, Sequence[Picture]]]) -> Blocks:
            nonlocal cluster
            if not ray:
                return caption_in_threads(captioner, blocks, settings, lanes=lanes, threads=per_lane)
            if cluster is None:  # one ends with its work
                cluster = Cluster(ray, cpus=None if workers is None else workers * (threads or 1))
                cluster.wait()
            mine, cluster = cluster, None
            from meshcap.batch.ray import WorkerSettings

            lane = replace(settings, readers=readers)
            worker = WorkerSettings(model, where, dtype, lane, threads or 1, os.getcwd(), captioner.memory)
            return mine.caption(worker, blocks, workers=workers)

        return caption, settings, settings.batch_size * (BATCHES if where == "cuda" else 1)

    if per_shard:
        from meshcap.batch.per_shard import Shards, caption_shards, captioned

        shards = Shards(facts if batch_size is None else facts | {"batch_size": batch_size}, folder, restart)
        try:
            caption_shards(names, shards, ready, model=model, column=column, share=share, progress=progress)
        except KeyboardInterrupt:
            typer.echo("stopped; the same call goes on", err=True)
            raise
        if gallery is not None:
            write_gallery(gallery, captioned(names, Shards(facts, folder), column=column, share=share))
        _print_shards(shards, gallery, json)
        raise typer.Exit(1 if shards.counts.get("errors") else 0)

    facts["shard"] = str(share)
    copies = None if in_place or folder is None or not kinds else folder
    pages = _pages(html or [])
    with working("listing pictures"):
        pictures = list_pictures(names, column=column, share=share, copies=copies)
    asked = fingerprint([*pictures, *map(Picture, pages)])
    state = state_folder(table, asked)
    record = record_file(table, [*names, str(share), *pages])
    known = (state / JOB).exists() or record.exists()
    if not restart and table is not None and table.exists() and not known:
        raise MeshcapError(
            f"{table} is there, and no job that wrote it: give another --out, or --restart to replace it"
        )
    delivery = Delivery(sidecar, kinds, None if in_place else folder, overwrite)
    delivery.check(pictures)
    if table is None:
        facts["written"] = [*(["sidecar"] if sidecar else []), *kinds, *(["alt"] if pages else [])]
    if not restart and not (state / JOB).exists():
        told = facts if batch_size is None else facts | {"batch_size": batch_size}
        before = finished_before(record, asked, told)
        if before is not None and table is not None and not table.exists():
            raise MeshcapError(f"{table} was written and is gone: give --restart to make it again")
        if before is not None and (table is not None or before.get("state") == delivery.state(pictures, pages)):
            # The model need not be loaded to say so.
            _write_gallery(gallery, table, pictures)
            _print_summary(before["done"], table, before.get("errors", ()), json, new=False, gallery=gallery)
            raise typer.Exit(1 if before["done"]["errors"] else 0)

    caption, settings, block = ready()
    if restart or table is None:  # only now, when nothing is wrong with the new one
        record.unlink(missing_ok=True)
    if restart:
        forget(state)
    named = list(pictures)
    if pages:
        listed = {picture.key for picture in pictures}
        others = pictures_of(pages, overwrite=overwrite_alt, saved_list=state / PAGES)
        pictures += [picture for picture in others if picture.key not in listed]
        delivery.check(pictures)

    facts["batch_size"] = settings.batch_size
    errors: list[str] = []
    with Job(state, pictures, facts, block=block, record=record, asked=asked) as job:
        if job.done is None:
            try:
                with progress(len(pictures), job.count_done()) as report:
                    run(job, caption, delivery, report)
            except KeyboardInterrupt:
                done = f"{job.count_done():,} of {len(pictures):,} pictures are done"
                typer.echo(f"stopped: {done}; the same call goes on", err=True)
                raise
            counts = finish(job, table, settings, excel=excel)
            if pages:
                counts["alts"] = fill_pages(job, pages, None if in_place else folder, overwrite=overwrite_alt)
            if table is None:  # what a repeat says, and how it knows that nothing has changed
                errors = [row["error"] for row in job.rows() if "error" in row]
                job.finish(counts, errors=errors, state=delivery.state(named, pages))
            else:
                job.finish(counts)
        elif table is not None and not table.exists():
            raise MeshcapError(f"{table} was written and is gone: give --restart to make it again")
    _write_gallery(gallery, table, pictures)
    _print_summary(job.done or {}, table, errors, json, gallery=gallery)
    if job.done and job.done["errors"]:
        raise typer.Exit(1)


def _output_paths(out: Path | None) -> tuple[Path | None, Path | None]:
    """The table, and the folder for texts, copies and pages, where there is one."""
    from meshcap.batch.output import SUFFIXES, check_table

    if out is None:
        return None, None
    if out.is_dir() or not out.suffix:
        return out / "captions.jsonl", out
    if out.suffix not in SUFFIXES:
        raise MeshcapError(f"--out is {out}, expected a folder or a name that ends in {', '.join(SUFFIXES)}")
    check_table(out)
    return out, None


def _write_gallery(page: Path | None, table: Path | None, pictures: Sequence[Picture]) -> None:
    from meshcap.batch.gallery import of_table, write_gallery

    if page is not None and table is not None:
        write_gallery(page, of_table(table, pictures))


def _print_shards(shards: Shards, gallery: Path | None, json: bool) -> None:
    if json:
        files = {"shards": shards.before + shards.new, "new": shards.new, "gallery": str(gallery) if gallery else None}
        typer.echo(json_format.dumps(shards.counts | files))
        return
    counts = {"captions": 0, "withheld": 0, "errors": 0} | shards.counts
    parts = [f"{shards.before + shards.new:,} shard{'s' * (shards.before + shards.new != 1)}"]
    parts += [f"{shards.before:,} of them done before"] if shards.before else []
    parts += [f"{counts['captions']:,} caption{'s' * (counts['captions'] != 1)}"]
    parts += [f"{counts['withheld']:,} withheld"] if counts["withheld"] else []
    parts += [f"{counts['errors']:,} error{'s' * (counts['errors'] != 1)} (in SHARD.captions.errors.jsonl)"] * (
        counts["errors"] > 0
    )
    typer.echo(", ".join(parts) + (f"; {gallery}" if gallery else ""))


def _pages(names: Sequence[str]) -> list[str]:
    """Pages by name or by pattern, each once."""
    found: dict[str, None] = {}
    for name in names:
        paths = [name] if os.path.isfile(name) else sorted(filter(os.path.isfile, glob.glob(name, recursive=True)))
        if not paths:
            raise MeshcapError(f"--html is {name}, and there is no such page")
        found |= dict.fromkeys(paths)
    return list(found)


def _print_summary(
    counts: dict[str, int],
    table: Path | None,
    problems: Sequence[str],
    json: bool,
    *,
    new: bool = True,
    gallery: Path | None = None,
) -> None:
    """Counts on stdout; on stderr the first errors, or all of them (`problems`) where no file lists them."""
    from meshcap.batch.output import errors_path

    failed = counts.get("errors", 0)
    errors = None if table is None else errors_path(table)
    if errors is not None and failed:
        with open(errors, encoding="utf-8", errors="surrogateescape") as file:
            problems = [json_format.loads(line)["error"] for line in islice(file, NAMED)]
    for problem in problems:
        typer.echo(f"error: {' '.join(problem.split())}", err=True)
    if errors is not None and failed > NAMED:
        typer.echo(f"error: {failed - NAMED:,} more, all in {errors}", err=True)
    if json:
        files = {"out": None, "errors_file": None} if table is None else {
            "out": str(table), "errors_file": str(errors) if failed else None,
        }  # fmt: skip
        files |= {"gallery": str(gallery)} if gallery else {}
        typer.echo(json_format.dumps(counts | files, ensure_ascii=False))
        return
    parts = [f"{counts['captions']:,} caption{'s' * (counts['captions'] != 1)}"]
    parts += [f"{counts['withheld']:,} withheld"] if counts["withheld"] else []
    parts += [f"{counts['alts']:,} written into pages"] if "alts" in counts else []
    parts += [f"{failed:,} error{'s' * (failed != 1)}" + (f" ({errors})" if table else "")] if failed else []
    parts += [] if new else ["nothing new"]
    parts += [str(gallery)] if gallery else []
    typer.echo(f"{table}: {', '.join(parts)}" if table else ", ".join(parts))
