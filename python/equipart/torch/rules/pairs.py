"""Complex numbers, as rotary positions are written with: pairs of elements."""

import torch

from ..elements import add, mul, named, sub
from ..field import Refused, field, rule, run
from ..private import subclass, tree_leaves, tree_map
from .moves import MOVES

LINEAR = {*MOVES, "add", "sub", "neg", "sum", "mean", "copy_", "zero_", "add_", "sub_"}


class Pairs(torch.Tensor):
    """A tensor of complex numbers, which are two tensors of elements."""

    @staticmethod
    def __new__(cls, real, imaginary):
        self = subclass(cls, size=real.shape, strides=real.stride(), dtype=torch.complex64, device=real.device)
        self.parts = real, imaginary
        return self

    def __repr__(self):
        return f"Pairs(shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name in ("mul", "div"):
            return product(*args) if name == "mul" else product(args[0], 1 / args[1])
        if name == "view_as_real":
            return torch.stack(args[0].parts, -1)
        if name in ("_conj", "conj_physical", "_conj_physical"):
            return Pairs(args[0].parts[0], sub(0, args[0].parts[1]))
        if name in ("resolve_conj", "_to_copy", "is_same_size"):
            return args[0] if name != "is_same_size" else args[0].shape == args[1].shape
        if name not in LINEAR:
            raise Refused(f"{func} of complex numbers has no rule{run().place()}")
        real, imaginary = (
            func(*tree_map(lambda x: part(x, at), args), **tree_map(lambda x: part(x, at), kwargs)) for at in (0, 1)
        )
        if func.overloadpacket.__name__.endswith("_"):
            return args[0]
        every = [Pairs(*both) for both in zip(tree_leaves(real), tree_leaves(imaginary))]
        return every[0] if isinstance(real, torch.Tensor) else every


def part(x, at):
    """The real or the imaginary part of what an operator takes."""
    if isinstance(x, Pairs):
        return x.parts[at]
    if isinstance(x, torch.Tensor) and x.is_complex():
        return field(torch.view_as_real(x.resolve_conj())[..., at])
    return 0 if at and isinstance(x, torch.Tensor) and x.is_floating_point() else x


def product(x, y):
    (a, b), (c, d) = ([part(of, at) for at in (0, 1)] if isinstance(of, torch.Tensor) else (of, 0) for of in (x, y))
    return Pairs(sub(mul(a, c), mul(b, d)), add(mul(a, d), mul(b, c)))


@rule("view_as_complex")
def _(func, args, kwargs):
    return Pairs(args[0][..., 0], args[0][..., 1])


@rule("complex")
def _(func, args, kwargs):
    return Pairs(*map(field, args))


@rule("polar")
def _(func, args, kwargs):
    length, angle = args
    return Pairs(mul(length, named("cos", angle)), mul(length, named("sin", angle)))
