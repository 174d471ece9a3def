"""Checks that a config dataclass makes of itself, for those who build one in Python."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

Choice = TypeVar("Choice")


def choose(table: Mapping[str, Choice], kind: str, name: str) -> Choice:
    """The entry called ``name``; a ValueError lists the names for one that is not there."""
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}; there are: {', '.join(sorted(table))}")
    return table[name]


def check_fields(config: Any) -> None:
    """Holds every field against the choices and the range that its metadata state."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for element in value if isinstance(value, tuple) else (value,):
            if element is not None:
                _check(field.name, element, field.metadata)


def _check(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    if "choices" in rules and value not in rules["choices"]:
        raise ValueError(
            f"unknown {name} {value!r}; there are: {', '.join(map(str, rules['choices']))}"
        )
    bounds = {
        "min": ("at least", lambda bound: value >= bound),
        "max": ("at most", lambda bound: value <= bound),
        "above": ("above", lambda bound: value > bound),
        "below": ("below", lambda bound: value < bound),
    }
    for rule, (words, holds) in bounds.items():
        if rule in rules and not holds(rules[rule]):
            raise ValueError(f"{name} = {value} has to be {words} {rules[rule]}")
