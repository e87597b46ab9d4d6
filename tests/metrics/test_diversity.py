"""What a captioner says, counted by hand."""

import math

import numpy
import pytest

from meshcap.metrics.cider import DocumentFrequencies
from meshcap.metrics.diversity import div_n, habits, mutual_bleu, n_best, self_cider
from meshcap.metrics.ngrams import bleu


def words(*captions: str) -> list[list[str]]:
    return [caption.split() for caption in captions]


# Two pictures whose references share no n-gram: every n-gram of one picture weighs log 2.
REFERENCES = [words("a dog runs in the park"), words("two red boats sail slowly home")]
FREQUENCIES = DocumentFrequencies.build(REFERENCES)


def test_habits_by_hand() -> None:
    said = words("a cat on a", "a cat on a mat on a mat", "dogs", "")
    found = habits(said, {("dogs",), ("cats",)})
    assert found["vocabulary"] == 5  # a cat on mat dogs
    assert [found[f"length {name}"] for name in ("mean", "min", "max", "median")] == [13 / 4, 0, 8, 2.5]
    assert (found["length 25 %"], found["length 75 %"]) == (0.75, 5)
    assert found["length sd"] == pytest.approx(math.sqrt((16 + 64 + 1) / 4 - (13 / 4) ** 2))
    assert found["bad endings"] == 2 / 4  # "… on a", and the empty one
    # "on a", "a mat" and "on a mat" come twice in the second; no four words in a row do
    assert [found[f"repeated-{n}"] for n in (2, 3, 4)] == [1 / 4, 1 / 4, 0]
    assert found["unseen"] == 3 / 4


def test_habits_without_what_is_not_known() -> None:
    assert not {"unseen", "bad endings"} & set(habits(words("a b"), endings=False))


def test_div_n_by_hand() -> None:
    # 8 words, of which a b c d are distinct; bigrams ab bc, ab bd, bd: 3 distinct
    first = words("a b c", "a b d", "b d")
    second = words("x", "x")
    assert div_n([first], 1) == 4 / 8
    assert div_n([first], 2) == 3 / 8
    assert div_n([first, second], 1) == pytest.approx((4 / 8 + 1 / 2) / 2)
    assert div_n([first, second], 2) == pytest.approx((3 / 8 + 0) / 2)
    assert div_n([words("", "")], 1) == 0


def test_mutual_bleu() -> None:
    same = words("a dog runs in the park", "a dog runs in the park")
    apart = words("a dog runs in the park", "two red boats sail slowly home")
    assert mutual_bleu([same, same]) == pytest.approx(1, abs=1e-8)
    assert mutual_bleu([apart, apart]) == pytest.approx(0, abs=1e-2)
    # of pictures with different numbers of captions: the third place is the second picture's alone
    three = words("a dog runs in the park", "a dog runs in the garden", "a cat sits in the park")
    expected = [
        bleu([same[0], three[0]], [[same[1]], [three[1], three[2]]])[3].corpus,
        bleu([same[1], three[1]], [[same[0]], [three[0], three[2]]])[3].corpus,
        bleu([three[2]], [three[:2]])[3].corpus,
    ]
    assert mutual_bleu([same, three]) == pytest.approx(numpy.mean(expected))


def test_self_cider_of_the_same_and_of_nothing_in_common() -> None:
    same = words("a dog runs in the park") * 5
    apart = words("a dog runs in the park", "two red boats sail slowly home", "one man eats three green apples")
    assert self_cider([same, apart], FREQUENCIES) == pytest.approx([0, 1], abs=1e-6)


def test_self_cider_in_closed_form() -> None:
    """Two captions with similarity k have eigenvalues 1 ± k; here k is counted by hand."""
    pair = words("w x y z", "w x y q")
    # All n-grams weigh the same: cosines 3/4, 2/3, 1/2, 0 for n = 1..4
    k = (3 / 4 + 2 / 3 + 1 / 2 + 0) / 4
    ratio = math.sqrt(1 + k) / (math.sqrt(1 + k) + math.sqrt(1 - k))
    assert self_cider([pair], FREQUENCIES) == pytest.approx([-math.log(ratio) / math.log(2)])


def test_self_cider_is_the_public_formula_on_a_kernel_of_its_own() -> None:
    from collections import Counter

    random = numpy.random.default_rng(0)
    letters = list("abcdefgh")
    references = [[list(random.choice(letters, 7)) for _ in range(3)] for _ in range(10)]
    sets = [[list(random.choice(letters, 6)) for _ in range(4)] for _ in range(10)]

    def grams(caption: list[str], n: int) -> Counter:
        return Counter(tuple(caption[i : i + n]) for i in range(len(caption) - n + 1))

    def weigh(caption: list[str], n: int) -> dict:
        seen = {g: sum(any(g in grams(r, n) for r in those) for those in references) for g in grams(caption, n)}
        return {g: count * math.log(10 / max(1, seen[g])) for g, count in grams(caption, n).items()}

    def cosine(a: dict, b: dict) -> float:
        size = math.sqrt(sum(v * v for v in a.values()) * sum(v * v for v in b.values()))
        return sum(v * b.get(g, 0) for g, v in a.items()) / size if size else 0.0

    expected = []
    for captions in sets:
        vectors = [[weigh(caption, n) for n in (1, 2, 3, 4)] for caption in captions]
        kernel = [[numpy.mean(list(map(cosine, a, b))) for b in vectors] for a in vectors]
        values = numpy.clip(numpy.linalg.eigvalsh(numpy.array(kernel)), 0, None)
        expected.append(-math.log(math.sqrt(values[-1]) / numpy.sqrt(values).sum()) / math.log(4))
    found = self_cider(sets, DocumentFrequencies.build(references))
    assert found == pytest.approx(expected, abs=1e-9)
    assert 0 < min(found) < max(found) < 1


def test_self_cider_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [words("a dog", "a cat", "dogs"), words("two red boats", "red boats sail"), words("a", "b", "c d")]
    whole = self_cider(sets, FREQUENCIES)
    monkeypatch.setattr("meshcap.metrics.diversity.PAIRS", 2)
    assert self_cider(sets, FREQUENCIES) == whole


def test_captions_without_weight_are_alike() -> None:
    assert self_cider([words("", "")], FREQUENCIES) == [0]
    assert self_cider([words("a b", "c d")], DocumentFrequencies.build(REFERENCES[:1])) == [0]  # log 1


def test_n_best_counts_pictures_with_several_captions_only() -> None:
    one, two = words("a dog"), words("a dog", "a cat")
    assert n_best([one, one], REFERENCES) == {}
    assert n_best([one, two], REFERENCES) == n_best([two], REFERENCES)
    assert list(n_best([two], REFERENCES)) == ["Div-1", "Div-2", "mBLEU-4", "self-CIDEr"]
