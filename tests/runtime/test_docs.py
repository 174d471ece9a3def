"""What the documentation names exists: files, keys, commands; and its examples run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.config import read_config, read_target
from runtime.config_schema import keys_of, to_tree
from runtime.encode_config import EncodeConfig
from runtime.eval_config import EvalConfig
from runtime.factory import FAMILIES
from runtime.sample_config import SampleConfig
from runtime.training_config import TrainConfig, sections_of

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "configs").rglob("*.md")]
)
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
FOLDERS = (
    "assets|backbone|baselines|benchmarks|care|configs|dit|docs|process|runtime|sit|tests|tools|vca"
)
SCHEMAS = {"train.py": TrainConfig, "encode_latents.py": EncodeConfig}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def commands(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Programs and their arguments, from indented lines of a page or the comments of a config."""
    prefix = "#" if path.suffix == ".yaml" else "    "
    lines = [
        line.removeprefix(prefix)
        for line in path.read_text().splitlines()
        if line.startswith(prefix)
    ]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        words = line.split(" # ")[0].split()
        if words[:1] == ["python"] or words[:2] == ["accelerate", "launch"]:
            programs = [i for i, word in enumerate(words) if word.endswith(".py")]
            if programs:
                yield words[programs[0]], words[programs[0] + 1 :]


def placeholder(word: str) -> bool:
    """CONFIG, SAMPLES reference=REF, key=value ... stand for something."""
    return word in ("...", "key=value") or word.isupper()


EVERY_COMMAND = [
    pytest.param(program, arguments, id=f"{path.name}: {program} {' '.join(arguments)}")
    for path in [*PAGES, *CONFIGS]
    for program, arguments in commands(path)
]


@pytest.mark.parametrize(("program", "arguments"), EVERY_COMMAND)
def test_a_command_is_accepted(program: str, arguments: list[str]) -> None:
    assert (ROOT / program).exists()
    settings = [word for word in arguments[1:] if not placeholder(word)]
    if placeholder(arguments[0]):
        arguments[0] = str(ROOT / "configs" / "sit" / "s2.yaml")
    if program in SCHEMAS:
        sections = sections_of if program == "train.py" else lambda tree: {}
        read_config(SCHEMAS[program], [str(ROOT / arguments[0]), *settings], sections)
    elif program == "sample.py":
        trained = _config_of(arguments[0])
        tree = {"sampler": to_tree(trained.sampler), "guidance": to_tree(trained.guidance)}
        sampler = {"sampler": type(trained.sampler)}
        read_target(
            SampleConfig, [arguments[0], *settings], "CHECKPOINT", lambda *_: (tree, sampler)
        )
    else:
        assert program == "eval_fid.py"
        read_target(EvalConfig, [arguments[0], *settings], "SAMPLES")


def _config_of(run_dir: str) -> TrainConfig:
    """The shipped config that trains into this folder, else the settings of SiT-S/2."""
    rows = [path for path in CONFIGS if f"output_dir: {run_dir}\n" in path.read_text()]
    path = rows[0] if rows else ROOT / "configs" / "sit" / "s2.yaml"
    return read_config(TrainConfig, [str(path)], sections_of)


@every_page
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    named = re.findall(rf"`((?:{FOLDERS})/[\w/.\-]*)`", text)
    linked = re.findall(r"\]\(([\w/.\-]+)\)", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [name for name in linked if not (page.parent / name).exists()]
    modules = re.findall(r"python -m ((?:tools|assets|benchmarks)\.\w+)", text)
    missing += [m for m in modules if not (ROOT / f"{m.replace('.', '/')}.py").exists()]
    assert missing == []


@every_page
def test_every_key_that_a_page_sets_is_there(page: Path) -> None:
    known = {"print_config"}
    for schema in (TrainConfig, SampleConfig, EvalConfig, EncodeConfig):
        for family in FAMILIES.values():
            sections = {"process": family.process_config, "sampler": family.sampler_config}
            known |= {key for key, _, _ in keys_of(schema, sections)}
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    set_here = {key for span in spans for key in re.findall(r"(?:^|\s)([a-z][\w.]*)=", span)}
    assert set_here - known - NOT_KEYS == set()


NOT_KEYS = {"key", "grid", "prefix"}  # Python's keyword arguments, and key=value itself


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "```python" in p.read_text()], ids=lambda p: p.name
)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(example, {})
