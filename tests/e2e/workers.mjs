// Several workers: one order for all, exact counts, and what is left standing
// when a worker or the master dies, stops or is told to end.
import assert from 'node:assert/strict';
import { Tcp, check, finish, poll, slow, sleep, start } from './lib/crier.mjs';
import { answer, ask, assertProblem, publish, request } from './lib/http.mjs';
import { WebSocket, text } from './lib/websocket.mjs';
import { V1 } from './lib/v1.mjs';
import { Publisher } from './lib/load.mjs';
import { assertOneOrder, gather } from './lib/crowd.mjs';
import { alive, ofGroup, stat } from './lib/proc.mjs';
import { quantile, spread } from './lib/watch.mjs';

// A server for one test, stopped or killed at its end.
async function withServer(options, body) {
  const server = await start({ workers: 4, ...options });
  try {
    await body(server);
    if (!server.exit) await server.stop();
  } finally {
    server.killAll();
  }
}

// Connects until each worker holds at least one of the connections.
async function onEveryWorker(server, connect, most = 400) {
  const made = [];
  const seen = new Set();
  while (made.length < most) {
    made.push(await connect());
    if (made.length % 8 === 0 || made.length >= server.firstWorkers.length) {
      const held = server.placement();
      for (const one of made) seen.add(held.get(one.port));
      seen.delete(undefined);
      if (seen.size === server.workerPids().length) return made;
    }
  }
  throw new Error(`after ${most} connections only ${seen.size} workers have one`);
}

// --- one order ------------------------------------------------------------------

check('8 publishers, 200 subscribers, 4 workers: everything, once, in one order', { seconds: 100 }, (t) =>
  withServer({}, async (server) => {
    const members = await gather(server, 'order', 200);
    assert.equal(new Set(members.map((m) => server.placement().get(m.port))).size, 4, 'a worker has no subscriber');
    const expected = new Map();
    const from = Date.now();
    await Promise.all(Array.from({ length: 8 }, async (_, p) => {
      const publisher = await Publisher.connect(server);
      for (let i = 0; i < 500; i++) {
        const word = `p${p} ${i}`;
        const { id, subscribers } = await publisher.publish('order', word);
        assert.equal(subscribers, 200);
        expected.set(word, id);
      }
      publisher.close();
    }));
    await Promise.all(members.map((m) => m.until(4000, 30_000)));
    t.diagnostic(`800,000 deliveries in ${Date.now() - from} ms`);
    await sleep(100);
    assertOneOrder(members, expected);
    for (const member of members) member.drop();
  }));

check('publishers by WebSocket and POST on all workers: one order for all', { seconds: 60 }, () =>
  withServer({}, async (server) => {
    const members = await gather(server, 'mixed', 40);
    const expected = [];
    await Promise.all([
      ...members.slice(0, 8).map(async (m, k) => {
        for (let i = 0; i < 100; i++) {
          const word = `w${k} ${i}`;
          expected.push(word);
          if (m.kind === 'raw') await m.ws.send(text(word));
          else await m.client.send({ op: 'publish', channel: 'mixed', data: word });
        }
      }),
      ...Array.from({ length: 4 }, async (_, k) => {
        const publisher = await Publisher.connect(server);
        for (let i = 0; i < 10; i++) {
          const words = Array.from({ length: 10 }, (_, j) => `h${k} ${i * 10 + j}`);
          expected.push(...words);
          await publisher.burst('mixed', words);
        }
        publisher.close();
      })]);
    await Promise.all(members.map((m) => m.until(expected.length)));
    const first = members[1];
    assert.equal(first.kind, 'v1');
    assert.deepEqual([...first.words].sort(), expected.sort());
    assertOneOrder(members, new Map(first.words.map((word, i) => [word, first.ids[i]])));
    for (let k = 0; k < 8; k++) { // each publisher's own order
      const mine = first.words.filter((word) => word.startsWith(`w${k} `));
      assert.deepEqual(mine, Array.from({ length: 100 }, (_, i) => `w${k} ${i}`));
    }
    for (const member of members) member.drop();
  }));

check('who is subscribed before a POST begins gets it: 2,000 times, across workers', { seconds: 100 }, () =>
  withServer({}, async (server) => {
    await spread(8, 8, async (lane) => {
      const publisher = await Publisher.connect(server);
      const v1 = await V1.channel(server, `home ${lane}`);
      for (let i = 0; i < 125; i++) {
        const channel = `race ${lane} ${i}`;
        const ws = await WebSocket.channel(server, channel);
        const told = await publisher.publish(channel, `word ${i}`);
        assert.equal(told.subscribers, 1, channel);
        assert.equal(await ws.text(), `word ${i}`);
        ws.drop();
        const other = `${channel} v1`;
        const got = await v1.subscribe(other);
        const sent = await publisher.publish(other, `v1 ${i}`);
        assert.equal(sent.subscribers, 1, other);
        assert.ok(sent.id > got.cursor);
        assert.equal((await v1.message()).id, sent.id);
        await v1.unsubscribe(other);
      }
      publisher.close();
      v1.drop();
    });
  }));

check('the same name over and over: a subscriber misses nothing that begins after its 101', { seconds: 60 }, () =>
  withServer({}, async (server) => {
    const publisher = await Publisher.connect(server);
    for (let i = 0; i < 200; i++) {
      const ws = await WebSocket.channel(server, 'again');
      const { id } = await publisher.publish('again', `${i}`);
      assert.equal(await ws.text(), `${i}`, `message ${id}`);
      if (i % 2) await ws.close();
      else ws.drop();
    }
    publisher.close();
  }));

check('large messages cross workers whole', { seconds: 60 }, () =>
  withServer({}, async (server) => {
    const members = await gather(server, 'large', 16);
    const expected = new Map();
    for (let i = 0; i < 24; i++) {
      const word = String.fromCharCode(97 + i).repeat([1, 4096, 65536, 300_000, 1024 * 1024][i % 5]) + i % 7;
      const body = word.slice(0, 1024 * 1024);
      expected.set(body, (await publish(server, 'large', body)).id);
    }
    await Promise.all(members.map((m) => m.until(expected.size)));
    assertOneOrder(members, expected);
    for (const member of members) member.drop();
  }));

check('O15: a publish wakes idle subscribers on every worker within milliseconds', () =>
  withServer({}, async (server) => {
    const all = await onEveryWorker(server, () => WebSocket.channel(server, 'wake'));
    const times = [];
    for (let i = 0; i < 40; i++) {
      await sleep(25); // everybody sleeps
      const from = process.hrtime.bigint();
      const sent = publish(server, 'wake', `${i}`);
      await Promise.all(all.map((ws) => ws.text()));
      times.push(Number(process.hrtime.bigint() - from) / 1e6);
      await sent;
    }
    const median = quantile(times, 0.5);
    assert.ok(median < 30 * slow, `the median wake-up took ${median} ms`);
    for (const ws of all) ws.drop();
  }));

// --- counts -------------------------------------------------------------------

check('S19: subscribers is exact over all workers, also after a worker has died', { seconds: 60 }, (t) =>
  withServer({}, async (server) => {
    const members = await gather(server, 'count', 40, ['raw', 'v1']);
    assert.equal((await publish(server, 'count', 'x')).subscribers, 40);
    for (const member of members.slice(0, 5)) member.drop();
    await poll(async () => (await publish(server, 'count', 'x')).subscribers === 35, '35 subscribers');
    const held = server.placement();
    const rest = members.slice(5);
    const victim = held.get(rest[0].port);
    const lost = rest.filter((m) => held.get(m.port) === victim);
    server.signal('SIGKILL', victim);
    const from = Date.now();
    await poll(async () => {
      const got = await ask(server, 'POST', '/channels/count', { body: 'x' }).catch(() => null);
      return got?.status === 201 && JSON.parse(got.body).subscribers === 35 - lost.length;
    }, `${35 - lost.length} subscribers after a worker's death`, { ms: 3000 });
    t.diagnostic(`the count was right ${Date.now() - from} ms after kill -9`);
    const late = await gather(server, 'count', 10);
    assert.equal((await publish(server, 'count', 'x')).subscribers, 45 - lost.length);
    for (const member of [...members, ...late]) member.drop();
    await poll(async () => (await publish(server, 'count', 'x')).subscribers === 0, 'no subscribers');
  }));

// --- deaths ---------------------------------------------------------------------

check('kill -9 of a worker under load: the others miss nothing, the port never refuses', { seconds: 100 }, (t) =>
  withServer({}, async (server) => {
    const members = await gather(server, 'kill', 60);
    await onEveryWorker(server, async () => {
      const [member] = await gather(server, 'kill', 1, ['v1']);
      members.push(member);
      return member;
    });
    let running = true;
    const sent = new Map(); // word → id, of POSTs that were answered
    const unknown = new Set(); // the answer never came
    const answered = { 503: 0 };
    const publishing = Array.from({ length: 4 }, async (_, p) => {
      let publisher = null;
      for (let i = 0; running; i++) {
        const word = `p${p} ${i}`;
        try {
          publisher ??= await Publisher.connect(server);
          const got = await publisher.post('kill', word);
          if (got.status === 201) sent.set(word, JSON.parse(got.body).id);
          else if (got.status === 503) answered[503] += 1;
          else throw new assert.AssertionError({ message: `a POST got ${got.status}: ${got.body}` });
        } catch (error) {
          if (error instanceof assert.AssertionError) throw error;
          assert.notEqual(error.code, 'ECONNREFUSED', 'the port refused');
          unknown.add(word);
          publisher?.close();
          publisher = null;
        }
      }
      publisher?.close();
    });
    const knocking = (async () => {
      let knocks = 0;
      for (; running; knocks++) {
        const tcp = await Tcp.connect(server.target); // ECONNREFUSED fails the test
        tcp.destroy();
        await sleep(2);
      }
      return knocks;
    })();
    await sleep(500);
    const held = server.placement();
    const victim = held.get(members[0].port);
    const others = members.filter((m) => held.get(m.port) !== victim);
    assert.ok(others.length > 0 && others.length < members.length);
    const before = server.workerPids();
    const from = Date.now();
    server.signal('SIGKILL', victim);
    await poll(() => {
      const now = server.workerPids();
      return now.length === 4 && !now.includes(victim);
    }, 'a new worker', { ms: 5000, every: 5 });
    const born = Date.now() - from;
    // It serves: a fresh connection lands on it and is answered.
    const fresh = server.workerPids().find((pid) => !before.includes(pid));
    const served = await poll(async () => {
      const tcp = await Tcp.connect(server.target);
      try {
        await tcp.send(request(server, 'GET', '/healthz'));
        const got = await answer(tcp, 'GET', 1000);
        return got.status === 200 && server.placement().get(tcp.port) === fresh && Date.now() - from;
      } finally {
        tcp.destroy();
      }
    }, 'the new worker to serve', { ms: 5000, every: 1 });
    t.diagnostic(`after kill -9: a new worker after ${born} ms, it served after ${served} ms`);
    assert.ok(served < 1000 * slow, `the new worker served after ${served} ms`);
    assert.deepEqual(server.workerPids().filter((pid) => before.includes(pid)), before.filter((pid) => pid !== victim),
      'another worker went as well');
    await sleep(500);
    running = false;
    await Promise.all(publishing);
    assert.ok(await knocking > 10);
    await publish(server, 'kill', 'the end');
    await Promise.all(others.map((m) => m.ws.wait(() => m.words.at(-1) === 'the end', 'the last message')));
    // What was answered reached everyone; what was not may have, but then everyone.
    const model = others.find((m) => m.kind === 'v1');
    const expected = new Map(model.words.map((word, i) => [word, model.ids[i]]));
    for (const [word, id] of sent) assert.equal(expected.get(word), id, `"${word}" was answered and is missing`);
    for (const word of expected.keys()) {
      assert.ok(sent.has(word) || unknown.has(word) || word === 'the end', `"${word}" came from nowhere`);
    }
    assertOneOrder(others, expected);
    assert.ok(model.ids.every((id, i) => i === 0 || id > model.ids[i - 1]), 'ids do not grow');
    t.diagnostic(`${sent.size} answered, ${unknown.size} unknown, ${answered[503]} × 503`);
    for (const member of members) member.drop();
  }));

check('kill -9 of each worker in turn, twice: the broker goes on', { seconds: 60 }, () =>
  withServer({ workers: 2 }, async (server) => {
    for (let round = 0; round < 4; round++) {
      const before = server.workerPids();
      server.signal('SIGKILL', before[round % 2]);
      await poll(() => {
        const now = server.workerPids();
        return now.length === 2 && !now.includes(before[round % 2]);
      }, 'a new worker', { ms: 8000 });
      await poll(async () => {
        const all = await gather(server, 'turns', 8);
        const { subscribers } = await publish(server, 'turns', 'x');
        await Promise.all(all.map((m) => m.until(1, 2000)));
        for (const member of all) member.drop();
        return subscribers >= 8;
      }, 'service after the death', { ms: 8000 });
      await sleep(1100 * slow); // a worker that lived a while does not add up to a give-up
    }
  }));

check('kill -9 of the master: all workers gone, the port free', { seconds: 60 }, async () => {
  const server = await start({ workers: 4 });
  const workers = server.workerPids();
  const members = await gather(server, 'orphans', 20);
  server.signal('SIGKILL');
  await poll(() => workers.every((pid) => !alive(pid)) && ofGroup(server.pid).length === 0, 'all workers to be gone', { ms: 10_000 });
  for (const member of members) {
    await member.ws.until(() => member.ws.tcp.ended, 'the end of a subscription');
    assert.equal(member.ws.violation, null);
    member.drop();
  }
  await assert.rejects(Tcp.connect(server.target), { code: 'ECONNREFUSED' });
  const next = await start({ workers: 1, listen: server.listeners });
  await next.stop();
});

check('SIGSTOP of a worker: the others go on, only that one is replaced', { seconds: 100 }, (t) =>
  withServer({ args: ['--watchdog', '1s'] }, async (server) => {
    const members = await gather(server, 'stop', 40);
    const held = server.placement();
    const victim = held.get(members[0].port);
    const others = members.filter((m) => held.get(m.port) !== victim);
    const publisher = await (async () => {
      for (;;) {
        const one = await Publisher.connect(server);
        await one.publish('stop', 'hello');
        if (server.placement().get(one.port) !== victim) return one;
      }
    })();
    const sent = new Map();
    const before = server.workerPids();
    let busy = 0;
    let longest = 0;
    process.kill(victim, 'SIGSTOP');
    const from = Date.now();
    for (let i = 0; Date.now() - from < 4000; i++) {
      const begun = Date.now();
      const got = await publisher.post('stop', `s${i}`);
      longest = Math.max(longest, Date.now() - begun);
      if (got.status === 201) {
        sent.set(`s${i}`, JSON.parse(got.body).id);
      } else {
        assertProblem(got, 503);
        assert.match(got.header('retry-after') ?? '', /^\d+$/);
        busy += 1;
        await sleep(10);
      }
    }
    t.diagnostic(`the longest POST took ${longest} ms; ${busy} × 503; ${sent.size} × 201`);
    assert.ok(longest < 2500 * slow, `a POST took ${longest} ms`);
    await poll(() => stat(victim) === null || stat(victim).state === 'Z', 'the stopped worker to be killed', { ms: 8000 });
    await poll(() => server.workerPids().length === 4, 'a new worker', { ms: 5000 });
    assert.deepEqual(server.workerPids().filter((pid) => before.includes(pid)), before.filter((pid) => pid !== victim),
      'another worker went as well');
    const last = await publisher.publish('stop', 'the end');
    for (const member of others) {
      await member.ws.wait(() => member.words.at(-1) === 'the end', 'the last message');
      const got = member.words.filter((word) => /^s\d/.test(word));
      assert.deepEqual(got, [...sent.keys()], 'what the others got');
    }
    assert.ok(last.subscribers <= others.length, `${last.subscribers} subscribers after the death`);
    publisher.close();
    for (const member of members) member.drop();
  }));

check('a worker that was stopped for less than the watchdog misses nothing', { seconds: 60 }, () =>
  withServer({ args: ['--watchdog', '20s'] }, async (server) => {
    const members = await gather(server, 'pause', 30);
    const victim = server.placement().get(members[0].port);
    let hellos = 0;
    const publisher = await (async () => {
      for (;;) {
        const one = await Publisher.connect(server);
        await one.publish('pause', 'hello');
        hellos += 1;
        if (server.placement().get(one.port) !== victim) return one;
      }
    })();
    const stopped = members.filter((m) => server.placement().get(m.port) === victim);
    await Promise.all(members.map((m) => m.until(hellos)));
    process.kill(victim, 'SIGSTOP');
    const sent = [];
    for (let i = 0; i < 200; i++) {
      const got = await publisher.post('pause', `s${i}`);
      if (got.status === 201) sent.push(`s${i}`);
    }
    process.kill(victim, 'SIGCONT');
    for (const member of [...stopped, ...members]) await member.until(hellos + sent.length);
    for (const member of members) assert.deepEqual(member.words.slice(hellos), sent);
    assert.ok(alive(victim));
    publisher.close();
    for (const member of members) member.drop();
  }));

check('a worker that was lapped by the ring tells its subscribers of the gap', { seconds: 100 }, () =>
  withServer({ workers: 2, args: ['--watchdog', '60s'] }, async (server) => {
    const all = await onEveryWorker(server, async () => (await gather(server, 'lap', 1, ['v1']))[0]);
    const raws = await gather(server, 'lap', 12, ['raw']);
    const held = server.placement();
    const publisher = await Publisher.connect(server);
    await publisher.publish('lap', 'hello');
    const mine = server.placement().get(publisher.port);
    const victim = server.workerPids().find((pid) => pid !== mine);
    const lapped = all.find((m) => held.get(m.port) === victim);
    const closed = raws.filter((m) => held.get(m.port) === victim);
    assert.ok(closed.length > 0);
    await Promise.all([...all, ...raws].map((m) => m.until(1)));
    process.kill(victim, 'SIGSTOP');
    const body = 'x'.repeat(256 * 1024);
    const ids = [];
    for (let i = 0; i < 120; i++) { // 30 MiB through a ring of 16
      const got = await publisher.post('lap', body, 20_000);
      if (got.status === 201) ids.push(JSON.parse(got.body).id);
      else assert.equal(got.status, 503);
    }
    process.kill(victim, 'SIGCONT');
    const last = await publisher.publish('lap', 'the end');
    assert.ok(ids.length > 100, `only ${ids.length} of 120 were taken while a worker stood`);
    await lapped.ws.wait(() => lapped.ids.at(-1) === last.id, 'the last message', 20_000);
    const covered = (id) => lapped.client.gaps.some((g) => g.channel === 'lap' && g.from <= id && id <= g.to);
    for (const id of ids) assert.ok(lapped.ids.includes(id) || covered(id), `${id} was lost without a word`);
    assert.ok(lapped.ids.every((id, i) => i === 0 || id > lapped.ids[i - 1]));
    for (const member of closed) { // a raw reader cannot be told: it has all, or is closed
      await member.ws.until(() => member.ws.closeInfo || member.words.at(-1) === 'the end', 'all or a close', 20_000);
      if (!member.ws.closeInfo) assert.equal(member.words.length, ids.length + 2);
      else assert.equal(member.ws.closeInfo.code, 4001);
    }
    publisher.close();
    for (const member of [...all, ...raws]) member.drop();
  }));

// --- the end ---------------------------------------------------------------------

check('SIGTERM: every WebSocket gets 1001, POSTs in flight are answered, exit 0', { seconds: 60 }, async (t) => {
  const server = await start({ workers: 4 });
  try {
    const members = await gather(server, 'drain', 60);
    const flight = await Promise.all(Array.from({ length: 8 }, async (_, i) => {
      const tcp = await Tcp.connect(server.target);
      const bytes = request(server, 'POST', '/channels/drain', { body: `in flight ${i}` });
      await tcp.send(bytes.subarray(0, bytes.length - 5));
      return { tcp, rest: bytes.subarray(bytes.length - 5) };
    }));
    const idle = await Tcp.connect(server.target);
    await idle.send(request(server, 'GET', '/healthz'));
    await answer(idle);
    await sleep(200);
    const from = Date.now();
    server.signal('SIGTERM');
    await sleep(100);
    for (const { tcp, rest } of flight) await tcp.send(rest);
    for (const { tcp } of flight) {
      const got = await answer(tcp, 'POST');
      assert.equal(got.status, 201, `${got.body}`);
      await tcp.untilEnd('the end after the answer');
      tcp.destroy();
    }
    for (const member of members) await member.ws.expectClose(1001);
    await idle.untilEnd('the end of an idle connection');
    assert.equal(idle.buffer.length, 0, idle.describe());
    idle.destroy();
    const end = await server.untilExit('the exit', 11_000);
    assert.deepEqual(end, { code: 0, signal: null }, server.logTail());
    t.diagnostic(`exit 0 after ${Date.now() - from} ms`);
    await assert.rejects(Tcp.connect(server.target), { code: 'ECONNREFUSED' });
    await poll(() => ofGroup(server.pid).length === 0, 'all processes to be gone');
    server.assertCleanLog();
  } finally {
    server.killAll();
  }
});

check('SIGINT drains as well, and an idle broker ends at once', async () => {
  for (const signal of ['SIGINT', 'SIGTERM']) {
    const server = await start({ workers: 2 });
    const from = Date.now();
    server.signal(signal);
    assert.deepEqual(await server.untilExit(), { code: 0, signal: null });
    assert.ok(Date.now() - from < 2000 * slow, `${signal}: ${Date.now() - from} ms`);
    server.killAll();
  }
});

check('O13: peers that do not answer the close do not keep the broker', { seconds: 60 }, async () => {
  const server = await start({ workers: 2, args: ['--drain.time', '3s'] });
  const members = await gather(server, 'mute', 10);
  const stuck = await Tcp.connect(server.target); // a request that never ends
  await stuck.send(request(server, 'POST', '/channels/x', { headers: [['Content-Length', '100']] }));
  const from = Date.now();
  server.signal('SIGTERM');
  const end = await server.untilExit('the exit', 8000);
  assert.deepEqual(end, { code: 0, signal: null }, server.logTail());
  assert.ok(Date.now() - from < 5000 * slow, `${Date.now() - from} ms`);
  for (const member of members) {
    assert.equal(member.ws.closeInfo?.code, 1001);
    member.drop();
  }
  stuck.destroy();
  server.killAll();
});

check('a second SIGTERM ends it at once', { seconds: 60 }, async () => {
  const server = await start({ workers: 2, args: ['--drain.time', '30s'] });
  const stuck = await Tcp.connect(server.target);
  await stuck.send(request(server, 'POST', '/channels/x', { headers: [['Content-Length', '100']] }));
  await sleep(100);
  server.signal('SIGTERM');
  await sleep(500);
  assert.equal(server.exit, null, 'it did not wait for the POST in flight');
  const from = Date.now();
  server.signal('SIGTERM');
  await server.untilExit('the exit', 3000);
  assert.ok(Date.now() - from < 1000 * slow, `${Date.now() - from} ms`);
  await poll(() => ofGroup(server.pid).length === 0, 'all processes to be gone', { ms: 2000 });
  stuck.destroy();
  server.killAll();
});

check('with drain.notice, readyz says 503 and crier.v1 is told before the end', { seconds: 60 }, async () => {
  const server = await start({ workers: 1, args: ['--drain.notice', '2s'] });
  const v1 = await V1.channel(server, 'notice');
  const tcp = await Tcp.connect(server.target);
  await tcp.send(request(server, 'GET', '/readyz'));
  assert.equal((await answer(tcp)).status, 200);
  server.signal('SIGTERM');
  await v1.ws.wait(() => v1.drains.length > 0, 'the notice');
  assert.equal(v1.ws.closeInfo, null, 'it was closed before the notice was over');
  assert.ok(v1.drains[0].after_ms >= 0);
  // A balancer asks on the connection it has, or on a new one.
  await tcp.send(request(server, 'GET', '/readyz'));
  assertProblem(await answer(tcp).catch(() => ask(server, 'GET', '/readyz')), 503);
  tcp.destroy();
  await v1.ws.expectClose(1001);
  assert.deepEqual(await server.untilExit(), { code: 0, signal: null });
  server.killAll();
});

check('O03: signals that mean nothing to the master or a worker change nothing', async () => {
  const server = await start({ workers: 2 });
  for (const pid of server.pids()) {
    for (const signal of ['SIGPIPE', 'SIGWINCH', 'SIGCHLD', 'SIGCONT']) process.kill(pid, signal);
  }
  for (const pid of server.firstWorkers) process.kill(pid, 'SIGINT'); // what a terminal sends to the group
  await sleep(300);
  assert.equal(server.exit, null);
  assert.deepEqual(server.workerPids(), server.firstWorkers);
  await publish(server, 'signals', 'x');
  await server.stop();
});

check('everything is let go', () => finish());
