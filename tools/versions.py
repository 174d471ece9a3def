"""``python -m tools.versions``: what to paste into a bug report."""

import torch

from runtime.versions import versions


def main() -> None:
    for name, value in versions().items():
        print(f"{name:20} {value}")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(f"{'GPUs':20} {', '.join(gpus) or 'none'}")


if __name__ == "__main__":
    main()
