"""Score generated images: FID, sFID, Inception Score, precision, recall and KID.

    python eval_fid.py SAMPLES reference=REF key=value ...
    accelerate launch --num_processes 8 eval_fid.py SAMPLES reference=REF key=value ...

SAMPLES is a folder of sample.py, an .npz with arr_0, or a folder or zip of images. REF is a
reference file of the ADM evaluator, a statistics file, or real images. The result, with all that
it depends on, is printed and stored as JSON. A FID is named by its number of images (FID-50000).
"""

from pathlib import Path

from runtime.config import read_target
from runtime.errors import run
from runtime.eval_config import EvalConfig
from runtime.evaluation import evaluate
from runtime.launch import start
from runtime.results import default_path
from runtime.run_folder import write_json


def main(arguments: list[str]) -> None:
    path, config = read_target(EvalConfig, arguments, "SAMPLES")
    accelerator = start("fp32")
    result = evaluate(config, path, accelerator)
    if accelerator.is_main_process:
        output = Path(config.output) if config.output else default_path(path, result.extractor)
        write_json(output, result.to_json())
        print("\n".join([*result.lines(), f"stored in {output}"]))
    accelerator.end_training()


if __name__ == "__main__":
    run(main)
