"""Training step and evaluation step."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from dlami.heartbeat import beat
from trainer.common.ranks.precision import DYNAMIC
from trainer.resnet50.engine import Requests, StepResult, moving_average_decay
from trainer.resnet50.network import Init
from trainer.resnet50_torch import augment
from trainer.resnet50_torch.batch_norm import Statistics
from trainer.resnet50_torch.config import TorchResNetConfig
from trainer.resnet50_torch.images import ImageBatch
from trainer.resnet50_torch.metrics_allreduce import Shared
from trainer.resnet50_torch.model import TorchResNet
from trainer.resnet50_torch.optimizer import LossScale, hold_back, make_optimizer
from trainer.resnet50_torch.process_group import ProcessGroup
from trainer.resnet50_torch.step_timer import Moments

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Pending:
    """Step whose numbers may still be computed on the device."""

    shared: Tensor  # [5]: loss, top-1 and requests, means over the ranks
    own_loss: Tensor
    skipped: bool
    moments: Moments  # began, computed, done


class TorchLearner:
    """Model with its optimizer state, and the functions that change them.

    All ranks hold the same values at all times: gradients, batch statistics and the scalars are averaged over the
    ranks, every image counting once.
    """

    def __init__(self, config: TorchResNetConfig, classes: int, world: ProcessGroup) -> None:
        self.config, self.world = config, world
        self.dtype = TYPES[config.precision]
        init = Init.of(config.seed, zero_gamma=config.adv_bn_init, he_init=config.adv_conv_init)
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        self.model = TorchResNet(config.model, classes, init).to(world.device, memory_format=layout)
        self.statistics = Statistics(self.model)
        self.weights = dict(self.model.named_parameters())
        self._kernels = self.model.kernels()
        self.optimizer = make_optimizer(config, self._kernels, list(self.weights.values()))
        self.loss_scale: LossScale | None = None
        if config.scales_loss:
            self.loss_scale = LossScale(None if config.loss_scale == DYNAMIC else float(config.loss_scale))
        self.smooth = {n: v.detach().clone() for n, v in self._evaluated().items()} if config.ema_decay else {}
        self._moments = Moments(world.device)
        self._network: Any = self._over_ranks()

    def _over_ranks(self) -> nn.Module:
        """Return the model that reduces its gradients while those of earlier layers are still being computed."""
        if self.world.group is None:
            return self.model
        with warnings.catch_warnings():
            # PyTorch 2.13 calls it deprecated, and has nothing yet that leaves buffers alone at the start too
            warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
            network = DistributedDataParallel(
                self.model, process_group=self.world.group, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        reduce = default_hooks.fp16_compress_hook if self.config.fp16_compression else default_hooks.allreduce_hook

        def timed(group: Any, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
            if bucket.is_last():
                self._moments.note("computed")
            return reduce(group, bucket)

        network.register_comm_hook(self.world.group, timed)
        return network

    def _evaluated(self) -> dict[str, Tensor]:
        return {**self.weights, **self.statistics.averages()}

    def _state(self) -> dict[str, Tensor]:
        """Return every tensor that a checkpoint must hold, by name."""
        momenta = {f"{name}/momentum": self.optimizer.state[w]["momentum_buffer"] for name, w in self.weights.items()}
        smooth = {f"{name}/ema": value for name, value in self.smooth.items()}
        scale = {"loss_scale": self.loss_scale.state} if self.loss_scale else {}
        return {**self._evaluated(), **momenta, **smooth, **scale}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return copies of the state, by name."""
        return {name: np.array(value.detach().cpu().numpy(), order="C") for name, value in self._state().items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the state, by name."""
        return {name: tuple(value.shape) for name, value in self._state().items()}

    @torch.no_grad()
    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set the whole state."""
        for name, value in self._state().items():
            value.copy_(torch.from_numpy(arrays[name]))

    @torch.no_grad()
    def broadcast(self, rank: int = 0) -> None:
        """Copy the state of `rank` to all ranks."""
        if self.world.group is None:
            return
        state = self._state().values()
        flat = torch.cat([value.reshape(-1).to(self.world.device) for value in state])
        distributed.broadcast(flat, rank, group=self.world.group)
        for value, told in zip(state, flat.split([value.numel() for value in state]), strict=True):
            value.copy_(told.view(value.shape))

    @property
    def scale(self) -> float | None:
        """Return the factor of the loss; None without loss scaling."""
        return self.loss_scale.value if self.loss_scale else None

    def train(self, batch: ImageBatch, lr: float, requests: Requests = (0.0, 0.0, 0.0), step: int = 0) -> Pending:
        """Take one step. Its result, which `result` reads, may still be computed on the device.

        Args:
            requests: this rank's `StopRequest.numbers`, and whether it requests a checkpoint.
            step: its number; the moving average follows fast at first.
        """
        self._moments = moments = Moments(self.world.device)
        moments.note("began")
        self.optimizer.zero_grad(set_to_none=True)
        shared = Shared(self.world, torch.tensor(requests, dtype=torch.float32, device=self.world.device))
        *parts, last = self._parts(batch)
        for part in parts:
            with self._network.no_sync() if self.world.group is not None else contextlib.nullcontext():
                self._forward(part, shared).backward()
        loss = self._forward(last, shared)
        shared.begin(len(parts) + 1)  # reduced while gradients are computed
        loss.backward()
        if "computed" not in moments:
            moments.note("computed")
        shared.finish()
        skipped = self._update(shared.statistics, lr, moving_average_decay(self.config.ema_decay, step))
        moments.note("done")
        return Pending(shared.numbers, shared.own_loss, skipped, moments)

    @staticmethod
    def result(pending: Pending) -> StepResult:
        """Wait for a step and return its result."""
        loss, accuracy, asked, terminated, due = pending.shared.tolist()
        skipped, own_loss = float(pending.skipped), float(pending.own_loss)
        compute_s, reduce_s = (pending.moments.seconds(*s) for s in (("began", "computed"), ("computed", "done")))
        return StepResult(loss, accuracy, asked, terminated, due, skipped, own_loss, compute_s, reduce_s)

    def _parts(self, batch: ImageBatch) -> Iterator[ImageBatch]:
        """Yield the parts of the rank's batch, which are computed one after the other."""
        size = len(batch.labels) // self.config.accumulate
        for at in range(0, len(batch.labels), size):
            here = slice(at, at + size)
            yield replace(batch, images=batch.images[here], labels=batch.labels[here], seeds=batch.seeds[here])

    def _forward(self, part: ImageBatch, shared: "Shared") -> Tensor:
        """Return the part's share of the loss, scaled, for the backward pass. Adds the part's results to `shared`."""
        config = self.config
        images, labels = (t.to(self.world.device, non_blocking=True) for t in (part.images, part.labels))
        if config.increased_aug:
            images = augment.vary_colours(images, part.seeds, config)
        mixed = augment.mixup_share(part.seeds, config.mixup_alpha)
        x = self._normalised(images)
        x = x if mixed == 1 else x * mixed + x.flip(0) * (1 - mixed)
        self.statistics.forget()
        with self._autocast():
            logits = self._network(x)
        logits = logits.float()
        loss = augment.loss(logits, labels, mixed, config.label_smoothing)
        hits = (logits.detach().argmax(1) == labels).float().mean()
        shared.add(loss.detach(), hits, self.statistics.of_batch)
        return loss * ((self.scale or 1.0) / config.accumulate)

    def _normalised(self, images: Tensor) -> Tensor:
        x = augment.normalised(images, self.dtype)
        return x if self.config.channels_last else x.contiguous()

    def _autocast(self) -> Any:
        """Return a context that computes activations in the configured type. Weights stay float32."""
        if self.dtype is torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.world.device.type, self.dtype)

    @torch.no_grad()
    def _update(self, statistics: Tensor, lr: float, ema: float) -> bool:
        """Update the state. Returns True if it was skipped, which a loss scale does after an overflow on any rank."""
        config, gradients = self.config, [w.grad for w in self.weights.values()]
        if self.loss_scale:
            for gradient in gradients:
                gradient.mul_(1 / self.loss_scale.value)
            is_finite = bool(torch.stack([g.isfinite().all() for g in gradients]).all())
            self.loss_scale.update(is_finite)
            if not is_finite:
                return True
        if config.larc:
            hold_back(list(self.weights.values()), self._kernels, config, lr)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.statistics.average(statistics)
        for name, value in self._evaluated().items() if self.smooth else ():
            self.smooth[name].lerp_(value, 1 - ema)
        return False

    @torch.no_grad()
    def scores(self, batches: Iterable[ImageBatch]) -> np.ndarray:
        """Return [4] float64 sums over these batches: images, top-1 hits, top-5 hits, cross-entropy.

        Uses the smoothed weights.
        """
        sums = torch.zeros(4, dtype=torch.float64, device=self.world.device)
        with self._judged():
            for batch in batches:
                sums += self._judge(batch)
                beat.alive()
        return sums.cpu().numpy()

    def _judge(self, batch: ImageBatch) -> Tensor:
        images, labels = (t.to(self.world.device, non_blocking=True) for t in (batch.images, batch.labels))
        with self._autocast():
            logits = self.model(self._normalised(images))
        logits = logits.float()
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        place = _places(logits, labels)
        found = (torch.ones_like(losses), place < 1, place < 5, losses)
        return torch.stack([one.double().sum() for one in found])

    @contextlib.contextmanager
    def _judged(self) -> Iterator[None]:
        """Context in which the model computes with averaged statistics, and with averaged weights if there are any."""
        own = {name: value.detach().clone() for name, value in self._evaluated().items()} if self.smooth else {}
        for name, value in self._evaluated().items() if self.smooth else ():
            value.copy_(self.smooth[name])
        self.statistics.apply()
        self.model.eval()
        try:
            yield
        finally:
            self.model.train()
            for name, value in self._evaluated().items() if own else ():
                value.copy_(own[name])

    @torch.no_grad()
    def penalty(self) -> float:
        """Return the L2 term of the loss, weight decay x half the squared kernels."""
        return self.config.weight_decay * 0.5 * float(sum(kernel.square().sum() for kernel in self._kernels))


def _places(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many classes are ranked above each label, [N].

    Of equal logits, frequent in 16 bits, the lower comes first.

    `topk` leaves that order open. If a logit is not finite, the label gets the last place.
    """
    own, classes = logits.gather(1, labels[:, None]), torch.arange(logits.shape[1], device=logits.device)
    before = (logits > own) | ((logits == own) & (classes < labels[:, None]))
    return torch.where(logits.isfinite().all(1), before.sum(1), torch.iinfo(torch.int64).max)
