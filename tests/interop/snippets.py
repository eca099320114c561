#!/usr/bin/env python3
"""The SDK clients of docs/clients.md, run as they stand against the demo, and examples/client.py: snippets.py --deferral PROGRAM

Needs what `run.py --setup` installs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

from run import HERE

ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "clients.md"
URL = "http://127.0.0.1:8808/mcp"
PROGRAMS = {
    "python": [HERE / ".venv-server" / "bin" / "python", "-c"],
    "javascript": ["node", "--input-type=module", "--eval"],
}
SECONDS = 60


def example(deferral: str) -> bool:
    """Whether examples/client.py follows a task of examples/slow_server.py through the proxy."""
    server = ["--", sys.executable, ROOT / "examples" / "slow_server.py"]
    flags = ["--listen", "127.0.0.1:0", "--admin", "off", "--after", "100ms"]
    proxy = subprocess.Popen([deferral, *flags, *server], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = proxy.stdout.readline().split()[-1]
        client = [HERE / ".venv-client" / "bin" / "python", ROOT / "examples" / "client.py", url, "1"]
        done = subprocess.run(client, capture_output=True, text=True, timeout=SECONDS)
        is_right = done.returncode == 0 and done.stdout == "status: working\ncounted 1.0 s\n"
        print("ok snippets/client.py" if is_right else f"FAIL snippets/client.py: {done}", flush=True)
        return is_right
    finally:
        proxy.terminate()
        proxy.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deferral", required=True)
    options = parser.parse_args()
    demo = subprocess.Popen([options.deferral, "demo", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    failed = 0
    try:
        url = next(line.split()[-1] for line in demo.stdout if line.startswith("The proxy in front of it"))
        page = PAGE.read_text()
        for kind, program in PROGRAMS.items():
            found = re.findall(rf"^```{kind}\n(.*?)^```", page, re.M | re.S)
            if not found:
                sys.exit(f"there is no {kind} in {PAGE.name}")
            for text in found:
                done = subprocess.run(
                    [*program, text.replace(URL, url)], cwd=HERE / "typescript", capture_output=True, text=True, timeout=SECONDS
                )
                is_right = done.returncode == 0 and done.stdout == "Hello, Ada!\n" and URL in text
                failed += not is_right
                print(f"ok snippets/{kind}" if is_right else f"FAIL snippets/{kind}: {done}", flush=True)
    finally:
        demo.kill()
        demo.wait()
    failed += not example(options.deferral)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
