"""The training loop, for one process or many; a resumed training has the same curve."""

from __future__ import annotations

import contextlib
import math
import signal
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from rayjobs.injob import checkpoint
from rayjobs.injob.run import Run

from .augmenting import crop_and_flip, enlarged, random_parts
from .decoding import Preprocessing
from .directory import ImageDirectory
from .errors import DivergedError, InvalidDatasetError, ParameterOutOfRangeError
from .loading import Loader, LoadingPlan, make_plan, open_cache
from .normalizing import Normalizer
from .norms import synchronized
from .parts import in_parts
from .ranks import Ranks, packed, unpacked
from .schedule import Schedule, batches_of_epoch, best_epoch, global_sizes, is_stopped, shares

MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
STATE = "training.pt"
TOP = 5
SIGTERM_EXIT = 143


@dataclass(frozen=True)
class Settings:
    """The settings of a training; the parameters are those of `parameters.TABLE`.

    Attributes:
        checkpoint_every: Batches between checkpoints within an epoch; 0 means one per epoch.
        cache: auto, none, encoded or decoded.
        threads: Threads that decode in each process; None means the node's CPUs divided by its
            processes.
        precision: auto, fp32 or bf16.
        compiles: Whether torch.compile is used; None means no.
        gradient_parts: Parts of a batch whose gradients are added up separately; with 2, the sums
            equal those of two processes to the last digit.
    """

    epochs: int = 5
    batch_size: int = 16
    warmup_epochs: int = 0
    learning_rate: float = 0.001
    random_seed: int = 1
    patience: int = 3
    print_frequency: int = 10
    checkpoint_every: int = 0
    cache: str = "auto"
    threads: int | None = None
    precision: str = "auto"
    compiles: bool | None = None
    gradient_parts: int = 1


@dataclass
class Progress:
    """How far a training has come; checkpoints contain all of it.

    Attributes:
        epoch: The current epoch, from 0.
        batch: Number of batches of this epoch that are done.
        sums: Loss × images, correct top-1 predictions, and images of this epoch so far.
        losses: Validation loss of each epoch; `top1`, `top5` likewise.
        training_losses: Training loss of each epoch.
        best: Weights of the best epoch.
    """

    epoch: int = 0
    batch: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    losses: list[float] = field(default_factory=list)
    top1: list[float] = field(default_factory=list)
    top5: list[float] = field(default_factory=list)
    training_losses: list[float] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)


class Training:
    """One training of a network on labeled images.

    Args:
        module: The network with its first weights, of as many outputs as there are classes.
        training: Images to train on.
        validation: Images of the same classes, to evaluate after each epoch.
        how: Preprocessing.
        settings: Everything else.
        ranks: The processes.
    """

    def __init__(
        self,
        module: nn.Module,
        training: ImageDirectory,
        validation: ImageDirectory,
        *,
        how: Preprocessing,
        settings: Settings,
        ranks: Ranks,
    ) -> None:
        self.settings = settings
        self.ranks = ranks
        self.classes = training.classes
        self.how = how
        self._images = {"training": training, "validation": validation}
        sizes = global_sizes(len(training), batch_size=settings.batch_size, world=ranks.world)
        if not sizes:
            raise InvalidDatasetError(
                f"{training.root} has {len(training)} images; a training needs at least "
                f"{max(2, ranks.world)}, one for each process and two in all"
            )
        self._sizes = sizes
        self._schedule = Schedule(
            settings.learning_rate * ranks.world,
            settings.epochs,
            settings.warmup_epochs,
            len(sizes),
        )
        self.progress = Progress()
        is_cuda = ranks.device.type == "cuda"
        if settings.gradient_parts > 1:
            if is_cuda or settings.compiles or settings.precision == "bf16":
                raise ParameterOutOfRangeError(
                    f"gradient_parts is {settings.gradient_parts}; more than 1 is for CPUs and "
                    f"float32, without torch.compile: leave it out, or change those"
                )
            module = in_parts(module, settings.gradient_parts)
        if ranks.world > 1:
            # Each process normalizes by the global batch: the loss curve is that of one process.
            if is_cuda:
                module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
            else:
                module = synchronized(module)
        layout = torch.channels_last if is_cuda else torch.contiguous_format
        self.module = module.to(ranks.device, memory_format=layout)
        self._normalize = Normalizer(how, ranks.device, layout)
        # A GPU crops and mirrors faster than CPUs, which are then left to decode.
        self._augments = is_cuda and how.augmentation != "none"
        self.optimizer = torch.optim.SGD(
            self.module.parameters(),
            lr=self._schedule.base,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY,
        )
        self.precision, self.compiles = "fp32", False
        self._stop = False
        self._run = Run.get_context()
        self.plans: dict[str, LoadingPlan] = {}

    def run(self, on_step: Callable[[int, int], None] | None = None) -> Progress:
        """Train to the end, from the newest checkpoint if there is one.

        Args:
            on_step: Called with epoch and batch after each batch.

        Raises:
            DivergedError: the loss is not a finite number.
            InvalidDatasetError: an image cannot be used.
            SystemExit: SIGTERM arrived; a checkpoint was saved, and the exit code is 143.
        """
        settings, progress = self.settings, self._resumed()
        self._choose_speed()
        wrapped: nn.Module = self.module
        if self.ranks.world > 1:
            # Synchronized batch normalization keeps all buffers equal without a broadcast.
            with warnings.catch_warnings():
                # torch 2.15 has another name for this option, and older ones have only this one.
                warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
                wrapped = DistributedDataParallel(self.module, broadcast_buffers=False)
        if self.compiles:
            wrapped = torch.compile(wrapped)
        with _on_sigterm(self._ask_to_stop), contextlib.ExitStack() as closing:
            training = self._loader("training", closing)
            validation = self._loader("validation", closing)
            while progress.epoch < settings.epochs:
                if is_stopped(progress.losses, settings.patience):
                    self._say(
                        f"stopped after epoch {progress.epoch}: the validation loss has not "
                        f"fallen for {settings.patience} epochs"
                    )
                    break
                self._train_epoch(wrapped, training, on_step)
                self._evaluate(validation)
                self._save()
                if on_step is not None:
                    on_step(progress.epoch, 0)
        if progress.best:
            self.module.load_state_dict(progress.best)
        return progress

    # -- one epoch ---------------------------------------------------------------------------

    def _train_epoch(
        self,
        wrapped: nn.Module,
        loader: Loader,
        on_step: Callable[[int, int], None] | None,
    ) -> None:
        settings, progress, ranks = self.settings, self.progress, self.ranks
        epoch, first = progress.epoch, progress.batch
        batches = batches_of_epoch(
            len(loader.images),
            batch_size=settings.batch_size,
            world=ranks.world,
            rank=ranks.rank,
            seed=settings.random_seed,
            epoch=epoch,
            parts=settings.gradient_parts,
        )
        wrapped.train()
        began, waited, seen = time.perf_counter(), loader.wait_s, 0
        # Summed on the device: reading a value from it after each batch would stall the GPU.
        sums = torch.zeros(3, dtype=torch.float64, device=ranks.device)
        if self._augments:
            feed = loader.validation(batches[first:])
        else:
            feed = loader.training(batches[first:], seed=settings.random_seed, epoch=epoch)
        rate, is_checked = 0.0, ranks.world == 1 and ranks.device.type == "cpu"
        for number, (pixels, labels) in enumerate(feed, start=first):
            step = epoch * len(batches) + number
            rate = self._schedule.rate(step)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            labels = labels.to(ranks.device, non_blocking=True)
            with self._precision():
                outputs = wrapped(self._training_inputs(pixels, batches[number]))
                total = functional.cross_entropy(_widened(outputs), labels, reduction="sum")
            # The mean over the global batch: DDP averages the processes' gradients.
            loss = total * (ranks.world / self._sizes[number])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            with torch.no_grad():
                right = (outputs.argmax(1) == labels).sum()
                sums += torch.stack(
                    [total.double(), right.double(), right.new_tensor(len(labels)).double()]
                )
            seen += self._sizes[number]
            done = number + 1
            is_last = done == len(batches)
            looks = is_checked or is_last or done % settings.print_frequency == 0
            saves = settings.checkpoint_every > 0 and done % settings.checkpoint_every == 0
            if looks or saves:
                self._look(total, sums, rate, done)
            self.optimizer.step()
            progress.batch = done
            if done % settings.print_frequency == 0 or is_last:
                self._tell(sums, seen, began, loader.wait_s - waited, rate, len(batches))
            stops = (looks or saves) and self._all_stop()
            if (saves or stops) and not is_last:
                sums = self._keep_sums(sums)
                self._save()
                if stops:
                    self._leave()
            if on_step is not None:
                on_step(epoch, done)
        self._keep_sums(sums)
        spent = time.perf_counter() - began
        loss_sum, correct, count = progress.sums
        progress.training_losses.append(loss_sum / count)
        self._log("images_per_s", seen / spent, epoch)
        self._log("data_wait_share", min(1.0, (loader.wait_s - waited) / spent), epoch)
        self._log("train_loss", loss_sum / count, epoch)
        self._log("train_top1", correct / count, epoch)
        self._log("learning_rate", rate, epoch)
        if self._all_stop():
            self._stop = True

    def _training_inputs(self, pixels: torch.Tensor, batch: Sequence[int]) -> torch.Tensor:
        inputs = self._normalize(pixels)
        if not self._augments:
            return inputs
        keys = [(self.settings.random_seed, self.progress.epoch, index) for index in batch]
        parts = random_parts(self.how, pixels.shape[1], keys)
        return crop_and_flip(inputs, parts, self.how.image_size)

    def _precision(self) -> Any:
        if self.precision == "bf16":
            return torch.autocast(self.ranks.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _look(self, total: torch.Tensor, sums: torch.Tensor, rate: float, done: int) -> None:
        """Raise DivergedError in every process if the loss of any is not finite."""
        bad = (~torch.isfinite(total.detach().double() + sums[0])).double().reshape(1)
        if self.ranks.sum(bad).item() == 0:
            return
        # fault 184: nothing that follows would be a number, and the model would be lost
        value = float(total.detach())
        base = self.settings.learning_rate
        raise DivergedError(
            f"the training loss is {value:g} in epoch {self.progress.epoch + 1}, batch {done}, at "
            f"a learning rate of {rate:g} ({base:g} × {self.ranks.world} processes). The learning "
            f"rate may be too high: lower it, e.g. --learning-rate {base / 10:g}, or let it rise "
            f"slowly with --warmup-epochs"
        )

    def _tell(
        self,
        sums: torch.Tensor,
        seen: int,
        began: float,
        waited: float,
        rate: float,
        batches: int,
    ) -> None:
        progress = self.progress
        spent = time.perf_counter() - began
        loss, right, count = sums.tolist()
        count = max(1.0, count)
        self._say(
            f"epoch {progress.epoch + 1}/{self.settings.epochs} batch {progress.batch}/{batches} "
            f"loss {loss / count:.4f} top-1 {right / count:.4f} lr {rate:.6g} "
            f"{seen / spent:.1f} images/s waiting {waited / spent:.0%}"
        )
        step = progress.epoch * batches + progress.batch
        self._log("batch_loss", loss / count, step)
        self._log("batch_images_per_s", seen / spent, step)

    def _keep_sums(self, sums: torch.Tensor) -> torch.Tensor:
        """Add the processes' sums to the progress; return sums of zero."""
        total = self.ranks.sum(sums).tolist()
        own = self.progress.sums
        self.progress.sums = [old + new for old, new in zip(own, total, strict=True)]
        return torch.zeros_like(sums)

    # -- validation --------------------------------------------------------------------------

    def _evaluate(self, loader: Loader) -> None:
        progress = self.progress
        self.module.eval()
        sums = torch.zeros(4, dtype=torch.float64, device=self.ranks.device)
        batches = shares(
            len(loader.images),
            batch_size=self.settings.batch_size,
            world=self.ranks.world,
            rank=self.ranks.rank,
        )
        with torch.no_grad():
            for pixels, labels in loader.validation(batches):
                labels = labels.to(self.ranks.device)
                with self._precision():
                    outputs = _widened(self.module(self._normalize(pixels)))
                losses = functional.cross_entropy(outputs, labels, reduction="sum")
                best = outputs.topk(min(TOP, outputs.shape[1]), dim=1).indices == labels[:, None]
                sums += torch.stack(
                    [
                        losses.double(),
                        best[:, 0].sum().double(),
                        best.any(1).sum().double(),
                        best.new_tensor(len(labels), dtype=torch.float64),
                    ]
                )
        loss, first, top, count = self.ranks.sum(sums).tolist()
        progress.losses.append(loss / count)
        progress.top1.append(first / count)
        progress.top5.append(top / count)
        epoch = progress.epoch
        if best_epoch(progress.losses) == epoch:
            state = self.module.state_dict()
            progress.best = {name: value.detach().cpu().clone() for name, value in state.items()}
        self._log("val_loss", loss / count, epoch)
        self._log("top1", first / count, epoch)
        self._log("top5", top / count, epoch)
        self._say(
            f"epoch {epoch + 1}/{self.settings.epochs} validation loss {loss / count:.4f} "
            f"top-1 {first / count:.4f} top-5 {top / count:.4f}"
        )
        progress.epoch, progress.batch, progress.sums = epoch + 1, 0, [0.0, 0.0, 0.0]

    # -- checkpoints -------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            "progress": asdict(self.progress),
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "facts": self._facts(),
        }

    def _facts(self) -> dict[str, Any]:
        """Return the facts that must be equal for a training to resume from a checkpoint."""
        settings = self.settings
        return {
            "classes": list(self.classes),
            "images": len(self._images["training"]),
            "batch_size": settings.batch_size,
            "world": self.ranks.world,
            "random_seed": settings.random_seed,
        }

    def _save(self) -> None:
        if self.ranks.is_first:
            progress = self.progress
            step = progress.epoch * len(self._sizes) + progress.batch
            data = packed(self._state())
            checkpoint.save(step, {STATE: data}, keep=2, metadata={"epoch": progress.epoch})
        if self._stop and self.progress.batch == 0:
            self._leave()

    def _resumed(self) -> Progress:
        found = checkpoint.latest() if self.ranks.is_first else None
        data: bytes | None = None
        if found is not None:
            with open(found.file(STATE), "rb") as file:
                data = file.read()
        data = self.ranks.of_first(data)
        if data is None:
            return self.progress
        state = unpacked(data)
        mine, theirs = self._facts(), state["facts"]
        differing = [name for name in mine if mine[name] != theirs.get(name)]
        if differing:
            raise InvalidDatasetError(
                f"the checkpoint is of another training: {', '.join(differing)} differ "
                f"({theirs.get(differing[0])!r:.60} there, {mine[differing[0]]!r:.60} here); "
                f"resume with the same data and parameters, or start a new job"
            )
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self._say(
            f"continues from its checkpoint: epoch {self.progress.epoch + 1}, "
            f"batch {self.progress.batch}"
        )
        return self.progress

    # -- the rest ----------------------------------------------------------------------------

    def _loader(self, part: str, closing: contextlib.ExitStack) -> Loader:
        images = self._images[part]
        is_enlarged = part == "training" and self._augments
        how = enlarged(self.how) if is_enlarged else self.how
        plan = make_plan(
            images,
            how,
            cache=self.settings.cache,
            processes=self.ranks.local_world,
            threads=self.settings.threads,
            is_fixed=part == "validation" or is_enlarged or how.augmentation == "none",
        )
        plan = self.ranks.of_first(plan)
        self.plans[part] = plan
        self._say(
            f"{part}: {len(images)} images; {plan.threads} threads, cache {plan.cache} "
            f"({plan.reason}); read {plan.read_ms:.2f} ms, decode {plan.decode_ms:.2f} ms, "
            f"crop and resize {plan.fit_ms:.2f} ms per image; {plan.decoded_gib:.3f} GiB in a "
            f"cache, {plan.encoded_gib:.3f} GiB as files"
        )
        cache = open_cache(images, plan, part)
        if is_enlarged:
            self._say(f"the GPU crops and mirrors images of {how.image_size} × {how.image_size}")
        loader = Loader(images, how, plan, cache=cache, pin=self.ranks.device.type == "cuda")
        if cache is not None:
            closing.callback(cache.remove)
        closing.callback(loader.close)
        return loader

    def _choose_speed(self) -> None:
        """Choose the precision as requested, or the faster one on CUDA; compile only on request."""
        settings = self.settings
        is_cuda = self.ranks.device.type == "cuda"
        self.precision = "fp32" if settings.precision == "auto" else settings.precision
        self.compiles = bool(settings.compiles)
        if is_cuda and settings.precision == "auto" and torch.cuda.is_bf16_supported():
            times = {name: self._step_time(name) for name in ("fp32", "bf16")}
            self.precision = self.ranks.of_first(min(times, key=lambda name: times[name]))
            self._say(f"precision {self.precision}: seconds of a batch {times}")

    def _step_time(self, precision: str) -> float:
        """Return the seconds of a forward and backward pass of a batch of black images on CUDA."""
        self.precision = precision
        size = self.how.image_size
        pixels = torch.zeros((self.settings.batch_size, size, size, 3), dtype=torch.uint8)
        self.module.eval()  # keeps the statistics of batch normalization unchanged
        began = 0.0
        for number in range(6):
            if number == 2:
                torch.cuda.synchronize()
                began = time.perf_counter()
            with self._precision():
                self.module(self._normalize(pixels)).float().sum().backward()
        torch.cuda.synchronize()
        self.optimizer.zero_grad(set_to_none=True)
        return (time.perf_counter() - began) / 4

    def _ask_to_stop(self) -> None:
        self._stop = True

    def _all_stop(self) -> bool:
        stops = torch.tensor([float(self._stop)], device=self.ranks.device)
        return bool(self.ranks.sum(stops).item() > 0)

    def _leave(self) -> None:
        self._say("stopped on request: the checkpoint is saved")
        self.ranks.leave()
        raise SystemExit(SIGTERM_EXIT)

    def _log(self, name: str, value: float, step: int) -> None:
        if self.ranks.is_first:
            self._run.log(name, value, step=step)

    def _say(self, text: str) -> None:
        if self.ranks.is_first:
            print(text, flush=True)


@contextlib.contextmanager
def _on_sigterm(do: Callable[[], None]) -> Any:
    """Call `do` on SIGTERM within the ``with`` block."""
    try:
        old = signal.signal(signal.SIGTERM, lambda *_: do())
    except ValueError:  # not the main thread, which alone handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def _widened(outputs: torch.Tensor) -> torch.Tensor:
    """Return outputs of fewer bits in float32: a bf16 loss has only 3 digits."""
    return outputs if outputs.dtype == torch.float64 else outputs.float()


def set_up_determinism(seed: int) -> None:
    """Make two trainings with one seed on one machine equal to the last bit."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # It would write NaN into each new tensor before its values, which costs time for nothing.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False


def summary_of(progress: Progress) -> Mapping[str, Any]:
    """Return the metrics of the best epoch (counted from 1), to store with the model."""
    best = best_epoch(progress.losses)
    figures = {
        "epoch": best + 1,
        "epochs": len(progress.losses),
        "val_loss": progress.losses[best],
        "top1": progress.top1[best],
        "top5": progress.top5[best],
        "train_loss": progress.training_losses[best],
    }
    return {
        name: value if isinstance(value, int) or math.isfinite(value) else None
        for name, value in figures.items()
    }
