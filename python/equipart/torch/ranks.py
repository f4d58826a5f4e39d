"""Ranks as threads of one process, and the collectives among them.

A program calls `torch.distributed` as ever. Each rank is a thread with a world of its own, so a program may do other things
on other ranks. Ranks that wait for each other, or call different collectives, are named at once: nothing hangs.
"""

import threading
from collections import defaultdict, deque

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed import ReduceOp
from torch.distributed.tensor.parallel import loss as parallel_loss
from torch.testing._internal.distributed import multi_threaded_pg

from .field import Refused, rule, run, wrap

HERE = threading.local()  # `meeting` and `rank` of this thread
OPERATIONS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN}


class Stopped(Exception):
    """Another rank has failed."""


class Meeting:
    """Where ranks meet: each call of a group, and each message."""

    def __init__(self, ranks):
        self.changed = threading.Condition()
        self.given = defaultdict(dict)  # by group and the number of the call in it: what each rank gave
        self.calls = defaultdict(int)  # by group and rank
        self.mail = defaultdict(deque)
        self.waiting, self.running, self.failure = {}, ranks, None

    def exchange(self, group, what, mine):
        """Gives `mine` to all ranks of a group and returns what all of them gave, in their order."""
        rank = HERE.rank
        with self.changed:
            number = self.calls[group, rank]
            self.calls[group, rank] += 1
            here = self.given[group, number]
            for other, (their, _) in here.items():
                if their != what:
                    self.fails(Refused(f"rank {other} calls {their} where rank {rank} calls {what}{run().place()}"))
            here[rank] = what, mine
            self.changed.notify_all()
            self.wait(lambda: len(here) == len(group), f"{what} among ranks {list(group)}")
            return [here[member][1] for member in group]

    def send(self, to, tag, tensor):
        with self.changed:
            self.mail[HERE.rank, to, tag].append(tensor)
            self.changed.notify_all()

    def receive(self, source, tag):
        with self.changed:
            box = self.mail[source, HERE.rank, tag]
            self.wait(lambda: box, f"a message from rank {source}")
            return box.popleft()

    def wait(self, ready, what):
        self.waiting[HERE.rank] = ready, what
        self.stuck()
        self.changed.wait_for(lambda: self.failure or ready())
        del self.waiting[HERE.rank]
        if not ready():
            raise Stopped

    def stuck(self):
        """Fails if no rank can go on."""
        if self.waiting and len(self.waiting) == self.running and not any(ready() for ready, _ in self.waiting.values()):
            waits = "; ".join(f"rank {rank} for {what}" for rank, (_, what) in sorted(self.waiting.items()))
            self.fails(Refused(f"the ranks that are left wait for others in vain: {waits}"), raises=False)

    def fails(self, error, raises=True):
        self.failure = self.failure or error
        self.changed.notify_all()
        if raises:
            raise error

    def ends(self, error):
        with self.changed:
            self.running -= 1
            if error is not None and not isinstance(error, Stopped):
                self.fails(error, raises=False)
            self.stuck()
            self.changed.notify_all()


class Ranks(dist.ProcessGroup):
    """The process group of rank threads, for plain tensors and those of the field."""

    def __init__(self, rank, size):
        super().__init__(rank, size)

    def getBackendName(self):
        return "equipart"

    @property
    def group_name(self):
        return dist.distributed_c10d._world.pg_names[self]

    def allreduce(self, tensors, opts):
        return done(all_reduce(self, tensors, opts.reduceOp))

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts):
        return done(reduce(self, tensors, opts.reduceOp, opts.rootRank))

    def broadcast(self, tensors, opts):
        return done(broadcast(self, tensors, opts.rootRank))

    def allgather(self, outs, tensors, opts=None):
        return done(all_gather(self, outs, tensors))

    def _allgather_base(self, out, tensor, opts=None):
        return done(all_gather_into(self, out, tensor))

    def reduce_scatter(self, outs, tensors, opts):
        return done(reduce_scatter(self, outs, tensors, opts.reduceOp))

    def _reduce_scatter_base(self, out, tensor, opts):
        return done(reduce_scatter_tensor(self, out, tensor, opts.reduceOp))

    def all_gather_single_coalesced(self, outs, tensors, opts=None):
        return done([all_gather_into(self, *pair) for pair in zip(outs, tensors)])

    def reduce_scatter_single_coalesced(self, outs, tensors, opts):
        return done([reduce_scatter_tensor(self, *pair, opts.reduceOp) for pair in zip(outs, tensors)])

    def alltoall(self, outs, tensors, opts=None):
        return done(all_to_all(self, outs, tensors))

    def alltoall_base(self, out, tensor, to, of, opts=None):
        return done(all_to_all_single(self, out, tensor, to, of))

    def scatter(self, outs, tensors, opts):
        return done(scatter(self, outs, tensors, opts.rootRank))

    def gather(self, outs, tensors, opts):
        return done(gather(self, outs, tensors, opts.rootRank))

    def send(self, tensors, to, tag=0):
        return done(send(self, tensors, to, tag))

    def recv(self, tensors, source, tag=0):
        return done(receive(self, tensors, source, tag))

    def barrier(self, opts=None):
        return done(exchange(self, "barrier", []))

    all_gather_single, all_to_all_single = _allgather_base, alltoall_base  # newer names
    reduce_scatter_single = _reduce_scatter_base
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def done(result):
    """The work of a collective, which is done."""
    future = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


def members(group):
    return tuple(dist.get_process_group_ranks(group))


def exchange(group, what, tensors):
    """Gives tensors to all ranks of a group and returns those of all."""
    run().meets(what, members(group))
    copies = [x.detach().clone() for x in tensors]
    return HERE.meeting.exchange(members(group), what, copies)


def joined(operation, parts):
    """The sum of tensors, or what else an operation makes of them."""
    every = torch.stack(parts)
    operation = getattr(operation, "op", operation)
    if operation in (ReduceOp.SUM, ReduceOp.AVG):
        out = every.sum(0, dtype=parts[0].dtype)
        return out / len(parts) if operation == ReduceOp.AVG else out
    if operation in (ReduceOp.MAX, ReduceOp.MIN):
        return every.amax(0) if operation == ReduceOp.MAX else every.amin(0)
    raise Refused(f"a collective joins by {operation}{run().place()}")


@torch.no_grad()
def all_reduce(group, tensors, operation):
    every = exchange(group, "all_reduce", tensors)
    for at, x in enumerate(tensors):
        x.detach().copy_(joined(operation, [parts[at] for parts in every]))
    return tensors


@torch.no_grad()
def reduce(group, tensors, operation, root):
    every = exchange(group, "reduce", tensors)
    if root == dist.get_rank(group):
        for at, x in enumerate(tensors):
            x.detach().copy_(joined(operation, [parts[at] for parts in every]))
    return tensors


@torch.no_grad()
def broadcast(group, tensors, root):
    every = exchange(group, "broadcast", tensors)
    for x, new in zip(tensors, every[root]):
        x.detach().copy_(new)
    return tensors


@torch.no_grad()
def all_gather(group, outs, tensors):
    every = exchange(group, "all_gather", tensors)
    for at, out in enumerate(outs):
        for x, parts in zip(out, every):
            x.detach().copy_(parts[at])
    return outs


@torch.no_grad()
def all_gather_into(group, out, tensor):
    every = [parts[0] for parts in exchange(group, "all_gather", [tensor])]
    out.detach().copy_(torch.cat([x.reshape(-1) for x in every]).view(out.shape))
    return out


@torch.no_grad()
def reduce_scatter(group, outs, tensors, operation):
    me = dist.get_rank(group)
    for out, parts in zip(outs, tensors):
        every = exchange(group, "reduce_scatter", parts)
        out.detach().copy_(joined(operation, [given[me] for given in every]))
    return outs


@torch.no_grad()
def reduce_scatter_tensor(group, out, tensor, operation):
    every = [parts[0] for parts in exchange(group, "reduce_scatter", [tensor])]
    whole = joined(operation, every).reshape(-1)
    out.detach().copy_(whole[dist.get_rank(group) * out.numel() :][: out.numel()].view(out.shape))
    return out


@torch.no_grad()
def all_to_all(group, outs, tensors):
    me = dist.get_rank(group)
    for out, parts in zip(outs, exchange(group, "all_to_all", tensors)):
        out.detach().copy_(parts[me])
    return outs


@torch.no_grad()
def all_to_all_single(group, out, tensor, to, of):
    ranks, me = dist.get_world_size(group), dist.get_rank(group)
    of = of or [tensor.shape[0] // ranks] * ranks
    parts = list(tensor.split(list(of)))
    every = exchange(group, "all_to_all", parts)
    out.detach().copy_(torch.cat([given[me] for given in every]))
    return out


@torch.no_grad()
def scatter(group, outs, tensors, root):
    me = dist.get_rank(group)
    every = exchange(group, "scatter", tensors[0] if me == root else [])
    outs[0].detach().copy_(every[root][me])
    return outs


@torch.no_grad()
def gather(group, outs, tensors, root):
    every = exchange(group, "gather", tensors)
    if dist.get_rank(group) == root:
        for x, parts in zip(outs[0], every):
            x.detach().copy_(parts[0])
    return outs


@torch.no_grad()
def send(group, tensors, to, tag):
    HERE.meeting.send(members(group)[to], tag, tensors[0].detach().clone())
    return tensors


@torch.no_grad()
def receive(group, tensors, source, tag):
    tensors[0].detach().copy_(HERE.meeting.receive(members(group)[source], tag))
    return tensors


# The operators of `torch.distributed` and of its functional form, on tensors of the field: where in their arguments the
# group stands, and the collective with the arguments that it takes.
COLLECTIVES = {
    "c10d.allreduce_": (1, lambda g, a: all_reduce(g, a[0], a[2])),
    "c10d.allreduce_coalesced_": (1, lambda g, a: all_reduce(g, a[0], a[2])),
    "c10d.reduce_": (1, lambda g, a: reduce(g, a[0], a[2], a[3])),
    "c10d.broadcast_": (1, lambda g, a: broadcast(g, a[0], a[2])),
    "c10d.allgather_": (2, lambda g, a: all_gather(g, a[0], a[1])),
    "c10d._allgather_base_": (2, lambda g, a: all_gather_into(g, a[0], a[1])),
    "c10d.allgather_into_tensor_coalesced_": (2, lambda g, a: [all_gather_into(g, *x) for x in zip(a[0], a[1])]),
    "c10d.reduce_scatter_": (2, lambda g, a: reduce_scatter(g, a[0], a[1], a[3])),
    "c10d._reduce_scatter_base_": (2, lambda g, a: reduce_scatter_tensor(g, a[0], a[1], a[3])),
    "c10d.reduce_scatter_tensor_coalesced_": (
        2,
        lambda g, a: [reduce_scatter_tensor(g, *x, a[3]) for x in zip(a[0], a[1])],
    ),
    "c10d.alltoall_": (2, lambda g, a: all_to_all(g, a[0], a[1])),
    "c10d.alltoall_base_": (2, lambda g, a: all_to_all_single(g, a[0], a[1], a[3], a[4])),
    "c10d.scatter_": (2, lambda g, a: scatter(g, a[0], a[1], a[3])),
    "c10d.gather_": (2, lambda g, a: gather(g, a[0], a[1], a[3])),
    "c10d.send": (1, lambda g, a: send(g, a[0], a[2], a[3])),
    "c10d.recv_": (1, lambda g, a: receive(g, a[0], a[2], a[3])),
}
WORK_ONLY = "reduce_ allgather_into_tensor_coalesced_ reduce_scatter_tensor_coalesced_ alltoall_base_ send recv_".split()


def collective(func, args, kwargs):
    """A rule for operators that write into tensors."""
    name = func.overloadpacket.__name__
    at, calls = COLLECTIVES["c10d." + name]
    out = calls(dist.ProcessGroup.unbox(args[at]), args)
    work = done(None).boxed()
    return work if name in WORK_ONLY else (out, work)


rule(*COLLECTIVES)(collective)


def group_of(name):
    """The group of this rank by its name."""
    names = dist.distributed_c10d._world.pg_names
    return next(group for group, known in names.items() if known == name)


def empty(x, rows):
    """A new tensor like this one with another number of rows."""
    return wrap(torch.zeros((rows, *x.shape[1:]), dtype=torch.int64), dtype=x.dtype)


@rule("_c10d_functional.all_reduce", "_c10d_functional.all_reduce_")
def _(func, args, kwargs):
    x, operation, name = args
    x = x if func.overloadpacket.__name__.endswith("_") else x.clone()
    return all_reduce(group_of(name), [x], OPERATIONS[operation.lower()])[0]


@rule("_c10d_functional.all_gather_into_tensor")
def _(func, args, kwargs):
    x, size, name = args
    return all_gather_into(group_of(name), empty(x, x.shape[0] * size), x)


@rule("_c10d_functional.reduce_scatter_tensor")
def _(func, args, kwargs):
    x, operation, size, name = args
    return reduce_scatter_tensor(group_of(name), empty(x, x.shape[0] // size), x, OPERATIONS[operation.lower()])


@rule("_c10d_functional.all_to_all_single")
def _(func, args, kwargs):
    x, to, of, name = args
    return all_to_all_single(group_of(name), empty(x, sum(to)), x, to, of)


@rule("_c10d_functional.broadcast", "_c10d_functional.broadcast_")
def _(func, args, kwargs):
    x, root, name = args
    return broadcast(group_of(name), [x.clone()], root)[0]


@rule("_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd")
def _(func, args, kwargs):
    return args[0]


@rule("_dtensor.shard_dim_alltoall")
def _(func, args, kwargs):
    x, gathered, split, name = args
    group = group_of(name)
    every = [parts[0] for parts in exchange(group, "all_to_all", [x])]
    return torch.cat(every, gathered).chunk(len(every), split)[dist.get_rank(group)].contiguous()


def create(store, rank, size, timeout):
    return Ranks(rank, size)


dist.Backend.register_backend("equipart", create, devices=["cpu"])


class Shared:
    """A state of the process, as `loss_parallel` sets one, that rank threads enter and leave each for itself."""

    def __init__(self, set, reset):
        self.set, self.reset, self.inside, self.lock = set, reset, 0, threading.Lock()

    def enter(self):
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.set()

    def leave(self):
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.reset()


def spawn(ranks, body):
    """Runs `body(rank)` on so many ranks. Returns what each returned; raises what the first that failed raised."""
    meeting, store, results = Meeting(ranks), dist.HashStore(), [None] * ranks
    seen = torch.is_grad_enabled()

    def thread(rank):
        HERE.meeting, HERE.rank, error = meeting, rank, None
        try:
            torch.set_grad_enabled(seen)
            dist.init_process_group("equipart", rank=rank, world_size=ranks, store=store)
            results[rank] = body(rank)
        except BaseException as raised:
            error = raised
        finally:
            meeting.ends(error)
            try:
                dist.destroy_process_group()
            except Exception:
                pass  # it was not begun

    multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    enable, disable = parallel_loss._enable_custom_loss_ops, parallel_loss._disable_custom_loss_ops
    shared = Shared(enable, disable)
    parallel_loss._enable_custom_loss_ops, parallel_loss._disable_custom_loss_ops = shared.enter, shared.leave
    try:
        threads = [threading.Thread(target=thread, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
        [started.start() for started in threads]
        [started.join() for started in threads]
    finally:
        parallel_loss._enable_custom_loss_ops, parallel_loss._disable_custom_loss_ops = enable, disable
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        multi_threaded_pg._uninstall_threaded_pg()
    if meeting.failure:
        raise meeting.failure
    return results


