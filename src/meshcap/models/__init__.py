"""Captioners made of attention and memory."""

from meshcap.models.hierarchical import Hierarchical, HierarchicalConfig
from meshcap.models.hopfield import HopfieldCaptioner, HopfieldConfig
from meshcap.models.m2 import M2, M2Config
from meshcap.models.ntm import NTM, NTMConfig
from meshcap.models.pretrained import CaptionModel, ModelConfig
from meshcap.models.registry import MODELS, create, load, register
from meshcap.models.seq2seq import Seq2Seq, Seq2SeqConfig
from meshcap.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from meshcap.models.transformer import Transformer, TransformerConfig

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
    "create",
    "load",
    "register",
]
