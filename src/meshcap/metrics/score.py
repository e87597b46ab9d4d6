"""Scores of captions as the field computes them, with how sure they are and how they were made.

    from meshcap.metrics import score
    result = score({42: "a man on a horse"}, {42: ["a man rides a horse", "someone on a horse"]})
    result.scores["CIDEr"], result.intervals["CIDEr"], result.signature

Captions are tokenized once, every metric reads the tokens. Scores are fractions, as pycocoevalcap gives them; papers
print them times 100. "CIDEr" is CIDEr-D, as everywhere.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshcap.errors import MeshcapError
from meshcap.metrics import diversity
from meshcap.metrics.cider import cider, cider_d
from meshcap.metrics.clip import WEIGHT, clip_scores, find_pictures
from meshcap.metrics.hallucination import Objects, Synonyms, chair
from meshcap.metrics.meteor import check_language, meteor
from meshcap.metrics.ngrams import bleu_from_statistics, bleu_statistics, rouge_l
from meshcap.metrics.pmi import described, pmi_scores
from meshcap.metrics.result import (
    BLEU,
    DEFAULT,
    METRICS,
    Array,
    Comparison,
    Measure,
    Missing,
    Result,
    Systems,
    by_domain,
    by_picture,
    chosen_metrics,
    differences,
    holm,
    signature,
    summary,
)
from meshcap.metrics.spice import spice
from meshcap.text.tokenizers import tokenize_each

Words = list[str]


@dataclass(frozen=True)
class ScoreOptions:
    """How to score; the words of `score`."""

    tokenizer: str = "ptb"
    metrics: Sequence[str] | str = DEFAULT
    language: str = "en"
    bootstrap: int = 1000
    seed: int = 0
    subset: bool = False
    domains: Mapping[str, str] | None = None
    training: Iterable[str] | None = None
    objects: Objects | None = None
    synonyms: Synonyms | None = None
    clip: str | os.PathLike[str] | None = None
    model: Any = None
    pictures: str | os.PathLike[str] | None = None
    files: Mapping[str, str] | None = None
    report: Callable[[str], object] = lambda line: None


def score(
    candidates: Mapping[Any, Any],
    references: Mapping[Any, Any] | None,
    *,
    tokenizer: str = "ptb",
    metrics: Sequence[str] | str = DEFAULT,
    language: str = "en",
    bootstrap: int = 1000,
    seed: int = 0,
    subset: bool = False,
    domains: Mapping[str, str] | None = None,
    training: Iterable[str] | None = None,
    objects: Objects | None = None,
    synonyms: Synonyms | None = None,
    clip: str | os.PathLike[str] | None = None,
    model: Any = None,
    pictures: str | os.PathLike[str] | None = None,
    files: Mapping[str, str] | None = None,
    report: Callable[[str], object] = lambda line: None,
) -> Result:
    """Score captions.

    Args:
        candidates: id -> caption, or id -> captions, of which the first is scored and all enter the diversity.
        references: id -> captions. Ids are compared as strings. None: of the metrics only those are computed that look
            at the pictures (`clip`, `model`).
        tokenizer: "ptb" (the field's), "unicode" or "char".
        metrics: names out of `METRICS`; "bleu" stands for four and "all" for everything. METEOR needs the extra
            `meteor`, SPICE the extra `spice` and Java; where something is missing, a warning says what, and the others
            are scored.
        language: of METEOR's parameters, words and paraphrases; see `meshcap.metrics.meteor`.
        bootstrap, seed: resamples of the pictures for the intervals; 0 leaves them out.
        subset: score the pictures that have both candidate and references instead of refusing any others.
        domains: id -> domain, to score each domain's pictures too (nocaps). CIDEr's document frequencies stay those
            of all pictures, so that overall is the domains' mean.
        training: the training captions, for the share of candidates that are not among them.
        objects, synonyms: what pictures show (`hallucination.read_objects`), for CHAIR.
        clip, model: a CLIP folder, for CLIPScore; a `Captioner`, for PMI (`meshcap.metrics.pmi`).
        pictures, files: the folder of the pictures and id -> file name, for these.
        report: is called with a line about slow work.

    Raises:
        MeshcapError: ids without counterparts, an unknown metric or tokenizer, or pictures that are not there.
    """
    given = {name: value for name, value in locals().items() if name not in ("candidates", "references")}
    (result,), _ = _score([candidates], references, ScoreOptions(**given))
    return result


def compare(
    first: Mapping[Any, Any], second: Mapping[Any, Any], references: Mapping[Any, Any] | None, **options: Any
) -> Comparison:
    """Score two systems on the same pictures, with the difference of every score, its interval and its p-value.

    Args:
        options: as those of `score`.
    """
    chosen = ScoreOptions(**options)
    results, measures = _score([first, second], references, chosen, ["", " of the other system"])
    found = differences(measures[0], measures[1], chosen.bootstrap, chosen.seed)
    by_name = {measure.name: difference for measure, difference in zip(measures[0], found, strict=True)}
    return Comparison(results[0], results[1], by_name)


def compare_systems(
    systems: Mapping[str, Mapping[Any, Any]], references: Mapping[Any, Any] | None, **options: Any
) -> Systems:
    """Score systems by name on the same pictures, each but the first with its differences from the first.

    p-values are corrected for the number of comparisons, which is that of the other systems times that of the metrics.

    Args:
        options: as those of `score`.
    """
    if not systems:
        raise MeshcapError("no systems were given, expected at least one")
    chosen = ScoreOptions(**options)
    told = [f" of {name}" for name in systems] if len(systems) > 1 else [""]
    results, measures = _score(list(systems.values()), references, chosen, told)
    names = [measure.name for measure in measures[0]]
    apart = [differences(mine, measures[0], chosen.bootstrap, chosen.seed) for mine in measures[1:]]
    if chosen.bootstrap:
        corrected = iter(holm([found.p or 0.0 for row in apart for found in row]))
        apart = [[replace(found, corrected=next(corrected)) for found in row] for row in apart]
    others = list(systems)[1:]
    return Systems(
        dict(zip(systems, results, strict=True)),
        {name: dict(zip(names, row, strict=True)) for name, row in zip(others, apart, strict=True)},
    )


def _score(
    given: Sequence[Given], given_references: Given | None, options: ScoreOptions, told: Sequence[str] = ("",)
) -> tuple[list[Result], list[list[Measure]]]:
    """The results of each system, and the measures behind them. told: how an error names each."""
    if options.bootstrap < 0:
        raise MeshcapError(f"bootstrap is {options.bootstrap}, expected a number of resamples, or 0 for none")
    names = chosen_metrics(options.metrics)
    check_language(options.language)
    systems = [named(candidates, "candidates") for candidates in given]
    if given_references is None:
        if options.clip is None and options.model is None:
            raise MeshcapError("there are no references: give them, or what scores without (a CLIP folder, a model)")
        names = []
        references: dict[str, list[str]] = {id: [] for id in systems[0]}
    else:
        references = named(given_references, "references")
    ids, warnings = pair(systems, references, subset=options.subset, told=told)
    texts: list[list[str]] = [references[id] for id in ids]
    sets = [[candidates[id] for id in ids] for candidates in systems]  # systems, pictures, n best
    words = _tokenized(texts, options.tokenizer)
    said = [_n_best_tokenized(system, options.tokenizer) for system in sets]
    warnings += _about_references(words, names)

    firsts = [_firsts(system) for system in said]
    # What may be refused comes first, before Java is waited for.
    more, how = _more_measures(firsts, words, [_firsts(system) for system in sets], texts, ids, options, warnings)
    measures = [
        mine + other for mine, other in zip(_measures(firsts, words, names, options, warnings), more, strict=True)
    ]
    domains = {str(id): domain for id, domain in (options.domains or {}).items()}
    own = [domains.get(id, "") for id in ids]
    if any(own):
        how.append("domains:df=all")
        if lacking := own.count(""):
            warnings.append(f"{lacking:,} pictures have no domain: they count in overall alone")

    line = signature(
        [measure.name for measure in measures[0]],
        tokenizer=options.tokenizer,
        pictures=len(ids),
        references=sum(map(len, texts)),
        bootstrap=options.bootstrap,
        seed=options.seed,
        language=options.language,
        more=how,
    )
    training = None if options.training is None else _distinct(options.training, options.tokenizer)
    results = []
    for mine, captions, system in zip(measures, firsts, said, strict=True):
        whole = summary(mine, options.bootstrap, options.seed)
        habits = diversity.habits(captions, training, endings=options.tokenizer == "ptb")
        empty = sum(not caption for caption in captions)
        results.append(
            Result(
                scores=whole["scores"],
                intervals=whole["intervals"],
                per_image=by_picture(mine, ids),
                signature=line,
                warnings=warnings + ([_empty_candidates(empty, len(ids))] if empty else []),
                diversity=habits | (diversity.n_best(system, words) if given_references is not None else {}),
                domains=by_domain(mine, own, options.bootstrap, options.seed) if any(own) else {},
            )
        )
    return results, measures


def _measures(
    systems: Sequence[Sequence[Words]],
    references: Sequence[Sequence[Words]],
    names: Collection[str],
    options: ScoreOptions,
    warnings: list[str],
) -> list[list[Measure]]:
    """The metrics named, of each system, in the order of the tables; what is missing is added to the warnings."""
    found = [_python_measures(captions, references, names) for captions in systems]
    others: dict[str, Callable[[], list[Measure]]] = {
        "METEOR": lambda: meteor(systems, references, options.report, options.language),
        "SPICE": lambda: spice(systems, references, options.report),
    }
    for name, measure_all in others.items():
        if name in names:
            try:
                for mine, measure in zip(found, measure_all(), strict=True):
                    mine.append(measure)
            except Missing as missing:
                warnings.append(str(missing))
    return [sorted(mine, key=lambda measure: METRICS.index(measure.name)) for mine in found]


def _more_measures(
    systems: Sequence[Sequence[Words]],
    references: Sequence[Sequence[Words]],
    written: Sequence[Sequence[str]],
    texts: Sequence[Sequence[str]],
    ids: Sequence[str],
    options: ScoreOptions,
    warnings: list[str],
) -> tuple[list[list[Measure]], list[str]]:
    """CHAIR and CLIPScore of each system, where they were asked for, and what the signature says of them."""
    found: list[list[Measure]] = [[] for _ in systems]
    how = []
    files = {str(id): file for id, file in (options.files or {}).items()}
    if options.objects:
        synonyms = options.synonyms or Synonyms.ours()
        shown = _shown(options.objects, ids, files)
        for mine, captions in zip(found, systems, strict=True):
            mine += chair(captions, references, shown, synonyms)
        warnings += options.objects.warnings
        how.append(f"CHAIR:synonyms={synonyms.source}")
    if options.clip is None and options.model is None:
        return found, how
    if options.pictures is None:
        name = "CLIPScore" if options.clip is not None else "PMI"
        raise MeshcapError(f"{name} needs the pictures: give their folder with --pictures (pictures=)")
    pictures = find_pictures(options.pictures, ids, files)
    if options.clip is not None:
        scores = clip_scores(options.clip, pictures, written, texts, options.report)
        found = [mine + more for mine, more in zip(found, scores, strict=True)]
        how.append(f"CLIPScore:{Path(options.clip).resolve().name},w={WEIGHT}")
    if options.model is not None:
        measures = pmi_scores(options.model, pictures, written, options.report)
        found = [[*mine, measure] for mine, measure in zip(found, measures, strict=True)]
        how.append(f"PMI:{described(options.model, len(ids))}")
    return found, how


def _python_measures(candidates: Sequence[Sequence[str]], references: Any, names: Collection[str]) -> list[Measure]:
    found = []
    if chosen := [name for name in BLEU if name in names]:
        statistics = bleu_statistics(candidates, references)
        each = bleu_from_statistics(statistics)
        for name in chosen:
            found.append(Measure(name, each[:, BLEU.index(name)], statistics, _BLEU_TOTALS[name]))
    for name, metric in (("ROUGE-L", rouge_l), ("CIDEr", cider_d), ("CIDEr-plain", cider)):
        if name in names:
            found.append(Measure.mean(name, metric(candidates, references).per_image))
    return found


def _bleu_total(place: int) -> Callable[[Array, int], Array]:
    return lambda sums, _: bleu_from_statistics(sums)[..., place]


_BLEU_TOTALS = {name: _bleu_total(place) for place, name in enumerate(BLEU)}


def _tokenized(rows: Sequence[Sequence[str]], name: str) -> list[list[Words]]:
    """Rows of captions as rows of token lists, in one go as pycocoevalcap's: ptb looks at the next caption, too."""
    flat = tokenize_each(name, (caption for row in rows for caption in row))
    return [[next(flat) for _ in row] for row in rows]


def _n_best_tokenized(rows: Sequence[Sequence[str]], name: str) -> list[list[Words]]:
    """The same for n-best lists: the first of each are tokenized as if there were no others."""
    firsts = _tokenized([row[:1] for row in rows], name)
    others = _tokenized([row[1:] for row in rows], name)
    return [first + other for first, other in zip(firsts, others, strict=True)]


def _distinct(captions: Iterable[str], name: str) -> set[tuple[str, ...]]:
    return {tuple(words) for words in tokenize_each(name, captions)}


def _firsts(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [row[0] for row in rows]


def _shown(objects: Objects, ids: Sequence[str], files: Mapping[str, str]) -> list[set[str]]:
    found = [objects.shown.get(id, objects.shown.get(files.get(id, ""))) for id in ids]
    missing = [id for id, those in zip(ids, found, strict=True) if those is None]
    if missing:
        raise MeshcapError(
            f"{len(missing):,} of {len(ids):,} pictures have no entry among the objects (first: {missing[0]!r}), "
            "expected one for each, empty where nothing is shown"
        )
    return [those for those in found if those is not None]


def _about_references(references: Sequence[Sequence[Words]], names: Collection[str]) -> list[str]:
    lines = []
    if empty := sum(not words for those in references for words in those):
        lines.append(f"{empty:,} references are empty: kept, as pycocoevalcap does")
    if len(references) == 1 and {"CIDEr", "CIDEr-plain"} & set(names):
        lines.append("CIDEr of a single picture is always 0: it needs several to know which words are rare")
    return lines


def _empty_candidates(empty: int, pictures: int) -> str:
    return f"{empty:,} of {pictures:,} candidates {'is' if empty == 1 else 'are'} empty: scored as such"


MOST_LETTERS = 100_000  # of a caption: some metrics compare every word with every other
Given = Mapping[object, str | Sequence[str]]  # id -> caption, or id -> captions


def named(given: Mapping[object, str] | Given, what: str) -> dict[str, list[str]]:
    """Captions by id as a string; pictures with an empty list of captions have none and are left out.

    Raises:
        MeshcapError: two ids that are the same string, or something that is no caption.
    """
    if not isinstance(given, Mapping):
        raise MeshcapError(f"the {what} are a {type(given).__name__}, expected a dict from ids to captions")
    found: dict[str, list[str]] = {}
    for key, value in given.items():
        id = str(key)
        captions = [value] if isinstance(value, str) else value
        if not isinstance(captions, (list, tuple)) or not all(isinstance(caption, str) for caption in captions):
            raise MeshcapError(f"picture {id!r} has {reprlib.repr(value)} among the {what}, expected captions")
        if (longest := max(map(len, captions), default=0)) > MOST_LETTERS:
            raise MeshcapError(
                f"picture {reprlib.repr(id)} has a caption of {longest:,} letters among the {what}, "
                f"expected at most {MOST_LETTERS:,}"
            )
        if id in found:
            raise MeshcapError(f"picture {id!r} is among the {what} twice, as a number and as a string")
        if captions:
            found[id] = list(captions)
    return found


def pair(
    systems: Sequence[dict[str, list[str]]],
    references: dict[str, list[str]],
    *,
    subset: bool,
    told: Sequence[str] = ("",),
) -> tuple[list[str], list[str]]:
    """The ids to score, in the order of the references, and warnings about those left out.

    Args:
        systems: the candidates; more than one are compared, and then a picture needs one of each.
        subset: leave out what has no counterpart instead of refusing it.
        told: what an error says after "candidates" of each system.

    Raises:
        MeshcapError: nothing in common, or a picture without its counterpart and not `subset`.
    """
    warnings = []
    ids = [id for id in references if all(id in candidates for candidates in systems)]
    if not ids:
        raise MeshcapError(
            f"no candidate has references: candidates are named as {_first(systems[0])}, "
            f"references as {_first(references)}"
        )
    for candidates, name in zip(systems, (f"candidates{of}" for of in told), strict=True):
        if extra := [id for id in candidates if id not in references]:
            warnings.append(_told(len(extra), name, "no references", extra[0], subset))
        if missed := [id for id in references if id not in candidates]:
            other = name.replace("candidates", "candidate", 1)
            warnings.append(_told(len(missed), "pictures", f"references and no {other}", missed[0], subset))
    return ids, warnings


def _told(count: int, what: str, lack: str, first: str, subset: bool) -> str:
    line = f"{count:,} {what} {'have' if count > 1 else 'has'} {lack} (first: {first!r})"
    if count == 1:
        line = line.replace("candidates", "candidate", 1).replace("pictures", "picture", 1)
    if not subset:
        raise MeshcapError(f"{line}: add them, or score what has both with --subset (subset=True)")
    return f"{line}: left out"


def _first(captions: Mapping[str, object]) -> str:
    return reprlib.repr(next(iter(captions), "(none)"))
