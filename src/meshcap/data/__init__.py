"""From files to what models read."""

from meshcap.data.dataset import Dataset, Sample, Source
from meshcap.data.read import read_dataset

__all__ = ["Dataset", "Sample", "Source", "read_dataset"]
