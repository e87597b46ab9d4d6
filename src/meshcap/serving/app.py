"""The HTTP side: FastAPI's routes, keys, headers and one-sentence errors; the socket and the server around it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import meshcap
from meshcap.errors import FailedError, MeshcapError
from meshcap.serving import metrics, protocols
from meshcap.serving.connections import KEEP_ALIVE, MOST_HEADER, protocol_class
from meshcap.serving.limits import RefusalError, Reservation
from meshcap.serving.schemas import (
    AliveResponse,
    CaptionRequest,
    CaptionResponse,
    ErrorResponse,
    LimitsOut,
    OptionsModel,
    PictureIn,
    ReadyResponse,
    RememberResponse,
    VersionResponse,
    entry_of,
    error_out,
    picture_out,
    read_request,
)
from meshcap.serving.service import Service

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
LINGER = 5  # seconds beyond the time limit of a request that a stopping server waits for the last answers
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
}
PUBLIC = (*PAGE, "/health", "/ready", "/openapi.json")  # no key needed
COUNTED_PATHS = (*PUBLIC, "/version", "/metrics", "/v1/caption", "/v1/remember", *protocols.PATHS)
REFUSALS = {
    400: "cannot be parsed", 401: "a key is missing", 403: "from another site", 408: "too slow to arrive",
    405: "another method", 413: "too much", 415: "another content type",
    422: "a broken picture, an unknown word or option", 500: "the server failed",
    503: "busy: see Retry-After", 504: "took too long",
}  # fmt: skip


def create_app(
    service: Service, *, keys: Sequence[str] = (), origins: Sequence[str] = (), hosts: Sequence[str] = ()
) -> FastAPI:
    """The application around a service, which it starts and closes.

    Args:
        keys: where any are given, requests must carry one: `Authorization: Bearer KEY` or `X-API-Key: KEY`.
        origins: other sites whose pages may send requests; none by default.
        hosts: names that requests may be sent to, without a port; any by default. A name of another site that leads to
            this machine is refused: pages of that site could else read the answers.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(
        title="meshcap",
        version=meshcap.__version__,
        description="Captions for pictures.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from another host; ours is at /docs
        redoc_url=None,
        responses={status: {"model": ErrorResponse, "description": REFUSALS[status]} for status in (401, 403, 405)},
    )
    app.add_middleware(Middleware, service=service, keys=keys, origins=origins, hosts=hosts)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
            expose_headers=["Retry-After"],
        )
    app.add_exception_handler(MeshcapError, lambda request, error: error_response(error, request.scope["path"]))
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(ClientDisconnect, lambda request, error: Response(status_code=499))  # nobody listens
    failed = FailedError("the server failed at this")
    app.add_exception_handler(Exception, lambda request, error: error_response(failed, request.scope["path"]))

    for path, (name, kind) in PAGE.items():
        app.add_api_route(path, _page(name, kind), methods=["GET", "HEAD"], include_in_schema=False)

    alive_answers = {503: {"model": AliveResponse, "description": "captions no longer come: restart it"}}

    @app.get("/health", summary="Alive", tags=["state"], response_model=AliveResponse, responses=alive_answers)
    async def health() -> Any:
        alive = service.alive
        return model_response(AliveResponse(alive=alive), 200 if alive else 503)

    ready_answers = {503: {"model": ReadyResponse, "description": "busy"}}

    @app.get("/ready", summary="Ready", tags=["state"], response_model=ReadyResponse, responses=ready_answers)
    async def ready() -> Any:
        ready = service.ready
        return model_response(ReadyResponse(ready=ready), 200 if ready else 503)

    @app.get("/version", summary="Versions, model and limits", tags=["state"], response_model=VersionResponse)
    async def version() -> Any:
        return model_response(server_info(service))

    @app.get("/metrics", summary="Counts for Prometheus", tags=["state"], response_class=PlainTextResponse)
    async def counts() -> Any:
        return Response(service.metrics.text(), media_type=metrics.TYPE)

    @app.post(
        "/v1/caption",
        summary="Caption one or many pictures",
        tags=["captions"],
        response_model=CaptionResponse,
        responses={status: {"model": ErrorResponse, "description": why} for status, why in REFUSALS.items()},
        openapi_extra=_request_schema(),
    )
    async def caption(request: Request) -> Any:
        start = time.monotonic()
        with Reservation(service.capacity, until=start + service.limits.seconds) as reservation:
            given, options = await read_request(request, service.limits, reservation)
            found = await service.caption(given, service.options(options), reservation)
        results = [picture_out(one) for one in found]
        seconds = time.monotonic() - start
        service.metrics.seconds.observe(seconds)
        answer = {"model": service.name, "results": results, "seconds": round(seconds, 4)}
        errors = [one.error for one in results if one.error is not None]
        if len(errors) == len(results):  # no caption at all: the first error is the request's
            return model_response(ErrorResponse(error=errors[0], **answer), errors[0].status)
        return model_response(CaptionResponse(**answer))

    @app.post(
        "/v1/remember",
        summary="Remember what a picture shows",
        description="Off unless the server was started with --remember. Later answers for pictures like it know of it.",
        tags=["memory"],
        response_model=RememberResponse,
        responses={status: {"model": ErrorResponse, "description": why} for status, why in REFUSALS.items()},
        openapi_extra=_remember_schema(),
    )
    async def remember(request: Request) -> Any:
        with Reservation(service.capacity, until=time.monotonic() + service.limits.seconds) as reservation:
            given, fields = await read_request(request, service.limits, reservation)
            id = await service.remember(given[0], entry_of(given, fields), reservation)
        return model_response(RememberResponse(id=id, entries=len(service.captioner.memory)))

    protocols.add_routes(app, service)
    return app


class Middleware:
    """Around every request: keys, other sites, headers, and a count of what was answered."""

    def __init__(self, app: Any, service: Service, keys: Sequence[str], origins: Sequence[str], hosts: Sequence[str]):
        self.app, self.service, self.origins = app, service, set(origins)
        self.hosts = {host.lower() for host in hosts}
        self.keys = [_digest(key) for key in keys]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"] if scope["path"] in COUNTED_PATHS else "other"

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.service.metrics.requests.add(path, str(message["status"]))
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self._refusal(Request(scope)) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        headers, path = request.headers, request.scope["path"]
        host = headers.get("host", "")
        if self.hosts and _host_name(host) not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            return error_response(RefusalError(403, f"this server is reached as {names}: see --allow-host"), path)
        site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "")
        # Browsers that send no Sec-Fetch-Site send Origin; programs send neither.
        foreign = site in ("cross-site", "same-site") if site else bool(origin) and origin.partition("://")[2] != host
        if request.method == "POST" and foreign and not {origin, "*"} & self.origins:
            # Without this, any page that a person opens could let a server on their own machine work for it. Another
            # port of the same machine is the same site, and not the same server.
            return error_response(RefusalError(403, "requests from pages of other sites are not allowed here"), path)
        # The path of the scope, not of the URL, which is made of the Host header as well.
        if self.keys and path not in PUBLIC and not self._has_key(request):
            needed = RefusalError(401, "an API key is needed: send it as 'Authorization: Bearer KEY'")
            answer = error_response(needed, path)
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        return None

    def _has_key(self, request: Request) -> bool:
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")
        # All are compared, each in the same time: how long it takes tells nothing about the keys.
        return sum(hmac.compare_digest(_digest(given), key) for key in self.keys) > 0


def _host_name(host: str) -> str:
    """Of a Host header, without its port: example.org:8000, [::1]:8000."""
    return (host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]).lower()


def model_response(answer: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> JSONResponse:
    """What the schema declares and nothing else; what is not there is left out."""
    return JSONResponse(answer.model_dump(exclude_none=True), status, headers)


def server_info(service: Service) -> VersionResponse:
    """Versions, model and limits."""
    captioner, limits = service.captioner, service.limits
    return VersionResponse(
        meshcap=meshcap.__version__,
        model=service.name,
        architecture=captioner.model.name if captioner.backend.name == "torch" else captioner.backend.name,
        words=len(captioner.vocabulary),
        device=str(captioner.device),
        dtype=str(captioner.dtype).removeprefix("torch."),
        limits=LimitsOut(
            bytes=limits.bytes,
            pixels=limits.pixels,
            pictures=limits.pictures,
            seconds=limits.seconds,
            max_words=captioner.backend.settings.max_length - 1,
        ),
        urls=service.fetcher is not None,
        memory=None if captioner.memory is None else len(captioner.memory),
        remember=service.remembers,
    )


def error_response(error: MeshcapError, path: str = "") -> JSONResponse:
    """One sentence, in the shape of the interface that the path belongs to."""
    answer = protocols.error_response(path, error)
    if answer is None:
        own = ErrorResponse(error=error_out(error))
        answer = model_response(own, own.error.status)
    if isinstance(error, RefusalError) and error.retry_after is not None:
        answer.headers["Retry-After"] = str(error.retry_after)
    return answer


def _unknown(request: Request, error: HTTPException) -> JSONResponse:
    message = {404: "there is nothing at this address", 405: "this address does not take that method"}
    refusal = RefusalError(error.status_code, message.get(error.status_code, str(error.detail)))
    answer = error_response(refusal, request.scope["path"])
    answer.headers.update(error.headers or {})  # Allow, of 405
    return answer


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _page(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    content = files(__package__).joinpath("page", name).read_bytes()

    async def show() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "no-cache"})

    return show


def _request_schema() -> dict[str, Any]:
    """The request's OpenAPI schema, which FastAPI cannot derive: the three kinds of bodies are read by hand."""
    options = OptionsModel.model_json_schema()["properties"]
    form = {"picture": {"type": "array", "items": {"type": "string", "format": "binary"}}, **options}
    query = [
        {"name": name, "in": "query", "required": False, "description": about.get("description", ""), "schema": about}
        for name, about in options.items()
    ]
    request = CaptionRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    pictures = request.pop("$defs")["PictureIn"]
    request["properties"]["pictures"]["items"] = pictures
    return {
        "parameters": query,
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {"schema": {"type": "object", "required": ["picture"], "properties": form}},
                "application/json": {"schema": request},
                "image/*": {"schema": {"type": "string", "format": "binary"}},
            },
        },
    }


def _remember_schema() -> dict[str, Any]:
    """As `_request_schema`, of a picture and what to remember of it."""
    caption = {"type": "string", "description": "What the picture shows, in your words."}
    names = {"type": "array", "items": {"type": "string"}, "description": "Of who or what is in it."}
    picture = {"type": "string", "format": "binary"}
    pictures = {"type": "array", "minItems": 1, "maxItems": 1, "items": PictureIn.model_json_schema()}
    listed = {"type": "string", "description": "Of who or what is in it, with commas between."}
    kinds: dict[str, dict[str, Any]] = {
        "multipart/form-data": {"picture": picture, "caption": caption, "names": listed},
        "application/json": {"pictures": pictures, "caption": caption, "names": names},
    }
    return {
        "requestBody": {
            "required": True,
            "content": {
                kind: {"schema": {"type": "object", "required": [next(iter(fields)), "caption"], "properties": fields}}
                for kind, fields in kinds.items()
            },
        }
    }


class Server(uvicorn.Server):
    """uvicorn's, but it calls `ready` once it listens, and stopping by a signal is not a failure."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self.ready = ready
        self.interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(number: int, frame: Any) -> None:
            self.interrupted = self.interrupted or number == signal.SIGINT
            self.handle_exit(number, frame)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """
    Raises:
        MeshcapError: the address is not this machine's, or taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=2048)
        # Of each connection that it takes: asyncio sees to it only where a socket was made with TCP's number. Without,
        # the second half of an answer waits 40 ms for the client to confirm the first.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    except OSError as error:
        raise MeshcapError(
            f"cannot listen at {host} port {port}: {error.strerror or error}; choose others with --host and --port"
        ) from error


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


FLOODS = ("Invalid HTTP request received.", "Unsupported upgrade request.", "No supported WebSocket library")


def _no_flood(record: logging.LogRecord) -> bool:
    """Lines that any client can cause as often as it likes are not written; `/metrics` counts requests."""
    return not record.getMessage().startswith(FLOODS)


def run(app: Any, at: socket.socket, *, seconds: float, log: bool, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was taken.

    Raises:
        KeyboardInterrupt: it was SIGINT.
        FailedError: the warm-up picture could not be captioned.
    """
    config = uvicorn.Config(
        app,
        log_level="info" if log else "warning",
        access_log=log,
        server_header=False,
        http=protocol_class(),
        ws="none",
        timeout_graceful_shutdown=int(seconds) + LINGER,
        timeout_keep_alive=KEEP_ALIVE,
        h11_max_incomplete_event_size=MOST_HEADER,
    )
    logging.getLogger("uvicorn.error").addFilter(_no_flood)
    server = Server(config, ready)
    server.run(sockets=[at])
    if not server.started:
        raise FailedError("the server could not start: the lines above say why")
    if server.interrupted:
        raise KeyboardInterrupt
