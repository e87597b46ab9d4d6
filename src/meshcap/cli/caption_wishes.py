"""What `meshcap caption` is asked for, as `Captioner.describe` takes it; and which of it cannot go together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.captioner import Captioner
    from meshcap.decoding import Strategy

BEAMS, WORDS = 5, 19  # unless said otherwise


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The options as they were given. None: not given."""

    n: int = 1
    beams: int | None = None
    groups: int = 1
    sample: bool = False
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
    good_endings: bool = False

    def __post_init__(self) -> None:
        """Refuse contradictions before anything is loaded.

        Raises:
            MeshcapError: naming the options.
        """
        if self.max_words is not None and self.min_words > self.max_words:
            raise MeshcapError(f"--min-words is {self.min_words} and --max-words is {self.max_words}: expected no more")
        searching = {"--beams": self.beams is not None, "--groups": self.groups > 1, "--must": bool(self.must)}
        searching["--length-penalty"] = self.length_penalty != 0
        for option in (name for name, given in searching.items() if given and self.sample):
            raise MeshcapError(f"{option} is for a search, and --sample draws words at random: leave one out")
        drawing = {"--temperature": self.temperature != 1, "--top-k": self.top_k > 0, "--top-p": self.top_p != 1}
        for option in (name for name, given in drawing.items() if given and not self.sample):
            raise MeshcapError(f"{option} is for captions drawn at random: add --sample")
        if self.must and self.groups > 1:
            raise MeshcapError("--must and --groups are two kinds of search: leave one out")
        if self.beams is not None and self.beams < self.n:
            raise MeshcapError(f"--n is {self.n} and --beams is {self.beams}: expected at least as many beams")
        for one in self.must:
            if not all(phrase.strip() for phrase in one.split("|")):
                raise MeshcapError(f"--must is {one!r}, expected words, alternatives separated by |")

    def strategy(self) -> Strategy:
        from meshcap.decoding import Beam, DiverseBeam, Sample

        if self.sample:
            seed = secrets.randbits(32) if self.seed is None else self.seed
            return Sample(self.n, self.temperature, self.top_k, self.top_p, seed)
        beams = max(BEAMS, self.n) if self.beams is None else self.beams
        if self.groups == 1:
            return Beam(beams, self.length_penalty)
        if self.beams is None:
            beams += -beams % self.groups  # so many that groups are equal
        return DiverseBeam(beams, self.groups, length_penalty=self.length_penalty)

    def options(self, captioner: Captioner) -> dict[str, Any]:
        """Those of `Captioner.describe`, which counts the end of a caption as a word.

        Raises:
            MeshcapError: more words than this model can say.
        """
        return {
            "strategy": self.strategy(),
            "n_best": self.n,
            "max_length": longest(captioner, self.max_words, self.min_words),
            "min_length": self.min_words + 1,
            "mention": [one.split("|") for one in self.must],
            "avoid": [word for one in self.must_not for word in one.split("|")],
            "no_repeat_ngram": self.no_repeat_ngram,
            "good_endings": self.good_endings,
            "end_in_time": self.max_words is not None,  # who asks for few words wants a whole sentence of them
        }


def longest(captioner: Captioner, max_words: int | None, min_words: int) -> int:
    """Of a caption, in words and its end.

    Raises:
        MeshcapError: more words than this model can say.
    """
    # Of an exported model, its facts say what settings say of others.
    most = (captioner.facts if hasattr(captioner, "facts") else captioner.model.config).max_length - 1
    for option, words in (("--max-words", max_words or 0), ("--min-words", min_words)):
        if words > most:
            raise MeshcapError(f"{option} is {words}, and this model can say at most {most} words")
    return min(max(WORDS, min_words) if max_words is None else max_words, most) + 1
