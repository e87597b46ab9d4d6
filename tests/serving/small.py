"""What the tests of this room serve, and pictures to send."""

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import uvicorn
from fastapi import FastAPI
from PIL import Image

import tiny
from meshcap.captioner import Captioner
from meshcap.data.scenes import draw_scene
from meshcap.serving.app import create_app, listen
from meshcap.serving.fetch import Fetcher
from meshcap.serving.limits import Limits
from meshcap.serving.service import Service
from meshcap.text import Vocabulary
from meshcap.vision.backbone import Patches

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "dog", "'s", "red", "ball", "of"]
CELLS = 4


def captioner(geometry: str = "squash") -> Captioner:
    vision = Patches(cells=CELLS, preprocess={"size": 16, "geometry": geometry})
    return Captioner(tiny.build("m2", d_input=vision.width), Vocabulary(WORDS), vision)


def app(given: Captioner, *, fetcher: Fetcher | None = None, keys: Sequence[str] = (), origins: Sequence[str] = (),
        hosts: Sequence[str] = (), remember: bool = False, **limits: Any) -> FastAPI:  # fmt: skip
    served = service(given, fetcher=fetcher, remember=remember, **limits)
    return create_app(served, keys=keys, origins=origins, hosts=hosts)


def service(given: Captioner, *, fetcher: Fetcher | None = None, remember: bool = False, **limits: Any) -> Service:
    assert set(limits) <= {field.name for field in fields(Limits)}
    return Service(given, "tiny", Limits(**limits), fetcher, remember=remember)


@contextmanager
def listening(given: Captioner, *, http: Any = "auto", **settings: Any) -> Iterator[int]:
    """The port of a server in a thread of this process."""
    at = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app(given, **settings), log_level="warning", http=http))
    thread = threading.Thread(target=lambda: server.run(sockets=[at]), daemon=True)
    thread.start()
    try:
        yield at.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        at.close()


def png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def picture(number: int = 3, size: int = 64) -> bytes:
    return png(draw_scene(number, size).image)


def form(*pictures: bytes, **options: Any) -> dict[str, Any]:
    """A multipart request."""
    return {"files": [("picture", ("a.png", one, "image/png")) for one in pictures], "data": options}
