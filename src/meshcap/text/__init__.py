"""Captions to ids and back. Nothing here needs torch."""

from meshcap.text.vocabulary import Vocabulary

__all__ = ["Vocabulary"]
