// The torture test: 200 subscribers over all transports that stop, trickle, go
// and come back; publishers at full speed; workers that are killed and stopped;
// a ring that laps; restarts. At the end each subscriber has each message of
// its channels once, in order of id, or was told of the gap.
//
// Set by SEED, SECONDS, WORKERS, DURABLE, VARIANT, RATE and VERBOSE.
import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { Crier, check, finish, freePort, scratchPath, slow, start } from './lib/crier.mjs';
import { ask as request } from './lib/http.mjs';
import { alive } from './lib/proc.mjs';
import { World, dice } from './lib/torture-world.mjs';
import { Both, History, Poll, Raw, Sse, V1 } from './lib/torture-readers.mjs';
import { Batches, Commands, Frames, Posts } from './lib/torture-publishers.mjs';
import { compareHistory, judge } from './lib/torture-judge.mjs';
import { poll, sleep } from './lib/watch.mjs';

const number = (name, usual) => Number(process.env[name] ?? usual);
const seed = number('SEED', 1);
const seconds = number('SECONDS', 15);
const variant = process.env.VARIANT ?? (process.env.DURABLE === '1' ? 'durable' : ['gaps', 'laps', 'durable'][seed % 3]);
const workers = number('WORKERS', 2);
const isVerbose = process.env.VERBOSE === '1';
const rate = number('RATE', slow > 1 ? 150 : 400);
const say = (what) => isVerbose && console.error(`# ${((performance.now()) / 1000).toFixed(2)} ${what}`);

// Memory and a ring that laps; a durable store that is killed whole; few
// messages kept, a memory store that restarts, and no io_uring.
const settings = {
  laps: { args: ['--history.count', '1000000', '--history.bytes', '0', '--history.age', '0'] },
  durable: { args: ['--history.count', '1000000', '--history.bytes', '0', '--history.age', '0', '--store', scratchPath('torture.store')] },
  none: { args: ['--history.count', '0'] },
  gaps: { args: ['--history.count', '150', '--history.bytes', '0', '--history.age', '0', '--socket.uring', 'off'], historyCount: 150 },
}[variant];

const rng = dice(seed, 1);
const range = (n, name) => Array.from({ length: n }, (_, i) => name(i));
const many = range(24, (i) => `m:${i}`);
const rooms = range(12, (i) => `r:${i % 3}:${Math.floor(i / 3)}`);
const fleeting = ['n:0', 'n:1'];
const patterns = ['r:*:1', 'r:2:*', 'r:0:**', 'm:*', 'r:**'];

const world = new World({
  seed, slow, isVerbose, historyCount: settings.historyCount ?? 0,
  pFirst: ['laps', 'durable'].includes(variant) ? 0.2 : 0, hasKeys: true,
  most: 2600, batchBytes: 3800,
  isKept: (name) => variant !== 'none' && !name.startsWith('n:'),
  highestAt: () => Infinity,
});

const listen = [`127.0.0.1:${await freePort()}`];
const args = [...settings.args, '--message.max', '4KiB', '--ring.size', '64KiB', '--tail.size', '64KiB', '--batch.max', '200',
  '--store.size', '256MiB', '--ws.ping', '1s', '--sse.keepalive', '1s', '--http.idle', '20s',
  '--history.rule', 'n:* count=0'];

const open = async () => {
  world.server = await start({ workers, args, listen, history: true });
};

const get = async (path) => {
  for (const end = Date.now() + 30_000 * slow; ;) {
    if (Date.now() > end || world.isOver) throw new Error(`GET ${path} is not answered`);
    try {
      const got = await request(world.server, 'GET', path, { ms: 5000 });
      if (got.status === 200) return JSON.parse(got.body);
      if (got.status !== 503) world.wrong(`GET ${path}: ${got.status} ${got.body}`);
    } catch { /* its worker was killed, or stands still */ }
    await sleep(50);
  }
};
world.now = async (name) => (await get(`/subscribe?${name.includes('*') ? 'pattern' : 'channel'}=${encodeURIComponent(name)}&since=now`)).cursor;

// ---- who takes part ----------------------------------------------------------------

function few(r, n) {
  const list = new Set();
  while (list.size < n) list.add(r.one([...many, ...rooms]));
  return [...list];
}

function cast() {
  const readers = [];
  const add = (n, kind, names) => {
    for (let i = 0; i < n; i++) {
      const r = dice(seed, 2, readers.length);
      readers.push(new kind(world, readers.length, r, names(r, i)));
    }
  };
  const hot = () => ['hot'];
  const one = (r) => [r.one([...many, ...rooms])];
  add(32, Raw, hot);
  add(18, Raw, one);
  add(3, Raw, () => ['n:0']);
  add(24, V1, hot);
  add(4, Both, (r) => ['hot', ...r.one([['r:1:1', 'r:1:*'], ['r:**', 'r:2:*', 'r:2:1'], ['m:*', 'm:3']])]);
  add(10, V1, one);
  add(14, V1, (r) => ['hot', ...few(r, 3)]);
  add(8, V1, (r) => [r.one(['r:*:1', 'r:2:*', 'r:0:**', 'r:**']), ...r.one([[], ['hot']]), 'm:3', 'm:7']);
  add(4, V1, () => ['m:*', 'n:0', 'n:1']);
  add(22, Sse, hot);
  add(10, Sse, one);
  add(2, Sse, () => ['n:1']);
  add(2, V1, () => ['n:*']);
  add(1, Sse, () => ['n:*', 'n:0']);
  add(1, Poll, () => ['n:*']);
  add(8, Sse, (r) => ['hot', ...few(r, 4)]);
  add(10, Sse, (r) => [...new Set([r.one(patterns), r.one(patterns), 'r:2:1', ...few(r, 1), ...r.one([[], ['hot']])])]);
  add(10, Poll, hot);
  add(5, Poll, one);
  add(4, Poll, (r) => [r.one(patterns), 'r:1:1', ...few(r, 2).filter((n) => n !== 'r:1:1')]);
  add(4, Poll, (r) => [r.one(patterns)]);
  add(3, History, hot);
  add(1, History, (r) => [r.one(patterns), 'm:1']);
  const share = rate / 10;
  const spread = [...many, ...rooms, ...fleeting];
  const publishers = [
    [Posts, ['hot'], 2], [Posts, spread, 1], [Posts, ['hot', ...spread], 1], [Batches, ['hot', ...spread], 1],
    [Batches, ['hot'], 0.5], [Commands, ['hot'], 1.5], [Commands, spread, 1], [Frames, ['hot'], 0.5], [Frames, rooms, 0.5],
  ].map(([kind, channels, weight], i) => new kind(world, i, dice(seed, 3, i), channels, share * weight));
  return { readers, publishers };
}

// ---- what happens to the broker ----------------------------------------------------

const signal = (pid, name) => {
  try {
    process.kill(pid, name);
  } catch { /* it is gone */ }
};

async function haunt(until) {
  const events = dice(seed, 4);
  let restarts = variant === 'laps' || variant === 'none' ? 0 : variant === 'durable' ? Math.max(2, Math.floor(seconds / 6)) : 1;
  const each = (seconds - 3) * 1000 / (restarts + 1);
  let next = Date.now() + each;
  while (Date.now() < until) {
    await sleep(events.between(150, 900));
    const pid = events.one(world.server.workerPids());
    if (restarts > 0 && Date.now() > next) {
      restarts -= 1;
      next = Date.now() + each;
      await restart(events);
    } else if (!pid) {
      continue;
    } else if (events.chance(0.3)) {
      say(`kill -9 ${pid}`);
      world.count('kills');
      signal(pid, 'SIGKILL');
    } else if (events.chance(0.5)) {
      const ms = events.between(200, 2500);
      say(`stop ${pid} for ${Math.round(ms)} ms`);
      world.count('standstills');
      signal(pid, 'SIGSTOP');
      await sleep(ms);
      if (alive(pid)) signal(pid, 'SIGCONT');
    }
  }
}

// All of it is killed at once. A durable store has all that was answered; one
// in memory begins anew, and whoever comes back is told.
async function restart() {
  say('kill -9 of all');
  world.count('restarts');
  world.isDown = true;
  if (variant !== 'durable') world.epoch += 1;
  world.server.killAll();
  await poll(() => world.server.exit && world.server.pids().length === 0, 'the broker to be dead', { every: 5 });
  await sleep(100); // what was on its way has come
  const before = world.highest;
  await open();
  if (variant !== 'durable') {
    const mark = { before, after: Infinity };
    world.restarts.push(mark);
    const { cursor } = await get('/channels/hot?since=now');
    if (cursor < before) world.wrong(`after the restart the broker is at ${cursor}, behind id ${before}`);
    mark.after = cursor + 1;
  }
  world.isDown = false;
}

// ---- one run -----------------------------------------------------------------------

async function markers(names) {
  const publisher = new Posts(world, 'End', dice(seed, 5), names, 1);
  const records = names.map((name) => world.compose('End', publisher.seq++, name, 'text', dice(seed, 6), 100));
  await publisher.untilAnswered(records);
  publisher.line.destroy();
  return records;
}

async function settle(readers, finals) {
  const finalOf = (unit) => Math.max(...finals.filter((r) => unit.matches(r.channel)).map((r) => r.id));
  const late = () => readers.filter((reader) => reader.missingUnits(finalOf).length > 0);
  await poll(() => {
    for (const reader of readers) reader.calm();
    return late().length === 0;
  }, 'everybody to catch up', { ms: 25_000, every: 100 }).catch(() => {
    for (const reader of late()) {
      for (const unit of reader.missingUnits(finalOf)) reader.wrong(`${unit.name}: it never came to ${finalOf(unit)}, it is at ${reader.reach(unit)}`);
    }
  });
}

check(`each subscriber gets each message once, in order, or is told of the gap (seed ${seed}, ${variant})`, { seconds: seconds + 75 }, async () => {
  const guard = setTimeout(() => { // whatever hangs
    world.wrong('it does not come to an end');
    world.isOver = true;
    world.isDown = false;
    world.server.killAll();
  }, (seconds + 60) * 1000 * slow);
  try {
    await open();
    const { readers, publishers } = cast();
    const failed = (error) => world.isOver || world.wrong(error.stack);
    say(`${readers.length} subscribers, ${variant}`);
    for (const reader of readers) reader.run().catch(failed);
    await sleep(500);
    for (const publisher of publishers) publisher.run().catch(failed);
    await haunt(Date.now() + seconds * 1000);
    say('publishers stop');
    world.isStopped = true;
    await poll(() => publishers.every((one) => one.isIdle), 'the publishers', { ms: 20_000 }).catch(() => {
      for (const one of publishers) if (!one.isIdle) world.wrong(`${one.name}: what it published is not answered`);
    });
    world.isCalm = true;
    await sleep(300);
    const finals = await markers([...world.byChannel.keys()]);
    say('the end is published');
    await settle(readers, finals);
    say('settled');
    await compareHistory(world, (channel, since) => get(`/channels/${encodeURIComponent(channel)}?since=${since}`));
    say('the history is read');
    world.isOver = true;
    judge(world, readers, publishers);
    say('judged');
    for (const reader of readers) reader.line?.destroy();
    const log = world.server.readLog();
    world.count('laps told in the log', log.split('lapped').length - 1);
    console.log(`# published ${world.answered}; ${JSON.stringify(world.counts)}`);
    assert.equal(world.errors.length, 0, `${world.errors.length} things are wrong:\n${world.errors.slice(0, 12).join('\n\n')}`);
    await world.server.stop();
    say('stopped');
  } finally {
    clearTimeout(guard);
    world.isOver = true;
    world.server?.killAll();
    rmSync(scratchPath('torture.store'), { force: true });
    finish();
  }
});
