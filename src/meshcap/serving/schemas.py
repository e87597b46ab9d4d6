"""What clients send and what they are answered: pydantic models for OpenAPI, and the reading of request bodies.

A request is multipart, JSON with base64, or the bytes of one picture.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Literal

import numpy as np
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from meshcap.caption import Caption
from meshcap.errors import FailedError, MeshcapError, TooLargeError
from meshcap.explain.heatmap import as_grid
from meshcap.memory import Entry
from meshcap.options import HELP, NAMES, REAL, STRATEGIES, WHOLE, CaptionOptions
from meshcap.serving.limits import Limits, RefusalError, Reservation
from meshcap.serving.service import CaptionedPicture, Given, Link

DIGITS = 4
LISTS = ("must", "must_not")  # options that may be given more than once in a form or a query
FIELDS = 64
DRAIN_SECONDS = 2.0  # a body that is too large is read and dropped for so long, so that its sender sees the answer


Read = tuple[list[Given], dict[str, Any]]


class CaptionWord(BaseModel):
    word: str
    probability: float
    attention: list[float] | None = Field(None, description="A weight for each region, where it was asked for.")


class TagOut(BaseModel):
    name: str
    kind: str = Field(description="object, scene, name or colour.")
    probability: float = Field(description="That it is there; of a colour, its share of the picture.")


class CaptionOut(BaseModel):
    caption: str = Field(description="As a person would write it.")
    confidence: float = Field(description="0 to 1: how far the caption may be trusted.")
    probability: float = Field(description="The geometric mean of the words' probabilities, the end included.")
    score: float = Field(description="What the search ranked it by.")
    words: list[CaptionWord]
    finished: bool = Field(description="False: cut off at the greatest length.")
    missing: int = Field(description="Required words that could not be fitted in.")
    withheld: bool = Field(description="True: below min_confidence, so without its words.")
    shortened: bool = Field(False, description="True: trusted little as a whole, so without what was not sure.")
    warning: str | None = Field(None, description="Such as required words that do not suit the picture.")


class RegionsOut(BaseModel):
    boxes: list[list[float]] = Field(description="x1, y1, x2, y2 of each region, in parts of the window.")
    window: list[float] = Field(description="x1, y1, x2, y2: what was seen, in parts of the picture.")
    grid: list[int] | None = Field(None, description="Rows and columns, where the regions are cells row by row.")


class SimilarOut(BaseModel):
    """A remembered picture that is like this one."""

    id: int
    similarity: float = Field(description="The cosine of the pictures' vectors: 1 for the same picture.")
    captions: list[str]
    names: list[str]


class ErrorOut(BaseModel):
    status: int
    message: str = Field(description="One sentence.")


class PictureOut(BaseModel):
    """A caption with its alternatives, or an error."""

    caption: str | None = None
    confidence: float | None = None
    probability: float | None = None
    score: float | None = None
    words: list[CaptionWord] | None = None
    finished: bool | None = None
    missing: int | None = None
    withheld: bool | None = None
    shortened: bool | None = None
    warning: str | None = None
    tags: list[TagOut] | None = Field(None, description="Keywords, where they were asked for.")
    alternatives: list[CaptionOut] | None = Field(None, description="The next best, where n is above 1.")
    regions: RegionsOut | None = Field(None, description="Where attention was asked for.")
    facts: dict[str, Any] | None = Field(None, description="Of a score: what rules know of it and of each statement.")
    roll: str | None = Field(None, description="Of a score, its piano roll, on which the regions lie: a data: URL.")
    similar: list[SimilarOut] | None = Field(None, description="Of a server with a memory, where any is near.")
    error: ErrorOut | None = None


class CaptionResponse(BaseModel):
    model: str
    results: list[PictureOut] = Field(description="One for each picture, in their order.")
    seconds: float


class ErrorResponse(BaseModel):
    """Where no picture has a caption, `results` may say more of each."""

    error: ErrorOut
    model: str | None = None
    results: list[PictureOut] | None = None
    seconds: float | None = None


class RememberResponse(BaseModel):
    id: int = Field(description="Of the new entry: `meshcap forget ID` removes it.")
    entries: int = Field(description="How many pictures are remembered now.")


class AliveResponse(BaseModel):
    alive: bool


class ReadyResponse(BaseModel):
    ready: bool


class LimitsOut(BaseModel):
    bytes: int
    pixels: int
    pictures: int
    seconds: float
    max_words: int


class VersionResponse(BaseModel):
    meshcap: str
    model: str
    architecture: str
    words: int
    device: str
    dtype: str
    limits: LimitsOut
    urls: bool
    memory: int | None = Field(None, description="Remembered pictures, of a server with a memory.")
    remember: bool = Field(description="Whether clients may add to the memory.")


def picture_out(found: CaptionedPicture | MeshcapError) -> PictureOut:
    if isinstance(found, MeshcapError):
        return PictureOut(error=error_out(found))
    caption = found.caption
    count = None if found.boxes is None else len(found.boxes)
    answer = PictureOut(**dict(_caption_out(caption, count)))
    if caption.tags:
        answer.tags = [TagOut(**tag.to_dict()) for tag in caption.tags]
    if found.similar:
        answer.similar = [
            SimilarOut(id=one.id, similarity=round(one.similarity, DIGITS), captions=one.captions, names=one.names)
            for one in found.similar
        ]
    if caption.alternatives:
        answer.alternatives = [_caption_out(one, count) for one in caption.alternatives]
    if not caption.withheld:
        answer.facts = caption.facts
    if caption.attention is not None and found.boxes is not None:
        answer.roll = found.roll
        boxes = found.boxes
        cells = as_grid(boxes[:, 0], boxes)
        answer.regions = RegionsOut(
            boxes=[_rounded(box) for box in boxes],
            window=[round(part, DIGITS) for part in found.window],
            grid=None if cells is None or not _is_row_major(boxes) else list(cells.shape),
        )
    return answer


def error_out(error: MeshcapError) -> ErrorOut:
    status = error.status if isinstance(error, RefusalError) else 500 if isinstance(error, FailedError) else 422
    if isinstance(error, TooLargeError):
        status = 413
    return ErrorOut(status=status, message=" ".join(str(error).split()))


def _caption_out(caption: Caption, regions: int | None) -> CaptionOut:
    attention = caption.attention
    return CaptionOut(
        caption=caption.text,
        confidence=round(caption.confidence, DIGITS),
        probability=round(caption.probability, DIGITS),
        score=round(caption.score, DIGITS),
        words=[
            CaptionWord(
                word=word,
                probability=round(math.exp(chance), DIGITS),
                attention=None if attention is None else _rounded(attention[at][:regions]),
            )
            # The last chance may be of the end.
            for at, (word, chance) in enumerate(zip(caption.words, caption.log_probs, strict=False))
        ],
        finished=caption.finished,
        missing=caption.missing,
        withheld=caption.withheld,
        shortened=caption.shortened and not caption.withheld,
        warning=caption.warning or None,
    )


def _is_row_major(boxes: np.ndarray) -> bool:
    order = [(round(y, 3), round(x, 3)) for x, y, *_ in boxes.tolist()]
    return order == sorted(order)


def _rounded(numbers: Any) -> list[float]:
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


def _options_model() -> type[BaseModel]:
    """`CaptionOptions` for OpenAPI: the same fields, with their ranges. `CaptionOptions.parse` reads them."""
    described: dict[str, Any] = {}
    for name in NAMES:
        default = getattr(CaptionOptions, name)
        least, most = {**WHOLE, **REAL}.get(name, (None, None))
        kind: Any = int if name in WHOLE else float if name in REAL else bool
        if name in LISTS:
            kind, default = list[str], []
        elif name == "strategy":
            kind = Literal[STRATEGIES]
        described[name] = (
            kind if default is not None else kind | None,
            Field(default, description=HELP[name], ge=least, le=most),
        )
    return create_model("CaptionOptions", **described)


OptionsModel: Any = _options_model()


class CaptionRequest(OptionsModel):
    """A JSON request: pictures, and any of the options."""

    pictures: list[PictureIn] = Field(min_length=1, description="In the order of the answers.")


async def read_request(request: Request, limits: Limits, reservation: Reservation) -> Read:
    """The pictures of a request and its options as they were written, for `CaptionOptions.parse`.

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
            if kind.startswith(("image/", "audio/")) or kind == "application/octet-stream":
                options = options_of(request.query_params.multi_items())
                return [b"".join([chunk async for chunk in body])], options
    except TimeoutError:
        raise _late(limits) from None
    raise RefusalError(
        415, f"the content type is {kind[:80] or 'missing'}: expected multipart/form-data, application/json or image/…"
    )


async def read_json(request: Request, limits: Limits, reservation: Reservation) -> Any:
    """The JSON of a request, whatever its content type says.

    Raises:
        RefusalError: 400 for what is no JSON, 408 for what does not arrive, 413 for too much of it.
    """
    try:
        async with asyncio.timeout(reservation.left):
            content = b"".join([chunk async for chunk in _body(request, limits, reservation)])
            return await asyncio.to_thread(_parsed, content)
    except TimeoutError:
        raise _late(limits) from None


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise RefusalError(400, "the request is no JSON: expected an object") from None


def _late(limits: Limits) -> RefusalError:
    return RefusalError(408, f"the request did not arrive within {limits.seconds:g} s: send it faster")


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


class FormParser(MultiPartParser):
    """Starlette's, which counts files and does not say how many there were."""

    files = 0

    def on_headers_finished(self) -> None:
        disposition = self._current_part.content_disposition or b""
        self.files += b"filename" in parse_options_header(disposition)[1]
        super().on_headers_finished()


async def _form(request: Request, body: AsyncGenerator[bytes, None], limits: Limits) -> Read:
    parser = FormParser(request.headers, body, max_files=limits.pictures, max_fields=FIELDS, max_part_size=65536)
    parser.spool_max_size = limits.bytes  # nothing of anybody's pictures is written to a disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if parser.files > limits.pictures:
            raise too_many(limits) from None
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
    return pictures, options_of(options)


def _json(content: bytes, query: dict[str, Any], limits: Limits) -> Read:
    body = _parsed(content)
    if not isinstance(body, dict):
        raise RefusalError(422, 'the request is no object: expected {"pictures": [{"base64": …}]}')
    if isinstance(pictures := body.get("pictures"), list) and len(pictures) > limits.pictures:
        raise too_many(limits)
    if not isinstance(pictures, list) or not pictures:
        raise RefusalError(422, 'pictures is missing or empty: expected {"pictures": [{"base64": …}]}')
    return [_given(one) for one in pictures], query | {name: body[name] for name in body if name != "pictures"}


def _given(picture: Any) -> Given:
    try:
        return PictureIn.model_validate(picture).given()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(map(str, first["loc"]))[:80] or "a picture"
        expected = "expected base64 or url" if first["type"] == "extra_forbidden" else first["msg"]
        raise RefusalError(422, f"{name} in pictures is wrong: {expected}") from None


def entry_of(given: Sequence[Given], fields: dict[str, Any]) -> Entry:
    """What a request wants remembered of its one picture.

    Raises:
        RefusalError: other fields, values of another kind, or not one picture.
    """
    if len(given) != 1:
        raise RefusalError(422, f"{len(given)} pictures were sent to be remembered: expected one")
    unknown = sorted(set(fields) - {"caption", "names"})
    if unknown:
        raise RefusalError(422, f"{unknown[0][:80]!r} is unknown: expected a picture, caption and names")
    caption, names = fields.get("caption", ""), fields.get("names", [])
    captions = [caption] if isinstance(caption, str) else caption
    names = names.split(",") if isinstance(names, str) else names
    for name, value in (("caption", captions), ("names", names)):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise RefusalError(422, f"{name} is wrong: expected text, or a list of texts")
    return Entry(tuple(captions), tuple(names))


def options_of(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Options as a query or a form gives them: words may come several times, or all at once with commas."""
    options: dict[str, Any] = {}
    for name, value in pairs:
        if name in LISTS:
            options.setdefault(name, []).extend(entry for entry in value.split(",") if entry.strip())
        elif value != "":
            options[name] = value
    return options


def too_many(limits: Limits) -> RefusalError:
    return RefusalError(413, f"more than {limits.pictures} pictures in one request: send them in several")
