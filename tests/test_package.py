"""The package as it is built and installed."""

import json
import shutil
import subprocess
import sys
import time
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def packages() -> set[str]:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return set(config["options"]["packages"].split())


def test_package_list_is_complete():
    folders = [ROOT / name for name in ("core", "vision", "weights", "datasets", "evaluations")]
    found = {"chainsight"}
    for folder in folders:
        for init in folder.rglob("__init__.py"):
            found.add(".".join(("chainsight", *init.parent.relative_to(ROOT).parts)))
    assert packages() == found


def test_every_folder_with_code_is_a_package():
    for folder in ("core", "vision", "weights", "datasets", "evaluations"):
        for file in (ROOT / folder).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # A build leaves build/ beside the sources, and what lies there gets into the next wheel: neither is wanted here.
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "tests"))
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source], check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_wheel_holds_one_package_and_all_of_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"chainsight"}
    assert {"chainsight/py.typed", "chainsight/vision/data/nanodet_shapes.safetensors"} <= set(names)
    modules = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("*.py")}
    for folder in ("core", "vision", "weights", "datasets", "evaluations"):
        modules |= {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*.py")}
    assert {n.removeprefix("chainsight/") for n in names if n.endswith(".py")} == modules


@pytest.mark.slow
def test_installed_wheel_runs(wheel, tmp_path):
    target = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, wheel], check=True)
    code = """
import json, numpy as np, chainsight
model = chainsight.load("nanodet_g", weights=None, categories=["boat"])
found = model.predict(np.zeros((40, 50, 3), np.uint8))
print(json.dumps([chainsight.__file__, found.image_size, chainsight.list_models("detection")]))
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    file, size, models = json.loads(run.stdout)
    assert Path(file).is_relative_to(target)
    assert size == [40, 50]
    assert "nanodet_g" in models


def test_import_is_quick_and_loads_nothing_heavy(tmp_path):
    code = "import sys, chainsight; print([m for m in ('numpy', 'cv2', 'PIL', 'requests') if m in sys.modules])"
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - start)
        assert run.stdout.strip() == "[]"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], cwd=tmp_path, check=True)
    assert min(times) - (time.perf_counter() - start) < 0.3
