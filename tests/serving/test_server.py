"""A real server process on loopback: it starts, answers, and ends with what it took."""

import http.client
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshcap.serving.app import is_loopback
from serving import small
from tiny_data import start

Served = tuple[subprocess.Popen[str], int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    small.captioner().save_pretrained(folder)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Served]:
    """It lets the first picture wait a second for company: long enough to be stopped in between."""
    words = ["serve", "--model", str(folder), "--port", "0", "--wait-ms", "1000", "--device", "cpu", "--threads", "1"]
    process = start(words)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("tiny listens at http://127.0.0.1:"), (line, process.stderr and process.stderr.read())
    yield process, int(line.split(":")[2].split("/")[0])
    if process.poll() is None:
        process.kill()
    process.communicate()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {"Content-Type": "image/png"} if body else {})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_an_end_finishes_what_was_taken(server: Served, number: int, code: int) -> None:
    process, port = server
    with ThreadPoolExecutor(3) as pool:
        while True:  # until the server is seen with all three inside; a busy machine may miss that moment
            asking = [pool.submit(ask, port, "POST", "/v1/caption", small.picture()) for _ in range(3)]
            while not (inside := b"meshcap_pictures_in_flight 3\n" in ask(port, "GET", "/metrics")[1]):
                if all(one.done() for one in asking):
                    break
            if inside:
                break
        process.send_signal(number)
        answers = [one.result() for one in asking]
    assert [status for status, _ in answers] == [200] * 3
    assert all(json.loads(content)["results"][0]["words"] for _, content in answers)
    assert process.wait(60) == code
    _, told = process.communicate()
    assert "Traceback" not in told
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_which_addresses_are_nobody_elses() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("127.9.9.9") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("::") and not is_loopback("192.168.1.5")
    assert not is_loopback("example.org")
