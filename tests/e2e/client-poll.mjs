// The browser client where neither WebSockets nor streams get through.
import assert from 'node:assert/strict';
import { clientOf, withServer } from './lib/client.mjs';
import { assertFidelity, proxyOf, throughCuts } from './lib/client-proxy.mjs';
import { check, finish, sleep } from './lib/crier.mjs';

check('neither WebSocket nor streams: long polls, complete through cuts', { seconds: 90 }, (t) => withServer(t, { history: true }, async (server) => {
  const proxy = await proxyOf(server, t, { refuses: true, holds: true });
  const crier = clientOf(server, t, {}, proxy.url);
  await assertFidelity(server, crier);
  await throughCuts(server, proxy, crier, ['a', 'b', 'room:*', 'deep:**'], { rounds: 2 }); // each loss costs a try of a stream
  assert.ok(proxy.count('poll') > 5);
  const polls = proxy.count('poll');
  await sleep(1500);
  assert.ok(proxy.count('poll') <= polls + 1, 'it polls without waiting');
}));

check('all has ended', () => finish());
