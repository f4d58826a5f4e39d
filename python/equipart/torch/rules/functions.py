"""Functions that are no polynomials."""

import torch

from ..field import Refused, add, exp, flat, inverse, log, mul, named, rsqrt, rule, run, sqrt, sub, total, wrap


@rule("exp")
def _(func, args, kwargs):
    return exp(args[0])


@rule("log")
def _(func, args, kwargs):
    return log(args[0])


@rule("sqrt")
def _(func, args, kwargs):
    return sqrt(args[0])


@rule("rsqrt")
def _(func, args, kwargs):
    return rsqrt(args[0])


@rule("sigmoid")
def _(func, args, kwargs):
    return named("sigmoid", args[0])


@rule("tanh")
def _(func, args, kwargs):
    return sub(mul(named("sigmoid", mul(args[0], 2)), 2), 1)


@rule("erf", "sin", "cos", "sign", "abs", "log1p", "expm1")
def _(func, args, kwargs):
    return named(func.overloadpacket.__name__, args[0])


@rule("clamp", "clamp_min", "clamp_max")
def _(func, args, kwargs):
    bounds = {**dict(zip(("min", "max") if "max" not in str(func) else ("max",), args[1:])), **kwargs}
    if any(isinstance(bound, torch.Tensor) for bound in bounds.values()):
        raise Refused(f"values are clamped by those of a tensor{run().place()}")
    return named(f"clamp {sorted(bounds.items())}", args[0])


@rule("silu")
def _(func, args, kwargs):
    return mul(args[0], named("sigmoid", args[0]))


@rule("gelu")
def _(func, args, kwargs):
    x = args[0]
    if kwargs.get("approximate", "none") == "none":
        return mul(x, named("normal_cdf", x))
    return mul(x, named("sigmoid", inner(x)))


@rule("gelu_backward")
def _(func, args, kwargs):
    gradient, x = args
    if kwargs.get("approximate", "none") == "none":
        return mul(gradient, add(named("normal_cdf", x), mul(x, named("normal_pdf", x))))
    gate, (a, b) = named("sigmoid", inner(x)), GELU
    slope = mul(add(mul(mul(mul(x, x), 3), b), 1), a)
    return mul(gradient, add(gate, mul(mul(x, slope), mul(gate, sub(1, gate)))))


GELU = 1.5957691216057307, 0.044715  # 2·√(2/π), and the cube's factor


def inner(x):
    """The sigmoid's argument in GELU's tanh form."""
    return mul(add(x, mul(mul(mul(x, x), x), GELU[1])), GELU[0])


@rule("relu")
def _(func, args, kwargs):
    step = named("step", args[0])
    out = mul(args[0], step)
    run().functions.learns("its step", flat(out.residues), flat(step.residues))
    return out


@rule("threshold_backward")
def _(func, args, kwargs):
    gradient, result = args[:2]
    step = wrap(result.residues.contiguous().clone(), result.degree.raised())
    if not run().functions.knows("its step", flat(result.residues.contiguous()), flat(step.residues)):
        step = named("step", result)
    return mul(gradient, step)


@rule("_softmax", "_safe_softmax")
def _(func, args, kwargs):
    return softmax(args[0], args[1])


@rule("_log_softmax")
def _(func, args, kwargs):
    x = sub(args[0], run().shift)
    return sub(x, log(total(exp(x), [args[1]], True)))


@rule("logsumexp")
def _(func, args, kwargs):
    dims, keep = args[1], args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    dims = [dims] if isinstance(dims, int) else list(dims)
    return add(log(total(exp(sub(args[0], run().shift)), dims, keep)), run().shift)


def softmax(x, dim):
    """e^x over its sum along a dimension. As where it is written out, a maximum shifts the exponents."""
    e = exp(sub(x, run().shift))
    return mul(e, inverse(total(e, [dim], True)))
