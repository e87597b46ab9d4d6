"""The same job on a Ray cluster, through Ray Data: an actor for each worker, with a model of its own.

Blocks stream through the actors and back to this process, which hands them in as a local job does. Ray starts an actor
that died again and repeats what it was doing. Pictures are read where they are captioned: every machine must see them
under the same path.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshcap.batch.inputs import Picture
from meshcap.batch.local import BatchSettings, caption_blocks
from meshcap.batch.output import Row
from meshcap.captioner import DtypeName
from meshcap.errors import FailedError, MeshcapError

TOGETHER = 8  # blocks that an actor takes at once: reading ahead begins anew with each
CLIENT_PORT = 10_001  # of ray://HOST
CONNECT_SECONDS = 10  # seconds that a cluster may take to answer
QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


@dataclass(frozen=True)
class WorkerSettings:
    """All that a worker needs to caption as this process would."""

    model: str
    device: str
    dtype: DtypeName
    batch: BatchSettings
    threads: int = 1
    folder: str = "."  # that relative paths start from


class Worker:
    """Captions blocks, inside an actor."""

    def __init__(self, settings: WorkerSettings):
        import torch

        from meshcap.captioner import Captioner

        self.settings = settings.batch
        try:
            os.chdir(settings.folder)  # an actor is a process of its own
        except OSError as error:
            raise MeshcapError(f"{settings.folder} is not there on a machine of the cluster: {error}") from error
        torch.set_num_threads(settings.threads)
        self.captioner = Captioner.from_pretrained(settings.model, device=settings.device, dtype=settings.dtype)
        self.captioner.optimize()

    def __call__(self, batch: Mapping[str, Any]) -> Iterator[dict[str, list[Any]]]:
        blocks = [
            (int(number), [Picture(*one) for one in json.loads(pictures)])
            for number, pictures in zip(batch["block"], batch["pictures"], strict=True)
        ]
        # Whole batches to a block: the one that may be shorter goes last.
        blocks.sort()
        for number, rows in caption_blocks(self.captioner, blocks, self.settings):
            yield {"block": [number], "rows": [json.dumps(rows)]}


def connect(address: str, *, cpus: int | None = None) -> None:
    """Join a cluster (`auto`, `HOST:PORT`, `ray://HOST:PORT`), or make one of this machine alone (`local`).

    Args:
        cpus: of a cluster of this machine; all of them by default.

    Raises:
        MeshcapError: Ray is not installed, or nobody answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what goes wrong comes back as an exception
    try:
        import ray
        import ray.data
    except ImportError:
        raise MeshcapError("--ray needs another package: pip install 'meshcap[scale]'") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # the command shows its own progress
    if ray.is_initialized():
        return
    if ":" in address:
        _check_reachable(address)
    try:
        if address == "local":
            ray.init(address="local", num_cpus=cpus, _node_ip_address="127.0.0.1", **QUIET)
        else:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise FailedError(f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}") from error


def _check_reachable(address: str) -> None:
    """Fail within seconds; Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host or port, int(port) if host else CLIENT_PORT), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FailedError(f"no Ray cluster answers at {address}: {reason}") from error


def has_gpu() -> bool:
    """Whether the cluster that `connect` found has one."""
    import ray

    return bool(ray.cluster_resources().get("GPU", 0) >= 1)


def caption_blocks_with_ray(
    settings: WorkerSettings, blocks: Sequence[tuple[int, Sequence[Picture]]], *, workers: int | None = None
) -> Iterator[tuple[int, list[Row]]]:
    """Rows of each block, as they come back from the cluster that `connect` found.

    Args:
        workers: actors, each with a model: one a GPU, or as many as there are CPUs for, by default.
    """
    import ray

    on_gpu = settings.device == "cuda"
    resources = ray.cluster_resources()
    fits = int(resources.get("GPU", 0)) if on_gpu else int(resources.get("CPU", 1)) // settings.threads
    workers = max(1, min(workers or fits, len(blocks)))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # there is one of our own
    together = max(1, min(TOGETHER, len(blocks) // (workers * 4)))
    items = [{"block": number, "pictures": json.dumps(pictures)} for number, pictures in blocks]
    dataset = ray.data.from_items(items, override_num_blocks=-(-len(items) // together)).map_batches(
        Worker,
        fn_constructor_args=(settings,),
        batch_size=together,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=None if on_gpu else settings.threads,
        num_gpus=1 if on_gpu else None,
    )
    try:
        for row in dataset.iter_rows():
            yield int(row["block"]), json.loads(row["rows"])
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise FailedError(f"the Ray cluster gave up: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The last line of what went wrong on the other side: the first ones are its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
