"""Clients and pictures that mean harm: refused, killed or waited out, and everybody else is served."""

import asyncio
import http.client
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from meshcap.captioner import Captioner
from meshcap.cli.serve import host_names
from meshcap.serving import app, decoders
from meshcap.serving.connections import TimedProtocol
from meshcap.serving.decoders import Decoders
from meshcap.serving.limits import Limits, RefusalError, Reservation
from serving import small

CAPTION = "/v1/caption"
KEY = "0123456789abcdef0123"
SLEEPER = """
import sys, time
given, out = sys.stdin.buffer, sys.stdout.buffer
time.sleep(SLEEP)
out.write(b"+")
out.flush()
while head := given.read(8):
    content = given.read(int.from_bytes(head, "big"))
    if content == b"crash":
        sys.exit(9)
    time.sleep(600)
"""


def test_a_forged_host_does_not_open_a_door(eyes: Captioner) -> None:
    """`Host: x/health?` makes a URL whose path is /health, in starlette before 1.0.1."""
    wanted = small.app(eyes, keys=[KEY])
    statuses = []

    async def ask(host: bytes) -> None:
        scope = {
            "type": "http", "method": "GET", "path": "/version", "raw_path": b"/version", "query_string": b"",
            "headers": [(b"host", host)], "scheme": "http", "server": ("127.0.0.1", 80), "root_path": "",
            "http_version": "1.1", "asgi": {"version": "3.0"}, "client": ("127.0.0.1", 1),
        }  # fmt: skip

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await wanted(scope, receive, send)

    for host in (b"x/health?", b"x/openapi.json#", b"x/?"):
        asyncio.run(ask(host))
    assert statuses == [401] * 3


def test_keys_do_not_read_the_url(opened: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever starlette makes of a Host header."""
    client = opened(keys=[KEY])
    monkeypatch.setattr("starlette.datastructures.URL.path", property(lambda url: "/health"), raising=False)
    assert client.get("/version").status_code == 401


def test_names_that_lead_here_from_elsewhere(opened: Callable[..., TestClient]) -> None:
    client = opened(hosts=host_names("127.0.0.1", []))
    for host in ("127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"):
        assert client.get("/health", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        assert client.get("/health", headers={"Host": host}).status_code == 403
    assert host_names("127.0.0.1", ["*"]) == host_names("0.0.0.0", []) == []
    assert host_names("0.0.0.0", ["a.example"]) == ["0.0.0.0", "a.example"]


def test_pages_of_browsers_without_fetch_metadata(opened: Callable[..., TestClient]) -> None:
    client, friendly = opened(), opened(origins=["https://friend.example"])
    for origin, status in (("http://evil.example", 403), ("null", 403), ("http://testserver", 200)):
        answer = client.post(CAPTION, **small.form(small.picture()), headers={"Origin": origin})
        assert answer.status_code == status
    headers = {"Origin": "https://friend.example"}
    assert friendly.post(CAPTION, **small.form(small.picture()), headers=headers).status_code == 200


def test_a_wrong_method_says_which_are_right(client: TestClient) -> None:
    answer = client.get(CAPTION)
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"


def sleeping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, start: float = 0.0) -> None:
    """Decoders that never answer, and may be slow to start."""
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER.replace("SLEEP", str(start)))
    started = decoders.subprocess.Popen
    monkeypatch.setattr(
        decoders.subprocess, "Popen", lambda words, **rest: started([words[0], str(script)], **rest)
    )


def test_decoders_that_take_too_long_or_crash_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pool = Decoders(1, size=16, geometry="squash", pre_resize=0, pixels=10**6, seconds=0.3)
    with monkeypatch.context() as patch:
        sleeping(patch, tmp_path)
        for content, told in ((b"slow", "takes more than 0.3 s to decode"), (b"crash", "cannot be decoded")) * 2:
            with pytest.raises(RefusalError, match=told) as caught:
                pool(content)
            assert caught.value.status == 422
            assert not pool.running and not pool.busy
    pixels, window = pool(small.picture(), 60)
    assert pixels.shape == (3, 16, 16) and window == (0, 0, 1, 1)
    process = next(iter(pool.running)).process
    assert pool(small.picture(), 60)[0].tolist() == pixels.tolist() and len(pool.running) == 1
    pool.close()
    assert process.poll() is not None
    with pytest.raises(RefusalError, match="stopping"):
        pool(small.picture(), 60)


def test_the_start_of_a_decoder_is_no_part_of_a_pictures_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a busy machine a new decoder takes seconds to start: good pictures were refused as too slow to decode."""
    pool = Decoders(1, size=16, geometry="squash", pre_resize=0, pixels=10**6, seconds=0.3)
    sleeping(monkeypatch, tmp_path, start=0.6)
    with pytest.raises(RefusalError, match="cannot be decoded"):  # not: takes more than 0.3 s
        pool(b"crash")
    monkeypatch.setattr(decoders, "START_SECONDS", 0.1)
    with pytest.raises(RefusalError, match="no decoder could be started") as caught:
        pool(b"crash")
    assert (caught.value.status, caught.value.retry_after) == (503, 5) and not pool.running and not pool.busy


def test_decoders_see_what_the_captioner_reads(eyes: Captioner) -> None:
    service = small.service(eyes)
    pixels, _ = service.decoders(small.picture(), 60)
    service.decoders.close()
    assert pixels.tolist() == eyes.read(small.picture()).tolist()


def test_readiness_and_shutdown_with_stuck_decoders(
    eyes: Captioner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = small.service(eyes, decode_seconds=600.0, seconds=600.0)
    service.start()
    service.decoders.close()  # those that work
    service.decoders.closing = False
    sleeping(monkeypatch, tmp_path)
    monkeypatch.setattr(decoders, "STUCK", 0.2)
    work = [service.pool.submit(service.decoders, b"slow", 600) for _ in range(service.decoders.count)]
    until = time.monotonic() + 60
    while service.ready and time.monotonic() < until:
        time.sleep(0.05)
    assert not service.ready and service.alive
    service.close()
    for one in work:
        assert isinstance(one.exception(60), RefusalError)


def test_a_batch_that_never_ends_is_told(eyes: Captioner) -> None:
    service = small.service(eyes, seconds=10.0)
    service.start()
    assert service.ready and service.alive
    service.batcher.since = time.monotonic() - 15
    assert service.alive and not service.ready
    service.batcher.since = time.monotonic() - 25
    assert not service.alive
    service.close()


def test_scans_of_a_jpeg_are_413(client: TestClient) -> None:
    from vision.test_picture_limits import jpeg_of_scans

    answer = client.post(CAPTION, content=jpeg_of_scans(64, 5000), headers={"Content-Type": "image/jpeg"})
    assert answer.status_code == 413 and "scans, more than the 100 allowed" in answer.json()["error"]["message"]


def test_slow_bodies_take_no_places() -> None:
    service_limits = Limits(queue=2, pictures=2)
    from meshcap.serving.limits import Capacity

    places = Capacity(service_limits)
    waiting = [Reservation(places).__enter__() for _ in range(300)]  # their pictures are still to come
    with Reservation(places) as other:
        other.reserve_pictures(2)
        with pytest.raises(RefusalError), Reservation(places):
            pass
    assert len(waiting) == 300 and places.pictures == 0


class Impatient(TimedProtocol):
    header_seconds = 0.3
    most = 20


def closes(line: socket.socket) -> bytes:
    """What comes until the other side closes."""
    line.settimeout(60)
    content = b""
    while part := line.recv(4096):
        content += part
    return content


def test_headers_have_their_time(eyes: Captioner, caplog: pytest.LogCaptureFixture) -> None:
    with small.listening(eyes, http=Impatient) as port, caplog.at_level(logging.WARNING):
        for start in (b"", b"GET / HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"):
            with socket.create_connection(("127.0.0.1", port), 60) as line:
                line.sendall(start)
                assert closes(line) == b""
        with socket.create_connection(("127.0.0.1", port), 60) as line:  # the second request is the slow one
            line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = http.client.HTTPResponse(line)
            answer.begin()
            assert answer.status == 200 and answer.read()
            line.sendall(b"G")
            assert closes(line) == b""


def test_connections_above_the_limit_are_answered(eyes: Captioner) -> None:
    with small.listening(eyes, http=Impatient) as port:
        lines = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(Impatient.most + 5)]
        answers = [closes(line) for line in lines]
        assert sum(one.startswith(b"HTTP/1.1 503") for one in answers) >= 5
        assert all(one == b"" or one.endswith(b"}}") for one in answers)
        for line in lines:
            line.close()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200


def test_lines_that_clients_cause_are_not_written() -> None:
    def record(text: str) -> logging.LogRecord:
        return logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, text, None, None)

    assert not app._no_flood(record("Invalid HTTP request received."))
    assert app._no_flood(record("something else"))


def test_an_early_400_reaches_a_client_that_is_still_sending(eyes: Captioner) -> None:
    with small.listening(eyes, http=Impatient) as port:
        for start in (b"this is no HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: x\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), 60) as line:
                line.sendall(start + b"x" * 3_000_000)
                answer = closes(line)
            assert answer.startswith(b"HTTP/1.1 400") and b'"status": 400' in answer
