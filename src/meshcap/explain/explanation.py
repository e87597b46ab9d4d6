"""How a caption came about, as numbers: for each word its chances, its rivals, and what the model looked at.

All numbers come from one teacher-forced pass over the caption: what the model would say next after each of its words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from meshcap.caption import Caption
from meshcap.captioner import Captioner
from meshcap.decoding.extension import Extension, read_back
from meshcap.decoding.records import Hypotheses
from meshcap.decoding.search import Decodable
from meshcap.errors import MeshcapError
from meshcap.explain.attribution import STEPS, Attribution, Baseline, Report, attribute, rank_correlation
from meshcap.names import Reading
from meshcap.options import CaptionOptions
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.vision.pictures import Source
from meshcap.vision.score import picture_of

LISTED = 5  # captions of the model, where nobody says otherwise
END = "(end)"  # as the end of a caption is shown
SHOWN = 1024  # a picture is kept no smaller than this, where it is larger
APART = {
    "words",
    "gates",
    "memory",
    "patterns",
    "log_prob",
    "listened",
    "recalled",
}  # fields of their own, or of no use to a reader


@dataclass(frozen=True)
class WordExplanation:
    """One word, or the end: N regions, L levels."""

    word: str
    is_end: bool
    probability: float
    rank: int  # 1: no word was likelier
    runners_up: tuple[tuple[str, float], ...]  # the likeliest next words, this one among them where it is
    attention: Tensor  # (N,), sums to 1
    levels: Tensor | None = None  # (L,), sums to 1: what each encoder level's gate let pass; None of one level alone
    memory: float | None = None  # 0-1: what slots answered, instead of other regions, in the regions looked at
    name: Reading | None = None  # where the head for names gave the word
    listened: float | None = None  # 0-1: how far the word listened to what a store remembers
    recalled: Tensor | None = None  # (C,): attention to each of the remembered captions
    attribution: Tensor | None = None  # (N,), in nats, below 0 where a region spoke against the word
    gradient_input: Tensor | None = None  # (N,)
    gained: float | None = None  # nats: what the whole picture did for the word
    gap: float | None = None  # by how much the attributions' sum misses that
    agreement: float | None = None  # Spearman's ρ of attention and the size of attribution


@dataclass(frozen=True)
class Explanation:
    """A caption explained. What a model's mechanism does not have is None, or missing from `other`."""

    text: str
    confidence: float
    words: tuple[WordExplanation, ...]
    own: bool  # False: a person's sentence
    shortened: bool  # what was not sure is left out
    best: tuple[tuple[str, float], ...]  # the model's own captions with their confidence, best first
    boxes: Tensor | None  # (N, 4) from 0 to 1 within what was seen
    picture: Image.Image | None = None
    window: tuple[float, float, float, float] | None = None  # of the picture that was seen, in parts of its size
    baseline: Baseline | None = None  # of attribution
    gates: Tensor | None = None  # (T, layers, L): how open each gate was
    memory: Tensor | None = None  # (layers, N): the slots' share of each region's attention in each encoder layer
    patterns: Tensor | None = None  # (layers, N, P): what each region was reminded of
    remembered: tuple[tuple[str, float], ...] = ()  # captions that a store gave, with the similarity of their pictures
    padding: Tensor | None = None  # (T,): the part of attention that fell on zeros (`attend_padding`)
    other: dict[str, Tensor] = field(default_factory=dict)  # (T, …) by name, such as groups or memory_reads
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> list[Reading]:
        """The names that the caption says and the head for names gave, each once."""
        return list({one.name.word: one.name for one in self.words if one.name is not None}.values())

    @property
    def least(self) -> float:
        """What a region must add to a word, in nats, to be shown at full light: a quarter of the most that any did.

        So words that the picture did nothing for stay dark, instead of showing the noise in it.
        """
        return (
            max((float(one.attribution.abs().max()) for one in self.words if one.attribution is not None), default=0)
            / 4
        )

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for programs."""
        values: dict[str, Any] = {
            "caption": self.text,
            "confidence": self.confidence,
            "own": self.own,
            "shortened": self.shortened,
            "best": [{"caption": text, "confidence": confidence} for text, confidence in self.best],
            "words": [_word_dict(one) for one in self.words],
            "remembered": [{"caption": text, "similarity": similarity} for text, similarity in self.remembered],
            "baseline": self.baseline,
            "window": self.window,
        }
        for name in ("boxes", "gates", "memory", "patterns", "padding"):
            values[name] = _numbers(getattr(self, name))
        return values | {"other": {name: _numbers(tensor) for name, tensor in self.other.items()}}


def explain(
    captioner: Captioner,
    picture: Source | Regions,
    *,
    caption: str | None = None,
    options: CaptionOptions | None = None,
    runners_up: int = 5,
    attribution: bool = False,
    baseline: Baseline = "zero",
    steps: int = STEPS,
    report: Report = lambda done, total: None,
) -> Explanation:
    """Explain the model's caption of a picture, or a sentence of one's own.

    Args:
        picture: what `Captioner.caption` takes, or the Regions of one picture.
        caption: a sentence to explain instead of the model's.
        options: how the model searches for its captions; the 5 best of 5 beams by default.
        runners_up: how many of the likeliest words to list at each place.
        attribution: also integrated gradients, with `baseline`, `steps` and `report` of `attribute`; takes longer than
            all the rest.

    Raises:
        MeshcapError: a picture that cannot be read, a sentence with words that the model does not know.
    """
    if runners_up < 1:
        raise MeshcapError(f"runners_up is {runners_up}, expected 1 or more")
    regions, shown, window = _seen(captioner, picture)
    options = replace(options or CaptionOptions(), min_confidence=None)
    if options.n == 1:
        options = replace(options, n=min(LISTED, options.search().width))
    hypotheses = captioner.search(regions, options)
    (found,) = captioner.say(hypotheses, options)
    extension = hypotheses.extension
    vocabulary = captioner.vocabulary.extended(extension.words if extension else ())
    if caption is not None:
        ids = [*_ids_of(captioner, vocabulary, caption), captioner.model.config.eos]
        said = dict(enumerate([*vocabulary.decode(ids), END]))
    else:
        ids = hypotheses.ids[0, 0, : int(hypotheses.lengths[0, 0])].tolist()
        said = _said(captioner, hypotheses, found, options)
    words = torch.tensor(ids, device=captioner.model.device)
    log_probs, seen = _teacher_forced(captioner, hypotheses.speaker or captioner.model, regions, words)
    own = log_probs.gather(-1, words.cpu()[:, None])[:, 0]  # (T,)
    measured, confidence = captioner.calibration, found.confidence
    if caption is not None:
        confidence = float(own.mean().exp()) if measured is None else measured.apply(own.tolist())
    credit = None
    if attribution:
        credit = _credit(captioner, hypotheses, regions, words, baseline=baseline, steps=steps, report=report)
    # From here on, of the words that the caption has: it may be shorter than what the search said.
    places = list(said)
    log_probs = log_probs[places]
    seen = {name: tensor if name in ("memory", "patterns") else tensor[places] for name, tensor in seen.items()}
    credit = credit and credit.of(places)
    names = _names(captioner, hypotheses, [ids[place] for place in places])
    count = regions.features.shape[1]
    looks = seen["words"]
    config = captioner.model.config
    memory = seen["memory"][..., :count] if getattr(config, "slots", 0) and "memory" in seen else None
    gates = seen["gates"] if "gates" in seen and seen["gates"].shape[-1] > 1 else None
    return Explanation(
        text=vocabulary.sentence(ids) if caption is not None else found.text,
        confidence=confidence,
        words=tuple(
            _words(captioner, vocabulary, ids, said, names, log_probs, seen, count, gates, memory, credit, runners_up)
        ),
        own=caption is None,
        shortened=caption is None and found.shortened,
        best=tuple((one.text, one.confidence) for one in (found, *found.alternatives)),
        boxes=None if regions.boxes is None else regions.boxes[0].float().cpu(),
        picture=shown,
        window=window,
        baseline=baseline if attribution else None,
        gates=gates,
        memory=memory,
        patterns=seen.get("patterns"),
        remembered=_remembered(hypotheses),
        padding=looks[:, count:].sum(-1) if looks.shape[1] > count else None,
        other={name: tensor for name, tensor in seen.items() if name not in APART},
        facts=_facts(captioner, regions, shown),
    )


def _seen(
    captioner: Captioner, picture: Source | Regions
) -> tuple[Regions, Image.Image | None, tuple[float, float, float, float] | None]:
    """Regions of one picture without padding, the picture to show, and the part of it that was seen."""
    if isinstance(picture, Regions):
        if len(picture) != 1:
            raise MeshcapError(f"regions of {len(picture)} pictures were given, expected those of one")
        if picture.mask is not None:
            real = picture.mask[0]
            boxes = None if picture.boxes is None else picture.boxes[:, real]
            picture = Regions(picture.features[:, real], boxes)
        return picture, None, None
    if hasattr(picture, "read"):
        picture = picture.read()  # is read twice
    regions = captioner.see([captioner.read(picture)])
    assert captioner.vision is not None
    shown = picture_of(picture, at_least=SHOWN)
    width, height = shown.size
    left, top, right, bottom = captioner.vision.preprocess.window(width, height)
    return regions, shown, (left / width, top / height, right / width, bottom / height)


def _said(captioner: Captioner, hypotheses: Hypotheses, found: Caption, options: CaptionOptions) -> dict[int, str]:
    """The words of a caption, and its end, by their places in what the search said."""
    said = captioner.speaker.spoken(hypotheses, 0, 0, options)
    said = dict(list(said.items())[: len(found.words)])
    if found.finished and not found.shortened:
        said[int(hypotheses.lengths[0, 0]) - 1] = END
    return said


def _names(captioner: Captioner, hypotheses: Hypotheses, ids: Sequence[int]) -> list[Reading | None]:
    """Of words that the head for names gave, what it saw."""
    first = len(captioner.vocabulary) + len(hypotheses.recollection.words if hypotheses.recollection else ())
    if captioner.names is None or all(id < first for id in ids):
        return [None] * len(ids)
    words = captioner.vocabulary.extended(hypotheses.extension.words)
    return [captioner.names.read(hypotheses.named, words.word(id)) if id >= first else None for id in ids]


def _credit(captioner: Captioner, hypotheses: Hypotheses, regions: Regions, words: Tensor, **how: Any) -> Attribution:
    """Of every word that the search said. The share of a name is held as it is.

    With a memory, by the captioner alone, which reads words for the moment as others that are used alike.
    """
    extension: Extension | None = hypotheses.extension
    if extension is not None and hypotheses.recollection is not None:
        stand_in = torch.tensor(extension.stand_in, dtype=torch.long, device=words.device)
        words, extension = read_back(words, stand_in, len(captioner.vocabulary)), None
    return attribute(captioner.model, regions, words, extension=extension, **how)


def _remembered(hypotheses: Hypotheses) -> tuple[tuple[str, float], ...]:
    recollection = hypotheses.recollection
    captions = recollection.captions[0] if recollection is not None else ()
    return tuple((one.text, one.similarity) for one in captions)


def _ids_of(captioner: Captioner, vocabulary: Vocabulary, caption: str) -> list[int]:
    config = captioner.model.config
    words = vocabulary.tokens(caption)
    if not words:
        raise MeshcapError(f"the caption {caption!r} has no words, expected a sentence to explain")
    ids = vocabulary.ids_of(words, purpose="in the caption")
    for word, id in zip(words, ids, strict=True):
        if id in (*config.suppressed, config.unk, config.pad, config.bos, config.eos):
            raise MeshcapError(f"{word!r} in the caption is a word that this model never says")
    if len(ids) >= config.max_length:
        raise MeshcapError(f"the caption has {len(ids)} words, expected at most {config.max_length - 1}")
    return ids


@torch.no_grad()
def _teacher_forced(
    captioner: Captioner, speaker: Decodable, regions: Regions, ids: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities (T, V), and how the model looked, without the axis of pictures: `gates` as (T, layers, L)."""
    model = captioner.model
    before = torch.cat((ids.new_full((1,), model.config.bos), ids[:-1]))
    log_probs, seen = speaker(regions.to(model.device, model.dtype), before[None], attention=True)
    axes = {"gates": 2, "memory": 1, "patterns": 1}  # where the axis of pictures is not the first
    alone = {name: tensor.float().cpu().select(axes.get(name, 0), 0) for name, tensor in seen.items()}
    if "gates" in alone:
        alone["gates"] = alone["gates"].movedim(-1, 0)
    return log_probs[0].float().cpu(), alone


def _words(
    captioner: Captioner,
    vocabulary: Vocabulary,
    ids: Sequence[int],
    said: Mapping[int, str],
    names: Sequence[Reading | None],
    log_probs: Tensor,
    seen: dict[str, Tensor],
    regions: int,
    gates: Tensor | None,
    memory: Tensor | None,
    credit: Attribution | None,
    runners_up: int,
) -> list[WordExplanation]:
    eos = captioner.model.config.eos
    looks = seen["words"][:, :regions]

    def shown(id: int) -> str:
        return END if id == eos else vocabulary.word(id)

    words = []
    for t, ((place, word), chances) in enumerate(zip(said.items(), log_probs.exp(), strict=True)):
        id = ids[place]
        best = chances.topk(min(runners_up, int((chances > 0).sum())))
        given: dict[str, Any] = {"name": names[t]}
        if gates is not None:
            shares = gates[t] / gates[t].sum(-1, keepdim=True).clamp_min(1e-9)
            given["levels"] = shares.mean(0)
        if "listened" in seen:
            given |= {"listened": float(seen["listened"][t]), "recalled": seen["recalled"][t]}
        if memory is not None:
            given["memory"] = float(memory.mean(0) @ looks[t])
        if credit is not None:
            given |= {
                "attribution": credit.regions[t],
                "gradient_input": credit.gradient_input[t],
                "gained": float(credit.gained[t]),
                "gap": float(credit.gap[t]),
                "agreement": rank_correlation(looks[t], credit.regions[t].abs()),
            }
        likeliest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        rivals = tuple((word if i == id else shown(i), p) for i, p in likeliest)
        rank = 1 + int((chances > chances[id]).sum())
        words.append(WordExplanation(word, id == eos, float(chances[id]), rank, rivals, looks[t], **given))
    return words


def _facts(captioner: Captioner, regions: Regions, shown: Image.Image | None) -> tuple[tuple[str, str], ...]:
    model, vision = captioner.model, captioner.vision
    facts = [("model", model.name), ("weights", f"{sum(one.numel() for one in model.parameters()):,}")]
    facts.append(("vocabulary", f"{len(captioner.vocabulary):,} words"))
    if vision is not None:
        facts.append(("looks with", f"{vision.name}, {vision.preprocess}"))
    facts.append(("regions", f"{regions.features.shape[1]} of {regions.features.shape[2]} numbers"))
    if shown is not None:
        facts.append(("picture", f"{shown.width} × {shown.height} pixels"))
    return tuple(facts)


def _word_dict(one: WordExplanation) -> dict[str, Any]:
    values = {name: value for name, value in vars(one).items() if value is not None}
    if one.name is not None:
        values["name"] = one.name.to_dict()
    values["runners_up"] = [{"word": word, "probability": chance} for word, chance in one.runners_up]
    return {name: _numbers(value) if isinstance(value, Tensor) else value for name, value in values.items()}


def _numbers(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.tolist()
