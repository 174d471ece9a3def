"""Settings are typed by the schema; whatever is wrong costs one line before any work."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtime import config_text
from runtime.config import read_config, read_target
from runtime.config_schema import build, to_tree, to_yaml
from runtime.config_text import parse_yaml
from runtime.errors import UserError


@dataclass(frozen=True)
class Part:
    scale: float = field(default=1.0, metadata={"min": 0, "help": "1 is none"})
    interval: tuple[float, float] | None = None
    variant: str = field(default="paper", metadata={"choices": ("paper", "released")})


@dataclass(frozen=True)
class OtherPart:
    other: int = 3


@dataclass(frozen=True)
class Settings:
    name: str = "run"
    lr: float = field(default=1e-4, metadata={"above": 0, "below": 1})
    count: int | None = None
    path: str | None = None
    flag: bool = False
    names: tuple[str, ...] = ()
    part: Part = field(default_factory=Part)
    depends: Part | OtherPart = field(default_factory=Part)


@pytest.fixture
def read(tmp_path):
    def read(text: str = "", *overrides: str, sections=lambda tree: {}) -> Settings:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return read_config(Settings, [str(path), *overrides], sections)

    return read


@pytest.mark.parametrize(
    "text", ["1e5", "010", "None", "123E45", "0x1F", "yes", "~", "1_000", "2024-01-01"]
)
def test_text_keeps_the_exact_characters(read, text):
    assert read("", f"name={text}").name == text
    assert read(f"name: {text}").name == text
    assert read("", f"path={text}").path == text
    assert read("", f"names=[{text},b]").names == (text, "b")


def test_null_empties_what_may_be_empty_and_nothing_else(read):
    assert read("path: here", "path=null").path is None
    assert read("count: 3", "count=null").count is None
    assert read("", "name=null").name == "null"
    with pytest.raises(UserError, match=r"lr = 'null' is not a number"):
        read("", "lr=null")


def test_overrides_win_over_the_file_and_the_file_over_its_base(read, tmp_path):
    (tmp_path / "base.yaml").write_text(
        "name: base\nlr: 0.1\npart:\n  scale: 2\n  variant: released\n"
    )
    config = read("base: base.yaml\nlr: 0.2\npart:\n  scale: 3\n", "part.scale=4")
    assert (config.name, config.lr) == ("base", 0.2)
    assert config.part == Part(scale=4.0, variant="released")


def test_keys_may_refer_to_other_keys(read):
    assert read("name: a\npath: runs/${name}").path == "runs/a"


def test_printed_settings_read_back_unchanged(read):
    config = read(
        "", "name=1e5", "path=None", "part.interval=[0.1,1e-7]", "names=[007,null]", "lr=3e-5"
    )
    assert build(Settings, parse_yaml(to_yaml(config))) == config
    assert build(Settings, to_tree(config)) == config


def test_a_section_can_depend_on_other_keys(read):
    def sections(tree):
        return {"depends": OtherPart if tree.get("name") == "other" else Part}

    assert read("", "name=other", "depends.other=5", sections=sections).depends == OtherPart(5)
    with pytest.raises(UserError, match=r"unknown key 'depends.other'"):
        read("", "depends.other=5", sections=sections)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lrr=1", r"unknown key 'lrr'; did you mean 'lr'\?"),
        ("scale=1", r"unknown key 'scale'; did you mean 'part.scale'\?"),
        ("part.scal=1", r"unknown key 'part.scal'; did you mean 'part.scale'\?"),
        ("zzz=1", r"unknown key 'zzz'; --help lists the keys"),
        ("lr=abc", r"lr = 'abc' is not a number"),
        ("lr=1e999", r"lr = 1e999 is not a finite number"),
        ("lr=0", r"lr = 0.0 is not allowed \(it has to be above 0 and below 1\)"),
        ("count=1.5", r"count = '1.5' is not a whole number"),
        ("flag=yes", r"flag = 'yes' is not true or false"),
        (
            "part.variant=papr",
            r"'papr' is not allowed; did you mean 'paper'\? .*one of: paper, released",
        ),
        ("part.scale=-1", r"part.scale = -1.0 is not allowed \(it has to be at least 0\)"),
        ("part.interval=3", r"part.interval = '3' is not a list"),
        ("part.interval=[1,2,3]", r"part.interval has 3 values instead of 2"),
        ("part=3", r"part is a section"),
        ("lr.x=3", r"lr is a single value"),
        ("--lr", r"write lr=VALUE, not '--lr'"),
        ("--lr=3", r"write lr=3, not '--lr=3'"),
        ("--micro-batch=3", r"write micro_batch=3"),
        ("lr", r"'lr' is no key=value"),
        ("path=${nothing}", r"cannot be resolved"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(read, override, message):
    with pytest.raises(UserError, match=message) as caught:
        read("", override)
    assert "\n" not in str(caught.value).strip()


def test_a_file_is_checked_like_the_command_line(read):
    with pytest.raises(
        UserError, match=r"unknown key 'par'; did you mean 'part'|unknown key 'par'"
    ):
        read("par:\n  scale: 1")
    with pytest.raises(UserError, match=r"'name' is stated twice"):
        read("name: a\nname: b")
    with pytest.raises(UserError, match=r"no valid YAML"):
        read("name: [a")
    with pytest.raises(UserError, match=r"no config file"):
        read_config(Settings, ["/nowhere/at/all.yaml"])
    with pytest.raises(UserError, match=r"first argument has to be CONFIG.yaml"):
        read_config(Settings, ["lr=1"])


def test_help_and_print_config_end_the_program(read, capsys):
    with pytest.raises(SystemExit) as end:
        read("", "print_config=true", "lr=0.5")
    assert end.value.code == 0
    assert build(Settings, parse_yaml(capsys.readouterr().out)).lr == 0.5
    with pytest.raises(SystemExit) as end:
        read_config(Settings, ["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "part.variant" in shown
    assert "one of: paper, released" in shown


def test_an_old_key_still_loads_with_a_notice(read, monkeypatch, capsys):
    monkeypatch.setattr(config_text, "RENAMED", {"learning_rate": "lr", "part.w": "part.scale"})
    config = read("learning_rate: 0.3\npart:\n  w: 2")
    assert (config.lr, config.part.scale) == (0.3, 2.0)
    assert "learning_rate is now called lr" in capsys.readouterr().err


def test_a_target_brings_its_own_defaults():
    path, config = read_target(
        Settings,
        ["somewhere", "part.scale=3"],
        "TARGET",
        lambda path, overrides: ({"name": path.name}, {}),
    )
    assert path == Path("somewhere")
    assert (config.name, config.part.scale) == ("somewhere", 3.0)
