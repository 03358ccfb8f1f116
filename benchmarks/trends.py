"""Do the papers' trends hold on the numbers of `engram reproduce all`? Reads only the JSON.

Exit code 0 if all hold, 1 if one does not, 2 if one could not be judged.

Run: python -m benchmarks.trends DIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from engram.core.errors import EngramError
from engram.papers.catalogue import CATALOGUE, read_records
from engram.papers.results import trends


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="The directory of `engram reproduce all`.")
    home = parser.parse_args(arguments).directory
    try:
        records = read_records(home, CATALOGUE)
    except EngramError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if any(record["scale"] == "smoke" for record in records):
        print("error: scale smoke only shows that everything runs; its numbers mean nothing", file=sys.stderr)
        return 2
    judged = trends(records)
    for trend in judged:
        print(f"{trend.verdict:14s} {trend.statement}: {trend.numbers}")
    if any(trend.holds is False for trend in judged):
        return 1
    return 2 if any(trend.holds is None for trend in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
