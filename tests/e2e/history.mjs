// History by GET: every form of `since`, limits and chains of cursors, gaps
// told exactly where something is gone, several channels in one order, info,
// the list, and the names of channels.
import assert from 'node:assert/strict';
import { assertUnharmed, check, checkStop, poll, sleep, start } from './lib/crier.mjs';
import { ask, assertProblem, post, publish, segment } from './lib/http.mjs';
import { chain, datas, history, ids, info, read, remove } from './lib/history.mjs';
import { WebSocket } from './lib/websocket.mjs';
import { V1 } from './lib/v1.mjs';
import { Publisher } from './lib/load.mjs';
import { hash } from './lib/judge.mjs';

const rule = (text) => ['--history.rule', text];
const server = await start({
  workers: 2, history: true,
  args: [...rule('few:* count=10'), ...rule('kb:* bytes=1KiB'), ...rule('brief:* age=1s'), ...rule('off:* count=0'),
    ...rule('wide:* count=5000 bytes=64MiB'), '--replay.limit', '500', '--history.forget', '0'],
});
await assertUnharmed(server);
const fdsBefore = server.fds();
let names = 0;
const fresh = (prefix = 'h') => `${prefix}${prefix.endsWith(':') ? '' : '-'}${++names}`;

// Publishes `count` small messages; their ids.
async function fill(channel, count, where = server) {
  const publisher = await Publisher.connect(where);
  try {
    return await publisher.burst(channel, Array.from({ length: count }, (_, i) => `${i}`));
  } finally {
    publisher.close();
  }
}

// --- since ------------------------------------------------------------------------

check('since an id gives what came after it, and the cursor that goes on from there', async () => {
  const channel = fresh();
  const all = await fill(channel, 20);
  for (const at of [0, 1, 10, 18, 19]) {
    const got = await history(server, channel, `?since=${all[at]}`);
    assert.deepEqual(ids(got.messages), all.slice(at + 1));
    assert.deepEqual(datas(got.messages), all.slice(at + 1).map((_, i) => `${at + 1 + i}`));
    assert.equal(got.gap, null);
    assert.equal(got.more, false);
    assert.ok(got.cursor >= all.at(-1));
    const next = await history(server, channel, `?since=${got.cursor}`);
    assert.deepEqual([next.messages, next.gap, next.more], [[], null, false]);
  }
});

check('a moment in time between two messages is a cursor like an id', async () => {
  const channel = fresh();
  const { id: first } = await publish(server, channel, 'before');
  await sleep(20);
  const { id: second } = await publish(server, channel, 'after');
  for (const at of [first, first + 1, Math.floor((first + second) / 2), second - 1]) {
    const got = await history(server, channel, `?since=${at}`);
    assert.deepEqual([datas(got.messages), got.gap], [['after'], null], `since ${at - first} µs after the first`);
  }
  assert.deepEqual(datas((await history(server, channel, `?since=${first - 1}`)).messages), ['before', 'after']);
});

check('first is all that is kept, now is nothing, without since it is now', async () => {
  const channel = fresh();
  const all = await fill(channel, 5);
  const first = await history(server, channel, '?since=first');
  assert.deepEqual([ids(first.messages), first.gap, first.more], [all, null, false]);
  for (const query of ['?since=now', '', '?']) {
    const now = await history(server, channel, query);
    assert.deepEqual([now.messages, now.gap, now.more], [[], null, false], query);
    assert.ok(now.cursor >= all.at(-1));
    assert.ok(now.cursor / 1000 <= Date.now() + 1000);
  }
});

check('now is a cursor: what is published after the answer comes next, at once or later', async () => {
  const channel = fresh();
  for (let i = 0; i < 100; i++) {
    const { cursor } = await history(server, channel, '?since=now');
    const { id } = await publish(server, channel, `${i}`);
    assert.ok(id > cursor, `published as ${id}, the cursor was ${cursor}`);
    assert.deepEqual(ids((await history(server, channel, `?since=${cursor}`)).messages), [id]);
  }
});

check('-N is the last N, and never a gap', async () => {
  const channel = fresh();
  const all = await fill(channel, 20);
  for (const n of [1, 2, 19, 20, 21, 1000, 2 ** 40]) {
    const got = await history(server, channel, `?since=-${n}`);
    assert.deepEqual([ids(got.messages), got.gap, got.more], [all.slice(-n), null, false], `-${n}`);
  }
  const got = await history(server, channel, '?since=-7&limit=3');
  assert.deepEqual([ids(got.messages), got.more], [all.slice(-7, -4), true]);
  assert.deepEqual(ids((await history(server, channel, `?since=${got.cursor}`)).messages), all.slice(-4));
});

check('0 and 1 lie before everything: all that is kept, with the gap up to the birth of the store', async () => {
  const channel = fresh();
  const all = await fill(channel, 3);
  for (const since of [0, 1]) {
    const got = await history(server, channel, `?since=${since}`);
    assert.deepEqual(ids(got.messages), all);
    assert.ok(got.gap && got.gap.from <= 2 && got.gap.to < all[0], JSON.stringify(got.gap));
    const { gap } = await history(server, channel, `?since=${got.gap.to}`);
    assert.equal(gap, null, 'a cursor at the end of a gap has none');
    assert.notEqual((await history(server, channel, `?since=${got.gap.to - 1}`)).gap, null);
  }
});

check('a cursor above the clock is a gap, and goes on from now', async () => {
  const channel = fresh();
  await fill(channel, 3);
  const ahead = Date.now() * 1000 + 3600e6;
  for (const since of [ahead, 2 ** 53 - 1]) {
    const got = await history(server, channel, `?since=${since}`);
    assert.deepEqual([got.messages, got.more], [[], false]);
    assert.notEqual(got.gap, null);
    assert.ok(got.cursor < ahead, 'the cursor is still ahead');
    const { id } = await publish(server, channel, 'on');
    assert.deepEqual(ids((await history(server, channel, `?since=${got.cursor}`)).messages), [id]);
  }
});

const garbage = ['', 'x', 'First', 'NOW', 'first%20', '%20first', '+5', '--1', '-', '-x', '1.0', '1e3', '0x10', '1,2', '[', '[1',
  ',,,', '-1,2', '1:2', '%00', '1%00', '1%0a', '%0d%0a', '%ff', '18446744073709551616', '18446744073709551617',
  '99999999999999999999', '-99999999999999999999', '1970-01-01', 'Thu,%2001%20Jan%201970%2000:00:00%20GMT', 'null',
  'undefined', 'NaN', '%D9%A1', '9'.repeat(5000)];
check('S07: what is no cursor is 400, in the query and as Last-Event-ID, and hurts nobody', async () => {
  const channel = fresh();
  await fill(channel, 2);
  for (const text of garbage) {
    for (const target of [`/channels/${channel}?since=${text}`, `/subscribe?channel=${channel}&since=${text}`,
      `/channels/${channel}?wait=1&since=${text}`]) {
      assertProblem(await ask(server, 'GET', target), 400, target.slice(0, 80));
    }
    const decoded = decodeURIComponent(text.replace('%ff', 'é'));
    if (decoded === '' || /^[ ]|[ ]$|[\x00-\x1f]|[^\x00-\xff]/.test(decoded)) continue;
    for (const headers of [[['Last-Event-ID', decoded]], [['Last-Event-ID', decoded], ['Accept', 'text/event-stream']]]) {
      assertProblem(await ask(server, 'GET', `/channels/${channel}?since=first`, { headers }), 400, `Last-Event-ID ${decoded.slice(0, 40)}`);
    }
  }
  assertProblem(await ask(server, 'GET', `/channels/${channel}?since=${'1'.repeat(65_536)}`), [400, 414]);
  assertProblem(await ask(server, 'GET', `/channels/${channel}`, { headers: [['Last-Event-ID', '1'.repeat(65_536)]] }), [400, 431]);
  assertProblem(await ask(server, 'GET', `/channels/${channel}?since=first&since=now`), 400);
  await assertUnharmed(server);
});

check('S07: sixteen digits and more, up to what a number holds, are an answer or 400, never silence', async () => {
  const channel = fresh();
  await fill(channel, 2);
  for (const since of ['9007199254740991', '9007199254740992', '9999999999999999', '9223372036854775807', '9223372036854775808',
    '18446744073709551615']) {
    const got = await ask(server, 'GET', `/channels/${channel}?since=${since}`);
    if (got.status === 400) continue;
    assert.equal(got.status, 200);
    assert.notEqual(JSON.parse(got.body).gap, null, `since=${since} has no gap`);
  }
});

check('a cursor may be percent-encoded, and zeros may lead', async () => {
  const channel = fresh();
  const all = await fill(channel, 4);
  const encoded = [...`${all[1]}`].map((digit) => `%3${digit}`).join('');
  assert.deepEqual(ids((await history(server, channel, `?since=${encoded}`)).messages), all.slice(2));
  const zeros = await ask(server, 'GET', `/channels/${channel}?since=000${all[1]}`);
  if (zeros.status !== 400) assert.deepEqual(ids(JSON.parse(zeros.body).messages), all.slice(2));
});

check('a Last-Event-ID that is not empty wins over the query', async () => {
  const channel = fresh();
  const all = await fill(channel, 5);
  const ask3 = (value) => history(server, channel, '?since=first', { headers: [['Last-Event-ID', value]] });
  assert.deepEqual(ids((await ask3(`${all[2]}`)).messages), all.slice(3));
  assert.deepEqual(ids((await ask3('')).messages), all);
  const old = await history(server, channel, `?since=${all[4]}`, { headers: [['Last-Event-ID', `${all[0]}`]] });
  assert.deepEqual(ids(old.messages), all.slice(1));
});

check('HEAD has the head of GET and no body', async () => {
  const channel = fresh();
  await fill(channel, 3);
  for (const target of [`/channels/${channel}?since=first`, `/channels/${channel}/info`, '/channels', `/channels/${channel}?since=x`,
    '/channels/none-at-all/info']) {
    const get = await ask(server, 'GET', target);
    const head = await ask(server, 'HEAD', target);
    assert.equal(head.status, get.status, target);
    assert.equal(head.body.length, 0);
    for (const name of ['content-type', 'content-length']) assert.equal(head.header(name), get.header(name), `${name} of ${target}`);
  }
  const from = Date.now();
  assert.equal((await ask(server, 'HEAD', `/channels/${channel}?since=now&wait=1`)).status, 200);
  assert.ok(Date.now() - from < 5000);
});

check('an absent channel is an empty list', async () => {
  for (const query of ['', '?since=now', '?since=first', '?since=-5', '?since=first&limit=1']) {
    const got = await history(server, 'nobody was ever here', query);
    assert.deepEqual([got.messages, got.gap, got.more], [[], null, false], query);
  }
  assert.equal(await info(server, 'nobody was ever here'), null, 'a question made the channel');
});

// --- what a message looks like ------------------------------------------------------

check('text, JSON, binary, types and events come back as they went in', async () => {
  const channel = fresh();
  const put = (body, type, query = '') => publish(server, channel, body, { query, headers: type ? [['Content-Type', type]] : [] });
  const cases = [
    ['hello', undefined, '', { type: 'text/plain', data: 'hello' }],
    ['a=b', 'application/x-www-form-urlencoded', '', { type: 'text/plain', data: 'a=b' }],
    ['{"a":[1,2.50,"é"]}', 'application/json', '', { type: 'application/json', data: { a: [1, 2.5, 'é'] } }],
    ['null', 'application/json', '', { type: 'application/json', data: null }],
    ['"text"', 'application/vnd.x+json', '?event=up', { type: 'application/vnd.x+json', data: 'text', event: 'up' }],
    ['<p>', 'text/html; charset=utf-8', '?event=a%20b%C3%A9', { type: 'text/html; charset=utf-8', data: '<p>', event: 'a bé' }],
    [Buffer.from([0, 255, 10]), undefined, '', { type: 'application/octet-stream', data64: 'AP8K' }],
    ['plain', 'application/octet-stream', '', { type: 'application/octet-stream', data64: 'cGxhaW4=' }],
    ['PNG', 'image/png', '', { type: 'image/png', data64: 'UE5H' }],
  ];
  const sent = [];
  for (const [body, type, query] of cases) sent.push((await put(body, type, query)).id);
  const got = await history(server, channel);
  assert.deepEqual(got.messages, cases.map(([, , , want], i) => ({ channel, id: sent[i], ...want })));
});

check('F25, F27: empty, NUL, line ends and the whole of UTF-8 come back byte for byte', async () => {
  const channel = fresh();
  const texts = ['', ' ', '\0', 'a\0b', '\n', '\r', '\r\n', 'a\r\nb\rc\nd', '\n\n', '"', '\\', '\\u0000', '\u2028\u2029', '\ufeffbom', '\u0080',
    '\u07ff\u0800\uffff', '😀', '\u{10ffff}', '</script>', '\u007f\u001f', 'é\u0301'];
  const sent = [];
  for (const text of texts) {
    sent.push((await publish(server, channel, text, { headers: [['Content-Type', 'text/plain']] })).id);
  }
  const got = await history(server, channel);
  assert.deepEqual(datas(got.messages), texts);
  assert.deepEqual(ids(got.messages), sent);
  const binary = fresh();
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  for (const size of [0, 1, 2, 3, 255, 256]) {
    await publish(server, binary, bytes.subarray(0, size), { headers: [['Content-Type', 'application/octet-stream']] });
  }
  const back = (await history(server, binary)).messages.map((m) => Buffer.from(m.data64, 'base64'));
  assert.deepEqual(back.map((b) => b.length), [0, 1, 2, 3, 255, 256]);
  for (const one of back) assert.ok(one.equals(bytes.subarray(0, one.length)));
});

check('JSON keeps its digits and its order of names', async () => {
  const channel = fresh();
  const body = '{"z":12345678901234567890.10,"a":1e400,"z":"\\ud83d\\ude00"}';
  await publish(server, channel, body, { headers: [['Content-Type', 'application/json']] });
  const got = await ask(server, 'GET', `/channels/${channel}?since=first`);
  assert.ok(got.body.toString().includes(`"data":${body}`), got.body.toString());
});

check('S18: a message of nearly message.max, and one above it', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const big = 'x'.repeat(1024 * 1024 - 1024);
  const bytes = Buffer.alloc(1024 * 1024, 7);
  await publish(server, channel, big);
  await publish(server, channel, '\u0001'.repeat(1024 * 1024), { headers: [['Content-Type', 'text/plain']] }); // six times as long in JSON
  await publish(server, channel, bytes, { headers: [['Content-Type', 'application/octet-stream']] });
  assertProblem(await post(server, channel, Buffer.alloc(1024 * 1024 + 1)), 413);
  const { messages } = await chain(server, `/channels/${channel}`, 'first', 1);
  assert.equal(messages.length, 3);
  assert.equal(hash(Buffer.from(messages[0].data)), hash(Buffer.from(big)));
  assert.equal(messages[1].data.length, 1024 * 1024);
  assert.ok(Buffer.from(messages[2].data64, 'base64').equals(bytes));
  const all = await chain(server, `/channels/${channel}`, 'first', 500);
  assert.deepEqual(ids(all.messages), ids(messages));
});

// --- limit, more, chains ---------------------------------------------------------------

check('limit bounds an answer, more says that there is more, exactly', async () => {
  const channel = fresh();
  const all = await fill(channel, 7);
  for (const [limit, more] of [[1, true], [6, true], [7, false], [8, false], [500, false]]) {
    const got = await history(server, channel, `?since=first&limit=${limit}`);
    assert.deepEqual([ids(got.messages), got.more], [all.slice(0, limit), more], `limit=${limit}`);
  }
  for (const limit of ['', '0', '-1', 'x', '1.5', '1e1', '99999999999999999999', '+1']) {
    assertProblem(await ask(server, 'GET', `/channels/${channel}?since=first&limit=${limit}`), 400, `limit=${limit}`);
  }
});

check('without a limit, and with a higher one, replay.limit holds', async () => {
  const channel = fresh();
  const all = await fill(channel, 1000);
  for (const query of ['?since=first', '?since=first&limit=501', '?since=first&limit=1000000']) {
    const got = await history(server, channel, query);
    assert.deepEqual([got.messages.length, got.more], [500, true], query);
    assert.equal(got.cursor, all[499]);
  }
});

check('a chain of cursors has every message once, at any limit', { seconds: 60 }, async () => {
  const channel = fresh();
  const all = await fill(channel, 100);
  for (const limit of [1, 2, 3, 7, 33, 50, 99, 100, 101]) {
    const got = await chain(server, `/channels/${channel}`, 'first', limit);
    assert.deepEqual(ids(got.messages), all, `limit ${limit}`);
    assert.deepEqual(got.gaps, []);
    assert.equal(got.answers, Math.ceil(100 / limit), `limit ${limit}: an answer for nothing`);
  }
});

check('a chain while publishers run has every message once', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const sent = [];
  let over = false;
  const writers = [0, 1, 2].map(async () => {
    const publisher = await Publisher.connect(server);
    for (let i = 0; i < 60; i++) sent.push(...await publisher.burst(channel, Array(10).fill('x')));
    publisher.close();
  });
  const seen = [];
  const reader = (async () => {
    let since = 'first';
    for (let i = 0; ; i++) {
      const last = over;
      const got = await history(server, channel, `?since=${since}&limit=${[1, 7, 50, 500][i % 4]}`);
      assert.equal(got.gap, null);
      seen.push(...ids(got.messages));
      since = got.cursor;
      if (last && !got.more) return;
    }
  })();
  await Promise.all(writers);
  over = true;
  await reader;
  assert.deepEqual(seen, sent.sort((a, b) => a - b));
});

// --- several channels -----------------------------------------------------------------------

check('several channels and patterns are merged in order of id, each id once', { seconds: 60 }, async () => {
  const plain = await start({ workers: 2, history: true }); // every channel keeps the same
  const base = fresh('m');
  const channels = [`${base}:a`, `${base}:b`, `${base}:b:c`, `${base}/d`, `${base}:e`];
  const sent = [];
  for (let i = 0; i < 60; i++) {
    const channel = channels[(i * 7 + (i >> 2)) % 5];
    sent.push({ channel, id: (await publish(plain, channel, `${i}`)).id });
  }
  const of = (...list) => sent.filter((one) => list.includes(one.channel)).map((one) => one.id);
  const [a, b, bc, d, e] = channels;
  const q = (kind, name) => `${kind}=${encodeURIComponent(name)}`;
  const cases = [
    [[q('channel', a), q('channel', b)], of(a, b)],
    [[q('channel', b), q('channel', a), q('channel', 'absent')], of(a, b)],
    [[q('pattern', `${base}:*`)], of(a, b, e)],
    [[q('pattern', `${base}:**`)], of(a, b, bc, e)],
    [[q('pattern', `${base}/*`)], of(d)],
    [[q('pattern', `${base}:*`), q('pattern', `${base}:*:c`)], of(a, b, e, bc)],
    [[q('channel', a), q('pattern', `${base}:*`), q('pattern', `${base}:**`), q('channel', a)], of(a, b, bc, e)],
    [[q('channel', d), q('pattern', `${base}:b:*`)], of(d, bc)],
  ];
  for (const [parts, want] of cases) {
    const target = `/subscribe?${parts.join('&')}`;
    for (const limit of [1, 4, 500]) {
      const got = await chain(plain, target, sent[0].id - 1, limit);
      assert.deepEqual(got.gaps, [], target);
      assert.deepEqual(ids(got.messages), want, `${target} limit ${limit}`);
      for (const m of got.messages) assert.equal(m.channel, sent.find((s) => s.id === m.id)?.channel ?? m.channel);
    }
    for (const n of [1, 5, 1000]) {
      const got = await read(plain, `${target}&since=-${n}`);
      assert.deepEqual([ids(got.messages), got.gap], [want.slice(-n), null], `the last ${n} of ${target}`);
    }
  }
  await plain.stop();
});

check('a query that names none, or none that is one, is 400', async () => {
  for (const query of ['', '?', '?since=first', '?channel=', '?pattern=', '?channel=a*', '?channel=*', '?pattern=a', '?pattern=**:a', '?pattern=a**',
    '?pattern=a:b*', '?channel=a%00', '?channel=%0d%0a', '?channel=%ff', '?channel=.', '?channel=..', `?channel=${'x'.repeat(256)}`,
    `?pattern=${'x'.repeat(255)}*`, '?channel=a&limit=0', '?channel=a&wait=x']) {
    assertProblem(await ask(server, 'GET', `/subscribe${query}`), 400, query.slice(0, 60));
  }
});

check('S13: twenty channels in one question, and one more than channels.per_connection', async () => {
  const base = fresh();
  const q = (n) => `/subscribe?${Array.from({ length: n }, (_, i) => `channel=${base}.${i}`).join('&')}`;
  const { id } = await publish(server, `${base}.16`, 'here');
  const got = await read(server, `${q(20)}&since=${id - 1}`);
  assert.deepEqual([ids(got.messages), got.gap], [[id], null]);
  assert.equal((await ask(server, 'GET', q(256))).status, 200);
  assertProblem(await ask(server, 'GET', q(257)), [400, 403, 413, 422, 429]);
});

// --- gaps ---------------------------------------------------------------------------------------

// Around every id that was given: a gap exactly below the trim mark, up to it,
// and with it all that is kept.
async function assertGaps(channel, all, kept) {
  const now = await info(server, channel);
  const { trim } = now;
  assert.ok(all.length === kept.length || trim >= all[all.length - kept.length - 1], `the trim mark ${trim} is below what is gone`);
  if (kept.length > 0) assert.ok(trim < kept[0]);
  const at = [...new Set(all.flatMap((id) => [id - 1, id, id + 1]).concat(trim - 1, trim, trim + 1))]
    .filter((id) => id <= all.at(-1));
  for (const since of at) {
    const got = await history(server, channel, `?since=${since}`);
    const want = since < trim ? { from: since + 1, to: trim } : null;
    assert.deepEqual(got.gap, want, `since ${since}, trim mark ${trim}`);
    assert.deepEqual(ids(got.messages), kept.filter((id) => id > since));
  }
  for (const since of ['first', 'now', '-1', '-1000']) {
    assert.equal((await history(server, channel, `?since=${since}`)).gap, null, since);
  }
  return trim;
}

check('trimmed by count: the gap is exactly what is gone, a cursor at the trim mark has none', async () => {
  const channel = fresh('few:');
  const all = await fill(channel, 10);
  assert.deepEqual(ids((await history(server, channel)).messages), all);
  assert.equal((await history(server, channel, `?since=${all[0] - 1}`)).gap, null, 'nothing was dropped yet');
  for (let i = 0; i < 15; i++) all.push((await publish(server, channel, `${i}`)).id);
  const kept = ids((await history(server, channel)).messages);
  assert.deepEqual(kept, all.slice(-10));
  assert.equal(await assertGaps(channel, all, kept), all[14]);
});

check('A16: a burst of ten times history.count leaves what was asked for, and gaps stay exact', async () => {
  const channel = fresh('few:');
  const all = await fill(channel, 100);
  const kept = ids((await history(server, channel)).messages);
  assert.ok(kept.length >= 10, `only ${kept.length} kept`);
  const rest = await poll(async () => {
    const got = ids((await history(server, channel)).messages);
    return got.length === 10 ? got : null;
  }, 'ten to be left', { ms: 5000 });
  assert.deepEqual(rest, all.slice(-10));
  await assertGaps(channel, all, rest);
});

check('trimmed by bytes: the sum of what is kept is within the rule, and gaps are exact', async () => {
  const channel = fresh('kb:');
  const all = [];
  for (let i = 0; i < 12; i++) all.push((await publish(server, channel, `${i}`.padEnd(100 + i * 20, '.'))).id);
  const got = await poll(async () => {
    const { messages } = await history(server, channel);
    return messages.reduce((n, m) => n + m.data.length, 0) <= 1024 ? messages : null;
  }, 'at most 1,024 bytes to be left', { ms: 5000 });
  assert.ok(got.length >= 2, `only ${got.length} kept`);
  await assertGaps(channel, all, ids(got));
  const { id } = await publish(server, channel, 'y'.repeat(5000)); // more than the rule by itself
  all.push(id);
  for (const since of all) {
    const { gap, messages } = await history(server, channel, `?since=${since}`);
    const lost = all.filter((one) => one > since && !messages.some((m) => m.id === one));
    assert.ok(lost.every((one) => gap?.from === since + 1 && gap.to >= one), `since ${since}: ${JSON.stringify(gap)}, lost ${lost}`);
  }
});

check('trimmed by age: a gap, and none for who was there', async () => {
  const channel = fresh('brief:');
  const all = await fill(channel, 3);
  const reader = await V1.channel(server, channel); // holds the channel
  await poll(async () => (await history(server, channel)).messages.length === 0, 'the messages to be gone', { ms: 10_000 });
  await poll(async () => (await history(server, channel, `?since=${all[0]}`)).gap, 'the gap to be told', { ms: 3000 });
  const got = await history(server, channel, `?since=${all[0]}`);
  assert.equal(got.gap.from, all[0] + 1);
  assert.ok(got.gap.to >= all[2]);
  assert.equal((await history(server, channel, `?since=${all[2]}`)).gap, null);
  const { id } = await publish(server, channel, 'new');
  const later = await history(server, channel, `?since=${all[2]}`);
  assert.deepEqual([ids(later.messages), later.gap], [[id], null]);
  reader.drop();
});

check('what a rule of age has ended is in no answer, from that moment on', async () => {
  const channel = fresh('brief:');
  const { id } = await publish(server, channel, 'short');
  for (let last = 0; ;) {
    const from = Date.now();
    const got = await history(server, channel, '?since=first');
    if (got.messages.length === 0) break;
    last = from * 1000 - id;
    assert.ok(last < 3e6, `still there ${last} µs later`);
    await sleep(50);
  }
  const got = await history(server, channel, `?since=${id - 1}`);
  assert.ok(got.gap && got.gap.from <= id && got.gap.to >= id, 'gone, and no gap');
});

check('DELETE is a gap for whoever had not read it, and nothing for who had', async () => {
  const channel = fresh();
  const all = await fill(channel, 10);
  await remove(server, channel);
  for (const at of [0, 5, 8]) {
    const got = await history(server, channel, `?since=${all[at]}`);
    assert.deepEqual(got.messages, []);
    assert.ok(got.gap && got.gap.from === all[at] + 1 && got.gap.to >= all[9], JSON.stringify(got.gap));
  }
  assert.deepEqual((await history(server, channel)).messages, []);
  assert.equal((await history(server, channel)).gap, null);
  const { id } = await publish(server, channel, 'new life');
  const later = await history(server, channel, `?since=${all[3]}`);
  assert.deepEqual(ids(later.messages), [id]);
  assert.ok(later.gap.from === all[3] + 1 && later.gap.to >= all[9] && later.gap.to < id);
  const fine = await history(server, channel, `?since=${all[9]}`);
  assert.deepEqual(ids(fine.messages), [id]);
});

check('S15: subscribe, publish and DELETE in a loop leave a channel whole and nobody behind', { seconds: 60 }, async () => {
  const channel = fresh();
  let over = false;
  const loops = [
    async () => (await publish(server, channel, 'x')),
    async () => remove(server, channel),
    async () => (await WebSocket.channel(server, channel)).drop(),
    async () => (await V1.channel(server, channel, { query: '?since=-3' })).drop(),
    async () => history(server, channel),
  ].map(async (turn) => {
    while (!over) await turn();
  });
  await sleep(4000);
  over = true;
  await Promise.all(loops);
  await remove(server, channel);
  await poll(async () => (await publish(server, channel, 'count')).subscribers === 0, 'no subscribers', { ms: 5000 });
  await remove(server, channel);
  const last = await publish(server, channel, 'last');
  assert.deepEqual(datas((await history(server, channel)).messages), ['last']);
  assert.equal((await history(server, channel)).messages[0].id, last.id);
});

check('DELETE of an absent channel, of a bad name, and without history', async () => {
  assert.ok([204, 404].includes((await ask(server, 'DELETE', '/channels/never-was')).status));
  assertProblem(await ask(server, 'DELETE', '/channels/a*b'), 400);
  assertProblem(await ask(server, 'DELETE', '/channels/'), [400, 404]);
  await publish(server, 'off:d', 'x');
  await remove(server, 'off:d');
});

check('a forgotten channel: its cursors are gaps, those above the mark are none', async () => {
  const channel = fresh('brief:');
  const all = await fill(channel, 3);
  await poll(async () => (await info(server, channel)) === null, 'the channel to be forgotten', { ms: 15_000 });
  const got = await history(server, channel, `?since=${all[0]}`);
  assert.deepEqual(got.messages, []);
  assert.ok(got.gap && got.gap.from === all[0] + 1 && got.gap.to >= all[2], JSON.stringify(got.gap));
  const { gap } = await history(server, channel, `?since=${all[2]}`);
  if (gap) assert.ok(gap.to > all[2]); // another channel may have been forgotten since
  const now = await history(server, channel, '?since=now');
  assert.equal((await history(server, channel, `?since=${now.cursor}`)).gap, null);
  const { id } = await publish(server, channel, 'born again');
  const later = await history(server, channel, `?since=${all[0]}`);
  assert.deepEqual(ids(later.messages), [id]);
  assert.ok(later.gap && later.gap.to >= all[2] && later.gap.to < id, `after the new birth: ${JSON.stringify(later.gap)}`);
  for (const since of ['first', '-5']) {
    const all = await history(server, channel, `?since=${since}`);
    assert.deepEqual([ids(all.messages), all.gap], [[id], null], since);
  }
});

check('-N and first of channels and patterns are never a gap, also after others were forgotten', async () => {
  const gone = fresh('brief:');
  const base = fresh('g');
  const { id } = await publish(server, `${base}:a`, 'x');
  await fill(gone, 1);
  await poll(async () => (await info(server, gone)) === null, 'the channel to be forgotten', { ms: 15_000 });
  for (const query of [`pattern=${base}:*`, `channel=${base}:a&pattern=${base}:*`, `channel=${base}:a`, '']) {
    for (const since of ['first', '-3', '-1']) {
      const target = query ? `/subscribe?${query}&since=${since}` : `/channels/${base}:a?since=${since}`;
      const got = await read(server, target);
      assert.deepEqual([ids(got.messages), got.gap], [[id], null], target);
    }
  }
});

check('a memory store after a restart: older cursors are gaps, and ids go on above', { seconds: 60 }, async () => {
  const args = ['--history.count', '100'];
  let one = await start({ workers: 1, history: true, args });
  const old = await fill('r', 5, one);
  const listen = one.listeners;
  await one.stop();
  one = await start({ workers: 1, history: true, args, listen });
  try {
    for (const since of [old[0], old[4]]) {
      for (const channel of ['r', 'other']) {
        const got = await history(one, channel, `?since=${since}`);
        assert.ok(got.gap && got.gap.from === since + 1 && got.gap.to >= old[4], `${channel} since ${since}: ${JSON.stringify(got.gap)}`);
        assert.equal((await history(one, channel, `?since=${got.gap.to}`)).gap, null);
      }
      const many = await read(one, `/subscribe?pattern=*&since=${since}`);
      assert.ok(many.gap, 'no gap by a pattern');
    }
    for (const since of ['first', '-1', 'now']) assert.equal((await history(one, 'r', `?since=${since}`)).gap, null, since);
    const young = await fill('r', 2, one);
    assert.ok(young[0] > old[4]);
    const got = await history(one, 'r', `?since=${old[2]}`);
    assert.deepEqual(ids(got.messages), young);
    assert.ok(got.gap.to < young[0]);
    await one.stop();
  } finally {
    one.killAll();
  }
});

check('a message that ended by its ttl is no gap, and is in no answer', async () => {
  const channel = fresh();
  const { id: before } = await publish(server, channel, 'stays');
  const { id: short } = await publish(server, channel, 'ends', { query: '?ttl=1' });
  const { id: after } = await publish(server, channel, 'stays too', { query: '?ttl=3600' });
  assert.deepEqual(ids((await history(server, channel)).messages), [before, short, after]);
  await poll(async () => (await history(server, channel)).messages.length === 2, 'the message to end', { ms: 3000 });
  assert.ok(Date.now() * 1000 - short > 900_000, 'it ended too early');
  for (const since of [before - 1, before, short - 1, short, short + 1]) {
    const got = await history(server, channel, `?since=${since}`);
    assert.equal(got.gap, null, `since ${since - before}`);
    assert.deepEqual(ids(got.messages), [before, after].filter((id) => id > since));
  }
  assert.deepEqual(ids((await history(server, channel, '?since=-2')).messages), [before, after], 'the last two');
  assert.deepEqual(ids((await chain(server, `/channels/${channel}`, 'first', 1)).messages), [before, after]);
  await poll(async () => (await info(server, channel)).messages === 2, 'info to count two', { ms: 15_000 });
});

check('more is true only where a message that has not ended follows', async () => {
  const channel = fresh();
  const { id } = await publish(server, channel, 'stays');
  await publish(server, channel, 'ends', { query: '?ttl=1' });
  await sleep(1200);
  const got = await history(server, channel, '?since=first&limit=1');
  assert.deepEqual([ids(got.messages), got.more], [[id], false]);
});

check('a ttl that is none is 400', async () => {
  for (const ttl of ['', '0', '-1', 'x', '1.5', '1e3', '+1', '99999999999999999999', '0x1']) {
    assertProblem(await post(server, 'ttl', 'x', { query: `?ttl=${ttl}` }), 400, `ttl=${ttl}`);
  }
  assert.deepEqual((await history(server, 'ttl')).messages, []);
});

// --- without history, and rules ----------------------------------------------------------------------

check('without history nothing is kept, and every older cursor is a gap', async () => {
  const channel = fresh('off:');
  const all = await fill(channel, 5);
  for (const since of [all[0] - 1, all[0], all[3]]) {
    const got = await history(server, channel, `?since=${since}`);
    assert.deepEqual(got.messages, []);
    assert.ok(got.gap && got.gap.from === since + 1 && got.gap.to >= all[4], `since ${since}: ${JSON.stringify(got.gap)}`);
  }
  for (const since of ['now', 'first', '-3']) assert.deepEqual((await history(server, channel, `?since=${since}`)).messages, []);
  assert.equal((await history(server, channel, '?since=now')).gap, null);
  const { cursor } = await history(server, channel, '?since=now');
  const { id } = await publish(server, channel, 'missed');
  const got = await history(server, channel, `?since=${cursor}`);
  assert.ok(got.gap && got.gap.from <= id && got.gap.to >= id, 'missed without a word');
});

check('without history no channel of a stream passes for whole: several channels, a pattern', async () => {
  const [on, off] = [fresh(), fresh('off:')];
  const { id } = await publish(server, on, 'kept');
  const { id: lost } = await publish(server, off, 'not kept');
  for (const query of [`channel=${on}&channel=${off}`, `pattern=off:*&channel=${on}`, 'pattern=**']) {
    const got = await read(server, `/subscribe?${query}&since=${id - 1}`);
    assert.ok(ids(got.messages).includes(id) || (got.gap?.from <= id && got.gap?.to >= id), `${query}: what is kept is neither here nor in the gap`);
    assert.ok(got.gap && got.gap.from <= lost && got.gap.to >= lost, `${query}: ${JSON.stringify(got.gap)}`);
  }
});

check('--history.count 0 for all, a rule for some: only those keep', async () => {
  const one = await start({ workers: 1, history: true, args: ['--history.count', '0', ...rule('keep:** count=3'), ...rule('keep:b:* count=1')] });
  try {
    const off = await fill('x', 3, one);
    const kept = await fill('keep:a:b', 5, one);
    assert.deepEqual((await history(one, 'x')).messages, []);
    assert.ok((await history(one, 'x', `?since=${off[0]}`)).gap);
    await poll(async () => (await history(one, 'keep:a:b')).messages.length === 3, 'three to be left');
    assert.deepEqual(ids((await history(one, 'keep:a:b')).messages), kept.slice(-3));
    assert.deepEqual((await info(one, 'keep:a:b')).history.count, 3);
    await one.stop();
  } finally {
    one.killAll();
  }
});

// --- info and list -------------------------------------------------------------------------------------

check('info tells subscribers, what is kept, from where to where, and the settings in force', async () => {
  const channel = fresh('few:');
  assert.equal(await info(server, channel), null);
  assertProblem(await ask(server, 'GET', `/channels/${channel}/info`), 404);
  const all = [];
  for (let i = 0; i < 12; i++) all.push((await publish(server, channel, 'four')).id);
  const raw = await WebSocket.channel(server, channel);
  const v1 = await V1.channel(server, channel);
  const got = await info(server, channel);
  assert.equal(got.channel, channel);
  assert.equal(got.subscribers, 2);
  assert.equal(got.messages, 10);
  assert.ok(got.bytes >= 40 && got.bytes < 40 + 10 * 100);
  assert.deepEqual([got.first, got.last, got.trim], [all[2], all[11], all[1]]);
  assert.equal(got.history.count, 10);
  raw.drop();
  v1.drop();
  await poll(async () => (await info(server, channel)).subscribers === 0, 'nobody', { ms: 5000 });
});

check('a channel comes into being with its first subscriber', async () => {
  for (const prefix of ['h', 'off:']) {
    const channel = fresh(prefix);
    const v1 = await V1.channel(server, channel);
    const got = await info(server, channel);
    assert.ok(got, `${channel} has a subscriber and no info`);
    assert.deepEqual([got.subscribers, got.messages], [1, 0]);
    await v1.close();
    await poll(async () => (await info(server, channel)) === null, 'it to be gone', { ms: 5000 });
  }
});

check('info of what has ended by ttl agrees with itself', async () => {
  const channel = fresh();
  await publish(server, channel, 'x', { query: '?ttl=1' });
  await sleep(1100);
  const got = await info(server, channel);
  if (got === null) return;
  assert.equal(got.messages > 0, got.first > 0, JSON.stringify(got));
});

check('the list is sorted by bytes, by prefix, and paged without loss or repeat', async () => {
  const base = fresh('l');
  const list = ['', 'a', 'a:b', 'A', 'a b', 'é', 'z', '~', 'a/b', '10', '9', '\u{10ffff}', '\uffee'].map((s) => `${base}${s}`);
  for (const name of [...list].reverse()) await publish(server, name, 'x');
  const sorted = [...list].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  const page = async (query) => {
    const got = await ask(server, 'GET', `/channels?${query}`);
    assert.equal(got.status, 200, `${query}: ${got.body}`);
    return JSON.parse(got.body);
  };
  const of = (got) => got.channels.map((one) => one.channel);
  assert.deepEqual(of(await page(`prefix=${base}`)), sorted);
  assert.deepEqual(of(await page(`prefix=${base}a`)), sorted.filter((s) => s.startsWith(`${base}a`)));
  assert.deepEqual(of(await page(`prefix=${base}nothing`)), []);
  for (const limit of [1, 2, 5, 13, 100]) {
    const got = [];
    let after = '';
    for (let i = 0; i < 30; i++) {
      const part = await page(`prefix=${base}&limit=${limit}${after ? `&after=${encodeURIComponent(after)}` : ''}`);
      got.push(...of(part));
      assert.ok(part.channels.length <= limit);
      assert.equal(typeof part.more, 'boolean');
      if (!part.more) break;
      assert.equal(part.channels.length, limit);
      after = part.channels.at(-1).channel;
    }
    assert.deepEqual(got, sorted, `limit ${limit}`);
  }
  assert.deepEqual(of(await page(`prefix=${base}&after=${base}a%20`)), sorted.filter((s) => Buffer.compare(Buffer.from(s), Buffer.from(`${base}a `)) > 0));
  const everything = of(await page('limit=1000'));
  assert.deepEqual(everything, [...new Set(everything)].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b))));
  for (const query of ['limit=0', 'limit=-1', 'limit=x', 'limit=', 'limit=99999999999999999999']) {
    assertProblem(await ask(server, 'GET', `/channels?${query}`), 400, query);
  }
});

check('the list has a channel once that has both messages and subscribers on several workers', async () => {
  const base = fresh('both');
  await publish(server, `${base}:kept`, 'x');
  const readers = [];
  for (let i = 0; i < 6; i++) {
    readers.push(await V1.channel(server, `${base}:kept`));
  }
  const got = JSON.parse((await ask(server, 'GET', `/channels?prefix=${base}`)).body);
  assert.deepEqual(got.channels.map((one) => [one.channel, one.subscribers]), [[`${base}:kept`, 6]]);
  for (const one of readers) one.drop();
});

// --- names -------------------------------------------------------------------------------------------------

check('S01: a name without bytes is 400 or 404 everywhere', async () => {
  for (const target of ['/channels/', '/channels//info', '/channels/?since=first', '/subscribe?channel=', '/subscribe?channel', '/subscribe?pattern=']) {
    assertProblem(await ask(server, 'GET', target), [400, 404], target);
  }
  assertProblem(await ask(server, 'POST', '/channels/', { body: 'x' }), [400, 404]);
  const v1 = await V1.open(server, '/subscribe');
  for (const one of [{ op: 'subscribe', channel: '' }, { op: 'subscribe', pattern: '' }, { op: 'publish', channel: '', data: 'x' }]) {
    assert.equal((await v1.ask(one)).op, 'error');
  }
  v1.drop();
});

check('S03: one decoding; equal after it is one channel, whatever the spelling', async () => {
  const base = fresh('n');
  const spellings = [
    [`${base}/b`, `${base}%2Fb`, `${base}%2fb`], [`${base}#b`, `${base}%23b`, `${base}%23b`], [`${base} b`, `${base}%20b`, `${base}%20b`],
    [`${base}%b`, `${base}%25b`, `${base}%25b`], [`${base}%2Fb`, `${base}%252Fb`, `${base}%252Fb`], [`${base}?b`, `${base}%3Fb`, `${base}%3fb`],
    [`${base}é`, `${base}%C3%A9`, `${base}%c3%a9`], [`${base}e\u0301`, `${base}e%CC%81`, `${base}%65%cc%81`], [`${base}A`, `${base}A`, `${base}%41`],
    [`${base}+b`, `${base}+b`, `${base}%2Bb`], [`${base}.`, `${base}.`, `${base}%2E`], [`${base}..b`, `${base}..b`, `${base}%2e%2eb`],
    [`${base};b=c`, `${base};b=c`, `${base}%3Bb%3Dc`], [`${base}&b`, `${base}&b`, `${base}%26b`], [`${base}"\\`, `${base}%22%5C`, `${base}%22%5c`],
  ];
  for (const [name, one, two] of spellings) {
    const a = await ask(server, 'POST', `/channels/${one}`, { body: 'one' });
    const b = await ask(server, 'POST', `/channels/${two}`, { body: 'two' });
    assert.deepEqual([a.status, b.status], [201, 201], name);
    assert.equal(JSON.parse(a.body).channel, name);
    assert.equal(JSON.parse(b.body).channel, name);
    const got = await history(server, name);
    assert.deepEqual(got.messages.map((m) => [m.channel, m.data]), [[name, 'one'], [name, 'two']]);
    const many = await read(server, `/subscribe?channel=${encodeURIComponent(name)}&since=first`);
    assert.deepEqual(many.messages, got.messages, `/subscribe of ${name}`);
    assert.equal((await info(server, name)).messages, 2);
  }
  const list = JSON.parse((await ask(server, 'GET', `/channels?prefix=${base}`)).body).channels.map((one) => one.channel);
  assert.deepEqual([...list].sort(), spellings.map(([name]) => name).sort());
  await remove(server, `${base}/b`);
  assert.deepEqual((await history(server, `${base}/b`)).messages, []);
});

check('S03: names that are refused, as a path, in the query and by crier.v1', async () => {
  const bad = ['%00', 'a%00', 'a%0d%0ab', '%0a', 'a%7fb', 'a%1fb', '%ff', 'a%c0%afb', '%ed%a0%80', '.', '..', '%2e', '%2E%2e', 'a*', '*', '%2a', '%2A%2A', '%', '%2', '%zz',
    'x'.repeat(256), '%C2%80'];
  for (const name of bad) {
    for (const [method, target] of [['GET', `/channels/${name}?since=first`], ['GET', `/channels/${name}/info`], ['DELETE', `/channels/${name}`],
      ['POST', `/channels/${name}`], ['GET', `/subscribe?channel=${name}&since=first`]]) {
      const got = await ask(server, method, target, method === 'POST' ? { body: 'x' } : {});
      assert.ok([400, 404].includes(got.status), `${method} ${target.slice(0, 60)} is ${got.status}: ${got.body}`);
    }
  }
  const long = 'é'.repeat(127) + 'x'; // 255 bytes
  await publish(server, long, 'fits');
  assert.deepEqual(datas((await history(server, long)).messages), ['fits']);
  assert.deepEqual(datas((await history(server, 'x'.repeat(255))).messages), []);
  await assertUnharmed(server);
});

check('methods that a route has not are 405 with Allow', async () => {
  for (const [method, target] of [['PUT', '/channels/a'], ['PATCH', '/channels/a'], ['POST', '/channels/a/info'], ['DELETE', '/channels'], ['POST', '/subscribe'],
    ['DELETE', '/subscribe?channel=a']]) {
    const got = await ask(server, method, target, { body: method === 'DELETE' ? undefined : '' });
    assertProblem(got, 405, `${method} ${target}`);
    assert.match(got.header('allow') ?? '', /^[A-Z]+(, ?[A-Z]+)*$/);
  }
});

check('P15: queries with nothing in them are answered', async () => {
  const channel = fresh();
  await fill(channel, 1);
  for (const query of ['?', '?&', '?&&&', '?x', '?x=', '?=', '?=x', `?${'?'.repeat(1000)}`, '?x=%', '?x=%2', '?x=%zz', '?c[]=1&c[a]=2']) {
    const got = await ask(server, 'GET', `/channels/${segment(channel)}${query}`);
    assert.ok([200, 400].includes(got.status), `${query.slice(0, 20)} is ${got.status}`);
  }
  await assertUnharmed(server);
});

checkStop(server, { fdsBefore });
