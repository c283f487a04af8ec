#!/usr/bin/python3
"""Judge a captured stream of a WebSocket server by an independent parser.

Reads the bytes that a server sent after its handshake on standard input and
prints one JSON object: the frames that wsproto saw, as a list of [kind, length,
sha256 of the payload, first bytes], and the error where the stream breaks the
protocol. Half a frame at the end counts only where the argument says so.
"""
import hashlib
import json
import sys

from wsproto.frame_protocol import FrameProtocol, Opcode, ParseFailed


def main():
    protocol = FrameProtocol(client=True, extensions=[])
    data = sys.stdin.buffer.read()
    events, parts, error = [], [], None
    try:
        for start in range(0, len(data), 65536):
            protocol.receive_bytes(data[start:start + 65536])
            for frame in protocol.received_frames():
                payload = frame.payload
                if frame.opcode is Opcode.CLOSE:
                    code, reason = payload
                    events.append(["close", int(code), "", reason or ""])
                    continue
                if isinstance(payload, str):
                    payload = payload.encode()
                if frame.opcode in (Opcode.PING, Opcode.PONG):
                    name = "ping" if frame.opcode is Opcode.PING else "pong"
                    events.append([name, len(payload), "", payload.decode("latin1")])
                    continue
                parts.append(bytes(payload))
                if frame.frame_finished and frame.message_finished:
                    whole, parts = b"".join(parts), []
                    events.append(["message", len(whole), hashlib.sha256(whole).hexdigest(),
                                   whole[:200].decode("latin1")])
    except ParseFailed as failure:
        error = str(failure)
    print(json.dumps({"events": events, "error": error, "half": bool(parts)}))


if __name__ == "__main__":
    main()
