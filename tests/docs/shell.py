"""Command lines as a shell would split them: enough of it to find every `meshcap` and the words that follow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

OPERATORS = set("();<>|&")
KEYWORDS = {"do", "then", "else", "!", "{", "time", "exec", "nice"}
ASSIGNMENT = re.compile(r"^(?:export |local |readonly )?([A-Za-z_]\w*)=(.*)$")
ARRAY = re.compile(r"^(?:local |readonly )?([A-Za-z_]\w*)=\((.*)\)$")
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?(.*?)^\s*\1$", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r"\$\{(\w+|@)(?::?[-=]([^}]*))?\}|\$(\w+|@)")


def lines_of(text: str, language: str = "sh") -> list[str]:
    """Logical lines: continuations joined; of `console`, what follows the prompt."""
    if language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    text = HEREDOC.sub("", text).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip()]


def expanded(line: str, variables: dict[str, str]) -> str:
    """Variables by their values; unknown ones by 1, which is a name, a number and a path."""
    line = re.sub(r"\$\([^()]*\)", "1", line)

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return variables.get(name, found[2] or "1")

    return VARIABLE.sub(value, line)


def commands_of(lines: list[str]) -> Iterator[list[str]]:
    """The words of each simple command, redirections left out."""
    variables: dict[str, str] = {}
    arrays: dict[str, str] = {}
    for line in lines:
        for name, words in arrays.items():
            line = line.replace(f'"${{{name}[@]}}"', words)
        if array := ARRAY.match(line.strip()):
            arrays[array[1]] = array[2]
            continue
        given = ASSIGNMENT.match(line.strip())
        if given:
            parts = shlex.split(expanded(given[2], variables), comments=True)
            variables[given[1]] = parts[0] if parts else ""
            if len(parts) < 2:
                continue
        splitter = shlex.shlex(expanded(line, variables), posix=True, punctuation_chars=True)
        splitter.whitespace_split = True
        splitter.commenters = ""
        words: list[str] = []
        skip = False  # the name after a redirection
        for word in _without_comment(splitter):
            if word and set(word) <= OPERATORS:
                if set(word) <= set("<>&") and set(word) & set("<>"):
                    skip = True
                    if words and words[-1].isdigit():  # 2> file
                        words.pop()
                else:
                    yield from _clean(words)
                    words = []
            elif skip:
                skip = False
            else:
                words.append(word)
        yield from _clean(words)


def _without_comment(words: Iterator[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("#"):
            return
        yield word


def _clean(words: list[str]) -> Iterator[list[str]]:
    while words and (words[0] in KEYWORDS or ASSIGNMENT.match(words[0])):
        words = words[1:]
    if words:
        yield words


def meshcap_words(command: list[str]) -> list[str] | None:
    """What comes after `meshcap`, however it is called; None of another program."""
    if command[0] == "meshcap" or command[0].endswith("/meshcap"):
        return command[1:]
    for place in range(len(command) - 1):
        if command[place] == "-m" and command[place + 1] == "meshcap":
            return command[place + 2 :]
    return None
