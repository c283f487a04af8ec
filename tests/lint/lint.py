#!/usr/bin/env python3
"""The rules that a script can check, so that nobody needs to discuss them.

  lint.py [TREE]

Prints TAP, one test a rule. A rule is a function that takes the tree and
returns a list of problems, each a line for a person: empty means kept. Files
are those that git knows or would add, so a build directory never matters.

Words that the rules forbid are put together from pieces here, so that this
file keeps the rules too.
"""
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

# Layers from the bottom up; a file's layer is found by the first part of its
# name, or by its folder where the folder is one layer.
LAYERS = [
    ("base", "base view list buf log metric clock siphash"),
    ("defer", "defer"),
    ("evio", "evio"),
    ("sock", "sock tls"),
    ("facil", "facil"),
    ("carriers", "http ws websocket sse utf8"),
    ("pubsub", "pubsub channel tail message pattern identity engine json"),
    ("dialects", "dialect dialects"),
    ("broker", "broker crier ring store config cli auth supervise reload main"),
]
RANK_OF_WORD = {w: n for n, (_, words) in enumerate(LAYERS)
                for w in words.split()}
RANK_OF_FOLDER = {
    "protocols/http": 5, "protocols/websocket": 5, "protocols/sse": 5,
    "protocols/pubsub": 6, "protocols/dialects": 7, "src/broker": 8,
}
MADE_BY_THE_BUILD = {"assets.h", "dialects.h"}

BANNED = "sprintf strcpy strcat gets atoi system popen".split()
UNFINISHED = ["TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK"]
REGISTRIES = ["npm" "js.org", "npm" "js.com", "yarn" "pkg.com", "deb.deb" "ian.org",
              "snapshot.deb" "ian.org", "security.deb" "ian.org", "py" "pi.org",
              "python" "hosted.org", "crates" ".io", "docker" ".io", "gh" "cr.io",
              "proxy.go" "lang.org", "node" "source.com"]
SKIPS = [r"\bcr_" r"skip", r"\.dis" r"abled\s*=\s*(true|1)",
         r"\b(it|test|describe|suite|context|t)\.(sk" r"ip|to" r"do|on" r"ly)\b",
         r"\b(sk" r"ip|to" r"do)\s*:\s*(true|['\"`])", r"unittest\.sk" r"ip",
         r"pytest\.(mark\.)?sk" r"ip", r"\.sk" r"ipTest\b"]

C_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wpedantic",
           "-Werror", "-fsyntax-only"]
NOT_OURS = ("tests/bench/", "subprojects/")  # their layout is their own


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.files = sorted(f for f in self._list()
                            if (self.root / f).is_file())
        self._text = {}

    def _list(self):
        git = subprocess.run(
            ["git", "-C", str(self.root), "ls-files", "-co",
             "--exclude-standard"], capture_output=True, text=True)
        if git.returncode == 0:
            return set(git.stdout.splitlines())
        found = set()
        for folder, folders, names in os.walk(self.root):
            folders[:] = [d for d in folders if d not in
                          (".git", "node_modules", "__pycache__")
                          and not d.startswith("build")]
            found |= {str((pathlib.Path(folder) / n).relative_to(self.root))
                      for n in names}
        return found

    def named(self, *patterns, under=("",)):
        return [f for f in self.files if f.endswith(patterns)
                and f.startswith(tuple(under))]

    def text(self, name):
        """A file's text; empty for one that is not text."""
        if name not in self._text:
            data = (self.root / name).read_bytes()
            self._text[name] = ("" if b"\0" in data
                                else data.decode("utf-8", "replace"))
        return self._text[name]

    def grep(self, pattern, names):
        rx = re.compile(pattern)
        for name in names:
            for n, line in enumerate(self.text(name).splitlines(), 1):
                if rx.search(line):
                    yield name, n, line.strip()


def code_only(text):
    """C without comments and without the insides of strings; lines stay."""
    def blank(m):
        s = m.group(0)
        return s[0] + s[-1] if s[0] in "\"'" else "\n" * s.count("\n") or " "
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
                  blank, text, flags=re.S)


# --- the rules ---------------------------------------------------------------

def rank_of(name):
    """The layer of a file, or None for one that no layer claims."""
    folder, base = os.path.split(name)
    if folder in RANK_OF_FOLDER:
        return RANK_OF_FOLDER[folder]
    rank = RANK_OF_WORD.get(re.split(r"[_.]", base)[0])
    if rank is None and name.startswith("src/core/") and base.endswith(".h"):
        return RANK_OF_WORD["facil"]  # a header that all of the core shares
    return rank


def includes_of(tree, name):
    return re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]',
                      tree.text(name), re.M)


def is_above(name, other):
    """Whether `other` lies in a layer above that of `name`."""
    mine, its = rank_of(name), rank_of(other)
    return its is None or its > mine


def include_problem(tree, name, kind, path):
    """What is wrong with this include in `name`, or None."""
    if path.startswith("facil/"):
        if "include/" + path not in tree.files:
            return f"there is no {path}"
        if is_above(name, "include/" + path):
            return f"{path} is of a higher layer: arrows point down only"
    elif kind == '"' and not (path in MADE_BY_THE_BUILD
                              and rank_of(name) >= RANK_OF_WORD["dialects"]):
        if "/" in path or f"{os.path.dirname(name)}/{path}" not in tree.files:
            return f"{path} is neither public nor of the same folder"
    return None


def includes_point_down(tree):
    """a file includes the public headers of its own and of lower layers, and
    its own folder's private ones"""
    problems = []
    for name in tree.named(".c", ".h", under=("src/", "protocols/",
                                              "include/")):
        if rank_of(name) is None:
            problems.append(f"{name}: in no layer: see LAYERS in lint.py")
            continue
        for kind, path in includes_of(tree, name):
            problem = include_problem(tree, name, kind, path)
            if problem:
                problems.append(f"{name}: {problem}")
    return problems


def headers_compile_alone(tree):
    """each header is its own manual and needs no other before it"""
    cc = os.environ.get("CC") or "cc"
    flags = subprocess.run(["pkg-config", "--cflags", "openssl", "jansson"],
                           capture_output=True, text=True).stdout.split()
    problems = []
    for name in tree.named(".h", under=("include/", "src/", "protocols/")):
        run = subprocess.run(
            [*cc.split(), *C_FLAGS, f"-I{tree.root}/include",
             "-isystem", "/usr/share/include/llhttp", *flags,
             "-x", "c", "-"], capture_output=True, text=True,
            input=f'#include "{tree.root / name}"\n'
                  "typedef int a_translation_unit_is_not_empty;\n")
        if run.returncode:
            problems.append(f"{name}: {run.stderr.strip().splitlines()[0]}")
    return problems


def no_banned_calls(tree):
    """calls that cannot be used safely, or that we do not need"""
    rx = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(BANNED))
    problems = []
    for name in tree.named(".c", ".h", under=("src/", "protocols/", "include/")):
        for n, line in enumerate(code_only(tree.text(name)).splitlines(), 1):
            if rx.search(line):
                problems.append(f"{name}:{n}: {line.strip()}")
    return problems


def formatter():
    """clang-format of the version that the tree is formatted with."""
    for tool in ("clang-format-14", "clang-format"):
        if shutil.which(tool):
            out = subprocess.run([tool, "--version"], capture_output=True,
                                 text=True).stdout
            if "version 14." in out:
                return tool
    return None


def is_formatted(tree):
    """clang-format has nothing to change"""
    tool = formatter()
    names = [f for f in tree.named(".c", ".h") if not f.startswith(NOT_OURS)]
    if not tool or not names:
        return []
    run = subprocess.run([tool, "--dry-run", "--ferror-limit=0", *names],
                         cwd=tree.root, capture_output=True, text=True)
    bad = re.findall(r"^(\S+?):(\d+):\d+: (?:warning|error)", run.stderr, re.M)
    counts = {}
    for name, line in bad:
        counts.setdefault(name, []).append(line)
    return [f"{name}: {len(lines)} places, first in line {lines[0]}"
            for name, lines in sorted(counts.items())]


def no_registry_names(tree):
    """what is fetched comes by the machine's own settings"""
    names = "|".join(re.escape(r) for r in REGISTRIES)
    problems = [f"{f}:{n}: {line[:100]}" for f, n, line in tree.grep(
        rf"(?i)({names})|\bregistry\s*=", tree.files)]
    locks = [f for f in tree.files if f.endswith(
        ("package-lock.json", "npm-shrinkwrap.json", "yarn.lock"))]
    problems += [f"{f}:{n}: a download address" for f, n, _ in
                 tree.grep(r'"?resolved"?\s*[:"]|https?://[^"]*\.tgz', locks)]
    return problems


def cases_have_tests(tree):
    """each id in tests/lint/cases.txt is named by a test"""
    listing = "tests/lint/cases.txt"
    if listing not in tree.files:
        return [f"{listing} is missing"]
    wanted = re.sub(r"#.*", "", tree.text(listing)).split()
    where = [f for f in tree.named(
        ".c", ".h", ".py", ".js", ".mjs", ".sh", ".build", under=("tests/",))
        if not f.startswith(("tests/lint/", "tests/bench/"))]
    text = "\n".join(tree.text(f) for f in where)
    named = {m.upper() for m in re.findall(
        r"(?<![A-Za-z0-9])([A-Za-z]\d\d)(?![A-Za-z0-9])", text)}
    return [f"no test names {case}" for case in wanted if case not in named]


def no_unfinished_words(tree):
    """an issue is the place for what is not done"""
    words = "|".join(UNFINISHED)
    return [f"{f}:{n}: {line[:100]}" for f, n, line in tree.grep(
        rf"(?<![A-Za-z])({words})(?![A-Za-z])", tree.files)
        if not f.endswith("package-lock.json")]


def no_skipped_tests(tree):
    """a test that does not run is not a test"""
    names = [f for f in tree.named(".c", ".h", ".py", ".js", ".mjs",
                                   under=("tests/",))]
    return [f"{f}:{n}: {line[:100]}" for f, n, line in tree.grep(
        "|".join(SKIPS), names)]


SEED_TABLE = "src/core/README.md"
SEED_ROW = r"^\| (?!seed \|)([^|]+) \| ([^|]+) \|[^|]*\|$"
NAME = r"`\.?(\w+)`"


def seed_problem(names, now, public):
    """What is wrong with a row that tells what became of `names`, or None."""
    if now == "here":
        missing = [n for n in names if n not in public]
        return f"{missing[0]} is not here" if missing else None
    if now in ("not yet", "gone", "internal"):
        # Members and callbacks have common names: they may stand elsewhere.
        came = [n for n in names
                if n in public and re.match("(facil|sock|evio)_", n)]
        return f"{came[0]} is here, not {now}" if came else None
    by = re.fullmatch(NAME, now)
    if not by:
        return f"what is '{now}'?"
    return None if by[1] in public else f"{by[1]} is not in include/facil"


def seed_is_answered(tree):
    """what the table "the seed, answered" says of a name is so"""
    if SEED_TABLE not in tree.files:
        return [f"{SEED_TABLE} is missing"]
    public = set(re.findall(r"\w+", " ".join(
        code_only(tree.text(f)) for f in tree.named(
            ".h", under=("include/facil/",)))))
    rows = re.findall(SEED_ROW, tree.text(SEED_TABLE).partition(
        "## The seed, answered")[2], re.M)
    problems = [f"{SEED_TABLE}: {problem}" for seed, now in rows
                if (problem := seed_problem(re.findall(NAME, seed), now,
                                            public))]
    return problems if rows else [f"{SEED_TABLE}: the table is missing"]


PROTOCOLS_PAGE = "protocols/README.md"


def quotes_are_true(tree):
    """what the page "write a protocol" quotes stands in an example"""
    if PROTOCOLS_PAGE not in tree.files:
        return [f"{PROTOCOLS_PAGE} is missing"]
    examples = "\n".join(tree.text(f) for f in tree.named(
        ".c", under=("tests/examples/",)))
    quotes = re.findall(r"^```c\n(.*?)^```$", tree.text(PROTOCOLS_PAGE),
                        re.M | re.S)
    return [f"{PROTOCOLS_PAGE}: not in an example: {quote.splitlines()[0]}"
            for quote in quotes if quote not in examples]


RULES = [
    ("includes point down only", includes_point_down),
    ("each header compiles alone", headers_compile_alone),
    ("no banned calls", no_banned_calls),
    ("clang-format has nothing to change", is_formatted),
    ("no registry's name, no download address", no_registry_names),
    ("every case in scope has a test that names it", cases_have_tests),
    ("the seed is answered as it is", seed_is_answered),
    ("quotes are true", quotes_are_true),
    ("no unfinished words", no_unfinished_words),
    ("no skipped tests", no_skipped_tests),
]


# --- told, never failed ------------------------------------------------------

def private_includes_upwards(tree):
    """Inside one folder the layers are a habit, not a rule."""
    return [f"{name} includes {path}, of a higher layer"
            for name in tree.named(".c", under=("src/core/",))
            for kind, path in includes_of(tree, name)
            if kind == '"' and f"src/core/{path}" in tree.files
            and RANK_OF_WORD.get(re.split(r"[_.]", path)[0], 0)
            > (rank_of(name) or 0)]


def functions_of(tree):
    """(lines, file, name) of each function, found by our own layout: it
    begins in the first column and ends with a brace in the first column."""
    rx = re.compile(r"^[A-Za-z_][^\n;{}=]*?(\w+)\([^;{}]*\)\s*\{\n(.*?)^\}",
                    re.M | re.S)
    for name in tree.named(".c", ".h", under=("src/", "protocols/")):
        for m in rx.finditer(code_only(tree.text(name))):
            yield m.group(0).count("\n") + 1, name, m.group(1)


def lengths(tree):
    functions = sorted(functions_of(tree), reverse=True)
    files = sorted(((tree.text(f).count("\n"), f) for f in tree.named(
        ".c", ".h", under=("src/", "protocols/", "include/"))), reverse=True)
    out = []
    if len(functions) > 1:
        cuts = statistics.quantiles([n for n, _, _ in functions], n=100,
                                    method="inclusive")
        out.append(f"functions: {len(functions)}, median {cuts[49]:.0f} lines,"
                   f" p90 {cuts[89]:.0f}, p99 {cuts[98]:.0f}; the longest:")
    out += [f"  {n:4} {name} in {f}" for n, f, name in functions[:8]]
    out += ["the longest files:"] + [f"  {n:4} {f}" for n, f in files[:5]]
    return out


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(
        __file__).resolve().parents[2]
    tree = Tree(root)
    bad = 0
    print(f"TAP version 13\n1..{len(RULES)}")
    for n, (title, rule) in enumerate(RULES, 1):
        problems = rule(tree)
        bad += bool(problems)
        print(f"{'not ok' if problems else 'ok'} {n} - {title}")
        for problem in problems:
            print(f"# {problem}")
            print(f"{title}: {problem}", file=sys.stderr)  # Meson shows this
    if not formatter():
        print("# clang-format 14 is not here: the layout was not looked at")
    for line in private_includes_upwards(tree) + lengths(tree):
        print(f"# {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
