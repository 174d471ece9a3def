"""Which checkpoint a run goes on from.

resume=auto      the newest whole one of the run folder; a new run where there is none
resume=never     a new run, in a folder without checkpoints
resume=FOLDER    exactly this step folder, or an error
"""

from collections.abc import Callable
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from runtime import checkpoint as checkpoints
from runtime.checkpoint import Checkpoint
from runtime.errors import UserError
from runtime.launch import on_main
from runtime.run_folder import saved_steps, step_of
from runtime.training_config import TrainConfig


def find_checkpoint(config: TrainConfig) -> Checkpoint | None:
    """The checkpoint that ``resume`` asks for, verified; None for a new run."""
    run_dir = Path(config.output_dir)
    if config.resume == "never":
        if saved_steps(run_dir):
            raise UserError(
                f"{str(run_dir)!r} holds checkpoints and resume=never; "
                "choose another output_dir, or resume=auto"
            )
        return None
    if config.resume == "auto":
        found = checkpoints.newest_whole(run_dir)
    else:
        found = _named(Path(config.resume), run_dir)
    if found is not None and found.state.step > config.num_steps:
        raise UserError(f"{str(found.path)!r} is beyond num_steps = {config.num_steps}")
    return found


def _named(path: Path, run_dir: Path) -> Checkpoint:
    """Nothing newer may lie in the run folder: the next start would go on from that."""
    if not checkpoints.is_step_folder(path):
        raise UserError(f"resume = {str(path)!r} is neither auto, never nor a step folder")
    found = checkpoints.load(path)
    newer = [folder for folder in saved_steps(run_dir) if step_of(folder) > found.state.step]
    if newer:
        raise UserError(
            f"{str(newer[0])!r} is newer than resume = {str(path)!r}; choose another output_dir, "
            "or resume=auto"
        )
    return found


def on_all(accelerator: Accelerator, find: Callable[[], Checkpoint | None]) -> Checkpoint | None:
    """What the main process finds and verifies, for all processes. All have to call it."""
    found = on_main(accelerator, find)
    (path,) = broadcast_object_list([None if found is None else str(found.path)])
    if path is None or found is not None:
        return found
    if not Path(path).is_dir():
        raise UserError(f"{path!r} is not there: all processes have to see one folder")
    return checkpoints.read_verified(Path(path))
