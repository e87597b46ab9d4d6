"""`meshcap serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError
from meshcap.options import CaptionOptions

KEYS = "MESHCAP_API_KEYS"


@options.caption_options(without=("attention",))
def serve(
    model: options.Model = "default",
    memory: options.NamedMemory = None,
    remember: Annotated[
        bool, typer.Option("--remember", help="Let whoever uses it add to the --memory, which is made where it is not.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is open to every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    batch_size: Annotated[int, typer.Option(min=1, help="Most pictures captioned together.")] = 32,
    wait_ms: Annotated[float, typer.Option(min=0, max=1000, help="Milliseconds to wait for a batch.")] = 5.0,
    queue: Annotated[int, typer.Option(min=1, help="Most pictures in progress; more are refused for now.")] = 256,
    max_mb: Annotated[float, typer.Option(min=0.001, help="Most megabytes of a request.")] = 32.0,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="Most megapixels of a picture.")] = 64.0,
    max_pictures: Annotated[int, typer.Option(min=1, help="Most pictures of a request.")] = 32,
    max_seconds: Annotated[float, typer.Option(min=0.1, help="Most seconds of a request.")] = 60.0,
    api_keys: Annotated[
        Path | None, typer.Option(help=f"File of keys, one a line; or {KEYS}, with spaces between.")
    ] = None,
    cors: Annotated[list[str] | None, typer.Option(help="Another site whose pages may send requests.")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another name that this server is reached as, behind a proxy say; '*': any.",
            show_default="on this machine alone, its own names; else any",
        ),
    ] = None,
    allow_urls: Annotated[bool, typer.Option("--allow-urls", help="Fetch pictures from public web addresses.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Write a line for each request.")] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    **given: Any,
) -> None:
    """Caption pictures over HTTP, with a page to try it at /.

    Caption options are the defaults of requests that do not give them.

    Example: meshcap serve --model my-captioner --port 8000
    """
    try:
        from meshcap.serving.app import create_app, is_loopback, listen, run
    except ImportError as error:
        if error.name and error.name.startswith("meshcap"):
            raise
        raise MeshcapError(f"serving needs {error.name}, which is missing: pip install 'meshcap[serve]'") from error
    from meshcap.serving.fetch import Fetcher
    from meshcap.serving.limits import MIB, Limits
    from meshcap.serving.service import Service

    CaptionOptions.parse(given)  # before a model is loaded
    limits = Limits(
        bytes=int(max_mb * MIB),
        pixels=int(max_megapixels * 1e6),
        pictures=min(max_pictures, queue),
        seconds=max_seconds,
        queue=queue,
        batch=batch_size,
        wait=wait_ms / 1000,
    )
    keys = read_keys(api_keys)
    for origin in cors or []:
        if origin != "*" and (not origin.startswith(("http://", "https://")) or origin.count("/") != 2):
            raise MeshcapError(f"--cors is {origin!r}, expected an origin such as https://example.org")
    if remember and memory in (None, "none"):
        raise MeshcapError("--remember adds to a memory and none is named: give --memory FOLDER, or --memory default")
    at = listen(host, port)  # before the model is loaded: a taken port is reported at once
    captioner = options.load_captioner(model, device, dtype, threads)
    if remember:
        captioner.open_memory(None if memory == "default" else memory)
    options.attach_memory(captioner, memory, unread=True)
    name = Path(model).name or model
    fetcher = Fetcher(limits.bytes) if allow_urls else None
    service = Service(captioner, name, limits, fetcher, given, remember=remember)
    if not is_loopback(host) and not keys:
        more = ": anybody can add to the memory" if remember else ""
        typer.echo(f"warning: {host} is open to others and no API keys are set{more}", err=True)
    shown, number = at.getsockname()[:2]
    address = f"[{shown}]" if ":" in shown else shown
    run(
        create_app(service, keys=keys, origins=cors or [], hosts=host_names(host, allow_host or [])),
        at,
        seconds=max_seconds,
        log=log,
        ready=lambda: typer.echo(f"{name} listens at http://{address}:{number}/ (Ctrl-C stops it)"),
    )


def host_names(host: str, more: list[str]) -> list[str]:
    """The names that requests may be sent to; none: any.

    On this machine alone, a page of another site could let its own name lead here and read the answers.
    """
    from meshcap.serving.app import is_loopback

    if "*" in more or not (more or is_loopback(host)):
        return []
    own = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else []
    return [*own, f"[{host}]" if ":" in host else host, *more]


def read_keys(path: Path | None) -> list[str]:
    """From a file and the environment: never from the command line, which every user of a machine can read."""
    keys = os.environ.get(KEYS, "").split()
    if path is not None:
        try:
            keys += path.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise MeshcapError(
                f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}"
            ) from error
        if not keys:
            raise MeshcapError(f"{path} holds no key: expected one a line")
    if any(len(key) < 16 for key in keys):
        raise MeshcapError("an API key has less than 16 signs: expected a long random one")
    return keys
