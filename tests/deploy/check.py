#!/usr/bin/env python3
"""The files of `deploy/`, each against the program that reads it: rules and metrics by Prometheus' own promtool.

Needs promtool (Debian's `prometheus`) and a built `deferral`: python3 tests/deploy/check.py --deferral target/release/deferral
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def promtool(*args, cwd=None, stdin=None):
    """Runs it; what it says ends the run where it is not content."""
    done = subprocess.run(["promtool", *args], cwd=cwd, input=stdin, capture_output=True, text=True)
    if done.returncode != 0 or (stdin is not None and (done.stdout or done.stderr)):
        sys.exit(f"promtool {' '.join(map(str, args))}:\n{done.stdout}{done.stderr}")


def expressions(dashboard):
    """Each query of the dashboard, with its variables put in."""
    values = {"$__rate_interval": "5m", "$route": ".*", "$job": ".*"}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"]
            for name, value in values.items():
                text = text.replace(name, value)
            if "$" in text:
                sys.exit(f"{panel['title']}: a variable is left in {text}")
            yield panel["title"], text


def check_rules():
    folder = DEPLOY / "prometheus"
    promtool("check", "rules", "alerts.yaml", cwd=folder)
    promtool("test", "rules", "alerts.test.yaml", cwd=folder)
    promtool("check", "config", "scrape.yaml", cwd=folder)


def check_dashboard():
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(ids) != len(set(ids)):
        sys.exit("two panels of the dashboard have one id")
    rules = [{"record": f"x:{number}", "expr": text} for number, (_, text) in enumerate(expressions(dashboard))]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
        file.flush()
        promtool("check", "rules", file.name)
    return len(rules)


def check_metrics(binary):
    """What a proxy writes that has made a task, a plain call and a refusal."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "deferral.yaml")
        demo = subprocess.Popen([binary, "demo", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        proxy = None
        try:
            said = ""
            while not (server := re.search(r"(http://[^ ]+/mcp)", said)):
                said += demo.stdout.readline()
            config.write_text(
                f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nroutes: [{{ upstream: {{ url: '{server[1]}' }}, "
                "defer: { after: 100ms } }]\n"
            )
            proxy = subprocess.Popen([binary, "--config", config], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            url = re.search(r"(http://[^ ]+/mcp)", proxy.stdout.readline())[1]
            for line in proxy.stderr:
                if admin := re.search(r"admin=(\S+)", line):
                    break
            for call in (["report", '{"seconds":1}'], ["greet", '{"name":"Ada"}'], ["no_such_tool"]):
                subprocess.run([binary, "call", url, *call], capture_output=True, timeout=60)
            with urllib.request.urlopen(f"http://{admin[1]}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        finally:
            for process in (proxy, demo):
                if process:
                    process.terminate()
                    process.wait(timeout=60)
    for name in ("deferral_tasks_created_total{", "deferral_call_duration_seconds_bucket{", "deferral_limit_hits_total{"):
        if name not in text:
            sys.exit(f"{name} is missing in\n{text}")
    promtool("check", "metrics", stdin=text)
    return text.count("\n# TYPE") + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deferral", required=True, help="the program")
    binary = str(pathlib.Path(parser.parse_args().deferral).resolve())
    began = time.monotonic()
    check_rules()
    queries = check_dashboard()
    names = check_metrics(binary)
    print(f"deploy: rules, {queries} queries of the dashboard and {names} metrics are good ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
