"""Show, Attend and Tell by its formulas, word by word; what it learns besides words; hard attention's draws."""

import math

import pytest
import torch
from torch import Tensor

import tiny
from meshcap.attention import RunningMean
from meshcap.errors import MeshcapError
from meshcap.memory.turing import BLANK
from meshcap.models.show_attend_tell import HierarchicalConfig, NTMConfig, ShowAttendTellConfig
from meshcap.regions import Regions
from meshcap.training.losses import AttentionLoss, draws_loss, unevenness, xe_loss, xe_sum
from models.torch_lstm import torchs_cell

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
IDS = torch.tensor([[2, 4, 5, 6]])


def score(model, x: Tensor, h: Tensor) -> float:
    """Of one region and one state, from its formula."""
    own = model.score
    match model.config.score:
        case "additive":
            return (torch.tanh(x @ own.key + own.bias[0] + h @ own.query) @ own.v).item()
        case "dot":
            return (x @ h).item()
        case "scaled":
            return (x @ h).item() / math.sqrt(len(h))
        case _:
            return (x @ own.weight @ h).item()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["additive", "dot", "scaled", "bilinear"])
@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_the_formulas_word_by_word(kind: str, attention: str) -> None:
    model, pictures = tiny.build("show-attend-tell", score=kind, attention=attention), tiny.pictures(4)
    x = model.regions(pictures)[0]  # (N, D)
    h, c = (model.first.weight @ x.mean(0) + model.first.bias).tanh().chunk(2)
    cell, log_probs, looks, gates = torchs_cell(model.cell), [], [], []
    for word in IDS[0]:
        raw = [math.exp(score(model, one, h)) for one in x]
        alpha = [one / sum(raw) for one in raw]
        if attention == "hard":
            alpha = [float(one == max(alpha)) for one in alpha]
        beta = 1 / (1 + math.exp(-(model.gate.weight[0] @ h + model.gate.bias[0]).item()))
        z = sum(beta * weight * one for weight, one in zip(alpha, x, strict=True))
        y = model.words.weight[word]
        h, c = cell(torch.cat((y, z))[None], (h[None], c[None]))
        h, c = h[0], c[0]
        told = y + model.deep.weight[:, :16] @ h + model.deep.weight[:, 16:] @ z + model.deep.bias
        log_probs.append((model.output.words.weight @ told + model.output.suppression).log_softmax(0))
        looks.append(alpha)
        gates.append(beta)
    found, seen = model(pictures, IDS, attention=True)
    torch.testing.assert_close(found[0], torch.stack(log_probs), **CLOSE)
    torch.testing.assert_close(seen["words"][0], torch.tensor(looks), **CLOSE)
    torch.testing.assert_close(seen["gate"][0], torch.tensor(gates), **CLOSE)


@torch.no_grad()
def test_sharpened_soft_attention_becomes_hard() -> None:
    hard, soft = (tiny.build("show-attend-tell", score="bilinear", attention=kind) for kind in ("hard", "soft"))
    soft.load_state_dict(hard.state_dict())
    regions, expected = tiny.pictures(4, 4), hard(tiny.pictures(4, 4), IDS.expand(2, -1)).exp()
    distances = []
    for sharper in (1, 30, 1000):
        soft.score.weight.copy_(hard.score.weight * sharper)
        distances.append((soft(regions, IDS.expand(2, -1)).exp() - expected).abs().max().item())
    assert distances[0] > 0.01 and distances[0] > distances[1] and distances[2] < 1e-4


def test_hard_attention_draws_while_training_alone() -> None:
    model, regions = tiny.build("show-attend-tell-hard", dropout=0.0), tiny.pictures(6)
    _, first = model(regions, IDS, attention=True)
    assert torch.equal(model(regions, IDS), model(regions, IDS))
    model.train()
    frequency = torch.zeros(6)
    for _ in range(2000):
        _, seen = model(regions, IDS[:, :1], attention=True)
        assert seen["words"].sum() == 1
        frequency += seen["words"][0, 0] / 2000
    odds = seen["odds"][0, 0]
    torch.testing.assert_close(frequency, odds, atol=0.04, rtol=0)
    torch.testing.assert_close(odds, first["odds"][0, 0], **CLOSE)


def test_the_doubly_stochastic_term() -> None:
    """λ Σ_n (1 - Σ_t α_tn)² by a loop: of learned words, of real regions, of captions that are there."""
    model = tiny.build("show-attend-tell", doubly_stochastic=0.7, dropout=0.0, suppressed_ids=(0, 1, 2))
    plain = tiny.build("show-attend-tell", dropout=0.0, suppressed_ids=(0, 1, 2))
    regions = tiny.pictures(3, 6, 2)
    ids = torch.tensor([
        [[2, 4, 5, 3, 1], [2, 4, 0, 7, 3]], [[2, 8, 3, 1, 1], [2, 9, 4, 4, 3]], [[2, 7, 7, 3, 1], [1, 1, 1, 1, 1]]
    ])  # fmt: skip
    with torch.no_grad():
        _, seen = model(regions, ids[..., :-1], attention=True)
    expected = 0.0
    for b, s in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
        learned = [t for t in range(4) if ids[b, s, t + 1].item() not in (0, 1)]
        for n in range(int(regions.mask[b].sum()) if learned else 0):
            expected += 0.7 * (1 - sum(seen["words"][b, s, t, n].item() for t in learned)) ** 2
    without = xe_sum(plain.train(), regions, [ids])
    more = AttentionLoss.of(model)
    assert AttentionLoss.of(plain) is None

    def loss(rectangles: list[Tensor]) -> Tensor:
        return xe_sum(model.train(), regions, rectangles, attention_loss=more)

    assert (loss([ids]) - without).item() == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(xe_sum(model.eval(), regions, [ids]), without)  # only where it is asked for
    # Split as one likes, it is the same sum.
    parts = sum(loss([one]) for one in (ids[:, :1], ids[:, 1:]))
    torch.testing.assert_close(parts, loss([ids]), **CLOSE)
    (loss([ids]) / 10).backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_no_weights_no_unevenness() -> None:
    evenly = torch.full((1, 1, 4, 4), 0.25)
    assert unevenness(evenly, torch.ones(1, 1, 4, dtype=torch.bool), None).item() == 0
    assert unevenness(evenly, torch.tensor([[[True, True, False, False]]]), None).item() == pytest.approx(4 * 0.25)


def test_draws_are_pushed_by_what_they_earned() -> None:
    """-Σ_t (R_t - b_t) log p_t by hand: rewards to come, against what so many words earned before."""
    log_prob = torch.tensor([[[-1.0, -2.0, -0.5, -3.0]]], requires_grad=True)
    said = torch.tensor([[[-0.2, -4.0, float("-inf"), -1.0]]])
    counted = torch.tensor([[[True, True, False, True]]])
    baseline = RunningMean(0.5)
    baseline.update(torch.tensor(-2.0))
    loss = draws_loss(log_prob, said, counted, baseline)
    advantages = [(-5.2) - 3 * -2.0, (-5.0) - 2 * -2.0, 0.0, (-1.0) - 1 * -2.0]
    assert loss.item() == pytest.approx(-(0.8 * -1.0 + -1.0 * -2.0 + 1.0 * -3.0))
    (gradient,) = torch.autograd.grad(loss, log_prob)
    torch.testing.assert_close(gradient[0, 0], -torch.tensor(advantages))  # down the slope: better draws get likelier
    assert baseline.value.item() == pytest.approx((0.25 * -2.0 + 0.5 * -5.2 / 3) / 0.75)


def test_reinforce_is_right_on_average() -> None:
    """One word, six regions: the mean gradient of many draws against that of the exact expectation."""
    model = tiny.build("show-attend-tell-hard", dropout=0.0)
    regions, ids = tiny.pictures(6), torch.tensor([[2, 5]])
    encoded = {name: tensor.detach() for name, tensor in model.encode(regions).items()}
    weight = model.score.weight

    def scores() -> Tensor:
        return model.score(model.begin(encoded, 1)["hidden"], model.score.prepare(encoded["regions"]))[0, 0]

    chosen = []
    for region in range(6):  # what each look would have earned
        alone = {name: encoded[name][:, [region]] if name == "regions" else encoded[name] for name in encoded}
        alone["prepared"] = encoded["prepared"][:, [region]]
        chosen.append(model.read(alone, ids[None, :, :1])[0, 0, 0, 5].detach())
    earned = (scores().softmax(0) * torch.stack(chosen)).sum()
    (expected,) = torch.autograd.grad(-earned, weight)
    model.train()
    more = AttentionLoss.of(model)
    more.baseline.update(earned)  # as if trained for a while: without, it takes a hundred times as many draws
    many = torch.full((1, 20_000, 1), 2)
    kept = dict(encoded, prepared=model.score.prepare(encoded["regions"]))
    log_probs, attention = more.read(kept, many)
    loss = more(attention, log_probs[..., 5], torch.ones_like(many, dtype=torch.bool), None)
    (drawn,) = torch.autograd.grad(loss / 20_000, weight)
    assert torch.cosine_similarity(drawn.flatten(), expected.flatten(), 0) > 0.97
    assert drawn.norm().item() == pytest.approx(expected.norm().item(), rel=0.25)


def test_entropy_is_rewarded() -> None:
    regions, ids = tiny.pictures(6), torch.tensor([[2, 5, 6, 3]])
    torch.manual_seed(0)
    plain = tiny.build("show-attend-tell-hard", dropout=0.0).train()
    more = tiny.build("show-attend-tell-hard", dropout=0.0, entropy=0.5).train()
    losses = []
    for model in (plain, more):
        torch.manual_seed(0)  # the same draws
        losses.append(xe_loss(model, regions, ids, attention_loss=AttentionLoss.of(model)).item() * 3)
    torch.manual_seed(0)
    odds = plain(regions, ids[:, :-1], attention=True)[1]["odds"][0]
    expected = 0.5 * (odds * odds.log()).sum().item()
    assert losses[1] - losses[0] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "half"}, "attention is 'half', expected one of soft, hard"),
        ({"score": "cosine"}, "score is 'cosine', expected one of additive, dot, scaled, bilinear"),
        ({"doubly_stochastic": -1}, "doubly_stochastic is -1, expected a number of at least 0"),
        ({"entropy": "0.1"}, "entropy is '0.1', expected a number of at least 0"),
    ],
)
def test_refused(settings: dict, message: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        ShowAttendTellConfig(vocab_size=100, **settings)
    assert str(caught.value) == message


# Attention within parts of the picture, then over the parts.

HIERARCHICAL_IDS = torch.tensor([[2, 4, 5]])


def quarters() -> Regions:
    """Two regions in the upper left quarter of a picture, one in the lower right, one that is not real."""
    x, y = torch.tensor([0.1, 0.2, 0.8, 0.1]), torch.tensor([0.2, 0.1, 0.9, 0.9])
    boxes = torch.stack((x - 0.05, y - 0.05, x + 0.05, y + 0.05), -1)[None]
    return Regions(tiny.pictures(4).features, boxes, torch.tensor([[True, True, True, False]]))


@torch.no_grad()
def test_weights_of_each_level_sum_to_one() -> None:
    _, seen = tiny.build("hierarchical")(quarters(), HIERARCHICAL_IDS, attention=True)
    within, groups = seen["within"][0], seen["groups"][0]  # (T, N), (T, G)
    torch.testing.assert_close(within[:, :2].sum(-1), torch.ones(3))
    torch.testing.assert_close(within[:, 2], torch.ones(3))
    assert not within[:, 3].any()
    torch.testing.assert_close(groups.sum(-1), torch.ones(3))
    assert not groups[:, 1:3].any()  # nothing in the other two quarters
    paths = torch.stack((within[:, 0] * groups[:, 0], within[:, 1] * groups[:, 0], groups[:, 3]), -1)
    torch.testing.assert_close(seen["words"][0, :, :3], paths, **CLOSE)
    assert (groups[0] - groups[1]).abs().max() > 1e-3  # another word, another part


@torch.no_grad()
def test_context_by_hand() -> None:
    """Softmax within the first quarter, then over what both quarters gave."""
    model, pictures = tiny.build("hierarchical", score="dot"), quarters()
    kept, query = model.encode(pictures), torch.randn(1, 1, 16)
    x, q = kept["regions"][0], query[0, 0]
    first = ((x[:2] @ q).softmax(0)[:, None] * x[:2]).sum(0)
    parts = torch.stack((first, x[2]))
    expected = ((parts @ q).softmax(0)[:, None] * parts).sum(0)
    torch.testing.assert_close(model.attend(query, kept).context[0, 0], expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("settings", [{"groups": 1}, {"groups": 3, "boxes": False}])
def test_one_group_is_show_attend_tell(settings: dict) -> None:
    deep = tiny.build("hierarchical", **settings)
    flat = tiny.build("show-attend-tell", boxes=settings.get("boxes", True))
    weights = deep.state_dict()
    lowest = "deep_attention.scores.0."
    flat.load_state_dict({name: weights.get(name, weights.get(lowest + name.removeprefix("score.")))
                          for name in flat.state_dict()})  # fmt: skip
    torch.testing.assert_close(deep(quarters(), HIERARCHICAL_IDS), flat(quarters(), HIERARCHICAL_IDS), **CLOSE)


def test_hierarchical_refused() -> None:
    with pytest.raises(MeshcapError, match="groups is 0, expected a whole number of at least 1"):
        HierarchicalConfig(vocab_size=100, groups=0)
    with pytest.raises(MeshcapError, match="takes means of means: attention is soft"):
        HierarchicalConfig(vocab_size=100, attention="hard")


# A captioner with a memory beside it: written while it speaks, and it matters what is there.

PICTURES = tiny.pictures(4, 4)


@torch.no_grad()
def test_what_is_in_the_memory_changes_what_is_said() -> None:
    model = tiny.build("ntm")
    states = [model.start(model.encode(PICTURES), width=2, length=5) for _ in range(2)]
    assert states[0]["carry.memory"].shape == (2, 2, 5, 4)  # B, W, rows, width
    assert (states[0]["carry.memory"] == torch.tensor(BLANK)).all()
    for state in states:
        model.step(torch.full((2, 2), 2), state)
    assert (states[0]["carry.memory"] - BLANK).abs().max() > 0.01  # something was noted
    states[1]["carry.memory"][0, 0] += torch.randn(5, 4)
    first, second = (model.step(torch.full((2, 2), 4), state).exp() for state in states)
    assert (first - second)[0, 0].abs().max() > 1e-3
    torch.testing.assert_close(first[0, 1], second[0, 1])
    torch.testing.assert_close(first[1], second[1])


@torch.no_grad()
@pytest.mark.parametrize("name", ["ntm", "ntm-two-heads"])
def test_a_step_by_the_memorys_own(name: str) -> None:
    """Attend, control, write, read, tell: with the parts' own functions, one hypothesis at a time."""
    model, words = tiny.build(name), torch.tensor([2, 4, 6])
    kept = model.encode(PICTURES[:1])
    found, seen = model(PICTURES[:1], words[None], attention=True)
    hidden, cell = kept["first"].chunk(2, -1)
    noted = model.memory.start(1)
    for place, word in enumerate(words):
        context = model.gated_attend(hidden[:, None], kept).context[:, 0]
        heard = model.cell.input(model.words.weight[word][None])
        hidden, cell = model.cell(heard, torch.cat((hidden, context, noted["reads"]), -1), cell)
        noted = model.memory(hidden, noted)
        told = model.words.weight[word] + model.deep(torch.cat((hidden, context, noted["reads"]), -1))
        torch.testing.assert_close(found[0, place], model.output(told)[0], **CLOSE)
        heads = torch.cat((seen["memory_reads"], seen["memory_writes"]), 2)[0, place]
        torch.testing.assert_close(heads, noted["weights"][0], **CLOSE)
        torch.testing.assert_close(heads.sum(-1), torch.ones(len(heads)))


@torch.no_grad()
def test_hypotheses_take_their_notes_along() -> None:
    model = tiny.build("ntm")
    state = model.start(model.encode(PICTURES), width=3, length=5)
    model.step(torch.tensor([[4, 5, 6], [4, 5, 6]]), state)
    before = state["carry.memory"].clone()
    model.reorder(state, torch.tensor([[2, 2, 0], [1, 0, 0]]))
    torch.testing.assert_close(state["carry.memory"][0], before[0, [2, 2, 0]])
    torch.testing.assert_close(state["carry.memory"][1], before[1, [1, 0, 0]])
    assert (before[0, 0] - before[0, 2]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["memory_width", "read_heads", "write_heads"])
def test_ntm_refused(name: str) -> None:
    with pytest.raises(MeshcapError, match=f"{name} is 0, expected a whole number of at least 1"):
        NTMConfig(vocab_size=100, **{name: 0})
    with pytest.raises(MeshcapError, match="memory_rows is 2, expected a whole number of at least 3"):
        NTMConfig(vocab_size=100, memory_rows=2)
