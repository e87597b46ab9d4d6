"""What runs without torch: exported captioners (`meshcap.export` writes them).

Needs numpy, Pillow and onnxruntime, and of meshcap only `text`, the reading of pictures, `errors` and `files`.
"""

from meshcap.runtime.caption import Caption
from meshcap.runtime.captioner import Captioner
from meshcap.runtime.search import Beam

__all__ = ["Beam", "Caption", "Captioner"]
