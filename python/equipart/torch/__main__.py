"""Proves the programs of files, each of which defines `unsplit` and `split`, and other arguments of `prove` by their names.

Exit codes: 0 all proven, 1 one different, 2 one refused or not understood.
"""

import argparse
import dataclasses
import inspect
import json
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
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="file", help="a Python file with the functions `unsplit` and `split`"
    )
    parser.add_argument("--ranks", type=int, help="number of ranks (default: the file's `ranks`, or 2)")
    parser.add_argument("--keys", type=int, help="number of keys (default: as many as the error wants)")
    parser.add_argument("--seed", type=int, help="number that the draws begin with (default: drawn)")
    parser.add_argument("--json", action="store_true", help="print an object of JSON for each file, in a line")
    asked = parser.parse_args(arguments)
    return max(proven(path, asked, len(asked.files) > 1) for path in asked.files)


def proven(path, asked, is_named):
    """Proves the program of a file and says so; returns the exit code."""
    try:
        program = {name: value for name, value in defined(path).items() if name in OPTIONS}
        missing = [name for name in ("unsplit", "split") if not isinstance(program.get(name), list) and not callable(program.get(name))]
        if missing:
            raise Refused(f"{path} defines no function {' and no function '.join(missing)}")
        program |= {name: value for name in ("ranks", "keys", "seed") if (value := getattr(asked, name)) is not None}
        proofs = prove(**program)
        proofs = proofs if isinstance(proofs, list) else [proofs]
        code, text, outcome = 0, "\n".join(map(str, proofs)), "proven"
    except Different as error:
        code, text, outcome, proofs = 1, f"different: {error}", "different", []
    except (Refused, ValueError) as error:
        code, text, outcome, proofs = 2, f"error: {error}", "refused", []
    if asked.json:
        every = [{name: listed(value) for name, value in dataclasses.asdict(proof).items()} for proof in proofs]
        print(json.dumps({"file": str(path), "outcome": outcome, "text": text, "proofs": every}))
    else:
        print(f"{path}: {text}" if is_named else text, file=sys.stderr if code == 2 else sys.stdout)
    return code


def listed(value):
    return sorted(value) if isinstance(value, set) else value


def defined(path):
    """What a file defines."""
    sys.path.insert(0, str(path.parent))
    try:
        return runpy.run_path(str(path))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise Refused(f"{path} is no Python: {error}") from None
    except Exception as error:
        raise Refused(f"{path} raised {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
