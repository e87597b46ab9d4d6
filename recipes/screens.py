"""The pictures of docs/explain.md and docs/serve.md: what the captioner in the package says of examples/.

python recipes/screens.py docs/images

Writes explain.webp, serve.webp, serve-dark.webp and serve-phone.webp, in about a minute on one CPU thread. Needs
the `serve` extra and Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from PIL import Image

from meshcap.files import write_file

ROOT = Path(__file__).resolve().parents[1]
MESHCAP = [sys.executable, "-m", "meshcap"]
SAME = ["--threads", "1", "--device", "cpu"]
EXPLAINED = ROOT / "examples/dog.jpg"
SERVED = [ROOT / "examples/dog.jpg", ROOT / "examples/coffee.jpg"]  # the first is lit, the second partly in view
HEAVIEST = 100_000  # bytes of a picture


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        explained(made)
        with server() as address:
            shoot = [sys.executable, str(ROOT / "tests/serving/screenshots.py")]
            subprocess.run([*shoot, address, folder, *map(str, SERVED)], check=True)
        for path in sorted(made.glob("*.webp")):
            content = path.read_bytes()
            if len(content) > HEAVIEST:
                sys.exit(f"{path.name} has {len(content)} bytes, expected {HEAVIEST} at most")
            write_file(out / path.name, partial(Path.write_bytes, data=content))
            print(f"{out / path.name}: {len(content) / 1000:.0f} KB")


def explained(folder: Path) -> None:
    sheet = folder / "explain.png"
    subprocess.run([*MESHCAP, "explain", str(EXPLAINED), "--out", str(sheet), *SAME], check=True)
    with Image.open(sheet) as image:
        image.save(sheet.with_suffix(".webp"), quality=80, method=6)


@contextmanager
def server() -> Iterator[str]:
    """The address of one that has the captioner in the package, at a free port, until it is no longer needed."""
    command = [*MESHCAP, "serve", "--port", "0", *SAME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()  # "default listens at http://127.0.0.1:… (Ctrl-C stops it)"
            if "http://" not in line:
                sys.exit("the server did not start")
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            process.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
