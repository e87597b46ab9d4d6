"""Pictures to Regions."""

from meshcap.vision.base import Preprocess, Vision
from meshcap.vision.folder import VISIONS, create_vision, load_vision, save_vision
from meshcap.vision.pictures import read_picture

__all__ = ["VISIONS", "Preprocess", "Vision", "create_vision", "load_vision", "read_picture", "save_vision"]
