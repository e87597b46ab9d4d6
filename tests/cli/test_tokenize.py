"""`meshcap tokenize`: as many lines out as in, whatever they hold."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcap import cli
from meshcap.cli.tokenize import AT_ONCE, Lines, tokenize
from meshcap.text.ptb import ptb_tokenize_all
from meshcap.text.vocabulary import TOKENIZERS


def call(capsysbinary: pytest.CaptureFixture[bytes], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["tokenize", *map(str, words)])
    out, err = capsysbinary.readouterr()
    return int(left.value.code or 0), out.decode(), err.decode()


def stdin(monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"", ""),
        (b"\n", "\n"),
        (b"A man's dog.\n\nTwo cats\n", "a man 's dog\n\ntwo cats\n"),
        (b"A dog", "a dog\n"),
        (b"A dog.\r\nA cat.\r\n\r\nA", "a dog\na cat\n\na\n"),
        (b"a\rb\x0bc\x0cd\nx\n", "a b c d\nx\n"),
        ("a\u2028b\u2029c\x85d\ncafé 日本 😀\n".encode(), "a b c d\ncafé 日本\n"),
        ("\ufeffA dog\n\ufeffA cat\n".encode(), "a dog\na cat\n"),
        (b"The letter S.\nThe dog\nThe letter S.\nBirds\n", "the letter s\nthe dog\nthe letter s.\nbirds\n"),
    ],
)
def test_lines_from_standard_input_and_from_a_file(
    given: bytes,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    stdin(monkeypatch, given)
    assert call(capsysbinary) == (0, expected, "")
    (tmp_path / "captions.txt").write_bytes(given)
    assert call(capsysbinary, tmp_path / "captions.txt") == (0, expected, "")


def test_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo")  # the next file does not go on with "two"
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbfthree\n")
    stdin(monkeypatch, b"from the pipe\n")
    assert call(capsysbinary, tmp_path / "a", "-", tmp_path / "b") == (0, "one\ntwo\nfrom the pipe\nthree\n", "")


def test_the_other_tokenizers_and_json(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    given = "A man's 猫.\n\n".encode()
    for name, expected in {
        "ptb": ["a", "man", "'s", "猫"],
        "unicode": ["a", "man's", "猫"],
        "char": ["a", "m", "a", "n", "'", "s", "猫", "."],
    }.items():
        stdin(monkeypatch, given)
        assert call(capsysbinary, "--tokenizer", name) == (0, f"{' '.join(expected)}\n\n", "")
        stdin(monkeypatch, given)
        code, out, err = call(capsysbinary, "--tokenizer", name, "--json")
        assert (code, [json.loads(line) for line in out.split("\n")[:-1]], err) == (0, [expected, []], "")


def test_it_offers_every_tokenizer() -> None:
    assert get_args(get_type_hints(tokenize)["tokenizer"]) == TOKENIZERS


def test_bytes_that_are_no_text_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    stdin(monkeypatch, b"caf\xe9 dog\nfine\n\xff\xfe\n")
    code, out, err = call(capsysbinary, "--tokenizer", "char")
    assert (code, out) == (0, "c a f \ufffd d o g\nf i n e\n\ufffd \ufffd\n")
    assert err == "warning: 2 lines have bytes that are not UTF-8, read as \ufffd\n"


def test_mistakes(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "fine").write_bytes(b"A dog\n")
    for words, message in {
        (tmp_path / "fine", tmp_path / "none"): "none does not exist",
        (tmp_path,): "is a folder",
    }.items():
        code, out, err = call(capsysbinary, *words)
        assert (code, out) == (2, "")  # nothing is written before all files are found
        assert err.startswith("error: ") and err.count("\n") == 1 and message in err
    assert call(capsysbinary, "--tokenizer", "bpe")[0] == 2


@given(st.lists(st.binary(max_size=40)), st.integers(1, 9))
def test_lines_are_those_between_line_feeds(lines: list[bytes], size: int) -> None:
    given = b"\n".join(line.replace(b"\n", b"") for line in lines)

    class Slow(io.BytesIO):
        def read1(self, _: int | None = -1) -> bytes:
            return self.read(size)

    found = list(Lines([])._of(Slow(given)))
    expected = given.decode(errors="replace").split("\n")
    if given.endswith(b"\n") or not given:
        expected.pop()
    if expected:
        expected[0] = expected[0].removeprefix("\ufeff")
    assert found == [line.removesuffix("\r") for line in expected]


def test_a_line_longer_than_a_read(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    captions = ["A man's dog. " * AT_ONCE, "é" * AT_ONCE + "x", "end"]
    (tmp_path / "long").write_text("\n".join(captions), encoding="utf-8")
    expected = "".join(" ".join(tokens) + "\n" for tokens in ptb_tokenize_all(captions))
    assert call(capsysbinary, tmp_path / "long") == (0, expected, "")


def test_an_answer_comes_before_the_next_line_is_asked_for() -> None:
    # As another program would use it, in a locale that knows no UTF-8.
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "meshcap", "tokenize"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env) as running:
        assert running.stdin and running.stdout
        for given, expected in (("A man's dog.\n", "a man 's dog\n"), ("Un café\n", "un café\n"), ("\n", "\n")):
            running.stdin.write(given.encode())
            running.stdin.flush()
            assert running.stdout.readline().decode() == expected
        running.stdin.close()
        assert running.stdout.read() == b""
    assert running.returncode == 0


def test_no_torch_is_needed(tmp_path: Path) -> None:
    script = (
        "import sys; from meshcap import cli\n"
        "try: cli.main(['tokenize', sys.argv[1]])\n"
        "except SystemExit: print({'torch', 'numpy'} & set(sys.modules))"
    )
    (tmp_path / "x").write_bytes(b"A dog\n")
    command = [sys.executable, "-c", script, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "a dog\nset()\n"
