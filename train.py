"""Train DiT or SiT on encoded latents.

    python train.py CONFIG.yaml key=value ...
    accelerate launch --num_processes 8 train.py CONFIG.yaml key=value ...

A run depends on its config alone: not on the number of processes, the micro-batch, loader workers
or interruptions. Started again, it goes on from the newest whole checkpoint of its run folder. On
SIGTERM, SIGINT or SIGUSR1 it finishes the step, saves and exits with status 3 (which a launcher
may turn into its own).
"""

import sys
from contextlib import nullcontext

import torch

from process.guidance import drop_labels
from runtime.batches import training_loader
from runtime.build import build_network, build_process
from runtime.config import read_config
from runtime.contrast_probe import ContrastProbe
from runtime.errors import run
from runtime.launch import start
from runtime.log import RunLog
from runtime.signals import STOPPED, StopRequest
from runtime.training import TrainingRun, open_latents, plan_batches
from runtime.training_config import TrainConfig, sections_of


def main(arguments: list[str]) -> None:
    config = read_config(TrainConfig, arguments, sections_of)
    accelerator = start(config.precision, config.timeout_minutes)
    plan = plan_batches(config, accelerator.num_processes)
    dataset = open_latents(config)
    network, process = build_network(config).to(accelerator.device), build_process(config)
    training = TrainingRun(config, accelerator, dataset, network)
    first_step = training.resume()  # steps done so far

    model = torch.compile(network) if config.compile else network
    model, optimizer = accelerator.prepare(model, training.optimizer)
    loader = training_loader(
        dataset,
        seed=config.seed,
        global_batch_size=config.global_batch_size,
        num_processes=accelerator.num_processes,
        process_index=accelerator.process_index,
        micro_batch_size=plan.micro_batch_size,
        first_step=first_step,
        num_steps=config.num_steps,
        mirror=config.mirror,
        num_workers=config.num_workers,
        pin_memory=accelerator.device.type == "cuda",
    )
    training.open_folder()
    contrast = ContrastProbe(config, accelerator, dataset, network, process)
    stop, stopped, batches = StopRequest(), False, iter(loader)
    with RunLog(training.run_dir, first_step, config, accelerator.is_main_process) as log:
        log.say(training.summary(plan))
        for step in range(first_step + 1, config.num_steps + 1):
            training.set_learning_rate(step)
            for micro_step in range(plan.accumulation):
                batch = next(batches).to(accelerator.device)
                y = drop_labels(batch.y, batch.u_drop, config.label_drop, config.num_classes)
                is_last = micro_step == plan.accumulation - 1
                with nullcontext() if is_last else accelerator.no_sync(model):
                    losses = process.loss(model, batch.x, y, batch.noise, batch.u)
                    accelerator.backward(losses.mean() / plan.accumulation)
                training.interval.add(losses.detach().mean() / plan.accumulation)
            grad_norm = training.clip_gradient()
            optimizer.step()
            optimizer.zero_grad()
            if not accelerator.optimizer_step_was_skipped:  # fp16 skips a step that overflowed
                training.ema.update(network)
            training.interval.end_step(grad_norm)
            training.writer.raise_failure()
            log.advance()

            if step % config.log_every == 0 or step == config.num_steps:
                log.write(training.log_entry(step))
            if contrast.is_due(step):
                log.write_contrast(step, contrast.look())
            stopped = stop.on_any_process(accelerator)
            if step % config.checkpoint_every == 0 or step == config.num_steps or stopped:
                training.save(step)
            if stopped:
                break
        training.finish_saving()
        if stopped:
            log.say(f"stopped by a signal; step {step} is saved")
    accelerator.end_training()
    if stopped:
        sys.exit(STOPPED)


if __name__ == "__main__":
    run(main)
