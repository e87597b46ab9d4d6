"""What a step computes does not depend on how the work is cut up."""

import io
from collections import Counter
from dataclasses import dataclass

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tiny
from meshcap.data.dataset import Sample
from meshcap.data.scenes import draw_scene
from meshcap.metrics.cider import cider_d
from meshcap.training.build import Parts
from meshcap.training.distributed import World
from meshcap.training.losses import advantages, scst_sum, xe_sum
from meshcap.training.pictures import Pixels, PixelViews
from meshcap.training.tasks import batch_of, shares
from meshcap.vision import create_vision
from training.made_up import (
    CPU,
    PICTURES,
    TOKENS,
    VOCABULARY,
    parts_of,
    reward,
    scst_task,
    settings_of,
    views,
    xe_task,
)

BATCH = numpy.array([3, 0, 7, 11, 5, 2])
Gradients = dict[str, Tensor]


def gradients(parts, task, step: int = 4) -> tuple[Gradients, dict[str, float]]:
    parts.model.zero_grad(set_to_none=True)
    task.ready()
    measured = task.backward(BATCH, step)
    found = {name: w.grad.clone() for name, w in parts.model.named_parameters() if w.grad is not None}
    return found, {name: value.item() for name, value in measured.items()}


def assert_same(one: Gradients, other: Gradients) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-6, rtol=1e-4, msg=name)


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 3))
def test_every_picture_comes_once_in_each_round(count: int, size: int, seed: int) -> None:
    steps = 3 * count // size + 1
    seen = numpy.concatenate([batch_of(step, size, count, seed) for step in range(steps)])
    for start in range(0, len(seen) - count + 1, count):
        assert sorted(seen[start : start + count]) == list(range(count))


def test_rounds_and_seeds_differ() -> None:
    first, second = batch_of(0, 30, 30, 0), batch_of(1, 30, 30, 0)
    assert first.tolist() != second.tolist() != sorted(second.tolist())
    assert first.tolist() != batch_of(0, 30, 30, 1).tolist()


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 5))
def test_ranks_and_parts_share_the_batch(count: int, size: int, parts: int) -> None:
    batch = numpy.arange(100, 100 + count)
    everyone = Counter(
        place for rank in range(size) for part in shares(batch, World(CPU, rank, size), parts) for place in part
    )
    assert everyone == Counter(range(count))


def test_xe_is_the_mean_over_all_words_of_the_batch() -> None:
    parts, settings = parts_of(), settings_of(label_smoothing=0.1)
    found, measured = gradients(parts, xe_task(parts, settings))
    captions = [[VOCABULARY.encode(one) for one in TOKENS[picture]] for picture in BATCH]
    ids = torch.full((6, 3, 9), VOCABULARY.pad)
    for picture, three in enumerate(captions):
        for place, words in enumerate(three):
            row = [VOCABULARY.bos, *words, VOCABULARY.eos]
            ids[picture, place, : len(row)] = torch.tensor(row)
    words = sum(len(one) + 1 for three in captions for one in three)
    parts.model.zero_grad()
    regions = views().view(torch.from_numpy(BATCH), training=True)
    loss = xe_sum(parts.model, regions, [ids], 0.1) / words
    loss.backward()
    assert measured["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert_same(found, {n: w.grad for n, w in parts.model.named_parameters() if w.grad is not None})


@pytest.mark.parametrize("accumulate", [2, 4, 6, 9])
def test_a_batch_in_parts_is_the_same_batch(accumulate: int) -> None:
    parts = parts_of()
    whole = gradients(parts, xe_task(parts, settings_of()))
    cut = gradients(parts, xe_task(parts, settings_of(accumulate=accumulate)))
    assert_same(whole[0], cut[0])
    assert whole[1]["loss"] == pytest.approx(cut[1]["loss"], rel=1e-5)


def test_ranks_add_up_to_one_process() -> None:
    parts = parts_of()
    whole, measured = gradients(parts, xe_task(parts, settings_of()))
    ranks = [gradients(parts, xe_task(parts, settings_of(), World(CPU, rank, 3))) for rank in range(3)]
    assert_same(whole, {name: sum(found[name] for found, _ in ranks) for name in whole})
    assert sum(one["loss"] for _, one in ranks) == pytest.approx(measured["loss"], rel=1e-5)


def test_other_steps_choose_other_captions() -> None:
    parts = parts_of()
    task = xe_task(parts, settings_of(captions=1))
    assert gradients(parts, task, 1)[1] == gradients(parts, task, 1)[1]
    assert gradients(parts, task, 1)[1] != gradients(parts, task, 2)[1]


def test_dropout_is_on_in_xe_and_off_in_scst() -> None:
    parts = parts_of(dropout=0.3)
    for task, on in ((xe_task(parts, settings_of()), True), (scst_task(parts, settings_of()), False)):
        task.ready()
        dropouts = [one for one in parts.model.modules() if isinstance(one, torch.nn.Dropout)]
        assert dropouts and all(one.training == on for one in dropouts)
    first, second = (gradients(parts, scst_task(parts, settings_of())) for _ in range(2))
    assert first[1] == second[1]
    assert first[1]["disagreement"] < 1e-5


def test_rewards_are_cider_d_of_the_captions_with_their_ends() -> None:
    """Against the metric itself, on words instead of ids, `<eos>` being a word like any other."""
    parts = parts_of()
    task = scst_task(parts, settings_of())
    heard = []
    judge = task.reward
    task.reward = lambda ids, pictures: heard.append((ids, pictures, judge(ids, pictures))) or heard[-1][2]
    _, measured = gradients(parts, task)
    ((ids, pictures, rewards),) = heard
    assert pictures.tolist() == BATCH.tolist()
    references = [[[*caption, "<eos>"] for caption in captions] for captions in TOKENS]
    words = VOCABULARY.words
    for picture, captions, values in zip(pictures.tolist(), ids.tolist(), rewards.tolist(), strict=True):
        for caption, value in zip(captions, values, strict=True):
            said = [words[one] for one in caption if one != VOCABULARY.pad]
            everyone = [["nothing"]] * PICTURES
            everyone[picture] = said
            expected = cider_of(everyone, references)[picture]
            assert value == pytest.approx(expected, abs=1e-4)
    assert measured["reward"] == pytest.approx(rewards.mean().item(), rel=1e-5)
    assert measured["spread"] == pytest.approx(rewards.std(1).mean().item(), rel=1e-5)
    assert measured["length"] == pytest.approx((ids != VOCABULARY.pad).sum().item() / 18, rel=1e-5)


def cider_of(candidates: list[list[str]], references: list[list[list[str]]]) -> list[float]:
    return [float(one) for one in cider_d(candidates, references).per_image]


def test_scst_gradient_is_the_mean_over_words_of_reinforce() -> None:
    parts = parts_of()
    task = scst_task(parts, settings_of())
    spoken = []
    draw = task.sampler.draw
    task.sampler.draw = lambda *given: spoken.append(draw(*given)) or spoken[-1]
    found, measured = gradients(parts, task)
    ids = spoken[0].ids
    rewards = reward()(ids, torch.from_numpy(BATCH))
    regions = views().view(torch.from_numpy(BATCH), training=False)
    loss, words = torch.zeros(()), 0
    parts.model.zero_grad()
    for picture in range(6):
        for sample in range(3):
            own = [one for one in ids[picture, sample].tolist() if one != VOCABULARY.pad]
            log_probs = parts.model(regions[picture : picture + 1], torch.tensor([[VOCABULARY.bos, *own[:-1]]]))[0]
            others = [rewards[picture, other].item() for other in range(3) if other != sample]
            advantage = rewards[picture, sample].item() - sum(others) / 2
            loss = loss - advantage * sum(log_probs[place, word] for place, word in enumerate(own))
            words += len(own)
    (loss / words).backward()
    assert measured["loss"] == pytest.approx(loss.item() / words, abs=1e-5)
    assert advantages(rewards).abs().max() > 0.01  # or this test would compare zeros
    assert_same(found, {n: w.grad for n, w in parts.model.named_parameters() if w.grad is not None})


def test_cross_entropy_mixed_in_adds_its_own_gradient() -> None:
    parts = parts_of()
    plain, plain_measures = gradients(parts, scst_task(parts, settings_of()))
    mixed, measures = gradients(parts, scst_task(parts, settings_of(xe_weight=0.3)))
    parts.model.eval()
    xe, _ = gradients(parts, xe_task(parts, settings_of()))  # no dropout here either
    assert_same(mixed, {name: plain[name] + 0.3 * xe[name] for name in plain})
    assert measures["reward"] == plain_measures["reward"]
    assert measures["disagreement"] < 1e-5


def test_each_rank_and_part_draws_its_own_words() -> None:
    parts = parts_of()
    heard: list[Tensor] = []

    class Judge:
        def __call__(self, ids: Tensor, pictures: Tensor) -> Tensor:
            heard.append(ids)
            return torch.rand(ids.shape[:2])

    task = scst_task(parts, settings_of(accumulate=2), judge=Judge())
    same = numpy.array([1, 1, 1, 1])  # of one picture all: only the draws can differ
    task.ready()
    task.backward(same, 0)
    assert len(heard) == 2
    task.backward(same, 1)
    assert not torch.equal(heard[0], heard[1])
    assert not torch.equal(heard[0], heard[2])  # nor are they those of another step
    assert not torch.equal(heard[0][0], heard[0][1])


def test_beams_in_training() -> None:
    parts = parts_of()
    found, measured = gradients(parts, scst_task(parts, settings_of(search="beam")))
    assert measured["disagreement"] < 1e-5
    assert sum(one.abs().sum() for one in found.values()) > 0


def seeing_parts() -> tuple[Parts, PixelViews]:
    """A vision that learns, and twelve drawn pictures for it."""
    torch.manual_seed(0)
    vision = create_vision("small-cnn", size=48)
    parts = Parts(tiny.build("m2", suppressed_ids=(0, 1, 2), dropout=0.0, d_input=vision.width), VOCABULARY, vision)
    samples = [Sample(str(n), ("a",), "train", Drawn(n)) for n in range(PICTURES)]
    pixels = Pixels(samples, vision.preprocess, keep="memory", device=CPU)
    return parts, PixelViews(pixels, torch.zeros(PICTURES, dtype=torch.bool), 0.0)


@dataclass(frozen=True)
class Drawn:
    number: int

    def read(self) -> bytes:
        buffer = io.BytesIO()
        draw_scene(self.number, 48).image.save(buffer, "PNG")
        return buffer.getvalue()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_vision_learns_from_what_was_said(accumulate: int) -> None:
    """Their gradient comes through a detour, in one backward of their own: it is that of the plain loss."""
    parts, looking = seeing_parts()
    settings = settings_of(scst_lr_vision=1e-3, xe_weight=0.3, accumulate=accumulate)
    task = scst_task(parts, settings, shown=looking)
    spoken = []
    draw = task.sampler.draw
    task.sampler.draw = lambda *given: spoken.append(draw(*given)) or spoken[-1]
    parts.vision.requires_grad_(True)
    task.ready()
    task.backward(BATCH, 4)
    found = {name: weight.grad.clone() for name, weight in parts.vision.named_parameters()}
    parts.vision.zero_grad(set_to_none=True)
    parts.model.zero_grad(set_to_none=True)

    places = shares(BATCH, World(CPU), accumulate)
    words = sum((one.ids != VOCABULARY.pad).sum() for one in spoken)
    chosen, xe_words = task.references(BATCH, 4)
    loss = torch.zeros(())
    for share, said in zip(places, spoken, strict=True):
        regions = parts.vision(looking.pixels[torch.from_numpy(BATCH[share])])
        judged = advantages(reward()(said.ids, torch.from_numpy(BATCH[share])))
        loss = loss + scst_sum(parts.model, regions, said.ids, said.log_probs, judged, 1.0, 0)[0] / words
        loss = loss + xe_sum(parts.model, regions, task.table.cut(chosen[share], task.shapes)) * 0.3 / xe_words
    loss.backward()
    assert sum(one.abs().sum() for one in found.values()) > 0
    for name, weight in parts.vision.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, atol=1e-6, rtol=1e-3, msg=name)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_hidden_regions_are_hidden_from_both_passes(accumulate: int) -> None:
    """Words are drawn from some of the regions, judged by the same ones, and the vision learns through those alone."""
    parts, looking = seeing_parts()
    settings = settings_of(scst_lr_vision=1e-3, scst_region_dropout=0.5, accumulate=accumulate)
    task = scst_task(parts, settings, shown=looking)
    seen = []
    draw = task.sampler.draw
    task.sampler.draw = lambda regions, *given: seen.append(regions) or draw(regions, *given)
    parts.vision.requires_grad_(True)
    task.ready()
    measured = task.backward(BATCH, 4)
    assert measured["disagreement"] < 1e-5
    everything = parts.vision(looking.pixels[torch.from_numpy(BATCH)])
    assert sum(len(one.features) for one in seen) == len(BATCH)
    assert {one.features.shape[1] for one in seen} == {everything.features.shape[1] // 2}
    assert not torch.equal(seen[0].boxes[0], seen[0].boxes[1])  # each picture has its own
    assert sum(weight.grad.abs().sum() for weight in parts.vision.parameters()) > 0


def test_fewer_captions_may_be_mixed_in() -> None:
    parts = parts_of()
    one = scst_task(parts, settings_of(xe_weight=0.3, scst_captions=1))
    all_three = scst_task(parts, settings_of(xe_weight=0.3))
    assert one.references(BATCH, 4)[1] < all_three.references(BATCH, 4)[1]


def test_what_is_drawn_may_be_shorter_than_what_is_read() -> None:
    parts = parts_of()
    task = scst_task(parts, settings_of(xe_weight=0.0, scst_max_length=3))
    spoken = []
    draw = task.sampler.draw
    task.sampler.draw = lambda *given: spoken.append(draw(*given)) or spoken[-1]
    gradients(parts, task)
    assert spoken[0].ids.shape[-1] == 3


@pytest.mark.parametrize(("xe_weight", "accumulate", "expected"), [(0.0, 1, 1), (0.5, 1, 1), (0.5, 3, 2)])
def test_regions_are_encoded_once(
    xe_weight: float, accumulate: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the draw, the gradient and the cross-entropy beside it together; a batch in parts is encoded twice, since
    its parts are not all kept in memory."""
    parts, looking = seeing_parts()
    counts: Counter[str] = Counter()
    encode, look = type(parts.model).encode, type(parts.vision).forward

    def counted_encode(self, regions, *more):
        counts["encoded"] += len(regions)
        return encode(self, regions, *more)

    def counted_look(self, pixels):
        counts["looked"] += len(pixels)
        return look(self, pixels)

    monkeypatch.setattr(type(parts.model), "encode", counted_encode)
    monkeypatch.setattr(type(parts.vision), "forward", counted_look)
    settings = settings_of(scst_lr_vision=1e-3, xe_weight=xe_weight, accumulate=accumulate)
    task = scst_task(parts, settings, shown=looking)
    parts.vision.requires_grad_(True)
    task.ready()
    task.backward(BATCH, 0)
    assert counts == {"encoded": expected * len(BATCH), "looked": expected * len(BATCH)}
    assert all(weight.grad is not None for weight in parts.model.encoder.parameters())
