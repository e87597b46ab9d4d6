"""Ways of remembering. The store needs no torch, so the others are fetched when they are first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from meshcap.memory.places import create_store, default_place, is_address, is_store, open_store
from meshcap.memory.store import Entry, FolderStore, Neighbour, RamStore, Store

if TYPE_CHECKING:
    from meshcap.memory.hopfield import Hopfield, HopfieldPooling, HopfieldStore, modern_energy, retrieve
    from meshcap.memory.slots import MemorySlots, SlotUse, slot_use
    from meshcap.memory.turing import Memory, TuringConfig, TuringMachine

__all__ = [
    "Entry",
    "FolderStore",
    "Hopfield",
    "HopfieldPooling",
    "HopfieldStore",
    "Memory",
    "MemorySlots",
    "Neighbour",
    "RamStore",
    "SlotUse",
    "Store",
    "TuringConfig",
    "TuringMachine",
    "create_store",
    "default_place",
    "is_address",
    "is_store",
    "modern_energy",
    "open_store",
    "retrieve",
    "slot_use",
]

_MODULES = {
    "hopfield": ("Hopfield", "HopfieldPooling", "HopfieldStore", "modern_energy", "retrieve"),
    "slots": ("MemorySlots", "SlotUse", "slot_use"),
    "turing": ("Memory", "TuringConfig", "TuringMachine"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(import_module(f"meshcap.memory.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
