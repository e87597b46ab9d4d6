"""Rules that hold for every test, and what several rooms test with."""

import os
import sys
import tempfile
from typing import Any

import pytest


def pytest_configure() -> None:
    from hypothesis import settings

    # What a person remembers on this machine changes captions: tests begin with nothing.
    os.environ["XDG_DATA_HOME"] = os.path.join(tempfile.gettempdir(), f"meshcap-tests-{os.getpid()}-nothing")

    os.environ["TERM"] = "xterm"  # a dumb terminal, as some runners have, is always 80 columns wide

    # The same examples every time: a failure is a change in the code, never luck. Nothing is timed.
    settings.register_profile("meshcap", derandomize=True, deadline=None, max_examples=30)
    settings.load_profile("meshcap")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_tests:
        return
    import torch  # only now: a run without gpu tests need not wait for it

    if not torch.cuda.is_available():
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "captioner" in metafunc.fixturenames:
        import tiny

        names: list[Any] = tiny.names()
        if metafunc.definition.get_closest_marker("compiles"):  # variants are left to the slow tests
            names = [pytest.param(one, marks=pytest.mark.slow) if one in tiny.VARIANTS else one for one in names]
        metafunc.parametrize("captioner", names, indirect=True)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Where torch is in use: the same random numbers for every test, and one thread, since tests run side by side."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def captioner(request: pytest.FixtureRequest):
    """Each registered captioner and each variant of M², tiny; shared, so only to look at."""
    import tiny

    return tiny.shared(request.param)
