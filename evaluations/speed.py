"""Speed and memory, side by side with the engines people would use instead, in one run.

    chainsight benchmark --peer-python ../peer/bin/python --json speed.json

Every engine runs in a process of its own (`--peer-python` names the interpreter that has torch, ONNX Runtime or
OpenVINO; whichever of them it lacks is left out), keeps its model loaded and works only when its turn comes:
A B C A B C, never two at once, so that a machine that gets slower gets slower for all. All get the same weights and
the same inputs, and their outputs are compared with ours before any time is believed. The tasks:

- `network`, `network-8`: ResNet-50 at 224 x 224, batch 1 and 8; batch 1 once more with another busy process on the same
  processors;
- `ssdlite`, `fasterrcnn`: the whole predict call on a 480 x 640 photo, from the array to the boxes;
- `training`, `mobilenet-training`: one SGD step of ResNet-50, batch 8, and of MobileNetV3-Large, batch 32;
- `ssdlite-training`, `fasterrcnn-training`: one SGD step of a detector on photos and their objects, from the arrays to
  the updated weights: SSDLite, batch 8, and Faster R-CNN on MobileNetV3 at 320 pixels, batch 2;
- `MODEL-network` for ssd300_vgg16, fcn_resnet50, yolox_s and others (`NETWORKS`), left out unless asked for: the
  network alone, without preparing the photo and selecting boxes, against ONNX Runtime and OpenVINO;
- the name of any of torchvision's detectors, segmentation models or one classifier of most families, left out unless
  asked for: the whole predict call on the same photo, from the array to the boxes, label map or probabilities.

Peak memory is the most that the whole process held (resident), loading included. Thread pools are told to sleep rather
than spin (`GOMP_SPINCOUNT`), and OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE, which slow all that obey them, are removed.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
WORKER = Path(__file__).with_name("speed_worker.py")
OBJECTS = 6  # in each photo that detectors are trained on
PAUSE = 0.03  # seconds before each turn: long enough for the last engine's threads to fall asleep


@dataclass(frozen=True)
class Task:
    """What is timed: `limit` is the most our time may be of the time of the fastest engine of `against`.

    Networks, and classifiers in training, get `batch` images of `size` x `size`.
    """

    name: str
    model: str
    engines: tuple[str, ...]
    against: tuple[str, ...]
    limit: float
    size: int = 0
    batch: int = 1


TORCH, ENGINES = ("torch",), ("onnxruntime", "openvino")
TASKS = (
    Task("network", "resnet50", ("torch", "torch-nhwc", *ENGINES), ENGINES, 1.0, 224),
    Task("ssdlite", "ssdlite320_mobilenet_v3_large", TORCH, TORCH, 0.4),
    Task("fasterrcnn", "fasterrcnn_resnet50_fpn", TORCH, TORCH, 0.35),
    Task("training", "resnet50", ("torch", "torch-nhwc"), TORCH, 0.75, 224, 8),
    Task("ssdlite-training", "ssdlite320_mobilenet_v3_large", TORCH, TORCH, 0.75, 0, 8),
    Task("fasterrcnn-training", "fasterrcnn_mobilenet_v3_large_320_fpn", TORCH, TORCH, 0.9, 0, 2),
)


# Whole predict calls: two-stage detectors may take 0.55 of torch's time, the others less than all of it, some less.
LIMITS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": 0.4,
    "maskrcnn_resnet50_fpn": 0.35,
    "retinanet_resnet50_fpn": 0.35,
    "fcos_resnet50_fpn": 0.35,
}
# GoogLeNet and Inception v3 are not among them: torchvision loads them only with the heads of their training.
CLASSIFIERS = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "maxvit_t",
    "mnasnet1_0",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "regnet_y_400mf",
    "resnet50",
    "resnext50_32x4d",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg16",
    "vit_b_16",
)
PREDICT = tuple(
    Task(model, model, TORCH, TORCH, LIMITS.get(model, 0.55 if "rcnn" in model else 1.0))
    for model in (
        "fasterrcnn_resnet50_fpn_v2",
        "fasterrcnn_mobilenet_v3_large_fpn",
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        "maskrcnn_resnet50_fpn",
        "maskrcnn_resnet50_fpn_v2",
        "keypointrcnn_resnet50_fpn",
        "retinanet_resnet50_fpn",
        "retinanet_resnet50_fpn_v2",
        "fcos_resnet50_fpn",
        "ssd300_vgg16",
        "fcn_resnet50",
        "fcn_resnet101",
        "deeplabv3_resnet50",
        "deeplabv3_resnet101",
        "deeplabv3_mobilenet_v3_large",
        "lraspp_mobilenet_v3_large",
        *CLASSIFIERS,
    )
)


# Networks alone, without preparing photos and selecting boxes, and longer trainings.
NETWORKS = (
    *(
        Task(f"{model}-network", model, ENGINES, ENGINES, limit, size)
        for model, size, limit in (
            ("mobilenet_v3_large", 224, 1.05),
            ("nanodet_g", 416, 1.05),
            ("yolox_nano", 416, 1.05),
            ("yolox_s", 640, 1.0),
            ("ssd300_vgg16", 300, 0.6),
            ("fcn_resnet50", 520, 0.8),
            ("deeplabv3_mobilenet_v3_large", 520, 1.0),
        )
    ),
    Task("network-8", "resnet50", ENGINES, ENGINES, 1.0, 224, 8),
    Task("mobilenet-training", "mobilenet_v3_large", ("torch", "torch-nhwc"), TORCH, 0.75, 224, 32),
)
ALL = TASKS + PREDICT + NETWORKS


@dataclass
class Result:
    """One engine on one task: seconds of every turn, quiet and beside a busy process, megabytes, agreement."""

    task: str
    engine: str
    version: str
    seconds: list[float] = field(default_factory=list)
    busy_seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    agreement: str = ""


def environment(threads: int) -> dict[str, str]:
    """The environment of the measured processes."""
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    return env | {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}


class Worker:
    """A process with one engine and one model loaded. `missing` says why it has none."""

    def __init__(self, command: Sequence[str], threads: int) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(threads)
        )
        first = self._reply()
        self.missing: str | None = first.get("missing")
        self.version: str = first.get("version", "")

    def _reply(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            self.close()
            raise RuntimeError(f"the worker {self.process.args!r} ended with status {self.process.returncode}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def order(self, line: str) -> dict[str, Any]:
        """Send one order and wait for its reply."""
        if self.process.stdin is None:
            raise RuntimeError("the worker's input is closed")
        print(line, file=self.process.stdin, flush=True)
        return self._reply()

    def run(self) -> float:
        """One turn, in seconds."""
        return float(self.order("run")["seconds"])

    def close(self) -> None:
        """Let the process end and wait for it."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()
        self.process.wait()


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Another process that never rests, while the block runs."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def interleave(workers: Mapping[str, Worker], rounds: int) -> dict[str, list[float]]:
    """The seconds of `rounds` turns of every worker, taken in turn.

    The first run of a turn does not count: the engine before may still be spinning on the cores (ONNX Runtime's threads
    do, which slowed whoever came next by a quarter), and the caches hold what that one needed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            time.sleep(PAUSE)
            worker.run()
            seconds[name].append(worker.run())
    return seconds


def agreement(ours: Arrays, theirs: Arrays) -> str:
    """How far two outputs agree: the largest relative difference, or the share of pixels or detections found by both.

    A detection is found when the other has one of the same label, IoU >= 0.99 and a score within 1e-3. Those of labels
    that we drop, because COCO never used them ("known" has the others), do not count.
    """
    if "boxes" not in ours:
        name = next(iter(ours))
        if name == "map":
            return f"{(ours[name] == theirs[name]).mean():.2%} of the pixels of one class"
        pairs = [(ours[n], theirs[n]) for n in ours]
        difference = max(float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-12)) for a, b in pairs)
        return f"{name.split()[0]} differ by {difference:.1e}"
    counted = np.isin(theirs["labels"], ours["known"])
    theirs = {name: values[counted] for name, values in theirs.items()}
    a, b = ours["boxes"][:, None], theirs["boxes"][None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = np.clip(sides, 0, None).prod(2)
    areas = (a[..., 2:] - a[..., :2]).prod(2) + (b[..., 2:] - b[..., :2]).prod(2)
    same = common >= 0.99 * (areas - common)
    same &= ours["labels"][:, None] == theirs["labels"][None]
    same &= np.abs(ours["scores"][:, None] - theirs["scores"][None]) <= 1e-3
    return f"{int(same.any(0).sum())} of {same.shape[1]} detections found, {same.shape[0]} given"


def measure(task: Task, commands: Mapping[str, Sequence[str]], folder: Path, rounds: int, threads: int) -> list[Result]:
    """Run one task on all engines of `commands`; the first one is ours and the others are compared with it."""
    workers: dict[str, Worker] = {}
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            worker = Worker(command, threads)
            stack.callback(worker.close)
            if worker.missing is None:
                workers[name] = worker
            else:
                print(f"{task.name}: no {name} ({worker.missing})", file=sys.stderr)
        results = {n: Result(task.name, n, w.version) for n, w in workers.items()}
        outputs: dict[str, Arrays] = {}
        for name, worker in workers.items():
            worker.run()
            worker.order(f"save {folder / 'outputs.npz'}")
            outputs[name] = dict(np.load(folder / "outputs.npz"))
        for name in list(workers)[1:]:
            results[name].agreement = agreement(outputs[next(iter(workers))], outputs[name])
        interleave(workers, 2)  # warm up
        for name, seconds in interleave(workers, rounds).items():
            results[name].seconds = seconds
        if task.name == "network":
            with busy_process():
                for name, seconds in interleave(workers, rounds).items():
                    results[name].busy_seconds = seconds
        for name, worker in workers.items():
            results[name].peak_mb = worker.order(f"save {folder / 'outputs.npz'}")["peak_mb"]
    return list(results.values())


def table(results: Sequence[Result]) -> str:
    """The results as text: medians with the quartiles, our share of each engine's time, the limits kept or not."""
    width = max([len(r.task) for r in results] + [20]) + 1
    lines = [f"{'task':<{width}}{'engine':<13}{'version':<22}{'median ms':>10}{'quartiles':>16}"]
    lines[0] += f"{'images/s':>9}{'ours/its':>9}"
    lines[0] += f"{'busy ms':>9}{'slower':>8}{'peak MB':>9}  agreement with ours"
    ours = {r.task: r for r in results if r.engine == "chainsight"}
    by_name = {(r.task, r.engine): r for r in results}
    batches = {task.name: task.batch for task in ALL}

    def slowdown(result: Result) -> float:
        return statistics.median(result.busy_seconds) / statistics.median(result.seconds)

    for r in results:
        low, middle, high = np.percentile(np.array(r.seconds) * 1e3, (25, 50, 75))
        share = f"{statistics.median(ours[r.task].seconds) * 1e3 / middle:.2f}" if r.task in ours else ""
        busy = f"{statistics.median(r.busy_seconds) * 1e3:9.1f}{slowdown(r):8.2f}" if r.busy_seconds else " " * 17
        lines.append(
            f"{r.task:<{width}}{r.engine:<13}{r.version[:20]:<22}{middle:10.1f}{f'{low:.1f}-{high:.1f}':>16}"
            f"{batches.get(r.task, 1) / middle * 1e3:>9.1f}{share:>9}"
            f"{busy}{r.peak_mb:9.0f}  {r.agreement}"
        )
    for task in ALL:
        mine = ours.get(task.name)
        peers = [by_name[task.name, name] for name in task.against if (task.name, name) in by_name]
        if not mine or not peers:
            continue
        its = min(peers, key=lambda r: statistics.median(r.seconds))
        # by turn: a machine that slows down for a while slows both
        time_ratio = statistics.median(a / b for a, b in zip(mine.seconds, its.seconds))
        checks = [(time_ratio, f"of {its.engine}'s time", task.limit)]
        checks += [(mine.peak_mb / its.peak_mb, f"of {its.engine}'s peak memory", 1.0)]
        if mine.busy_seconds and "onnxruntime" in task.against and (task.name, "onnxruntime") in by_name:
            other = by_name[task.name, "onnxruntime"]
            checks += [(slowdown(mine) / slowdown(other), "of onnxruntime's slowdown beside a busy process", 1.0)]
        for ratio, what, limit in checks:
            verdict = "kept" if ratio <= limit else "MISSED"
            lines.append(f"{task.name}: {ratio:.2f} {what}, at most {limit}: {verdict}")
    return "\n".join(lines)


def _boxes(size: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.float32]:
    """Objects (8, OBJECTS, 4) of a tenth to half of a photo's sides, xyxy in pixels."""
    sides = generator.uniform(0.1, 0.5, (8, OBJECTS, 2))
    corner = generator.uniform(0, 1, (8, OBJECTS, 2)) * (1 - sides)
    boxes = np.concatenate([corner, corner + sides], 2) * np.array(size[1::-1] * 2)
    return np.asarray(boxes, np.float32)


def settle(model: Any, x: Any) -> None:
    """Give the batch norms of random weights the statistics of x.

    Otherwise values shrink from layer to layer until biases are all that comes out, and any output equals any other.
    """
    from ..core import no_grad
    from ..core.layers import BatchNorm2d

    norms = [module for _, module in model.named_modules() if isinstance(module, BatchNorm2d)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.train()
    with no_grad():
        getattr(model, "logits", model.forward)(x)
    model.eval()
    for norm, momentum in zip(norms, before):
        norm.momentum = momentum


def prepare(tasks: Sequence[Task], sources: Mapping[str, str], photo: Path | None, folder: Path) -> None:
    """Write the weights and the inputs for the workers. `sources` names weights (entry or file) by model."""
    from ..core import Tensor
    from ..vision.image import read_image
    from ..vision.models import load
    from .graph import Graph, method_of

    generator = np.random.default_rng(0)
    images: Arrays = {}
    for model_name in sorted({task.model for task in tasks}):
        model = load(model_name, weights=sources.get(model_name)).eval()
        networks = [t for t in tasks if t.model == model_name and t.size and not t.name.endswith("training")]
        for task in networks:
            images[task.name] = generator.standard_normal((task.batch, 3, task.size, task.size), np.float32)
            if model_name not in sources:
                settle(model, Tensor(np.concatenate([images[task.name], images[task.name][..., ::-1] * 0.5])))
        state: Any = model.state_dict()
        np.savez(folder / f"{model_name}.npz", **state)
        for task in networks:
            Graph(model, Tensor(images[task.name]), method_of(model)).save(folder / f"{task.name}.graph.npz")
    for task in tasks:
        if task.size and task.name.endswith("training"):
            images[task.name] = generator.standard_normal((task.batch, 3, task.size, task.size), np.float32)
    if photo is None:  # noise would give detectors nothing to find, a smooth pattern gives them a little
        y, x = np.mgrid[0:480, 0:640]
        picture = np.stack([(x * y // 97) % 256, (x * 3 + y) // 4 % 256, (y * 5 - x) % 256], 2).astype(np.uint8)
    else:
        picture = np.asarray(read_image(photo))
    np.savez(
        folder / "inputs.npz",
        photo=picture,
        photos=np.stack([np.roll(picture, 40 * i, (0, 1)) for i in range(8)]),
        boxes=_boxes(picture.shape[:2], generator),
        ids=generator.choice([1, 3, 18, 44, 62], (8, OBJECTS)),  # of COCO
        **images,  # type: ignore[arg-type]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON. The exit status is 0 when everything could be measured."""
    parser = argparse.ArgumentParser(
        prog="chainsight benchmark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has the other engines")
    names = [t.name for t in ALL]
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all tasks of this model")
    parser.add_argument("--tasks", nargs="+", default=[], choices=names, metavar="TASK", help=", ".join(names))
    parser.add_argument("--weights", nargs="+", default=[], metavar="MODEL=SOURCE", help="entry or file; else random")
    parser.add_argument("--photo", type=Path, help="a photo for the detectors; else a pattern of 480 x 640")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    sources = dict(item.split("=", 1) for item in options.weights)
    if unknown := sorted(set(options.models) - {t.model for t in ALL}):
        parser.error(
            f"no task is known for {', '.join(unknown)}; there are {', '.join(sorted({t.model for t in ALL}))}"
        )
    chosen = options.tasks or ([] if options.models else [t.name for t in TASKS])
    tasks = [t for t in ALL if t.name in chosen or t.model in options.models]
    load_before = os.getloadavg()[0]
    if hasattr(os, "sched_setaffinity"):  # all processes share the same processors, the busy one too
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(tasks, sources, options.photo, folder)
        for task in tasks:
            ends = [task.name, task.model, str(folder)]
            commands = {"chainsight": [sys.executable, str(WORKER), "chainsight", *ends]}
            commands |= {e: [options.peer_python, str(WORKER), e, *ends] for e in task.engines}
            results += measure(task, commands, folder, options.rounds, options.threads)
    print(table(results))
    print(f"load of the machine before: {load_before:.2f}{'' if load_before < 0.5 else ' (not quiet: repeat)'}")
    if options.json:
        about = {"machine": platform.processor() or platform.machine(), "threads": options.threads}
        about |= {"load_before": load_before, "rounds": options.rounds, "weights": sources}
        options.json.write_text(json.dumps(about | {"results": [asdict(r) for r in results]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
