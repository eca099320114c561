"""The checks made with the Python SDK 1.x: clients of 2025-03-26 (1.9), 2025-06-18 (1.12) and 2025-11-25 (1.30).

    python older URL --revision 2025-11-25 [--groups plain,asking,resuming,tasks,task-questions] [--only PATTERN]

URL is python/server.py or typescript/server.mjs, or a proxy in front of it. Runs on any of the three
versions: what only the newer ones have is in groups of its own.

`tasks` and `task-questions` hold the other side to the 2025-11-25 tasks page; `own-tasks` is what
still holds of the SDKs' own implementations, which fall short of it; `session` is one scripted
session in which nothing is left to chance, for recorded.py.

Prints `ok NAME` or `FAIL NAME: why` for each check, and `done N` at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import logging
import sys
import warnings

# Importing a file of checks registers them, in this order.
import bare  # noqa: F401
import fastmcp2  # noqa: F401
import harness
import plain  # noqa: F401
import questions  # noqa: F401
import session  # noqa: F401
import tasks  # noqa: F401
from harness import CHECK_SECONDS, CHECKS


def reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AssertionError):
        return str(error)
    return f"{type(error).__name__}: {error}"


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--revision", required=True)
    parser.add_argument("--groups", default="plain")
    parser.add_argument("--only", default="*", help="run only the checks whose name matches one of these")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    harness.revision = options.revision

    groups = options.groups.split(",")
    chosen = [
        (f"{group}/{name}", function)
        for group, name, function in CHECKS
        if group in groups and any(fnmatch.fnmatch(f"{group}/{name}", each) for each in options.only.split(","))
    ]
    failed = 0
    for name, function in chosen:
        limit = asyncio.timeout(CHECK_SECONDS)
        try:
            async with limit:
                await function(options.url)
        except Exception as error:
            why = f"took longer than {CHECK_SECONDS:.0f} s" if limit.expired() else reason(error)
        else:
            print(f"ok {name}", flush=True)
            continue
        failed += 1
        print(f"FAIL {name}: {' '.join(why.split())}", flush=True)
    print(f"done {len(chosen)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
