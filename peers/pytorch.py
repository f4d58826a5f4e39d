"""PyTorch's figures, in the names and units of `equipart bench`: a line of JSON for each.

    pytorch.py products    products and a linear layer, one thread
    pytorch.py one         shape L on one thread: forward, training step, decoding
    pytorch.py two         shape L on two threads of one process
    pytorch.py gloo        shape L on two processes of one thread each, every layer split by hand
    pytorch.py pipeline    half of shape L's blocks on each of two such processes, under GPipe and 1F1B
    pytorch.py ring        one layer's causal attention, forward and backward, as a ring of two such processes

All are the best of many tries after one that is not counted. A step has no clipping; weights are f32.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

WIDTH, BLOCKS, HEADS, HIDDEN, VOCABULARY = 512, 8, 8, 2048, 8192
SEQUENCES, TOKENS = 4, 256
PROMPT, NEW = 32, 64
MICROBATCHES, ROWS = 8, 128
LONG = 8192
FEATURES = WIDTH // HEADS


def say(peer, name, value):
    print(json.dumps({"peer": peer, "name": name, "value": round(value, 4)}), flush=True)


def best(call, tries, together=lambda: None):
    """The least seconds of a call; `together` makes all processes begin at once."""
    call()
    seconds = []
    for _ in range(tries):
        together()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


class ToRanks(torch.autograd.Function):
    """The same on all ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(_, x):
        return x

    @staticmethod
    def backward(_, dy):
        dy = dy.contiguous()
        dist.all_reduce(dy)
        return dy


class FromRanks(torch.autograd.Function):
    """The sum of all ranks' addends; each has its gradient."""

    @staticmethod
    def forward(_, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_, dy):
        return dy


class Columns(torch.autograd.Function):
    """All ranks' columns side by side."""

    @staticmethod
    def forward(_, x):
        shares = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, x.contiguous())
        return torch.cat(shares, -1)

    @staticmethod
    def backward(_, dy):
        return dy.chunk(dist.get_world_size(), -1)[dist.get_rank()].contiguous()


def alone(x):
    return x


def rotary(positions):
    frequencies = 10000.0 ** (-torch.arange(0, FEATURES, 2).float() / FEATURES)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(self, ranks):
        super().__init__()
        self.heads = HEADS // ranks
        self.to, self.back = (ToRanks.apply, FromRanks.apply) if ranks > 1 else (alone, alone)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH // ranks, bias=False)
        self.out = nn.Linear(WIDTH // ranks, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * HIDDEN // ranks, bias=False)
        self.down = nn.Linear(HIDDEN // ranks, WIDTH, bias=False)

    def forward(self, x, cos, sin, cache=None, first=0):
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.to(self.norms[0](x))).view(batch, tokens, 3, self.heads, FEATURES)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        cos, sin = cos[first : first + tokens], sin[first : first + tokens]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            cache[0][:, :, first : first + tokens] = k
            cache[1][:, :, first : first + tokens] = v
            k, v = (kept[:, :, : first + tokens] for kept in cache)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1)
        x = x + self.back(self.out(seen.transpose(1, 2).reshape(batch, tokens, -1)))
        gate, up = self.gate_up(self.to(self.norms[1](x))).chunk(2, -1)
        return x + self.back(self.down(F.silu(gate) * up))


class Model(nn.Module):
    def __init__(self, ranks=1):
        super().__init__()
        self.to, self.whole = (ToRanks.apply, Columns.apply) if ranks > 1 else (alone, alone)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(ranks) for _ in range(BLOCKS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, VOCABULARY // ranks, bias=False)
        self.cos, self.sin = rotary(TOKENS)

    def forward(self, ids, caches=None, first=0):
        x = self.embedding(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, self.cos, self.sin, caches and caches[i], first)
        return self.whole(self.head(self.to(self.norm(x))))


def products():
    torch.set_grad_enabled(False)
    for name, (m, n, k) in {"1024": (1024, 1024, 1024), "256x4096x4096": (256, 4096, 4096)}.items():
        a, b, c = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
        seconds = best(lambda: torch.mm(a, b, out=c), 20)
        say("PyTorch, one thread", f"gemm_gflops_{name}", 2 * m * n * k / seconds / 1e9)
    m, n, k = 32, 512, 512
    x, w = torch.randn(m, k), torch.randn(n, k)
    say("PyTorch, one thread", "linear_gflops_m32", 2 * m * n * k / best(lambda: F.linear(x, w), 3000) / 1e9)


def passes(model, peer, layout, together=lambda: None, speaks=True):
    """A forward pass and a training step."""
    ids = torch.randint(0, VOCABULARY, (SEQUENCES, TOKENS + 1))
    with torch.inference_mode():
        forward = best(lambda: model(ids[:, :-1]), 6, together)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()

    training = best(step, 4, together)
    if speaks:
        say(peer, f"forward_ms_{layout}", forward * 1e3)
        say(peer, f"train_step_ms_{layout}", training * 1e3)


def decode(model, peer):
    """Greedy, with a cache; the prompt, which gives the first token, is not counted."""
    with torch.inference_mode():
        shape = (1, HEADS, PROMPT + NEW, FEATURES)
        caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(BLOCKS)]
        prompt = torch.randint(0, VOCABULARY, (1, PROMPT))
        times = []
        for _ in range(5):
            last = model(prompt, caches)[:, -1:].argmax(-1)
            start = time.perf_counter()
            for i in range(NEW):
                last = model(last, caches, PROMPT + i).argmax(-1)
            times.append(time.perf_counter() - start)
    say(peer, "decode_tokens_per_s_tp1", NEW / min(times))


def by_gloo(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    passes(Model(2), "PyTorch, two processes", "tp2", dist.barrier, rank == 0)
    dist.barrier()
    dist.destroy_process_group()


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(1) for _ in range(BLOCKS // 2))
        self.cos, self.sin = rotary(ROWS)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return x


def by_pipeline(rank):
    from torch.distributed import pipelining

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29534")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    x, target = torch.randn(2, MICROBATCHES, ROWS, WIDTH)
    for name, kind in {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}.items():
        model = Stage()
        stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"), input_args=(x[:1],))
        schedule = kind(stage, MICROBATCHES, loss_fn=F.mse_loss)

        def step():
            model.zero_grad()
            schedule.step(x) if rank == 0 else schedule.step(target=target, losses=[])
            dist.barrier()

        seconds = best(step, 6, dist.barrier)
        if rank == 0:
            say("PyTorch, two processes", f"pipeline_{name}_ms", seconds * 1e3)
    dist.destroy_process_group()


def flash(q, k, v, causal=False):
    """Attention's outputs, and the logarithm of each row's sum of exponentials."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)


def flash_backward(dy, q, k, v, y, lse, causal=False):
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(dy, q, k, v, y, lse, 0.0, causal)


def pieces(rank, ranks):
    """Two of 2N pieces, zigzag: all ranks have the same work under the causal mask."""
    return rank, 2 * ranks - 1 - rank


def to_next(x):
    """Starts to send to the next rank; a call of the result waits, and returns the previous rank's tensor."""
    rank, ranks, came = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    sent = dist.P2POp(dist.isend, x, (rank + 1) % ranks)
    requests = dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, came, (rank - 1) % ranks)])

    def wait():
        for request in requests:
            request.wait()
        return came

    return wait


def hops(kv):
    """At each hop: keys and values, the rows of queries that attend to them, and the keys' rows they see.

    Hop 0 has the rank's own keys, under the causal mask; later ones arrive while the hop before computes.
    An earlier rank's first piece is before both of ours, its second after both: all queries see half of
    the keys. A later rank's pieces are both between ours: half of the queries see all keys.
    """
    rank, half, everything = dist.get_rank(), kv.shape[-2] // 2, slice(None)
    last = dist.get_world_size() - 1
    for hop in range(last + 1):
        arrives = to_next(kv) if hop < last else None
        if hop == 0:
            yield kv, everything, everything
        elif hop <= rank:
            yield kv, everything, slice(half)
        else:
            yield kv, slice(half, None), everything
        kv = arrives and arrives()


def ring_forward(q, kv):
    y = None
    for (k, v), rows, keys in hops(kv):
        if y is None:
            y, lse = flash(q, k, v, True)
            continue
        part, of_part = flash(q[:, :, rows], k[:, :, keys], v[:, :, keys])
        of_rows = lse[:, :, rows]
        y[:, :, rows].lerp_(part, torch.sigmoid(of_part - of_rows).unsqueeze(-1))
        of_rows.copy_(torch.logaddexp(of_rows, of_part))
    return y, lse


def ring_backward(dy, q, kv, y, lse):
    """Gradients of queries, keys and values; those of other ranks' keys and values travel to their owner."""
    dq = comes = None
    for held, rows, keys in hops(kv):
        k, v = held[..., keys, :]
        of_queries = [x[:, :, rows] for x in (dy, q, y, lse)]
        part, dk, dv = flash_backward(*of_queries[:2], k, v, *of_queries[2:], dq is None)
        if dq is None:
            dq, own = part, (dk, dv)
            continue
        dq[:, :, rows] += part
        dkv = comes() if comes else torch.zeros_like(kv)
        for sum_, addend in zip(dkv, (dk, dv)):
            sum_[:, :, keys] += addend
        comes = to_next(dkv)
    for sum_, addend in zip(own, comes()):
        sum_ += addend
    return dq, *own


def by_ring(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29535")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    whole = torch.randn(4, 1, HEADS, LONG, FEATURES)
    own = torch.cat([whole.chunk(4, -2)[piece] for piece in pieces(rank, 2)], -2)

    def alone():
        dy, q, k, v = whole
        y, lse = flash(q, k, v, True)
        return y, *flash_backward(dy, q, k, v, y, lse, True)

    def ring():
        dy, q, kv = own[0], own[1], own[2:]
        y, lse = ring_forward(q, kv)
        gradients = ring_backward(dy, q, kv, y, lse)
        dist.barrier()
        return y, *gradients

    for ours, wanted in zip(ring(), alone()):
        wanted = torch.cat([wanted.chunk(4, -2)[piece] for piece in pieces(rank, 2)], -2)
        error = ((ours - wanted).abs().max() / wanted.abs().max()).item()
        assert error < 1e-5, f"the ring differs from one rank's attention by {error}"
    seconds = [], []
    for _ in range(2):
        seconds[0].append(best(ring, 3, dist.barrier))
        if rank == 0:
            seconds[1].append(best(alone, 1))
    if rank == 0:
        say("PyTorch, two processes", "ring_attention_ms", min(seconds[0]) * 1e3)
        say("PyTorch, one thread", "ring_attention_ms_one_rank", min(seconds[1]) * 1e3)
    dist.barrier()
    dist.destroy_process_group()


def main(what):
    torch.set_num_threads(2 if what == "two" else 1)
    torch.manual_seed(1)
    if what == "products":
        products()
    elif what == "one":
        model = Model()
        passes(model, "PyTorch, one thread", "tp1")
        decode(model, "PyTorch, one thread")
    elif what == "two":
        passes(Model(), "PyTorch, two threads", "tp2")
    elif what == "gloo":
        mp.spawn(by_gloo, nprocs=2)
    elif what == "pipeline":
        mp.spawn(by_pipeline, nprocs=2)
    elif what == "ring":
        mp.spawn(by_ring, nprocs=2)
    else:
        sys.exit(f"pytorch.py: {what!r} is none of products, one, two, gloo, pipeline, ring")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) == 2 else "")
