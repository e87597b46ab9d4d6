"""The interfaces of Ollama and of OpenAI, for programs that speak one of them: the same captions by another door.

Both take pictures with a prompt, and answer at once or word by word. Limits, keys, batches and the queue are those of
`/v1/caption`. What of a prompt is honoured: see `prompts`. The one model of the server answers, whatever name is asked
for, and says its own.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import meshcap
from meshcap.caption import Caption
from meshcap.errors import MeshcapError
from meshcap.serving.limits import RefusalError, Reservation
from meshcap.serving.prompts import MOST_CAPTIONS, PromptRequest, answer, read_prompt
from meshcap.serving.schemas import PictureIn, error_out, read_json, too_many
from meshcap.serving.service import Given, Service

OLLAMA_VERSION = "0.12.0"  # of the interface that is spoken; programs ask for it
OLLAMA_PATHS = ("/api/version", "/api/tags", "/api/ps", "/api/show", "/api/generate", "/api/chat")
OPENAI_PATHS = ("/v1/models", "/v1/chat/completions")
PATHS = OLLAMA_PATHS + OPENAI_PATHS
MOST_PARTS = 1000  # messages, parts of one, pictures: what comes with a request is read on the event loop
NO_PICTURE = "there is no picture in this request: expected one, for this model describes pictures and nothing else"


class Lenient(BaseModel):
    """A request: fields that are not known are ignored, as those programs expect."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


# Ollama.


class OllamaOptions(Lenient):
    num_predict: int | None = Field(None, description="Most words, where that is less than the model says at most.")


class OllamaRequest(Lenient):
    model: str = Field("", description="Any name: the server has one model.")
    stream: bool | None = Field(None, description="Word by word, one JSON object a line; true unless false is given.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(None, description="json, or a JSON schema.")
    options: OllamaOptions | None = None


class GenerateRequest(OllamaRequest):
    prompt: str | None = None
    images: list[str] | None = Field(None, max_length=MOST_PARTS, description="Pictures in base64.")


class OllamaMessage(Lenient):
    role: str
    content: str | None = None
    images: list[str] | None = Field(None, max_length=MOST_PARTS, description="Pictures in base64.")


class ChatRequest(OllamaRequest):
    messages: list[OllamaMessage] | None = Field(None, max_length=MOST_PARTS)


class ShowRequest(Lenient):
    model: str | None = None
    name: str | None = None


class OllamaError(BaseModel):
    error: str = Field(description="One sentence.")


class OllamaVersion(BaseModel):
    version: str = Field(description="Of Ollama's interface.")
    meshcap: str


class ModelDetails(BaseModel):
    parent_model: str = ""
    format: str = "safetensors"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class RunningModel(OllamaModel):
    expires_at: str
    size_vram: int = 0


class TagsResponse(BaseModel):
    models: list[OllamaModel]


class RunningResponse(BaseModel):
    models: list[RunningModel]


class ShowResponse(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    license: str = ""
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str] = ["completion", "vision"]
    modified_at: str


class OllamaAnswer(BaseModel):
    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    total_duration: int | None = Field(None, description="Nanoseconds, as all durations.")
    load_duration: int | None = None
    prompt_eval_count: int | None = Field(None, description="Words of the prompt.")
    prompt_eval_duration: int | None = None
    eval_count: int | None = Field(None, description="Words that were said.")
    eval_duration: int | None = None


class GenerateResponse(OllamaAnswer):
    response: str


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class ChatResponse(OllamaAnswer):
    message: AssistantMessage


# OpenAI.


class ImageURL(Lenient):
    url: str = Field(description="data:image/…;base64,… or, where the server allows it, http or https.")


class ContentPart(Lenient):
    type: str
    text: str | None = None
    image_url: ImageURL | str | None = None


class OpenAIMessage(Lenient):
    role: str
    content: str | Annotated[list[ContentPart], Field(max_length=MOST_PARTS)] | None = None


class JSONSchema(Lenient):
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(Lenient):
    type: str
    json_schema: JSONSchema | None = None


class StreamOptions(Lenient):
    include_usage: bool | None = None


class CompletionRequest(Lenient):
    messages: list[OpenAIMessage] = Field(min_length=1, max_length=MOST_PARTS)
    model: str = Field("", description="Any name: the server has one model.")
    n: int | None = Field(None, ge=1, le=MOST_CAPTIONS, description="Choices: as many different captions.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, description="Most words, where that is less than the model says at most.")
    max_completion_tokens: int | None = None
    response_format: ResponseFormat | None = None


class OpenAIErrorBody(BaseModel):
    message: str = Field(description="One sentence.")
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    error: OpenAIErrorBody


class OpenAIModel(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "meshcap"


class ModelsResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class CompletionMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: str | None = None


class ChatChoice(BaseModel):
    index: int
    message: CompletionMessage
    logprobs: None = None
    finish_reason: str


class Usage(BaseModel):
    prompt_tokens: int = Field(description="Words of the prompt.")
    completion_tokens: int = Field(description="Words that were said.")
    total_tokens: int


class CompletionResponse(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str


Read = TypeVar("Read", bound=BaseModel)


@dataclass(frozen=True)
class Asked:
    """A request of either kind: what matters of it."""

    pictures: list[Given]
    prompt: str
    n: int = 1
    max_words: int | None = None
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Reply:
    """What was answered, in whole sentences, and what it took."""

    texts: list[str]
    finished: bool
    prompt_words: int
    words: int
    seconds: float


def add_routes(app: FastAPI, service: Service) -> None:
    """The routes of both interfaces."""
    name = f"{service.name}:latest"
    started = datetime.now(UTC)

    async def answer_request(asked: Asked, reservation: Reservation, start: float) -> Reply:
        """The one way from a request to what is said."""
        if not asked.pictures:
            raise RefusalError(400, NO_PICTURE)
        if len(asked.pictures) > service.limits.pictures:
            raise too_many(service.limits)
        wanted = read_prompt(asked.prompt, service, schema=asked.schema, n=asked.n, max_words=asked.max_words)
        captions: list[Caption] = []
        for one in await service.caption(asked.pictures, wanted.options, reservation):
            if isinstance(one, MeshcapError):
                raise one
            captions.append(one.caption)
        seconds = time.monotonic() - start
        service.metrics.seconds.observe(seconds)
        return _reply(asked, wanted, captions, seconds)

    async def asking(request: Request, model: type[Read], reservation: Reservation) -> Read:
        return parse(model, await read_json(request, service.limits, reservation))

    def reserved(start: float) -> Reservation:
        return Reservation(service.capacity, until=start + service.limits.seconds)

    @app.get("/api/version", summary="Version of the interface", **_ollama(OllamaVersion))
    async def version() -> Any:
        return _json(OllamaVersion(version=OLLAMA_VERSION, meshcap=meshcap.__version__))

    @app.get("/api/tags", summary="The model", **_ollama(TagsResponse))
    async def tags() -> Any:
        return _json(TagsResponse(models=[OllamaModel(**_described(service, name, started))]))

    @app.get("/api/ps", summary="The model, which is loaded", **_ollama(RunningResponse))
    async def running() -> Any:
        about = _described(service, name, started)
        return _json(
            RunningResponse(models=[RunningModel(**about, expires_at=_time(datetime.max.replace(tzinfo=UTC)))])
        )

    @app.post("/api/show", summary="About the model", **_ollama(ShowResponse, ShowRequest))
    async def show(request: Request) -> Any:
        with reserved(time.monotonic()) as reservation:
            await asking(request, ShowRequest, reservation)
        about = _described(service, name, started)
        info = {
            "general.architecture": about["details"].family,
            "general.basename": service.name,
            "general.parameter_count": service.captioner.backend.weights,
            f"{about['details'].family}.context_length": service.captioner.backend.settings.max_length,
        }
        return _json(ShowResponse(details=about["details"], model_info=info, modified_at=about["modified_at"]))

    def generated(reply: Reply | None, text: str, *, done: bool) -> GenerateResponse:
        return GenerateResponse(response=text, **_ollama_answer(name, reply, done))

    def chatted(reply: Reply | None, text: str, *, done: bool) -> ChatResponse:
        return ChatResponse(message=AssistantMessage(content=text), **_ollama_answer(name, reply, done))

    async def ollama(request: Request, kind: type[GenerateRequest] | type[ChatRequest], say: Any) -> Any:
        start = time.monotonic()
        with reserved(start) as reservation:
            body = await asking(request, kind, reservation)
            asked = _asked_of_ollama(body)
            if not asked.pictures and not asked.prompt.strip():  # how programs ask that a model be loaded
                return _json(say(None, "", done=True))
            reply = await answer_request(asked, reservation, start)
        text = reply.texts[0]
        if body.stream is False:
            return _json(say(reply, text, done=True))
        lines = [*(say(None, word, done=False) for word in _pieces(text)), say(reply, "", done=True)]
        return StreamingResponse(_each(f"{_dumped(line)}\n" for line in lines), media_type="application/x-ndjson")

    streamed = {"application/x-ndjson": {"schema": {"type": "string"}}}

    @app.post("/api/generate", summary="Caption pictures", **_ollama(GenerateResponse, GenerateRequest, streamed))
    async def generate(request: Request) -> Any:
        return await ollama(request, GenerateRequest, generated)

    @app.post("/api/chat", summary="Caption the pictures of a chat", **_ollama(ChatResponse, ChatRequest, streamed))
    async def chat(request: Request) -> Any:
        return await ollama(request, ChatRequest, chatted)

    @app.get("/v1/models", summary="The model", **_openai(ModelsResponse))
    async def models() -> Any:
        return _json(ModelsResponse(data=[OpenAIModel(id=service.name, created=int(started.timestamp()))]))

    events = {"text/event-stream": {"schema": {"type": "string"}}}

    @app.post(
        "/v1/chat/completions",
        summary="Caption the pictures of a chat",
        **_openai(CompletionResponse, CompletionRequest, events),
    )
    async def completions(request: Request) -> Any:
        start = time.monotonic()
        with reserved(start) as reservation:
            body = await asking(request, CompletionRequest, reservation)
            reply = await answer_request(_asked_of_openai(body), reservation, start)
        reason = "stop" if reply.finished else "length"
        usage = Usage(
            prompt_tokens=reply.prompt_words,
            completion_tokens=reply.words,
            total_tokens=reply.prompt_words + reply.words,
        )
        answered = CompletionResponse(
            id=f"chatcmpl-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=service.name,
            choices=[
                ChatChoice(index=at, message=CompletionMessage(content=text), finish_reason=reason)
                for at, text in enumerate(reply.texts)
            ],
            usage=usage,
            system_fingerprint=f"meshcap-{meshcap.__version__}",
        )
        if not body.stream:
            return JSONResponse(answered.model_dump())
        with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return StreamingResponse(_each(_events(answered, with_usage)), media_type="text/event-stream")


def parse(model: type[Read], content: Any) -> Read:
    """
    Raises:
        RefusalError: 400: a field of another kind than the interface has.
    """
    try:
        return model.model_validate(content)
    except (ValidationError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise RefusalError(400, "the request is nested too deeply") from None
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))[:80] or "the request"
        raise RefusalError(400, f"{at} is wrong: {first['msg']}") from None


def error_response(path: str, error: MeshcapError) -> JSONResponse | None:
    """An error in the shape of the interface that a path belongs to; None: of neither."""
    found = error_out(error)
    if path.startswith("/api/"):
        return JSONResponse(OllamaError(error=found.message).model_dump(), found.status)
    if path in OPENAI_PATHS or path.startswith("/v1/models/"):
        kind = "invalid_request_error" if found.status < 500 else "server_error"
        body = OpenAIErrorBody(
            message=found.message, type=kind, param=None, code={401: "invalid_api_key"}.get(found.status)
        )
        return JSONResponse(OpenAIError(error=body).model_dump(), found.status)
    return None


def _asked_of_ollama(body: GenerateRequest | ChatRequest) -> Asked:
    prompt, images = "", []
    if isinstance(body, GenerateRequest):
        prompt, images = body.prompt or "", body.images or []
    else:
        for message in body.messages or []:  # the last pictures, and what was last said of them
            images = message.images or images
            prompt = message.content or "" if message.role == "user" else prompt
    predict = None if body.options is None else body.options.num_predict
    schema = {} if body.format == "json" else body.format or None
    return Asked([PictureIn(base64=one).given() for one in images], prompt, 1, predict, _mapping(schema))


def _asked_of_openai(body: CompletionRequest) -> Asked:
    prompt, pictures = "", list[Given]()
    for message in body.messages:
        parts = message.content if isinstance(message.content, list) else []
        text = message.content if isinstance(message.content, str) else " ".join(part.text or "" for part in parts)
        prompt = text or "" if message.role == "user" else prompt
        links = [
            part.image_url if isinstance(part.image_url, str) else part.image_url.url
            for part in parts
            if part.image_url
        ]
        if links:
            pictures = [_linked(link) for link in links]
    form, schema = body.response_format, None
    if form is not None and form.type in ("json_object", "json_schema"):
        schema = (form.json_schema.schema_ if form.json_schema else None) or {}
    return Asked(pictures, prompt, body.n or 1, body.max_completion_tokens or body.max_tokens, schema)


def _linked(link: str) -> Given:
    if link.startswith("data:"):
        if not re.match(r"data:[^,]{0,200};base64,", link):
            return RefusalError(422, "image_url is a data: URL of another kind: expected data:image/…;base64,…")
        return PictureIn(base64=link).given()
    if link.lower().startswith(("http://", "https://")):
        return PictureIn(url=link).given()
    return RefusalError(422, "image_url is no URL: expected data:image/…;base64,… or http(s)")


def _mapping(schema: Any) -> Mapping[str, Any] | None:
    return schema if isinstance(schema, Mapping) else None


def _reply(asked: Asked, wanted: PromptRequest, captions: Sequence[Caption], seconds: float) -> Reply:
    texts = answer(captions, wanted, n=asked.n)
    words = sum(len(text.split()) for text in texts)
    return Reply(texts, all(one.finished for one in captions), len(asked.prompt.split()), words, seconds)


def _ollama_answer(name: str, reply: Reply | None, done: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"model": name, "created_at": _time(datetime.now(UTC)), "done": done}
    if reply is None:
        return found | ({"done_reason": "load"} if done else {})
    spent = int(reply.seconds * 1e9)
    return found | {
        "done_reason": "stop" if reply.finished else "length",
        "total_duration": spent,
        "load_duration": 0,
        "prompt_eval_count": reply.prompt_words,
        "prompt_eval_duration": 0,
        "eval_count": reply.words,
        "eval_duration": spent,
    }


def _events(answered: CompletionResponse, with_usage: bool) -> Iterable[str]:
    """The answer as OpenAI's stream of events: the role, words, the end, perhaps the usage."""
    head = {"id": answered.id, "object": "chat.completion.chunk", "created": answered.created,
            "model": answered.model, "system_fingerprint": answered.system_fingerprint}  # fmt: skip

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps({**head, 'choices': choices, **more}, ensure_ascii=False)}\n\n"

    def piece(index: int, delta: dict[str, str], reason: str | None = None) -> str:
        more = {"usage": None} if with_usage else {}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return event([choice], **more)

    for choice in answered.choices:
        yield piece(choice.index, {"role": "assistant", "content": ""})
        for word in _pieces(choice.message.content):
            yield piece(choice.index, {"content": word})
        yield piece(choice.index, {}, choice.finish_reason)
    if with_usage:
        yield event([], usage=answered.usage.model_dump())
    yield "data: [DONE]\n\n"


def _pieces(text: str) -> list[str]:
    """A text in words, each with the space before it."""
    return re.findall(r"\s*\S+|\s+$", text)


async def _each(parts: Iterable[str]) -> AsyncIterator[str]:
    for part in parts:
        yield part


def _described(service: Service, name: str, started: datetime) -> dict[str, Any]:
    captioner = service.captioner
    family = captioner.model.name if captioner.backend.name == "torch" else captioner.backend.name
    count = captioner.backend.weights
    size = f"{count / 1e6:.0f}M" if count >= 1e6 else f"{count / 1e3:.0f}K"
    details = ModelDetails(
        family=family, families=[family], parameter_size=size,
        quantization_level=str(captioner.dtype).removeprefix("torch."),
    )  # fmt: skip
    digest = hashlib.sha256(f"{name} {meshcap.__version__} {count}".encode()).hexdigest()
    return {"name": name, "model": name, "modified_at": _time(started), "size": 4 * count, "digest": digest,
            "details": details}  # fmt: skip


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _dumped(answer: BaseModel) -> str:
    return json.dumps(answer.model_dump(exclude_none=True), ensure_ascii=False)


def _json(answer: BaseModel) -> Response:
    return JSONResponse(answer.model_dump(exclude_none=True))


STATUSES = (400, 401, 403, 405, 408, 413, 422, 500, 503, 504)


def _declared(
    tag: str,
    error: type[BaseModel],
    answer: type[BaseModel],
    request: type[BaseModel] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Any:
    """How a route is declared to OpenAPI: bodies are read by hand, under the limits of the server."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": error, "description": "one sentence"} for status in STATUSES
    }
    if more:
        responses[200] = {"content": dict(more), "description": "whole, or word by word"}
    declared: dict[str, Any] = {"tags": [tag], "response_model": answer, "responses": responses}
    if request is not None:
        body = request.model_json_schema(ref_template="#/components/schemas/{model}")
        inner = body.pop("$defs", {})
        text = json.dumps(body)
        while "#/components/schemas/" in text:
            text = re.sub(r'\{"\$ref": "#/components/schemas/(\w+)"\}', lambda found: json.dumps(inner[found[1]]), text)
        declared["openapi_extra"] = {
            "requestBody": {"required": True, "content": {"application/json": {"schema": json.loads(text)}}}
        }
    return declared


_ollama = partial(_declared, "Ollama", OllamaError)
_openai = partial(_declared, "OpenAI", OpenAIError)
