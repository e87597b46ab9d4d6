"""`meshcap`, `pip`, `make` and `python` as the shell finds them while examples run.

`meshcap` is the real command line with less to do: fewer steps, smaller networks, a tiny model in the place of the one
that comes with the package. A server is started, asked whether it is well, and stopped. `pip` and `make` only see that
what they are asked for exists.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

from docs import warm

ROOT = Path(__file__).parents[2]
MODEL = "MESHCAP_DOCS_MODEL"
NEEDS_NO_MODEL = ("tokenize", "score", "--version", "--help")

FEWER = {
    "train": "--xe-steps 4 --scst-steps 2 --batch 4 --set scst.batch=4 --set run.validate_every=2 --set data.workers=1 "
    "--set data.min_count=1 --threads 1 --track none",
    "evaluate": "--bootstrap 20 --threads 1",
    "score": "--bootstrap 20",
    "data draw": "--count 24 --val 24 --test 24 --workers 1",
    "explain": "--threads 1",
}


SCRIPTS = {
    "recipes/turing_machine.py": "--steps 3 --batch 2",
    "benchmarks/caption.py": "--no-peers --pictures 2 --repeat 1 --threads 1",
    "benchmarks/serve.py": "--clients 2 --requests 4 --soak 0",
}


def environment(model: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT / 'src'}",
        MODEL: str(model),
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def install(folder: Path, door: str) -> None:
    """Put the stand-ins into a folder. Those of ours ask a process that has imported everything already."""
    folder.mkdir(parents=True, exist_ok=True)
    scripts = {name: warm.client(name, door) for name in ("meshcap", "pip", "make")}
    cases = "".join(f'{name}) set -- "$@" {more} ;;\n' for name, more in SCRIPTS.items())
    scripts["python"] = f'#!/bin/sh\ncase "$1" in\n{cases}esac\nexec {sys.executable} "$@"\n'
    for name, text in scripts.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)


def meshcap() -> None:
    words = sys.argv[1:]
    if words[:1] == ["serve"]:
        sys.exit(serve(words))
    run(quicker(words))


def run(words: list[str]) -> None:
    from meshcap import cli

    if words and words[0] not in NEEDS_NO_MODEL:
        from meshcap import folders

        folders.PACKAGED = Path(os.environ[MODEL])
    cli.main(words)


def quicker(words: list[str]) -> list[str]:
    """The later of two equal options holds."""
    more = FEWER.get(words[0]) or FEWER.get(" ".join(words[:2])) or ""
    if words[0] == "train":
        if "--resume" in words:
            return words
        if "--from" not in words:
            more += " --set model.d_model=16"
        if not {"--from", "--vision", "--features"} & set(words):
            more += " --vision patches --size 48"
    return [*words, *more.split()]


def serve(words: list[str]) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "import sys; from docs.stand_in import run; run(sys.argv[1:])"
    server = subprocess.Popen([sys.executable, "-c", code, *words, "--port", str(port)])
    try:
        until = time.monotonic() + 120
        while server.poll() is None and time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
                    json.load(answer)
                break
            except OSError:
                time.sleep(0.2)
        server.send_signal(signal.SIGTERM)
        return server.wait(60)
    finally:
        server.kill()


def pip() -> None:
    """Nothing is installed: the extras must be those of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if sys.argv[1] != "install":
        sys.exit(f"pip {sys.argv[1]}?")
    for word in sys.argv[2:]:
        for extras in re.findall(r"^(?:meshcap|\.)\[(.+)\]$", word):
            if unknown := set(extras.split(",")) - set(project["optional-dependencies"]):
                sys.exit(f"no extra {unknown}")


def make() -> None:
    path = os.environ["PATH"].partition(os.pathsep)[2]
    done = subprocess.run(["make", "--dry-run", *sys.argv[1:]], cwd=ROOT, env={**os.environ, "PATH": path})
    sys.exit(done.returncode)
