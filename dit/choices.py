"""Looking a name up in a table of choices."""

from collections.abc import Mapping
from typing import TypeVar

Choice = TypeVar("Choice")


def choose(table: Mapping[str, Choice], kind: str, name: str) -> Choice:
    """The entry called ``name``; a ValueError lists the names for one that is not there."""
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}; there are: {', '.join(sorted(table))}")
    return table[name]
