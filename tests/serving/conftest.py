"""A tiny captioner behind the door, in this process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from starlette.testclient import TestClient

from meshcap.captioner import Captioner
from serving import small

Opened = Callable[..., TestClient]


@pytest.fixture(scope="session")
def eyes() -> Captioner:
    """Shared, so only to look at."""
    return small.captioner()


@pytest.fixture
def opened(eyes: Captioner) -> Iterator[Opened]:
    """Servers with settings of their own, closed when the test is over."""
    with ExitStack() as stack:

        def one(given: Captioner | None = None, **settings: object) -> TestClient:
            return stack.enter_context(TestClient(small.app(given or eyes, **settings)))

        yield one


@pytest.fixture(scope="session")
def client(eyes: Captioner) -> Iterator[TestClient]:
    """A server with the usual settings."""
    with TestClient(small.app(eyes)) as client:
        yield client
