# SPDX-License-Identifier: Apache-2.0
"""deploy/compose.yaml, deploy/k8s, deploy/systemd and deploy/redis against their schemas, and what their values must have to do with each other."""

import configparser
import contextlib
import http.client
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

from authority import Authority
from balancer import Balancer, Replica
from command import BIN_DIR, CONFORMANCE, SOURCE_DIR, Server
from gateway import COMMAND as GATEWAY_COMMAND
from gateway import Gateway
from gateway import run as run_gateway

try:
    import jsonschema
    import kubernetes_validate
    import yaml
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

# The schema of the Compose Specification, of which the npm package dclint holds a copy.
COMPOSE_SCHEMA = pathlib.Path(
    os.environ.get("RIVULET_COMPOSE_SCHEMA", SOURCE_DIR / "build/node/node_modules/dclint/schemas/compose.schema.json")
)
KUBERNETES = (1, 30)  # the oldest that k8s/README.md promises
DEPLOY = SOURCE_DIR / "deploy"
DOCKERFILE = (SOURCE_DIR / "Dockerfile").read_text()
HAPROXY = (DEPLOY / "haproxy/haproxy.cfg").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUSTOMIZATION = yaml.safe_load((DEPLOY / "k8s/kustomization.yaml").read_text())
MANIFESTS = {
    name: list(yaml.safe_load_all((DEPLOY / f"k8s/{name}.yaml").read_text())) for name in ("replicas", "balancer", "gateway")
}
COMPONENTS = ("tls", "autoscaling", "sessions", "llmd")
MARGIN = 5  # seconds that are left when all that was planned for an end has taken its full time


def of_kind(name: str, kind: str) -> dict:
    (found,) = [manifest for manifest in MANIFESTS[name] if manifest["kind"] == kind]
    return found


def pod(name: str) -> dict:
    return of_kind(name, "Deployment")["spec"]["template"]["spec"]


def container(name: str) -> dict:
    (only,) = pod(name)["containers"]
    return only


def dockerfile(instruction: str) -> str:
    (value,) = set(re.findall(rf"^{instruction} (\S+)$", DOCKERFILE, re.M))
    return value


def gateway_dockerfile(instruction: str) -> str:
    (value,) = re.findall(rf"^{instruction} (.+)$", (DEPLOY / "gateway.Dockerfile").read_text().replace("\\\n", " "), re.M)
    return value


def haproxy_default(variable: str) -> str:
    (value,) = re.findall(rf"^\s*presetenv {variable}\s+(\S+)$", HAPROXY, re.M)
    return value


def seconds(text: str) -> int:
    """Of "90s" or "2m"."""
    number, unit = re.fullmatch(r"(\d+)([sm])", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def settings(arguments: list[str], file: pathlib.Path = DEPLOY / "image/server.json") -> dict:
    """What rivulet-server makes of them. Errors: AssertionError with what it says about a bad one."""
    arguments = [interpolated(argument) for argument in arguments]
    command = [BIN_DIR / "rivulet-server", "--config", file, *arguments, "--print-config"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def flags(arguments: list[str]) -> dict:
    return dict(argument.split("=") for argument in arguments)


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def interpolated(text: str) -> str:
    """With the default of every ${NAME:-default}."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def patched(document, operations: list[dict]):
    """`document` after the operations of a JSON patch (RFC 6902): those that the components use."""
    document = json.loads(json.dumps(document))  # not deepcopy(), which would keep what anchors of YAML share
    for operation in operations:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        parent = document
        for part in path:
            parent = parent[int(part) if isinstance(parent, list) else part]
        if isinstance(parent, list):
            if operation["op"] == "add":
                parent.insert(len(parent) if last == "-" else int(last), operation["value"])
                continue
            last = int(last)
        elif (last in parent) != (operation["op"] != "add"):
            raise ValueError(f"{operation}: is there already, or not there")
        if operation["op"] == "remove":
            del parent[last]
        else:
            parent[last] = operation["value"]
    return document


def resource(path: pathlib.Path) -> list[dict]:
    """The manifests of a file, or the ConfigMap that a folder's kustomization.yaml makes, without the hash in its name."""
    if path.is_file():
        return list(yaml.safe_load_all(path.read_text()))
    (generated,) = yaml.safe_load((path / "kustomization.yaml").read_text())["configMapGenerator"]
    data = {file: (path / file).read_text() for file in generated["files"]}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generated["name"]}, "data": data}]


def kustomized(components) -> list[dict]:
    """All manifests with the components of deploy/k8s/kustomization.yaml, as `kubectl kustomize` makes them."""
    manifests = [manifest for path in KUSTOMIZATION["resources"] for manifest in resource(DEPLOY / "k8s" / path)]
    for name in components:
        component = yaml.safe_load((DEPLOY / f"k8s/{name}/kustomization.yaml").read_text())
        for path in component.get("resources", []):
            manifests = manifests + resource(DEPLOY / "k8s" / name / path)
        for patch in component["patches"]:
            place = [i for i, m in enumerate(manifests) if (m["kind"], m["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])]
            (index,) = place
            manifests = [*manifests[:index], patched(manifests[index], yaml.safe_load(patch["patch"])), *manifests[index + 1:]]
    return manifests


def find(manifests, kind: str, name: str) -> dict:
    (found,) = [manifest for manifest in manifests if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)]
    return found


class SharedRedis:
    """A Redis as deploy/redis/start.sh starts it, with the password "secret" in `password_file`, on `port`. For a `with` statement."""

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.password_file = pathlib.Path(self.scratch.name) / "password"
        self.password_file.write_text("secret\n")
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        command = ["sh", DEPLOY / "redis/start.sh", self.password_file, "--dir", self.scratch.name, "--bind", "127.0.0.1", "--port", str(self.port)]
        environment = {**os.environ, "TMPDIR": self.scratch.name}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        log = ""
        for line in self.process.stdout:
            log += line
            if "Ready to accept connections" in line:
                return self
        raise AssertionError(f"Redis did not start: {log}")

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        self.scratch.cleanup()


class KubernetesTest(unittest.TestCase):
    def test_every_manifest_keeps_to_the_schema_of_every_version(self):
        versions = [v for v in kubernetes_validate.utils.all_versions() if tuple(map(int, v.split(".")[:2])) >= KUBERNETES]
        self.assertGreater(len(versions), 3)
        base = kustomized(())
        changed = [manifest for manifest in kustomized(COMPONENTS) if manifest not in base]
        self.assertGreater(len(changed), 3)
        for manifest in base + changed:
            for version in versions:
                with self.subTest(kind=manifest["kind"], name=manifest["metadata"]["name"], version=version):
                    kubernetes_validate.validate(manifest, version, strict=True)

    def test_the_kustomization_lists_every_manifest_and_component(self):
        self.assertEqual(KUSTOMIZATION["resources"], [*(f"{name}.yaml" for name in MANIFESTS), "../haproxy"])
        self.assertEqual(re.findall(r"^#  - (\w+)$", (DEPLOY / "k8s/kustomization.yaml").read_text(), re.M), list(COMPONENTS))

    def test_the_kustomization_names_every_image(self):
        pods = [m["spec"]["template"]["spec"] for m in kustomized(COMPONENTS) if m["kind"] in ("Deployment", "StatefulSet")]
        used = sorted({container["image"] for pod in pods for container in pod["containers"]})
        named = KUSTOMIZATION["images"]
        self.assertEqual(sorted(f"{image['name']}:{image['newTag']}" for image in named), used)
        self.assertEqual([image["newName"] for image in named], [image["name"] for image in named])

    def test_the_router_of_llmd_finds_and_reads_the_gateway_beside_a_replica(self):
        deployment = find(kustomized(["llmd"]), "Deployment", "rivulet-replica")["spec"]["template"]
        replica, gateway = deployment["spec"]["containers"]
        pool, picker = yaml.safe_load_all((DEPLOY / "k8s/llmd/router.yaml").read_text())
        self.assertLessEqual(pool["spec"]["selector"]["matchLabels"].items(), deployment["metadata"]["labels"].items())
        (target,), (serving,) = pool["spec"]["targetPorts"], gateway["ports"]
        self.assertEqual(target["number"], serving["containerPort"])
        self.assertIn(f'"0.0.0.0:{target["number"]}"', (DEPLOY / "gateway.Dockerfile").read_text())
        policy = find(kustomized(["llmd"]), "NetworkPolicy", "rivulet-replica")["spec"]["ingress"]
        self.assertEqual([rule["from"] for rule in policy if {"port": target["number"]} in rule["ports"]],
                         [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "llm-d"}}}]])  # fmt: skip
        (engine,) = [p for p in picker["plugins"] if p["type"] == "core-metrics-extractor"][0]["parameters"]["engineConfigs"]
        self.assertEqual(engine["name"], deployment["metadata"]["labels"]["llm-d.ai/engine-type"])
        described = (SOURCE_DIR / "docs/metrics.md").read_text()
        for key in ("queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"):
            self.assertIn(f"| `{engine[key]}` | gauge |", described)
        given = flags(gateway["args"])
        self.assertIn(f"--metrics-listen=0.0.0.0:{port(given['--metrics-target'])}", replica["args"])
        self.assertEqual(port(given["--target"]), replica["ports"][0]["containerPort"])
        end = gateway["lifecycle"]["preStop"]["sleep"]["seconds"] + int(given["--drain-seconds"])
        self.assertLessEqual(end + MARGIN, deployment["spec"]["terminationGracePeriodSeconds"])

    @unittest.skipIf(shutil.which("kubectl") is None, "the patches are applied by this test alone, without kubectl")
    def test_kubectl_makes_the_same_of_the_components(self):
        for components in ((), COMPONENTS):
            with self.subTest(components=components), tempfile.TemporaryDirectory() as folder:
                for name in ("k8s", "haproxy", "redis"):
                    shutil.copytree(DEPLOY / name, f"{folder}/{name}")
                path = pathlib.Path(folder) / "k8s/kustomization.yaml"
                images = [{**image, "newName": f"registry.example/{image['name']}"} for image in KUSTOMIZATION["images"]]
                path.write_text(yaml.safe_dump({**KUSTOMIZATION, "images": images, "components": list(components)}))
                done = subprocess.run(["kubectl", "kustomize", path.parent], capture_output=True, text=True, env={**os.environ, "HOME": folder})
                self.assertEqual(done.returncode, 0, done.stderr)
                made = re.sub(r"\b(rivulet-(?:balancer|redis))-[a-z0-9]{10}$", r"\1", done.stdout, flags=re.M)
                made, images_made = re.subn(r"(image: )registry\.example/", r"\1", made)
                self.assertEqual(images_made, made.count(" image: "))

                def key(manifest):
                    return manifest["kind"], manifest["metadata"]["name"]

                self.assertEqual(sorted(yaml.safe_load_all(made), key=key), sorted(kustomized(components), key=key))

    def test_selectors_find_their_pods(self):
        for name in MANIFESTS:
            labels = of_kind(name, "Deployment")["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(of_kind(name, "Deployment")["spec"]["selector"]["matchLabels"], labels)
            self.assertEqual(of_kind(name, "Service")["spec"]["selector"], labels)
            self.assertEqual(of_kind(name, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels)
        policy = of_kind("replicas", "NetworkPolicy")["spec"]
        self.assertEqual(policy["podSelector"]["matchLabels"], of_kind("replicas", "Service")["spec"]["selector"])
        calls, scrapes = policy["ingress"]
        (source,) = calls["from"]
        self.assertEqual(source["podSelector"]["matchLabels"], of_kind("balancer", "Service")["spec"]["selector"])
        self.assertEqual([p["port"] for p in calls["ports"]], [int(dockerfile("EXPOSE"))])
        self.assertEqual([p["port"] for p in scrapes["ports"]], [port(settings(container("replicas")["args"])["metrics-listen"])])

    def test_a_pod_gets_the_time_that_its_end_may_take(self):
        server = settings(container("replicas")["args"])
        ends = {
            "replicas": server["drain-delay-seconds"] + server["drain-seconds"],
            "balancer": seconds(self.environment()["RIVULET_HARD_STOP"]),
            "gateway": int(flags(container("gateway")["args"])["--drain-seconds"]),
        }
        for name, end in ends.items():
            pre_stop = container(name)["lifecycle"]["preStop"]["sleep"]["seconds"]
            self.assertGreaterEqual(pod(name)["terminationGracePeriodSeconds"], pre_stop + end + MARGIN, name)
            # Long enough for a name server's answer to be forgotten and asked for again.
            self.assertGreaterEqual(pre_stop, 5, name)
        self.assertGreaterEqual(ends["balancer"], server["drain-seconds"])
        self.assertGreaterEqual(ends["gateway"], server["drain-seconds"])

    def test_haproxy_sees_that_a_replica_leaves_before_it_refuses(self):
        check = seconds(haproxy_default("RIVULET_CHECK_INTERVAL")) + seconds(haproxy_default("RIVULET_TIMEOUT"))
        self.assertGreater(settings(container("replicas")["args"])["drain-delay-seconds"], check)

    def test_ports_agree(self):
        exposed = int(dockerfile("EXPOSE"))
        self.assertEqual(port(settings(container("replicas")["args"])["listen"]), exposed)
        self.assertEqual(port(self.environment()["RIVULET_REPLICAS"]), exposed)
        expected_ports = {
            "replicas": exposed, "balancer": port(self.environment()["RIVULET_LISTEN"]), "gateway": int(gateway_dockerfile("EXPOSE")),
        }  # fmt: skip
        for name, expected in expected_ports.items():
            declared, *more = container(name)["ports"]
            self.assertEqual(declared["containerPort"], expected)
            scraped = {"replicas": "metrics", "gateway": "gateway-metrics"}.get(name)
            if scraped:  # prometheus-kubernetes.yml looks for this name
                metrics = port(flags(container(name)["args"])["--metrics-listen"])
                self.assertEqual(more, [{"name": scraped, "containerPort": metrics}])
                self.assertIn(f"regex: {scraped}\n", (DEPLOY / "prometheus/prometheus-kubernetes.yml").read_text())
                annotations = of_kind(name, "Deployment")["spec"]["template"]["metadata"]["annotations"]
                self.assertEqual(annotations["prometheus.io/port"], str(metrics))
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                (action,) = [value for value in container(name)[probe].values() if isinstance(value, dict)]
                self.assertEqual(action["port"], expected, probe)
            (service,) = of_kind(name, "Service")["spec"]["ports"]
            self.assertEqual((service["port"], service["targetPort"]), (expected, declared["name"]))

    def test_probes_ask_for_the_service_that_haproxy_asks_for_and_have_their_own_pace(self):
        probes = container("replicas")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertEqual(probes[probe]["grpc"]["service"], "", probe)
        pace = {p: probes[p]["periodSeconds"] * probes[p]["failureThreshold"] for p in probes if p.endswith("Probe")}
        self.assertLessEqual(pace["readinessProbe"], container("replicas")["lifecycle"]["preStop"]["sleep"]["seconds"])
        self.assertGreaterEqual(pace["livenessProbe"], 10 * pace["readinessProbe"])
        self.assertGreaterEqual(pace["startupProbe"], 300)
        self.assertNotIn("grpc", container("balancer")["livenessProbe"])

    def test_a_roll_out_always_leaves_as_many_as_before(self):
        for name in MANIFESTS:
            spec = of_kind(name, "Deployment")["spec"]
            self.assertGreaterEqual(spec["replicas"], 2)
            self.assertEqual(spec["strategy"]["rollingUpdate"], {"maxUnavailable": 0, "maxSurge": 1})
            self.assertEqual(of_kind(name, "PodDisruptionBudget")["spec"]["maxUnavailable"], 1)

    def test_containers_have_no_rights(self):
        for name in MANIFESTS:
            self.assertEqual(pod(name)["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertIs(pod(name)["securityContext"]["runAsNonRoot"], True)
            self.assertIs(pod(name)["automountServiceAccountToken"], False)
            expected = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            self.assertEqual(container(name)["securityContext"], expected)
            self.assertTrue(all(mount["readOnly"] for mount in container(name).get("volumeMounts", [])))
            self.assertIn("memory", container(name)["resources"]["limits"])
        for name in ("replicas", "gateway"):
            context = pod(name)["securityContext"]
            self.assertEqual(f"{context['runAsUser']}:{context['runAsGroup']}", dockerfile("USER"))

    def test_threads_are_the_cpus_that_are_asked_for(self):
        resources = container("replicas")["resources"]
        self.assertEqual(settings(container("replicas")["args"])["threads"], int(resources["requests"]["cpu"]))
        self.assertNotIn("cpu", resources["limits"])

    def test_models_and_configuration_are_where_they_are_looked_for(self):
        (models,) = container("replicas")["volumeMounts"]
        self.assertEqual([models["mountPath"]], settings(container("replicas")["args"])["model"])
        (volume,) = pod("balancer")["volumes"]
        self.assertEqual(list(find(kustomized(()), "ConfigMap", volume["configMap"]["name"])["data"]), ["haproxy.cfg"])
        readme = (DEPLOY / "k8s/README.md").read_text()
        self.assertIn(f"`{pod('replicas')['volumes'][0]['persistentVolumeClaim']['claimName']}`", readme)

    def test_the_autoscaler_stays_within_what_haproxy_can_reach(self):
        manifests = kustomized(COMPONENTS)
        deployment = find(manifests, "Deployment", "rivulet-replica")
        self.assertNotIn("replicas", deployment["spec"])
        scaler = find(manifests, "HorizontalPodAutoscaler", "rivulet-replica")["spec"]
        self.assertEqual((scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"]), ("Deployment", "rivulet-replica"))
        (places,) = re.findall(r"server-template replica- 1-(\d+)", HAPROXY)
        self.assertLessEqual(scaler["maxReplicas"] + deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"], int(places))
        self.assertGreaterEqual(scaler["minReplicas"], of_kind("replicas", "Deployment")["spec"]["replicas"])

    def test_with_tls_the_replica_starts_and_its_probes_succeed(self):
        manifests = kustomized(["tls"])
        spec = find(manifests, "Deployment", "rivulet-replica")["spec"]["template"]["spec"]
        (replica,) = spec["containers"]
        added = [flag for flag in replica["args"] if flag not in container("replicas")["args"]]
        with tempfile.TemporaryDirectory() as folder:
            authority = Authority(pathlib.Path(folder), "ca")
            certificate, key = authority.sign("replica")
            files = {"/tls/tls.crt": str(certificate), "/tls/tls.key": str(key), "/tls/ca.crt": str(authority.pem)}

            def here(word):
                for path, file in files.items():
                    word = word.replace(path, file)
                return word.replace("rivulet-replica", "rivulet.test")

            (secret,) = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "tls"]
            self.assertEqual(secret["secretName"], "rivulet-replica-tls")
            self.assertIn({"name": "tls", "mountPath": "/tls", "readOnly": True}, replica["volumeMounts"])
            with Server(CONFORMANCE / "tiny-rfa", args=["--threads", "1", *map(here, added)]) as server:
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    self.assertNotIn("grpc", replica[probe])
                    program, *arguments = [here(word) for word in replica[probe]["exec"]["command"]]
                    self.assertGreater(replica[probe]["timeoutSeconds"], float(arguments[arguments.index("--deadline") + 1]))
                    target = arguments.index("--target") + 1
                    self.assertEqual(port(arguments[target]), int(dockerfile("EXPOSE")))
                    arguments[target] = server.target
                    arguments[arguments.index("--deadline") + 1] = "60"  # of a busy machine
                    done = subprocess.run([BIN_DIR / program, *arguments], capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, done.stderr)

    def test_with_tls_the_balancer_reads_what_the_secrets_hold(self):
        manifests = kustomized(["tls"])
        spec = find(manifests, "Deployment", "rivulet-balancer")["spec"]["template"]["spec"]
        (balancer,) = spec["containers"]
        variables = {variable["name"]: variable.get("value") for variable in balancer["env"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in balancer["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        secrets = {}
        for variable in ("RIVULET_REPLICA_TLS_CA", "RIVULET_TLS_CERT"):
            self.assertIn(variable, HAPROXY)
            folder, _, file = variables[variable].rpartition("/")
            secrets.setdefault(volumes[mounts[folder]]["secret"]["secretName"], []).append(file)
        self.assertEqual(secrets, {"rivulet-replica-tls": ["ca.crt"], "rivulet-balancer-tls": ["tls.pem"]})
        readme = (DEPLOY / "k8s/README.md").read_text()
        for secret, files in secrets.items():
            self.assertRegex(readme, rf"secret (generic|tls) {secret}\b[^`]*{re.escape(files[0])}")
        self.assertEqual(volumes["tls-replica"]["secret"]["items"], [{"key": "ca.crt", "path": "ca.crt"}])
        (service,) = find(manifests, "Service", "rivulet")["spec"]["ports"]
        listen = port(variables["RIVULET_TLS_LISTEN"])
        self.assertEqual(service, {"name": "grpcs", "port": listen, "targetPort": "grpcs"})
        self.assertIn({"name": "grpcs", "containerPort": listen}, balancer["ports"])

    def test_the_gateway_calls_the_balancer_and_is_ready_when_a_replica_is(self):
        for components, name, scheme in (((), "grpc", None), (("tls",), "grpcs", "HTTPS")):
            manifests = kustomized(components)
            (gateway,) = find(manifests, "Deployment", "rivulet-gateway")["spec"]["template"]["spec"]["containers"]
            (balancer,) = find(manifests, "Service", "rivulet")["spec"]["ports"]
            self.assertEqual((balancer["name"], flags(gateway["args"])["--target"]), (name, f"rivulet:{balancer['port']}"))
            ready = gateway["readinessProbe"]["httpGet"]
            self.assertEqual((ready["path"], ready.get("scheme")), ("/health", scheme))
            self.assertNotIn("httpGet", gateway["livenessProbe"])  # a restart brings no replica back

    def test_with_tls_the_gateway_reads_what_the_secrets_hold(self):
        spec = find(kustomized(["tls"]), "Deployment", "rivulet-gateway")["spec"]["template"]["spec"]
        (gateway,) = spec["containers"]
        secrets = {volume["name"]: (volume["secret"]["secretName"], volume["secret"].get("items")) for volume in spec["volumes"]}
        held = {mount["mountPath"]: secrets[mount["name"]] for mount in gateway["volumeMounts"]}
        ca = "rivulet-balancer-tls", [{"key": "ca.crt", "path": "ca.crt"}]
        self.assertEqual(held, {"/tls": ("rivulet-gateway-tls", None), "/tls-balancer": ca})
        readme = (DEPLOY / "k8s/README.md").read_text()
        with tempfile.TemporaryDirectory() as folder:
            balancer, client = (Authority(pathlib.Path(folder), name) for name in ("balancer-ca", "client-ca"))
            (certificate, key), (https, https_key) = balancer.sign("balancer"), client.sign("gateway")
            files = {"/tls-balancer/ca.crt": balancer.pem, "/tls/tls.crt": https, "/tls/tls.key": https_key}
            for file in files:
                self.assertRegex(readme, rf"secret generic {held[os.path.dirname(file)][0]}\b.* --from-file={os.path.basename(file)}")
            given = [f"{flag}={files.pop(path)}" for flag, path in flags(gateway["args"]).items() if path in files]
            self.assertEqual(files, {})
            server = Server(CONFORMANCE / "tiny-rfa", args=["--threads", "1", "--tls-cert", str(certificate), "--tls-key", str(key)])
            with server, Gateway(server.target, *given) as served:
                context = ssl.create_default_context(cafile=client.pem)
                with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", served.port, timeout=60, context=context)) as connection:
                    connection.request("GET", "/health")
                    self.assertEqual(connection.getresponse().status, 200)

    def test_with_sessions_the_replicas_use_the_redis_beside_them(self):
        manifests = kustomized(["sessions"])
        spec = find(manifests, "Deployment", "rivulet-replica")["spec"]["template"]["spec"]
        (replica,) = spec["containers"]
        redis = find(manifests, "StatefulSet", "rivulet-redis")["spec"]["template"]
        (one,) = redis["spec"]["containers"]
        service = find(manifests, "Service", "rivulet-redis")
        (service_port,) = service["spec"]["ports"]
        server = settings(replica["args"])
        self.assertEqual(server["session-store"], f"redis://rivulet@{service['metadata']['name']}:{service_port['port']}")
        self.assertEqual(one["ports"], [{"name": service_port["targetPort"], "containerPort": service_port["port"]}])
        for name, container_of, pod_of in (("server", replica, spec), ("redis", one, redis["spec"])):
            volumes = {volume["name"]: volume for volume in pod_of["volumes"]}
            mounts = {mount["mountPath"]: volumes.get(mount["name"]) for mount in container_of["volumeMounts"]}
            folder, _, file = server["session-store-password-file"].rpartition("/")
            self.assertEqual((mounts[folder]["secret"]["secretName"], file), ("rivulet-redis", "password"), name)
        self.assertEqual(one["command"][1:3], ["/etc/redis/start.sh", server["session-store-password-file"]])
        self.assertEqual(mounts["/etc/redis"]["configMap"]["name"], "rivulet-redis")
        needed = re.findall(r'"\$folder/([\w.]+)"', (DEPLOY / "redis/start.sh").read_text())
        self.assertEqual(sorted(find(manifests, "ConfigMap", "rivulet-redis")["data"]), sorted({*needed, "start.sh"}))
        self.assertNotIn("sessionAffinity", find(manifests, "Service", "rivulet-gateway")["spec"])
        readme = (DEPLOY / "k8s/README.md").read_text()
        self.assertRegex(readme, r"create secret generic rivulet-redis --from-literal=password=")
        labels = redis["metadata"]["labels"]
        self.assertEqual(service["spec"]["selector"], labels)
        policy = find(manifests, "NetworkPolicy", "rivulet-redis")["spec"]
        self.assertEqual(policy["podSelector"]["matchLabels"], labels)
        (rule,) = policy["ingress"]
        (source,) = rule["from"]
        self.assertEqual(source["podSelector"]["matchLabels"], of_kind("replicas", "Service")["spec"]["selector"])
        self.assertEqual(rule["ports"], [{"port": service_port["port"]}])
        self.assertEqual(one["securityContext"], container("replicas")["securityContext"])
        (most,) = re.findall(r"^maxmemory (\d+)mb$", (DEPLOY / "redis/redis.conf").read_text(), re.M)
        self.assertGreaterEqual(1024 * int(one["resources"]["limits"]["memory"].removesuffix("Gi")), 2 * int(most))

    @unittest.skipIf(shutil.which("redis-server") is None, "redis-server is not installed")
    def test_a_redis_of_deploy_redis_takes_the_replicas_and_nobody_else(self):
        (replica,) = find(kustomized(["sessions"]), "Deployment", "rivulet-replica")["spec"]["template"]["spec"]["containers"]
        added = [flag for flag in replica["args"] if flag not in container("replicas")["args"]]
        with SharedRedis() as redis:
            places = {"rivulet-redis:6379": f"127.0.0.1:{redis.port}", "/run/secrets/redis/password": str(redis.password_file)}
            for place, here in places.items():
                self.assertTrue(any(place in flag for flag in added), place)
                added = [flag.replace(place, here) for flag in added]
            with Server(CONFORMANCE / "tiny-rfa", args=["--threads", "1", *added]) as server:
                events = {line["event"]: line for line in map(json.loads, server.log)}
                connected = events["session_store_connected"]
                self.assertEqual((connected["max_memory_policy"], connected["append_only_file"]), ("noeviction", True))
                opened = subprocess.run([BIN_DIR / "rivulet", "sessions", "open", "--target", server.target], capture_output=True, text=True)
                self.assertEqual(opened.returncode, 0, opened.stderr)
            refused = subprocess.run(["redis-cli", "-p", str(redis.port), "get", "rivulet:id"], capture_output=True, text=True)
            self.assertIn("NOAUTH", refused.stdout)

    def environment(self):
        return {variable["name"]: variable.get("value") for variable in container("balancer")["env"]}

    def test_haproxy_knows_every_variable_that_it_is_given(self):
        for variables in (self.environment(), COMPOSE["services"]["balancer"]["environment"]):
            for name in variables:
                self.assertTrue(name in HAPROXY or name == "NAMESPACE", name)
        service = of_kind("replicas", "Service")["metadata"]["name"]
        self.assertTrue(self.environment()["RIVULET_REPLICAS"].startswith(f"{service}.$(NAMESPACE).svc."))


class ComposeTest(unittest.TestCase):
    def replicas(self):
        return {name: service for name, service in COMPOSE["services"].items() if name.startswith("replica-")}

    def test_the_file_keeps_to_the_schema_of_the_compose_specification(self):
        if not COMPOSE_SCHEMA.exists():
            self.skipTest(f"no {COMPOSE_SCHEMA}; deploy/setup.sh --tests installs it")
        schema = json.loads(COMPOSE_SCHEMA.read_text())
        self.assertEqual(schema["title"], "Compose Specification")
        checker = jsonschema.Draft7Validator(schema)
        self.assertEqual([f"{list(error.path)}: {error.message}" for error in checker.iter_errors(COMPOSE)], [])
        self.assertFalse(checker.is_valid({"services": {"a": {"image": "x", "reed_only": True}}}))

    def test_three_replicas_stand_behind_the_balancer(self):
        balancer = COMPOSE["services"]["balancer"]
        targets = [v for k, v in balancer["environment"].items() if k.startswith("RIVULET_REPLICA_")]
        self.assertEqual(targets, [f"{name}:{dockerfile('EXPOSE')}" for name in self.replicas()])
        self.assertEqual(len(targets), 3)
        self.assertEqual(set(balancer["depends_on"]), set(self.replicas()))
        (published,) = [interpolated(entry) for entry in balancer["ports"]]
        self.assertEqual(port(published), port(balancer["environment"]["RIVULET_LISTEN"]))
        self.assertTrue(published.startswith("127.0.0.1:"), "published beyond loopback unless told so")
        for name, replica in self.replicas().items():
            self.assertNotIn("ports", replica, name)
            self.assertTrue(all(COMPOSE["networks"][network]["internal"] for network in replica["networks"]), name)

    def test_a_container_gets_the_time_that_its_end_may_take(self):
        balancer = COMPOSE["services"]["balancer"]
        hard_stop = seconds(balancer["environment"]["RIVULET_HARD_STOP"])
        self.assertEqual(balancer["stop_signal"], "SIGUSR1")
        self.assertGreaterEqual(seconds(balancer["stop_grace_period"]), hard_stop + MARGIN)
        for replica in self.replicas().values():
            server = settings(replica["command"])
            end = server["drain-delay-seconds"] + server["drain-seconds"]
            self.assertEqual(replica["stop_signal"], dockerfile("STOPSIGNAL"))
            self.assertGreaterEqual(seconds(replica["stop_grace_period"]), end + MARGIN)
            self.assertGreaterEqual(hard_stop, server["drain-seconds"])

    def test_the_replicas_share_the_cores(self):
        for name, replica in self.replicas().items():
            self.assertEqual(settings(replica["command"])["threads"], 1, name)  # three replicas: right from 3 cores on
            self.assertIn("${RIVULET_THREADS:-1}", replica["command"], name)

    def test_the_replicas_serve_digits_text_and_chat(self):
        for replica in self.replicas().values():
            models, file = replica["volumes"]
            self.assertIn(f'"--config", "{file["target"]}"', DOCKERFILE)
            served = settings(replica["command"], DEPLOY / interpolated(file["source"]))
            self.assertEqual(served["listen"], settings([])["listen"])
            zoo = [DEPLOY / interpolated(models["source"]) / pathlib.PurePosixPath(model).relative_to(models["target"]) for model in served["model"]]
            self.assertEqual([model.name for model in zoo], ["mnist-linear", "shakespeare-rfa", "shakespeare-chat"])
            for model in zoo:
                self.assertTrue((model / "config.json").exists(), f"{model} is not there")

    def test_containers_have_no_rights(self):
        for name, service in COMPOSE["services"].items():
            self.assertIs(service["read_only"], True, name)
            self.assertEqual(service["cap_drop"], ["ALL"], name)
            self.assertEqual(service["security_opt"], ["no-new-privileges:true"], name)
            for mount in service.get("volumes", []):
                if mount["type"] == "volume":
                    self.assertIn((name, mount["source"]), (("prometheus", "prometheus"), ("redis", "sessions")))
                    self.assertIn(mount["source"], COMPOSE["volumes"])
                    continue
                self.assertIs(mount["read_only"], True, name)
                self.assertTrue((DEPLOY / interpolated(mount["source"])).exists(), mount)

    def test_redis_serves_the_replicas_and_nobody_else(self):
        redis = COMPOSE["services"]["redis"]
        bind, data = redis["volumes"]
        program, config, *options = redis["command"]
        self.assertEqual((program, config), ("redis-server", f"{bind['target']}/redis.conf"))
        self.assertTrue((DEPLOY / bind["source"] / "redis.conf").exists())
        self.assertEqual(options[options.index("--dir") + 1], data["target"])
        self.assertEqual(options[options.index("--protected-mode") + 1], "no")  # else only loopback may connect without a password
        (network,) = redis["networks"]
        self.assertIs(COMPOSE["networks"][network]["internal"], True)
        self.assertEqual([name for name, service in COMPOSE["services"].items() if network in service["networks"]], ["redis", *self.replicas()])
        for name, replica in self.replicas().items():
            self.assertEqual(settings(replica["command"])["session-store"], "redis://redis:6379", name)
            self.assertEqual(replica["depends_on"], {"redis": {"condition": "service_healthy"}}, name)

    def test_a_replica_has_descriptors_for_all_that_haproxy_connects(self):
        (connections,) = re.findall(r"^\s*maxconn (\d+)$", HAPROXY, re.M)
        for replica in self.replicas().values():
            self.assertGreaterEqual(replica["ulimits"]["nofile"], 4 * int(connections))

    def test_prometheus_scrapes_replicas_and_gateway_and_is_published_on_loopback(self):
        service = COMPOSE["services"]["prometheus"]
        options = dict(option.lstrip("-").split("=", 1) for option in service["command"])
        bind, data = service["volumes"]
        path = DEPLOY / bind["source"] / pathlib.PurePosixPath(options["config.file"]).relative_to(bind["target"])
        targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in yaml.safe_load(path.read_text())["scrape_configs"]}
        expected = [f"{name}:{port(settings(replica['command'])['metrics-listen'])}" for name, replica in self.replicas().items()]
        gateway = COMPOSE["services"]["gateway"]
        listen = gateway["command"][gateway["command"].index("--metrics-listen") + 1]
        self.assertEqual(targets, {"rivulet": expected, "rivulet-gateway": [f"gateway:{port(listen)}"]})
        self.assertEqual(options["storage.tsdb.path"], data["target"])
        (published,) = [interpolated(entry) for entry in service["ports"]]
        self.assertTrue(published.startswith("127.0.0.1:"), "published beyond loopback unless told so")
        for scraped in (*self.replicas().values(), gateway):
            self.assertTrue(set(service["networks"]) & set(scraped["networks"]))
        self.assertFalse(all(COMPOSE["networks"][network].get("internal") for network in service["networks"]))

    def test_the_image_and_the_commands_exist(self):
        for replica in self.replicas().values():
            self.assertEqual((DEPLOY / replica["build"]["context"] / "Dockerfile").resolve(), SOURCE_DIR / "Dockerfile")
            program, *arguments = replica["healthcheck"]["test"][1:]
            self.assertEqual((program, port(arguments[-1])), ("rivulet", int(dockerfile("EXPOSE"))))
            done = subprocess.run([BIN_DIR / program, *arguments[:-1], "127.0.0.1:1"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 3, done.stderr)  # good usage, and nobody there
        url = COMPOSE["services"]["balancer"]["healthcheck"]["test"][-1]
        self.assertEqual(url.split("/")[2], haproxy_default("RIVULET_STATS"))
        self.assertIn(f"monitor-uri /{url.split('/')[3]}\n", HAPROXY)


class GatewayTest(unittest.TestCase):
    """deploy/gateway.Dockerfile, and the service of the same name in compose.yaml."""

    PATH = DEPLOY / "gateway.Dockerfile"
    SERVICE = COMPOSE["services"]["gateway"]

    def option(self, name: str) -> str:
        return self.SERVICE["command"][self.SERVICE["command"].index(name) + 1]

    def test_it_is_built_from_files_that_are_in_its_context(self):
        self.assertEqual((DEPLOY / self.SERVICE["build"]["context"]).resolve(), SOURCE_DIR)
        self.assertEqual((SOURCE_DIR / self.SERVICE["build"]["dockerfile"]).resolve(), self.PATH)
        copied = [line.split()[1:-1] for line in self.PATH.read_text().splitlines() if re.match(r"COPY (?!--from)", line)]
        allowed = (DEPLOY / f"{self.PATH.name}.dockerignore").read_text().splitlines()
        for path in (path for paths in copied for path in paths):
            self.assertTrue((SOURCE_DIR / path).exists(), path)
            self.assertIn(f"!{path}", allowed)

    def test_it_has_no_rights_and_ends_in_time(self):
        self.assertEqual(gateway_dockerfile("USER"), dockerfile("USER"))
        self.assertEqual(self.SERVICE["stop_signal"], gateway_dockerfile("STOPSIGNAL"))
        self.assertGreaterEqual(seconds(self.SERVICE["stop_grace_period"]), int(self.option("--drain-seconds")) + MARGIN)

    def test_ports_agree_and_are_published_on_loopback(self):
        exposed = int(gateway_dockerfile("EXPOSE"))
        self.assertEqual(port(json.loads(gateway_dockerfile("ENTRYPOINT"))[-1]), exposed)
        (published,) = [interpolated(entry) for entry in self.SERVICE["ports"]]
        self.assertEqual((published.rpartition(":")[0], port(published)), (f"127.0.0.1:{exposed}", exposed))
        check = json.loads(gateway_dockerfile("HEALTHCHECK").partition("CMD ")[2])
        self.assertEqual(self.SERVICE["healthcheck"]["test"], ["CMD", *check])
        self.assertIn(f"'http://127.0.0.1:{exposed}/health'", check[-1])

    def test_behind_haproxy_it_answers_to_its_own_name_and_loopback_alone(self):
        first, _, *flags = map(interpolated, self.SERVICE["command"])
        self.assertEqual(first, "--target")
        with Replica() as replica, Balancer(replica.target) as balancer, Gateway(balancer.target, *flags) as gateway:
            for host, status in (("gateway:8000", 200), ("localhost:8000", 200), ("127.0.0.1", 200), ("rebound.example:8000", 403)):
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)) as connection:
                    connection.request("GET", "/v1/models", headers={"Host": host})
                    answer = connection.getresponse()
                    self.assertEqual((answer.status, b"tiny-elu-relu" in answer.read()), (status, status == 200), host)

    def test_it_calls_the_balancer_that_it_waits_for(self):
        host, _, target_port = self.option("--target").partition(":")
        self.assertEqual(list(self.SERVICE["depends_on"]), [host])
        balancer = COMPOSE["services"][host]
        self.assertEqual(int(target_port), port(balancer["environment"]["RIVULET_LISTEN"]))
        self.assertTrue(set(self.SERVICE["networks"]) & set(balancer["networks"]))

    def test_the_version_is_that_of_the_project(self):
        (project,) = re.findall(r"project\(rivulet VERSION ([\d.]+)", (SOURCE_DIR / "CMakeLists.txt").read_text())
        self.assertIn(f"ARG VERSION={project}\n", self.PATH.read_text())


class SystemdTest(unittest.TestCase):
    PATH = DEPLOY / "systemd/rivulet.service"
    REPLICAS = DEPLOY / "systemd/replicas.conf"
    CREDENTIALS = DEPLOY / "systemd/credentials.conf"
    GATEWAY = DEPLOY / "systemd/rivulet-gateway.service"
    GATEWAY_CREDENTIALS = DEPLOY / "systemd/gateway-credentials.conf"
    ARGUMENTS = ["--config", "/etc/rivulet/server.json", "$RIVULET_FLAGS"]

    def unit(self, path=PATH):
        parser = configparser.ConfigParser(interpolation=None, strict=path.suffix == ".service")  # ExecStart= clears that of the unit
        parser.optionxform = str
        parser.read_string(path.read_text())
        return parser

    def test_systemd_has_no_complaint(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze is not installed (package systemd)")
        for name, files in (
            ("rivulet.service", {"rivulet.service": self.PATH}),
            ("rivulet.service", {"rivulet.service": self.PATH, "rivulet.service.d/credentials.conf": self.CREDENTIALS}),
            ("rivulet-gateway.service", {"rivulet-gateway.service": self.GATEWAY}),
            ("rivulet-gateway.service", {
                "rivulet-gateway.service": self.GATEWAY, "rivulet-gateway.service.d/credentials.conf": self.GATEWAY_CREDENTIALS,
            }),
            ("rivulet@50051.service", {
                "rivulet@.service": self.PATH, "rivulet@.service.d/replicas.conf": self.REPLICAS,
                "rivulet@.service.d/credentials.conf": self.CREDENTIALS,
            }),
        ):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:  # with a program that exists
                for file, source in files.items():
                    path = pathlib.Path(folder) / file
                    path.parent.mkdir(exist_ok=True)
                    text = source.read_text().replace("/opt/rivulet/bin/rivulet-server", str(BIN_DIR / "rivulet-server"))
                    path.write_text(text.replace("/opt/rivulet/gateway/bin/rivulet-gateway", str(GATEWAY_COMMAND)))
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", pathlib.Path(folder) / name], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                for file in files:
                    self.assertIn(os.path.dirname(file) or file, (DEPLOY / "README.md").read_text())

    def test_replicas_of_one_machine_share_a_directory_as_one_user(self):
        service = self.unit(self.REPLICAS)["Service"]
        program, *arguments = service["ExecStart"].split()
        self.assertEqual([program, *arguments[:3]], self.unit()["Service"]["ExecStart"].split())
        where = settings(["--model", "m", *[word.replace("%i", "50051") for word in arguments[3:]]])
        self.assertEqual((where["listen"], where["session-store"]), ("127.0.0.1:50051", "dir:/var/lib/rivulet/sessions"))
        self.assertEqual(f"/var/lib/{self.unit()['Service']['StateDirectory']}", os.path.dirname(where["session-store"].removeprefix("dir:")))
        self.assertEqual(where["listen"], haproxy_default("RIVULET_REPLICA_1"))
        self.assertEqual(service["User"], "rivulet")

    def test_it_is_given_what_the_server_needs(self):
        service = self.unit()["Service"]
        program, *arguments = service["ExecStart"].split()
        self.assertEqual((pathlib.Path(program).name, arguments), ("rivulet-server", self.ARGUMENTS))
        self.assertEqual(service["Environment"], "RIVULET_FLAGS=")
        self.assertEqual(int(service["LimitNOFILE"]), COMPOSE["services"]["replica-1"]["ulimits"]["nofile"])
        server = settings(["--model", "m"])
        self.assertGreaterEqual(int(service["TimeoutStopSec"]), server["drain-delay-seconds"] + server["drain-seconds"] + MARGIN)
        self.assertEqual(service["RestartPreventExitStatus"], "2")  # what is wrong stays wrong; 3 is worth another try

    def test_the_gateway_has_the_rights_of_the_server_and_needs_none_on_its_machine(self):
        server, unit = self.unit()["Service"], self.unit(self.GATEWAY)
        own = {"Environment", "EnvironmentFile", "ExecStart", "KillMode", "LogsDirectory"}
        without = {"ExecReload", "StateDirectory"}
        self.assertEqual({key: value for key, value in unit["Service"].items() if key not in own},
                         {key: value for key, value in server.items() if key not in own | without})  # fmt: skip
        self.assertLessEqual(own, set(unit["Service"]))
        self.assertIn("rivulet.service", unit["Unit"]["After"].split())
        self.assertNotIn("rivulet.service", f"{unit['Unit'].get('Requires')} {unit['Unit']['Wants']}")

    def test_the_gateway_of_the_unit_starts_with_its_credentials(self):
        service, credentials = self.unit(self.GATEWAY)["Service"], self.unit(self.GATEWAY_CREDENTIALS)["Service"]
        given = dict(word.split("=", 1) for word in shlex.split(f"{service['Environment']} {credentials['Environment']}"))
        program, *variables = service["ExecStart"].split()
        self.assertEqual(pathlib.Path(program).name, GATEWAY_COMMAND.name)
        flags = [flag for variable in variables for flag in given.pop(variable.removeprefix("$")).split()]
        self.assertEqual((given, flags[:1]), ({}, ["--target"]))
        loaded = dict(word.split(":") for word in re.findall(r"^LoadCredential=(.*)$", self.GATEWAY_CREDENTIALS.read_text(), re.M))
        with tempfile.TemporaryDirectory() as folder:
            for made, name in zip(Authority(pathlib.Path(folder), "ca").sign("gateway"), ("gateway.crt", "gateway.key"), strict=True):
                self.assertEqual(loaded[name], f"/etc/rivulet/{name}")
                made.rename(f"{folder}/{name}")
            code, out, err = run_gateway(*[flag.replace("%d", folder) for flag in flags], "--drain-seconds", "a", "--check-config")
            self.assertEqual((code, len((out + err).splitlines())), (2, 1), out + err)  # that of --drain-seconds alone
            self.assertIn("--drain-seconds", out + err)

    def test_credentials_become_files_that_the_flags_name(self):
        service = self.unit(self.CREDENTIALS)["Service"]
        name, _, flags = service["Environment"].strip('"').partition("=")
        self.assertEqual(name, "RIVULET_FLAGS")
        given = settings(["--model", "m", *flags.split()])
        loaded = [word.partition(":") for word in re.findall(r"^LoadCredential=(.*)$", self.CREDENTIALS.read_text(), re.M)]
        self.assertEqual([f"%d/{word}" for word, _, _ in loaded], [given["keys-file"], given["tls-cert"], given["tls-key"]])
        self.assertEqual([where for _, _, where in loaded], [f"/etc/rivulet/{word}" for word, _, _ in loaded])

    def test_logrotate_loses_no_request(self):
        if shutil.which("logrotate", path=os.environ["PATH"] + ":/usr/sbin") is None:
            self.skipTest("logrotate is not installed")
        rules = (DEPLOY / "systemd/logrotate.conf").read_text()
        access = f"/var/log/{self.unit(self.GATEWAY)['Service']['LogsDirectory']}"
        logs, call = f"/var/log/{self.unit()['Service']['LogsDirectory']}", "systemctl try-reload-or-restart rivulet.service"
        self.assertEqual([rules.count(part) for part in (f"{logs}/*.jsonl {{", f"{access}/*.jsonl {{", call)], [1, 1, 1])
        reload = self.unit()["Service"]["ExecReload"]
        self.assertTrue(reload.startswith("sh -c "), reload)  # not the program kill, which small systems lack
        with tempfile.TemporaryDirectory() as folder, Server(CONFORMANCE / "tiny-rfa", args=["--request-log", f"{folder}/requests.jsonl"]) as server:
            path = pathlib.Path(folder, "rules")
            path.write_text(rules.replace(access, f"{folder}/gateway").replace(logs, folder).replace(call, f"export MAINPID={server.process.pid}; {reload}"))
            path.chmod(0o644)  # logrotate reads no others

            def calls(name, tenant):
                """Makes a call of the tenant, and waits until the file has it."""
                done = subprocess.run([BIN_DIR / "rivulet", "generate", "--target", server.target, "--tenant", tenant, "--max-tokens", "1"], capture_output=True)
                self.assertEqual(done.returncode, 0, done)
                end = time.monotonic() + 60
                while time.monotonic() < end and not (name.exists() and f'"tenant":"{tenant}"' in name.read_text()):
                    time.sleep(0.02)
                self.assertIn(f'"tenant":"{tenant}"', name.read_text())

            calls(pathlib.Path(folder, "requests.jsonl"), "before")
            rotate = ["logrotate", "--force", "--state", f"{folder}/state", path]
            done = subprocess.run(rotate, capture_output=True, text=True, env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(pathlib.Path(folder, "requests.jsonl.1").exists())
            calls(pathlib.Path(folder, "requests.jsonl"), "after")


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    for test, reason in result.skipped:
        print(f"skipped: {test.id()}: {reason}")
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
