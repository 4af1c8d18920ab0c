"""Fine-tuning a model on a data set in one call."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from . import run_pictures
from .core.optimizers import AdamW, Cosine, Warmup, WeightAverage
from .core.training import Loader, NotFiniteError, Step, Training, train
from .datasets import Dataset
from .datasets import open as open_dataset
from .datasets.dataset import CLASSIFICATION, DETECTION, INSTANCE, KEYPOINTS, SEMANTIC
from .evaluating import evaluate
from .evaluations.runner import versions, write_text
from .vision.detection.darknet import NAME as DARKNET
from .vision.detection.keypoint_rcnn import KeypointRCNN
from .vision.model import Model
from .vision.models import MODELS, load
from .vision.recipes import Recipe
from .vision.recipes import recipe as recipe_of
from .vision.sample import Sample
from .vision.transforms import Transform
from .weights.errors import WeightsError
from .weights.lock import locked
from .weights.readers import read
from .weights.writer import read_metadata, replacing, save_safetensors

log = logging.getLogger("chainsight")

CHECKPOINT = "checkpoint.safetensors"
SAVE_SECONDS = 300  # at least so often
TASK_OF_MODEL = {
    "classification": CLASSIFICATION,
    "detection": DETECTION,
    "instance segmentation": INSTANCE,
    "keypoint detection": KEYPOINTS,
    "semantic segmentation": SEMANTIC,
}
EPOCH_SECONDS = 20  # after an epoch, if the last time is so long ago; and at the end
MUST_AGREE = (
    "model",
    "categories",
    "images",
    "epochs",
    "batch_size",
    "lr",
    "weight_decay",
    "accumulate",
    "seed",
    "freeze",
    "patience",
    "average",
    "augmentation",
)


@dataclass
class Run:
    """What a training left behind.

    ``folder`` has best.safetensors and last.safetensors, which ``load`` takes alone; checkpoint.safetensors, from which
    the run goes on; settings.json, epochs.csv and steps.jsonl; curves.png and pictures of batches and predictions.
    ``history`` has a row for each epoch, ``metrics`` those of the best epoch (empty without ``valid``), counted from 1.
    """

    folder: Path
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    stopped_early: bool = False

    def __repr__(self) -> str:
        figures = ", ".join(f"{k} {v:.4f}" for k, v in list(self.metrics.items())[:3])
        early = ", stopped early" if self.stopped_early else ""
        return f"Run({self.folder}: {len(self.history)} epochs{early}, best {self.best_epoch} {figures})"


def fit(
    model: Model[Any],
    train: Dataset | str,
    valid: Dataset | str | None = None,
    *,
    epochs: int | None = None,
    out: str | Path | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    augmentation: Transform | None | str = "default",
    freeze: Sequence[str] = (),
    accumulate: int = 1,
    patience: int | None = None,
    seed: int = 0,
    workers: int = 2,
    resume: bool = False,
    progress: bool | None = None,
    notes: dict[str, Any] | None = None,
) -> Run:
    """Fine-tune a model; afterwards it holds the averaged weights of the best epoch.

    - ``train``, ``valid``: data sets, or "PATH" or "PATH@SPLIT". Without ``valid`` the last epoch counts as the best.
    - ``epochs``: by the size of the data set if None: 400 / sqrt(images), at least 6 and at most 100.
    - ``out``: the run's folder; runs/MODEL-1, -2, ... if None.
    - ``batch_size``, ``lr``, ``augmentation``: by the model's family; see ``chainsight.vision.recipes``.
      ``augmentation=None`` changes nothing. ``lr`` is reached after a warm-up and falls by a cosine.
    - ``freeze``: the beginnings of names of parameters that stay as they are, such as "backbone.".
    - ``accumulate``: batches for one update. ``patience``: epochs without a better figure before it stops.
    - ``seed``: two runs with one seed give the same weights, bit for bit, on one machine with the same threads.
    - ``resume``: go on with the run in ``out`` as if it had never stopped. Ctrl-C saves; a second one does not wait.
    - ``progress``: a bar and a line for each epoch; None: the bar only on a terminal, False: neither.
    - ``notes``: whatever else settings.json should hold.

    A model of keypoints gets a new last layer where the data have another number of them.

    Raises ValueError for data without images, without what the model learns (masks, say) or with other classes than the
    model's, for a folder that holds a run already or in which one is at work, and for a run to be resumed with other
    settings; NotFiniteError, after saving the batch in the folder, for a loss that is not finite.

    >>> import tempfile, chainsight as cs
    >>> scenes = cs.datasets.ShapeScenes(4, size=64)
    >>> model = cs.load("nanodet_g", weights=None, categories=scenes.categories)
    >>> run = fit(model, scenes, epochs=1, out=tempfile.mkdtemp(), progress=False)
    >>> sorted(path.name for path in run.folder.glob("*.safetensors"))
    ['best.safetensors', 'checkpoint.safetensors', 'last.safetensors']
    """
    data = _open(train)
    held_out = None if valid is None else _open(valid)
    if type(model).losses is Model.losses:
        model.losses([], np.random.default_rng(seed))  # says that it cannot be trained, before there is a folder
    for dataset in (data,) if held_out is None else (data, held_out):
        _fits_task(model, dataset)
    labels = _label_table(model, data)
    if labels is None and model.categories.ids is None and data.category_ids is not None:
        model.categories = replace(model.categories, ids=tuple(data.category_ids))  # saved, and written on export
    _fit_keypoints(model, data)
    recipe = recipe_of(model)
    epochs = epochs or max(6, min(100, round(400 / math.sqrt(len(data)))))
    batch_size = batch_size or min(recipe.batch_size, len(data))
    if lr is None:
        lr = recipe.lr * math.sqrt(batch_size * accumulate / recipe.batch_size)
    transform = recipe.augmentation(_keypoint_pairs(data)) if augmentation == "default" else augmentation
    if isinstance(transform, str):
        raise ValueError(f'expected augmentation to be a transform, None or "default", got {transform!r}')
    loader = Loader(
        data,
        batch_size,
        shuffle=True,
        seed=seed,
        workers=workers,
        transform=_Prepare(transform, labels),
        drop_last=False,
    )
    updates = epochs * -(-len(loader) // accumulate)
    average = min(0.9998, max(0.0, 1 - 10 / updates))
    settings = {
        "model": model.name,
        "categories": list(model.categories.names),
        "train": data.source,
        "valid": None if held_out is None else held_out.source,
        "images": len(data),
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "weight_decay": recipe.weight_decay,
        "accumulate": accumulate,
        "seed": seed,
        "freeze": list(freeze),
        "patience": patience,
        "average": average,
        "augmentation": repr(transform),
        "versions": versions(),
        **(notes or {}),
    }
    folder = _folder(model, out, resume)
    frozen = _freeze(model, freeze)
    try:
        with locked(folder / ".lock", partial(_in_use, folder)):
            _settle(folder, resume, settings)
            training = _training(model, recipe, lr, updates, average, accumulate, seed)
            session = _Session(model, training, loader, held_out, Run(folder), settings, progress)
            if resume:
                session.restore()
            else:
                session.start()
            session.run(epochs, patience)
    finally:
        for p in frozen:
            p.requires_grad = True
        model.zero_grad()
    model.load_state_dict(read(folder / "best.safetensors"))
    model.eval()
    return session.result


def resume(folder: str | Path, *, progress: bool | None = None) -> Run:
    """Go on with the run in a folder, on the data that its settings name; see `fit`.

    Raises ValueError where there is no run, or its data or augmentation had no name (``data`` and ``valid`` among the
    ``notes``: the `chainsight train` command gives them).
    """
    settings = settings_of(folder)
    if "data" not in settings:
        raise ValueError(f"{folder}: settings.json does not say where its data are: call fit with resume=True")
    model = load(Path(folder) / "last.safetensors")
    kept = ("epochs", "batch_size", "lr", "accumulate", "seed", "freeze", "patience")
    notes = {k: settings[k] for k in ("data", "valid_data", "weights")}
    return fit(
        model,
        settings["data"],
        settings["valid_data"],
        out=folder,
        resume=True,
        progress=progress,
        notes=notes,
        **{k: settings[k] for k in kept},
    )


def settings_of(folder: str | Path) -> dict[str, Any]:
    """The settings of the run in a folder. Raises ValueError where there is none."""
    path = Path(folder) / "settings.json"
    if not path.exists() or not (path.parent / CHECKPOINT).exists():
        raise ValueError(f"{folder}: there is no run to go on with (no settings.json and {CHECKPOINT})")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _open(data: Dataset | str) -> Dataset:
    dataset = open_dataset(data) if isinstance(data, str) else data
    if not len(dataset):
        raise ValueError(f"{dataset.name}: expected images to train on, got none")
    return dataset


def _fits_task(model: Model[Any], data: Dataset) -> None:
    """Refuse data without what the model learns before a folder or a run is begun."""
    if model.name not in MODELS or TASK_OF_MODEL[MODELS[model.name].task] in data.tasks:
        return
    fitting = [name for name, task in TASK_OF_MODEL.items() if task in data.tasks]
    raise ValueError(
        f"{model.name} learns {MODELS[model.name].task}, {data.name} has annotations of "
        f"{', '.join(data.tasks) or 'nothing'}"
        + (f": `chainsight models --task {fitting[-1]!r}` lists models of such data" if fitting else "")
    )


def _label_table(model: Model[Any], data: Dataset) -> np.ndarray | None:
    """The model's label of each of the data set's, None if they are the same."""
    names = model.categories.names
    if tuple(data.categories) == tuple(names):
        return None
    missing = [name for name in data.categories if name not in names]
    if missing:
        raise ValueError(
            f"{data.name}: the model does not know {', '.join(missing[:5])}; "
            "load it with categories=train.categories to train it on these classes"
        )
    return np.array([names.index(name) for name in data.categories], np.int64)


def _keypoint_pairs(data: Dataset) -> tuple[tuple[int, int], ...]:
    """The keypoints that a flip exchanges: those whose names differ in left and right alone."""
    names = [name.lower() for name in data.keypoint_names or ()]
    others = {i: name.replace("left", "right") for i, name in enumerate(names) if "left" in name}
    return tuple((i, names.index(other)) for i, other in others.items() if other in names)


def _fit_keypoints(model: Model[Any], data: Dataset) -> None:
    """Give a model of keypoints as many as the data have."""
    names = data.keypoint_names
    if isinstance(model, KeypointRCNN) and names and len(names) != model.keypoints:
        log.warning("%s: the layer of the keypoints started fresh for %d: %s", model.name, len(names), ", ".join(names))
        model.renew_keypoints(len(names))


@dataclass(frozen=True)
class _Prepare:
    """The augmentation, and the model's labels instead of the data set's."""

    transform: Transform | None
    labels: np.ndarray | None

    def __call__(self, sample: Sample, rng: np.random.Generator, others: Callable[[], Sample]) -> Sample:
        if self.transform is not None:
            sample = self.transform(sample, rng, others)
        if self.labels is None:
            return sample
        semantic = sample.semantic
        if semantic is not None:
            table = np.full(256, 255, np.int64)
            table[: len(self.labels)] = self.labels
            semantic = table[semantic].astype(semantic.dtype)
        return replace(
            sample,
            labels=None if sample.labels is None else self.labels[sample.labels],
            label=None if sample.label is None else int(self.labels[sample.label]),
            semantic=semantic,
        )


def _folder(model: Model[Any], out: str | Path | None, resume: bool) -> Path:
    """The run's folder: one that holds a run if that shall go on, else a new one or any without a run."""
    if resume:
        if out is None:
            raise ValueError("expected the folder of the run to go on with as out, got None")
        settings_of(out)
    elif out is None:
        out = next(p for i in range(1, 10**6) if not (p := Path("runs") / f"{model.name or 'model'}-{i}").exists())
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _in_use(folder: Path, tries: int) -> None:
    raise ValueError(f"{folder}: another training is at work in this folder; choose another one, or wait for its end")


def _settle(folder: Path, resume: bool, settings: dict[str, Any]) -> None:
    """Write the settings of a new run, or compare them with those of the one that goes on."""
    if resume:
        before = settings_of(folder)
        now = json.loads(json.dumps(settings))
        changed = [f"{k}: {before.get(k)!r}, now {now[k]!r}" for k in MUST_AGREE if before.get(k) != now[k]]
        if changed:
            raise ValueError(f"{folder}: the run has other settings ({'; '.join(changed)})")
    elif (folder / CHECKPOINT).exists():
        raise ValueError(f"{folder} holds a run already: go on with resume=True (--resume), or choose another folder")
    else:
        write_text(folder / "settings.json", json.dumps(settings, indent=1) + "\n")


def _freeze(model: Model[Any], prefixes: Sequence[str]) -> list[Any]:
    """Exclude the parameters whose names begin so; returns those that trained before."""
    names = [name for name, _ in model.named_parameters()]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise ValueError(f"freeze: no parameter of {model.name} begins with {prefix!r}; the first is {names[0]!r}")
    frozen = [p for name, p in model.named_parameters() if p.requires_grad and name.startswith(tuple(prefixes))]
    for p in frozen if prefixes else ():
        p.requires_grad = False
    return frozen if prefixes else []


def _training(
    model: Model[Any], recipe: Recipe, lr: float, updates: int, average: float, accumulate: int, seed: int
) -> Training:
    learned = [p for p in model.parameters() if p.requires_grad]
    if not learned:
        raise ValueError("expected parameters to train, got none: all are frozen")
    groups: list[dict[str, Any]] = [  # norms and biases do not decay
        {"params": [p for p in learned if p.ndim > 1]},
        {"params": [p for p in learned if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = AdamW([g for g in groups if g["params"]], lr=lr, weight_decay=recipe.weight_decay)
    warm = min(1000, updates // 10)
    return Training(
        model,
        model.losses,
        optimizer,
        schedule=Warmup(Cosine(updates - warm, end=0.01), warm),
        average=WeightAverage(model, average),
        clip=recipe.clip,
        accumulate=accumulate,
        seed=seed,
    )


class _Session:
    """A training under way: what it shows, logs and saves."""

    def __init__(
        self,
        model: Model[Any],
        training: Training,
        loader: Loader,
        valid: Dataset | None,
        result: Run,
        settings: dict[str, Any],
        progress: bool | None,
    ) -> None:
        self.model, self.training, self.loader, self.valid = model, training, loader, valid
        self.result, self.settings, self.progress = result, settings, progress
        self.sums: dict[str, float] = {}
        self.seen = 0
        self.finished = False

    # what happens

    def start(self) -> None:
        """Leave a run that can be resumed from its first moment on."""
        self.save()

    def run(self, epochs: int, patience: int | None) -> None:
        saved = time.monotonic()
        self.bar = tqdm(
            total=len(self.loader), unit="batch", disable=None if self.progress is None else not self.progress
        )
        with _interrupts() as interrupted, self.bar, open(self._log, "a", encoding="utf-8") as steps:
            if self.finished:
                return
            self._start_bar()
            try:
                for step in train(self.training, self.loader, epochs):
                    self._note(step, steps)
                    ended = self.training.batch == 0
                    if ended and self._epoch_ends(step, patience):
                        break
                    elapsed = time.monotonic() - saved
                    if interrupted.is_set() or elapsed > SAVE_SECONDS or (ended and elapsed > EPOCH_SECONDS):
                        steps.flush()
                        self.save()
                        saved = time.monotonic()
                    if interrupted.is_set():
                        raise KeyboardInterrupt
                    if ended and self.training.epoch < epochs:
                        self._start_bar()
            except NotFiniteError as error:
                self._keep_batch(error)
                raise
        self.finished = True
        self.save()

    def _start_bar(self) -> None:
        self.bar.reset(len(self.loader))
        self.bar.update(self.training.batch)
        self.bar.set_description(f"epoch {self.training.epoch + 1}/{self.settings['epochs']}")

    def _note(self, step: Step, steps: io.TextIOBase | Any) -> None:
        batches = step.batch + 1 - self.seen
        self.seen += batches
        for name, value in step.losses.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * batches
        numbers = {k: round(v, 6) for k, v in step.losses.items()}
        entry = {"step": step.number, "epoch": step.epoch + 1, "batch": step.batch + 1, "losses": numbers}
        entry |= {"gradient_norm": round(step.gradient_norm, 6), "lr": step.rate}
        steps.write(json.dumps(entry) + "\n")
        self.bar.update(batches)
        self.bar.set_postfix(loss=f"{step.loss:.3f}", refresh=False)
        if step.number <= 3:
            path = self.result.folder / f"train_batch_{step.number}.jpg"
            run_pictures.write_samples(path, step.items, self.model.categories.names)

    def _epoch_ends(self, step: Step, patience: int | None) -> bool:
        """Score, log, draw and save the epoch; returns whether it was the last one that pays."""
        best, run = self.training.average.module, self.result  # type: ignore[union-attr]
        row: dict[str, float] = {"epoch": step.epoch + 1, "lr": step.rate, "loss": sum(self.sums.values()) / self.seen}
        row |= {f"loss {name}": value / self.seen for name, value in self.sums.items()}
        self.sums, self.seen = {}, 0
        metrics: dict[str, float] = {}
        if self.valid is not None:
            metrics = evaluate(best, self.valid, progress=False).metrics.to_dict()
        run.history.append(row | metrics)
        figure = next(iter(metrics.values()), None)
        before = next(iter(run.metrics.values()), -math.inf)
        if figure is None or not run.best_epoch or figure > before:
            run.best_epoch, run.metrics = step.epoch + 1, metrics
            if self.valid is not None:
                self._save_model("best.safetensors", metrics)
        shown = [f"loss {row['loss']:.4f}", *(f"{k} {v:.4f}" for k, v in list(metrics.items())[:3])]
        if self.progress is not False:
            self.bar.write(f"epoch {step.epoch + 1}/{self.settings['epochs']}: {', '.join(shown)}")
        if patience is not None and self.valid is not None and step.epoch + 1 - run.best_epoch >= patience:
            run.stopped_early = True
        return run.stopped_early

    # what is kept

    @property
    def _log(self) -> Path:
        return self.result.folder / "steps.jsonl"

    def _save_model(self, name: str, metrics: dict[str, float]) -> None:
        model = self.training.average.module  # type: ignore[union-attr]
        path = self.result.folder / name
        with _writing(path):
            if model.name in (*MODELS, DARKNET):
                kept = {k: self.settings[k] for k in ("train", "epochs", "batch_size", "lr", "seed")}
                model.save(path, metrics={k: v for k, v in metrics.items() if math.isfinite(v)}, training=kept)
            else:
                save_safetensors(path, model.state_dict())

    def _write_history(self) -> None:
        text = io.StringIO()
        rows = self.result.history
        writer = csv.DictWriter(text, list(dict.fromkeys(k for row in rows for k in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.result.folder / "epochs.csv", text.getvalue())

    def save(self) -> None:
        """Write the models, logs and pictures as they stand, then the checkpoint: each file all or nothing."""
        run = self.result
        metrics = {k: v for k, v in (run.history or [{}])[-1].items() if not k.startswith(("epoch", "lr", "loss"))}
        self._save_model("last.safetensors", metrics)
        if self.valid is None:
            self._save_model("best.safetensors", metrics)
        if run.history:
            self._write_history()
            run_pictures.write_curves(run.folder / "curves.png", run.history, self.settings["epochs"])
            if self.valid is not None:
                average = self.training.average.module  # type: ignore[union-attr]
                run_pictures.write_predictions(run.folder / "valid_predictions.jpg", average, self.valid)
        about = {
            "history": run.history,
            "best_epoch": run.best_epoch,
            "metrics": run.metrics,
            "stopped_early": run.stopped_early,
            "sums": self.sums,
            "seen": self.seen,
            "finished": self.finished,
        }
        path = run.folder / CHECKPOINT
        with _writing(path):
            save_safetensors(path, self.training.state_dict(), {"chainsight.run": json.dumps(about)})

    def restore(self) -> None:
        """Go back to the checkpoint, and forget what was logged after it."""
        run, path = self.result, self.result.folder / CHECKPOINT
        try:
            about = json.loads(read_metadata(path)["chainsight.run"])
        except KeyError:
            raise WeightsError(f"{path}: not the checkpoint of a run") from None
        self.training.load_state_dict({k: np.array(v) for k, v in read(path).items()})
        run.history, run.best_epoch, run.metrics = about["history"], about["best_epoch"], about["metrics"]
        run.stopped_early, self.sums, self.seen = about["stopped_early"], about["sums"], about["seen"]
        self.finished = about["finished"]
        done = self.training.optimizer.steps
        with replacing(self._log) as kept:
            for line in self._log.read_bytes().splitlines(keepends=True) if self._log.exists() else ():
                if line.endswith(b"\n") and json.loads(line)["step"] <= done:
                    kept.write(line)

    def _keep_batch(self, error: NotFiniteError) -> None:
        """Write the samples that the loss was not finite on, and name them."""
        folder = self.result.folder / "not_finite"
        folder.mkdir(exist_ok=True)
        arrays: dict[str, np.ndarray] = {}
        for i, sample in enumerate(error.batch):
            for name in ("image", "boxes", "labels", "ignore", "masks", "keypoints", "semantic"):
                value = getattr(sample, name)
                if value is not None:
                    arrays[f"{i}.{name}"] = value
        sources = [str(sample.source or sample.image_id) for sample in error.batch]
        save_safetensors(folder / "batch.safetensors", arrays, {"sources": json.dumps(sources), "error": str(error)})
        run_pictures.write_samples(folder / "batch.jpg", error.batch, self.model.categories.names)
        log.error("%s; saved in %s, images: %s", error, folder, ", ".join(sources))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Name the file in the error of a disk that is full or refuses."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path}: could not be written ({error}); what was there before is intact") from error


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that it never falls into the middle of an update; a second Ctrl-C interrupts."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def press(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        log.warning("interrupted: saving after this batch; once more to stop at once")

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
