"""Proves the program of a file, which defines `unsplit` and `split`, and other arguments of `prove` by their names.

Exit codes: 0 proven, 1 different, 2 refused or not understood.
"""

import argparse
import inspect
import runpy
import sys
from pathlib import Path

from . import Different, Refused, prove

OPTIONS = set(inspect.signature(prove).parameters)


def main(arguments=None):
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m equipart.torch", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path, help="a Python file with the functions `unsplit` and `split`")
    parser.add_argument("--ranks", type=int, help="number of ranks (default: the file's `ranks`, or 2)")
    parser.add_argument("--seed", type=int, help="number that the draws begin with (default: drawn)")
    asked = parser.parse_args(arguments)
    try:
        program = {name: value for name, value in defined(asked.file).items() if name in OPTIONS}
        missing = [name for name in ("unsplit", "split") if not callable(program.get(name))]
        if missing:
            raise Refused(f"{asked.file} defines no function {' and no function '.join(missing)}")
        program |= {name: value for name in ("ranks", "seed") if (value := getattr(asked, name)) is not None}
        print(prove(**program))
        return 0
    except Different as error:
        print(f"different: {error}")
        return 1
    except (Refused, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def defined(path):
    """What a file defines."""
    sys.path.insert(0, str(path.parent))
    try:
        return runpy.run_path(str(path))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:
        raise Refused(f"{path} raised {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
