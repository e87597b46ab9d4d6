"""How a client wants its pictures captioned."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from meshcap.captioner import Captioner
from meshcap.errors import MeshcapError
from meshcap.options import CaptionOptions
from meshcap.serving.limits import RefusalError

MOST_TOLD = 200  # characters of a mistake that are repeated to whoever made it


class Wishes(BaseModel):
    """Options of a caption. Those of one batch are equal, so they can be compared and kept as keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: Literal["beam", "greedy", "diverse", "sample"] = Field("beam", description="How to search for words.")
    beams: int = Field(5, ge=1, le=20, description="Hypotheses of beam and diverse.")
    groups: int = Field(2, ge=1, le=10, description="Of diverse: groups of beams that avoid each other's words.")
    length_penalty: float = Field(0.0, ge=0, le=5, description="Of beam and diverse: compare scores / length ** this.")
    temperature: float = Field(1.0, gt=0, le=10, description="Of sample: below 1 bolder, above 1 wilder.")
    top_k: int = Field(0, ge=0, description="Of sample: among the k likeliest words; 0: all.")
    top_p: float = Field(1.0, gt=0, le=1, description="Of sample: among the likeliest words that reach p.")
    seed: int | None = Field(None, ge=0, lt=2**63, description="Of sample: the same seed draws the same captions.")
    n_best: int = Field(1, ge=1, le=20, description="Captions of each picture.")
    max_length: int | None = Field(
        None, ge=1, le=200, description="Most words, the end counted as one; 20, or as many as the model can say."
    )
    min_length: int = Field(2, ge=1, le=200, description="Fewest words, the end counted as one.")
    mention: tuple[str | tuple[str, ...], ...] = Field(
        (), max_length=8, description="Words or phrases that must appear; a list, or 'dog|puppy', holds alternatives."
    )
    avoid: tuple[str, ...] = Field((), max_length=100, description="Words that must not appear.")
    no_repeat_ngram: int = Field(0, ge=0, le=20, description="No so many words in a row twice; 0: allowed.")
    good_endings: bool = Field(True, description="Never end in 'a', 'of', 'with' …")
    attention: bool = Field(False, description="Also tell where the model looked for each word.")

    @field_validator("mention", mode="before")
    @classmethod
    def _alternatives(cls, given: Any) -> Any:
        given = [given] if isinstance(given, str) else given
        if not isinstance(given, list | tuple):
            return given
        parts = [one.split("|") if isinstance(one, str) else one for one in given]
        return tuple(_cleaned(one) if isinstance(one, list | tuple) else one for one in parts)

    @field_validator("avoid", mode="before")
    @classmethod
    def _words(cls, given: Any) -> Any:
        given = [given] if isinstance(given, str) else given
        return tuple(_cleaned(given)) if isinstance(given, list | tuple) else given

    @field_validator("mention", "avoid")
    @classmethod
    def _short(cls, given: tuple[str | tuple[str, ...], ...]) -> tuple[str | tuple[str, ...], ...]:
        for one in given:
            words = (one,) if isinstance(one, str) else one
            if not 1 <= len(words) <= 8 or any(len(word) > 100 for word in words):
                raise ValueError("expected words, phrases of at most 100 characters, or up to 8 alternatives of them")
        return given

    def options(self) -> CaptionOptions:
        """For `Captioner`, which counts words only."""
        searching = self.strategy in ("beam", "diverse")
        sampling = self.strategy == "sample"
        return CaptionOptions(
            n=self.n_best,
            strategy=self.strategy,
            beams=max(self.beams, self.n_best) if searching else None,
            groups=self.groups if self.strategy == "diverse" else None,
            temperature=self.temperature if sampling else 1.0,
            top_k=self.top_k if sampling else 0,
            top_p=self.top_p if sampling else 1.0,
            seed=self.seed,
            must=tuple(one if isinstance(one, str) else "|".join(one) for one in self.mention),
            must_not=self.avoid,
            max_words=None if self.max_length is None else max(1, self.max_length - 1),
            min_words=max(1, self.min_length - 1),
            length_penalty=self.length_penalty if searching else 0.0,
            no_repeat_ngram=self.no_repeat_ngram,
            good_endings=self.good_endings,
            attention=self.attention,
        )


def _cleaned(words: Any) -> tuple[Any, ...]:
    """Without spaces around words."""
    return tuple(" ".join(word.split()) if isinstance(word, str) else word for word in words)


def one_sentence(error: ValidationError) -> str:
    """The first mistake that pydantic found."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"] if not isinstance(part, int)) or "the request"
    if first["type"] == "extra_forbidden":
        return f"{where[:MOST_TOLD]} is no option of captions"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    given = repr(first.get("input"))
    told = f"{where} is {given if len(given) <= MOST_TOLD else type(first.get('input')).__name__}"
    return f"{told}: expected {message.removeprefix('expected ')}"


def parsed(given: dict[str, Any]) -> Wishes:
    """
    Raises:
        RefusalError: 422 and a sentence about the first option that has no sense.
    """
    try:
        return Wishes(**given)
    except ValidationError as error:
        raise RefusalError(422, one_sentence(error)) from None


def check(wishes: Wishes, captioner: Captioner, most: int) -> int:
    """How many hypotheses a picture needs; whatever the captioner would complain about is told before anything waits.

    Raises:
        RefusalError: 422: unknown words, options that contradict each other, more than `most` hypotheses.
    """
    try:
        width = captioner.plan(wishes.options()).strategy.width
    except MeshcapError as error:
        raise RefusalError(422, str(error)) from None
    if width > most:
        raise RefusalError(
            422, f"so many required words need {width} hypotheses, at most {most}: require fewer, or less beams"
        )
    return width
