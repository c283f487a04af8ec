// Server-sent events: the head, every byte of an event, ids and resuming, gaps,
// keep-alives, several channels in one order, readers that stop, and npm's
// eventsource through restarts and deaths.
import assert from 'node:assert/strict';
import { EventSource } from 'eventsource';
import { assertUnharmed, check, checkStop, poll, scratchPath, sleep, start } from './lib/crier.mjs';
import { ask, assertProblem, publish, segment } from './lib/http.mjs';
import { chain, ids, info, remove } from './lib/history.mjs';
import { Sse } from './lib/sse.mjs';
import { Publisher } from './lib/load.mjs';
import { hash } from './lib/judge.mjs';

const server = await start({
  workers: 2, history: true,
  args: ['--sse.keepalive', '200ms', '--history.rule', 'off:* count=0', '--history.rule', 'few:* count=5',
    '--history.rule', 'wide:* count=1000000 bytes=256MiB'],
});
const calm = await start({ workers: 2, history: true, args: ['--sse.retry', '1500ms'] }); // every channel keeps the same
await assertUnharmed(server);
const fdsBefore = server.fds();
let names = 0;
const fresh = (prefix = 's') => `${prefix}${prefix.endsWith(':') ? '' : '-'}${++names}`;
const TYPE = (type) => [['Content-Type', type]];
const grows = (list) => list.every((id, i) => i === 0 || id > list[i - 1]);

// --- the head ------------------------------------------------------------------------

check('O16, W07: the head and a retry line come at once on a silent channel', async () => {
  for (const target of ['/channels/silent', '/subscribe?channel=silent', '/subscribe?pattern=silent:**']) {
    const sse = await Sse.open(server, target);
    assert.ok(sse.headAt - sse.from < 500, `${sse.headAt - sse.from} ms`);
    assert.equal(sse.status, 200);
    assert.match(sse.header('content-type'), /^text\/event-stream(;\s*charset=utf-8)?$/i);
    assert.equal(sse.header('cache-control'), 'no-store');
    assert.equal(sse.header('x-accel-buffering'), 'no');
    assert.equal(sse.header('content-length'), undefined);
    await sse.until(() => sse.retry !== null, 'a retry line', 500);
    assert.equal(sse.retry, 1000);
    assert.match(sse.bytes.toString(), /^retry: ?1000\n/);
    sse.drop();
  }
  const sse = await Sse.channel(calm, 'silent');
  await sse.until(() => sse.retry === 1500, 'sse.retry', 500);
  sse.drop();
});

check('HEAD has the head and no stream, and the connection serves on', async () => {
  const got = await ask(server, 'HEAD', '/channels/silent', { headers: [['Accept', 'text/event-stream']] });
  assert.equal(got.status, 200);
  assert.match(got.header('content-type'), /^text\/event-stream/);
  assert.equal(got.body.length, 0);
  assert.equal(await info(server, 'silent'), null, 'HEAD left a subscriber');
});

check('Accept decides: alone, among others, with a parameter; otherwise it is JSON', async () => {
  for (const accept of ['text/event-stream', 'Text/Event-Stream', 'text/event-stream, */*', 'application/json;q=0.1, text/event-stream', 'text/event-stream;q=0.9']) {
    const got = await ask(server, 'HEAD', '/channels/accept', { headers: [['Accept', accept]] });
    assert.match(got.header('content-type'), /^text\/event-stream/, accept);
  }
  for (const accept of ['*/*', 'application/json', 'text/*', ';q=', ',,,', 'text/event-stream;q=0', 'x'.repeat(8000)]) {
    const got = await ask(server, 'GET', '/channels/accept', { headers: [['Accept', accept]] });
    assert.match(got.header('content-type'), /^application\/(problem\+)?json/, accept.slice(0, 40));
  }
  assertProblem(await ask(server, 'GET', '/channels/a*b', { headers: [['Accept', 'text/event-stream']] }), 400);
  assertProblem(await ask(server, 'GET', '/subscribe', { headers: [['Accept', 'text/event-stream']] }), 400);
});

// --- the bytes of an event --------------------------------------------------------------

// What of the stream of one message follows the retry block.
async function wire(channel, body, options) {
  const sse = await Sse.channel(calm, channel);
  await sse.until(() => sse.retry !== null, 'the retry line');
  const { id } = await publish(calm, channel, body, options);
  await sse.until(() => sse.ids.at(-1) === id, 'the event');
  const text = sse.bytes.toString('utf8').replace(/^retry: 1500\n\n?/, '');
  sse.drop();
  // The same from history.
  const again = await Sse.channel(calm, channel, `?since=${id - 1}`);
  await again.until(() => again.ids.at(-1) === id, 'the event again');
  const replayed = again.bytes.toString('utf8').replace(/^retry: 1500\n\n?/, '');
  again.drop();
  assert.equal(replayed, text, 'replayed otherwise than live');
  return { id, text };
}

const lines = [
  ['hello', ['hello']], ['', ['']], ['a\nb', ['a', 'b']], ['a\rb', ['a', 'b']], ['a\r\nb', ['a', 'b']], ['a\r\nb\rc\nd', ['a', 'b', 'c', 'd']],
  ['\n', ['', '']], ['\r', ['', '']], ['\r\n', ['', '']], ['\n\n', ['', '', '']], ['\n\r', ['', '', '']], ['\r\n\r\n', ['', '', '']], ['a\n', ['a', '']],
  ['a\r', ['a', '']], ['\na', ['', 'a']], [' a', [' a']], ['  a', ['  a']], [':a', [':a']], [': a', [': a']], ['data: x', ['data: x']], ['id: 1', ['id: 1']],
  ['a\nid: 1\nevent: x', ['a', 'id: 1', 'event: x']], ['a\n\nid: 9\n\n', ['a', '', 'id: 9', '', '']], ['a\0b', ['a\0b']], ['\0', ['\0']], ['\ufeffa', ['\ufeffa']],
  ['é😀\u2028', ['é😀\u2028']], ['retry: 1', ['retry: 1']], ['\t', ['\t']], ['a'.repeat(70_000), ['a'.repeat(70_000)]],
];
check('F25, F27: every line of a text is a data line, CR, LF and CRLF alike; nothing can be injected', { seconds: 60 }, async () => {
  const channel = fresh();
  for (const [body, want] of lines) {
    const { id, text } = await wire(channel, body, { headers: TYPE('text/plain') });
    const data = want.map((line) => `data: ${line}\n`).join('');
    assert.equal(text, `id: ${id}\n${data}\n`, JSON.stringify(body.slice(0, 40)));
  }
});

check('an event name is an event line; JSON goes as it stands, over as many lines as it has', async () => {
  const channel = fresh();
  const named = await wire(channel, 'x', { query: '?event=up%20date%C3%A9' });
  assert.equal(named.text, `id: ${named.id}\nevent: up dateé\ndata: x\n\n`);
  const json = await wire(channel, '{"a":\r\n [1,\n2]}', { headers: TYPE('application/json'), query: '?event=tick' });
  assert.equal(json.text, `id: ${json.id}\nevent: tick\ndata: {"a":\ndata:  [1,\ndata: 2]}\n\n`);
  const html = await wire(channel, '<b>', { headers: TYPE('text/html') });
  assert.equal(html.text, `id: ${html.id}\ndata: <b>\n\n`);
});

check('binary is base64 with event: binary, whatever its bytes', async () => {
  const channel = fresh();
  for (const bytes of [Buffer.from([]), Buffer.from([0]), Buffer.from([10, 13]), Buffer.from([1, 2, 3, 255]), Buffer.from('plain text'), Buffer.alloc(5000, 10)]) {
    const { id, text } = await wire(channel, bytes, { headers: TYPE('application/octet-stream') });
    assert.equal(text, `id: ${id}\nevent: binary\ndata: ${bytes.toString('base64')}\n\n`);
  }
});

check('reserved event names, and those with line ends, are refused; the name "error" is not', async () => {
  for (const name of ['gap', 'binary', 'drain', 'message', 'a%0Ab', 'a%0Db', 'a%00', '%0A', '%FF']) {
    assertProblem(await ask(server, 'POST', `/channels/ev?event=${name}`, { body: 'x' }), 400, name);
  }
  await publish(server, 'ev', 'x', { query: '?event=error' });
  await publish(server, 'ev', 'x', { query: '?event=Gap' });
});

check('with several channels, or a pattern, data is the message object without op', async () => {
  const base = fresh();
  for (const target of [`/subscribe?channel=${base}:a&channel=${base}:b`, `/subscribe?pattern=${base}:*`, `/subscribe?channel=${base}:a&pattern=${base}:*`]) {
    const sse = await Sse.open(calm, target);
    const one = await publish(calm, `${base}:a`, 'line\nline', { query: '?event=ev' });
    const two = await publish(calm, `${base}:a`, '{"n":\n1}', { headers: TYPE('application/json') });
    const three = await publish(calm, `${base}:a`, Buffer.from([0, 255]), { headers: TYPE('application/octet-stream') });
    const got = await sse.take(3);
    assert.deepEqual(got.map((e) => e.id), [one.id, two.id, three.id], target);
    const want = { channel: `${base}:a` };
    assert.deepEqual(JSON.parse(got[0].data), { ...want, id: one.id, type: 'text/plain', data: 'line\nline', event: 'ev' });
    assert.equal(got[0].event, 'ev');
    assert.deepEqual(JSON.parse(got[1].data), { ...want, id: two.id, type: 'application/json', data: { n: 1 } });
    assert.deepEqual(JSON.parse(got[2].data), { ...want, id: three.id, type: 'application/octet-stream', data64: 'AP8=' });
    sse.drop();
  }
});

check('S18: the largest message, as text, as lines and as binary', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const sse = await Sse.channel(server, channel);
  const MIB = 1024 * 1024;
  const bodies = [['x'.repeat(MIB), 'text/plain'], ['\n'.repeat(MIB), 'text/plain'], [Buffer.alloc(MIB, 3), 'application/octet-stream']];
  for (const [body, type] of bodies) {
    await publish(server, channel, body, { headers: TYPE(type) });
    const got = await sse.event(20_000);
    assert.equal(hash(Buffer.from(got.data, type === 'text/plain' ? 'utf8' : 'base64')), hash(Buffer.from(body)));
  }
  sse.drop();
});

// --- ids and resuming ---------------------------------------------------------------------

async function fill(channel, count, where = server) {
  const publisher = await Publisher.connect(where);
  const list = await publisher.burst(channel, Array.from({ length: count }, (_, i) => `${i}`));
  publisher.close();
  return list;
}

check('since in all its forms, then live, in one strictly growing row of ids', async () => {
  const forms = [(all) => [`?since=${all[9]}`, all.slice(10)], (all) => ['?since=first', all], (all) => ['?since=-4', all.slice(-4)],
    () => ['?since=now', []], () => ['', []], (all) => [`?since=${all[29]}`, []], (all) => ['?since=0', all]];
  for (const form of forms) {
    const channel = fresh();
    const all = await fill(channel, 30);
    const [query, want] = form(all);
    const sse = await Sse.channel(server, channel, query);
    if (query === '?since=0') assert.equal((await sse.event()).event, 'gap');
    const { id } = await publish(server, channel, 'live');
    assert.deepEqual((await sse.take(want.length + 1)).map((e) => e.id), [...want, id], query);
    sse.drop();
  }
});

check('Last-Event-ID wins over since, and what is no cursor is 400', async () => {
  const channel = fresh();
  const all = await fill(channel, 10);
  const sse = await Sse.channel(server, channel, '?since=first', { headers: [['Last-Event-ID', `${all[6]}`]] });
  assert.deepEqual((await sse.take(3)).map((e) => e.id), all.slice(7));
  sse.drop();
  const empty = await Sse.channel(server, channel, `?since=${all[7]}`, { headers: [['Last-Event-ID', '']] });
  assert.deepEqual((await empty.take(2)).map((e) => e.id), all.slice(8));
  empty.drop();
  for (const bad of ['x', '1x', '-', '1,2', '[', '99999999999999999999']) {
    assertProblem(await ask(server, 'GET', `/channels/${channel}`, { headers: [['Accept', 'text/event-stream'], ['Last-Event-ID', bad]] }), 400, bad);
  }
});

check('S10: resuming again and again by the latest id repeats nothing and misses nothing', { seconds: 60 }, async () => {
  const channel = fresh();
  const all = await fill(channel, 200);
  const seen = [];
  let last = `${all[0] - 1}`;
  while (seen.length < all.length) {
    const sse = await Sse.channel(server, channel, '', { headers: [['Last-Event-ID', last]] });
    const n = Math.min(1 + seen.length % 17, all.length - seen.length);
    seen.push(...(await sse.take(n)).map((e) => e.id));
    last = `${seen.at(-1)}`;
    sse.drop();
  }
  assert.deepEqual(seen, all);
});

check('S09: the seam: streams that come and go while a publisher runs miss nothing and repeat nothing', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const sent = [];
  let over = false;
  const writer = (async () => {
    const publisher = await Publisher.connect(server);
    while (!over) sent.push(...await publisher.burst(channel, Array(5).fill('x')));
    publisher.close();
  })();
  await poll(() => sent.length > 0, 'the first');
  const readers = Array.from({ length: 16 }, async (_, k) => {
    const seen = [];
    let last = sent[0] - 1;
    for (let round = 0; !over || seen.at(-1) < sent.at(-1); round++) {
      const sse = await Sse.open(server, k % 2 ? `/channels/${channel}` : `/subscribe?channel=${channel}&pattern=wide:*`, { headers: [['Last-Event-ID', `${last}`]] });
      const want = 1 + (k * 31 + round * 17) % 200;
      await sse.until(() => sse.events.length >= want || (over && sse.ids.at(-1) >= sent.at(-1)), 'events', 10_000);
      for (const one of sse.events) {
        assert.notEqual(one.event, 'gap');
        seen.push(one.id);
      }
      last = Number(sse.lastId);
      sse.drop();
    }
    return seen;
  });
  await sleep(4000);
  over = true;
  await writer;
  for (const seen of await Promise.all(readers)) {
    assert.ok(grows(seen), 'ids do not grow');
    assert.equal(seen.length, sent.length);
    assert.deepEqual(seen, sent);
  }
});

check('several channels and patterns: strictly growing ids, each once, from history and live', { seconds: 60 }, async () => {
  const base = fresh('wide:');
  const sent = [];
  const write = async (k, count) => {
    const publisher = await Publisher.connect(calm);
    for (let i = 0; i < count; i++) {
      const channel = `${base}.${(i * 3 + k) % 7}`;
      sent.push({ channel, id: (await publisher.publish(channel, 'x')).id });
    }
    publisher.close();
  };
  await write(0, 200);
  const from = sent[0].id - 1;
  const q = Array.from({ length: 7 }, (_, i) => `channel=${base}.${i}`);
  const targets = [q.join('&'), `${q.join('&')}&pattern=wide:*`, 'pattern=wide:*&pattern=wide:**&pattern=**', `${q[0]}&${q[1]}&pattern=*:*`];
  const streams = await Promise.all(targets.map((t) => Sse.open(calm, `/subscribe?${t}&since=${from}`)));
  await Promise.all([1, 2, 3].map((k) => write(k, 300)));
  const want = sent.map((s) => s.id).sort((a, b) => a - b);
  const mine = new Set(want);
  for (const [i, sse] of streams.entries()) {
    await sse.until(() => sse.ids.includes(want.at(-1)), 'the last');
    const got = sse.events.filter((e) => e.event !== 'gap');
    assert.ok(grows(got.map((e) => e.id)), `${targets[i]}: ids do not grow`);
    assert.deepEqual(got.filter((e) => mine.has(e.id)).map((e) => e.id), want, targets[i]);
    assert.deepEqual(sse.events.filter((e) => e.event === 'gap'), [], targets[i]);
    for (const e of got) if (mine.has(e.id)) assert.equal(JSON.parse(e.data).id, e.id);
    sse.drop();
  }
});

// --- gaps ---------------------------------------------------------------------------------------

check('a gap is an event with channel, from and to; its id is not the end of the gap', async () => {
  const channel = fresh('few:');
  const all = [];
  for (let i = 0; i < 12; i++) all.push((await publish(server, channel, `${i}`)).id);
  const { trim } = await info(server, channel);
  const sse = await Sse.channel(server, channel, `?since=${all[1]}`);
  const gap = await sse.event();
  assert.equal(gap.event, 'gap');
  assert.deepEqual(JSON.parse(gap.data), { channel, from: all[1] + 1, to: trim });
  assert.ok(gap.id < trim, 'the id of the gap skips it');
  assert.deepEqual((await sse.take(5)).map((e) => e.id), all.slice(-5));
  // Who leaves right behind the gap has lost nothing more.
  const again = await Sse.channel(server, channel, '', { headers: [['Last-Event-ID', `${gap.id}`]] });
  const got = await again.take(6);
  assert.deepEqual([got[0].event, ...got.slice(1).map((e) => e.id)], ['gap', ...all.slice(-5)]);
  sse.drop();
  again.drop();
});

check('a gap on one of several channels does not skip what the others have', async () => {
  const [few, other] = [fresh('few:'), fresh()];
  const first = await publish(server, other, 'o1');
  const all = [];
  for (let i = 0; i < 12; i++) all.push((await publish(server, few, `${i}`)).id);
  const second = await publish(server, other, 'o2');
  const target = `/subscribe?channel=${few}&channel=${other}`;
  const sse = await Sse.open(server, `${target}&since=${first.id - 1}`);
  const gap = await sse.event();
  assert.equal(gap.event, 'gap');
  assert.equal(JSON.parse(gap.data).channel, few);
  const want = [first.id, ...all.slice(-5), second.id];
  assert.deepEqual((await sse.take(7)).map((e) => e.id), want);
  const again = await Sse.open(server, target, { headers: [['Last-Event-ID', `${gap.id}`]] });
  await again.until(() => again.ids.includes(second.id), 'the last');
  assert.deepEqual(again.events.filter((e) => e.event !== 'gap').map((e) => e.id), want, 'resumed at the gap');
  sse.drop();
  again.drop();
});

check('DELETE is a gap for a stream that stands still, and for one that comes back', { seconds: 60 }, async () => {
  const channel = fresh();
  const all = await fill(channel, 5);
  await remove(server, channel);
  const sse = await Sse.channel(server, channel, `?since=${all[2]}`);
  const gap = await sse.event();
  const data = JSON.parse(gap.data);
  assert.deepEqual([gap.event, data.channel, data.from], ['gap', channel, all[2] + 1]);
  assert.ok(data.to >= all[4]);
  const { id } = await publish(server, channel, 'on');
  assert.equal((await sse.event()).id, id);
  sse.drop();
});

check('without history every cursor but now is a gap, and live messages have ids', async () => {
  const channel = fresh('off:');
  const all = await fill(channel, 3);
  const sse = await Sse.channel(server, channel, `?since=${all[0]}`);
  const gap = await sse.event();
  const data = JSON.parse(gap.data);
  assert.deepEqual([gap.event, data.from], ['gap', all[0] + 1]);
  assert.ok(data.to >= all[2]);
  const now = await Sse.channel(server, channel);
  const { id } = await publish(server, channel, 'live');
  assert.equal((await now.event()).id, id);
  assert.equal((await sse.event()).id, id);
  sse.drop();
  now.drop();
});

// --- keep-alives -----------------------------------------------------------------------------------

check('keep-alives are id lines with the cursor, fire nothing, and resume exactly', { seconds: 60 }, async () => {
  const channel = fresh();
  const sse = await Sse.channel(server, channel);
  await sse.until(() => sse.cursors.length >= 4, 'keep-alives', 5000);
  assert.equal(sse.events.length, 0);
  assert.match(sse.bytes.toString(), /^retry: ?1000\n\n?(id: ?\d+\n\n)+/);
  const { id: elsewhere } = await publish(server, fresh(), 'elsewhere');
  await sse.until(() => sse.cursors.at(-1) >= elsewhere, 'the cursor to pass what was published elsewhere', 3000);
  const cursor = sse.cursors.at(-1);
  const { id } = await publish(server, channel, 'x');
  assert.ok(id > cursor);
  assert.equal((await sse.event()).id, id);
  await sse.until(() => sse.cursors.at(-1) >= id, 'a cursor behind the message', 3000);
  sse.drop();
  const again = await Sse.channel(server, channel, '', { headers: [['Last-Event-ID', `${cursor}`]] });
  assert.equal((await again.event()).id, id);
  again.drop();
});

check('keep-alives never run ahead of what was sent: ids and cursors only grow', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const sse = await Sse.open(server, `/subscribe?channel=${channel}&pattern=wide:*`);
  const publisher = await Publisher.connect(server);
  const end = Date.now() + 3000;
  const sent = [];
  while (Date.now() < end) {
    sent.push((await publisher.publish(channel, 'x')).id);
    if (sent.length % 40 === 0) await sleep(250);
  }
  publisher.close();
  await sse.until(() => sse.ids.includes(sent.at(-1)), 'the last');
  assert.deepEqual(sse.events.map((e) => e.id), sent);
  assert.ok(sse.cursors.length >= 3, `${sse.cursors.length} cursors`);
  assert.ok(sse.ids.every((id, i) => i === 0 || id >= sse.ids[i - 1]), 'an id went back');
  sse.drop();
});

// --- readers that stop --------------------------------------------------------------------------------

const body = (i, size) => `${i} `.padEnd(size, String.fromCharCode(97 + i % 26));

for (const size of [100, 4000, 100_000]) {
  check(`a stopped reader has all of it once it reads, with history, in messages of ${size} B`, { seconds: 100 }, async () => {
    const channel = fresh('wide:');
    const one = await Sse.channel(server, channel);
    const many = await Sse.open(server, `/subscribe?channel=${channel}&pattern=wide:*`);
    one.tcp.pause();
    many.tcp.pause();
    const publisher = await Publisher.connect(server);
    const count = Math.min(10_000, Math.ceil(12e6 / size));
    const sent = [];
    for (let i = 0; i < count; i += 20) {
      sent.push(...await publisher.burst(channel, Array.from({ length: Math.min(20, count - i) }, (_, j) => body(i + j, size))));
    }
    publisher.close();
    for (const sse of [one, many]) {
      sse.onEvent = (e) => sse.events.push({ id: e.id, event: e.event, hash: hash(sse === one ? e.data : JSON.parse(e.data).data ?? '') });
      sse.tcp.resume();
    }
    for (const sse of [one, many]) {
      await sse.until(() => sse.ids.at(-1) >= sent.at(-1), 'the last', 30_000);
      assert.deepEqual(sse.events.filter((e) => e.event === 'gap'), []);
      assert.equal(sse.events.length, count);
      assert.ok(sse.events.every((e, i) => e.id === sent[i] && e.hash === hash(body(i, size))), 'another order or other bytes');
      sse.drop();
    }
  });
}

check('a stopped reader without history is told of what it missed', { seconds: 60 }, async () => {
  const channel = fresh('off:');
  const one = await Sse.channel(server, channel);
  const many = await Sse.open(server, `/subscribe?channel=${channel}&channel=x`);
  one.tcp.pause();
  many.tcp.pause();
  const publisher = await Publisher.connect(server);
  const sent = [];
  for (let i = 0; i < 3000; i += 20) sent.push(...await publisher.burst(channel, Array.from({ length: 20 }, (_, j) => body(i + j, 4000))));
  one.tcp.resume();
  many.tcp.resume();
  sent.push((await publisher.publish(channel, 'the end')).id);
  publisher.close();
  for (const sse of [one, many]) {
    await sse.until(() => sse.ids.at(-1) >= sent.at(-1) && sse.events.at(-1)?.data.includes('the end'), 'the last', 20_000);
    const gaps = sse.events.filter((e) => e.event === 'gap').map((e) => JSON.parse(e.data));
    const got = sse.events.filter((e) => e.event !== 'gap').map((e) => e.id);
    assert.ok(grows(got));
    assert.ok(gaps.length > 0 && got.length < sent.length, 'nothing was lost: the test tests nothing');
    const set = new Set(got);
    for (const id of sent) assert.ok(set.has(id) || gaps.some((g) => g.from <= id && id <= g.to), `${id} was lost without a word`);
    sse.drop();
  }
});

check('a stopped reader whose history is trimmed meanwhile is told exactly the rest', { seconds: 60 }, async () => {
  const channel = fresh('few:');
  const sse = await Sse.channel(server, channel);
  sse.tcp.pause();
  const publisher = await Publisher.connect(server);
  const sent = [];
  for (let i = 0; i < 2000; i += 20) sent.push(...await publisher.burst(channel, Array.from({ length: 20 }, (_, j) => body(i + j, 8000))));
  publisher.close();
  sse.tcp.resume();
  await sse.until(() => sse.ids.at(-1) >= sent.at(-1), 'the last', 20_000);
  const gaps = sse.events.filter((e) => e.event === 'gap').map((e) => JSON.parse(e.data));
  const got = new Set(sse.events.filter((e) => e.event !== 'gap').map((e) => e.id));
  assert.ok(grows([...got]));
  assert.ok(gaps.length > 0);
  for (const id of sent) assert.ok(got.has(id) || gaps.some((g) => g.from <= id && id <= g.to), `${id} was lost without a word`);
  for (const id of sent.slice(-5)) assert.ok(got.has(id), 'what is kept was not sent');
  sse.drop();
});

check('200 streams that leave by FIN and RST under a publisher leave nothing behind', { seconds: 60 }, async () => {
  const channel = fresh();
  const fds = server.fds();
  const publisher = await Publisher.connect(server);
  let over = false;
  const writer = (async () => {
    while (!over) await publisher.burst(channel, Array(3).fill('x'));
  })();
  for (let round = 0; round < 4; round++) {
    const all = await Promise.all(Array.from({ length: 50 }, (_, i) => Sse.open(server, i % 2 ? `/channels/${channel}?since=-20` : `/subscribe?channel=${channel}&pattern=s:*`)));
    for (const [i, sse] of all.entries()) i % 3 ? sse.tcp.reset() : sse.drop();
  }
  over = true;
  await writer;
  publisher.close();
  await poll(async () => (await publish(server, channel, 'x')).subscribers === 0, 'nobody', { ms: 5000 });
  await poll(() => server.fds() <= fds, 'descriptors', { ms: 5000 });
});

// --- real clients, and the end ------------------------------------------------------------------------

// npm's eventsource, with everything that it was given.
class Browser {
  constructor(server, target) {
    this.seen = [];
    this.gaps = [];
    this.opened = 0;
    this.source = new EventSource(`http://${server.host}${target}`);
    this.source.addEventListener('message', (e) => this.seen.push({ id: Number(e.lastEventId), data: e.data }));
    this.source.addEventListener('gap', (e) => this.gaps.push(JSON.parse(e.data)));
    this.source.addEventListener('open', () => this.opened++);
  }

  close() {
    this.source.close();
  }
}

for (const [what, target] of [['one channel', '/channels/es'], ['a pattern', '/subscribe?pattern=*']]) {
  check(`eventsource resumes across a restart of a durable broker: ${what}`, { seconds: 90 }, async () => {
    const store = scratchPath(`sse-${what.replace(/ /g, '-')}.store`);
    const args = ['--store', store, '--sse.retry', '200ms', '--store.size', '64MiB'];
    let one = await start({ workers: 2, history: true, args });
    try {
      const browser = new Browser(one, target);
      await poll(() => browser.opened > 0, 'the stream to open');
      const sent = [];
      const send = async (n) => {
        for (let i = 0; i < n; i++) sent.push((await publish(one, 'es', `${sent.length}`)).id);
      };
      await send(5);
      await poll(() => browser.seen.length === 5, 'five events');
      await one.stop();
      one = await start({ workers: 2, history: true, args, listen: one.listeners });
      await send(5);
      await poll(() => browser.seen.length === 10, 'ten events', { ms: 20_000 });
      for (const pid of one.pids()) one.signal('SIGKILL', pid);
      await one.untilExit();
      one.killAll();
      one = await start({ workers: 2, history: true, args, listen: one.listeners });
      await send(5);
      await poll(() => browser.seen.length >= 15, 'fifteen events', { ms: 20_000 });
      assert.deepEqual(browser.seen.map((e) => e.id), sent);
      assert.deepEqual(browser.seen.map((e) => e.data && (e.data.startsWith('{') ? JSON.parse(e.data).data : e.data)), sent.map((_, i) => `${i}`));
      assert.deepEqual(browser.gaps, []);
      browser.close();
      await one.stop();
    } finally {
      one.killAll();
    }
  });
}

check('eventsource resumes across the death of its worker, with nothing lost', { seconds: 90 }, async () => {
  const one = await start({ workers: 2, history: true, args: ['--sse.retry', '200ms'] });
  try {
    const browsers = Array.from({ length: 8 }, () => new Browser(one, '/channels/es'));
    await poll(() => browsers.every((b) => b.opened > 0), 'the streams to open');
    const sent = [];
    let over = false;
    const writer = (async () => {
      while (!over) {
        try { // a POST that is cut off may or may not have been taken; keys make it once
          const { id } = await publish(one, 'es', `${sent.length}`, { headers: [['Idempotency-Key', `k${sent.length}`]], ms: 2000 });
          sent.push(id);
        } catch { /* again */ }
        await sleep(5);
      }
    })();
    for (let i = 0; i < 3; i++) {
      await sleep(500);
      const [pid] = one.workerPids();
      one.signal('SIGKILL', pid);
      await poll(() => one.workerPids().length === 2 && !one.workerPids().includes(pid), 'a new worker');
    }
    await sleep(500);
    over = true;
    await writer;
    for (const browser of browsers) {
      await poll(() => browser.seen.at(-1)?.id >= sent.at(-1), 'the last', { ms: 15_000 });
      assert.deepEqual(browser.gaps, []);
      assert.deepEqual(browser.seen.map((e) => e.id), sent);
      browser.close();
    }
    await one.stop();
  } finally {
    one.killAll();
  }
});

check('eventsource is told the gap after a restart of a memory store, and goes on', { seconds: 60 }, async () => {
  let one = await start({ workers: 1, history: true, args: ['--sse.retry', '200ms'] });
  try {
    const browser = new Browser(one, '/channels/es');
    await poll(() => browser.opened > 0, 'the stream to open');
    const { id } = await publish(one, 'es', 'old');
    await poll(() => browser.seen.length === 1, 'the first');
    await one.stop();
    one = await start({ workers: 1, history: true, args: ['--sse.retry', '200ms'], listen: one.listeners });
    const next = await publish(one, 'es', 'new');
    await poll(() => browser.seen.length === 2, 'the next', { ms: 15_000 });
    assert.deepEqual(browser.seen.map((e) => e.id), [id, next.id]);
    assert.ok(browser.gaps.length >= 1 && browser.gaps[0].from === id + 1 && browser.gaps[0].to < next.id, JSON.stringify(browser.gaps));
    browser.close();
    await one.stop();
  } finally {
    one.killAll();
  }
});

check('a drain ends every stream in order, with whole events, and what was published is in them', { seconds: 60 }, async () => {
  const one = await start({ workers: 2, history: true });
  try {
    const streams = await Promise.all(Array.from({ length: 30 }, (_, i) => Sse.open(one, i % 2 ? '/channels/d' : '/subscribe?pattern=*')));
    const sent = await fill('d', 50, one);
    one.signal('SIGTERM');
    for (const sse of streams) {
      await sse.until(() => sse.ended, 'the end of the stream', 8000);
      assert.equal(sse.tcp.error, null);
      assert.deepEqual(sse.events.map((e) => e.id), sent);
      assert.equal(sse.rest.length, 0, 'half a line at the end');
    }
    await one.stop();
  } finally {
    one.killAll();
  }
});

check('several channels: the limit of a connection, and the same name twice', async () => {
  const q = (n) => Array.from({ length: n }, (_, i) => `channel=n.${i}`).join('&');
  const sse = await Sse.open(server, `/subscribe?${q(256)}`);
  const { id } = await publish(server, 'n.255', 'x');
  assert.equal((await sse.event()).id, id);
  sse.drop();
  assertProblem(await ask(server, 'GET', `/subscribe?${q(257)}`, { headers: [['Accept', 'text/event-stream']] }), [400, 403, 413, 422, 429]);
  const twice = await Sse.open(server, `/subscribe?channel=n.1&channel=n.1&pattern=*&since=${id - 1}`);
  assert.equal((await twice.event()).id, id);
  const next = await publish(server, 'n.1', 'y');
  assert.equal((await twice.event()).id, next.id);
  assert.equal(next.subscribers, 1);
  twice.drop();
});

check('a chain of polls and a stream agree on what a channel had', async () => {
  const channel = fresh();
  const all = await fill(channel, 100);
  const sse = await Sse.channel(server, channel, '?since=first');
  const got = (await sse.take(100)).map((e) => e.id);
  assert.deepEqual(got, ids((await chain(server, `/channels/${segment(channel)}`, 'first', 9)).messages));
  assert.deepEqual(got, all);
  sse.drop();
});

check('the calm server stops as well', async () => {
  await calm.stop();
});

checkStop(server, { fdsBefore });
