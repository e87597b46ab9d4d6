"""The same job on a Ray cluster, through Ray Data: an actor for each worker, with a model of its own.

Blocks stream through the actors and back to this process, which hands them in as a local job does. Ray starts an actor
that died again and repeats what it was doing. Pictures are read where they are captioned: every machine must see them
under the same path.

Ray ends the process that speaks to a cluster, without an exception, when the cluster's head is gone. So that is a child
of this process (`Cluster`), and its end is one line and a job that can go on.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from meshcap.batch.inputs import Picture
from meshcap.batch.local import BatchSettings, caption_blocks
from meshcap.batch.output import Row
from meshcap.captioner import DtypeName
from meshcap.errors import FailedError, MeshcapError
from meshcap.memory import Store

TOGETHER = 8  # blocks that an actor takes at once: reading ahead begins anew with each
CLIENT_PORT = 10_001  # of ray://HOST
CONNECT_SECONDS = 10  # seconds that a cluster may take to answer
GONE_SECONDS = 10  # seconds without a head after which it is given up
LOOK_SECONDS = 2.0  # without rows, after which it is looked for
START_SECONDS = 150  # that a cluster may take until it works for us; Ray itself waits for 60, or for ever
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
    memory: Store | None = None  # opened by each worker, at the same place


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
        self.captioner.memory = settings.memory

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
    if address == "local":
        # Who reaches the ports of Ray can run code, and not every version asks for a token. With this, on every system,
        # it listens at 127.0.0.1, which it else takes for the address of this machine in its network.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        if "ray" in sys.modules:  # which has read it
            sys.modules["ray"]._private.ray_constants.ENABLE_RAY_CLUSTER = False
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
        if _asks_for_token(error):
            raise FailedError(
                f"the Ray cluster at {address} asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN where "
                "~/.ray/auth_token is not its own"
            ) from error
        raise FailedError(f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}") from error


def _asks_for_token(error: BaseException | None) -> bool:
    """Whether this, or what it comes from, is a cluster that was started where there is a token."""
    while error is not None:
        if "AuthenticationError" in f"{type(error).__name__} {error}":
            return True
        error = error.__cause__ or error.__context__
    return False


def _check_reachable(address: str, seconds: float = CONNECT_SECONDS) -> None:
    """Fail within seconds; Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host or port, int(port) if host else CLIENT_PORT), timeout=seconds).close()
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FailedError(f"no Ray cluster answers at {address}: {reason}") from error


class Cluster:
    """A Ray cluster, spoken to by a child process, for one job. The child ends with it, or with this process."""

    def __init__(self, address: str, *, cpus: int | None = None):
        """As `connect`, in the child, which begins at once; `wait` waits for it.

        Raises:
            MeshcapError: Ray is not installed.
        """
        if importlib.util.find_spec("ray") is None:
            raise MeshcapError("--ray needs another package: pip install 'meshcap[scale]'")
        context = multiprocessing.get_context("spawn")
        self.address = self.head = address
        self.rows, there = context.Pipe()
        self.child = context.Process(target=_drive, args=(there, address, cpus), name="meshcap-ray", daemon=True)
        self.child.start()
        there.close()

    def close(self) -> None:
        self.rows.close()
        self.child.terminate()  # Ray says goodbye to the cluster, and ends one of this machine alone
        self.child.join(GONE_SECONDS)
        if self.child.is_alive():
            self.child.kill()
            self.child.join()

    def wait(self) -> bool:
        """Whether the cluster has a GPU, once it has answered.

        Raises:
            MeshcapError: nobody answers.
        """
        self.head, gpu = self._receive(None if self.address == "local" else START_SECONDS)
        return bool(gpu)

    def caption(
        self, settings: WorkerSettings, blocks: Sequence[tuple[int, Sequence[Picture]]], *, workers: int | None = None
    ) -> Iterator[tuple[int, list[Row]]]:
        """As `caption_blocks_with_ray`.

        Raises:
            FailedError: the cluster gave up, or is gone. What was given before is good.
        """
        try:
            self.rows.send((settings, blocks, workers))
            while (one := self._receive()) is not None:
                yield one
        except OSError:
            raise self._gone() from None
        finally:
            self.close()

    def _receive(self, most: float | None = None) -> Any:
        """What the child sends next, which may take `most` seconds."""
        start = time.monotonic()
        missed: float | None = None  # since when the head does not answer
        try:
            while not self.rows.poll(LOOK_SECONDS):
                if most is not None and time.monotonic() - start > most:
                    self.close()
                    raise FailedError(f"no Ray cluster answers at {self.address} within {most:g} s: see `ray status`")
                if ":" not in self.head:
                    continue
                try:
                    _check_reachable(self.head, LOOK_SECONDS)
                    missed = None
                except FailedError:
                    missed = missed or time.monotonic()
                    if time.monotonic() - missed > GONE_SECONDS:
                        raise self._gone() from None
            found = self.rows.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if isinstance(found, MeshcapError):
            raise found
        return found

    def _gone(self) -> FailedError:
        return FailedError(f"the Ray cluster at {self.address} is gone: once it is back, the same call goes on")


def _drive(there: Connection, address: str, cpus: int | None) -> None:
    """The child of `Cluster`: the head's address and whether there is a GPU, then rows, None, or what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # what Ray's libraries say at their end; exceptions go to the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        connect(address, cpus=cpus)
        import ray

        head = address if address.startswith("ray://") else ray.get_runtime_context().gcs_address
        there.send((head, has_gpu()))
        settings, blocks, workers = there.recv()
        threading.Thread(target=_end_with_node, daemon=True).start()
        for one in caption_blocks_with_ray(settings, blocks, workers=workers):
            there.send(one)
        there.send(None)
    except (EOFError, BrokenPipeError):
        return  # the parent is gone
    except MeshcapError as error:
        there.send(type(error)(str(error)))
    except Exception as error:
        there.send(FailedError(f"the Ray cluster gave up: {_reason(error)}"))


def _end_with_parent() -> None:
    """End this process soon after the one that started it, also while Ray is connecting."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _end()


def _end_with_node() -> None:
    """End this process when the node that it speaks to is dead and the head is not: Ray would wait for ever."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    while True:
        time.sleep(LOOK_SECONDS)
        try:
            alive = {node["NodeID"]: node["Alive"] for node in ray.nodes()}
        except Exception:  # of the head, which the parent looks for
            continue
        if not alive.get(own, True):
            _end()


def _end() -> None:
    """Let Ray end what it started, for a while."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GONE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


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
