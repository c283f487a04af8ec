#!/usr/bin/python3
"""Judge what a slow reader was sent, with a parser of frames that is not ours.

judge.py MODE CAPTURE PUBLISHED

MODE: v1 (gaps are told), raw-gap (a gap ends it with 4001), raw-close and
v1-close (it ends with 4000), v1-all and raw-all (history: nothing is missing).
CAPTURE: the bytes behind the 101. PUBLISHED: one
line for each message, in order: its id and size; the first line is the cursor
before them. Prints what is wrong and leaves with 1.
"""
import json
import sys

from wsproto.frame_protocol import FrameProtocol, Opcode


def body(seq, size):
    text = f"{seq}."
    return (text + chr(97 + seq % 26) * size)[:size] if size > 8 else text


def fail(what):
    print("#", what)
    sys.exit(1)


def frames(data):
    parser = FrameProtocol(client=True, extensions=[])
    parser.receive_bytes(data)
    held = b""
    for frame in parser.received_frames():
        payload = frame.payload
        if isinstance(payload, str):
            payload = payload.encode()
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONTINUATION):
            held += payload
            if frame.frame_finished and frame.message_finished:
                yield "message", held
                held = b""
        elif frame.opcode is Opcode.CLOSE:
            yield "close", frame.payload
        else:
            yield frame.opcode.name.lower(), payload
    if held:
        fail("half a message at the end")


def main(mode, capture, published):
    with open(published) as f:
        lines = f.read().split("\n")
    cursor = int(lines[0])
    ids = [tuple(map(int, line.split())) for line in lines[1:] if line]
    with open(capture, "rb") as f:
        data = f.read()
    at = pongs = gaps = got = 0
    closed = None
    for kind, payload in frames(data):
        if closed is not None:
            fail(f"{kind} behind the close")
        if kind == "pong":
            if payload != str(pongs).encode():
                fail(f"pong {payload} for {pongs}")
            pongs += 1
        elif kind == "close":
            closed = payload
        elif kind == "message" and mode.startswith("v1"):
            doc = json.loads(payload)
            if doc["op"] == "gap":
                lost = [i for i, _ in ids[at:] if i <= doc["to"]]
                if doc["from"] != cursor + 1:
                    fail(f"gap from {doc['from']}, the cursor is {cursor}")
                if not lost or lost[-1] != doc["to"]:
                    fail(f"gap to {doc['to']}, which is none of the ids")
                at += len(lost)
                cursor = doc["to"]
                gaps += 1
            elif doc["op"] == "message":
                if at == len(ids) or doc["id"] != ids[at][0]:
                    fail(f"id {doc['id']} for {ids[at:at + 1]}")
                if doc["data"] != body(at, ids[at][1]):
                    fail(f"message {at} is damaged")
                cursor = doc["id"]
                at += 1
                got += 1
            elif doc["op"] != "subscribed":
                fail(f"op {doc['op']}")
        elif kind == "message":
            if at == len(ids) or payload.decode() != body(at, ids[at][1]):
                fail(f"message {at} is damaged or another")
            cursor = ids[at][0]
            at += 1
            got += 1
        else:
            fail(kind)
    if mode.endswith("-all"):
        if closed is not None or gaps or got != len(ids):
            fail(f"{closed}: {got} of {len(ids)}, {gaps} gaps")
        return
    if mode == "v1":
        if closed is not None or at != len(ids) or not gaps:
            fail(f"{closed}: {at} of {len(ids)}, {gaps} gaps")
        if pongs != 20:
            fail(f"{pongs} pongs")
    elif mode == "raw-gap":
        code, reason = closed or (None, "")
        word, first, last = (reason + "   ").split(" ")[:3]
        if code != 4001 or word != "gap" or int(first) != cursor + 1:
            fail(f"closed by {closed}, the cursor is {cursor}")
        if int(last) not in [i for i, _ in ids[at:]]:
            fail(f"the gap ends at {last}, which is none of the ids")
    elif not closed or closed[0] != 4000:
        fail(f"closed by {closed}")
    if got == 0 or got == len(ids):
        fail(f"{got} messages of {len(ids)}: it was not slow")


main(*sys.argv[1:])
