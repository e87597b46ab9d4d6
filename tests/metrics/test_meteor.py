"""METEOR 1.5 against the Java program's answers, by hand, and against all alignments of short sentences.

`fixtures/meteor.json` holds sentences, a small table of paraphrases and what `meteor-1.5.jar` answers with it; where
there is Java, the program is asked again.
"""

import gzip
import itertools
import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcap.errors import MeshcapError
from meshcap.metrics import compare, meteor_align, meteor_paraphrases, score
from meshcap.metrics.meteor import JAR, LIMIT, Meteor, find_data, meteor
from meshcap.metrics.meteor_align import EXACT, PARAPHRASE, Matches, resolve
from meshcap.metrics.meteor_paraphrases import Paraphrases
from meshcap.metrics.meteor_words import Normalizer, english_stem, java_hash

GOLDEN = json.loads((Path(__file__).parents[1] / "fixtures/meteor.json").read_text(encoding="utf-8"))
has_data = pytest.mark.skipif(find_data() is None, reason="pycocoevalcap is not installed")
has_java = pytest.mark.skipif(find_data() is None or not shutil.which("java"), reason="no Java, or no pycocoevalcap")


def write_table(path: Path, pairs: list[list[str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"0.5\n{phrase}\n{other}\n" for phrase, other in pairs)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "meshcap"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The jar with the small table."""
    data = find_data()
    assert data
    write_table(tmp_path / "meteor/data/paraphrase-en.gz", GOLDEN["paraphrases"])
    shutil.copy(data / JAR, tmp_path / "meteor")
    return tmp_path / "meteor"


def counted(meteor: Meteor, pairs: list[tuple[str, list[str]]]) -> numpy.ndarray:
    return meteor.statistics(
        [one.split() for one, _ in pairs], [[text.split() for text in those] for _, those in pairs]
    )


def golden_counts() -> numpy.ndarray:
    counts = numpy.array([each["counts"] for each in GOLDEN["captions"]], float)
    whole = (counts[:, 21:23] == counts[:, 0:2]).all(1) & (counts[:, 20] == 1)
    counts[whole, 20] = 0  # not broken at all
    return counts


@has_data
def test_golden(folder: Path) -> None:
    meteor = Meteor(data=folder)
    counts = counted(meteor, [(each["candidate"], each["references"]) for each in GOLDEN["captions"]])
    assert counts.tolist() == golden_counts().tolist()
    assert meteor.scores(counts) == pytest.approx([each["score"] for each in GOLDEN["captions"]], abs=1e-12)
    assert meteor.scores(counts.sum(0)) == pytest.approx(GOLDEN["corpus"], abs=1e-12)
    assert (counts[:, 4:20].reshape(-1, 4, 4).sum((0, 2)) > 20).all()  # every kind of match occurs


@has_data
def test_batches_change_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshcap.metrics.meteor.PICTURES", 7)
    monkeypatch.setattr(meteor_align, "BATCH", 3)
    lines: list[str] = []
    meteor = Meteor(data=folder, report=lines.append)
    counts = counted(meteor, [(each["candidate"], each["references"]) for each in GOLDEN["captions"]])
    assert counts.tolist() == golden_counts().tolist()
    assert lines[:3] == [
        "METEOR: the paraphrases are indexed, once",
        "METEOR: 0 of 120 captions",
        "METEOR: 7 of 120 captions",
    ]


@has_data
def test_scores_by_hand(folder: Path) -> None:
    meteor = Meteor(data=folder)

    def one(candidate: str, reference: str) -> float:
        return float(meteor.scores(counted(meteor, [(candidate, [reference])]))[0])

    assert one("red dog", "red dog") == 1  # whole, in one chunk: no penalty
    assert one("red dog", "blue bird") == 0
    # "red" and "dog" match, in two chunks of two words: the penalty is 0.6 · (2 / 2) ** 0.2.
    assert one("red dog", "dog red") == pytest.approx(1 - 0.6)
    # "the" is a function word: 0.25 of a word, "dog" 0.75. Precision 1, recall 0.75 / 1; one chunk of one word.
    mean = 1 / (0.15 / 1 + 0.85 / 0.75)
    assert one("dog", "the dog") == pytest.approx(mean * (1 - 0.6))
    # A stem counts 0.6, a synonym 0.8, a paraphrase 0.6 (here one word for four).
    assert one("zorbs", "zorb") == pytest.approx(0.6)
    assert one("bicycle", "bike") == pytest.approx(0.8)
    assert one("together", "at the same time") == pytest.approx(0.6)
    # What matches in two ways (stem and synonym) is no sure match, and counts nothing in the search: it is taken only
    # where it makes no chunk of its own.
    assert one("dogs", "dog") == 0
    mean = 1 / (0.15 / (0.25 + 0.75 * 0.6) + 0.85 / (0.25 + 0.75 * 0.6))
    assert one("a dogs", "a dog") == pytest.approx(mean)
    # Two matched words in one chunk, of three and two: (1 / 2) ** 0.2.
    mean = 1 / (0.15 / (2 / 3) + 0.85)
    assert one("big red dog", "red dog") == pytest.approx(mean * (1 - 0.6 * 0.5**0.2))
    assert one("dog", "") == one("", "dog") == one("", "") == 0


@has_data
def test_scores_of_counts(folder: Path) -> None:
    """Two of the Java program's answers with the whole table, and what it makes of them, alone and together."""
    counts = numpy.array(
        [
            [5, 8, 2, 4, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 5, 5],
            [6, 5, 3, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 5, 5],
        ],
        float,
    )
    meteor = Meteor(data=folder)
    assert meteor.scores(counts) == pytest.approx([0.363166923119682, 0.42191927446219163], abs=1e-15)
    assert meteor.scores(counts.sum(0)) == pytest.approx(0.38428956264874653, abs=1e-15)


@has_data
def test_score_uses_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no Java
    monkeypatch.setattr("meshcap.metrics.meteor.find_data", lambda: folder)
    captions = {1: "a man rides a horse", 2: "two dogs play in the snow"}
    references = {1: ["a man riding a horse on the beach", "someone on a horse"], 2: ["two dogs playing in snow"]}
    result = score(captions, references, metrics=["meteor", "cider"], bootstrap=50)
    meteor = Meteor(data=folder)
    counts = counted(meteor, [(captions[number], references[number]) for number in captions])
    assert result.scores["METEOR"] == pytest.approx(float(meteor.scores(counts.sum(0))))
    assert [row["METEOR"] for row in result.per_image.values()] == meteor.scores(counts).tolist()
    low, high = result.intervals["METEOR"]
    assert low <= result.scores["METEOR"] <= high
    assert "|METEOR:1.5,en,norm,python|" in result.signature and not result.warnings
    both = compare(captions, {1: "a horse", 2: "dogs"}, references, metrics="meteor", bootstrap=50)
    assert both.differences["METEOR"].value > 0


def test_score_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshcap.metrics.meteor.find_spec", lambda name: None)
    found = score({1: "a dog", 2: "a cat"}, {1: ["a dog"], 2: ["a cat"]}, metrics=["cider", "meteor"])
    assert list(found.scores) == ["CIDEr"] and "METEOR" not in found.signature
    assert found.warnings == ['METEOR left out: METEOR\'s data is not installed: pip install "meshcap[meteor]"']
    with pytest.raises(MeshcapError, match="METEOR has no language 'xx'"):
        score({1: "a dog"}, {1: ["a dog"]}, metrics=["meteor"], language="xx")


@has_data
def test_best_reference_and_sums(folder: Path) -> None:
    meteor = Meteor(data=folder)
    both = counted(meteor, [("red dog", ["dog", "red dog", "dog red"]), ("big cat", ["cat big"])])
    assert both[0, :2].tolist() == [2, 2] and both[0, 20] == 0
    assert meteor.scores(both).tolist() == pytest.approx([1, 0.4])
    # Together: everything matches, two chunks over four words.
    assert meteor.scores(both.sum(0)) == pytest.approx(1 - 0.6 * (2 / 4) ** 0.2)
    assert meteor.scores(numpy.zeros(23)) == 0
    assert meteor.statistics([], []).shape == (0, 23)
    with pytest.raises(MeshcapError, match="a picture has no reference"):
        meteor.statistics([["dog"]], [[]])


@has_data
def test_long_sentences(folder: Path) -> None:
    meteor = Meteor(data=folder)
    counts = counted(meteor, [("a " * 100_000, ["a " * 100_000]), ("." * 100_000, ["." * 100_000])])
    assert counts[0, :4].tolist() == [100_000] * 4  # counted, but the first words alone are aligned
    assert counts[0, 21:].tolist() == [LIMIT, LIMIT]
    assert meteor.scores(counts)[1] == 1


def exact_matches(candidate: str, reference: str) -> Matches:
    found = [(j, i) for j, one in enumerate(reference) for i, other in enumerate(candidate) if one == other]
    start, other = numpy.array(found, numpy.int64).reshape(-1, 2).T
    ones = numpy.ones(len(found), numpy.int64)
    return Matches(ones * 0, ones * EXACT, start, ones, other, ones)


def chunks_of(pairs: list[tuple[int, int]]) -> int:
    """Runs of matches (reference, candidate) that are neighbours in both."""
    pairs = sorted(pairs)
    return len(pairs) - sum((j + 1, i + 1) == after for (j, i), after in itertools.pairwise(pairs))


@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_alignment_is_the_best_of_all(candidate: str, reference: str) -> None:
    matches = exact_matches(candidate, reference)
    found = resolve(matches, numpy.array([[len(candidate), len(reference)]]))
    taken = list(zip(matches.start[found.taken].tolist(), matches.other_start[found.taken].tolist(), strict=True))
    assert len({j for j, _ in taken}) == len({i for _, i in taken}) == len(taken)
    assert found.chunks.tolist() == [chunks_of(taken)]
    possible = list(zip(matches.start.tolist(), matches.other_start.tolist(), strict=True))
    best = max(
        (len(those), -chunks_of(list(those)))
        for size in range(min(len(candidate), len(reference)) + 1)
        for those in itertools.combinations(possible, size)
        if len({j for j, _ in those}) == len({i for _, i in those}) == size
    )
    assert (len(taken), -chunks_of(taken)) == best


def test_exact_words_outweigh_paraphrases() -> None:
    """Two words for two count one each side, as much as one exact match; three for three no more than that."""
    matches = Matches(
        *(numpy.array(column) for column in zip(*[(0, PARAPHRASE, 0, 3, 0, 3), (0, EXACT, 1, 1, 1, 1)], strict=True))
    )
    order = numpy.array([0, 1])
    found = resolve(matches.take(order), numpy.array([[3, 3]]))
    assert found.taken.tolist() == [True, False]  # 1 + 1 words each; the paraphrase comes first
    more = Matches(
        *(
            numpy.array(column)
            for column in zip(
                *[(0, PARAPHRASE, 0, 3, 0, 3), (0, EXACT, 1, 1, 1, 1), (0, EXACT, 2, 1, 2, 1)], strict=True
            )
        )
    )
    assert resolve(more, numpy.array([[3, 3]])).taken.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("word", "stem"),
    # From the sample vocabulary that Snowball publishes, and its exceptions.
    [
        *(("consign", "consign"), ("consigned", "consign"), ("consistency", "consist"), ("consolatory", "consolatori")),
        *(("knackeries", "knackeri"), ("knightly", "knight"), ("knots", "knot"), ("kneeling", "kneel")),
        *(("generously", "generous"), ("communism", "communism"), ("arsenal", "arsenal"), ("skies", "sky")),
        *(("dying", "die"), ("news", "news"), ("inning", "inning"), ("proceed", "proceed"), ("hopping", "hop")),
        *(("hoping", "hope"), ("cries", "cri"), ("ties", "tie"), ("gas", "gas"), ("gaps", "gap"), ("by", "by")),
        *(("say", "say"), ("cry", "cri"), ("yellow", "yellow"), ("beyyy", "beyyy"), ("dog's", "dog"), ("'s", "'s")),
        *(("relational", "relat"), ("adjustable", "adjust"), ("adoption", "adopt"), ("controlled", "control")),
    ],
)
def test_stems(word: str, stem: str) -> None:
    assert english_stem(word) == stem


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a dog runs", "a dog runs"),
        ("It's the U.S.-based dog.", "it 's the us based dog ."),
        ("Mr. Smith paid 1,000, no. 5 and No. 5", "mr. smith paid 1,000 , no . 5 and no. 5"),
        ("wait... what?!", "wait ... what ? !"),
        ("‘quoted’ “twice” ``back''", '\' quoted \' " twice " " back "'),
        ("a well-known t–shirt -- new", "a well known t - shirt - new"),
        ("the 1990's dogs' rock'n'roll", "the 1990 's dogs ' rock 'n'roll"),
        ("x\u00a0y\u3000z", "x y z"),
        ("Ünïcode😀", "ünïcode 😀"),
    ],
)
def test_normalized(line: str, words: str) -> None:
    assert Normalizer("en", {"Mr": False, "No": True})(line) == words.split(" ")


def test_apostrophes_of_languages() -> None:
    assert Normalizer("fr", {})("l'eau") == ["l'", "eau"]
    assert Normalizer("cz", {})("l'eau") == ["l", "'", "eau"]


def test_java_hash() -> None:
    assert [java_hash(word) for word in ("", "a", "hello", "😀")] == [0, 97, 99162322, 1772899]
    assert java_hash("aÿ") == java_hash("bà")
    assert java_hash("a long sentence of words") < 2**32


TABLE = [["next to", "beside"], ["next to", "near"], ["beside", "next to"], ["a b c d e f g", "x"], ["über", "é è"]]


def test_paraphrase_index(tmp_path: Path, cache: Path) -> None:
    table = write_table(tmp_path / "paraphrase-en.gz", TABLE)
    lines: list[str] = []
    index = Paraphrases.load(table, lines.append)
    found = index.find([["he", "is", "next", "to", "us"], [], ["über", "über"], ["near", "beside"], [*"abcdefgh"]])
    assert [*zip(found.sentence.tolist(), found.start.tolist(), found.length.tolist(), strict=True)] == [
        *((0, 2, 2), (2, 0, 1), (2, 1, 1), (3, 0, 1), (3, 1, 1), (4, 0, 7))
    ]
    next_to, _, _, near, beside, _ = found.phrase.tolist()
    assert index.among(found.phrase) == {next_to: {beside: 0, near: 1}, beside: {next_to: 0}}
    assert index.among(found.phrase[[0, 3]]) == {next_to: {near: 1}}

    (file,) = cache.iterdir()  # and nothing unfinished
    assert file.name.startswith(f"paraphrase-en-{meteor_paraphrases.VERSION}-")
    again = Paraphrases.load(table, lines.append)
    assert lines == ["METEOR: the paraphrases are indexed, once"]
    assert isinstance(again.keys, numpy.memmap) and (again.keys == index.keys).all()


def test_index_is_made_again(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_table(tmp_path / "paraphrase-en.gz", TABLE)
    lines: list[str] = []
    Paraphrases.load(table)
    (file,) = cache.iterdir()
    for broken in (b"", file.read_bytes()[:-4], b"x" * file.stat().st_size):
        file.write_bytes(broken)
        assert len(Paraphrases.load(table, lines.append).targets) == len(TABLE)
    assert len(lines) == 3
    write_table(table, TABLE[:2])  # another table is another file
    assert len(Paraphrases.load(table, lines.append).targets) == 2
    assert len(lines) == 4 and len(list(cache.iterdir())) == 2
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # nothing can be written there
    assert len(Paraphrases.load(table, lines.append).targets) == 2


def test_small_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_table(tmp_path / "t.gz", TABLE)
    whole = Paraphrases.build(table)
    monkeypatch.setattr(meteor_paraphrases, "CHUNK", 5)
    parts = Paraphrases.build(table)
    for name in ("keys", "offsets", "targets"):
        assert getattr(whole, name).tolist() == getattr(parts, name).tolist()
    assert len(Paraphrases.build(write_table(table, [])).find([["a"]]).phrase) == 0


@has_data
def test_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeshcapError, match="METEOR has no language 'xx', expected one of en, cz, de, es, fr, ru"):
        Meteor("xx")
    with pytest.raises(MeshcapError, match="METEOR in German needs a stemmer"):
        Meteor("de")
    with pytest.raises(MeshcapError, match=r"paraphrase-cz\.gz, a file of METEOR 1\.5, is missing"):
        Meteor("cz", data=folder)
    table = folder / "data/paraphrase-en.gz"
    table.write_bytes(table.read_bytes()[:60] + b"12345678")
    with pytest.raises(MeshcapError, match=r"cannot be read .*: install it again") as raised:
        Meteor(data=folder)
    assert "\n" not in str(raised.value)
    (folder / JAR).write_bytes(b"no jar")
    with pytest.raises(MeshcapError, match="cannot be read"):
        Meteor(data=folder)
    monkeypatch.setattr("meshcap.metrics.meteor.find_spec", lambda name: None)
    with pytest.raises(MeshcapError, match="METEOR's data is not installed: pip install"):
        Meteor()


def java(folder: Path, lines: list[str], language: str = "en") -> list[str]:
    command = ["java", "-Xmx2G", "-jar", JAR, "-", "-", "-stdio", "-l", language, "-norm"]
    done = subprocess.run(
        command, cwd=folder, input="".join(f"{line}\n" for line in lines).encode(), capture_output=True
    )
    return done.stdout.decode().splitlines()


def ask(folder: Path, pairs: list[tuple[str, list[str]]], language: str = "en") -> tuple[list[float], float]:
    """What the Java program says of captions, one by one and together."""
    counts = java(folder, [" ||| ".join(["SCORE", *those, one]) for one, those in pairs], language)
    *each, total = java(folder, ["EVAL ||| " + " ||| ".join(counts)], language)
    return [float(score) for score in each], float(total)


@has_java
def test_golden_is_javas(folder: Path) -> None:
    each, total = ask(folder, [(one["candidate"], one["references"]) for one in GOLDEN["captions"]])
    assert each == [one["score"] for one in GOLDEN["captions"]]
    assert total == GOLDEN["corpus"]


def random_pairs(count: int, seed: int) -> list[tuple[str, list[str]]]:
    draw = random.Random(seed)
    words = (
        "a a the of in on next to beside near many big large small man men woman dog dogs bike bicycle is are riding "
        "rides walking street road car automobile sitting sits table food plate people person at same time front . , "
        "' - ... it's café 😀 U.S. 1,000 t-shirt aÿ bà"
    ).split()

    def sentence(some: list[str]) -> str:
        return " ".join(draw.choice(some) for _ in range(draw.choice([0, 1, 4, 8, 12, 12, 16, 40])))

    pairs = []
    for _ in range(count):
        some = draw.sample(words, draw.randint(1, 20))
        one = sentence(some)
        pairs.append((one, [draw.choice([one, sentence(some), sentence(words)]) for _ in range(draw.randint(1, 4))]))
    return pairs


@pytest.mark.slow
@has_java
def test_java_with_the_whole_table() -> None:
    data = find_data()
    assert data
    pairs = random_pairs(3000, 0)
    each, total = ask(data, pairs)
    meteor = Meteor()
    counts = counted(meteor, pairs)
    assert meteor.scores(counts) == pytest.approx(each, abs=1e-12)
    assert meteor.scores(counts.sum(0)) == pytest.approx(total, abs=1e-12)


@pytest.mark.slow
@has_java
def test_pycocoevalcaps_own_class() -> None:
    from pycocoevalcap.meteor.meteor import Meteor as Theirs

    pairs = [(one, those) for one, those in random_pairs(300, 1) if one and all(those)]
    total, each = Theirs().compute_score(
        {k: those for k, (_, those) in enumerate(pairs)}, {k: [one] for k, (one, _) in enumerate(pairs)}
    )
    (found,) = meteor([[one.split() for one, _ in pairs]], [[text.split() for text in those] for _, those in pairs])
    assert found.corpus() == pytest.approx(total, abs=1e-12)
    assert found.per_image == pytest.approx(each, abs=1e-12)


@pytest.mark.slow
@has_java
def test_java_in_czech(folder: Path) -> None:
    write_table(folder / "data/paraphrase-cz.gz", [["velký", "obrovský"], ["na ulici", "venku"], ["muž", "pán"]])
    draw = random.Random(0)
    words = "velký obrovský pes na ulici venku muž pán je the of , že apod. Dr. it's".split()
    lines = [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(1000)]
    pairs: list[tuple[str, list[str]]] = list(zip(lines[:500], ([line] for line in lines[500:]), strict=True))
    each, total = ask(folder, pairs, "cz")
    czech = Meteor("cz", data=folder)
    counts = counted(czech, pairs)
    assert czech.scores(counts) == pytest.approx(each, abs=1e-12)
    assert czech.scores(counts.sum(0)) == pytest.approx(total, abs=1e-12)
