"""Programs that do one of several things to a folder: ``python -m tools.NAME VERB DIR``."""

from collections.abc import Callable, Mapping
from pathlib import Path

from runtime.errors import UserError, unknown


def run_verb(
    program: str,
    verbs: Mapping[str, Callable[[Path], None]],
    arguments: list[str],
    usage: str | None,
) -> None:
    """Calls the verb named first with the folder named second; ``--help`` prints ``usage``."""
    if arguments in (["--help"], ["-h"]):
        print(usage)
        return
    if len(arguments) != 2:
        raise UserError(f"write: python -m {program} {'|'.join(verbs)} DIR")
    verb, folder = arguments
    if verb not in verbs:
        raise unknown("verb", verb, verbs)
    verbs[verb](Path(folder))
