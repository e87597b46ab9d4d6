"""Connections within limits: how many, and how long a client may take to say what it wants.

uvicorn waits for ever for the rest of a header, and asyncio writes a traceback for each connection that it has no
descriptor for. Here a header has its time, and connections above the limit are answered 503 and closed.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
KEEP_ALIVE = 30  # seconds between two requests
MOST_HEADER = 32_768  # bytes
CONNECTIONS = 1000
SPARE = 128  # descriptors for everything but connections
LINGER = 2.0  # seconds that a refused client may go on sending: closed at once, it would not see the answer


def _refusal(status: int, phrase: str, message: str, more: str = "") -> bytes:
    body = json.dumps({"error": {"status": status, "message": message}})
    head = f"HTTP/1.1 {status} {phrase}\r\nConnection: close\r\n{more}Content-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode("ascii")


FULL = _refusal(503, "Service Unavailable", "too many connections: try again in a second", "Retry-After: 1\r\n")
NO_HTTP = _refusal(400, "Bad Request", "the request is no HTTP: expected a request line and headers")


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP, with a time limit for headers and a number of connections."""

    most = CONNECTIONS
    header_seconds = HEADER_SECONDS
    _timer: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refuse(FULL)
            return
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._refused:
            return
        if self.conn.their_state is h11.IDLE:
            self._start_timer()  # part of a header: its time runs from its first byte, not from its last
        else:
            self._stop_timer()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(NO_HTTP)
        else:  # in the middle of another answer
            self.transport.close()

    def _refuse(self, answer: bytes) -> None:
        """Answer, take no notice of what else is sent, and close a little later."""
        self._refused = True
        self._stop_timer()
        self.transport.write(answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER, self.transport.close)

    def on_response_complete(self) -> None:
        self._stop_timer()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def protocol_class() -> type[TimedProtocol]:
    """With as many connections as this process may have descriptors for."""
    most = CONNECTIONS
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = CONNECTIONS + SPARE
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft != resource.RLIM_INFINITY:
            most = max(8, min(CONNECTIONS, soft - SPARE))
    return type("LimitedProtocol", (TimedProtocol,), {"most": most})
