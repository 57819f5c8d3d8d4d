# SPDX-License-Identifier: Apache-2.0
"""Breaks what alerts are about, for real: Prometheus with the configuration of deploy/compose.yaml and the alerts of deploy/ watches a
server, its Redis and a gateway in front of it, which end one after another. Only the time for which a condition must hold is shorter."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from gateway import Gateway

from command import CONFORMANCE, Server, rivulet
from prometheus_test import DEPLOY, LIMIT, Prometheus, free_address, yaml

if shutil.which("redis-server") is None:
    print("skipped: redis-server is not installed; deploy/setup.sh --tests installs it")
    sys.exit(77)

MODEL = CONFORMANCE / "tiny-elu-relu"
GATEWAY_ALERTS = {"RivuletNoGateway", "RivuletGatewayDown"}


def configuration(folder, replica, gateway):
    """That of Compose, with one replica and one gateway."""
    alerts = (DEPLOY / "prometheus/alerts.yml").read_text()
    (folder / "alerts.yml").write_text(re.sub(r"\bfor: \w+", "for: 1s", alerts))
    shutil.copy(DEPLOY / "prometheus/recording.yml", folder)
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus-compose.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job, address in zip(config["scrape_configs"], (replica, gateway), strict=True):
        job["static_configs"] = [{"targets": [address]}]
    return config


class BrokenTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.redis_address = free_address()
        self.redis = self.start_redis()
        self.server = self.enterContext(Server(MODEL, args=["--backend", "cpu", "--threads", "1", "--metrics-listen", "127.0.0.1:0",
                                                            "--session-store", f"redis://{self.redis_address}"]))
        self.gateway = self.enterContext(Gateway(self.server.target, "--metrics-listen", "127.0.0.1:0"))
        self.prometheus = Prometheus(configuration(self.folder, self.server.metrics, f"127.0.0.1:{self.gateway.metrics}"), self.folder)
        self.addCleanup(self.prometheus.end)

    def start_redis(self):
        process = subprocess.Popen(["redis-server", "--port", self.redis_address.rpartition(":")[2], "--bind", "127.0.0.1", "--save", "",
                                    "--dir", self.folder], stdout=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def firing(self):
        data = self.prometheus.get("alerts")
        return {alert["labels"]["alertname"] for alert in data["alerts"] if alert["state"] == "firing"} if data else set()

    def await_true(self, what, condition):
        end = time.monotonic() + LIMIT
        while not condition():
            self.assertLess(time.monotonic(), end, f"not within {LIMIT} s: {what}; firing: {self.firing()}")
            time.sleep(0.2)

    def ask(self):
        body = json.dumps({"model": MODEL.name, "prompt": [1], "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{self.gateway.url}/v1/completions", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def test_alerts_fire_without_traffic_and_end(self):
        connected = lambda: self.prometheus.values("rivulet_session_store_connected")
        self.await_true("both are scraped", lambda: connected() == [1] and self.prometheus.values("rivulet_gateway_server_serving") == [1])
        self.await_true("all is well", lambda: self.firing() == set())

        self.redis.kill()
        self.await_true("Redis is away", lambda: self.firing() == {"RivuletSessionStoreAway"})
        self.start_redis()
        self.await_true("it is back", lambda: self.firing() == set())

        # A failed call among a few is no burnt budget, neither slowly nor fast.
        self.redis_down_again()
        refused = rivulet("sessions", "open", "--target", self.server.target)
        self.assertNotEqual(refused.code, 0, refused)
        failed = 'job:rivulet_calls_failed:ratio3d{job="rivulet"}'
        seen = f"count_over_time(({failed} > 0.001)[1m:1s])"
        self.await_true("several evaluations see it", lambda: max(self.prometheus.values(seen), default=0) > 5)
        self.assertFalse(any("Budget" in name for name in self.firing()), self.firing())

        self.assertEqual(self.ask(), 200)
        self.server.process.kill()
        self.await_true("no server", lambda: {"RivuletGatewayServerAway", "RivuletNoReplica"} <= self.firing())
        self.assertNotIn("RivuletGatewayErrors", self.firing())

        def errors():
            self.assertEqual(self.ask(), 503)
            return "RivuletGatewayErrors" in self.firing()

        self.await_true("answers of 503", errors)
        self.assertFalse(GATEWAY_ALERTS & self.firing())
        self.gateway.process.kill()
        self.await_true("no gateway", lambda: GATEWAY_ALERTS <= self.firing())

    def redis_down_again(self):
        subprocess.run(["redis-cli", "-p", self.redis_address.rpartition(":")[2], "shutdown", "nosave"], capture_output=True)
        self.await_true("Redis is away", lambda: self.firing() == {"RivuletSessionStoreAway"})


if __name__ == "__main__":
    unittest.main()
