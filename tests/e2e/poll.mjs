// Long polls: answered at once where there is something, as soon as something
// comes, empty at the end of the wait; nothing is missed between two of them,
// and nothing stays of those who leave.
import assert from 'node:assert/strict';
import { Tcp, assertUnharmed, check, checkStop, poll, sleep, start } from './lib/crier.mjs';
import { answer, ask, assertProblem, publish, request, segment } from './lib/http.mjs';
import { assertHistory, history, ids, info, read, remove } from './lib/history.mjs';
import { Publisher } from './lib/load.mjs';
import { WebSocket } from './lib/websocket.mjs';
import { V1 } from './lib/v1.mjs';
import { spread } from './lib/watch.mjs';

const server = await start({
  workers: 2, history: true,
  args: ['--poll.max_wait', '3s', '--history.rule', 'off:* count=0', '--history.rule', 'wide:* count=100000 bytes=64MiB', '--http.idle', '20s'],
});
await assertUnharmed(server);
const fdsBefore = server.fds();
let names = 0;
const fresh = (prefix = 'p') => `${prefix}${prefix.endsWith(':') ? '' : '-'}${++names}`;

// A poll that is under way: `got` is its answer, `ms` how long it took.
async function begin(target, where = server) {
  const tcp = await Tcp.connect(where.target);
  const from = performance.now();
  await tcp.send(request(where, 'GET', target));
  const self = { tcp, status: 0, got: null, ms: 0 };
  self.done = answer(tcp, 'GET', 20_000).then((got) => {
    self.ms = performance.now() - from;
    self.status = got.status;
    if (got.status === 200) self.got = assertHistory(JSON.parse(got.body), target);
    self.answer = got;
    tcp.destroy();
    return self;
  });
  self.done.catch(() => {});
  return self;
}

const path = (channel, query) => `/channels/${segment(channel)}${query}`;

check('what is there is answered at once, whatever the wait', async () => {
  const channel = fresh();
  const { id } = await publish(server, channel, 'there');
  for (const query of ['?since=first&wait=3', `?since=${id - 1}&wait=3`, '?since=-1&wait=3']) {
    const one = await (await begin(path(channel, query))).done;
    assert.deepEqual([ids(one.got.messages), one.got.gap, one.got.more], [[id], null, false]);
    assert.ok(one.ms < 1000, `${query} took ${one.ms} ms`);
  }
});

check('a gap is something: it is answered at once', async () => {
  const channel = fresh();
  const { id } = await publish(server, channel, 'soon gone');
  await remove(server, channel);
  const one = await (await begin(path(channel, `?since=${id - 1}&wait=3`))).done;
  assert.ok(one.got.gap && one.got.gap.from === id && one.got.gap.to >= id, JSON.stringify(one.got));
  assert.ok(one.ms < 1000, `it took ${one.ms} ms`);
});

check('as soon as something comes it is answered with it, also where the channel did not exist', async () => {
  for (const query of ['?wait=3', '?since=now&wait=3', '?since=first&wait=3', '?since=-5&wait=3']) {
    const channel = fresh();
    const one = await begin(path(channel, query));
    await sleep(150);
    assert.equal(one.got, null, `${query} was answered with nothing`);
    const from = performance.now();
    const { id } = await publish(server, channel, 'now');
    await one.done;
    assert.ok(performance.now() - from < 500, `${query}: ${performance.now() - from} ms`);
    assert.deepEqual([ids(one.got.messages), one.got.gap, one.got.more], [[id], null, false], query);
    assert.ok(one.got.cursor >= id);
  }
});

check('an empty list at the end of the wait, and a cursor that goes on from there', async () => {
  const channel = fresh();
  await publish(server, channel, 'before');
  for (const [query, least, most] of [['?wait=1', 900, 2500], ['?wait=0', 0, 500], ['?wait=2&since=now', 1900, 3500]]) {
    const one = await (await begin(path(channel, query))).done;
    assert.deepEqual([one.got.messages, one.got.gap, one.got.more], [[], null, false], query);
    assert.ok(one.ms >= least && one.ms < most, `${query} took ${one.ms} ms`);
    const { id } = await publish(server, channel, 'next');
    assert.deepEqual(ids((await history(server, channel, `?since=${one.got.cursor}`)).messages), [id]);
  }
});

check('a wait above poll.max_wait ends there', async () => {
  const one = await (await begin(path(fresh(), '?wait=60'))).done;
  assert.deepEqual(one.got.messages, []);
  assert.ok(one.ms > 2800 && one.ms < 5000, `it took ${one.ms} ms`);
});

check('a wait that is none is 400', async () => {
  for (const wait of ['', 'x', '-1', '1.5', '+1', '1s', '99999999999999999999', '0x1']) {
    assertProblem(await ask(server, 'GET', path('p', `?wait=${wait}`)), 400, `wait=${wait}`);
  }
});

check('S13: twenty channels, a message on the seventeenth: at once, with a cursor that resumes all twenty', async () => {
  const base = fresh();
  const q = `/subscribe?${Array.from({ length: 20 }, (_, i) => `channel=${base}.${i + 1}`).join('&')}`;
  const one = await begin(`${q}&wait=3`);
  await sleep(200);
  const from = performance.now();
  const { id } = await publish(server, `${base}.17`, 'here');
  await one.done;
  assert.ok(performance.now() - from < 500, `${performance.now() - from} ms`);
  assert.deepEqual(one.got.messages.map((m) => [m.channel, m.id]), [[`${base}.17`, id]]);
  const sent = [];
  for (let i = 20; i >= 1; i--) sent.push((await publish(server, `${base}.${i}`, `${i}`)).id);
  const next = await (await begin(`${q}&wait=3&since=${one.got.cursor}`)).done;
  assert.deepEqual(ids(next.got.messages), sent);
  assert.equal(next.got.gap, null);
});

check('a pattern, and a channel beside it: each id once', async () => {
  const base = fresh();
  const one = await begin(`/subscribe?pattern=${base}:*&channel=${base}:a&channel=${base}&wait=3`);
  await sleep(100);
  await publish(server, `${base}:a:b`, 'not this');
  await publish(server, `${base}/a`, 'nor this');
  await sleep(150);
  assert.equal(one.got, null, 'answered by what the pattern does not match');
  const { id } = await publish(server, `${base}:a`, 'this');
  await one.done;
  assert.deepEqual(ids(one.got.messages), [id]);
});

check('a pattern that matches little among much waits for what it matches', { seconds: 60 }, async () => {
  const base = fresh('wide:');
  const publisher = await Publisher.connect(server);
  for (let i = 0; i < 40; i++) await publisher.burst(base, Array(500).fill('x'));
  publisher.close();
  const one = await begin(`/subscribe?pattern=nothing-here:*&since=first&wait=2`);
  await one.done;
  assert.deepEqual([one.got.messages, one.got.more], [[], false]);
  assert.ok(one.ms >= 1900, `answered with nothing after ${one.ms} ms`);
  const two = await begin(`/subscribe?pattern=seldom:*&since=first&wait=3`);
  await sleep(300);
  const { id } = await publish(server, 'seldom:a', 'at last');
  await two.done;
  assert.deepEqual(ids(two.got.messages), [id]);
});

check('many polls of one channel all get the message, on both workers', async () => {
  const channel = fresh();
  const all = await Promise.all(Array.from({ length: 60 }, () => begin(path(channel, '?wait=3'))));
  await poll(async () => (await info(server, channel))?.subscribers === 60, '60 subscribers', { ms: 2000 });
  const { id, subscribers } = await publish(server, channel, 'for all');
  assert.equal(subscribers, 60);
  for (const one of all) assert.deepEqual(ids((await one.done).got.messages), [id]);
  await poll(async () => (await info(server, channel))?.subscribers === 0, 'nobody', { ms: 2000 });
});

check('the publisher may be a WebSocket, a frame or a command', async () => {
  const channel = fresh();
  const raw = await WebSocket.channel(server, channel);
  const one = await begin(path(channel, '?wait=3'));
  await sleep(50);
  await raw.send(Buffer.from([0x81, 0x82, 0, 0, 0, 0, 0x68, 0x69]));
  assert.equal((await one.done).got.messages[0].data, 'hi');
  const v1 = await V1.open(server, '/subscribe');
  const two = await begin(path(channel, `?wait=3&since=${one.got.cursor}`));
  await sleep(50);
  const id = await v1.publish(channel, { data: { n: 1 }, echo: false });
  assert.deepEqual((await two.done).got.messages, [{ channel, id, type: 'application/json', data: { n: 1 } }]);
  raw.drop();
  v1.drop();
});

check('several polls on one connection are answered in their order', async () => {
  const [a, b] = [fresh(), fresh()];
  const tcp = await Tcp.connect(server.target);
  await tcp.send(Buffer.concat([request(server, 'GET', path(a, '?wait=3')), request(server, 'GET', path(b, '?wait=3')),
    request(server, 'GET', '/healthz')]));
  await sleep(100);
  const second = await publish(server, b, 'b');
  await sleep(50);
  assert.equal(tcp.total, 0, 'the second was answered before the first');
  const first = await publish(server, a, 'a');
  assert.deepEqual(ids(JSON.parse((await answer(tcp)).body).messages), [first.id]);
  assert.deepEqual(ids(JSON.parse((await answer(tcp)).body).messages), [second.id]);
  assert.equal((await answer(tcp)).status, 200);
  tcp.destroy();
});

check('without history: what comes while it waits is told, as a message or as a gap', async () => {
  const channel = fresh('off:');
  const one = await begin(path(channel, '?wait=3'));
  await sleep(100);
  const { id } = await publish(server, channel, 'not kept');
  await one.done;
  const told = ids(one.got.messages).includes(id) || (one.got.gap && one.got.gap.from <= id && one.got.gap.to >= id);
  assert.ok(told, JSON.stringify(one.got));
  assert.ok(one.ms < 1500);
});

check('a message that ended by its ttl does not end a poll by itself', async () => {
  const channel = fresh();
  await publish(server, channel, 'short', { query: '?ttl=1' });
  await sleep(1100);
  const one = await (await begin(path(channel, '?since=first&wait=1'))).done;
  assert.deepEqual([one.got.messages, one.got.gap], [[], null]);
});

check('HEAD waits no longer than GET and has no body', async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(request(server, 'HEAD', path(fresh(), '?wait=1')));
  const got = await answer(tcp, 'HEAD', 5000);
  assert.equal(got.status, 200);
  await sleep(50);
  assert.equal(tcp.buffer.length, 0);
  tcp.destroy();
});

// --- nothing missed between two polls ------------------------------------------------

check('2,000 polls in a chain against a steady publisher miss nothing and repeat nothing', { seconds: 100 }, async (t) => {
  const channel = fresh('wide:');
  const sent = [];
  let over = false;
  const writer = (async () => {
    const publisher = await Publisher.connect(server);
    while (!over) {
      sent.push((await publisher.publish(channel, `${sent.length}`)).id);
      if (sent.length % 7 === 0) await new Promise(setImmediate);
      if (sent.length % 100 === 0) await sleep(2);
    }
    publisher.close();
  })();
  const seen = [];
  const chain = async (seenBy, rounds) => {
    let since = 'first';
    const tcp = await Tcp.connect(server.target);
    for (let i = 0; i < rounds; i++) {
      await tcp.send(request(server, 'GET', path(channel, `?wait=3&since=${since}&limit=${[1000, 1, 3][i % 3]}`)));
      const got = assertHistory(JSON.parse((await answer(tcp)).body));
      assert.equal(got.gap, null);
      assert.ok(got.messages.length > 0 || over, 'nothing for three seconds');
      seenBy.push(...ids(got.messages));
      since = got.cursor;
    }
    for (;;) { // what is left
      const got = await history(server, channel, `?since=${since}`);
      seenBy.push(...ids(got.messages));
      since = got.cursor;
      if (over && !got.more) break;
      if (rounds > 0 && !got.more) over = true;
      await sleep(1);
    }
    tcp.destroy();
  };
  const second = [];
  await Promise.all([chain(seen, 2000), chain(second, 0)]);
  await writer;
  let since = seen.at(-1);
  for (const list of [seen, second]) list.push(...ids((await history(server, channel, `?since=${list.at(-1) ?? since}`)).messages));
  t.diagnostic(`${sent.length} messages in 2,000 polls`);
  assert.deepEqual(seen, sent);
  assert.deepEqual(second, sent);
});

check('chains over twenty channels and a pattern against four publishers', { seconds: 60 }, async () => {
  const base = fresh('wide:');
  const many = `/subscribe?${Array.from({ length: 8 }, (_, i) => `channel=${base}.${i}`).join('&')}`;
  const sent = [];
  let over = false;
  const { cursor } = await read(server, `${many}&since=now`);
  const writers = [0, 1, 2, 3].map(async (k) => {
    const publisher = await Publisher.connect(server);
    for (let i = 0; i < 250; i++) {
      sent.push((await publisher.publish(`${base}.${(i + k) % 8}`, 'x')).id);
      if (i % 20 === 0) await sleep(1);
    }
    publisher.close();
  });
  const chain = async (target) => {
    const seen = [];
    let since = cursor;
    for (;;) {
      const last = over;
      const got = await read(server, `${target}&since=${since}&wait=${last ? 0 : 1}&limit=${1 + seen.length % 30}`);
      assert.equal(got.gap, null);
      seen.push(...ids(got.messages));
      since = got.cursor;
      if (last && !got.more) return seen;
    }
  };
  const chains = [chain(many), chain(`${many}&pattern=wide:*`), chain('/subscribe?pattern=wide:*')];
  await Promise.all(writers);
  over = true;
  const want = sent.sort((a, b) => a - b);
  for (const seen of await Promise.all(chains)) assert.deepEqual(seen, want);
});

// --- those who leave ---------------------------------------------------------------------

check('200 clients that leave early, by FIN and by RST, leave nothing behind', { seconds: 60 }, async () => {
  const channel = fresh();
  const fds = server.fds();
  const all = new Array(200);
  await spread(200, 20, async (i) => {
    all[i] = await Tcp.connect(server.target);
    await all[i].send(request(server, 'GET', i % 4 < 2 ? path(channel, '?wait=3') : `/subscribe?channel=${channel}&pattern=${channel}:*&wait=3`));
  });
  await poll(async () => (await info(server, channel))?.subscribers === 200, '200 subscribers', { ms: 2500 });
  for (const [i, tcp] of all.entries()) i % 2 ? tcp.reset() : tcp.destroy();
  await poll(() => server.fds() <= fds, 'their descriptors to be closed', { ms: 6000 });
  await poll(async () => ((await info(server, channel))?.subscribers ?? 0) === 0, 'the channel to have nobody', { ms: 6000 });
  assert.equal((await publish(server, channel, 'x')).subscribers, 0);
  await assertUnharmed(server);
});

check('those whose connection is reset are gone long before their wait ends', { seconds: 60 }, async () => {
  const long = await start({ workers: 1, history: true, args: ['--poll.max_wait', '60s'] });
  try {
    const all = [];
    for (let i = 0; i < 50; i++) {
      all.push(await Tcp.connect(long.target));
      await all[i].send(request(long, 'GET', '/channels/gone?wait=60'));
    }
    await poll(async () => (await info(long, 'gone'))?.subscribers === 50, '50 subscribers');
    for (const tcp of all) tcp.reset();
    await poll(async () => (await info(long, 'gone')) === null, 'nobody', { ms: 5000 });
    await long.stop();
  } finally {
    long.killAll();
  }
});

check('a client that leaves while its answer is made harms nobody', async () => {
  for (let i = 0; i < 40; i++) {
    const channel = fresh();
    const all = await Promise.all(Array.from({ length: 5 }, () => begin(path(channel, '?since=first&wait=3'))));
    const sent = publish(server, channel, 'x'.repeat(10_000));
    for (const [k, one] of all.entries()) if (k % 2) one.tcp.reset();
    const { id } = await sent;
    for (const [k, one] of all.entries()) if (k % 2 === 0) assert.deepEqual(ids((await one.done).got.messages), [id]);
  }
  await assertUnharmed(server);
});

// --- the end ---------------------------------------------------------------------------------

check('draining: a poll that waits is 204 with Retry-After, at once', { seconds: 60 }, async () => {
  const ending = await start({ workers: 2, history: true });
  try {
    const all = await Promise.all(Array.from({ length: 20 }, (_, i) => begin(i % 2 ? '/channels/a?wait=30' : '/subscribe?channel=a&pattern=b:*&wait=30', ending)));
    await sleep(300);
    const from = performance.now();
    ending.signal('SIGTERM');
    for (const one of all) {
      await one.done;
      assert.equal(one.status, 204, `${one.answer.head}`);
      assert.match(one.answer.header('retry-after') ?? '', /^\d+$/);
    }
    assert.ok(performance.now() - from < 3000, `told after ${performance.now() - from} ms`);
    await ending.stop();
  } finally {
    ending.killAll();
  }
});

checkStop(server, { fdsBefore });
