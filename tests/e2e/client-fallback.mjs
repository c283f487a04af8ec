// The browser client where the network lets less through: no WebSockets, then
// no streams either, answers that get lost; and what history lets it keep.
import assert from 'node:assert/strict';
import { Reader, Source, assertPromise, clientOf, clientOfScript, turn, withServer } from './lib/client.mjs';
import { assertFidelity, proxyOf, throughCuts } from './lib/client-proxy.mjs';
import { check, finish, poll, scratchPath, sleep, start } from './lib/crier.mjs';
import { publish } from './lib/http.mjs';

// --- what is let through ---------------------------------------------------------

check('no WebSocket: one stream for all, complete through cuts', { seconds: 90 }, (t) => withServer(t, { history: true }, async (server) => {
  const proxy = await proxyOf(server, t, { refuses: true });
  const crier = clientOf(server, t, {}, proxy.url);
  await assertFidelity(server, crier);
  const streams = proxy.count('stream');
  await throughCuts(server, proxy, crier, ['a', 'b', 'room:*', 'deep:**'], { rounds: 5 });
  assert.ok(proxy.count('poll') <= 2);
  assert.ok(proxy.count('stream') >= streams + 5);
  assert.ok(proxy.count('upgrade') >= 2);
  await poll(() => server.placement().size === 1, 'one stream for all');
  crier.close();
  await poll(() => server.placement().size === 0, 'the stream to end');
}));

check('a WebSocket through cuts, channels and patterns', { seconds: 60 }, (t) => withServer(t, { history: true }, async (server) => {
  const proxy = await proxyOf(server, t, {});
  const crier = clientOf(server, t, {}, proxy.url);
  await assertFidelity(server, crier);
  await throughCuts(server, proxy, crier, ['a', 'b', 'room:*', 'deep:**'], { rounds: 5 });
  assert.ok(proxy.count('stream') + proxy.count('poll') === 0);
}));

check('a network that stops to let WebSockets through, and lets them through again', { seconds: 90 }, async (t) => {
  let server = await start({ history: true });
  const { listeners } = server;
  try {
    const rules = {};
    const proxy = await proxyOf(server, t, rules);
    const crier = clientOf(server, t, {}, proxy.url);
    const reader = new Reader(crier, 'news');
    await reader.isOpen();
    const source = new Source(() => server, 'news', { every: 5 });
    await reader.count(10);
    rules.refuses = true;
    proxy.cut();
    await poll(() => proxy.count('stream') > 0, 'a stream', { ms: 20_000 });
    await reader.count(reader.messages.length + 20);
    rules.refuses = false;
    await server.stop(); // after an outage a WebSocket is tried again at once
    await sleep(3000);
    server = await start({ listen: listeners, history: true });
    await poll(() => crier.made.at(-1).ws.readyState === 1 && reader.state === 'open', 'a WebSocket', { ms: 20_000 });
    await reader.count(reader.messages.length + 20, 20_000);
    const published = await source.stop();
    await reader.until(() => reader.sub.cursor >= published.at(-1)[0], 'the last message');
    assertPromise(reader, published);
    await server.stop();
  } finally {
    server.killAll();
  }
});

check('channels that come and go on a stream lose nothing', { seconds: 60 }, (t) => withServer(t, { history: true }, async (server) => {
  const proxy = await proxyOf(server, t, { refuses: true });
  const crier = clientOf(server, t, {}, proxy.url);
  const reader = new Reader(crier, 'news');
  await reader.isOpen();
  const source = new Source(() => server, 'news', { every: 2 });
  for (let n = 0; n < 10; n++) {
    const guest = new Reader(crier, `guest:${n}`);
    await guest.isOpen();
    await publish(server, `guest:${n}`, 'welcome');
    await guest.count(1);
    guest.sub.close();
    assert.deepEqual(guest.gaps, []);
  }
  const published = await source.stop();
  await reader.until(() => reader.sub.cursor >= published.at(-1)[0], 'the last message');
  assert.deepEqual(reader.messages.map(({ id, data }) => [id, data]), published);
  assert.deepEqual(reader.gaps, []);
}));

check('a name that cannot be fails by itself, also without WebSockets', (t) => withServer(t, { history: true }, async (server) => {
  const proxy = await proxyOf(server, t, { refuses: true });
  const crier = clientOf(server, t, {}, proxy.url);
  const good = new Reader(crier, 'good');
  const bad = new Reader(crier, '..');
  await good.isOpen();
  await bad.until(() => bad.state === 'failed', 'it to fail');
  assert.equal(bad.states.at(-1)[1].status, 400);
  assert.notEqual(bad.states.at(-1)[1].message, '');
  const seen = proxy.seen.length;
  await publish(server, 'good', 'on');
  await good.count(1);
  await sleep(1500);
  assert.equal(proxy.seen.length, seen);
}));

// --- where to begin --------------------------------------------------------------

for (const [how, rules] of [['a WebSocket', {}], ['a stream', { refuses: true }], ['polls', { refuses: true, holds: true }]]) {
  check(`since: all that is kept, the last two, after an id, from now on; over ${how}`, { seconds: 60 }, (t) => withServer(t, { history: true }, async (server) => {
    const words = Array.from({ length: 1500 }, (_, i) => `old ${i}`);
    const ids = [];
    for (const word of words) ids.push((await publish(server, 'news', word)).id);
    const kept = words.slice(-1000); // history.count
    const proxy = await proxyOf(server, t, rules);
    const crier = clientOf(server, t, {}, proxy.url);
    const readers = ['first', -2, ids[1000], null, ids[10]].map((since) => new Reader(crier, 'news', { since }));
    await Promise.all(readers.map((reader) => reader.isOpen()));
    await publish(server, 'news', 'new');
    const [all, two, after, fresh, gone] = readers;
    await Promise.all(readers.map((reader) => reader.until(() => reader.data.at(-1) === 'new', 'the new one')));
    assert.deepEqual(all.data, [...kept, 'new']);
    assert.deepEqual(two.data, [...words.slice(-2), 'new']);
    assert.deepEqual(after.data, [...words.slice(1001), 'new']);
    assert.deepEqual(fresh.data, ['new']);
    assert.deepEqual(gone.data, [...kept, 'new']);
    assert.deepEqual([all, two, after, fresh].map(({ gaps }) => gaps), [[], [], [], []]);
    assert.equal(gone.gaps.length, 1);
    assert.ok(gone.gaps[0].from === ids[10] + 1 && gone.gaps[0].to >= ids[499] && gone.gaps[0].to < ids[500]);
  }));
}

check('a durable broker is killed and started again: all is there, and no gap', { seconds: 60 }, async (t) => {
  const args = ['--store', scratchPath('durable')];
  let server = await start({ args, history: true });
  const { listeners } = server;
  try {
    const crier = clientOf(server, t);
    const readers = ['one', 'two'].map((name) => new Reader(crier, name));
    await Promise.all(readers.map((reader) => reader.isOpen()));
    const sources = ['one', 'two'].map((name) => new Source(() => server, name));
    for (let round = 0; round < 3; round++) {
      const from = readers.map((reader) => reader.messages.length);
      await Promise.all(readers.map((reader, i) => reader.count(from[i] + 20, 20_000)));
      server.killAll();
      await server.untilExit();
      server = await start({ args, listen: listeners, history: true });
    }
    const published = await Promise.all(sources.map((source) => source.stop()));
    await Promise.all(readers.map(async (reader, i) => {
      await reader.until(() => reader.sub.cursor >= published[i].at(-1)[0], 'the last message', 20_000);
      assertPromise(reader, published[i]);
      assert.deepEqual(reader.gaps, []);
    }));
    await server.stop();
  } finally {
    server.killAll();
  }
});

// --- publishing --------------------------------------------------------------------

check('what is published arrives as it was given', (t) => withServer(t, { history: true }, async (server) => {
  const crier = clientOf(server, t);
  const reader = new Reader(crier, 'p/q');
  await reader.isOpen();
  const first = await crier.publish('p/q', 'words');
  assert.deepEqual(Object.keys(first).sort(), ['channel', 'id', 'subscribers']);
  assert.equal(first.subscribers, 1);
  await crier.publish('p/q', { a: [1, null] });
  await crier.publish('p/q', new Uint8Array([104, 105]));
  await crier.publish('p/q', new Uint8Array([7]).buffer);
  await crier.publish('p/q', '[1]', { type: 'application/json', event: 'tick' });
  await crier.publish('p/q', null);
  await crier.publish('p/q', '');
  await reader.count(7);
  assert.deepEqual(reader.messages.map(({ data }) => data),
    ['words', { a: [1, null] }, new Uint8Array([104, 105]), new Uint8Array([7]), [1], null, '']);
  assert.equal(reader.messages[0].id, first.id);
  assert.equal(reader.messages[4].event, 'tick');
  const one = await crier.publish('p/q', 'once', { key: 'k1' });
  assert.equal((await crier.publish('p/q', 'once', { key: 'k1' })).id, one.id);
  const { id } = await crier.publish('p/q', 'brief', { ttl: 1 });
  await reader.until(() => reader.sub.cursor === id, 'it');
  await sleep(1500);
  const late = new Reader(crier, 'p/q', { since: one.id });
  await late.isOpen();
  assert.deepEqual([late.data, late.gaps], [[], []]);
  await assert.rejects(crier.publish('p/q', '{broken', { type: 'application/json' }), { status: 400 });
  for (const name of ['.', '..', '', 'a*']) await assert.rejects(crier.publish(name, 'x'), (error) => error.status >= 400);
}));

for (const hasKey of [true, false]) {
  check(`an answer that is lost: the retry ${hasKey ? 'is no double' : 'would be a double but for the key'}`, (t) => withServer(t, { history: true }, async (server) => {
    const lost = new Set();
    const proxy = await proxyOf(server, t, {
      losesAnswer(request) {
        if (!hasKey) delete request.headers['idempotency-key'];
        if (request.method !== 'POST' || lost.has(request.url)) return false;
        lost.add(request.url);
        return true;
      },
    });
    const crier = clientOf(server, t, {}, proxy.url);
    const reader = new Reader(crier, 'news');
    await reader.isOpen();
    const { id } = await crier.publish('news', 'once');
    await publish(server, 'news', 'last');
    await reader.until(() => reader.data.at(-1) === 'last', 'the last');
    assert.deepEqual(reader.data, hasKey ? ['once', 'last'] : ['once', 'once', 'last']);
    if (hasKey) assert.equal(id, reader.messages[0].id);
    const keys = proxy.seen.filter(({ kind }) => kind === 'publish').map(({ key }) => key);
    assert.equal(keys.length, 2);
    if (hasKey) assert.ok(keys[0] && keys[0] === keys[1]);
  }));
}

// Answers of a list, one after the other; what was asked.
function answering(list) {
  const asked = [];
  const fetch = async (url, init) => {
    asked.push({ at: Date.now(), url, ...init });
    const next = list[Math.min(asked.length, list.length) - 1];
    if (typeof next === 'number') return new Response('{}', { status: next, headers: { 'retry-after': '1' } });
    if (next instanceof Error) throw next;
    return typeof next === 'function' ? next(url, init) : Response.json(next, { status: 201 });
  };
  return { asked, fetch };
}

check('a publish is tried again when that may help, with one key; with another for another', { seconds: 60 }, async (t) => {
  const { asked, fetch } = answering([503, 429, 502, 504, new TypeError('reset'), { id: 1 }]);
  const { crier } = clientOfScript(t, { fetch });
  assert.deepEqual(await crier.publish('a', 'x'), { id: 1 });
  assert.equal(asked.length, 6);
  assert.equal(new Set(asked.map(({ headers }) => headers['idempotency-key'])).size, 1);
  for (let i = 1; i < 5; i++) assert.ok(asked[i].at - asked[i - 1].at >= 990, 'Retry-After is not obeyed');
  assert.deepEqual(await crier.publish('a', 'x'), { id: 1 });
  assert.notEqual(asked[6].headers['idempotency-key'], asked[0].headers['idempotency-key']);
  assert.match(asked[0].headers['idempotency-key'], /^[\x21-\x7e]{1,128}$/);
});

check('a publish that cannot succeed is not tried again, and one without end is given up', { seconds: 30 }, async (t) => {
  for (const status of [400, 401, 403, 413, 422, 501, 507]) {
    const { asked, fetch } = answering([status]);
    const { crier } = clientOfScript(t, { fetch });
    await assert.rejects(crier.publish('a', 'x'), { status, message: `status ${status}` });
    assert.equal(asked.length, 1);
  }
  const { asked, fetch } = answering([new TypeError('reset')]);
  t.mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  const { Crier: Mocked } = await import('../../web/client/crier.js?with-that-clock');
  const crier = new Mocked('http://broker.example', { fetch });
  let end = null;
  crier.publish('a', 'x').catch((error) => { end = error; });
  let ms = 0;
  for (; !end && ms < 120_000; ms += 100) {
    await turn();
    t.mock.timers.tick(100);
  }
  assert.equal(end?.message, 'reset');
  assert.ok(ms <= 31_000, `given up after ${ms} ms`);
  assert.ok(asked.length > 3 && asked.length < 60, `${asked.length} tries`);
});

check('a key is fresh also where there is no crypto.randomUUID', async (t) => {
  const { randomUUID } = crypto;
  crypto.randomUUID = undefined;
  t.after(() => { crypto.randomUUID = randomUUID; });
  const { asked, fetch } = answering([{ id: 1 }]);
  const { crier } = clientOfScript(t, { fetch });
  for (let i = 0; i < 100; i++) await crier.publish('a', 'x');
  assert.equal(new Set(asked.map(({ headers }) => headers['idempotency-key'])).size, 100);
});

check('the token goes with every request; a function is asked each time', async (t) => {
  let n = 0;
  const { asked, fetch } = answering([{ id: 1 }]);
  const { crier } = clientOfScript(t, { fetch, token: () => `t${++n}` });
  await crier.publish('a', 'x');
  await crier.publish('a', 'x', { event: 'e&1', ttl: 5 });
  assert.deepEqual(asked.map(({ headers }) => headers.authorization), ['Bearer t1', 'Bearer t2']);
  assert.equal(asked[1].url, 'http://broker.example/channels/a?event=e%261&ttl=5');
});

// --- scripted answers to GET -------------------------------------------------------

const page = (fields) => Response.json({ messages: [], cursor: 100, gap: null, more: false, ...fields });
const isStream = ({ headers }) => headers.accept === 'text/event-stream';

// A stream that the test writes.
function written() {
  let controller;
  const body = new ReadableStream({ start(one) { controller = one; } });
  return {
    answer: new Response(body, { headers: { 'content-type': 'text/event-stream' } }),
    write: (bytes) => controller.enqueue(Buffer.from(bytes)),
    end: () => controller.close(),
  };
}

check('without grant for one of them: it fails with the status, the others share the stream, and nothing goes round', { seconds: 30 }, async (t) => {
  const asked = [];
  const stream = written();
  const { crier } = clientOfScript(t, {
    WebSocket: null,
    fetch: async (url, init) => {
      asked.push(url);
      if (/bad/.test(url)) return Response.json({ title: 'Forbidden', detail: 'not yours' }, { status: 403 });
      return isStream(init) ? stream.answer : page();
    },
  });
  const [one, bad, two] = ['one', 'bad', 'two'].map((name) => new Reader(crier, name));
  await poll(() => asked.length === 4, 'four requests');
  stream.write('retry: 5000\n\n');
  await one.isOpen();
  assert.equal(bad.state, 'failed');
  assert.equal(bad.states.at(-1)[1].status, 403);
  assert.equal(bad.states.at(-1)[1].message, 'not yours');
  assert.ok(asked[3].endsWith('/subscribe?channel=one&channel=two&since=100'), asked[3]);
  assert.equal(two.state, 'open');
  const at = Date.now();
  stream.end();
  await one.until(() => one.state === 'waiting', 'the end to be told');
  assert.ok(one.states.at(-1)[1].afterMs >= 5000, 'retry is not obeyed');
  assert.ok(Date.now() - at < 1000);
});

check('refused from the first to the last: all fail, and there is peace', async (t) => {
  const { asked, fetch } = answering([401]);
  const { crier } = clientOfScript(t, { WebSocket: null, fetch });
  const readers = ['a', 'b'].map((name) => new Reader(crier, name));
  await Promise.all(readers.map((reader) => reader.until(() => reader.state === 'failed', 'it to fail')));
  await sleep(1500);
  assert.equal(asked.length, 2);
  assert.equal(crier.state, 'idle');
});

check('a stream as it may come: split anywhere, gaps, cursors, an id that is no message', async (t) => {
  const asked = [];
  const stream = written();
  const { crier } = clientOfScript(t, {
    WebSocket: null,
    fetch: async (url, init) => {
      asked.push(url);
      return isStream(init) ? stream.answer : page();
    },
  });
  const one = new Reader(crier, 'one');
  const rooms = new Reader(crier, 'room:*');
  await poll(() => asked.length === 3, 'three requests');
  const about = (object) => JSON.stringify(object);
  const text = 'retry: 1000\n\n' +
    `id: 101\nevent: tick\ndata: ${about({ channel: 'one', id: 101, type: 'text/plain', data: '\u{1f4ef}', event: 'tick' })}\n\n` +
    `id: 102\ndata: {"channel":"room:1","id":102,"type":"application/json","data":[1,\ndata:2]}\n\n` +
    `id: 103\nevent: gap\ndata: ${about({ channel: 'room:*', from: 103, to: 150 })}\n\n` +
    `id: 120\n\n` +
    `id: 130\ndata: ${about({ channel: 'stranger', id: 130, type: 'text/plain', data: 'x' })}\n\n` +
    `id: 140\ndata: ${about({ channel: 'one', id: 140, type: 'x/y', data64: 'AP8=' })}\n\n`;
  const bytes = Buffer.from(text);
  for (let i = 0; i < bytes.length; i += 3) stream.write(bytes.subarray(i, i + 3));
  await one.count(2);
  assert.deepEqual(one.messages, [
    { channel: 'one', id: 101, type: 'text/plain', data: '\u{1f4ef}', event: 'tick' },
    { channel: 'one', id: 140, type: 'x/y', data: new Uint8Array([0, 255]) },
  ]);
  assert.deepEqual(rooms.messages, [{ channel: 'room:1', id: 102, type: 'application/json', data: [1, 2] }]);
  assert.deepEqual(rooms.gaps, [{ channel: 'room:*', from: 103, to: 150 }]);
  assert.deepEqual(one.gaps, []);
  assert.equal(rooms.sub.cursor, 140);
});

check('a channel that is closed and opened anew hears nothing of the stream that was', async (t) => {
  const asked = [];
  const stream = written();
  const { crier } = clientOfScript(t, {
    WebSocket: null,
    fetch: async (url, init) => {
      asked.push(url);
      return isStream(init) && asked.length < 4 ? stream.answer : page();
    },
  });
  const other = new Reader(crier, 'other');
  const old = new Reader(crier, 'a');
  await poll(() => asked.length === 3, 'the stream');
  stream.write('retry: 0\n\n');
  await old.isOpen();
  old.sub.close();
  const anew = new Reader(crier, 'a', { since: 'first' });
  stream.write(`id: 101\ndata: {"channel":"a","id":101,"type":"text/plain","data":"x"}\n\n`);
  await poll(() => asked.length >= 5, 'the channels to be asked for anew');
  assert.deepEqual([old.messages, anew.messages], [[], []]);
  assert.ok(asked.some((url) => url.endsWith('channel=a&since=first')), `${asked}`);
  assert.equal(other.sub.cursor, 101);
});

check('a stream that was held up is tried again after a loss', { seconds: 30 }, async (t) => {
  const kinds = [];
  const { crier } = clientOfScript(t, {
    WebSocket: null,
    fetch: async (url, init) => {
      const kind = isStream(init) ? 'stream' : /wait/.test(url) ? 'poll' : 'page';
      kinds.push(kind);
      if (kind !== 'page') throw new TypeError('cut');
      return page();
    },
  });
  new Reader(crier, 'a');
  await poll(() => kinds.filter((kind) => kind === 'poll').length === 2, 'two polls', { ms: 20_000 });
  assert.deepEqual(kinds.filter((kind) => kind !== 'page').slice(0, 4), ['stream', 'poll', 'stream', 'poll']);
});

check('a stream that falls silent is given up after a minute; a WebSocket is tried again after five', async (t) => {
  let streams = [];
  const { crier, sockets } = clientOfScript(t, {
    fetch: async (url, init) => {
      if (!isStream(init)) return page();
      const one = written();
      init.signal.addEventListener('abort', () => one.write('') ?? one.end());
      streams.push(one);
      return one.answer;
    },
  });
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const settle = async () => {
    for (let i = 0; i < 20; i++) await turn();
  };
  const pass = async (ms) => {
    for (; ms > 0; ms -= 500) {
      t.mock.timers.tick(500);
      await settle();
    }
  };
  const reader = new Reader(crier, 'a');
  for (let n = 1; n <= 2; n++) {
    await pass(500);
    for (let i = 0; sockets.length < n && i < 10; i++) await pass(500);
    sockets[n - 1].onclose();
  }
  await pass(2500);
  assert.equal(streams.length, 1);
  streams[0].write('retry: 0\n\n');
  await settle();
  assert.equal(reader.state, 'open');
  await pass(59_000);
  assert.equal(reader.state, 'open');
  await pass(3_000);
  assert.equal(streams.length, 2, 'the silent stream was kept');
  streams[1].write('retry: 0\n\n');
  for (let s = 0; s < 275; s += 25) {
    streams[1].write('id: 200\n\n');
    await pass(25_000);
  }
  assert.equal(streams.length, 2);
  assert.equal(sockets.length, 2);
  streams[1].write('id: 200\n\n');
  await pass(26_000);
  assert.equal(sockets.length, 3, 'no WebSocket is tried again');
  sockets[2].open();
  assert.deepEqual(sockets[2].asked, [{ channel: 'a', since: 200 }]);
  sockets[2].answer('a', { cursor: 201 });
  assert.equal(reader.state, 'open');
});

check('a broker that drains answers a poll with 204: come back when it says', async (t) => {
  const asked = [];
  const { crier } = clientOfScript(t, {
    WebSocket: null,
    fetch: async (url, init) => {
      asked.push(Date.now());
      if (isStream(init)) throw new TypeError('held up');
      return /wait/.test(url) ? new Response(null, { status: 204, headers: { 'retry-after': '2' } }) : page();
    },
  });
  const reader = new Reader(crier, 'a');
  await reader.until(() => reader.opened === 1, 'it to open');
  await reader.until(() => reader.state === 'waiting', 'the drain');
  assert.ok(reader.states.at(-1)[1].afterMs >= 2000);
});

check('all has ended', () => finish());
