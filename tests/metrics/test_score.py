"""Scoring as a whole: hand-worked figures, ids that do not fit, domains, comparison, signature."""

import json

import pytest

import meshcap
from meshcap.errors import MeshcapError
from meshcap.metrics import compare, score
from meshcap.metrics.hallucination import Objects
from meshcap.metrics.result import DEFAULT, chosen_metrics

REFERENCES = {
    1: ["a dog runs in the park", "the dog is running outside"],
    2: ["two red boats sail slowly home", "boats on the water"],
    3: ["a man eats three green apples", "someone with fruit"],
    4: ["a woman rides a brown horse", "horse and rider on a beach"],
}
CANDIDATES = {
    1: "a dog runs in the garden",
    2: "red boats sail on water",
    3: "a man eats three green apples",
    4: "a train near a hill",
}


def test_figures_by_hand() -> None:
    found = score({1: "A b c.", 2: "w x y z"}, {1: ["a b d"], 2: ["w x y z"]}, bootstrap=0)
    # 6 of 7 words, and the brevity penalty is 1
    assert found.scores["BLEU-1"] == pytest.approx(6 / 7, abs=1e-8)
    # bigrams: ab; wx xy yz of 2 + 3
    assert found.scores["BLEU-2"] == pytest.approx((6 / 7 * 4 / 5) ** 0.5, abs=1e-8)
    assert found.scores["ROUGE-L"] == pytest.approx((2 / 3 + 1) / 2)
    # the same words in both, none of them in the other picture: ten times cosine 1; "a b" against "a b d" below
    assert found.per_image["2"]["CIDEr"] == pytest.approx(10)
    assert found.per_image["1"]["CIDEr"] == pytest.approx(10 / 4 * (2 / 3 + 1 / 2))
    assert found.scores["CIDEr"] == pytest.approx((10 + 10 / 4 * (2 / 3 + 1 / 2)) / 2)
    assert list(found.scores) == list(DEFAULT)
    assert found.intervals == {} and found.warnings == []


def test_equal_to_pycocoevalcap() -> None:
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu", reason="pycocoevalcap is not installed")
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    found = score(CANDIDATES, REFERENCES)
    said = {id: [caption] for id, caption in CANDIDATES.items()}
    expected, _ = bleu.Bleu(4).compute_score(REFERENCES, said, verbose=0)
    assert [found.scores[f"BLEU-{n}"] for n in (1, 2, 3, 4)] == pytest.approx(expected, abs=1e-12)
    for name, metric in (("ROUGE-L", Rouge()), ("CIDEr", Cider())):
        corpus, each = metric.compute_score(REFERENCES, said)
        assert found.scores[name] == pytest.approx(corpus, abs=1e-12)
        assert [row[name] for row in found.per_image.values()] == pytest.approx(list(each), abs=1e-12)


def test_intervals_hold_the_scores() -> None:
    found = score(CANDIDATES, REFERENCES, bootstrap=500)
    for name, (low, high) in found.intervals.items():
        assert low < found.scores[name] < high, name
    assert found.intervals == score(CANDIDATES, REFERENCES, bootstrap=500).intervals
    assert found.intervals != score(CANDIDATES, REFERENCES, bootstrap=500, seed=1).intervals


def test_result_as_json() -> None:
    found = score(CANDIDATES, REFERENCES, metrics=["bleu", "rouge", "cider", "cider-plain"], bootstrap=20).to_dict()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert list(again)[:4] == ["scores", "intervals", "per_image", "signature"]
    assert list(again["per_image"]) == ["1", "2", "3", "4"]
    assert set(again["per_image"]["1"]) == set(again["scores"]) == set(again["intervals"])
    assert {"CIDEr", "CIDEr-plain"} <= set(again["scores"])


def test_ids_are_strings_and_the_order_does_not_matter() -> None:
    as_strings = {str(id): [caption] for id, caption in reversed(CANDIDATES.items())}
    assert score(as_strings, REFERENCES).to_dict() == score(CANDIDATES, REFERENCES).to_dict()
    with pytest.raises(MeshcapError, match="picture '1' is among the candidates twice, as a number and as a string"):
        score({1: "a", "1": "b"}, REFERENCES)


def test_missing_and_extra_ids() -> None:
    short = {1: "a dog", 2: "a boat", 3: "a man"}
    extra = CANDIDATES | {5: "a cat"}
    with pytest.raises(MeshcapError) as raised:
        score(short, REFERENCES)
    assert str(raised.value) == (
        "1 picture has references and no candidate (first: '4'): add them, or score what has both with --subset "
        "(subset=True)"
    )
    with pytest.raises(MeshcapError, match=r"^1 candidate has no references \(first: '5'\): add them, or"):
        score(extra, REFERENCES)
    with pytest.raises(MeshcapError, match=r"^2 pictures have references and no candidate \(first: '3'\)"):
        score({1: "a dog", 2: "a boat"}, REFERENCES)
    found = score(short | {5: "a cat"}, REFERENCES, subset=True)
    assert found.warnings == [
        "1 candidate has no references (first: '5'): left out",
        "1 picture has references and no candidate (first: '4'): left out",
    ]
    assert list(found.per_image) == ["1", "2", "3"]
    # as if the others had never been there: CIDEr counts in the pictures that are scored
    there = {id: REFERENCES[id] for id in short}
    assert found.scores == score(short, there).scores != score(CANDIDATES, REFERENCES).scores
    with pytest.raises(MeshcapError, match=r"^no candidate has references: candidates are named as 'x', references as"):
        score({"x": "a"}, REFERENCES, subset=True)


def test_no_caption_is_no_candidate_and_no_reference() -> None:
    with pytest.raises(MeshcapError, match="1 picture has references and no candidate"):
        score(CANDIDATES | {4: []}, REFERENCES)
    with pytest.raises(MeshcapError, match="1 candidate has no references"):
        score(CANDIDATES, REFERENCES | {4: []})


def test_empty_captions_are_scored_and_counted() -> None:
    found = score(CANDIDATES | {1: "", 2: " . "}, REFERENCES | {3: ["!", "apples"]})
    assert found.warnings == [
        "1 references are empty: kept, as pycocoevalcap does",
        "2 of 4 candidates are empty: scored as such",
    ]
    assert found.per_image["1"]["CIDEr"] == found.per_image["1"]["ROUGE-L"] == 0


def test_one_picture_has_no_cider() -> None:
    found = score({1: "a dog"}, {1: ["a dog"]})
    assert found.scores["CIDEr"] == 0
    assert found.warnings == ["CIDEr of a single picture is always 0: it needs several to know which words are rare"]


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ({1: None}, "picture '1' has None among the candidates, expected captions"),
        ({1: ["a", 2]}, "picture '1' has ['a', 2] among the candidates, expected captions"),
        (["a dog"], "the candidates are a list, expected a dict from ids to captions"),
        ({}, "no candidate has references: candidates are named as '(none)', references as '1'"),
    ],
)
def test_what_is_no_caption(candidates: object, message: str) -> None:
    with pytest.raises(MeshcapError) as raised:
        score(candidates, REFERENCES)
    assert str(raised.value) == message


def test_choice_of_metrics() -> None:
    assert chosen_metrics(["cider", "BLEU-4", "Rouge"]) == ["BLEU-4", "ROUGE-L", "CIDEr"]
    assert chosen_metrics("bleu") == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"]
    assert list(score(CANDIDATES, REFERENCES, metrics=["cider-d", "bleu-4"]).scores) == ["BLEU-4", "CIDEr"]
    with pytest.raises(MeshcapError, match="there is no metric 'bleurt', expected some of bleu, BLEU-1"):
        score(CANDIDATES, REFERENCES, metrics=["bleurt"])
    with pytest.raises(MeshcapError, match="no metric was asked for"):
        score(CANDIDATES, REFERENCES, metrics=[])
    with pytest.raises(MeshcapError, match="bootstrap is -1"):
        score(CANDIDATES, REFERENCES, bootstrap=-1)
    with pytest.raises(MeshcapError, match="tokenizer"):
        score(CANDIDATES, REFERENCES, tokenizer="words")


def test_tokenizers_other_than_ptb() -> None:
    chars = score({1: "ab", 2: "猫"}, {1: ["ac"], 2: ["猫"]}, tokenizer="char", metrics=["bleu-1"])
    assert chars.scores["BLEU-1"] == pytest.approx(2 / 3, abs=1e-8)
    assert "tokenizer:char|" in chars.signature
    assert "bad endings" not in chars.diversity
    words = score({1: "Große Straße"}, {1: ["große straße"]}, tokenizer="unicode", metrics=["bleu-1"])
    assert words.scores["BLEU-1"] == pytest.approx(1)


DOMAINS = {"1": "out-domain", "2": "in-domain", "3": "near-domain", "4": "in-domain"}


def test_domains() -> None:
    found = score(CANDIDATES, REFERENCES, domains=DOMAINS, bootstrap=50)
    assert list(found.domains) == ["in-domain", "near-domain", "out-domain", "overall"]
    assert [part["pictures"] for part in found.domains.values()] == [2, 1, 1, 4]
    inside = found.domains["in-domain"]["scores"]
    alone = score({id: CANDIDATES[id] for id in (2, 4)}, {id: REFERENCES[id] for id in (2, 4)})
    for name in ("BLEU-1", "BLEU-4", "ROUGE-L"):
        assert inside[name] == pytest.approx(alone.scores[name])
    # CIDEr weighs words by all pictures, so that the domains' mean is the overall figure
    assert inside["CIDEr"] == pytest.approx((found.per_image["2"]["CIDEr"] + found.per_image["4"]["CIDEr"]) / 2)
    assert inside["CIDEr"] != pytest.approx(alone.scores["CIDEr"], rel=1e-3)
    parts = [part["pictures"] * part["scores"]["CIDEr"] / 4 for part in found.domains.values()]
    assert sum(parts[:3]) == pytest.approx(parts[3]) == pytest.approx(found.scores["CIDEr"])
    assert found.domains["overall"]["intervals"] == found.intervals
    low, high = found.domains["near-domain"]["intervals"]["CIDEr"]  # one picture: drawn every time
    assert low == high == pytest.approx(found.per_image["3"]["CIDEr"])
    assert "|domains:df=all|" in found.signature
    assert "domains" not in score(CANDIDATES, REFERENCES).to_dict()


def test_pictures_without_a_domain_are_counted() -> None:
    found = score(CANDIDATES, REFERENCES, domains={"1": "a", "2": "a"})
    assert found.warnings == ["2 pictures have no domain: they count in overall alone"]
    assert [part["pictures"] for part in found.domains.values()] == [2, 4]


def test_n_best_and_training() -> None:
    best = {id: [caption, "something else"] for id, caption in CANDIDATES.items()}
    training = ["A man eats three green apples!", "nothing"]
    found = score(best, REFERENCES, training=training)
    assert found.scores == score(CANDIDATES, REFERENCES).scores
    assert found.diversity["unseen"] == 3 / 4
    assert {"Div-1", "Div-2", "mBLEU-4", "self-CIDEr"} <= set(found.diversity)
    assert not {"unseen", "Div-1"} & set(score(CANDIDATES, REFERENCES).diversity)


def test_objects() -> None:
    shown = {"1": {"dog"}, "2": set(), "3": set(), "4": set()}
    found = score(CANDIDATES, REFERENCES, objects=Objects(shown, ["a warning"]))
    # mentioned: dog; boats; man, apples; train. Only the train is neither annotated nor in a reference.
    assert found.scores["CHAIR-i"] == 1 / 5
    assert found.scores["CHAIR-s"] == 1 / 4
    assert found.per_image["4"]["CHAIR-i"] == 1
    assert found.warnings == ["a warning"]
    assert "|CHAIR:synonyms=meshcap|" in found.signature
    json.dumps(score(CANDIDATES | {4: "hm"}, REFERENCES, objects=Objects(shown, [])).to_dict(), allow_nan=False)
    by_file = score(CANDIDATES, REFERENCES, objects=Objects({f"{k}.jpg": set() for k in "1234"}, []), files={
        k: f"{k}.jpg" for k in "1234"
    })  # fmt: skip
    assert by_file.scores["CHAIR-i"] == 1 / 5
    with pytest.raises(MeshcapError, match=r"3 of 4 pictures have no entry among the objects \(first: '2'\)"):
        score(CANDIDATES, REFERENCES, objects=Objects({"1": set()}, []))


def test_signature_says_how() -> None:
    line = score(CANDIDATES, REFERENCES, bootstrap=30, seed=4).signature
    assert line == (
        f"meshcap:{meshcap.__version__}|tokenizer:ptb|eos:no|BLEU:coco,n=1-4,closest|ROUGE-L:beta=1.2"
        "|CIDEr:D,n=1-4,sigma=6,df=references|pictures:4|references:8|bootstrap:30,seed=4,percentile,95%"
    )
    other = score(CANDIDATES, REFERENCES, metrics=["cider-plain"], bootstrap=0).signature
    assert "BLEU" not in other and "|CIDEr-plain:n=1-4,df=references|" in other and other.endswith("|bootstrap:no")


def test_comparison() -> None:
    found = compare(CANDIDATES, CANDIDATES, REFERENCES, bootstrap=200)
    for difference in found.differences.values():
        assert (difference.value, difference.interval, difference.p) == (0, (0, 0), 1)
    perfect = {id: captions[0] for id, captions in REFERENCES.items()}
    many = {f"{id}-{k}": captions for k in range(10) for id, captions in REFERENCES.items()}
    better = {f"{id}-{k}": caption for k in range(10) for id, caption in perfect.items()}
    worse = {f"{id}-{k}": caption for k in range(10) for id, caption in CANDIDATES.items()}
    found = compare(better, worse, many, bootstrap=400)
    assert found.first.scores == score(better, many).scores
    assert found.second.scores == score(worse, many).scores
    for name, difference in found.differences.items():
        assert difference.value == pytest.approx(found.first.scores[name] - found.second.scores[name])
        assert difference.interval[0] > 0
        assert difference.p == pytest.approx(2 / 401)
    told = json.loads(json.dumps(found.to_dict()))
    assert list(told)[:4] == ["scores", "intervals", "per_image", "signature"]
    assert set(told["against"]["differences"]["CIDEr"]) == {"difference", "interval", "p"}
    assert told["against"]["scores"] == found.second.scores
    assert compare(better, worse, many, bootstrap=0).to_dict()["against"]["differences"]["CIDEr"]["p"] is None


def test_comparison_needs_the_same_pictures() -> None:
    other = {1: "a dog", 2: "a boat", 3: "a man"}
    with pytest.raises(MeshcapError, match=r"has references and no candidate of the other system \(first: '4'\)"):
        compare(CANDIDATES, other, REFERENCES)
    found = compare(CANDIDATES, other, REFERENCES, subset=True)
    assert list(found.first.per_image) == list(found.second.per_image) == ["1", "2", "3"]
    with pytest.raises(TypeError, match="nonesuch"):
        compare(CANDIDATES, CANDIDATES, REFERENCES, nonesuch=1)


def test_a_caption_of_millions_of_words_is_refused_before_it_is_tokenised() -> None:
    with pytest.raises(MeshcapError, match="a caption of 4,000,000 letters among the candidates"):
        score({1: "a " * 2_000_000, 2: "b"}, {1: ["a"], 2: ["b"]})
