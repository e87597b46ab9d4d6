"""Ways of looking."""

from meshcap.attention.cache import HistoryCache, State, empty_history, reorder_history
from meshcap.attention.multi_head import (
    CrossAttention,
    SelfAttention,
    additive_mask,
    attend,
    attend_groups,
    attend_openly,
    join_heads,
    split_heads,
)

__all__ = [
    "CrossAttention",
    "HistoryCache",
    "SelfAttention",
    "State",
    "additive_mask",
    "attend",
    "attend_groups",
    "attend_openly",
    "empty_history",
    "join_heads",
    "reorder_history",
    "split_heads",
]
