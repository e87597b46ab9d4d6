"""Raise the words that are likeliest to be right, take back those that were not: the last of recipes/coco-words.sh.

    python recipes/words.py MODEL DATA OUT --most 750

`meshcap words` believes that a word that came near is right; of a model whose words were raised before, most are not.
This listens on pictures that the model did not learn from (the val split of DATA) and learns from the words themselves
what tells whether one is right where it comes nearest: how much it lacked, how often people say it at all, and how
often it was right in the twelve places after that. The likeliest are raised by what they lack and NUDGE. Then the
pictures are captioned again: a word that is said of three pictures or more, and never rightly, gets back what it was
raised by; one that had been raised before by more than 1 is lowered by 2.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from meshcap.cli.quantise import write_whole
from meshcap.data import read_dataset
from meshcap.decoding import Beam
from meshcap.errors import MeshcapError
from meshcap.training.blend import unpacked
from meshcap.training.captions import tokenized
from meshcap.training.examine import seen
from meshcap.training.heard import Heard
from meshcap.training.unsaid_words import follows, listen, with_word_bias, word_bias

NUDGE = 0.75
FURTHEST = 6.0  # words that lack more are left alone
AFTER = 12  # places after the nearest that are looked at
OFTEN = 3  # uses, all wrong, after which a word is taken back


def likeliest_right(heard: Heard, people: Tensor) -> tuple[Tensor, Tensor]:
    """Words (M,) that were never said and came near, likeliest right first, and how likely each is."""
    words = ((heard.said == 0) & (heard.lacking[0] < FURTHEST)).nonzero()[:, 0]
    right = heard.right[:, words].float()
    lacking, often = heard.lacking[0, words], (people[words] + 1e-6).log()
    rest = right[1 : 1 + AFTER].mean(0)

    def inputs(share: Tensor) -> Tensor:
        columns = [(lacking, lacking), (often, often), (share, rest)]
        scaled = [(value - by.mean()) / by.std().clamp_min(1e-6) for value, by in columns]
        return torch.stack([torch.ones_like(lacking), *scaled], 1)

    weights = logistic(inputs(rest), right[0])
    # Learned without the nearest place, which it is to foretell; used with it.
    odds = inputs(right[: 1 + AFTER].mean(0)) @ weights
    order = odds.argsort(descending=True)
    return words[order], odds[order].sigmoid()


def logistic(x: Tensor, y: Tensor, decay: float = 1e-3) -> Tensor:
    weights = torch.zeros(x.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=200)

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = torch.nn.functional.binary_cross_entropy_with_logits(x @ weights, y)
        found = found + decay * weights[1:].square().sum()
        found.backward()
        return found

    optimiser.step(loss)
    return weights.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("data", help="with a split val, and train for how often people say what")
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, default=750, help="words raised at most")
    given = parser.parse_args()

    captioner, data = unpacked(given.model), read_dataset(given.data)
    vocabulary, samples = captioner.vocabulary, data.split("val")
    told = tokenized([*data.split("train"), *samples], "ptb")
    people = torch.zeros(len(vocabulary))
    for caption in (one for of_picture in told for one in of_picture):
        people[sorted(set(vocabulary.encode(caption)))] += 1
    people /= sum(map(len, told))
    heard = listen(captioner, samples, may_follow=follows(told, vocabulary), more=True)
    words, chances = (one[: given.most] for one in likeliest_right(heard, people))
    before = word_bias(captioner)
    bias = before.clone()
    bias[words] += heard.lacking[0, words] + NUDGE
    print(f"{len(words)} words raised, {chances.mean():.0%} of them right by what was learned")

    raised = with_word_bias(captioner, bias)
    uses, right = Counter[int](), Counter[int]()
    references = [{word for caption in one for word in caption} for one in tokenized(samples, "ptb")]
    at = 0
    for regions in seen(raised, samples, batch=32):
        for caption in raised.describe(regions, strategy=Beam()):
            uses.update(vocabulary.encode(sorted(set(caption.words))))
            right.update(vocabulary.encode(sorted(set(caption.words) & references[at])))
            at += 1
    wrong = [word for word, count in uses.items() if count >= OFTEN and not right[word]]
    for word in wrong:
        if bias[word] > before[word]:
            bias[word] = before[word]
        elif before[word] > 1:
            bias[word] = before[word] - 2
    print("taken back:", ", ".join(vocabulary.word(word) for word in wrong if bias[word] <= before[word]))
    write_whole(given.out, with_word_bias(captioner, bias), 32, card=Path(given.model) / "README.md")


if __name__ == "__main__":
    try:
        main()
    except MeshcapError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
