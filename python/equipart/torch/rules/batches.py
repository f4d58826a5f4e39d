"""The parts of a batch norm that ranks compute together."""

from ..elements import add, inverse, mul, rsqrt, sub, total
from ..field import flat, put, rule, run


def over_channels(x):
    """All dimensions but the channels', and a view of a tensor of channels beside x."""
    return [d for d in range(x.dim()) if d != 1], lambda y: y.view(-1, *[1] * (x.dim() - 2))


def spread(x, mean):
    """x less its channels' means."""
    return sub(x, over_channels(x)[1](mean))


@rule("batch_norm_stats")
def _(func, args, kwargs):
    x, eps = args
    dims, count = over_channels(x)[0], x.numel() // x.shape[1]
    mean = mul(total(x, dims), inverse(count))
    apart = spread(x, mean)
    variance = add(mul(total(mul(apart, apart), dims), inverse(count)), eps)
    root = rsqrt(variance)
    run().functions.learn_squares(flat(root.residues), flat(inverse(variance).residues))
    return mean, root


@rule("batch_norm_gather_stats_with_counts")
def _(func, args, kwargs):
    x, means, roots, running_mean, running_variance, momentum, eps, counts = args
    share = mul(counts, inverse(total(counts))).view(-1, 1)
    mean = total(mul(means, share), [0])
    apart, variances = sub(means, mean), sub(inverse(mul(roots, roots)), eps)
    variance = total(mul(add(variances, mul(apart, apart)), share), [0])
    if running_mean is not None:
        count = total(counts)
        unbiased = mul(variance, mul(count, inverse(sub(count, 1))))
        for running, new in ((running_mean, mean), (running_variance, unbiased)):
            put(running, add(mul(running, 1 - momentum), mul(new, momentum)))
    return mean, rsqrt(add(variance, eps))


@rule("batch_norm_elemt")
def _(func, args, kwargs):
    x, weight, bias, mean, root, _ = args
    of = over_channels(x)[1]
    out = mul(spread(x, mean), of(root))
    out = out if weight is None else mul(out, of(weight))
    return out if bias is None else add(out, of(bias))


@rule("batch_norm_backward_reduce")
def _(func, args, kwargs):
    gradient, x, mean, root, *_ = args
    dims = over_channels(x)[0]
    summed, along = total(gradient, dims), total(mul(gradient, spread(x, mean)), dims)
    return summed, along, mul(along, root), summed.clone()


@rule("batch_norm_backward_elemt")
def _(func, args, kwargs):
    gradient, x, mean, root, weight, summed, along, counts = args
    of, share = over_channels(x)[1], inverse(int(counts.sum()))
    along = mul(mul(along, share), mul(root, root))
    out = sub(sub(gradient, of(mul(summed, share))), mul(spread(x, mean), of(along)))
    return mul(out, of(root if weight is None else mul(root, weight)))
