"""Captions that are true of a drawn scene, by the tables below.

Captions are lower-case words with spaces between, as the PTB tokenizer leaves them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SIZES = {"small": ("small", "little"), "large": ("large", "big")}

# How a relation is said between two things: "a to the left of b" …
RELATIONS = {
    "left": ("to the left of", "on the left of"),
    "right": ("to the right of", "on the right of"),
    "above": ("above", "higher than"),
    "below": ("below", "lower than"),
}
# … and after both: "b with a to its left".
AFTER = {
    "left": ("to its left", "on its left"),
    "right": ("to its right", "on its right"),
    "above": ("above it", "higher up"),
    "below": ("below it", "lower down"),
}

# Where a thing is that has the picture for itself.
SPOTS = {
    "left": "on the left side",
    "right": "on the right side",
    "top": "near the top",
    "bottom": "near the bottom",
    "middle": "in the middle",
}
# Where each of two things is: "on the left is a and on the right b".
SIDES = {"left": "on the left", "right": "on the right", "above": "at the top", "below": "at the bottom"}

WHERE = {
    "wall": ("in front of a plain wall", "on a plain background"),
    "meadow": ("in a meadow", "in a grassy field"),
    "night": ("at night", "under a starry sky"),
    "sea": ("by the sea", "at the seaside"),
    "snow": ("in the snow", "on a snowy day"),
    "sunset": ("at sunset", "in the evening"),
}


@dataclass(frozen=True)
class Thing:
    """An object of a scene; `box` is x1, y1, x2, y2 in 0-1 picture coordinates."""

    kind: str
    colour: str
    size: str
    box: tuple[float, float, float, float]

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}"


def gaps(a: Thing, b: Thing) -> dict[str, float]:
    """For each relation, the free space between the boxes if "a is … b" is true; negative where it is not."""
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.box, b.box
    return {"left": bx1 - ax2, "right": ax1 - bx2, "above": by1 - ay2, "below": ay1 - by2}


def holds(relation: str, a: Thing, b: Thing) -> bool:
    return gaps(a, b)[relation] >= 0


def aligned(a: Thing, b: Thing) -> bool:
    """Whether one relation alone is true, as it is of things side by side; of things aslant, two are."""
    return sum(gap >= 0 for gap in gaps(a, b).values()) == 1


def main_relation(a: Thing, b: Thing) -> str:
    """The relation that a person would name: that of the widest gap."""
    return max(RELATIONS, key=gaps(a, b).__getitem__)


def between(a: Thing, b: Thing, c: Thing) -> bool:
    """Whether a stands between b and c along one axis, and not off to the side along the other."""
    for axis, relation in enumerate(("left", "above")):
        across = 1 - axis
        middle = (a.box[across] + a.box[across + 2]) / 2
        beside = min(b.box[across], c.box[across]) <= middle <= max(b.box[across + 2], c.box[across + 2])
        order = (holds(relation, b, a) and holds(relation, a, c)) or (holds(relation, c, a) and holds(relation, a, b))
        if beside and order:
            return True
    return False


def spots(thing: Thing) -> set[str]:
    """The keys of SPOTS that are true."""
    x, y = (thing.box[0] + thing.box[2]) / 2, (thing.box[1] + thing.box[3]) / 2
    true = {"left": x < 0.4, "right": x > 0.6, "top": y < 0.4, "bottom": y > 0.6}
    return {spot for spot, is_true in true.items() if is_true} or {"middle"}


# Writing captions

# A template gets the things in reading order, a phrase for the background, and random numbers. It returns None where
# what it would say is not true of these things.
Template = Callable[[list[Thing], str, random.Random], str | None]


def write_captions(things: Sequence[Thing], background: str, rng: random.Random, count: int = 5) -> list[str]:
    """`count` different true captions.

    Things are named as people read, from left to right and from top to bottom. In random order, which thing comes
    next is a toss-up that no picture decides, and whoever says "left" must first find again what was just named.
    """
    templates = {1: ONE, 2: TWO, 3: THREE}[len(things)]
    in_order = sorted(things, key=lambda thing: sum(thing.box))
    captions: list[str] = []
    while len(captions) < count:
        for template in rng.sample(templates, len(templates)):
            caption = template(in_order, rng.choice(WHERE[background]), rng)
            if caption is not None and caption not in captions:
                captions.append(caption)
    return captions[:count]


def _noun(thing: Thing, rng: random.Random) -> str:
    words = f"{rng.choice(SIZES[thing.size])} {thing.name}" if rng.random() < 0.2 else thing.name
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _spot(thing: Thing, rng: random.Random) -> str:
    return SPOTS[rng.choice(sorted(spots(thing)))]


def _relation(a: Thing, b: Thing, rng: random.Random) -> str:
    return rng.choice(RELATIONS[main_relation(a, b)])


def _pair(t: list[Thing], rng: random.Random) -> str:
    return f"{_noun(t[0], rng)} {_relation(t[0], t[1], rng)} {_noun(t[1], rng)}"


def _with(t: list[Thing], where: str, rng: random.Random) -> str:
    return f"{_noun(t[0], rng)} with {_noun(t[1], rng)} {rng.choice(AFTER[main_relation(t[1], t[0])])}"


def _chain(t: list[Thing], where: str, rng: random.Random) -> str | None:
    a, b, c = t
    if not (aligned(a, b) and aligned(b, c)):
        return None
    return f"{_pair(t, rng)} which is {_relation(b, c, rng)} {_noun(c, rng)}"


def _to_both(t: list[Thing], where: str, rng: random.Random) -> str | None:
    a, b, c = t
    if not (aligned(a, b) and holds(main_relation(a, b), a, c)):
        return None
    return f"{_pair(t, rng)} and {_noun(c, rng)}"


def _between(t: list[Thing], where: str, rng: random.Random) -> str | None:
    a, b, c = t
    return f"{_noun(b, rng)} between {_noun(a, rng)} and {_noun(c, rng)}" if between(b, a, c) else None


def _sides(t: list[Thing], where: str, rng: random.Random) -> str:
    a, b = t
    sides = SIDES[main_relation(a, b)], SIDES[main_relation(b, a)]
    return f"{sides[0]} is {_noun(a, rng)} and {sides[1]} {_noun(b, rng)}"


ONE: list[Template] = [
    lambda t, where, rng: f"{_noun(t[0], rng)} {where}",
    lambda t, where, rng: f"there is {_noun(t[0], rng)} {_spot(t[0], rng)}",
    lambda t, where, rng: f"a picture of {_noun(t[0], rng)} {where}",
    lambda t, where, rng: f"{_noun(t[0], rng)} {_spot(t[0], rng)} of the picture",
    lambda t, where, rng: f"{where} , {_noun(t[0], rng)} {_spot(t[0], rng)}",
]
TWO: list[Template] = [
    lambda t, where, rng: f"{_pair(t, rng)} {where}",
    lambda t, where, rng: f"there is {_pair(t, rng)}",
    lambda t, where, rng: f"a picture of {_pair(t, rng)}",
    lambda t, where, rng: f"{where} , {_pair(t, rng)}",
    _with,
    _sides,
]
THREE: list[Template] = [
    lambda t, where, rng: f"{_noun(t[0], rng)} , {_noun(t[1], rng)} and {_noun(t[2], rng)} {where}",
    _chain,
    _to_both,
    _between,
]
