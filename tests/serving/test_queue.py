"""A server with too much to do: it says so, and goes on with what it has."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from meshcap.caption import Caption
from meshcap.captioner import Captioner
from meshcap.errors import MeshcapError
from meshcap.options import CaptionOptions
from meshcap.regions import Regions
from meshcap.serving.limits import BODIES, Capacity, Limits, RefusalError, Reservation
from meshcap.serving.service import CaptionedPicture
from serving import small

CAPTION = "/v1/caption"


class Gate(Captioner):
    """Captions only while its gate is open."""

    def __init__(self) -> None:
        inner = small.captioner()
        super().__init__(inner.model, inner.vocabulary, inner.vision)
        self.open, self.arrived = threading.Event(), threading.Semaphore(0)
        self.open.set()

    def describe(self, regions: Regions, *given: Any, **more: Any) -> list[Caption]:
        self.arrived.release()
        assert self.open.wait(60)
        return super().describe(regions, *given, **more)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def closed(gate: Gate) -> None:
    """From now on; the server's own first picture is through."""
    assert gate.arrived.acquire(timeout=60)
    gate.open.clear()


def asked(client: TestClient, *, count: int = 1) -> httpx2.Response:
    return client.post(CAPTION, **small.form(*[small.picture()] * count))


def inside(client: TestClient, pictures: int) -> None:
    """Once so many pictures are inside."""
    until = time.monotonic() + 60
    while f"meshcap_pictures_in_flight {pictures}\n" not in client.get("/metrics").text:
        assert time.monotonic() < until


def test_a_full_server_says_when_to_come_back(gate: Gate, opened: Callable[..., TestClient]) -> None:
    client = opened(gate, queue=3, pictures=3, wait=0.0)
    closed(gate)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(asked, client, count=2)
        assert gate.arrived.acquire(timeout=60)
        inside(client, 2)
        too_many = asked(client, count=2)  # one has room, two have not
        assert too_many.status_code == 503 and int(too_many.headers["retry-after"]) >= 1
        assert too_many.json()["error"]["message"].startswith("the server is busy: try again in ")
        second = pool.submit(asked, client)
        inside(client, 3)
        assert asked(client).status_code == 503
        assert client.get("/ready").status_code == 503 and client.get("/health").status_code == 200
        gate.open.set()
        assert first.result().status_code == second.result().status_code == 200
    assert asked(client, count=3).status_code == 200
    assert client.get("/ready").status_code == 200


def test_a_request_has_its_time(gate: Gate, opened: Callable[..., TestClient]) -> None:
    client = opened(gate, seconds=0.5, wait=0.0)
    closed(gate)
    answer = asked(client)
    assert answer.status_code == 504
    assert answer.json()["error"]["message"] == "no caption within 0.5 s: try again later"
    assert asked(client).status_code == 504  # it waits behind the first and is cancelled there
    text = client.get("/metrics").text
    assert 'meshcap_pictures_total{result="late"} 2\n' in text and "meshcap_pictures_in_flight 0\n" in text
    gate.open.set()
    until = time.monotonic() + 60
    while asked(client).status_code != 200:  # on a busy machine even half a second may be over at once
        assert time.monotonic() < until


def test_clients_share_batches(opened: Callable[..., TestClient]) -> None:
    client = opened(wait=0.3, batch=16)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: asked(client), range(8)))
    assert [one.status_code for one in answers] == [200] * 8
    lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    assert lines["meshcap_batch_pictures_sum"] == "9"  # the server's own first picture is one
    assert int(lines["meshcap_batch_pictures_count"]) < 9


def test_bytes_are_forgotten_once_they_are_pixels(gate: Gate) -> None:
    service = small.service(gate, wait=0.0)
    service.start()
    closed(gate)

    async def visit() -> None:
        with Reservation(service.capacity) as reservation:
            reservation.reserve_bytes(1000)
            work = asyncio.create_task(service.caption([small.picture()], CaptionOptions(), reservation))
            assert await asyncio.to_thread(gate.arrived.acquire, timeout=60)
            assert (service.capacity.pictures, service.capacity.bytes) == (1, 0)  # it waits for the model
            gate.open.set()
            [found] = await work
            assert isinstance(found, CaptionedPicture)

    asyncio.run(visit())
    service.close()


def test_places_are_given_back() -> None:
    limits = Limits(bytes=100, queue=4, pictures=4)
    places = Capacity(limits, seconds_per_picture=lambda: 2.5)
    with Reservation(places) as reservation:
        reservation.reserve_pictures(3)
        reservation.reserve_bytes(BODIES * 100)
        assert (places.pictures, places.bytes) == (3, BODIES * 100)
        with pytest.raises(RefusalError) as full:
            reservation.reserve_bytes(1)
        assert (full.value.status, full.value.retry_after) == (503, 8)  # three pictures at 2.5 seconds each
        with pytest.raises(RefusalError), Reservation(places) as other:
            other.reserve_pictures(2)
        assert places.pictures == 3
        reservation.release_bytes()
        assert places.bytes == 0
    assert (places.pictures, places.bytes) == (0, 0)


@pytest.mark.parametrize("wrong", [{"queue": 0}, {"wait": 2}, {"pictures": 5, "queue": 4}, {"seconds": -1}])
def test_limits_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(MeshcapError, match="expected"):
        Limits(**wrong)
