"""Codebooks: topics frozen after discovery, measured in other documents, and checked by people."""

from torch_lntm.measurement.codebook import Codebook, codebook
from torch_lntm.measurement.intrusion import Intrusion
from torch_lntm.measurement.measured import Measurement

__all__ = ["Codebook", "Intrusion", "Measurement", "codebook"]
