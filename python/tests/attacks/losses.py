"""Losses whose samples, classes or pairs are split over ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .common import (
    Copy,
    Reduce,
    SumBoth,
    alone,
    ids,
    joined,
    lazily,
    rank,
    shard,
    size,
    summed,
    synced,
    whole,
)

ROWS, CLASSES = 4, 4
X, Y = torch.empty(ROWS, 8), torch.empty(ROWS, CLASSES)
TARGETS = ids(ROWS, top=CLASSES)
SIGNS = torch.tensor([1.0, -1.0, -1.0, 1.0])


def model():
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def kl(p, y):
    return F.kl_div(p.log_softmax(-1), y.softmax(-1), reduction="batchmean")


def distilled(p, y, temperature=2.0):
    return temperature**2 * F.kl_div(
        F.log_softmax(p / temperature, -1),
        F.log_softmax(y / temperature, -1),
        log_target=True,
        reduction="batchmean",
    )


def js(p, y):
    p, y = p.softmax(-1), y.softmax(-1)
    m = (p + y) / 2
    return ((p * (p.log() - m.log())).sum(-1) + (y * (y.log() - m.log())).sum(-1)).mean() / 2


def focal(p, y):
    y = shard(F.one_hot(TARGETS, CLASSES).float(), at=rank())
    bce = F.binary_cross_entropy_with_logits(p, y, reduction="none")
    gate = p.sigmoid()
    return (bce * (1 - (gate * y + (1 - gate) * (1 - y))) ** 2 * 0.25).mean()


def dice(p, y):
    gate, y = p.sigmoid(), y.sigmoid()
    return (1 - (2 * (gate * y).sum(-1) + 1) / (gate.sum(-1) + y.sum(-1) + 1)).mean()


def dpo(p, y, beta=0.1):
    chosen, rejected = p.log_softmax(-1)[:, 0], p.log_softmax(-1)[:, 1]
    of_chosen, of_rejected = y.log_softmax(-1)[:, 0], y.log_softmax(-1)[:, 1]
    return -F.logsigmoid(beta * ((chosen - rejected) - (of_chosen - of_rejected))).mean()


def grpo(p, y):
    """A clipped ratio of probabilities, and the KL divergence that is never negative."""
    mine = shard(TARGETS)[:, None]
    new, old = p.log_softmax(-1).gather(1, mine), y.log_softmax(-1).gather(1, mine)
    ratio, advantage = (new - old).exp(), y[:, :1]
    gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -(gain - 0.04 * ((old - new).exp() - (old - new) - 1)).mean()


def entropy(p, y):
    return -(p.softmax(-1) * p.log_softmax(-1)).sum(-1).mean()


def sigmoid_pairs(p, y):
    """A reward model's loss."""
    return -F.logsigmoid(p[:, 0] - p[:, 1]).mean() + 0.01 * (p**2).mean()


MEANS = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": F.smooth_l1_loss,
    "huber": lambda p, y: F.huber_loss(p, y, delta=0.5),
    "bce with logits": lambda p, y: F.binary_cross_entropy_with_logits(p, y.sigmoid()),
    "bce": lambda p, y: F.binary_cross_entropy(p.sigmoid(), y.sigmoid()),
    "weighted bce": lambda p, y: F.binary_cross_entropy_with_logits(
        p, y.sigmoid(), pos_weight=torch.tensor(3.0)
    ),
    "kl": kl,
    "distillation": distilled,
    "js": js,
    "focal": focal,
    "dice": dice,
    "dpo": dpo,
    "grpo": grpo,
    "entropy": entropy,
    "cosine": lambda p, y: 1 - F.cosine_similarity(p, y, dim=-1).mean(),
    "cosine embedding": lambda p, y: F.cosine_embedding_loss(p, y, shard(SIGNS)),
    "hinge": lambda p, y: F.hinge_embedding_loss(p[:, 0], shard(SIGNS)),
    "hinge by relu": lambda p, y: F.relu(1 - shard(SIGNS)[:, None] * p).mean(),
    "multi margin": lambda p, y: F.multi_margin_loss(p, shard(TARGETS)),
    "margin ranking": lambda p, y: F.margin_ranking_loss(p[:, 0], p[:, 1], shard(SIGNS), margin=0.3),
    "soft margin": lambda p, y: F.soft_margin_loss(p[:, 0], shard(SIGNS)),
    "triplet": lambda p, y: F.triplet_margin_loss(p, y, p.flip(-1)),
    "gaussian": lambda p, y: F.gaussian_nll_loss(p, y, F.softplus(p)),
    "poisson": lambda p, y: F.poisson_nll_loss(p, y),
    "nll": lambda p, y: F.nll_loss(p.log_softmax(-1), shard(TARGETS)),
    "cross-entropy": lambda p, y: F.cross_entropy(p, shard(TARGETS), label_smoothing=0.1),
    "soft targets": lambda p, y: F.cross_entropy(p, y.softmax(-1)),
    "rewards": sigmoid_pairs,
    "log cosh": lambda p, y: (p - y + F.softplus(-2 * (p - y)) - 0.6931471805599453).mean(),
    "rmse": lambda p, y: ((p - y) ** 2).mean(-1).sqrt().mean(),
    "charbonnier": lambda p, y: torch.sqrt((p - y) ** 2 + 1e-6).mean(),
    "multilabel": lambda p, y: F.multilabel_soft_margin_loss(p, y.sigmoid()),
}


def of_means(model, x, y, name):
    loss = MEANS[name](model(shard(x)), shard(y))
    loss.backward()
    synced(model, mean=True)
    return loss


class Gathered(torch.autograd.Function):
    """Gathers rows of all ranks; gradients are summed and cut."""

    @staticmethod
    def forward(ctx, x):
        return joined(x)

    @staticmethod
    def backward(ctx, gradient):
        return shard(summed(gradient))


def contrastive(model, x, y, mistake):
    """CLIP's loss of all pairs, of which a rank computes its own rows, with gathered features of others."""
    a, b = F.normalize(model(shard(x)), dim=-1), F.normalize(shard(y), dim=-1)
    if alone():
        every_a, every_b = a, b
    elif mistake == "features of others have no gradient":
        every_a, every_b = joined(a), joined(b)
    elif mistake == "the own features replace the gathered ones":
        parts = list(joined(a).chunk(size()))
        parts[rank()] = a
        every_a, every_b = torch.cat(parts), joined(b)
    else:
        every_a, every_b = Gathered.apply(a), joined(b)
    first = 0 if mistake == "labels begin at 0 on each rank" else rank() * len(a)
    labels = torch.arange(len(a)) + first
    loss = (F.cross_entropy(a @ every_b.T / 0.07, labels) + F.cross_entropy(b @ every_a.T / 0.07, labels)) / 2
    loss.backward()
    synced(model, mean=mistake != "gradients are summed")
    return loss


def sigmoid_contrastive(model, x, y, mistake):
    """SigLIP's loss: the other features go around a ring."""
    a, b = F.normalize(model(shard(x)), dim=-1), F.normalize(shard(y), dim=-1)
    total, n = 0, size()
    for step in range(n):
        logits = a @ b.T * 10 - 10
        same = step == 0 or mistake == "each block has its diagonal"
        signs = 2 * torch.eye(len(a)) - 1 if same else -torch.ones(len(a), len(a))
        total = total - F.logsigmoid(signs * logits).sum() / len(a)
        if n > 1 and mistake != "the own block only":
            new = torch.empty_like(b)
            ops = [dist.P2POp(dist.isend, b, (rank() + 1) % n), dist.P2POp(dist.irecv, new, (rank() - 1) % n)]
            [work.wait() for work in dist.batch_isend_irecv(ops)]
            b = new
    total.backward()
    synced(model, mean=True)
    return total


def covariances(model, x, y, mistake):
    """Barlow Twins: a correlation over the samples of all ranks."""
    a, b = model(shard(x)), shard(y)
    share = (lambda z: z) if mistake == "local correlations" else Reduce.apply
    share = SumBoth.apply if mistake == "summed in the backward pass, too" else share
    c = share(a.T @ b) / ROWS
    if mistake == "local correlations":
        c = c * size()
    off = c - torch.diag(torch.diagonal(c))
    loss = (1 - torch.diagonal(c)).pow(2).sum() + 0.005 * off.pow(2).sum()
    loss.backward()
    synced(model)
    return summed(loss) / size()


def classes(model, x, y, mistake):
    """ArcFace's head: normalized classes in parts, a scale, a margin at the target."""
    features = model[1](model[0](x))
    weight = F.normalize(model[2].weight, dim=-1)
    weight = weight if alone() else shard(weight)
    shares = (lambda z: z) if mistake == "features' gradients stay local" else Copy.apply
    cosine = F.linear(F.normalize(shares(features), dim=-1), weight)
    hit = shard(F.one_hot(TARGETS, CLASSES), 1)
    if mistake == "the margin at the first classes":
        hit = F.one_hot(TARGETS, CLASSES)[:, : CLASSES // size()]
    logits = 16.0 * (cosine - 0.35 * hit)
    top = summed(logits.amax(-1), op=dist.ReduceOp.MAX)
    total = Reduce.apply((logits - top[:, None]).exp().sum(-1))
    own = Reduce.apply((logits * shard(F.one_hot(TARGETS, CLASSES), 1)).sum(-1))
    loss = (total.log() + top - own).mean()
    loss.backward()
    if not alone() and mistake != "each rank keeps the gradient of its classes":
        dist.all_reduce(model[2].weight.grad)
    return loss


def make(f, ranks=2, mistake="", outputs="mean", **options):
    given = options or dict(mistake=mistake)
    pick = lambda: given if options or not alone() else dict(mistake="")
    return dict(
        unsplit=model, split=whole, ranks=ranks, inputs=(X, Y), outputs=outputs,
        loss=lambda model, x, y: f(model, x, y, **pick()),
    )  # fmt: skip


OTHERS = {
    contrastive: "features of others have no gradient|the own features replace the gathered ones|"
    "labels begin at 0 on each rank|gradients are summed",
    sigmoid_contrastive: "each block has its diagonal|the own block only",
    covariances: "local correlations|summed in the backward pass, too",
    classes: "features' gradients stay local|the margin at the first classes|"
    "each rank keeps the gradient of its classes",
}
AS = {covariances: "equal", classes: "equal"}
RIGHT = {name: lazily(make, of_means, name=name) for name in MEANS} | {
    f"{f.__name__}, {ranks} ranks": lazily(make, f, ranks, outputs=AS.get(f, "mean"))
    for f in OTHERS for ranks in (2, 4) if (f, ranks) != (sigmoid_contrastive, 4)
}  # fmt: skip
WRONG = {
    f"{f.__name__}: {mistake}": lazily(make, f, mistake=mistake, outputs=AS.get(f, "mean"))
    for f, mistakes in OTHERS.items() for mistake in mistakes.split("|")
}  # fmt: skip
