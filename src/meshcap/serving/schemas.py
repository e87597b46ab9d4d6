"""What clients send and what they are answered: pydantic models for OpenAPI, and the reading of request bodies.

A request is multipart, JSON with base64, or the bytes of one picture.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from torch import Tensor

from meshcap.caption import Caption
from meshcap.errors import FailedError, MeshcapError
from meshcap.explain.heatmap import as_grid
from meshcap.serving.limits import Limits, RefusalError, Reservation
from meshcap.serving.service import CaptionedPicture, Given, Link
from meshcap.serving.wishes import Wishes, one_sentence, parsed

DIGITS = 4
LISTS = ("mention", "avoid")  # options that may be given more than once in a form or a query
FIELDS = 64
DRAIN_SECONDS = 2.0  # a body that is too large is read and dropped for so long, so that its sender sees the answer


class Word(BaseModel):
    word: str
    probability: float
    attention: list[float] | None = Field(None, description="A weight for each region, where it was asked for.")


class CaptionOut(BaseModel):
    caption: str = Field(description="As a person would write it.")
    confidence: float = Field(description="0 to 1: how far the caption may be trusted.")
    probability: float = Field(description="The geometric mean of the words' probabilities, the end included.")
    score: float = Field(description="What the search ranked it by.")
    words: list[Word]
    finished: bool = Field(description="False: cut off at the greatest length.")
    missing: int = Field(description="Required words that could not be mentioned.")


class RegionsOut(BaseModel):
    boxes: list[list[float]] = Field(description="x1, y1, x2, y2 of each region, in parts of the window.")
    window: list[float] = Field(description="x1, y1, x2, y2: what was seen, in parts of the picture.")
    grid: list[int] | None = Field(None, description="Rows and columns, where the regions are cells row by row.")


class ErrorOut(BaseModel):
    status: int
    message: str = Field(description="One sentence.")


class PictureOut(BaseModel):
    """A caption with its alternatives, or an error."""

    caption: str | None = None
    confidence: float | None = None
    probability: float | None = None
    score: float | None = None
    words: list[Word] | None = None
    finished: bool | None = None
    missing: int | None = None
    alternatives: list[CaptionOut] | None = Field(None, description="The next best, where n_best is above 1.")
    regions: RegionsOut | None = Field(None, description="Where attention was asked for.")
    error: ErrorOut | None = None


class CaptionResponse(BaseModel):
    model: str
    results: list[PictureOut] = Field(description="One for each picture, in their order.")
    seconds: float


class ErrorResponse(BaseModel):
    error: ErrorOut


def result_dict(found: CaptionedPicture | MeshcapError) -> dict[str, Any]:
    """A `PictureOut`."""
    if isinstance(found, MeshcapError):
        return error_dict(found)
    caption = found.caption
    answer = _caption_dict(caption)
    if caption.alternatives:
        answer["alternatives"] = [_caption_dict(one) for one in caption.alternatives]
    if caption.attention is not None and found.boxes is not None:
        boxes = found.boxes
        cells = as_grid(boxes[:, 0].numpy(), boxes.numpy())
        answer["regions"] = {
            "boxes": [_rounded(box) for box in boxes],
            "window": [round(part, DIGITS) for part in found.window],
            "grid": None if cells is None or not _is_row_major(boxes) else list(cells.shape),
        }
    return answer


def error_dict(error: MeshcapError) -> dict[str, Any]:
    """An `ErrorResponse`."""
    status = error.status if isinstance(error, RefusalError) else 500 if isinstance(error, FailedError) else 422
    return {"error": {"status": status, "message": " ".join(str(error).split())}}


def _caption_dict(caption: Caption) -> dict[str, Any]:
    words: list[dict[str, Any]] = [
        {"word": word, "probability": round(math.exp(chance), DIGITS)}
        for word, chance in zip(caption.words, caption.log_probs, strict=False)  # the last may be of the end
    ]
    if caption.attention is not None:
        for word, weights in zip(words, caption.attention, strict=True):
            word["attention"] = _rounded(weights)
    return {
        "caption": caption.text,
        "confidence": round(caption.confidence, DIGITS),
        "probability": round(caption.probability, DIGITS),
        "score": round(caption.score, DIGITS),
        "words": words,
        "finished": caption.finished,
        "missing": caption.missing,
    }


def _is_row_major(boxes: Tensor) -> bool:
    order = [(round(y, 3), round(x, 3)) for x, y, *_ in boxes.tolist()]
    return order == sorted(order)


def _rounded(numbers: Tensor) -> list[float]:
    return [round(number, DIGITS) for number in numbers.tolist()]


class PictureIn(BaseModel):
    """A picture in a JSON request: `base64` (a data: URL will do) or, where the server allows it, `url`."""

    model_config = ConfigDict(extra="forbid")

    base64: str | None = Field(None, description="The content of a picture file.")
    url: str | None = Field(None, description="Where the picture lies, http or https.")

    def given(self) -> Given:
        if (self.base64 is None) == (self.url is None):
            return RefusalError(422, "a picture has both base64 and url, or neither: expected one of them")
        if self.url is not None:
            return Link(self.url)
        assert self.base64 is not None
        text = self.base64.partition(",")[2] if self.base64.startswith("data:") else self.base64
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            return RefusalError(422, "the picture is no base64: expected letters, digits, +, / and =")


class CaptionRequest(Wishes):
    """A JSON request: pictures, and any of the options."""

    pictures: list[PictureIn] = Field(min_length=1, description="In the order of the answers.")


async def read_request(request: Request, limits: Limits, reservation: Reservation) -> tuple[list[Given], Wishes]:
    """
    Raises:
        RefusalError: 400 or 422 for what cannot be understood, 408 for what does not arrive, 413 for too much of it,
            415 for another content type.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = _body(request, limits, reservation)
    try:
        async with asyncio.timeout(reservation.left):
            if kind == "multipart/form-data":
                return await _form(request, body, limits)
            if kind == "application/json":
                content = b"".join([chunk async for chunk in body])
                return await asyncio.to_thread(_json, content, options_of(request.query_params.multi_items()), limits)
            if kind.startswith("image/") or kind == "application/octet-stream":
                wishes = parsed(options_of(request.query_params.multi_items()))
                return [b"".join([chunk async for chunk in body])], wishes
    except TimeoutError:
        raise RefusalError(408, f"the request did not arrive within {limits.seconds:g} s: send it faster") from None
    raise RefusalError(
        415, f"the content type is {kind[:80] or 'missing'}: expected multipart/form-data, application/json or image/…"
    )


async def _body(request: Request, limits: Limits, reservation: Reservation) -> AsyncGenerator[bytes, None]:
    """The body in parts, counted while it comes."""
    total = 0
    try:
        stated = int(request.headers.get("content-length", "0"))
    except ValueError:
        raise RefusalError(400, "the content length is no number") from None
    stream = request.stream()
    if stated <= limits.bytes:
        async for chunk in stream:
            total += len(chunk)
            if total > limits.bytes:
                break
            reservation.reserve_bytes(len(chunk))
            yield chunk
        else:
            return
    try:
        async with asyncio.timeout(
            DRAIN_SECONDS if reservation.left is None else min(DRAIN_SECONDS, reservation.left / 2)
        ):
            async for chunk in stream:
                total += len(chunk)
                if total > 4 * limits.bytes:
                    break
    except TimeoutError:
        pass
    raise RefusalError(413, f"the request has more than {limits.bytes:,} bytes: send smaller or fewer pictures")


async def _form(request: Request, body: AsyncGenerator[bytes, None], limits: Limits) -> tuple[list[Given], Wishes]:
    parser = MultiPartParser(request.headers, body, max_files=limits.pictures, max_fields=FIELDS, max_part_size=65536)
    parser.spool_max_size = limits.bytes  # nothing of anybody's pictures is written to a disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise _too_many(limits) from None
        raise RefusalError(400, f"the form cannot be read: {error.message}") from None
    pictures: list[Given] = []
    options = list(request.query_params.multi_items())
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name != "picture":
                raise RefusalError(422, f"a file was sent as {name[:80]!r}: expected pictures as 'picture'")
            pictures.append(await value.read())
            await value.close()
        else:
            options.append((name, value))
    if not pictures:
        raise RefusalError(422, "the form has no picture: expected one or more files named 'picture'")
    return pictures, parsed(options_of(options))


def _json(content: bytes, query: dict[str, Any], limits: Limits) -> tuple[list[Given], Wishes]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise RefusalError(400, "the request is no JSON: expected an object with pictures") from None
    if not isinstance(body, dict):
        raise RefusalError(422, 'the request is no object: expected {"pictures": [{"base64": …}]}')
    if isinstance(pictures := body.get("pictures"), list) and len(pictures) > limits.pictures:
        raise _too_many(limits)
    try:
        request = CaptionRequest(**(query | body))
    except ValidationError as error:
        raise RefusalError(422, one_sentence(error)) from None
    wishes = Wishes(**{name: getattr(request, name) for name in Wishes.model_fields})
    return [one.given() for one in request.pictures], wishes


def options_of(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Options as a query or a form gives them: words may come several times, or all at once with commas."""
    options: dict[str, Any] = {}
    for name, value in pairs:
        if name in LISTS:
            options.setdefault(name, []).extend(word for word in value.split(",") if word.strip())
        elif value != "":
            options[name] = value
    return options


def _too_many(limits: Limits) -> RefusalError:
    return RefusalError(413, f"more than {limits.pictures} pictures in one request: send them in several")
