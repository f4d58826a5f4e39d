"""Operators of FSDP, which are made of others."""

import torch
import torch.distributed.fsdp  # noqa: F401 - whose operators these are

from ..field import put, rule
from ..private import on_host


@rule("fsdp.all_gather_copy_in", "fsdp.split_with_sizes_copy")
def _(func, args, kwargs):
    return on_host(func, *args, **kwargs)


@rule("fsdp.chunk_cat", "fsdp.chunk_cat_mixed_dtype")
def _(func, args, kwargs):
    put(kwargs["out"], torch._chunk_cat(*args))
