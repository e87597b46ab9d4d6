"""Ways of remembering."""

from meshcap.memory.hopfield import Hopfield, HopfieldPooling, HopfieldStore, modern_energy, retrieve
from meshcap.memory.slots import MemorySlots, SlotUse, slot_use
from meshcap.memory.turing import Memory, TuringConfig, TuringMachine

__all__ = [
    "Hopfield",
    "HopfieldPooling",
    "HopfieldStore",
    "Memory",
    "MemorySlots",
    "SlotUse",
    "TuringConfig",
    "TuringMachine",
    "modern_energy",
    "retrieve",
    "slot_use",
]
