"""The doors of Ollama and OpenAI: their real clients, and requests as programs send them."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import ollama
import openai
import pytest
from starlette.testclient import TestClient

from meshcap.captioner import Captioner
from meshcap.serving.prompts import keywords_of, read_prompt
from meshcap.serving.service import Service
from serving import small

KEY = "a-long-key-of-the-server"
PICTURE = small.picture()
BASE64 = base64.b64encode(PICTURE).decode()
DATA_URL = f"data:image/png;base64,{BASE64}"


@pytest.fixture(scope="module")
def port(eyes: Captioner) -> Iterator[int]:
    with small.listening(eyes) as port:
        yield port


@pytest.fixture(scope="module")
def theirs(port: int) -> ollama.Client:
    return ollama.Client(host=f"http://127.0.0.1:{port}", trust_env=False)


@pytest.fixture(scope="module")
def openais(port: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def part(url: str = DATA_URL) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(text: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}


# The real clients.


def test_ollama_knows_the_model(theirs: ollama.Client) -> None:
    [model] = theirs.list().models
    assert model.model == "tiny:latest" and model.details is not None and model.details.family == "m2"
    shown = theirs.show("tiny")
    assert shown.capabilities == ["completion", "vision"]
    assert shown.modelinfo is not None and shown.modelinfo["general.parameter_count"] > 1000
    assert [one.model for one in theirs.ps().models] == ["tiny:latest"]


def test_ollama_generates(theirs: ollama.Client, eyes: Captioner) -> None:
    said = eyes.caption(PICTURE)
    whole = theirs.generate("tiny", "Describe this.", images=[PICTURE])
    assert whole.response == said.text and whole.done and whole.done_reason == "stop"
    assert whole.eval_count == len(said.text.split()) and whole.total_duration and whole.total_duration > 0
    parts = list(theirs.generate("tiny", "Describe this.", images=[BASE64], stream=True))
    assert len(parts) > 3 and "".join(one.response or "" for one in parts) == said.text
    assert [one.done for one in parts] == [False] * (len(parts) - 1) + [True]
    loaded = theirs.generate("tiny")  # how programs have a model loaded
    assert (loaded.response, loaded.done_reason) == ("", "load")


def test_ollama_chats(theirs: ollama.Client, eyes: Captioner) -> None:
    said = eyes.caption(PICTURE)
    first = {"role": "user", "content": "What is this?", "images": [PICTURE]}
    assert theirs.chat("any-name", [first]).message.content == said.text
    parts = list(theirs.chat("tiny", [first], stream=True))
    assert "".join(one.message.content or "" for one in parts) == said.text and parts[-1].done
    # The picture of an earlier message is still the one that is talked of.
    more = [first, {"role": "assistant", "content": said.text}, {"role": "user", "content": "In four words, please."}]
    assert theirs.chat("tiny", more).message.content == eyes.caption(PICTURE, max_words=4).text != said.text


def test_ollama_is_told_what_is_wrong(theirs: ollama.Client) -> None:
    for ask, status in (
        (lambda: theirs.generate("tiny", "Tell me a story."), 400),
        (lambda: theirs.generate("tiny", "x", images=[base64.b64encode(b"no picture").decode()]), 422),
    ):
        with pytest.raises(ollama.ResponseError) as error:
            ask()
        assert error.value.status_code == status
        assert "picture" in error.value.error and not error.value.error.startswith("{")


def test_openai_completes(openais: openai.OpenAI, eyes: Captioner) -> None:
    said = eyes.caption(PICTURE, n=3)
    assert [one.id for one in openais.models.list()] == ["tiny"]
    whole = openais.chat.completions.create(model="tiny", messages=[user("What is this?", part())])
    assert whole.choices[0].message.content == said.text and whole.choices[0].finish_reason == "stop"
    words = len(said.text.split())
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, words, 3 + words)
    three = openais.chat.completions.create(model="tiny", messages=[user("What is this?", part())], n=3)
    assert [one.message.content for one in three.choices] == [said.text, *(one.text for one in said.alternatives)]


def test_openai_streams(openais: openai.OpenAI, eyes: Captioner) -> None:
    events = list(
        openais.chat.completions.create(
            model="tiny", messages=[user("What?", part())], stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(one.choices[0].delta.content or "" for one in events if one.choices)
    assert text == eyes.caption(PICTURE).text
    assert events[0].choices[0].delta.role == "assistant" and events[-2].choices[0].finish_reason == "stop"
    assert events[-1].usage is not None and events[-1].usage.completion_tokens == len(text.split())


def test_openai_is_told_what_is_wrong(openais: openai.OpenAI) -> None:
    create = openais.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="no picture in this request") as error:
        create(model="tiny", messages=[user("Tell me a story.")])
    assert error.value.type == "invalid_request_error"
    for url, message in (
        ("https://example.org/a.jpg", "fetches no URLs"),
        ("file:///etc/passwd", "no URL: expected"),
        ("data:image/png,abc", "of another kind"),
        ("data:image/png;base64,!!!", "no base64"),
    ):
        with pytest.raises(openai.UnprocessableEntityError, match=message):
            create(model="tiny", messages=[user("What?", part(url))])


def test_keys_are_asked_for(eyes: Captioner) -> None:
    with small.listening(eyes, keys=[KEY]) as port:
        address = f"http://127.0.0.1:{port}"
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="another", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="an API key is needed"):
            client.models.list()
        assert openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0).models.list().data
        with pytest.raises(ollama.ResponseError, match="an API key is needed"):
            ollama.Client(host=address).list()
        assert ollama.Client(host=address, headers={"Authorization": f"Bearer {KEY}"}).list().models


# Requests as programs send them.


def test_photoprism_asks_for_a_caption(client: TestClient, eyes: Captioner) -> None:
    """Its engine `ollama`: one picture in base64, no stream, a prompt in prose, options of a chat model."""
    prompt = (
        "Write one caption in the active voice that names the main subject and what it does. Avoid text formatting, "
        "meta-language, and filler words."
    )
    body = {"model": "gemma3:latest", "prompt": prompt, "suffix": "", "options": {"temperature": 0.1}, "stream": False,
            "images": [BASE64], "think": False}  # fmt: skip
    answer = client.post("/api/generate", json=body).json()
    assert answer["response"] == eyes.caption(PICTURE).text and answer["done"] is True


@pytest.mark.parametrize("form", ["json", "schema"])
def test_photoprism_asks_for_labels(client: TestClient, form: str) -> None:
    """With JSON as the format, or with a schema, the answer is a text that holds label objects."""
    item = {"name": {"type": "string"}, "confidence": {"type": "number"}, "topicality": {"type": "number"}}
    labels = {"type": "array", "items": {"type": "object", "required": list(item), "properties": item}}
    schema = {"type": "object", "required": ["labels"], "properties": {"labels": labels}}
    body = {
        "model": "gemma3:latest", "stream": False, "images": [BASE64], "format": "json" if form == "json" else schema,
        "system": "You label photos. Each label is a single-word noun. Avoid spaces, punctuation, or phrases.",
        "prompt": "Analyze the picture and return label objects with name, confidence (0-1), and topicality (0-1).",
        "options": {"temperature": 0.1, "top_p": 0.9, "stop": ["\n\n"]},
    }  # fmt: skip
    found = json.loads(client.post("/api/generate", json=body).json()["response"])["labels"]
    assert found and {tuple(sorted(one)) for one in found} == {("confidence", "name", "topicality")}
    assert {one["name"] for one in found} <= {"dog", "red", "ball"} and all(0 < one["confidence"] <= 1 for one in found)


def test_taggers_of_immich_ask_for_both(client: TestClient, eyes: Captioner) -> None:
    """A description with keywords below it, for the field that is searched."""
    prompt = "Describe this image briefly. Then list 2 relevant keywords for search (objects, colors)."
    message = {"role": "user", "content": prompt, "images": [BASE64]}
    body = {"model": "minicpm-v:latest", "messages": [message], "stream": False,
            "options": {"num_predict": 500, "temperature": 0.1}}  # fmt: skip
    text = client.post("/api/chat", json=body).json()["message"]["content"]
    sentence, _, keywords = text.partition("\n\nKeywords: ")
    assert sentence == eyes.caption(PICTURE).text and len(keywords.split(", ")) == 2
    prompt = "List tags for this photo as a comma-separated list. Return ONLY the tags, nothing else."
    body = {"model": "llava", "prompt": prompt, "images": [BASE64], "stream": False}
    tags = client.post("/api/generate", json=body).json()["response"].split(", ")
    assert set(tags) <= {"dog", "red", "ball"} and len(tags) == len(set(tags)) > 0


def test_open_webui(client: TestClient, eyes: Captioner) -> None:
    """Looks around, then chats in a stream; asks for a title without a picture, which is refused in one line."""
    assert client.get("/api/version").json()["version"].count(".") == 2
    assert client.get("/api/tags").json()["models"][0]["model"] == "tiny:latest"
    assert client.get("/api/ps").status_code == 200
    system = {"role": "system", "content": "You are helpful. Avoid the word \"red\"."}
    message = {"role": "user", "content": "what is it", "images": [BASE64]}
    body = {"model": "tiny:latest", "messages": [system, message], "stream": True, "options": {}, "keep_alive": "5m"}
    answer = client.post("/api/chat", json=body)
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert "".join(one["message"]["content"] for one in lines) == eyes.caption(PICTURE).text and lines[-1]["done"]
    title = {"model": "tiny:latest", "stream": False, "messages": [{"role": "user", "content": "### Task: a title"}]}
    refused = client.post("/api/chat", json=title)
    assert refused.status_code == 400 and "no picture" in refused.json()["error"]
    # As an OpenAI connection: text and picture in one message.
    body = {"model": "tiny", "stream": True, "messages": [user("what is it", part())], "max_tokens": 4}
    events = client.post("/v1/chat/completions", json=body).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(one.removeprefix("data: ")) for one in events[:-2]]
    said = "".join(one["choices"][0]["delta"].get("content", "") for one in chunks)
    assert said == eyes.caption(PICTURE, max_words=4).text


def test_curl_without_a_content_type(client: TestClient, eyes: Captioner) -> None:
    content = json.dumps({"model": "x", "images": [BASE64], "prompt": "", "stream": False})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/api/generate", content=content, headers=kind).json()["response"] == eyes.caption(PICTURE).text


def test_pages_of_other_sites_do_not_get_in(client: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example", "Content-Type": "text/plain"}
    answer = client.post("/api/generate", content="{}", headers=headers)
    assert answer.status_code == 403 and "other sites" in answer.json()["error"]


def test_limits_are_those_of_the_server(opened: Any) -> None:
    client = opened(pictures=2, bytes=20_000)
    three = {"prompt": "x", "images": [BASE64] * 3, "stream": False}
    for path, body in (
        ("/api/generate", three),
        ("/v1/chat/completions", {"messages": [user("x", part(), part(), part())]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x" * 30_000}]}),
    ):
        assert client.post(path, json=body).status_code == 413
    two = client.post("/api/generate", json=three | {"images": [BASE64] * 2}).json()["response"]
    assert [line[:3] for line in two.splitlines()] == ["1. ", "2. "]


def test_requests_of_another_kind(client: TestClient) -> None:
    for path in ("/api/generate", "/api/chat", "/v1/chat/completions", "/api/show"):
        wrong = b'{"name": 3, "messages": 3, "images": 3}'
        for body in (b"", b"[", b"[]", b"3", b"[" * 100_000, wrong, b'{"stream": "perhaps", "model": 3}'):
            answer = client.post(path, content=body)
            assert answer.status_code == 400, (path, body)
            error = answer.json()["error"]
            assert "\n" not in (error if path.startswith("/api/") else error["message"])
    assert client.get("/v1/chat/completions").json()["error"]["type"] == "invalid_request_error"
    assert client.get("/api/nothing").json() == {"error": "there is nothing at this address"}


# Prompts.


@pytest.fixture(scope="module")
def service(eyes: Captioner) -> Service:
    return small.service(eyes)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", {}),
        ("Describe this picture in detail, mentioning colours and mood.", {}),
        ("in five words", {"max_words": 5}),
        ("Describe it using no more than 6 words.", {"max_words": 6}),
        ("fewer than six words", {"max_words": 5}),
        ("no fewer than three words", {"min_words": 3}),
        ("Write 3-5 words.", {"min_words": 3, "max_words": 5}),
        ("exactly four words", {"min_words": 4, "max_words": 4}),
        ("at least three words", {"min_words": 3}),
        ("in at most 200 words", {}),  # more than the model says anyhow
        ("Give me three different captions.", {"n": 3}),
        ("two short alternatives, at most 4 words each", {"n": 2, "max_words": 4}),
        ("one or two sentences", {}),
        ('Do not use the word "red".', {"must_not": ("red",)}),
        ("Avoid the words red and dog.", {"must_not": ("red", "dog")}),
        ("Avoid filler words, formatting and redness.", {}),
        ("Use the word 'ball'.", {"must": ("ball",)}),
        ("Use the word 'zebra' and \"ball\".", {"must": ("ball",)}),  # what the model cannot say is ignored
        ("A caption with a dog.", {}),
    ],
)
def test_what_of_a_prompt_is_honoured(service: Service, prompt: str, expected: dict[str, Any]) -> None:
    wanted = read_prompt(prompt, service)
    assert wanted.options == service.options(expected) and wanted.sentence and not wanted.keywords


@pytest.mark.parametrize(
    ("prompt", "keywords", "sentence"),
    [
        ("List 15 keywords.", 15, False),
        ("comma-separated tags, please", 10, False),
        ("Return label objects.", 10, False),
        ("A caption and five keywords", 5, True),
        ("Describe it. No hashtags.", 0, True),
        ("Describe it without tags", 0, True),
    ],
)
def test_when_keywords_are_asked_for(service: Service, prompt: str, keywords: int, sentence: bool) -> None:
    wanted = read_prompt(prompt, service)
    assert (wanted.keywords, wanted.sentence) == (keywords, sentence)


def test_prompts_are_read_in_no_time(service: Service) -> None:
    for text in ("1-" * 500_000, "a " * 500_000, "'" * 1_000_000, "use the word " * 100_000, "in 9 " * 200_000):
        read_prompt(text, service)


def test_keywords_are_the_words_that_say_something(eyes: Captioner) -> None:
    caption = eyes.caption(PICTURE, n=5)
    found = keywords_of(caption, 10)
    said = {word for one in (caption, *caption.alternatives) for word in one.words}
    assert {one.name for one in found} == said - {"a", "of", "'s"}
    assert [one.confidence for one in found] == sorted((one.confidence for one in found), reverse=True)
    assert len(keywords_of(caption, 1)) == 1


def test_json_of_a_schema(client: TestClient, eyes: Captioner) -> None:
    """Texts are captions, lists are keywords, the rest is empty and of the right kind."""
    properties = {
        "title": {"type": "string"}, "keywords": {"type": "array", "items": {"type": "string"}},
        "confidence": {"type": "number"}, "camera": {"type": "string"}, "people": {"type": "integer"},
        "outdoors": {"type": "boolean"}, "place": {"type": "object", "properties": {"city": {"type": "string"}}},
    }  # fmt: skip
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": properties}}}
    body = {"messages": [user("What?", part())], "response_format": schema}
    found = json.loads(client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])
    said = eyes.caption(PICTURE)
    assert found.pop("keywords") and found.pop("confidence") == pytest.approx(said.confidence, abs=1e-3)
    assert found == {"title": said.text, "camera": "", "people": 0, "outdoors": False, "place": {"city": ""}}
    body["response_format"] = {"type": "json_object"}
    text = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    assert json.loads(text) == {"caption": said.text}


def test_requests_of_many_parts_are_refused_early(client: TestClient) -> None:
    """They are read, and schemas filled, on the event loop: 100,000 properties took 17 seconds of it."""
    wide = {"type": "object", "properties": {f"label{n}": {"type": "array"} for n in range(1001)}}
    nested = {"type": "array", "items": {"properties": {f"a{n}": {"properties": {"b": {}}} for n in range(501)}}}
    for schema in (wide, nested):
        answer = client.post("/api/generate", json={"images": [BASE64], "stream": False, "format": schema})
        assert answer.status_code == 422 and "1,000 properties" in answer.json()["error"]
    messages = [{"role": "user", "content": "x"}] * 1001
    for path in ("/api/chat", "/v1/chat/completions"):
        answer = client.post(path, json={"messages": messages})
        assert answer.status_code == 400 and "1000 items" in answer.text
