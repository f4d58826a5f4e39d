"""Proofs that a PyTorch program split over ranks computes what the unsplit one computes.

`prove(unsplit, split)` runs both, forward and backward, on elements of a finite field, where sums are exact in any order,
and compares outputs, gradients and stepped parameters bit for bit.
"""

from . import private  # noqa: F401 - the version is looked at first
from .field import FieldTensor, Refused, assume, rule
from . import ranks, rules  # noqa: F401
from .compare import Different
from .proof import Proof, prove

__all__ = ["Different", "FieldTensor", "Proof", "Refused", "assume", "prove", "rule"]
