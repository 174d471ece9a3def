"""YAML as text: a tree whose leaves are the exact characters of the file."""

import sys
import typing
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runtime.errors import UserError

Tree = dict[str, Any]  # keys to text, lists of text, or trees

# Old dotted key -> new dotted key, so that configs of earlier versions still load.
RENAMED: dict[str, str] = {}


def load_yaml(path: Path, above: tuple[Path, ...] = ()) -> Tree:
    """The text of a YAML file as a tree, its ``base`` merged below it."""
    path = path.resolve()
    if not path.is_file():
        raise UserError(f"no config file {str(path)!r}")
    if path in above:
        raise UserError(f"{path} is a base of itself")
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text file") from None
    base = tree.pop("base", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise UserError(f"{path}: base has to be the path of one YAML file")
    return merge([load_yaml(path.parent / base, (*above, path)), tree])


def parse_yaml(text: str, name: str = "config") -> Tree:
    """A tree whose leaves are the exact characters of the text."""
    try:
        tree = yaml.load(text, Loader=TextLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{name} is no valid YAML: {' '.join(str(error).split())}") from None
    if tree in (None, ""):
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"{name} holds no key: value lines")
    return tree


class TextLoader(yaml.BaseLoader):
    """Keeps every scalar as text, and refuses a key that is stated twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"key {key!r} is stated twice")
        return super().construct_mapping(node, deep)


def merge(trees: list[Tree]) -> Tree:
    merged: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            below = merged.get(key)
            if isinstance(value, dict) and isinstance(below, dict):
                value = merge([below, value])
            merged[key] = value
    return merged


def resolve(tree: Tree) -> Tree:
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"a ${{...}} in the config cannot be resolved: {reason}") from None
    return typing.cast(Tree, resolved)


def rename(tree: Tree) -> Tree:
    for old, new in RENAMED.items():
        *sections, leaf = old.split(".")
        node: Any = tree
        for section in sections:
            node = node.get(section, {}) if isinstance(node, dict) else {}
        if isinstance(node, dict) and leaf in node:
            print(f"notice: the key {old} is now called {new}", file=sys.stderr)
            tree = merge([tree, nested(new, node.pop(leaf))])
    return tree


def nested(key: str, value: Any) -> Tree:
    """The tree with one leaf at a dotted key."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)
