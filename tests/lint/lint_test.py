#!/usr/bin/env python3
"""Each rule of lint.py is seen to fail: a good tree passes all of them, and
each bad sample, put into that tree, fails the rule that it breaks and no
other. TAP."""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import lint  # noqa: E402

GOOD = {
    "include/facil/base.h":
        "#ifndef BASE_H\n#define BASE_H\n#include <stddef.h>\n#endif\n",
    "include/facil/sock.h":
        '#ifndef SOCK_H\n#define SOCK_H\n#include "facil/base.h"\n'
        "/* Not system(). */\nsize_t sock_count(void);\n#endif\n",
    "src/core/sock.c":
        '#include "facil/sock.h"\n\n#include "sock_private.h"\n\n'
        "/* Not system(): a comment may say so. */\n"
        "size_t sock_count(void) {\n  return sizeof(\"atoi(\");\n}\n",
    "src/core/sock_private.h": "typedef int sock_private_s;\n",
    "src/core/README.md":
        "# Core\n\n## The seed, answered\n\n| seed | now | why |\n"
        "|---|---|---|\n| `sock_count` | here | |\n"
        "| `sock_sum`, `.sum` | `sock_count` | it counts |\n"
        "| `sock_file` | not yet | |\n| `sock_lock` | gone | no threads |\n",
    "protocols/README.md": "So:\n\n```c\nint one;\n```\n",
    "tests/examples/one.c": "int one;\nint two;\n",
    "tests/unit/core/sock_test.c": "/* F01 */\nint answer;\n",
    "tests/lint/cases.txt": "# one\nF01\n",
    "tests/package-lock.json": '{"ws": {"version": "8.0.0"}}\n',
}

# what it is, the rule that must see it, the file, its text
BAD = [
    ("an include of a higher layer", lint.includes_point_down,
     "src/core/list.c", "#include <facil/sock.h>\n"),
    ("a private header of another folder", lint.includes_point_down,
     "src/broker/main.c", '#include "../core/sock_private.h"\n'),
    ("a public header that is not there", lint.includes_point_down,
     "src/broker/main.c", '#include "facil/nothing.h"\n'),
    ("a file of no layer", lint.includes_point_down,
     "src/core/surprise.c", "int surprise;\n"),
    ("a header that needs another", lint.headers_compile_alone,
     "src/core/sock_private.h", "size_t sock_private_count(void);\n"),
    ("a banned call", lint.no_banned_calls,
     "src/broker/main.c", "int main(void) {\n  return system(0);\n}\n"),
    ("another layout", lint.is_formatted,
     "src/broker/main.c", "int main (void)\n{ return 0 ; }\n"),
    ("a registry's name", lint.no_registry_names,
     "tests/.npmrc", "regis" "try=https://example.test/\n"),
    ("a download address in a lock file", lint.no_registry_names,
     "tests/package-lock.json",
     '{"ws": {"resolved": "https://example.test/ws-8.0.0.tgz"}}\n'),
    ("a case without a test", lint.cases_have_tests,
     "tests/lint/cases.txt", "F01 F02\n"),
    ("a case that is only a hex number", lint.cases_have_tests,
     "tests/unit/core/sock_test.c", "int answer = 0xF01;\n"),
    *[(f"a seed's name that {what}", lint.seed_is_answered,
       "src/core/README.md", "## The seed, answered\n\n| seed | now | why |\n"
       f"|---|---|---|\n{row}\n") for what, row in (
           ("is said to be here and is not", "| `sock_file` | here | |"),
           ("is here by one of two members only",
            "| `.sock_count`, `.sum` | here | |"),
           ("stands in a comment only", "| `system` | here | |"),
           ("is replaced by nothing", "| `sock_sum` | `sock_total` | |"),
           ("came meanwhile", "| `sock_count` | not yet | |"),
           ("has no answer", "| `sock_sum` | perhaps | |"))],
    ("a seed without an answer", lint.seed_is_answered,
     "src/core/README.md", "# Core\n"),
    ("a quote that the code has left behind", lint.quotes_are_true,
     "tests/examples/one.c", "int eins;\n"),
    ("an unfinished word", lint.no_unfinished_words,
     "README.md", f"{lint.UNFINISHED[0]}: write this\n"),
    ("a skipped C test", lint.no_skipped_tests,
     "tests/unit/core/sock_test.c",
     "/* F01 */\nvoid f(void) {\n  cr_" "skip();\n}\n"),
    ("a skipped JavaScript test", lint.no_skipped_tests,
     "tests/e2e/a.test.mjs", "test.sk" "ip('a', () => {});\n"),
    ("a test that shuts the others out", lint.no_skipped_tests,
     "tests/e2e/a.test.mjs", "test.on" "ly('a', () => {});\n"),
]


def broken_rules(sample):
    """The rules that GOOD with `sample` in it breaks."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in {**GOOD, **sample}.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        subprocess.run(["git", "init", "-q", root], check=False)
        style = pathlib.Path(__file__).resolve().parents[2] / ".clang-format"
        (pathlib.Path(root) / ".clang-format").write_text(style.read_text())
        tree = lint.Tree(root)
        return {rule: problems for _, rule in lint.RULES
                if (problems := rule(tree))}


def main():
    print(f"TAP version 13\n1..{len(BAD) + 1}")
    bad = 0

    def report(n, title, is_right, broken):
        nonlocal bad
        bad += not is_right
        print(f"{'ok' if is_right else 'not ok'} {n} - {title}")
        if not is_right:
            for rule, problems in broken.items():
                print(f"# {rule.__name__}: {problems}")

    broken = broken_rules({})
    report(1, "a good tree keeps every rule", not broken, broken)
    for n, (what, rule, name, text) in enumerate(BAD, 2):
        broken = broken_rules({name: text})
        is_right = set(broken) == {rule}
        if rule is lint.is_formatted and not lint.formatter():
            is_right = not broken
        report(n, f"{what} is seen, and only that", is_right, broken)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
