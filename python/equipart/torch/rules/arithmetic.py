"""Sums, products and quotients."""

import math

import torch

from ..field import Refused, add, aten, exp, field, inverse, log, matmul, mul, neg, rsqrt, rule, run, sqrt, sub, total, wrap


def scaled(x, kwargs, name="alpha"):
    factor = kwargs.get(name, 1)
    return x if factor == 1 else mul(x, factor)


@rule("add")
def _(func, args, kwargs):
    return add(args[0], scaled(args[1], kwargs))


@rule("sub")
def _(func, args, kwargs):
    return sub(args[0], scaled(args[1], kwargs))


@rule("rsub")
def _(func, args, kwargs):
    return sub(args[1], scaled(args[0], kwargs))


@rule("mul")
def _(func, args, kwargs):
    return mul(*args)


@rule("div", "true_divide")
def _(func, args, kwargs):
    if kwargs.get("rounding_mode"):
        raise Refused(f"a quotient is rounded{run().place()}")
    return mul(args[0], inverse(args[1]))


@rule("neg")
def _(func, args, kwargs):
    return neg(args[0])


@rule("reciprocal")
def _(func, args, kwargs):
    return inverse(args[0])


@rule("square")
def _(func, args, kwargs):
    return mul(args[0], args[0])


@rule("pow")
def _(func, args, kwargs):
    x, power = args
    if not isinstance(x, torch.Tensor):
        return exp(mul(power, math.log(x)))
    if isinstance(power, torch.Tensor):
        return exp(mul(power, log(x)))
    whole = int(abs(power))
    if abs(power) - whole not in (0, 0.5):
        raise Refused(f"the power {power}{run().place()}")
    if whole == abs(power):
        return powered(x if power >= 0 else inverse(x), whole)
    return mul(powered(x, whole), sqrt(x)) if power > 0 else powered(rsqrt(x), 2 * whole + 1)


def powered(x, power):
    """x to a whole power."""
    out = x if power else wrap(torch.ones(x.shape, dtype=torch.int64))
    for _ in range(power - 1):
        out = mul(out, x)
    return out


@rule("sum")
def _(func, args, kwargs):
    dims, keep = reduced(args, kwargs)
    return total(args[0], dims, keep)


@rule("mean")
def _(func, args, kwargs):
    dims, keep = reduced(args, kwargs)
    out = total(args[0], dims, keep)
    return mul(out, inverse(max(1, args[0].numel() // max(1, out.numel()))))


def reduced(args, kwargs):
    """The dimensions that an operator sums over, and whether it keeps them."""
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    return dims, args[2] if len(args) > 2 else kwargs.get("keepdim", False)


@rule("var_mean", "var")
def _(func, args, kwargs):
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args)} | kwargs
    dims, correction = named.get("dim"), named.get("correction", int(named.get("unbiased", True)))
    mean = total(args[0], dims, True)
    count = args[0].numel() // mean.numel()
    mean = mul(mean, inverse(count))
    centred = sub(args[0], mean)
    var = mul(
        total(mul(centred, centred), dims, True), inverse(count - (1 if correction is None else correction))
    )
    if not named.get("keepdim", False):
        shape = total(args[0], dims, False).shape
        var, mean = (wrap(x.residues.reshape(shape), x.degree) for x in (var, mean))
    return (var, mean) if func.overloadpacket is aten.var_mean else var


@rule("linalg_vector_norm")
def _(func, args, kwargs):
    x, order = args[0], args[1] if len(args) > 1 else 2
    dims, keep = reduced(args[1:], kwargs)
    if order == 1:
        return total(torch.abs(x), dims, keep)
    if order == math.inf:
        return torch.abs(x).amax(dims or (), keep)
    if order != 2:
        raise Refused(f"a norm of order {order}{run().place()}")
    return sqrt(total(mul(x, x), dims, keep))


@rule("mm")
def _(func, args, kwargs):
    return first(matmul(*(batch(x) for x in args)))


@rule("bmm")
def _(func, args, kwargs):
    return matmul(*args)


@rule("addmm")
def _(func, args, kwargs):
    product = first(matmul(batch(args[1]), batch(args[2])))
    return add(scaled(args[0], kwargs, "beta"), scaled(product, kwargs))


@rule("baddbmm")
def _(func, args, kwargs):
    return add(scaled(args[0], kwargs, "beta"), scaled(matmul(*args[1:]), kwargs))


def batch(x):
    """A matrix as a batch of one."""
    x = field(x)
    return wrap(x.residues[None], x.degree)


def first(x):
    """The one matrix of a batch."""
    return wrap(x.residues[0], x.degree)


@rule("cumsum")
def _(func, args, kwargs):
    """A product with the matrix of ones on and below its diagonal."""
    x, dim = args[0], args[1]
    rows = x.residues.movedim(dim, 0)
    below = wrap(torch.ones(len(rows), len(rows), dtype=torch.int64).tril())
    out = matmul(batch(below), batch(wrap(rows.reshape(len(rows), -1), x.degree)))
    return wrap(out.residues.view(rows.shape).movedim(0, dim).contiguous(), out.degree)


@rule("prod", "prims.prod")
def _(func, args, kwargs):
    dims, keep = reduced(args, kwargs)
    x = args[0] if dims is not None else args[0].reshape(-1)
    (dim,) = dims or [0]
    return x.cumprod(dim).narrow(dim, -1, 1) if keep else x.cumprod(dim).select(dim, -1)


@rule("cumprod")
def _(func, args, kwargs):
    rows = args[0].unbind(args[1])
    every = [rows[0]]
    for x in rows[1:]:
        every.append(mul(every[-1], x))
    return torch.stack(every, args[1])


@rule("lerp")
def _(func, args, kwargs):
    start, end, weight = args
    return add(start, mul(sub(end, start), weight))
