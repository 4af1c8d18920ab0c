"""The shape of the project: who imports whom, how large the core is, what is packaged."""

import ast
import configparser
import functools
import io
import sys
import tokenize
from pathlib import Path

import chainsight
import pytest

ROOT = Path(__file__).resolve().parent.parent
# What each part may import besides itself; datasets and evaluations take only parts of vision.
ALLOWED = {
    "core": set(),
    "weights": {"core"},
    "vision": {"core", "weights"},
    "datasets": {"core", "weights", "vision"},
    "evaluations": {"core", "weights", "vision", "datasets"},
}
DEPENDENCIES = {"numpy", "cv2", "PIL", "requests", "safetensors", "tqdm"}
# Imported inside functions only, where a user has them; each is named in an error that says how to install it.
OPTIONAL = {"cupy", "pycocotools", "faster_coco_eval", "torch", "torchvision", "onnxruntime", "openvino", "matplotlib"}
CORE_LINES = 4_500


def sources(part=None):
    if part is None:
        return [*ROOT.glob("*.py"), *(f for p in ALLOWED for f in sources(p))]
    return sorted((ROOT / part).rglob("*.py"))


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path):
    """Of every import of a file: its full name, whether it is relative, whether inside a function, the line."""
    package = ("chainsight", *path.relative_to(ROOT).parts[:-1])
    inner, found = set(), []
    for function in ast.walk(tree_of(path)):
        if isinstance(function, ast.FunctionDef) and id(function) not in inner:
            inner.update(id(n) for n in ast.walk(function))
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *((node.module,) if node.module else ())))
            names = [f"{stem}.{alias.name}" for alias in node.names] if node.level else [stem]
        else:
            continue
        relative = isinstance(node, ast.ImportFrom) and node.level > 0
        found += [(name, relative, id(node) in inner, node.lineno) for name in names]
    return found


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_go_one_way(part):
    for path in sources(part):
        for name, _, _, line in imports(path):
            parts = name.split(".")
            if parts[0] == "chainsight" and len(parts) > 1 and parts[1] != part:
                assert parts[1] in ALLOWED[part], f"{path}:{line} imports {name}"


def test_imports_inside_the_package_are_relative():
    for path in sources():
        for name, relative, _, line in imports(path):
            if name.split(".")[0] in ("chainsight", *ALLOWED):
                assert relative, f"{path}:{line} imports {name}"


def test_nothing_else_is_imported():
    for path in sources():
        for name, relative, inner, line in imports(path):
            root = name.split(".")[0]
            if relative or root in sys.stdlib_module_names or root in DEPENDENCIES:
                continue
            assert root in OPTIONAL, f"{path}:{line} imports {name}"
            assert inner, f"{path}:{line} imports the optional {name} at its top"


def test_the_core_imports_numpy_alone():
    for path in sources("core"):
        outside = {n.split(".")[0] for n, relative, _, _ in imports(path) if not relative}
        assert outside - set(sys.stdlib_module_names) <= {"numpy", "cupy", "tqdm"}, path


def test_no_assert_in_the_library():
    for path in sources():
        for node in ast.walk(tree_of(path)):
            assert not isinstance(node, ast.Assert), f"{path}:{node.lineno}"


def code_lines(path):
    """Lines that hold code: no blanks, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    lines = set()
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.difference_update(range(first.lineno, first.end_lineno + 1))
    return len(lines)


def test_code_lines_counts_code(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        '"""Two\nlines."""\n\n# comment\nx = 1\n\n\ndef f():\n    """Doc."""\n    return """a\nb"""  # why\n'
    )
    assert code_lines(path) == 4


def test_the_core_stays_small():
    counts = {str(p.relative_to(ROOT)): code_lines(p) for p in sources("core")}
    assert sum(counts.values()) < CORE_LINES, counts


def test_the_package_list_is_complete():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    found = {".".join(("chainsight", *p.parent.relative_to(ROOT).parts)) for p in sources() if p.name == "__init__.py"}
    assert listed == found
    folders = {p.parent for p in sources()}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_no_module_has_the_name_of_a_folder_of_data():
    assert {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()} == set(ALLOWED)


def test_the_public_names_are_pinned():
    """A name that appears or goes is a change of the API: change it here, too, and in the changelog."""
    assert set(chainsight.__all__) == {
        "Categories",
        "Classification",
        "Dataset",
        "Detections",
        "DownloadError",
        "ImageError",
        "Sample",
        "SegmentationMap",
        "WeightsError",
        "__version__",
        "card",
        "compile",
        "core",
        "datasets",
        "evaluate",
        "fit",
        "list_models",
        "load",
        "model_info",
        "quantize",
        "read_image",
        "set_num_threads",
        "show_config",
    }
    assert all(getattr(chainsight, name) is not None for name in chainsight.__all__)
