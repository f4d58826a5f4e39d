"""PyTorch's private names that proofs need, in one place, and the versions that they were tried with."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

OLDEST, NEWEST = (2, 10), (2, 15)  # the versions tried
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

if VERSION < OLDEST:
    wanted = ".".join(map(str, OLDEST))
    raise ImportError(f"equipart.torch wants PyTorch {wanted} or newer; this is {torch.__version__}")

try:
    from torch._C import _DisableTorchDispatch as below  # the operators' own kernels, for what has no elements
    from torch._C import _disabled_torch_function_impl as no_function  # noqa: F401
    from torch._C import _current_autograd_node as current_node  # the operator whose backward runs, or None
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex as ScalarIndices  # noqa: F401
    from torch._decomp import decomposition_table as decompositions
    from torch._higher_order_ops.flex_attention import FlexAttentionHOP as FlexAttention  # noqa: F401
    from torch._library.custom_ops import OPDEFS as libraries  # operators that Python libraries define, by name
    from torch._subclasses import FakeTensor  # noqa: F401
    from torch.autograd.graph import _engine_run_backward as run_backward  # noqa: F401
    from torch.autograd import _get_sequence_nr as next_number  # of the next operator that autograd sees
    from torch.distributed._functional_collectives import AsyncCollectiveTensor  # noqa: F401
    from torch.distributed.fsdp._init_utils import _check_module_states_for_sync_module_states as fsdp_wants_cuda  # noqa: F401
    from torch.distributed.fsdp._flat_param import _same_storage as same_storage  # noqa: F401
    from torch.nn.attention.flex_attention import _validate_device as on_flex_device  # noqa: F401
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv as over_scores  # noqa: F401
    from torch.optim.adagrad import _single_tensor_adagrad as single_adagrad  # noqa: F401
    from torch.optim.adam import _single_tensor_adam as single_adam  # noqa: F401
    from torch.optim.optimizer import _get_capturable_supported_devices as capturable_devices  # noqa: F401
    from torch.optim.sgd import _single_tensor_sgd as single_sgd  # noqa: F401
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: F401
    from torch.utils._pytree import tree_leaves, tree_map  # noqa: F401

    dist.distributed_c10d._world.pg_names, torch.Tensor._make_wrapper_subclass
except (ImportError, AttributeError) as error:
    tried = " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))
    raise ImportError(f"equipart.torch was tried with PyTorch {tried}; in {torch.__version__}, {error}") from None


def number(node):
    """The number of an autograd node's forward operator."""
    return node._sequence_nr()


def named_groups():
    """The names of all process groups."""
    return dist.distributed_c10d._world.pg_names


def is_context_parallel(x):
    """True for a distributed tensor where attention is by a ring of `context_parallel`."""
    if not isinstance(x, DTensor):
        return False
    return torch.ops.aten._scaled_dot_product_flash_attention.default in DTensor._op_dispatcher._custom_op_handlers


def premultiplier(operation):
    """What a sum's terms are multiplied by."""
    return operation.__getstate__()[1]


def arguments(func):
    """The arguments of an operator, as its schema has them."""
    return func._schema.arguments


def returns(func):
    """What an operator returns, as its schema has it."""
    return func._schema.returns


def on_host(func, *args, **kwargs):
    """What an operator's kernel for the host returns, which has to be one in Python."""
    return func._op_dk(torch._C.DispatchKey.CPU, *args, **kwargs)


def accumulators(outputs):
    """The parameters, by `id`, whose gradients a backward from these tensors would reach."""
    todo, seen, found = [x.grad_fn for x in outputs if x.grad_fn is not None], set(), set()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            found |= {id(node.variable)} if hasattr(node, "variable") else set()
            todo += [before for before, _ in node.next_functions if before is not None]
    return found


def at_end(call):
    """Has a function called at the end of the backward that runs."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def written_in_python(func):
    """The function for the host that a library's operator was defined by, or None."""
    kernels = getattr(libraries.get(func._schema.name), "_backend_fns", {}) if func.namespace != "prims" else {}
    return kernels.get("cpu") or kernels.get(None)


def is_mutable(func):
    """True for an operator that writes into an operand."""
    return func._schema.is_mutable


def overload(func):
    """The name of an operator's overload."""
    return func._overloadname


def hooks(parameter):
    """The hooks on a parameter's gradient, and those on its accumulated one."""
    return (parameter._backward_hooks or {}).values(), (parameter._post_accumulate_grad_hooks or {}).values()


def subclass(cls, **options):
    """A tensor of a class that wraps others."""
    size = options.pop("size")
    return torch.Tensor._make_wrapper_subclass(cls, size, **options)
