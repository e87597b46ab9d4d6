"""What `decoding.search` asks of a captioner: stepping is reading, whoever descends from whom; one graph for all."""

import copy

import pytest
import torch

import tiny
from meshcap.decoding import Beam, ConstrainedBeam, Ensemble, Graphs, Rules, Strategy, decode, search
from meshcap.training.losses import AttentionLoss, xe_loss

PICTURES = tiny.pictures(3, 6, 2)
WIDTH, STEPS = 3, 6


@torch.no_grad()
def expect_steps_to_be_reading(model) -> None:
    """Random words after random parents, each step against reading all that was said from the start."""
    config = model.config
    generator = torch.Generator().manual_seed(1)
    said = [[[] for _ in range(WIDTH)] for _ in range(len(PICTURES))]
    words = torch.full((len(PICTURES), WIDTH), config.bos)
    state = model.start(model.encode(PICTURES), width=WIDTH, length=STEPS)
    for _ in range(STEPS):
        for picture, row in enumerate(words.tolist()):
            said[picture] = [[*before, word] for before, word in zip(said[picture], row, strict=True)]
        log_probs = model.step(words, state)
        expected = model(PICTURES, torch.tensor(said))[:, :, -1]
        torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)
        parents = torch.randint(WIDTH, words.shape, generator=generator)
        model.reorder(state, parents)
        said = [[list(one[parent]) for parent in row] for one, row in zip(said, parents.tolist(), strict=True)]
        words = torch.randint(3, config.vocab_size, words.shape, generator=generator)


def test_stepping_is_reading(captioner) -> None:
    expect_steps_to_be_reading(captioner)


def test_stepping_an_ensemble_is_reading() -> None:
    expect_steps_to_be_reading(Ensemble([tiny.shared("m2"), tiny.shared("transformer"), tiny.shared("m2-softmax")]))


def test_a_search_may_begin_with_encoded_pictures(captioner, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = decode(captioner, PICTURES, Beam(3), Rules(max_length=STEPS), n_best=3)
    with torch.no_grad():
        encoded = captioner.encode(PICTURES)
    monkeypatch.setattr(captioner, "encode", None)  # whoever encodes again fails
    found = decode(captioner, PICTURES, Beam(3), Rules(max_length=STEPS), n_best=3, encoded=encoded)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.log_probs, expected.log_probs)


def test_reordering_matters(captioner) -> None:
    """The comparison above would notice: what was said, and by whom, changes what follows."""
    words = torch.tensor([[2, 2, 2], [4, 5, 6]])

    def after(parents: list[int]) -> torch.Tensor:
        state = captioner.start(captioner.encode(PICTURES), width=WIDTH, length=STEPS)
        for row in words:
            captioner.step(row.expand(len(PICTURES), -1), state)
        captioner.reorder(state, torch.tensor(parents).expand(len(PICTURES), -1))
        return captioner.step(torch.full((len(PICTURES), WIDTH), 7), state)

    with torch.no_grad():
        kept, swapped = after([0, 1, 2]), after([1, 1, 0])
    torch.testing.assert_close(swapped, kept[:, [1, 1, 0]])
    assert (kept.exp() - swapped.exp())[:, [0, 2]].abs().max() > 1e-3


def test_equal_shapes_give_states_of_equal_shapes(captioner) -> None:
    def state(seed: int) -> dict:
        return captioner.start(captioner.encode(tiny.pictures(3, 6, 2, seed=seed)), width=WIDTH, length=STEPS)

    with torch.no_grad():
        first, second = state(0), state(1)
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in first.items()}
        assert shapes == {name: (tensor.shape, tensor.dtype) for name, tensor in second.items()}
        addresses = {name: tensor.data_ptr() for name, tensor in first.items()}
        captioner.step(torch.full((3, WIDTH), captioner.config.bos), first)
        captioner.reorder(first, torch.zeros(3, WIDTH, dtype=torch.long))
    # all that changes, changes in place: a captured step can be replayed
    assert addresses == {name: tensor.data_ptr() for name, tensor in first.items()}
    assert shapes == {name: (tensor.shape, tensor.dtype) for name, tensor in first.items()}


def test_captions_read_together_or_apart(captioner) -> None:
    """(B, S, T) ids are S captions of each picture, (B, T) ids are one."""
    ids = torch.randint(3, captioner.config.vocab_size, (len(PICTURES), 4, 5))
    with torch.no_grad():
        together = captioner(PICTURES, ids)
        apart = torch.stack([captioner(PICTURES, one) for one in ids.unbind(1)], 1)
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)


def test_later_words_change_nothing_before_them(captioner) -> None:
    ids = torch.randint(3, captioner.config.vocab_size, (len(PICTURES), 6))
    other = ids.clone()
    other[:, 4:] = captioner.config.pad
    with torch.no_grad():
        log_probs, changed = captioner(PICTURES, ids), captioner(PICTURES, other)
    torch.testing.assert_close(log_probs[:, :4], changed[:, :4])
    assert (log_probs[:, 4:].exp() - changed[:, 4:].exp()).abs().max() > 1e-3


def test_log_probs_are_normalised(captioner) -> None:
    ids = torch.randint(3, captioner.config.vocab_size, (len(PICTURES), 4))
    with torch.no_grad():
        log_probs = captioner(PICTURES, ids)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(len(PICTURES), 4))
    never = torch.zeros(captioner.config.vocab_size, dtype=torch.bool)
    never[list(captioner.config.suppressed)] = True
    assert torch.equal(log_probs.isneginf(), never.expand_as(log_probs))


@pytest.fixture
def whole_graph():
    """Compile without a break; the graph then runs as it is, which is quick and compares exactly."""
    torch._dynamo.reset()
    yield lambda function: torch.compile(function, fullgraph=True, backend="eager")
    torch._dynamo.reset()


@pytest.mark.compiles
def test_step_is_one_graph(captioner, whole_graph) -> None:
    def step(ids: torch.Tensor, state: dict, parents: torch.Tensor) -> torch.Tensor:
        log_probs = captioner.step(ids, state)
        captioner.reorder(state, parents)
        return log_probs

    with torch.no_grad():
        encoded = captioner.encode(PICTURES)
        plain, compiled = (captioner.start(encoded, width=WIDTH, length=STEPS) for _ in range(2))
        run = whole_graph(step)
        for count in range(3):
            ids = torch.tensor([[4, 5, 6]]).expand(3, -1) + count
            parents = torch.tensor([[2, 0, 0]]).expand(3, -1)
            torch.testing.assert_close(run(ids, compiled, parents), step(ids, plain, parents))
    for name, tensor in plain.items():
        torch.testing.assert_close(compiled[name], tensor)


@pytest.mark.compiles
def test_training_loss_is_one_graph(captioner, whole_graph) -> None:
    ids = torch.randint(4, captioner.config.vocab_size, (len(PICTURES), 2, 6))

    def run(loss) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model = copy.deepcopy(captioner).train()  # of its own: a running baseline moves
        torch.manual_seed(0)  # the same dropout, the same draws
        value = loss(model, PICTURES, ids, attention_loss=AttentionLoss.of(model))
        return value, torch.autograd.grad(value, list(model.parameters()), allow_unused=True)

    value, gradients = run(xe_loss)
    compiled_value, compiled_gradients = run(whole_graph(xe_loss))
    torch.testing.assert_close(compiled_value, value)
    assert all(one is not None for one in gradients)
    for one, other in zip(gradients, compiled_gradients, strict=True):
        torch.testing.assert_close(one, other)


class Replayed(search.DecodeRun):
    """What a captured run does on a GPU: it works on tensors of its own."""

    def __init__(self, model, regions, *more):
        super().__init__(model, regions.each(torch.clone), *more)

    def show(self, regions, encoded=None) -> None:
        for own, given in zip(self.regions.parts(), regions.parts(), strict=True):
            if own is not None:
                own.copy_(given)


@pytest.mark.parametrize("strategy", [Beam(3), ConstrainedBeam([[[[7], [9, 4]]]], 2)], ids=["beam", "constrained"])
@torch.no_grad()
def test_one_run_serves_batches_of_about_a_size(monkeypatch: pytest.MonkeyPatch, strategy: Strategy) -> None:
    monkeypatch.setattr(search, "CapturedRun", Replayed)
    model, rules, graphs = tiny.shared("m2"), Rules(max_length=6), Graphs()
    for counts in ((6, 5, 3), (2, 6, 4, 1), (6, 6, 6), (6,)):
        pictures = tiny.pictures(*counts)
        run = graphs.get(model, pictures, strategy, rules)
        run.begin()
        for _ in range(rules.max_length):
            run.advance()
        found = run.best(2, pictures, attention=True)
        expected = decode(model, pictures, strategy, rules, n_best=2, attention=True)
        assert torch.equal(found.ids, expected.ids) and found.ids.shape[0] == len(counts)
        for name in ("scores", "log_probs", "lengths", "satisfied", "unconstrained"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))
        torch.testing.assert_close(found.attention, expected.attention)
    # Three, and four with a mask; three without one; one alone.
    assert len(graphs.runs) == 3
    assert [search.bucket(count) for count in (1, 2, 3, 5, 33, 64, 65, 256, 257)] == [1, 2, 4, 8, 64, 64, 128, 256, 320]
