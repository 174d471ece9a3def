"""Strict settings: YAML files and ``key=value``, typed by a dataclass.

Every program is called ``PROGRAM TARGET key=value ...``. A dataclass states each key once, with
its type, default, range and meaning. Values are read by that type, never by what YAML makes of
them: a text keeps the exact characters that were typed (``1e5``, ``010``, ``None``); ``null``
empties a key that may be empty. Unknown keys, wrong types and values out of range end the program
before any work, with one line.

A YAML file may start with ``base: OTHER.yaml`` (relative to itself), which is merged first, and
may refer to other keys as ``${key}``.
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from runtime.config_schema import (
    Sections,
    allowed_words,
    build,
    keys_of,
    kind_name,
    shown,
    to_yaml,
)
from runtime.config_text import Tree, load_yaml, merge, nested
from runtime.errors import UserError

Schema = TypeVar("Schema")


def read_config(
    schema: type[Schema],
    arguments: list[str],
    sections: Callable[[Tree], Sections] = lambda tree: {},
) -> Schema:
    """Settings from ``CONFIG.yaml key=value ...``.

    ``--help`` and ``print_config=true`` print and exit. ``sections`` names the dataclass of
    sections that depend on other keys (``process`` depends on ``model``).
    """
    path, overrides = _split(schema, arguments, "CONFIG.yaml", sections)
    tree = merge([load_yaml(path), *overrides])
    config = build(schema, tree, sections(tree))
    _print_if_asked(config, arguments)
    return config


def read_target(
    schema: type[Schema],
    arguments: list[str],
    target: str,
    defaults: Callable[[Path, Tree], tuple[Tree, Sections]] = lambda path, overrides: ({}, {}),
) -> tuple[Path, Schema]:
    """The path named first, and settings from ``key=value ...``.

    ``defaults`` gives, for a path and the overrides, what the target itself says (a checkpoint
    knows its sampler): a tree below the overrides, and the dataclasses of its sections.
    """
    path, overrides = _split(schema, arguments, target, lambda tree: {})
    tree, sections = defaults(path, merge(overrides))
    config = build(schema, merge([tree, *overrides]), sections)
    _print_if_asked(config, arguments)
    return path, config


def read_options(schema: type[Schema], arguments: list[str]) -> Schema:
    """Settings from ``key=value ...`` alone."""
    if arguments and not arguments[0].startswith("-") and "=" not in arguments[0]:
        raise UserError(f"{arguments[0]!r} is no key=value")
    return read_target(schema, [".", *arguments], "")[1]


# --- the command line -------------------------------------------------------------------------


def _split(
    schema: type, arguments: list[str], target: str, sections: Callable[[Tree], Sections]
) -> tuple[Path, list[Tree]]:
    if any(argument in ("--help", "-h") for argument in arguments):
        files = [Path(argument) for argument in arguments if argument.endswith(".yaml")]
        print(_help(schema, target, sections(load_yaml(files[0]) if files else {})))
        sys.exit(0)
    if not arguments or ("=" in arguments[0] and not Path(arguments[0]).exists()):
        raise UserError(f"the first argument has to be {target}, then key=value ...; see --help")
    if arguments[0].startswith("-"):
        raise UserError(f"the first argument has to be {target}, not {arguments[0]!r}; see --help")
    overrides = [_override(argument) for argument in arguments[1:] if not _asks_to_print(argument)]
    return Path(arguments[0]), overrides


def _override(argument: str) -> Tree:
    key, equals, value = argument.partition("=")
    if argument.startswith("-"):
        spelling = key.lstrip("-").replace("-", "_")
        raise UserError(f"write {spelling}={value or 'VALUE'}, not {argument!r}")
    if not equals or not key:
        raise UserError(f"{argument!r} is no key=value")
    return nested(key, value)


def _asks_to_print(argument: str) -> bool:
    return argument.lower() == "print_config=true"


def _print_if_asked(config: Any, arguments: list[str]) -> None:
    if any(map(_asks_to_print, arguments)):
        print(to_yaml(config), end="")
        sys.exit(0)


def _help(schema: type, target: str, sections: Sections) -> str:
    lines = [
        f"usage: PROGRAM {target} key=value ...",
        "",
        "print_config=true shows all settings and ends.",
        "",
    ]
    for key, field, kind in keys_of(schema, sections):
        default = "" if field.default is dataclasses.MISSING else f" = {shown(field.default)}"
        notes = [field.metadata.get("help", ""), allowed_words(field)]
        lines.append(f"  {key}{default}  ({kind_name(kind)})")
        lines.extend(f"      {note}" for note in notes if note)
    return "\n".join(lines)
