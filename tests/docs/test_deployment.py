"""The deployment kit: generated files are current, and names, ports and commands in its files exist.

Run with REWRITE_DOCS=1 to write the generated files anew.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
import ray
import yaml
from typer.testing import CliRunner

from schedulemesh import __version__
from schedulemesh.cli.app import app
from tests.docs.documents import ROOT, blocks
from tests.metrics.promtool import needs_promtool

DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def objects(path):
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def only(path):
    (document,) = objects(path)
    return document


def printed(*words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def prometheus_rule():
    """The rules as a resource of the Prometheus Operator."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "schedulemesh", "labels": {"release": "prometheus"}},
        "spec": yaml.safe_load(printed("export", "alerts")),
    }
    first = "# Generated from the rules of the scheduler; see docs/deployment.md.\n"
    return first + yaml.safe_dump(resource, sort_keys=False, allow_unicode=True, width=100)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rules.yaml", lambda: printed("export", "alerts")),
        ("dashboard.json", lambda: printed("export", "dashboard")),
        ("prometheus-rule.yaml", prometheus_rule),
    ],
)
def test_generated_files_are_current(name, content):
    path = DEPLOY / "monitoring" / name
    if os.environ.get("REWRITE_DOCS"):
        path.write_text(content(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == content(), "run it with REWRITE_DOCS=1"


@needs_promtool
def test_prometheus_takes_its_configuration(tmp_path):
    """The configuration and the rules lie in one folder, as in the container."""
    for path in (DEPLOY / "compose" / "prometheus.yaml", DEPLOY / "monitoring" / "rules.yaml"):
        shutil.copy(path, tmp_path)
    command = ["promtool", "check", "config", tmp_path / "prometheus.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def files(*suffixes):
    return sorted(path for path in DEPLOY.rglob("*") if path.suffix in suffixes)


@pytest.mark.parametrize("path", files(".yaml"), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_file_is_yaml(path):
    assert all(isinstance(document, dict) for document in objects(path))


needs_kustomize = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl, whose kustomize is tried here, is missing"
)


def kustomized(folder):
    """What kustomize makes of a folder: the text and its objects by kind and name."""
    command = ["kubectl", "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = [each for each in yaml.safe_load_all(done.stdout) if each]
    return done.stdout, {(each["kind"], each["metadata"]["name"]): each for each in made}


@needs_kustomize
@pytest.mark.parametrize("folder", ["kubernetes/base", "kubernetes/example", "monitoring"])
def test_kustomize_builds_it(folder):
    text, built = kustomized(DEPLOY / folder)
    maps = set(re.findall(r"configMap:\n +name: (\S+)", text))
    assert {("ConfigMap", name) for name in maps} <= built.keys()
    if folder == "kubernetes/example":
        assert ("RayCluster", "schedulemesh") in built
        assert all(each["metadata"]["namespace"] == "ray" for each in built.values())
        check_journal_in_postgresql(text, built)


def check_journal_in_postgresql(text, built):
    """Fail where a volume of the journal is left, or the head does not get the password."""
    assert ("PersistentVolumeClaim", "schedulemesh-journal") not in built
    assert "claimName" not in text
    spec = built["RayCluster", "schedulemesh"]["spec"]["headGroupSpec"]["template"]["spec"]
    variables = {each["name"]: each for each in spec["containers"][0]["env"]}
    assert variables["STATE_PATH"]["value"].startswith("postgresql+psycopg://")
    assert variables["PGPASSWORD"]["valueFrom"]["secretKeyRef"]["name"] == "schedulemesh-postgres"
    volumes = {each["name"] for each in spec["volumes"]}
    mounts = [mount for each in spec["containers"] for mount in each.get("volumeMounts", [])]
    assert {mount["name"] for mount in mounts} == volumes


@needs_kustomize
def test_the_component_of_postgresql_patches_what_lists_it_and_is_nothing_alone(tmp_path):
    component = DEPLOY / "kubernetes" / "postgres"
    assert only(component / "kustomization.yaml")["kind"] == "Component"
    assert kustomized(component) == ("", {})
    lines = (
        f"resources: [{os.path.relpath(BASE, tmp_path)}]",
        f"components: [{os.path.relpath(component, tmp_path)}]",
    )
    (tmp_path / "kustomization.yaml").write_text("\n".join(lines), encoding="utf-8")
    check_journal_in_postgresql(*kustomized(tmp_path))


def test_every_resource_is_in_a_kustomization():
    for kustomization in DEPLOY.rglob("kustomization.yaml"):
        folder, content = kustomization.parent, only(kustomization)
        for name in [*content.get("resources", []), *content.get("components", [])]:
            assert (folder / name).exists(), name
        for generator in content.get("configMapGenerator", []):
            assert all((folder / name).exists() for name in generator["files"])
    listed = set(only(BASE / "kustomization.yaml")["resources"])
    assert listed == {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}


def head():
    return only(BASE / "raycluster.yaml")["spec"]["headGroupSpec"]["template"]["spec"]


def containers():
    spec = only(BASE / "raycluster.yaml")["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [each for group in groups for each in group["template"]["spec"]["containers"]]


def test_the_service_reaches_ports_of_the_head():
    ports = {port["name"] for each in head()["containers"] for port in each["ports"]}
    service = only(BASE / "service.yaml")
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    cluster = only(BASE / "raycluster.yaml")["metadata"]["name"]
    assert service["spec"]["selector"]["ray.io/cluster"] == cluster
    job = only(DEPLOY / "kubernetes" / "rayjob.yaml")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster}
    monitor = only(DEPLOY / "monitoring" / "service-monitor.yaml")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_volumes_and_claims_have_one_name():
    volumes = {volume["name"] for volume in head()["volumes"]}
    mounts = {mount["name"] for each in head()["containers"] for mount in each["volumeMounts"]}
    assert mounts == volumes
    claim = only(BASE / "journal.yaml")["metadata"]["name"]
    assert {"name": "journal", "persistentVolumeClaim": {"claimName": claim}} in head()["volumes"]


def test_nobody_is_root():
    assert "\nUSER 1000\n" in DOCKERFILE
    assert head()["securityContext"]["runAsNonRoot"]
    assert not any(each["securityContext"]["allowPrivilegeEscalation"] for each in containers())


def test_the_proxy_knows_the_names_of_the_service_and_the_ingress():
    names = re.findall(r"server_name ([^;]+);", (BASE / "nginx.conf").read_text("utf-8"))
    ingress = only(BASE / "ingress.yaml")["spec"]
    hosts = {rule["host"] for rule in ingress["rules"]}
    assert hosts | {only(BASE / "service.yaml")["metadata"]["name"]} <= set(names[0].split())
    assert {host for tls in ingress["tls"] for host in tls["hosts"]} == hosts


def test_no_browser_can_say_who_it_is():
    """A scheduler that trusts the proxy believes this header."""
    assert 'proxy_set_header X-Forwarded-User "";' in (BASE / "nginx.conf").read_text("utf-8")


def test_versions_are_those_of_this_release():
    image = re.search(r"ARG RAY_IMAGE=rayproject/ray:([\d.]+)-py(\d)(\d+)", DOCKERFILE)
    assert only(BASE / "raycluster.yaml")["spec"]["rayVersion"] == image[1]
    supported = re.search(
        r'"ray\[default\]>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8")
    )

    def numbers(version):
        return tuple(map(int, version.split(".")[:2]))

    assert numbers(supported[1]) <= numbers(image[1]) < numbers(supported[2])
    assert numbers(image[1]) <= numbers(ray.__version__)
    assert only(BASE / "kustomization.yaml")["images"][0]["newTag"] == __version__


def commands():
    """The calls of `schedulemesh` and of the script that starts a scheduler, with the file that has each."""
    compose = only(DEPLOY / "compose" / "compose.yaml")["services"]["head"]["environment"]
    post_start = head()["containers"][0]["lifecycle"]["postStart"]["exec"]["command"][2]
    unit = (DEPLOY / "systemd" / "schedulemesh-head.service").read_text(encoding="utf-8")
    return {
        "compose": ["start", *shlex.split(compose["SCHEDULEMESH_START"])],
        "postStart": ["start", *shlex.split(post_start.partition(" >")[0])[1:]],
        "systemd": ["start", *shlex.split(re.search(r'START=([^"]+)"', unit)[1])],
        "RayJob": shlex.split(only(DEPLOY / "kubernetes" / "rayjob.yaml")["spec"]["entrypoint"])[
            1:
        ],
    }


@pytest.mark.parametrize("where", commands())
def test_commands_have_options_that_exist(where):
    """They are carried out as far as the first question to a Ray that is not there."""
    command, *options = commands()[where]
    done = CliRunner().invoke(app, [command, "--address", "127.0.0.1:1", *options])
    assert done.exit_code == 5, done.output


def test_the_script_waits_for_ray_only(tmp_path):
    """It repeats `schedulemesh start` while Ray does not answer, and ends with any other exit code."""
    fake = tmp_path / "schedulemesh"
    fake.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n[ -e {tmp_path}/ray ] && exit 6\n'
                    f"touch {tmp_path}/ray\nexit 5\n")  # fmt: skip
    sleep = tmp_path / "sleep"
    sleep.write_text("#!/bin/sh\n")
    for path in (fake, sleep):
        path.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = DEPLOY / "bin" / "schedulemesh-up"
    done = subprocess.run([script, "--http", "8090"], env=path, timeout=30, check=False)
    assert done.returncode == 6
    assert (tmp_path / "calls").read_text() == "start --http 8090\n" * 2


def test_what_the_image_is_built_from_is_sent_to_docker():
    sent = {
        line.removeprefix("!")
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = re.findall(r"^COPY [^\n]*$", DOCKERFILE, re.MULTILINE)
    sources = {word for line in copied for word in line.split()[1:-1] if not word.startswith("--")}
    assert {source for source in sources if not source.startswith("deploy/bin/")} <= sent
    assert all((ROOT / source).exists() for source in sources)


def test_files_that_are_mounted_exist():
    folder = DEPLOY / "compose"
    services = only(folder / "compose.yaml")["services"].values()
    mounted = [each for service in services for each in service.get("volumes", [])]
    local = [each.split(":")[0] for each in mounted if each.startswith(".")]
    assert len(local) == 6
    assert all((folder / path).is_file() for path in local)


def test_the_dashboard_is_json():
    assert json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text("utf-8"))["panels"]


def test_the_page_names_every_folder():
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    names = {path.name for path in DEPLOY.iterdir() if path.is_dir()}
    assert all(f"deploy/{name}" in text for name in names)
    assert blocks(ROOT / "docs" / "deployment.md")


def test_jobs_on_a_worker_may_write_where_the_head_has_its_journal():
    """A worker has no volume there, and the runner of a job makes its folders below the state path."""
    state_path = {each["name"]: each["value"] for each in head()["containers"][0]["env"]}[
        "STATE_PATH"
    ]
    folder, last_user = re.findall(r"^RUN install -d -o 1000 -g 100 -m 0700 (\S+)\n.*?^USER (\d+)$",
                                   DOCKERFILE, re.MULTILINE | re.DOTALL)[0]  # fmt: skip
    assert state_path.startswith(f"{folder}/")
    assert last_user == "1000"
