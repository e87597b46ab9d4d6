"""The splitter that the other tests of documentation rely on."""

import pytest

from docs.pages import cut
from docs.shell import commands_of, lines_of, meshcap_words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("meshcap caption a.jpg  # one", [["meshcap", "caption", "a.jpg"]]),
        ('meshcap caption a.jpg --must "dog|puppy"', [["meshcap", "caption", "a.jpg", "--must", "dog|puppy"]]),
        ("meshcap caption - < a.jpg", [["meshcap", "caption", "-"]]),
        ("meshcap caption a --json > b.jsonl 2> log", [["meshcap", "caption", "a", "--json"]]),
        ("echo it | meshcap tokenize", [["echo", "it"], ["meshcap", "tokenize"]]),
        ("meshcap data draw s && meshcap train s", [["meshcap", "data", "draw", "s"], ["meshcap", "train", "s"]]),
        ("OUT=run\nmeshcap train s --out $OUT/${1:-a} --batch $B",
         [["meshcap", "train", "s", "--out", "run/a", "--batch", "1"]]),
        ("for i in $(seq 1 9); do\n  meshcap batch s --shard $i/9\ndone",
         [["for", "i", "in", "1"], ["meshcap", "batch", "s", "--shard", "1/9"], ["done"]]),
        ("meshcap train s \\\n  --out run", [["meshcap", "train", "s", "--out", "run"]]),
        ('more=(--seed 1 --out "$O")\nmeshcap train s "${more[@]}" --json',
         [["meshcap", "train", "s", "--seed", "1", "--out", "1", "--json"]]),
        ("python3 - <<'END'\nprint('(')\nEND\nmeshcap --version", [["python3", "-"], ["meshcap", "--version"]]),
        ("meshcap data check s || [[ $? -eq 1 ]]", [["meshcap", "data", "check", "s"], ["[[", "$?", "-eq", "1", "]]"]]),
        ("HF_HUB_OFFLINE=1 meshcap caption a.jpg", [["meshcap", "caption", "a.jpg"]]),
    ],
)  # fmt: skip
def test_commands(text: str, expected: list[list[str]]) -> None:
    assert list(commands_of(lines_of(text))) == expected


def test_prompts() -> None:
    assert lines_of("$ meshcap --version\nmeshcap 1.0\n", "console") == ["meshcap --version"]


def test_meshcap_by_any_name() -> None:
    assert meshcap_words(["torchrun", "--n", "4", "-m", "meshcap", "train", "s"]) == ["train", "s"]
    assert meshcap_words([".venv/bin/meshcap", "train"]) == ["train"]
    assert meshcap_words(["echo", "meshcap"]) is None


def test_blocks() -> None:
    page = "# A\n\n<!-- no-run: why -->\n```sh\none\n```\n\ntext\n\n```python\ntwo\n```\n"
    first, second = cut(page, "a.md")
    assert (first.line, first.language, first.text, first.reason) == (5, "sh", "one\n", "why")
    assert (second.line, second.language, second.text, second.reason) == (11, "python", "two\n", None)
