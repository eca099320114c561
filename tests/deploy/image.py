#!/usr/bin/env python3
"""The image, built of what the release has for it and of nothing else, then used as a container engine would:
names are resolved, certificates are checked, its health is asked, and SIGTERM ends it.

Needs root, Debian's `buildah`, openssl and a folder that scripts/release made: python3 tests/deploy/image.py --release FOLDER
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

LIMIT = 40 * 1000 * 1000
# What the image must resolve by asking; nothing else answers for it.
NAME = "tools.deferral.test"
DNS = "127.0.0.77"
SIOCSIFFLAGS = 0x8914


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def alone():
    """Goes on in a network of its own, which has a loopback and nothing else: ports are free, and nothing can be fetched."""
    if os.environ.get("DEFERRAL_ALONE") != "yes":
        os.environ["DEFERRAL_ALONE"] = "yes"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    up = struct.pack("16sH14x", b"lo", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, up)


class Buildah:
    """With a store of its own, and nothing that needs an engine, a network or a registry."""

    def __init__(self, folder):
        self.words = ["buildah", "--storage-driver", "vfs", "--root", f"{folder}/root", "--runroot", f"{folder}/run"]

    def __call__(self, *words):
        return run(*self.words, *words).strip()


def answer_names(stop):
    """A name server that knows one name."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((DNS, 53))
    server.settimeout(0.2)

    def serve():
        while not stop.is_set():
            try:
                question, client = server.recvfrom(512)
            except TimeoutError:
                continue
            labels, at = [], 12
            while question[at]:
                labels.append(question[at + 1 : at + 1 + question[at]].decode())
                at += 1 + question[at]
            kind = struct.unpack("!H", question[at + 1 : at + 3])[0]
            asked = question[12 : at + 5]
            known = ".".join(labels) == NAME
            found = known and kind == 1
            head = question[:2] + struct.pack("!HHHHH", 0x8180 if known else 0x8183, 1, int(found), 0, 0)
            record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton("127.0.0.1") if found else b""
            server.sendto(head + asked + record, client)
        server.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


class Container:
    """A process in the image's own files as its own user, by chroot: the network is the machine's."""

    def __init__(self, root, config):
        self.root = pathlib.Path(root)
        self.inspected = config

    def start(self, *words):
        user, group = map(int, self.inspected["User"].split(":"))

        def enter():
            os.chroot(self.root)
            os.chdir(self.inspected["WorkingDir"])
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)

        return subprocess.Popen(
            [*self.inspected["Entrypoint"], *words],
            env={"PATH": "/"},
            preexec_fn=enter,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words):
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        return process.returncode, out + err


@contextlib.contextmanager
def ended(process):
    """Gives the process, and sees to it that nothing is left of it."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def url_of(process):
    """Where it says it listens."""
    said = ""
    while not (found := re.search(r"(https?://[^ \n]+/mcp)", said)):
        line = process.stdout.readline()
        if not line:
            sys.exit(f"it ended before it listened: {said}{process.stderr.read() if process.stderr else ''}")
        said += line
    return found[1]


def built(buildah, release, folder):
    """The image, built as `docker build - < ARCHIVE` does."""
    context = pathlib.Path(folder, "context")
    archive = next(pathlib.Path(release).glob("deferral-*-image-*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(context, filter="fully_trusted")
    buildah("bud", "--isolation", "chroot", "--pull-never", "--format", "docker", "-t", "deferral", context)
    image = json.loads(buildah("inspect", "--type", "image", "deferral"))["Docker"]
    buildah("push", "--format", "docker", "deferral", f"docker-archive:{folder}/image.tar")
    size = os.path.getsize(f"{folder}/image.tar")
    config = image["config"]
    expected = {"User": "65532:65532", "Entrypoint": ["/deferral"], "WorkingDir": "/data"}
    for key, value in expected.items():
        if config.get(key) != value:
            sys.exit(f"{key} of the image is {config.get(key)}")
    if size > LIMIT:
        sys.exit(f"the image has {size} bytes")
    return config, size


def authority(folder):
    """A certificate for the name, signed by nobody that is known."""
    key, cert = f"{folder}/tls.key", f"{folder}/tls.crt"
    run(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-addext", "basicConstraints=critical,CA:FALSE",
        "-keyout", key, "-out", cert,
    )  # fmt: skip
    return key, cert


def check_use(container, program, folder):
    """A container in front of a server that has a name."""
    version = container.run("--version")
    if version[0] != 0 or not version[1].startswith("deferral "):
        sys.exit(f"--version says {version}")
    owner = os.stat(container.root / "data")
    if (owner.st_uid, owner.st_gid) != (65532, 65532):
        sys.exit("/data is not its own")
    demo = subprocess.Popen([program, "demo", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    with ended(demo):
        port = re.search(r":(\d+)/", url_of(demo))[1]
        config = container.root / "etc" / "deferral" / "deferral.yaml"
        config.parent.mkdir(parents=True)
        config.write_text(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:8809\nstore: { disk: /data/tasks }\naccess: { hosts: ['*'] }\n"
            f"routes: [{{ upstream: {{ url: 'http://{NAME}:{port}/mcp' }}, defer: {{ after: 100ms }} }}]\n"
        )
        with ended(container.start(*container.inspected["Cmd"])) as proxy:
            url = url_of(proxy)
            said = run(program, "call", url, "report", '{"seconds":1}')
            if not said.strip():
                sys.exit("a call through the image has no result")
            health = container.inspected["Healthcheck"]["Test"]
            if health[:2] != ["CMD", "/deferral"] or container.run(*health[2:])[0] != 0:
                sys.exit(f"{health}: {container.run(*health[2:])}")
            proxy.send_signal(signal.SIGTERM)
            if proxy.wait(timeout=60) != 0:
                sys.exit(f"SIGTERM ends it with {proxy.returncode}: {proxy.stderr.read()}")
            if container.run(*health[2:])[0] != 1:
                sys.exit("it is healthy although it has ended")


def check_certificates(container, program, folder):
    """Those of the image are the ones it goes by."""
    roots = container.root / "etc" / "ssl" / "certs" / "ca-certificates.crt"
    known = roots.read_text()
    if known.count("BEGIN CERTIFICATE") < 100:
        sys.exit("hardly any authority is known in the image")
    key, cert = authority(folder)
    server = subprocess.Popen([program, "demo", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    with ended(server):
        config = pathlib.Path(folder, "tls.yaml")
        config.write_text(
            f"listen: 127.0.0.1:0\nadmin: off\ntls: {{ cert: {cert}, key: {key} }}\naccess: {{ hosts: ['{NAME}'] }}\n"
            f"routes: [{{ upstream: {{ url: '{url_of(server)}' }} }}]\n"
        )
        secured = subprocess.Popen([program, "--config", config], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        with ended(secured):
            port = re.search(r":(\d+)/", url_of(secured))[1]
            call = ("call", f"https://{NAME}:{port}/mcp", "greet", '{"name":"Ada"}')
            code, said = container.run(*call)
            if code == 0:
                sys.exit("a certificate that nobody vouches for is taken")
            roots.write_text(known + pathlib.Path(cert).read_text())
            code, said = container.run(*call)
            if code != 0 or "Ada" not in said:
                sys.exit(f"the certificates of the image are not what it goes by: {said}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", required=True, help="the folder that scripts/release made")
    release = pathlib.Path(parser.parse_args().release).resolve()
    alone()
    began = time.monotonic()
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        # Of the machine itself, to make a server and calls.
        program = f"{folder}/context/deferral"
        buildah = Buildah(f"{folder}/store")
        config, size = built(buildah, release, folder)
        root = buildah("mount", buildah("from", "--pull-never", "deferral"))
        names = answer_names(stop)
        try:
            container = Container(root, config)
            (container.root / "etc" / "resolv.conf").write_text(f"nameserver {DNS}\n")
            check_use(container, program, folder)
            check_certificates(container, program, folder)
        finally:
            stop.set()
            names.join()
            buildah("rm", "--all")
    print(f"deploy: the image has {size / 1e6:.1f} MB, and is good ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
