// Limits that are settings: they hold exactly, each with the answer that the
// contract names, and the connection lives where the contract says so.
import assert from 'node:assert/strict';
import { Tcp, assertUnharmed, check, checkStop, start } from './lib/crier.mjs';
import { answer, ask, assertProblem, post, publish, request } from './lib/http.mjs';
import { WebSocket, handshake, text } from './lib/websocket.mjs';
import { V1 } from './lib/v1.mjs';

const server = await start({
  workers: 1,
  args: ['--channels.per_connection', '4', '--message.max', '64KiB', '--http.url=1KiB',
    '--http.header_bytes', '2KiB', '--http.header_count', '20'],
});
await assertUnharmed(server);
const fdsBefore = server.fds();

check('channels.per_connection: one more is an error, and the others stay', async () => {
  const v1 = await V1.channel(server, 'l0');
  for (const name of ['l1', 'l2', 'l3']) await v1.subscribe(name);
  const got = await v1.ask({ op: 'subscribe', channel: 'l4' });
  assert.equal(got.op, 'error', JSON.stringify(got));
  await publish(server, 'l4', 'not heard');
  for (const name of ['l0', 'l1', 'l2', 'l3']) {
    await publish(server, name, name);
    assert.equal((await v1.message()).data, name);
  }
  await v1.unsubscribe('l1');
  await v1.subscribe('l4');
  await publish(server, 'l4', 'heard');
  assert.equal((await v1.message()).data, 'heard');
  await v1.expectSilence();
  await v1.close();
});

check('channels.per_connection holds for the query of /subscribe too: refused, or the rest is an error', async () => {
  const query = (n) => Array.from({ length: n }, (_, i) => `channel=q${i}`).join('&');
  const v1 = await V1.open(server, `/subscribe?${query(4)}`, { expect: 4 });
  await v1.close();
  const tcp = await Tcp.connect(server.target);
  await tcp.send(handshake(server, `/subscribe?${query(5)}`, { protocol: 'crier.v1' }));
  const got = await answer(tcp);
  if (got.status !== 101) {
    assertProblem(got, [400, 413, 422]);
    tcp.destroy();
    return;
  }
  const more = new V1(new WebSocket(tcp));
  assert.equal((await more.answer()).op, 'error');
  await more.expectAlive();
  assert.equal(more.subscribed.length, 4);
  let reached = 0;
  for (let i = 0; i < 5; i++) reached += (await publish(server, `q${i}`, 'x')).subscribers;
  assert.equal(reached, 4);
  more.drop();
});

check('message.max: exactly the limit passes and one more byte is 413 or 1009', async () => {
  const max = 64 * 1024;
  await publish(server, 'size', Buffer.alloc(max, 97));
  assertProblem(await post(server, 'size', Buffer.alloc(max + 1, 97)), 413);
  const ws = await WebSocket.channel(server, 'size');
  await ws.send(text('a'.repeat(max)));
  assert.equal((await ws.text()).length, max);
  await ws.send(text('a'.repeat(max + 1)));
  await ws.expectClose(1009);
});

check('message.max: a crier.v1 publish over it is an error or 1009, and nothing is delivered', async () => {
  const watcher = await WebSocket.channel(server, 'size1');
  const v1 = await V1.channel(server, 'size0');
  await v1.send({ op: 'publish', channel: 'size1', data: 'a'.repeat(64 * 1024 + 1) });
  await v1.ws.until(() => v1.answers.length > 0 || v1.ws.closeInfo, 'an error or a close');
  if (v1.ws.closeInfo) await v1.ws.expectClose(1009);
  else assert.equal((await v1.answer()).op, 'error');
  await watcher.expectSilence();
  await watcher.close();
  v1.drop();
});

check('http.url: a longer request target is 414', async () => {
  assert.equal((await ask(server, 'GET', `/healthz?${'x'.repeat(900)}`)).status, 200);
  assertProblem(await ask(server, 'GET', `/healthz?${'x'.repeat(1100)}`), 414);
  await assertUnharmed(server);
});

check('http.header_bytes: more is 431', async () => {
  assert.equal((await ask(server, 'GET', '/healthz', { headers: [['X', 'y'.repeat(1500)]] })).status, 200);
  assertProblem(await ask(server, 'GET', '/healthz', { headers: [['X', 'y'.repeat(2100)]] }), 431);
  assertProblem(await ask(server, 'GET', '/healthz', {
    headers: Array.from({ length: 15 }, (_, i) => [`X-${i}`, 'y'.repeat(200)]),
  }), 431);
  await assertUnharmed(server);
});

check('http.header_count: more is 431', async () => {
  const headers = (n) => Array.from({ length: n }, (_, i) => [`X-${i}`, 'y']);
  assert.equal((await ask(server, 'GET', '/healthz', { headers: headers(19) })).status, 200);
  assertProblem(await ask(server, 'GET', '/healthz', { headers: headers(20) }), 431); // with Host
  await assertUnharmed(server);
});

check('a name of one long line without an end is refused, not kept', async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(`GET /${'x'.repeat(100_000)}`);
  assertProblem(await answer(tcp), [400, 414, 431]);
  tcp.destroy();
  await assertUnharmed(server);
});

checkStop(server, { fdsBefore });
