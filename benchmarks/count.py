"""What the network of a config costs, beside the same config with softmax attention.

    python -m benchmarks.count CONFIG.yaml key=value ...

Prints parameters, heads and multiply-accumulates (MACs) of one image and forward pass, as a
training run does at its start. Nothing is trained or measured, and no data are needed.
"""

from runtime.config import read_config
from runtime.errors import run
from runtime.network_cost import build_without_memory, describe_network
from runtime.training_config import TrainConfig, sections_of


def main(arguments: list[str]) -> None:
    config = read_config(TrainConfig, arguments, sections_of)
    print(describe_network(config, build_without_memory(config)))


if __name__ == "__main__":
    run(main)
