"""A directory in which all workers of a test run share the smoke cases: each is computed once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engram.experiments.case import Setting
from engram.experiments.computing import Means
from engram.experiments.runner import Run


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With several workers, base directories are siblings in the one of the run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    home = shared / "papers"
    home.mkdir(exist_ok=True)
    return home


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def smoke(papers: Path, said: list[str]) -> Run:
    """Without a cache: nothing of an earlier run of the tests may help."""
    setting = Setting(scale="smoke", means=Means(cache=None))
    return Run(papers, setting, said.append, lambda share, what: None)
