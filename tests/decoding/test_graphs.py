"""Captured searches on a GPU: the same captions as on a CPU, again and again."""

import copy

import pytest
import torch

import tiny
from meshcap.decoding import (
    Beam,
    ConstrainedBeam,
    DiverseBeam,
    Ensemble,
    Extended,
    Extension,
    Graphs,
    Greedy,
    Rules,
    Sampling,
    Shares,
    Strategy,
    decode,
)
from meshcap.decoding.search import fill_up

pytestmark = pytest.mark.gpu

RULES = Rules(max_length=7, min_length=2, no_repeat_ngram=2, banned=(5,), bad_endings=(6,))
STRATEGIES = {
    "greedy": Greedy(),
    "beam": Beam(4, 0.7),
    "diverse": DiverseBeam(4, 2),
    "constrained": ConstrainedBeam([[[[7], [9, 4]], [[8]]]], 2),
}


@pytest.fixture(scope="module", autouse=True)
def plain_products():
    """Full float32: the comparison is with a CPU."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_same_captions_as_on_a_cpu(captioner, strategy: Strategy) -> None:
    model, graphs = copy.deepcopy(captioner).cuda(), Graphs()
    for seed in range(3):  # captured, then replayed over other pictures
        pictures = tiny.pictures(3, 6, 2, seed=seed)
        expected = decode(captioner, pictures, strategy, RULES, n_best=strategy.width)
        plain = decode(model, pictures.to("cuda"), strategy, RULES, n_best=strategy.width)
        captured = decode(model, pictures.to("cuda"), strategy, RULES, n_best=strategy.width, graphs=graphs)
        real = expected.scores > float("-inf")
        for found in (plain, captured):
            assert torch.equal(found.ids.cpu()[real], expected.ids[real])
            torch.testing.assert_close(found.scores.cpu(), expected.scores, atol=1e-4, rtol=1e-4)
    assert len(graphs.runs) == 1


def test_results_are_not_overwritten_by_the_next_batch() -> None:
    model, graphs = tiny.build("m2").cuda(), Graphs()
    first = decode(model, tiny.pictures(3, 6).to("cuda"), Beam(3), RULES, graphs=graphs)
    kept = first.ids.clone(), first.scores.clone(), first.log_probs.clone()
    decode(model, tiny.pictures(3, 6, seed=1).to("cuda"), Beam(3), RULES, graphs=graphs)
    for before, after in zip(kept, (first.ids, first.scores, first.log_probs), strict=True):
        assert torch.equal(before, after)


def test_captured_samples() -> None:
    model, graphs, pictures = tiny.build("m2").cuda(), Graphs(), tiny.pictures(3, 6).to("cuda")

    def sample(seed: int) -> list:
        return decode(model, pictures, Sampling(6, seed=seed), RULES, n_best=6, graphs=graphs).ids.tolist()

    first, again, other = sample(1), sample(1), sample(2)
    assert first == again
    assert first != other
    assert len(graphs.runs) == 1


def test_captured_ensembles_and_other_shapes() -> None:
    members = [tiny.build("m2").cuda(), tiny.build("transformer").cuda()]
    model, graphs = Ensemble(members), Graphs(most=2)
    for counts in ((3, 6), (4, 4), (2, 5, 1), (3, 6)):
        pictures = tiny.pictures(*counts).to("cuda")
        captured = decode(model, pictures, Beam(3), RULES, graphs=graphs)
        assert torch.equal(captured.ids, decode(model, pictures, Beam(3), RULES).ids)
        assert len(graphs.runs) <= 2


def test_words_for_the_moment_are_served_by_one_captured_run() -> None:
    model, graphs = tiny.build("m2").cuda(), Graphs()
    regions = fill_up(tiny.pictures(3, 6, 2).to("cuda"))
    for words, kin in ((("okapi",), (5, 6)), (("red panda",), (8,)), (("Rex",), (9, 4))):
        shares = Shares((tiny.VOCAB,), (kin,), torch.tensor([[0.9], [0.0], [0.5]]))
        extension = Extension(words, kin[:1], shares)
        expected = decode(Extended(model, extension), tiny.pictures(3, 6, 2).to("cuda"), Beam(4), RULES)
        roomy = Extended(model, extension.filled_up(len(regions)), roomy=True)
        encoded = roomy.encode(regions)
        captured = decode(roomy, regions, Beam(4), RULES, graphs=graphs, encoded=encoded, pictures=3)
        assert torch.equal(captured.ids, expected.ids)
        torch.testing.assert_close(captured.scores, expected.scores)
    assert len(graphs.runs) == 1


def test_weights_changed_in_place_are_seen() -> None:
    model, graphs, pictures = tiny.build("m2").cuda(), Graphs(), tiny.pictures(3, 6).to("cuda")
    decode(model, pictures, Beam(3), RULES, graphs=graphs)
    model.load_state_dict(tiny.build("m2", seed=4).state_dict())
    captured = decode(model, pictures, Beam(3), RULES, graphs=graphs)
    assert torch.equal(captured.ids, decode(model, pictures, Beam(3), RULES).ids)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_near(captioner, dtype: torch.dtype) -> None:
    model, pictures = copy.deepcopy(captioner).cuda().to(dtype), tiny.pictures(3, 6, 2)
    found = decode(model, pictures.to("cuda"), Beam(3), RULES, graphs=Graphs())
    ids = found.ids.cpu()
    spoken = torch.cat((torch.full_like(ids[..., :1], 2), ids[..., :-1]), -1)
    with torch.no_grad():
        expected = captioner(pictures, spoken).gather(-1, ids[..., None])[..., 0].exp()
    after_end = torch.arange(ids.shape[-1]) >= found.lengths.cpu()[..., None]
    assert (found.log_probs.cpu().exp() - expected).masked_fill(after_end, 0).abs().max() < 0.1
