"""The ``chainsight`` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import __version__

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0: all went well, 1: something failed, 2: nothing could be done."""
    options = _parser().parse_args(arguments)
    if getattr(options, "threads", None):
        from .core.kernels import set_num_threads

        set_num_threads(options.threads)
    try:
        return int(options.run(options))
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chainsight", description="Find objects in photos, with published weights.")
    parser.add_argument("--version", action="version", version=f"chainsight {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, run: Command, description: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=description, description=description)
        command.set_defaults(run=run)
        return command

    predict = add("predict", _predict, "find objects in images and draw them")
    predict.add_argument("sources", nargs="+", metavar="IMAGE", help="files, folders, patterns or URLs")
    _add_model(predict)
    predict.add_argument("--score", type=float, default=0.5, help="least score of what is shown (0.5)")
    predict.add_argument("--out", type=Path, metavar="DIR", help="write the pictures here")
    predict.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")

    evaluate = add("evaluate", _evaluate, "score a model on annotated images, beside the published figures")
    _add_model(evaluate)
    evaluate.add_argument("--data", required=True, metavar="DATA", help="COCO's ANNOTATIONS.json, or PATH[@SPLIT]")
    evaluate.add_argument("--images", type=Path, metavar="DIR", help="where the images of ANNOTATIONS.json are")
    evaluate.add_argument("--score", type=float, help="least score that counts (as in the published evaluation)")
    evaluate.add_argument("--max-detections", type=int, default=100, help="per image and class (100)")
    evaluate.add_argument("--limit", type=int, help="only the first so many images")
    evaluate.add_argument("--json", type=Path, metavar="FILE", help="write figures, settings and versions here")
    evaluate.add_argument("--report", type=Path, metavar="DIR", help="write a page with curves and pictures here")
    evaluate.add_argument("--resume", type=Path, metavar="FILE", help="keep finished images here and go on from there")

    models = add("models", _models, "list the models and their weights")
    models.add_argument("--task", help="only the models for this task")
    models.add_argument("--json", action="store_true", help="as JSON")

    check = add("check", _check, "look for mistakes in a data set")
    check.add_argument("data", nargs="+", metavar="DATA", help="PATH or PATH@SPLIT")

    add("config", _config, "print what a bug report needs")
    return parser


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", required=True, help="a name from `chainsight models`, or a saved model's file")
    command.add_argument("--weights", default="default", help="published entry or file (the model's default entry)")
    command.add_argument("--device", help="cpu, cuda or cuda:N")
    command.add_argument("--threads", type=int, help="threads of each operation")


def _load(options: argparse.Namespace) -> Any:
    from .vision.models import load

    return load(options.model, weights=options.weights, device=options.device)


def _predict(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from .vision.image import ImageError, iter_sources

    sources = iter_sources(options.sources)
    model = _load(options)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    failed = 0
    taken: set[str] = set()
    bar = tqdm(sources, unit="image", disable=None if len(sources) > 1 else True)
    for source in bar:
        try:
            result = model.predict(source, score_threshold=options.score)
            if options.out:
                name = _free_name(str(source), taken)
                result.save_image(options.out / name)
        except (ImageError, OSError) as error:
            failed += 1
            bar.write(f"error: {error}", file=sys.stderr)
            continue
        bar.write(f"{source}: {result}")
        found.append({"source": str(source), **result.to_dict()})
    if options.json:
        from .evaluations.runner import write_text

        write_text(options.json, json.dumps(found, indent=1) + "\n")
    if failed:
        print(f"{failed} of {len(sources)} images failed", file=sys.stderr)
    return 1 if failed else 0


def _free_name(source: str, taken: set[str]) -> str:
    """A file name for the picture of a source that no other one has."""
    plain = Path(source.partition("?")[0])
    stem, suffix = plain.stem or "image", plain.suffix if plain.suffix.lower() in (".jpg", ".jpeg", ".png") else ".png"
    name, count = stem + suffix, 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}{suffix}"
    taken.add(name)
    return name


def _evaluate(options: argparse.Namespace) -> int:
    from .vision.model import Detector

    model = _load(options)
    shared = {"limit": options.limit, "weights": options.weights, "resume": options.resume}
    if isinstance(model, Detector) and options.data.endswith(".json"):
        from .evaluations.on_coco import evaluate_detector

        images = options.images or Path(options.data).parent
        evaluation = evaluate_detector(
            model,
            options.data,
            images,
            score_threshold=options.score,
            max_detections=options.max_detections,
            **shared,
        )
        if options.report:
            from .evaluations.report import write_report

            print(f"report: {write_report(options.report, evaluation, options.data, images)}")
    elif options.report:
        raise ValueError("--report needs COCO's ANNOTATIONS.json as --data")
    else:
        from .evaluating import evaluate

        evaluation = evaluate(model, options.data, score_threshold=options.score, **shared)
    print(evaluation)
    if options.json:
        evaluation.save(options.json)
    return 1 if evaluation.failures else 0


def _models(options: argparse.Namespace) -> int:
    from .vision.models import list_models, model_info

    rows = []
    for name in list_models(options.task):
        info = model_info(name)
        for entry in info.entries:
            rows.append(
                {
                    "model": name,
                    "task": info.task,
                    "weights": entry.name,
                    "metrics": {data: dict(figures) for data, figures in entry.metrics.items()},
                    "parameters": entry.parameters,
                    "gflops": info.gflops,
                    "licence": entry.licence,
                    "paper": info.paper,
                    "url": entry.url,
                }
            )
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(f"{'model':<42} {'task':<16} {'weights':<14} {'parameters':>11} {'GFLOPs':>8}  published")
    for row in rows:
        figures = "; ".join(
            ", ".join(f"{metric} {value:g}" for metric, value in values.items()) + f" ({data})"
            for data, values in row["metrics"].items()
        )
        size = f"{row['parameters'] / 1e6:.2f} M"
        print(f"{row['model']:<42} {row['task']:<16} {row['weights']:<14} {size:>11} {row['gflops']:>8.2f}  {figures}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from .datasets.check import run_check

    return run_check(options.data)


def _config(options: argparse.Namespace) -> int:
    from .config import show_config

    show_config()
    return 0


if __name__ == "__main__":
    sys.exit(main())
