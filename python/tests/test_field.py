"""Tensors of the field: arithmetic as of integers, and what is known of functions."""

import math
from fractions import Fraction

import pytest
import torch

from equipart import _field
from equipart.torch import Refused
from equipart.torch.field import LEAST, NEG_INF, P, Degree, FieldTensor, field, wrap
from equipart.torch.program import Program
from equipart.torch.proof import OPTIMIZERS
from equipart.torch.running import Run


@pytest.fixture(autouse=True)
def run():
    run = Run(7)
    run.enter()
    return run


def drawn(*shape, degree=1.0, seed=0):
    torch.manual_seed(seed)
    return wrap(torch.randint(0, P, shape, dtype=torch.int64), Degree(degree))


def ints(x):
    return x.residues.reshape(-1).tolist()


def test_arithmetic_is_that_of_integers():
    x, y = drawn(3, 4), drawn(3, 4, seed=1)
    for got, wanted in [
        (x + y, lambda a, b: a + b),
        (x - y, lambda a, b: a - b),
        (x * y, lambda a, b: a * b),
        (x / y, lambda a, b: a * pow(b, P - 2, P)),
        (3 - x, lambda a, b: 3 - a),
        (torch.lerp(x, y, 0.5), lambda a, b: (a + b) * pow(2, P - 2, P)),
        (torch.addcmul(x, x, y, value=2), lambda a, b: a + 2 * a * b),
        (torch.addcdiv(x, x, y, value=2), lambda a, b: a + 2 * a * pow(b, P - 2, P)),
        (x**3, lambda a, b: a**3),
        (x**-2, lambda a, b: pow(a * a, P - 2, P)),
        (torch.square(x), lambda a, b: a * a),
    ]:
        assert isinstance(got, FieldTensor)
        assert ints(got) == [wanted(a, b) % P for a, b in zip(ints(x), ints(y))]


def test_sums_and_products_are_those_of_integers():
    x, y = drawn(2, 3, 5), drawn(2, 5, 4, seed=1)
    product = torch.bmm(x, y)
    a, b = x.residues.tolist(), y.residues.tolist()
    rows = range(3), range(4)
    wanted = [sum(a[n][i][k] * b[n][k][j] for k in range(5)) % P for n in range(2) for i in rows[0] for j in rows[1]]
    assert ints(product) == wanted
    assert ints(x.sum((0, 2))) == [sum(a[n][i][k] for n in range(2) for k in range(5)) % P for i in range(3)]
    assert ints(x.mean()) == [sum(ints(x)) * pow(30, P - 2, P) % P]
    assert ints(x.cumsum(2)[0, 0]) == [sum(a[0][0][: k + 1]) % P for k in range(5)]
    large = wrap(torch.full((130, 120), P - 1, dtype=torch.int64))
    assert ints(large @ large.T)[:2] == [120, 120]


def of_fraction(x):
    return x.numerator * pow(x.denominator, P - 2, P) % P


def test_a_float_is_the_fraction_that_was_written():
    for x in (0.1, -2.75, 1e-30, 3e20, 7, 1e-5, 0.044715):
        assert ints(field(x)) == [of_fraction(Fraction(str(x)))]
        assert x == 1e-30 or ints(field(torch.tensor(x))) == ints(field(x)), "also in single precision"
    for p, q in ((1, 3), (2, 7), (5, 96)):
        assert ints(field(p / q)) == ints(field(torch.tensor(p / q))) == [of_fraction(Fraction(p, q))]
    exact = 0.123456789012345
    assert ints(field(exact)) == [of_fraction(Fraction(exact))]
    assert ints(field(torch.tensor([True, False]))) == [1, 0]
    assert ints(field(torch.tensor([-3]))) == [P - 3]


def test_a_float_is_the_root_that_was_written():
    for n in (2, 8, 128, 5, 10, 96):
        root, inverse = field(math.sqrt(n)), field(n**-0.5)
        assert ints(root * inverse) == [1]
        assert ints(inverse) == ints(field(torch.tensor(n**-0.5)))
    assert ints(field(math.sqrt(8)) * field(math.sqrt(2))) == [4]
    assert ints(field(2**0.5) * field(2**0.5)) == [2]


def test_a_masks_minus_infinity():
    x = drawn(2)
    masked = x + torch.tensor([0.0, -torch.inf])
    assert ints(masked) == [ints(x)[0], NEG_INF]
    assert ints((masked * 0.5).exp())[1] == 0
    least = torch.finfo(torch.float32).min
    assert ints(masked + least) == [LEAST, NEG_INF]
    assert ints((x + least).exp()) == [0, 0]
    assert ints(torch.softmax(x + least, -1)) == ints(field(torch.tensor([0.5, 0.5]))), "as in floats"
    assert ints(torch.softmax(masked, -1)) == [1, 0]
    assert ints(torch.sigmoid(masked))[1] == 0
    for wrong in (lambda: x - masked, lambda: masked * 0, lambda: masked.sum(), lambda: torch.sin(masked)):
        with pytest.raises(Refused, match="minus infinity"):
            wrong()


def test_exponentials_of_logarithms_are_known():
    x = drawn(3, 4)
    assert ints(x.exp().log()) == ints(x)
    log, softmax = torch.log_softmax(x, -1), torch.softmax(x, -1)
    assert ints(log.exp()) == ints(softmax)
    assert ints(softmax.sum(-1)) == [1, 1, 1]
    most = x.max(-1, keepdim=True).values
    by_hand = (x - most) - (x - most).exp().sum(-1, keepdim=True).log()
    assert ints(by_hand) == ints(log)
    assert ints(by_hand.exp()) == ints(softmax)
    assert ints(torch.logsumexp(x, -1)) == ints((x - most).exp().sum(-1).log() + most[:, 0])
    assert ints((torch.zeros(3, 4) + x).exp()) == ints(x.exp())


def test_functions_are_keyed_and_no_polynomials():
    x, y = drawn(4), drawn(4, seed=1)
    functions = [
        torch.exp,
        torch.sigmoid,
        torch.tanh,
        torch.rsqrt,
        torch.relu,
        torch.sin,
        torch.nn.functional.gelu,
        torch.abs,
    ]
    results = [ints(function(x)) for function in functions]
    assert len({tuple(result) for result in results}) == len(functions)
    for function, result in zip(functions, results):
        assert ints(function(x)) == result
        assert ints(function(x + y)) != ints(function(x) + function(y))
    Run(8).enter()
    for function, result in zip(functions, results):
        assert ints(function(x)) != result
    assert ints(torch.sqrt(x) ** 2) == ints(x)
    assert ints(1 / torch.sqrt(x)) == ints(torch.rsqrt(x))
    assert ints(torch.linalg.vector_norm(x) ** 2) == ints((x * x).sum())


def test_the_bound_counts_arguments_and_degrees(run):
    x, y = drawn(3, 4, degree=2.0), drawn(4, 5, degree=3.0, seed=1)
    assert (x @ y).degree.total == 5.0
    assert (x + 1).degree.total == 2.0
    assert (x * x * x).degree.total == 6.0
    torch.sigmoid(x)
    assert run.functions.pairs() == 12 * 12 * 2.0
    torch.sigmoid(x)
    assert run.functions.pairs() == 12 * 12 * 2.0, "the same arguments count once"
    torch.sigmoid(x * x)
    assert run.functions.pairs() == 24 * (12 * 2.0 + 12 * 4.0)
    torch.rsqrt(y)
    assert run.functions.pairs() == 24 * (12 * 2.0 + 12 * 4.0) + 20 * 20 * 3.0
    quotient = 1 / x
    assert (quotient.degree.total, quotient.degree.power, quotient.degree.inverted) == (1.0, 1.0, 2.0)
    assert run.functions.inverted() == 12 * 2.0
    assert quotient.degree.cleared() == 3.0
    assert (quotient + 1 / (x * x)).degree.cleared() == 1.0 + 2.0 + 4.0
    assert (quotient.sum()).degree.cleared() == 1.0 + 12 * 2.0
    view = x[:1]
    view += drawn(1, 4, degree=9.0)
    assert x.degree.total == 9.0, "a view is written into"


def test_the_bound_counts_sigmoids_beside_exponentials(run):
    x = drawn(3, 4)
    x.sigmoid(), drawn(2, seed=1).exp()
    assert run.functions.shared() == 0 and x.sigmoid().degree.cleared() == 1.0
    x[:2].exp(), (-x[2:]).exp()
    assert run.functions.shared() == 12

    both = lambda model, x: model(x).sigmoid() + model(x).exp()
    program = Program(lambda: torch.nn.Linear(3, 2), lambda whole: whole, 2, torch.zeros(4, 3), both, "equal", {})
    _, run, whole, _ = program.proven(1)
    assert run.functions.shared() == 8
    assert round(run.bound * P) == round(run.functions.pairs() + 2 * (whole.degree + 8))


def test_the_bound_counts_what_other_ranks_and_steps_invert(run):
    run.hears(1, 5.0, 2.0, 3.0)
    run.hears(1, 7.0, 1.0, 1.0)
    assert (run.inverted(), run.logarithms, run.roots) == (7.0, 2.0, 3.0)
    x = drawn(3, 4, degree=2.0)
    run.steps = True
    quotient = 1 / x
    assert run.functions.inverted() == 0 and run.inverted() == 7.0 + 12 * 2.0
    assert run.bounds() == (24.0, 2.0, 3.0) and quotient.degree.cleared() == 3.0


def test_numbers_far_from_1_are_assumed_apart(run):
    field(torch.tensor([0.5, 2.0**50, -torch.inf, torch.finfo(torch.float32).min]))
    assert not run.assumptions
    for far in (2.0**-70, 2.0**70):
        run.assumptions = set()
        field(far)
        assert any("numbers of 2^60 and more" in assumed for assumed in run.assumptions)


def test_the_bound_counts_what_steps_of_optimizers_keep_apart():
    layer = lambda: torch.nn.Linear(3, 2)
    program = Program(layer, lambda whole: whole, 2, torch.zeros(4, 3), None, "equal", OPTIMIZERS)
    _, run, whole, _ = program.proven(1)
    assert run.apart > 0
    assert round(run.bound * P) >= run.functions.pairs() + 2 * (whole.degree + run.apart)


def test_moves_move():
    x = drawn(3, 4)
    assert ints(x.t()) == x.residues.t().reshape(-1).tolist()
    index = torch.tensor([2, 0, 2])
    assert ints(x[index]) == x.residues[index].reshape(-1).tolist()
    sums = torch.zeros_like(x)
    sums.index_add_(0, index, x)
    wanted = [[(x.residues[1, j].item()) % P for j in range(4)], [0] * 4]
    wanted.append([(x.residues[0, j].item() + x.residues[2, j].item()) % P for j in range(4)])
    assert sums.residues.tolist() == wanted
    scattered = torch.zeros_like(x).scatter_add_(1, torch.zeros(3, 4, dtype=torch.int64), x)
    assert ints(scattered[:, 0]) == ints(x.sum(1))
    added = x.scatter(0, torch.tensor([[1, 1, 0, 2]]), x, reduce="add")
    assert ints(added[1, :2]) == [(a + b) % P for a, b in zip(ints(x[1, :2]), ints(x[0, :2]))]
    with pytest.raises(Refused, match="scatter reduces by multiply"):
        x.scatter(0, torch.tensor([[1, 1, 0, 2]]), x, reduce="multiply")
    put = torch.zeros_like(x).index_put((index, index), x[:, 0], accumulate=True)
    assert ints(put[2, 2]) == [(ints(x)[0] + ints(x)[8]) % P]
    assert ints(x.masked_fill(torch.eye(3, 4).bool(), 0.0).diagonal()) == [0, 0, 0]
    values, at = x.topk(2)
    assert ints(values) == torch.gather(x.residues, 1, at).reshape(-1).tolist()
    assert ints(torch.where(torch.eye(3, 4).bool(), x, 1))[1] == 1
    assert ints(torch.nn.functional.pad(x, (1, 0))[:, 0]) == [0, 0, 0]


@pytest.mark.parametrize("shares, causal", [(1, False), (1, True), (2, True)])
def test_attention_is_that_of_products_and_a_softmax(shares, causal):
    """The operator that PyTorch chooses on the host, forward and backward, and the same written out."""
    q = drawn(2, 4, 3, 5).requires_grad_()
    k, v = (drawn(2, 4 // shares, 3, 5, seed=seed).requires_grad_() for seed in (1, 2))
    out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=0.5)
    gradient = drawn(2, 4, 3, 5, seed=3)
    got = [out, *torch.autograd.grad(out, (q, k, v), gradient)]
    keys, values = (x.repeat_interleave(shares, 1) for x in (k, v))
    scores = q @ keys.transpose(-1, -2) * 0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(3, 3).tril().bool(), -torch.inf)
    out = torch.softmax(scores, -1) @ values
    for mine, written in zip(got, [out, *torch.autograd.grad(out, (q, k, v), gradient)]):
        assert torch.equal(mine.residues, written.residues)


def test_an_embedding_of_padding_learns_nothing():
    table = drawn(4, 3).requires_grad_()
    rows = torch.nn.functional.embedding(torch.tensor([1, 0, 1, 2]), table, padding_idx=0)
    gradient = drawn(4, 3, seed=1)
    (got,) = torch.autograd.grad(rows, table, gradient)
    row = lambda at: gradient.residues[at].tolist()
    wanted = [[0] * 3, [(a + b) % P for a, b in zip(row(0), row(2))], row(3), [0] * 3]
    assert got.residues.tolist() == wanted


def test_an_embedding_scaled_by_frequency_is_refused():
    rows = torch.nn.functional.embedding(torch.tensor([1, 0, 1]), drawn(4, 3).requires_grad_(), scale_grad_by_freq=True)
    with pytest.raises(Refused, match="scaled by the frequency of its rows"):
        rows.backward(drawn(3, 3, seed=1))


def test_buffers_that_do_not_fit():
    """The library's functions say so, and do not panic."""
    words, functions = (lambda n: torch.ones(n, dtype=torch.int64).numpy()), _field.Functions(1)
    for call in (
        lambda: functions.sums(words(5), words(2), 2),
        lambda: functions.maxima(words(5), words(2), 2),
        lambda: functions.inverse(words(5), words(2), 1.0),
        lambda: functions.learn_squares(words(5), words(2)),
        lambda: _field.product(words(4), words(5), words(4), [1, 2, 2, 2]),
        lambda: _field.accumulate(words(4), words(5), words(4)),
        lambda: _field.constants(torch.ones(3).double().numpy(), words(4), True),
        lambda: _field.rotary(1, 0, 10000.0, words(4), words(4)),
        lambda: functions.add(words(4), torch.full((4,), -7).numpy(), words(4)),
    ):
        with pytest.raises((ValueError, ArithmeticError)):
            call()
