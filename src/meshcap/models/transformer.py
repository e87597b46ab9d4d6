"""The Transformer that M² is measured against: the same parts, no slots, no mesh.

Its decoder looks at the last encoder layer alone by plain cross-attention. With three or six layers this is the
baseline of the paper's table.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshcap.errors import MeshcapError
from meshcap.models.m2 import M2, M2Config


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(M2Config):
    """An `M2Config` whose memory and mesh are switched off."""

    slots: int = 0
    mesh: str = "last"  # type: ignore[assignment]

    def check(self) -> None:
        super().check()
        if self.slots or self.mesh != "last":
            raise MeshcapError("a plain Transformer has no slots and looks at the last level: use model 'm2' for those")


class Transformer(M2):
    """Encoder and decoder of M² with nothing of its own: kept as a name of its own so that tables can list it."""

    name = "transformer"
    config_class = TransformerConfig
