"""METEOR's alignments: what may match between two sentences, and which matches are taken.

A match joins words of a candidate to words of a reference: equal words, words with one stem, words in one of WordNet's
synonym sets, or phrases that the table knows as paraphrases, in this order (the "modules"). Of all alignments, in which
each word is matched at most once, a beam search from the reference's first word to its last takes the one with most
matched words, then fewest chunks, then least distance. Its 40 paths and its ways of breaking ties are the Java
program's, because they decide the score: words of matches that are not exact count half, rounded down for each match;
the distance of a match is added not to its own path but to those that are made after it at the same word.

All alignments of a batch advance together, a word at a time: the paths of all of them lie one after the other in flat
arrays, ordered by alignment and rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy

from meshcap.metrics.meteor_paraphrases import Paraphrases, Phrases

Array = numpy.ndarray
Words = Sequence[str]

BEAM = 40
BATCH = 400  # alignments that advance together
CELLS = 1 << 20  # and pairs of their words
EXACT, STEM, SYNONYM, PARAPHRASE = range(4)


@dataclass(frozen=True)
class Matches:
    """Possible matches (M,), ordered by pair of sentences, place in the reference, and when they are tried there."""

    pair: Array
    module: Array
    start: Array  # in the reference
    length: Array
    other_start: Array  # in the candidate
    other_length: Array

    def take(self, chosen: Array) -> Matches:
        """Some of them, by index."""
        return Matches(*(getattr(self, each.name)[chosen] for each in fields(self)))


@dataclass(frozen=True)
class Word:
    """What the modules compare."""

    code: int
    stem: str
    synsets: frozenset[str]


class Sentences:
    """Sentences of a batch with what the modules need to know about their words."""

    def __init__(self, sentences: Sequence[Words], describe: Callable[[str], Word], paraphrases: Paraphrases) -> None:
        self.sentences = sentences
        self.paraphrases = paraphrases
        self.lengths = numpy.array([len(words) for words in sentences], numpy.int64)
        self.firsts = self.lengths.cumsum() - self.lengths
        numbers: dict[str, int] = {}
        self.words = numpy.array(
            [numbers.setdefault(word, len(numbers)) for words in sentences for word in words], numpy.int64
        )
        self.vocabulary = [describe(word) for word in numbers]
        self.codes = _numbered(word.code for word in self.vocabulary)
        self.stems = _numbered(word.stem for word in self.vocabulary)

    def same(self, pairs: Array) -> Array:
        """Which pairs (P, 2) are of two equal sentences."""
        spans = zip(self.firsts.tolist(), self.lengths.tolist(), strict=True)
        keys = [self.codes[self.words[first : first + length]].tobytes() for first, length in spans]
        return numpy.array([keys[one] == keys[other] for one, other in pairs.tolist()], bool)

    def matches(self, pairs: Array) -> Matches:
        """What may match in pairs (P, 2) of a candidate and a reference."""
        table = numpy.concatenate([self._word_matches(pairs), self._paraphrase_matches(pairs)], 1)
        table = table[:, (table[1] == EXACT) | ~self.same(pairs)[table[0]]]  # equal sentences: nothing but equal words
        pair, _, start, *_, direction, first, second, third = table
        order = numpy.lexsort((third, second, first, direction, start, pair))
        return Matches(*table[:6, order])

    def _word_matches(self, pairs: Array) -> Array:
        """Exact, stem and synonym matches: rows of `Matches`, then of what orders them."""
        one, other = self.lengths[pairs].T
        sizes = one * other
        pair = numpy.repeat(numpy.arange(len(pairs)), sizes)
        place = numpy.arange(len(pair)) - numpy.repeat(sizes.cumsum() - sizes, sizes)
        start, other_start = numpy.divmod(place, one[pair])
        mine = self.words[self.firsts[pairs[pair, 1]] + start]
        theirs = self.words[self.firsts[pairs[pair, 0]] + other_start]
        exact = self.codes[mine] == self.codes[theirs]
        kinds = [exact, (self.stems[mine] == self.stems[theirs]) & ~exact, self._synonyms(mine, theirs) & ~exact]
        found = []
        for module, kind in enumerate(kinds):
            (at,) = kind.nonzero()
            ones, zeros = numpy.ones(len(at), numpy.int64), numpy.zeros(len(at), numpy.int64)
            places = [pair[at], ones * module, start[at], ones, other_start[at], ones]
            found.append(numpy.stack([*places, ones * module, other_start[at], zeros, zeros]))
        return numpy.concatenate(found, 1)

    def _synonyms(self, mine: Array, theirs: Array) -> Array:
        """Which pairs of words (by number) share a set."""
        members: dict[str, list[int]] = {}
        for number, word in enumerate(self.vocabulary):
            for synset in word.synsets:
                members.setdefault(synset, []).append(number)
        size = len(self.vocabulary)
        codes = {a * size + b for those in members.values() if len(those) > 1 for a in those for b in those}
        known = numpy.sort(numpy.fromiter(codes, numpy.int64, len(codes)))
        found = numpy.zeros(len(mine), bool)
        if len(known):
            has = numpy.zeros(size, bool)
            has[known // size] = True
            (at,) = (has[mine] & has[theirs]).nonzero()
            wanted = mine[at] * size + theirs[at]
            found[at] = known[numpy.minimum(known.searchsorted(wanted), len(known) - 1)] == wanted
        return found

    def _paraphrase_matches(self, pairs: Array) -> Array:
        """Matches of phrases of the reference in the candidate, then the other way round; rows as above."""
        phrases = self.paraphrases.find(self.sentences)
        table = self.paraphrases.among(phrases.phrase)
        length = dict(zip(phrases.phrase.tolist(), phrases.length.tolist(), strict=True))
        sources, places = _by_sentence(phrases, table, len(self.sentences))
        names = [frozenset(found) for found in places]
        rows = []
        for pair, (one, other) in enumerate(pairs.tolist()):
            for forward, source, target in ((True, other, one), (False, one, other)):
                mine, theirs = names[target], places[target]
                for start, size, targets in sources[source]:
                    if mine.isdisjoint(targets):
                        continue
                    for phrase in mine & targets.keys():
                        rank = targets[phrase]
                        for at in theirs[phrase]:
                            if forward:
                                rows.append((pair, PARAPHRASE, start, size, at, length[phrase], 3, size, rank, at))
                            else:
                                rows.append((pair, PARAPHRASE, at, length[phrase], start, size, 4, start, size, rank))
        return numpy.array(rows, numpy.int64).reshape(-1, 10).T


def _by_sentence(
    phrases: Phrases, table: dict[int, dict[int, int]], count: int
) -> tuple[list[list[tuple[int, int, dict[int, int]]]], list[dict[int, list[int]]]]:
    """For each sentence: (start, length, paraphrases) of what has any, and phrase -> starts of all."""
    sources: list[list[tuple[int, int, dict[int, int]]]] = [[] for _ in range(count)]
    places: list[dict[int, list[int]]] = [{} for _ in range(count)]
    columns = (phrases.sentence, phrases.start, phrases.length, phrases.phrase)
    for sentence, start, length, phrase in zip(*(column.tolist() for column in columns), strict=True):
        places[sentence].setdefault(phrase, []).append(start)
        if (targets := table.get(phrase)) is not None:
            sources[sentence].append((start, length, targets))
    return sources, places


def _numbered(values: Iterable[int | str]) -> Array:
    """The same small number for the same value."""
    seen: dict[int | str, int] = {}
    return numpy.array([seen.setdefault(value, len(seen)) for value in values], numpy.int64)


@dataclass(frozen=True)
class Alignments:
    """Matches that were taken, and how many chunks they make in each pair (P,)."""

    taken: Array  # (M,) bool
    chunks: Array


def resolve(matches: Matches, lengths: Array) -> Alignments:
    """Search the best alignments.

    Args:
        matches: of pairs 0 … P - 1.
        lengths: (P, 2) of candidates and references.
    """
    taken = numpy.zeros(len(matches.pair), bool)
    chunks = numpy.zeros(len(lengths), numpy.int64)
    firsts = matches.pair.searchsorted(numpy.arange(len(lengths) + 1))
    order = (-lengths[:, 1]).argsort(kind="stable")  # long ones first, so that those at work are always the first
    for part in _batches(order, lengths):
        counts = firsts[part + 1] - firsts[part]
        mine = numpy.repeat(firsts[part] - counts.cumsum() + counts, counts) + numpy.arange(counts.sum())
        found = matches.take(mine)
        owner = numpy.repeat(numpy.arange(len(part)), counts)
        taken[mine], chunks[part] = _Search(found, owner, lengths[part]).run()
    return Alignments(taken, chunks)


def _batches(order: Array, lengths: Array) -> list[Array]:
    """Parts of the alignments, each of at most BATCH with at most CELLS pairs of words (or a single one)."""
    parts, begin, cells = [], 0, 0
    for end, size in enumerate(lengths[order].prod(1).tolist()):
        if end > begin and (end - begin == BATCH or cells + size > CELLS):
            parts.append(order[begin:end])
            begin, cells = end, 0
        cells += size
    return [*parts, order[begin:]] if len(order) else []


class _Search:
    """One batch of alignments, those with the longest references first."""

    def __init__(self, matches: Matches, owner: Array, lengths: Array) -> None:
        self.lengths = lengths
        self.width = width = int(lengths[:, 1].max(initial=0)) + 1
        other_width = int(lengths[:, 0].max(initial=0)) + 1
        place = owner * width + matches.start
        other = owner * other_width + matches.other_start
        size = len(lengths) * width
        self.counts = numpy.bincount(place, minlength=size)
        self.firsts = self.counts.cumsum() - self.counts

        covered = _coverage(place, matches.length, size)
        other_covered = _coverage(other, matches.other_length, len(lengths) * other_width)
        alone = self.counts[place] == 1
        alone &= _once(covered, place, matches.length) & _once(other_covered, other, matches.other_length)
        self.fixed = numpy.full(size, -1)  # matches that meet no other are taken before the search
        self.fixed[place[alone]] = alone.nonzero()[0]

        # The last entry is no match at all.
        exact = matches.module == EXACT
        both = matches.length + matches.other_length
        self.gain = _with_none(numpy.where(exact, both, matches.length // 2 + matches.other_length // 2))
        self.distance = _with_none(abs(matches.start - matches.other_start))
        self.begin = _with_none(matches.other_start)
        self.end = _with_none(matches.other_start + matches.other_length)
        self.length = _with_none(matches.length)
        self.masks = _masks(matches.other_start, matches.other_length, -(-other_width // 64))

    def run(self) -> tuple[Array, Array]:
        """Which matches are taken (M,), and the chunks of each alignment."""
        count = len(self.lengths)
        zeros = numpy.zeros(count, numpy.int64)
        owner, matched, chunks, distance, index, last = numpy.arange(count), zeros, zeros, zeros, zeros, zeros - 1
        used = [numpy.zeros(count, numpy.uint64) for _ in self.masks]
        final, final_chunks = zeros.copy(), zeros.copy()
        history: list[tuple[Array, Array]] = []
        for current in range(self.width):
            # Alignments whose references end here: close the last chunk, take the best.
            running = int((self.lengths[:, 1] > current).sum())
            cut = int(owner.searchsorted(running))
            if cut < len(owner):
                closed = chunks[cut:] + (last[cut:] >= 0)
                order = _ranked(owner[cut:], matched[cut:], closed, distance[cut:])
                best = order[numpy.diff(owner[cut:][order], prepend=-1) != 0]
                final[owner[cut:][best]], final_chunks[owner[cut:][best]] = cut + best, closed[best]
                owner, matched, chunks, distance, index, last = (
                    each[:cut] for each in (owner, matched, chunks, distance, index, last)
                )
                used = [each[:cut] for each in used]
            if not cut:
                break

            # Every path goes on with each match that begins here, in turn, then without one.
            place = owner * self.width + current
            inside = index > current
            fixed = self.fixed[place]
            children = numpy.where(inside | (fixed >= 0), 0, self.counts[place]) + 1
            begins = children.cumsum() - children
            parent = numpy.repeat(numpy.arange(cut), children)
            turn = numpy.arange(len(parent)) - begins[parent]
            without = turn == children[parent] - 1
            choice = numpy.where(without, numpy.where(inside, -1, fixed)[parent], self.firsts[place][parent] + turn)
            free = numpy.ones(len(parent), bool)
            for mask, mine in zip(self.masks, used, strict=True):
                free &= (mine[parent] & mask[choice]) == 0
            steps = numpy.where(free, self.distance[choice], 0)
            before = steps.cumsum() - steps
            further = before - before[begins][parent] + numpy.where(without, steps, 0)

            (kept,) = free.nonzero()
            parent, choice = parent[kept], choice[kept]
            still = inside[parent]
            skip = choice < 0
            previous = last[parent]
            matched = matched[parent] + self.gain[choice]
            chunks = chunks[parent] + ((previous >= 0) & ~still & (skip | (self.begin[choice] != previous)))
            distance = distance[parent] + further[kept]
            owner = owner[parent]
            order = _ranked(owner, matched, chunks, distance)
            if len(order) > BEAM:
                places = owner[order]
                order = order[numpy.arange(len(order)) - places.searchsorted(numpy.arange(running))[places] < BEAM]
            parent, choice, still, skip = parent[order], choice[order], still[order], skip[order]
            owner, matched, chunks, distance = owner[order], matched[order], chunks[order], distance[order]
            index = numpy.where(still, index[parent], current + numpy.where(skip, 1, self.length[choice]))
            last = numpy.where(still, last[parent], numpy.where(skip, -1, self.end[choice]))
            used = [mine[parent] | mask[choice] for mask, mine in zip(self.masks, used, strict=True)]
            history.append((parent, choice))
        return self._followed(history, final), final_chunks

    def _followed(self, history: list[tuple[Array, Array]], final: Array) -> Array:
        """The matches on the way back from the last paths."""
        taken = numpy.zeros(len(self.gain), bool)  # with an entry for none
        path = final.copy()
        for current in range(len(history) - 1, -1, -1):
            parent, choice = history[current]
            running = int((self.lengths[:, 1] > current).sum())
            taken[choice[path[:running]]] = True
            path[:running] = parent[path[:running]]
        return taken[:-1]


def _ranked(owner: Array, matched: Array, chunks: Array, distance: Array) -> Array:
    """The order of paths: by alignment, most matched, fewest chunks, least distance, then as they are."""
    most = int(matched.max(initial=0))
    widths = [int(each).bit_length() for each in (most, chunks.max(initial=0), distance.max(initial=0), len(owner))]
    if int(owner.max(initial=0)).bit_length() + sum(widths) > 62:
        return numpy.lexsort((distance, chunks, -matched, owner))
    key = owner
    for value, width in zip((most - matched, chunks, distance, numpy.arange(len(owner))), widths, strict=True):
        key = (key << width) | value
    return numpy.sort(key) & ((1 << widths[-1]) - 1)


def _coverage(places: Array, lengths: Array, size: int) -> Array:
    """How many matches cover each word."""
    longest = int(lengths.max(initial=0))
    return sum(
        (numpy.bincount(places[lengths > k] + k, minlength=size) for k in range(longest)),
        numpy.zeros(size, numpy.int64),
    )


def _once(covered: Array, places: Array, lengths: Array) -> Array:
    """Whether all words of a match are covered by it alone."""
    alone = numpy.ones(len(places), bool)
    for k in range(int(lengths.max(initial=0))):
        (at,) = (lengths > k).nonzero()
        alone[at] &= covered[places[at] + k] == 1
    return alone


def _with_none(values: Array) -> Array:
    return numpy.append(values, 0)


def _masks(starts: Array, lengths: Array, words: int) -> list[Array]:
    """Bits of the candidate's words that each match uses, 64 to an array, with an entry for no match."""
    masks = [numpy.zeros(len(starts) + 1, numpy.uint64) for _ in range(words)]
    for k in range(int(lengths.max(initial=0))):
        (at,) = (lengths > k).nonzero()
        bits = numpy.uint64(1) << ((starts[at] + k) % 64).astype(numpy.uint64)
        for number, mask in enumerate(masks):
            mine = (starts[at] + k) // 64 == number
            mask[at[mine]] |= bits[mine]
    return masks
