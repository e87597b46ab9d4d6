"""Image captioning with the Meshed-Memory Transformer (M²).

The names below are the public ones. Each is fetched from its module when it is first asked for, so that
`import meshcap`, `meshcap --help` and shell completion do not wait for torch, and `Captioner` reads exported models
where torch is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from meshcap.errors import MeshcapError

if TYPE_CHECKING:  # the same table again, in the form that type checkers read
    from meshcap.caption import Caption, Tag
    from meshcap.captioner import Captioner
    from meshcap.decoding import Beam, DiverseBeam, Greedy, Sampling
    from meshcap.evaluation import evaluate
    from meshcap.metrics.score import score
    from meshcap.models import M2, M2Config, create_model, list_models, load_model
    from meshcap.options import CaptionOptions
    from meshcap.regions import Regions

__version__ = "0.2.0"

_MODULES = {
    "Beam": "meshcap.decoding",
    "Caption": "meshcap.caption",
    "CaptionOptions": "meshcap.options",
    "Captioner": "meshcap.captioner",
    "DiverseBeam": "meshcap.decoding",
    "Greedy": "meshcap.decoding",
    "M2": "meshcap.models",
    "M2Config": "meshcap.models",
    "Regions": "meshcap.regions",
    "Sampling": "meshcap.decoding",
    "Tag": "meshcap.caption",
    "create_model": "meshcap.models",
    "evaluate": "meshcap.evaluation",
    "list_models": "meshcap.models",
    "load_model": "meshcap.models",
    "score": "meshcap.metrics.score",
}

__all__ = [
    "M2",
    "Beam",
    "Caption",
    "CaptionOptions",
    "Captioner",
    "DiverseBeam",
    "Greedy",
    "M2Config",
    "MeshcapError",
    "Regions",
    "Sampling",
    "Tag",
    "__version__",
    "create_model",
    "evaluate",
    "list_models",
    "load_model",
    "score",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value  # found without coming here next time
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
