"""Captioners as graphs that run elsewhere: ONNX, torch's own archives, and a page for browsers. `meshcap.backends` run
the first two."""

from meshcap.export.folder import Agreement, compare, export_captioner
from meshcap.export.web import export_web

__all__ = ["Agreement", "compare", "export_captioner", "export_web"]
