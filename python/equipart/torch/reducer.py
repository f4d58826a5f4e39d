"""The reducer of `DistributedDataParallel`, which in PyTorch is C++ and holds floats only."""

from types import SimpleNamespace

import torch
import torch.distributed as dist

from .field import Refused, run
from .meeting import HERE
from .private import accumulators, at_end
from .ranks import kind


class Bucket:
    """Gradients that are summed in one call, as `GradBucket` shows them to a hook."""

    def __init__(self, at, count, parameters):
        self.at, self.count, self.held = at, count, parameters
        given = [torch.zeros_like(x) if x.grad is None else x.grad for x in parameters]
        self.flat = torch.cat([x.detach().reshape(-1) for x in given])

    def index(self):
        return self.at

    def is_last(self):
        return self.at == self.count - 1

    def parameters(self):
        return self.held

    def buffer(self):
        return self.flat

    def set_buffer(self, flat):
        self.flat = flat

    def gradients(self):
        parts = self.flat.split([x.numel() for x in self.held])
        return [part.view(x.shape) for part, x in zip(parts, self.held)]


class Reducer:
    """Averages the gradients of parameters over ranks, once a backward has reached all of them."""

    def __init__(self, params, buckets, limits, group, sparse=(), cap=0, finds=False, is_view=False, names=(), *more, **options):
        self.params, self.buckets, self.group, self.finds, self.names = params, buckets, group, finds, dict(names)
        self.hook = self.is_static = self.expects = self.outs = False
        self.counts, self.wanted = [0] * len(params), [1] * len(params)
        for at, x in enumerate(params):
            x.register_post_accumulate_grad_hook(lambda _, at=at: self.reaches(at))
        HERE.pending.append(self)

    def check(self):
        """Nothing is on its way between calls."""

    def __str__(self):
        left = [str(self.names.get(at, at)) for at, count in enumerate(self.counts) if count < self.wanted[at]]
        return f"the mean of gradients of DistributedDataParallel, which waits for {', '.join(left)}, on rank {HERE.rank}"

    def prepare_for_forward(self):
        pass

    def prepare_for_backward(self, outputs):
        if self.outs:
            raise RuntimeError(f"another forward begins before {self}")
        self.counts, self.expects = [0] * len(self.params), True
        if self.finds and outputs:
            used = accumulators(outputs)
            self.wanted = [int(id(x) in used) for x in self.params]
            self.outs = not all(self.wanted)
            if not any(self.wanted):
                self.average()

    def reaches(self, at):
        """Takes note of a parameter whose gradient is there."""
        if not self.expects:
            return
        self.outs, self.counts[at] = True, self.counts[at] + 1
        if self.is_static and self.wanted is None:
            return
        if self.counts[at] > self.wanted[at]:
            raise RuntimeError(f"a backward reaches {self.names.get(at, at)} twice before gradients are averaged")
        self.ends()

    def ends(self):
        """Averages gradients at the end of the backward, before which hooks of parameters see those of the rank."""
        if self.counts == self.wanted:
            at_end(self.average)

    def _delay_all_reduce(self):
        self.wanted = list(self.counts)
        self.average()

    def average(self):
        """Averages all gradients. Those of parameters that no rank has used stay as they are."""
        self.expects = self.outs = False
        used = torch.tensor([int(count > 0) for count in self.counts])
        if self.finds or self.is_static:
            self.group.allreduce([used], SimpleNamespace(reduceOp=dist.ReduceOp.SUM)).wait()
        every = [Bucket(at, len(self.buckets), [self.params[i] for i in of]) for at, of in enumerate(self.buckets)]
        with torch.no_grad():
            ends = [self.begin(bucket) for bucket in every]
            for bucket, of, end in zip(every, self.buckets, ends):
                bucket.set_buffer(end())
                for at, new in zip(of, bucket.gradients()):
                    if used[at] and self.params[at].grad is not None:
                        self.params[at].grad.copy_(new)
                    elif used[at]:
                        self.params[at].grad = new.clone()

    def begin(self, bucket):
        """Begins the sum of a bucket. Returns a function that waits for it."""
        if self.hook:
            state, hook = self.hook
            future = hook(state, bucket)
            return lambda: made[0] if isinstance(made := future.wait(), (list, tuple)) else made
        flat = bucket.buffer().div_(self.group.size())
        work = self.group.allreduce([flat], SimpleNamespace(reduceOp=dist.ReduceOp.SUM))
        return lambda: work.result()[0]

    def _set_static_graph(self):
        self.is_static, self.wanted = True, None

    def _rebuild_buckets(self):
        return False

    def __getattr__(self, name):
        raise Refused(f"DistributedDataParallel asks its reducer for {name}, which has no stand-in{run().place()}")

    set_logger = _check_reducer_finalized = _set_optimizer_in_backward = lambda self, *of: None


class Logger:
    """A logger that nobody reads."""

    def __init__(self, reducer):
        pass

    def __getattr__(self, name):
        return lambda *args, **options: None


def verify(group, tensors, logger=None):
    """Fails if ranks hold other parameters."""
    group.exchange(f"DistributedDataParallel of {', '.join(map(kind, tensors))}", [], [], lambda every: None).wait()


def broadcast(group, tensors, size, source=0):
    """Gives the tensors of a rank to all."""
    for x in tensors:
        group.broadcast([x], SimpleNamespace(rootRank=source)).wait()


def put_hook(reducer, state, hook):
    reducer.hook = state, hook


STANDS = {
    "Reducer": Reducer,
    "Logger": Logger,
    "_verify_params_across_processes": verify,
    "_broadcast_coalesced": broadcast,
    "_register_comm_hook": put_hook,
    "_register_builtin_comm_hook": lambda reducer, hook: None,  # which divides and sums, in other numbers
}
