"""Attention within parts of the picture, then over the parts."""

import pytest
import torch

import tiny
from meshcap.errors import MeshcapError
from meshcap.models.show_attend_tell import HierarchicalConfig
from meshcap.regions import Regions

IDS = torch.tensor([[2, 4, 5]])
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def quarters() -> Regions:
    """Two regions in the upper left quarter of a picture, one in the lower right, one that is not real."""
    x, y = torch.tensor([0.1, 0.2, 0.8, 0.1]), torch.tensor([0.2, 0.1, 0.9, 0.9])
    boxes = torch.stack((x - 0.05, y - 0.05, x + 0.05, y + 0.05), -1)[None]
    return Regions(tiny.pictures(4).features, boxes, torch.tensor([[True, True, True, False]]))


@torch.no_grad()
def test_weights_of_each_level_sum_to_one() -> None:
    _, seen = tiny.build("hierarchical")(quarters(), IDS, attention=True)
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
    torch.testing.assert_close(deep(quarters(), IDS), flat(quarters(), IDS), **CLOSE)


def test_refused() -> None:
    with pytest.raises(MeshcapError, match="groups is 0, expected a whole number of at least 1"):
        HierarchicalConfig(vocab_size=100, groups=0)
    with pytest.raises(MeshcapError, match="takes means of means: attention is soft"):
        HierarchicalConfig(vocab_size=100, attention="hard")
