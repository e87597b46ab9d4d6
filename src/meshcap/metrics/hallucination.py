"""CHAIR: objects that a caption mentions and the picture does not show (Rohrbach and others, 2018).

CHAIR-i is the share of mentioned objects that are not there, CHAIR-s the share of captions that mention such a one:
both are better when low. What is there: the objects annotated in the picture, and those that its references mention.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy

from meshcap.errors import MeshcapError
from meshcap.files import read_json, read_text
from meshcap.metrics.result import Array, Measure
from meshcap.text.sentence import singular

Tokens = Sequence[str]


@dataclass(frozen=True)
class Synonyms:
    """Which phrases mean which object. `phrases` may name no object at all: "train track".

    With `published` they are looked for as the paper's own program does, its slips included.
    """

    phrases: Mapping[tuple[str, ...], str | None]
    source: str
    published: bool = False

    @classmethod
    def ours(cls) -> Synonyms:
        """COCO's 80 objects with the words of `meshcap.metrics.hallucination`."""
        phrases: dict[tuple[str, ...], str | None] = {}
        for line in COCO_OBJECTS.replace("\n    ", " ").strip().split("\n"):
            name, others = line.split(":")
            for phrase in (name, *others.split(",")):
                phrases[tuple(phrase.split())] = name
        phrases |= {tuple(phrase.split()): None for phrase in NO_OBJECTS.split(",")}
        return cls(phrases, "meshcap")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Synonyms:
        """CHAIR's own file: an object a line, its name first, then its synonyms, between commas."""
        phrases: dict[tuple[str, ...], str | None] = {}
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            words = [phrase.rstrip().removeprefix(" ") for phrase in line.split(",")]
            if words == [""]:
                continue
            if not words[0]:
                raise MeshcapError(
                    f"{path}: line {number} is {reprlib.repr(line)}, expected an object, then its synonyms"
                )
            for phrase in filter(None, words):
                phrases[tuple(phrase.split(" "))] = words[0]
        if not phrases:
            raise MeshcapError(f"{path} holds no objects, expected one a line with its synonyms after commas")
        return cls(phrases, os.path.basename(path), published=True)

    def mentioned(self, words: Tokens) -> list[str]:
        """The objects that a caption mentions, as often as it does. The longest phrase at a place counts."""
        if self.published:
            return self._as_published(words)
        longest = max(map(len, self.phrases))
        found, place = [], 0
        while place < len(words):
            for size in range(min(longest, len(words) - place), 0, -1):
                phrase = self._known(words[place : place + size], words[place + size : place + size + 1])
                if phrase is not None:
                    if (name := self.phrases[phrase]) is not None:
                        found.append(name)
                    place += size
                    break
            else:
                place += 1
        return found

    def _as_published(self, words: Tokens) -> list[str]:
        """As in utils/chair.py of LisaAnne/Hallucination: single words, and the pairs of a list."""
        single = [PUBLISHED_SINGULARS.get(word) or singular(word) for word in words]
        joined, place = [], 0
        while place < len(single):
            pair = " ".join(single[place : place + 2])
            joined.append(PUBLISHED_PAIRS.get(pair, single[place]))
            place += 2 if pair in PUBLISHED_PAIRS else 1
        if "toilet" in joined:
            joined = [word for word in joined if word != "seat"]
        found = (self.phrases.get(tuple(word.split(" "))) for word in joined)
        return [name for name in found if name is not None]

    def _known(self, words: Tokens, following: Tokens) -> tuple[str, ...] | None:
        """The phrase that these words are, in the singular or as they are."""
        if len(words) == 1 and words[0] in DOUBTFUL and following and following[0] not in FOLLOWS:
            return None
        as_said = tuple(words)
        for phrase in (as_said, (*as_said[:-1], singular(as_said[-1]))):
            if phrase in self.phrases:
                return phrase
        return None

    def object(self, name: str) -> str | None:
        """The object that an annotation's name means, or None."""
        words = name.lower().split()
        return self.phrases.get(tuple(words)) or self.phrases.get((*words[:-1], singular(words[-1]) if words else ""))


@dataclass(frozen=True)
class Objects:
    """The objects annotated in each picture."""

    shown: dict[str, set[str]]
    warnings: list[str]


def read_objects(path: str | os.PathLike[str], synonyms: Synonyms) -> Objects:
    """COCO's instances JSON, or `{id: [object names]}`.

    Raises:
        MeshcapError: another layout.
    """
    data = read_json(path)
    expected = "expected COCO's instances JSON or {id: [object names]}"
    if not isinstance(data, dict):
        raise MeshcapError(f"{path} holds a JSON {type(data).__name__}, {expected}")
    names: dict[str, list[str]] = {}
    if isinstance(data.get("categories"), list):
        try:
            kinds = {category["id"]: str(category["name"]) for category in data["categories"]}
            for image in data["images"]:
                shown = names.setdefault(str(image["id"]), [])
                if "file_name" in image:
                    names[str(image["file_name"])] = shown  # the same list under the picture's other name
            for annotation in data["annotations"]:
                names[str(annotation["image_id"])].append(kinds[annotation["category_id"]])
        except (KeyError, TypeError) as error:
            raise MeshcapError(f"{path} lacks {error} in its images, annotations or categories, {expected}") from None
    else:
        for id, those in data.items():
            if not isinstance(those, list) or not all(isinstance(name, str) for name in those):
                raise MeshcapError(f"{path}: {reprlib.repr(id)} has {reprlib.repr(those)}, {expected}")
            names[str(id)] = those
    found = {name: synonyms.object(name) for those in names.values() for name in those}
    unknown = [name for name, known in found.items() if known is None]
    warnings = []
    if unknown:
        warnings.append(
            f"{len(unknown):,} object names of {path} are unknown and cannot be found in captions "
            f"(first: {reprlib.repr(unknown[0])})"
        )
    shown_in = {id: {known for name in those if (known := found[name])} for id, those in names.items()}
    return Objects(shown_in, warnings)


def chair(
    candidates: Sequence[Tokens],
    references: Sequence[Sequence[Tokens]],
    shown: Sequence[Iterable[str]],
    synonyms: Synonyms,
) -> list[Measure]:
    """CHAIR-i and CHAIR-s of tokenized captions. A picture's CHAIR-i is NaN where its caption mentions nothing."""
    counts = numpy.zeros((len(candidates), 2))  # wrong, mentioned
    for row, one, those, objects in zip(counts, candidates, references, shown, strict=True):
        there = set(objects).union(*(synonyms.mentioned(words) for words in those))
        said = synonyms.mentioned(one)
        row[:] = sum(name not in there for name in said), len(said)
    wrong, all_said = counts.T
    each = numpy.divide(wrong, all_said, out=numpy.full(len(counts), numpy.nan), where=all_said > 0)
    return [Measure("CHAIR-i", each, counts, _share), Measure.mean("CHAIR-s", (wrong > 0).astype(float))]


def _share(sums: Array, _: int) -> Array:
    wrong, said = sums[..., 0], sums[..., 1]
    return numpy.divide(wrong, said, out=numpy.zeros_like(wrong), where=said > 0)


# How the paper's program reads captions: pairs that are one word (most are themselves), and where the plurals that it
# finds differ from ours. "bus" becomes "bu", and is no bus.
PUBLISHED_PAIRS = {pair: pair for pair in """
motor bike, motor cycle, air plane, traffic light, street light, traffic signal, stop light, fire hydrant, stop sign,
parking meter, suit case, sports ball, baseball bat, baseball glove, tennis racket, wine glass, hot dog, cell phone,
mobile phone, teddy bear, hair drier, potted plant, laptop computer, home plate, train track
""".strip().replace(",\n", ", ").split(", ")}  # fmt: skip
PUBLISHED_PAIRS |= {
    f"{age} {animal}": animal
    for age in ("baby", "adult")
    for animal in "bird cat dog horse sheep cow elephant bear zebra giraffe animal cub".split()
}
PUBLISHED_PAIRS |= {"passenger jet": "jet", "passenger train": "train"}
PUBLISHED_PAIRS |= {"bow tie": "tie", "toilet seat": "toilet", "wine glas": "wine glass"}
PUBLISHED_SINGULARS = dict(
    pair.split("-")
    for pair in (
        "bus-bu buss-bus busses-buss airbus-airbu minibus-minibu airbuses-airbus minibuses-minibus glass-glas "
        "tennis-tenni ties-ty skis-ski taxis-taxi canoes-cano corgis-corgi broccolis-broccoli servicemen-serviceman"
    ).split()
)

# The 80 objects of COCO and the words that people use for them. This table is our own: CHAIR with it can be compared
# with CHAIR with it, and with nothing else; for the figures of the paper give its authors' synonyms file. One category
# a line, its own name first, words in the singular; plurals are found by rule, and irregular ones are listed below. An
# indented line goes on with the category above it.

COCO_OBJECTS = """
person: man, woman, boy, girl, child, kid, baby, toddler, infant, adult, human, guy, gentleman, lady, teenager, teen,
    student, worker, player, skier, snowboarder, skateboarder, surfer, skater, swimmer, rider, biker, cyclist,
    bicyclist, motorcyclist, pedestrian, batter, hitter, catcher, umpire, referee, athlete, spectator, passenger,
    driver, chef, baker, waiter, waitress, officer, policeman, policewoman, fireman, firefighter, soldier, cowboy,
    farmer, fisherman, bride, groom, couple, family, crowd, audience, someone, somebody, mother, mom, father, dad,
    son, daughter, brother, sister, friend, businessman, tourist, shopper, vendor, musician, jockey, hiker, people,
    ball player, ballplayer
bicycle: bike, mountain bike, road bike, tricycle, unicycle
car: automobile, auto, sedan, suv, minivan, van, taxi, cab, taxi cab, jeep, hatchback, station wagon, convertible,
    limousine, police car, sports car, pickup, race car
motorcycle: motorbike, motor bike, motor cycle, scooter, motor scooter, moped, dirt bike, harley, vespa
airplane: plane, aeroplane, air plane, aircraft, jet, airliner, jetliner, jet plane, passenger jet, fighter jet,
    biplane, seaplane, jumbo jet
bus: double decker, double decker bus, double-decker, minibus, coach bus, school bus, tour bus, trolley bus
train: locomotive, subway train, steam engine, passenger train, freight train, tram, streetcar, trolley car, commuter
    train
truck: lorry, pickup truck, pick up truck, semi truck, fire truck, firetruck, fire engine, dump truck, tow truck,
    delivery truck, food truck, tractor trailer, garbage truck
boat: ship, sailboat, sail boat, canoe, kayak, ferry, yacht, rowboat, row boat, speedboat, speed boat, motorboat,
    raft, gondola, fishing boat, tugboat, tug boat, barge, cruise ship, dinghy
traffic light: traffic signal, stop light, stoplight, street signal, signal light
fire hydrant: hydrant, fireplug
stop sign: stopsign
parking meter: meter
bench: park bench, pew
bird: duck, goose, pigeon, seagull, gull, sea gull, parrot, owl, rooster, hen, swan, eagle, hawk, penguin, peacock,
    flamingo, sparrow, pelican, crow, ostrich, heron, stork, dove, parakeet, cockatoo, hummingbird, duckling
cat: kitten, kitty, feline, tabby
dog: puppy, pup, canine, poodle, labrador, retriever, bulldog, terrier, dachshund, beagle, husky, dalmatian,
    chihuahua, corgi
horse: pony, foal, colt, stallion, mare
sheep: lamb, ewe
cow: cattle, bull, calf, ox, heifer, longhorn
elephant: baby elephant
bear: polar bear, brown bear, black bear, grizzly, grizzly bear, bear cub, panda, panda bear
zebra: baby zebra
giraffe: baby giraffe
backpack: back pack, knapsack, rucksack, bookbag, book bag
umbrella: parasol, beach umbrella
handbag: hand bag, purse, pocketbook, shoulder bag, tote bag, tote
tie: necktie, neck tie, bow tie, bowtie
suitcase: suit case, luggage, baggage, suit bag, briefcase
frisbee: frisby, flying disc, flying disk, disc
skis: ski
snowboard: snow board
sports ball: ball, soccer ball, tennis ball, basketball, volleyball, beach ball, bowling ball, rugby ball
kite: parasail
baseball bat: bat
baseball glove: baseball mitt, mitt, catcher mitt, catchers mitt
skateboard: skate board, longboard
surfboard: surf board, surf-board, body board, boogie board, paddle board, paddleboard
tennis racket: racket, racquet, tennis racquet
bottle: water bottle, beer bottle, wine bottle, soda bottle
wine glass: wineglass, wine goblet, champagne glass, champagne flute, goblet
cup: mug, coffee cup, tea cup, teacup, coffee mug, paper cup
fork: pitch fork
knife: butter knife, pocket knife, pocketknife, kitchen knife
spoon: teaspoon, tablespoon, ladle
bowl: mixing bowl, soup bowl, salad bowl, fruit bowl
banana: plantain
apple: green apple, red apple
sandwich: burger, hamburger, cheeseburger, sub, sub sandwich, panini, hoagie, blt
orange: tangerine, clementine, mandarin
broccoli: broccoli floret
carrot: baby carrot
hot dog: hotdog, hot-dog, frankfurter, chili dog, corn dog
pizza: pepperoni pizza, cheese pizza
donut: doughnut, bagel, dough nut
cake: cupcake, birthday cake, wedding cake, cheesecake, cup cake, carrot cake
chair: armchair, arm chair, stool, recliner, office chair, rocking chair, lawn chair, high chair, highchair, beach
    chair
couch: sofa, loveseat, love seat, futon, settee
potted plant: houseplant, house plant, potted flower, potted tree, pot plant
bed: mattress, bunk bed, bunkbed, canopy bed
dining table: table, desk, coffee table, kitchen table, end table, picnic table, dinner table, dining room table, side
    table, computer desk, office desk
toilet: commode, urinal, toilet seat, toilet bowl
tv: television, television set, tv set, tv screen, flat screen, flatscreen, flat screen tv, monitor, computer monitor,
    computer screen, television screen
laptop: computer, laptop computer, notebook computer, netbook, macbook, lap top
mouse: computer mouse, wireless mouse
remote: remote control, remote controller, tv remote, wii remote, wiimote, game controller, wii controller
keyboard: computer keyboard, key board
cell phone: cellphone, mobile phone, smartphone, smart phone, phone, cellular phone, iphone, telephone
microwave: microwave oven
oven: stove, stovetop, stove top, stove top oven, range oven, toaster oven
toaster: bread toaster
sink: washbasin, wash basin, kitchen sink, bathroom sink
refrigerator: fridge, freezer, refrigerator freezer, mini fridge
book: textbook, novel, paperback, notebook
clock: alarm clock, wall clock, grandfather clock, clock tower, clock face
vase: flower vase, glass vase
scissors: scissor, shears
teddy bear: teddy, stuffed bear, stuffed animal, stuffed toy, toy bear, teddybear
hair drier: hair dryer, hairdryer, hairdrier, blow dryer, blow drier
toothbrush: tooth brush, electric toothbrush
"""

# Phrases that hold the word for an object and are something else: "a station with train tracks" shows no train.
NO_OBJECTS = """
    home plate, license plate, train track, train station, train yard, train platform, railroad car, bus stop,
    bus station, bus depot, bus shelter, car park, parking lot, dog house, doghouse, bird house, birdhouse, bird bath,
    bird feeder, bird cage, horse shoe, horseshoe, cat food, dog food, dog bowl, cow bell, cow girl, chair lift,
    chairlift, boat house, boat dock, boat ramp, toilet paper, toilet brush, toilet tank, table tennis, table cloth,
    tablecloth, orange juice, apple juice, apple pie, banana bread, carrot juice, book shelf, bookshelf, book case,
    bookcase, book store, tv stand, television stand, tv show, computer lab, knife block, bottle cap, phone booth,
    telephone booth, phone pole, telephone pole, telephone wire, phone line, train car, cake pan, cake stand, pizza box,
    pizza cutter, pizza oven, pizza pan, pizza shop, sandwich shop, cup holder, bed room, bedroom, bed spread,
    bedspread, flower bed, truck bed, sink cabinet, bench press, oven mitt, kite string, clock radio,
    bike rack, bike lane, bike path, bicycle lane, bicycle rack, cow hide, sheep skin, bear rug,
    snow man, snowman, bat man, batman, couple of, family of, crowd of, jet ski, jet engine, ball game, ball field,
    ball park
"""

# Words that are as often no object: "an orange cat", "a remote beach", "a ski slope". They count where no noun can
# follow: at the end, or before one of these.
DOUBTFUL = frozenset({"orange", "remote", "ski"})
FOLLOWS = frozenset(
    """
    and or but with without in on at of by to from into onto near next beside behind between under over above below
    inside outside around against along while as that which who is are was were has have had being sits sitting sit
    lies lying lays laying rests resting stands standing stacked sliced cut peeled placed for off up down out there
    """.split()
)
