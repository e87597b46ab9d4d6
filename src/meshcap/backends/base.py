"""Backend: what a captioner is run by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from meshcap.decoding.records import Hypotheses, Rules, Settings, Strategy
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    import numpy as np

    from meshcap.decoding.extension import Extension
    from meshcap.models.recollection import Recollection
    from meshcap.vision.preprocess import Preprocess


class Backend(ABC):
    """`see` and `search` of one captioner. Safe to call from several threads."""

    name: ClassVar[str]
    settings: Settings  # of the model: the size of its vocabulary, its longest caption, its special words
    weights: int = 0  # numbers that were learned, the vision's among them; 0: an exported graph does not say
    preprocess: Preprocess | None  # how a picture becomes the pixels that `see` reads; None: it reads Regions only

    @property
    def device(self) -> Any:
        return "cpu"

    @property
    def dtype(self) -> Any:
        return "float32"

    @property
    def batch_size(self) -> int:
        """How many pictures are best captioned together: more take memory and save nothing."""
        return 8

    @property
    def queues(self) -> bool:
        """Whether work is queued for a device, which goes on by itself while the caller does something else."""
        return False

    def mark(self) -> Callable[[], object]:
        """What waits until all that was queued before now is done."""
        return lambda: None

    @abstractmethod
    def see(self, pixels: Sequence[np.ndarray] | np.ndarray) -> Any:
        """What `search` reads of pictures, uint8 (3, size, size) each: Regions, or what the graph keeps of them.

        They may also lie together, in one array (B, 3, size, size).
        """

    @abstractmethod
    def search(
        self,
        seen: Any,
        strategy: Strategy,
        rules: Rules,
        *,
        n_best: int = 1,
        attention: bool = False,
        extension: Extension | None = None,
        memory: Recollection | None = None,
        queued: bool = False,
    ) -> Hypotheses:
        """The n best captions of each picture.

        Args:
            extension: words beside those of the vocabulary.
            memory: what a store remembers of pictures like these.
            queued: do not wait for the device: the hypotheses can be read once what `mark` returned has waited.

        Raises:
            MeshcapError: what this backend cannot do, or what does not fit the model.
        """

    @abstractmethod
    def score(self, seen: Any, ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of the words of captions of one picture, each after those before it."""

    @abstractmethod
    def optimize(self) -> None:
        """Prepare for inference alone, in place; a backend that always is does nothing."""

    def to(self, device: Any = None, dtype: Any = None) -> None:
        """Move to another device or to other numbers."""
        raise MeshcapError("an exported model runs on the CPU with the numbers it was exported with")

    @abstractmethod
    def check(self, seen: Any) -> None:
        """Refuse what `search` could not read.

        Raises:
            MeshcapError: Regions that do not fit the model.
        """
