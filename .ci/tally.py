"""Run the test suites and close with 'N passed, N failed, N skipped'.

Usage: tally.py go|sdk ...  Exits 1 if anything failed or nothing ran.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_go(counts):
    """Go tests, one event a line; only failures and skips are shown."""
    command = ["go", "test", "-json", "-timeout", "15m", "./..."]
    proc = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    output = {}
    for line in proc.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            print(line, end="")
            continue
        key = (event.get("Package") or event.get("ImportPath"), event.get("Test"))
        action = event["Action"]
        if action in ("output", "build-output"):
            output.setdefault(key, []).append(event["Output"])
        elif action in ("pass", "fail", "skip"):
            text = "".join(output.pop(key, []))
            if key[1]:
                counts[action] += 1
                if action != "pass":
                    print(f"--- {action}: {key[0]} {key[1]}\n{text}", end="")
            else:
                print(f"{action:4} {key[0]} {event.get('Elapsed', 0):.1f} s")
                if action == "fail":
                    print(text, end="")
        elif action == "build-fail":
            counts["fail"] += 1
            print(f"--- build failed: {key[0]}\n{''.join(output.pop(key, []))}", end="")
    if proc.wait() != 0 and counts["fail"] == 0:
        counts["fail"] += 1
        print("go test failed outside of any test")


def run_sdk(counts):
    """The official SDK's tests against the built binary."""
    python = ROOT / ".venv" / "bin" / "python"
    env = dict(os.environ, SMOLGYM_BIN=str(ROOT / "bin" / "smolgym"))
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-q", "-rs", "--durations=10", f"--junitxml={report}", "testdata/sdk"]
        code = subprocess.call(command, cwd=ROOT, env=env)
        if not report.exists():
            counts["fail"] += 1
            print(f"pytest ended with {code} and no report")
            return
        for case in ET.parse(report).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                counts["fail"] += 1
            elif "skipped" in kinds:
                counts["skip"] += 1
            else:
                counts["pass"] += 1
        if code not in (0, 1) and counts["fail"] == 0:
            counts["fail"] += 1
            print(f"pytest ended with {code}")


def main(suites):
    began = time.monotonic()
    counts = {"pass": 0, "fail": 0, "skip": 0}
    for suite in suites:
        {"go": run_go, "sdk": run_sdk}[suite](counts)
    print(f"in {time.monotonic() - began:.0f} s")
    print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    return 1 if counts["fail"] or not counts["pass"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
