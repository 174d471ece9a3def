"""Looks at the contrast layers of a network under training, and changes nothing of the run."""

import torch
from accelerate import Accelerator
from torch import nn

from backbone.transformer import DiffusionTransformer
from process.process import Process
from runtime.attention_inputs import Inputs, watching
from runtime.batches import TrainingStream
from runtime.contrast_report import BlockReport, has_contrast, report_block
from runtime.latents import LatentDataset
from runtime.training_config import TrainConfig

NUM_IMAGES = 4


class ContrastProbe:
    """Reports on the contrast layers every ``contrast_every`` optimizer steps and at the end.

    Always of the same few images with the same noise, at times spread evenly, so that a curve
    shows the weights alone. The main process looks with the bare network, outside of whatever
    compiles or distributes it, without gradients and in evaluation mode: it draws no random
    number, touches no weight and waits for no other process. One block's maps are kept at a time.
    """

    def __init__(
        self,
        config: TrainConfig,
        accelerator: Accelerator,
        dataset: LatentDataset,
        network: DiffusionTransformer,
        process: Process,
    ) -> None:
        self.every, self.last_step = config.contrast_every or 0, config.num_steps
        self.accelerator, self.network, self.process = accelerator, network, process
        self.is_on = self.every > 0 and accelerator.is_main_process and has_contrast(network)
        if self.is_on:
            size = min(NUM_IMAGES, config.global_batch_size)
            stream = TrainingStream(dataset, config.seed, config.global_batch_size, config.mirror)
            u = (torch.arange(size) + 0.5) / size
            self.batch = stream.batch(0, range(size))._replace(u=u).to(accelerator.device)

    def is_due(self, step: int) -> bool:
        return self.is_on and (step % self.every == 0 or step == self.last_step)

    def look(self) -> dict[str, BlockReport]:
        """Block to stage to quantity."""
        x, y, noise, u, _ = self.batch
        reports: dict[str, BlockReport] = {}

        def watch(block: int, attention: nn.Module, inputs: Inputs) -> None:
            reports[f"block{block:02}"] = report_block(attention, inputs)

        was_training = self.network.training
        self.network.eval()
        try:
            with torch.no_grad(), self.accelerator.autocast(), watching(self.network, watch):
                self.process.loss(self.network, x, y, noise, u)
        finally:
            self.network.train(was_training)
        return reports
