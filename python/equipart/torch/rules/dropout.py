"""Dropout: a mask that is a keyed function of the element that is dropped or kept, and of how often it was before."""

import torch

from ..elements import named, total
from ..field import P, Refused, put, rule, run, wrap


@rule("bernoulli_")
def _(func, args, kwargs):
    """A mask, the same in every layout. The random numbers that floats would take are drawn, too, so that a program that
    draws others, where it computes again, has another mask."""
    x, keep = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    if not hasattr(x, "like"):
        raise Refused(f"random numbers are drawn{run().place()}")
    like = x.like
    if like.shape != x.shape:  # a mask of whole samples
        like = total(like, [d for d in range(like.dim()) if d >= x.dim() or x.shape[d] == 1]).reshape(x.shape)
    run().assumes("dropout masks of the split program are those of the unsplit one where elements are the same")
    generator = kwargs.get("generator") or torch.default_generator
    before = run().drops(like.residues, hash(generator.get_state().numpy().tobytes()))
    torch.empty(x.shape).bernoulli_(keep, generator=generator)
    out = torch.zeros(x.shape, dtype=torch.int64)
    for count in before.unique().tolist():
        draws = named(f"dropout {count}", like).residues.to(torch.float64) / P
        out = torch.where(before == count, (draws < keep).to(torch.int64), out)
    return put(x, wrap(out))
