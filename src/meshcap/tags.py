"""Keywords of a picture: objects and scenes that its captions name, and its colours. Nothing here needs torch.

What captions name is weighed over all hypotheses of a search: a word that each of them has is surer than one that only
the last has. Words are looked up in a list of things and places, so that verbs and adjectives are no keywords.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from meshcap.caption import Tag

MOST = 12  # tags of a picture that are no colours
LEAST = 0.3  # a thing that is less likely there is no tag
COLOURED = 0.12  # the least share of a picture that makes a colour a tag
MOST_COLOURS = 3

# Things and places that COCO's captions name often enough to learn from; two words are joined by an underscore.
OBJECTS = """
    person man woman boy girl child baby crowd
    bicycle car motorcycle airplane bus train truck boat ship skateboard surfboard snowboard skis wagon scooter tractor
    trailer van taxi helicopter
    bird cat dog horse sheep cow elephant bear zebra giraffe deer duck goose chicken goat pig monkey fish lion tiger owl
    parrot puppy kitten rabbit panda
    traffic_light fire_hydrant stop_sign parking_meter bench backpack umbrella handbag tie suitcase frisbee ball kite
    bat glove racket bottle glass cup mug fork knife spoon bowl plate pan pot
    banana apple sandwich orange broccoli carrot hot_dog pizza donut cake bread cheese meat rice salad soup vegetables
    fruit strawberry tomato lemon chocolate dessert burger fries egg bacon coffee beer wine juice water
    chair couch plant bed table desk toilet tv laptop mouse remote keyboard phone camera computer monitor microwave oven
    toaster sink refrigerator stove book clock vase scissors teddy_bear toothbrush lamp mirror window door curtain
    blanket pillow towel rug shelf cabinet counter fireplace painting poster candle basket box bag toy doll guitar piano
    microphone drum
    hat helmet sunglasses glasses shirt jacket dress suit uniform jeans shoes boots scarf costume bikini
    tree flower leaves grass bush rock stone sand wave cloud sun moon rainbow smoke fire ice fence wall pole sign flag
    statue fountain tower bridge building house church barn castle lighthouse windmill tent roof chimney stairs railing
    tracks engine wheel rope ladder graffiti pumpkin nest hay saddle cart net
"""
SCENES = """
    beach ocean lake river pond mountain hill forest field desert park garden yard zoo farm street road highway city
    town sidewalk intersection parking_lot airport runway harbor dock station subway market store restaurant cafe bar
    kitchen bathroom bedroom living_room dining_room office classroom library hotel stadium court baseball_field
    tennis_court skate_park ski_slope snow sky night sunset rain pool stage museum hospital gym
"""
# What else captions call them, beside plurals with -s and -es. None of these is a keyword itself.
SAME = {
    "airplane": "plane planes jet jets", "person": "people guy guys player players", "man": "men",
    "woman": "women lady ladies", "child": "children kid kids toddler", "baby": "babies", "bicycle": "bike bikes",
    "motorcycle": "motorbike motorbikes", "couch": "sofa sofas", "tv": "television televisions",
    "phone": "cellphone cellphones", "donut": "doughnut doughnuts", "burger": "hamburger hamburgers cheeseburger",
    "skis": "ski", "refrigerator": "fridge", "ocean": "sea", "forest": "woods", "store": "shop shops",
    "leaves": "leaf", "harbor": "marina port", "vegetables": "vegetable veggies", "shoes": "shoe sneakers",
    "boots": "boot", "knife": "knives", "sheep": "lamb lambs", "cow": "cattle bull", "snow": "snowy", "rain": "rainy",
    "stairs": "steps staircase", "racket": "racquet", "shelf": "shelves", "mountain": "hillside", "goose": "geese",
    "ski_slope": "slope slopes", "city": "downtown", "puppy": "puppies",
}  # fmt: skip
# A thing that is also one of these: both are keywords.
BROADER = {
    "man": "person", "woman": "person", "boy": "child", "girl": "child", "puppy": "dog", "kitten": "cat",
    "mug": "cup", "child": "person", "baby": "person",
}  # fmt: skip


def _forms() -> dict[str, tuple[str, str]]:
    """Every form of every word: what it is, and its kind."""
    found: dict[str, tuple[str, str]] = {}
    for kind, text in (("scene", SCENES), ("object", OBJECTS)):
        for entry in text.split():
            name = entry.replace("_", " ")
            for form in (name, f"{name}s", f"{name}es", *SAME.get(entry, "").split()):
                found[form] = (name, kind)
    return found


FORMS = _forms()


def keyword(word: str) -> str:
    """What keywords call a thing or place that a caption names with this word."""
    return FORMS.get(word, (word, ""))[0]


def named(words: Sequence[str]) -> dict[str, str]:
    """The things and places that a caption names, with their kinds; two words are read before one."""
    found, place = {}, 0
    while place < len(words):
        for length in (2, 1):
            known = FORMS.get(" ".join(words[place : place + length]))
            if known is not None and place + length <= len(words):
                found[known[0]] = known[1]
                break
        place += length
    for name in list(found):
        while name in BROADER:
            name = BROADER[name]
            found.setdefault(name, "object")
    return found


def of_captions(captions: Iterable[tuple[Sequence[str], float]], confidence: float) -> list[Tag]:
    """Tags of what hypotheses of a picture name: the share of them, by their probability, times the confidence.

    Args:
        captions: words and log-probability of each hypothesis.
        confidence: in the best of them.
    """
    given = list(captions)
    scores = np.array([score for _, score in given], np.float64)
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    total: dict[tuple[str, str], float] = {}
    for (words, _), weight in zip(given, weights.tolist(), strict=True):
        for item in named(words).items():
            total[item] = total.get(item, 0.0) + weight
    return [Tag(name, kind, min(1.0, share) * confidence) for (name, kind), share in total.items()]


def merged(tags: Iterable[Tag], least: float = LEAST, most: int = MOST) -> tuple[Tag, ...]:
    """Each name once with its greatest probability, likeliest first."""
    best: dict[str, Tag] = {}
    for tag in tags:
        if tag.probability >= least and (tag.name not in best or best[tag.name].probability < tag.probability):
            best[tag.name] = tag
    return tuple(sorted(best.values(), key=lambda tag: (-tag.probability, tag.name)))[:most]


def joined(tags: Sequence[Tag], painted: Iterable[Tag]) -> tuple[Tag, ...]:
    """Tags, then colours; an orange that was seen as a thing is not listed as a colour again."""
    names = {tag.name for tag in tags}
    return (*tags, *(one for one in painted if one.name not in names))


# Colours by hue, in degrees; the rest goes by how light and how colourful a pixel is.
HUES = (
    (15, "red"), (40, "orange"), (70, "yellow"), (165, "green"), (255, "blue"), (290, "purple"), (340, "pink"),
    (361, "red"),
)  # fmt: skip
GRAY = 0.16  # the least saturation of a colour
BLACK, WHITE = 0.2, 0.82  # the greatest light of black, the least of white


def colours(pixels: np.ndarray) -> list[Tag]:
    """The colours that much of a picture has, each with its share of it.

    Args:
        pixels: uint8 (3, height, width). Neighbours are averaged first, so that grain has no colour.
    """
    size = min(48, *pixels.shape[1:])
    rows, columns = (np.linspace(0, edge, size + 1).astype(int) for edge in pixels.shape[1:])
    small = np.add.reduceat(np.add.reduceat(pixels.astype(np.float64), rows[:-1], 1), columns[:-1], 2)
    small /= np.diff(rows)[None, :, None] * np.diff(columns)[None, None, :] * 255
    high, low = small.max(0), small.min(0)
    spread = high - low
    red, green, blue = small
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = [(green - blue) / spread % 6, (blue - red) / spread + 2]
        hue = np.select([high == red, high == green], sides, (red - green) / spread + 4)
        saturation = np.where(high > 0, spread / high, 0)
    hue = np.nan_to_num(hue * 60)
    names = np.full(hue.shape, "", dtype="<U8")
    for limit, name in reversed(HUES):
        names[hue < limit] = name
    names[(hue >= 15) & (hue < 45) & (high < 0.65)] = "brown"  # dark orange
    names[(hue < 15) & (high < 0.45) & (saturation < 0.6)] = "brown"
    names[saturation < GRAY] = "gray"
    names[(saturation < GRAY) & (high > WHITE)] = "white"
    names[high < BLACK] = "black"
    found, counts = np.unique(names, return_counts=True)
    shares: Mapping[str, float] = dict(zip(found.tolist(), (counts / names.size).tolist(), strict=True))
    tags = [Tag(name, "colour", share) for name, share in shares.items() if share >= COLOURED]
    return sorted(tags, key=lambda tag: (-tag.probability, tag.name))[:MOST_COLOURS]
