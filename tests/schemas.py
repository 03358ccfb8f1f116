"""Checks content against the JSON Schemas of docs/schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

PLACE = Path(__file__).parents[1] / "docs" / "schemas"


@cache
def schema(name: str) -> Draft202012Validator:
    content = json.loads((PLACE / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(content)
    return Draft202012Validator(content)


def problems(name: str, content: Any) -> list[str]:
    """What is wrong with the content of report.json or decision.json, as it is read from a file."""
    read = json.loads(json.dumps(content, allow_nan=False))
    return [f"{error.json_path}: {error.message[:200]}" for error in schema(name).iter_errors(read)]
