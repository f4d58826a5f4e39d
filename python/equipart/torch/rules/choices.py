"""Maxima, comparisons and choices.

A comparison of values is a step of their difference: an element where floats have true or false, with which masks compute as
with a bit. A choice, such as a router's, takes the order of canonical integers; ranks with equal values choose alike."""

import math

import torch

from ..elements import add, is_above, mul, neg, of, step, steps, sub, total
from ..field import MASKED, NEG_INF, P, FieldTensor, Refused, aten, field, rule, run, wrap
from .arithmetic import reduced
from ..running import line
from .functions import largest

FINITE = "no value that the program tests for it is infinite or not a number, but for those of masks"
INFINITE = P - 1  # stands for what no value is
UNEQUAL = "values that are compared are equal only where they are the same by computation"


@rule("amax", "amin")
def _(func, args, kwargs):
    dims, keep = reduced(args, kwargs)
    return largest(args[0], dims, keep) if "amax" in str(func) else neg(largest(neg(args[0]), dims, keep))


@rule("max", "min")
def _(func, args, kwargs):
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        return larger(func, *args)
    dims, keep = reduced(args, kwargs)
    x, smallest = args[0], func.overloadpacket.__name__ == "min"
    out = neg(largest(neg(x), dims, keep)) if smallest else largest(x, dims, keep)
    return out if dims is None else (out, (torch.argmin if smallest else torch.argmax)(ordered(x), dims[0], keep))


@rule("maximum", "minimum")
def _(func, args, kwargs):
    return larger(func, *args)


def larger(func, x, y):
    """The larger, or the smaller, of two tensors: the maximum of both."""
    sign = neg if func.overloadpacket.__name__.startswith("min") else field
    both = torch.stack([y.residues for y in torch.broadcast_tensors(sign(x), sign(y))], -1)
    return sign(largest(wrap(both, field(x).degree.raised(field(y).degree)), [-1], False))


def mask(x):
    """A tensor of bits, as steps."""
    return wrap(x.residues, x.degree, torch.bool)


@rule("gt", "ge", "lt", "le")
def _(func, args, kwargs):
    (x, y), name = args, func.overloadpacket.__name__
    if is_above(x, y):
        return torch.full(x.shape, name.startswith("g"))
    known = steps(x) if isinstance(y, (int, float)) and y == 0 else None
    if known is not None:  # a result of relu is never below 0
        return {"gt": mask(known), "le": mask(sub(1, known))}.get(name, torch.full(x.shape, name == "ge"))
    below = name in ("lt", "ge")
    out = above(y, x) if below else above(x, y)
    return ~out if name.endswith("e") else out


def above(x, y):
    """A mask where x is above y, which each of a program's own values is if that is the least number."""
    for least, sign, other in ((y, 1, x), (x, -1, y)):
        if not isinstance(least, torch.Tensor) and abs(least) > MASKED:
            return torch.full(other.shape, least * sign < 0) & (other.residues >= 0 if least < 0 else True)
    return mask(step(sub(x, y)))


@rule("eq", "ne", "isclose")
def _(func, args, kwargs):
    """True where both are the same, or one is a maximum and the other the largest of what it is over."""
    if any(isinstance(x, FieldTensor) and x.dtype == torch.bool for x in args[:2]):
        unequal = xor(*args[:2])
        return unequal if func.overloadpacket.__name__ == "ne" else mask(sub(1, unequal))
    if all(map(are_bits, args[:2])):
        unequal = xor(*args[:2])
        return unequal if func.overloadpacket.__name__ == "ne" else mask(sub(1, unequal))
    known = steps(args[0]) if isinstance(args[1], (int, float)) and args[1] == 0 else None
    if known is not None:
        return mask(known if func.overloadpacket.__name__ == "ne" else sub(1, known))
    run().assumes(UNEQUAL)
    args = [field(x).residues if not infinite(x) else torch.tensor(NEG_INF if x < 0 else INFINITE) for x in args[:2]]
    same = of(run().functions.equal, *args) != 0
    return ~same if func.overloadpacket.__name__ == "ne" else same


def are_bits(x):
    """True for numbers 0 and 1, and for masks that have become floats."""
    return all(of in (0, 1) or of in run().bits for of in field(x).residues.reshape(-1).tolist())


def infinite(x):
    """True for a number that is infinite."""
    return isinstance(x, float) and math.isinf(x)


@rule("nan_to_num")
def _(func, args, kwargs):
    run().assumes(FINITE)
    if bool((args[0].residues < 0).any()):
        raise Refused(f"a mask's minus infinity becomes a number{run().place()}")
    return args[0].clone()


@rule("logical_not", "bitwise_not")
def _(func, args, kwargs):
    return mask(sub(1, args[0]))


@rule("logical_and", "bitwise_and")
def _(func, args, kwargs):
    return mask(both(*args[:2]))


def both(x, y):
    """x·y, as bits; of the same bit itself."""
    x, y = field(x), field(y)
    return wrap(torch.where(x.residues == y.residues, x.residues, mul(x, y).residues), x.degree.times(y.degree))


@rule("logical_or", "bitwise_or")
def _(func, args, kwargs):
    return mask(sub(add(*args[:2]), both(*args[:2])))


@rule("logical_xor", "bitwise_xor")
def _(func, args, kwargs):
    return xor(*args[:2])


def xor(x, y):
    return mask(sub(add(x, y), mul(2, both(x, y))))


@rule("all", "any", "count_nonzero")
def _(func, args, kwargs):
    """Of masks: the product of all, or one less that of all that are not, or the sum."""
    x, name = args[0], func.overloadpacket.__name__
    if x.dtype != torch.bool:
        x = x.bool()  # of numbers that the program has itself
        return getattr(aten, name)(x, *args[1:], **kwargs)
    dims, keep = reduced(args, kwargs)
    if name == "count_nonzero":
        return total(x, dims)
    of = x if name == "all" else sub(1, x)
    for dim in sorted(d % x.dim() for d in (dims or range(x.dim())))[::-1]:
        of = of.prod(dim, keep)
    return mask(of if name == "all" else sub(1, of))


@rule("argmax", "argmin", "argsort")
def _(func, args, kwargs):
    return func(ordered(args[0]), *args[1:], **kwargs)


def ordered(x):
    """Integers in the order of elements; of a maximum, the largest that it is over."""
    run().choices.add(line() or "an unknown line")
    return of(run().functions.largest, x.residues)


@rule("topk", "sort")
def _(func, args, kwargs):
    at = func(ordered(args[0]), *args[1:], **kwargs)[1]
    dim = kwargs.get("dim", args[2] if func.overloadpacket is aten.topk and len(args) > 2 else -1)
    dim = args[1] if func.overloadpacket is aten.sort and len(args) > 1 else dim
    return wrap(args[0].residues.gather(dim, at), args[0].degree.raised()), at


@rule("_local_scalar_dense")
def _(func, args, kwargs):
    """A branch is a choice: of a mask, true for half of all values."""
    (x,) = args
    if x.dtype != torch.bool:
        raise Refused(f"a value of the program becomes a number of Python (int(..), float(..)){run().place()}")
    run().choices.add(line() or "an unknown line")
    return bool((x.residues == 1) | (x.residues != 0) & (x.residues < P // 2))


@rule("isnan", "isposinf")
def _(func, args, kwargs):
    run().assumes(FINITE)
    return torch.zeros(args[0].shape, dtype=torch.bool)


@rule("isinf", "isneginf")
def _(func, args, kwargs):
    run().assumes(FINITE)
    return args[0].residues == -1


@rule("isfinite")
def _(func, args, kwargs):
    run().assumes(FINITE)
    return args[0].residues != -1


@rule("is_same_size")
def _(func, args, kwargs):
    return args[0].shape == args[1].shape
