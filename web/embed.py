#!/usr/bin/env python3
"""Turn the files of the page into one C file and its header.

  embed.py OUT.c OUT.h URL-PATH=FILE...

Invariant: the output depends on the bytes of the files and on nothing else, so
a build of the same tree gives the same binary, and an ETag changes exactly
when its file does. Meson runs this; it needs nothing but Python itself.
"""
import hashlib
import pathlib
import sys

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}

HEADER = """\
/* assets.h - the files of the page, embedded at build time.
 *
 * Made by web/embed.py. All of it is constant for the life of the process, so
 * pointers may be kept, and any thread may read it. The bytes are not
 * terminated by a zero. */
#ifndef CRIER_ASSETS_H
#define CRIER_ASSETS_H

#include <stddef.h>

typedef struct {
  const char *path; /* as in the request target: "/" or "/name" */
  const char *type; /* the value of Content-Type */
  const char *etag; /* strong, with its quotes; changes with the bytes */
  const unsigned char *data;
  size_t len;
} crier_asset_s;

/* Sorted by path. */
extern const crier_asset_s crier_assets[];
extern const size_t crier_assets_count;

#endif
"""


def c_bytes(data):
    """The initializer of an array; never empty, which C11 does not allow."""
    data = data or b"\0"
    rows = (data[i:i + 16] for i in range(0, len(data), 16))
    return ",\n".join("  " + ",".join(str(b) for b in row) for row in rows)


def c_string(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def etag_of(data):
    return '"' + hashlib.sha256(data).hexdigest()[:16] + '"'


def main(out_c, out_h, *pairs):
    assets = sorted(pair.split("=", 1) for pair in pairs)
    arrays, rows = [], []
    for n, (path, name) in enumerate(assets):
        file = pathlib.Path(name)
        if file.suffix not in TYPES:
            sys.exit(f"embed.py: {name}: no content type for {file.suffix!r}")
        data = file.read_bytes()
        arrays.append(
            f"static const unsigned char asset_{n}[] = {{\n{c_bytes(data)}}};\n")
        rows.append("  {%s, %s, %s, asset_%d, %d}" % (
            c_string(path), c_string(TYPES[file.suffix]),
            c_string(etag_of(data)), n, len(data)))
    table = ",\n".join(rows) or "  {NULL, NULL, NULL, NULL, 0}"
    pathlib.Path(out_h).write_text(HEADER)
    pathlib.Path(out_c).write_text(
        "/* Made by web/embed.py: see assets.h. */\n"
        '#include "assets.h"\n\n'
        + "".join(arrays)
        + f"\nconst crier_asset_s crier_assets[] = {{\n{table}}};\n"
        + f"const size_t crier_assets_count = {len(rows)};\n")


main(*sys.argv[1:])
