"""The collectives of `torch.distributed` among rank threads, for plain tensors and those of the field."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed import ReduceOp

from .field import Refused, rule, run, wrap
from .meeting import HERE

OPERATIONS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN}


def done(method):
    """A collective that writes into tensors and returns its work, which is done."""

    def called(*args):
        with torch.no_grad():
            method(*args)
        future = torch.futures.Future()
        future.set_result(None)
        return _create_work_from_future(future)

    return called


def write(to, x):
    """Writes what a collective gives into a tensor, unseen by autograd."""
    to.detach().copy_(x.reshape(to.shape))


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


class Ranks(dist.ProcessGroup):
    """The process group of rank threads."""

    def getBackendName(self):
        return "equipart"

    @property
    def group_name(self):
        return dist.distributed_c10d._world.pg_names[self]

    def members(self):
        return tuple(dist.get_process_group_ranks(self))

    def exchange(self, what, tensors):
        """Gives tensors to all ranks of the group and returns those of all, in their order."""
        if what in ("all_reduce", "broadcast", "reduce_scatter"):
            what += f" of {', '.join(str(list(x.shape)) for x in tensors)}"
        run().meets(what, self.members(), self.rank() == 0)
        return HERE.meeting.exchange(self.members(), what, [x.detach().clone() for x in tensors])

    def mine(self, every):
        return [given[self.rank()] for given in every]

    @done
    def allreduce(self, tensors, opts):
        every = self.exchange("all_reduce", tensors)
        for at, x in enumerate(tensors):
            write(x, joined(opts.reduceOp, [given[at] for given in every]))

    @done
    def reduce(self, tensors, opts):
        every = self.exchange("reduce", tensors)
        if self.rank() == opts.rootRank:
            write(tensors[0], joined(opts.reduceOp, [given[0] for given in every]))

    @done
    def broadcast(self, tensors, opts):
        for x, new in zip(tensors, self.exchange("broadcast", tensors)[opts.rootRank]):
            write(x, new)

    @done
    def allgather(self, outs, tensors, opts=None):
        for at, given in enumerate(self.exchange("all_gather", tensors)):
            for out, x in zip(outs, given):
                write(out[at], x)

    @done
    def all_gather_single(self, out, tensor, opts=None):
        write(out, torch.cat([given[0].reshape(-1) for given in self.exchange("all_gather", [tensor])]))

    @done
    def reduce_scatter(self, outs, tensors, opts):
        for out, parts in zip(outs, tensors):
            write(out, joined(opts.reduceOp, self.mine(self.exchange("reduce_scatter", parts))))

    @done
    def reduce_scatter_single(self, out, tensor, opts):
        whole = joined(opts.reduceOp, [given[0] for given in self.exchange("reduce_scatter", [tensor])])
        write(out, whole.reshape(self.size(), -1)[self.rank()])

    @done
    def alltoall(self, outs, tensors, opts=None):
        for out, x in zip(outs, self.mine(self.exchange("all_to_all", tensors))):
            write(out, x)

    @done
    def all_to_all_single(self, out, tensor, received, sent, opts=None):
        parts = tensor.split(list(sent) or tensor.shape[0] // self.size())
        write(out, torch.cat(self.mine(self.exchange("all_to_all", parts))))

    @done
    def scatter(self, outs, tensors, opts):
        every = self.exchange("scatter", tensors[0] if self.rank() == opts.rootRank else [])
        write(outs[0], every[opts.rootRank][self.rank()])

    @done
    def gather(self, outs, tensors, opts):
        every = self.exchange("gather", tensors)
        for out, given in zip(outs[0] if self.rank() == opts.rootRank else [], every):
            write(out, given[0])

    @done
    def send(self, tensors, to, tag=0):
        HERE.meeting.send(self.members()[to], tag, tensors[0].detach().clone())

    @done
    def recv(self, tensors, source, tag=0):
        write(tensors[0], HERE.meeting.receive(self.members()[source], tag))

    @done
    def barrier(self, opts=None):
        self.exchange("barrier", [])

    def all_gather_single_coalesced(self, outs, tensors, opts=None):
        return [self.all_gather_single(*pair) for pair in zip(outs, tensors)][-1]

    def reduce_scatter_single_coalesced(self, outs, tensors, opts):
        return [self.reduce_scatter_single(*pair, opts) for pair in zip(outs, tensors)][-1]

    allreduce_coalesced = allreduce
    _allgather_base, alltoall_base, _reduce_scatter_base = all_gather_single, all_to_all_single, reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # PyTorch's names before 2.15
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


dist.Backend.register_backend("equipart", lambda store, rank, size, timeout: Ranks(rank, size), devices=["cpu"])


def functional(name):
    """Makes a function the rule of a functional collective, whose last argument is a group's name."""

    def put(function):
        def called(func, args, kwargs):
            groups = dist.distributed_c10d._world.pg_names.items()
            return function(next(group for group, known in groups if known == args[-1]), *args[:-1])

        rule(name)(called)
        return function

    return put


def empty(x, rows):
    """A new tensor like this one with another number of rows."""
    return wrap(torch.zeros((rows, *x.shape[1:]), dtype=torch.int64), dtype=x.dtype)


@functional("_c10d_functional.all_reduce")
def _(group, x, operation):
    return reduced(group, x.clone(), operation)


@functional("_c10d_functional.all_reduce_")
def reduced(group, x, operation):
    group.allreduce([x], SimpleNamespace(reduceOp=OPERATIONS[operation.lower()]))
    return x


@functional("_c10d_functional.all_gather_into_tensor")
def _(group, x, size):
    out = empty(x, x.shape[0] * size)
    group.all_gather_single(out, x)
    return out


@functional("_c10d_functional.reduce_scatter_tensor")
def _(group, x, operation, size):
    out = empty(x, x.shape[0] // size)
    group.reduce_scatter_single(out, x, SimpleNamespace(reduceOp=OPERATIONS[operation.lower()]))
    return out


@functional("_c10d_functional.all_to_all_single")
def _(group, x, received, sent):
    out = empty(x, sum(received))
    group.all_to_all_single(out, x, received, sent)
    return out


@functional("_c10d_functional.broadcast")
def _(group, x, root):
    return sent(group, x.clone(), root)


@functional("_c10d_functional.broadcast_")
def sent(group, x, root):
    group.broadcast([x], SimpleNamespace(rootRank=root))
    return x


@rule("_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd")
def _(func, args, kwargs):
    return args[0]


@functional("_dtensor.shard_dim_alltoall")
def _(group, x, gathered, split):
    every = [given[0] for given in group.exchange("all_to_all", [x])]
    return torch.cat(every, gathered).chunk(group.size(), split)[group.rank()].contiguous()
