"""Convolutions, as products of matrices with patches."""

from math import prod

import torch
import torch.nn.functional as F

from ..elements import accumulate, add, matmul, total
from ..field import Refused, field, rule, run, wrap


def patches(x, size, stride, padding, dilation):
    """The patches of words [B, C, ...]: [B, places, C, ...of the kernel]."""
    x = F.pad(x, [n for n in reversed(padding) for _ in range(2)], value=0)
    for d, (n, step, apart) in enumerate(zip(size, stride, dilation)):
        x = x.unfold(2 + d, (n - 1) * apart + 1, step)[..., ::apart]
    dims = len(size)
    x = x.movedim(1, 1 + dims)
    return x.flatten(1, dims), x.shape[1 : 1 + dims]


def batches(words, groups):
    """Rows [B, N, C·...] as a matrix for each group: [groups, B·N, ...]."""
    return words.reshape(words.shape[0] * words.shape[1], groups, -1).transpose(0, 1).contiguous()


class Convolution:
    """The patches of a convolution, by groups, and where they stand in its input."""

    def __init__(self, x, weight, stride, padding, dilation, is_transposed, groups):
        if is_transposed:
            raise Refused(f"a transposed convolution{run().place()}")
        self.x, self.groups, self.filters = field(x), groups, field(weight)
        dims = self.filters.dim() - 2
        stride, padding, dilation = (list(of) * dims if len(of) == 1 else list(of) for of in (stride, padding, dilation))
        options = self.filters.shape[2:], stride, padding, dilation
        words, self.shape = patches(self.x.residues, *options)
        self.rows = wrap(batches(words, groups), self.x.degree)
        places = torch.arange(1, self.x.numel() + 1).view(self.x.shape)  # 0 is padding
        self.places = batches(patches(places, *options)[0], groups)
        out = self.filters.shape[0]
        self.matrix = wrap(self.filters.residues.reshape(groups, out // groups, -1).contiguous(), self.filters.degree)

    def out(self):
        """[B, out, ...]."""
        out = matmul(self.rows, self.matrix.transpose(1, 2))
        words = out.residues.transpose(0, 1).reshape(self.x.shape[0], prod(self.shape), -1).transpose(1, 2)
        return wrap(words.reshape(self.x.shape[0], -1, *self.shape).contiguous(), out.degree)

    def backward(self, gradient):
        """The gradients of the input and of the filters."""
        rows = wrap(batches(gradient.residues.flatten(2).transpose(1, 2), self.groups), gradient.degree)
        of_filters = matmul(rows.transpose(1, 2), self.rows)
        of_rows = matmul(rows, self.matrix)
        zeros = wrap(torch.zeros(self.x.numel() + 1, dtype=torch.int64))
        flat = wrap(of_rows.residues.reshape(-1), of_rows.degree)
        of_x = accumulate(zeros, self.places.reshape(-1), flat)
        return (
            wrap(of_x.residues[1:].view(self.x.shape).clone(), of_x.degree),
            wrap(of_filters.residues.view(self.filters.shape), of_filters.degree),
        )


@rule("convolution")
def _(func, args, kwargs):
    x, weight, bias, stride, padding, dilation, is_transposed, _, groups = args
    out = Convolution(x, weight, stride, padding, dilation, is_transposed, groups).out()
    return out if bias is None else add(out, bias.view(-1, *[1] * (out.dim() - 2)))


@rule("convolution_backward")
def _(func, args, kwargs):
    gradient, x, weight, _, stride, padding, dilation, is_transposed, _, groups, _ = args
    of_x, of_filters = Convolution(x, weight, stride, padding, dilation, is_transposed, groups).backward(gradient)
    return of_x, of_filters, total(gradient, [0, *range(2, gradient.dim())])
