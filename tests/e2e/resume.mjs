// crier.v1 and raw WebSockets that resume: the replay in the answer, the rest
// behind it, the seam to live, patterns, overlaps, and readers that stop.
import assert from 'node:assert/strict';
import { Tcp, assertUnharmed, check, checkStop, poll, sleep, start } from './lib/crier.mjs';
import { answer, assertProblem, ask, publish } from './lib/http.mjs';
import { assertHistory, history, ids, remove } from './lib/history.mjs';
import { OP, WebSocket, assertSwitched, decode, handshake, text } from './lib/websocket.mjs';
import { V1 } from './lib/v1.mjs';
import { Publisher } from './lib/load.mjs';
import { hash, judge } from './lib/judge.mjs';

const KIB = 1024;
const server = await start({
  workers: 2, history: true,
  args: ['--history.rule', 'off:* count=0', '--history.rule', 'few:* count=5', '--history.rule', 'wide:* count=1000000 bytes=512MiB',
    '--history.rule', 'wide:** count=1000000 bytes=512MiB'],
});
await assertUnharmed(server);
const fdsBefore = server.fds();
let names = 0;
let refs = 0;
const fresh = (prefix = 'r') => `${prefix}${prefix.endsWith(':') ? '' : '-'}${++names}`;
const grows = (list) => list.every((id, i) => i === 0 || id > list[i - 1]);

async function fill(channel, count, size = 0, where = server) {
  const publisher = await Publisher.connect(where);
  const list = [];
  for (let i = 0; i < count; i += 20) {
    list.push(...await publisher.burst(channel, Array.from({ length: Math.min(20, count - i) }, (_, j) => body(i + j, size))));
  }
  publisher.close();
  return list;
}
const body = (i, size) => `${i} `.padEnd(size, String.fromCharCode(97 + i % 26));

// A crier.v1 connection that keeps everything in the order in which it came.
class Follower {
  constructor(ws, keep) {
    this.ws = ws;
    this.log = []; // { id, channel, data } as they came, from answers and frames
    this.gaps = [];
    this.answers = [];
    this.cursors = [];
    this.keep = keep ?? ((m) => this.log.push(m));
    const early = ws.messages.splice(0);
    ws.onMessage = (message) => this.#take(JSON.parse(decode(message.data)));
    for (const message of early) this.#take(JSON.parse(decode(message.data)));
  }

  static async open(where, target, keep) {
    return new Follower(await WebSocket.connect(where, target, { protocol: 'crier.v1' }), keep);
  }

  #take(one) {
    if (one.op === 'message') {
      this.keep(one);
    } else if (one.op === 'gap') {
      this.gaps.push(one);
    } else if (one.op === 'cursor') {
      this.cursors.push(one.id);
    } else {
      if (one.op === 'subscribed') {
        const { op, ref, channel, pattern, ...rest } = one;
        assertHistory(rest, 'subscribed');
        if (one.gap) this.gaps.push({ channel: channel ?? pattern, ...one.gap });
        for (const m of one.messages) this.keep(m);
      }
      this.answers.push(one);
    }
  }

  async ask(object, ms) {
    const ref = `f${++refs}`;
    await this.ws.send(text(JSON.stringify({ ...object, ref })));
    await this.ws.wait(() => this.answers.some((a) => a.ref === ref), `the answer to ${object.op}`, ms);
    return this.answers.find((a) => a.ref === ref);
  }

  subscribe(channel, since) {
    return this.ask(channel.includes('*') ? { op: 'subscribe', pattern: channel, since } : { op: 'subscribe', channel, since });
  }

  until(id, ms) {
    return this.ws.wait(() => (this.log.at(-1)?.id ?? 0) >= id, `message ${id}`, ms);
  }

  get ids() {
    return this.log.map((m) => m.id);
  }

  drop() {
    this.ws.drop();
  }
}

// --- the answer to subscribe ---------------------------------------------------------

check('the replay lies in the answer: messages, cursor, gap and more, then live frames', async () => {
  const forms = [(all) => [all[4], all.slice(5)], (all) => [`${all[4]}`, all.slice(5)], (all) => ['first', all], (all) => [-3, all.slice(-3)],
    (all) => ['-3', all.slice(-3)], () => ['now', []], () => [undefined, []], (all) => [all[9], []], (all) => [all[4] + 1, null]];
  for (const form of forms) {
    const channel = fresh();
    const all = await fill(channel, 10);
    const [since, want = null] = form(all);
    const f = await Follower.open(server, '/subscribe');
    const got = await f.subscribe(channel, since);
    assert.equal(got.op, 'subscribed', JSON.stringify(got));
    assert.equal(got.channel, channel);
    const replay = want ?? all.filter((id) => id > since);
    assert.deepEqual([ids(got.messages), got.gap, got.more], [replay, null, false], `since ${since}`);
    assert.ok(got.cursor >= all[9]);
    const { id } = await publish(server, channel, 'live');
    await f.until(id);
    assert.deepEqual(f.ids, [...replay, id]);
    f.drop();
  }
});

check('a message in the replay looks like a live one', async () => {
  const channel = fresh();
  const bodies = [['text\n\0"', 'text/plain'], ['{"a":[1,{}]}', 'application/json'], [Buffer.from([0, 255]), 'application/octet-stream'], ['', 'text/plain'],
    [Buffer.alloc(0), 'application/octet-stream']];
  const live = await Follower.open(server, `/channels/${channel}`);
  for (const [data, type] of bodies) await publish(server, channel, data, { headers: [['Content-Type', type]], query: '?event=e' });
  await live.ws.wait(() => live.log.length === bodies.length, 'all of them');
  const late = await Follower.open(server, `/channels/${channel}?since=first`);
  await late.ws.wait(() => late.answers.length === 1, 'subscribed');
  const plain = (m) => {
    const { op, ...rest } = m;
    return rest;
  };
  assert.deepEqual(late.log.map(plain), live.log.map(plain));
  assert.deepEqual((await history(server, channel)).messages, live.log.map(plain));
  live.drop();
  late.drop();
});

check('S07: a since that is none is an error, and the connection stays', async () => {
  const f = await Follower.open(server, '/subscribe');
  for (const since of ['', 'x', '1x', '[', '1,2', ' 1', '99999999999999999999', null, true, [], {}, 1.5, -1.5, 1e300, '-', 'First']) {
    const got = await f.ask({ op: 'subscribe', channel: 'bad', since });
    assert.equal(got.op, 'error', `since ${JSON.stringify(since)}`);
  }
  assert.equal((await f.ask({ op: 'ping' })).op, 'pong');
  assert.equal((await publish(server, 'bad', 'x')).subscribers, 0);
  for (const target of ['/channels/bad?since=x', '/subscribe?channel=bad&since=', '/channels/bad?since=1&since=2']) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(handshake(server, target, { protocol: 'crier.v1' }));
    assertProblem(await answer(tcp), 400, target);
    tcp.destroy();
  }
  f.drop();
});

check('a cursor above the clock, or before a DELETE, is a gap in the answer, and live goes on', async () => {
  const channel = fresh();
  const all = await fill(channel, 3);
  const f = await Follower.open(server, '/subscribe');
  const ahead = await f.subscribe(channel, Date.now() * 1000 + 3600e6);
  assert.notEqual(ahead.gap, null);
  await remove(server, channel);
  const g = await Follower.open(server, '/subscribe');
  const gone = await g.subscribe(channel, all[0]);
  assert.ok(gone.gap && gone.gap.from === all[0] + 1 && gone.gap.to >= all[2], JSON.stringify(gone.gap));
  const { id } = await publish(server, channel, 'on');
  await f.until(id);
  await g.until(id);
  assert.deepEqual([f.ids, g.ids], [[id], [id]]);
  f.drop();
  g.drop();
});

for (const [what, count, size] of [['many small', 1000, 200], ['few large', 12, 60 * KIB], ['one larger than the answer', 3, 200 * KIB]]) {
  check(`more: up to 64 KiB in the answer, the rest as frames, then live: ${what} messages`, { seconds: 60 }, async () => {
    const channel = fresh('wide:');
    const all = await fill(channel, count, size);
    const f = await Follower.open(server, '/subscribe');
    const got = await f.subscribe(channel, all[0] - 1);
    assert.equal(got.more, true);
    const carried = got.messages.reduce((n, m) => n + m.data.length, 0);
    assert.ok(carried <= 64 * KIB || got.messages.length === 1, `${carried} bytes in the answer`);
    assert.equal(got.gap, null);
    const { id } = await publish(server, channel, 'live');
    await f.until(id, 15_000);
    assert.deepEqual(f.ids, [...all, id]);
    assert.ok(f.log.slice(0, -1).every((m, i) => m.data === body(i, size)));
    assert.deepEqual(f.gaps, []);
    f.drop();
  });
}

check('replay.limit bounds the answer, not the replay', async () => {
  const channel = fresh('wide:');
  const all = await fill(channel, 3000);
  const f = await Follower.open(server, `/channels/${channel}?since=first`);
  await f.until(all.at(-1));
  assert.ok(f.answers[0].messages.length <= 1000);
  assert.deepEqual(f.ids, all);
  f.drop();
});

// --- the seam ------------------------------------------------------------------------------

class Flood {
  constructor(channels, where = server) {
    this.sent = []; // { channel, id } in order of id, once over
    this.over = false;
    this.done = Promise.all([0, 1].map(async (k) => {
      const publisher = await Publisher.connect(where);
      for (let i = 0; !this.over; i++) {
        const channel = channels[(i + k) % channels.length];
        for (const id of await publisher.burst(channel, Array(1 + i % 8).fill('x'.repeat(i % 300)))) this.sent.push({ channel, id });
      }
      publisher.close();
    }));
  }

  async stop() {
    this.over = true;
    await this.done;
    this.sent.sort((a, b) => a.id - b.id);
  }
}

check('S09: 50 clients reconnect at random for 10 s under a flood: each sees every number once, in order', { seconds: 100 }, async (t) => {
  const channel = fresh('wide:');
  const other = fresh('wide:');
  const first = (await publish(server, channel, 'first')).id;
  const flood = new Flood([channel, channel, other]);
  const random = (() => {
    let state = 777;
    return (n) => {
      state = (Math.imul(state, 1103515245) + 12345) >>> 0;
      return (state >>> 8) % n;
    };
  })();
  let reconnects = 0;
  let end = Infinity;
  const clients = Array.from({ length: 50 }, async (_, k) => {
    const seen = [first];
    for (;;) {
      const since = seen.at(-1);
      const f = await Follower.open(server, k % 2 ? `/channels/${channel}?since=${since}` : '/subscribe', (m) => seen.push(m.id));
      if (k % 2 === 0) await f.subscribe(channel, since);
      const leave = Date.now() + 20 + random(1500);
      await f.ws.wait(() => seen.at(-1) >= end || Date.now() >= leave, 'time', 20_000);
      assert.deepEqual(f.gaps, []);
      if (k % 3) f.drop();
      else f.ws.tcp.reset();
      reconnects++;
      if (seen.at(-1) >= end) return seen.slice(1);
    }
  });
  await sleep(10_000);
  await flood.stop();
  end = (await publish(server, channel, 'end')).id;
  await publish(server, channel, 'wakes those who had it before its id was known here');
  const want = [...flood.sent.filter((s) => s.channel === channel).map((s) => s.id), end];
  for (const all of await Promise.all(clients)) {
    const seen = all.filter((id) => id <= end);
    assert.ok(grows(seen), 'doubled, or out of order');
    assert.equal(seen.length, want.length, 'something is missing');
    assert.deepEqual(seen, want);
  }
  t.diagnostic(`${want.length} messages, ${reconnects} connections`);
});

check('S10: taking three, cutting, resuming by the latest id: only newer ones', async () => {
  const channel = fresh();
  const all = await fill(channel, 30);
  const seen = [];
  let last = all[0] - 1;
  while (seen.length < 30) {
    const ws = await WebSocket.connect(server, `/channels/${channel}?since=${last}`, { protocol: 'crier.v1' });
    const f = new Follower(ws);
    await ws.wait(() => f.log.length >= 3, 'three');
    seen.push(...f.ids.slice(0, 3));
    last = seen.at(-1);
    f.drop();
  }
  assert.deepEqual(seen, all);
});

check('unsubscribe and subscribe again with the last id, over and over under a flood, loses and repeats nothing', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const first = (await publish(server, channel, 'first')).id;
  const flood = new Flood([channel]);
  const f = await Follower.open(server, '/subscribe');
  const from = Date.now();
  let last = first;
  for (let i = 0; Date.now() - from < 4000; i++) {
    assert.equal((await f.subscribe(channel, last)).op, 'subscribed');
    await sleep(i % 30);
    assert.equal((await f.ask({ op: 'unsubscribe', channel })).op, 'unsubscribed');
    const before = f.log.length;
    assert.equal((await f.ask({ op: 'ping' })).op, 'pong');
    assert.equal(f.log.length, before, 'a message after the answer to unsubscribe');
    last = f.log.at(-1)?.id ?? first;
  }
  await flood.stop();
  await f.subscribe(channel, last);
  await f.until(flood.sent.at(-1).id);
  assert.deepEqual(f.gaps, []);
  assert.deepEqual(f.ids, flood.sent.map((s) => s.id));
  f.drop();
});

check('subscribing again with since to what is subscribed neither doubles nor loses', async () => {
  const channel = fresh();
  const all = await fill(channel, 5);
  const f = await Follower.open(server, `/channels/${channel}`);
  await f.ws.wait(() => f.answers.length === 1, 'subscribed');
  const got = await f.subscribe(channel, all[0]);
  assert.ok(['subscribed', 'error'].includes(got.op));
  const { id, subscribers } = await publish(server, channel, 'live');
  assert.equal(subscribers, 1);
  await f.until(id);
  await f.ask({ op: 'ping' });
  assert.ok(grows(f.ids), `${f.ids}`);
  f.drop();
});

// --- patterns --------------------------------------------------------------------------------

check('a:* matches a:b, not a/b and not a:b:c, and not a:; a:** matches all below; live and from history', async () => {
  const base = fresh();
  const channels = [`${base}:b`, `${base}/b`, `${base}:b:c`, `${base}:b/c`, base, `${base}:`, `${base}b`, `x:${base}:b`];
  const want = {
    [`${base}:*`]: [`${base}:b`], [`${base}:**`]: [`${base}:b`, `${base}:b:c`, `${base}:b/c`], [`${base}/*`]: [`${base}/b`],
    [`*:${base}:*`]: [`x:${base}:b`], [`${base}:*:*`]: [`${base}:b:c`], [`${base}:*/*`]: [`${base}:b/c`],
  };
  const live = {};
  for (const pattern of Object.keys(want)) {
    live[pattern] = await Follower.open(server, '/subscribe');
    assert.equal((await live[pattern].subscribe(pattern)).op, 'subscribed');
  }
  const first = (await publish(server, fresh(), 'mark')).id;
  for (const channel of channels) await publish(server, channel, channel);
  const last = await publish(server, `${base}:b`, 'last');
  for (const pattern of Object.keys(want)) {
    const late = await Follower.open(server, '/subscribe');
    const got = await late.subscribe(pattern, first);
    assert.deepEqual([got.op, got.pattern ?? got.channel, got.more, got.gap], ['subscribed', pattern, false, null]);
    await live[pattern].ask({ op: 'ping' });
    await sleep(50);
    // A part that is empty may match or not: one rule for live and history.
    const seen = (f) => f.log.map((m) => m.channel).filter((c) => c !== `${base}:`);
    const list = [...want[pattern], ...(want[pattern].includes(`${base}:b`) ? [`${base}:b`] : [])];
    assert.deepEqual(seen(live[pattern]), list, `${pattern}, live`);
    assert.deepEqual(late.log.map((m) => m.channel), live[pattern].log.map((m) => m.channel), `${pattern}, from history`);
    late.drop();
    live[pattern].drop();
  }
  assert.ok(last.id > first);
});

check('a channel and patterns that overlap on one connection: each id once, live', async () => {
  const base = fresh();
  const f = await Follower.open(server, '/subscribe');
  for (const name of [`${base}:a`, `${base}:*`, `${base}:**`, '**']) assert.equal((await f.subscribe(name)).op, 'subscribed');
  const sent = [];
  for (let i = 0; i < 40; i++) sent.push((await publish(server, `${base}:${'abc'[i % 3]}`, `${i}`)).id);
  await f.until(sent.at(-1));
  await f.ask({ op: 'ping' });
  assert.deepEqual(f.ids.filter((id) => id >= sent[0]), sent);
  await f.ask({ op: 'unsubscribe', channel: `${base}:a` });
  await f.ask({ op: 'unsubscribe', pattern: '**' });
  const { id } = await publish(server, `${base}:a`, 'still by a pattern');
  await f.until(id);
  assert.equal(f.ids.filter((one) => one === id).length, 1);
  f.drop();
});

check('/subscribe of more than channels.per_connection is refused, the command too', async () => {
  const q = (n) => Array.from({ length: n }, (_, i) => `channel=c.${i}`).join('&');
  const tcp = await Tcp.connect(server.target);
  await tcp.send(handshake(server, `/subscribe?${q(257)}`, { protocol: 'crier.v1' }));
  assertProblem(await answer(tcp), [400, 403, 413, 422, 429]);
  tcp.destroy();
  const v1 = await V1.open(server, `/subscribe?${q(256)}`, { expect: 256 });
  assert.equal((await v1.ask({ op: 'subscribe', channel: 'one-more', since: 'first' })).op, 'error');
  assert.equal((await v1.ask({ op: 'unsubscribe', channel: 'c.7' })).op, 'unsubscribed');
  assert.equal((await v1.ask({ op: 'subscribe', channel: 'one-more', since: 'first' })).op, 'subscribed');
  v1.drop();
});

// --- cursors -------------------------------------------------------------------------------------

check('cursors come with the ping, and nothing up to them is missing', { seconds: 60 }, async () => {
  const one = await start({ workers: 2, history: true, args: ['--ws.ping', '500ms'] });
  try {
    const f = await Follower.open(one, '/channels/c');
    await publish(one, 'other', 'the first of all');
    await f.ws.wait(() => f.cursors.length > 0, 'a cursor', 8000);
    const elsewhere = await publish(one, 'other', 'x');
    await f.ws.wait(() => f.cursors.at(-1) >= elsewhere.id, 'the cursor to pass what was published elsewhere', 8000);
    const { id } = await publish(one, 'c', 'y');
    assert.ok(f.cursors.every((c) => c < id), 'a cursor ran ahead');
    await f.until(id);
    assert.ok(f.cursors.every((c, i) => i === 0 || c >= f.cursors[i - 1]));
    f.drop();
    await one.stop();
  } finally {
    one.killAll();
  }
});

// --- raw ---------------------------------------------------------------------------------------------

check('a raw WebSocket with since gets the frames of the replay, text and binary, then live', async () => {
  const channel = fresh();
  const from = (await publish(server, channel, 'not this')).id;
  await publish(server, channel, 'text');
  await publish(server, channel, Buffer.from([0, 255]), { headers: [['Content-Type', 'application/octet-stream']] });
  await publish(server, channel, '{"n": 1}', { headers: [['Content-Type', 'application/json']] });
  await publish(server, channel, '');
  for (const target of [`/channels/${channel}?since=${from}`, `/channels/${channel}?since=-4`, `/subscribe?channel=${channel}&since=${from}`]) {
    const ws = await WebSocket.connect(server, target);
    await publish(server, fresh(), 'elsewhere');
    const got = [];
    for (let i = 0; i < 4; i++) got.push(await ws.message());
    assert.deepEqual(got.map((m) => [m.op, m.data.toString('latin1')]), [[OP.TEXT, 'text'], [OP.BINARY, '\0\xff'], [OP.TEXT, '{"n": 1}'], [OP.TEXT, '']]);
    await ws.expectSilence();
    ws.drop();
  }
  const ws = await WebSocket.connect(server, `/channels/${channel}?since=first`);
  const live = await publish(server, channel, 'live');
  for (let i = 0; i < 5; i++) await ws.message();
  assert.equal(await ws.text(), 'live');
  assert.equal(live.subscribers, 1);
  await ws.close();
});

check('a raw WebSocket whose since has a gap is closed with 4001 and the range', async () => {
  const channel = fresh('few:');
  const all = [];
  for (let i = 0; i < 12; i++) all.push((await publish(server, channel, `${i}`)).id);
  const ws = await WebSocket.connect(server, `/channels/${channel}?since=${all[1]}`);
  const { reason } = await ws.expectClose(4001);
  // Trimming stays behind the slowest worker, so a busy machine trims later.
  const [word, start, end] = reason.split(' ');
  assert.deepEqual([word, start], ['gap', `${all[1] + 1}`], reason);
  assert.ok(all.slice(2, 7).includes(Number(end)), reason);
  assert.equal(ws.messages.length, 0, 'messages before the gap was told');
  const whole = await WebSocket.connect(server, `/channels/${channel}?since=${all[6]}`);
  for (let i = 7; i < 12; i++) assert.equal(await whole.text(), `${i}`);
  await whole.close();
  const off = fresh('off:');
  const { id } = await publish(server, off, 'x');
  await publish(server, off, 'y');
  const gone = await WebSocket.connect(server, `/channels/${off}?since=${id}`);
  await gone.expectClose(4001);
});

check('a raw WebSocket resumes across the seam under a flood without loss or repeat', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const publisher = await Publisher.connect(server);
  const sent = [];
  let over = false;
  const writer = (async () => {
    while (!over) {
      const words = Array.from({ length: 5 }, (_, i) => `${sent.length + i}`);
      sent.push(...await publisher.burst(channel, words));
    }
    publisher.close();
  })();
  await poll(() => sent.length > 100, 'a hundred');
  const readers = await Promise.all(Array.from({ length: 30 }, async (_, i) => {
    await sleep(i * 40);
    return WebSocket.connect(server, `/channels/${channel}?since=${sent[i] - 1}`);
  }));
  await sleep(1000);
  over = true;
  await writer;
  for (const [i, ws] of readers.entries()) {
    await ws.wait(() => ws.messages.at(-1)?.data.toString() === `${sent.length - 1}`, 'the last', 15_000);
    assert.deepEqual(ws.messages.map((m) => Number(m.data.toString())), Array.from({ length: sent.length - i }, (_, k) => k + i));
    ws.drop();
  }
});

// --- slow readers with history ----------------------------------------------------------------------------

// A reader whose bytes are kept as they come and judged at the end.
async function sleeper(channel, protocol, query = '') {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(handshake(server, `/channels/${encodeURIComponent(channel)}${query}`, { protocol }));
  assertSwitched(await answer(tcp), protocol);
  if (protocol) await tcp.until(() => tcp.buffer.length > 2, 'subscribed');
  return tcp;
}

for (const size of [100, 1000, 16_000, 65_000, 300_000]) {
  check(`readers that stop and go on a channel with history lose nothing and skip nothing: ${size} B`, { seconds: 100 }, async () => {
    const channel = fresh('wide:');
    const kinds = [undefined, 'crier.v1', undefined, 'crier.v1'];
    const readers = [];
    for (const kind of kinds) readers.push(await sleeper(channel, kind));
    for (const tcp of readers) tcp.pause();
    const follower = await Follower.open(server, `/channels/${channel}`, (m) => follower.log.push({ id: m.id }));
    const count = Math.min(8000, Math.ceil(10e6 / size));
    const publisher = await Publisher.connect(server);
    const sent = [];
    for (let i = 0; i < count; i += 20) {
      sent.push(...await publisher.burst(channel, Array.from({ length: Math.min(20, count - i) }, (_, j) => body(i + j, size))));
      const tcp = readers[2 + (i / 20) % 2]; // two of them read now and then
      tcp.resume();
      await new Promise(setImmediate);
      tcp.pause();
    }
    for (const tcp of readers) tcp.resume();
    const end = await publisher.publish(channel, 'the end');
    publisher.close();
    await follower.until(end.id, 20_000);
    assert.deepEqual(follower.ids, [...sent, end.id], 'one that reads all the time');
    follower.drop();
    for (const [k, tcp] of readers.entries()) {
      await tcp.until(() => tcp.ended || tcp.buffer.subarray(-4096).includes('the end'), 'the end', 30_000);
      const events = (await judge(tcp.buffer)).filter(([kind]) => kind !== 'ping');
      const got = events.filter(([kind]) => kind === 'message');
      assert.deepEqual(events.filter(([kind]) => kind === 'close'), [], `reader ${k} was closed`);
      assert.ok(!tcp.ended, `reader ${k} was cut off after ${got.length}: ${tcp.error?.code}`);
      if (kinds[k]) {
        const heads = got.slice(1).map((e) => /^\{"op":"(\w+)"/.exec(e[3])?.[1]);
        assert.deepEqual([...new Set(heads)].filter((op) => op !== 'cursor'), ['message'], `reader ${k}`);
        assert.equal(heads.filter((op) => op === 'message').length, count + 1);
        const seen = got.slice(1).map((e) => Number(/"id":(\d+)/.exec(e[3])?.[1])).filter((_, i) => heads[i] === 'message');
        assert.deepEqual(seen, [...sent, end.id]);
      } else {
        assert.equal(got.length, count + 1, `reader ${k}`);
        assert.ok(got.every((e, i) => e[2] === hash(i === count ? 'the end' : body(i, size))), `reader ${k} has another order`);
      }
      tcp.destroy();
    }
  });
}

check('a reader a byte at a time during a flood stays whole', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const tcp = await sleeper(channel, 'crier.v1');
  tcp.pause();
  const sent = await fill(channel, 2000, 500);
  const from = Date.now();
  while (Date.now() - from < 1500) {
    tcp.socket.read?.(1);
    await sleep(5);
  }
  tcp.resume();
  sent.push((await publish(server, channel, 'the end')).id);
  await tcp.until(() => tcp.buffer.subarray(-4096).includes('the end'), 'the end', 20_000);
  const got = (await judge(tcp.buffer)).filter(([kind, , , head]) => kind === 'message' && head.startsWith('{"op":"message"'));
  assert.deepEqual(got.map((e) => Number(/"id":(\d+)/.exec(e[3])[1])), sent);
  tcp.destroy();
});

check('resuming with a large replay, stopped in the middle of it, while more comes', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const all = await fill(channel, 3000, 1000);
  const f = await Follower.open(server, `/channels/${channel}?since=first`);
  f.ws.tcp.pause();
  all.push(...await fill(channel, 3000, 1000));
  await sleep(200);
  f.ws.tcp.resume();
  all.push(...await fill(channel, 100, 10));
  await f.until(all.at(-1), 20_000);
  assert.deepEqual(f.ids, all);
  assert.deepEqual(f.gaps, []);
  f.drop();
});

check('a reader whose history is trimmed while it is stopped is told exactly what is gone', { seconds: 60 }, async () => {
  const channel = fresh('few:');
  const f = await Follower.open(server, `/channels/${channel}`);
  const raw = await WebSocket.channel(server, channel);
  f.ws.tcp.pause();
  raw.tcp.pause();
  const sent = await fill(channel, 2000, 8000);
  f.ws.tcp.resume();
  raw.tcp.resume();
  await f.until(sent.at(-1), 20_000);
  assert.ok(grows(f.ids));
  assert.ok(f.gaps.length > 0);
  const got = new Set(f.ids);
  for (const id of sent) assert.ok(got.has(id) || f.gaps.some((g) => g.from <= id && id <= g.to), `${id} was lost without a word`);
  for (const g of f.gaps) assert.equal(g.channel, channel);
  const { code, reason } = await raw.closed();
  assert.equal(code, 4001, reason);
  assert.match(reason, /^gap \d+ \d+$/);
  const whole = raw.messages.map((m) => m.data.toString());
  assert.deepEqual(whole, whole.map((_, i) => body(i, 8000)), 'what came before is not the beginning');
  const [, low, high] = /^gap (\d+) (\d+)$/.exec(reason);
  assert.ok(Number(low) <= sent[whole.length] && sent[whole.length] <= Number(high), 'the range does not hold the first that is missing');
  f.drop();
});

check('a worker that dies: its readers resume on another, with nothing lost', { seconds: 60 }, async () => {
  const one = await start({ workers: 2, history: true });
  try {
    const from = (await publish(one, 'w', 'first')).id;
    const flood = { sent: [], over: false };
    const writer = (async () => {
      let publisher = await Publisher.connect(one);
      while (!flood.over) {
        const word = `${flood.sent.length}`;
        try {
          const got = await ask(one, 'POST', '/channels/w', { body: word, headers: [['Idempotency-Key', `w${word}`]], ms: 3000 });
          if (got.status === 201) flood.sent.push(JSON.parse(got.body).id);
        } catch { /* again, with the same key */ }
      }
      publisher.close();
    })();
    const clients = Array.from({ length: 20 }, async () => {
      const seen = [from];
      for (;;) {
        let f;
        try {
          f = await Follower.open(one, `/channels/w?since=${seen.at(-1)}`, (m) => seen.push(m.id));
          await f.ws.wait(() => flood.end && seen.at(-1) >= flood.end, 'the end', 30_000);
          assert.deepEqual(f.gaps, []);
          f.drop();
          return seen.slice(1);
        } catch (error) {
          if (error.code === 'ERR_ASSERTION' || flood.end) throw error;
          f?.drop();
          await sleep(50);
        }
      }
    });
    for (let i = 0; i < 3; i++) {
      await sleep(700);
      const [pid] = one.workerPids();
      one.signal('SIGKILL', pid);
      await poll(() => one.workerPids().length === 2 && !one.workerPids().includes(pid), 'a new worker');
    }
    await sleep(300);
    flood.over = true;
    await writer;
    await sleep(100);
    const last = (await publish(one, 'w', 'end')).id;
    flood.end = last;
    for (const seen of await Promise.all(clients)) assert.deepEqual(seen, [...flood.sent, last]);
    await one.stop();
  } finally {
    one.killAll();
  }
});

checkStop(server, { fdsBefore });
