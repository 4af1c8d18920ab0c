"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and weights that lies beside the checkout during development and in CI."""
    folder = ROOT.parent / "shared"
    if folder.is_dir():
        return folder
    if os.environ.get("CI") or os.environ.get("CHAINSIGHT_SHARED_REQUIRED"):
        pytest.fail(f"{folder} is missing: the tests on real photos and weights cannot run")
    pytest.skip(f"needs the real photos and weights of {folder}, which only developers have")
