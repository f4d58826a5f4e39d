"""The collectives of `torch.distributed` among ranks, for plain tensors and those of the field.

A call ends when it is waited for. Until then, what it will write holds elements that are nobody's, and what it sends must stay.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from .compare import Different
from .field import Degree, FieldTensor, Refused, flat, held, nobodys, rule, run, wrap
from .meeting import HERE
from .plain import is_of_floats
from .private import named_groups, premultiplier

OPERATIONS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN}


def packed(x):
    """A tensor as it goes to another process: its elements, and what is known of them."""
    x = held(x)
    if not isinstance(x, FieldTensor):
        return x.detach()
    words = x.residues.contiguous()
    known = run().functions.facts(flat(words)) if words.numel() else []
    noted = run().notes and run().notes.written(x.residues)
    return x.dtype, words.numpy(), x.degree.sides(), known, run().bounds(), noted


def unpacked(given, rank):
    """A tensor that came from a rank."""
    if isinstance(given, torch.Tensor):
        return given
    dtype, words, sides, known, bounds, noted = given
    run().functions.learn(known)
    run().hears(rank, *bounds)
    out = wrap(torch.from_numpy(words), Degree(*sides), dtype)
    if run().notes:
        run().notes.receives(out.residues, noted)
    return out


def reduced_to(x, protocol, plain=torch.Tensor.__reduce_ex__):
    """What a file, or an object that goes to other ranks, holds of a tensor."""
    if not isinstance(held(x), FieldTensor):
        return plain(x, protocol)
    dtype, words, *more = packed(x)
    return restored, (dtype, torch.from_numpy(words), more, HERE.rank, x.requires_grad, isinstance(x, torch.nn.Parameter))


def restored(dtype, words, more, rank, requires_grad, is_parameter):
    """A tensor from a file."""
    out = unpacked((dtype, words.numpy(), *more), rank)
    return torch.nn.Parameter(out, requires_grad) if is_parameter else out.requires_grad_(requires_grad)


torch.serialization.add_safe_globals([restored])


def write(to, x):
    """Writes what a collective gives into a tensor, unseen by autograd."""
    if to.dtype != x.dtype or to.numel() != x.numel():
        raise Refused(f"{kind(to)} is to receive what is sent as {kind(x)}{run().place()}")
    to.data.copy_(x.reshape(to.shape))


def kind(x):
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def named(operation):
    """How a sentence calls an operation that is not the sum."""
    name = str(getattr(operation, "op", operation)).rpartition(".")[2].lower()
    return "" if name == "sum" else f" by {name}"


def words(x):
    x = held(x)
    return x.residues if isinstance(x, FieldTensor) else x.detach()


class Result(torch.futures.Future):
    """What a call will give, and what follows from it: nobody has it who does not wait."""

    def __init__(self, end):
        super().__init__()
        self.end, self.asked = end, 0

    def wait(self):
        if self.end:
            end, self.end = self.end, None
            self.set_result(end())
        return super().wait()

    def done(self):
        self.asked += 1
        return not self.end or self.asked > 1 and self.wait() is not self

    def then(self, callback):
        return Result(lambda: (self.wait(), callback(self))[1])


class Pending(dist.Work):
    """A call that has begun: a `Work` of `torch.distributed`."""

    def __init__(self, what, sent, outs, result, finish):
        super().__init__()
        self.what, self.place, self.result_of, self.finish, self.asked = what, run().place(), result, finish, 0
        written = {words(x).untyped_storage().data_ptr() for x in outs}
        apart = [x for x in sent if words(x).untyped_storage().data_ptr() not in written]
        self.sent = [(x, words(x).clone()) for x in apart]
        for x in outs:
            if isinstance(held(x), FieldTensor):
                words(x).copy_(nobodys(x.shape))
            elif is_of_floats(x):
                x.data.fill_(torch.nan)
        self.outs = outs
        self.written = [(x, words(x).clone()) for x in outs if isinstance(held(x), FieldTensor)]
        HERE.pending.append(self)

    def __str__(self):
        return f"{self.what}{self.place}, on rank {HERE.rank}"

    def wait(self, timeout=None):
        if self not in HERE.pending:
            return True
        HERE.pending.remove(self)
        self.check()
        with torch.no_grad():
            self.finish(self.result_of())
        return True

    def check(self):
        """Fails if what is on its way has been overwritten."""
        for every, does in ((self.sent, "it sends"), (self.written, "it will write")):
            if not all(torch.equal(words(x), before) for x, before in every):
                raise Different(f"what {does} is overwritten before {self} is waited for")

    synchronize = block_current_stream = wait

    def is_completed(self):
        """Not when it is asked first, so that who asks only once has not waited; who asks on has."""
        self.asked += 1
        return self not in HERE.pending or self.asked > 1 and self.wait()

    is_success = is_completed

    def result(self):
        self.wait()
        return self.outs

    def get_future(self):
        return Result(self.result)

    def exception(self):
        return None


def joined(operation, parts):
    """The sum of tensors, or what else an operation makes of them."""
    every, given = torch.stack(parts), operation
    operation = getattr(operation, "op", operation)
    if operation == ReduceOp.PREMUL_SUM:
        return every.sum(0, dtype=parts[0].dtype) * premultiplier(given)
    if operation in (ReduceOp.SUM, ReduceOp.AVG):
        out = every.sum(0, dtype=parts[0].dtype)
        return out / len(parts) if operation == ReduceOp.AVG else out
    if operation in (ReduceOp.MAX, ReduceOp.MIN):
        return every.amax(0) if operation == ReduceOp.MAX else every.amin(0)
    raise Refused(f"a collective joins by {operation}{run().place()}")


class Ranks(dist.ProcessGroup):
    """The process group of ranks."""

    supports_coalescing = False

    def getBackendName(self):
        return "equipart"

    @property
    def group_name(self):
        return named_groups()[self]

    @property
    def _device_types(self):
        return [torch.device("cpu")] if self in named_groups() else []  # before that PyTorch would record its calls

    def _get_backend(self, device):
        return self

    def members(self):
        return tuple(dist.get_process_group_ranks(self))

    def exchange(self, what, tensors, outs, finish):
        """Gives tensors to all ranks of the group; `finish` takes those of all, in their order."""
        kinds = sorted({str(x.dtype).removeprefix("torch.") for x in tensors})
        if what.split()[0] in ("all_reduce", "broadcast", "reduce_scatter", "reduce", "all_gather_into_tensor"):
            kinds = [kind(x) for x in tensors]
        what += f" of {', '.join(kinds)}" if kinds and not what.startswith("scatter") else ""
        run().meets(what, self.members(), self.rank() == 0)
        every = HERE.link.gives(self.members(), self.group_name, what, [packed(x) for x in tensors])
        of = lambda: [[unpacked(x, rank) for x in given] for rank, given in zip(self.members(), every())]
        return Pending(what, tensors, outs, of, finish)

    def mine(self, every):
        return [given[self.rank()] for given in every]

    def allreduce(self, tensors, opts):
        def finish(every):
            for at, x in enumerate(tensors):
                write(x, joined(opts.reduceOp, [given[at] for given in every]))

        return self.exchange("all_reduce" + named(opts.reduceOp), tensors, tensors, finish)

    def reduce(self, tensors, opts):
        outs = tensors if self.rank() == opts.rootRank else []
        finish = lambda every: [write(x, joined(opts.reduceOp, [given[0] for given in every])) for x in outs]
        return self.exchange(f"reduce to {opts.rootRank}{named(opts.reduceOp)}", tensors, outs, finish)

    def broadcast(self, tensors, opts):
        outs = [] if self.rank() == opts.rootRank else tensors
        finish = lambda every: [write(x, new) for x, new in zip(tensors, every[opts.rootRank])]
        return self.exchange(f"broadcast from {opts.rootRank}", tensors, outs, finish)

    def allgather(self, outs, tensors, opts=None):
        def finish(every):
            for at, given in enumerate(every):
                for out, x in zip(outs, given):
                    write(out[at], x)

        return self.exchange("all_gather", tensors, [x for out in outs for x in out], finish)

    def all_gather_single(self, out, tensor, opts=None):
        finish = lambda every: write(out, torch.cat([given[0].reshape(-1) for given in every]))
        return self.exchange("all_gather_into_tensor", [tensor], [out], finish)

    def reduce_scatter(self, outs, tensors, opts):
        finish = lambda every: write(outs[0], joined(opts.reduceOp, self.mine(every)))
        return self.exchange("reduce_scatter" + named(opts.reduceOp), tensors[0], outs, finish)

    def reduce_scatter_single(self, out, tensor, opts):
        def finish(every):
            whole = joined(opts.reduceOp, [given[0] for given in every])
            write(out, whole.reshape(self.size(), -1)[self.rank()])

        return self.exchange("reduce_scatter" + named(opts.reduceOp), [tensor], [out], finish)

    def alltoall(self, outs, tensors, opts=None):
        finish = lambda every: [write(out, x) for out, x in zip(outs, self.mine(every))]
        return self.exchange("all_to_all", tensors, outs, finish)

    def all_to_all_single(self, out, tensor, received, sent, opts=None):
        parts = tensor.split(list(sent) or tensor.shape[0] // self.size())
        sizes = list(received) or [out.shape[0] // self.size()] * self.size()

        def finish(every):
            given = self.mine(every)
            if [len(x) for x in given] != sizes:
                raise Refused(f"rows {sizes} are to receive what is sent as {[len(x) for x in given]}{run().place()}")
            write(out, torch.cat(given))

        return self.exchange("all_to_all", parts, [out], finish)

    def scatter(self, outs, tensors, opts):
        given = tensors[0] if self.rank() == opts.rootRank else []
        finish = lambda every: write(outs[0], every[opts.rootRank][self.rank()])
        return self.exchange(f"scatter from {opts.rootRank}", given, outs, finish)

    def gather(self, outs, tensors, opts):
        outs = outs[0] if self.rank() == opts.rootRank else []
        finish = lambda every: [write(out, given[0]) for out, given in zip(outs, every)]
        return self.exchange(f"gather to {opts.rootRank}", tensors, outs, finish)

    def send(self, tensors, to, tag=0):
        to = self.members()[to]
        if to == HERE.rank:
            raise Refused(f"rank {to} sends to itself{run().place()}")
        sent = HERE.link.sends(to, (self.group_name, tag), packed(tensors[0]))
        return Pending(f"a message to rank {to}", tensors, [], sent, lambda _: None)

    def recv(self, tensors, source, tag=0):
        source = self.members()[source]
        message = HERE.link.receives(source, (self.group_name, tag))
        finish = lambda x: write(tensors[0], x)
        return Pending(f"a message from rank {source}", [], tensors, lambda: unpacked(message(), source), finish)

    def recv_anysource(self, tensors, tag=0):
        raise Refused(f"a message is received from any rank, so the result depends on time{run().place()}")

    def barrier(self, opts=None):
        return self.exchange("barrier", [], [], lambda every: None)

    def all_gather_single_coalesced(self, outs, tensors, opts=None):
        return [self.all_gather_single(*pair) for pair in zip(outs, tensors)][-1]

    def reduce_scatter_single_coalesced(self, outs, tensors, opts):
        return [self.reduce_scatter_single(*pair, opts) for pair in zip(outs, tensors)][-1]

    def _start_coalescing(self, device):
        self.before = list(HERE.pending)

    def _end_coalescing(self, device):
        calls = [call for call in HERE.pending if call not in self.before]
        return SimpleNamespace(wait=lambda: [call.wait() for call in calls])

    allreduce_coalesced = allreduce
    _allgather_base, alltoall_base, _reduce_scatter_base = all_gather_single, all_to_all_single, reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # PyTorch's names before 2.15
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


dist.Backend.register_backend("equipart", lambda store, rank, size, timeout: Ranks(rank, size), devices=["cpu"])


STARTED = {}  # functional collectives that nobody has waited for, by the memory that they will write


def group_of(name):
    """The process group of this name."""
    return next(group for group, known in named_groups().items() if known == name)


def functional(name):
    """Makes a function the rule of a functional collective, whose last argument is a group's name: it returns what will be
    written, and the call, which `wait_tensor` ends."""

    def put(function):
        def called(func, args, kwargs):
            out, call = function(group_of(args[-1]), *args[:-1])
            STARTED[words(out).untyped_storage().data_ptr()] = call
            return out

        rule(name)(called)
        return function

    return put


@rule("_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd")
def _(func, args, kwargs):
    if call := STARTED.pop(words(args[0]).untyped_storage().data_ptr(), None):
        call.wait()
    return args[0]


def empty(x, rows):
    """A new tensor like this one with another number of rows."""
    return wrap(torch.zeros((rows, *x.shape[1:]), dtype=torch.int64), dtype=x.dtype)


@functional("_c10d_functional.all_reduce")
def _(group, x, operation):
    return reduced(group, x.clone(), operation)


@functional("_c10d_functional.all_reduce_")
def reduced(group, x, operation):
    return x, group.allreduce([x], SimpleNamespace(reduceOp=OPERATIONS[operation.lower()]))


@functional("_c10d_functional.all_gather_into_tensor")
def _(group, x, size):
    out = empty(x, x.shape[0] * size)
    return out, group.all_gather_single(out, x)


@functional("_c10d_functional.reduce_scatter_tensor")
def _(group, x, operation, size):
    out = empty(x, x.shape[0] // size)
    return out, group.reduce_scatter_single(out, x, SimpleNamespace(reduceOp=OPERATIONS[operation.lower()]))


@functional("_c10d_functional.all_to_all_single")
def _(group, x, received, sent):
    out = empty(x, sum(received))
    return out, group.all_to_all_single(out, x, received, sent)


@functional("_c10d_functional.broadcast")
def _(group, x, root):
    return sent(group, x.clone(), root)


@functional("_c10d_functional.broadcast_")
def sent(group, x, root):
    return x, group.broadcast([x], SimpleNamespace(rootRank=root))


@rule("_dtensor.shard_dim_alltoall")
def _(func, args, kwargs):
    x, gathered, split, name = args
    group, every = group_of(name), []
    group.exchange("all_to_all", [x], [], every.extend).wait()
    return torch.cat([given[0] for given in every], gathered).chunk(group.size(), split)[group.rank()].contiguous()
