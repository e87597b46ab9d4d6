"""A trial: it measures what it says, on captions that the measuring fit had not seen."""

import numpy
import pytest

from meshcap.calibration import Calibration
from meshcap.errors import MeshcapError
from meshcap.evaluation.calibration_fit import reliability, try_calibration

NOUNS = "dog cat boat tree house car ball fish star heart".split()


def made(count: int, seed: int = 0) -> tuple[list[str], list[list[str]], list[list[float]], numpy.ndarray]:
    """Captions of four nouns, each right with a known chance that the log-probabilities tell, though not as it is."""
    luck = numpy.random.default_rng(seed)
    chances = luck.uniform(0.2, 1, count)
    captions, references = [], []
    for chance in chances:
        true, false = numpy.split(luck.permutation(NOUNS), [5])
        said = [right if luck.random() < chance else wrong for right, wrong in zip(true[:4], false[:4], strict=True)]
        captions.append("a " + " and a ".join(said))
        references.append([f"the {true[0]} near a {true[1]}", f"some {true[2]}s with {true[3]}s and {true[4]}s"])
    log_probs = [[0.3 * numpy.log(chance)] * 4 for chance in chances]
    return captions, references, log_probs, chances


def test_known_chances_are_found_and_figures_are_of_held_out_captions() -> None:
    captions, references, log_probs, chances = made(1500)
    trial = try_calibration(captions, references, log_probs, fitted_on={"data": "made"})
    assert trial.shares.mean() == pytest.approx(chances.mean(), abs=0.02)
    assert numpy.abs(trial.expected - chances).mean() < 0.03
    assert numpy.array([trial.calibration.apply(one) for one in log_probs]) == pytest.approx(chances, abs=0.1)
    assert trial.plain == pytest.approx(chances**0.3)
    assert trial.before == reliability(trial.plain, trial.shares)
    assert trial.before.error == pytest.approx(float((chances**0.3 - chances).mean()), abs=0.02)
    assert trial.after.error < 2 * trial.after.noise
    assert trial.calibration.fitted_on["data"] == "made" and trial.calibration.fitted_on["tokenizer"] == "ptb"
    figures = trial.figures()
    assert (figures["captions"], figures["calibration_error"]) == (1500, trial.after.error)


def test_a_fifth_is_foretold_by_the_other_four() -> None:
    """What a caption is worth changes what is expected of others, and nothing that is expected of itself."""
    captions, references, log_probs, _ = made(100)
    first = try_calibration(captions, references, log_probs).expected
    for place in range(3):
        other = ["a plane" if at == place else text for at, text in enumerate(captions)]
        again = try_calibration(other, references, log_probs).expected
        assert again[place] == first[place]
        assert (again != first).any()


def test_tokens_of_other_languages_count_as_they_are() -> None:
    captions, references = ["собака бежит"] * 20, [["собака спит"]] * 20
    trial = try_calibration(captions, references, [[-0.5, -0.1]] * 20, tokenizer="unicode")
    assert trial.shares.tolist() == [0.5] * 20
    assert trial.calibration.apply([-0.5, -0.1]) == pytest.approx(0.5, abs=1e-6)


def test_too_few() -> None:
    captions, references, log_probs, _ = made(19)
    with pytest.raises(MeshcapError, match="too few"):
        try_calibration(captions, references, log_probs)
    assert isinstance(try_calibration(*made(20)[:3]).calibration, Calibration)
