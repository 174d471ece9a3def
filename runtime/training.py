"""The parts of a training run around its loop: batch arithmetic, data checks, saving, resuming."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor

from backbone.transformer import DiffusionTransformer
from runtime import checkpoint as checkpoints
from runtime.checkpoint_writer import CheckpointWriter, Snapshot
from runtime.config_schema import to_tree, to_yaml
from runtime.ema import Ema
from runtime.errors import UserError
from runtime.interval import Interval
from runtime.latents import LatentDataset
from runtime.launch import on_main
from runtime.network_cost import describe_network
from runtime.resuming import find_checkpoint, on_all
from runtime.run_folder import remove_leftovers, write_json, write_text
from runtime.spread import measure, spread_warning
from runtime.training_config import TrainConfig
from runtime.versions import versions
from runtime.warm_start import Classes, take_over

# What may change when a run goes on: where things lie, how they are computed, when it ends.
FREE_KEYS = {
    "num_steps", "latents_dir", "output_dir", "resume", "checkpoint_every", "keep_last",
    "keep_every", "log_every", "contrast_every", "micro_batch_size", "num_workers", "precision",
    "compile", "gradient_checkpointing", "timeout_minutes", "tracker", "sampler", "guidance",
}  # fmt: skip


@dataclass(frozen=True)
class BatchPlan:
    """global batch = processes x micro-batch x accumulation."""

    num_processes: int
    micro_batch_size: int
    accumulation: int

    def __str__(self) -> str:
        total = self.num_processes * self.micro_batch_size * self.accumulation
        return (
            f"global batch {total} = {self.num_processes} processes x {self.micro_batch_size} "
            f"per micro-batch x {self.accumulation} accumulated"
        )


def plan_batches(config: TrainConfig, num_processes: int) -> BatchPlan:
    """How the global batch is cut; an error where it does not divide."""
    per_process, rest = divmod(config.global_batch_size, num_processes)
    if rest or not per_process:
        raise UserError(
            f"global_batch_size = {config.global_batch_size} is not divisible by "
            f"{num_processes} processes"
        )
    micro = config.micro_batch_size or per_process
    if per_process % micro:
        raise UserError(
            f"micro_batch_size = {micro} does not divide the {per_process} images per process "
            f"(global_batch_size {config.global_batch_size} / {num_processes} processes)"
        )
    return BatchPlan(num_processes, micro, per_process // micro)


def open_latents(config: TrainConfig) -> LatentDataset:
    """The latents that the config asks for; a one-line error where they are others."""
    dataset = LatentDataset(Path(config.latents_dir))
    passport = dataset.passport
    for name, found, wanted in (
        ("latent shape", passport.latent_shape, config.latent_shape),
        ("image_size", passport.image_size, config.image_size),
        ("num_classes", passport.num_classes, config.num_classes),
    ):
        if found != wanted:
            raise UserError(
                f"{name}: the latents in {config.latents_dir!r} have {found}, the config {wanted}"
            )
    return dataset


class TrainingRun:
    """Network, average and optimizer of a run, and the folder that they are saved in."""

    def __init__(
        self,
        config: TrainConfig,
        accelerator: Accelerator,
        dataset: LatentDataset,
        network: DiffusionTransformer,
    ) -> None:
        self.config = config
        self.accelerator = accelerator
        self.dataset = dataset
        self.network = network
        self.run_dir = Path(config.output_dir)
        self.ema = Ema(network, config.ema)
        self.optimizer = _adamw(config, network)
        self.interval = Interval(accelerator)
        self.origin: dict[str, Any] | None = None  # where init_from was, and what it gave
        self.writer = CheckpointWriter(self.run_dir, config.keep_last, config.keep_every)

    def resume(self) -> int:
        """Takes over the checkpoint that the run goes on from; returns the steps done so far.

        A new run takes over the weights of ``init_from``, if there is one.
        """
        found = on_all(self.accelerator, lambda: find_checkpoint(self.config))
        if found is None:
            self._start_from_other_run()
            return 0
        self._require_same_run(found)
        self.network.load_state_dict(found.weights("raw"))
        self.ema.load(found.weights("ema"), found.state.ema_updates)
        self.optimizer.load_state_dict(found.optimizer())
        self.interval.load(found.state.interval)
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(found.state.loss_scaler)
        return found.state.step

    def _start_from_other_run(self) -> None:
        path, kind = self.config.init_from, self.config.init_weights
        if path is None:
            return
        found = on_all(self.accelerator, lambda: checkpoints.load(Path(path)))
        assert found is not None
        theirs = found.state.train_config()
        try:
            taken_over = take_over(
                self.network,
                found.weights(kind),
                Classes(self.dataset.passport.class_names, self.config.label_drop > 0),
                Classes(tuple(found.state.passport["class_names"]), theirs.label_drop > 0),
            )
        except UserError as error:
            raise UserError(f"init_from = {path!r}: {error}") from None
        self.ema = Ema(self.network, self.config.ema)
        self.origin = {
            "checkpoint": str(found.path), "identity": found.identity, "weights": kind,
            "step": found.state.step, **asdict(taken_over),
        }  # fmt: skip
        if self.accelerator.is_main_process:
            print(f"begins with the {kind} weights of {found.path}: {taken_over}", flush=True)

    def open_folder(self) -> None:
        """Makes the run folder; called when nothing is left that could be wrong with the config."""
        self.spread = measure(self.dataset, self.config.seed)
        if self.accelerator.is_main_process:
            remove_leftovers(self.run_dir)
            write_text(self.run_dir / "config.yaml", to_yaml(self.config))
            seen = {"latents_seen": self.spread._asdict(), "versions": versions()}
            write_json(self.run_dir / "run.json", seen)
            if self.origin is not None:
                write_json(self.run_dir / "init_from.json", self.origin)

    def _require_same_run(self, found: checkpoints.Checkpoint) -> None:
        """Another config may continue a run only where that leaves its draws and network alone."""
        theirs, ours = to_tree(found.state.train_config()), to_tree(self.config)
        differing = [key for key in ours if key not in FREE_KEYS and ours[key] != theirs[key]]
        if differing:
            key = differing[0]
            raise UserError(
                f"{str(found.path)!r} is of another run: {key} was {theirs[key]}, is {ours[key]}; "
                "choose another output_dir"
            )
        passport = json.loads(json.dumps(self.dataset.passport.for_sampling()))
        if passport != found.state.passport:
            raise UserError(
                f"{str(found.path)!r} was trained on other latents than {self.config.latents_dir!r}"
            )

    def set_learning_rate(self, step: int) -> None:
        """lr at optimizer step ``step``, counted from 1: a function of the step alone."""
        warmup = self.config.optimizer.warmup_steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * min(1.0, step / warmup if warmup else 1.0)

    def clip_gradient(self) -> Float[Tensor, ""]:
        """Clips as configured; returns the norm that the gradient had before."""
        largest = self.config.optimizer.max_grad_norm or float("inf")
        norm = self.accelerator.clip_grad_norm_(self.network.parameters(), largest)
        assert norm is not None
        return norm

    def log_entry(self, step: int) -> dict[str, float | int]:
        """The numbers of the interval that ends here. All processes have to call it."""
        finished = self.interval.finish()
        images = step * self.config.global_batch_size
        return {
            "step": step,
            "epoch": images / len(self.dataset),
            "images": images,
            "loss": finished["loss"],
            "grad_norm": finished["grad_norm"],
            "lr": self.optimizer.param_groups[0]["lr"],
            "images_per_second": finished["steps_per_second"] * self.config.global_batch_size,
        }

    def save(self, step: int) -> None:
        """Begins to write a checkpoint, once the one before is whole.

        All processes have to call it; the main one writes.
        """
        interval = self.interval.state()
        self.finish_saving()
        if self.accelerator.is_main_process:
            self.writer.start(
                Snapshot.of(
                    self._state(step, interval),
                    self.network.state_dict(),
                    self.ema.state_dict(self.network),
                    self.optimizer.state_dict(),
                )
            )

    def finish_saving(self) -> None:
        """Returns when every checkpoint is whole. All processes have to call it."""
        on_main(self.accelerator, self.writer.wait)

    def _state(self, step: int, interval: dict[str, float | int]) -> checkpoints.TrainingState:
        scaler = self.accelerator.scaler
        images = step * self.config.global_batch_size
        return checkpoints.TrainingState(
            step=step,
            images_seen=images,
            epoch=images / len(self.dataset),
            ema_updates=self.ema.num_updates,
            config=to_yaml(self.config),
            passport=self.dataset.passport.for_sampling(),
            versions=versions(),
            loss_scaler={} if scaler is None else scaler.state_dict(),
            interval=interval,
        )

    def summary(self, plan: BatchPlan) -> str:
        """The first lines of a run, once its folder is open."""
        passport, config, spread = self.dataset.passport, self.config, self.spread
        lines = [
            f"{plan}; precision {config.precision}; seed {config.seed}",
            describe_network(config, self.network),
            f"{passport.num_images:,} images of {passport.num_classes} classes as latents of "
            f"{' x '.join(map(str, passport.latent_shape))} by {passport.autoencoder.name}; the "
            f"network sees mean {spread.mean:.3f}, standard deviation {spread.std:.3f}",
        ]
        warning = spread_warning(spread)
        return "\n".join(lines if warning is None else [*lines, f"warning: {warning}"])


def _adamw(config: TrainConfig, network: DiffusionTransformer) -> torch.optim.AdamW:
    settings = config.optimizer
    parameters: list[Any] = [p for p in network.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        parameters,
        lr=config.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )
