"""The proof: both programs are run on the same elements, and what they compute is compared."""

import dataclasses
import inspect
import math
import random
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from equipart import _field

from .compare import OWN, Different, check_outputs, compared, naming, part_like, place_of, unseen
from .field import P, SEEN, Degree, FieldTensor, Refused, field, flat, wrap
from .locate import Notes, located
from .meeting import HERE, spawn
from .plain import beside
from .private import hooks, tree_leaves, tree_map
from .running import Run

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.5, weight_decay=0.25, foreach=False),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.5, foreach=False),
}

KINDS = ["parameter", "input", "gradient"]


@dataclass
class Proof:
    """What was proven."""

    tensors: dict  # how many of each kind were compared
    ranks: int
    operators: set
    collectives: int
    keys: int
    log2_error: float  # of the probability that a wrong program passes
    assumptions: set
    unseen: list  # what was not compared

    def __str__(self):
        compared = ", ".join(f"{count} {kind}" for kind, count in self.tensors.items())
        lines = [
            f"proven: on {self.ranks} ranks the split program computes what the unsplit one computes",
            f"  compared bit for bit: {compared}",
            f"  {len(self.operators)} operators, {self.collectives} collectives; {self.keys} keys: a wrong program passes "
            f"with a probability of at most 2^{self.log2_error:.0f}",
        ]
        lines += [f"  not compared: {what}" for what in self.unseen]
        return "\n".join(lines + [f"  assumed: {what}" for what in sorted(self.assumptions)])


def prove(
    unsplit, split, ranks=2, *, inputs=(), loss=None, outputs="equal", optimizers=OPTIMIZERS, log2_error=-60, seed=None,
    timeout=600
):
    """Proves that a split program computes what the unsplit one computes, or raises.

    `unsplit()` builds the module. `split(module)` takes one that was built so, and returns it split, or another module
    that holds its parameters or parts of them; `split()` builds its own, with the same names. It runs on each rank, in a
    process group of `ranks` ranks. `loss(module, *inputs)` is called for both, and returns a loss or tensors; without it
    the module is called. It may call backward, and step an optimizer. Floats of `inputs` are drawn; integers stay.

    `outputs` says how those of all ranks make up the unsplit ones: "equal" (or a part along one dimension), "mean" or
    "sum" over ranks. `optimizers` are made by a function of the parameters; each makes two steps, unless `loss` does, which
    is then called twice. A rank may compute for `timeout` seconds without a call.

    Raises `Different` with the first tensor that differs, and `Refused` for what cannot be proven.
    """
    seed = random.getrandbits(63) if seed is None else seed
    program = Program(unsplit, split, ranks, inputs, loss, outputs, optimizers, timeout)
    error, keys = 0.0, 0
    while error > log2_error:
        proof, run, _ = program.proven(seed + keys)
        error, keys = error + math.log2(run.bound), keys + 1
        if run.bound > 2**-4:
            raise Refused("the program is too large for a bound on the probability of error; make it smaller")
    proof.keys, proof.log2_error = keys, error
    return proof


@dataclass
class Results:
    """What one rank has computed."""

    outputs: list
    again: list  # of the second call, where the program steps
    plain: list  # numbers and strings that the program returns
    buffers: dict
    parameters: dict  # by name, as they were drawn
    gradients: dict
    of_inputs: list  # the gradients of inputs that require one
    stepped: dict  # by optimizer and name
    degree: float
    sources: list  # the memories and elements of outputs, of gradients and of parameters that have changed, if watched
    unwaited: list  # calls that nobody has waited for
    tally: tuple  # what the run has counted
    notes: object  # of all operators, if watched


class Program:
    """Both programs, and what they are given."""

    def __init__(self, unsplit, split, ranks, inputs, loss, outputs, optimizers, timeout=600):
        if outputs not in ("equal", "mean", "sum"):
            raise ValueError(f'outputs is {outputs!r}; wanted "equal", "mean" or "sum"')
        if ranks < 1:
            raise ValueError(f"ranks is {ranks}; wanted 1 or more")
        self.unsplit, self.split, self.ranks, self.outputs = unsplit, split, ranks, outputs
        self.inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        self.loss = loss or (lambda module, *inputs: module(*inputs))
        self.optimizers, self.timeout = dict(optimizers), timeout

    def ran(self, seed, watched=False):
        """Runs both. Returns the run, and what the unsplit program and each rank of the split one have computed."""
        self.seed, self.watched, results = seed, watched, []
        for ranks, build in ((1, self.built), (self.ranks, self.divided)):
            self.whole = results[0][0].outputs if results else None
            results.append(spawn(ranks, lambda rank: self.computed(rank, build, ranks), self.timeout))
        run = Run(seed % (1 << 64))
        [run.adds(*of.tally) for every in results for of in every]
        return run, *results

    def proven(self, seed):
        """Runs both and compares. Returns the proof, its run, and what the unsplit program has computed."""
        run, (whole,), parts = self.ran(seed)
        try:
            tensors = compared(whole, parts, self.outputs)
        except Different as error:
            unwaited = [f"\n  nobody waits for {call}" for part in parts for call in part.unwaited]
            raise Different(f"{error}{self.located(seed)}{''.join(unwaited[:4])}") from None
        degree = max(results.degree for results in (whole, *parts)) + run.functions.shared()
        run.bound = (run.functions.pairs() + 2 * (degree + run.apart)) / P
        return Proof(tensors, self.ranks, run.operators, run.collectives, 1, 0.0, run.assumptions, unseen(whole, parts)), run, whole

    def located(self, seed):
        """Sentences about the first tensor that differs: both programs run once more, and are watched."""
        run, (whole,), parts = self.ran(seed, watched=True)
        try:
            check_outputs(whole, parts, self.outputs)
            sources = [x for part in parts for x in part.sources[2] or part.sources[1]]
        except Different:
            sources = [x for part in parts for x in part.sources[0]]
        return located(whole.notes, [part.notes for part in parts], sources)

    def drawn(self, kind, at, shape):
        """Uniform elements for a parameter, an input or a gradient, by its number; the same for each rank."""
        out = torch.empty(shape, dtype=torch.int64)
        _field.draw((self.seed * 1_000_003 + 3 * at + KINDS.index(kind)) % (1 << 64), flat(out))
        return out

    def built(self):
        """The unsplit module, whose parameters are drawn."""
        torch.manual_seed(self.seed % (1 << 63))
        module = self.unsplit()
        if not isinstance(module, nn.Module):
            raise Refused(f"unsplit() returned {type(module).__name__}; wanted a torch.nn.Module")
        put(module, lambda at, name, old: self.drawn("parameter", at, old.shape))
        return module

    def divided(self):
        """A rank's part of the split module."""
        takes = [p for p in inspect.signature(self.split).parameters.values() if p.default is p.empty and p.kind < 2]
        module = self.split(self.built()) if takes else self.filled(self.split())
        if not isinstance(module, nn.Module):
            raise Refused(f"split returned {type(module).__name__}; wanted a torch.nn.Module")
        put(module, lambda at, name, old: None if beside(old) is None else field(old).residues)
        if any(isinstance(part, nn.parallel.DistributedDataParallel) for part in module.modules()):
            raise Refused(
                "DistributedDataParallel sums gradients in buckets of its own, in C++, which hold floats only; "
                "sum them by all_reduce in loss to prove the rest"
            )
        return module

    def filled(self, module):
        """A module that split() has built, with the unsplit module's parameters by name: whole, or this rank's part."""
        whole = dict(self.built().named_parameters(remove_duplicate=False))

        def part(at, name, old):
            if name not in whole:
                raise Refused(
                    f"the split's parameter {name} has no partner in the unsplit module, which has none of this name"
                )
            rank, what = torch.distributed.get_rank(), f"the split's parameter {name}"
            return part_like(whole[name].residues, old.shape, rank, what).clone(memory_format=torch.contiguous_format)

        put(module, part)
        return module

    def computed(self, rank, build, ranks):
        """What a rank computes."""
        self.run = Run(self.seed % (1 << 64))
        self.run.enter()
        module = build()
        names = dict(module.named_parameters())
        plain = [name for name, p in names.items() if not isinstance(local(p), FieldTensor)]
        if plain:
            more = f" and {len(plain) - 4} more" if len(plain) > 4 else ""
            raise Refused(
                f"parameters without a partner: {', '.join(plain[:4])}{more} of the split on rank {rank} "
                "have values of their own; take them from the module that split is given"
            )
        parameters = {name: residues(p) for name, p in names.items()}
        inputs = tree_map(Drawn(self), self.inputs)
        notes = Notes(self.run, rank, ranks, module) if self.watched else None
        SEEN.computes = True
        given = self.loss(module, *inputs)
        results, plain = returned(given)
        if all(p.grad is None for p in names.values()):
            self.backward(results)
        SEEN.computes = False
        leaves = [x for x in tree_leaves(inputs) if isinstance(x, FieldTensor) and x.requires_grad]
        gradients = {name: p.grad for name, p in names.items()}
        degrees = [
            local(x).degree.cleared() for x in (*results, *gradients.values()) if isinstance(local(x), FieldTensor)
        ]
        now = {name: residues(p) for name, p in names.items()}
        changed = [p for name, p in names.items() if not torch.equal(now[name], parameters[name])]
        sources = []
        if notes is not None:
            notes.ends()
            fields = lambda every: [local(x) for x in every if isinstance(local(x), FieldTensor)]
            written = lambda every: [(*notes.written(x.residues), x.residues.clone()) for x in fields(every)]
            sources = [written(every) for every in (results, gradients.values(), changed)]
        gradients = {name: None if x is None else residues(x) for name, x in gradients.items()}
        outputs = [residues(x) for x in results]
        of_inputs = [residues(0 if x.grad is None else x.grad) for x in leaves]
        again = []
        if any(HERE.link.gives(tuple(range(ranks)), "", "the end of loss", bool(changed))()):
            SEEN.computes = True
            again = [residues(x) for x in returned(self.loss(module, *inputs))[0]]
            stepped = {OWN: {name: residues(p) for name, p in names.items()}}
        else:
            stepped = self.stepped(names)
        buffers = {name: residues(x) for name, x in module.named_buffers()}
        degree = max(degrees, default=1.0)
        unwaited = [str(call) for call in HERE.pending if call.outs]
        tally = self.run.tally()
        return Results(
            outputs, again, plain, buffers, parameters, gradients, of_inputs, stepped, degree, sources, unwaited, tally, notes
        )  # fmt: skip

    def backward(self, results):
        """Goes backward from the results that have a gradient: from a loss, or with drawn gradients of tensors."""
        back = [(at, x) for at, x in enumerate(results) if x.requires_grad]
        if back:
            torch.autograd.backward([x for _, x in back], [self.cotangent(at, x, len(results)) for at, x in back])

    def cotangent(self, at, x, count):
        """The drawn gradient of a result, or this rank's part of it; 1 of a loss."""
        own = residues(x)
        whole = own if self.whole is None else self.whole[at] if at < len(self.whole) else own
        if whole.numel() == 1:
            return None if x.numel() == 1 else torch.zeros_like(x)
        out = self.drawn("gradient", at, whole.shape)
        if isinstance(x, DTensor):
            return torch.distributed.tensor.distribute_tensor(wrap(out, dtype=x.dtype), x.device_mesh, x.placements)
        place = place_of(whole, own, torch.distributed.get_rank(), naming(at, count))
        return wrap(out[place].contiguous(), dtype=x.dtype)

    def stepped(self, names):
        """The parameters after two steps of each optimizer."""
        out, learning = {}, [p for p in names.values() if p.grad is not None]
        for name, optimizer in self.optimizers.items() if learning else ():
            self.run.steps = True
            made = optimizer(learning)
            with torch.no_grad():
                kept = {name: local(p).residues.clone() for name, p in names.items()}
                made.step()
                made.step()
                out[name] = {name: residues(p) for name, p in names.items()}
                for name, p in names.items():
                    local(p).residues.copy_(kept[name])
            self.run.steps = False
        return out


class Drawn:
    """Makes inputs: floats are drawn, the same for all ranks; anything else stays."""

    def __init__(self, program):
        self.program, self.at = program, 0

    def __call__(self, x):
        self.at += 1
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        out = wrap(self.program.drawn("input", self.at, x.shape), Degree(1.0), x.dtype)
        return out.requires_grad_(x.requires_grad)


def returned(given):
    """The tensors that a program returns, in structures of any kind, and what else it returns."""
    tensors, plain = [], []

    def take(x):
        if isinstance(x, torch.Tensor):
            tensors.append(x)
        elif isinstance(x, dict):
            [take(value) for value in x.values()]
        elif isinstance(x, (list, tuple)):
            [take(value) for value in x]
        elif dataclasses.is_dataclass(x):
            [take(getattr(x, of.name)) for of in dataclasses.fields(x)]
        elif x is not None:
            plain.append(x if isinstance(x, (bool, int, float, complex, str)) else type(x).__name__)

    take(given)
    return tensors, plain


def put(module, make):
    """Gives a module other parameters, wherever it holds them: `make(number, name, parameter)` returns the elements of one,
    or None. Their attributes and hooks stay."""
    for at, (name, old) in enumerate(list(module.named_parameters())):
        made = make(at, name, old)
        if made is None:
            continue
        new = nn.Parameter(wrap(made, Degree(1.0), old.dtype), old.requires_grad)
        for key, value in vars(old).items():
            setattr(new, key, value)
        on_gradient, on_accumulated = hooks(old)
        [new.register_hook(hook) for hook in on_gradient]
        [new.register_post_accumulate_grad_hook(hook) for hook in on_accumulated]
        holders = [(part, key) for part in module.modules() for key, held in part._parameters.items() if held is old]
        try:
            torch.utils.swap_tensors(old, new)
        except RuntimeError:  # something else refers to it weakly
            [setattr(part, key, new) for part, key in holders]
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point() and not isinstance(buffer, (FieldTensor, DTensor)):
                part._buffers[name] = wrap(field(buffer).residues, dtype=buffer.dtype)


def local(x):
    """A rank's own part of a tensor."""
    return x.to_local() if isinstance(x, DTensor) else x


def residues(x):
    """The elements of a tensor; of a distributed one, those of the whole."""
    with torch.no_grad():
        x = x.full_tensor() if isinstance(x, DTensor) else x
        x = torch.view_as_real(x) if x.is_complex() else x
        return field(x).residues.detach().clone(memory_format=torch.contiguous_format)
