"""Systems side by side, as papers print them: Markdown or LaTeX, with intervals, marks and the signature.

A mark says that a system differs from the first: paired bootstrap, p below 0.05 after Holm's correction for the number
of comparisons in the table. The best score of a column is bold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshcap.errors import MeshcapError
from meshcap.metrics.result import Difference, Result, Systems

LEVEL = 0.05
LOWER = ("CHAIR-i", "CHAIR-s")  # the lower the better
KINDS = ("markdown", "latex")


def table(systems: Systems, kind: str = "markdown") -> str:
    """The table as text; scores × 100.

    Raises:
        MeshcapError: an unknown kind.
    """
    if kind not in KINDS:
        raise MeshcapError(f"table is {kind!r}, expected one of {', '.join(KINDS)}")
    first = next(iter(systems.results))
    names = list(systems.results[first].scores)
    rows = [[name, *_cells(name, systems, names, kind)] for name in systems.results]
    return (_markdown if kind == "markdown" else _latex)(["", *names], rows, notes(systems))


def notes(systems: Systems) -> list[str]:
    """What the table shows, and the signature."""
    first, *others = systems.results
    result = systems.results[first]
    lines = []
    if result.intervals:
        lines.append("Scores × 100; 95 % intervals in brackets.")
        if others:
            count = len(others) * len(result.scores)
            lines.append(
                f"*: differs from {first} with p < {LEVEL}, by paired bootstrap with Holm's correction "
                f"for {count} comparison{'s' if count > 1 else ''}."
            )
            least = min(found.p or 1.0 for row in systems.differences.values() for found in row.values())
            if count * least > LEVEL and least == smallest_p(result):
                lines.append("So few resamples cannot show so many differences: give --bootstrap a larger number.")
    else:
        lines.append("Scores × 100.")
    return [*lines, result.signature]


def smallest_p(result: Result) -> float:
    """The least p that so many resamples can give."""
    resamples = int(result.signature.rsplit("bootstrap:", 1)[1].split(",")[0])
    return 2 / (1 + resamples)


def marked(found: Difference | None) -> bool:
    return found is not None and found.corrected is not None and found.corrected < LEVEL


def _cells(name: str, systems: Systems, metrics: Sequence[str], kind: str) -> list[str]:
    result, apart = systems.results[name], systems.differences.get(name, {})
    bold, star, dash = ("**{}**", r"\*", "–") if kind == "markdown" else (r"\textbf{{{}}}", "$^{*}$", "--")
    cells = []
    for metric in metrics:
        value = f"{100 * result.scores[metric]:.1f}"
        if len(systems.results) > 1 and value == _best(metric, systems):
            value = bold.format(value)
        if marked(apart.get(metric)):
            value += star
        if metric in result.intervals:
            low, high = result.intervals[metric]
            value += f" ({100 * low:.1f}{dash}{100 * high:.1f})"
        cells.append(value)
    return cells


def _best(metric: str, systems: Systems) -> str:
    choose: Callable[..., float] = min if metric in LOWER else max
    return f"{100 * choose(result.scores[metric] for result in systems.results.values()):.1f}"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    body = [row([name.replace("|", r"\|"), *cells]) for name, *cells in rows]
    said = [line.replace("*:", r"\*:", 1) if line.startswith("*:") else line for line in lines[:-1]]
    return "\n".join([row(heads), "|---" + "|---:" * (len(heads) - 1) + "|", *body, "", *said, "", f"`{lines[-1]}`"])


def _latex(heads: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]) -> str:
    body = [" & ".join([_escaped(name), *cells]) + r" \\" for name, *cells in rows]
    return "\n".join(
        [
            *(f"% {line}" for line in lines),
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}  % \usepackage{{booktabs}}",
            r"\toprule",
            " & ".join(map(_escaped, heads)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _escaped(text: str) -> str:
    for sign, written in (("\\", r"\textbackslash "), ("~", r"\textasciitilde "), ("^", r"\textasciicircum ")):
        text = text.replace(sign, written)
    return "".join(f"\\{sign}" if sign in "&%$#_{}" else sign for sign in text)
