"""Ways of remembering."""

from meshcap.memory.slots import MemorySlots

__all__ = ["MemorySlots"]
