"""The kernels of a decoding step say what plain arithmetic says.

On a GPU; and on a CPU where Triton is installed and asked to interpret (TRITON_INTERPRET=1).
"""

import copy
import itertools
import os

import pytest
import torch

import tiny
from meshcap import kernels
from meshcap.attention import HistoryCache, attend, empty_history, join_heads, reorder_history, split_heads
from meshcap.decoding import Beam, Rules, choose, decode
from meshcap.decoding import search as loop
from meshcap.decoding.choose import Choice, Search, best_continuations, keep_finished
from meshcap.models import M2Config

INTERPRETED = kernels.triton is not None and os.environ.get("TRITON_INTERPRET") == "1"
WHERE = "cpu" if INTERPRETED else "cuda"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(autouse=True)
def no_gradient():
    with torch.no_grad():
        yield


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(WHERE, dtype)


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    atol, rtol = {torch.bfloat16: (0.02, 0.02), torch.float16: (0.004, 0.004)}.get(found.dtype, (1e-5, 1e-5))
    torch.testing.assert_close(found.float(), expected.float(), atol=atol, rtol=rtol)


@dtypes
@pytest.mark.parametrize(("levels", "rows", "width"), [(0, 1, 16), (0, 7, 512), (3, 5, 512), (2, 3, 50), (1, 2, 1030)])
def test_add_norm(dtype: torch.dtype, levels: int, rows: int, width: int) -> None:
    x, added = draw(rows, width, dtype=dtype), draw(*([levels] if levels else []), rows, width, dtype=dtype)
    weight, bias = draw(width, dtype=dtype), draw(width, dtype=dtype)
    found = kernels.add_norm(x, added, weight, bias, 1e-5)
    assert found.shape == added.shape and found.dtype == dtype
    wide = (x.float() + added.float(), (width,), weight.float(), bias.float(), 1e-5)
    near(found, torch.nn.functional.layer_norm(*wide))


@dtypes
@pytest.mark.parametrize("rows", [1, 5, 200])
def test_linear_relu(dtype: torch.dtype, rows: int) -> None:
    linear = torch.nn.Linear(64, 136).to(WHERE, dtype)
    x = draw(2, rows, 64, dtype=dtype)
    found = kernels.linear_relu(x, linear)
    assert found.shape == (2, rows, 136) and found.dtype == dtype
    near(found, torch.nn.functional.linear(x.float(), linear.weight.float(), linear.bias.float()).relu())


@dtypes
@pytest.mark.parametrize("kind", ["sigmoid", "softmax"])
@pytest.mark.parametrize(("levels", "rows", "width"), [(1, 1, 16), (3, 5, 512), (2, 7, 50), (6, 3, 300)])
def test_mix_levels(dtype: torch.dtype, kind: str, levels: int, rows: int, width: int) -> None:
    both = draw(2, rows, 24 + levels * width, dtype=dtype)
    query, halves = both[..., 24:], 4 * draw(levels, 2, rows, width, dtype=dtype)
    context = draw(levels, 2, rows, width, dtype=dtype)
    found = kernels.mix_levels(query, halves, context, kind=kind, scale=0.5)
    assert found.shape == (2, rows, width) and found.dtype == dtype
    scores = query.float().unflatten(-1, (levels, width)).movedim(-2, 0) + halves.float()
    alpha = scores.sigmoid() if kind == "sigmoid" else scores.softmax(0)
    near(found, (alpha * context.float()).sum(0) * 0.5)


@dtypes
@pytest.mark.parametrize(("shape", "width", "gain"), [((1, 1), 16, 1.0), ((3, 5), 50, 22.6), ((2, 4), 512, 1.0)])
def test_embed(dtype: torch.dtype, shape: tuple[int, int], width: int, gain: float) -> None:
    table, positions = draw(11, width, dtype=dtype), draw(8, width, dtype=dtype)
    ids, step = torch.randint(11, shape).to(WHERE), torch.tensor([4]).to(WHERE)
    found = kernels.embed(ids, table, gain, positions, step)
    assert found.shape == (*shape, width) and found.dtype == dtype
    near(found, table.float()[ids] * gain + positions[5].float())


@dtypes
@pytest.mark.parametrize(
    ("pictures", "heads", "beams", "words", "d"), [(1, 1, 1, 3, 16), (2, 3, 5, 20, 64), (1, 2, 2, 40, 32)]
)
def test_attend_history_and_follow_parents(
    dtype: torch.dtype, pictures: int, heads: int, beams: int, words: int, d: int
) -> None:
    """Against the plain cache, as beams go on from each other."""
    like = draw(heads, 1, d, dtype=dtype)
    shape = {"layers": 2, "pictures": pictures, "width": beams, "length": words}
    own = torch.arange(beams, dtype=torch.int32, device=WHERE)[:, None].repeat(pictures, 1, words)
    state = empty_history(like.float().cpu(), **shape)
    step = torch.zeros(1, dtype=torch.long, device=WHERE)
    keys, values = torch.full((2, *state["keys"].shape), 77.0).to(WHERE, dtype)  # what is not written is not read
    for _ in range(words):
        cache = HistoryCache.open(state, torch.float32)
        for layer in range(2):
            new = draw(pictures, beams, 3 * heads * d, dtype=dtype)
            query, *both = (split_heads(one, heads).float().cpu() for one in new.chunk(3, -1))
            expected = attend(query, *cache.append(layer, *both), mask=cache.mask)
            found = kernels.attend_history(new, keys[layer], values[layer], own, step)
            assert found.shape == (pictures, beams, heads * d) and found.dtype == dtype
            near(found.cpu(), join_heads(expected))
        step += 1
        state["step"] += 1
        parents = torch.randint(beams, (pictures, beams))
        kernels.follow_parents(own, parents.to(WHERE), step)
        reorder_history(state, parents)


def test_a_table_too_large_to_be_moved_at_once_is_followed_alike() -> None:
    ancestors = torch.randint(5, (2, 5, 9), dtype=torch.int32, device=WHERE)
    parents, step = torch.randint(5, (2, 5), device=WHERE), torch.tensor([4], device=WHERE)
    expected = ancestors.clone()
    for b, w in itertools.product(range(2), range(5)):
        expected[b, w, :4] = ancestors[b, parents[b, w], :4]
    for limit in (kernels.WIDEST, 1):
        found = ancestors.clone()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "WIDEST", limit)
            reorder_history({"ancestors": found, "step": step}, parents)
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "name", ["m2", "transformer", "hopfield", *(one for one in tiny.VARIANTS if one[:2] in ("m2", "ho"))]
)
def test_steps_with_and_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole steps of a captioner in bfloat16, as beams go on from each other."""
    model = copy.deepcopy(tiny.shared(name)).to(WHERE, torch.bfloat16)
    pictures = tiny.pictures(6, 4).to(WHERE, torch.bfloat16)
    said = []
    for used in (True, False):
        monkeypatch.setattr(kernels, "_in_half_on_cuda", lambda x, used=used: used and x.dtype == torch.bfloat16)
        torch.manual_seed(0)
        state = model.start(model.encode(pictures), width=3, length=5)
        assert ("ancestors" in state) == (used and model.config.head_width == 8)
        assert ("mesh_query.0" in state) == (used and model.config.mesh == "full")
        for _ in range(5):
            ids = torch.randint(4, tiny.VOCAB, (2, 3)).to(WHERE)
            said.append(model.step(ids, state).exp())
            model.reorder(state, torch.randint(3, (2, 3)).to(WHERE))
    for found, expected in zip(said[:5], said[5:], strict=True):
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0.1)


@pytest.mark.parametrize(("pictures", "beams", "k"), [(1, 1, 1), (3, 5, 5), (2, 4, 3), (2, 16, 16)])
def test_choose_words(pictures: int, beams: int, k: int) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        gained = torch.randn(pictures, beams, k).sort(-1, descending=True).values
        gained[..., -1] = float("-inf")
        words = torch.rand(pictures, beams, 50).topk(k).indices
        search = Search.new(M2Config(vocab_size=50), pictures=pictures, width=beams, length=4, device="cpu")
        search.scores.copy_(torch.randn(pictures, beams))
        search.scores[0, 1:] = float("-inf")
        search.finished.copy_(torch.rand(pictures, beams) < 0.3)
        expected = best_continuations(
            search, *keep_finished(search.finished, gained, words, search.settings.pad), penalty=0
        )
        given = (one.to(WHERE) for one in (gained, words, search.finished, search.scores))
        found = Choice(*(one.cpu() for one in kernels.choose_words(*given, search.settings.pad)))
        torch.testing.assert_close(found.scores, expected.scores)
        real = expected.scores > float("-inf")  # which of those that nothing is allowed to follow is all the same
        for name in Choice._fields:
            mine, theirs = getattr(found, name), getattr(expected, name)
            assert mine.dtype == theirs.dtype and torch.equal(mine[real], theirs[real])
        assert found.parents.min() >= 0 and found.parents.max() < beams


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize(("pictures", "beams", "length"), [(1, 1, 1), (3, 5, 20), (2, 3, 33)])
def test_take_words(moved: bool, pictures: int, beams: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = M2Config(vocab_size=6)
    ours = Search.new(settings, pictures=pictures, width=beams, length=length, device=WHERE)
    theirs = Search.new(settings, pictures=pictures, width=beams, length=length, device="cpu")
    for step in range(length):
        scores = torch.randn(pictures, beams)
        scores[torch.rand(pictures, beams) < 0.1] = float("-inf")
        parents = torch.randint(beams, (pictures, beams)) if moved else None
        choice = Choice(parents, torch.randint(6, (pictures, beams)), torch.randn(pictures, beams), scores)
        monkeypatch.setattr(choose, "can_take_words", lambda ids: False)
        theirs.take(choice)
        monkeypatch.setattr(choose, "can_take_words", lambda ids: True)
        ours.take(Choice(*(None if one is None else one.to(WHERE) for one in choice)))
        for name in ("ids", "log_probs", "scores", "lengths", "finished", "last", "step"):
            assert torch.equal(getattr(ours, name).cpu(), getattr(theirs, name)), (name, step)


@dtypes
@pytest.mark.parametrize(("words", "wide", "k"), [(10, 16, 10), (10201, 10208, 5), (129, 129, 1), (200, 208, 16)])
def test_top_k_logits(dtype: torch.dtype, words: int, wide: int, k: int) -> None:
    logits = torch.randn(2, 3, wide).mul(5).to(dtype)[..., :words]
    logits[0, :, 3] = float("-inf")
    log_probs = logits.float().log_softmax(-1)
    totals = kernels.log_totals(logits.to(WHERE)).cpu()
    torch.testing.assert_close(totals, logits.float().logsumexp(-1))
    banned = logits.clone()
    banned[..., 1] = float("-inf")
    after = log_probs.clone()
    after[..., 1] = float("-inf")
    for values, expected, known in ((logits, log_probs, None), (banned, after, totals.to(WHERE))):
        padded = torch.full((2, 3, wide), 99.0, dtype=dtype)  # what was added is no word
        padded[..., :words] = values
        found, ids = (one.cpu() for one in kernels.top_k_logits(padded.to(WHERE)[..., :words], k, known))
        assert found.dtype == torch.float32 and ids.dtype == torch.long and found.shape == ids.shape == (2, 3, k)
        torch.testing.assert_close(found, expected.topk(k).values)
        torch.testing.assert_close(expected.gather(-1, ids), found)
        assert all(len(set(row)) == k for row in ids.flatten(0, 1).tolist())


@dtypes
def test_logits_of_words_without_a_chance(dtype: torch.dtype) -> None:
    logits = torch.full((2, 9), float("-inf"), device=WHERE, dtype=dtype)
    logits[1, 4] = 2
    values, ids = (one.cpu() for one in kernels.top_k_logits(logits, 3, None))
    assert values[0].isneginf().all() and values[1].tolist() == [0, float("-inf"), float("-inf")] and ids[1, 0] == 4
    assert all(len(set(row)) == 3 and max(row) < 9 for row in ids.tolist())
    values, _ = kernels.top_k_logits(logits, 3, torch.ones(2, device=WHERE))
    assert values[0].isneginf().all() and values[1, 0] == 1


@pytest.mark.parametrize("name", ["m2", "transformer"])
@pytest.mark.parametrize("ruled", [False, True], ids=["plain", "rules"])
def test_searches_against_float32(name: str, ruled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole searches in bfloat16. (Words may differ where others are nearly as likely.)"""
    model = copy.deepcopy(tiny.shared(name)).to(WHERE, torch.bfloat16)
    start, aligned = model.start, model.decoder.output.aligned()

    def start_as_on_a_gpu(*args, **more):
        return start(*args, **more) | dict(zip(("output_weight", "output_bias"), aligned, strict=True))

    monkeypatch.setattr(model, "start", start_as_on_a_gpu)
    rules = Rules(max_length=7)
    if ruled:
        rules = Rules(
            max_length=7, min_length=2, no_repeat_ngram=2, banned=(5,), banned_phrases=((7, 8),), bad_endings=(6,),
            end_in_time=True,
        )  # fmt: skip
    monkeypatch.setattr(kernels, "_in_half_on_cuda", lambda x: x.dtype == torch.bfloat16)
    for guard in ("can_take_words", "can_choose_words"):
        monkeypatch.setattr(choose, guard, lambda like: True)
    found = decode(model, tiny.pictures(6, 4).to(WHERE, torch.bfloat16), Beam(4), rules, n_best=4)
    monkeypatch.undo()
    expected = decode(tiny.shared(name), tiny.pictures(6, 4), Beam(4), rules, n_best=4)
    torch.testing.assert_close(found.scores[:, 0].cpu(), expected.scores[:, 0], atol=0.1, rtol=0.05)
    assert (found.ids.cpu() == expected.ids).all(-1).float().mean() > 0.5
    assert not ruled or not (found.ids == 5).any()


@pytest.mark.parametrize(
    "rules",
    [
        Rules(max_length=9, banned=(5, 3, 8)),
        Rules(max_length=9, min_length=4, bad_endings=(6,)),
        Rules(max_length=9, no_repeat_ngram=1),
        Rules(max_length=9, no_repeat_ngram=2),
        Rules(max_length=9, no_repeat_ngram=3, bad_endings=(4, 6, 7), end_in_time=True),
        Rules(max_length=2, no_repeat_ngram=3),
        Rules(max_length=9, end_in_time=True),
        Rules(max_length=9, banned_phrases=((4, 5), (6, 7, 8), (5, 5, 5, 5))),
        Rules(max_length=9, min_length=2, banned=(4,), banned_phrases=((6, 5),), bad_endings=(7,), end_in_time=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forbid_words(rules: Rules, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, length = M2Config(vocab_size=9), rules.max_length
    search = Search.new(settings, pictures=3, width=4, length=length, device=WHERE)
    found = {}
    for used in (True, False):
        monkeypatch.setattr(loop, "can_forbid_words", lambda rules, device, used=used: used)
        found[used] = loop.filters(rules, settings, torch.device(WHERE))
    assert len(found[True]) == 1
    for step in range(length):
        log_probs = torch.randn(3, 4, 16).to(WHERE, dtype)[..., :9]
        seen = []
        for used in (True, False):
            wide = torch.full((3, 4, 16), 99.0).to(WHERE, dtype)
            wide[..., :9] = log_probs
            for forbid in found[used]:
                forbid(wide[..., :9], search)
            seen.append(wide)
        assert torch.equal(*seen), step
        words = torch.randint(4, 9, (3, 4)).to(WHERE)
        search.ids[..., step], search.last[:] = words, words
        search.step.add_(1)


@dtypes
@pytest.mark.parametrize(("words", "wide"), [(10, 16), (10201, 10208), (64, 64)])
def test_log_softmax_rows(dtype: torch.dtype, words: int, wide: int) -> None:
    logits = torch.randn(2, 3, wide).mul(5).to(dtype)
    logits[0, :, 3] = float("-inf")
    found = kernels.log_softmax_rows(logits.to(WHERE), words)
    assert found.shape == (2, 3, words) and found.dtype == torch.float32 and found.stride(-2) % 16 == 0
    torch.testing.assert_close(found.cpu(), logits[..., :words].float().log_softmax(-1))
    assert found.view(-1, words).data_ptr() == found.data_ptr()  # what rules forbid is written where it stands
