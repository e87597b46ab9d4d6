"""The machine that figures were measured on, in words, and the memory that was used."""

from __future__ import annotations

import platform
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def machine(device: torch.device) -> str:
    """Processor or GPU, threads, and the version of torch."""
    import torch

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = platform.processor() or platform.machine()
        cpuinfo = Path("/proc/cpuinfo")
        if cpuinfo.exists():
            lines = cpuinfo.read_text().splitlines()
            models = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
            name = models[0] if models else name
        name += f", {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    return f"{name}; torch {torch.__version__}"


def peak_memory(device: torch.device) -> float:
    """Bytes: of the GPU's allocator, or of the whole process."""
    if device.type == "cuda":
        import torch

        return float(torch.cuda.max_memory_allocated(device))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most) if sys.platform == "darwin" else most * 1024.0
