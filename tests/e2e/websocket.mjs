// RFC 6455 as the broker must speak it, and the raw form of the contract
// (no subprotocol). The ids F, C and H name the case that a test stands for.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { WebSocket as WsClient } from 'ws';
import { WebSocket as UndiciWebSocket } from 'undici';
import { Tcp, assertUnharmed, check, checkStop, poll, sanitized, sleep, start } from './lib/crier.mjs';
import { hex } from './lib/tcp.mjs';
import { answer, ask, assertProblem, parseAnswer, publish, request } from './lib/http.mjs';
import {
  OP, WebSocket, assertSwitched, binary, closeFrame, frame, handshake, randomMask, readClose, text,
} from './lib/websocket.mjs';
import { cpuMs, ownBytes } from './lib/proc.mjs';
import { spread } from './lib/watch.mjs';

const MIB = 1024 * 1024;
const server = await start({ workers: 2 });
await assertUnharmed(server);
const fdsBefore = server.fds();
let names = 0;
const fresh = () => `ws-${++names}`;

// A connection under test and a well-behaved one, on the same channel.
async function pair(options) {
  const channel = fresh();
  const watcher = await WebSocket.channel(server, channel);
  const ws = await WebSocket.channel(server, channel, options);
  return { channel, watcher, ws };
}

// Bytes that must end the connection with `codes`, written whole and byte by
// byte; the watcher of the channel sees `seen` and nothing else.
function refuses(name, bytes, codes, { seen = [], ways = ['whole', 'byte'], after } = {}) {
  check(name, async () => {
    for (const way of ways) {
      const { ws, watcher } = await pair();
      if (way === 'whole') await ws.send(bytes);
      else await ws.tcp.sendPieces(bytes);
      await ws.expectClose(codes);
      await after?.(ws, way);
      for (const word of seen) assert.equal(await watcher.text(), word);
      await watcher.expectSilence();
      await watcher.close();
      await assertUnharmed(server);
    }
  });
}

// Bytes that must give the messages `expected` (to the sender and to others).
function accepts(name, bytes, expected, { ways = ['whole', 'byte'], after } = {}) {
  check(name, async () => {
    for (const way of ways) {
      const { ws, watcher } = await pair();
      if (way === 'whole') await ws.send(bytes);
      else await ws.tcp.sendPieces(bytes);
      for (const reader of [ws, watcher]) {
        for (const want of expected) {
          const got = await reader.message();
          assert.equal(got.op, Buffer.isBuffer(want) ? OP.BINARY : OP.TEXT);
          assert.ok(got.data.equals(Buffer.from(want)), `got ${got.data.subarray(0, 60).toString('hex')}`);
        }
      }
      await after?.(ws, watcher);
      await ws.expectSilence();
      await watcher.expectSilence();
      await ws.close();
      await watcher.close();
    }
    await assertUnharmed(server);
  });
}

const M = '00000000';

// --- the handshake -----------------------------------------------------------

check('the handshake is answered with 101, the accept value and each header once (H14)', async () => {
  const ws = await WebSocket.channel(server, fresh()); // parseAnswer refuses a header that stands twice
  await ws.close();
});

const upgrades = [
  ['Connection: keep-alive, Upgrade', ['Connection: keep-alive, Upgrade']],
  ['Connection: Upgrade,keep-alive', ['Connection: Upgrade,keep-alive']],
  ['Connection with spaces around', ['Connection:   upgrade  ']],
  ['two Connection lines', ['Connection: keep-alive', 'Connection: Upgrade']],
  ['Connection: upgrade and Upgrade: WebSocket', ['Connection: upgrade'], 'Upgrade: WebSocket'],
  ['Upgrade: h2c, websocket', ['Connection: Upgrade'], 'Upgrade: h2c, websocket'],
];
for (const [name, lines, upgrade = 'Upgrade: websocket'] of upgrades) {
  check(`H01: ${name} is a handshake`, async () => {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(`GET /channels/h01 HTTP/1.1\r\nHost: ${server.host}\r\n${upgrade}\r\n` +
      lines.map((l) => `${l}\r\n`).join('') +
      'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n');
    assertSwitched(await answer(tcp));
    tcp.destroy();
  });
}

check('H01: header names in lower and in upper case are a handshake', async () => {
  for (const change of [(s) => s.toLowerCase(), (s) => s.toUpperCase()]) {
    const tcp = await Tcp.connect(server.target);
    const lines = handshake(server, '/channels/h01').toString('latin1').split('\r\n');
    await tcp.send(lines.map((line, i) => i === 0 || line === '' ? line :
      change(line.slice(0, line.indexOf(':'))) + line.slice(line.indexOf(':'))).join('\r\n'));
    assertSwitched(await answer(tcp));
    tcp.destroy();
  }
});

const base = (lines) => `GET /channels/h02 HTTP/1.1\r\nHost: ${server.host}\r\nUpgrade: websocket\r\n` +
  `Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n${lines.map((l) => `${l}\r\n`).join('')}\r\n`;
const keys = {
  'is three letters': ['Sec-WebSocket-Key: abc'],
  'is 15 bytes': [`Sec-WebSocket-Key: ${Buffer.alloc(15, 7).toString('base64')}`],
  'is 17 bytes': [`Sec-WebSocket-Key: ${Buffer.alloc(17, 7).toString('base64')}`],
  'is empty': ['Sec-WebSocket-Key:'],
  'is no base64': ['Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j!Q=='],
  'is missing': [],
  'is there twice': ['Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==', 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='],
};
for (const [name, lines] of Object.entries(keys)) {
  check(`H02: a key that ${name} is 400, and only the HTTP answer comes (H13)`, async () => {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(base(lines));
    assertProblem(await answer(tcp), 400);
    tcp.finish();
    await tcp.untilEnd();
    assert.equal(tcp.buffer.length, 0, `more than the answer came: ${tcp.describe()}`);
    tcp.destroy();
  });
}

check('H04: only GET by HTTP/1.1 can be a handshake', async () => {
  for (const [method, version] of [['POST', '1.1'], ['HEAD', '1.1'], ['PUT', '1.1'], ['GET', '1.0']]) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(handshake(server, '/channels/h04', { method, version }));
    const got = await answer(tcp, method);
    assert.ok(got.status >= 200 && got.status !== 101, `${method} ${version}: ${got.status}`);
    if (!(method === 'POST' && [201, 411].includes(got.status))) {
      assert.ok([400, 405, 426].includes(got.status), `${method} ${version}: ${got.status}`);
    }
    tcp.destroy();
  }
});

check('H04: another version is 426 and names version 13', async () => {
  for (const version of ['12', '8', '14']) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(handshake(server, '/channels/h04').toString().replace('Version: 13', `Version: ${version}`));
    const got = await answer(tcp);
    assertProblem(got, [426]);
    assert.equal(got.header('sec-websocket-version'), '13');
    assert.match(got.header('upgrade') ?? '', /websocket/i);
    tcp.destroy();
  }
});

check('H04: a version that is missing or no number is refused', async () => {
  for (const line of ['', 'Sec-WebSocket-Version: x\r\n', 'Sec-WebSocket-Version: 13, 13\r\n']) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(handshake(server, '/channels/h04').toString().replace('Sec-WebSocket-Version: 13\r\n', line));
    assertProblem(await answer(tcp), [400, 426]);
    tcp.destroy();
  }
});

check('H07: sixty thousand spaces in the subprotocols are answered at once', async () => {
  const tcp = await Tcp.connect(server.target);
  const from = Date.now();
  await tcp.send(handshake(server, '/channels/h07', { protocol: `a${' '.repeat(60_000)}b` }));
  const got = await answer(tcp);
  assert.ok([101, 400, 431].includes(got.status), `${got.status}`);
  assert.ok(Date.now() - from < 1000, 'it took too long');
  tcp.destroy();
  const near = await Tcp.connect(server.target); // inside the limit on headers
  await near.send(handshake(server, '/channels/h07', { protocol: `a${' '.repeat(12_000)}b, crier.v1` }));
  assert.ok([101, 400].includes((await answer(near)).status));
  near.destroy();
  await assertUnharmed(server);
});

check('H08: unknown extensions are ignored, whatever they are called', async () => {
  for (const value of ['constructor', '__proto__; a=b', '%s%n', 'permessage-foo; x="y, z"', ', ,']) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(handshake(server, '/channels/h08', { headers: [['Sec-WebSocket-Extensions', value]] }));
    const got = await answer(tcp);
    if (got.status !== 400) assertSwitched(got);
    tcp.destroy();
  }
  await assertUnharmed(server);
});

check('H10: a handshake on a path without WebSocket gets a plain HTTP answer', async () => {
  for (const [target, statuses] of [['/nope', [404]], ['/channels/', [400, 404]], ['/channels', [400, 404, 405, 426, 200]],
    ['/healthz', [200, 400, 403, 404, 426]], ['/metrics', [200, 403, 404, 426]], ['/admin/', [403, 404, 426]],
    ['/', [200, 400, 403, 404, 426]]]) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(handshake(server, target));
    const got = await answer(tcp);
    assert.ok(statuses.includes(got.status), `${target}: ${got.status}`);
    await tcp.send(frame(OP.TEXT, 'hi'));
    await sleep(50);
    const more = tcp.buffer;
    assert.ok(more.length === 0 || parseAnswer(more).status === 400, 'frames after a refused handshake');
    tcp.destroy();
  }
  await assertUnharmed(server);
});

check('the subprotocol is crier.v1 where it is offered, and none otherwise', async () => {
  for (const [offer, chosen] of [['crier.v1', 'crier.v1'], ['foo, crier.v1', 'crier.v1'], ['crier.v1, foo', 'crier.v1'],
    ['crier.v1,foo', 'crier.v1'], ['foo', undefined], ['crier.v2', undefined], ['CRIER.V1', undefined],
    ['crier.v1x', undefined]]) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(handshake(server, '/channels/sub', { protocol: offer }));
    assertSwitched(await answer(tcp), chosen);
    tcp.destroy();
  }
});

check('/subscribe takes a raw WebSocket with exactly one channel only', async () => {
  for (const target of ['/subscribe', '/subscribe?', '/subscribe?channel=a&channel=b', '/subscribe?channel=',
    '/subscribe?channel=a*', '/subscribe?pattern=a:*']) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(handshake(server, target));
    assertProblem(await answer(tcp), 400);
    tcp.destroy();
  }
  const channel = fresh();
  const ws = await WebSocket.connect(server, `/subscribe?channel=${channel}`);
  await publish(server, channel, 'one');
  assert.equal(await ws.text(), 'one');
  await ws.close();
});

check('a since that cannot be parsed is 400', async () => {
  for (const since of ['x', '1x', '-', '--1', '1.5', '18446744073709551616', '%00', '1%202']) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(handshake(server, `/channels/since?since=${since}`));
    assertProblem(await answer(tcp), 400);
    tcp.destroy();
  }
  const ws = await WebSocket.connect(server, '/channels/since?since=now');
  await ws.close();
});

check('F17: a frame in the same write as the handshake is processed', async () => {
  const channel = fresh();
  const watcher = await WebSocket.channel(server, channel);
  const ws = await WebSocket.channel(server, channel, { extra: text('hi') });
  assert.equal(await ws.text(), 'hi');
  assert.equal(await watcher.text(), 'hi');
  await ws.close();
  await watcher.close();
});

check('F17: the handshake may be split at every byte, the last piece carrying a frame', { seconds: 60 }, async () => {
  const channel = fresh();
  const whole = Buffer.concat([handshake(server, `/channels/${channel}`), text('hi')]);
  await spread(whole.length - 1, 16, async (i) => {
    const tcp = await Tcp.connect(server.target);
    await tcp.sendPieces(whole, { cuts: [i + 1], pause: 5 });
    assertSwitched(await answer(tcp));
    const ws = new WebSocket(tcp);
    // The others publish to the same channel; ours comes in any case.
    assert.equal(await ws.text(), 'hi', `split at ${i + 1}`);
    ws.drop();
  });
  await assertUnharmed(server);
});

check('F17: the handshake and a frame may come byte by byte', async () => {
  const tcp = await Tcp.connect(server.target);
  const channel = fresh();
  await tcp.sendPieces(Buffer.concat([handshake(server, `/channels/${channel}`), text('byte by byte')]));
  assertSwitched(await answer(tcp));
  const ws = new WebSocket(tcp);
  assert.equal(await ws.text(), 'byte by byte');
  await ws.close();
});

// --- framing -----------------------------------------------------------------

accepts('F01: fragments are one message', hex(`01 82 ${M} 61 62 80 82 ${M} 63 64`), ['abcd']);

accepts('F02: a ping inside a fragmented message is answered at once',
  hex(`01 81 ${M} 61 89 81 ${M} 78 80 81 ${M} 62`), ['ab'], {
    after: async (ws) => assert.equal((await ws.pong()).toString(), 'x'),
  });

accepts('F02: each fragment is unmasked from the first byte of its mask', Buffer.concat([
  frame(OP.TEXT, 'a', { fin: false, mask: hex('01020304') }),
  frame(OP.PING, 'x', { mask: hex('01020304') }),
  frame(OP.CONT, 'bcd', { fin: false, mask: hex('01020304') }),
  frame(OP.CONT, 'efghi', { mask: hex('01020304') }),
]), ['abcdefghi'], { after: async (ws) => assert.equal((await ws.pong()).toString(), 'x') });

check('F02: the pong comes before the message is whole', async () => {
  const ws = await WebSocket.channel(server, fresh());
  await ws.send(hex(`01 81 ${M} 61 89 81 ${M} 78`));
  assert.equal((await ws.pong()).toString(), 'x');
  assert.equal(ws.messages.length, 0);
  await ws.send(hex(`80 81 ${M} 62`));
  assert.equal(await ws.text(), 'ab');
  await ws.close();
});

refuses('F04: a new message inside a fragmented one is 1002', hex(`01 81 ${M} 61 81 81 ${M} 62`), 1002);
refuses('F04: a binary frame inside a fragmented text is 1002', hex(`01 81 ${M} 61 02 81 ${M} 62`), 1002);
refuses('a continuation of nothing is 1002', hex(`80 81 ${M} 61`), 1002);
refuses('a continuation after a whole message is 1002', hex(`81 81 ${M} 61 80 81 ${M} 62`), 1002, { seen: ['a'] });

refuses('F05: an unmasked frame is 1002 and nobody sees it', hex('81 02 68 69'), 1002);
refuses('F05: an unmasked ping is 1002', hex('89 00'), 1002);
refuses('F05: an unmasked close is 1002', hex('88 02 03 e8'), 1002);

for (const op of [3, 4, 5, 6, 7, 11, 12, 13, 14, 15]) {
  refuses(`F07: opcode ${op} is 1002`, frame(op), 1002);
}
for (const rsv of [1, 2, 4]) {
  refuses(`reserved bit ${rsv} is 1002 where no extension was agreed`, frame(OP.TEXT, 'x', { rsv }), 1002);
}

refuses('F08: a ping of 126 bytes is 1002 and gets no pong', frame(OP.PING, Buffer.alloc(126, 97)), 1002, {
  after: (ws) => assert.deepEqual(ws.pongs, []),
});
refuses('F08: a pong of 126 bytes is 1002', frame(OP.PONG, Buffer.alloc(126, 97)), 1002);
refuses('a ping in pieces is 1002', frame(OP.PING, 'x', { fin: false }), 1002);
refuses('a length that is not in its shortest form is 1002', frame(OP.TEXT, 'hi', { form: 16 }), 1002);
refuses('a 64-bit length that is not in its shortest form is 1002', frame(OP.TEXT, 'hi', { form: 64 }), 1002);

refuses('F10: a length with the top bit is 1002', hex(`82 FF 80 00 00 00 00 00 00 00 ${M}`), 1002);
refuses('F10: a length of all ones is 1002', hex(`82 FF FF FF FF FF FF FF FF FF ${M}`), 1002);
refuses('F10: the greatest legal length is 1009', hex(`82 FF 7F FF FF FF FF FF FF FF ${M}`), 1009);

check('F11: two hundred declared messages of 2 GiB are 1009 at once and cost nothing', { seconds: 60 }, async () => {
  const channel = fresh();
  const all = [];
  await spread(200, 20, async () => all.push(await WebSocket.channel(server, channel)));
  const before = ownBytes(server.firstWorkers);
  await spread(200, 20, async (i) => {
    await all[i].send(hex(`82 FF 00 00 00 00 80 00 00 00 ${M}`));
    await all[i].expectClose(1009);
  });
  if (!sanitized) {
    const grown = ownBytes(server.firstWorkers) - before;
    assert.ok(grown < 2 * MIB, `the workers grew by ${grown} bytes`);
  }
  await assertUnharmed(server);
});

check('F11: a message one byte over the limit is 1009 by its header alone', async () => {
  const ws = await WebSocket.channel(server, fresh());
  await ws.send(binary('', { length: MIB + 1 }));
  await ws.expectClose(1009);
  await assertUnharmed(server);
});

for (const [name, first] of [['pong', '8A'], ['ping', '89']]) {
  check(`F13: an illegal length in the second frame of a read is 1002 and burns no CPU (${name})`, async () => {
    const ws = await WebSocket.channel(server, fresh());
    await ws.send(hex(`8A 80 ${M} ${first} FF FF FF FF FF FF FF FF FF ${M}`));
    await ws.expectClose(1002);
    const before = cpuMs(server.firstWorkers);
    await sleep(500);
    assert.ok(cpuMs(server.firstWorkers) - before < 200, 'a worker is busy with nothing');
    await assertUnharmed(server);
  });
}

check('F14: every border of the length forms carries identical bytes both ways', { seconds: 60 }, async () => {
  const ws = await WebSocket.channel(server, fresh());
  for (const n of [0, 1, 125, 126, 127, 128, 4095, 4096, 4097, 65534, 65535, 65536, 65537, 131072, MIB]) {
    const data = randomBytes(n);
    await ws.send(binary(data, { mask: randomMask() }));
    const got = await ws.message();
    assert.equal(got.op, OP.BINARY);
    assert.ok(got.data.equals(data), `${n} bytes differ`);
    assert.equal(got.form, n < 126 ? 2 : n < 65536 ? 4 : 10, `the header's form for ${n} bytes`);
  }
  await ws.close();
});

check('F16: a thousand frames of odd lengths and masks in one write are all equal, in order', async () => {
  const { ws, watcher } = await pair();
  const sent = Array.from({ length: 1000 }, (_, i) => randomBytes(1 + i % 17));
  await ws.send(Buffer.concat(sent.map((data) => binary(data, { mask: randomMask() }))));
  for (const reader of [ws, watcher]) {
    for (const [i, data] of sent.entries()) {
      assert.ok((await reader.binary()).equals(data), `frame ${i}`);
    }
    await reader.expectSilence();
  }
  await ws.close();
  await watcher.close();
});

check('F17: a frame may be split at every byte', async () => {
  const { ws, watcher } = await pair();
  const whole = text('x'.repeat(200), { mask: hex('a1b2c3d4') });
  for (let i = 1; i < 16; i++) {
    await ws.tcp.sendPieces(whole, { cuts: [i], pause: 3 });
    assert.equal(await watcher.text(), 'x'.repeat(200), `split at ${i}`);
  }
  await ws.close();
  await watcher.close();
});

check('F19: the limit is for the message, not for its fragments', { seconds: 60 }, async () => {
  const half = Buffer.alloc(MIB / 2, 98);
  const { ws, watcher } = await pair();
  await ws.send(Buffer.concat([frame(OP.BINARY, half, { fin: false }), frame(OP.CONT, half, { fin: false }), frame(OP.CONT)]));
  assert.equal((await watcher.binary()).length, MIB);
  assert.equal((await ws.binary()).length, MIB);
  await ws.send(Buffer.concat([frame(OP.BINARY, half, { fin: false }), frame(OP.CONT, half, { fin: false })]));
  await ws.expectSilence();
  await ws.send(frame(OP.CONT, '', { fin: false, length: 1 })); // the header alone
  await ws.expectClose(1009);
  await watcher.expectSilence();
  await watcher.close();
  await assertUnharmed(server);
});

check('F25: an empty message is delivered as one', async () => {
  const { ws, watcher, channel } = await pair();
  await ws.send(hex(`81 80 ${M}`));
  assert.equal(await watcher.text(), '');
  await ws.send(hex(`82 80 ${M}`));
  assert.equal((await watcher.binary()).length, 0);
  await publish(server, channel, '');
  assert.equal((await watcher.message()).data.length, 0);
  await ws.close();
  await watcher.close();
});

accepts('F27: NUL and line ends travel as they are', text('a\0b\r\nc\rd\n'), ['a\0b\r\nc\rd\n']);

check('F31: bytes after a frame in the same segment are the next frames, exactly', async () => {
  const { ws, watcher } = await pair();
  const rest = Array.from({ length: 400 }, (_, i) => `m${i}`);
  await ws.send(Buffer.concat([text('abc'), ...rest.map((word) => text(word))]));
  assert.equal(await watcher.text(), 'abc');
  for (const word of rest) assert.equal(await watcher.text(), word);
  await watcher.expectSilence();
  await ws.close();
  await watcher.close();
});

check('F31: an end after one byte of a header is an end, and burns no CPU', async () => {
  for (const cut of [1, 2, 5, 6, 7]) {
    const ws = await WebSocket.channel(server, fresh());
    await ws.send(text('hello').subarray(0, cut));
    ws.tcp.finish();
    await ws.tcp.untilEnd();
    ws.drop();
  }
  const before = cpuMs(server.firstWorkers);
  await sleep(500);
  assert.ok(cpuMs(server.firstWorkers) - before < 200, 'a worker is busy with nothing');
  await assertUnharmed(server);
});

check('F24: a flood of pings that is never read stays bounded', { seconds: 90 }, async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(handshake(server, `/channels/${fresh()}`));
  assertSwitched(await answer(tcp));
  tcp.pause();
  const before = ownBytes(server.firstWorkers);
  const flood = Buffer.concat(Array.from({ length: 500 }, () => frame(OP.PING, Buffer.alloc(125, 97))));
  let taken = 0;
  for (let i = 0; i < 2000 && !tcp.closed; i++) { // 1e6 pings, as far as they are taken
    const done = tcp.send(flood);
    const stalled = Symbol('stalled');
    if (await Promise.race([done, sleep(1000).then(() => stalled)]) === stalled) break;
    taken += 500;
  }
  if (!sanitized) {
    const grown = ownBytes(server.firstWorkers) - before;
    assert.ok(grown < 2 * MIB, `the workers grew by ${grown} bytes after ${taken} pings`);
  }
  tcp.destroy();
  await assertUnharmed(server);
});

check('F30: what is too big is refused, and the subscribers live on', async () => {
  const { ws, watcher, channel } = await pair();
  const got = await ask(server, 'POST', `/channels/${channel}`, { body: Buffer.alloc(MIB + 1) });
  assertProblem(got, 413);
  await watcher.expectSilence();
  await publish(server, channel, Buffer.alloc(MIB, 120), { headers: [['Content-Type', 'text/plain']] });
  assert.equal((await watcher.text()).length, MIB);
  assert.equal((await ws.text()).length, MIB);
  await ws.close();
  await watcher.close();
});

// --- text --------------------------------------------------------------------

const badText = {
  'a lone continuation byte': '80', 'a cut sequence at the end': 'e2 82', 'an overlong slash': 'c0 af',
  'an overlong NUL': 'e0 80 80', 'a surrogate': 'ed a0 80', 'above U+10FFFF': 'f4 90 80 80',
  'an impossible byte': 'ff', 'a five-byte form': 'f8 88 80 80 80',
};
for (const [name, bytes] of Object.entries(badText)) {
  refuses(`text with ${name} is 1007 and nobody sees it`,
    text(Buffer.concat([Buffer.from('ok '), hex(bytes)])), 1007);
}

check('bad UTF-8 is refused at its first bad byte, inside an unfinished frame', async () => {
  for (const fin of [true, false]) {
    const ws = await WebSocket.channel(server, fresh());
    const part = text(Buffer.concat([Buffer.from('ok '), hex('f4 90')]), { fin, length: 1000 });
    await ws.send(part);
    await ws.expectClose(1007);
  }
});

check('a character may be cut by fragments, at each of its bytes', async () => {
  const { ws, watcher } = await pair();
  const word = Buffer.from('κόσμε €😀\u{10ffff}');
  for (let i = 1; i < word.length; i++) {
    await ws.send(Buffer.concat([text(word.subarray(0, i), { fin: false }), frame(OP.CONT, word.subarray(i))]));
    assert.equal(await watcher.text(), word.toString(), `cut at ${i}`);
  }
  await ws.close();
  await watcher.close();
});

refuses('text that ends inside a character is 1007 at its last fragment',
  Buffer.concat([text(hex('e2 82'), { fin: false }), frame(OP.CONT)]), 1007);

accepts('any bytes are a binary message', binary(Buffer.from(Array.from({ length: 256 }, (_, i) => i))),
  [Buffer.from(Array.from({ length: 256 }, (_, i) => i))]);

// --- closing -----------------------------------------------------------------

check('C01: an empty close is answered by an empty close, and the server ends TCP', async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(handshake(server, `/channels/${fresh()}`));
  assertSwitched(await answer(tcp));
  await tcp.send(hex(`88 80 ${M}`));
  await tcp.untilEnd();
  assert.equal(tcp.buffer.toString('hex'), '8800');
  tcp.destroy();
});

for (const code of [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535]) {
  refuses(`C03: close code ${code} is 1002`, closeFrame(code), 1002);
}
check('C03: every legal close code is echoed', async () => {
  for (const code of [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999]) {
    const ws = await WebSocket.channel(server, fresh());
    await ws.send(closeFrame(code, 'so long'));
    const info = await ws.closed({ echo: false });
    assert.equal(info.code, code);
    assert.ok(['', 'so long'].includes(info.reason), info.reason);
  }
});
refuses('a close of one byte is 1002', frame(OP.CLOSE, hex('03')), 1002);
refuses('C04: bad UTF-8 in the reason is 1007 or 1002', hex(`88 84 ${M} 03 e8 c3 28`), [1002, 1007], {
  after: (ws) => assert.ok(!ws.closeBytes.includes(hex('c328')), 'the bad bytes came back'),
});

check('C06: after our close frame nothing of ours counts, and exactly one close frame comes back', async () => {
  const { ws, watcher } = await pair();
  await ws.send(Buffer.concat([closeFrame(1000), text('too late'), frame(OP.PING, 'x'), closeFrame(1001)]));
  const info = await ws.closed({ echo: false });
  assert.equal(info.code, 1000);
  assert.deepEqual(ws.pongs, []);
  await watcher.expectSilence();
  await watcher.close();
});

check('C06: a peer that ends TCP without a close frame is let go', async () => {
  const ws = await WebSocket.channel(server, fresh());
  ws.tcp.finish();
  await ws.tcp.untilEnd();
  assert.equal(ws.violation, null);
  ws.drop();
});

check('C07: a peer that does not answer a close is dropped after ws.close_timeout', async () => {
  const ws = await WebSocket.channel(server, fresh());
  await ws.send(hex('81 02 68 69'));
  const from = Date.now();
  await ws.wait(() => ws.closeInfo, 'a close frame');
  assert.equal(ws.closeInfo.code, 1002);
  await ws.tcp.until(() => ws.tcp.ended, 'the end of TCP', 4000); // we say nothing and stay open
  assert.ok(Date.now() - from < 4000 * 4);
  await poll(() => !server.placement().has(ws.port), 'the server to let the socket go', { ms: 4000 });
  ws.drop();
});

check('C09: the bytes of a close frame are its code and its text and no more', async () => {
  for (const [bytes, code] of [[hex('81 02 68 69'), 1002], [text(hex('ff')), 1007], [binary('', { length: MIB + 1 }), 1009]]) {
    const ws = await WebSocket.channel(server, fresh());
    await ws.send(bytes);
    await ws.expectClose(code);
    const { reason } = readClose(ws.closeBytes);
    assert.equal(ws.closeBytes.length, 2 + Buffer.byteLength(reason));
    assert.match(reason, /^[\x20-\x7e]*$/, 'the reason is readable text');
  }
});

check('C10: resets in the middle of a fan-out hurt nobody else', { seconds: 60 }, async () => {
  const channel = fresh();
  const victims = [];
  await spread(100, 20, async () => victims.push(await WebSocket.channel(server, channel)));
  const watcher = await WebSocket.channel(server, channel);
  const data = randomBytes(MIB);
  const sending = (async () => {
    for (let i = 0; i < 3; i++) {
      await publish(server, channel, data, { headers: [['Content-Type', 'application/octet-stream']] });
    }
  })();
  for (const victim of victims) {
    victim.tcp.reset();
    await new Promise(setImmediate);
  }
  await sending;
  for (let i = 0; i < 3; i++) assert.ok((await watcher.binary()).equals(data));
  await watcher.close();
  await assertUnharmed(server);
});

// --- the raw form ------------------------------------------------------------

check('raw: text and JSON are text frames, the rest is binary', async () => {
  const channel = fresh();
  const ws = await WebSocket.channel(server, channel);
  for (const [type, body, op] of [
    ['text/plain', 'words', OP.TEXT], ['text/html; charset=utf-8', '<p>', OP.TEXT],
    ['application/json', '{"a": [1, 2]}', OP.TEXT], ['application/ld+json', '[]', OP.TEXT],
    [undefined, 'none', OP.TEXT], ['application/x-www-form-urlencoded', 'from=curl', OP.TEXT],
    ['application/octet-stream', 'looks like text', OP.BINARY], ['image/png', Buffer.from([137, 80]), OP.BINARY],
    [undefined, Buffer.from([0xff, 0xfe]), OP.BINARY],
  ]) {
    await publish(server, channel, body, { headers: type ? [['Content-Type', type]] : [] });
    const got = await ws.message();
    assert.equal(got.op, op, `${type}`);
    assert.ok(got.data.equals(Buffer.from(body)), 'other bytes');
  }
  await ws.close();
});

check('raw: what a client sends is published, to itself as well, in order', async () => {
  const channel = fresh();
  const a = await WebSocket.channel(server, channel);
  const b = await WebSocket.channel(server, channel);
  for (let i = 0; i < 50; i++) await a.send(text(`a${i}`));
  for (const reader of [a, b]) {
    for (let i = 0; i < 50; i++) assert.equal(await reader.text(), `a${i}`);
  }
  await Promise.all(Array.from({ length: 50 }, (_, i) => [a.send(text(`x${i}`)), b.send(text(`y${i}`))]).flat());
  const order = [[], []];
  for (let i = 0; i < 100; i++) {
    order[0].push(await a.text());
    order[1].push(await b.text());
  }
  assert.deepEqual(order[0], order[1], 'two subscribers saw two orders');
  assert.deepEqual(order[0].filter((w) => w[0] === 'x'), Array.from({ length: 50 }, (_, i) => `x${i}`));
  await a.close();
  await b.close();
});

check('raw: channels do not mix', async () => {
  const [one, two] = [fresh(), fresh()];
  const a = await WebSocket.channel(server, one);
  const b = await WebSocket.channel(server, two);
  await a.send(text('for one'));
  await publish(server, two, 'for two');
  assert.equal(await a.text(), 'for one');
  assert.equal(await b.text(), 'for two');
  await a.expectSilence();
  await b.expectSilence();
  await a.close();
  await b.close();
});

check('pings are answered with their own payload, in order', async () => {
  const ws = await WebSocket.channel(server, fresh());
  const sent = Array.from({ length: 100 }, (_, i) => `ping ${i}`);
  for (const word of sent) await ws.send(frame(OP.PING, word, { mask: randomMask() }));
  await ws.send(frame(OP.PING, Buffer.alloc(125, 1)));
  await ws.wait(() => ws.pongs.length === 101, '101 pongs');
  assert.deepEqual(ws.pongs.slice(0, 100).map(String), sent);
  assert.equal(ws.pongs[100].length, 125);
  await ws.send(frame(OP.PONG, 'nobody asked'));
  await ws.expectSilence();
  await ws.close();
});

// --- clients that others wrote ---------------------------------------------------

check('the npm client ws subscribes, publishes and closes', async () => {
  const channel = fresh();
  const client = new WsClient(`ws://${server.host}/channels/${channel}`);
  const got = [];
  client.on('message', (data, isBinary) => got.push(isBinary ? data : data.toString()));
  await new Promise((resolve, reject) => client.once('open', resolve).once('error', reject));
  await publish(server, channel, 'by POST');
  client.send('by the client');
  client.send(Buffer.from([1, 2, 3]));
  const big = 'y'.repeat(200_000);
  client.send(big.slice(0, 100_000), { fin: false });
  client.send(big.slice(100_000), { fin: true });
  await poll(() => got.length === 4, 'four messages');
  assert.deepEqual(got, ['by POST', 'by the client', Buffer.from([1, 2, 3]), big]);
  const closed = new Promise((resolve) => client.once('close', (code) => resolve(code)));
  client.close(1000);
  assert.equal(await closed, 1000);
});

check('the WebSocket of undici subscribes, publishes and closes', async () => {
  const channel = fresh();
  const client = new UndiciWebSocket(`ws://${server.host}/channels/${channel}`);
  client.binaryType = 'arraybuffer';
  const got = [];
  client.onmessage = (event) => got.push(event.data);
  await new Promise((resolve, reject) => { client.onopen = resolve; client.onerror = reject; });
  await publish(server, channel, 'by POST');
  client.send('κόσμε');
  client.send(new Uint8Array([9, 8]));
  await poll(() => got.length === 3, 'three messages');
  assert.deepEqual(got.slice(0, 2), ['by POST', 'κόσμε']);
  assert.deepEqual([...new Uint8Array(got[2])], [9, 8]);
  const closed = new Promise((resolve) => { client.onclose = resolve; });
  client.close(1000, 'bye');
  const event = await closed;
  assert.equal(event.code, 1000);
  assert.equal(event.wasClean, true);
});

checkStop(server, { fdsBefore });
