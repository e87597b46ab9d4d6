"""Why a caption says what it says: word by word, where the model looked and what the picture did for the word."""

from meshcap.explain.explanation import Explanation, WordExplanation, explain

__all__ = ["Explanation", "WordExplanation", "explain"]
