"""CaptionOptions: what a person may want of a caption, with the same names and meaning everywhere.

A field is a keyword in Python, a flag of the command line (`--max-words`) and a field of a request to the server.
`CaptionOptions.parse` reads them from words; `plan` turns them into what a search is told. Nothing here needs torch.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypedDict, get_args

from meshcap.decoding.records import Beam, ConstrainedBeam, DiverseBeam, Greedy, Rules, Sampling, Settings, Strategy
from meshcap.errors import MeshcapError
from meshcap.text.sentence import BAD_ENDINGS, OPEN_ENDINGS, plurals

if TYPE_CHECKING:
    from meshcap.text import Vocabulary

StrategyName = Literal["beam", "greedy", "diverse", "sample"]
STRATEGIES = get_args(StrategyName)
BEAMS, GROUPS, WORDS = 5, 3, 19  # unless told otherwise
LARGEST = 10_000  # of any number of captions, beams or words: more is a mistake


class CaptionFields(TypedDict, total=False):
    """The options of `Captioner.caption` as keywords, for editors and type checkers: see `CaptionOptions`."""

    n: int
    strategy: StrategyName | Strategy
    beams: int | None
    groups: int | None
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    must: str | Iterable[str]
    must_not: str | Iterable[str]
    max_words: int | None
    min_words: int
    length_penalty: float
    no_repeat_ngram: int
    good_endings: bool
    min_confidence: float | None
    attention: bool
    shorten: bool
    names: bool
    tags: bool


class OptionError(MeshcapError):
    """An option without sense. The message names options as Python does; `spelled` as others do."""

    def __init__(self, template: str, **values: object):
        """`template` has names of options in braces, and values in braces too."""
        self.template, self.values = template, values
        super().__init__(self.spelled(str))

    def spelled(self, spell: Callable[[str], str]) -> str:
        """The message with every option as `spell` writes it: `max_words` as `--max-words`, say."""

        def fill(found: re.Match[str]) -> str:
            name = found[1]
            return str(self.values[name]) if name in self.values else spell(name) if name in NAMES else found[0]

        return re.sub(r"\{(\w+)\}", fill, self.template)


@dataclass(frozen=True, kw_only=True)
class CaptionOptions:
    """What is wanted of a caption. Frozen and hashable: equal options can be searched for together.

    Args:
        n: captions of each picture. All are different; there are fewer where the search found no more.
        strategy: "beam" searches for the likeliest caption, "greedy" takes the likeliest word each time, "diverse"
            searches in groups that avoid each other's words, "sample" draws words at random. Or one of
            `meshcap.decoding`'s records, such as `Beam(10, length_penalty=1.0)`.
        beams: hypotheses of a beam search; 5 unless told otherwise, or n where that is more.
        groups: groups of beams of a diverse search; giving more than one makes a search diverse.
        temperature, top_k, top_p, seed: of "sample". Below 1 a temperature sharpens, above it flattens; the k likeliest
            words (0: all); the likeliest words that together reach p; the same seed draws the same captions.
        must: words or phrases that must appear. Alternatives are separated by `|` ("dog|puppy"), entries by commas.
            They are split into words as captions are: capitals do not matter. With `names`, also names that the
            captioner's head knows ("raccoon").
        must_not: words or phrases that must not appear, written alike. The plural goes with the singular ("dog" avoids
            "dogs" too, unless that is in `must`), not the other way round.
        max_words: most words. A caption within it is whole; None: 19 (of a score any), or as many as the model can say.
        min_words: fewest words.
        length_penalty: beams compare score / length ** length_penalty.
        no_repeat_ngram: no sequence of so many words twice; 0: no such rule.
        good_endings: a caption ends, and not on "a", "of", "with" and the like; "a" and "an" fit the word after them.
            Without, and without `max_words`, one may be cut off at the greatest length, as the public M² does.
        min_confidence: captions that are trusted less are withheld: their text is empty.
        attention: also return where the model looked for each word.
        shorten: a caption that is trusted little says less: it ends before the first phrase that is not sure, and is
            marked `shortened`. Of calibrated captioners, for the best caption of a picture.
        names: also say names that captions never had, where the captioner comes with a head for them and is sure.
        tags: also return keywords: see `Tag`.

    Raises:
        MeshcapError: naming the option, what was given and what is expected.
    """

    n: int = 1
    strategy: StrategyName | Strategy = "beam"
    beams: int | None = None
    groups: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    must: tuple[str, ...] = ()
    must_not: tuple[str, ...] = ()
    max_words: int | None = None
    min_words: int = 1
    length_penalty: float = 0.0
    no_repeat_ngram: int = 0
    good_endings: bool = True
    min_confidence: float | None = None
    attention: bool = False
    shorten: bool = True
    names: bool = True
    tags: bool = False

    def __post_init__(self) -> None:
        for name in ("must", "must_not"):
            object.__setattr__(self, name, _entries(name, getattr(self, name)))
        for name, limits in WHOLE.items():
            object.__setattr__(self, name, _whole(name, getattr(self, name), *limits))
        for name, range_ in REAL.items():
            object.__setattr__(self, name, _real(name, getattr(self, name), *range_))
        for name in ("good_endings", "attention", "shorten", "names", "tags"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{{{name}}} is {{given}}, expected true or false", given=repr(getattr(self, name)))
        if isinstance(self.strategy, str) or not isinstance(self.strategy, Strategy):
            if self.strategy not in STRATEGIES:
                expected = ", ".join(STRATEGIES)
                raise OptionError(
                    "{strategy} is {given}, expected one of {expected}", given=repr(self.strategy), expected=expected
                )
            if self.strategy == "beam" and (self.groups or 1) > 1:
                object.__setattr__(self, "strategy", "diverse")
        self._expect_no_contradiction()

    def _expect_no_contradiction(self) -> None:
        if self.max_words is not None and self.min_words > self.max_words:
            raise OptionError(
                "{min_words} is {least} and {max_words} is {most}: expected no more than that",
                least=self.min_words,
                most=self.max_words,
            )
        changed = {field.name for field in fields(self) if getattr(self, field.name) != field.default}
        for name in sorted(changed & FOR.keys()):
            if not isinstance(self.strategy, str):
                raise OptionError(f"{{{name}}} belongs into the strategy that was given: leave one of them out")
            if self.strategy not in FOR[name]:
                raise OptionError(
                    f"{{{name}}} is for a search by {{suited}}, and {{strategy}} is {{given}}: leave one out",
                    suited=" or ".join(FOR[name]),
                    given=self.strategy,
                )
        if self.must and not (self.strategy == "beam" or isinstance(self.strategy, Beam)):
            raise OptionError("{must} needs a beam search: leave {strategy} out or give beam")
        if self.strategy in ("beam", "diverse") and self.beams is not None and self.beams < self.n:
            raise OptionError(
                "{n} is {wanted} and {beams} is {kept}: expected at least as many beams", wanted=self.n, kept=self.beams
            )
        kept = self.search().width
        if self.n > kept:
            raise OptionError("{n} is {wanted}, and this search keeps {kept}", wanted=self.n, kept=kept)

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Options from words: values may be strings, names may have dashes. None stands for "not given".

        Raises:
            MeshcapError: unknown names, values without sense, options that contradict each other.
        """
        read: dict[str, Any] = {}
        for name, value in {**(given or {}), **more}.items():
            field = str(name).replace("-", "_")
            if field not in NAMES:
                expected = ", ".join(NAMES)
                raise OptionError(f"{{given}} is no option of captions, expected {expected}", given=repr(name)[:80])
            if value is not None:
                read[field] = _from_words(field, value)
        return cls(**read)

    def search(self) -> Strategy:
        """How to search, without regard to words that must appear. A sample without a seed has a new one each time."""
        if not isinstance(self.strategy, str):
            return self.strategy
        if self.strategy == "greedy":
            return Greedy()
        if self.strategy == "sample":
            seed = secrets.randbits(62) if self.seed is None else self.seed
            return Sampling(self.n, self.temperature, self.top_k, self.top_p, seed)
        beams = max(BEAMS, self.n) if self.beams is None else self.beams
        if self.strategy == "beam":
            return Beam(beams, self.length_penalty)
        groups = self.groups or (min(self.n, beams) if self.n > 1 else min(GROUPS, beams))
        if self.beams is None:
            beams += -beams % groups  # so many that groups are equal
        return DiverseBeam(beams, groups, length_penalty=self.length_penalty)


NAMES = tuple(field.name for field in fields(CaptionOptions))
# The least and the most of each number; None is allowed where it is the default.
WHOLE: dict[str, tuple[int, int]] = {
    "n": (1, LARGEST), "beams": (1, LARGEST), "groups": (1, LARGEST), "top_k": (0, 2**31), "seed": (0, 2**63 - 1),
    "max_words": (1, LARGEST), "min_words": (1, LARGEST), "no_repeat_ngram": (0, LARGEST),
}  # fmt: skip
REAL: dict[str, tuple[float, float]] = {
    "temperature": (0.001, 1000), "top_p": (1e-9, 1), "length_penalty": (-10, 10), "min_confidence": (0, 1),
}  # fmt: skip
# For help texts: what each option does, and what stands for its default where that is not the value itself.
HELP: dict[str, str] = {
    "n": "Captions of each picture, all different.",
    "strategy": "How to search: beam, greedy, diverse (groups of beams that avoid each other's words) or sample.",
    "beams": "Hypotheses of a beam search.",
    "groups": "Groups of beams that avoid each other's words: makes a search diverse.",
    "temperature": "Of sample: below 1 bolder, above 1 wilder.",
    "top_k": "Of sample: among the k likeliest words; 0: all.",
    "top_p": "Of sample: among the likeliest words that together reach p.",
    "seed": "Of sample: the same seed draws the same captions.",
    "must": "Words or phrases that must appear; alternatives by |, as in 'dog|puppy'.",
    "must_not": "Words or phrases that must not appear, nor their plurals.",
    "max_words": "Most words of a caption.",
    "min_words": "Fewest words of a caption.",
    "length_penalty": "Of beams: compare score / length ** this.",
    "no_repeat_ngram": "No so many words in a row twice; 0: allowed.",
    "good_endings": "A caption ends, and not on 'a', 'of' and the like; articles fit.",
    "min_confidence": "Withhold captions that are trusted less.",
    "attention": "Also return where the model looked for each word.",
    "shorten": "Say less where it is not sure: end before what is doubtful.",
    "names": "Also say names that COCO has no word for, where sure.",
    "tags": "Also return keywords: objects, scene, names, colours.",
}
DEFAULTS: dict[str, str] = {
    "beams": "5, or n if more",
    "groups": "n, or 3",
    "seed": "new each time",
    "max_words": "19, or what the model can say",
    "min_confidence": "none is withheld",
}
OPTIONAL = frozenset(("beams", "groups", "seed", "max_words", "min_confidence"))
# Which strategies an option is for.
FOR: dict[str, tuple[str, ...]] = {
    "beams": ("beam", "diverse"), "length_penalty": ("beam", "diverse"), "groups": ("diverse", "beam"),
    "temperature": ("sample",), "top_k": ("sample",), "top_p": ("sample",),
}  # fmt: skip


def _whole(name: str, given: Any, least: int, most: int) -> int | None:
    if given is None and name in OPTIONAL:
        return None
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise OptionError(f"{{{name}}} is {{given}}, expected a whole number", given=repr(given)[:80])
    number = int(given.__index__())
    if number < least:
        raise OptionError(f"{{{name}}} is {number}, expected {least} or more")
    if number > most:
        raise OptionError(f"{{{name}}} is {str(number)[:30]}, expected {most} or less")
    return number


def _real(name: str, given: Any, least: float, most: float) -> float | None:
    if given is None and name in OPTIONAL:
        return None
    if isinstance(given, bool) or not hasattr(given, "__float__"):
        raise OptionError(f"{{{name}}} is {{given}}, expected a number", given=repr(given)[:80])
    number = math.inf if abs(given) >= 1e300 else float(given)  # a whole number may be too long for a float
    if not least <= number <= most:  # NaN is not, either
        raise OptionError(f"{{{name}}} is {{given}}, expected {least:g} to {most:g}", given=f"{number:g}")
    return number


def _entries(name: str, given: Any) -> tuple[str, ...]:
    """Entries of `must` or `must_not`, each its alternatives separated by |, without superfluous spaces."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, Iterable):
        raise OptionError(f"{{{name}}} is {{given}}, expected words", given=repr(given)[:80])
    found = []
    for one in given:
        if not isinstance(one, str):
            raise OptionError(f"{{{name}}} holds {{given}}, expected words", given=repr(one)[:80])
        for entry in one.split(","):
            alternatives = [" ".join(phrase.split()) for phrase in entry.split("|")]
            if not all(alternatives):
                raise OptionError(
                    f"{{{name}}} is {{given}}, expected words, alternatives separated by |", given=repr(one)[:80]
                )
            found.append("|".join(alternatives))
    return tuple(found)


def _from_words(name: str, given: Any) -> Any:
    if not isinstance(given, str) or name in ("must", "must_not", "strategy"):
        return given
    text = given.strip()
    if name in WHOLE or name in REAL:
        kind, expected = (int, "a whole number") if name in WHOLE else (float, "a number")
        try:
            if len(text) > 40:
                raise ValueError(text)
            return kind(text)
        except ValueError:
            raise OptionError(f"{{{name}}} is {{given}}, expected {expected}", given=repr(given)[:80]) from None
    if text.lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise OptionError(f"{{{name}}} is {{given}}, expected true or false", given=repr(given)[:80])
    return text.lower() in ("true", "1", "yes", "on")


class Plan(NamedTuple):
    """What a search is told."""

    strategy: Strategy
    rules: Rules


SEVERAL = "two", "three", "four", "several", "many", "some", "group of", "couple of"  # before no name


def naming(rules: Rules, names: Sequence[int], vocabulary: Vocabulary) -> Rules:
    """Rules for captions that may have these names: nobody is in one twice, nor two of them."""
    counts = [vocabulary.encode([*many.split(), *article]) for many in SEVERAL for article in ((), ("a",), ("the",))]
    phrases = ((*count, name) for count in counts if vocabulary.unk not in count for name in names)
    return replace(rules, once=tuple(names), banned_phrases=(*rules.banned_phrases, *phrases))


def plan(
    options: CaptionOptions,
    vocabulary: Vocabulary,
    model: Settings,
    usual: int | None = None,
    unsaid: Sequence[str] = (),
) -> Plan:
    """Options in the ids of a vocabulary, within what a model can say.

    Args:
        usual: words of a caption at most where the options do not say; None: 19.
        unsaid: words that are known, and that this search does not say: to avoid them takes nothing.

    Raises:
        MeshcapError: unknown words, more words than the model can say, words both required and forbidden.
    """
    most = model.max_length - 1
    for name, words in (("max_words", options.max_words or 0), ("min_words", options.min_words)):
        if words > most:
            raise OptionError(f"{{{name}}} is {words}, and this model can say at most {most} words")
    longest = min(max(usual or WORDS, options.min_words) if options.max_words is None else options.max_words, most)
    known = vocabulary.extended(unsaid) if options.must or options.must_not else vocabulary
    avoided = _avoided(options, known)
    sayable = [phrase for phrase in avoided if max(phrase) < len(vocabulary)]
    endings = BAD_ENDINGS if options.max_words is None else OPEN_ENDINGS
    rules = Rules(
        max_length=longest + 1,
        min_length=options.min_words + 1,
        no_repeat_ngram=options.no_repeat_ngram,
        # An unknown word tells a reader nothing, and an imported model might say the others too.
        banned=(model.unk, model.pad, model.bos, *(phrase[0] for phrase in sayable if len(phrase) == 1)),
        banned_phrases=tuple(phrase for phrase in sayable if len(phrase) > 1),
        bad_endings=tuple(sorted(vocabulary.id(word) for word in endings if word in vocabulary))
        if options.good_endings and vocabulary.english
        else (),
        end_in_time=options.good_endings or options.max_words is not None,
    )
    strategy = options.search()
    if options.must:
        assert isinstance(strategy, Beam)
        required = [_requirement(entry, avoided, longest, known, len(vocabulary)) for entry in options.must]
        strategy = ConstrainedBeam([required], strategy.beams, strategy.length_penalty)
    return Plan(strategy, rules)


def ids_of_phrase(phrase: str, vocabulary: Vocabulary, purpose: str) -> list[int]:
    """The ids of what a person wrote: as it stands, or else as captions are split ("Dog's" is "dog" and "'s").

    Raises:
        MeshcapError: a word that captions cannot hold.
    """
    whole = next((one for one in (phrase, phrase.lower()) if one in vocabulary), None)
    words = phrase.split() if whole is None else [whole]  # a word for the moment may hold spaces
    if not all(word in vocabulary for word in words):
        words = vocabulary.tokens(phrase)
    if not words:
        raise MeshcapError(f"{phrase!r} is {purpose}, and captions hold no such word")
    return vocabulary.ids_of(words, purpose=purpose)


def _avoided(options: CaptionOptions, vocabulary: Vocabulary) -> list[tuple[int, ...]]:
    """The phrases of `must_not` in ids, with the plural of each unless that is required."""
    if not options.must_not:
        return []
    phrases = [phrase for entry in options.must_not for phrase in entry.split("|")]
    found = [tuple(ids_of_phrase(phrase, vocabulary, "to avoid")) for phrase in phrases]
    required = [ids_of_phrase(one, vocabulary, "to mention") for entry in options.must for one in entry.split("|")]
    many = plurals(vocabulary.words) if vocabulary.english else {}
    for ids in list(found):
        for word in many.get(vocabulary.word(ids[-1]), []):
            plural = (*ids[:-1], vocabulary.id(word))
            if not any(_contains(one, plural) for one in required):
                found.append(plural)
    return found


def _requirement(
    entry: str, avoided: list[tuple[int, ...]], most: int, known: Vocabulary, sayable: int
) -> list[list[int]]:
    """The phrases of one entry of `must` in ids below `sayable`, those that cannot be said left out."""
    phrases = entry.split("|")
    ids = [ids_of_phrase(phrase, known, "to mention") for phrase in phrases]
    allowed = [one for one in ids if not any(_contains(one, phrase) for phrase in avoided)]
    short = [one for one in allowed if len(one) <= most]
    possible = [one for one in short if max(one) < sayable]
    if not possible:
        named = " or ".join(map(repr, phrases))
        longer = f"longer than {most} {'word' if most == 1 else 'words'}"
        why = "a name that is like no word of this model" if short else longer if allowed else "in {must_not}, too"
        raise OptionError("{must} has {named}, which is {why}".replace("{why}", why), named=named)
    return possible


def _contains(ids: list[int], phrase: tuple[int, ...]) -> bool:
    return any(tuple(ids[at : at + len(phrase)]) == phrase for at in range(len(ids)))
