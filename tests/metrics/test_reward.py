"""Rewards in ids against the metrics in words, on every way they are computed."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import meshcap.metrics.reward as reward_module
from meshcap.errors import MeshcapError
from meshcap.metrics.cider import DocumentFrequencies, cider_d
from meshcap.metrics.ngrams import bleu, rouge_l
from meshcap.metrics.reward import BleuReward, CiderReward, MixedReward, Reward, RougeReward

PAD, EOS = 1, 3
WORDS = [4, 5, 6, 7, 8, 65_534]

references = st.lists(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=9), min_size=1, max_size=4), min_size=1, max_size=6
)
candidate = st.tuples(st.lists(st.sampled_from([*WORDS, 9, 40_000]), max_size=9), st.booleans())


@st.composite
def training(draw):
    """References of some pictures; pictures (B,) and candidates (B, S, T), each (words, whether it came to its end)."""
    those = draw(references)
    pictures = draw(st.lists(st.integers(0, len(those) - 1), min_size=1, max_size=3))
    samples = draw(st.integers(1, 3))
    captions = [[draw(candidate) for _ in range(samples)] for _ in pictures]
    return those, pictures, captions


def filled(captions, junk: int = PAD) -> numpy.ndarray:
    """(B, S, T) ids: an eos where the caption came to its end, then pad (or junk, after an eos)."""
    longest = 1 + max(len(words) for row in captions for words, _ in row)

    def fill(words: list[int], ended: bool) -> list[int]:
        return (words + [EOS] + [junk] * longest if ended else words + [PAD] * longest)[:longest]

    return numpy.array([[fill(*caption) for caption in row] for row in captions])


def as_words(ids: list[int], eos: bool) -> list[str]:
    return [f"w{i}" for i in ids] + ["<eos>"] * eos


def in_words(those, pictures, captions, eos: bool):
    """Candidates and references of every sample in words, and the references of all pictures."""
    all_references = [[as_words(ids, eos) for ids in captions] for captions in those]
    candidates = [as_words(ids, eos and ended) for row in captions for ids, ended in row]
    beside = [all_references[picture] for picture, row in zip(pictures, captions, strict=True) for _ in row]
    return candidates, beside, all_references


def expected_cider(those, pictures, captions, eos: bool, **settings) -> numpy.ndarray:
    candidates, beside, everything = in_words(those, pictures, captions, eos)
    return cider_d(candidates, beside, DocumentFrequencies.build(everything), **settings).per_image


def compiled(reward: CiderReward, ids: numpy.ndarray, pictures: list[int]) -> numpy.ndarray:
    pytest.importorskip("numba")
    return reward(ids, numpy.array(pictures, int))


def uncompiled(reward: CiderReward, ids: numpy.ndarray, pictures: list[int]) -> numpy.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reward_module, "compiled", lambda: None)
        return reward(ids.astype(numpy.int32), numpy.array(pictures, numpy.int32))


def in_torch(reward: CiderReward, ids: numpy.ndarray, pictures: list[int]) -> numpy.ndarray:
    return reward.on(torch.device("cpu"))(torch.from_numpy(ids), torch.tensor(pictures, dtype=torch.int64)).numpy()


def on_gpu(reward: CiderReward, ids: numpy.ndarray, pictures: list[int]) -> numpy.ndarray:
    return reward(torch.from_numpy(ids).cuda(), torch.tensor(pictures, dtype=torch.int64).cuda()).cpu().numpy()


ways = pytest.mark.parametrize(
    ("way", "close"),
    [(compiled, 1e-9), (uncompiled, 1e-9), (in_torch, 1e-6), pytest.param(on_gpu, 1e-6, marks=pytest.mark.gpu)],
)


@ways
@given(case=training(), eos=st.booleans(), n=st.integers(1, 4), sigma=st.sampled_from([6.0, 1.5]))
def test_cider_as_in_words(way, close: float, case, eos: bool, n: int, sigma: float) -> None:
    those, pictures, captions = case
    reward = CiderReward(those, eos=EOS, pad=PAD, count_eos=eos, n=n, sigma=sigma)
    found = way(reward, filled(captions), pictures)
    assert found.shape == (len(pictures), len(captions[0]))
    expected = expected_cider(those, pictures, captions, eos, n=n, sigma=sigma)
    assert found.ravel().tolist() == pytest.approx(expected.tolist(), abs=close)
    # What stands behind the eos is nobody's business.
    for junk in (5, EOS):
        assert way(reward, filled(captions, junk), pictures).tolist() == found.tolist()


@ways
def test_without_any_end_but_padding(way, close: float) -> None:
    those, captions = [[[4, 5, EOS, 6]], [[7]]], [[([4, 5, EOS, 6], False), ([4, 5], False)]]
    found = way(CiderReward(those, eos=None, pad=PAD), filled(captions), [0])
    assert found.ravel().tolist() == pytest.approx(expected_cider(those, [0], captions, False).tolist(), abs=close)
    assert found[0, 0] == pytest.approx(10, abs=close)


@ways
def test_long_captions_and_padding_that_is_the_end(way, close: float) -> None:
    luck = numpy.random.default_rng(0)
    those = [[luck.integers(4, 30, size).tolist() for size in (150, 3, 70)] for _ in range(5)]
    captions = [[(those[0][0][:100], True), (luck.integers(4, 30, 100).tolist(), False), ([], True)]]
    reward = CiderReward(those, eos=PAD, pad=PAD)
    ids = filled(captions)
    ids[ids == EOS] = PAD
    expected = expected_cider(those, [0], [[captions[0][0], (captions[0][1][0], True), captions[0][2]]], True)
    found = way(reward, ids, [0])
    assert found.ravel().tolist() == pytest.approx(expected.tolist(), abs=close)
    longer = [[(luck.integers(4, 30, 200).tolist(), True)]]  # than a kernel takes
    expected = expected_cider(those, [2], longer, True)
    found = way(CiderReward(those, eos=EOS, pad=PAD), filled(longer), [2])
    assert found.ravel().tolist() == pytest.approx(expected.tolist(), abs=close)


@ways
def test_nothing_to_score(way, close: float) -> None:
    reward = CiderReward([[[4]]], eos=EOS, pad=PAD)
    assert way(reward, numpy.zeros((0, 5, 7), int), []).shape == (0, 5)
    assert way(reward, numpy.zeros((1, 0, 7), int), [0]).shape == (1, 0)
    assert way(reward, numpy.zeros((1, 2, 0), int), [0]).tolist() == [[0, 0]]
    assert way(CiderReward([[[]], [[]]], eos=None, pad=PAD), numpy.full((1, 1, 3), 4), [1]).tolist() == [[0]]


def test_the_end_counts() -> None:
    """A caption that stops in the middle of a phrase is worth less than the whole one only if <eos> is a word."""
    on_a_bench = [4, 5, 6, 4, 7]  # "a man on a bench"
    those = [[on_a_bench], [[8, 9, 4, 10]], [[11, 5, 12]]]
    captions = [[(on_a_bench, True), (on_a_bench[:4], True), (on_a_bench[:4], False)]]
    counted = CiderReward(those, eos=EOS, pad=PAD)(filled(captions), numpy.array([0]))[0]
    assert counted[0] == pytest.approx(10)
    assert counted[0] > counted[1] and counted[0] > counted[2] and counted[1] != counted[2]
    left_out = CiderReward(those, eos=EOS, pad=PAD, count_eos=False)(filled(captions), numpy.array([0]))[0]
    assert left_out[1] == left_out[2]


def test_references_with_and_without_their_end() -> None:
    plain = CiderReward([[[4, 5]], [[6]]], eos=EOS, pad=PAD)
    padded = CiderReward([[[4, 5, EOS, PAD]], [[6, EOS]]], eos=EOS, pad=PAD)
    ids, pictures = filled([[([4, 5], True)]]), numpy.array([0])
    assert plain(ids, pictures).tolist() == padded(ids, pictures).tolist()


def test_signature_tells_what_matters() -> None:
    those = [[[4, 5]], [[6]], [[7], [8]]]
    assert CiderReward(those, eos=EOS, pad=PAD).signature == (
        "CIDEr-D, n 4, sigma 6, df of the training references, 3 pictures, eos counted"
    )
    assert "eos left out" in CiderReward(those, eos=EOS, pad=PAD, count_eos=False).signature
    assert "eos left out" in CiderReward(those, eos=None, pad=PAD).signature
    assert "n 2, sigma 1.5" in CiderReward(those, eos=EOS, pad=PAD, n=2, sigma=1.5).signature
    mixed = MixedReward([(1, BleuReward(those, eos=EOS, pad=PAD)), (0.5, RougeReward(those, eos=EOS, pad=PAD))])
    assert mixed.signature == (
        "1 × (BLEU-4, closest length, 3 pictures, eos counted) + 0.5 × (ROUGE-L, 3 pictures, eos counted)"
    )


@given(training(), st.booleans())
def test_bleu_and_rouge_as_in_words(case, eos: bool) -> None:
    those, pictures, captions = case
    candidates, beside, _ = in_words(those, pictures, captions, eos)
    ids = filled(captions)
    found = BleuReward(those, eos=EOS, pad=PAD, count_eos=eos)(ids, numpy.array(pictures))
    assert found.ravel().tolist() == pytest.approx(bleu(candidates, beside)[3].per_image.tolist(), abs=1e-12)
    found = RougeReward(those, eos=EOS, pad=PAD, count_eos=eos)(ids, numpy.array(pictures))
    assert found.ravel().tolist() == pytest.approx(rouge_l(candidates, beside).per_image.tolist(), abs=1e-12)


def test_mixtures() -> None:
    those = [[[4, 5, 6], [4, 6]], [[7, 8]]]
    parts = [kind(those, eos=EOS, pad=PAD) for kind in (CiderReward, BleuReward, RougeReward)]
    ids, pictures = filled([[([4, 5], True), ([7], False)], [([7, 8], True), ([], True)]]), numpy.array([0, 1])
    mixed = MixedReward(list(zip((1.0, 0.5, -2.0), parts, strict=True)))
    expected = parts[0](ids, pictures) + 0.5 * parts[1](ids, pictures) - 2 * parts[2](ids, pictures)
    assert mixed(ids, pictures) == pytest.approx(expected)
    with pytest.raises(MeshcapError, match="no rewards"):
        MixedReward([])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", [CiderReward, BleuReward, RougeReward])
def test_tensors_stay_where_they_are(kind: type[Reward], device: str) -> None:
    reward = kind([[[4, 5, 6], [4, 6]], [[7, 8]]], eos=EOS, pad=PAD)
    ids, pictures = filled([[([4, 5], True), ([7], False)], [([7, 8], True), ([], True)]]), numpy.array([0, 1])
    for dtype in (torch.int64, torch.int32):
        found = reward(torch.tensor(ids, dtype=dtype, device=device), torch.tensor(pictures, device=device))
        assert (found.dtype, found.device.type, found.shape) == (torch.float32, device, (2, 2))
        assert found.cpu().numpy() == pytest.approx(reward(ids, pictures), abs=1e-6)


@pytest.mark.parametrize("kind", [CiderReward, BleuReward, RougeReward])
def test_mistakes(kind: type[Reward]) -> None:
    with pytest.raises(MeshcapError, match="picture 1 has no references"):
        kind([[[4]], []], eos=EOS, pad=PAD)
    with pytest.raises(MeshcapError, match="no pictures"):
        kind([], eos=EOS, pad=PAD)
    with pytest.raises(MeshcapError, match="ids 4 to 65535, expected 0 to 65534"):
        kind([[[4, 65_535]]], eos=EOS, pad=PAD)
    reward = kind([[[4]]], eos=EOS, pad=PAD)
    with pytest.raises(MeshcapError, match=r"\(2, 3\) and pictures \(2,\), expected \(B, S, T\)"):
        reward(numpy.zeros((2, 3), int), numpy.zeros(2, int))
    with pytest.raises(MeshcapError, match="pictures are 0 to 1, expected 0 to 0"):
        reward(numpy.zeros((2, 1, 3), int), numpy.array([0, 1]))
    with pytest.raises(MeshcapError, match="float64, expected whole numbers"):
        reward(numpy.zeros((1, 1, 3)), numpy.array([0]))
    with pytest.raises(MeshcapError, match="ids -1 to 0"):
        reward(numpy.array([[[0, -1]]]), numpy.array([0]))


def test_torch_is_not_needed(tmp_path: Path) -> None:
    """Nor numba: what is asked for here is the same number without either."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numba'] = None\n"
        "import numpy; from meshcap.metrics.reward import CiderReward\n"
        "print(CiderReward([[[4, 5]], [[6]]], eos=3, pad=1)(numpy.array([[[4, 5, 3, 1]]]), numpy.array([0])).item())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert float(done.stdout) == pytest.approx(7.5), done.stderr  # equal, in n-grams of up to three words


@pytest.mark.gpu
def test_a_graph_of_it() -> None:
    """No synchronisation, and the same kernel for other captions and pictures: what capture in a CUDA graph needs."""
    luck = numpy.random.default_rng(0)
    those = [[luck.integers(4, 40, 8).tolist() for _ in range(5)] for _ in range(50)]
    reward = CiderReward(those, eos=EOS, pad=PAD)
    ids, pictures = torch.randint(3, 40, (16, 5, 20)), torch.randint(0, 50, (16,))
    given_ids, given_pictures = ids.cuda(), pictures.cuda()
    reward(given_ids, given_pictures)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        reward(given_ids, given_pictures)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = reward(given_ids, given_pictures)
    for _ in range(3):
        ids, pictures = torch.randint(3, 40, (16, 5, 20)), torch.randint(0, 50, (16,))
        given_ids.copy_(ids)
        given_pictures.copy_(pictures)
        graph.replay()
        assert torch.allclose(found.cpu().double(), torch.from_numpy(reward(ids.numpy(), pictures.numpy())), atol=1e-6)


@pytest.mark.slow
def test_cocos_index_is_small_and_right() -> None:
    folder = os.environ.get("MESHCAP_DATA")
    path = Path(folder or "", "coco/dataset_coco.json.gz")
    if not folder or not path.is_file():
        pytest.skip("needs MESHCAP_DATA, a folder with coco/dataset_coco.json.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        images = [image for image in json.load(file)["images"] if image["split"] in ("train", "restval")]
    numbers: dict[str, int] = {}
    words = [[one["raw"].lower().rstrip(".").split() for one in image["sentences"]] for image in images]
    those = [[[numbers.setdefault(w, len(numbers) + 4) for w in caption] for caption in captions] for captions in words]
    reward = CiderReward(those, eos=EOS, pad=PAD)
    assert len(reward.references) == 113_287
    assert reward.nbytes < 100e6
    luck = numpy.random.default_rng(0)
    pictures = luck.integers(0, len(words), 50)
    captions = [
        [(those[luck.integers(len(those)) if s else picture][0], True) for s in range(5)] for picture in pictures
    ]
    expected = expected_cider(those, pictures, captions, True)
    found = reward(filled(captions), pictures)
    assert found.ravel().tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert in_torch(reward, filled(captions), pictures.tolist()) == pytest.approx(found, abs=1e-6)
