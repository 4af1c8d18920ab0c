"""One engine in a process of its own: the program of the workers that `speed.py` starts and gives its orders to.

    PYTHON speed_worker.py ENGINE TASK MODEL FOLDER

FOLDER holds MODEL.npz (the weights by torch's names), TASK.graph.npz (of networks, see `graph.py`) and inputs.npz
(photo, photos with boxes and ids of their objects, and the images of networks and classifiers by task). The
interpreter may be any that has the engine: nothing but NumPy is imported until the engine is built.
"""

import functools
import importlib
import json
import operator
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
BATCHES = {"ssdlite-training": 8, "fasterrcnn-training": 2}  # of the tasks that train detectors
RATE = 1e-4  # of their SGD: the weights may be random, and no loss may run away
Run = Callable[[], Mapping[str, Any]]


def named(outputs: Sequence[Any]) -> Arrays:
    """The outputs of a network by their numbers."""
    return {f"output {i}": output for i, output in enumerate(outputs)}


class FirstOnes:
    """In place of a random generator: the first regions are sampled, so that both engines learn from the same."""

    def permutation(self, values: NDArray[Any]) -> NDArray[Any]:
        return values


def chainsight_run(task: str, model_name: str, state: Arrays, given: Arrays) -> tuple[str, Run]:
    """Our own engine, through its public interface."""
    chainsight: Any = importlib.import_module("chainsight")
    core: Any = importlib.import_module("chainsight.core")
    model = chainsight.load(model_name, weights=None)
    model.load_state_dict(state)
    version = str(chainsight.__version__)
    if task in given and task.endswith("training"):
        optimizers: Any = importlib.import_module("chainsight.core.optimizers")
        layers: Any = importlib.import_module("chainsight.core.layers")
        model.train()
        for _, module in model.named_modules():
            if isinstance(module, layers.Dropout):
                module.ratio = 0.0  # engines draw differently
        optimizer = optimizers.SGD(model.parameters(), lr=0.01, momentum=0.9)
        batch, targets = core.Tensor(given[task]), core.Tensor(np.arange(len(given[task])) * 10)

        def step() -> Mapping[str, Any]:
            optimizer.zero_grad()
            loss = core.functions.softmax_cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
            return {"loss": loss.data}

        return version, step
    if task in BATCHES:
        optimizers = importlib.import_module("chainsight.core.optimizers")
        model.train()
        optimizer = optimizers.SGD(model.parameters(), lr=RATE, momentum=0.9)
        samples = [
            chainsight.Sample(photo, boxes=boxes, labels=[model.categories.ids.index(k) for k in ids])
            for photo, boxes, ids in zip(*(given[key][: BATCHES[task]] for key in ("photos", "boxes", "ids")))
        ]

        def detector_step() -> Mapping[str, Any]:
            optimizer.zero_grad()
            losses = model.losses(samples, FirstOnes())
            loss = functools.reduce(operator.add, losses.values())
            loss.backward()
            optimizer.step()
            return {"loss": loss.data}

        return version, detector_step
    model.eval()
    if task in given:
        graph: Any = importlib.import_module("chainsight.evaluations.graph")

        def forward() -> Mapping[str, Any]:
            with core.no_grad():
                outputs = core.planned(model, core.Tensor(given[task]), graph.method_of(model))
            return named([t.numpy() for t in graph.tensors(outputs)])

        return version, forward

    def predict() -> Mapping[str, Any]:
        found = model.predict(given["photo"], score_threshold=None)
        if hasattr(found, "probabilities") and found.probabilities.ndim == 1:
            return {"probabilities": found.probabilities}
        if not hasattr(found, "boxes"):
            return {"map": found.labels}
        ids = np.array(found.category_ids)
        return {"boxes": found.boxes, "scores": found.scores, "labels": ids[found.labels], "known": ids}

    return version, predict


def torch_run(task: str, model_name: str, state: Arrays, given: Arrays, channels_last: bool) -> tuple[str, Run]:
    """torch eager with torchvision's model, built as its published entry builds it."""
    torch: Any = importlib.import_module("torch")
    api: Any = importlib.import_module("torchvision.models._api")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tensors = {k: torch.from_numpy(v) for k, v in state.items()}
    api.WeightsEnum.get_state_dict = lambda *_, **__: tensors  # in place of the download
    entry = api.get_model_weights(model_name).DEFAULT
    kind = api.get_model_builder(model_name).__module__.split(".")[2]
    options: dict[str, Any] = {"weights_backbone": None} if kind in ("detection", "segmentation") else {}
    if task in BATCHES:
        options["trainable_backbone_layers"] = 6  # all
    model = api.get_model(model_name, weights=entry, **options)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    if task in given and task.endswith("training"):
        batch = torch.from_numpy(given[task]).to(memory_format=layout)
        targets = torch.arange(len(batch)) * 10
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step() -> Mapping[str, Any]:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach().numpy()}

        return str(torch.__version__), step
    if task in BATCHES:
        torch.randperm = lambda n, **_: torch.arange(n)  # as FirstOnes
        photos = [torch.from_numpy(p).permute(2, 0, 1).float() / 255 for p in given["photos"][: BATCHES[task]]]
        objects = [
            {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(ids)}
            for boxes, ids in zip(given["boxes"], given["ids"])
        ][: BATCHES[task]]
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)

        def detector_step() -> Mapping[str, Any]:
            optimizer.zero_grad()
            loss = sum(model(photos, objects).values())
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach().numpy()}

        return str(torch.__version__), detector_step
    model.eval()
    torch.set_grad_enabled(False)
    if task in given:
        image = torch.from_numpy(given[task]).to(memory_format=layout)
        return str(torch.__version__), lambda: named([model(image).numpy()])

    prepare, pillow = entry.transforms(), importlib.import_module("PIL.Image")

    def predict() -> Mapping[str, Any]:
        if kind == "detection":
            image = torch.from_numpy(given["photo"]).permute(2, 0, 1).float() / 255
            return {k: v.numpy() for k, v in model([image])[0].items()}
        output = model(prepare(pillow.fromarray(given["photo"]))[None])
        if kind == "segmentation":
            logits = torch.nn.functional.interpolate(output["out"], given["photo"].shape[:2], mode="bilinear")
            return {"map": logits.argmax(1)[0].numpy()}
        return {"probabilities": output.softmax(1)[0].numpy()}

    return str(torch.__version__), predict


def onnx_file(task: str, folder: Path, path: Path) -> None:
    """Write the task's graph as an ONNX file (needs the package onnx)."""
    onnx: Any = importlib.import_module("onnx")
    constants = dict(np.load(folder / f"{task}.graph.npz"))
    graph = json.loads(str(constants.pop("graph")))
    nodes = [onnx.helper.make_node(kind, ends, [name], **extra) for kind, ends, name, extra in graph["nodes"]]
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    shape = np.load(folder / "inputs.npz")[task].shape
    source = onnx.helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, shape)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in graph["outputs"]]
    made = onnx.helper.make_graph(nodes, task, [source], ends, weights)
    onnx.save(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8), path)


def onnxruntime_run(task: str, given: Arrays, folder: Path) -> tuple[str, Run]:
    """ONNX Runtime on the CPU, float32, its own defaults but for the number of threads."""
    runtime: Any = importlib.import_module("onnxruntime")
    onnx_file(task, folder, folder / "onnxruntime.onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = runtime.InferenceSession(folder / "onnxruntime.onnx", options, providers=["CPUExecutionProvider"])
    return str(runtime.__version__), lambda: named(session.run(None, {"input": given[task]}))


def openvino_run(task: str, given: Arrays, folder: Path) -> tuple[str, Run]:
    """OpenVINO on the CPU, pinned to float32: left alone it computes in bfloat16 where the processor can."""
    openvino: Any = importlib.import_module("openvino")
    onnx_file(task, folder, folder / "openvino.onnx")
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"]),
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(str(folder / "openvino.onnx"), "CPU", settings)

    def run() -> Mapping[str, Any]:
        found = compiled([given[task]])
        return named([found[i] for i in range(len(compiled.outputs))])

    return str(openvino.__version__), run


def build(engine: str, task: str, model_name: str, folder: Path) -> tuple[str, Run]:
    """The version of an engine and the function to time. Raises ImportError where the engine is not installed."""
    state = dict(np.load(folder / f"{model_name}.npz"))
    given = dict(np.load(folder / "inputs.npz"))
    if engine == "chainsight":
        return chainsight_run(task, model_name, state, given)
    if engine == "onnxruntime":
        return onnxruntime_run(task, given, folder)
    if engine == "openvino":
        return openvino_run(task, given, folder)
    return torch_run(task, model_name, state, given, channels_last=engine == "torch-nhwc")


def peak_megabytes() -> float:
    """The most memory this program has held at once (resident, MB).

    Linux counts in `ru_maxrss` what the parent held before it started us; `VmHWM` is ours alone.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    resource: Any = importlib.import_module("resource")
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024**2  # bytes on macOS


def serve(make: Callable[[], tuple[str, Run]]) -> None:
    """Answer the orders on standard input, one line each, until it ends: "run" and "save PATH" (the last outputs)."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like a reply

    def reply(**values: Any) -> None:
        print(json.dumps(values), file=replies, flush=True)

    try:
        version, run = make()
    except ImportError as error:
        reply(missing=str(error))
        return
    reply(version=version)
    outputs: Mapping[str, Any] = {}
    for line in sys.stdin:
        order, _, path = line.strip().partition(" ")
        if order == "save":
            arrays: Any = {k: np.asarray(v) for k, v in outputs.items()}
            np.savez(path, **arrays)
            reply(peak_mb=peak_megabytes())
        else:
            start = time.perf_counter()
            outputs = run()
            reply(seconds=time.perf_counter() - start)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules must not hide anybody's
    engine_name, task_name, name, given_folder = sys.argv[1:]
    serve(lambda: build(engine_name, task_name, name, Path(given_folder)))
