"""The door: what is asked and answered over HTTP, beside what the captioner says by itself."""

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

import meshcap
import tiny_captioner
from meshcap.caption import Caption
from meshcap.captioner import Captioner
from meshcap.serving import app
from meshcap.serving.limits import RefusalError
from meshcap.serving.schemas import CaptionResponse
from meshcap.vision.score import picture_of
from music_scores import EIGHT
from serving import small

CAPTION = "/v1/caption"
KEYS = ["first-key-of-the-server", "second-key-of-the-server"]


def encoded(*pictures: bytes, **options: Any) -> dict[str, Any]:
    return {"pictures": [{"base64": base64.b64encode(one).decode()} for one in pictures], **options}


def agrees(told: dict[str, Any], caption: Caption) -> None:
    """An answer is what the captioner itself says."""
    assert told["caption"] == caption.text
    assert [one["word"] for one in told["words"]] == caption.words
    for name in ("confidence", "probability", "score"):
        assert told[name] == pytest.approx(getattr(caption, name), abs=1e-3)
    assert (told["finished"], told["missing"]) == (caption.finished, caption.missing)


def test_three_ways_to_send_a_picture(client: TestClient, eyes: Captioner) -> None:
    content = small.picture()
    plain = base64.b64encode(content).decode()
    answers = [
        client.post(CAPTION, **small.form(content)),
        client.post(CAPTION, json=encoded(content)),
        client.post(CAPTION, content=content, headers={"Content-Type": "image/png"}),
        client.post(CAPTION, content=content, headers={"Content-Type": "application/octet-stream"}),
        client.post(CAPTION, json={"pictures": [{"base64": f"data:image/png;base64,{plain}"}]}),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert answer.json()["model"] == "tiny"
        [told] = answer.json()["results"]
        agrees(told, eyes.caption(content))


def test_scores_are_captioned_beside_pictures(opened: Callable[..., TestClient]) -> None:
    pytest.importorskip("symusic")
    eyes, music = small.captioner(), tiny_captioner.of_music()
    eyes._of_scores = music
    long, short = EIGHT.to_midi(), EIGHT.excerpt(0, 3).to_midi()
    client = opened(eyes)
    answer = client.post(CAPTION, **small.form(long, small.picture(), short, b"MThd broken", attention=True)).json()
    first, second, third, broken = answer["results"]
    agrees(second, eyes.caption(small.picture()))
    assert "facts" not in second and "roll" not in second
    for told, content, bars in ((first, long, 8), (third, short, 3)):
        expected = music.caption(content)
        agrees(told, expected)
        assert told["facts"] == json.loads(json.dumps(expected.facts))
        assert len(told["regions"]["boxes"]) == bars == len(told["words"][0]["attention"])
        roll = Image.open(io.BytesIO(base64.b64decode(told["roll"].partition(",")[2])))
        assert roll.size == picture_of(content).size
    assert broken["error"]["status"] == 422 and "damaged score" in broken["error"]["message"]
    alone = client.post(CAPTION, content=long, headers={"Content-Type": "audio/midi"}).json()["results"][0]
    agrees(alone, music.caption(long))
    assert "roll" not in alone
    of_music = opened(music)
    agrees(of_music.post(CAPTION, **small.form(short)).json()["results"][0], music.caption(short))
    refused = of_music.post(CAPTION, **small.form(small.picture()))
    assert refused.status_code == 422 and "reads scores" in refused.json()["error"]["message"]
    refused = opened(small.captioner()).post(CAPTION, **small.form(short))
    assert refused.status_code == 422 and "reads pictures" in refused.json()["error"]["message"]


def test_many_pictures_are_answered_in_their_order(client: TestClient, eyes: Captioner) -> None:
    pictures = [small.picture(number) for number in range(6)]
    expected = eyes.caption(list(pictures))
    assert len({one.text for one in expected}) > 1
    for answer in (client.post(CAPTION, **small.form(*pictures)), client.post(CAPTION, json=encoded(*pictures))):
        for told, caption in zip(answer.json()["results"], expected, strict=True):
            agrees(told, caption)


OPTIONS: list[dict[str, Any]] = [
    {"strategy": "greedy"},
    {"beams": 2, "n": 2, "length_penalty": 0.5},
    {"n": 7},
    {"strategy": "diverse", "beams": 4, "groups": 2, "n": 3},
    {"strategy": "sample", "n": 3, "temperature": 0.8, "top_k": 4, "top_p": 0.9, "seed": 5},
    {"must": ["ball", "dog"]},
    {"must": ["Ball of|dog of"], "beams": 3},
    {"must_not": ["red", "of"]},
    {"max_words": 3, "min_words": 2},
    {"no_repeat_ngram": 1, "good_endings": False},
]


@pytest.mark.parametrize("asked", OPTIONS, ids=str)
def test_options(client: TestClient, eyes: Captioner, asked: dict[str, Any]) -> None:
    content = small.picture(2)
    plain = {name: ",".join(value) if isinstance(value, list) else value for name, value in asked.items()}
    expected = eyes.caption(content, **asked)
    for answer in (
        client.post(CAPTION, json=encoded(content, **asked)),
        client.post(CAPTION, **small.form(content, **plain)),
        client.post(CAPTION, content=content, headers={"Content-Type": "image/png"}, params=plain),
    ):
        assert answer.status_code == 200, answer.text
        [told] = answer.json()["results"]
        agrees(told, expected)
        assert len(told.get("alternatives", [])) == len(expected.alternatives)
        for other, caption in zip(told.get("alternatives", []), expected.alternatives, strict=True):
            agrees(other, caption)


def test_options_differ(client: TestClient) -> None:
    """Otherwise the test above would compare the same caption ten times."""
    answers = [client.post(CAPTION, json=encoded(small.picture(2), **asked)).json() for asked in OPTIONS]
    assert len({json.dumps(one["results"]) for one in answers}) == len(OPTIONS)


def test_attention_on_request(client: TestClient, eyes: Captioner) -> None:
    content = small.picture()
    [plain] = client.post(CAPTION, **small.form(content, n=2)).json()["results"]
    assert "regions" not in plain and all("attention" not in word for word in plain["words"])
    [told] = client.post(CAPTION, **small.form(content, n=2, attention="true")).json()["results"]
    expected = eyes.caption(content, n=2, attention=True)
    for one, caption in ((told, expected), (told["alternatives"][0], expected.alternatives[0])):
        assert caption.attention is not None
        found = [word["attention"] for word in one["words"]]
        assert found == pytest.approx(caption.attention.numpy(), abs=1e-3)
    assert told["regions"]["grid"] == [small.CELLS, small.CELLS]
    assert told["regions"]["boxes"][5] == [0.25, 0.25, 0.5, 0.5]  # the second of the second row
    assert told["regions"]["window"] == [0, 0, 1, 1]


def test_what_was_cut_away_is_told(opened: Callable[..., TestClient]) -> None:
    wide = small.png(Image.new("RGB", (80, 40), "red"))
    told = opened(small.captioner("crop")).post(CAPTION, **small.form(wide, attention="true")).json()
    assert told["results"][0]["regions"]["window"] == [0.25, 0, 0.75, 1]


def test_answers_have_the_form_that_openapi_promises(client: TestClient) -> None:
    told = client.post(CAPTION, **small.form(small.picture(), b"broken", n=2, attention="true")).json()
    parsed = CaptionResponse.model_validate(told, strict=True)
    assert parsed.model_dump(exclude_none=True) == _without_none(told)
    promised = client.get("/openapi.json").json()
    asked = promised["paths"][CAPTION]["post"]["requestBody"]["content"]
    assert set(asked) == {"multipart/form-data", "application/json", "image/*"}
    for kind in ("multipart/form-data", "application/json"):
        assert {"strategy", "must", "n", "attention"} <= set(asked[kind]["schema"]["properties"])
    assert {"200", "413", "503", "504"} <= set(promised["paths"][CAPTION]["post"]["responses"])
    references = {part.partition('"')[0] for part in json.dumps(promised).split("#/components/schemas/")[1:]}
    assert references <= set(promised["components"]["schemas"])


def _without_none(told: Any) -> Any:
    if isinstance(told, dict):
        return {name: _without_none(value) for name, value in told.items() if value is not None}
    return [_without_none(one) for one in told] if isinstance(told, list) else told


def test_a_broken_picture_does_not_spoil_the_others(client: TestClient, eyes: Captioner) -> None:
    good = small.picture()
    answer = client.post(CAPTION, **small.form(good, b"no picture at all", good[:200]))
    assert answer.status_code == 200
    first, second, third = answer.json()["results"]
    agrees(first, eyes.caption(good))
    assert second["error"]["status"] == third["error"]["status"] == 422
    assert second["error"]["message"].startswith("the picture is no picture: expected JPEG")
    assert "damaged" in third["error"]["message"]


def test_a_broken_picture_alone_is_a_mistake(client: TestClient) -> None:
    answer = client.post(CAPTION, content=b"", headers={"Content-Type": "image/png"})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == "the picture is empty, expected a picture"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"must_not": ["dig"]}, "nearest known: dog"),
    ({"must": ["dig"]}, "nearest known: dog"),
    ({"must": ["dog"], "must_not": ["dog"]}, "must has 'dog', which is in must_not, too"),
    ({"must": ["dog"], "strategy": "sample"}, "must needs a beam search"),
    ({"must": ["dog"] * 9}, "must has 9 entries, expected at most 8"),
    ({"must": [[]]}, "must holds [], expected words"),
    ({"must": ["dog", "ball", "red", "of", "a", "dog dog", "ball ball"]}, "hypotheses, expected at most"),
    ({"strategy": "luck"}, "strategy is 'luck', expected one of beam, greedy"),
    ({"strategy": {"beams": 5}}, "expected one of beam, greedy"),
    ({"beams": 0}, "beams is 0, expected 1 or more"),
    ({"beams": 161}, "keeps 161 hypotheses, expected at most 160"),
    ({"temperature": 0, "strategy": "sample"}, "temperature is 0"),
    ({"n": 3, "strategy": "greedy"}, "n is 3, and this search keeps 1"),
    ({"max_words": 3, "min_words": 4}, "min_words is 4 and max_words is 3"),
    ({"max_words": 50}, "at most 8 words"),
    ({"beam": 3}, "'beam' is no option of captions"),
    ({"seed": "x" * 500}, "expected a whole number"),
]


@pytest.mark.parametrize(("options", "told"), REFUSED)
def test_options_without_sense(client: TestClient, options: dict[str, Any], told: str) -> None:
    answer = client.post(CAPTION, json=encoded(small.picture(), **options))
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert told in message and "\n" not in message and len(message) < 500


BAD_JSON: list[tuple[bytes, int, str]] = [
    (b"{", 400, "no JSON"),
    (b"[" * 100_000, 400, "no JSON"),
    (b"1" * 5000, 400, "no JSON"),
    (b"\xff", 400, "no JSON"),
    (b"[]", 422, "no object"),
    (b"{}", 422, "pictures"),
    (b'{"pictures": []}', 422, "pictures"),
    (b'{"pictures": [{}]}', 422, "both base64 and url, or neither"),
    (b'{"pictures": [{"base64": "abc"}]}', 422, "no base64"),
    (b'{"pictures": [{"base64": "\\u00e4"}]}', 422, "no base64"),
    (b'{"pictures": [{"base64": "eHl6"}]}', 422, "no picture"),
    (b'{"pictures": [{"url": "http://example.org/a.jpg"}]}', 422, "fetches no URLs"),
    (b'{"pictures": [{"file": "/etc/passwd"}]}', 422, "expected base64 or url"),
]


@pytest.mark.parametrize(("body", "status", "told"), BAD_JSON)
def test_json_without_sense(client: TestClient, body: bytes, status: int, told: str) -> None:
    answer = client.post(CAPTION, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, told in answer.json()["error"]["message"]) == (status, True), answer.text


FORM = "multipart/form-data; boundary=x"
BAD_FORMS: list[tuple[str, bytes, int, str]] = [
    ("multipart/form-data", b"", 400, "Missing boundary"),
    (FORM, b"nonsense", 400, "cannot be read"),
    (FORM, b"--x--\r\n", 422, "no picture"),
    (FORM, b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nz\r\n--x--\r\n', 422, "'picture'"),
    (FORM, b'--x\r\nContent-Disposition: form-data; filename="a"\r\n\r\nz\r\n--x--\r\n', 400, "name"),
    ("text/plain", b"hello", 415, "content type is text/plain"),
    ("", b"hello", 415, "content type is missing"),
]


@pytest.mark.parametrize(("kind", "body", "status", "told"), BAD_FORMS)
def test_forms_without_sense(client: TestClient, kind: str, body: bytes, status: int, told: str) -> None:
    answer = client.post(CAPTION, content=body, headers={"Content-Type": kind})
    assert (answer.status_code, told in answer.json()["error"]["message"]) == (status, True), answer.text


def test_limits_of_a_request(opened: Callable[..., TestClient]) -> None:
    client = opened(bytes=20_000, pixels=64 * 64, pictures=2, queue=4)
    good, kind = small.picture(), {"Content-Type": "image/png"}
    assert client.post(CAPTION, **small.form(good, good)).status_code == 200

    def refused(**request: Any) -> str:
        answer = client.post(CAPTION, **request)
        assert answer.status_code == 413
        return str(answer.json()["error"]["message"])

    assert "more than 2 pictures" in refused(**small.form(good, good, good))
    assert "more than 2 pictures" in refused(json=encoded(good, good, good))
    assert "more than 20,000 bytes" in refused(content=b"x" * 20_001, headers=kind)
    assert "more than 20,000 bytes" in refused(content=iter([b"x" * 15_000] * 2), headers=kind)  # no length stated
    assert "more than 20,000 bytes" in refused(**small.form(b"x" * 20_001))
    assert "pixels, more than" in refused(content=small.png(Image.new("L", (65, 64))), headers=kind)
    assert client.get("/ready").status_code == 200  # and every place was given back
    assert "meshcap_pictures_in_flight 0\n" in client.get("/metrics").text


def test_state(client: TestClient, opened: Callable[..., TestClient]) -> None:
    assert client.get("/health").json() == {"alive": True}
    assert client.get("/ready").json() == {"ready": True}
    facts = client.get("/version").json()
    assert (facts["meshcap"], facts["model"], facts["architecture"]) == (meshcap.__version__, "tiny", "m2")
    assert facts["words"] == len(small.WORDS) and facts["urls"] is False
    assert facts["limits"]["pictures"] == 32 and facts["limits"]["bytes"] == 32 * 2**20


def test_counts(opened: Callable[..., TestClient]) -> None:
    client = opened()
    client.post(CAPTION, **small.form(small.picture(), small.picture(), b"broken"))
    client.post(CAPTION, **small.form(b"broken"))
    client.get("/nowhere")
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert lines['meshcap_requests_total{path="/v1/caption",status="200"}'] == "1"
    assert lines['meshcap_requests_total{path="/v1/caption",status="422"}'] == "1"
    assert lines['meshcap_requests_total{path="other",status="404"}'] == "1"
    assert lines['meshcap_pictures_total{result="captioned"}'] == "2"
    assert lines['meshcap_pictures_total{result="refused"}'] == "2"
    assert lines["meshcap_caption_seconds_count"] == "2"
    assert lines["meshcap_batch_pictures_sum"] == "3"  # one of them looked at the server's own first picture
    assert int(lines["process_resident_memory_bytes"]) > 2**20


def test_the_page_and_its_headers(client: TestClient) -> None:
    kinds = {"/": "html", "/docs": "html", "/page.css": "css", "/page.js": "javascript", "/docs.js": "javascript"}
    for path, kind in kinds.items():
        answer = client.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"] == f"text/{kind}; charset=utf-8"
        assert "http://" not in answer.text and "https://" not in answer.text  # nothing from another host
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    for path in ("/", "/nowhere", "/version", "/openapi.json"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff" and "content-security-policy" in headers
        assert "access-control-allow-origin" not in headers


def test_addresses_that_are_none(client: TestClient) -> None:
    for path in ("/nowhere", "/redoc", "/../etc/passwd"):
        assert client.get(path).status_code == 404
    answer = client.get(CAPTION)
    assert answer.status_code == 405
    assert answer.json() == {"error": {"status": 405, "message": "this address does not take that method"}}


def test_keys(opened: Callable[..., TestClient]) -> None:
    client = opened(keys=KEYS)
    request = small.form(small.picture())
    wrong = [{}, {"Authorization": "Bearer no"}, {"X-API-Key": KEYS[0][:-1]}, {"Authorization": f"Basic {KEYS[0]}"}]
    for headers in wrong:
        answer = client.post(CAPTION, **request, headers=headers)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/version", headers=headers).status_code == 401
        assert client.get("/metrics", headers=headers).status_code == 401
    right = [{"Authorization": f"Bearer {KEYS[1]}"}, {"authorization": f"bearer {KEYS[0]}"}, {"X-API-Key": KEYS[1]}]
    for headers in right:
        assert client.post(CAPTION, **request, headers=headers).status_code == 200
    for path in ("/", "/page.js", "/openapi.json", "/health", "/ready"):
        assert client.get(path).status_code == 200


def test_keys_are_compared_in_the_same_time(opened: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr(app.hmac, "compare_digest", compare)
    client = opened(keys=KEYS)
    for key in ("x", KEYS[0], KEYS[1]):
        client.get("/version", headers={"X-API-Key": key})
    assert compared == [(32, 32)] * 6  # every key each time, of a length that tells nothing


def test_other_sites(opened: Callable[..., TestClient]) -> None:
    """Off unless told: a page of another site may neither read answers nor make the server work."""
    request, friend = small.form(small.picture()), "https://friend.example"

    def asked(client: TestClient, origin: str, site: str = "cross-site") -> tuple[int, str | None]:
        headers = {"Origin": origin, "Sec-Fetch-Site": site}
        answer = client.post(CAPTION, **request, headers=headers)
        return answer.status_code, answer.headers.get("access-control-allow-origin")

    closed, one, all_ = opened(), opened(origins=[friend]), opened(origins=["*"])
    assert asked(closed, friend) == asked(closed, "http://localhost:3000", "same-site") == (403, None)
    assert asked(closed, "http://testserver", "same-origin") == (200, None)
    assert asked(one, friend) == (200, friend)
    assert asked(one, "https://stranger.example") == (403, None)
    assert asked(all_, "https://stranger.example") == (200, "*")
    ask = {"Origin": friend, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "X-API-Key"}
    assert one.options(CAPTION, headers=ask).status_code == 200
    assert closed.options(CAPTION, headers=ask).status_code == 405


def test_pictures_by_url_where_allowed(opened: Callable[..., TestClient], eyes: Captioner) -> None:
    asked = []

    def fetcher(url: str) -> bytes:
        asked.append(url)
        if "private" in url:
            raise RefusalError(422, "the URL is not of a public address")
        return small.picture()

    client = opened(fetcher=fetcher)
    urls = ["https://example.org/a.png", "https://private.example/"]
    answer = client.post(CAPTION, json={"pictures": [{"url": url} for url in urls]})
    assert sorted(asked) == urls
    first, second = answer.json()["results"]
    agrees(first, eyes.caption(small.picture()))
    assert second["error"] == {"status": 422, "message": "the URL is not of a public address"}
    assert client.get("/version").json()["urls"] is True


def test_fetched_bytes_count_like_those_that_were_sent(opened: Callable[..., TestClient]) -> None:
    content = small.picture()
    client = opened(fetcher=lambda url: content, bytes=len(content))  # room for eight of them
    answer = client.post(CAPTION, json={"pictures": [{"url": "https://a.example/"}] * 9})
    told = [one.get("error", {}).get("status", 200) for one in answer.json()["results"]]
    assert sorted(told) == [200] * 7 + [503] * 2  # the request itself is some of it
    assert client.post(CAPTION, **small.form(content[:-500])).status_code == 422  # and all of it was given back
