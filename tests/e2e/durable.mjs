// A durable store: what was answered is kept, whatever dies; whose file it is;
// what happens when it is full; and no answer before the disk has it.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, readFileSync, readdirSync, readlinkSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { randomBytes } from 'node:crypto';
import path from 'node:path';
import { check, finish, freePort, poll, run, sanitized, scratchPath, sleep, start } from './lib/crier.mjs';
import { ask, assertProblem, post, publish } from './lib/http.mjs';
import { chain, datas, history, ids, info, remove } from './lib/history.mjs';
import { Sse } from './lib/sse.mjs';
import { V1 } from './lib/v1.mjs';
import { WebSocket } from './lib/websocket.mjs';
import { Publisher } from './lib/load.mjs';
import { hash } from './lib/judge.mjs';

const KEEP = ['--history.count', '1000000', '--history.bytes', '256MiB'];
let stores = 0;
const freshStore = () => scratchPath(`durable-${++stores}.store`);

// The whole group at once, as a power cut would; nothing is told to end.
async function killGroup(server) {
  for (const pid of server.pids()) {
    try {
      server.signal('SIGKILL', pid);
    } catch { /* it is gone */ }
  }
  await server.untilExit();
  await poll(() => server.pids().length === 0, 'the group to be gone');
  server.killAll();
}

async function withStore(options, body) {
  const store = options.store ?? freshStore();
  const open = (extra = {}) => start({ workers: 2, history: true, ...options, ...extra, args: ['--store', store, ...(options.args ?? KEEP), ...(extra.args ?? [])] });
  const self = { store, open, server: await open() };
  self.again = async (extra) => {
    self.server = await open({ listen: self.server.listeners, ...extra });
    return self.server;
  };
  try {
    await body(self);
    if (!self.server.exit) await self.server.stop();
  } finally {
    self.server.killAll();
  }
}

// --- kill -9 -------------------------------------------------------------------------------

// Publishers that note what was answered until the server dies under them.
class Load {
  constructor(server, round, channels) {
    this.answered = []; // { id, channel, word }
    this.tried = new Set(); // words
    this.seen = []; // ids that a subscriber was given
    this.over = false;
    const note = (channel, word, id) => this.answered.push({ id, channel, word });
    const posts = [0, 1, 2, 3].map(async (k) => {
      const publisher = await Publisher.connect(server);
      for (let i = 0; !this.over; i++) {
        const channel = channels[(i + k) % channels.length];
        const word = `r${round} p${k} ${i}`;
        this.tried.add(word);
        note(channel, word, (await publisher.publish(channel, word, 5000)).id);
      }
    });
    const frames = [0, 1].map(async (k) => {
      const v1 = await V1.open(server, '/subscribe');
      for (let i = 0; !this.over; i++) {
        const channel = channels[(i + k) % channels.length];
        const word = `r${round} w${k} ${i}`;
        this.tried.add(word);
        note(channel, word, await v1.publish(channel, { data: word }));
      }
    });
    const batches = [0].map(async () => {
      for (let i = 0; !this.over; i++) {
        const words = Array.from({ length: 7 }, (_, j) => `r${round} b ${i}.${j}`);
        for (const word of words) this.tried.add(word);
        const got = await ask(server, 'POST', '/channels', { headers: [['Content-Type', 'application/x-ndjson']], ms: 5000,
          body: words.map((data, j) => JSON.stringify({ channel: channels[j % channels.length], data })).join('\n') });
        JSON.parse(got.body).results.forEach((r, j) => note(r.channel, words[j], r.id));
      }
    });
    const reader = Sse.open(server, '/subscribe?pattern=kill:*').then((sse) => {
      sse.onEvent = (e) => this.seen.push({ id: e.id, word: JSON.parse(e.data).data });
      this.sse = sse;
    });
    this.done = Promise.allSettled([...posts, ...frames, ...batches, reader]);
  }
}

check('kill -9 of the whole group while publishing, five times: what was answered is there, in order, once', { seconds: 120 }, async (t) => {
  const channels = ['kill:a', 'kill:b', 'kill:c'];
  await withStore({}, async (one) => {
    const answered = [];
    const tried = new Set();
    const seen = new Map();
    let highest = 0;
    for (let round = 0; round < 5; round++) {
      const load = new Load(one.server, round, channels);
      await sleep(500 + (round * 397) % 700);
      await killGroup(one.server);
      load.over = true;
      await load.done;
      load.sse?.drop();
      answered.push(...load.answered);
      for (const word of load.tried) tried.add(word);
      for (const e of load.seen) seen.set(e.id, e.word);
      assert.ok(load.answered.length > 20, `only ${load.answered.length} were answered in round ${round}`);
      const before = highest;
      for (const { id } of load.answered) {
        assert.ok(id > before, `round ${round}: id ${id} is not above ${before}, which an earlier life had given`);
        highest = Math.max(highest, id);
      }
      await one.again();
      const kept = new Map();
      for (const channel of channels) {
        const { messages, gaps } = await chain(one.server, `/channels/${channel}`, answered[0].id - 1000, 1000);
        assert.deepEqual(gaps.filter((g) => answered.some((a) => a.id >= g.from && a.id <= g.to)), [], 'a gap over what was answered');
        for (const m of messages) {
          assert.ok(!kept.has(m.id), `id ${m.id} was given twice`);
          kept.set(m.id, { channel, word: m.data });
          highest = Math.max(highest, m.id);
        }
      }
      for (const { id, channel, word } of answered) assert.deepEqual(kept.get(id), { channel, word }, `round ${round}: ${id} "${word}" was answered`);
      const words = [...kept.values()].map((k) => k.word);
      assert.equal(new Set(words).size, words.length, 'a word is kept twice');
      assert.ok(words.every((word) => tried.has(word)), 'a word that nobody published');
      for (const [id, word] of seen) assert.equal(kept.get(id)?.word, word, `${id} was delivered and vanished`);
    }
    // Batches are whole.
    const all = (await Promise.all(channels.map((c) => chain(one.server, `/channels/${c}`, 'first', 1000)))).flatMap((c) => datas(c.messages));
    const groups = new Map();
    for (const word of all) {
      const group = /^(r\d b \d+)\.\d$/.exec(word)?.[1];
      if (group) groups.set(group, (groups.get(group) ?? 0) + 1);
    }
    assert.ok(groups.size > 0);
    for (const [group, n] of groups) assert.equal(n, 7, `batch ${group} is there in part`);
    t.diagnostic(`${answered.length} answered, ${all.length} kept, ${seen.size} delivered`);
  });
});

check('kill -9 of each worker in turn while publishing: nothing answered is missing, nothing is double', { seconds: 90 }, async () => {
  await withStore({}, async (one) => {
    const sent = [];
    let over = false;
    const writers = [0, 1, 2].map(async (k) => {
      for (let i = 0; !over; i++) {
        const word = `k${k} ${i}`;
        for (;;) {
          try {
            const got = await ask(one.server, 'POST', '/channels/w', { body: word, headers: [['Idempotency-Key', word]], ms: 3000 });
            if (got.status === 201) {
              sent.push({ id: JSON.parse(got.body).id, word });
              break;
            }
          } catch { /* again, with the same key */ }
        }
      }
    });
    for (let i = 0; i < 4; i++) {
      await sleep(400);
      const pid = one.server.workerPids()[i % 2];
      one.server.signal('SIGKILL', pid);
      await poll(() => one.server.workerPids().length === 2 && !one.server.workerPids().includes(pid), 'a new worker');
    }
    over = true;
    await Promise.all(writers);
    const { messages, gaps } = await chain(one.server, '/channels/w', 'first', 1000);
    assert.deepEqual(gaps, []);
    sent.sort((a, b) => a.id - b.id);
    assert.deepEqual(messages.map((m) => [m.id, m.data]), sent.map((s) => [s.id, s.word]));
  });
});

// --- an orderly restart ------------------------------------------------------------------------

check('SIGTERM and a start: messages, marks, cursors, keys and ids go on', { seconds: 60 }, async () => {
  await withStore({ args: ['--history.count', '5', '--history.rule', 'all:* count=1000'] }, async (one) => {
    const all = [];
    for (let i = 0; i < 12; i++) all.push((await publish(one.server, 'five', `${i}`, { query: '?event=e' })).id);
    const bytes = randomBytes(100_000);
    const bin = await publish(one.server, 'all:bin', bytes, { headers: [['Content-Type', 'image/x-noise']] });
    const json = await publish(one.server, 'all:json', '{"a": [1.0]}', { headers: [['Content-Type', 'application/json']] });
    const keyed = await publish(one.server, 'all:key', 'x', { headers: [['Idempotency-Key', 'k']] });
    await publish(one.server, 'gone', 'x');
    await remove(one.server, 'gone');
    const short = await publish(one.server, 'all:ttl', 'x', { query: '?ttl=1' });
    const before = { five: await info(one.server, 'five'), list: JSON.parse((await ask(one.server, 'GET', '/channels')).body) };
    await one.server.stop();
    await one.again();
    const now = await info(one.server, 'five');
    for (const name of ['messages', 'bytes', 'first', 'last', 'trim']) assert.equal(now[name], before.five[name], name);
    const got = await history(one.server, 'five', `?since=${all[2]}`);
    assert.deepEqual([ids(got.messages), got.gap], [all.slice(-5), { from: all[2] + 1, to: all[6] }]);
    assert.equal(got.messages[0].event, 'e');
    assert.equal((await history(one.server, 'five', `?since=${all[8]}`)).gap, null, 'a cursor from before the restart is a gap');
    const [back] = (await history(one.server, 'all:bin')).messages;
    assert.deepEqual([back.id, back.type, hash(Buffer.from(back.data64, 'base64'))], [bin.id, 'image/x-noise', hash(bytes)]);
    assert.ok((await ask(one.server, 'GET', '/channels/all:json?since=first')).body.includes('"data":{"a": [1.0]}'));
    assert.equal((await publish(one.server, 'all:key', 'x', { headers: [['Idempotency-Key', 'k']] })).id, keyed.id);
    assertProblem(await post(one.server, 'all:key', 'y', { headers: [['Idempotency-Key', 'k']] }), 422);
    assert.deepEqual((await history(one.server, 'gone')).messages, []);
    await poll(async () => (await history(one.server, 'all:ttl')).messages.length === 0, 'the ttl to end', { ms: 5000 });
    assert.equal((await history(one.server, 'all:ttl', `?since=${short.id - 1}`)).gap, null, 'a ttl that ended is no gap');
    const next = await publish(one.server, 'five', 'next');
    assert.ok(next.id > json.id && next.id > keyed.id && next.id > short.id);
    assert.ok(next.id / 1000 < Date.now() + 60_000, 'ids ran far ahead of the clock');
  });
});

check('ids grow over quick restarts, and a cursor taken before one resumes after it', { seconds: 60 }, async () => {
  await withStore({}, async (one) => {
    let last = 0;
    for (let i = 0; i < 4; i++) {
      const { cursor } = await history(one.server, 'quick', '?since=now');
      const list = [];
      for (let j = 0; j < 3; j++) list.push((await publish(one.server, 'quick', `${i}.${j}`)).id);
      assert.ok(list[0] > last);
      last = list[2];
      if (i % 2) await one.server.stop();
      else await killGroup(one.server);
      await one.again();
      const got = await history(one.server, 'quick', `?since=${cursor}`);
      assert.deepEqual([ids(got.messages), got.gap], [list, null]);
    }
  });
});

check('a history setting that was lowered trims at once or by and by, and tells the gap', { seconds: 60 }, async () => {
  await withStore({}, async (one) => {
    const all = [];
    for (let i = 0; i < 20; i++) all.push((await publish(one.server, 'c', `${i}`)).id);
    await one.server.stop();
    await one.again({ args: ['--history.count', '3'] });
    all.push((await publish(one.server, 'c', 'one more')).id);
    const got = await poll(async () => {
      const now = await history(one.server, 'c', `?since=${all[0]}`);
      return now.messages.length === 3 ? now : null;
    }, 'three to be left', { ms: 5000 });
    assert.deepEqual(ids(got.messages), all.slice(-3));
    assert.deepEqual(got.gap, { from: all[0] + 1, to: all.at(-4) });
  });
});

// --- whose file it is ------------------------------------------------------------------------------

const listenFree = async () => ['--listen', `127.0.0.1:${await freePort()}`];

function assertRefused(got, what) {
  assert.equal(got.code, 1, `${what}: exit ${got.code} ${got.signal}: ${got.stderr}`);
  const lines = got.stderr.trim().split('\n');
  assert.equal(lines.length, 1, `${what}: ${got.stderr}`);
  assert.match(lines[0], /store/, what);
  assert.equal(got.stdout, '');
  assert.deepEqual(got.left, [], 'a process was left');
}

check('a second broker on the same store is refused in one line, and hurts neither', { seconds: 60 }, async () => {
  await withStore({}, async (one) => {
    const { id } = await publish(one.server, 'c', 'x');
    for (let i = 0; i < 3; i++) assertRefused(run(['serve', ...await listenFree(), '--store', one.store]), 'a second broker');
    assert.deepEqual(ids((await history(one.server, 'c')).messages), [id]);
    assert.ok((await publish(one.server, 'c', 'y')).id > id);
    await killGroup(one.server); // no lock outlives its owner
    await one.again();
    assert.equal((await history(one.server, 'c')).messages.length, 2);
  });
});

check('a file that is no store is refused in one line and stays as it was', { seconds: 60 }, async () => {
  const file = scratchPath('foreign');
  const contents = [Buffer.from('hello, not a store\n'), randomBytes(100_000), Buffer.alloc(65_536), Buffer.from('SQLite format 3\0'.padEnd(8192, '\0')), Buffer.alloc(1)];
  for (const bytes of contents) {
    writeFileSync(file, bytes);
    const before = statSync(file);
    const names = readdirSync(path.dirname(file)).filter((name) => name.startsWith('foreign'));
    assertRefused(run(['serve', ...await listenFree(), '--store', file]), `${bytes.length} bytes ${bytes.subarray(0, 8).toString('hex')}`);
    assert.ok(readFileSync(file).equals(bytes), 'the file was changed');
    assert.equal(statSync(file).mtimeMs, before.mtimeMs);
    assert.deepEqual(readdirSync(path.dirname(file)).filter((name) => name.startsWith('foreign')), names, 'it left a file beside it');
  }
  rmSync(file);
});

check('a folder, a device, a path that leads nowhere: one line, exit 1', { seconds: 60 }, async () => {
  const folder = scratchPath('folder');
  mkdirSync(folder);
  for (const where of [folder, '/dev/null', '/nowhere/at/all/store', '/proc/version']) {
    assertRefused(run(['serve', ...await listenFree(), '--store', where]), where);
  }
  assert.deepEqual(readdirSync(folder), []);
});

check('a store that was cut short or scribbled over is refused, or served without a crash', { seconds: 90 }, async () => {
  for (const [what, spoil] of [
    ['cut to a page', (file) => truncateSync(file, 4096)],
    ['cut in half', (file) => truncateSync(file, Math.floor(statSync(file).size / 2))],
    ['both heads overwritten', (file) => writeFileSync(file, Buffer.alloc(8192, 0xff), { flag: 'r+' })],
  ]) {
    await withStore({ workers: 1 }, async (one) => {
      for (let i = 0; i < 50; i++) await publish(one.server, 'c', `${i}`.padEnd(2000));
      await one.server.stop();
      spoil(one.store);
      const got = run(['serve', ...await listenFree(), '--workers', '1', '--store', one.store], { ms: 2500 });
      if (got.signal !== 'SIGKILL') assertRefused(got, what); // else it serves
      else assert.doesNotMatch(got.stderr, /died|signal|Sanitizer/, what);
      rmSync(one.store);
      rmSync(`${one.store}-lock`, { force: true });
      await one.again();
    });
  }
});

// --- full ---------------------------------------------------------------------------------------------

const body = (i, size = 8000) => `${i} `.padEnd(size, 'x');

check('store.full evict: a full store drops the oldest, tells the gap, and takes all that comes', { seconds: 90 }, async () => {
  await withStore({ args: [...KEEP, '--store.size', '16MiB'] }, async (one) => {
    const publisher = await Publisher.connect(one.server);
    const old = (await publish(one.server, 'quiet', 'the oldest')).id;
    const all = [];
    for (let i = 0; i < 3000; i += 10) all.push(...await publisher.burst('c', Array.from({ length: 10 }, (_, j) => body(i + j))));
    publisher.close();
    assert.ok(statSync(one.store).size <= 17 * 1024 * 1024, `the file has ${statSync(one.store).size} bytes`);
    const { messages, gaps } = await chain(one.server, '/channels/c', all[0] - 1, 1000);
    const kept = ids(messages);
    assert.ok(kept.length > 500 && kept.length < 2500, `${kept.length} kept`);
    assert.deepEqual(kept, all.slice(-kept.length), 'not the newest are kept');
    assert.ok(messages.every((m, i) => m.data === body(all.length - kept.length + i)));
    assert.equal(gaps.length, 1);
    assert.equal(gaps[0].from, all[0]);
    assert.equal(gaps[0].to, all[all.length - kept.length - 1]);
    const quiet = await history(one.server, 'quiet', `?since=${old - 1}`);
    assert.ok(quiet.messages.length === 1 || (quiet.gap && quiet.gap.from <= old && quiet.gap.to >= old), 'gone without a word');
    await remove(one.server, 'c');
    const { id } = await publish(one.server, 'c', 'well again');
    assert.deepEqual(ids((await history(one.server, 'c')).messages), [id]);
    await one.server.stop();
    await one.again();
    assert.deepEqual(ids((await history(one.server, 'c')).messages), [id]);
  });
});

for (const store of ['durable', 'memory']) {
  check(`store.full refuse: 507, nothing sent, nothing lost, all well after DELETE (${store})`, { seconds: 90 }, async () => {
    await withStore({ store: store === 'memory' ? 'memory' : freshStore(), args: [...KEEP, '--store.size', '16MiB', '--store.full', 'refuse'] }, async (one) => {
      const ws = await WebSocket.channel(one.server, 'c');
      const all = [];
      let refused = null;
      for (let i = 0; i < 4000 && !refused; i++) {
        const got = await post(one.server, 'c', body(i, 24_000));
        if (got.status === 201) all.push(JSON.parse(got.body).id);
        else refused = got;
      }
      assertProblem(refused, 507);
      assert.ok(all.length > 200, `full after ${all.length}`);
      const v1 = await V1.open(one.server, '/subscribe');
      const frame = await v1.ask({ op: 'publish', channel: 'c', data: body(0, 24_000) });
      assert.equal(frame.op, 'error', JSON.stringify(frame));
      const batch = await ask(one.server, 'POST', '/channels', { headers: [['Content-Type', 'application/json']],
        body: JSON.stringify([{ channel: 'c', data: body(1, 24_000) }, { channel: 'd', data: body(2, 24_000) }]) });
      assertProblem(batch, 507);
      v1.drop();
      await ws.wait(() => ws.messages.length >= all.length, 'what was answered');
      await sleep(100);
      assert.equal(ws.messages.length, all.length, 'what was refused was sent');
      ws.drop();
      const { messages, gaps } = await chain(one.server, '/channels/c', 'first', 1000);
      assert.deepEqual([ids(messages), gaps], [all, []]);
      await remove(one.server, 'c');
      const { id } = await poll(async () => {
        const got = await post(one.server, 'c', body(7, 24_000));
        return got.status === 201 ? JSON.parse(got.body) : null;
      }, 'a publish to be taken after DELETE', { ms: 5000 });
      assert.deepEqual(ids((await history(one.server, 'c')).messages), [id]);
      for (let i = 0; i < 100; i++) await publish(one.server, 'c', body(i, 24_000));
      assert.equal((await chain(one.server, '/channels/c', 'first', 1000)).messages.length, 101);
    });
  });
}

check('memory, evict: the same without a file', { seconds: 90 }, async () => {
  await withStore({ store: 'memory', args: [...KEEP, '--store.size', '16MiB'] }, async (one) => {
    const publisher = await Publisher.connect(one.server);
    const all = [];
    for (let i = 0; i < 5000; i += 10) all.push(...await publisher.burst('c', Array.from({ length: 10 }, (_, j) => body(i + j))));
    publisher.close();
    const { messages } = await chain(one.server, '/channels/c', 'first', 1000);
    assert.ok(messages.length > 500);
    assert.deepEqual(ids(messages), all.slice(-messages.length));
  });
});

// A disk that is full: a small tmpfs of our own, where we may mount one.
const mount = scratchPath('disk');
function canMount() {
  try {
    mkdirSync(mount);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=24m', 'tmpfs', mount], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

const mounted = canMount();
if (mounted) {
  process.on('exit', () => {
    try {
      execFileSync('umount', ['-l', mount], { stdio: 'ignore' });
    } catch { /* it is gone */ }
  });
  for (const full of ['evict', 'refuse']) {
    check(`a full disk, store.full ${full}: no crash, nothing answered is lost, well again after`, { seconds: 90 }, async () => {
      const store = path.join(mount, `${full}.store`);
      await withStore({ store, args: [...KEEP, '--store.size', '1GiB', '--store.full', full] }, async (one) => {
        const workers = one.server.workerPids();
        const all = [];
        const statuses = new Map();
        for (let i = 0; i < 3500; i++) {
          const got = await post(one.server, 'c', body(i));
          statuses.set(got.status, (statuses.get(got.status) ?? 0) + 1);
          if (got.status === 201) all.push(JSON.parse(got.body).id);
          else assertProblem(got, [503, 507]);
          if (got.status !== 201 && i < 3450) i = 3450;
        }
        assert.deepEqual(one.server.workerPids(), workers, `a worker died:\n${one.server.logTail()}`);
        if (full === 'refuse') assert.ok(statuses.get(507) > 0, JSON.stringify([...statuses]));
        else assert.equal(statuses.size, 1, `evict refuses: ${JSON.stringify([...statuses])}`);
        const { messages, gaps } = await chain(one.server, '/channels/c', all[0] - 1, 1000);
        assert.ok(messages.length > 500, `${messages.length} kept`);
        assert.deepEqual(ids(messages), all.slice(-messages.length));
        if (full === 'refuse') assert.equal(messages.length, all.length, 'what was answered is gone');
        else assert.ok(messages.length === all.length || gaps.length > 0);
        await remove(one.server, 'c');
        await poll(async () => (await post(one.server, 'c', 'well again')).status === 201, 'a publish to be taken', { ms: 5000 });
        await killGroup(one.server);
        await one.again();
        assert.deepEqual(new Set(datas((await history(one.server, 'c')).messages)), new Set(['well again']));
        await one.server.stop();
      });
      rmSync(store);
      rmSync(`${store}-lock`, { force: true });
    });
  }

  check('a disk that others fill, and empty again', { seconds: 90 }, async () => {
    const store = path.join(mount, 'shared.store');
    await withStore({ store, args: [...KEEP, '--store.size', '1GiB', '--store.full', 'refuse'] }, async (one) => {
      const hog = path.join(mount, 'hog');
      const all = [(await publish(one.server, 'c', body(0))).id];
      try {
        writeFileSync(hog, Buffer.alloc(24 * 1024 * 1024));
      } catch { /* as full as can be */ }
      let refused = 0;
      for (let i = 1; i < 3000 && refused < 5; i++) {
        const got = await post(one.server, 'c', body(i));
        if (got.status === 201) all.push(JSON.parse(got.body).id);
        else {
          assertProblem(got, [503, 507]);
          refused++;
        }
      }
      assert.equal(refused, 5, 'a full disk refused nothing');
      rmSync(hog);
      const { id } = await poll(async () => {
        const got = await post(one.server, 'c', 'room again');
        return got.status === 201 ? JSON.parse(got.body) : null;
      }, 'a publish to be taken', { ms: 5000 });
      all.push(id);
      assert.deepEqual(ids((await chain(one.server, '/channels/c', 'first', 1000)).messages), all);
    });
    rmSync(store);
  });
}

// --- no answer before the disk has it ------------------------------------------------------------------

const hasStrace = (() => {
  try {
    execFileSync('strace', ['-V'], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
})();

// Descriptors of the store in a process: { plain, synced }, the latter those of
// which each write is on the disk when it returns.
function storeFds(pid, store) {
  const [plain, synced] = [new Set(), new Set()];
  for (const fd of readdirSync(`/proc/${pid}/fd`)) {
    try {
      if (readlinkSync(`/proc/${pid}/fd/${fd}`) !== store) continue;
      const flags = parseInt(/flags:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/fdinfo/${fd}`, 'latin1'))[1], 8);
      (flags & 0o10000 ? synced : plain).add(Number(fd));
    } catch { /* closed meanwhile */ }
  }
  return { plain, synced };
}

async function traced(server, work, more = []) {
  const out = scratchPath(`strace-${Math.random()}`);
  const tracer = spawn('strace', ['-f', '-s', '16', '-o', out, '-e',
    'trace=recvfrom,recvmsg,fdatasync,fsync,msync,sync_file_range,write,pwrite64,writev,pwritev,pwritev2,sendto,sendmsg,io_uring_enter', ...more,
    ...server.workerPids().flatMap((pid) => ['-p', `${pid}`])], { stdio: ['ignore', 'ignore', 'pipe'] });
  let said = '';
  tracer.stderr.on('data', (chunk) => { said += chunk; });
  await poll(() => said.split('attached').length > server.workerPids().length, 'strace to attach', { ms: 10_000 });
  try {
    await work();
  } finally {
    tracer.kill('SIGINT');
    await poll(() => tracer.exitCode !== null || tracer.signalCode !== null, 'strace to end');
  }
  return readFileSync(out, 'latin1').split('\n');
}

// The calls in order of what begins and what ends: { what: 'begin' or 'end', name, fd, text }.
function events(lines) {
  const list = [];
  const open = new Map();
  for (const line of lines) {
    const [, tid, rest] = /^(\d+)\s+(.*)$/.exec(line) ?? [];
    if (!rest) continue;
    const resumed = /^<\.\.\. (\w+) resumed>(.*)$/.exec(rest);
    const call = /^(\w+)\(([^,)\s]*)/.exec(rest);
    if (resumed) {
      const begun = open.get(tid);
      open.delete(tid);
      if (begun) list.push({ ...begun, what: 'end', text: begun.text + resumed[2] });
    } else if (call) {
      const one = { name: call[1], fd: Number(call[2]), text: rest, tid };
      list.push({ ...one, what: 'begin' });
      if (rest.endsWith('<unfinished ...>')) open.set(tid, one);
      else list.push({ ...one, what: 'end' });
    }
  }
  return list;
}

// One POST after the other: before each 201 lies a sync that began after the
// last plain write of its commit and has ended. The number of 201s; throws.
function assertSynced(lines, fdsOf) {
  let answers = 0;
  let written = 0; // plain writes so far
  let durable = 0; // of them, on the disk
  let commits = 0; // syncs that ended, with something to sync or a synced write behind them
  const began = new Map(); // tid → written when its sync began
  for (const e of events(lines)) {
    const { plain, synced } = fdsOf(e.tid);
    const writes = ['write', 'pwrite64', 'writev', 'pwritev', 'pwritev2'].includes(e.name);
    if (e.what === 'begin' && /^(recvfrom|recvmsg)$/.test(e.name)) continue;
    if (e.what === 'end' && /^recv/.test(e.name) && e.text.includes('"POST ')) commits = 0;
    if (writes && plain.has(e.fd) && e.what === 'end') written++;
    if (['fdatasync', 'fsync', 'msync'].includes(e.name)) {
      if (e.what === 'begin') began.set(e.tid, written);
      else if (/= 0/.test(e.text)) {
        durable = Math.max(durable, began.get(e.tid) ?? 0);
        commits++;
      }
    }
    if (writes && synced.has(e.fd) && e.what === 'begin') assert.equal(durable, written, 'the head of the file was written before what it points to was synced');
    if (/^(sendto|sendmsg|writev|write)$/.test(e.name) && e.what === 'begin' && e.text.includes('"HTTP/1.1 201')) {
      answers++;
      assert.ok(commits > 0, `the 201 number ${answers} left without a sync since its POST came`);
      assert.equal(durable, written, `the 201 number ${answers} left while writes were not synced`);
    }
  }
  return answers;
}

if (hasStrace && !sanitized) {
  check('no 201 leaves before the end of a sync that began after the writes of its commit', { seconds: 90 }, async () => {
    await withStore({ args: [...KEEP, '--socket.uring', 'off'] }, async (one) => {
      const fds = new Map();
      for (const pid of one.server.workerPids()) {
        for (const tid of readdirSync(`/proc/${pid}/task`)) fds.set(tid, storeFds(pid, one.store));
      }
      const lines = await traced(one.server, async () => {
        for (let i = 0; i < 60; i++) await publish(one.server, 'c', body(i, i % 2 ? 10 : 5000));
      });
      const none = { plain: new Set(), synced: new Set() };
      assert.equal(assertSynced(lines, (tid) => fds.get(tid) ?? none), 60);
      // The same eyes see it where the syncs are taken out.
      assert.throws(() => assertSynced(lines.filter((line) => !/fdatasync|fsync|msync/.test(line)), (tid) => fds.get(tid) ?? none), /without a sync|was synced/);
    });
  });

  check('the same eyes see that a memory store syncs nothing', { seconds: 60 }, async () => {
    await withStore({ store: 'memory', args: ['--socket.uring', 'off'] }, async (one) => {
      const none = { plain: new Set(), synced: new Set() };
      const lines = await traced(one.server, async () => {
        for (let i = 0; i < 5; i++) await publish(one.server, 'c', 'x');
      });
      assert.throws(() => assertSynced(lines, () => none), /without a sync/);
    });
  });

  check('group commit: where a sync takes 20 ms, one serves all that wait, on both workers', { seconds: 60 }, async () => {
    await withStore({}, async (one) => {
      await traced(one.server, async () => {
        const rate = async (width) => {
          const publishers = await Promise.all(Array.from({ length: width }, () => Publisher.connect(one.server)));
          let count = 0;
          const until = Date.now() + 2000;
          await Promise.all(publishers.map(async (publisher, k) => {
            for (; Date.now() < until; count++) await publisher.publish(`c${k}`, 'x');
            publisher.close();
          }));
          return count;
        };
        const [alone, many] = [await rate(1), await rate(16)];
        assert.ok(alone > 5 && alone <= 110, `one connection publishes ${alone}: the sync is not waited for`);
        assert.ok(many > 4 * alone, `16 connections publish ${many}, one ${alone}`);
      }, ['-e', 'inject=fdatasync,fsync,msync:delay_exit=20000']);
    });
  });
}

check('the disk that was mounted here is let go', () => {
  if (mounted) execFileSync('umount', [mount], { stdio: 'ignore' });
  finish();
});
