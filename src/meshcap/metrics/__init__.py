"""From captions to numbers.

`score` and `compare` score captions given as dicts; `read_candidates` and `read_references` make such dicts from files.
None of it needs torch. The reward of self-critical training is `meshcap.metrics.reward`.
"""

from meshcap.metrics.bootstrap import Difference
from meshcap.metrics.readers import References, read_candidates, read_references
from meshcap.metrics.score import Comparison, Result, compare, score

__all__ = ["Comparison", "Difference", "References", "Result", "compare", "read_candidates", "read_references", "score"]
