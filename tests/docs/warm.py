"""A process that has imported torch once and forks for every command of the examples: seconds saved for each of them.

The client is a script without imports of ours. It hands over its words, folder, environment and its three files, and
leaves with the exit code that comes back.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTS = "meshcap.cli meshcap.captioner meshcap.training.run meshcap.explain meshcap.data meshcap.metrics".split()

CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({door!r})
    told = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(line, [len(told).to_bytes(4, "big")], [0, 1, 2])
    line.sendall(told)
    sys.exit(int(line.recv(16) or b"1"))
"""


def client(name: str, door: str) -> str:
    return CLIENT.format(python=sys.executable, door=door, name=name)


@contextmanager
def running(env: dict[str, str]) -> Iterator[str]:
    """The door at which it listens."""
    folder = tempfile.mkdtemp()  # short: addresses of this kind have at most a hundred letters
    door = f"{folder}/door"
    code = f"from docs.warm import listen; listen({door!r})"
    process = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True)
    try:
        until = time.monotonic() + 300
        while not os.path.exists(door):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the process that runs the examples did not start")
            time.sleep(0.05)
        yield door
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder)


def listen(door: str) -> None:
    for name in IMPORTS:
        import_module(name)
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(f"{door}.new")
        waiting.listen()
        os.rename(f"{door}.new", door)  # it is seen only once somebody listens
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who answer
        while True:
            line, _ = waiting.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                waiting.close()
                answer(line)
            line.close()


def answer(line: socket.socket) -> None:
    size, files, _, _ = socket.recv_fds(line, 4, 3)
    told = b""
    while len(told) < int.from_bytes(size, "big"):
        told += line.recv(1 << 16)
    child = os.fork()
    if child == 0:
        line.close()
        os._exit(run(*json.loads(told), files))
    for file in files:
        os.close(file)  # a pipe ends when its last writer is gone
    _, status = os.waitpid(child, 0)
    line.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def run(name: str, words: list[str], folder: str, env: dict[str, str], files: list[int]) -> int:
    from docs import stand_in

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [name, *words]
    code = 0
    try:
        getattr(stand_in, name)()
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
