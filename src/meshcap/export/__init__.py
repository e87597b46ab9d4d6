"""Captioners as graphs that run elsewhere: ONNX, and torch's own archives. `meshcap.backends` run them."""

from meshcap.export.folder import Agreement, compare, export_captioner

__all__ = ["Agreement", "compare", "export_captioner"]
