// Several channels and patterns that catch up in one order of ids: large
// messages, rare ones among many others, and what comes by two ways.
import assert from 'node:assert/strict';
import { check, checkStop, start } from './lib/crier.mjs';
import { publish } from './lib/http.mjs';
import { Publisher } from './lib/load.mjs';
import { Sse } from './lib/sse.mjs';
import { V1 } from './lib/v1.mjs';

const server = await start({ workers: 1, history: true, args: ['--history.bytes', '0', '--history.count', '100000'] });
const publisher = await Publisher.connect(server);
const fdsBefore = server.fds();
const text = async (channel, body) => ({ channel, body, id: (await publisher.publish(channel, body)).id });

// The messages of a stream, as { channel, body, id }.
const taken = (sse) => sse.events.map((event) => JSON.parse(event.data)).map(({ channel, data, id }) => ({ channel, body: data, id }));

async function assertStream(query, wanted) {
  const sse = await Sse.open(server, `/subscribe?${query}`);
  await sse.until(() => sse.events.length >= wanted.length, `${wanted.length} events`);
  const got = taken(sse);
  assert.deepEqual(got.map((m) => [m.id, m.channel, m.body.length]), wanted.map((m) => [m.id, m.channel, m.body.length]));
  assert.ok(got.every((m, i) => m.body === wanted[i].body), 'another body');
  sse.drop();
}

check('messages that are each larger than a slice come in order from two channels and a pattern', async () => {
  const wanted = [];
  for (let i = 0; i < 12; i++) wanted.push(await text(['big:a', 'big:b', 'bigger'][i % 3], `${i} `.padEnd([200_000, 900_000, 140_000, 10][i % 4], 'x')));
  await assertStream('channel=big:a&channel=bigger&pattern=big:*&since=first', wanted);
  await assertStream('channel=bigger&channel=big:b&channel=big:a&since=first', wanted);
});

check('a rare message of a pattern, far behind others, does not pass over those of a channel', async () => {
  const wanted = [];
  const noise = Array.from({ length: 40 }, (_, i) => `${i}`.padEnd(5000, 'n'));
  for (let i = 0; i < 6; i++) {
    wanted.push(await text('rare:one', `rare ${i}`));
    await publisher.burst('noise', noise);
    wanted.push(await text('steady', `steady ${i} a`));
    await publisher.burst('noise', noise);
    wanted.push(await text('steady', `steady ${i} b`));
  }
  await assertStream('pattern=rare:*&channel=steady&since=first', wanted);
  const starts = [];
  for (const n of [500, 501, 502, 333, 334, 335]) { // about what is searched at once
    starts.push(wanted.length);
    await publisher.burst('noise', Array.from({ length: n }, () => 'n'));
    wanted.push(await text('steady', 's'), await text('rare:one', 'r'));
  }
  for (const at of starts) {
    await assertStream(`channel=steady&pattern=rare:*&since=${wanted[at - 1].id}`, wanted.slice(at));
    await assertStream(`channel=steady&pattern=rare:*&channel=rare:one&since=${wanted[at - 1].id}`, wanted.slice(at));
  }
});

check('crier.v1: what a channel and a pattern both have comes once while either is behind, in order', async () => {
  const wanted = [];
  const since = (await text('both:x', 'before')).id;
  for (let i = 0; i < 300; i++) {
    wanted.push(await text(i % 3 ? 'both:x' : 'both:y', `${i} `.padEnd(1500, 'b')));
  }
  const v1 = await V1.open(server, '/subscribe');
  const got = [];
  v1.onMessage = (message) => got.push(message);
  const ask = { op: 'subscribe', since };
  const [first, second] = await Promise.all([v1.ask({ ...ask, channel: 'both:x' }), v1.ask({ ...ask, pattern: 'both:*' })]);
  assert.ok(first.more && second.more, 'all of it was in the answers');
  wanted.push(await text('both:x', 'live'), await text('both:y', 'live'));
  await v1.ws.until(() => got.at(-1)?.id === wanted.at(-1).id, 'the last message');
  // What one answer held may stand in frames of the other; a frame comes once.
  const framed = got.map((m) => m.id);
  assert.equal(new Set(framed).size, framed.length, 'a message came in two frames');
  for (const channel of ['both:x', 'both:y']) {
    const its = got.filter((m) => m.channel === channel).map((m) => m.id);
    assert.deepEqual(its, [...its].sort((a, b) => a - b), `${channel} is out of order`);
  }
  const all = new Set([...first.messages, ...second.messages, ...got].map((m) => m.id));
  assert.deepEqual([...all].sort((a, b) => a - b), wanted.map((m) => m.id));
  v1.drop();
});

check('without history a stream that comes back to where it was is told of no gap', async () => {
  const bare = await start({ workers: 1, args: ['--history.count', '0'] });
  try {
    const { id } = await publish(bare, 'bare', 'one');
    const sse = await Sse.channel(bare, 'bare', `?since=${id}`);
    const next = await publish(bare, 'bare', 'two');
    await sse.until(() => sse.events.length > 0, 'an event');
    assert.deepEqual(sse.events.map((e) => [e.event, e.data, Number(e.id)]), [['message', 'two', next.id]]);
    sse.drop();
    await bare.stop();
  } finally {
    bare.killAll();
  }
});

check('without history a pattern that lags is told of it', async () => {
  const bare = await start({ workers: 1, args: ['--history.count', '0'] });
  try {
    const first = (await publish(bare, 'lag:1', 'one')).id;
    const last = (await publish(bare, 'lag:2', 'two')).id;
    const sse = await Sse.open(bare, `/subscribe?pattern=lag:*&since=${first}`);
    await sse.until(() => sse.events.length > 0, 'an event');
    assert.equal(sse.events[0].event, 'gap');
    assert.deepEqual(JSON.parse(sse.events[0].data), { channel: 'lag:*', from: first + 1, to: last });
    sse.drop();
    await bare.stop();
  } finally {
    bare.killAll();
  }
});

checkStop(server, { fdsBefore });
