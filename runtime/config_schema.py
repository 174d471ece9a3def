"""From a tree of text to a dataclass: every key known, every value of its type and range."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf

from runtime.config_text import TextLoader, Tree, parse_yaml, rename, resolve
from runtime.errors import UserError

Schema = TypeVar("Schema")
Sections = Mapping[str, type]  # which dataclass a section has, where that depends on other keys


def build(
    schema: type[Schema], tree: Tree, sections: Sections = types.MappingProxyType({})
) -> Schema:
    """The dataclass from a tree of text, every key and value checked."""
    return _build(schema, resolve(rename(tree)), sections, prefix="", root=schema)


def to_yaml(config: Any) -> str:
    """All keys with their values, as YAML that reads back to the same settings."""
    return OmegaConf.to_yaml(OmegaConf.create(_plain(config)))


def to_tree(config: Any) -> Tree:
    """The settings as a tree of text, as if they had been read from a file."""
    return parse_yaml(to_yaml(config))


def _build(schema: type, tree: Tree, sections: Sections, prefix: str, root: type) -> Any:
    fields = {field.name: field for field in dataclasses.fields(schema)}
    kinds = typing.get_type_hints(schema)
    values: dict[str, Any] = {}
    for key, node in tree.items():
        if key not in fields:
            raise _unknown_key(prefix + key, root, sections)
        kind = _kind(prefix + key, kinds[key], sections)
        if dataclasses.is_dataclass(kind):
            if not isinstance(node, dict):
                raise UserError(f"{prefix + key} is a section: write {prefix + key}.KEY=VALUE")
            values[key] = _build(typing.cast(type, kind), node, sections, f"{prefix}{key}.", root)
        else:
            values[key] = _value(node, kind, fields[key], prefix + key)
    for key in fields:  # sections that nobody mentioned, and keys that somebody has to give
        kind = _kind(prefix + key, kinds[key], sections)
        if key not in values and dataclasses.is_dataclass(kind):
            values[key] = _build(typing.cast(type, kind), {}, sections, f"{prefix}{key}.", root)
        elif key not in values and fields[key].default is dataclasses.MISSING:
            raise UserError(f"{prefix + key} is not set: give {prefix + key}=VALUE")
    try:
        return schema(**values)
    except ValueError as error:
        raise UserError(f"{prefix.rstrip('.') or 'config'}: {error}") from None


def _kind(key: str, declared: Any, sections: Sections) -> Any:
    """The type of a key; of several dataclasses the first, unless ``sections`` chooses one."""
    if key in sections:
        return sections[key]
    options = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    return next((option for option in options if dataclasses.is_dataclass(option)), declared)


def _value(node: Any, kind: Any, field: "dataclasses.Field[Any]", key: str) -> Any:
    if isinstance(node, dict):
        raise UserError(f"{key} is a single value and has no key {next(iter(node))!r} below it")
    value = _parse(node, kind, key)
    for element in value if isinstance(value, tuple) else (value,):
        if element is not None and not _is_allowed(element, field.metadata):
            nearest = difflib.get_close_matches(
                str(element), map(str, field.metadata.get("choices", ())), n=1
            )
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise UserError(
                f"{key} = {shown(element)} is not allowed{hint} "
                f"(it has to be {allowed_words(field)})"
            )
    return value


def _parse(node: Any, kind: Any, key: str) -> Any:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in options:
        if node == "null":
            return None
        kind = next(option for option in options if option is not type(None))
    if typing.get_origin(kind) is tuple:
        return _parse_tuple(node, kind, key)
    if not isinstance(node, str):
        raise UserError(f"{key} is one {kind_name(kind)}, not a {type(node).__name__}")
    if kind is str:
        return node
    try:
        if kind is bool:
            return {"true": True, "false": False}[node.lower()]
        number = kind(node)
    except (ValueError, KeyError, OverflowError):
        raise UserError(f"{key} = {node!r} is not {_article(kind_name(kind))}") from None
    if not math.isfinite(number):
        raise UserError(f"{key} = {node} is not a finite number")
    return number


def _parse_tuple(node: Any, kind: Any, key: str) -> tuple[Any, ...]:
    if isinstance(node, str) and node.startswith("["):
        try:
            node = yaml.load(node, Loader=TextLoader)
        except yaml.YAMLError:
            raise UserError(f"{key} = {node!r} is not a list: write {key}=[a,b]") from None
    if not isinstance(node, list):
        raise UserError(f"{key} = {node!r} is not a list: write {key}=[a,b]")
    element_kinds = typing.get_args(kind)
    if element_kinds[-1] is Ellipsis:
        return tuple(_parse(element, element_kinds[0], key) for element in node)
    if len(node) != len(element_kinds):
        raise UserError(f"{key} has {len(node)} values instead of {len(element_kinds)}")
    return tuple(_parse(e, k, key) for e, k in zip(node, element_kinds, strict=True))


def _is_allowed(value: Any, rules: Mapping[str, Any]) -> bool:
    return (
        ("choices" not in rules or value in rules["choices"])
        and ("min" not in rules or value >= rules["min"])
        and ("max" not in rules or value <= rules["max"])
        and ("above" not in rules or value > rules["above"])
        and ("below" not in rules or value < rules["below"])
    )


def allowed_words(field: "dataclasses.Field[Any]") -> str:
    rules, words = (
        field.metadata,
        {"min": "at least", "max": "at most", "above": "above", "below": "below"},
    )
    if "choices" in rules:
        return "one of: " + ", ".join(map(str, rules["choices"]))
    return " and ".join(f"{words[rule]} {rules[rule]}" for rule in words if rule in rules)


def _unknown_key(key: str, root: type, sections: Sections) -> UserError:
    keys = [known for known, _, _ in keys_of(root, sections)]
    nearest = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    nearest = nearest or [known for known in keys if known.split(".")[-1] == key.split(".")[-1]]
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "; --help lists the keys"
    return UserError(f"unknown key {key!r}{hint}")


def keys_of(
    schema: type, sections: Sections, prefix: str = ""
) -> Iterator[tuple[str, "dataclasses.Field[Any]", Any]]:
    kinds = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        key = prefix + field.name
        kind = _kind(key, kinds[field.name], sections)
        if dataclasses.is_dataclass(kind):
            yield from keys_of(typing.cast(type, kind), sections, key + ".")
        else:
            yield key, field, kind


# --- words ------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [_plain(element) for element in value] if isinstance(value, tuple) else value


def kind_name(kind: Any) -> str:
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    if isinstance(kind, types.UnionType):
        inner = [option for option in typing.get_args(kind) if option is not type(None)]
        return " or ".join([*map(kind_name, inner), "null"])
    if typing.get_origin(kind) is tuple:
        return "list"
    return names.get(kind, str(kind))


def _article(name: str) -> str:
    return name if name.startswith("true") else f"a {name}"


def shown(value: Any) -> str:
    if value is None:
        return "null"
    return repr(value) if isinstance(value, str) else str(value)
