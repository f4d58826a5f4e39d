"""Arithmetic of elements, and functions of them: what rules are made of."""

from math import prod

import torch

from equipart import _field

from .field import NEG_INF, Degree, FieldTensor, checked, field, flat, positive, run, wrap


def of(function, *operands):
    """A new tensor of words from an element-wise function of these, which are broadcast."""
    operands = [x.contiguous() for x in torch.broadcast_tensors(*operands)]
    out = torch.empty_like(operands[0], memory_format=torch.contiguous_format)
    checked(function, *(flat(x) for x in operands), flat(out))
    return out


def add(x, y):
    """x + y."""
    x, y = field(x), field(y)
    return wrap(of(run().functions.add, x.residues, y.residues), x.degree.plus(y.degree))


def sub(x, y):
    """x - y."""
    x, y = field(x), field(y)
    return wrap(of(run().functions.subtract, x.residues, y.residues), x.degree.plus(y.degree))


def mul(x, y):
    """x·y. The square of a root is known."""
    keeps = positive(x) or positive(y)
    x, y = field(x), field(y)
    known = []
    out = of(lambda *words: known.append(run().functions.multiply(*words, keeps)), x.residues, y.residues)
    return wrap(out, x.degree.times(y.degree).raised(Degree(run().roots if known[0] else 0.0)))


def neg(x):
    """-x."""
    return sub(0, x)


def inverse(x):
    """1/x."""
    x = field(x)
    degree, counts = x.degree.cleared(), counted(x)
    run().stepped += degree * x.numel() if run().steps else 0.0
    out = of(lambda x, out: run().functions.inverse(x, out, counts), x.residues)
    return wrap(out, Degree(1.0, 1.0, degree) if degree else Degree())


def total(x, dims=None, keep=False):
    """Σ over these dimensions, or over all."""
    x = field(x)
    every = range(x.dim()) if dims is None or dims == [] or dims == () else dims
    dims = sorted(d % max(x.dim(), 1) for d in every)
    rest = [d for d in range(x.dim()) if d not in dims]
    rows = x.residues.permute(rest + dims).contiguous()
    out = torch.empty([x.shape[d] for d in rest], dtype=torch.int64)
    checked(run().functions.sums, flat(rows), flat(out), prod(x.shape[d] for d in dims))
    terms = x.numel() // max(out.numel(), 1)
    if keep:
        out = out.view([1 if d in dims else n for d, n in enumerate(x.shape)])
    return wrap(out, x.degree.times(Degree(), terms))


def matmul(x, y):
    """The products of matrices [B, M, K] and [B, K, N]."""
    x, y = field(x), field(y)
    (batch, m, k), n = x.shape, y.shape[2]
    out = torch.empty(batch, m, n, dtype=torch.int64)
    checked(_field.product, flat(x.residues.contiguous()), flat(y.residues.contiguous()), flat(out), [batch, m, k, n])
    return wrap(out, x.degree.times(y.degree, k))


def accumulate(to, at, x):
    """Adds elements to those of a tensor at these flat positions, which may repeat."""
    x = field(x)
    out = to.residues.contiguous().clone()
    checked(_field.accumulate, flat(out), flat(at.contiguous()), flat(x.residues.contiguous()))
    return wrap(out, to.degree.plus(x.degree.times(Degree(), x.numel())))


def named(name, x):
    """A function of x by its name: a keyed hash of each element."""
    x = field(x)
    degree = counted(x)
    return wrap(of(lambda x, out: run().functions.named(name, x, out, degree), x.residues), Degree(1.0))


def counted(x):
    """The degree of a function's arguments. An optimizer's step compares each element with its own only."""
    degree = x.degree.cleared()
    if run().steps:
        run().apart = max(run().apart, degree)
    return -1.0 if run().steps else degree


def rsqrt(x):
    """1/√x."""
    return named("rsqrt", x)


def sqrt(x):
    """√x, the inverse of 1/√x; its square is x."""
    x = field(x)
    out = inverse(rsqrt(x))
    if run().steps:
        return out
    run().roots = max(run().roots, x.degree.cleared())
    run().functions.learn_squares(flat(out.residues), flat(x.residues.contiguous()))
    return out


def exp(x, in_sigmoid=False):
    """e^x; 0 for a mask's minus infinity."""
    x = field(x)
    degree, most = x.degree.cleared(), []
    out = of(lambda x, out: most.append(run().functions.exp(x, out, degree, in_sigmoid)), x.residues)
    inside = most[0] * run().logarithms
    return wrap(out, Degree(1.0 + inside, most[0], inside))


def log(x):
    """ln x, the inverse of exp; minus infinity for 0."""
    x = field(x)
    degree = x.degree.cleared()
    run().logarithms = max(run().logarithms, degree, 1.0)
    return wrap(of(lambda x, out: run().functions.log(x, out, degree), x.residues), Degree(1.0))


def sigmoid(x):
    """1/(1 + e^-x), and 0 for what a mask has below all numbers. As the exponential is drawn, so is this, unless the program
    has that, too."""
    x = field(x)
    masked = x.residues < 0
    below = add(1, exp(neg(wrap(x.residues.masked_fill(masked, 0), x.degree)), in_sigmoid=True))
    out = of(lambda x, out: run().functions.inverse(x, out, -1.0), below.residues)
    return wrap(out.masked_fill_(masked, 0), below.degree if below.degree.power else Degree(1.0))


def step(x):
    """1 for a positive element, 0 for others: of small whole numbers as it is, else a keyed function, with step(-x) = 1 -
    step(x)."""
    return named("step", x)


def is_above(x, least):
    """True for exponentials, roots and their sums, which are as good as above a number that keeps them from 0."""
    is_small = isinstance(least, float) and 0 < least <= 1e-3 and isinstance(x, FieldTensor)
    if is_small and run().functions.are_positive(flat(x.residues.contiguous())):
        run().assumes("sums of exponentials, and roots, are above the small numbers that they are clamped at")
        return True
    return False


def steps(x):
    """Of a result of `relu`, the steps that it is a product with; else None."""
    known = of(run().functions.steps, x.residues)
    return None if bool((known == NEG_INF).any()) else wrap(known, Degree(1.0))


def relu(x):
    """x·step(x); of a result of this, itself."""
    x = field(x)
    by = step(x)
    return wrap(of(run().functions.relu, x.residues, by.residues), x.degree.times(by.degree).raised(x.degree))


def maximum(x):
    """The largest of each row [.., n]: the logarithm of a keyed hash of the set of its elements."""
    x = field(x)
    run().logarithms = max(run().logarithms, 1.0)
    out = torch.empty(x.shape[:-1], dtype=torch.int64)
    checked(run().functions.maxima, flat(x.residues.contiguous()), flat(out), x.shape[-1])
    return wrap(out, x.degree.raised(Degree(1.0)))
