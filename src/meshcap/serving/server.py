"""Running the application: a socket, signals, and an end that finishes what was taken."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from meshcap.errors import FailedError, MeshcapError

LINGER = 5  # seconds beyond the time limit of a request that a stopping server waits for the last answers


class Server(uvicorn.Server):
    """uvicorn's, but it tells once it listens, and a server that was asked to stop and did has not failed."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self.ready = ready
        self.interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(number: int, frame: Any) -> None:
            self.interrupted = self.interrupted or number == signal.SIGINT
            self.handle_exit(number, frame)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """
    Raises:
        MeshcapError: the address is not this machine's, or taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise MeshcapError(
            f"cannot listen at {host} port {port}: {error.strerror or error}; choose others with --host and --port"
        ) from error


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run(app: Any, at: socket.socket, *, seconds: float, log: bool, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was taken.

    Raises:
        KeyboardInterrupt: it was SIGINT.
        FailedError: the first picture, which is none of anybody, could not be captioned.
    """
    config = uvicorn.Config(
        app,
        log_level="info" if log else "warning",
        access_log=log,
        server_header=False,
        timeout_graceful_shutdown=int(seconds) + LINGER,
        timeout_keep_alive=30,
    )
    server = Server(config, ready)
    server.run(sockets=[at])
    if not server.started:
        raise FailedError("the server could not start: the lines above tell why")
    if server.interrupted:
        raise KeyboardInterrupt
