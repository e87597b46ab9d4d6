"""`meshcap serve`: options become limits, and one line for what makes no sense."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import tiny
from meshcap import Captioner
from meshcap.cli.serve import KEYS
from meshcap.serving import app as server
from meshcap.text import Vocabulary
from serving import small
from tiny_data import call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    small.captioner().save_pretrained(folder)
    return folder


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been served; nothing stays open."""
    found: list[dict[str, Any]] = []

    def run(app: Any, at: socket.socket, *, seconds: float, log: bool, ready: Callable[[], None]) -> None:
        found.append({"app": app, "host": at.getsockname()[0], "seconds": seconds, "log": log})
        ready()
        at.close()

    monkeypatch.setattr(server, "run", run)
    monkeypatch.delenv(KEYS, raising=False)
    return found


def words(folder: Path, *more: object) -> list[str]:
    return [str(one) for one in ("serve", "--model", folder, "--device", "cpu", "--port", 0, *more)]


def test_loopback_unless_told(folder: Path, ran: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(words(folder)) == 0
    assert ran[0]["host"] == "127.0.0.1"
    out, err = capsys.readouterr()
    assert out.startswith("tiny listens at http://127.0.0.1:") and err == ""
    with TestClient(ran[0]["app"], base_url="http://127.0.0.1") as client:
        facts = client.get("/version").json()
        assert facts["limits"] == {
            "bytes": 32 * 2**20, "pixels": 64_000_000, "pictures": 32, "seconds": 60, "max_words": tiny.LONGEST - 1,
        }  # fmt: skip
        assert facts["urls"] is False and facts["device"] == "cpu"


def test_options_become_limits(folder: Path, ran: list[dict[str, Any]]) -> None:
    more = ("--max-mb", 0.5, "--max-megapixels", 2, "--max-pictures", 99, "--max-seconds", 7, "--queue", 8, "--log")
    assert call(words(folder, *more, "--allow-urls", "--cors", "https://friend.example")) == 0
    assert (ran[0]["seconds"], ran[0]["log"]) == (7, True)
    with TestClient(ran[0]["app"], base_url="http://127.0.0.1") as client:
        facts = client.get("/version", headers={"Origin": "https://friend.example"})
        assert facts.headers["access-control-allow-origin"] == "https://friend.example"
        limits = facts.json()["limits"]
        assert (limits["bytes"], limits["pixels"], limits["seconds"]) == (2**19, 2_000_000, 7)
        assert limits["pictures"] == 8  # no more than may be inside
        assert facts.json()["urls"] is True


def test_open_to_others_without_keys_is_warned_of(
    folder: Path, ran: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(server, "is_loopback", lambda host: False)
    assert call(words(folder)) == 0
    assert "no API keys are set" in capsys.readouterr().err
    (tmp_path / "keys").write_text("a-long-enough-key-1\na-long-enough-key-2\n")
    assert call(words(folder, "--api-keys", tmp_path / "keys")) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(KEYS, "a-long-enough-key-3")
    assert call(words(folder)) == 0
    for at, key in ((1, "a-long-enough-key-2"), (2, "a-long-enough-key-3")):
        with TestClient(ran[at]["app"], base_url="http://127.0.0.1") as client:
            assert client.get("/version").status_code == 401
            assert client.get("/version", headers={"X-API-Key": key}).status_code == 200


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--api-keys", "missing"), "missing cannot be read: No such file"),
        (("--api-keys", "empty"), "empty holds no key"),
        (("--api-keys", "short"), "less than 16 signs"),
        (("--cors", "friend.example"), "expected an origin such as"),
        (("--cors", "https://friend.example/page"), "expected an origin such as"),
        (("--host", "203.0.113.1"), "cannot listen at 203.0.113.1 port 0"),
        (("--model", "./nowhere"), "nowhere"),
    ],
)
def test_nonsense_is_one_line(
    folder: Path, ran: list[dict[str, Any]], more: tuple[str, ...], told: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("short").write_text("short\n")
    assert call(words(folder, *more)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and told in err
    assert ran == []


def test_a_port_that_is_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert call(words(folder, "--port", taken.getsockname()[1])) == 2
    assert "choose others with --host and --port" in capsys.readouterr().err


def test_no_vision(ran: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Captioner(tiny.shared("m2"), Vocabulary(small.WORDS)).save_pretrained(tmp_path)
    assert call(words(tmp_path)) == 2
    assert "expected one with a vision" in capsys.readouterr().err and ran == []


def test_the_extra_is_named_where_it_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "meshcap.serving.app")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert call(words(folder)) == 2
    assert "pip install 'meshcap[serve]'" in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["serve", "--help"]) == 0
    assert "Example: meshcap serve --model my-captioner" in capsys.readouterr().out
