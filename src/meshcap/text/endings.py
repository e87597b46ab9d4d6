"""Words that no English caption ends with."""

from __future__ import annotations

# Articles, prepositions, conjunctions, possessives and auxiliaries: after one of these something is missing ("… on a").
BAD_ENDINGS = frozenset(
    """
    a an the this these those some any each every another
    of on in at by to with for from into onto over under near behind beside between through along across against
    around above below inside outside towards upon beneath among during without
    and or but while as than that which who where because
    his her its their my your our
    is are was were be being been am has have had does do can will would should could may might
    very
    """.split()
)
