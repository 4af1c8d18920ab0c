"""The ``chainsight`` command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import __version__

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0: all went well, 1: something failed, 2: nothing could be done."""
    parser = _parser()
    options, options.rest = parser.parse_known_args(arguments)
    if options.rest and options.run is not _benchmark:
        parser.error(f"unrecognized arguments: {' '.join(options.rest)}")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold what the terminal cannot show
    try:
        if getattr(options, "threads", None):
            from .core.kernels import set_num_threads

            set_num_threads(options.threads)
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads the output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"error: not enough memory. {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chainsight",
        description="Find objects in photos, with published weights.",
        epilog="`chainsight COMMAND --help` has the options and an example of each.",
    )
    parser.add_argument("--version", action="version", version=f"chainsight {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, run: Command, description: str, example: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=description, description=description, epilog=f"example: chainsight {name} {example}"
        )
        command.set_defaults(run=run)
        return command

    predict = add(
        "predict",
        _predict,
        "find objects in images and draw them",
        "photos/ --model ssdlite320_mobilenet_v3_large --out found",
    )
    predict.add_argument(
        "sources", nargs="+", metavar="IMAGE", help="files, videos, folders, patterns (in quotes) or URLs"
    )
    _add_model(predict)
    predict.add_argument(
        "--score", type=_score, default=0.5, metavar="S", help="least score of what is shown, 0 to 1 (0.5)"
    )
    predict.add_argument("--out", type=Path, metavar="DIR", help="write the pictures with the objects drawn here")
    predict.add_argument(
        "--json", type=Path, metavar="FILE", help="write what was found here: boxes are x1, y1, x2, y2 in pixels"
    )

    evaluate = add(
        "evaluate",
        _evaluate,
        "score a model on annotated images, beside the published figures",
        "--model fcos_resnet50_fpn --data instances_val2017.json --images val2017 --report report",
    )
    _add_model(evaluate)
    evaluate.add_argument(
        "--data", required=True, metavar="DATA", help="COCO's ANNOTATIONS.json, or a data set's PATH[@SPLIT]"
    )
    evaluate.add_argument(
        "--images", type=Path, metavar="DIR", help="where the images of ANNOTATIONS.json are (beside it)"
    )
    evaluate.add_argument(
        "--score", type=_score, metavar="S", help="least score that counts (as in the published evaluation)"
    )
    evaluate.add_argument(
        "--iou-type",
        choices=("bbox", "segm", "keypoints"),
        help="compare boxes, masks or keypoints (what the model is made for)",
    )
    evaluate.add_argument(
        "--max-detections", type=_count, metavar="N", help="the best N of each image and class (100; keypoints 20)"
    )
    evaluate.add_argument("--limit", type=_count, metavar="N", help="only the first so many images")
    evaluate.add_argument("--json", type=Path, metavar="FILE", help="write figures, settings and versions here")
    evaluate.add_argument("--report", type=Path, metavar="DIR", help="write index.html with curves and pictures here")
    evaluate.add_argument("--resume", type=Path, metavar="FILE", help="keep finished images here and go on from there")

    train = add(
        "train",
        _train,
        "fine-tune a model on your own images",
        "--model nanodet_g --data boats/@train --valid boats/@val --epochs 20 --out runs/boats",
    )
    train.add_argument("--model", help="a name from `chainsight models`, or a saved model's file")
    train.add_argument("--weights", help="a published entry, a file, ENTRY=FILE, or none")
    train.add_argument("--data", metavar="DATA", help="what to learn from: PATH[@SPLIT] of a data set in any format")
    train.add_argument("--valid", metavar="DATA", help="what to choose the best epoch by: PATH[@SPLIT]")
    train.add_argument("--epochs", type=_count, metavar="N", help="rounds through the data (by the number of images)")
    train.add_argument("--out", type=Path, metavar="RUN", help="the folder for everything (runs/MODEL-1)")
    train.add_argument("--batch-size", type=_count, metavar="N", help="images of a step (by the model)")
    train.add_argument("--lr", type=float, metavar="RATE", help="the learning rate (by the model)")
    train.add_argument("--freeze", nargs="+", metavar="NAME", help="parameters that stay, by how they begin")
    train.add_argument("--patience", type=int, metavar="N", help="stop after so many epochs without a better figure")
    train.add_argument("--seed", type=int, metavar="S", help="equal seeds give equal weights (0)")
    train.add_argument("--threads", type=_threads, metavar="N", help="threads of each operation (all processors)")
    train.add_argument(
        "--resume", nargs="?", const=True, metavar="RUN", help="go on with the run of that folder, or of --out"
    )

    quantize = add(
        "quantize",
        _quantize,
        "make a model multiply bytes: faster and smaller, a little less accurate",
        "--model nanodet_g --calibrate photos/ --out nanodet_g-int8.safetensors",
    )
    _add_model(quantize)
    quantize.add_argument(
        "--calibrate", required=True, nargs="+", metavar="IMAGE", help="photos like those of the task, as for predict"
    )
    quantize.add_argument("--images", type=_count, default=100, metavar="N", help="use the first so many (100)")
    quantize.add_argument("--out", required=True, type=Path, metavar="FILE", help="the model's file, .safetensors")

    demo = add("demo", _demo, "see the built-in detector at work, without a network", "--out chainsight-demo")
    demo.add_argument(
        "--out",
        type=Path,
        default="chainsight-demo",
        metavar="DIR",
        help="the page and the pictures go here (%(default)s)",
    )
    demo.add_argument(
        "--scenes", type=int, default=100, metavar="N", help="how many pictures are drawn and searched (100)"
    )

    models = add("models", _models, "list the models, or print the card of some", "nanodet_g")
    models.add_argument("names", nargs="*", metavar="NAME", help="print the card of this model, as Markdown")
    models.add_argument("--task", help="only those of tasks with this word: detection, segmentation, classification")
    models.add_argument("--json", action="store_true", help="as JSON")

    check = add("check", _check, "look for mistakes in a data set", "boats/")
    check.add_argument("data", nargs="+", metavar="DATA", help="PATH of a data set in any common format, or PATH@SPLIT")

    # its options are those of evaluations/speed.py, which is not imported for every command
    commands.add_parser(
        "benchmark", help="time the models beside the other engines that are installed", add_help=False
    ).set_defaults(run=_benchmark)

    add("config", _config, "print what a bug report needs: versions, kernels, threads, devices", "> config.txt")
    return parser


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", required=True, help="a name from `chainsight models`, or a saved model's file")
    command.add_argument("--weights", default="default", help="a published entry, a file or ENTRY=FILE (first entry)")
    command.add_argument("--device", help="cpu, cuda or cuda:N (cpu)")
    command.add_argument("--precision", default="f32", help="f32, or bf16 where the processor has it (f32)")
    command.add_argument("--threads", type=_threads, metavar="N", help="threads of each operation (all processors)")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _threads(text: str) -> int:
    count, most = _count(text), 16 * (os.cpu_count() or 1)
    if count > most:
        raise argparse.ArgumentTypeError(f"expected at most {most} threads for {os.cpu_count()} processors, got {text}")
    return count


def _score(text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return score


def _prepare(option: str, path: Path | None, folder: bool) -> None:
    """Find out now, not after hours of work, whether the result can be written."""
    if path is None:
        return
    if path.exists() and path.is_dir() != folder:
        wanted, other = ("folder", "file") if folder else ("file", "folder")
        raise ValueError(f"{option} {path}: expected a {wanted}, got a {other}")
    place = path if folder else path.parent
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{option} {path}: cannot make the folder {place}: {error.strerror}") from error
    if not os.access(place, os.W_OK):
        raise ValueError(f"{option} {path}: the folder {place} is not writable")


def _load(options: argparse.Namespace) -> Any:
    from .vision.models import load

    return load(options.model, weights=options.weights, device=options.device, precision=options.precision)


def _predict(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from .vision.image import iter_sources
    from .vision.results import Classification
    from .vision.stream import is_video, read_ahead

    sources = iter_sources(options.sources)
    _prepare("--out", options.out, folder=True)
    _prepare("--json", options.json, folder=False)
    model = _load(options)
    found: list[dict[str, Any]] = []
    failed = 0
    taken: set[str] = set()
    originals = {str(Path(str(source)).resolve()) for source in sources}
    total = None if any(map(is_video, sources)) else len(sources)
    bar = tqdm(read_ahead(sources), total=total, unit="image", disable=None if total != 1 else True)
    seen = 0
    drawing: deque[tuple[str, Any, Path | None, Future[None] | None]] = deque()

    def fail(source: str, error: Exception) -> None:
        nonlocal failed
        failed += 1
        where = "" if source in str(error) else f"{source}: "
        bar.write(f"error: {where}{error}", file=sys.stderr)

    def finish() -> None:
        source, result, picture, drawn = drawing.popleft()
        try:
            if drawn is not None:
                drawn.result()
        except (ValueError, OSError, MemoryError) as error:
            fail(source, error)
            return
        bar.write(f"{source}: {result}" + (f"\n  drawn in {picture}" if picture else ""))
        if options.json:
            found.append({"source": source, **result.to_dict()})

    with ThreadPoolExecutor(1, "chainsight-draw") as painter:
        for source, image in bar:
            seen += 1
            try:
                if isinstance(image, Exception):
                    raise image
                result = model.predict(image, score_threshold=options.score)
            except (ValueError, OSError, MemoryError) as error:
                while drawing:  # in the order of the sources
                    finish()
                fail(source, error)
                continue
            picture, drawn = None, None
            if options.out and not isinstance(result, Classification):  # nothing to draw on a picture of one class
                picture = _free_path(options.out, source, taken, originals)
                drawn = painter.submit(result.save_image, picture)
            drawing.append((source, result, picture, drawn))
            while len(drawing) > (1 if drawn else 0):
                finish()
        while drawing:
            finish()
    if options.json:
        from .evaluations.runner import write_text

        write_text(options.json, json.dumps(found, indent=1) + "\n")
    if failed:
        print(f"{failed} of {seen} images failed", file=sys.stderr)
    return 1 if failed else 0


def _free_path(folder: Path, source: str, taken: set[str], originals: set[str]) -> Path:
    """Where the picture of a source goes: never onto that of another source, nor onto a photo that was given."""
    plain = Path(source.partition("?")[0])
    stem, suffix = plain.stem or "image", plain.suffix if plain.suffix.lower() in (".jpg", ".jpeg", ".png") else ".png"
    name, count = stem + suffix, 1
    while name in taken or str((folder / name).resolve()) in originals:
        count += 1
        name = f"{stem}-{count}{suffix}"
    taken.add(name)
    return folder / name


def _evaluate(options: argparse.Namespace) -> int:
    from .evaluations.on_coco import IOU_TYPES
    from .vision.model import Detector
    from .vision.models import MODELS

    _prepare("--json", options.json, folder=False)
    _prepare("--resume", options.resume, folder=False)
    _prepare("--report", options.report, folder=True)
    model = _load(options)
    shared = {"limit": options.limit, "weights": options.weights, "resume": options.resume}
    dataset = None
    if isinstance(model, Detector) and options.data.endswith(".json"):
        from .evaluations.on_coco import evaluate_detector

        images = options.images or Path(options.data).parent
        task = MODELS[model.name].task if model.name in MODELS else ""
        evaluation = evaluate_detector(
            model,
            options.data,
            images,
            iou_type=options.iou_type or IOU_TYPES.get(task, "bbox"),
            score_threshold=options.score,
            max_detections=options.max_detections,
            **shared,
        )
    else:
        from .datasets import open as open_dataset
        from .evaluating import evaluate

        dataset = open_dataset(options.data)
        chosen = {"iou_type": options.iou_type} if options.iou_type else {}
        evaluation = evaluate(model, dataset, score_threshold=options.score, **shared, **chosen)
    print(evaluation)  # first of all: no trouble with a file may cost the figures
    if options.json:
        evaluation.save(options.json)
    if options.report:
        from .evaluations.report import write_dataset_report, write_report

        if dataset is None:
            page = write_report(options.report, evaluation, options.data, images)
        else:
            page = write_dataset_report(options.report, evaluation, dataset, model)
        print(f"report: {page}")
    return 1 if evaluation.failures else 0


def _train(options: argparse.Namespace) -> int:
    from . import training
    from .core import seed as seed_generator
    from .datasets import open as open_dataset
    from .vision.models import load

    if options.resume:
        folder = options.out if options.resume is True else Path(options.resume)
        if folder is None:
            raise ValueError("--resume needs the run's folder: --resume RUN")
        _agrees(options, training.settings_of(folder), folder)
        run = training.resume(folder)
    else:
        missing = [name for name in ("model", "data") if getattr(options, name) is None]
        if missing:
            raise ValueError(f"expected --{' and --'.join(missing)} (or --resume RUN)")
        data = open_dataset(options.data)
        valid = None if options.valid is None else open_dataset(options.valid)
        weights, seed = options.weights or "default", options.seed or 0
        seed_generator(seed)  # what starts fresh depends on the seed too
        model = load(options.model, weights=None if weights == "none" else weights, categories=data.categories)
        run = training.fit(
            model,
            data,
            valid,
            epochs=options.epochs,
            out=options.out,
            batch_size=options.batch_size,
            lr=options.lr,
            freeze=options.freeze or (),
            patience=options.patience,
            seed=seed,
            notes={"data": options.data, "valid_data": options.valid, "weights": weights},
        )
    print(run)
    print(f"next: chainsight evaluate --model {run.folder / 'best.safetensors'} --data DATA")
    return 0


def _agrees(options: argparse.Namespace, settings: dict[str, Any], folder: Path) -> None:
    """Refuse options beside --resume that the run would not follow."""
    names = ("weights", "data", "epochs", "batch_size", "lr", "freeze", "patience", "seed")
    before = {name: settings.get(name) for name in names}
    before |= {"valid": settings.get("valid_data")}
    if options.model is not None and not Path(options.model).exists():  # a file says not which model is in it
        before["model"] = settings["model"]
    given = {name: getattr(options, name) for name in before if getattr(options, name) is not None}
    changed = [f"--{n.replace('_', '-')} {before[n]!r}, now {v!r}" for n, v in given.items() if v != before[n]]
    if changed:
        raise ValueError(
            f"{folder}: a resumed run keeps its settings ({'; '.join(changed)}); for others begin a new one: "
            f"--model {folder / 'best.safetensors'} and another --out"
        )


def _quantize(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from .vision.image import iter_sources
    from .vision.quantization import quantize

    _prepare("--out", options.out, folder=False)
    model = _load(options)
    photos = iter_sources(options.calibrate)[: options.images]
    before = sum(t.data.nbytes for t in model.tensors())
    quantize(model, tqdm(photos, unit="image", disable=None))
    model.save(options.out)
    after = options.out.stat().st_size
    print(f"{options.out}: {model.describe()}; {before / 1e6:.1f} MB, now {after / 1e6:.1f} MB")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from .demo import run_demo

    print(run_demo(options.out, options.scenes))
    return 0


FIGURES = {  # by task: what the table of models shows
    "detection": "box AP",
    "instance segmentation": "mask AP",
    "keypoint detection": "keypoint AP",
    "semantic segmentation": "mIoU",
    "classification": "acc@1",
}


def _models(options: argparse.Namespace) -> int:
    from .vision.models import list_models, model_info

    if options.names:
        from .vision.cards import card

        print("\n".join([card(name) for name in options.names]), end="")
        return 0
    tasks = sorted({model_info(name).task for name in list_models()})
    chosen = [task for task in tasks if options.task is None or options.task in task.split() or options.task == task]
    infos = [model_info(name) for task in chosen or [options.task] for name in list_models(task)]
    if options.json:
        rows = [
            {
                "model": info.name,
                "task": info.task,
                "weights": entry.name,
                "metrics": {data: dict(figures) for data, figures in entry.metrics.items()},
                "parameters": entry.parameters,
                "gflops": info.gflops,
                "licence": entry.licence,
                "paper": info.paper,
                "url": entry.url,
            }
            for info in infos
            for entry in info.entries
        ]
        print(json.dumps(rows, indent=1))
        return 0
    width = max(len(info.name) for info in infos)
    for task in chosen:
        print(f"{task.upper():<{width}}  {'parameters':>10}  {'GFLOPs':>7}  {FIGURES[task]:>11}  weights")
        for info in (info for info in infos if info.task == task):
            entry = info.entries[0]
            figure = next((value for kind in entry.metrics.values() if (value := kind.get(FIGURES[task]))), None)
            published = "-" if figure is None else f"{figure:.1f}"
            size = f"{entry.parameters / 1e6:.1f} M"
            print(f"{info.name:<{width}}  {size:>10}  {info.gflops:>7.1f}  {published:>11}  {len(info.entries):>7}")
        print()
    print("Figures are the publishers', of a model's first weights.")
    print("`chainsight models NAME` prints a card: all weights, licences, preprocessing.")
    return 0


def _check(options: argparse.Namespace) -> int:
    from .datasets.check import run_check

    return run_check(options.data)


def _benchmark(options: argparse.Namespace) -> int:
    from .evaluations import speed

    return speed.main(options.rest)


def _config(options: argparse.Namespace) -> int:
    from .config import show_config

    show_config()
    return 0


if __name__ == "__main__":
    sys.exit(main())
