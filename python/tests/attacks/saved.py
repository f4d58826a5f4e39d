"""Checkpoints: trainers that save a model and its optimizer, load them, and go on."""

import atexit
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict, set_model_state_dict, set_optimizer_state_dict,
    set_state_dict,
)  # fmt: skip

from .common import lazily, rank, size
from .replicas import Normed, by, replica, synchronised
from .sharded import loss, program

FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, True)


def step(model, x, y):
    if not hasattr(model, "optimizer"):
        model.optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    out = loss(model, x, y)
    out.backward()
    model.optimizer.step()
    model.optimizer.zero_grad()
    return out


def by_file(model, x, y, mistake=""):
    """A step after a file of the model and its optimizer is loaded; they are written over before."""
    step(model, x, y)
    raw, file = getattr(model, "module", model), f"{FOLDER}/{size()}.pt"
    if rank() == 0:
        torch.save({"model": raw.state_dict(), "optimizer": model.optimizer.state_dict()}, file)
    dist.barrier()
    with torch.no_grad():
        [x.mul_(3) for x in (*raw.parameters(), *raw.buffers()) if x.is_floating_point()]
        [state["momentum_buffer"].mul_(3) for state in model.optimizer.state.values()]
    held = torch.load(file, map_location=f"cuda:{rank()}")
    if rank() == 0 or mistake != "one rank loads the model":
        raw.load_state_dict(held["model"])
    if rank() == 0 or mistake != "one rank loads the optimizer":
        model.optimizer.load_state_dict(held["optimizer"])
    dist.barrier()
    return step(model, x, y)


def by_shards(model, x, y):
    out, folder = step(model, x, y), f"{FOLDER}/{size()}"
    state = dict(zip(("model", "optimizer"), get_state_dict(model, model.optimizer)))
    dcp.save(state, checkpoint_id=folder)
    with torch.no_grad():
        [x.mul_(3) for x in model.parameters()]
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, model.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return out


def by_one(model, x, y, mistake=""):
    """What all ranks hold is gathered on the first, which gives it to all."""
    out = step(model, x.to(f"cuda:{rank()}"), y)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options), get_optimizer_state_dict(model, model.optimizer, options=options)
    with torch.no_grad():
        [x.mul_(3) for x in model.parameters()]
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=size() > 1)
    set_model_state_dict(model, state[0] if rank() == 0 else {}, options=options)
    with torch.no_grad():
        [x.mul_(3) for x in model.parameters() if mistake and size() > 1]
    set_optimizer_state_dict(model, model.optimizer, state[1] if rank() == 0 else {}, options=options)
    return out


RIGHT = {
    "a file": lazily(program, replica(), by_file),
    "a file of norms": lazily(by, Normed, synchronised, by_file, log2_error=None),
    "a file of each rank": lazily(program, loss=by_shards),
    "states of one rank": lazily(program, loss=by_one),
}
WRONG = {
    f"a file, {mistake}": lazily(program, replica(), lazily(by_file, mistake=mistake))
    for mistake in ("one rank loads the model", "one rank loads the optimizer")
} | {"states of one rank, written over": lazily(program, loss=lazily(by_one, mistake="written over"))}
