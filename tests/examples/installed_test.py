#!/usr/bin/env python3
"""The libraries as a stranger gets them: installed, found by pkg-config, and
built upon with a plain cc. TAP.

  installed_test.py BUILD

Installs BUILD into a folder of its own, compiles each example against that
copy alone, starts it on a free loopback port and speaks with it. The
WebSocket client is a raw one, so that it decides each fragment.
"""
import os
import pathlib
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
WARNINGS = ("-std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Wconversion"
            " -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror")
TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION, FIN = 1, 2, 8, 9, 10, 0, 0x80
PATIENCE = 10  # seconds for any one answer


# --- the installed copy ------------------------------------------------------

def install(build, dest):
    """Returns the folder that stands for the prefix."""
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet",
                    "--destdir", dest], check=True, stdout=sys.stderr)
    found = list(pathlib.Path(dest).rglob("include/facil/facil.h"))
    assert len(found) == 1, f"facil.h is installed {len(found)} times"
    return found[0].parents[2]


def flags_of(prefix, package):
    """What pkg-config says, of the copy: its prefix stands for the real one."""
    folder = next(prefix.rglob(package + ".pc")).parent
    path = os.pathsep.join([str(folder), os.environ.get("PKG_CONFIG_PATH", "")])
    return subprocess.run(
        ["pkg-config", f"--define-variable=prefix={prefix}", "--static",
         "--cflags", "--libs", package], check=True, text=True,
        capture_output=True, env={**os.environ, "PKG_CONFIG_PATH": path},
    ).stdout.split()


def compile_example(prefix, name, package):
    """Away from the tree: nothing but the copy can be found."""
    source = (HERE / f"{name}.c").read_text()
    folder = prefix.parent / "user"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.c").write_text(source)
    subprocess.run([*shlex.split(os.environ.get("CC") or "cc"),
                    *WARNINGS.split(), *os.environ.get("CFLAGS", "").split(),
                    "-o", name, f"{name}.c", *flags_of(prefix, package)],
                   check=True, cwd=folder)
    return folder / name


# --- a running example -------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Running:
    """An example on a port; leaving it checks that SIGTERM ends it well."""

    def __init__(self, binary, *options):
        self.port = free_port()
        self.child = subprocess.Popen([binary, *options, str(self.port)],
                                      stdout=subprocess.DEVNULL)

    def __enter__(self):
        try:
            self.connect().close()
        except BaseException:
            self.child.kill()
            self.child.wait()
            raise
        return self

    def __exit__(self, kind, *_):
        self.child.send_signal(signal.SIGTERM if kind is None
                               else signal.SIGKILL)
        try:
            status = self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise
        if kind is None:
            assert status == 0, f"it ended with {status}"

    def connect(self):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port),
                                                PATIENCE)
            except ConnectionRefusedError:
                assert self.child.poll() is None, "it did not start"
                assert time.monotonic() < end, "it does not listen"
                time.sleep(0.02)


# --- WebSocket, by hand (RFC 6455) -------------------------------------------

def mask(payload, key=b"\x11\x22\x33\x44"):
    n = len(payload)
    pad = (key * (n // 4 + 1))[:n]
    return (int.from_bytes(payload, "big")
            ^ int.from_bytes(pad, "big")).to_bytes(n, "big")


def frame(first, payload):
    n = len(payload)
    head = (struct.pack("!BB", first, 0x80 | n) if n < 126 else
            struct.pack("!BBH", first, 0x80 | 126, n) if n < 65536 else
            struct.pack("!BBQ", first, 0x80 | 127, n))
    return head + b"\x11\x22\x33\x44" + mask(payload)


class WebSocket:
    def __init__(self, server):
        self.socket = server.connect()
        self.input = self.socket.makefile("rb")
        self.socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n"
                            b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
                            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key:"
                            b" dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.input.readline()
            assert line, f"no handshake, but {head!r}"
            head += line
        assert head.startswith(b"HTTP/1.1 101 "), head
        # The accept value of this key stands in RFC 6455 section 1.3.
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head, head

    def send(self, data):
        self.socket.sendall(data)

    def frame(self):
        """(first byte, payload) of the next frame."""
        first, n = self.input.read(2)
        assert n < 0x80, "a server's frame is masked"
        if n == 126:
            n, = struct.unpack("!H", self.input.read(2))
        elif n == 127:
            n, = struct.unpack("!Q", self.input.read(8))
        return first, self.input.read(n)

    def expect(self, first, payload):
        got = self.frame()
        assert got == (first, payload), (
            f"frame {got[0]:#x} of {len(got[1])} bytes came, not"
            f" {first:#x} of {len(payload)}")

    def expect_close(self, code):
        """A Close, nothing behind it, and the end."""
        first, payload = self.frame()
        assert (first, payload[:2]) == (FIN | CLOSE, struct.pack("!H", code)), (
            f"frame {first:#x} {payload!r} came, not Close {code}")
        assert self.input.read(1) == b"", "bytes after Close"
        self.input.close()
        self.socket.close()

    def close(self):
        self.send(frame(FIN | CLOSE, struct.pack("!H", 1000)))
        self.expect_close(1000)


# --- the tests ---------------------------------------------------------------

def echo_sends_bytes_back(binary):
    sent = os.urandom(300000)
    with Running(binary) as server, server.connect() as s:
        s.sendall(sent)
        s.shutdown(socket.SHUT_WR)
        got = s.makefile("rb").read()
    assert got == sent, f"{len(got)} bytes came back, not these {len(sent)}"


def ws_echo_keeps_type_and_payload(binary):
    big = os.urandom(1 << 20)
    with Running(binary, "--port") as server:
        ws = WebSocket(server)
        for opcode, payload in ((TEXT, "gr\u00fc\u00df dich".encode()),
                                (BINARY, bytes(range(256))), (TEXT, b""),
                                (BINARY, big)):
            ws.send(frame(FIN | opcode, payload))
            ws.expect(FIN | opcode, payload)
        ws.close()


def ws_echo_takes_16_mib_and_not_a_byte_more(binary):
    most = os.urandom(1 << 20) * 16
    with Running(binary, "--port") as server:
        ws = WebSocket(server)
        ws.send(frame(FIN | BINARY, most))
        ws.expect(FIN | BINARY, most)
        ws.send(struct.pack("!BBQ", FIN | BINARY, 0x80 | 127, len(most) + 1))
        ws.send(b"\0\0\0\0")
        ws.expect_close(1009)


def ws_echo_joins_65536_fragments(binary):
    part = bytes(range(64))
    middle = frame(CONTINUATION, part)
    with Running(binary, "--port") as server:
        ws = WebSocket(server)
        ws.send(frame(BINARY, part) + middle * 32767
                + frame(FIN | PING, b"between") + middle * 32767
                + frame(FIN | CONTINUATION, part))
        ws.expect(FIN | PONG, b"between")
        ws.expect(FIN | BINARY, part * 65536)
        ws.close()


def chat_tells_everybody_in_one_order(binary):
    with Running(binary) as server:
        anna, bert = WebSocket(server), WebSocket(server)
        # Both are in the room: who comes enters it in the turn of its 101.
        bert.send(frame(FIN | TEXT, b"bert is here"))
        bert.expect(FIN | TEXT, b"bert is here")
        anna.expect(FIN | TEXT, b"bert is here")
        for n in range(100):
            anna.send(frame(FIN | TEXT, b"a%d" % n))
            bert.send(frame(FIN | TEXT, b"b%d" % n))
        heard = [[ws.frame() for _ in range(200)] for ws in (anna, bert)]
        assert heard[0] == heard[1], "two heard it in different orders"
        for who in b"ab":
            told = [text for _, text in heard[0] if text[0] == who]
            assert told == [b"%c%d" % (who, n) for n in range(100)], told
        anna.close()
        bert.send(frame(FIN | TEXT, b"alone"))
        bert.expect(FIN | TEXT, b"alone")
        bert.send(frame(FIN | BINARY, b"\0"))
        bert.send(frame(FIN | CLOSE, struct.pack("!H", 1003)))  # its answer
        bert.expect_close(1003)


EXAMPLES = [("echo", "facil", [echo_sends_bytes_back]),
            ("ws_echo", "facil-protocols",
             [ws_echo_keeps_type_and_payload,
              ws_echo_takes_16_mib_and_not_a_byte_more,
              ws_echo_joins_65536_fragments]),
            ("chat", "facil-protocols", [chat_tells_everybody_in_one_order])]


def main():
    count = sum(1 + len(tests) for _, _, tests in EXAMPLES)
    print(f"TAP version 13\n1..{count}")
    n = bad = 0

    def report(title, run):
        nonlocal n, bad
        n += 1
        try:
            result = run()
        except Exception as error:  # told as TAP, whatever it is
            bad += 1
            print(f"not ok {n} - {title}\n# {type(error).__name__}: {error}",
                  flush=True)
            return None
        print(f"ok {n} - {title}", flush=True)
        return result

    with tempfile.TemporaryDirectory() as dest:
        prefix = install(sys.argv[1], dest)
        for name, package, tests in EXAMPLES:
            binary = report(f"{name} is built by pkg-config {package}",
                            lambda: compile_example(prefix, name, package))
            for test in tests:
                report(test.__name__.replace("_", " "), lambda: test(binary))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
