"""Captioners as graphs that run elsewhere: ONNX, and torch's own archives. `meshcap.runtime` runs them."""

from meshcap.export.folder import Comparison, as_saved, compare, export_captioner

__all__ = ["Comparison", "as_saved", "compare", "export_captioner"]
