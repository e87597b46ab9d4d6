"""From captions to numbers.

`score` and `compare` score captions given as dicts; `meshcap.data.caption_files` makes such dicts from files. None of
it needs torch. The reward of self-critical training is `meshcap.metrics.reward`.
"""

from meshcap.metrics.result import Difference
from meshcap.metrics.score import Comparison, Result, compare, score

__all__ = ["Comparison", "Difference", "Result", "compare", "score"]
