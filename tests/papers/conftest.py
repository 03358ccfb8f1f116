"""A directory in which all test workers share the smoke cases, so that each is computed once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engram.papers.cases import Means, Setting
from engram.papers.catalogue import Run
from engram.training.target import TargetCache


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base directories of xdist workers are siblings, so their parent is shared."""
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
    """It has its own target cache, so that results of an earlier test run are not used."""
    setting = Setting(scale="smoke", means=Means(cache=TargetCache(papers / "targets")))
    return Run(papers, setting, said.append, lambda share, what: None)
