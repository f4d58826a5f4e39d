"""Sums, products and quotients."""

import math

import torch

from ..elements import add, exp, inverse, log, matmul, mul, neg, rsqrt, sqrt, sub, total
from ..field import Refused, aten, field, put, rule, run, wrap
from ..private import arguments


def scaled(x, kwargs, name="alpha", args=()):
    factor = kwargs.get(name, args[2] if len(args) > 2 else 1)
    return x if factor == 1 else mul(x, factor)


@rule("add")
def _(func, args, kwargs):
    return add(args[0], scaled(args[1], kwargs, args=args))


@rule("sub")
def _(func, args, kwargs):
    return sub(args[0], scaled(args[1], kwargs, args=args))


@rule("rsub")
def _(func, args, kwargs):
    return sub(args[1], scaled(args[0], kwargs, args=args))


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
    if not isinstance(x, torch.Tensor) and x <= 0:
        raise Refused(f"a power of {x}{run().place()}")
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
    if out.numel() and not args[0].numel():
        raise Refused(f"a mean over no elements{run().place()}")
    return mul(out, inverse(max(1, args[0].numel() // max(1, out.numel()))))


def reduced(args, kwargs):
    """The dimensions that an operator sums over, and whether it keeps them."""
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    return dims, args[2] if len(args) > 2 else kwargs.get("keepdim", False)


@rule("var_mean", "var")
def _(func, args, kwargs):
    named = {argument.name: value for argument, value in zip(arguments(func), args)} | kwargs
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


@rule("mv")
def _(func, args, kwargs):
    return aten.mm(args[0], args[1].unsqueeze(1)).squeeze(1)


@rule("dot", "vdot")
def _(func, args, kwargs):
    return total(mul(*args))


@rule("bmm")
def _(func, args, kwargs):
    return matmul(*args)


@rule("addmm")
def _(func, args, kwargs):
    return with_product(args[0], first(matmul(batch(args[1]), batch(args[2]))), kwargs)


@rule("baddbmm")
def _(func, args, kwargs):
    return with_product(args[0], matmul(*args[1:]), kwargs)


def with_product(x, product, kwargs):
    """beta·x + alpha·product; with beta = 0, x is not read, whatever it holds."""
    product = scaled(product, kwargs)
    return product if kwargs.get("beta", 1) == 0 else add(scaled(x, kwargs, "beta"), product)


@rule("linalg_solve_triangular")
def _(func, args, kwargs):
    """What a triangular matrix takes to another one, row after row: of each, what the rows before it give is subtracted."""
    upper, left, unit = kwargs["upper"], kwargs.get("left", True), kwargs.get("unitriangular", False)
    a, b = (field(x) if left else field(x).mT for x in args)
    upward, n, out = upper == left, a.shape[-1], b[..., :0, :].expand(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), 0, -1)
    for at in reversed(range(n)) if upward else range(n):
        known = a[..., at : at + 1, at + 1 :] if upward else a[..., at : at + 1, :at]
        row = b[..., at : at + 1, :] - known @ out
        row = row if unit else row / a[..., at : at + 1, at : at + 1]
        out = torch.cat([row, out] if upward else [out, row], -2)
    return out if left else out.mT


@rule("_grouped_mm")
def _(func, args, kwargs):
    """Products of the parts of a dimension, which end at `offs`, each with a matrix of its own, or with the other's part."""
    x, y = args[:2]
    ends = (args[2] if len(args) > 2 else kwargs["offs"]).tolist()
    parts = [slice(begin, end) for begin, end in zip([0, *ends], ends)]
    if x.dim() == 2 and y.dim() == 3:
        return torch.cat([x[part] @ of for part, of in zip(parts, y)])
    if x.dim() == 3:
        return torch.cat([of @ y[:, part] for part, of in zip(parts, x)], 1)
    return torch.stack([x[:, part] @ y[part] for part in parts])


def batch(x):
    """A matrix as a batch of one."""
    x = field(x)
    return wrap(x.residues[None], x.degree)


def first(x):
    """The one matrix of a batch."""
    return wrap(x.residues[0], x.degree)


@rule("prod", "prims.prod")
def _(func, args, kwargs):
    dims, keep = reduced(args, kwargs)
    x = args[0] if dims is not None else args[0].reshape(-1)
    (dim,) = dims or [0]
    return x.cumprod(dim).narrow(dim, -1, 1) if keep else x.cumprod(dim).select(dim, -1)


@rule("cumsum", "cumprod")
def _(func, args, kwargs):
    """One row after the other, as a sum or a product of logarithms is known by these."""
    joined = add if func.overloadpacket.__name__ == "cumsum" else mul
    rows = args[0].unbind(args[1])
    every = [rows[0]]
    for x in rows[1:]:
        every.append(joined(every[-1], x))
    return torch.stack(every, args[1])


FOREACH = """add sub mul div addcmul addcdiv lerp sqrt rsqrt neg abs pow reciprocal sign exp log maximum minimum clamp_min
clamp_max norm zero copy""".split()


@rule(*(f"_foreach_{name}{place}" for name in FOREACH for place in ("", "_")))
def _(func, args, kwargs):
    """The operator on each tensor of lists."""
    name = func.overloadpacket.__name__.removeprefix("_foreach_").replace("norm", "linalg_vector_norm")
    if name.startswith("addc") and len(args) > 3:
        args, kwargs = args[:3], kwargs | {"value": args[3]}
    at = lambda x, i: x[i] if isinstance(x, (list, tuple)) else x
    rows = range(max(len(x) for x in args if isinstance(x, (list, tuple))))
    if name.startswith(("max", "min")) and isinstance(args[1], (int, float)):
        name = name.replace("maximum", "clamp_min").replace("minimum", "clamp_max")
    named = lambda i: {key: at(x, i) for key, x in kwargs.items() if key != "dtype"}
    every = [getattr(aten, name.removesuffix("_"))(*(at(x, i) for x in args), **named(i)) for i in rows]
    if not name.endswith("_"):
        return every
    [put(*both) for both in zip(args[0], every)]


@rule("lerp")
def _(func, args, kwargs):
    start, end, weight = args
    return add(start, mul(sub(end, start), weight))
