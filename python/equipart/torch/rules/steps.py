"""What trainers do with gradients: fused steps of optimizers, and scales of a loss."""

from ..field import rule
from ..private import single_adagrad, single_adam, single_sgd


def unscaled(gradients, grad_scale=None, found_inf=None):
    """Divides gradients by the scale of the loss, if there is one. Returns whether there is a step."""
    if grad_scale is not None:
        [x.div_(grad_scale) for x in gradients]
    return found_inf is None or not bool(found_inf)


def fused(single, **fixed):
    """Makes a fused step the one of single tensors. The count of steps, the last list, already counts this one."""

    def steps(func, args, kwargs):
        options = {name: kwargs.pop(name) for name in ("grad_scale", "found_inf") if name in kwargs}
        if unscaled(args[1], **options):
            single(*args[:-1], [count - 1 for count in args[-1]], None, None, **kwargs, **fixed)

    return steps


PLAIN = dict(has_complex=False, differentiable=False)
rule("_fused_adam_")(fused(single_adam, **PLAIN, capturable=False, decoupled_weight_decay=False))
rule("_fused_adamw_")(fused(single_adam, **PLAIN, capturable=False, decoupled_weight_decay=True))
rule("_fused_adagrad_")(fused(single_adagrad, **PLAIN, has_sparse_grad=False))


@rule("_fused_sgd_")
def _(func, args, kwargs):
    options = {name: kwargs.pop(name) for name in ("grad_scale", "found_inf") if name in kwargs}
    is_first, buffers = kwargs.pop("is_first_step") and bool(args[2]), list(args[2]) or [None] * len(args[0])
    if unscaled(args[1], **options):
        made = [None] * len(buffers) if is_first else buffers
        single_sgd(*args[:2], made, None, None, **kwargs, has_sparse_grad=False)
        [old.copy_(new) for old, new in zip(buffers, made) if is_first]


@rule("_amp_foreach_non_finite_check_and_unscale_")
def _(func, args, kwargs):
    gradients, found_inf, scale = args
    [x.mul_(scale) for x in gradients]


@rule("is_pinned")
def _(func, args, kwargs):
    return False
