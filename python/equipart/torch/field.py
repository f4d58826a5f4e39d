"""A tensor that says it holds floats and holds elements of the field of 2^61 - 1.

Other people's modules and torch's autograd run on it unchanged. Sums and products are exact, so a split program and its
unsplit one give the same elements, whatever the order of their sums. Functions that are no polynomials are keyed hashes,
equal for equal arguments. An operator needs a rule (`equipart/torch/rules/`); torch's own decomposition into others does,
too. An operator with neither is refused by name.
"""

import copy
import functools
from types import SimpleNamespace

import numpy
import torch

from equipart import _field

from .plain import BESIDE, address, beside, is_of_floats, taken
from .private import (
    AsyncCollectiveTensor, arguments, decompositions, no_function, overload, returns, subclass, tree_leaves, tree_map,
    written_in_python,
)  # fmt: skip

P = _field.P
NEG_INF, LEAST = -1, -2  # no elements: a mask's minus infinity, and its least finite number; e to each is 0
MASKED = 1e8  # a number of a mask that is as far below 0 is as good as minus infinity
FAR = "numbers of 2^60 and more, or of 2^-60 and less, are not taken for others (in the field 2^61 is 1)"
aten = torch.ops.aten
RULES, EXACT = {}, set()  # EXACT: operators that compute floats where all are numbers of the program itself
SEEN = SimpleNamespace(run=None, computes=False, went_back=False)  # the run that this process is a part of


class Refused(Exception):
    """The program does what cannot be proven."""


class FieldTensor(torch.Tensor):
    """A tensor of elements, in `residues` as int64. `degree` bounds the degree of its elements as polynomials."""

    @staticmethod
    def __new__(cls, residues, dtype=torch.float32, degree=None):
        size, strides, offset = residues.shape, residues.stride(), residues.storage_offset()
        self = subclass(cls, size=size, strides=strides, storage_offset=offset, dtype=dtype, device=residues.device)
        self.residues = residues
        self.degree = degree or Degree()
        return self

    @property
    def data(self):
        return FieldTensor(self.residues, self.dtype, self.degree)  # which autograd does not see

    @data.setter
    def data(self, x):
        x = x if isinstance(x, FieldTensor) else field(x)
        torch.Tensor.data.__set__(self, x)
        self.residues, self.degree = x.residues, x.degree

    def __repr__(self):
        return f"FieldTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    def __format__(self, spec):
        """What a line of a log shows of an element."""
        return "?"

    def item(self):
        """The number that this is, as a tensor: one may compute with it, or show it."""
        if self.numel() != 1:
            raise RuntimeError(f"a tensor of {self.numel()} elements is no number")
        x = self.detach().clone().reshape(())
        return Number(x.residues, x.dtype, x.degree)

    def __bool__(self):
        """What a branch takes. A number that is no mask is 0 only where it is computed as 0."""
        x = self.item() if self.dtype == torch.bool else self.item() != 0
        return aten._local_scalar_dense(x) if isinstance(x, FieldTensor) else bool(x)

    def data_ptr(self):
        return self.residues.data_ptr()

    def untyped_storage(self):
        """The memory of its elements."""
        storage = self.residues.untyped_storage()
        storage.is_of_elements = True
        return storage

    def _typed_storage(self):
        return torch.storage.TypedStorage(wrap_storage=self.untyped_storage(), dtype=torch.int64, _internal=True)

    def __deepcopy__(self, memo):
        if not self.is_leaf:
            raise RuntimeError("only leaves of the graph are copied deeply")
        out = FieldTensor(self.residues.clone(), self.dtype, self.degree.raised())
        memo[id(self)] = out
        for name in vars(self).keys() - vars(out).keys():
            setattr(out, name, copy.deepcopy(getattr(self, name), memo))
        return out.requires_grad_(self.requires_grad)

    def __round__(self, digits=None):
        return Shown()

    def tolist(self):
        return [x.tolist() for x in self] if self.dim() else self.item()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if any(issubclass(kind, AsyncCollectiveTensor) for kind in types):
            return NotImplemented  # it holds one of these, and unwraps it
        return dispatch(func, args, kwargs or {})


class Number(FieldTensor):
    """What `item` returns: as numbers of Python do, it stays what it is where another is added to it in place."""

    __torch_function__ = no_function  # so that results are no numbers, but those of arithmetic below


def arithmetic(name):
    """An operator of numbers and tensors, whose result is a number if both are."""
    plain = getattr(torch.Tensor, f"__{name}__")

    def of(x, y):
        out = plain(x, y)
        return out if isinstance(y, torch.Tensor) and not isinstance(y, Number) or out is NotImplemented else out.item()

    return of


for name in ("add", "sub", "mul", "truediv"):
    for way in ("", "r", "i"):
        setattr(Number, f"__{way}{name}__", arithmetic(way.strip("i") + name))


class Shown(str):
    """An element in a line of a log."""

    def __format__(self, spec):
        return "?"

    __str__ = __repr__ = lambda self: "?"


class Degree:
    """Bounds a tensor's elements, as polynomials in what was drawn, in keyed results and in inverses: their degree, the
    largest power of an inverse in one, and the sum of the degrees of what is inverted in one. Views share it."""

    def __init__(self, total=0.0, power=0.0, inverted=0.0):
        self.total, self.power, self.inverted = total, power, inverted

    def sides(self):
        return self.total, self.power, self.inverted

    def raised(self, *others):
        """The bound of an element that is one of these tensors'."""
        out = Degree(*self.sides())
        for other in others:
            out.grows(other)
        return out

    def plus(self, other):
        """The bound of a sum."""
        return Degree(max(self.total, other.total), max(self.power, other.power), self.inverted + other.inverted)

    def times(self, other, terms=1):
        """The bound of a sum of so many products."""
        inverted = terms * (self.inverted + other.inverted)
        return Degree(self.total + other.total, self.power + other.power, inverted)

    def grows(self, other):
        """Makes this a bound of the other's elements, too."""
        self.total, self.power = max(self.total, other.total), max(self.power, other.power)
        self.inverted = max(self.inverted, other.inverted)

    def cleared(self):
        """The degree without denominators. No more is inverted in an element than in the whole run."""
        return self.total + self.power * min(self.inverted, run().inverted())


def run():
    """The run that this process is a part of."""
    if SEEN.run is None:
        raise Refused("a tensor of the field is used after its proof has ended")
    return SEEN.run


def assume(what):
    """Says in the answer what is taken for granted, such as a reference in PyTorch that stands for a kernel."""
    run().assumes(what)


def rule(*names):
    """Makes a function the rule of operators: of aten, or, with a dot in the name, of another namespace. It takes the
    operator and the arguments, and returns tensors of the field. The operator in place follows from it."""

    def put(function):
        for name in names:
            space, _, op = name.rpartition(".")
            packet = getattr(getattr(torch.ops, space) if space else aten, op, None)
            if packet is not None:
                RULES[packet] = function
        return function

    return put


def dispatch(func, args, kwargs):
    """What an operator returns, by its rule."""
    before = run().before(func, args)
    out = promoted(args, kwargs, ruled(func, args, kwargs))
    run().after(func, args, out, before)
    return out


def promoted(args, kwargs, out):
    """What an operator returns, of the type that its operands have."""
    if all(isinstance(x, int) or getattr(x, "dtype", None) == torch.float32 for x in args) and not kwargs:
        return out
    given = list(taken(args))
    floats = [x for x in given if isinstance(x, torch.Tensor) and x.is_floating_point()]
    kinds = {x.dtype for x in floats if x.dim()} or {x.dtype for x in floats}
    named = [x for x in (*given, *kwargs.values()) if isinstance(x, torch.dtype)]
    if not named and kinds <= {torch.float32}:
        return out
    kind = named[0] if named else functools.reduce(torch.promote_types, kinds)
    of = lambda x: isinstance(x, FieldTensor) and x.dtype == torch.float32 and all(x is not y for y in given)
    return tree_map(lambda x: FieldTensor(x.residues, kind, x.degree) if of(x) else x, out)


def whole(x):
    """The whole numbers that elements are, or None: ones so small that no drawn element is likely to be one."""
    words = torch.where(x.residues > P // 2, x.residues - P, x.residues)
    return None if bool((words.abs() >= 2**24).any()) or bool((x.residues < 0).any()) else words


def numbers(x):
    """The floats of elements that are small whole numbers of the program itself, or None."""
    words = None if x.degree.total else whole(x)
    return None if words is None else words.to(x.dtype)


def ruled(func, args, kwargs):
    packet = func.overloadpacket
    if packet in EXACT:
        fields = [x for x in taken(args, kwargs) if isinstance(x, FieldTensor)]
        floats = {id(x): numbers(x) for x in fields}
        if fields and all(x is not None for x in floats.values()):
            plain = tree_map(lambda x: floats.get(id(x), x), (args, kwargs))
            return tree_map(lambda x: field(x) if isinstance(x, torch.Tensor) and is_of_floats(x) else x, func(*plain[0], **plain[1]))
    outs = [of.name for of in arguments(func) if of.is_out]
    if outs and func.namespace == "aten":
        made = packet(*args, **{name: x for name, x in kwargs.items() if name not in outs})
        [put(*both) for both in zip(tree_leaves([kwargs[name] for name in outs]), tree_leaves(made), strict=True)]
        return None if not returns(func) else kwargs[outs[0]] if len(outs) == 1 else tuple(kwargs[name] for name in outs)
    if packet in RULES:
        return RULES[packet](func, args, kwargs)
    if func.namespace == "aten" and packet.__name__.endswith("_"):
        functional = getattr(aten, packet.__name__[:-1], None)
        if functional in RULES:
            return put(args[0], RULES[functional](getattr(functional, overload(func), func), args, kwargs))
    if function := written_in_python(func):
        return function(*args, **kwargs)
    if func in decompositions:
        return decompositions[func](*args, **kwargs)
    out = func.decompose(*args, **kwargs)
    if out is NotImplemented:
        raise Refused(
            f"{func} has no rule; `@equipart.torch.rule({str(packet).removeprefix('aten.')!r})` over a function of the operator and its "
            f"arguments adds one{run().place()}"
        )
    return out


def put(to, value):
    """Writes a value into a tensor, as operators in place do."""
    if not isinstance(to, FieldTensor) and not is_of_floats(to):
        raise Refused(f"elements are written into a tensor of {to.dtype}{run().place()}")
    if not isinstance(to, FieldTensor):
        begin(to)
    into, value = field(to), field(value)
    into.residues.copy_(value.residues)
    into.degree.grows(value.degree)
    return to


def nobodys(shape):
    """Elements that are not those of any program: of memory that holds nothing yet."""
    source = torch.Generator()
    source.seed()
    return torch.randint(P, tuple(shape), generator=source)


def begin(x):
    """Puts a memory of elements beside a plain tensor's; what is no number yet is nobody's."""
    if beside(x) is None:
        whole = torch.empty(0, dtype=x.dtype).set_(x.detach().untyped_storage())
        residues = field(whole.masked_fill(whole == torch.inf, torch.nan)).residues.contiguous()
        BESIDE[address(x)] = SimpleNamespace(residues=residues, degree=Degree(), dtype=x.dtype, memory=whole)
        whole.fill_(torch.nan)  # for what reads it past PyTorch's operators


def wrap(residues, degree=None, dtype=torch.float32):
    """A tensor with these residues."""
    if run().notes is not None and run().notes.values is not None:
        run().notes.values.append(residues.clone())
    return FieldTensor(residues, dtype, degree)


def field(x):
    """A number or a tensor of the program as a tensor of the field. A float is the decimal, fraction or root that it was
    written as, if that is short, else a fraction over a power of two. Memory that holds nothing yet has nobody's elements."""
    if isinstance(x, FieldTensor):
        return x
    if isinstance(x, torch.Tensor) and (own := beside(x)) is not None:
        words = own.residues.as_strided(x.shape, x.stride(), x.storage_offset())
        return FieldTensor(words, x.dtype, own.degree)
    is_tensor = isinstance(x, torch.Tensor)
    single = is_tensor and x.dtype != torch.float64 or isinstance(x, numpy.float32)
    if not is_tensor:
        x = torch.tensor(x, dtype=torch.int64 if isinstance(x, (bool, int)) else torch.float64)
    if x.is_floating_point():
        x = x.detach().to(torch.float64).contiguous()
        unset, out = x.isnan() & is_tensor, torch.empty(x.shape, dtype=torch.int64)
        far = (x.abs() >= 2**60) | (x.abs() <= 2**-60) & (x != 0)
        if bool((far & (x > -MASKED)).any()):
            run().assumes(FAR)
        checked(_field.constants, x.masked_fill(unset, 0).reshape(-1).numpy(), flat(out), single)
        return wrap(out.masked_scatter_(unset, nobodys((int(unset.sum()),))) if bool(unset.any()) else out)
    if x.is_complex():
        raise Refused(f"complex numbers are not proven{run().place()}")
    x = x.to(torch.int64)
    if x.numel() and not -P < int(x.min()) <= int(x.max()) < P:
        raise Refused(f"an integer overflows the field: it is 2^61 or more{run().place()}")
    return wrap(x % P)


def held(x):
    """A tensor of elements, also where they stand beside a plain one; any other as it is."""
    return field(x) if beside(x) is not None else x


def positive(x):
    """True for a number, or a tensor of numbers, above 0."""
    return not isinstance(x, FieldTensor) and bool(x > 0 if not isinstance(x, torch.Tensor) else (x > 0).all())


def flat(x):
    """The memory of a contiguous tensor of words."""
    return x.view(-1).numpy()


def checked(function, *buffers):
    """Calls a function of the field. What has no result is refused, with the line of the program."""
    try:
        function(*buffers)
    except ArithmeticError as error:
        raise Refused(f"{error}{run().place()}") from None
