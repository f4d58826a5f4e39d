"""Ranks as threads of one process, and where they meet.

Each rank is a thread with a world of its own, so a program may do other things on other ranks. Ranks that wait for each
other, or call different collectives, are named at once: nothing hangs.
"""

import contextlib
import functools
import threading
import traceback
from collections import defaultdict, deque
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.tensor import _redistribute as redistribute
from torch.distributed.tensor.parallel import loss as parallel_loss
from torch.testing._internal.distributed import multi_threaded_pg

from .compare import Different
from .field import SEEN, Refused, field, run
from .running import is_users

HERE = threading.local()  # `meeting` and `rank` of this thread


class Stopped(Exception):
    """Another rank has failed."""


class Meeting:
    """Where ranks meet: each call of a group, and each message."""

    def __init__(self, ranks):
        self.changed = threading.Condition()
        self.given = defaultdict(dict)  # by group and the number of the call in it: what each rank gave
        self.taken = defaultdict(int)  # how many have taken it
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
            self.taken[group, number] += 1
            if self.taken[group, number] == len(group):
                del self.given[group, number], self.taken[group, number]
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
        if (
            self.waiting
            and len(self.waiting) == self.running
            and not any(ready() for ready, _ in self.waiting.values())
        ):
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


def fault(error, rank, ranks):
    """The refusal of a program that raises: says what and where."""
    places = (f"{frame.filename}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)))
    place = next((place for place in places if is_users(place)), "")
    program = "the unsplit program" if ranks == 1 else f"rank {rank} of the split program"
    refusal = Refused(f"{program} raised {type(error).__name__}: {error}{f', at {place}' if place else ''}")
    refusal.__cause__ = error
    return refusal


class Shared:
    """Handlers of the process that rank threads set and reset, each for itself: those of `loss_parallel`."""

    def __init__(self):
        self.set, self.reset = parallel_loss._enable_custom_loss_ops, parallel_loss._disable_custom_loss_ops
        self.inside, self.lock = 0, threading.Lock()

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


def zeros(plain, *args, **kwargs):
    """`torch.zeros` of a program that computes: a sum may be written into it."""
    out = plain(*args, **kwargs)
    return field(out) if out.is_floating_point() and getattr(SEEN, "computes", False) else out


@contextlib.contextmanager
def worlds_of_threads():
    """Gives each thread a world of `torch.distributed`, and none what belongs to another."""
    shared = Shared()
    multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        with (
            patch.object(parallel_loss, "_enable_custom_loss_ops", shared.enter),
            patch.object(parallel_loss, "_disable_custom_loss_ops", shared.leave),
            patch.object(torch, "zeros", functools.partial(zeros, torch.zeros)),
            torch.compiler.set_stance("force_eager"),
            patch.object(redistribute, "_gen_transform_infos", redistribute._gen_transform_infos_non_cached),
        ):
            yield
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        multi_threaded_pg._uninstall_threaded_pg()


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
            error = raised if isinstance(raised, (Refused, Different, Stopped)) else fault(raised, rank, ranks)
        finally:
            meeting.ends(error)
            try:
                dist.destroy_process_group()
            except Exception:
                pass  # it was not begun

    with worlds_of_threads():
        threads = [threading.Thread(target=thread, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
        [started.start() for started in threads]
        [started.join() for started in threads]
    if meeting.failure:
        raise meeting.failure
    return results
