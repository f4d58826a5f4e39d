"""Proofs that a PyTorch program split over ranks computes what the unsplit one computes.

`prove(unsplit, split)` runs both, forward and backward, on elements of a finite field, where sums are exact in any order,
and compares outputs, gradients and stepped parameters bit for bit.
"""

import torch as _torch

WANTED = (2, 10)
if tuple(int(part) for part in _torch.__version__.split("+")[0].split(".")[:2]) < WANTED:
    raise ImportError(f"equipart.torch wants PyTorch {WANTED[0]}.{WANTED[1]} or newer; this is {_torch.__version__}")

from .field import FieldTensor, Refused, rule  # noqa: E402
from . import ranks, rules  # noqa: E402, F401
from .compare import Different  # noqa: E402
from .proof import Proof, prove  # noqa: E402

__all__ = ["Different", "FieldTensor", "Proof", "Refused", "prove", "rule"]
