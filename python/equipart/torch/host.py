"""What stands around a program in a rank: modes that see its plain tensors and its devices, and the process group that a
script would begin."""

import math
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from .cuda import HOST, by_ring, stands
from .field import SEEN, FieldTensor, Number, Refused, dispatch, field, run
from .meeting import HERE
from .plain import BESIDE, is_beside, is_of_floats, taken
from .private import FakeTensor, FlexAttention, TorchDispatchMode, is_context_parallel, run_backward, tree_leaves, tree_map
from .rules.flex import attend

EMPTY = {getattr(torch.ops.aten, name) for name in ("empty", "empty_strided", "empty_like", "new_empty")}


class Plain(TorchDispatchMode):
    """Sees operators on plain tensors into which elements were written; memory that holds nothing yet is not a number."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_of_elements = any(issubclass(kind, FieldTensor) for kind in types)
        if any(kind not in (FieldTensor, Number, torch.Tensor, torch.nn.Parameter) for kind in types):
            return func(*args, **kwargs) if FakeTensor in types else NotImplemented  # it holds others, and unwraps them
        has_beside = BESIDE and not (func.is_view and not is_of_elements) and any(map(is_beside, taken(args, kwargs)))
        if not is_of_elements and not has_beside:
            out = func(*args, **kwargs)
            if func.overloadpacket in EMPTY and is_of_floats(out):
                out.fill_(torch.nan)
            return out
        if not has_beside:
            return dispatch(func, args, kwargs)
        lifted = {}
        lift = lambda x: lifted.setdefault(id(x), (field(x), x))[0] if is_beside(x) else x
        out = dispatch(func, tree_map(lift, args), tree_map(lift, kwargs))
        given = {id(new): old for new, old in lifted.values()}
        return tree_map(lambda x: given.get(id(x), x), out)


class Host(TorchFunctionMode):
    """Takes the host where a program says CUDA."""

    has_cuda = False  # whether it does

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "pin_memory":
            return args[0]
        if name in ("cuda", "cpu"):
            self.has_cuda |= name == "cuda"
            return self.elsewhere(args[0])
        if name == "numpy" and isinstance(args[0], FieldTensor):
            raise Refused(f"elements become an array of numpy{run().place()}")
        if name == "tensor" and any(isinstance(x, FieldTensor) for x in tree_leaves(args[0])):
            return stacked(args[0])
        if name == "type" and args[1:] == () and self.has_cuda:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if name in ("item", "tolist") and (isinstance(args[0], DTensor) or is_beside(args[0])):
            return getattr(args[0].full_tensor() if isinstance(args[0], DTensor) else field(args[0]), name)()
        if func == torch.Tensor.data.__set__ and isinstance(args[1], FieldTensor) and not isinstance(args[0], FieldTensor):
            return torch.utils.swap_tensors(args[0], like(args[0], args[1]))
        if name == "scaled_dot_product_attention" and is_context_parallel(args[0]):
            return by_ring(*args, **kwargs)
        for scale in {"alpha", "value"} & kwargs.keys():
            if isinstance(kwargs[scale], FieldTensor) and len(args) > 1:  # else it would become a number
                args, kwargs = (args[0], args[1] * kwargs[scale], *args[2:]), kwargs | {scale: 1}
        if kwargs.get("pin_memory"):
            kwargs = kwargs | {"pin_memory": False}
        if is_cuda(kwargs.get("device")):
            self.has_cuda = True
            kwargs = kwargs | {"device": HOST}
        if name == "to":
            is_host = lambda x: isinstance(x, (str, torch.device)) and torch.device(x) == HOST
            if any(map(is_cuda, args[1:])) or self.has_cuda and any(map(is_host, args[1:])):
                self.has_cuda = True
                args = (self.elsewhere(args[0]), *args[1:])
            args = (args[0], *(HOST if is_cuda(x) else x for x in args[1:]))
        return func(*args, **kwargs)

    def elsewhere(self, x):
        """A tensor in the memory of another device: a copy, if the program has one, and if it is no parameter."""
        return x.clone() if self.has_cuda and not isinstance(x, torch.nn.Parameter) else x


def stacked(x):
    """A tensor of numbers and elements in lists."""
    if isinstance(x, (list, tuple)):
        return torch.stack([stacked(of) for of in x])
    return x if isinstance(x, torch.Tensor) else torch.tensor(float(x))


def like(x, y):
    """y as what x is: a parameter, or a tensor."""
    return torch.nn.Parameter(y.detach(), x.requires_grad) if isinstance(x, torch.nn.Parameter) else y.detach()


def is_cuda(device):
    """True for what names a device of CUDA, as a number does."""
    is_named = isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda"
    return is_named or isinstance(device, int) and not isinstance(device, bool)


def tested(plain, of):
    """A function of `math` that takes elements, too."""
    return lambda x, *more: of(x) if isinstance(x, FieldTensor) else plain(x, *more)


def replace(functions):
    """Puts functions in place of others, wherever a module holds them."""
    known = {id(function): (function, by) for function, by in functions}
    for module in list(sys.modules.values()):
        for name, held in list(vars(module).items()):
            if id(held) in known:
                setattr(module, name, known[id(held)][1])


def settle():
    """Makes this process one that computes in the field: for good, as it is a rank."""
    make, host, engine = dist.new_group, Host(), run_backward
    nothing = lambda *args, **options: None

    def new_group(ranks=None, timeout=None, backend=None, *args, device_id=None, **options):
        everybody = tuple(range(dist.get_world_size()))
        if not options.get("use_local_synchronization"):
            named = list(ranks) if ranks is not None else list(everybody)
            HERE.link.gives(everybody, "", f"new_group of ranks {named}", None)()
        return make(ranks, timeout, None, *args, **options)

    def backward(*args, **options):
        SEEN.went_back |= options.get("accumulate_grad", False)
        with host:  # which a call of `backward` has left
            return engine(*args, **options)

    ends = [(dist.init_process_group, nothing), (dist.destroy_process_group, nothing)]
    replace([*ends, (make, new_group), (engine, backward), *stands()])
    FlexAttention.__call__ = attend
    torch.backends.mkldnn.enabled = False  # whose kernels hold floats only
    host.__enter__()
    Plain().__enter__()
    for name in ("isfinite", "isnan", "isinf"):
        setattr(math, name, tested(getattr(math, name), lambda x, of=getattr(torch, name): bool(of(x))))
    for name in ("exp", "log", "sqrt"):
        setattr(math, name, tested(getattr(math, name), getattr(torch, name)))
    torch.compiler.set_stance("force_eager")
