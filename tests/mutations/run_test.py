#!/usr/bin/env python3
"""The runner of broken trees, on a small tree of its own: it says ok to a
patch that a test notices, and not ok to every other kind. TAP."""
import difflib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

TREE = {
    ".gitignore": "/build/\n",
    "meson.build": """project('toy', 'c')
test('sum', executable('sum', 'sum.c'))
test('always_red', executable('red', 'red.c'))
""",
    "meson_options.txt": "option('tests', type: 'feature')\n",
    "sum.c": "int main(int argc, char **argv) {\n"
             "  (void)argv;\n  return argc - 1;\n}\n",
    "red.c": "int main(void) {\n  return 1;\n}\n",
}


def patch(test, before, after, file="sum.c"):
    was = TREE[file].splitlines(True)
    now = [line.replace(before, after) for line in was]
    if now == was:  # a patch for a tree of another time
        was = ["int before;\n", before + "\n", "int after;\n"]
        now = [line.replace(before, after) for line in was]
    head = (f"# test: {test}\n" if test else "") + "# why: a reason\n"
    return head + "".join(difflib.unified_diff(
        was, now, f"a/{file}", f"b/{file}"))


# name, patch, what the runner says, a word of its explanation
PATCHES = [
    ("01-noticed", patch("sum", "  return argc - 1;", "  return argc;"),
     "ok", ""),
    ("02-not-noticed", patch("sum", "  (void)argv;", "  (void)*argv;"),
     "not ok", "passes"),
    ("03-stale", patch("sum", "  return argc - 7;", "  return argc;"),
     "not ok", "does not apply"),
    ("04-broken", patch("sum", "  return argc - 1;", "  return nothing;"),
     "not ok", "does not build"),
    ("05-red-anyway", patch("always_red", "  return 1;", "  return 2;",
                            "red.c"), "not ok", "without the patch"),
    ("06-unknown", patch("other", "  return argc - 1;", "  return argc;"),
     "not ok", "no test"),
    ("07-noticed-after-those", patch("sum", "  return argc - 1;",
                                     "  return argc + 1;"), "ok", ""),
    ("08-arguments", patch("sum --flag", "  return argc - 1;",
                           "  return argc;"), "not ok", "without the patch"),
]


def run_in_toy_tree(patches):
    """The runner's exit code and its output, by test number."""
    with tempfile.TemporaryDirectory() as top:
        top = pathlib.Path(top)
        (top / "tests/mutations").mkdir(parents=True)
        shutil.copy(HERE / "run", top / "tests/mutations/run")
        for name, text in TREE.items():
            (top / name).write_text(text)
        for name, text, *_ in patches:
            (top / f"tests/mutations/{name}.patch").write_text(text)
        subprocess.run(["git", "init", "-q", str(top)], check=True)
        run = subprocess.run(
            [sys.executable, top / "tests/mutations/run", "--work",
             top / "build/work"], capture_output=True, text=True)
        told = re.split(r"^(?=(?:not )?ok \d)", run.stdout, flags=re.M)
        untouched = all((top / n).read_text() == t for n, t in TREE.items())
        return run.returncode, told[1:], untouched, run.stderr


def main():
    checks = []
    code, told, untouched, err = run_in_toy_tree(PATCHES)
    checks.append(("the tree itself is not touched", untouched, err))
    checks.append(("it fails as a whole, after the last one",
                   code == 1 and len(told) == 1 + len(PATCHES),
                   f"exit {code} {err}"))
    for (name, _, verdict, word), got in zip(PATCHES, told[1:]):
        checks.append((f"{name}: {verdict} {word}",
                       got.startswith(verdict + " ") and word in got, got))
    code, told, _, err = run_in_toy_tree([])
    checks.append(("no patch at all is fine", code == 0 and len(told) == 1,
                   f"exit {code} {told} {err}"))
    nameless = ("01-nameless", patch("", "  (void)argv;", "  (void)*argv;"))
    code, told, _, _ = run_in_toy_tree([nameless])
    checks.append(("a patch that names no test is told",
                   code == 1 and told[0].startswith("not ok 1 "), f"{told}"))
    print(f"TAP version 13\n1..{len(checks)}")
    for n, (title, is_right, output) in enumerate(checks, 1):
        print(f"{'ok' if is_right else 'not ok'} {n} - {title}")
        if not is_right:
            print("\n".join(f"# {line}" for line in output.splitlines()))
    return 0 if all(c[1] for c in checks) else 1


sys.exit(main())
