// The subprotocol crier.v1 on channels without history: every operation of the
// contract, what comes back, and what an error leaves standing.
import assert from 'node:assert/strict';
import { WebSocket as WsClient } from 'ws';
import { Tcp, assertUnharmed, check, checkStop, poll, start } from './lib/crier.mjs';
import { answer, assertProblem, publish } from './lib/http.mjs';
import { OP, WebSocket, assertSwitched, binary, frame, handshake, text } from './lib/websocket.mjs';
import { V1 } from './lib/v1.mjs';

const server = await start({ workers: 2 });
await assertUnharmed(server);
const fdsBefore = server.fds();
let names = 0;
const fresh = () => `v1-${++names}`;
const post = (channel, body, type, query) =>
  publish(server, channel, body, { headers: type ? [['Content-Type', type]] : [], query });

function assertSubscribed(got, channel) {
  const { cursor, ...rest } = got;
  assert.deepEqual(rest, { op: 'subscribed', channel, gap: null, more: false, messages: [] });
  assert.ok(Number.isSafeInteger(cursor) && cursor >= 0, `cursor ${cursor}`);
}

function assertError(got) {
  assert.equal(got.op, 'error', JSON.stringify(got));
  assert.equal(typeof got.code, 'string');
  assert.match(got.code, /^[a-z][a-z0-9_-]*$/);
  assert.equal(typeof got.detail, 'string');
  assert.notEqual(got.detail, '');
  return got;
}

// --- subscribing -------------------------------------------------------------

check('/channels/NAME is subscribed at once, and says so', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, channel);
  assert.equal(v1.subscribed.length, 1);
  assertSubscribed(v1.subscribed[0], channel);
  const { id } = await post(channel, 'hello');
  assert.deepEqual(await v1.message(), { op: 'message', channel, id, type: 'text/plain', data: 'hello' });
  assert.ok(id > v1.subscribed[0].cursor, 'the id is not above the cursor');
  await v1.expectSilence();
  await v1.close();
});

check('/subscribe subscribes what its query names, each once', async () => {
  const [a, b, c] = [fresh(), fresh(), fresh()];
  const v1 = await V1.open(server, `/subscribe?channel=${a}&channel=${b}&channel=${a}`, { expect: 2 });
  await v1.expectAlive();
  assert.deepEqual([...new Set(v1.subscribed.map((s) => s.channel))].sort(), [a, b].sort());
  const ids = [await post(a, 'one'), await post(b, 'two'), await post(c, 'not for us'), await post(a, 'three')];
  const got = [await v1.message(), await v1.message(), await v1.message()];
  assert.deepEqual(got.filter((m) => m.channel === a).map((m) => [m.id, m.data]), [[ids[0].id, 'one'], [ids[3].id, 'three']]);
  assert.deepEqual(got.filter((m) => m.channel === b).map((m) => [m.id, m.data]), [[ids[1].id, 'two']]);
  await v1.expectSilence();
  await v1.close();
});

check('/subscribe without a channel is a connection that subscribes later, or 400', async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(handshake(server, '/subscribe', { protocol: 'crier.v1' }));
  const got = await answer(tcp);
  if (got.status === 400) {
    assertProblem(got, 400);
    tcp.destroy();
    return;
  }
  assertSwitched(got, 'crier.v1');
  const v1 = new V1(new WebSocket(tcp));
  const channel = fresh();
  await v1.subscribe(channel);
  await post(channel, 'x');
  assert.equal((await v1.message()).data, 'x');
  await v1.close();
});

check('a name in the query is decoded once, and + there is a space or a plus, never an error', async () => {
  const v1 = await V1.open(server, '/subscribe?channel=caf%C3%A9%2Fone&channel=b%2526', { expect: 2 });
  assert.deepEqual(v1.subscribed.map((s) => s.channel).sort(), ['b%26', 'café/one']);
  await post('café/one', 'x');
  assert.equal((await v1.message()).channel, 'café/one');
  await v1.close();
});

check('subscribe and unsubscribe work on any connection', async () => {
  const [home, other] = [fresh(), fresh()];
  const v1 = await V1.channel(server, home);
  assertSubscribed(await v1.subscribe(other), other);
  const { id } = await post(other, 'heard');
  const got = await v1.message();
  assert.deepEqual([got.channel, got.id, got.data], [other, id, 'heard']);
  await v1.unsubscribe(other);
  const { subscribers } = await post(other, 'not heard');
  assert.equal(subscribers, 0);
  await v1.expectSilence();
  await v1.unsubscribe(home);
  await post(home, 'not heard either');
  await v1.expectSilence();
  await v1.subscribe(home);
  await post(home, 'heard again');
  assert.equal((await v1.message()).data, 'heard again');
  await v1.close();
});

check('a channel that is subscribed twice is delivered once, and counts once', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, channel);
  for (let i = 0; i < 3; i++) {
    const got = await v1.ask({ op: 'subscribe', channel });
    assert.ok(['subscribed', 'error'].includes(got.op), got.op);
  }
  assert.equal((await post(channel, 'once')).subscribers, 1);
  assert.equal((await v1.message()).data, 'once');
  await v1.expectSilence();
  await v1.unsubscribe(channel);
  assert.equal((await post(channel, 'gone')).subscribers, 0);
  await v1.expectSilence();
  await v1.close();
});

check('unsubscribing what is not subscribed is harmless', async () => {
  const v1 = await V1.channel(server, fresh());
  const got = await v1.ask({ op: 'unsubscribe', channel: fresh() });
  if (got.op !== 'unsubscribed') assertError(got);
  await v1.expectAlive();
  await v1.close();
});

check('many channels on one connection: each gets its own, in order of id', async () => {
  const channels = Array.from({ length: 100 }, fresh);
  const v1 = await V1.channel(server, channels[0]);
  for (const channel of channels.slice(1)) await v1.subscribe(channel);
  const sent = [];
  for (let i = 0; i < 300; i++) {
    const channel = channels[(i * 37) % 100];
    sent.push({ channel, id: (await post(channel, `${i}`)).id, data: `${i}` });
  }
  const got = [];
  while (got.length < 300) got.push(await v1.message());
  for (const channel of channels) {
    const of = (list) => list.filter((m) => m.channel === channel).map((m) => [m.id, m.data]);
    assert.deepEqual(of(got), of(sent), channel);
  }
  await v1.expectSilence();
  await v1.close();
});

check('subscribing with a since that is not now is told of the gap', async () => {
  const channel = fresh();
  const { id } = await post(channel, 'lost');
  const v1 = await V1.channel(server, fresh());
  const got = await v1.ask({ op: 'subscribe', channel, since: id - 1 });
  assert.equal(got.op, 'subscribed', JSON.stringify(got));
  assert.ok(got.gap !== null, 'no gap was told');
  assert.ok(got.gap.from <= id && got.gap.to >= id, `the gap ${JSON.stringify(got.gap)} leaves ${id} out`);
  assert.deepEqual(got.messages, []);
  const next = await post(channel, 'live');
  assert.equal((await v1.message()).id, next.id);
  await v1.close();
});

check('?since= on the path is told of the gap as well', async () => {
  const channel = fresh();
  const { id } = await post(channel, 'lost');
  const v1 = await V1.channel(server, channel, { query: `?since=${id - 1}` });
  const { gap } = v1.subscribed[0];
  assert.ok(gap !== null && gap.from <= id && gap.to >= id, JSON.stringify(gap));
  await v1.close();
  const now = await V1.channel(server, channel, { query: '?since=now' });
  assertSubscribed(now.subscribed[0], channel);
  await now.close();
});

check('a since that cannot be parsed is an error, and subscribes nothing', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, fresh());
  for (const since of ['x', true, {}, [], -1.5, 1.5, '1x', 2 ** 60]) {
    const got = await v1.ask({ op: 'subscribe', channel, since });
    if (since === 2 ** 60 && got.op === 'subscribed') { // far ahead of the clock: a gap, then live
      assert.ok(got.gap !== null);
      await v1.unsubscribe(channel);
    } else {
      assertError(got);
    }
  }
  assert.equal((await post(channel, 'x')).subscribers, 0);
  await v1.expectSilence();
  await v1.close();
});

check('a pattern is subscribed, or refused by an error that leaves the connection', async () => {
  const prefix = fresh();
  const v1 = await V1.channel(server, fresh());
  const got = await v1.ask({ op: 'subscribe', pattern: `${prefix}:*` });
  if (got.op === 'subscribed') {
    assert.equal(got.pattern, `${prefix}:*`);
    await post(`${prefix}:b`, 'matches');
    await post(`${prefix}:b:c`, 'does not');
    await post(`${prefix}/b`, 'does not');
    assert.equal((await v1.message()).channel, `${prefix}:b`);
  } else {
    assertError(got);
  }
  await v1.expectSilence();
  await v1.close();
});

// --- what a message looks like -------------------------------------------------

const shapes = [
  ['text', 'hello', 'text/plain', { type: 'text/plain', data: 'hello' }],
  ['text with a charset', 'hé', 'text/html; charset=utf-8', { type: 'text/html; charset=utf-8', data: 'hé' }],
  ['text that JSON must escape', 'a"b\\c\n\r\t\u0001\u2028\u007f\0', 'text/plain', { type: 'text/plain', data: 'a"b\\c\n\r\t\u0001\u2028\u007f\0' }],
  ['an empty text', '', 'text/plain', { type: 'text/plain', data: '' }],
  ['JSON', '{"a":[1,2,{"b":null}]}', 'application/json', { type: 'application/json', data: { a: [1, 2, { b: null }] } }],
  ['JSON with line ends', '{\r\n "a": 1\n}\n', 'application/json', { type: 'application/json', data: { a: 1 } }],
  ['a JSON string', '"x"', 'application/json', { type: 'application/json', data: 'x' }],
  ['a JSON null', 'null', 'application/json', { type: 'application/json', data: null }],
  ['JSON of another kind', '{"x":1}', 'application/geo+json', { type: 'application/geo+json', data: { x: 1 } }],
  ['binary', Buffer.from([0, 255, 1, 254]), 'application/octet-stream', { type: 'application/octet-stream', data64: 'AP8B/g==' }],
  ['empty binary', Buffer.alloc(0), 'application/octet-stream', { type: 'application/octet-stream', data64: '' }],
  ['an image', Buffer.from('GIF89a'), 'image/gif', { type: 'image/gif', data64: 'R0lGODlh' }],
];
for (const [name, body, type, want] of shapes) {
  check(`a message that is ${name} has exactly its fields`, async () => {
    const channel = fresh();
    const v1 = await V1.channel(server, channel);
    const { id } = await post(channel, body, type);
    assert.deepEqual(await v1.message(), { op: 'message', channel, id, ...want });
    await v1.close();
  });
}

check('a message without a type is text/plain where it is UTF-8, else application/octet-stream', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, channel);
  await post(channel, 'by curl', 'application/x-www-form-urlencoded');
  await post(channel, 'bare');
  await post(channel, Buffer.from([0xff]), 'application/x-www-form-urlencoded');
  await post(channel, Buffer.from([0xff]));
  const got = [];
  for (let i = 0; i < 4; i++) {
    const { type, data, data64 } = await v1.message();
    got.push([type, data ?? data64]);
  }
  assert.deepEqual(got, [['text/plain', 'by curl'], ['text/plain', 'bare'],
    ['application/octet-stream', '/w=='], ['application/octet-stream', '/w==']]);
  await v1.close();
});

check('JSON travels with its own digits and escapes', async () => {
  const channel = fresh();
  const ws = await WebSocket.channel(server, channel, { protocol: 'crier.v1' });
  await ws.text(); // subscribed
  for (const body of ['{"n":12345678901234567890123}', '[1.10,1e400,-0]', '"\\u0000"']) {
    await post(channel, body, 'application/json');
    const raw = await ws.text();
    assert.ok(raw.includes(body), `${raw} does not have ${body}`);
  }
  await ws.close();
});

check('an event name travels in event', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, channel);
  await post(channel, 'x', 'text/plain', '?event=price%20update');
  const got = await v1.message();
  assert.equal(got.event, 'price update');
  await v1.close();
});

check('binary of every byte and length comes back equal from data64', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, channel);
  for (const n of [1, 2, 3, 255, 256, 1000, 65536]) {
    const body = Buffer.from(Array.from({ length: n }, (_, i) => i * 7 & 255));
    await post(channel, body, 'application/octet-stream');
    const got = await v1.message();
    assert.equal(got.data64, body.toString('base64'));
  }
  await v1.close();
});

check('a message of the greatest size arrives', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, channel);
  const body = 'é'.repeat(512 * 1024);
  await post(channel, body, 'text/plain');
  assert.ok((await v1.message()).data === body);
  await post(channel, Buffer.alloc(1024 * 1024, 1), 'application/octet-stream');
  assert.ok((await v1.message()).data64 === Buffer.alloc(1024 * 1024, 1).toString('base64'));
  await post(channel, '\u0001'.repeat(1024 * 1024), 'text/plain'); // six bytes each in JSON
  assert.equal((await v1.message()).data.length, 1024 * 1024);
  await v1.close();
});

// --- publishing ----------------------------------------------------------------

const published = [
  ['a string is text', { data: 'hi' }, 'text/plain', { data: 'hi' }, OP.TEXT, 'hi'],
  ['an empty string is empty text', { data: '' }, 'text/plain', { data: '' }, OP.TEXT, ''],
  ['an object is JSON', { data: { a: 1 } }, 'application/json', { data: { a: 1 } }, OP.TEXT, '{"a":1}'],
  ['a number is JSON', { data: 5 }, 'application/json', { data: 5 }, OP.TEXT, '5'],
  ['null is JSON', { data: null }, 'application/json', { data: null }, OP.TEXT, 'null'],
  ['false is JSON', { data: false }, 'application/json', { data: false }, OP.TEXT, 'false'],
  ['an array is JSON', { data: [] }, 'application/json', { data: [] }, OP.TEXT, '[]'],
  ['a string with a JSON type is a JSON string', { data: 'x', type: 'application/json' }, 'application/json', { data: 'x' }, OP.TEXT, '"x"'],
  ['a string with a text type keeps it', { data: '<b>', type: 'text/html' }, 'text/html', { data: '<b>' }, OP.TEXT, '<b>'],
  ['data64 is binary', { data64: 'AAEC' }, 'application/octet-stream', { data64: 'AAEC' }, OP.BINARY, Buffer.from([0, 1, 2])],
  ['empty data64 is empty binary', { data64: '' }, 'application/octet-stream', { data64: '' }, OP.BINARY, ''],
  ['data64 with a type keeps it', { data64: 'iVA=', type: 'image/png' }, 'image/png', { data64: 'iVA=' }, OP.BINARY, Buffer.from([0x89, 0x50])],
];
for (const [name, fields, type, want, op, bytes] of published) {
  check(`publish: ${name}`, async () => {
    const channel = fresh();
    const v1 = await V1.channel(server, channel);
    const raw = await WebSocket.channel(server, channel);
    const id = await v1.publish(channel, fields);
    assert.deepEqual(await v1.message(), { op: 'message', channel, id, type, ...want });
    const got = await raw.message();
    assert.equal(got.op, op);
    assert.equal(got.data.toString('latin1').replace(/\s/g, ''), Buffer.from(bytes).toString('latin1'));
    await v1.close();
    await raw.close();
  });
}

check('publish: the event travels, and echo false keeps it from this connection only', async () => {
  const channel = fresh();
  const a = await V1.channel(server, channel);
  const b = await V1.channel(server, channel);
  const id = await a.publish(channel, { data: 'x', event: 'joined', echo: false });
  const got = await b.message();
  assert.deepEqual([got.id, got.event, got.data], [id, 'joined', 'x']);
  await a.expectSilence();
  const next = await a.publish(channel, { data: 'y', echo: true });
  assert.equal((await a.message()).id, next);
  assert.equal((await b.message()).id, next);
  await a.close();
  await b.close();
});

check('publish: to a channel that is not subscribed here', async () => {
  const channel = fresh();
  const a = await V1.channel(server, fresh());
  const b = await V1.channel(server, channel);
  const id = await a.publish(channel, { data: 'x' });
  assert.equal((await b.message()).id, id);
  await a.expectSilence();
  await a.close();
  await b.close();
});

check('publish: a value with a text type travels as its JSON text, or is an error', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, channel);
  const got = await v1.ask({ op: 'publish', channel, data: { a: [1] }, type: 'text/plain' });
  if (got.op === 'published') {
    const { type, data } = await v1.message();
    assert.deepEqual([type, data.replace(/\s/g, '')], ['text/plain', '{"a":[1]}']);
  } else {
    assertError(got);
  }
  await v1.expectSilence();
  await v1.close();
});

check('publish: many without waiting come back in order, with increasing ids', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, channel);
  const other = await V1.channel(server, channel);
  await v1.ws.send(Buffer.concat(Array.from({ length: 200 }, (_, i) =>
    text(JSON.stringify({ op: 'publish', channel, data: i, ref: i })))));
  await v1.ws.wait(() => v1.answers.length === 200, '200 answers');
  assert.deepEqual(v1.answers.map((a) => a.ref), Array.from({ length: 200 }, (_, i) => i));
  const ids = v1.answers.map((a) => a.id);
  assert.ok(ids.every((id, i) => i === 0 || id > ids[i - 1]), 'ids do not grow');
  for (const reader of [v1, other]) {
    await reader.ws.wait(() => reader.messages.length === 200, '200 messages');
    assert.deepEqual(reader.messages.map((m) => [m.id, m.data]), ids.map((id, i) => [id, i]));
  }
  await v1.close();
  await other.close();
});

check('a ref of any simple kind comes back as it was, and none where there was none', async () => {
  const v1 = await V1.channel(server, fresh());
  for (const ref of ['a', '', 'ü"\\', 0, 42, 9007199254740991, -1]) {
    await v1.send({ op: 'ping', ref });
    assert.deepEqual(await v1.answer(), { op: 'pong', ref });
  }
  await v1.send({ op: 'ping' });
  assert.deepEqual(await v1.answer(), { op: 'pong' });
  await v1.send({ op: 'nonsense', ref: 7 });
  assert.equal(assertError(await v1.answer()).ref, 7);
  await v1.close();
});

check('auth without configured credentials answers and leaves the connection', async () => {
  const v1 = await V1.channel(server, fresh());
  const got = await v1.ask({ op: 'auth', token: 'abc' });
  if (got.op !== 'authenticated') assertError(got);
  await v1.expectAlive();
  await v1.close();
});

// --- errors: told, and the connection stays ------------------------------------

const wrong = {
  'an open brace': '{', 'nothing at all': '', 'a blank': ' ', 'a number': '1', 'a string': '"x"', 'null': 'null',
  'an array': '[{"op":"ping"}]', 'an empty object': '{}', 'two objects': '{"op":"ping"}{"op":"ping"}',
  'a trailing comma': '{"op":"ping",}', 'single quotes': "{'op':'ping'}", 'NaN': '{"op":NaN}',
  'a null op': '{"op":null}', 'a number as op': '{"op":1}', 'an unknown op': '{"op":"fly"}', 'an op in capitals': '{"op":"PING"}',
  'an op of the server': '{"op":"message","channel":"a","id":1,"data":"x"}',
  'subscribe without a channel': '{"op":"subscribe"}', 'subscribe to a number': '{"op":"subscribe","channel":5}',
  'subscribe to null': '{"op":"subscribe","channel":null}',
  'subscribe to nothing': '{"op":"subscribe","channel":""}', 'subscribe to a star': '{"op":"subscribe","channel":"a*"}',
  'subscribe to a dot': '{"op":"subscribe","channel":"."}', 'subscribe to two dots': '{"op":"subscribe","channel":".."}',
  'subscribe to a control character': '{"op":"subscribe","channel":"a\\u0000b"}',
  'subscribe to a line end': '{"op":"subscribe","channel":"a\\nb"}',
  'subscribe to 256 bytes': JSON.stringify({ op: 'subscribe', channel: 'x'.repeat(256) }),
  'subscribe to a channel and a pattern': '{"op":"subscribe","channel":"a","pattern":"a:*"}',
  'unsubscribe without a channel': '{"op":"unsubscribe"}',
  'publish without a channel': '{"op":"publish","data":"x"}', 'publish without data': '{"op":"publish","channel":"a"}',
  'publish with both data': '{"op":"publish","channel":"a","data":"x","data64":"eA=="}',
  'publish with bad base64': '{"op":"publish","channel":"a","data64":"###"}',
  'publish with cut base64': '{"op":"publish","channel":"a","data64":"e"}',
  'publish with a number as data64': '{"op":"publish","channel":"a","data64":5}',
  'publish with bad UTF-8 as text': '{"op":"publish","channel":"a","data64":"/w==","type":"text/plain"}',
  'publish with broken JSON': '{"op":"publish","channel":"a","data64":"ew==","type":"application/json"}',
  'publish with a number as type': '{"op":"publish","channel":"a","data":"x","type":5}',
  'publish with a line end in its type': '{"op":"publish","channel":"a","data":"x","type":"text/plain\\r\\nx: y"}',
  'publish with a reserved event': '{"op":"publish","channel":"a","data":"x","event":"gap"}',
  'publish with a line end in its event': '{"op":"publish","channel":"a","data":"x","event":"a\\nb"}',
  'publish with a number as event': '{"op":"publish","channel":"a","data":"x","event":5}',
  'publish with a string as echo': '{"op":"publish","channel":"a","data":"x","echo":"no"}',
  'deep nesting': `{"op":"publish","channel":"a","data":${'['.repeat(10_000)}${']'.repeat(10_000)}}`,
};
for (const [name, bytes] of Object.entries(wrong)) {
  check(`${name} is an error, and the connection stays`, async () => {
    const channel = fresh();
    const v1 = await V1.channel(server, channel);
    const watcher = await V1.channel(server, 'a');
    const from = Date.now();
    await v1.ws.send(text(bytes));
    assertError(await v1.answer());
    assert.ok(Date.now() - from < 5000);
    await v1.expectAlive();
    await watcher.expectSilence();
    await post(channel, 'still here');
    assert.equal((await v1.message()).data, 'still here');
    await v1.close();
    await watcher.close();
  });
}

check('a binary frame is an error or a close with 1003', async () => {
  const v1 = await V1.channel(server, fresh());
  await v1.ws.send(binary('{"op":"ping"}'));
  await v1.ws.until(() => v1.answers.length > 0 || v1.ws.closeInfo, 'an error or a close');
  if (v1.ws.closeInfo) {
    await v1.ws.expectClose(1003);
  } else {
    assertError(await v1.answer());
    await v1.expectAlive();
    await v1.close();
  }
  await assertUnharmed(server);
});

check('framing that is wrong closes, as on a raw connection', async () => {
  const v1 = await V1.channel(server, fresh());
  await v1.ws.send(text(Buffer.from([0xff])));
  await v1.ws.expectClose(1007);
  const other = await V1.channel(server, fresh());
  await other.ws.send(frame(3));
  await other.ws.expectClose(1002);
});

check('a request in pieces, with a ping between them, is one request', async () => {
  const v1 = await V1.channel(server, fresh());
  await v1.ws.send(Buffer.concat([frame(OP.TEXT, '{"op":', { fin: false }), frame(OP.PING, 'p'), frame(OP.CONT, '"ping","ref":1}')]));
  assert.deepEqual(await v1.answer(), { op: 'pong', ref: 1 });
  assert.equal(v1.ws.pongs.length, 1);
  await v1.close();
});

check('names of 255 bytes and of any script work in every op', async () => {
  const v1 = await V1.channel(server, fresh());
  for (const name of ['x'.repeat(255), 'é'.repeat(127), 'a b', 'a/b', 'a%2Fb', '<script>', '"', '\\', '😀', 'a+b', '...', '#', '?x=1']) {
    const channel = name.length > 100 ? name : `${name}-${fresh()}`;
    await v1.subscribe(channel);
    const { id } = await post(channel, 'x');
    const got = await v1.message();
    assert.deepEqual([got.channel, got.id], [channel, id]);
    const own = await v1.publish(channel, { data: 'y' });
    assert.equal((await v1.message()).id, own);
    await v1.unsubscribe(channel);
  }
  await v1.close();
});

check('the npm client ws speaks crier.v1 as well', async () => {
  const channel = fresh();
  const client = new WsClient(`ws://${server.host}/channels/${channel}`, ['crier.v1']);
  const got = [];
  client.on('message', (data) => got.push(JSON.parse(data)));
  await poll(() => got.length === 1, 'subscribed');
  assert.equal(client.protocol, 'crier.v1');
  const { id } = await post(channel, 'x');
  await poll(() => got.length === 2, 'the message');
  assert.equal(got[1].id, id);
  client.close();
  await poll(() => client.readyState === WsClient.CLOSED, 'the close');
});

checkStop(server, { fdsBefore });
