"""What cannot be proven, each by its name: control flow on values, comparisons, rounding."""

from ..field import Refused, rule, run

REASONS = {
    "a value of the program decides what it does": "equal is_nonzero item",
    "values are rounded": "floor ceil round trunc frac remainder fmod floor_divide",
    "random numbers are drawn": "bernoulli rand_like randn_like randint_like uniform_ normal_ multinomial native_dropout",
    "a number's bits are read": "frexp nextafter",
}


def refuse(reason):
    def refuses(func, args, kwargs):
        raise Refused(f"{reason}: {func}{run().place()}")

    return refuses


for reason, names in REASONS.items():
    rule(*names.split())(refuse(reason))
