#!/usr/bin/env python3
"""What Compose and Kubernetes are given: each file by its schema, and its configuration by the program, which is then
started and probed as they would.

Needs what requirements.txt beside it names, openssl, and a built `deferral`:
python3 tests/deploy/manifests.py --deferral target/release/deferral
"""

import argparse
import http.client
import pathlib
import re
import shlex
import ssl
import subprocess
import sys
import tempfile
import time

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKER = ROOT / "deploy" / "docker"
KUBERNETES = ROOT / "deploy" / "kubernetes" / "deferral.yaml"
MONITOR = KUBERNETES.with_name("servicemonitor.yaml")
NUMBER = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
# After calls have had their time: last words to clients, servers' processes and the store; 6 s and three times 2 s.
LAST_WORDS = 12


def run(*words, fails=False, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def must(holds, what):
    if not holds:
        sys.exit(what)


def seconds(text):
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+)(ms|s|m|h|d)", str(text)))


def stopping(config):
    """How long the proxy takes to end by this configuration."""
    drain = config.get("drain", "30s")
    if isinstance(drain, dict):
        return seconds(drain.get("notice", "0s")) + seconds(drain.get("limit", "30s")) + LAST_WORDS
    return seconds(drain) + LAST_WORDS


def tool(name):
    """A program of this Python's environment."""
    return pathlib.Path(sys.executable).parent / name


def check_compose(binary, folder):
    file = DOCKER / "compose.yaml"
    schema = (tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec")
    run(*schema, file)
    broken = pathlib.Path(folder, "compose.yaml")
    broken.write_text(file.read_text().replace("stop_grace_period: 50s", "stop_grace_perriod: 50s"))
    run(*schema, broken, fails=True)
    compose = yaml.safe_load(file.read_text())
    service = compose["services"]["deferral"]
    must(service["image"] == f"deferral:{NUMBER}", f"the image is {service['image']}")
    text = (DOCKER / "deferral.yaml").read_text()
    config = yaml.safe_load(text)
    must(seconds(service["stop_grace_period"]) >= stopping(config), "Compose waits less than stopping takes")
    must("./deferral.yaml:/etc/deferral/deferral.yaml:ro" in service["volumes"], "the configuration is not mounted")
    must("/etc/deferral/deferral.yaml" in (DOCKER / "Dockerfile").read_text(), "it is not where the image looks for it")
    ports = [port_of(config["listen"]), port_of(config["metrics"])]
    published = [f"127.0.0.1:{port}:{port}" for port in ports]
    must(service["ports"] == published, f"what is published on this machine is not {published}")
    source = ROOT / service["build"]["dockerfile"]
    must((DOCKER / service["build"]["context"]).resolve() == ROOT and source.is_file(), "it is built of nothing")
    last = (DOCKER / "Dockerfile").read_text().split("ENTRYPOINT")[1]
    must(source.read_text().endswith(last), "the two images begin in different ways")
    must("deferral" in config["access"]["hosts"], "other services call it by its name")
    must(config["routes"][0]["upstream"]["url"].startswith("http://tools:"), "the server is the service `tools`")
    must(config["store"]["disk"].startswith("/data/") and "tasks:/data" in service["volumes"], "tasks are not kept")
    checked = pathlib.Path(folder, "compose-deferral.yaml")
    checked.write_text(text.replace("/data/", f"{folder}/data/"))
    run(binary, "check", checked)


def check_kubernetes(binary, folder):
    text = KUBERNETES.read_text()
    validate = (tool("kubernetes-validate"), "--strict", "--quiet")
    run(*validate, KUBERNETES)
    broken = pathlib.Path(folder, "broken.yaml")
    broken.write_text(text.replace("readOnlyRootFilesystem: true", "readOnlyRootFilesytem: true"))
    run(*validate, broken, fails=True)

    everything = list(yaml.safe_load_all(text))
    scraped = next(part for part in everything if part["metadata"]["name"] == "deferral-metrics")
    parts = {part["kind"]: part for part in everything if part is not scraped}
    config_text = parts["ConfigMap"]["data"]["deferral.yaml"]
    config = yaml.safe_load(config_text)
    template = parts["Deployment"]["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    container = pod["containers"][0]
    must(container["image"] == f"deferral:{NUMBER}", f"the image is {container['image']}")
    must(pod["terminationGracePeriodSeconds"] >= stopping(config), "a pod is killed before it has ended")
    must(pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532, "it is not its own user")
    must(container["securityContext"]["readOnlyRootFilesystem"], "its files can be written")
    for kind, selector in (
        ("Deployment", parts["Deployment"]["spec"]["selector"]["matchLabels"]),
        ("Service", parts["Service"]["spec"]["selector"]),
        ("PodDisruptionBudget", parts["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]),
    ):
        must(selector.items() <= labels.items(), f"{kind} selects other pods")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listeners = {"mcp": config["listen"], "operator": config["admin"]["listen"], "metrics": config["metrics"]}
    must(ports == {name: port_of(address) for name, address in listeners.items()}, f"ports: {ports}")
    monitor = yaml.safe_load(MONITOR.read_text())
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    must(chosen <= scraped["metadata"]["labels"].items(), "the ServiceMonitor selects no Service")
    must(not chosen <= parts["Service"]["metadata"]["labels"].items(), "clients' Service is scraped, too")
    must(scraped["spec"]["selector"].items() <= labels.items(), "the Service for scrapers selects other pods")
    names = {port["name"] for port in scraped["spec"]["ports"]}
    for endpoint in monitor["spec"]["endpoints"]:
        must(endpoint["port"] in names and endpoint["path"] == "/metrics", f"nothing is scraped at {endpoint}")
    for port in parts["Service"]["spec"]["ports"] + scraped["spec"]["ports"]:
        must(port["targetPort"] in ports, f"the Service names no port of the pod: {port}")
    readiness = container["readinessProbe"]
    heard = readiness["periodSeconds"] * readiness["failureThreshold"]
    must(heard < seconds(config["drain"]["notice"]), "the end of a pod is heard of too late")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    must(mounts == {"config": "/etc/deferral", "secret": "/run/secrets/deferral"}, f"mounts: {mounts}")
    probes = [container[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    check_pod(binary, folder, config_text, text, probes)


def port_of(address):
    return int(address.rsplit(":", 1)[1])


def check_pod(binary, folder, config_text, manifest, probes):
    """With a Secret made as the manifest says: checked, started, and probed without a token and without trust."""
    made = pathlib.Path(folder, "secret")
    made.mkdir()
    commands = re.findall(r"^# +(openssl .*)$", manifest, re.M)
    create = re.search(r"^# +kubectl create secret .*$", manifest, re.M)[0]
    for command in commands:
        subprocess.run(command, shell=True, cwd=made, check=True, capture_output=True)
    given = {word.removeprefix("--from-file=") for word in shlex.split(create) if word.startswith("--from-file=")}
    must(given == {path.name for path in made.iterdir()}, f"the Secret is made of {given}")
    local = pathlib.Path(folder, "pod.yaml")
    local.write_text(config_text.replace("/run/secrets/deferral", str(made)))
    run(binary, "check", local)
    free = re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", local.read_text())
    # What is on loopback answers like what is not, but for who may read; that is tested with the operator's address.
    local.write_text(free)
    pod = subprocess.Popen([binary, "--config", local], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for line in pod.stderr:
            if admin := re.search(r'"admin":"([^"]+)"', line):
                metrics = re.search(r'"metrics":"([^"]+)"', line)
                break
        scrape = http.client.HTTPConnection(metrics[1], timeout=10)
        scrape.request("GET", "/metrics", headers={"Host": "deferral-metrics:9464"})
        answer = scrape.getresponse()
        must(answer.status == 200 and b"deferral_build_info" in answer.read(), f"a scrape gets {answer.status}")
        for probe in probes:
            must(probe["port"] == "operator" and probe["scheme"] == "HTTPS", f"{probe}")
            connection = http.client.HTTPSConnection(admin[1], timeout=10, context=ssl._create_unverified_context())
            connection.request("GET", probe["path"])
            status = connection.getresponse().status
            must(status == 200, f"{probe['path']} says {status}")
    finally:
        pod.terminate()
        pod.stderr.read()
        must(pod.wait(timeout=60) == 0, "it does not end in order")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deferral", required=True, help="the program")
    binary = str(pathlib.Path(parser.parse_args().deferral).resolve())
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        check_compose(binary, folder)
        check_kubernetes(binary, folder)
    print(f"deploy: what Compose and Kubernetes are given is good ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
