#!/usr/bin/env python3
"""What .ci/count counts, and when it fails, on logs as Meson writes them. TAP."""
import json
import pathlib
import subprocess
import sys
import tempfile

COUNT = pathlib.Path(__file__).resolve().parents[2] / ".ci/count"
TAP = "TAP version 13\n1..3\nok 1 - a\nnot ok 2 - b\nok 3 - c # SKIP no d\n"

# what, tests in the log (None: no log), problems, the last line, exit code
CASES = [
    ("a plain test is one", [("OK", "")], [], "1 passed, 0 failed, 0 skipped", 0),
    ("TAP counts by subtest", [("ERROR", TAP)], [],
     "1 passed, 1 failed, 1 skipped", 1),
    ("nested subtests do not count",
     [("OK", "1..1\n    1..2\n    ok 1\n    ok 2\nok 1 - all\n")], [],
     "1 passed, 0 failed, 0 skipped", 0),
    ("a program that died is a failure", [("ERROR", "1..3\nok 1\n")], [],
     "1 passed, 1 failed, 0 skipped", 1),
    ("a time-out is a failure", [("TIMEOUT", None), ("OK", "")], [],
     "1 passed, 1 failed, 0 skipped", 1),
    ("a build that failed is a failure", [("OK", "")], ["clang"],
     "1 passed, 1 failed, 0 skipped", 1),
    ("no log is a failure", None, [], "0 passed, 1 failed, 0 skipped", 1),
    ("all skipped is a failure", [("SKIP", "1..0 # SKIP\n")], [],
     "0 passed, 1 failed, 0 skipped", 1),
]


def count(tests, problems):
    with tempfile.TemporaryDirectory() as build:
        if tests is not None:
            log = pathlib.Path(build) / "meson-logs/testlog.json"
            log.parent.mkdir()
            log.write_text("".join(json.dumps(
                {"name": "t", "result": r, "stdout": s}) + "\n"
                for r, s in tests))
        run = subprocess.run(
            [sys.executable, COUNT, str(len(problems)), *problems, build],
            capture_output=True, text=True)
        return run.stdout.splitlines()[-1:], run.returncode, run.stderr


def main():
    print(f"TAP version 13\n1..{len(CASES)}")
    bad = 0
    for n, (what, tests, problems, line, code) in enumerate(CASES, 1):
        got = count(tests, problems)
        is_right = got[:2] == ([line], code)
        bad += not is_right
        print(f"{'ok' if is_right else 'not ok'} {n} - {what}")
        if not is_right:
            print(f"# {got}")
    return 1 if bad else 0


sys.exit(main())
