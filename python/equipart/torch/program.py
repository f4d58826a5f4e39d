"""Both programs: what each rank of them computes."""

import contextlib
import dataclasses
import inspect
from collections.abc import Iterable, Set
from dataclasses import dataclass

import numpy
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from equipart import _field

from .compare import OWN, Different, check_outputs, compared, naming, part_like, place_of
from .field import P, SEEN, Degree, FieldTensor, Refused, field, flat, held, wrap
from .host import settle
from .locate import Notes, located
from .meeting import HERE, spawn
from .private import hooks, tree_leaves, tree_map
from .running import Run

KINDS = ["parameter", "input", "gradient"]


@dataclass
class Results:
    """What one rank has computed."""

    outputs: list
    again: tuple  # outputs of the second call, where the program steps, and its plain ones
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
    dropped: dict  # by element, the random numbers with which dropout took it
    met: dict  # by operator and number of rows, which were taken by integers
    notes: object  # of all operators, if watched


class Program:
    """Both programs, and what they are given."""

    def __init__(self, unsplit, split, ranks, inputs, loss, outputs, optimizers, timeout=600, wholes=None):
        if outputs not in ("equal", "mean", "sum"):
            raise ValueError(f'outputs is {outputs!r}; wanted "equal", "mean" or "sum"')
        if not isinstance(ranks, int) or ranks < 1:
            raise ValueError(f"ranks is {ranks!r}; wanted a number of 1 or more")
        self.unsplit, self.split, self.ranks, self.outputs = unsplit, split, ranks, outputs
        self.inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        self.loss = loss or (lambda module, *inputs: module(*inputs))
        self.optimizers, self.timeout = dict(optimizers), timeout
        self.wholes = {} if wholes is None else wholes  # what the unsplit program has computed, by seed
        self.rows = {}  # by the number of an input of integers, those that it takes in turn

    def on(self, ranks, build):
        """What so many ranks compute with a module that each builds."""
        return spawn(ranks, lambda rank: self.computed(rank, build, ranks), self.timeout)

    def ran(self, seed, watched=False):
        """Runs both. Returns the run, and what the unsplit program and each rank of the split one have computed."""
        self.seed, self.watched, self.whole = seed, watched, None
        whole = None if watched else self.wholes.get(seed)
        if whole is None:
            (whole,) = self.on(1, self.built)
            self.wholes[seed] = self.wholes.get(seed, whole)
        self.whole = whole.outputs
        parts, run = self.on(self.ranks, self.divided), Run(seed % (1 << 64))
        [run.adds(*of.tally) for of in (whole, *parts)]
        return run, whole, parts

    def proven(self, seed):
        """Runs both and compares. Returns how many tensors of each kind, the run, and what both programs have computed."""
        run, whole, parts = self.ran(seed)
        try:
            tensors = compared(whole, parts, self.outputs)
        except Different as error:
            unwaited = [f"\n  nobody waits for {call}" for part in parts for call in part.unwaited]
            where = self.located(seed) if error.is_of_operators else ""
            raise Different(f"{error}{where}{''.join(unwaited[:4])}") from None
        degree = max(results.degree for results in (whole, *parts)) + run.functions.shared()
        run.bound = (run.functions.pairs() + 2 * (degree + run.apart)) / P
        return tensors, run, whole, parts

    def spreads(self, seed, parts):
        """Lets integers that choose rows take the first and the last of each part, after a run that tells which they are."""
        self.seed, self.watched, self.whole = seed, False, None
        (whole,) = self.on(1, self.built)
        for at, x in enumerate(tree_leaves(self.inputs), 1):
            given = set(x.reshape(-1).tolist()) if isinstance(x, torch.Tensor) and x.dtype in (torch.int64, torch.int32) else ()
            sizes = [size for (_, size), met in whole.met.items() if met <= given]
            if sizes and given:
                ends = {k * -(-min(sizes) // parts) for k in range(parts)} | {min(sizes)}
                self.rows[at] = sorted({row % min(sizes) for end in ends for row in (end, end - 1) if end <= min(sizes)})

    def located(self, seed):
        """Sentences about the first tensor that differs: both programs run once more, and are watched."""
        run, whole, parts = self.ran(seed, watched=True)
        try:
            check_outputs(whole, parts, self.outputs)
            sources = [x for part in parts for x in part.sources[2] or part.sources[1]]
        except Different:
            sources = [x for part in parts for x in part.sources[0]]
        return located(whole.notes, [part.notes for part in parts], sources, self.outputs == "mean")

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
        settle()
        self.run = Run(self.seed % (1 << 64))
        self.run.enter()
        module = build()
        names = dict(module.named_parameters())
        plain = [name for name, p in names.items() if not is_element(p)]
        if plain:
            more = f" and {len(plain) - 4} more" if len(plain) > 4 else ""
            raise Refused(
                f"parameters without a partner: {', '.join(plain[:4])}{more} of the split on rank {rank} "
                "have values of their own; take them from the module that split is given"
            )
        parameters = {name: part(p, p) for name, p in names.items()}
        inputs = tree_map(Drawn(self), self.inputs)
        notes = Notes(self.run, rank, ranks, module) if self.watched else None
        SEEN.computes, SEEN.went_back, went_back = True, False, []
        watches = [p.register_post_accumulate_grad_hook(went_back.append) for p in names.values() if p.requires_grad]
        results, plain = returned(self.loss(module, *inputs))
        [watch.remove() for watch in watches]
        if not went_back and not SEEN.went_back:  # FSDP has other parameters in the backward
            self.backward(results)
        SEEN.computes = False
        leaves = [x for x in tree_leaves(inputs) if isinstance(x, FieldTensor) and x.requires_grad]
        gradients = {name: p.grad for name, p in names.items()}
        compared = [*results, *gradients.values(), *(x.grad for x in leaves)]
        now = {name: part(p, p) for name, p in names.items()}
        changed = [p for name, p in names.items() if not torch.equal(now[name], parameters[name])]
        sources = []
        if notes is not None:
            notes.ends()
            fields = lambda every: [local(x) for x in every if isinstance(local(x), FieldTensor)]
            written = lambda every: [(*notes.written(x.residues), x.residues.clone()) for x in fields(every)]
            sources = [written(every) for every in (results, gradients.values(), changed)]
        gradients = {name: None if x is None else part(x, names[name]) for name, x in gradients.items()}
        outputs = [residues(x) for x in results]
        of_inputs = [residues(0 if x.grad is None else x.grad) for x in leaves]
        again = [], []
        if any(HERE.link.gives(tuple(range(ranks)), "", "the end of loss", bool(changed))()):
            SEEN.computes = True
            second, others = returned(self.loss(module, *inputs))
            again = [residues(x) for x in second], others
            stepped = {OWN: {name: part(p, p) for name, p in names.items()}}
        else:
            stepped = self.stepped(names)
        compared += [*names.values(), *module.buffers()]
        degrees = [local(x).degree.cleared() for x in compared if isinstance(local(x), FieldTensor)]
        buffers = {bare(name): residues(x) if is_element(x) else bits(x) for name, x in module.named_buffers()}
        degree = max(degrees, default=1.0)
        [call.check() for call in HERE.pending]
        unwaited = [str(call) for call in HERE.pending if call.outs]
        tally = self.run.tally()
        return Results(
            outputs, again, plain, buffers, parameters, gradients, of_inputs, stepped, degree, sources, unwaited, tally, self.run.dropped, self.run.met, notes
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
            with torch.no_grad(), stepping(name):
                kept = {name: local(p).residues.clone() for name, p in names.items()}
                made.step()
                made.step()
                out[name] = {name: part(p, p) for name, p in names.items()}
                for name, p in names.items():
                    local(p).residues.copy_(kept[name])
            self.run.steps = False
        return out


@contextlib.contextmanager
def stepping(name):
    """Says of a refusal in which optimizer's step it is."""
    try:
        yield
    except Refused as error:
        raise Refused(f"{error}, in a step of {name}") from None


class Drawn:
    """Makes inputs: floats are drawn, the same for all ranks; anything else stays."""

    def __init__(self, program):
        self.program, self.at = program, 0

    def __call__(self, x):
        self.at += 1
        if dataclasses.is_dataclass(x):
            return dataclasses.replace(x, **{of.name: tree_map(self, getattr(x, of.name)) for of in dataclasses.fields(x) if of.init})
        if hasattr(x, "__dict__") and any(isinstance(value, torch.Tensor) for value in vars(x).values()) and not callable(x):
            if not isinstance(x, torch.Tensor):
                raise Refused(f"an input of the class {type(x).__name__} holds tensors; wanted lists, dictionaries or a dataclass")
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x if self.at not in self.program.rows else self.spread(x)
        out = wrap(self.program.drawn("input", self.at, x.shape), Degree(1.0), x.dtype)
        return out.requires_grad_(x.requires_grad)


    def spread(self, x):
        """Integers of an input that take rows in turn, under each key other ones; negative ones stay."""
        rows = self.program.rows[self.at]
        first = self.program.seed * x.numel() % len(rows)
        out = torch.tensor(rows, dtype=x.dtype)[(torch.arange(x.numel()) + first) % len(rows)]
        return torch.where(x < 0, x, out.view(x.shape))


def returned(given):
    """The tensors that a program returns, in structures of any kind, and what else it returns."""
    tensors, plain = [], []

    def take(x):
        if isinstance(x, numpy.ndarray):
            x = torch.from_numpy(x)
        if isinstance(x, torch.Tensor):
            tensors.append(x)
        elif isinstance(x, (bool, int, float, complex, str, bytes, range)):
            plain.append(x)
        elif isinstance(x, Set) and not any(isinstance(value, torch.Tensor) for value in x):
            plain.append(frozenset(x))
        elif isinstance(x, numpy.generic):
            plain.append(x.item())
        elif isinstance(x, dict):
            plain.append(tuple(sorted(map(str, x))))
            [take(x[key]) for key in sorted(x, key=str)]
        elif isinstance(x, Iterable) and not isinstance(x, Set):
            [take(value) for value in x]
        elif hasattr(x, "__dict__") and not isinstance(x, (type, nn.Module)) and not callable(x):
            [take(getattr(x, name)) for name in sorted(vars(x))]
        elif x is not None:
            raise Refused(f"the program returns an object of the class {type(x).__name__}, which holds what is not compared")

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


def bare(name):
    """A buffer's name without what wraps its module."""
    for wrapper in ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


def is_element(x):
    return isinstance(local(x), FieldTensor)


def bits(x):
    """What a plain tensor holds, so that NaN is equal to itself; of a distributed one, what the whole holds."""
    x = x.full_tensor() if isinstance(x, DTensor) else x
    x = torch.view_as_real(x) if x.is_complex() else x
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.detach().contiguous().view(whole).clone()


def local(x):
    """A rank's own part of a tensor: its elements, if it has any."""
    return held(x.to_local() if isinstance(x, DTensor) else x)


def part(x, of):
    """The elements of a rank's part of a parameter, or of what is cut as it should be."""
    with torch.no_grad():
        is_cut = isinstance(x, DTensor) and isinstance(of, DTensor)
        return residues(x.redistribute(of.device_mesh, of.placements).to_local() if is_cut else x)


def residues(x):
    """The elements of a tensor; of a distributed one, those of the whole."""
    with torch.no_grad():
        x = x.full_tensor() if isinstance(x, DTensor) else x
        x = torch.view_as_real(x) if x.is_complex() else x
        return field(x).residues.detach().clone(memory_format=torch.contiguous_format)
