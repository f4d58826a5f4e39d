"""Operators that move elements, or write some of them, and compute nothing."""

from math import prod

import torch

from ..elements import accumulate, add, mul, sub
from ..field import FieldTensor, Refused, aten, field, nobodys, put, rule, run, whole, wrap
from ..private import below, tree_leaves, tree_map

def bare(x):
    """The residues of a tensor of floats; anything else as it is."""
    floats = isinstance(x, FieldTensor) or isinstance(x, torch.Tensor) and x.is_floating_point()
    return field(x).residues if floats else x


def known(x):
    """What rows are taken by: a mask of elements has to be one of numbers."""
    words = whole(x) if isinstance(x, FieldTensor) else None
    if isinstance(x, FieldTensor) and (words is None or x.dtype != torch.bool):
        raise Refused(f"values of the program decide which others are taken{run().place()}")
    return x if words is None else words.bool()


def moved(func, args, kwargs):
    """What an operator returns that moves elements and computes nothing: the same on residues."""
    if func.overloadpacket.__name__ in TAKES:
        args, kwargs = (args[0], *tree_map(known, args[1:])), tree_map(known, kwargs)
    every = [x for x in tree_leaves((args, kwargs)) if isinstance(x, FieldTensor)]
    kwargs = {k: v for k, v in kwargs.items() if k not in ("dtype", "layout", "pin_memory", "device")}
    dtype, name = every[0].dtype, func.overloadpacket.__name__
    if name in ("embedding", "gather", "index_select"):
        dim, index = (0, args[1]) if name == "embedding" else (args[1], args[2])
        run().takes(name, args[0].shape[dim], index)
    view = func.is_view
    degree = every[0].degree if view else every[0].degree.raised(*(x.degree for x in every[1:]))
    out = func(*tree_map(bare, args), **tree_map(bare, kwargs))
    words = lambda x: isinstance(x, torch.Tensor) and x.dtype == torch.int64
    return tree_map(lambda x: wrap(x, degree, dtype) if words(x) else x, out)


@rule("squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_")
def _(func, args, kwargs):
    """Another shape of a tensor, in place."""
    x, name = args[0], func.overloadpacket.__name__.removesuffix("_")
    x.residues = getattr(aten, name)(x.residues, *args[1:], **kwargs)
    with below():
        func(*args, **kwargs)
    return x


@rule("resize_")
def _(func, args, kwargs):
    """The elements that a memory begins with, in another shape; those of more are nobody's."""
    x, count, words = args[0], prod(args[1]), args[0].residues.reshape(-1)
    words = torch.cat([words[:count], nobodys((max(count - len(words), 0),))])
    x.data = FieldTensor(words.view(args[1]), x.dtype, x.degree)
    return x


TAKES = "embedding", "gather", "index", "index_select", "masked_select", "take_along_dim"
MOVES = """_reshape_alias _unsafe_view alias as_strided cat chunk clone contiguous detach diag_embed diagonal embedding
expand flatten flip gather index index_select lift_fresh masked_select movedim narrow permute pixel_shuffle
repeat repeat_interleave reshape roll select select_backward slice slice_backward split split_with_sizes squeeze stack
t transpose tril triu unbind unfold unsafe_split unsafe_split_with_sizes unsqueeze view
take_along_dim diagonal_backward""".split()
rule(*MOVES)(moved)


@rule("_to_copy", "to")
def _(func, args, kwargs):
    x, given = args[0], [of for of in (*args[1:], *kwargs.values()) if isinstance(of, torch.dtype)]
    dtype = given[0] if given else x.dtype
    if x.dtype == torch.bool:
        run().bits.update(x.residues.reshape(-1).tolist())
    if dtype.is_floating_point or dtype == x.dtype or x.dtype == torch.bool:
        return wrap(x.residues.clone(), x.degree.raised(), dtype)
    if dtype == torch.bool:
        return x != 0
    words = whole(x)
    if words is None:
        raise Refused(f"floats become {dtype}{run().place()}")
    return words.to(dtype)


@rule("new_empty", "empty_like", "new_empty_strided")
def _(func, args, kwargs):
    x = args[0]
    shape = x.shape if func.overloadpacket is aten.empty_like else args[1]
    out = wrap(nobodys(shape), dtype=kwargs.get("dtype") or x.dtype)
    out.like = x  # the tensor that dropout draws a mask for
    return out


@rule("ones_like", "zeros_like", "full_like", "new_full", "new_ones", "new_zeros", "zero")
def _(func, args, kwargs):
    name = func.overloadpacket.__name__
    value = 1.0 if "one" in name else 0.0 if "zero" in name else kwargs.get("fill_value", args[-1])
    shape, dtype = args[1] if "new" in name else args[0].shape, kwargs.get("dtype") or args[0].dtype
    if not dtype.is_floating_point and dtype != args[0].dtype:
        return torch.full(shape, value, dtype=dtype)  # of the program's own integers or bits
    return wrap(field(value).residues.expand(shape).clone(), dtype=dtype)


@rule("constant_pad_nd")
def _(func, args, kwargs):
    value = int(field(args[2] if len(args) > 2 else kwargs.get("value", 0)).residues)
    return wrap(func(args[0].residues, args[1], value), args[0].degree.raised())


@rule("masked_fill")
def _(func, args, kwargs):
    return where(args[1], args[2], args[0])


@rule("where")
def _(func, args, kwargs):
    return where(*args)


def where(mask, x, y):
    x, y = field(x), field(y)
    if isinstance(mask, FieldTensor):
        return add(y, mul(mask, sub(x, y)))
    return wrap(torch.where(mask, x.residues, y.residues), x.degree.raised(y.degree))


@rule("copy_", "copy")
def _(func, args, kwargs):
    x, y = args[:2]
    if func.overloadpacket is aten.copy_:
        return put(x, y)
    return wrap(field(y).residues.expand(x.shape).clone(), field(y).degree.raised())


@rule("fill", "fill_")
def _(func, args, kwargs):
    x, value = args
    filled = wrap(field(value).residues.expand(x.shape).clone())
    return put(x, filled) if func.overloadpacket is aten.fill_ else filled


@rule("zero_")
def _(func, args, kwargs):
    return put(args[0], 0)


@rule("set_")
def _(func, args, kwargs):
    if len(args) != 2 or not isinstance(args[1], torch.Tensor):
        raise Refused(f"a tensor takes a part of another's memory{run().place()}")
    args[0].data = args[1]
    return args[0]


@rule("set_data")
def _(func, args, kwargs):
    args[0].residues, args[0].degree = args[1].residues, args[1].degree
    return args[0]


def places(x):
    """The flat position of each element of a tensor."""
    return torch.arange(x.numel()).view(x.shape)


@rule("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
def _(func, args, kwargs):
    x, indices, values = args[:3]
    adds = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    at = aten.index(places(x), indices)
    return written(func, x, at, values, adds)


@rule("scatter", "scatter_", "scatter_add", "scatter_add_")
def _(func, args, kwargs):
    x, dim, index, values = args[:4]
    if kwargs.get("reduce", args[4] if len(args) > 4 else "add") != "add":
        raise Refused(f"scatter reduces by {kwargs.get('reduce')}{run().place()}")
    adds = "add" in func.overloadpacket.__name__ or "reduce" in kwargs
    at = places(x).gather(dim, index) if x.dim() else index
    if isinstance(values, torch.Tensor) and values.dim():
        values = values[tuple(slice(n) for n in index.shape)]
    return written(func, x, at, values, adds)


@rule("index_add", "index_add_")
def _(func, args, kwargs):
    x, dim, index, values = args[:4]
    if kwargs.get("alpha", 1) != 1:
        raise Refused(f"index_add with alpha{run().place()}")
    return written(func, x, places(x).index_select(dim, index), values, True)


@rule("scatter_reduce")
def _(func, args, kwargs):
    x, dim, index, values, reduce = args[:5]
    include = args[5] if len(args) > 5 else kwargs.get("include_self", True)
    if reduce != "sum" or not include:
        raise Refused(f"scatter reduces by {reduce}{'' if include else ' without itself'}{run().place()}")
    return aten.scatter_add(x, dim, index, values)


@rule("masked_scatter")
def _(func, args, kwargs):
    x, mask, source = args
    at = places(x)[mask.expand(x.shape)]
    return written(func, x, at, source.reshape(-1)[: len(at)], False)


def written(func, x, at, values, adds):
    """x with values at these flat positions, or added there; in place, if the operator is."""
    values = field(values)
    values = wrap(values.residues.expand(at.shape), values.degree)
    whole = field(x)
    if adds:
        out = accumulate(whole, at.reshape(-1), wrap(values.residues.reshape(-1), values.degree))
    else:
        out = wrap(whole.residues.clone(memory_format=torch.contiguous_format), whole.degree.raised(values.degree))
        out.residues.view(-1)[at.reshape(-1)] = values.residues.reshape(-1)
    return put(x, out) if func.overloadpacket.__name__.endswith("_") else out


@rule("embedding_dense_backward")
def _(func, args, kwargs):
    gradient, ids, rows, padding, by_frequency = args
    if by_frequency:
        raise Refused(f"an embedding's gradient is scaled by the frequency of its rows{run().place()}")
    width = gradient.shape[-1]
    kept = ids.reshape(-1) != padding
    at = ids.reshape(-1)[kept][:, None] * width + torch.arange(width)
    gradient = wrap(gradient.residues.reshape(-1, width)[kept].reshape(-1), gradient.degree)
    return accumulate(wrap(torch.zeros(rows, width, dtype=torch.int64)), at.reshape(-1), gradient)


@rule("masked_scatter_backward")
def _(func, args, kwargs):
    gradient, mask, shape = args
    taken = gradient[mask]
    return torch.cat([taken, taken.new_zeros(prod(shape) - len(taken))]).reshape(shape)
