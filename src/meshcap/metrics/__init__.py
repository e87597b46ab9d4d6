"""From captions to numbers.

`score`, `compare` and `compare_systems` score captions given as dicts; `meshcap.data.caption_files` makes such dicts
from files. None of it needs torch. pycocoevalcap's classes are in `meshcap.metrics.coco`; the reward of self-critical
training is `meshcap.metrics.reward`.
"""

from meshcap.metrics.result import Difference, Systems
from meshcap.metrics.score import Comparison, Result, compare, compare_systems, score

__all__ = ["Comparison", "Difference", "Result", "Systems", "compare", "compare_systems", "score"]
