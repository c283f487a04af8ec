// The browser client in Node, over npm's ws: against the broker, through all
// that can happen to it, and against scripted answers, for what a broker does
// only now and then.
import assert from 'node:assert/strict';
import Ws from 'ws';
import { Crier } from '../../web/client/crier.js';
import { Reader, Source, assertPromise, clientOf, clientOfScript, message, scripted, turn, withServer } from './lib/client.mjs';
import { check, finish, freePort, poll, sleep, slow, start } from './lib/crier.mjs';
import { publish } from './lib/http.mjs';

// --- against the broker --------------------------------------------------------

check('text, JSON, bytes, nothing and an event, as they were published', (t) => withServer(t, {}, async (server) => {
  const crier = clientOf(server, t);
  assert.equal(crier.state, 'idle');
  const reader = new Reader(crier, 'caf\u00e9/1');
  assert.equal(crier.state, 'opening');
  assert.deepEqual(reader.states, [], 'told before subscribe has returned');
  await reader.isOpen();
  assert.equal(crier.state, 'open');
  assert.deepEqual(reader.states.slice(-2), ['opening', 'open']);
  const before = reader.sub.cursor;
  assert.ok(Number.isSafeInteger(before));
  const type = (name) => ({ headers: [['Content-Type', name]] });
  await publish(server, 'caf\u00e9/1', 'words \u{1f4ef}');
  await publish(server, 'caf\u00e9/1', '{"a":[1, null]}', type('application/json'));
  await publish(server, 'caf\u00e9/1', Buffer.from([0, 255, 10]), type('application/octet-stream'));
  await publish(server, 'caf\u00e9/1', '', type('application/octet-stream'));
  const last = await publish(server, 'caf\u00e9/1', '', { query: '?event=tick' });
  await reader.count(5);
  assert.deepEqual(reader.messages.map(({ id, ...rest }) => rest), [
    { channel: 'caf\u00e9/1', type: 'text/plain', data: 'words \u{1f4ef}' },
    { channel: 'caf\u00e9/1', type: 'application/json', data: { a: [1, null] } },
    { channel: 'caf\u00e9/1', type: 'application/octet-stream', data: new Uint8Array([0, 255, 10]) },
    { channel: 'caf\u00e9/1', type: 'application/octet-stream', data: new Uint8Array([]) },
    { channel: 'caf\u00e9/1', type: 'text/plain', data: '', event: 'tick' },
  ]);
  assert.equal(reader.messages.at(-1).id, last.id);
  assert.ok(before < reader.messages[0].id);
  assert.equal(reader.sub.cursor, last.id);
  crier.close();
  assert.equal(crier.state, 'idle');
  await poll(() => server.placement().size === 0, 'the connection to end');
}));

check('30 channels share one connection, and each gets its own', (t) => withServer(t, {}, async (server) => {
  const crier = clientOf(server, t);
  const readers = Array.from({ length: 30 }, (_, i) => new Reader(crier, `room:${i}`));
  await Promise.all(readers.map((reader) => reader.isOpen()));
  const sources = readers.map((_, i) => new Source(() => server, `room:${i}`, { every: 30 }));
  await Promise.all(readers.map((reader) => reader.count(10)));
  const published = await Promise.all(sources.map((source) => source.stop()));
  await Promise.all(readers.map((reader, i) => reader.count(published[i].length)));
  readers.forEach((reader, i) => {
    assert.deepEqual(reader.messages.map(({ id, data }) => [id, data]), published[i]);
    assert.deepEqual(reader.gaps, []);
  });
  assert.equal(crier.made.length, 1);
  assert.equal(server.placement().size, 1);
}));

check('a subscription that was closed hears no more; one opened anew hears from then on', (t) => withServer(t, {}, async (server) => {
  const crier = clientOf(server, t);
  const other = new Reader(crier, 'other');
  const reader = new Reader(crier, 'news');
  await Promise.all([reader.isOpen(), other.isOpen()]);
  const source = new Source(() => server, 'news', { every: 0 });
  await reader.count(20);
  for (let round = 0; round < 10; round++) {
    const old = new Reader(crier, 'again');
    await old.isOpen();
    await publish(server, 'again', `${round} before`);
    await old.count(1);
    old.sub.close();
    const between = publish(server, 'again', `${round} between`);
    const anew = new Reader(crier, 'again');
    await anew.isOpen();
    await between;
    await publish(server, 'again', `${round} after`);
    await anew.until(() => anew.data.includes(`${round} after`), 'what was published after');
    assert.deepEqual(old.data, [`${round} before`]);
    assert.deepEqual(anew.data.filter((data) => !data.endsWith('between')), [`${round} after`]);
    anew.sub.close();
  }
  reader.sub.close();
  const heard = reader.messages.length;
  const published = await source.stop();
  await publish(server, 'other', 'still here');
  await other.count(1);
  assert.equal(reader.messages.length, heard);
  assert.deepEqual(reader.messages.map(({ id, data }) => [id, data]), published.slice(0, heard));
  const { subscribers } = await publish(server, 'news', 'nobody');
  assert.equal(subscribers, 0);
  assert.equal(crier.made.length, 1);
}));

check('two subscriptions of one channel share it, and the second to close leaves it', (t) => withServer(t, {}, async (server) => {
  const crier = clientOf(server, t);
  const one = new Reader(crier, 'news');
  await one.isOpen();
  const two = new Reader(crier, 'news');
  await two.isOpen();
  assert.equal((await publish(server, 'news', 'both')).subscribers, 1);
  await Promise.all([one.count(1), two.count(1)]);
  one.sub.close();
  await publish(server, 'news', 'one left');
  await two.count(2);
  assert.deepEqual(one.data, ['both']);
  two.sub.close();
  await poll(async () => (await publish(server, 'news', 'gone')).subscribers === 0, 'the channel to be left');
  await poll(() => server.placement().size === 0, 'a line without topics to end');
  const three = new Reader(crier, 'news');
  await three.isOpen();
  await publish(server, 'news', 'once more');
  await three.count(1);
  assert.deepEqual(three.data, ['once more']);
}));

for (const history of [true, false]) {
  check(`kill -9 of the worker that holds the connection, five times, ${history ? 'with history: nothing is lost' : 'without: what is lost is told'}`, { seconds: 90 }, (t) => withServer(t, { workers: 2, history }, async (server) => {
    const crier = clientOf(server, t);
    const readers = ['one', 'two', 'three'].map((name) => new Reader(crier, name));
    await Promise.all(readers.map((reader) => reader.isOpen()));
    const sources = ['one', 'two', 'three'].map((name) => new Source(() => server, name));
    for (let round = 1; round <= 5; round++) {
      const from = readers.map((reader) => reader.messages.length);
      await Promise.all(readers.map((reader, i) => reader.count(from[i] + 20, 20_000)));
      await sleep(1200); // a worker that dies younger is held to be broken
      const port = crier.made.at(-1).ws._socket.localPort;
      const pid = server.placement().get(port);
      assert.ok(pid, 'nobody holds the connection');
      server.signal('SIGKILL', pid);
      await Promise.all(readers.map((reader) => reader.until(() => reader.opened > round, 'it to open again', 20_000)));
    }
    const published = await Promise.all(sources.map((source) => source.stop()));
    await Promise.all(readers.map(async (reader, i) => {
      await reader.until(() => reader.sub.cursor >= published[i].at(-1)[0], 'the last message', 20_000);
      assertPromise(reader, published[i]);
      assert.ok(published[i].length > 100);
    }));
    if (history) assert.deepEqual(readers.map((reader) => reader.gaps), [[], [], []]);
    else assert.ok(readers.every((reader) => reader.gaps.length > 0));
    assert.ok(readers[0].states.some((state) => state[0] === 'waiting' && state[1].afterMs <= 500));
  }));
}

check('the broker goes for a while and comes back: so do all subscriptions, and the gap is told', { seconds: 90 }, async (t) => {
  let server = await start({ workers: 2, history: true });
  const { listeners } = server;
  const crier = clientOf(server, t);
  try {
    const readers = ['one', 'two'].map((name) => new Reader(crier, name));
    await Promise.all(readers.map((reader) => reader.isOpen()));
    const sources = ['one', 'two'].map((name) => new Source(() => server, name));
    for (let round = 0; round < 2; round++) {
      const from = readers.map((reader) => reader.messages.length);
      await Promise.all(readers.map((reader, i) => reader.count(from[i] + 20, 40_000)));
      await server.stop();
      await readers[0].until(() => readers[0].state === 'waiting', 'the loss to be told');
      assert.equal(crier.state, 'waiting');
      await sleep(3000);
      server = await start({ workers: 2, listen: listeners, history: true });
    }
    const from = readers.map((reader) => reader.messages.length);
    await Promise.all(readers.map((reader, i) => reader.count(from[i] + 20, 40_000)));
    const published = await Promise.all(sources.map((source) => source.stop()));
    await Promise.all(readers.map(async (reader, i) => {
      await reader.until(() => reader.sub.cursor >= published[i].at(-1)[0], 'the last message');
      assertPromise(reader, published[i]);
      assert.equal(reader.gaps.length, 2, JSON.stringify(reader.gaps));
    }));
    assert.ok(crier.made.length < 40, `${crier.made.length} connections`);
    await server.stop();
  } finally {
    server.killAll();
  }
});

check('a broker that is away is asked less and less, at irregular times', { seconds: 60 }, async (t) => {
  const port = await freePort();
  const tries = [];
  class Deaf extends Ws {
    constructor(...args) {
      super(...args);
      tries.push(Date.now());
    }
  }
  const crier = new Crier(`http://127.0.0.1:${port}`, {
    WebSocket: Deaf,
    fetch: (...args) => {
      tries.push(Date.now());
      return fetch(...args);
    },
  });
  t.after(() => crier.close());
  const reader = new Reader(crier, 'nobody');
  await sleep(12_000);
  const waits = reader.states.filter((state) => state[0] === 'waiting').map((state) => state[1].afterMs);
  assert.ok(tries.length >= 3 && tries.length <= 30, `${tries.length} tries`);
  waits.forEach((wait, n) => assert.ok(wait >= 0 && wait <= 500 * 2 ** n, `${wait} ms after ${n} failures`));
  assert.ok(new Set(waits.map((wait, n) => Math.round(100 * wait / 500 / 2 ** n))).size > 1, `no chance in ${waits}`);
  assert.equal(reader.state === 'failed', false);
});

check('a drain with notice is waited out: nobody knocks before, nothing is lost after', { seconds: 60 }, async (t) => {
  let server = await start({ workers: 2, args: ['--drain.notice', '2s'], history: true });
  const { listeners } = server;
  const crier = clientOf(server, t);
  try {
    const reader = new Reader(crier, 'news');
    await reader.isOpen();
    const source = new Source(() => server, 'news');
    await reader.count(20);
    const at = Date.now();
    server.signal('SIGTERM');
    await reader.until(() => reader.state === 'waiting' || crier.made.length > 1, 'the connection to end');
    assert.deepEqual(await server.untilExit(), { code: 0, signal: null });
    server = await start({ workers: 2, listen: listeners, history: true });
    await reader.until(() => reader.opened > 1, 'it to open again', 20_000);
    assert.ok(crier.made[1].at - at >= 1950, `knocked ${crier.made[1].at - at} ms after the notice`);
    const from = reader.messages.length;
    await reader.count(from + 10);
    const published = await source.stop();
    await reader.until(() => reader.sub.cursor >= published.at(-1)[0], 'the last message');
    assertPromise(reader, published);
    await server.stop();
  } finally {
    server.killAll();
  }
});

check('a name that cannot be fails by itself, once, and the others go on', (t) => withServer(t, {}, async (server) => {
  const crier = clientOf(server, t);
  const good = new Reader(crier, 'good');
  const bad = new Reader(crier, '..');
  await good.isOpen();
  await bad.until(() => bad.state === 'failed', 'it to fail');
  const [, error] = bad.states.at(-1);
  assert.ok(error instanceof Error);
  assert.equal(error.code, 'bad_channel');
  assert.notEqual(error.message, '');
  assert.throws(() => crier.subscribe('\ud800', () => {}), URIError);
  await publish(server, 'good', 'on');
  await good.count(1);
  await sleep(1500);
  assert.equal(bad.states.flat().filter((state) => state === 'failed').length, 1);
  assert.equal(crier.made.length, 1);
  bad.sub.close();
  assert.equal(crier.state, 'open');
}));

check('a handler that throws spoils nothing', (t) => withServer(t, {}, async (server) => {
  const crier = clientOf(server, t);
  const thrown = [];
  const catcher = (error) => thrown.push(error.message);
  process.setUncaughtExceptionCaptureCallback(catcher);
  t.after(() => process.setUncaughtExceptionCaptureCallback(null));
  const heard = [];
  crier.subscribe('news', ({ data }) => {
    heard.push(data);
    throw new Error(data);
  });
  const reader = new Reader(crier, 'news');
  await reader.isOpen();
  for (const word of ['one', 'two']) await publish(server, 'news', word);
  await reader.count(2);
  await sleep(10);
  assert.deepEqual(heard, ['one', 'two']);
  assert.deepEqual(thrown, ['one', 'two']);
  assert.equal(crier.made.length, 1);
}));

check('a connection that died without a word is found when the page comes back', { seconds: 60 }, async (t) => {
  const listeners = new Map();
  globalThis.addEventListener = (name, on) => listeners.set(name, on);
  globalThis.removeEventListener = (name) => listeners.delete(name);
  t.after(() => {
    delete globalThis.addEventListener;
    delete globalThis.removeEventListener;
  });
  await withServer(t, { workers: 2, args: ['--watchdog', '60s'] }, async (server) => {
    const crier = clientOf(server, t);
    const reader = new Reader(crier, 'news');
    await reader.isOpen();
    await publish(server, 'news', 'before');
    await reader.count(1);
    listeners.get('online')({ type: 'online' });
    await sleep(3500);
    assert.equal(crier.made.length, 1, 'a living connection was dropped');
    const { ws } = crier.made[0];
    const pid = server.placement().get(ws._socket.localPort);
    server.signal('SIGSTOP', pid);
    try {
      const at = Date.now();
      listeners.get('online')({ type: 'online' });
      await reader.until(() => reader.state === 'waiting', 'the loss to be found');
      const ms = Date.now() - at;
      assert.ok(ms > 2900 && ms < 3500 * slow, `found after ${ms} ms`);
    } finally {
      server.signal('SIGCONT', pid);
    }
    await reader.until(() => reader.opened > 1, 'it to open again', 20_000);
    await publish(server, 'news', 'after');
    await reader.until(() => reader.data.includes('after'), 'what came after');
    crier.close();
    assert.equal(listeners.size, 0);
  });
});

// --- against scripted answers ---------------------------------------------------

check('the rest of a replay comes as frames: an answer with more moves no cursor past what came', async (t) => {
  const { crier, socket } = clientOfScript(t);
  const reader = new Reader(crier, 'a', { since: 100 });
  const first = await socket();
  first.open();
  assert.deepEqual(first.asked, [{ channel: 'a', since: 100 }]);
  first.answer('a', { cursor: 900, more: true, messages: [message('a', 110), message('a', 120)] });
  first.give({ op: 'cursor', id: 950 });
  assert.equal(reader.sub.cursor, 120);
  first.give(message('a', 130));
  first.drop();
  const second = await socket(2);
  second.open();
  assert.deepEqual(second.asked, [{ channel: 'a', since: 130 }]);
  second.answer('a', { cursor: 900, messages: [message('a', 130), message('a', 140)] });
  assert.equal(reader.sub.cursor, 900);
  assert.deepEqual(reader.messages.map(({ id }) => id), [110, 120, 130, 140]);
});

check('cursor frames move what is live, and the next connection begins there', async (t) => {
  const { crier, socket } = clientOfScript(t);
  const a = new Reader(crier, 'a');
  const b = new Reader(crier, 'b', { since: 'first' });
  const first = await socket();
  first.open();
  assert.deepEqual(first.asked, [{ channel: 'a', since: 'now' }, { channel: 'b', since: 'first' }]);
  first.answer('a', { cursor: 500 });
  first.give({ op: 'cursor', id: 600 });
  assert.equal(a.sub.cursor, 600);
  assert.equal(b.sub.cursor, null, 'moved before it was subscribed');
  first.give({ op: 'cursor', id: 550 });
  assert.equal(a.sub.cursor, 600, 'moved back');
  first.drop();
  const second = await socket(2);
  second.open();
  assert.deepEqual(second.asked, [{ channel: 'a', since: 600 }, { channel: 'b', since: 'first' }]);
});

check('what does not lie above the cursor is dropped, and nothing comes before the answer', async (t) => {
  const { crier, socket } = clientOfScript(t);
  const reader = new Reader(crier, 'a', { since: 10 });
  const first = await socket();
  first.open();
  first.give(message('a', 15)); // of an older subscription of the same name
  first.answer('a', { cursor: 20, messages: [message('a', 9), message('a', 15), message('a', 20)] });
  for (const id of [20, 15, 21, 21, 22]) first.give(message('a', id));
  first.give(message('b', 30));
  assert.deepEqual(reader.messages.map(({ id }) => id), [15, 20, 21, 22]);
  assert.ok(!reader.messages.some((one) => 'op' in one));
});

check('gaps are told as they come, in an answer and by themselves', async (t) => {
  const { crier, socket } = clientOfScript(t);
  const reader = new Reader(crier, 'a', { since: 10 });
  const first = await socket();
  first.open();
  first.answer('a', { cursor: 50, gap: { from: 11, to: 40 }, messages: [message('a', 45)] });
  first.give({ op: 'gap', channel: 'a', from: 51, to: 60 });
  first.give(message('a', 55)); // may be missing is not is missing
  assert.deepEqual(reader.gaps, [{ channel: 'a', from: 11, to: 40 }, { channel: 'a', from: 51, to: 60 }]);
  assert.deepEqual(reader.messages.map(({ id }) => id), [45, 55]);
});

check('a cursor of a broker whose clock was ahead: a gap, and the messages of now are heard', async (t) => {
  const { crier, socket } = clientOfScript(t);
  const reader = new Reader(crier, 'a', { since: 9000 });
  const first = await socket();
  first.open();
  first.answer('a', { cursor: 100, gap: { from: 1, to: 100 } });
  first.give(message('a', 101));
  assert.deepEqual(reader.messages.map(({ id }) => id), [101]);
  assert.equal(reader.sub.cursor, 101);
  assert.equal(reader.gaps.length, 1);
});

check('patterns are subscribed as such; what could be mixed up goes on a line of its own', async (t) => {
  const { crier, sockets, socket } = clientOfScript(t);
  const rooms = new Reader(crier, 'room:*');
  const other = new Reader(crier, 'other:**');
  const lobby = new Reader(crier, 'lobby');
  await socket();
  const one = new Reader(crier, 'room:1');
  const again = new Reader(crier, 'lobby', { since: 5 });
  const second = await socket(2);
  const [first] = sockets;
  first.open();
  second.open();
  assert.deepEqual(first.asked, [{ pattern: 'room:*', since: 'now' }, { pattern: 'other:**', since: 'now' }, { channel: 'lobby', since: 'now' }]);
  assert.deepEqual(second.asked, [{ channel: 'room:1', since: 'now' }, { channel: 'lobby', since: 5 }]);
  for (const name of ['room:*', 'other:**', 'lobby']) first.answer(name, { channel: undefined, pattern: name, cursor: 10 });
  second.answer('room:1', { cursor: 10 });
  second.answer('lobby', { cursor: 10, messages: [message('lobby', 6)] });
  first.give(message('room:1', 11));
  first.give(message('other:x:y', 12));
  first.give({ op: 'gap', channel: 'room:*', from: 12, to: 13 });
  first.give({ op: 'gap', channel: 'room:7', from: 14, to: 15 });
  second.give(message('room:1', 11));
  assert.deepEqual([rooms, other, lobby, one, again].map((reader) => reader.messages.map(({ channel, id }) => [channel, id])),
    [[['room:1', 11]], [['other:x:y', 12]], [], [['room:1', 11]], [['lobby', 6]]]);
  assert.deepEqual(rooms.gaps, [{ channel: 'room:*', from: 12, to: 13 }, { channel: 'room:7', from: 14, to: 15 }]);
  rooms.sub.close();
  assert.deepEqual(first.sent.at(-1), { op: 'unsubscribe', pattern: 'room:*' });
  new Reader(crier, 'lob:**'); // lobby is not one of these
  new Reader(crier, 'other:x:*');
  new Reader(crier, 'room:*');
  new Reader(crier, '**');
  const third = await socket(3);
  third.open();
  assert.deepEqual(first.asked.slice(3), [{ pattern: 'lob:**', since: 'now' }, { pattern: 'room:*', since: 'now' }]);
  assert.deepEqual(second.asked.slice(2), [{ pattern: 'other:x:*', since: 'now' }]);
  assert.deepEqual(third.asked, [{ pattern: '**', since: 'now' }]);
});

check('an error ends its subscription; one that passes is tried again with all', async (t) => {
  const { crier, socket } = clientOfScript(t);
  const good = new Reader(crier, 'good');
  const bad = new Reader(crier, 'bad');
  const first = await socket();
  first.open();
  first.answer('good', { cursor: 7 });
  first.give({ op: 'error', code: 'forbidden', detail: 'not yours', ref: first.sent[1].ref });
  assert.equal(bad.state, 'failed');
  assert.equal(bad.states.at(-1)[1].message, 'not yours');
  assert.equal(bad.states.at(-1)[1].code, 'forbidden');
  const late = new Reader(crier, 'late');
  first.give({ op: 'error', code: 'unavailable', detail: 'no memory', ref: first.sent.at(-1).ref });
  const second = await socket(2);
  assert.equal(first.readyState, 3);
  second.open();
  assert.deepEqual(second.asked, [{ channel: 'good', since: 7 }, { channel: 'late', since: 'now' }]);
  assert.notEqual(good.state, 'failed');
  assert.notEqual(late.state, 'failed');
});

check('the token goes by the subprotocol; a function is asked for each connection', async (t) => {
  let n = 0;
  const { crier, socket } = clientOfScript(t, { token: async () => `t${++n}` });
  new Reader(crier, 'a');
  const first = await socket();
  assert.deepEqual([first.url, first.protocols], ['ws://broker.example/subscribe', ['crier.v1', 'bearer.t1']]);
  first.open();
  first.drop();
  assert.deepEqual((await socket(2)).protocols, ['crier.v1', 'bearer.t2']);
});

check('the query of the address, a signed capability, goes with every request', async (t) => {
  const script = scripted();
  const crier = new Crier('https://broker.example/bus/?grant=g%3D&sig=s', { WebSocket: script.Scripted });
  t.after(() => crier.close());
  new Reader(crier, 'a');
  assert.equal((await script.socket()).url, 'wss://broker.example/bus/subscribe?grant=g%3D&sig=s');
});

check('silence is broken by a ping after 25 s and believed to be death after 10 more', async (t) => {
  const { crier, sockets, socket } = clientOfScript(t);
  const reader = new Reader(crier, 'a');
  const first = await socket();
  t.mock.timers.enable({ apis: ['setTimeout'] });
  first.open();
  first.answer('a', { cursor: 1 });
  const pings = () => first.sent.filter(({ op }) => op === 'ping').length;
  t.mock.timers.tick(24_900);
  assert.equal(pings(), 0);
  t.mock.timers.tick(200);
  assert.equal(pings(), 1);
  first.give({ op: 'pong' });
  t.mock.timers.tick(25_000);
  assert.equal(pings(), 2);
  t.mock.timers.tick(9_900);
  assert.equal(reader.state, 'open');
  t.mock.timers.tick(200);
  assert.equal(reader.state, 'waiting');
  assert.equal(first.readyState, 3);
  first.drop(); // told late: nobody listens
  t.mock.timers.tick(1_000);
  await turn();
  assert.equal(sockets.length, 2);
});

check('a connection that never opens is given up after 10 s; after two in a row GET is tried', async (t) => {
  const asked = [];
  const { crier, sockets, socket } = clientOfScript(t, {
    fetch: async (url, { headers }) => {
      asked.push([url, headers]);
      throw new TypeError('no network');
    },
  });
  const reader = new Reader(crier, 'a');
  await socket();
  t.mock.timers.enable({ apis: ['setTimeout'] });
  sockets[0].onclose();
  t.mock.timers.tick(500);
  await turn();
  assert.equal(sockets.length, 2);
  sockets[1].open(); // and then not a word
  t.mock.timers.tick(9_900);
  assert.equal(reader.state, 'opening');
  t.mock.timers.tick(200);
  assert.equal(reader.state, 'waiting');
  assert.deepEqual(asked, []);
  t.mock.timers.tick(1_000);
  await turn();
  assert.equal(sockets.length, 2);
  assert.deepEqual(asked, [['http://broker.example/subscribe?channel=a&since=now', {}]]);
});

check('who closes in a handler hears no more, not even of the same frame', async (t) => {
  const { crier, socket } = clientOfScript(t);
  const heard = [];
  const one = crier.subscribe('a', ({ id }) => {
    heard.push(id);
    one.close();
  });
  crier.subscribe('b', ({ id }) => {
    heard.push(id);
    crier.close();
  });
  const first = await socket();
  first.open();
  first.answer('a', { cursor: 9, messages: [message('a', 1), message('a', 2)] });
  first.answer('b', { cursor: 9, messages: [message('b', 3), message('b', 4)] });
  assert.deepEqual(heard, [1, 3]);
});

check('who is closed by another handler does not hear the message of now', async (t) => {
  const { crier, socket } = clientOfScript(t);
  const heard = [];
  crier.subscribe('a', ({ id }) => {
    heard.push(`one ${id}`);
    two.close();
  });
  const two = crier.subscribe('a', ({ id }) => heard.push(`two ${id}`));
  const first = await socket();
  first.open();
  first.answer('a', { cursor: 1, messages: [message('a', 1)] });
  assert.deepEqual(heard, ['one 1']);
});

check('what an old connection still says is ignored', async (t) => {
  const { crier, socket } = clientOfScript(t);
  const reader = new Reader(crier, 'a');
  const first = await socket();
  first.open();
  first.answer('a', { cursor: 1 });
  first.onerror();
  const second = await socket(2);
  second.open();
  second.answer('a', { cursor: 5 });
  first.give(message('a', 9));
  first.give({ op: 'cursor', id: 10 });
  first.drop();
  assert.equal(reader.state, 'open');
  second.give(message('a', 6));
  assert.deepEqual(reader.messages.map(({ id }) => id), [6]);
});

check('where a WebSocket worked, it is tried once more when GET works again', async (t) => {
  const asked = [];
  const { crier, socket } = clientOfScript(t, {
    fetch: async (url, { headers }) => {
      asked.push(headers.accept);
      return Response.json({ messages: [], cursor: 100, gap: null, more: false });
    },
  });
  new Reader(crier, 'a');
  const first = await socket();
  first.open();
  first.answer('a', { cursor: 1 });
  first.drop();
  (await socket(2)).drop();
  (await socket(3)).drop();
  const fourth = await socket(4);
  assert.deepEqual(asked, [undefined]);
  fourth.open();
  assert.deepEqual(fourth.asked, [{ channel: 'a', since: 100 }]);
});

check('a message begins the waits anew; so does a stable minute', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  const { Crier: Mocked } = await import('../../web/client/crier.js?with-that-clock');
  const { Scripted, sockets } = scripted();
  const crier = new Mocked('http://broker.example', { WebSocket: Scripted });
  const reader = new Reader(crier, 'a');
  const waits = [];
  // Opens, lives for `ms` and is lost.
  const live = async (n, ms, ...frames) => {
    t.mock.timers.tick(40_000);
    await turn();
    const one = sockets.at(-1);
    one.open();
    one.answer('a', { cursor: n - 1 });
    for (const frame of frames) one.give(frame);
    for (; ms > 0; ms -= 5_000) {
      t.mock.timers.tick(5_000);
      one.give({ op: 'pong' });
    }
    one.drop();
    waits.push(reader.states.at(-1)[1].afterMs);
  };
  for (let n = 1; n <= 20; n++) await live(n, 5_000); // not one message: up to 30 s
  assert.ok(Math.max(...waits) > 5_000 && Math.max(...waits) <= 30_000, `${waits}`);
  waits.length = 0;
  for (let n = 21; n <= 40; n++) await live(n, 0, message('a', n));
  for (let n = 41; n <= 60; n++) await live(n, 65_000);
  assert.ok(Math.max(...waits) <= 500, `${waits}`);
  assert.equal(reader.messages.length, 20);
  crier.close();
});

check('a drain is a date: the connection is changed then, if it is still there', async (t) => {
  const { crier, sockets, socket } = clientOfScript(t);
  const reader = new Reader(crier, 'a');
  const first = await socket();
  t.mock.timers.enable({ apis: ['setTimeout'] });
  first.open();
  first.answer('a', { cursor: 5 });
  first.give({ op: 'drain', after_ms: 3_000 });
  t.mock.timers.tick(2_900);
  first.give(message('a', 6));
  assert.equal(reader.state, 'open');
  t.mock.timers.tick(200);
  await turn();
  assert.equal(first.readyState, 3);
  sockets[1].open();
  assert.deepEqual(sockets[1].asked, [{ channel: 'a', since: 6 }]);
});

check('nothing hurries a client that was told when to come back', async (t) => {
  const listeners = new Map();
  globalThis.addEventListener = (name, on) => listeners.set(name, on);
  globalThis.removeEventListener = () => {};
  t.after(() => {
    delete globalThis.addEventListener;
    delete globalThis.removeEventListener;
  });
  const { crier, sockets, socket } = clientOfScript(t);
  const reader = new Reader(crier, 'a');
  const first = await socket();
  first.open();
  first.answer('a', { cursor: 5 });
  first.give({ op: 'drain', after_ms: 800 });
  first.drop();
  listeners.get('online')({ type: 'online' });
  await sleep(600);
  assert.equal(reader.state, 'waiting');
  assert.equal(sockets.length, 1);
  await socket(2);
  sockets[1].onerror(); // and a client that was not is hurried
  assert.equal(reader.state, 'waiting');
  listeners.get('online')({ type: 'online' });
  assert.equal(reader.state, 'opening');
});

check('200 topics are one connection, more are another', async (t) => {
  const { crier, sockets, socket } = clientOfScript(t);
  for (let n = 0; n < 201; n++) crier.subscribe(`room:${n}`, () => {});
  await socket(2);
  sockets.forEach((one) => one.open());
  assert.deepEqual(sockets.map((one) => one.asked.length), [200, 1]);
});

check('all has ended', () => finish());
