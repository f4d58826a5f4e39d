"""Other parts of PyTorch that public training code uses."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from .common import alone, joined, lazily, rank, shard, size, summed, synced, whole

X = torch.empty(4, 8)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class Reentrant(Mlp):
    def forward(self, x):
        x = x + 0 * self.up.bias
        return checkpoint(super().forward, x, use_reentrant=True)


class WeightNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, x):
        return self.layer(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x[:, None].expand(-1, 3, -1) * torch.arange(1, 4)[:, None])


class Multihead(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = x[:, None] * torch.arange(1, 4)[:, None]
        return self.attention(x, x, x, need_weights=True)[0]


class Cell(nn.Module):
    """A recurrent cell for a few steps."""

    def __init__(self, kind=nn.GRUCell):
        super().__init__()
        self.cell = kind(8, 8)

    def forward(self, x):
        h = self.cell(x)
        h = self.cell(x, h)
        return h[0] if isinstance(h, tuple) else h


def by_rows(model, x, mistake="", after=None):
    loss = model(shard(x)).square().mean()
    loss.backward()
    synced(model, mean=mistake != "summed")
    return loss


def penalty(model, x, mistake=""):
    """A penalty of the gradient by the input, which goes backward twice."""
    x = shard(x).clone().requires_grad_()
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    loss = (g.square().sum(-1) - 1).square().mean() + model(x).mean()
    loss.backward()
    synced(model, mean=True)
    return loss


def reference(model, x, mistake=""):
    """A frozen copy of the model as a teacher."""
    if not hasattr(model, "teacher"):
        model.__dict__["teacher"] = copy.deepcopy(model).requires_grad_(False)
    y, t = model(shard(x)), model.teacher(shard(x) * 2)
    loss = F.mse_loss(y, t)
    loss.backward()
    synced(model, mean=True)
    return loss


def target_network(model, x, mistake=""):
    """A copy that follows the model's weights slowly, and its outputs after the step."""
    if not hasattr(model, "target"):
        model.__dict__["target"] = copy.deepcopy(model)
    loss = F.mse_loss(model(shard(x)), model.target(shard(x) * 2).detach())
    loss.backward()
    if mistake != "not reduced":
        synced(model, mean=True)
    with torch.no_grad():
        for p, q in zip(model.parameters(), model.target.parameters()):
            p -= 0.1 * p.grad
            q.mul_(0.9).add_(p, alpha=0.1)
            p.grad = None
        return model.target(x)


def vectors(model, x, mistake=""):
    """Gradients and parameters as one vector, and back."""
    loss = model(shard(x)).square().mean()
    loss.backward()
    row = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
    row = summed(row) / size()
    with torch.no_grad():
        nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(model.parameters()) - 0.1 * row, model.parameters()
        )
    model.zero_grad()
    return loss.detach()


def greedy(model, x, mistake="", how="max"):
    """The largest of classes that are split over ranks, by maxima and their places."""
    y = model(x)
    if alone():
        return F.one_hot(y.argmax(-1), 8) * y
    own = shard(y, 1)
    values, at = own.topk(1, -1) if how == "topk" else own.max(-1, keepdim=True)
    first = 0 if mistake == "places in a rank's part" else rank() * own.shape[1]
    values, at = joined(values, 1), joined(at + first, 1)
    best = at.gather(1, values.argmax(1, keepdim=True))[:, 0]
    return F.one_hot(best, 8) * y


def vocabulary_entropy(model, x, mistake=""):
    """The entropy and the probabilities of classes that are split over ranks."""
    y = model(x)
    if alone():
        p = y.softmax(-1)
        return y.logsumexp(-1) - (p * y).sum(-1)
    y = shard(y, 1)
    most = summed(y.amax(-1, keepdim=True), op=dist.ReduceOp.MAX)
    e = (y - most).exp()
    total = summed(e.sum(-1, keepdim=True)) if mistake != "a local sum" else e.sum(-1, keepdim=True)
    return (total.log() + most)[:, 0] - summed((e / total * y).sum(-1))


def tiles(model, x, mistake=""):
    """An online softmax over gathered blocks, from minus infinity on, as FlashAttention's."""
    q = model(x)
    if alone():
        return (q @ q.T).softmax(-1) @ q
    most = torch.full((4, 1), -torch.inf)
    total, out = torch.zeros(4, 1), torch.zeros(4, 8)
    for k in q.chunk(size()):
        s = q @ k.T
        new = torch.maximum(most, s.amax(-1, keepdim=True))
        old = (most - new).exp() if mistake != "not rescaled" else 1.0
        p = (s - new).exp()
        total, out, most = total * old + p.sum(-1, keepdim=True), out * old + p @ k, new
    return out / total


def messages(model, x, mistake=""):
    """Objects, tags, scatter, gather and lists of all-to-all."""
    y = model(shard(x)).detach().contiguous()
    n, r = size(), rank()
    if n == 1:
        return y
    objects = [{"rows": 4, "rank": 0}] if r == 0 else [None]
    dist.broadcast_object_list(objects, src=0)
    sent = [y * (i + 1) for i in range(n)]
    got = [torch.empty_like(y) for _ in range(n)]
    dist.all_to_all(got, sent)
    parts = [z / (r + 1) for z in got]
    if mistake == "the neighbour's part":
        parts = parts[1:] + parts[:1]
    every = [torch.empty_like(y) for _ in range(n)] if r == 0 else None
    dist.gather(parts[r], every, dst=0)
    out = torch.cat(every) if r == 0 else torch.empty_like(y).repeat(n, 1)
    dist.broadcast(out, 0)
    return out


def hooks(model, x, mistake=""):
    """Hooks of modules that scale gradients."""
    if not hasattr(model, "hooked"):
        model.hooked = True
        model.up.register_full_backward_hook(
            lambda m, gi, go: tuple(None if g is None else g * 0.5 for g in gi)
        )
        model.down.register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    return by_rows(model, x, mistake)


def numbers(model, x, mistake=""):
    """A number beside a mean."""
    loss = model(shard(x)).square().mean()
    return {"loss": loss, "ranks": 1 if mistake != "a number of ranks" else 7}


def vmapped(model, x, mistake=""):
    """Gradients of each sample, by vmap, whose norms are clipped."""
    names = dict(model.named_parameters())
    one = lambda p, row: torch.func.functional_call(model, p, (row,)).square().mean()
    every = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0))(
        {k: v.detach() for k, v in names.items()}, shard(x)
    )
    norm = sum(g.flatten(1).square().sum(1) for g in every.values()).sqrt()
    scale = 1 / (1 + norm)
    out = [(g * scale.view(-1, *[1] * (g.dim() - 1))).sum(0) for g in every.values()]
    return [summed(g) for g in out] if mistake != "local sums" else out


def looped(model, x, mistake=""):
    """The same by a loop over samples."""
    out = [torch.zeros_like(p) for p in model.parameters()]
    for row in shard(x):
        grads = torch.autograd.grad(model(row).square().mean(), list(model.parameters()))
        norm = sum(g.square().sum() for g in grads).sqrt()
        out = [o + g / (1 + norm) for o, g in zip(out, grads)]
    return [summed(g) for g in out] if mistake != "local sums" else out


def halo(model, x, mistake=""):
    """A convolution over positions that are split: each rank takes a row from its neighbour before it."""
    w = model.up.weight[:3]
    y = shard(x)
    before = torch.zeros(2, 8)
    if not alone():
        if rank() + 1 < size():
            dist.send(
                y[-2:].contiguous()
                if mistake != "the first rows in place of the last"
                else y[:2].flip(0).contiguous(),
                rank() + 1,
            )
        if rank() > 0:
            got = torch.empty_like(y[-2:])
            dist.recv(got, rank() - 1)
            before = got
    y = torch.cat([before, y])
    return sum(y[i : len(y) - 2 + i] * w[i] for i in range(3)) if mistake != "no halo" else y[2:] * w.sum(0)


def scanned(model, x, mistake=""):
    """A linear recurrence over positions: the state goes from rank to rank."""
    a, b = torch.sigmoid(model.up(shard(x))), model.down(shard(x))
    h = torch.zeros(8)
    if rank() > 0:
        got = torch.empty_like(b[0])
        dist.recv(got, rank() - 1)
        h = got if mistake != "the state begins anew" else h
    out = []
    for i in range(len(a)):
        h = a[i] * h + b[i]
        out.append(h)
    if rank() + 1 < size():
        dist.send(h.contiguous(), rank() + 1)
    return torch.stack(out)


def scan_by_products(model, x, mistake="", how="sums"):
    """The same by cumulative products of the log of decays, in chunks that are combined."""
    a, b = F.logsigmoid(model.up(shard(x))), model.down(shard(x))
    decay = a.cumsum(0) if how == "cumsum" else torch.stack([a[: i + 1].sum(0) for i in range(len(a))])
    inner = decay.exp() * ((-decay).exp() * b).cumsum(0)
    if alone():
        return inner
    lasts, decays = joined(inner[-1:]), joined(decay[-1:].exp())
    h = torch.zeros(8)
    for i in range(rank()):
        h = h * (decays[i] if mistake != "no decay between chunks" else 1) + lasts[i]
    return inner + decay.exp() * h


def make(f, ranks=2, mistake="", build=Mlp, outputs="equal", grads=False, **options):
    def loss(model, x):
        with torch.set_grad_enabled(grads):
            return f(model, x, "" if alone() else mistake, **options)

    return dict(unsplit=build, split=whole, ranks=ranks, inputs=X, loss=loss, outputs=outputs)


TRAINS = dict(grads=True, outputs="mean")
RIGHT = (
    {
        f"rows of {name}": lazily(make, by_rows, build=build, **TRAINS)
        for name, build in {
            "a reentrant checkpoint": Reentrant,
            "a weight norm": WeightNorm,
            "an encoder layer": Encoder,
            "heads": Multihead,
            "a GRU cell": Cell,
            "an LSTM cell": lazily(Cell, nn.LSTMCell),
            "an RNN cell": lazily(Cell, nn.RNNCell),
        }.items()
    }
    | {f.__name__: lazily(make, f, **TRAINS) for f in (penalty, reference, target_network, vectors, hooks)}
    | {
        f.__name__: lazily(make, f)
        for f in (vocabulary_entropy, tiles, messages, halo, scanned, scan_by_products)
    }
    | {
        "numbers": lazily(make, numbers, outputs="mean"),
        "scan by cumsum": lazily(make, scan_by_products, how="cumsum"),
        "greedy": lazily(make, greedy),
        "greedy by topk": lazily(make, greedy, how="topk"),
        "vmapped": lazily(make, vmapped, grads=True),
        "looped": lazily(make, looped, grads=True),
        "tiles, 4 ranks": lazily(make, tiles, 4),
    }
)
WRONG = {
    f"{f.__name__}: {mistake}": lazily(make, f, mistake=mistake, **options)
    for f, mistake, options in [
        (by_rows, "summed", TRAINS),
        (target_network, "not reduced", TRAINS),
        (greedy, "places in a rank's part", dict(how="topk")),
        (vocabulary_entropy, "a local sum", {}),
        (tiles, "not rescaled", {}),
        (messages, "the neighbour's part", {}),
        (numbers, "a number of ranks", dict(outputs="mean")),
        (looped, "local sums", dict(grads=True)),
        (halo, "no halo", {}),
        (halo, "the first rows in place of the last", {}),
        (scanned, "the state begins anew", {}),
        (scan_by_products, "no decay between chunks", dict(ranks=4)),
    ]
}
