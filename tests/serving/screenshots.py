"""Screenshots of the page for docs/images, of a server that runs already:

python tests/serving/screenshots.py http://127.0.0.1:8000/ FOLDER PICTURE...
"""

import sys
import tempfile
import time
from pathlib import Path

from browser import Browser, find
from PIL import Image

LOOKS = {  # width, height, dark, phone
    "serve": (1180, 860, False, False),
    "serve-dark": (1180, 860, True, False),
    "serve-phone": (390, 844, False, True),
}
DONE = "document.querySelector('.card') && !document.querySelector('.card[aria-busy=true]')"
# The second word: captions begin with an article and a thing, and for a thing the model looks at it.
POINTED = """(() => {
  const one = document.querySelectorAll(".card:first-child .word")[1];
  one.focus({ preventScroll: true });
  return one.closest(".card").getBoundingClientRect().y;
})()"""


def main(address: str, folder: Path, pictures: list[Path]) -> None:
    program = find()
    if program is None:
        sys.exit("no Chromium on this machine")
    with tempfile.TemporaryDirectory() as profile, Browser(program, Path(profile)) as browser:
        for name, (width, height, dark, phone) in LOOKS.items():
            browser.look(width, height, dark=dark, phone=phone)
            browser.open(address)
            browser.drop(pictures, "#drop")
            browser.wait(DONE)
            time.sleep(1)
            browser.evaluate("scrollTo(0, 0)")
            box = browser.evaluate(POINTED)
            if phone:
                browser.evaluate(f"scrollTo(0, {box} - 12)")
            time.sleep(0.6)
            browser.picture(Path(profile) / "page.png")
            with Image.open(Path(profile) / "page.png") as image:
                image.convert("RGB").save(folder / f"{name}.webp", quality=88, method=6)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [Path(one).resolve() for one in sys.argv[3:]])
