"""Each argument of each operator that has a rule is read, or refused: where another value of it changes what PyTorch
computes of floats, it changes what the rule computes."""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from equipart.torch.elements import add
from equipart.torch.field import RULES, Degree, FieldTensor, Refused, wrap
from equipart.torch.running import Run

aten = torch.ops.aten
MOVED = {"dtype", "layout", "device", "pin_memory", "memory_format", "generator", "non_blocking", "driver"}  # those of memory


def numbers(*shape, start=1):
    count = torch.arange(torch.Size(shape).numel())
    return ((count * 5) % 7 + start).reshape(shape).double()


X, Y, CUBE = numbers(3, 4), numbers(3, 4, start=3), numbers(2, 3, 4)
BITS, AT = torch.eye(3, 4).bool(), torch.tensor([[0, 2, 1, 0], [1, 1, 0, 2], [2, 0, 2, 1]])
ROW, HEADS = torch.tensor([2, 0, 1]), numbers(1, 2, 3, 4)
CASES = {
    "div.Tensor_mode": ((X, Y), dict(rounding_mode=None)),
    "div.Scalar_mode": ((X, 2), dict(rounding_mode=None)),
    "mm": ((X, numbers(4, 2)), {}),
    "mv": ((X, X[0]), {}),
    "dot": ((X[0], Y[0]), {}),
    "vdot": ((X[0], Y[0]), {}),
    "bmm": ((CUBE, numbers(2, 4, 2)), {}),
    "addmm": ((numbers(3, 2), X, numbers(4, 2)), {}),
    "baddbmm": ((numbers(2, 3, 2), CUBE, numbers(2, 4, 2)), {}),
    "linalg_solve_triangular": ((numbers(2, 3, 3), numbers(2, 3, 3, start=2)), dict(upper=False)),
    "clamp": ((X, 2, 4), {}),
    "clamp.Tensor": ((X, Y - 2, Y), {}),
    "_scaled_dot_product_flash_attention_for_cpu": ((HEADS, HEADS + 1, HEADS + 2), {}),
    "argsort.stable": ((X,), dict(stable=True)),
    "sort.stable": ((X,), dict(stable=True)),
    "_unsafe_view": ((X, [4, 3]), {}),
    "embedding": ((X, ROW), {}),
    "expand": ((X, [2, 3, 4]), {}),
    "gather": ((X, 0, AT), {}),
    "take_along_dim": ((X, AT, 0), {}),
    "index.Tensor": ((X, [ROW]), {}),
    "index_select": ((X, 0, ROW), {}),
    "permute": ((X, [1, 0]), {}),
    "pixel_shuffle": ((numbers(4, 2, 2), 2), {}),
    "repeat": ((X, [2, 1]), {}),
    "repeat_interleave.self_Tensor": ((X, ROW), dict(dim=0)),
    "reshape": ((X, [2, 6]), {}),
    "select_backward": ((X[0], [3, 4], 0, 1), {}),
    "slice_backward": ((X[:2], [3, 4], 0, 0, 2, 1), {}),
    "split_with_sizes": ((X, [1, 2]), {}),
    "unsafe_split_with_sizes": ((X, [1, 2]), {}),
    "view": ((X, [2, 6]), {}),
    "diagonal_backward": ((X[0, :3], [3, 4], 0, 0, 1), {}),
    "constant_pad_nd": ((X, [1, 1], 0), {}),
    "masked_fill.Scalar": ((X, BITS, 2), {}),
    "masked_fill.Tensor": ((X, BITS, torch.tensor(2.0)), {}),
    "masked_select": ((X, BITS), {}),
    "where.self": ((BITS, X, Y), {}),
    "where.ScalarOther": ((BITS, X, 2), {}),
    "where.ScalarSelf": ((BITS, 2, Y), {}),
    "fill.Tensor": ((X, torch.tensor(2.0)), {}),
    "index_put": ((X, [ROW], Y), {}),
    "_unsafe_index_put": ((X, [ROW], Y), {}),
    "scatter.value": ((X, 0, AT, 2), {}),
    "scatter.src": ((X, 0, AT, Y), {}),
    "scatter.reduce": ((X, 0, AT, Y), dict(reduce="add")),
    "scatter.value_reduce": ((X, 0, AT, 2), dict(reduce="add")),
    "scatter_add": ((X, 0, AT, Y), {}),
    "scatter_reduce.two": ((X, 0, AT, Y, "sum"), {}),
    "index_add": ((X, 0, ROW, Y), {}),
    "masked_scatter": ((X, BITS, Y), {}),
    "masked_scatter_backward": ((X, BITS, [3]), {}),
    "embedding_dense_backward": ((numbers(3, 4), torch.tensor([1, 1, 0]), 3, -1, False), {}),
    "_foreach_add.Tensor": (([X, Y], torch.tensor(2.0)), {}),
    "_foreach_mul.Tensor": (([X, Y], torch.tensor(2.0)), {}),
    "var.correction": ((X, [1]), {}),
    "var_mean.correction": ((X, [1]), {}),
    "leaky_relu": ((X - 4,), {}),
    "threshold_backward": ((Y, X - 3, 0), {}),
    "gelu_backward": ((Y, X), {}),
    "log_sigmoid_backward": ((Y, X, torch.zeros(0).double()), {}),
    "softplus_backward": ((Y, X, 2, 20), {}),
    "nll_loss_forward": ((X, ROW, None, 1, -100), {}),
    "_softmax": ((X, 1, False), {}),
    "_log_softmax": ((X, 1, False), {}),
}
# operators that these arguments do not suit: refused, or without options, or with tests of their own
MISSING = """_grouped_mm _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_flash_attention_for_cpu_backward batch_norm_backward_elemt batch_norm_backward_reduce
batch_norm_elemt batch_norm_gather_stats_with_counts batch_norm_stats bernoulli bitwise_and bitwise_not bitwise_or bitwise_xor
convolution convolution_backward empty_like is_nonzero item log_sigmoid_backward native_dropout new_empty new_empty_strided
set_data view_as_complex"""
OTHERS = {
    "bool": [True, False],
    "int": [0, 1, 2, 3, -1],
    "number": [3, -2, 0.5],
    "float": [3.0, 0.5, 0.25],
    "str": ["none", "tanh", "sum", "mean", "prod", "add", "multiply", "trunc", "floor"],
    "List[int]": [[0], [1], [0, 1], [2, 6], [4, 3]],
    "Tensor": [],
}


def tensors(overload):
    """An operator's arguments: those of the table, or by their types."""
    name = str(overload).removeprefix("aten.").removesuffix(".default")
    if name in CASES:
        return CASES[name]
    args = []
    for of in overload._schema.arguments:
        if of.has_default_value() or of.kwarg_only:
            break
        kinds = {"Tensor": X if not args else Y, "number": 2, "float": 2.0, "int": 1, "List[int]": [1], "bool": False}
        kinds |= {"Optional[List[int]]": [1], "List[Tensor]": [X + len(args), Y]}
        if str(of.type) not in kinds:
            return None
        args.append(kinds[str(of.type)])
    return (tuple(args), {}) if any(isinstance(x, torch.Tensor) for x in tree_leaves(args)) else None


def variants(overload, args, kwargs):
    """The same with another value of one argument."""
    for at, of in enumerate(overload._schema.arguments):
        kind = str(of.type).removeprefix("Optional[").removesuffix("]") if "Optional[" in str(of.type) else str(of.type)
        is_named = of.kwarg_only or at >= len(args)
        before = kwargs.get(of.name, of.default_value) if is_named else args[at]
        others = OTHERS.get(kind, [])
        if isinstance(before, torch.Tensor) and before.numel():
            others = [~before] if before.dtype == torch.bool else [before.roll(1) if before.dtype == torch.int64 else before + 1]
        elif kind == "Tensor" and before is None:
            others = [numbers(3), numbers(4), X]
        for other in others if of.name not in MOVED else ():
            if is_named:
                yield of.name, args, {**kwargs, of.name: other}
            else:
                yield of.name, (*args[:at], other, *args[at + 1 :]), kwargs


def of_floats(overload, args, kwargs):
    try:
        return [x.double() if isinstance(x, torch.Tensor) else x for x in tree_leaves(overload(*args, **kwargs))]
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return None


def of_elements(overload, args, kwargs):
    """What the rule computes, or None if it is refused."""
    Run(5).enter()
    is_float = lambda x: isinstance(x, torch.Tensor) and x.is_floating_point()
    lifted = lambda x: wrap(x.long() % (2**61 - 1), Degree(1.0), x.dtype) if is_float(x) else x
    try:
        out = overload(*tree_map(lifted, args), **tree_map(lifted, kwargs))
    except Refused:
        return None
    every = [torch.view_as_real(x) if isinstance(x, torch.Tensor) and x.is_complex() else x for x in tree_leaves(out)]
    return [x.residues if isinstance(x, FieldTensor) else x for x in every]


def same(one, other):
    equal = lambda x, y: torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x is y or x == y
    return len(one) == len(other) and all(equal(x, y) for x, y in zip(one, other))


OVERLOADS = [
    overload
    for packet in RULES
    if str(packet).startswith("aten.") and "empty" not in str(packet)  # which holds nothing yet
    for overload in (getattr(packet, name) for name in packet.overloads())
    if not overload._schema.is_mutable and not overload._overloadname.startswith("prim_") and tensors(overload) and of_floats(overload, *tensors(overload)) is not None
]


EVERY = {str(packet) for packet in RULES if str(packet).startswith("aten.") and not str(packet).endswith("_")}


@pytest.mark.parametrize("overload", OVERLOADS, ids=str)
def test_each_argument_is_read_or_refused(overload):
    args, kwargs = tensors(overload)
    floats, elements = of_floats(overload, args, kwargs), of_elements(overload, args, kwargs)
    dropped = []
    for name, *other in variants(overload, args, kwargs) if elements is not None else ():
        others = of_floats(overload, *other)
        if others is None or same(floats, others):
            continue
        ours = of_elements(overload, *other)
        if ours is not None and same(elements, ours):
            dropped.append((name, other))
    assert not dropped, dropped


def test_a_rule_that_drops_an_argument_is_seen(monkeypatch):
    monkeypatch.setitem(RULES, aten.add, lambda func, args, kwargs: add(*args[:2]))
    with pytest.raises(AssertionError, match="alpha"):
        test_each_argument_is_read_or_refused(aten.add.Tensor)


def test_most_operators_are_tried():
    tried = {str(overload.overloadpacket) for overload in OVERLOADS}
    assert sorted(EVERY - tried) == [f"aten.{name}" for name in MISSING.split()]
