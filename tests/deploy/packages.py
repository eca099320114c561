#!/usr/bin/env python3
"""Each package of a release, put where nothing else is, and used there: `deferral --version` and `deferral demo`.

Needs what requirements.txt beside it names, node, npm, dpkg and a folder that scripts/release made:
python3 tests/deploy/packages.py --release FOLDER
"""

import argparse
import gzip
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUMBER = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
# Nothing of this machine: a package has what it needs.
NOTHING = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def must(holds, what):
    if not holds:
        sys.exit(what)


def one(release, pattern):
    found = list(release.glob(pattern))
    must(len(found) == 1, f"{pattern}: {found}")
    return found[0]


def unpacked(archive, folder):
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        tar.extractall(folder, filter="data")
    return names


def use(*words, **more):
    """The program as people first meet it: its version, and the demo up to where it serves on, ended by SIGTERM."""
    words = [str(word) for word in words]
    must(run(*words, "--version", **more).strip() == f"deferral {NUMBER}", f"{words}: this is another version")
    demo = subprocess.Popen(
        [*words, "demo", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )
    try:
        said = ""
        for line in demo.stdout:
            said += line
            if "Serving until Ctrl-C." in line:
                break
        for word in ("Hello, Ada!", "handle of task ", "tasks/get: completed", "The report is done."):
            must(word in said, f"{words}: the demo does not show {word!r}:\n{said}")
        demo.send_signal(signal.SIGTERM)
        code = demo.wait(timeout=60)
        must(code == 0 and "Serving until" in said, f"{words}: the demo ends with {code}:\n{said}{demo.stderr.read()}")
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait()


def check_sums(release):
    listed = dict(reversed(line.split()) for line in (release / "SHA256SUMS").read_text().splitlines())
    made = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in release.iterdir() if path.name != "SHA256SUMS"}
    must(listed == made, f"SHA256SUMS is of {sorted(listed)}, and there are {sorted(made)}")
    return len(made)


def check_archive(release, folder):
    name = f"deferral-{NUMBER}-x86_64-linux"
    unpacked(release / f"{name}.tar.gz", folder)
    program = folder / name / "deferral"
    told = subprocess.run(["ldd", program], capture_output=True, text=True)
    must("not a dynamic executable" in told.stderr + told.stdout or "statically" in told.stdout, f"it is not static: {told}")
    use(program, env=NOTHING)
    for file in ("LICENSE", "THIRD-PARTY.txt", "man/deferral.1", "man/deferral-tasks.1", "completions/deferral.bash"):
        must((folder / name / file).stat().st_size > 100, f"{file} is not in the archive")
    notices = (folder / name / "THIRD-PARTY.txt").read_text()
    for work in ("tokio ", "ring ", "uPlot"):
        must(work in notices, f"there is no notice of {work}")
    return program


def check_deb(release, folder):
    package = one(release, "*.deb")
    field = lambda name: run("dpkg-deb", "--field", package, name).strip()
    must((field("Package"), field("Version"), field("Architecture")) == ("deferral", NUMBER, "amd64"), "it says what it is not")
    must(field("Depends") == "", "a static program depends on nothing")
    root = folder / "root"
    for part in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "bin"):
        (root / part).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    # Its scripts do nothing where systemd does not run; there is no shell in this root, so they are read instead.
    control = folder / "control"
    run("dpkg-deb", "--control", package, control)
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", control / script)
        must(os.access(control / script, os.X_OK), f"{script} cannot be run")
    must((control / "conffiles").read_text() == "/etc/deferral/deferral.yaml\n", "its configuration would be replaced")
    run("dpkg", f"--root={root}", "--force-script-chrootless", "--log=/dev/null", "--install", package, env={**os.environ, "LC_ALL": "C"})
    program = root / "usr/bin/deferral"
    use(program, env=NOTHING)
    for file in root.joinpath("usr/share/man/man1").iterdir():
        must(gzip.decompress(file.read_bytes()).startswith(b".ie") or b".TH deferral" in gzip.decompress(file.read_bytes()), f"{file}")
    for file in ("usr/share/bash-completion/completions/deferral", "usr/share/doc/deferral/copyright", "usr/share/doc/deferral/config/tls.yaml"):
        must((root / file).stat().st_size > 100, f"{file} is not in the package")
    unit = (root / "usr/lib/systemd/system/deferral.service").read_text()
    must(unit == (ROOT / "deploy/systemd/deferral.service").read_text(), "it has another unit")
    start = re.search(r"^ExecStart=(.*)$", unit, re.M)[1].split()
    for word in start:
        must(not word.startswith("/") or (root / word[1:]).exists(), f"the unit names {word}, which is not in the package")
    config = folder / "deferral.yaml"
    config.write_text((root / "etc/deferral/deferral.yaml").read_text().replace("/var/lib/deferral", str(folder)))
    run(program, "check", config)
    # What was installed goes again, but for the configuration.
    run("dpkg", f"--root={root}", "--force-script-chrootless", "--log=/dev/null", "--remove", "deferral", env={**os.environ, "LC_ALL": "C"})
    must(not program.exists() and (root / "etc/deferral/deferral.yaml").exists(), "it does not go as it should")


def check_wheel(release, folder):
    wheel = one(release, "*.whl")
    for tag in ("manylinux2014_x86_64", "musllinux_1_1_x86_64"):
        must(tag in wheel.name, f"{wheel.name} is not for {tag}")
    venv.create(folder / "venv", with_pip=True)
    run(folder / "venv/bin/pip", "install", "--no-index", "--disable-pip-version-check", wheel)
    use(folder / "venv/bin/deferral", env=NOTHING)
    told = run(folder / "venv/bin/pip", "show", "--files", "deferral-mcp")
    must(f"Version: {NUMBER}\n" in told, told)
    # As `uvx` does it once the package is in an index.
    uv = pathlib.Path(sys.executable).parent / "uv"
    words = [uv, "tool", "run", "--offline", "--no-python-downloads", "--from", wheel, "deferral", "--version"]
    said = run(*words, env={**os.environ, "UV_CACHE_DIR": str(folder / "uv"), "UV_TOOL_DIR": str(folder / "tools")}).strip()
    must(said == f"deferral {NUMBER}", f"uvx says {said}")


def check_npm(release, folder):
    packages = [one(release, f"deferral-mcp-{NUMBER}.tgz"), one(release, f"deferral-mcp-linux-x64-{NUMBER}.tgz")]
    empty = folder / "empty"
    empty.mkdir()
    run("npm", "install", "--offline", "--no-audit", "--no-fund", "--loglevel=error", *packages, cwd=empty)
    # By the path of Node.js, wherever that is.
    node = pathlib.Path(run("node", "-p", "process.execPath").strip()).parent
    use(empty / "node_modules/.bin/deferral", env=NOTHING | {"PATH": f"{node}:{NOTHING['PATH']}"})
    said = run("npx", "--offline", "deferral", "--version", cwd=empty).strip()
    must(said == f"deferral {NUMBER}", f"npx says {said}")
    bad = subprocess.run(["node_modules/.bin/deferral", "check", "none.yaml"], cwd=empty, capture_output=True)
    must(bad.returncode == 2, f"the program's end is not what is seen: {bad.returncode}")
    # A system that nothing was made for.
    run("npm", "uninstall", "--offline", "--no-audit", "--no-fund", "deferral-mcp-linux-x64", cwd=empty)
    for left in empty.glob("node_modules/deferral-mcp-linux-x64/*"):
        left.unlink()
    none = subprocess.run(["node_modules/.bin/deferral", "--version"], cwd=empty, capture_output=True, text=True)
    must(none.returncode == 2 and "Linux x86-64" in none.stderr, f"nobody is told why there is nothing: {none}")


def check_crate(release, folder):
    """Holds what whoever builds it needs, and no more."""
    name = f"deferral-{NUMBER}"
    held = {path.removeprefix(f"{name}/") for path in unpacked(release / f"{name}.crate", folder)}
    ours = set(run("git", "ls-files", "src", "config", "README.md", "CHANGELOG.md", "LICENSE", cwd=ROOT).splitlines())
    made = {"Cargo.toml", "Cargo.toml.orig", "Cargo.lock", ".cargo_vcs_info.json"}
    extra, missing = held - ours - made, ours - held
    must(not extra and not missing, f"the crate has {sorted(extra)}, and lacks {sorted(missing)}")
    manifest = tomllib.loads((folder / name / "Cargo.toml").read_text())["package"]
    must(manifest["license"] == "Apache-2.0" and manifest["readme"] == "README.md", f"{manifest}")


def check_bill(release):
    text = (release / f"deferral-{NUMBER}.cdx.json").read_text()
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    must(error is None, f"the bill of materials: {error}")
    must(JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.replace('"purl"', '"url"')) is not None, "nothing is checked")
    for part in ("pkg:cargo/tokio@", "pkg:cargo/ring@", "pkg:npm/uplot@"):
        must(part in text, f"the bill does not name {part}")
    must("pkg:cargo/proptest@" not in text, "what only tests need is in no program")


def check_numbers():
    """Every file that names the version names this one."""
    for file in sorted(ROOT.joinpath("deploy").rglob("*")):
        if file.name in ("package.json", "control", "compose.yaml") or file.parent.name == "kubernetes" and "image:" in file.read_text():
            found = re.findall(r'(?:"version": "|"deferral-mcp-linux-x64": "|^Version: |image: deferral:)([0-9.]+)', file.read_text(), re.M)
            must(found and set(found) == {NUMBER}, f"{file.relative_to(ROOT)} is of {found}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", required=True, help="the folder that scripts/release made")
    release = pathlib.Path(parser.parse_args().release).resolve()
    began = time.monotonic()
    check_numbers()
    files = check_sums(release)
    check_bill(release)
    for check in (check_archive, check_deb, check_wheel, check_npm, check_crate):
        with tempfile.TemporaryDirectory() as folder:
            check(release, pathlib.Path(folder))
    print(f"deploy: {files} files of the release are good ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
