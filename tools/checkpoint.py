"""Look at a run's checkpoints, and prove them.

python -m tools.checkpoint describe DIR     prints what a checkpoint holds
python -m tools.checkpoint verify DIR       reads every byte, names every missing or damaged part

DIR is a step folder or a run folder: of a run, `verify` looks at all checkpoints and `describe`
prints the newest that verifies.
"""

from pathlib import Path

from backbone.counts import count_parameters
from runtime import checkpoint as checkpoints
from runtime.checkpoint import CONTENT, Checkpoint
from runtime.ema import initial_share
from runtime.errors import UserError, run
from runtime.network_cost import build_without_memory
from runtime.passport import Passport
from runtime.run_folder import saved_steps
from tools.verbs import run_verb


def main(arguments: list[str]) -> None:
    run_verb("tools.checkpoint", VERBS, arguments, __doc__)


def verify(path: Path) -> None:
    """Prints a line per checkpoint; raises UserError if one is not whole."""
    folders = [path] if checkpoints.is_step_folder(path) else saved_steps(path)
    if not folders:
        raise UserError(f"no checkpoint in {str(path)!r} (looked for checkpoints/step-*)")
    problems = {folder: checkpoints.damage(folder) for folder in folders}
    damaged = [folder for folder, problem in problems.items() if problem]
    for folder, problem in problems.items():
        print(f"{folder}: {problem or f'whole, {size_of(folder)}'}")
    if damaged:
        raise UserError(
            f"{len(damaged)} of {len(folders)} damaged: {damaged[0]}: {problems[damaged[0]]}"
        )


def describe(path: Path) -> None:
    found = checkpoints.load(path)
    for name, text in description(found).items():
        first, *others = text.splitlines()
        print("\n".join([f"{name:12} {first}", *(f"{'':12} {line}" for line in others)]))


def description(found: Checkpoint) -> dict[str, str]:
    state, config = found.state, found.state.train_config()
    network = build_without_memory(config)
    share = initial_share(config.ema, state.ema_updates)
    versions = [f"{name} {number}" for name, number in state.versions.items()]
    return {
        "checkpoint": f"{found.path}, {size_of(found.path)}, whole",
        "step": f"{state.step:,} of {config.num_steps:,}",
        "images": f"{state.images_seen:,}, {state.epoch:.2f} epochs",
        "model": f"{config.model}, {config.image_size} px, {config.num_classes} classes",
        "attention": config.attention,
        "parameters": f"{count_parameters(network):,}, "
        f"{count_parameters(network, trainable=True):,} of them trained",
        "average": f"{state.ema_updates:,} updates, decay {config.ema.decay}; "
        f"{share:.2g} of it are initial weights",
        "latents": passport_of(found),
        "versions": ", ".join(versions),
        "files": "\n".join(f"{name} {_bytes(found.path / name):,} bytes" for name in CONTENT),
    }


def passport_of(found: Checkpoint) -> str:
    """The passport of the latents that the run was trained on; a checkpoint has no shards."""
    try:
        return str(Passport.from_json({**found.state.passport, "shards": []}))
    except ValueError as error:
        return f"passport is not readable: {error}"


def size_of(folder: Path) -> str:
    return f"{sum(_bytes(folder / name) for name in CONTENT) / 1e6:,.1f} MB"


def _bytes(path: Path) -> int:
    return path.stat().st_size


VERBS = {"describe": describe, "verify": verify}


if __name__ == "__main__":
    run(main)
