# SPDX-License-Identifier: Apache-2.0
"""Prometheus, as deploy/prometheus/prometheus-kubernetes.yml configures it, scrapes a server under load: every query of deploy/grafana/dashboard.json
has a finite answer, the rules work, and the autoscaler of deploy/k8s gets its metric."""

import itertools
import json
import math
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from gateway import Gateway

from command import BIN_DIR, CONFORMANCE, SOURCE_DIR, CommandTest, Server, rivulet

try:
    import yaml
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)
if shutil.which("prometheus") is None:
    print("skipped: prometheus is not installed; deploy/setup.sh --tests installs it")
    sys.exit(77)

MODEL = CONFORMANCE / "tiny-elu-relu"
PROMPT = ",".join(str(1 + i % 36) for i in range(40))
POD = "rivulet-replica-0"
LIMIT = 120  # seconds that anything awaited may take
DEPLOY = SOURCE_DIR / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
# What Grafana would put in their places.
VARIABLES = {"model": ".+", "instance": ".+", "__rate_interval": "30s"}
# Panels that show 0 here, because nothing of the kind happens. Every other one must show something else.
ZERO = {"Age of the last run", "Queue", "Oldest wait", "Replies without slots", "Preemptions", "States lost", "Refused and cut",
        "Share of calls that failed because of the server", "Connections refused and closed", "HTTP answers of 5xx",
        "HTTP connections and requests", "HTTP connections refused and closed", "Lines of the access log lost", "Sessions taken over", "Failures of the store"}


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expression(target):
    return re.sub(r"\$(\w+)", lambda name: VARIABLES[name.group(1)], target["expr"])


def discovered(address, port_name, file="replicas"):
    """A target as the discovery of Kubernetes would give it for a pod of a file in deploy/k8s."""
    (template,) = [manifest["spec"]["template"] for manifest in yaml.safe_load_all((DEPLOY / f"k8s/{file}.yaml").read_text())
                   if manifest["kind"] == "Deployment"]
    labels = {"namespace": "default", "pod_name": POD, "pod_container_port_name": port_name}
    for kind in ("label", "annotation"):
        for name, value in template["metadata"][f"{kind}s"].items():
            labels[f"pod_{kind}_" + re.sub(r"\W", "_", name)] = value
    return {"targets": [address], "labels": {f"__meta_kubernetes_{name}": value for name, value in labels.items()}}


def configuration(target, gateway):
    """That of deploy/k8s. `target` and `gateway` are the metrics ports of the only pod."""
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus-kubernetes.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    for job in config["scrape_configs"]:
        del job["kubernetes_sd_configs"]  # Debian's Prometheus is built without
        job["static_configs"] = [discovered(target, "metrics"), discovered(gateway, "gateway-metrics", "gateway"), discovered("127.0.0.1:1", "grpc")]
    return config


class Prometheus:
    def __init__(self, config, folder):
        path = pathlib.Path(folder) / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        self.start([f"--config.file={path}", f"--storage.tsdb.path={folder}/data"])

    def start(self, flags):
        """Returns once it is ready. It cannot choose a port itself, so another process may take the one that is free now."""
        for _ in range(5):
            self.address = free_address()
            command = ["prometheus", *flags, f"--web.listen-address={self.address}"]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            end = time.monotonic() + LIMIT
            while self.process.poll() is None and time.monotonic() < end:
                if self.get("status/buildinfo") is not None:
                    return
                time.sleep(0.1)
            self.end()
        raise RuntimeError("Prometheus ends, or does not answer, on five ports")

    def get(self, path, **parameters):
        """`data` of the answer, or None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                return None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            return None

    def values(self, query):
        data = self.get("query", query=query)
        return [float(sample["value"][1]) for sample in data["result"]] if data else []

    def end(self):
        self.process.kill()
        self.process.wait()


class PrometheusTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.server = cls.enterClassContext(Server(MODEL, args=["--metrics-listen", "127.0.0.1:0", "--backend", "cpu", "--threads", "1",
                                                               "--slots", "4", "--state-dir", f"{folder}/states",
                                                               "--session-store", f"dir:{folder}/sessions"]))
        # Its log of the errors would fill the pipe.
        threading.Thread(target=cls.server.process.stderr.read, daemon=True).start()
        cls.gateway = cls.enterClassContext(Gateway(cls.server.target, "--metrics-listen", "127.0.0.1:0"))
        cls.prometheus = Prometheus(configuration(cls.server.metrics, f"127.0.0.1:{cls.gateway.metrics}"), folder)
        cls.addClassCleanup(cls.prometheus.end)
        cls.session = cls.run_command("sessions", "open").out.strip()
        cls.ended = threading.Event()
        cls.load = threading.Thread(target=cls.make_load)
        cls.load.start()
        cls.addClassCleanup(cls.load.join)
        cls.addClassCleanup(cls.ended.set)
        # Long replies one after the other, so that most scrapes find a slot in use.
        bench = subprocess.Popen([BIN_DIR / "rivulet", "bench", "--target", cls.server.target, "--model-name", MODEL.name, "--tokens", "1",
                                  "--max-tokens", "100000", "--duration", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(bench.wait)
        cls.addClassCleanup(bench.kill)

    @classmethod
    def run_command(cls, *args):
        return rivulet(*args, "--target", cls.server.target, "--model-name", MODEL.name)

    @classmethod
    def make_load(cls):
        """Replies with the prompt cache, errors and a session, one after the other, until the tests have ended."""
        for i in itertools.count():
            if cls.ended.wait(0.2):
                return
            cls.run_command("generate", "--tokens", PROMPT, "--max-tokens", "20", "--cache", "--seed", i)
            cls.run_command("generate", "--tokens", "1", "--max-tokens", "1", "--temperature", "-1")
            with urllib.request.urlopen(f"{cls.gateway.url}/v1/models", timeout=LIMIT) as answer:
                answer.read()
            cls.run_command("generate", "--session", cls.session, "--tokens", "1", "--max-tokens", "2")

    def awaited(self, what, attempt, good):
        """The first result of `attempt` that is `good`."""
        end = time.monotonic() + LIMIT
        while not good(result := attempt()):
            self.assertLess(time.monotonic(), end, f"not within {LIMIT} s: {what}; last: {result}")
            self.assertIsNone(self.prometheus.process.poll(), "Prometheus has ended")
            time.sleep(0.1)
        return result

    def test_it_scrapes_the_pod_once_under_its_name(self):
        for job in ("rivulet", "rivulet-gateway"):
            self.awaited("up", lambda job=job: self.prometheus.values(f'up{{job="{job}"}}'), lambda values: values == [1])
        self.assertEqual(self.prometheus.values(f'up{{job="rivulet",namespace="default",pod="{POD}",instance="{POD}"}}'), [1])
        self.awaited("tokens of replies", lambda: self.prometheus.values("rivulet_generated_tokens_total"), lambda values: values and values[0] > 20)

    def test_every_query_of_the_dashboard_has_an_answer(self):
        self.assertGreater(len(panels()), 30)
        self.assertEqual(ZERO - {panel["title"] for panel in panels()}, set())
        for panel in panels():
            for target in panel["targets"]:
                query = expression(target)
                with self.subTest(panel=panel["title"], query=query):

                    def good(values, title=panel["title"]):
                        return values and all(map(math.isfinite, values)) and (title in ZERO or any(values))

                    self.awaited("a finite answer" + (", not 0" if panel["title"] not in ZERO else ""), lambda q=query: self.prometheus.values(q), good)

    def test_the_errors_of_clients_are_seen_by_reason(self):
        (panel,) = [panel for panel in panels() if panel["title"] == "Errors by reason"]

        def seen():
            data = self.prometheus.get("query", query=expression(panel["targets"][0]))
            return {sample["metric"]["reason"] for sample in data["result"]} if data else set()

        self.awaited("the error that was provoked", seen, lambda reasons: "INVALID_SAMPLING" in reasons)

    def test_variables_have_values(self):
        expected = {"model": [MODEL.name], "instance": [POD]}
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
                self.awaited(variable["name"], lambda m=metric, n=label: self.prometheus.get(f"label/{n}/values", **{"match[]": m}),
                             lambda values, v=variable: values == expected[v["name"]])
        self.assertEqual({v["name"] for v in DASHBOARD["templating"]["list"]}, {"datasource", *expected})

    def test_the_autoscaler_gets_its_metric(self):
        (rule,) = yaml.safe_load((DEPLOY / "k8s/autoscaling/adapter-values.yaml").read_text())["rules"]["custom"]
        (metric,) = yaml.safe_load((DEPLOY / "k8s/autoscaling/autoscaler.yaml").read_text())["spec"]["metrics"]
        series, matchers = rule["seriesQuery"].rstrip("}").split("{")
        self.assertEqual(re.sub(rule["name"]["matches"], rule["name"]["as"].replace("$1", r"\1"), series), metric["pods"]["metric"]["name"])
        # As prometheus-adapter fills its template for the pods of a Deployment.
        query = (rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.GroupBy>>", "pod")
                 .replace("<<.LabelMatchers>>", f'namespace="default",pod=~"{POD}",{matchers}'))
        self.awaited(query, lambda: self.prometheus.values(query), lambda values: len(values) == 1 and 0 < values[0] <= 2)

    def test_rules_are_evaluated_and_a_healthy_server_raises_no_alert(self):
        def rules():
            data = self.prometheus.get("rules")
            return [rule for group in data["groups"] for rule in group["rules"]] if data else []

        found = self.awaited("every rule is evaluated", rules, lambda rules: rules and all(rule["health"] != "unknown" for rule in rules))
        self.assertEqual([(rule["name"], rule["lastError"]) for rule in found if rule["health"] != "ok"], [])
        self.assertEqual(sum(rule["type"] == "alerting" for rule in found), (DEPLOY / "prometheus/alerts.yml").read_text().count("- alert:"))
        self.assertEqual([rule["name"] for rule in found if rule.get("state") == "firing"], [])


if __name__ == "__main__":
    unittest.main()
