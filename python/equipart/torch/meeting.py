"""Ranks as processes, forked from the one that proves, and where they meet.

A rank has globals, an environment and random numbers of its own, as under a launcher. The parent carries what ranks give to
each other, so it sees every call and who waits: ranks that call different collectives, wait in vain, raise, exit, are killed
or compute for ever are named at once, and all end.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import defaultdict
from multiprocessing.connection import wait
from types import SimpleNamespace

import torch
import torch.distributed as dist

from .compare import Different
from .field import Refused, run
from .running import is_users

HERE = SimpleNamespace(link=None, rank=0, pending=[])  # of the rank that this process is
PROCESSES = multiprocessing.get_context("fork")


def dumped(x):
    return pickle.dumps(x, pickle.HIGHEST_PROTOCOL)


class Link:
    """A rank's end of the way to the parent."""

    def __init__(self, pipe):
        self.pipe, self.numbers = pipe, defaultdict(int)

    def tell(self, *message):
        self.pipe.send_bytes(dumped(message))

    def number(self, *key):
        self.numbers[key] += 1
        return self.numbers[key] - 1

    def gives(self, group, name, what, given):
        """Gives to all ranks of a group. Returns a function that waits for what all of them give, in their order."""
        key = group, name, self.number(group, name)
        self.tell("gives", key, f"{what}{run().place()}", dumped(given))
        return lambda: self.waits("call", key, f"{what} among ranks {list(group)}")

    def sends(self, to, way, given):
        """Sends a message on its way, a group and a tag, where messages keep their order. Returns a function that waits until
        its receiver is ready, as it may have to."""
        key = HERE.rank, to, way, self.number("to", to, way)
        self.tell("sends", key, f"a message to rank {to}{run().place()}", dumped(given))
        return lambda: self.waits("send", key, f"rank {to} to receive a message")

    def receives(self, source, way):
        """Returns a function that waits for the next message of a rank on this way."""
        key = source, HERE.rank, way, self.number("from", source, way)
        self.tell("receives", key)
        return lambda: self.waits("message", key, f"a message from rank {source}")[0]

    def waits(self, kind, key, what):
        self.tell("waits", kind, key, f"{what}{run().place()}")
        return [pickle.loads(given) for given in pickle.loads(self.pipe.recv_bytes())]


class Meeting:
    """The parent's end: what each rank gave, as bytes that it only carries, and who waits for what."""

    def __init__(self, ranks, limit):
        self.limit, self.given, self.mail, self.taken = limit, defaultdict(dict), {}, defaultdict(int)
        self.receivers = set()  # of messages, also of those that are still to be sent
        self.open = [[] for _ in range(ranks)]  # the calls of each rank that others have still to make, in its order
        self.waiting, self.results, self.last = {}, {}, time.monotonic()
        self.pipes, self.processes = [], []

    def started(self, body):
        """Starts the ranks, and returns what each returned."""
        ranks = len(self.open)
        try:
            for rank in range(ranks):
                ours, theirs = PROCESSES.Pipe()
                self.pipes.append(ours)
                process = PROCESSES.Process(target=be_rank, args=(theirs, rank, ranks, body), name=f"rank {rank}")
                sys.stdout.flush(), sys.stderr.flush()
                process.start()
                theirs.close()
                self.processes.append(process)
            while len(self.results) < ranks:
                self.hear()
            self.is_over()
            return [self.results[rank] for rank in range(ranks)]
        finally:
            [process.kill() for process in self.processes if process.is_alive()]
            [process.join() for process in self.processes]

    def hear(self):
        """Takes the messages that have come, and answers who can go on."""
        ready = wait([pipe for rank, pipe in enumerate(self.pipes) if rank not in self.results], timeout=1)
        for pipe in ready:
            rank = self.pipes.index(pipe)
            try:
                name, *message = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionError):
                raise Refused(f"{self.program(rank)} {self.ended(rank)}") from None
            getattr(self, name)(rank, *message)
            self.last = time.monotonic()
        for rank in list(self.waiting):
            answer = self.answer(rank)
            if answer is not None:
                del self.waiting[rank]
                self.pipes[rank].send_bytes(dumped(answer))
        left = [rank for rank in range(len(self.pipes)) if rank not in self.results]
        if left and all(rank in self.waiting for rank in left):
            waits = "; ".join(f"rank {rank} for {self.waiting[rank][2]}" for rank in left)
            raise Refused(f"the ranks that are left wait for others in vain: {waits}")
        if left and time.monotonic() - self.last > self.limit:
            busy = " and ".join(str(rank) for rank in left if rank not in self.waiting)
            raise Refused(f"rank {busy} has computed for {self.limit} s without a call; `timeout` is the limit")

    def is_over(self):
        """Fails if a rank has sent or called what others did not receive or call."""
        for key, (what, _) in self.mail.items():
            if key not in self.receivers:
                raise Refused(f"rank {key[0]} sends {what}, which does not receive it")
        for (group, *_), here in self.given.items():
            if len(here) < len(group):
                (rank, (what, _)), *_ = here.items()
                others = ", ".join(str(other) for other in group if other not in here)
                raise Refused(f"rank {rank} calls {what}, which rank {others} does not")

    def program(self, rank):
        return "the unsplit program" if len(self.pipes) == 1 else f"rank {rank} of the split program"

    def ended(self, rank):
        """How a rank ended that did not say so."""
        self.processes[rank].join()
        code = self.processes[rank].exitcode
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def answer(self, rank):
        """What a waiting rank waits for, if it is there. What all have taken is not kept."""
        kind, key, _ = self.waiting[rank]
        if kind == "message":
            return [self.mail.pop(key)[1]] if key in self.mail else None
        if kind == "send":
            return [] if key in self.receivers else None
        here, group = self.given[key], key[0]
        if len(here) < len(group):
            return None
        self.taken[key] += 1
        if self.taken[key] == len(group):
            del self.given[key], self.taken[key]
        return [here[member][1] for member in group]

    def gives(self, rank, key, what, given):
        here = self.given[key]
        for other, (theirs, _) in here.items():
            if theirs.split(", at ")[0] != what.split(", at ")[0]:
                raise Refused(f"rank {rank} calls {what} where rank {other} calls {theirs}")
        here[rank] = what, given
        self.one_order(rank, key)
        self.open[rank].append(key)
        if len(here) == len(key[0]):
            [self.open[member].remove(key) for member in key[0]]

    def one_order(self, rank, key):
        """Fails if two ranks that share two groups call them in different orders, which a backend may not survive."""
        here = self.given[key]
        for other in (other for other in here if other != rank):
            before = self.open[other][: self.open[other].index(key)]
            late = [(other, rank, one) for one in before if rank in one[0] and rank not in self.given[one]]
            ahead = [(rank, other, one) for one in self.open[rank] if other in one[0] and other not in self.given[one]]
            for first, second, one in late + ahead:
                said = f"rank {first} calls {self.given[one][first][0]} before {here[first][0]}"
                raise Refused(f"{said}, and rank {second} after it")

    def sends(self, rank, key, what, given):
        self.mail[key] = what, given

    def receives(self, rank, key):
        self.receivers.add(key)

    def waits(self, rank, kind, key, what):
        self.waiting[rank] = kind, key, what

    def ends(self, rank, result):
        self.results[rank] = result

    def fails(self, rank, error):
        raise error


def fault(error, rank, ranks):
    """The refusal of a program that raises: says what and where."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f"{at.filename}:{at.lineno}" for at in reversed(frames) if is_users(f"{at.filename}:{at.lineno}")), "")
    program = "the unsplit program" if ranks == 1 else f"rank {rank} of the split program"
    refusal = Refused(f"{program} raised {type(error).__name__}: {error}{f', at {place}' if place else ''}")
    refusal.add_note("".join(traceback.format_exception(error)))
    return refusal


def be_rank(pipe, rank, ranks, body):
    """Runs the body as a rank."""
    HERE.link, HERE.rank, HERE.pending = Link(pipe), rank, []
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
    os.environ.update({name: str(value) for name, value in places.items()}, MASTER_ADDR="localhost", MASTER_PORT="29500")
    torch.set_num_threads(1)
    code = 0
    try:
        dist.init_process_group("equipart", rank=rank, world_size=ranks, store=dist.HashStore())
        HERE.link.tell("ends", body(rank))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        known = isinstance(error, (Refused, Different))
        HERE.link.tell("fails", error if known else fault(error, rank, ranks))
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def spawn(ranks, body, limit=600):
    """Runs `body(rank)` on so many ranks. Returns what each returned; raises what the first that failed raised."""
    import torch._dynamo  # noqa: F401 - once, and not in each rank

    if torch.cuda.is_initialized():
        raise Refused("CUDA has begun in this process, of which ranks are forks; prove before it, or in a process of its own")
    return Meeting(ranks, limit).started(body)
