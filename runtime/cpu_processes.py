"""Several processes on a CPU under ``accelerate launch``.

For ``accelerate launch --cpu --num_processes 2 train.py`` accelerate 1.x starts one process, and
says nothing, unless an mpirun is named. Here that one process starts the others and
waits for them: their ranks come by the environment, as torchrun gives them.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

import psutil
import torch
from accelerate.commands.launch import launch_command_parser

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def start_missing_processes() -> None:
    """Starts what the launcher was asked for and did not start, then exits with its status.

    Returns where nothing is missing: in plain Python, on a GPU, and in a process with a rank.
    """
    number = _asked_for()
    if number > 1:
        sys.exit(_run_all(number))


def _asked_for() -> int:
    under_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    if any(name in os.environ for name in RANK_VARIABLES) or not under_accelerate:
        return 1
    if torch.cuda.is_available() and not on_cpu:
        return 1
    command = psutil.Process(os.getppid()).cmdline()
    launcher = next((i for i, word in enumerate(command) if _is_launcher(word)), None)
    if launcher is None:
        return 1
    words = command[launcher + 1 :]
    options, _ = launch_command_parser().parse_known_args(words[words[:1] == ["launch"] :])
    return options.num_processes or 1


def _is_launcher(word: str) -> bool:
    return os.path.basename(word) in ("accelerate", "accelerate-launch", "launch.py") or (
        word == "accelerate.commands.launch"
    )


def _run_all(number: int) -> int:
    """Exit status 0, or that of the first process that failed; the others are ended then."""
    common = {
        "WORLD_SIZE": str(number),
        "LOCAL_WORLD_SIZE": str(number),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "ACCELERATE_USE_CPU": "true",
    }
    command = [sys.executable, *sys.orig_argv[1:]]
    processes = [
        subprocess.Popen(command, env={**os.environ, **common, "RANK": rank, "LOCAL_RANK": rank})
        for rank in map(str, range(number))
    ]

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    for name in FORWARDED:
        signal.signal(name, forward)
    while True:
        statuses = [process.poll() for process in processes]
        failed = [status for status in statuses if status]
        if failed or all(status == 0 for status in statuses):
            break
        time.sleep(0.05)
    for process in processes if failed else ():
        _end(process)
    return failed[0] if failed else 0


def _end(process: "subprocess.Popen[bytes]", patience: float = 30.0) -> None:
    """The others may be about to end by themselves, with a status and files of their own."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
