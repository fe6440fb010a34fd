"""stub"""
from __future__ import annotations
from dataclasses import dataclass
from typing import Any
import numpy as np

@dataclass(frozen=True)
class WordVectors:
    vectors: Any
    @classmethod
    def of(cls, source, vocabulary=None):
        if isinstance(source, dict) and set(source)=={"size"}: return cls.from_json(source)
        return source if isinstance(source, cls) else cls(np.asarray(source, dtype=np.float32))
    def to_json(self): return {"size": list(self.vectors.shape)}
    @classmethod
    def from_json(cls, data): return cls(np.zeros(data["size"], dtype=np.float32))
