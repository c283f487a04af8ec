// Peers that take their time: half a request, silence after the handshake, no
// answer to a ping; and what SIGTERM tells a WebSocket. Short limits.
import assert from 'node:assert/strict';
import { Tcp, assertUnharmed, check, checkStop, poll, slow, sleep, start } from './lib/crier.mjs';
import { answer, parseAnswer, request } from './lib/http.mjs';
import { OP, WebSocket, frame, text } from './lib/websocket.mjs';
import { V1 } from './lib/v1.mjs';

const server = await start({
  workers: 1,
  args: ['--http.timeout', '1s', '--http.idle', '2s', '--ws.ping', '1s', '--ws.fragments', '8'],
});
const fdsBefore = server.fds();

// How a connection ended that was too slow: closed, with or without a 408.
function assertTimedOut(tcp) {
  if (tcp.buffer.length === 0) return;
  assert.equal(parseAnswer(tcp.buffer, { ended: true })?.status, 408, tcp.describe());
}

check('H16: a peer that sends nothing is let go', async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.untilEnd('the end of a silent connection', 6000);
  assertTimedOut(tcp);
  tcp.destroy();
});

check('H16: the limit is for the whole head, not for each byte; others are served meanwhile', { seconds: 60 }, async () => {
  const crowd = await Promise.all(Array.from({ length: 50 }, () => Tcp.connect(server.target)));
  const from = Date.now();
  const bytes = request(server, 'GET', `/healthz?${'x'.repeat(200)}`);
  const dripping = crowd.map((tcp) => tcp.sendPieces(bytes, { pause: 200 }));
  await assertUnharmed(server);
  await Promise.all(crowd.map((tcp) => tcp.untilEnd('the end of a dripping connection', 6000)));
  assert.ok(Date.now() - from < 6000 * slow);
  for (const tcp of crowd) assertTimedOut(tcp);
  for (const tcp of crowd) tcp.destroy();
  await Promise.all(dripping);
  await assertUnharmed(server);
});

check('an idle keep-alive connection is closed after http.idle without a word', async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(request(server, 'GET', '/healthz'));
  assert.equal((await answer(tcp)).status, 200);
  const from = Date.now();
  await tcp.untilEnd('the end of an idle connection', 8000);
  assert.ok(Date.now() - from > 900, 'it was closed too early');
  assert.equal(tcp.buffer.length, 0, tcp.describe());
  tcp.destroy();
});

check('a WebSocket that is silent is pinged, and lives as long as it answers', async () => {
  const ws = await WebSocket.channel(server, 'pinged');
  await ws.wait(() => ws.pings.length >= 3, 'three pings', 8000);
  assert.equal(ws.closeInfo, null);
  await ws.close();
});

check('C07: a WebSocket that does not answer pings is dropped after one more period', async () => {
  const ws = await WebSocket.channel(server, 'deaf', { answerPings: false });
  await ws.until(() => ws.tcp.ended, 'the end of a deaf connection', 8000);
  assert.ok(ws.pings.length >= 1, 'it was never pinged');
  assert.equal(ws.violation, null);
  await poll(() => !server.placement().has(ws.port), 'the server to let the socket go', { ms: 5000 });
  ws.drop();
});

check('F21: any byte counts as life, also half a frame', { seconds: 40 }, async () => {
  const ws = await WebSocket.channel(server, 'dripping', { answerPings: false });
  const whole = text('slowly but surely');
  for (const byte of whole) {
    await ws.send(Buffer.from([byte]));
    await sleep(250);
  }
  assert.equal(await ws.text(), 'slowly but surely');
  ws.drop();
});

check('eight fragments are a message, many more than ws.fragments are refused', async () => {
  const pieces = (n) => Buffer.concat(Array.from({ length: n }, (_, i) =>
    frame(i === 0 ? OP.TEXT : OP.CONT, 'x', { fin: i === n - 1 })));
  const ws = await WebSocket.channel(server, 'pieces');
  await ws.send(pieces(8));
  assert.equal(await ws.text(), 'x'.repeat(8));
  await ws.send(pieces(20));
  await ws.expectClose([1008, 1009]);
});

check('crier.v1: the cursor that comes with the ping covers what was delivered', async () => {
  const v1 = await V1.channel(server, 'cursor');
  const id = await v1.publish('cursor', { data: 'x' });
  await v1.message();
  await v1.ws.wait(() => v1.cursors.some((c) => c.id >= id), 'a cursor at or after the message', 8000);
  assert.ok(v1.cursors.every((c, i, all) => Number.isSafeInteger(c.id) && (i === 0 || c.id >= all[i - 1].id)));
  await v1.close();
});

checkStop(server, { fdsBefore });
