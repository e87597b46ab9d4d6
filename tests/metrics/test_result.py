"""Intervals and p-values: against plain loops, closed forms and their own promises."""

import numpy
import pytest

from meshcap.metrics.ngrams import bleu, bleu_from_statistics, bleu_statistics
from meshcap.metrics.result import Measure, differences, draws, holm, intervals, resampled


def mean(values: numpy.ndarray, name: str = "m") -> Measure:
    return Measure.mean(name, values)


def bleu_measures(candidates: list, references: list) -> list[Measure]:
    table = bleu_statistics(candidates, references)
    each = bleu_from_statistics(table)
    return [
        Measure(f"BLEU-{k + 1}", each[:, k], table, lambda sums, _, k=k: bleu_from_statistics(sums)[..., k])
        for k in range(4)
    ]


def captions(count: int, random: numpy.random.Generator) -> list[list[str]]:
    return [list(random.choice(list("abcdef"), size=random.integers(4, 9))) for _ in range(count)]


def test_resamples_are_what_scoring_the_drawn_pictures_again_gives() -> None:
    random = numpy.random.default_rng(3)
    candidates = captions(12, random)
    references = [captions(3, random) for _ in range(12)]
    values = random.normal(size=12)
    measures = [*bleu_measures(candidates, references), mean(values)]
    found = resampled(measures, 20, seed=5)
    (weights,) = draws(12, 20, seed=5)
    assert (weights.sum(1) == 12).all()
    for row, counts in zip(found, weights.astype(int), strict=True):
        drawn = numpy.repeat(numpy.arange(12), counts)
        again = [scores.corpus for scores in bleu([candidates[i] for i in drawn], [references[i] for i in drawn])]
        numpy.testing.assert_allclose(row, [*again, values[drawn].mean()], rtol=1e-12)


def test_draws_come_in_chunks_and_are_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = numpy.concatenate(list(draws(50, 400, seed=1)))
    monkeypatch.setattr("meshcap.metrics.result.CHUNK", 1000)
    chunks = list(draws(50, 400, seed=1))
    assert len(chunks) == 20
    assert (numpy.concatenate(chunks) == whole).all()
    assert abs(whole.mean(0) - 1).max() < 4 / numpy.sqrt(400)
    assert whole.var() == pytest.approx(1 - 1 / 50, rel=0.05)  # binomial(50, 1/50)


def test_interval_of_a_mean_is_that_of_the_normal_law() -> None:
    values = numpy.random.default_rng(0).normal(3, 2, size=400)
    ((low, high),) = intervals([mean(values)], 4000, seed=0)
    error = values.std() / numpy.sqrt(400)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    random = numpy.random.default_rng(1)
    held = 0
    for seed in range(400):
        ((low, high),) = intervals([mean(random.exponential(size=80))], 300, seed)
        held += low <= 1 <= high
    assert 0.89 <= held / 400 <= 0.975


def test_part_of_the_pictures() -> None:
    values = numpy.arange(10.0)
    measure = mean(values)
    assert measure.corpus(numpy.array([1, 3])) == 2
    assert intervals([measure], 50, 0, numpy.array([4])) == [(4.0, 4.0)]


def test_seed_repeats() -> None:
    measure = mean(numpy.random.default_rng(0).normal(size=30))
    assert intervals([measure], 100, 7) == intervals([measure], 100, 7) != intervals([measure], 100, 8)


def test_same_system_has_p_1_and_no_difference() -> None:
    values = numpy.random.default_rng(0).normal(size=50)
    (found,) = differences([mean(values)], [mean(values.copy())], 500, 0)
    assert (found.value, found.interval, found.p) == (0, (0, 0), 1)


def test_clearly_better_system() -> None:
    random = numpy.random.default_rng(0)
    values = random.normal(size=200)
    better = values + 0.3 + 0.1 * random.normal(size=200)  # far apart only because pictures are paired
    (found,) = differences([mean(better)], [mean(values)], 1000, 0)
    (back,) = differences([mean(values)], [mean(better)], 1000, 0)
    assert found.value == pytest.approx(0.3, abs=0.03)
    assert found.interval is not None and 0.25 < found.interval[0] < found.interval[1] < 0.35
    assert found.p == back.p == pytest.approx(2 / 1001)
    assert back.value == -found.value


def test_p_is_right_where_nothing_differs() -> None:
    random = numpy.random.default_rng(2)
    several = []
    for seed in range(300):
        a, b = random.normal(size=(2, 60))
        several.append(differences([mean(a)], [mean(b)], 200, seed)[0])
    small = numpy.mean([found.p < 0.05 for found in several])
    assert 0.02 <= small <= 0.10
    assert 0.38 <= numpy.mean([found.p < 0.5 for found in several]) <= 0.62
    for found in several:
        if found.p < 0.045:
            assert found.interval[0] > 0 or found.interval[1] < 0


def test_no_resamples() -> None:
    (found,) = differences([mean(numpy.ones(3))], [mean(numpy.zeros(3))], 0, 0)
    assert (found.value, found.interval, found.p) == (1, None, None)


def test_holm_by_hand() -> None:
    """The example of the correction's own table: sorted, times 4, 3, 2, 1, never falling, at most 1."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
