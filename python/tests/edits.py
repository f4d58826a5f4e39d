"""Mistakes in packages: one line of a function's source becomes another."""

import inspect
import sys
import textwrap


def edit(owner, name, old, new):
    """A function that puts, in place of a function of a module or of a class, the same with this part of its source
    replaced; also where other modules hold it."""

    def patch():
        held = inspect.getattr_static(owner, name)
        function = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held
        lines, first = inspect.getsourcelines(inspect.unwrap(function))
        source = textwrap.dedent("".join(lines))
        assert source.count(old) == 1, f"{name} has {source.count(old)} times {old!r}"
        module = sys.modules[function.__module__]
        code = compile("\n" * (first - 1) + source.replace(old, new), module.__file__, "exec")
        before = dict(vars(module))
        exec(code, vars(module))
        edited = vars(module)[name]
        vars(module).pop(name), vars(module).update(before)
        setattr(owner, name, edited)
        for other in [of for of in list(sys.modules.values()) if inspect.ismodule(owner) and vars(of).get(name) is held]:
            setattr(other, name, edited)

    return patch
