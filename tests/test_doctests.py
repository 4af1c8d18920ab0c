"""The example of every docstring runs and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("core", "weights", "vision", "datasets", "evaluations")


def modules():
    """Names of all modules of the package."""
    files = [*ROOT.glob("*.py"), *(f for p in PACKAGES for f in (ROOT / p).rglob("*.py"))]
    names = (".".join(("chainsight", *f.relative_to(ROOT).with_suffix("").parts)) for f in files)
    return sorted(name.removesuffix(".__init__") for name in names)


@pytest.mark.parametrize("name", modules())
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
