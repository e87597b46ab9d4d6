"""Captioners made of attention and memory."""

from meshcap.models.base import CaptionModel, ModelConfig
from meshcap.models.hopfield import HopfieldCaptioner, HopfieldConfig
from meshcap.models.m2 import M2, M2Config, Transformer, TransformerConfig
from meshcap.models.recurrent import Seq2Seq, Seq2SeqConfig
from meshcap.models.registry import MODELS, create_model, list_models, load_model, register
from meshcap.models.show_attend_tell import (
    NTM,
    Hierarchical,
    HierarchicalConfig,
    NTMConfig,
    ShowAttendTell,
    ShowAttendTellConfig,
)

__all__ = [
    "M2",
    "MODELS",
    "NTM",
    "CaptionModel",
    "Hierarchical",
    "HierarchicalConfig",
    "HopfieldCaptioner",
    "HopfieldConfig",
    "M2Config",
    "ModelConfig",
    "NTMConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "ShowAttendTell",
    "ShowAttendTellConfig",
    "Transformer",
    "TransformerConfig",
    "create_model",
    "list_models",
    "load_model",
    "register",
]
