"""Plain tensors that a program writes elements into: buffers, and parameters that others are copied into.

A memory of floats into which an element is written has a memory of elements beside it from then on. What is read from it
are these, also by operators that take nothing else.
"""

import torch

BESIDE = {}  # by address of a memory of floats: its elements, their degree, and the memory, whose address stays its own


def is_of_floats(x):
    """True for a tensor of floats on the host, and none of a class of its own."""
    return type(x) in (torch.Tensor, torch.nn.Parameter) and x.is_floating_point() and x.device.type == "cpu"


def address(x):
    return x.untyped_storage().data_ptr()


def beside(x):
    """The memory of elements beside a tensor's, or None."""
    found = BESIDE.get(address(x)) if BESIDE and is_of_floats(x) else None
    return found if found and found.dtype == x.dtype else None


def is_beside(x):
    return isinstance(x, torch.Tensor) and beside(x) is not None


def taken(args, kwargs={}):
    """What an operator takes, with what its lists hold."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, (list, tuple)):
            yield from x
        else:
            yield x
