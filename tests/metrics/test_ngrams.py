"""BLEU, ROUGE-L, CIDEr-D and CIDEr against coco-caption's own code, and by hand."""

import gzip
import json
import math
import os
import random
from collections import Counter
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcap.errors import MeshcapError
from meshcap.metrics import ngrams
from meshcap.metrics.cider import DocumentFrequencies, cider, cider_d
from meshcap.metrics.ngrams import Scores, _stable_order, bleu, bleu_from_statistics, bleu_statistics, rouge_l

Caption = list[str]
Pictures = list[tuple[Caption, list[Caption]]]  # a candidate and its references

# Few words, so that n-grams repeat and meet; a candidate may also say what no reference does.
references = st.lists(st.lists(st.sampled_from("a b c d e".split()), max_size=9), min_size=1, max_size=10)
candidate = st.lists(st.sampled_from("a b c d zebra 🦓 naïve".split()), max_size=9)
pictures = st.lists(st.tuples(candidate, references), min_size=1, max_size=5)
words_pictures = pictures.filter(lambda those: any(caption for _, refs in those for caption in refs))


def split(those: Pictures) -> tuple[list[Caption], list[list[Caption]]]:
    return [candidate for candidate, _ in those], [references for _, references in those]


def theirs(metric: object, candidates: list[Caption], references: list[list[Caption]]) -> tuple[object, object]:
    """What pycocoevalcap says: its metrics read joined strings."""
    gts = {i: [" ".join(caption) for caption in those] for i, those in enumerate(references)}
    res = {i: [" ".join(caption)] for i, caption in enumerate(candidates)}
    return metric.compute_score(gts, res)  # type: ignore[attr-defined,no-any-return]


def coco_bleu(candidates: list[Caption], references: list[list[Caption]]) -> tuple[object, object]:
    from pycocoevalcap.bleu.bleu import Bleu

    class Quiet(Bleu):  # type: ignore[misc]
        def compute_score(self, gts: object, res: object) -> object:
            return super().compute_score(gts, res, verbose=0)

    return theirs(Quiet(), candidates, references)


def coco_rouge(candidates: list[Caption], references: list[list[Caption]]) -> tuple[object, object]:
    from pycocoevalcap.rouge.rouge import Rouge

    return theirs(Rouge(), candidates, references)


def coco_cider(candidates: list[Caption], references: list[list[Caption]]) -> tuple[object, object]:
    from pycocoevalcap.cider.cider import Cider

    return theirs(Cider(), candidates, references)


def plain_cider(candidates: list[Caption], references: list[list[Caption]]) -> list[float]:
    """The formula of the paper, with dictionaries: the mean over n and references of tf-idf cosines, times ten."""

    def grams(caption: Caption, n: int) -> Counter:
        return Counter(tuple(caption[i : i + n]) for i in range(len(caption) - n + 1))

    scores = []
    for caption, those in zip(candidates, references, strict=True):
        total = 0.0
        for n in range(1, 5):
            df = Counter(gram for refs in references for gram in {g for ref in refs for g in grams(ref, n)})

            def vector(words: Caption, n: int = n, df: Counter = df) -> dict[tuple, float]:
                return {g: c * math.log(len(references) / max(1, df[g])) for g, c in grams(words, n).items()}

            own = vector(caption)
            for reference in those:
                other = vector(reference)
                lengths = math.hypot(*own.values()) * math.hypot(*other.values())
                total += sum(own[g] * other.get(g, 0.0) for g in own) / lengths if lengths else 0.0
        scores.append(10 * total / 4 / len(those))
    return scores


def same(ours: Scores, corpus: object, per_image: object) -> None:
    assert ours.corpus == pytest.approx(corpus, abs=1e-9)
    assert ours.per_image.tolist() == pytest.approx(list(per_image), abs=1e-9)  # type: ignore[call-overload]


def check_all(those: Pictures) -> None:
    candidates, references = split(those)
    for ours, corpus, per_image in zip(bleu(candidates, references), *coco_bleu(candidates, references), strict=True):
        same(ours, corpus, per_image)
    same(rouge_l(candidates, references), *coco_rouge(candidates, references))
    same(cider_d(candidates, references), *coco_cider(candidates, references))


@given(words_pictures)
def test_as_coco_caption(those: Pictures) -> None:
    check_all(those)


@given(pictures)
def test_plain_cider_as_its_formula(those: Pictures) -> None:
    ours, expected = cider(*split(those)), plain_cider(*split(those))
    assert ours.per_image.tolist() == pytest.approx(expected, abs=1e-9)
    assert ours.corpus == pytest.approx(sum(expected) / len(expected), abs=1e-9)


@given(words_pictures, words_pictures)
def test_frequencies_of_other_references(those: Pictures, others: Pictures) -> None:
    """Pictures scored alone with the frequencies of many score as they do among the many."""
    df = DocumentFrequencies.build(split(those + others)[1])
    _, per_image = coco_cider(*split(those + others))
    assert cider_d(*split(those), df).per_image.tolist() == pytest.approx(list(per_image)[: len(those)], abs=1e-9)
    assert cider(*split(those), df).per_image.tolist() == pytest.approx(
        plain_cider(*split(those + others))[: len(those)], abs=1e-9
    )


@given(pictures, st.randoms())
def test_bleu_of_any_pictures_from_their_statistics(those: Pictures, luck: random.Random) -> None:
    """What a bootstrap does: rows drawn with replacement, many times at once."""
    table = bleu_statistics(*split(those))
    drawn = [[luck.randrange(len(those)) for _ in those] for _ in range(4)]
    found = bleu_from_statistics(table[numpy.array(drawn)].sum(1))  # (4, 4)
    for rows, scores in zip(drawn, found, strict=True):
        corpus, _ = coco_bleu(*split([those[row] for row in rows]))
        assert scores.tolist() == pytest.approx(corpus, abs=1e-9)


def test_corners() -> None:
    check_all([([], [["a"]])])
    check_all([([], [[]]), (["a"], [[], ["a", "b"]])])
    check_all([(["a"], [["a"]]), (["b"], [["b"]])])
    check_all([(["a"] * 40, [["a"] * 3, ["a", "b"]]), (["b"] * 90, [["b"] * 80])])
    check_all([("a b".split(), ["a b c d".split(), []]), ("x y z".split(), ["a".split()] * 10)])  # equally near lengths


def test_no_word_in_any_reference() -> None:
    """coco-caption's CIDEr fails here; nothing in common is 0, and two empty captions are the same to its ROUGE."""
    assert cider_d([["a"], []], [[[]], [[]]]).per_image.tolist() == [0, 0]
    assert cider([[], []], [[[]], [[]]]).corpus == 0
    same(rouge_l([["a"], []], [[[]], [[]]]), 0.5, [0, 1])


def test_fractions_are_one_token_and_two_words() -> None:
    """The PTB tokenizer's no-break space: str.split() parts it, as BLEU and CIDEr of coco-caption do, ROUGE-L not."""
    check_all(
        [("1\xa01/2 cups of tea".split(" "), ["1 cups of tea".split(), "1\xa01/2 cups".split(" ")])] * 2
        + [(["a"], [["b", "1/2"]])]
    )


def test_by_hand() -> None:
    # Papineni and others, 2002: seven times "the", of which the reference has two.
    first = bleu([["the"] * 7], [["the cat is on the mat".split()]])[0]
    assert first.corpus == pytest.approx(2 / 7)
    # Shorter by a word than the reference: BLEU-1 is exp(1 - 3/2).
    assert bleu([["a", "b"]], [[["a", "b", "c"]]])[0].corpus == pytest.approx(math.exp(-0.5))
    assert bleu_statistics([["a", "b", "a"]], [[["a", "b", "c", "d"], ["b", "a"]]]).tolist() == [
        [2, 2, 0, 0, 3, 2, 1, 0, 3, 2]
    ]
    # Lin, 2004: three words of four in common, in order; then two.
    assert rouge_l(["police kill the gunman".split()], [["police killed the gunman".split()]]).corpus == 0.75
    assert rouge_l(["the gunman kill police".split()], [["police killed the gunman".split()]]).corpus == 0.5
    # Every word has idf log 2. Equal: cosine 1 for one and two words, no longer n-grams: 10 · 2/4.
    other = (["x"], [["y"]])
    assert cider_d(*split([(["a", "b"], [["a", "b"]]), other])).per_image.tolist() == pytest.approx([5, 0])
    # "a b" and "a b c": cosines 2/√6 and 1/√2, and a bigram less.
    expected = 10 / 4 * (2 / 6**0.5 + 1 / 2**0.5)
    assert cider(*split([(["a", "b"], [["a", "b", "c"]]), other])).per_image[0] == pytest.approx(expected)
    assert cider_d(*split([(["a", "b"], [["a", "b", "c"]]), other])).per_image[0] == pytest.approx(
        expected * math.exp(-1 / 72)
    )
    # A word said twice: its cosine is 1, but CIDEr-D counts it as often as the reference does, a half.
    assert cider(*split([(["a", "a"], [["a"]]), other])).per_image[0] == pytest.approx(2.5)
    assert cider_d(*split([(["a", "a"], [["a"]]), other]), sigma=1).per_image[0] == pytest.approx(1.25 * math.exp(-0.5))
    # Words alone.
    assert cider_d(*split([(["a", "b"], [["b", "a"]]), other]), n=1).per_image[0] == pytest.approx(10)


def test_more_words_than_16_bits() -> None:
    """Words whose numbers differ by 65,536 are different words."""
    words = [f"w{i}" for i in range(2 * 65_536)]
    near, far = words[:65_536], words[65_536:]
    those = [(near, [near]), (far, [near, far]), (near[:9], [far])]
    assert cider(*split(those)).per_image.tolist() == pytest.approx([10, 5, 0])
    assert cider_d(*split(those)).per_image.tolist() == pytest.approx([10, 5, 0])
    assert bleu(*split(those))[3].per_image.tolist() == pytest.approx([1, 1, 0])
    assert bleu_statistics(*split(those))[2].tolist() == [0, 0, 0, 0, 9, 8, 7, 6, 9, 65_536]


@given(st.lists(st.integers(0, 2**62)), st.integers(0, 61))
def test_order(numbers: list[int], shift: int) -> None:
    keys = numpy.array(numbers, numpy.int64) >> shift
    assert _stable_order(keys).tolist() == sorted(range(len(keys)), key=keys.tolist().__getitem__)


def test_long_captions_are_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of long captions are marked in another way; and a caption of a million words costs no more than each."""
    luck = numpy.random.default_rng(0)
    candidates = [[str(word) for word in luck.integers(0, 9, size)] for size in (1, 7, 30, 200)]
    references = [[[str(word) for word in luck.integers(0, 9, size)] for size in (0, 5, 40)] for _ in candidates]
    expected = rouge_l(candidates, references)
    monkeypatch.setattr(ngrams, "SHORT", 0)
    assert rouge_l(candidates, references).per_image.tolist() == expected.per_image.tolist()
    long = ["a", "b"] * 500_000  # all 4 words of the reference stand in it, in their order
    precision, recall = 4 / len(long), 1
    scored = (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)
    assert rouge_l([long], [[["a", "a", "b", "b"]]]).corpus == pytest.approx(scored)


@pytest.mark.parametrize("metric", [bleu, bleu_statistics, rouge_l, cider_d, cider])
def test_mistakes(metric) -> None:
    with pytest.raises(MeshcapError, match="picture 1 has no references"):
        metric([["a"], ["a"]], [[["a"]], []])
    with pytest.raises(MeshcapError, match="2 candidates for the references of 1 pictures"):
        metric([["a"], ["a"]], [[["a"]]])
    with pytest.raises(MeshcapError, match="no pictures"):
        metric([], [])
    with pytest.raises(MeshcapError, match="candidate 1 is a string"):
        metric([["a"], "a cat"], [[["a"]], [["a"]]])
    with pytest.raises(MeshcapError, match="picture 0 are strings"):
        metric([["a"]], [["a cat"]])


def test_gram_length_is_checked() -> None:
    with pytest.raises(ValueError, match="n is 5, expected 1 to 4"):
        cider_d([["a"]], [[["a"]]], n=5)


@given(words_pictures, words_pictures)
def test_frequencies_are_the_same_from_a_file(tmp_path_factory, those: Pictures, others: Pictures) -> None:
    df = DocumentFrequencies.build(split(those)[1])
    path = tmp_path_factory.mktemp("df") / "frequencies"
    df.save(path)
    read = DocumentFrequencies.load(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["frequencies"]
    assert (read.images, read.words) == (df.images, df.words)
    assert cider_d(*split(others), read).per_image.tolist() == cider_d(*split(others), df).per_image.tolist()


def test_frequencies_count_pictures() -> None:
    """A picture counts once, however often its references say a thing; what one picture alone says is left out."""
    df = DocumentFrequencies.build([[["a", "b", "a"], ["a"]], [["a", "b"]], [["b", "c"]]])
    assert (df.images, df.words) == (3, ["a", "b"])
    assert [counts.tolist() for counts in df.counts] == [[2, 3], [2], [], []]
    assert df.nbytes > 0


def test_files_that_hold_no_frequencies(tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(MeshcapError, match=message):
            DocumentFrequencies.load(path)

    refused(tmp_path / "none", "cannot be read")
    (tmp_path / "text").write_text("hello")
    refused(tmp_path / "text", "no document frequencies")
    numpy.save(tmp_path / "array.npy", numpy.zeros(3))
    refused(tmp_path / "array.npy", "no document frequencies")
    good = tmp_path / "good"
    DocumentFrequencies.build([[["a", "b"]], [["a", "b"]]]).save(good)
    (tmp_path / "half").write_bytes(good.read_bytes()[:300])
    refused(tmp_path / "half", "no document frequencies")
    with numpy.load(good) as file:
        arrays = dict(file)
    changes = {"images": 1, "counts2": [1], "keys1": [1, 0], "lengths": [1, 2], "keys2": [0.5], "counts1": [2]}
    for name, value in changes.items():
        with open(tmp_path / "changed", "wb") as out:
            numpy.savez(out, **{**arrays, name: numpy.array(value)})
        refused(tmp_path / "changed", "no document frequencies")
    with pytest.raises(MeshcapError, match="cannot be written"):
        DocumentFrequencies.build([[["a"]]]).save(tmp_path / "nowhere" / "df")


def data(name: str) -> Path:
    """A file under the folder that MESHCAP_DATA names, or a skipped test."""
    folder = os.environ.get("MESHCAP_DATA")
    path = Path(folder or "", name)
    if not folder or not path.is_file():
        pytest.skip(f"needs MESHCAP_DATA, a folder with {name}")
    return path


def coco() -> dict[int, list[str]]:
    with gzip.open(data("coco/dataset_coco.json.gz"), "rt", encoding="utf-8") as file:
        images = json.load(file)["images"]
    return {image["cocoid"]: [sentence["raw"] for sentence in image["sentences"]] for image in images}


@pytest.mark.slow
def test_random_pictures_of_coco() -> None:
    luck = random.Random(0)
    raw = coco()
    ids = sorted(raw)
    for size in (1, 30, 1500):
        those = []
        for id in luck.sample(ids, size):
            captions = [caption.lower().rstrip(". ").split() for caption in raw[id]]
            other = luck.choice(raw[luck.choice(ids)]).lower().split()
            those.append((captions.pop() if luck.random() < 0.5 else other, captions))
        check_all(those)
        same(cider(*split(those[:30])), numpy.mean(plain_cider(*split(those[:30]))), plain_cider(*split(those[:30])))


@pytest.mark.slow
def test_published_figures() -> None:
    """coco-caption's example: 1,000 pictures of val2014 and the figures of its notebook."""
    from meshcap.text.ptb import ptb_tokenize_all

    example = json.loads(data("coco/captions_val2014_fakecap_results.json").read_text(encoding="utf-8"))
    raw = coco()
    candidates = ptb_tokenize_all([one["caption"] for one in example])
    references = [ptb_tokenize_all(raw[one["image_id"]]) for one in example]
    figures = [score.corpus for score in bleu(candidates, references)]
    figures += [rouge_l(candidates, references).corpus, cider_d(candidates, references).corpus]
    assert [round(figure, 3) for figure in figures] == [0.579, 0.404, 0.279, 0.191, 0.396, 0.600]
