"""`python examples/captions.py`: what the model that comes with meshcap says of these pictures, into captions.json.

Beam search with five beams in float32, one picture after the other: what
`meshcap caption examples --dtype float32` prints.
"""

import json
from pathlib import Path

from meshcap import Captioner
from meshcap.files import write_text

HERE = Path(__file__).parent
CAPTIONS = HERE / "captions.json"


def pictures(folder: Path = HERE) -> list[Path]:
    return sorted(folder.glob("*.jpg"))


def captions(captioner: Captioner, folder: Path = HERE) -> dict[str, str]:
    """File name to caption."""
    return {path.name: captioner.caption(path).text for path in pictures(folder)}


def write(captioner: Captioner, path: Path = CAPTIONS) -> None:
    text = json.dumps(captions(captioner, path.parent), indent=2, ensure_ascii=False) + "\n"
    write_text(path, text)
    print(text, end="")


if __name__ == "__main__":
    write(Captioner.from_pretrained(dtype="float32"))
