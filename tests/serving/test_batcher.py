"""Pictures of many clients together: the same captions as alone, and nobody pays for another's picture."""

import threading
from collections.abc import Iterator

import numpy
import pytest
import torch
from torch import Tensor

from meshcap.captioner import Captioner
from meshcap.errors import FailedError
from meshcap.options import CaptionOptions
from meshcap.regions import Regions
from meshcap.serving.limits import RefusalError
from meshcap.serving.service import Batcher, PendingPicture
from serving import small

SECONDS = 30  # patience of the tests, never reached


@pytest.fixture
def batches() -> list[int]:
    return []


@pytest.fixture
def batcher(eyes: Captioner, batches: list[int]) -> Iterator[Batcher]:
    """Waits until eight pictures are there, or it is closed."""
    batcher = Batcher(eyes, batch=8, wait=SECONDS, begun=batches.append)
    batcher.start()
    yield batcher
    batcher.close()


def job(eyes: Captioner, number: int, **options: object) -> PendingPicture:
    return PendingPicture(eyes.read(small.picture(number)), CaptionOptions.parse(options))


def test_together_they_say_what_they_say_alone(eyes: Captioner, batcher: Batcher, batches: list[int]) -> None:
    asked = [{}, {"beams": 2, "n": 2}, {}, {"strategy": "greedy"}, {"must_not": ["red"]}, {"attention": True}]
    jobs = [job(eyes, number, **options) for number, options in enumerate(asked)]
    for one in jobs:  # one by one, as from different clients
        batcher.put([one])
    batcher.close()
    found = [one.result.result(SECONDS) for one in jobs]
    assert batches == [6]
    for number, (seen, one) in enumerate(zip(found, jobs, strict=True)):
        alone = eyes.caption(small.picture(number), one.options)
        assert seen.caption.text == alone.text
        assert seen.caption.log_probs == pytest.approx(alone.log_probs, abs=1e-4)
        assert len(seen.caption.alternatives) == len(alone.alternatives)
        assert (seen.boxes is not None) == one.options.attention


def test_no_batch_is_larger_than_allowed(eyes: Captioner, batcher: Batcher, batches: list[int]) -> None:
    jobs = [job(eyes, number) for number in range(19)]
    batcher.put(jobs)
    batcher.close()
    assert batches == [8, 8, 3] and all(one.result.done() for one in jobs)


def test_wide_searches_are_decoded_in_parts(eyes: Captioner, batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    describe = eyes.describe

    def counted(seen: Regions, *given: object, **more: object) -> object:
        sizes.append(len(seen))
        return describe(seen, *given, **more)

    monkeypatch.setattr(eyes, "describe", counted)
    jobs = [job(eyes, number) for number in range(7)]
    for one in jobs:
        one.width = 200
    batcher.put(jobs)
    batcher.close()
    assert [one.result.result(SECONDS).caption.text for one in jobs] == [
        eyes.caption(small.picture(number)).text for number in range(7)
    ]
    assert sizes[:3] == [3, 3, 1]  # 640 hypotheses at most


def test_what_cannot_be_taken_apart_is_seen_again(
    eyes: Captioner, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exported graph keeps pictures in an array of its own, and clients ask for different things."""

    class Opaque:
        def __init__(self, regions: Regions):
            self.regions = regions

    options = [{}, {"n": 2}, {}, {"strategy": "greedy"}]
    expected = [eyes.caption(small.picture(number), **one).text for number, one in enumerate(options)]
    see, describe = eyes.see, eyes.describe
    monkeypatch.setattr(eyes, "see", lambda pixels: Opaque(see(pixels)))
    monkeypatch.setattr(eyes, "describe", lambda seen, *given, **more: describe(seen.regions, *given, **more))
    jobs = [job(eyes, number, **one) for number, one in enumerate(options)]
    batcher.put(jobs)
    batcher.close()
    assert [one.result.result(SECONDS).caption.text for one in jobs] == expected


def test_draws_from_a_seed_do_not_depend_on_the_company(eyes: Captioner, batcher: Batcher) -> None:
    options = {"strategy": "sample", "seed": 7, "n": 4}
    jobs = [job(eyes, 0, **options), job(eyes, 1, **options), job(eyes, 0, **options)]
    batcher.put(jobs)
    batcher.close()
    first, _, third = (one.result.result(SECONDS).caption for one in jobs)
    assert first == third and first.text == eyes.caption(small.picture(0), jobs[0].options).text


def test_draws_without_a_seed_are_new_each_time(eyes: Captioner) -> None:
    batcher = Batcher(eyes, batch=1, wait=0)
    batcher.start()
    jobs = [job(eyes, 0, strategy="sample", n=8, temperature=3) for _ in range(2)]
    batcher.put(jobs)
    batcher.close()
    first, second = (one.result.result().caption for one in jobs)
    assert first != second


class Picky(torch.nn.Module):
    """Eyes that fail at black pictures."""

    def __init__(self, eyes: torch.nn.Module):
        super().__init__()
        self.eyes, self.preprocess, self.width = eyes, eyes.preprocess, eyes.width
        self.name, self.stack = eyes.name, eyes.stack
        self.device = torch.device("cpu")

    def forward(self, pixels: Tensor) -> Regions:
        if (pixels.flatten(1) == 0).all(1).any():
            raise RuntimeError("too dark")
        return self.eyes(pixels)


@pytest.fixture
def picky() -> Captioner:
    captioner = small.captioner()
    assert captioner.vision is not None
    captioner.backend.vision = Picky(captioner.vision)  # type: ignore[attr-defined]
    return captioner


def test_one_picture_does_not_spoil_the_others(
    picky: Captioner, eyes: Captioner, caplog: pytest.LogCaptureFixture
) -> None:
    batcher = Batcher(picky, batch=3, wait=SECONDS)
    batcher.start()
    jobs = [job(eyes, 0), PendingPicture(numpy.zeros((3, 16, 16), numpy.uint8), CaptionOptions()), job(eyes, 1)]
    batcher.put(jobs)
    assert jobs[0].result.result(SECONDS).caption.text == eyes.caption(small.picture(0)).text
    with pytest.raises(FailedError, match=r"^the captioner failed at this picture$"):
        jobs[1].result.result(SECONDS)
    assert jobs[2].result.result(SECONDS).caption.text == eyes.caption(small.picture(1)).text
    assert "too dark" in caplog.text  # for whoever runs the server, not for clients
    batcher.close()


def test_whoever_went_away_is_skipped(eyes: Captioner, batcher: Batcher, batches: list[int]) -> None:
    jobs = [job(eyes, number) for number in range(3)]
    batcher.put(jobs)
    assert jobs[1].result.cancel()
    batcher.close()
    assert batches == [2] and jobs[0].result.done() and jobs[2].result.done()


def test_an_end_finishes_what_was_taken(eyes: Captioner, batcher: Batcher) -> None:
    jobs = [job(eyes, number) for number in range(20)]
    batcher.put(jobs)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    assert all(one.result.result(SECONDS).caption.words for one in jobs)
    closing.join(SECONDS)
    assert not batcher.alive and not batcher.thread.is_alive()
    with pytest.raises(RefusalError, match="stopping") as refused:
        batcher.put([job(eyes, 0)])
    assert refused.value.status == 503 and refused.value.retry_after


def test_the_pace_is_known(eyes: Captioner, batcher: Batcher) -> None:
    assert batcher.seconds_per_picture == 0
    batcher.put([job(eyes, 0)])
    batcher.close()
    assert batcher.seconds_per_picture > 0


def test_nobody_waits_for_company_for_ever(eyes: Captioner) -> None:
    batcher = Batcher(eyes, batch=8, wait=0.01)
    batcher.start()
    one = job(eyes, 0)
    batcher.put([one])
    assert one.result.result(SECONDS).caption.words
    batcher.close()
