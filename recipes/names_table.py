"""What the outputs of the head for names mean, and what captions may call them: the table of `recipes/names.py`.

ImageNet's 1,000 classes are numbered in the order of their WordNet ids. Most are breeds, species and makes that nobody
would put into a caption, so several share a word ("spider"), and where captions of COCO have a word that is right
("dog", "bus") there is none: nothing needs to change there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshcap.names import NameKind, Table


def _numbers(text: str) -> Iterable[int]:
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


# What captions may say: kind, then words with the classes (numbers) or further labels that they stand for.
SAID = {
    "fish": """goldfish: 1; shark: 2-4; stingray: 5-6; fish: 0 389-397 fish; seahorse: seahorse""",
    "bird": """
        rooster: 7; ostrich: 9; emu: emu; eagle: 22; vulture: 23; owl: 24; peacock: 84; parrot: 87-90; hornbill: 93;
        hummingbird: 94; toucan: 96; duck: 97-98; goose: 99; swan: 100; stork: 127-128; flamingo: 130; heron: 131-132;
        pelican: 144; penguin: 145; woodpecker: woodpecker; crow: crow; pigeon: pigeon; turkey: turkey; chicken: 8;
        bird: 10-21 80-83 85-86 91-92 95 129 133-143 146 ibis
    """,
    "reptile": """
        salamander: 25-29; frog: 30-32; turtle: 33-37; lizard: 38-48; crocodile: 49; alligator: 50; dinosaur:
        51; snake: 52-68
    """,
    "insect": """
        scorpion: 71; spider: 72-77 70; centipede: 79; beetle: 300 302-307; ladybug: 301; fly: 308; bee: 309;
        ant: 310;
        grasshopper: 311-312; cockroach: 314; mantis: 315; dragonfly: 319-320; butterfly: 321-326; moth: moth;
        caterpillar: caterpillar; mosquito: mosquito; insect: 78 313 316-318 126
    """,
    "sea": """
        jellyfish: 107; sea anemone: 108; coral: 109 973; snail: 113; slug: 114 115; shell: 112 117; crab:
        118-121 125;
        lobster: 122-123; crayfish: 124; starfish: 327; sea urchin: 328; octopus: octopus; squid: squid;
        oyster: oyster
    """,
    "animal": """
        echidna: 102; platypus: 103; kangaroo: 104; koala: 105; wombat: 106; whale: 147-148; dolphin: dolphin;
        manatee: 149;
        seal: 150; wolf: 269-271; coyote: 272; wild dog: 274-275; hyena: 276; fox: 277-280; cougar: 286; lynx: 287;
        leopard: 288-289; jaguar: 290; lion: 291; tiger: 292; cheetah: 293; mongoose: 298; meerkat: 299;
        rabbit: 330-332;
        hamster: 333; porcupine: 334; hedgehog: hedgehog; squirrel: 335; marmot: 336; beaver: 337; guinea pig: 338;
        pig: 341; boar: 342; warthog: 343; hippo: 344; buffalo: 346; bison: 347; ram: 348-349; goat: 350 goat;
        antelope: 351-353; camel: 354; llama: 355; weasel: 356-359; otter: 360; skunk: 361; badger: 362;
        armadillo: 363;
        sloth: 364; orangutan: 365; gorilla: 366; chimpanzee: 367; monkey: 368-382; lemur: 383-384; red panda: 387;
        panda: 388; raccoon: raccoon; deer: deer; okapi: okapi; donkey: donkey; rhinoceros: rhinoceros;
        possum: possum;
        bat: bat; mouse: mouse; rat: rat
    """,
    "flying": """
        rocket: 657 744; space shuttle: 812; hot air balloon: 417; airship: 405; parachute: 701; helicopter:
        helicopter
    """,
    "vehicle": """
        tank: 847; tractor: 866 595 856; snowmobile: 802; forklift: 561; submarine: 833; canoe: 472; gondola: 576;
        golf cart: 575; rickshaw: 612
    """,
    "monument": """
        castle: 483; palace: 698; mosque: 668; pyramid: pyramid; lighthouse: 437; obelisk: 682; temple: 832
        pagoda; minaret: minaret;
        triumphal arch: 873; totem pole: 863; fountain: 562; dam: 525; yurt: 915; greenhouse: 580; drilling
        platform: 540
    """,
    "instrument": """
        guitar: 402 546; violin: 889; cello: 486; piano: 579 881; drum: 541; harp: 594; saxophone: 776; trumpet: 513;
        trombone: 875; accordion: 401; flute: 558; banjo: 420; mandolin: mandolin
    """,
    "plant": """
        sunflower: sunflower; daisy: 985; lotus: lotus; mushroom: 947 991-997; pineapple: 953; strawberry:
        949; lemon: 951;
        fig: 952; pomegranate: 957; artichoke: 944; cucumber: 943; corn: 987 998; acorn: 988; cauliflower:
        938; cabbage: 936
    """,
    "tool": """
        cannon: 471; rifle: 413 764; revolver: 763; hammer: 587; screwdriver: 784; wrench: wrench; drill: 740;
        chainsaw: 491;
        typewriter: 878; sewing machine: 786; binoculars: 447; hourglass: 604; abacus: 398; padlock: 695;
        stethoscope: 823;
        compass: 635; gramophone: gramophone; wheelchair: wheelchair; anchor: anchor; spider web: 815;
        jack-o'-lantern: 607
    """,
}  # fmt: skip
IRREGULAR = {
    "fish": "fish", "goldfish": "goldfish", "goose": "geese", "wolf": "wolves", "sheep": "sheep", "deer": "deer",
    "bison": "bison", "mouse": "mice", "jellyfish": "jellyfish", "starfish": "starfish", "butterfly": "butterflies",
    "dragonfly": "dragonflies",
    "fly": "flies", "mosquito": "mosquitoes", "ostrich": "ostriches", "finch": "finches", "walrus": "walruses",
    "octopus": "octopuses", "binoculars": "binoculars", "compass": "compasses", "hippopotamus": "hippos",
    "canary": "canaries", "daisy": "daisies", "strawberry": "strawberries", "corn": "corn", "coral": "corals",
    "mantis": "mantises", "lynx": "lynxes", "squid": "squid", "platypus": "platypuses", "cockroach": "cockroaches",
    "crayfish": "crayfish", "seahorse": "seahorses", "ibis": "ibises", "lotus": "lotuses", "fox": "foxes",
    "sea anemone": "sea anemones", "triumphal arch": "triumphal arches",
}  # fmt: skip

# Words of COCO's captions that such things are mistaken for, in the singular and in the plural.
ANIMALS = """
    cat dog bear cow horse sheep elephant zebra giraffe animal monkey deer goat lamb puppy kitten pig panda calf bull
    lion tiger creature bunny rabbit fox squirrel camel
"""
ANIMALS_PLURAL = """
    cats dogs bears cows horses sheep elephants zebras giraffes animals monkeys goats lambs puppies kittens pigs pandas
    deer lions
"""
BIRDS = "bird duck goose chicken parrot seagull pigeon owl swan eagle"
BIRDS_PLURAL = "birds ducks geese chickens parrots seagulls pigeons swans"
SMALL = "insect bug butterfly bee fish frog snake lizard crab turtle shark whale seal toy statue banana flower"
SMALL_PLURAL = "insects bugs butterflies bees fish toys"
FLYING = "kite plane airplane jet balloon parachute umbrella tower clock building helicopter"
FLYING_PLURAL = "kites planes airplanes jets balloons umbrellas towers"
BUILDINGS = "building tower clock church castle house statue cake temple mountain tent lighthouse cathedral"
BUILDINGS_PLURAL = "buildings towers cakes houses mountains tents statues"
VEHICLES = "truck car train boat bus motorcycle plane airplane bike vehicle tractor surfboard"
VEHICLES_PLURAL = "trucks cars boats vehicles motorcycles surfboards"
TOOLS = """
    guitar violin bat racket remote phone scissors knife clock camera keyboard typewriter umbrella suitcase bicycle
    toothbrush microphone laptop machine hat vase
"""
FRUIT = """
    apple orange banana broccoli carrot flower fruit vegetable pizza cake donut strawberry pineapple lemon umbrella
    tomato cauliflower
"""
FRUIT_PLURAL = "apples oranges bananas carrots flowers fruits vegetables donuts strawberries"


def _kind(word: str, plural: str, kin: str, plural_kin: str, stand_in: str, plural_stand_in: str) -> NameKind:
    return NameKind(word, plural, tuple(kin.split()), tuple(plural_kin.split()), stand_in, plural_stand_in)


LIVING, LIVING_PLURAL = f"{BIRDS} {ANIMALS}", f"{BIRDS_PLURAL} {ANIMALS_PLURAL}"
KINDS = {
    "animal": _kind("animal", "animals", f"{LIVING} fish statue toy", LIVING_PLURAL, "bear", "bears"),
    "bird": _kind("bird", "birds", LIVING, LIVING_PLURAL, "bird", "birds"),
    "fish": _kind("fish", "fish", f"{SMALL} {LIVING}", f"{SMALL_PLURAL} {LIVING_PLURAL}", "fish", "fish"),
    "reptile": _kind("animal", "animals", f"{SMALL} {LIVING}", f"{SMALL_PLURAL} {LIVING_PLURAL}", "lizard", "animals"),
    "insect": _kind("insect", "insects", f"{SMALL} {LIVING}", f"{SMALL_PLURAL} {LIVING_PLURAL}", "bug", "bugs"),
    "sea": _kind("", "", f"{SMALL} {LIVING}", f"{SMALL_PLURAL} {LIVING_PLURAL}", "fish", "fish"),
    "flying": _kind("", "", FLYING, FLYING_PLURAL, "plane", "planes"),
    "vehicle": _kind("", "", VEHICLES, VEHICLES_PLURAL, "truck", "trucks"),
    "monument": _kind("", "", BUILDINGS, BUILDINGS_PLURAL, "building", "buildings"),
    "instrument": _kind("", "", TOOLS, "", "guitar", "guitars"),
    "plant": _kind("", "", FRUIT, FRUIT_PLURAL, "flower", "flowers"),
    "tool": _kind("", "", TOOLS, "", "camera", "cameras"),
}
# ImageNet's first words that mislead today or stand for two things.
RENAMED = {
    "cock": "rooster", "drake": "duck", "lesser panda": "red panda", "Madagascar cat": "lemur", "tusker": "elephant",
    "sorrel": "horse", "killer whale": "orca", "missile": "rocket", "beacon": "lighthouse", "cab": "taxi",
    "balloon": "hot air balloon", "ashcan": "trash can", "sax": "saxophone", "cornet": "trumpet", "hog": "pig",
    "jinrikisha": "rickshaw", "American chameleon": "anole", "ice lolly": "popsicle", "washbasin": "sink",
    "liner": "ocean liner", "cellular telephone": "cell phone", "hand blower": "hair dryer", "notebook": "laptop",
    "screen": "computer screen", "plane": "woodworking plane", "grille": "radiator grille", "streetcar": "tram",
    "wing": "aircraft wing",
}  # fmt: skip


def plural_of(word: str) -> str:
    if word in IRREGULAR:
        return IRREGULAR[word]
    return f"{word}es" if word.endswith(("s", "x", "ch", "sh")) else f"{word}s"


def table(classes: list[str], labels: list[str], words: list[tuple[str, str]], **more: object) -> Table:
    """The table of a head with ImageNet's classes (their names in order), further labels, and words of captions."""
    names = [RENAMED.get(name.replace("_", " "), name.replace("_", " ")) for name in [*classes, *labels]]
    place: Mapping[str, int] = {label: len(classes) + at for at, label in enumerate(labels)}
    said, said_as = [], [-1] * len(names)
    for kind, text in SAID.items():
        for entry in text.split(";"):
            word, _, members = (" ".join(part.split()) for part in entry.partition(":"))
            found = [
                number
                for one in members.split()
                for number in ([place[one]] if one in place else [] if one.isalpha() else _numbers(one))
            ]
            for number in found:
                said_as[number] = len(said)
            if found:  # further labels may have had no pictures
                said.append((word, plural_of(word), kind))
    return Table(tuple(names), tuple(said), tuple(said_as), KINDS, tuple(words), **more)  # type: ignore[arg-type]
