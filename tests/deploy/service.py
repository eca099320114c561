#!/usr/bin/env python3
"""The unit of systemd: read by systemd's own tools, and its commands run as systemd would run them.

Needs systemd-analyze (Debian's `systemd`) and a built `deferral`: python3 tests/deploy/service.py --deferral target/release/deferral
"""

import argparse
import configparser
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

UNIT = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "deferral.service"
# Of 100: what is left is that it has a network.
EXPOSED_AT_MOST = 15


def read(text):
    """The sections with the last value of each key, as far as a unit is an INI file."""
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    unit.optionxform = str
    unit.read_string(text)
    return unit


def seconds(text):
    """A duration of the configuration."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+)(ms|s|m|h|d)", text))


def analyze(*args, fails=False):
    done = subprocess.run(["systemd-analyze", *args], capture_output=True, text=True)
    said = done.stdout + done.stderr
    if (done.returncode != 0) != fails:
        sys.exit(f"systemd-analyze {' '.join(map(str, args))}:\n{said}")
    return said


def check_unit(text, binary, folder):
    """Verified where its program is, and shown to be refused where it is broken."""
    # The program is where no package has been installed.
    unit = pathlib.Path(folder, "deferral.service")
    text = text.replace("/usr/bin/deferral", binary)
    unit.write_text(text)
    if said := analyze("verify", "--man=no", unit):
        sys.exit(f"systemd-analyze verify:\n{said}")
    said = analyze("security", "--offline=true", f"--threshold={EXPOSED_AT_MOST}", unit)
    unit.write_text(text.replace("ProtectSystem=strict", "ProtectSystems=strict"))
    said += analyze("verify", "--man=no", unit)
    if "Unknown key" not in said:
        sys.exit(f"a key that does not exist is let through:\n{said}")
    unit.write_text(re.sub(r"^(Protect|Private|System|Restrict|Cap).*\n", "", text, flags=re.M))
    analyze("security", "--offline=true", f"--threshold={EXPOSED_AT_MOST}", unit, fails=True)
    return re.search(r"exposure level for \S+: (\S+)", said)[1]


def check_times(service, binary):
    """systemd waits longer than the proxy takes to end."""
    schema = json.loads(subprocess.run([binary, "check", "--schema"], capture_output=True, check=True).stdout)
    limit = next(way["properties"]["limit"] for way in schema["properties"]["drain"]["anyOf"] if "properties" in way)
    # Last words to clients, servers' processes and the store: 6 s and three times 2 s.
    if int(service["TimeoutStopSec"]) < seconds(limit["default"]) + 12:
        sys.exit(f"TimeoutStopSec={service['TimeoutStopSec']} is not above what stopping takes, {limit['default']} and more")


def check_life(service, binary, folder):
    """Started, told to read its configuration again, and ended, by the unit's own commands."""
    config = pathlib.Path(folder, "deferral.yaml")
    config.write_text("listen: 127.0.0.1:0\nadmin: off\nroutes: [{ upstream: { url: 'http://127.0.0.1:9/mcp' } }]\n")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(os.path.join(folder, "notify"))
    manager.settimeout(60)
    start = service["ExecStart"].replace("/usr/bin/deferral", binary).replace("/etc/deferral/deferral.yaml", str(config))
    proxy = subprocess.Popen(
        start.split(),
        env={"NOTIFY_SOCKET": os.path.join(folder, "notify")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        if "READY=1" not in (said := manager.recv(4096).decode()):
            sys.exit(f"it begins with {said!r}")
        subprocess.run(service["ExecReload"].replace("$MAINPID", str(proxy.pid)).split(), check=True)
        for state in ("RELOADING=1", "READY=1"):
            if state not in (said := manager.recv(4096).decode()):
                sys.exit(f"{state} is expected of a reload, and not {said!r}")
        proxy.send_signal(signal.SIGTERM)
        if "STOPPING=1" not in (said := manager.recv(4096).decode()):
            sys.exit(f"it ends with {said!r}")
        if proxy.wait(timeout=60) != 0:
            sys.exit(f"it ends with {proxy.returncode}")
    finally:
        if proxy.poll() is None:
            proxy.kill()
            proxy.wait()
    # As `RestartPreventExitStatus` has it.
    config.write_text("routes: []\n")
    refused = subprocess.run(start.split(), capture_output=True)
    if refused.returncode != int(service["RestartPreventExitStatus"]):
        sys.exit(f"a configuration that cannot be used ends with {refused.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deferral", required=True, help="the program")
    binary = str(pathlib.Path(parser.parse_args().deferral).resolve())
    began = time.monotonic()
    text = UNIT.read_text()
    service = read(text)["Service"]
    if service["Type"] != "notify":
        sys.exit(f"Type={service['Type']}")
    with tempfile.TemporaryDirectory() as folder:
        exposure = check_unit(text, binary, folder)
        check_times(service, binary)
        check_life(service, binary, folder)
    print(f"deploy: the unit of systemd is good, exposed by {exposure} of 10 ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
