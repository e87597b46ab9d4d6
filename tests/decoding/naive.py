"""Searches as one would write them on a blackboard: one picture, Python lists, the whole caption read again for every
word, nothing cached. What `meshcap.decoding` finds must be what these find.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

import torch

from meshcap.decoding import Hypotheses, Rules
from meshcap.regions import Regions


@dataclass(frozen=True)
class Caption:
    words: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    ended: bool = False

    def rank(self, length_penalty: float, cost: float = 0.0) -> float:
        return (sum(self.log_probs) - cost) / max(1, len(self.words)) ** length_penalty


@torch.no_grad()
def next_words(model, picture: Regions, captions: list[Caption]) -> list[list[float]]:
    """Log-probabilities of the word after each of some captions of equal length."""
    ids = torch.tensor([[[model.config.bos, *caption.words] for caption in captions]])
    return model(picture, ids)[0, :, -1].tolist()


def allowed(words: Sequence[int], word: int, rules: Rules, eos: int) -> bool:
    if word in rules.banned or (word in rules.once and word in words):
        return False
    if any((*words, word)[-len(phrase) :] == phrase for phrase in rules.banned_phrases):
        return False
    if word == eos and (len(words) + 1 < rules.min_length or (words and words[-1] in rules.bad_endings)):
        return False
    if rules.end_in_time and len(words) + 1 == rules.max_length:
        return word == eos
    if rules.end_in_time and len(words) + 2 == rules.max_length and word in rules.bad_endings:
        return False
    return not repeats((*words, word), rules.no_repeat_ngram)


def repeats(words: Sequence[int], n: int) -> bool:
    """Whether the last n words occur together before."""
    windows = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return n > 0 and len(windows) > 0 and windows[-1] in windows[:-1]


def continuations(
    model, picture: Regions, captions: list[Caption], rules: Rules
) -> list[tuple[Caption, list[Caption]]]:
    """Each caption with all it can become; one that has ended stays as it is."""
    eos = model.config.eos
    going = [caption for caption in captions if not caption.ended]
    odds = dict(zip(going, next_words(model, picture, going), strict=True)) if going else {}
    return [
        (caption, [caption] if caption.ended else [
            Caption((*caption.words, word), (*caption.log_probs, log_prob), word == eos)
            for word, log_prob in enumerate(odds[caption])
            if log_prob > -inf and allowed(caption.words, word, rules, eos)
        ])
        for caption in captions
    ]  # fmt: skip


def best(candidates: Iterable[Caption], count: int, rank: Callable[[Caption], float]) -> list[Caption]:
    return sorted(candidates, key=rank, reverse=True)[:count]


def greedy(model, picture: Regions, rules: Rules) -> list[Caption]:
    """One caption, or none where the rules leave it no way on."""
    caption = Caption()
    while not caption.ended and len(caption.words) < rules.max_length:
        ((_, candidates),) = continuations(model, picture, [caption], rules)
        if not candidates:
            return []
        caption = max(candidates, key=lambda one: one.log_probs[-1])
    return [caption]


def beam(model, picture: Regions, beams: int, rules: Rules, length_penalty: float = 0.0) -> list[Caption]:
    captions = [Caption()]
    for _ in range(rules.max_length):
        candidates = [new for _, become in continuations(model, picture, captions, rules) for new in become]
        captions = best(candidates, beams, lambda one: one.rank(length_penalty))
    return captions


def diverse(
    model, picture: Regions, beams: int, groups: int, diversity: float, rules: Rules, length_penalty: float = 0.0
) -> list[Caption]:
    pools = [[Caption()] for _ in range(groups)]
    for _ in range(rules.max_length):
        said: Counter[int] = Counter()  # by earlier groups, in this step
        taken: set[tuple[int, ...]] = set()  # captions that earlier groups have
        everyone = dict(continuations(model, picture, [caption for pool in pools for caption in pool], rules))
        for index, pool in enumerate(pools):
            candidates = []
            for old in pool:
                for new in everyone[old]:
                    if new.words in taken:
                        continue
                    cost = 0.0 if old.ended else diversity * said[new.words[-1]]
                    candidates.append((new.rank(length_penalty, cost), new, old.ended))
            candidates.sort(key=lambda one: one[0], reverse=True)
            chosen = candidates[: beams // groups]
            pools[index] = [new for _, new, _ in chosen]
            said.update(new.words[-1] for _, new, rested in chosen if not rested)
            taken.update(new.words for _, new, _ in chosen)
    everything = [caption for pool in pools for caption in pool]
    return best(everything, len(everything), lambda one: one.rank(length_penalty))


Constraints = Sequence[Sequence[Sequence[int]]]


def met(words: Sequence[int], constraints: Constraints) -> frozenset[int]:
    """Which requirements a caption meets, by looking for each phrase everywhere."""

    def contains(phrase: Sequence[int]) -> bool:
        return any(tuple(words[i : i + len(phrase)]) == tuple(phrase) for i in range(len(words)))

    return frozenset(i for i, phrases in enumerate(constraints) if any(contains(phrase) for phrase in phrases))


def standing(words: Sequence[int], constraints: Constraints) -> tuple[frozenset[int], tuple[int, ...]]:
    """What a caption has met, and the longest beginning of a phrase still wanted that it ends in."""
    done = met(words, constraints)
    wanted = [tuple(phrase) for i, phrases in enumerate(constraints) if i not in done for phrase in phrases]
    beginnings = {phrase[:length] for phrase in wanted for length in range(1, len(phrase))}
    tails = [tuple(words[start:]) for start in range(len(words))]
    return done, next((tail for tail in tails if tail in beginnings), ())


def constrained(
    model, picture: Regions, constraints: Constraints, beams: int, rules: Rules, length_penalty: float = 0.0
) -> list[Caption]:
    captions = [Caption()]
    for _ in range(rules.max_length):
        states = defaultdict(list)
        for _, become in continuations(model, picture, captions, rules):
            for new in become:
                states[standing(new.words, constraints)].append(new)
        captions = [
            kept for state in states.values() for kept in best(state, beams, lambda one: one.rank(length_penalty))
        ]
    captions.sort(key=lambda one: (len(met(one.words, constraints)), one.rank(length_penalty)), reverse=True)
    return captions


def expect_same(found: Hypotheses, picture: int, captions: list[Caption], length_penalty: float = 0.0) -> None:
    """The n best of a search are these captions, in this order; and there are fewer only where these are fewer."""
    ids, log_probs, scores = found.ids[picture].tolist(), found.log_probs[picture], found.scores[picture]
    longest = found.ids.shape[-1]
    for place in range(found.ids.shape[1]):
        if place >= len(captions):
            assert scores[place] == -inf, f"place {place} should be empty and has {ids[place]}"
            continue
        caption = captions[place]
        length = len(caption.words)
        assert tuple(ids[place][:length]) == caption.words, f"place {place}: {ids[place]}, expected {caption}"
        assert int(found.lengths[picture, place]) == length
        assert bool(found.finished[picture, place]) == caption.ended
        expected = torch.tensor([*caption.log_probs, *[0.0] * (longest - length)])
        torch.testing.assert_close(log_probs[place], expected, atol=1e-4, rtol=1e-5)
        expected = torch.tensor(caption.rank(length_penalty))
        torch.testing.assert_close(scores[place], expected, atol=1e-4, rtol=1e-5)
