"""Mistakes in packages: one line of a function's source becomes another."""

import inspect
import sys
import textwrap


def edit(owner, name, *parts):
    """A function that puts, in place of a function of a module or of a class, the same with a part of its source replaced by
    the next one, and so on; also where other modules hold it."""

    def patch():
        held = inspect.getattr_static(owner, name)
        function = inspect.unwrap(getattr(held, "__func__", held))
        lines, first = inspect.getsourcelines(function)
        source = "".join(lines)
        for old, new in zip(parts[::2], parts[1::2]):
            assert source.count(old) == 1, f"{name} has {source.count(old)} times {old!r}"
            source = source.replace(old, new)
        module = sys.modules[function.__module__]
        made = {}
        code = compile("\n" * (first - 1) + textwrap.dedent(source), module.__file__, "exec")
        exec(code, vars(module), made)
        setattr(owner, name, made[name])
        for other in list(sys.modules.values()) if inspect.ismodule(owner) else ():
            if vars(other).get(name) is held:
                setattr(other, name, made[name])

    return patch
