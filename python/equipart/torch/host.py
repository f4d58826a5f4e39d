"""What stands around a program in a rank: modes that see its plain tensors and its devices, a host in place of CUDA, and the
process group that a script would begin."""

import contextlib
import math
import sys

import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from .field import FieldTensor, Refused, dispatch, field, nobodys, run
from .meeting import HERE
from .plain import BESIDE, is_beside, is_of_floats
from .reducer import STANDS
from .private import (
    FakeTensor, FlexAttention, TorchDispatchMode, capturable_devices, fsdp_wants_cuda, is_context_parallel, on_flex_device, run_backward, tree_leaves, tree_map,
)  # fmt: skip
from .rules.flex import attend

EMPTY = {getattr(torch.ops.aten, name) for name in ("empty", "empty_strided", "empty_like", "new_empty")}
HOST = torch.device("cpu")


class Plain(TorchDispatchMode):
    """Sees operators on plain tensors into which elements were written; memory that holds nothing yet is not a number."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(kind not in (FieldTensor, torch.Tensor, torch.nn.Parameter) for kind in types):
            return func(*args, **kwargs) if FakeTensor in types else NotImplemented  # it holds others, and unwraps them
        if FieldTensor not in types and (func.is_view or not BESIDE or not any(map(is_beside, tree_leaves((args, kwargs))))):
            out = func(*args, **kwargs)
            if func.overloadpacket in EMPTY and is_of_floats(out):
                out.fill_(torch.nan)
            return out
        if not BESIDE:
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


def by_ring(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Attention as on CUDA, where `context_parallel` puts a ring in place of a kernel."""
    if attn_mask is not None or enable_gqa:
        raise Refused(f"attention with a mask, or with shared heads, among parts of the context{run().place()}")
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]


def like(x, y):
    """y as what x is: a parameter, or a tensor."""
    return torch.nn.Parameter(y.detach(), x.requires_grad) if isinstance(x, torch.nn.Parameter) else y.detach()


def is_cuda(device):
    """True for what names a device of CUDA, as a number does."""
    is_named = isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda"
    return is_named or isinstance(device, int) and not isinstance(device, bool)


class Stream(contextlib.AbstractContextManager):
    """A stream or an event, where all is done in order."""

    def __init__(self, *args, **options):
        pass

    def __exit__(self, *error):
        pass

    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.0

    def wait(self, *others):
        return self

    record = record_event = wait_event = wait_stream = synchronize = wait


CUDA = {
    "Stream": Stream,
    "Event": Stream,
    "stream": lambda stream: stream or Stream(),
    "device": Stream,
    "current_stream": Stream,
    "default_stream": Stream,
    "current_device": lambda: 0,
    "device_count": lambda: dist.get_world_size(),
    "set_device": lambda device: None,
    "synchronize": lambda device=None: None,
    "is_bf16_supported": lambda *args, **options: True,
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    "manual_seed": lambda seed: torch.default_generator.manual_seed(seed),
    "manual_seed_all": lambda seed: torch.default_generator.manual_seed(seed),
    "default_generators": (torch.default_generator,),
    "_lazy_call": lambda call, **options: call(),
}


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


def as_on_cuda(forward):
    """A module's forward that runs on devices other than the host only."""

    def called(*args):
        name, torch._C._get_privateuse1_backend_name = torch._C._get_privateuse1_backend_name, lambda: "cpu"
        try:
            return forward(*args)
        finally:
            torch._C._get_privateuse1_backend_name = name

    return called


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
        with host:  # which a call of `backward` has left
            return engine(*args, **options)

    ends = [(dist.init_process_group, nothing), (dist.destroy_process_group, nothing)]
    stands = [(capturable_devices, lambda supports_xla=True: ["cpu"]), (on_flex_device, nothing)]
    replace([*ends, *stands, (make, new_group), (engine, backward)])
    FlexAttention.__call__ = attend
    torch.backends.mkldnn.enabled = False  # whose kernels hold floats only
    host.__enter__()
    Plain().__enter__()
    for name in ("isfinite", "isnan", "isinf"):
        setattr(math, name, tested(getattr(math, name), lambda x, of=getattr(torch, name): bool(of(x))))
    for name in ("exp", "log", "sqrt"):
        setattr(math, name, tested(getattr(math, name), getattr(torch, name)))
    replace([(getattr(torch.cuda, name), value) for name, value in CUDA.items()])
    torch.nn.SyncBatchNorm.forward = as_on_cuda(torch.nn.SyncBatchNorm.forward)
    torch.nn.parallel.DistributedDataParallel._passing_sync_batchnorm_handle = nothing
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    sharded = fsdp.FullyShardedDataParallel.__init__
    fsdp.FullyShardedDataParallel.__init__ = lambda *args, **more: sharded(*args, **more | {"device_id": HOST})
    replace([(fsdp_wants_cuda, nothing)])
    resize = torch.UntypedStorage.resize_

    def resized(storage, size):
        """What is given back holds nobody's elements, also when it is taken again. The memory of elements itself stays."""
        if storage.device != HOST:  # of what PyTorch traces
            return resize(storage, size)
        if hasattr(storage, "is_of_elements"):
            storage.copy_(nobodys((storage.nbytes() // 8,)).untyped_storage())
            return storage
        own = BESIDE.pop(storage.data_ptr(), None) or getattr(storage, "own", None)
        was, storage.own, made = storage.nbytes(), own, resize(storage, size)
        if own is None:
            return made if was else made.fill_(255)  # which is no number
        if size not in (0, own.memory.numel() * own.memory.element_size()):
            raise Refused(f"a memory of elements gets another size{run().place()}")
        own.residues.copy_(nobodys(own.residues.shape))
        if size:
            own.memory.fill_(torch.nan)
            BESIDE[storage.data_ptr()] = own
        return made

    torch.UntypedStorage.resize_ = resized
    for name in ("Stream", "stream", "current_stream"):
        setattr(torch.cpu, name, CUDA[name])
    mesh = dist.DeviceMesh.__init__

    def on_host(self, device_type, *args, **options):
        mesh(self, "cpu", *args, **options)

    dist.DeviceMesh.__init__ = on_host
    for name, stands in STANDS.items():
        setattr(dist, name, stands)
    torch.Tensor.record_stream = lambda self, stream: None
    torch.compiler.set_stance("force_eager")
