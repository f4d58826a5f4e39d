"""Functions that are no polynomials."""

import math

import torch

from ..elements import (
    add, exp, inverse, is_above, log, maximum, mul, named, neg, relu, rsqrt, sigmoid, sqrt, step, steps, sub, total,
)  # fmt: skip
from ..field import LEAST, MASKED, NEG_INF, Degree, Refused, field, flat, rule, run, wrap

UNARY = {
    "exp": exp,
    "log": log,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "sigmoid": sigmoid,
    "relu": relu,
    "log2": lambda x: mul(log(x), inverse(math.log(2))),
    "log10": lambda x: mul(log(x), inverse(math.log(10))),
    "exp2": lambda x: exp(mul(x, math.log(2))),
    "expm1": lambda x: sub(exp(x), 1),
    "log1p": lambda x: log(add(1, x)),
    "tanh": lambda x: sub(mul(sigmoid(mul(x, 2)), 2), 1),
    "silu": lambda x: mul(x, sigmoid(x)),
    "log_sigmoid": lambda x: neg(softplus(neg(x))),
    "erf": lambda x: sub(mul(named("normal_cdf", mul(x, 2**0.5)), 2), 1),
    "sin": lambda x: named("sin", x),
    "cos": lambda x: named("cos", x),
    "sign": lambda x: sign(x),
    "sgn": lambda x: sign(x),
    "abs": lambda x: x.clone() if steps(x) is not None else mul(x, sign(x)),
}


def sign(x):
    """1 for a positive element, -1 for a negative one; of a result of relu the step."""
    known = steps(x)
    if known is not None:
        return known
    sides = sub(mul(step(x), 2), 1)
    return wrap(sides.residues.masked_fill(x.residues == 0, 0), sides.degree)


def softplus(x):
    """ln(1 + e^x)."""
    return log(add(1, exp(x)))


def unary(name, function):
    rule(name)(lambda func, args, kwargs: function(args[0]))


for name, function in UNARY.items():
    unary(name, function)


@rule("log_sigmoid_forward")
def _(func, args, kwargs):
    return UNARY["log_sigmoid"](args[0]), wrap(torch.zeros(0, dtype=torch.int64))


@rule("log_sigmoid_backward")
def _(func, args, kwargs):
    return mul(args[0], sigmoid(neg(args[1])))


def usual(threshold):
    if threshold != 20:
        raise Refused(f"softplus with a threshold of {threshold}{run().place()}")


@rule("softplus")
def _(func, args, kwargs):
    """ln(1 + e^(βx))/β. Above the threshold PyTorch returns x, which is as good as that."""
    x, beta = args[0], args[1] if len(args) > 1 else kwargs.get("beta", 1)
    usual(args[2] if len(args) > 2 else kwargs.get("threshold", 20))
    return mul(softplus(mul(x, beta)), inverse(beta))


@rule("softplus_backward")
def _(func, args, kwargs):
    gradient, x, beta, threshold = args
    usual(threshold)
    return mul(gradient, sigmoid(mul(x, beta)))


@rule("xlogy")
def _(func, args, kwargs):
    """x·ln y; 0 where x is."""
    x = field(args[0])
    return mul(x, log(torch.where(x.residues == 0, wrap(torch.tensor(1)), args[1])))


@rule("logaddexp")
def _(func, args, kwargs):
    return log(add(exp(args[0]), exp(args[1])))


@rule("clamp", "clamp_min", "clamp_max")
def _(func, args, kwargs):
    least, most = bounds(func, args, kwargs)
    x = args[0]
    x = x if least is None else at_least(x, least)
    return x if most is None or isinstance(most, float) and most == math.inf else neg(at_least(neg(x), neg(most)))


def bounds(func, args, kwargs):
    """The smallest and the largest value of a clamp."""
    names = {"clamp_min": ("min",), "clamp_max": ("max",)}.get(func.overloadpacket.__name__, ("min", "max"))
    given = dict(zip(names, args[1:])) | kwargs
    return given.get("min"), given.get("max")


def at_least(x, least):
    """The larger of x and a bound, which is as good as none where it is infinite."""
    if isinstance(least, (int, float)) and least < -MASKED or is_above(x, least):
        return x
    return add(least, relu(sub(x, least)))


@rule("threshold_backward")
def _(func, args, kwargs):
    gradient, x, threshold = args
    x = sub(x, threshold)
    known = torch.empty(x.shape, dtype=torch.int64)  # of a result of `relu`, the step of what it was given
    run().functions.steps(flat(x.residues.contiguous()), flat(known))
    return mul(gradient, wrap(torch.where(known == -1, step(x).residues, known), Degree(1.0)))


@rule("leaky_relu")
def _(func, args, kwargs):
    slope = args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01)
    return add(mul(args[0], slope), mul(relu(args[0]), sub(1, slope)))


@rule("gelu")
def _(func, args, kwargs):
    x = args[0]
    if kwargs.get("approximate", "none") == "none":
        return mul(x, named("normal_cdf", x))
    return mul(x, sigmoid(inner(x)))


@rule("gelu_backward")
def _(func, args, kwargs):
    gradient, x = args
    if kwargs.get("approximate", "none") == "none":
        return mul(gradient, add(named("normal_cdf", x), mul(x, named("normal_pdf", x))))
    gate, a, b = sigmoid(inner(x)), mul(ROOT, 2), CUBE
    slope = mul(add(mul(mul(mul(x, x), 3), b), 1), a)
    return mul(gradient, add(gate, mul(mul(x, slope), mul(gate, sub(1, gate)))))


ROOT, CUBE = math.sqrt(2 / math.pi), 0.044715


def inner(x):
    """The sigmoid's argument in GELU's tanh form."""
    return mul(mul(add(x, mul(mul(mul(x, x), x), CUBE)), ROOT), 2)


def largest(x, dims, keep):
    """The maxima of x over these dimensions, or over all."""
    x = field(x)
    dims = [d % max(x.dim(), 1) for d in (dims or range(x.dim()))]
    rest = [d for d in range(x.dim()) if d not in dims]
    rows = x.residues.permute(rest + dims).reshape(*(x.shape[d] for d in rest), -1)
    out = maximum(wrap(rows, x.degree))
    return wrap(out.residues.view([1 if d in dims else n for d, n in enumerate(x.shape)]), out.degree) if keep else out


def softmax(x, dim, safe=False):
    """e^x over its sum along a dimension. Where a row may be masked wholly by a finite number, of x less its maximum; one
    that is masked wholly by minus infinity is 0, if that is safe."""
    x = field(x)
    e = exp(sub(x, largest(x, [dim], True)) if bool((x.residues == LEAST).any()) else x)
    weights = total(e, [dim], True)
    masked = (x.residues == NEG_INF).all(dim, True) if safe else torch.tensor(False)
    return mul(e, inverse(torch.where(masked, wrap(torch.tensor(1)), weights) if bool(masked.any()) else weights))


@rule("_softmax", "_safe_softmax")
def _(func, args, kwargs):
    return softmax(args[0], args[1], "safe" in str(func))


@rule("_log_softmax")
def _(func, args, kwargs):
    return sub(args[0], log(total(exp(args[0]), [args[1]], True)))


@rule("logcumsumexp")
def _(func, args, kwargs):
    return log(exp(args[0]).cumsum(args[1]))


@rule("logsumexp")
def _(func, args, kwargs):
    dims, keep = args[1], args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    return log(total(exp(args[0]), [dims] if isinstance(dims, int) else list(dims), keep))
