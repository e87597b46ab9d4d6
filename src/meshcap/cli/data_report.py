"""What `meshcap data check` shows: a table, the first of what is wrong, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from meshcap.data.check import Pair, Report, Size

SHOWN = 10  # pictures or pairs of a kind; --json has them all


def show(report: Report) -> None:
    console = Console()
    captions = report.captions
    table = Table(title=escape(report.name), title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False)
    rows = [
        ("pictures", f"{sum(report.splits.values()):,}: " + ", ".join(f"{s} {n:,}" for s, n in report.splits.items())),
        ("captions", f"{captions.captions:,}"),
        ("… of a picture", f"{captions.fewest:,} to {captions.most:,}, {captions.mean:.2f} on average"),
        (
            "words of a caption",
            f"{captions.words_mean:.1f} on average, 95 of 100 have at most {captions.words_95:.0f}, "
            f"the longest {captions.words_most:,} (of {captions.longest})",
        ),
        (f"words in {captions.vocabulary_of}", f"{captions.distinct_words:,}"),
        ("… seen 5 times", f"{captions.frequent_words:,}, {100 * captions.frequent_share:.1f} % of the text"),
        ("repeated captions", f"{captions.repeated:,}, of which {captions.repeated_of_picture:,} of the same picture"),
        ("missing pictures", f"{len(report.missing):,}"),
    ]
    if report.opened:
        rows += [
            ("unreadable pictures", f"{len(report.unreadable):,}"),
            ("smallest, largest", f"{_size(report.smallest)}, {_size(report.largest)}"),
            ("same pictures", _pairs(report.same)),
            ("nearly the same", _pairs(report.near)),
        ]
    for name, value in rows:
        table.add_row(name, escape(value))
    console.print(table)
    _list(console, "missing", [f"{one.id} ({one.split}): {one.why}" for one in report.missing])
    _list(console, "unreadable", [f"{one.id} ({one.split}): {one.why}" for one in report.unreadable])
    _list(console, "the same in two splits", [_told(pair) for pair in report.leaks])
    pairs = (report.same or []) + (report.near or [])
    _list(console, "the same in one split", [_told(pair) for pair in pairs if not pair.across])
    advice = report.advice()
    console.print("what to do" if advice else "nothing to do", style="bold", highlight=False)
    for line in advice:
        mark = "[red]must[/]  " if line.must else "[yellow]may[/]   "
        console.print(f"  {mark}{escape(line.text)}", highlight=False, soft_wrap=True)


def _list(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(title, style="bold", highlight=False)
    for line in lines[:SHOWN]:
        console.print("  " + escape(line), highlight=False, soft_wrap=True)
    if len(lines) > SHOWN:
        console.print(f"  … and {len(lines) - SHOWN:,} more (--json lists all)", highlight=False)


def _size(size: Size | None) -> str:
    return "none" if size is None else f"{size.width} × {size.height} ({size.id})"


def _pairs(pairs: list[Pair] | None) -> str:
    pairs = pairs or []
    return f"{len(pairs):,} pairs, {sum(pair.across for pair in pairs):,} of them across splits"


def _told(pair: Pair) -> str:
    return f"{pair.first} ({pair.first_split}) and {pair.second} ({pair.second_split})"
