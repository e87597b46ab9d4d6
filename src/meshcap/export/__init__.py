"""Captioners as graphs that run elsewhere: ONNX, and torch's own archives. `meshcap.backends` run them."""

from meshcap.export.folder import Comparison, compare, export_captioner

__all__ = ["Comparison", "compare", "export_captioner"]
