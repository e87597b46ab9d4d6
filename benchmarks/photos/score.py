"""How many photographs from outside COCO a captioner describes rightly: python benchmarks/photos/score.py FOLDER

Two figures, for each half of the set:

- right: the caption names every thing that photos.json says it must, and nothing that is not there;
- inventing: it names something that is not there.

Not there is any of COCO's 80 objects that is not in the photo's `present`, any of OTHER_OBJECTS below that is neither
there nor accepted, and what its `must_not` lists. FOLDER holds the pictures that fetch.py got; those that are
missing are left out and counted. With --captions nothing is captioned: {id: text}, {id: {"text", "confidence"}} or what
--json wrote. With --tags keywords are judged instead: a right one names what is there or accepted, a wrong one what is
not there, and of others ("sky") nothing is known.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshcap.metrics.hallucination import Synonyms

PHOTOS = Path(__file__).with_name("photos.json")
HALVES = ("seen", "unseen")
OBJECTS = Synonyms.ours().phrases

# What COCO's list does not have and captions invent, mostly animals: to call a koala a monkey is to name something that
# is not there.
OTHER_OBJECTS = """
    alligator alpaca ant antelope ape baboon badger beaver bee beetle bison boar buffalo bunny butterfly camel
    caterpillar cheetah chicken chimpanzee chipmunk coyote crab crocodile deer dolphin donkey dragonfly elk fish fox
    frog gazelle goat gorilla hamster hare hedgehog hippo hippopotamus hog hyena iguana jaguar jellyfish kangaroo koala
    ladybug lemur leopard lion lizard llama lobster meerkat monkey moose moth octopus orangutan otter panther pig piglet
    porcupine rabbit raccoon rat rhino rhinoceros seal shark skunk snail snake spider squirrel starfish tiger toad
    tortoise turkey turtle walrus wasp whale wolf worm yak
    balloon castle guitar rainbow rocket sculpture statue windmill
""".split()

COLOURS = "black blue brown gray green grey pink purple red tan white yellow".split()


@dataclass(frozen=True)
class Photo:
    """A photograph and the truth about it."""

    id: str
    category: str
    half: str  # seen: looked at while working; unseen: only at the end
    must: list[list[str]]  # of each group one word or phrase; the name of a COCO object stands for all its synonyms
    must_not: list[str]
    present: list[str]  # the COCO objects and OTHER_OBJECTS that are visible
    licence: str
    sha256: str
    source: dict[str, str]


@dataclass(frozen=True)
class Verdict:
    """What is right and wrong in a caption of a photo."""

    unnamed: list[str]  # the first word of each group of which none was said
    invented: list[str]  # as the objects are called

    @property
    def right(self) -> bool:
        return not self.unnamed and not self.invented


@dataclass(frozen=True)
class Scored:
    """A caption with its verdict."""

    photo: Photo
    text: str
    confidence: float | None
    verdict: Verdict


def read_photos(path: Path = PHOTOS) -> list[Photo]:
    return [Photo(**photo) for photo in json.loads(path.read_text(encoding="utf-8"))]


def mentioned(text: str, photo: Photo) -> list[str]:
    """The objects that a text names, and what is accepted of it. The longest known phrase at a place counts: a hot dog
    is no dog. Phrases are found in the singular and in the plural.
    """
    objects = {name for name in OBJECTS.values() if name is not None}
    accepted = [phrase for group in photo.must for phrase in group if phrase not in objects]
    phrases = dict(OBJECTS)
    phrases |= {(name,): name for name in OTHER_OBJECTS}
    phrases |= {tuple(phrase.split()): f"accepted {phrase}" for phrase in accepted}
    phrases |= {("baby", *phrase): name for phrase, name in phrases.items() if name != "person"}  # a baby lamb
    phrases |= {("orange", "and", colour): None for colour in COLOURS}  # an orange and white cat
    phrases |= {tuple(phrase.split()): phrase for phrase in photo.must_not}
    return Synonyms(phrases, "photos").mentioned(re.findall(r"[a-z0-9]+", text.lower()))


def is_there(name: str, photo: Photo) -> bool:
    """Whether what `mentioned` gave is in the photo."""
    return name.startswith("accepted ") or name in photo.present


def judge(caption: str, photo: Photo) -> Verdict:
    """Compare the words of a caption with the truth."""
    said = mentioned(caption, photo)
    named = {name.removeprefix("accepted ") for name in said}
    unnamed = [group[0] for group in photo.must if not named.intersection(group)]
    invented = [name for name in said if not is_there(name, photo)]
    return Verdict(unnamed, list(dict.fromkeys(invented)))


def judge_tag(tag: str, photo: Photo) -> bool | None:
    """Whether a keyword is right; None: the truth says nothing of it."""
    said = mentioned(tag, photo)
    return all(is_there(name, photo) for name in said) if said else None


def area_under_curve(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """The probability that a right caption has more confidence than a wrong one; ties count half."""
    if not right or not wrong:
        return None
    wins = sum((high > low) + 0.5 * (high == low) for high in right for low in wrong)
    return wins / (len(right) * len(wrong))


def interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z = 1.96
    share, middle = count / total, z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return (share + middle - spread) / (1 + z * z / total), (share + middle + spread) / (1 + z * z / total)


def summary(scored: Sequence[Scored]) -> dict[str, Any]:
    """Counts, shares and AUC of some captions."""
    right = [item for item in scored if item.verdict.right]
    inventing = [item for item in scored if item.verdict.invented]
    pairs = [(item.confidence, item.verdict.right) for item in scored if item.confidence is not None]
    return {
        "photos": len(scored),
        "right": len(right),
        "inventing": len(inventing),
        "right_share": len(right) / len(scored),
        "right_interval": interval(len(right), len(scored)),
        "inventing_share": len(inventing) / len(scored),
        "inventing_interval": interval(len(inventing), len(scored)),
        "auc": area_under_curve([c for c, good in pairs if good], [c for c, good in pairs if not good]),
    }


def report(scored: Sequence[Scored]) -> dict[str, Any]:
    """The summary of each half and of both, of each category, and every caption with its verdict."""
    halves = {half: [item for item in scored if item.photo.half == half] for half in HALVES}
    groups = {half: items for half, items in halves.items() if items}
    if len(groups) > 1:
        groups["both"] = list(scored)
    categories = dict.fromkeys(item.photo.category for item in scored)
    return {
        "halves": {name: summary(items) for name, items in groups.items()},
        "categories": {name: summary([item for item in scored if item.photo.category == name]) for name in categories},
        "photos": {
            item.photo.id: {
                "text": item.text,
                "confidence": item.confidence,
                "half": item.photo.half,
                "right": item.verdict.right,
                **asdict(item.verdict),
            }
            for item in scored
        },
    }


def table(figures: dict[str, Any]) -> str:
    """The report's figures as text."""

    def share(name: str, part: dict[str, Any]) -> str:
        low, high = part[f"{name}_interval"]
        return f"{part[name]:4d}  {part[f'{name}_share']:6.1%} ({low:.0%}-{high:.0%})".ljust(24)

    width = max(map(len, [*figures["halves"], *figures["categories"]]))
    heads = f"{'right':24}{'inventing':24}"
    lines = [f"{'half':{width}}  photos  {heads}AUC of confidence"]
    for name, part in figures["halves"].items():
        auc = "" if part["auc"] is None else f"{part['auc']:.3f}"
        lines.append(f"{name:{width}}  {part['photos']:6d}  {share('right', part)}{share('inventing', part)}{auc}")
    lines += ["", f"{'category':{width}}  photos  right  inventing"]
    for name, part in figures["categories"].items():
        lines.append(f"{name:{width}}  {part['photos']:6d}  {part['right']:5d}  {part['inventing']:9d}")
    return "\n".join(lines)


def listing(scored: Iterable[Scored]) -> str:
    """Every caption with its verdict, a line each."""
    lines = []
    for item in scored:
        reasons = [f"invents {name}" for name in item.verdict.invented]
        reasons += [f"does not name {name}" for name in item.verdict.unnamed]
        trust = "" if item.confidence is None else f" {item.confidence:.2f}"
        verdict = "right" if item.verdict.right else "WRONG"
        lines.append(f"{verdict}{trust}  {item.photo.id}: {item.text}  {'; '.join(reasons)}".rstrip())
    return "\n".join(lines)


def read_captions(path: Path) -> dict[str, tuple[str, float | None]]:
    """Captions by id, from {id: text}, {id: {"text", "confidence"}} or what --json wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(data.get("photos"), dict):
        data = data["photos"]
    return {
        name: (value, None) if isinstance(value, str) else (value["text"], value.get("confidence"))
        for name, value in data.items()
    }


def pictures_of(photos: Iterable[Photo], folder: Path) -> dict[str, Path]:
    """Those of a folder, named after their ids."""
    files = {path.stem: path for path in sorted(folder.iterdir()) if path.is_file()}
    return {photo.id: files[photo.id] for photo in photos if photo.id in files}


def make_captions(
    photos: Iterable[Photo], folder: Path, model: str, *, whole: bool = False, plain: bool = False
) -> dict[str, tuple[str, float | None]]:
    """Caption the pictures of a folder; `whole`: none is shortened; `plain`: nor says names."""
    from meshcap import Captioner

    files = pictures_of(photos, folder)
    if not files:
        return {}
    captioner = Captioner.from_pretrained(model)
    captions = captioner.caption([*files.values()], shorten=not (whole or plain), names=not plain)
    return {name: (caption.text, caption.confidence) for name, caption in zip(files, captions, strict=True)}


def make_tags(photos: Sequence[Photo], folder: Path, model: str) -> list[tuple[Photo, str, bool | None]]:
    """Every keyword of the pictures of a folder but colours, with its verdict."""
    from meshcap import Captioner

    files = pictures_of(photos, folder)
    if not files:
        return []
    captions = Captioner.from_pretrained(model).caption([*files.values()], tags=True)
    return [
        (photo, f"{tag.name} {tag.probability:.2f}", judge_tag(tag.name, photo))
        for photo, caption in zip([one for one in photos if one.id in files], captions, strict=True)
        for tag in caption.tags
        if tag.kind != "colour"
    ]


def tag_table(tags: Sequence[tuple[Photo, str, bool | None]]) -> str:
    """How many keywords are right and wrong, and of how many nothing is known."""
    lines = ["half    photos  right  wrong  not known  right of those known"]
    for half in HALVES:
        found = [(photo.id, verdict) for photo, _, verdict in tags if photo.half == half]
        right, wrong, open_ = (sum(one is kind for _, one in found) for kind in (True, False, None))
        if found:
            share = right / max(1, right + wrong)
            lines.append(
                f"{half:6}  {len({id for id, _ in found}):6d}  {right:5d}  {wrong:5d}  {open_:9d}  {share:.1%}"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score a captioner on photographs from outside COCO.")
    parser.add_argument("folder", type=Path, nargs="?", help="the pictures that fetch.py got")
    parser.add_argument("--model", default="default", help="a name or a folder, as Captioner.from_pretrained takes it")
    parser.add_argument("--whole", action="store_true", help="whole captions: none is shortened")
    parser.add_argument("--plain", action="store_true", help="whole captions in the model's own words, without names")
    parser.add_argument("--tags", action="store_true", help="judge keywords instead of captions")
    parser.add_argument("--captions", type=Path, metavar="FILE", help="score these captions, caption nothing")
    parser.add_argument("--half", choices=[*HALVES, "both"], default="both")
    parser.add_argument("--json", action="store_true", help="print figures and captions as JSON")
    parser.add_argument("--list", action="store_true", help="print every caption with its verdict")
    options = parser.parse_args(arguments)
    if (options.folder is None) == (options.captions is None):
        parser.error("give the folder of the pictures, or captions with --captions")

    photos = [photo for photo in read_photos() if options.half in (photo.half, "both")]
    if options.tags:
        if options.folder is None or options.json or options.plain:
            parser.error("--tags takes the folder of the pictures, without --json and --plain")
        tags = make_tags(photos, options.folder, options.model)
        for photo, tag, verdict in tags if options.list else ():
            print(f"{ {True: 'right', False: 'WRONG', None: '-'}[verdict]:5}  {photo.id}: {tag}")
        print(tag_table(tags))
        return 0 if tags else 1
    if options.captions:
        captions = read_captions(options.captions)
    else:
        captions = make_captions(photos, options.folder, options.model, whole=options.whole, plain=options.plain)
    scored = [
        Scored(photo, *captions[photo.id], judge(captions[photo.id][0], photo))
        for photo in photos
        if photo.id in captions
    ]
    if missing := len(photos) - len(scored):
        print(f"{missing} of {len(photos)} photographs are missing and not counted", file=sys.stderr)
    if not scored:
        return 1
    figures = report(scored)
    if options.list and not options.json:
        print(listing(scored) + "\n")
    print(json.dumps(figures, indent=1) if options.json else table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
