"""Scaled-dot-product attention: by products and a softmax, whatever way PyTorch would choose."""

import math

import torch

from ..elements import add, exp, matmul, mul, sub, total
from ..field import Refused, rule, run, wrap
from .functions import softmax


@rule("_fused_sdp_choice")
def _(func, args, kwargs):
    return 0  # of PyTorch's ways, the one by products and a softmax


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _(func, args, kwargs):
    attention = Attention(*args[:3], *args[3:], **kwargs)
    out = times(attention.weights(), attention.v)
    return out, wrap(torch.zeros(out.shape[:3], dtype=torch.int64))  # backward computes the weights anew


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _(func, args, kwargs):
    gradient, q, k, v = args[:4]
    attention = Attention(q, k, v, *args[6:], **kwargs)
    weights = attention.weights()
    return attention.backward(gradient, weights, total(mul(times(gradient, turned(attention.v)), weights), [-1], True))


@rule("_scaled_dot_product_flash_attention")
def _(func, args, kwargs):
    """The kernel for CUDA, which rings of PyTorch's `context_parallel` merge by its log-sum-exp."""
    attention = Attention(*args[:5], **kwargs)
    out, none = times(attention.weights(), attention.v), torch.tensor(0)
    return out, attention.scores.logsumexp(-1), none, none, args[0].shape[2], args[1].shape[2], none, none, none


@rule("_scaled_dot_product_flash_attention_backward")
def _(func, args, kwargs):
    gradient, q, k, v, out, log_sums = args[:6]
    attention = Attention(q, k, v, *args[10:12], **kwargs)
    weights = exp(sub(attention.scores, log_sums.unsqueeze(-1)))
    return attention.backward(gradient, weights, total(mul(gradient, out), [-1], True))


class Attention:
    """The factors of attention, with heads of keys and values repeated for those of queries that share them."""

    def __init__(self, q, k, v, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
        if dropout_p:
            raise Refused(f"attention drops out{run().place()}")
        self.shares = q.shape[1] // k.shape[1]
        self.k, self.v = (x.repeat_interleave(self.shares, 1) if self.shares > 1 else x for x in (k, v))
        self.scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        scores = mul(times(q, turned(self.k)), self.scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -math.inf)
            scores = add(scores, attn_mask)
        self.q, self.scores = q, scores

    def weights(self):
        return softmax(self.scores, -1, safe=True)

    def backward(self, gradient, weights, along):
        """The gradients of queries, keys and values; `along` is that of the output times it, summed over features."""
        d_scores = mul(mul(weights, sub(times(gradient, turned(self.v)), along)), self.scale)
        d_k, d_v = times(turned(d_scores), self.q), times(turned(weights), gradient)
        return times(d_scores, self.k), self.summed(d_k), self.summed(d_v)

    def summed(self, gradient):
        """The gradient of keys or values: the sum over the heads that share them."""
        return total(gradient.unflatten(1, (-1, self.shares)), [2]) if self.shares > 1 else gradient


def turned(x):
    return x.transpose(-1, -2)


def times(x, y):
    """Products of matrices in batches of batches."""
    out = matmul(x.reshape(-1, *x.shape[-2:]), y.reshape(-1, *y.shape[-2:]))
    return wrap(out.residues.view(*x.shape[:-1], y.shape[-1]), out.degree)
