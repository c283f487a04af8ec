// Idempotency keys, batches, DELETE: what is once is once, what is together is
// together, whoever races whom.
import assert from 'node:assert/strict';
import { Tcp, assertUnharmed, check, checkStop, poll, sleep, start } from './lib/crier.mjs';
import { answer, ask, assertProblem, post, publish, request, segment } from './lib/http.mjs';
import { datas, history, ids, info, remove } from './lib/history.mjs';
import { WebSocket } from './lib/websocket.mjs';
import { V1 } from './lib/v1.mjs';
import { Publisher } from './lib/load.mjs';

const server = await start({
  workers: 2, history: true,
  args: ['--history.rule', 'off:* count=0', '--history.rule', 'few:* count=3', '--batch.max', '100', '--history.rule', 'wide:* count=100000 bytes=64MiB'],
});
await assertUnharmed(server);
const fdsBefore = server.fds();
let names = 0;
const fresh = (prefix = 'q') => `${prefix}${prefix.endsWith(':') ? '' : '-'}${++names}`;
const key = (k) => ({ headers: [['Idempotency-Key', k]] });

// --- idempotency keys -----------------------------------------------------------------

check('the same key on the same channel is the same id, and is sent once', async () => {
  for (const prefix of ['q', 'off:']) {
    const channel = fresh(prefix);
    const ws = await WebSocket.channel(server, channel);
    const first = await publish(server, channel, 'once', key('k1'));
    for (let i = 0; i < 5; i++) {
      const again = await publish(server, channel, 'once', key('k1'));
      assert.equal(again.id, first.id);
      assert.equal(again.channel, channel);
      assert.equal(typeof again.subscribers, 'number');
    }
    const other = await publish(server, channel, 'once', key('k2'));
    assert.ok(other.id > first.id);
    assert.equal(await ws.text(), 'once');
    assert.equal(await ws.text(), 'once');
    await ws.expectSilence();
    if (prefix === 'q') assert.deepEqual(ids((await history(server, channel)).messages), [first.id, other.id]);
    await ws.close();
  }
});

check('another body under the same key is 422 and reaches nobody; another channel is another key', async () => {
  const [channel, other] = [fresh(), fresh()];
  const ws = await WebSocket.channel(server, channel);
  const { id } = await publish(server, channel, 'one', key('k'));
  for (const body of ['two', '', 'one ', 'One', 'one\n']) assertProblem(await post(server, channel, body, key('k')), 422, body);
  assert.equal((await publish(server, channel, 'one', key('k'))).id, id);
  const elsewhere = await publish(server, other, 'two', key('k'));
  assert.notEqual(elsewhere.id, id);
  assert.equal(await ws.text(), 'one');
  await ws.expectSilence();
  await ws.close();
});

check('keys are 1 to 128 bytes; others are 400 and publish nothing', async () => {
  const channel = fresh();
  const bad = ['', 'x'.repeat(129), 'x'.repeat(5000)];
  for (const k of bad) assertProblem(await post(server, channel, 'x', key(k)), [400, 431], `key of ${k.length}`);
  const twice = await post(server, channel, 'x', { headers: [['Idempotency-Key', 'a'], ['Idempotency-Key', 'b']] });
  assert.ok([400, 201].includes(twice.status));
  const bytes = await ask(server, 'POST', `/channels/${channel}`, { headers: [['Idempotency-Key', 'a\xffb']], body: 'x' });
  assert.ok([400, 201].includes(bytes.status));
  const count = (await history(server, channel)).messages.length;
  assert.ok(count <= 2);
  for (const k of ['a', 'x'.repeat(128), '!~', '"quoted, and spaced"', '0']) {
    const { id } = await publish(server, channel, 'y', key(k));
    assert.equal((await publish(server, channel, 'y', key(k))).id, id, k.slice(0, 20));
  }
  const v1 = await V1.open(server, '/subscribe');
  for (const k of ['', 'x'.repeat(129), 1, null, {}, 'a\nb', 'a\u0000b']) {
    const got = await v1.ask({ op: 'publish', channel, data: 'x', key: k });
    assert.equal(got.op, 'error', `key ${JSON.stringify(k).slice(0, 30)}: ${JSON.stringify(got)}`);
  }
  v1.drop();
});

check('a key holds across POST, crier.v1 and batch, and across workers', async () => {
  const channel = fresh();
  const ws = await WebSocket.channel(server, channel);
  const v1s = await Promise.all(Array.from({ length: 8 }, () => V1.open(server, '/subscribe')));
  const { id } = await publish(server, channel, 'same', key('k'));
  for (const v1 of v1s) {
    assert.equal(await v1.publish(channel, { data: 'same', key: 'k' }), id);
    const other = await v1.ask({ op: 'publish', channel, data: 'other', key: 'k' });
    assert.equal(other.op, 'error', JSON.stringify(other));
  }
  for (let i = 0; i < 8; i++) assert.equal((await publish(server, channel, 'same', key('k'))).id, id);
  const [one] = await batch([{ channel, data: 'same', key: 'k' }]);
  assert.equal(one.id, id);
  assert.equal(await ws.text(), 'same');
  await ws.expectSilence();
  await ws.close();
  for (const v1 of v1s) v1.drop();
});

check('8 clients race with the same key: one id, one message, 300 times', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const ws = await WebSocket.channel(server, channel);
  const clients = await Promise.all(Array.from({ length: 8 }, () => Tcp.connect(server.target)));
  const sent = [];
  for (let i = 0; i < 300; i++) {
    const answers = await Promise.all(clients.map(async (tcp) => {
      await tcp.send(request(server, 'POST', `/channels/${segment(channel)}`, { body: `${i}`, ...key(`race ${i}`) }));
      return answer(tcp, 'POST');
    }));
    const got = new Set(answers.map((a) => {
      assert.equal(a.status, 201, `${a.body}`);
      return JSON.parse(a.body).id;
    }));
    assert.equal(got.size, 1, `round ${i}: ${[...got]}`);
    sent.push(...got);
  }
  await ws.wait(() => ws.messages.length >= 300, 'all of them');
  await sleep(50);
  assert.deepEqual(ws.messages.map((m) => m.data.toString()), sent.map((_, i) => `${i}`));
  assert.deepEqual(ids((await history(server, channel, '?since=first')).messages), sent);
  for (const tcp of clients) tcp.destroy();
  ws.drop();
});

check('a race with the same key and two bodies: one wins, the others are 422', async () => {
  for (let i = 0; i < 40; i++) {
    const channel = fresh();
    const answers = await Promise.all(Array.from({ length: 8 }, (_, k) => post(server, channel, `body ${k % 2}`, key('k'))));
    const won = answers.filter((a) => a.status === 201);
    assert.equal(won.length, 4, answers.map((a) => a.status).join());
    assert.equal(answers.filter((a) => a.status === 422).length, 4);
    assert.equal(new Set(won.map((a) => JSON.parse(a.body).id)).size, 1);
    assert.equal((await history(server, channel)).messages.length, 1);
  }
});

check('idempotency.window: afterwards the key is new; a trimmed or deleted message keeps its key', { seconds: 60 }, async () => {
  const one = await start({ workers: 2, history: true, args: ['--idempotency.window', '2s', '--history.count', '2'] });
  try {
    const { id } = await publish(one, 'w', 'x', key('k'));
    for (let i = 0; i < 6; i++) await publish(one, 'w', `${i}`);
    assert.equal((await publish(one, 'w', 'x', key('k'))).id, id, 'trimmed');
    await remove(one, 'w');
    assert.equal((await publish(one, 'w', 'x', key('k'))).id, id, 'deleted');
    assertProblem(await post(one, 'w', 'y', key('k')), 422);
    await sleep(2100);
    const next = await poll(async () => {
      const got = await post(one, 'w', 'y', key('k'));
      return got.status === 201 ? JSON.parse(got.body) : null;
    }, 'the key to be forgotten', { ms: 4000 });
    assert.ok(next.id > id);
    await one.stop();
  } finally {
    one.killAll();
  }
});

check('idempotency.window 0: keys are not looked at', async () => {
  const one = await start({ workers: 1, history: true, args: ['--idempotency.window', '0s'] });
  try {
    const a = await publish(one, 'w', 'x', key('k'));
    const b = await publish(one, 'w', 'x', key('k'));
    assert.ok(b.id > a.id);
    assert.equal((await post(one, 'w', 'y', key('k'))).status, 201);
    await one.stop();
  } finally {
    one.killAll();
  }
});

check('an answer that was cut off can be asked for again: nothing is double', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  for (let i = 0; i < 200; i++) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(request(server, 'POST', `/channels/${segment(channel)}`, { body: `${i}`, ...key(`cut ${i}`) }));
    if (i % 3) tcp.reset();
    else tcp.destroy();
    await publish(server, channel, `${i}`, key(`cut ${i}`));
  }
  assert.deepEqual(datas((await history(server, channel)).messages), Array.from({ length: 200 }, (_, i) => `${i}`));
});

// --- batches ----------------------------------------------------------------------------

const NDJSON = [['Content-Type', 'application/x-ndjson']];
const JSONS = [['Content-Type', 'application/json']];
const postBatch = (body, headers = NDJSON, where = server) => ask(where, 'POST', '/channels', { headers, body });

async function batch(items, { asArray = false, where = server } = {}) {
  const body = asArray ? JSON.stringify(items) : items.map((one) => JSON.stringify(one)).join('\n');
  const got = await postBatch(body, asArray ? JSONS : NDJSON, where);
  assert.equal(got.status, 200, `${got.head}\n${got.body}`);
  assert.match(got.header('content-type'), /^application\/json/);
  const { results } = JSON.parse(got.body);
  return results;
}

check('a batch, as NDJSON and as an array: one result per item, in order, with growing ids', async () => {
  for (const asArray of [false, true]) {
    const [a, b] = [fresh(), fresh()];
    const results = await batch([
      { channel: a, data: 'text' }, { channel: b, data: { n: [1, null] } }, { channel: a, data64: 'AP8=' }, { channel: a, data: '<p>', type: 'text/html', event: 'e' },
      { channel: b, data: 'j', type: 'application/json' }, { channel: a, data: '' }, { channel: b, data: null }, { channel: a, data64: '' },
    ], { asArray });
    assert.equal(results.length, 8);
    assert.deepEqual(results.map((r) => r.channel), [a, b, a, a, b, a, b, a]);
    const all = results.map((r) => r.id);
    assert.ok(all.every((id, i) => Number.isSafeInteger(id) && (i === 0 || id > all[i - 1])));
    assert.deepEqual((await history(server, a)).messages, [
      { channel: a, id: all[0], type: 'text/plain', data: 'text' }, { channel: a, id: all[2], type: 'application/octet-stream', data64: 'AP8=' },
      { channel: a, id: all[3], type: 'text/html', data: '<p>', event: 'e' }, { channel: a, id: all[5], type: 'text/plain', data: '' },
      { channel: a, id: all[7], type: 'application/octet-stream', data64: '' }]);
    assert.deepEqual((await history(server, b)).messages.map((m) => [m.id, m.type, m.data]), [[all[1], 'application/json', { n: [1, null] }],
      [all[4], 'application/json', 'j'], [all[6], 'application/json', null]]);
  }
});

check('NDJSON: line ends of both kinds, a last one, empty lines; one item; an array of none', async () => {
  const channel = fresh();
  const item = (n) => JSON.stringify({ channel, data: `${n}` });
  for (const body of [item(1), `${item(1)}\n`, `${item(1)}\r\n${item(2)}\r\n`, `${item(1)}\n${item(2)}`]) {
    const got = await postBatch(body);
    assert.equal(got.status, 200, `${JSON.stringify(body)}: ${got.body}`);
  }
  assert.deepEqual(datas((await history(server, channel)).messages), ['1', '1', '1', '2', '1', '2']);
  for (const body of [`${item(1)}\n\n${item(2)}\n`, '\n', '', ' ']) assert.ok([200, 400].includes((await postBatch(body)).status), JSON.stringify(body));
  assert.ok([200, 400].includes((await postBatch('[]', JSONS)).status));
  await assertUnharmed(server);
});

check('one bad item, wherever it stands: nothing at all is published', { seconds: 60 }, async () => {
  const channel = fresh();
  const ws = await WebSocket.channel(server, channel);
  const bad = ['x', '1', '[]', 'null', '{}', '{"data":"x"}', `{"channel":"${channel}"}`, '{"channel":"a*b","data":1}', '{"channel":"","data":1}', '{"channel":".","data":1}',
    `{"channel":"${channel}","data":"x","data64":"eA=="}`, `{"channel":"${channel}","data64":"*"}`, `{"channel":"${channel}","data64":1}`,
    `{"channel":"${channel}","data":"x","event":"gap"}`, `{"channel":"${channel}","data":"x","event":"a\\nb"}`, `{"channel":"${channel}","data":"x","ttl":0}`,
    `{"channel":"${channel}","data":"x","ttl":-1}`, `{"channel":"${channel}","data":"x","ttl":"1"}`, `{"channel":"${channel}","data":"x","key":""}`,
    `{"channel":"${channel}","data":"x","key":"${'k'.repeat(129)}"}`, `{"channel":"${channel}","channels":["${channel}"],"data":"x"}`,
    `{"channels":[],"data":"x"}`, `{"channels":"${channel}","data":"x"}`, `{"channels":["${channel}",1],"data":"x"}`, `{"channels":["${channel}",""],"data":"x"}`,
    `{"channel":1,"data":"x"}`, `{"channel":"${channel}","data":"x","type":1}`, `{"channel":"${channel}","data":"x","type":"no type"}`,
    `{"channel":"${channel}","data":"x"} trailing`, `{"channel":"${channel}","data":"x"`,
    `{"channel":"${channel}\\u0000","data":"x"}`, `{"channel":"${channel}","data":"\\ud800"}`];
  const good = JSON.stringify({ channel, data: 'good' });
  for (const one of bad) {
    for (const body of [[one], [good, one], [one, good], [good, one, good]]) {
      const got = await postBatch(body.join('\n'));
      assertProblem(got, [400, 413, 422], `${one} among ${body.length}`);
    }
    if (!/trailing|"x"$/.test(one)) assertProblem(await postBatch(`[${good},${one},${good}]`, JSONS), [400, 422], `${one} in an array`);
  }
  assertProblem(await postBatch(`[${good}`, JSONS), 400);
  assertProblem(await postBatch(`[${good},]`, JSONS), 400);
  assertProblem(await postBatch(`${good}${good}`), 400);
  assertProblem(await postBatch(Buffer.concat([Buffer.from(good.slice(0, -2)), Buffer.from([0xff]), Buffer.from('"}')])), 400);
  await ws.expectSilence();
  assert.deepEqual((await history(server, channel)).messages, []);
  await ws.close();
  await assertUnharmed(server);
});

check('limits of a batch: items 413 or 400, bytes 413, a quarter of the ring 413; nothing of it is published', { seconds: 60 }, async () => {
  const channel = fresh();
  const item = JSON.stringify({ channel, data: 'x' });
  assert.equal((await batch(Array(100).fill({ channel: fresh(), data: 'x' }))).length, 100);
  assertProblem(await postBatch(Array(101).fill(item).join('\n')), [400, 413]);
  assertProblem(await postBatch(JSON.stringify(Array(101).fill({ channel, data: 'x' })), JSONS), [400, 413]);
  assertProblem(await postBatch(JSON.stringify({ channels: Array.from({ length: 101 }, (_, i) => (i ? `${channel}.${i}` : channel)), data: 'x' })), [400, 413]);
  const large = JSON.stringify({ channel, data: 'x'.repeat(600 * 1024) });
  assertProblem(await postBatch(`${large}\n${large}`), 413);
  // A small body that is large once it is copied to many channels.
  const many = { channels: Array.from({ length: 90 }, (_, i) => (i ? `${channel}.${i}` : channel)), data: 'x'.repeat(900 * 1024) };
  assertProblem(await postBatch(JSON.stringify(many)), 413);
  assert.deepEqual((await history(server, channel)).messages, []);
  await assertUnharmed(server);
});

check('a batch is contiguous and in order for every subscriber, against other publishers', { seconds: 60 }, async () => {
  const channel = fresh('wide:');
  const readers = await Promise.all(Array.from({ length: 6 }, () => V1.channel(server, channel)));
  let over = false;
  const noise = (async () => {
    const publisher = await Publisher.connect(server);
    while (!over) await publisher.burst(channel, Array(4).fill('noise'));
    publisher.close();
  })();
  const sent = [];
  await Promise.all([0, 1, 2].map(async (k) => {
    for (let i = 0; i < 60; i++) {
      const results = await batch(Array.from({ length: 30 }, (_, j) => ({ channel, data: `b${k}.${i}.${j}` })), { asArray: i % 2 === 0 });
      sent.push(results.map((r) => r.id));
    }
  }));
  over = true;
  await noise;
  const end = (await publish(server, channel, 'end')).id;
  for (const v1 of readers) {
    await v1.ws.wait(() => v1.messages.at(-1)?.id === end, 'the end', 15_000);
    const at = new Map(v1.messages.map((m, i) => [m.id, i]));
    for (const group of sent) {
      group.forEach((id, j) => assert.equal(at.get(id), at.get(group[0]) + j, 'another message inside a batch, or another order'));
      assert.match(v1.messages[at.get(group[0])].data, /\.0$/);
    }
    v1.drop();
  }
});

check('"channels" publishes to each of them, in order', async () => {
  const list = [fresh(), fresh(), fresh()];
  const readers = await Promise.all(list.map((c) => WebSocket.channel(server, c)));
  const results = await batch([{ channel: list[0], data: 'before' }, { channels: list, data: 'to all', event: 'e' }, { channel: list[2], data: 'after' }]);
  const flat = results.flatMap((r) => r.results ?? r.ids ?? r);
  assert.ok(flat.length >= 3, JSON.stringify(results));
  assert.equal(await readers[0].text(), 'before');
  for (const ws of readers) assert.equal(await ws.text(), 'to all');
  assert.equal(await readers[2].text(), 'after');
  for (const ws of readers) {
    await ws.expectSilence();
    ws.drop();
  }
  const kept = await Promise.all(list.map(async (c) => (await history(server, c)).messages.find((m) => m.data === 'to all')));
  assert.ok(kept.every((m) => m.event === 'e'));
  assert.ok(kept[0].id < kept[1].id && kept[1].id < kept[2].id);
});

check('keys and ttl in a batch: a duplicate has the first id and is not sent, a conflict takes nothing or says so', async () => {
  const channel = fresh();
  const { id } = await publish(server, channel, 'one', key('k1'));
  const ws = await WebSocket.channel(server, channel);
  const results = await batch([{ channel, data: 'one', key: 'k1' }, { channel, data: 'two', key: 'k2' }, { channel, data: 'two', key: 'k2' }, { channel, data: 'short', ttl: 1 }]);
  assert.equal(results[0].id, id);
  assert.equal(results[1].id, results[2].id);
  assert.equal(await ws.text(), 'two');
  assert.equal(await ws.text(), 'short');
  await ws.expectSilence();
  const again = await batch([{ channel, data: 'one', key: 'k1' }, { channel, data: 'two', key: 'k2' }]);
  assert.deepEqual(again.map((r) => r.id), [id, results[1].id]);
  // All or nothing: an item that conflicts.
  const before = ids((await history(server, channel)).messages);
  const got = await postBatch([{ channel, data: 'new' }, { channel, data: 'other', key: 'k1' }].map((one) => JSON.stringify(one)).join('\n'));
  assertProblem(got, 422);
  await ws.expectSilence();
  assert.deepEqual(ids((await history(server, channel)).messages), before);
  await sleep(1200);
  assert.deepEqual(datas((await history(server, channel)).messages), ['one', 'two']);
  await ws.close();
});

check('a batch larger than the trim leaves the last of it, and readers get all of it', async () => {
  const channel = fresh('few:');
  const v1 = await V1.channel(server, channel);
  const results = await batch(Array.from({ length: 50 }, (_, i) => ({ channel, data: `${i}` })));
  await v1.ws.wait(() => v1.messages.length === 50, 'all fifty');
  assert.deepEqual(v1.messages.map((m) => m.id), results.map((r) => r.id));
  assert.deepEqual(v1.gaps, []);
  await poll(async () => (await history(server, channel)).messages.length === 3, 'three to be left');
  assert.deepEqual(ids((await history(server, channel)).messages), results.slice(-3).map((r) => r.id));
  v1.drop();
});

check('other content types, methods and queries on /channels', async () => {
  const item = JSON.stringify({ channel: fresh(), data: 'x' });
  for (const type of ['application/x-ndjson', 'application/ndjson', 'application/json', 'application/json; charset=utf-8']) {
    const got = await postBatch(type.includes('ndjson') ? item : `[${item}]`, [['Content-Type', type]]);
    assert.ok([200, 415].includes(got.status), `${type} is ${got.status}`);
  }
  assert.ok([200, 400, 415].includes((await postBatch(item, [['Content-Type', 'image/png']])).status));
  const got = await ask(server, 'PUT', '/channels', { body: item });
  assertProblem(got, 405);
  assert.match(got.header('allow'), /POST/);
  await assertUnharmed(server);
});

check('P16, P19: a batch in chunks of a byte; one that is cut off publishes nothing', { seconds: 60 }, async () => {
  const channel = fresh();
  const body = `${JSON.stringify({ channel, data: 'one' })}\n${JSON.stringify({ channel, data: 'two' })}\n`;
  const tcp = await Tcp.connect(server.target);
  const head = `POST /channels HTTP/1.1\r\nHost: ${server.host}\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n`;
  await tcp.send(head);
  await tcp.sendPieces([...body].map((c) => `1\r\n${c}\r\n`).join('') + '0\r\n\r\n', { size: 6 });
  assert.equal((await answer(tcp, 'POST')).status, 200);
  tcp.destroy();
  for (let i = 0; i < 100; i++) {
    const cut = await Tcp.connect(server.target);
    const whole = request(server, 'POST', '/channels', { headers: NDJSON, body });
    await cut.send(whole.subarray(0, whole.length - 1 - i % 40));
    if (i % 2) cut.reset();
    else cut.destroy();
  }
  await sleep(100);
  assert.deepEqual(datas((await history(server, channel)).messages), ['one', 'two']);
  await assertUnharmed(server);
});

// --- DELETE ------------------------------------------------------------------------------------

check('DELETE is 204 without a body, again and again; its place in the order is exact', async () => {
  const channel = fresh();
  const v1 = await V1.channel(server, channel);
  const one = await publish(server, channel, 'one');
  const got = await ask(server, 'DELETE', `/channels/${channel}`);
  assert.equal(got.status, 204);
  assert.equal(got.body.length, 0);
  const two = await publish(server, channel, 'two');
  assert.deepEqual(ids((await history(server, channel)).messages), [two.id]);
  await v1.ws.wait(() => v1.messages.length === 2, 'both');
  assert.deepEqual(v1.gaps, [], 'who had it all was told of a gap');
  const since = await history(server, channel, `?since=${one.id - 1}`);
  assert.ok(since.gap && since.gap.from === one.id && since.gap.to >= one.id && since.gap.to < two.id);
  for (let i = 0; i < 3; i++) await remove(server, channel);
  assert.deepEqual((await history(server, channel)).messages, []);
  assert.equal((await info(server, channel)).messages, 0);
  v1.drop();
});

check('DELETE pipelined between POSTs keeps its place', async () => {
  const channel = fresh();
  const tcp = await Tcp.connect(server.target);
  const put = (word) => request(server, 'POST', `/channels/${channel}`, { body: word });
  for (let i = 0; i < 30; i++) {
    await tcp.send(Buffer.concat([put('a'), put('b'), request(server, 'DELETE', `/channels/${channel}`), put('c')]));
    for (const status of [201, 201, 204, 201]) assert.equal((await answer(tcp, 'POST')).status, status);
    assert.deepEqual(datas((await history(server, channel)).messages), ['c']);
  }
  tcp.destroy();
});

checkStop(server, { fdsBefore });
