"""Maxima and choices. A maximum may only shift exponents, where it cancels: it is one number, and the run is made with two
such numbers. A choice, such as a router's, takes the order of canonical integers; ranks with equal values choose alike."""

import torch

from ..field import NEG_INF, FieldTensor, Refused, rule, run, wrap

FINITE = "no value that the program tests for it is infinite or not a number"


def shift(shape):
    """Maxima, of this shape."""
    run().maxima = run().maxima or run().place() or " "
    return wrap(torch.full(tuple(shape), run().shift, dtype=torch.int64))


@rule("amax", "max")
def _(func, args, kwargs):
    x = args[0].residues
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        return larger(*args)
    out = func(x, *args[1:], **kwargs)
    if isinstance(out, torch.Tensor):
        return shift(out.shape)
    return shift(out[0].shape), out[1]


@rule("maximum", "minimum")
def _(func, args, kwargs):
    return larger(*args)


def larger(x, y):
    """The larger of maxima."""
    maxima = lambda x: (
        isinstance(x, FieldTensor) and bool(((x.residues == run().shift) | (x.residues == NEG_INF)).all())
    )
    if not (maxima(x) and maxima(y)):
        raise Refused(f"the larger of two values is taken{run().place()}")
    return wrap(torch.full(torch.broadcast_shapes(x.shape, y.shape), run().shift, dtype=torch.int64))


@rule("argmax", "argsort")
def _(func, args, kwargs):
    return func(args[0].residues, *args[1:], **kwargs)


@rule("topk", "sort")
def _(func, args, kwargs):
    values, at = func(args[0].residues, *args[1:], **kwargs)
    return wrap(values, args[0].degree.raised()), at


@rule("isnan", "isinf", "isneginf", "isposinf")
def _(func, args, kwargs):
    run().assumes(FINITE)
    return torch.zeros(args[0].shape, dtype=torch.bool)


@rule("is_same_size")
def _(func, args, kwargs):
    return args[0].shape == args[1].shape
