"""Image captioning with the Meshed-Memory Transformer (M²).

The names below are the public ones. Each is fetched from its module when it is first asked for, so that
`import meshcap`, `meshcap --help` and shell completion do not wait for torch. Where torch is not installed, `Captioner`
is the one of `meshcap.runtime`, which reads what `meshcap export` wrote.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from meshcap.errors import MeshcapError

if TYPE_CHECKING:  # the same table again, in the form that type checkers read
    from meshcap.captioner import Captioner
    from meshcap.models import M2, M2Config, create_model, list_models, load_model
    from meshcap.regions import Regions

__version__ = "0.2.0"

__all__ = [
    "M2",
    "Captioner",
    "M2Config",
    "MeshcapError",
    "Regions",
    "__version__",
    "create_model",
    "list_models",
    "load_model",
]

_HOMES = {
    "Captioner": "meshcap.captioner",
    "M2": "meshcap.models",
    "M2Config": "meshcap.models",
    "Regions": "meshcap.regions",
    "create_model": "meshcap.models",
    "list_models": "meshcap.models",
    "load_model": "meshcap.models",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "meshcap.runtime" if name == "Captioner" and not _has_torch() else _HOMES[name]
    value = getattr(import_module(home), name)
    globals()[name] = value  # the next look finds it without coming here
    return value


def _has_torch() -> bool:
    return "torch" in sys.modules or find_spec("torch") is not None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
