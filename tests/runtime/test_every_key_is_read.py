"""A setting that nothing reads is a promise that nobody keeps."""

import ast
import dataclasses
import importlib
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.factory import ATTENTIONS

ROOT = Path(__file__).parents[2]
PURE = ("backbone", "process", "dit", "sit", "vca", "care", "baselines")


@dataclass(frozen=True)
class Reads:
    """Names of attributes that a piece of source reads, by where it reads them."""

    outside: set[str]  # anywhere but in the config's own class
    by_member: dict[str, set[str]]  # by the properties and methods of the config's own class

    def reach(self, key: str) -> bool:
        """Whether the key is read, directly or through a property that is itself read."""
        readers = {
            m for m, names in self.by_member.items() if key in names and m != "__post_init__"
        }
        return key in self.outside or any(self.reach(member) for member in readers - {key})


def reads_of(sources: list[str], config: str) -> Reads:
    outside: set[str] = set()
    by_member: dict[str, set[str]] = {}
    for source in sources:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == config:
                members = [m for m in node.body if isinstance(m, ast.FunctionDef)]
                by_member |= {member.name: _attributes(member) for member in members}
                node.body = []
        outside |= _attributes(tree)
    return Reads(outside, by_member)


def _attributes(tree: ast.AST) -> set[str]:
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in nodes if isinstance(node.ctx, ast.Load)}


def programs() -> list[Path]:
    return sorted(ROOT.glob("*.py"))


def schemas() -> set[type]:
    """The dataclasses that programs read their settings into, and all sections of these."""
    found: set[type] = set()
    for path in programs():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "read_config",
                "read_target",
            ):
                name = next(
                    a.id for a in node.args if isinstance(a, ast.Name) and a.id.endswith("Config")
                )
                found |= set(_with_sections(getattr(importlib.import_module(path.stem), name)))
    return found


def _with_sections(schema: type) -> Iterator[type]:
    yield schema
    for kind in typing.get_type_hints(schema).values():
        for option in typing.get_args(kind) or (kind,):
            if dataclasses.is_dataclass(option):
                yield from _with_sections(typing.cast(type, option))


def sources_beside(schema: type) -> list[str]:
    """Where a config may be read: in its own package; one of runtime in the programs too."""
    package = schema.__module__.split(".")[0]
    paths = sorted((ROOT / package).glob("*.py"))
    if package not in PURE:
        paths += [*programs(), *sorted((ROOT / "tools").glob("*.py"))]
    return [path.read_text() for path in paths]


def unread_keys(schema: type, sources: list[str]) -> list[str]:
    reads = reads_of(sources, schema.__name__)
    return [f.name for f in dataclasses.fields(schema) if not reads.reach(f.name)]


def test_the_programs_have_settings() -> None:
    names = {schema.__name__ for schema in schemas()}
    assert {"TrainConfig", "SampleConfig", "VCAConfig", "DiffusionConfig", "FlowConfig"} <= names


@pytest.mark.parametrize("schema", sorted(schemas(), key=str))
def test_every_key_is_read_somewhere(schema: type) -> None:
    unread = unread_keys(schema, sources_beside(schema))
    # A layer's own section is looked up by the layer's name.
    assert [key for key in unread if key not in ATTENTIONS] == []


def test_a_key_that_nothing_reads_is_found() -> None:
    @dataclass(frozen=True)
    class PartConfig:
        used: int = 1
        used_through_property: int = 2
        checked_only: int = 3
        stored_only: int = 4
        in_a_dead_property: int = 5

    source = """
class PartConfig:
    def __post_init__(self):
        print(self.checked_only)

    @property
    def doubled(self):
        return 2 * self.used_through_property

    @property
    def nobody_asks(self):
        return self.in_a_dead_property

def build(config, other):
    other.stored_only = 1
    return config.used + config.doubled
"""
    unread = unread_keys(PartConfig, [source])
    assert unread == ["checked_only", "stored_only", "in_a_dead_property"]
