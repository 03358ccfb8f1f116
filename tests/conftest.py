"""Shared by all tests."""

from __future__ import annotations

import os

import pytest
import torch

# Two test workers on two cores: one thread each. Must be set before subprocesses start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
