# SPDX-License-Identifier: Apache-2.0
"""deploy/prometheus with promtool: its files are valid, and every alert fires when it should and only then (alerts_cases.yml, burn_cases.yml)."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from command import SOURCE_DIR

try:
    import yaml
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)
if shutil.which("promtool") is None:
    print("skipped: promtool is not installed; deploy/setup.sh --tests installs it (package prometheus)")
    sys.exit(77)

FOLDER = SOURCE_DIR / "deploy/prometheus"
RULES = [FOLDER / "recording.yml", FOLDER / "alerts.yml"]
CASES = sorted(pathlib.Path(__file__).parent.glob("*_cases.yml"))
LIMIT = 120  # seconds; all cases take 5 on a quiet machine


def promtool(*args):
    done = subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, timeout=LIMIT)
    return done.returncode, done.stdout + done.stderr


def rules(path):
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


class AlertsTest(unittest.TestCase):
    def test_promtool_accepts_the_files(self):
        self.assertEqual(promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)[0], 0)
        configurations = [path for path in FOLDER.glob("*.yml") if path not in RULES]
        self.assertGreater(len(configurations), 0)
        for path in configurations:
            # Debian's Prometheus is built without the discovery of Kubernetes.
            configuration = yaml.safe_load(path.read_text())
            names = [job["job_name"] for job in configuration["scrape_configs"]]
            self.assertIn(names, (["rivulet"], ["rivulet", "rivulet-gateway"]))
            for job in configuration["scrape_configs"]:
                job.pop("kubernetes_sd_configs", None)
            configuration["rule_files"] = [str(FOLDER / name) for name in configuration["rule_files"]]
            with tempfile.NamedTemporaryFile("w", suffix=".yml") as checked:
                yaml.safe_dump(configuration, checked)
                checked.flush()
                code, text = promtool("check", "config", checked.name)
            self.assertEqual(code, 0, text)
            self.assertIn(f"SUCCESS: {len(RULES)} rule files found", text)

    def test_the_cases_pass(self):
        code, text = promtool("test", "rules", *CASES)
        self.assertEqual(code, 0, text)

    def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(self):
        fires, quiet = set(), set()
        for path in CASES:
            for group in yaml.safe_load(path.read_text())["tests"]:
                for case in group.get("alert_rule_test", []):
                    (fires if case["exp_alerts"] else quiet).add(case["alertname"])
        alerts = [rule["alert"] for rule in rules(FOLDER / "alerts.yml")]
        self.assertEqual(len(alerts), len(set(alerts)))
        self.assertEqual((fires, quiet), (set(alerts), set(alerts)))

    def test_every_alert_says_who_should_act_and_when(self):
        for rule in rules(FOLDER / "alerts.yml"):
            self.assertIn(rule["labels"]["severity"], ("page", "ticket"), rule["alert"])
            self.assertEqual(set(rule["annotations"]), {"summary", "runbook_url"}, rule["alert"])


if __name__ == "__main__":
    unittest.main()
