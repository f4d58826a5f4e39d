"""The host in place of CUDA, and Python in place of C++, where PyTorch asks for devices, streams and memory."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed import fsdp

from .field import Refused, nobodys, run
from .plain import BESIDE
from .private import capturable_devices, fsdp_wants_cuda, on_flex_device, same_storage
from .ranks import Result, reduced_to, words
from .reducer import STANDS

HOST = torch.device("cpu")


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


def as_on_cuda(forward):
    """A module's forward that runs on devices other than the host only."""

    def called(*args):
        name, torch._C._get_privateuse1_backend_name = torch._C._get_privateuse1_backend_name, lambda: "cpu"
        try:
            return forward(*args)
        finally:
            torch._C._get_privateuse1_backend_name = name

    return called


def by_ring(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Attention as on CUDA, where `context_parallel` puts a ring in place of a kernel."""
    if attn_mask is not None or enable_gqa:
        raise Refused(f"attention with a mask, or with shared heads, among parts of the context{run().place()}")
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]


def resized(storage, size, resize=torch.UntypedStorage.resize_):
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


def stands():
    """Puts what stands for others into PyTorch's classes. Returns functions, each with the one to take in its place."""
    nothing = lambda *args, **options: None
    replica = torch.nn.parallel.DistributedDataParallel
    sharded, mesh, whole = fsdp.FullyShardedDataParallel.__init__, dist.DeviceMesh.__init__, replica.__init__
    replica.__init__ = lambda self, module, ids=None, out=None, *args, device_ids=None, output_device=None, **options: whole(
        self, module, None, None, *args, **options
    )
    replica._passing_sync_batchnorm_handle = nothing
    fsdp.FullyShardedDataParallel.__init__ = lambda *args, **more: sharded(*args, **more | {"device_id": HOST})
    dist.DeviceMesh.__init__ = lambda self, device_type, *args, **options: mesh(self, "cpu", *args, **options)
    torch.nn.SyncBatchNorm.forward = as_on_cuda(torch.nn.SyncBatchNorm.forward)
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.UntypedStorage.resize_ = resized
    torch.Tensor.record_stream, torch.Tensor.__reduce_ex__ = nothing, reduced_to
    for name in ("Stream", "stream", "current_stream"):
        setattr(torch.cpu, name, CUDA[name])
    for name, stand in STANDS.items():
        setattr(dist, name, stand)
    devices = [(capturable_devices, lambda supports_xla=True: ["cpu"]), (on_flex_device, nothing), (fsdp_wants_cuda, nothing)]
    gathered = lambda futures: Result(lambda: [[future.wait() for future in futures], futures][1])
    devices += [(torch.futures.collect_all, gathered), (torch.futures.wait_all, lambda futures: [x.wait() for x in futures])]
    memory = lambda x: words(getattr(x, "_local_tensor", x)).untyped_storage().data_ptr()
    devices += [(same_storage, lambda x, y: memory(x) == memory(y))]
    load = torch.load
    devices += [(load, lambda *of, map_location=None, **options: load(*of, map_location=HOST, **options))]
    return devices + [(getattr(torch.cuda, name), value) for name, value in CUDA.items()]
