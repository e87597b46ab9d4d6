"""Key-value and multi-head attention against torch's own, and against each other."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from meshcap.attention import (
    SCORES,
    KeyValueAttention,
    MultiHead,
    Sampled,
    SelfAttention,
    additive_mask,
    hardest,
    make_score,
    score_function_loss,
    soft,
)
from meshcap.errors import MeshcapError

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
NAMES = sorted(SCORES)
MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def torchs(ours: MultiHead, heads: int) -> nn.MultiheadAttention:
    d_model, d_source = ours.query.in_features, ours.key.in_features
    theirs = nn.MultiheadAttention(d_model, heads, kdim=d_source, vdim=d_source, batch_first=True).eval()
    with torch.no_grad():
        parts = [ours.query, ours.key, ours.value]
        if d_source == d_model:
            theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        else:
            for mine, part in zip(
                (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight), parts, strict=True
            ):
                mine.copy_(part.weight)
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    return theirs


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("d_source", [12, 7])
def test_multi_head_is_torchs(d_source: int, padded: bool) -> None:
    ours = MultiHead("scaled", 12, 3, d_source=d_source)
    query, keys, values = torch.randn(2, 4, 12), torch.randn(2, 5, d_source), torch.randn(2, 5, d_source)
    mask = MASK if padded else None
    with torch.no_grad():
        expected, weights = torchs(ours, 3)(
            query, keys, values, key_padding_mask=~MASK if padded else None, average_attn_weights=False
        )
        torch.testing.assert_close(ours(query, keys, values, mask), expected, **CLOSE)
        look = ours.with_weights(query, keys, values, mask)
    torch.testing.assert_close(look.context, expected, **CLOSE)
    torch.testing.assert_close(look.weights, weights, **CLOSE)


def test_fused_kernel_is_used_only_for_what_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or real(*a, **k))
    x = torch.randn(2, 5, 12)
    for name, select, expected in (
        ("scaled", soft, 1),
        ("scaled", partial(soft, temperature=0.1), 0),
        ("scaled", hardest, 0),
        ("dot", soft, 0),
        ("additive", soft, 0),
    ):
        calls.clear()
        attention = MultiHead(name, 12, 3, select=select)
        torch.testing.assert_close(attention(x, x, x, MASK), attention.with_weights(x, x, x, MASK).context, **CLOSE)
        assert len(calls) == expected, (name, select)


def test_self_attention_is_that_of_m2() -> None:
    general, special = MultiHead("scaled", 12, 3), SelfAttention(12, 3, 4)
    with torch.no_grad():
        parts = (general.query, general.key, general.value)
        special.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
        special.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
        special.output.load_state_dict(general.output.state_dict())
    x = torch.randn(2, 5, 12)
    earlier = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(general(x, x, x, earlier), special(x, causal=True), **CLOSE)
    mask = additive_mask(MASK, x.dtype)[:, None, None]
    torch.testing.assert_close(general(x, x, x, MASK), special(x, mask=mask), **CLOSE)


def test_scaled_soft_is_torchs_kernel() -> None:
    attention = KeyValueAttention(make_score("scaled", 8, 8))
    query, keys, values = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 6)
    visible = torch.rand(2, 3, 4, 5) < 0.7
    visible[..., 0] = True
    expected = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible)
    torch.testing.assert_close(attention(query, keys, values, visible).context, expected, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_keys_that_are_values_are_plain_attention(name: str) -> None:
    score = make_score(name, 4, 4)
    query, x = torch.randn(2, 1, 4), torch.randn(2, 5, 4)
    look = KeyValueAttention(score)(query, x, x, MASK)
    scores = score(query, score.prepare(x))
    for b, count in enumerate((5, 3)):
        weights = scores[b, 0, :count].softmax(-1)
        torch.testing.assert_close(look.context[b, 0], sum(w * r for w, r in zip(weights, x[b], strict=False)), **CLOSE)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(seed=st.integers(0, 1000), sizes=st.tuples(*[st.integers(1, 4)] * 3))
def test_order_of_pairs_and_padding_change_nothing(name: str, seed: int, sizes: tuple[int, int, int]) -> None:
    torch.manual_seed(seed)
    batch, queries, count = sizes
    attention = MultiHead(name, 8, 2)
    query, keys, values = torch.randn(batch, queries, 8), *torch.randn(2, batch, count, 8)
    order = torch.randperm(count)
    look, moved = (
        attention.with_weights(query, keys, values),
        attention.with_weights(query, keys[:, order], values[:, order]),
    )
    torch.testing.assert_close(moved.context, look.context, **CLOSE)
    torch.testing.assert_close(moved.weights, look.weights[..., order], **CLOSE)
    padded = [torch.cat([part, torch.randn(batch, 2, 8)], 1) for part in (keys, values)]
    mask = (torch.arange(count + 2) < count).expand(batch, -1)
    torch.testing.assert_close(attention(query, *padded, mask), look.context, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_prepared_once_and_asked_often(name: str) -> None:
    single, many = KeyValueAttention(make_score(name, 12, 12)), MultiHead(name, 12, 3)
    query, x = torch.randn(2, 6, 12), torch.randn(2, 5, 12)
    whole, prepared = single(query, x, x, MASK), single.prepare(x)
    steps = [single.attend(query[:, t : t + 1], prepared, x, MASK).context for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), whole.context, **CLOSE)
    ready = many.prepare(x, x)
    steps = [many.attend(query[:, t : t + 1], *ready, MASK) for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), many(query, x, x, MASK), **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_real_gives_zeros_and_finite_gradients(name: str) -> None:
    mask = torch.tensor([[True] * 5, [False] * 5])
    attention = MultiHead(name, 12, 3)
    query, x = torch.randn(2, 4, 12, requires_grad=True), torch.randn(2, 5, 12, requires_grad=True)
    look = attention.with_weights(query, x, x, mask)
    assert not look.weights[1].any()
    for found in (look.context, attention(query, x, x, mask)):
        torch.testing.assert_close(found[1], attention.output.bias.expand(4, -1))
        gradients = torch.autograd.grad(found.square().sum(), (query, x, *attention.parameters()), retain_graph=True)
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert not gradients[0][1].any() and not gradients[1][1].any()


def test_hard_attention_learns_where_to_look() -> None:
    """The reward is for looking at the second of three places: REINFORCE must find it from the rewards alone."""
    torch.manual_seed(0)
    attention = KeyValueAttention(make_score("bilinear", 2, 3), Sampled())
    optimizer = torch.optim.Adam(attention.parameters(), lr=0.1)
    query, keys = torch.ones(64, 1, 2), torch.eye(3).expand(64, -1, -1)
    for _ in range(60):
        look = attention(query, keys, keys)
        reward = look.context[:, 0, 1]
        loss = score_function_loss(look.log_prob, reward, reward.mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = attention.score(query[:1], attention.prepare(keys[:1]))
    assert soft(scores).weights[0, 0, 1] > 0.9
    assert attention.eval()(query, keys, keys).context[:, 0, 1].all()


def test_half_precision_under_autocast() -> None:
    for name in NAMES:
        attention = MultiHead(name, 64, 4)
        x = torch.randn(2, 5, 64)
        with torch.no_grad():
            exact = attention(x, x, x, MASK)
            with torch.autocast("cpu", torch.bfloat16):
                rough = attention(x, x, x, MASK)
                spelled_out = attention.with_weights(x, x, x, MASK).context
        assert rough.dtype == torch.bfloat16
        for found in (rough, spelled_out):
            assert (found.float() - exact).abs().max() < 0.03, name


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    attention = MultiHead(name, 4, 2, d_source=3).double()
    query = torch.randn(2, 2, 4, dtype=torch.double, requires_grad=True)
    source = torch.randn(2, 5, 3, dtype=torch.double, requires_grad=True)

    def found(q: Tensor, s: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        look = attention.with_weights(q, s, s, MASK)
        return look.context, look.weights

    assert torch.autograd.gradcheck(found, (query, source, *attention.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    attention = MultiHead(name, 12, 3)
    x = torch.randn(2, 5, 12)
    traced = torch.compile(lambda x, m: (attention(x, x, x, m), attention.with_weights(x, x, x, m)), fullgraph=True,
                           backend="eager")  # fmt: skip
    found, look = traced(x, MASK)
    torch.testing.assert_close(found, attention(x, x, x, MASK))
    torch.testing.assert_close(look.weights, attention.with_weights(x, x, x, MASK).weights)


def test_mistakes_are_told() -> None:
    with pytest.raises(MeshcapError, match="12 numbers cannot be divided among 5 heads"):
        MultiHead("dot", 12, 5)
    attention = KeyValueAttention(make_score("dot", 4, 4))
    query, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    with pytest.raises(MeshcapError, match="4 values for 5 keys"):
        attention(query, keys, keys[:, 1:])
    with pytest.raises(MeshcapError, match=r"mask is torch\.float32"):
        attention(query, keys, keys, torch.zeros(2, 5))
    with pytest.raises(MeshcapError, match=r"expected torch\.bool with 2 axes"):
        attention(query, keys, keys, torch.ones(5, dtype=torch.bool))
