"""The history of a beam search against lists that are copied at every step."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from meshcap.attention import HistoryCache, SelfAttention, attend, empty_history, reorder_history

LAYERS, HEADS, D = 2, 2, 3


@given(
    pictures=st.integers(1, 3), width=st.integers(1, 5), length=st.integers(1, 7), spare=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_against_lists(pictures: int, width: int, length: int, spare: int, seed: int) -> None:
    torch.manual_seed(seed)
    state = empty_history(
        layers=LAYERS, pictures=pictures, width=width, length=length + spare, heads=HEADS, d_head=D,
        device=torch.device("cpu"), dtype=torch.float32,
    )  # fmt: skip
    # said[layer][picture][hypothesis] is a list of (keys, values), one pair for each word
    said = [[[[] for _ in range(width)] for _ in range(pictures)] for _ in range(LAYERS)]
    for _ in range(length):
        cache = HistoryCache.open(state, torch.float32)
        for layer in range(LAYERS):
            query, new_keys, new_values = torch.randn(3, pictures, HEADS, width, D)
            keys, values = cache.append(layer, new_keys, new_values)
            found = attend(query, keys, values, mask=cache.mask)
            for b in range(pictures):
                for w in range(width):
                    said[layer][b][w].append((new_keys[b, :, w], new_values[b, :, w]))
                    own_keys, own_values = (torch.stack(one, 1) for one in zip(*said[layer][b][w], strict=True))
                    scores = (own_keys @ query[b, :, w, :, None])[..., 0] / D**0.5  # (H, words)
                    expected = (scores.softmax(-1)[..., None] * own_values).sum(1)
                    torch.testing.assert_close(found[b, :, w], expected, atol=1e-5, rtol=1e-5)
        state["step"] += 1
        parents = torch.randint(width, (pictures, width))
        reorder_history(state, parents)
        said = [[[list(one[parent]) for parent in row] for one, row in zip(layer, parents.tolist(), strict=True)]
                for layer in said]  # fmt: skip


def test_cached_self_attention_is_causal_self_attention() -> None:
    """Three sequences, a word at a time without changing places, against reading them at once."""
    attention = SelfAttention(8, 2, 4)
    x = torch.randn(3, 5, 8)  # (W, T, D)
    state = empty_history(
        layers=1, pictures=1, width=3, length=5, heads=2, d_head=4, device=torch.device("cpu"), dtype=torch.float32
    )
    with torch.no_grad():
        expected = attention(x, causal=True)
        for step in range(5):
            found = attention.cached(x[None, :, step], HistoryCache.open(state, torch.float32), 0)
            state["step"] += 1
            torch.testing.assert_close(found[0], expected[:, step], atol=1e-5, rtol=1e-5)
