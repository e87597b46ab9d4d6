"""What a captioner gets wrong in the same way again and again: the figures of MODEL_CARD.md.

python recipes/habits.py captions.json dataset_coco.json[.gz]
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from meshcap.data import read_dataset
from meshcap.text.tokenizers import get_tokenizer

tokenize = get_tokenizer("ptb")

WOMEN = {"woman", "women", "girl", "girls", "lady", "ladies", "female"}
MEN = {"man", "men", "boy", "boys", "guy", "guys", "male"}
NUMBERS = {"two", "three", "four", "five", "six"}


def main(captions_file: str, references_file: str) -> None:
    with open(captions_file) as file:
        said = {str(one["image_id"]): set(tokenize(one["caption"])) for one in json.load(file)}
    samples = (sample for sample in read_dataset(references_file) if sample.id in said)
    people = {sample.id: [set(tokenize(text)) for text in sample.captions] for sample in samples}
    genders(said, people)
    numbers(said, people)
    rare(said, people)
    inventions(said, people)


def most(sets: list[set[str]], words: set[str]) -> bool:
    """At least three of five people used one of these words."""
    return sum(bool(one & words) for one in sets) * 5 >= 3 * len(sets)


def genders(said: dict[str, set[str]], people: dict[str, list[set[str]]]) -> None:
    for name, own, other in (("women", WOMEN, MEN), ("men", MEN, WOMEN)):
        pictures = [id for id, sets in people.items() if most(sets, own) and not any(one & other for one in sets)]
        right = sum(bool(said[id] & own) and not said[id] & other for id in pictures)
        wrong = sum(bool(said[id] & other) for id in pictures)
        print(f"{name}: {len(pictures)} pictures, named so in {right / len(pictures):.1%}, as the other in "
              f"{wrong / len(pictures):.1%}")  # fmt: skip


def numbers(said: dict[str, set[str]], people: dict[str, list[set[str]]]) -> None:
    for number in ("two", "three", "four"):
        pictures = [id for id, sets in people.items() if most(sets, {number})]
        right = sum(number in said[id] for id in pictures)
        other = sum(bool(said[id] & (NUMBERS - {number})) for id in pictures)
        print(f"{number}: {len(pictures)} pictures, said in {right / len(pictures):.1%}, another number in "
              f"{other / len(pictures):.1%}")  # fmt: skip


def rare(said: dict[str, set[str]], people: dict[str, list[set[str]]]) -> None:
    """Words that most people used of a picture: how often the captioner did, by how common they are."""
    common = Counter(word for sets in people.values() for word in set().union(*sets))
    for low, high in ((1, 10), (10, 30), (30, 100), (100, 300), (300, 10_000)):
        found = total = 0
        for id, sets in people.items():
            counts = Counter(word for one in sets for word in one)
            for word, count in counts.items():
                if count * 5 >= 3 * len(sets) and low <= common[word] < high:
                    total += 1
                    found += word in said[id]
        print(f"words of {low} to {high - 1} pictures that most people used: {total}, said in {found / total:.1%}")


def inventions(said: dict[str, set[str]], people: dict[str, list[set[str]]]) -> None:
    nouns = "table man woman field street building dog car bench clock plate umbrella".split()
    for noun in nouns:
        pictures = [id for id, words in said.items() if noun in words]
        nobody = sum(not any(noun in one for one in people[id]) for id in pictures)
        print(f"{noun}: said of {len(pictures)} pictures, nobody else did in {nobody / max(1, len(pictures)):.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
