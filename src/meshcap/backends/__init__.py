"""What runs a captioner behind `Captioner.see` and `Captioner.search`: torch, ONNX or torch.export.

All take the same records (`meshcap.decoding.records`); each module is imported only where it is used, so that an ONNX
captioner runs where torch is not installed.
"""

from meshcap.backends.base import Backend
from meshcap.backends.exported import backend_of, is_exported

__all__ = ["Backend", "backend_of", "is_exported"]
