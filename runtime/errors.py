"""Mistakes of a user, told in one line.

Programs raise :class:`UserError` for what a user can mend; ``run`` prints it and exits with
status 2, without a traceback. Anything else is our fault and keeps its traceback.
"""

import difflib
import os
import sys
from collections.abc import Callable, Iterable

import torch

from runtime.cpu_processes import start_missing_processes


class UserError(Exception):
    """One line that names the thing, the value found and what is allowed."""


class ReportedError(UserError):
    """The same on a process that need not repeat it."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that is not among the known ones, with the nearest of them."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return UserError(f"unknown {kind} {name!r}{hint} (there are: {', '.join(names)})")


def run(main: Callable[[list[str]], None]) -> None:
    """Runs a program on the command line's arguments; a user's mistake costs one line."""
    start_missing_processes()
    try:
        main(sys.argv[1:])
    except ReportedError:
        sys.exit(2)
    except UserError as error:
        _report(" ".join(str(error).split()))
        sys.exit(2)
    except RuntimeError as error:
        if not (torch.distributed.is_initialized() and "peer" in str(error)):
            raise
        _report("another process ended, see its error")
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _report(message: str) -> None:
    rank = os.environ.get("RANK", "0")
    prefix = "error" if rank == "0" else f"error (process {rank})"
    print(f"{prefix}: {message}", file=sys.stderr)
