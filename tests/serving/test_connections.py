"""Clients that break off, or never finish: over real sockets, since only those can."""

import http.client
import socket
import time
from collections.abc import Iterator

import pytest

from meshcap.captioner import Captioner
from meshcap.serving.app import listen
from serving import small

HEAD = b"POST /v1/caption HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def port(eyes: Captioner) -> Iterator[int]:
    with small.listening(eyes, bytes=100_000) as port:
        yield port


@pytest.fixture(scope="module")
def impatient(eyes: Captioner) -> Iterator[int]:
    with small.listening(eyes, bytes=100_000, seconds=0.7) as port:
        yield port


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def everybody_left(port: int) -> bool:
    until = time.monotonic() + 30
    while "meshcap_pictures_in_flight 0\n" not in get(port, "/metrics")[1]:
        if time.monotonic() > until:
            return False
    return get(port, "/health")[0] == get(port, "/ready")[0] == 200


@pytest.mark.parametrize("kind", [b"image/png", b"application/json", b"multipart/form-data; boundary=x"])
def test_a_client_that_breaks_off_leaves_nothing_behind(port: int, kind: bytes) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port), 30) as line:
            line.sendall(HEAD % (kind, 5000) + b"--x\r\n")
    assert everybody_left(port)


def test_a_client_that_does_not_wait_for_its_answer(port: int) -> None:
    content = small.picture()
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port), 30) as line:
            line.sendall(HEAD % (b"image/png", len(content)) + content)
    assert everybody_left(port)


def told(port: int, request: bytes) -> tuple[int, bytes]:
    """The answer to a request that stays unfinished."""
    with socket.create_connection(("127.0.0.1", port), 30) as line:
        line.sendall(request)
        answer = http.client.HTTPResponse(line)
        answer.begin()
        return answer.status, answer.read()


def test_a_client_that_never_finishes_is_told_so(impatient: int) -> None:
    status, content = told(impatient, HEAD % (b"image/png", 5000) + b"start")
    assert status == 408 and b"did not arrive within 0.7 s" in content and everybody_left(impatient)


def test_too_much_is_told_before_it_is_all_there(impatient: int) -> None:
    status, content = told(impatient, HEAD % (b"image/png", 10**12) + b"x" * 1000)
    assert status == 413 and b"more than 100,000 bytes" in content and everybody_left(impatient)


def test_one_connection_for_many_requests(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for body, status in ((small.picture(), 200), (b"broken", 422), (b"x" * 100_001, 413), (small.picture(), 200)):
        connection.request("POST", "/v1/caption", body, {"Content-Type": "image/png"})
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (status, True)
    connection.close()


def test_no_answer_waits_for_the_client_to_confirm_its_first_half() -> None:
    """Whoever connects gets a socket without Nagle's algorithm."""
    with listen("127.0.0.1", 0) as server, socket.create_connection(server.getsockname()):
        taken, _ = server.accept()
        with taken:
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
