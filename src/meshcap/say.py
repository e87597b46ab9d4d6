"""The last step of `Captioner`: hypotheses to captions, with how far to trust them. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from meshcap.caption import Caption, Tag
from meshcap.decoding.records import Hypotheses
from meshcap.errors import FailedError
from meshcap.options import CaptionOptions
from meshcap.tags import merged, of_captions
from meshcap.text import Vocabulary
from meshcap.text.sentence import fit_articles, phrase_starts
from meshcap.text.vocabulary import SPECIAL

if TYPE_CHECKING:
    from meshcap.calibration import Calibration
    from meshcap.decoding.extension import Extension
    from meshcap.names import Names

# A caption with a required word whose words are, in the geometric mean, less than this share as likely as those of the
# best caption that the same search found without: the word does not suit. Measured by recipes/required_words.py.
UNSUITED = 0.4
# A caption with less confidence than UNSURE ends before the phrase with the first word that is less likely than
# DOUBTED. Chosen on COCO's val captions and the seen half of benchmarks/photos: see docs/confidence.md.
UNSURE, DOUBTED = 0.75, 0.5
LOG_DOUBTED = float(np.log(DOUBTED))


@dataclass(frozen=True)
class Speaker:
    """Who puts hypotheses into words: a vocabulary, and what a captioner has beside it."""

    vocabulary: Vocabulary
    calibration: Calibration | None = None
    names: Names | None = None

    def captions(self, found: Hypotheses, options: CaptionOptions) -> list[Caption]:
        """A caption of each picture with its alternatives: n in all, or as many different ones as were found."""
        return [self._caption(found, picture, options) for picture in range(len(found.scores))]

    def _caption(self, found: Hypotheses, picture: int, options: CaptionOptions) -> Caption:
        scores, captions, words = found.lists.scores[picture], list[Caption](), set[tuple[str, ...]]()
        if scores[0] != scores[0]:  # NaN: of weights that are finite and too large, or of a damaged exported graph
            raise FailedError("the model computes no numbers (NaN) for a picture: its weights are damaged")
        for rank, score in enumerate(scores):
            if rank and score == float("-inf"):  # the search found fewer
                continue
            one = self._hypothesis(found, picture, rank, options)
            if not rank and options.shorten and not _near(found, picture):
                one = self.shorten(one, options)
            if options.names and self.names is not None and self.calibration is not None and found.named is not None:
                trusted = self.names.trust(one.confidence, found.named, picture, one.words)
                one = replace(one, confidence=trusted)
            if tuple(one.words) not in words:
                words.add(tuple(one.words))
                least = options.min_confidence
                captions.append(one.withhold() if least is not None and one.confidence < least else one)
            if len(captions) == options.n:
                break
        best, *others = captions
        return replace(best, alternatives=tuple(others)) if others else best

    def _hypothesis(self, found: Hypotheses, picture: int, rank: int, options: CaptionOptions) -> Caption:
        ids, log_probs = _said(found, picture, rank)
        listed = found.lists
        caption = self.caption_of(ids, log_probs, listed.finished[picture][rank], self._known(found))
        caption = replace(caption, score=listed.scores[picture][rank])
        spoken = self._fit(caption.words, ids, found.extension, options)
        words, places = list(spoken.values()), list(spoken)
        if words != caption.words:
            text = self.vocabulary.sentence([*words, SPECIAL[3]] if caption.finished else words)
            caption = replace(caption, text=text, words=words, log_probs=_merged(log_probs, places))
        if options.must:
            assert listed.satisfied is not None and listed.unconstrained is not None
            missing = len(options.must) - listed.satisfied[picture][rank]
            warning = _warning(options, missing, caption.probability, listed.unconstrained[picture])
            caption = replace(caption, missing=missing, warning=warning)
        if found.attention is not None:
            caption = replace(caption, attention=found.attention["words"][picture, rank, places].float().cpu())
            if "listened" in found.attention:
                caption = replace(caption, memory=found.attention["listened"][picture, rank, places].tolist())
        return caption

    def spoken(self, found: Hypotheses, picture: int, rank: int, options: CaptionOptions) -> dict[int, str]:
        """The words of a caption by their places in the hypothesis: those of the vocabulary, and names, made to fit."""
        ids, _ = _said(found, picture, rank)
        return self._fit(self._known(found).decode(ids), ids, found.extension, options)

    def caption_of(
        self, ids: list[int], log_probs: list[float], finished: bool = True, known: Vocabulary | None = None
    ) -> Caption:
        """A caption of words (of those `known`) that were judged one by one, and the end with them."""
        likely = float(np.exp(sum(log_probs) / max(1, len(log_probs))))
        trusted = likely if self.calibration is None or not log_probs else self.calibration.apply(log_probs)
        words = (known or self.vocabulary).decode(ids)
        text = self.vocabulary.sentence([*words, SPECIAL[3]] if finished else words)
        return Caption(text, words, log_probs, trusted, likely, float(sum(log_probs)), finished)

    def shorten(self, caption: Caption, options: CaptionOptions) -> Caption:
        """The caption without what is not sure, where it is trusted little as a whole: see `UNSURE`.

        Its confidence stays that of the whole: a low estimate, and `min_confidence` means the same. What a head for
        names sees changes it only afterwards.
        """
        if self.calibration is None or caption.confidence >= UNSURE or options.must or not caption.finished:
            return caption
        if not self.vocabulary.english:  # where a phrase begins is known of English alone
            return caption
        # Not of its first two words: there are many ways to begin a caption that is right.
        doubted = [place for place in range(2, len(caption.words)) if caption.log_probs[place] < LOG_DOUBTED]
        starts = [place for place in phrase_starts(caption.words) if place >= options.min_words]
        if not doubted or not starts:
            return caption
        end = max((place for place in starts if place <= doubted[0]), default=starts[0])
        if end - 1 in starts[1:]:  # one word of a phrase: "a cat with green eyes sitting"
            end -= 1
        words, log_probs = caption.words[:end], caption.log_probs[:end]
        return replace(
            caption,
            text=self.vocabulary.sentence([*words, SPECIAL[3]]),
            words=words,
            log_probs=log_probs,
            probability=float(np.exp(np.mean(log_probs))),
            attention=None if caption.attention is None else caption.attention[:end],
            shortened=True,
        )

    def tags(self, found: Hypotheses, picture: int, caption: Caption) -> tuple[Tag, ...]:
        """Keywords of what all hypotheses of a picture name, and of what the head for names says of it."""
        if not self.vocabulary.english:  # the lists of things and colours are
            return ()
        known, listed = self._known(found), []
        for rank, score in enumerate(found.lists.scores[picture]):
            if not rank or score > float("-inf"):
                ids, log_probs = _said(found, picture, rank)
                listed.append((known.decode(ids), sum(log_probs)))
        said = of_captions(listed, caption.confidence)
        if self.names is None or found.named is None:
            return merged(said)
        return merged(self.names.tags(found.named, picture, said))

    def _known(self, found: Hypotheses) -> Vocabulary:
        """The vocabulary, with the words for the moment."""
        return self.vocabulary if found.extension is None else self.vocabulary.extended(found.extension.words)

    def _fit(
        self, words: list[str], ids: list[int], extension: Extension | None, options: CaptionOptions
    ) -> dict[int, str]:
        """Words by their places, with articles that fit words for the moment, and, with `good_endings`, all words."""
        known = len(self.vocabulary)
        new = {place: one - known for place, one in enumerate(ids) if one >= known}
        proper = extension.proper if extension is not None else ()
        names = {place for place, one in new.items() if proper and proper[one]}
        if self.names is not None and new:
            from meshcap.names import agree

            plain = [place for place in new if place not in names]
            asked = self.names.among(options.must, self.vocabulary)
            numbered = agree(words, plain, self.names.plurals(), asked)
            avoided = {phrase.lower() for entry in options.must_not for phrase in entry.split("|")}
            numbered = {place: word for place, word in numbered.items() if word not in avoided}
            words = [numbered.get(place, word) for place, word in enumerate(words)]
        fitting = dict(enumerate(words))
        if self.vocabulary.english:
            fitting = fit_articles(words, range(len(words)) if options.good_endings else new, names)
        fitting = {place: word for place, word in fitting.items() if word}
        for place in new:  # it took the place of two words: "gorilla gorilla" of "black monkey gorilla"
            if place - 1 in fitting and fitting[place - 1] == fitting.get(place):
                del fitting[place - 1]
        return fitting


def _near(found: Hypotheses, picture: int) -> bool:
    """Whether a memory knew pictures like this one: then people's words bear the caption out, not the model's alone."""
    return found.recollection is not None and bool(found.recollection.entries[picture])


def _said(found: Hypotheses, picture: int, rank: int) -> tuple[list[int], list[float]]:
    """The words of a hypothesis and the end, as ids, with their log-probabilities."""
    listed = found.lists
    length = listed.lengths[picture][rank]
    return listed.ids[picture][rank][:length], listed.log_probs[picture][rank][:length]


def _warning(options: CaptionOptions, missing: int, likely: float, without: float) -> str | None:
    if missing:
        return f"{missing} of {len(options.must)} required words could not be fitted in"
    if likely < UNSUITED * without:
        times = without / max(likely, 1e-9)
        named = ", ".join(options.must)
        return f"{named!r} does not suit the picture: the words of a caption without are {times:.1f} times as likely"
    return None


def _merged(log_probs: Sequence[float], places: Sequence[int]) -> list[float]:
    """Log-probabilities of the words at these places and of the end; one left out goes to the word after it."""
    sums, since = [], 0
    for place in places:
        sums.append(sum(log_probs[since : place + 1]))
        since = place + 1
    return [*sums, *log_probs[since:]]
