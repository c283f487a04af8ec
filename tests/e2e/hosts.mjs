// Who may reach a broker without credentials (api section 5): by which Host,
// from which Origin, and nobody through a proxy; and what --open lifts.
import assert from 'node:assert/strict';
import { Tcp, assertUnharmed, check, checkStop, freePort, scratchPath, start } from './lib/crier.mjs';
import { answer, ask, assertProblem } from './lib/http.mjs';
import { assertSwitched, handshake } from './lib/websocket.mjs';

const path = scratchPath('hosts.sock');
const server = await start({ workers: 1, listen: [`127.0.0.1:${await freePort()}`, `unix:${path}`] });
await assertUnharmed(server);
const fdsBefore = server.fds();

// The status of a GET, a POST and a handshake with these headers; all alike.
async function tried(where, headers) {
  const statuses = [];
  for (const [method, target, body] of [['GET', '/healthz'], ['GET', '/'], ['POST', '/channels/h', 'x']]) {
    const got = await ask(where, method, target, { headers, body });
    if (got.status >= 400) assertProblem(got, got.status);
    statuses.push(got.status);
  }
  const tcp = await Tcp.connect(where.target);
  const host = headers.find(([name]) => name === 'Host')?.[1];
  await tcp.send(handshake(where, '/channels/h', { host, headers: headers.filter(([name]) => name !== 'Host') }));
  const got = await answer(tcp);
  if (got.status === 101) assertSwitched(got);
  else assertProblem(got, got.status);
  statuses.push(got.status);
  tcp.destroy();
  return `${statuses}`;
}
const FINE = '200,200,201,101';
const REFUSED = '403,403,403,403';

const goodHosts = (port) => [`127.0.0.1:${port}`, '127.0.0.1', `localhost:${port}`, 'localhost', 'LOCALHOST', `[::1]:${port}`, '[::1]',
  '127.0.0.2', `127.1.2.3:${port}`, 'localhost:1234', '[0:0:0:0:0:0:0:1]'];
for (const host of goodHosts(server.port)) {
  check(`a Host of ${host.replace(`${server.port}`, 'PORT')} is answered`, async () => {
    assert.equal(await tried(server, [['Host', host]]), FINE);
  });
}
for (const host of ['evil.test', 'localhost.evil.test', '127.0.0.1.evil.test', 'evil.test:8080', '10.0.0.1', '128.0.0.1', '0.0.0.0',
  '[::2]', '[::]', 'xlocalhost', '127.0.0.1x', '1.127.0.0', '127.0.0.1.']) {
  check(`a Host of ${host} is 403`, async () => {
    const got = await tried(server, [['Host', host]]);
    assert.ok(got === REFUSED || (/[x.]$/.test(host) && got === '400,400,400,400'), got);
  });
}

check('what is refused by its Host says what to set', async () => {
  const problem = assertProblem(await ask(server, 'GET', '/', { headers: [['Host', 'evil.test']] }), 403);
  assert.match(problem.detail, /open/);
});

for (const [name, value] of [['Forwarded', 'for=203.0.113.9'], ['X-Forwarded-For', '203.0.113.9'], ['x-forwarded-for', '127.0.0.1'],
  ['forwarded', '']]) {
  check(`what comes with ${name}: ${value || '(nothing)'} is 403`, async () => {
    const got = await tried(server, [['Host', server.host], [name, value]]);
    if (value === '') assert.ok([REFUSED, FINE].includes(got), got);
    else assert.equal(got, REFUSED);
  });
}

check('an Origin that equals the Host is answered', async () => {
  assert.equal(await tried(server, [['Host', server.host], ['Origin', `http://${server.host}`]]), FINE);
  assert.equal(await tried(server, [['Host', `localhost:${server.port}`], ['Origin', `http://localhost:${server.port}`]]), FINE);
  assert.equal(await tried(server, [['Host', `LocalHost:${server.port}`], ['Origin', `http://localhost:${server.port}`]]), FINE);
});

for (const origin of ['http://evil.test', 'null', 'http://127.0.0.1', 'http://127.0.0.1:1', 'http://localhost:PORT', 'http://127.0.0.1:PORT.evil.test',
  'http://evil.test:PORT', 'file://', 'x', 'http://127.0.0.1:PORT/', 'http://127.0.0.1:PORT@evil.test', 'http://user@127.0.0.1:PORT', ' ']) {
  check(`an Origin of "${origin}" is 403`, async () => {
    const value = origin.replaceAll('PORT', server.port);
    const got = await tried(server, [['Host', server.host], ['Origin', value]]);
    assert.ok(got === REFUSED || (origin === ' ' && got === '400,400,400,400'), got);
  });
}

check('two Origins are refused', async () => {
  const got = await ask(server, 'POST', '/channels/h', {
    headers: [['Origin', `http://${server.host}`], ['Origin', 'http://evil.test']], body: 'x',
  });
  assertProblem(got, [400, 403]);
});

check('no answer lets a foreign page read it', async () => {
  for (const target of ['/', '/healthz', '/nope']) {
    const got = await ask(server, 'GET', target, { headers: [['Origin', 'http://evil.test']] });
    assert.equal(got.status, 403);
    assert.equal(got.header('access-control-allow-origin'), undefined);
  }
});

check('a Unix socket has the same rules', async () => {
  const where = { target: { path }, host: 'localhost' };
  assert.equal(await tried(where, [['Host', 'localhost']]), FINE);
  assert.equal(await tried(where, [['Host', 'evil.test']]), REFUSED);
  assert.equal(await tried(where, [['Host', 'localhost'], ['X-Forwarded-For', '1.2.3.4']]), REFUSED);
  assert.equal(await tried(where, [['Host', 'localhost'], ['Origin', 'http://evil.test']]), REFUSED);
});

check('--open lifts the rules on Host and on proxies, never the one on Origin', async () => {
  const open = await start({ workers: 1, args: ['--open'] });
  assert.equal(await tried(open, [['Host', 'crier.example']]), FINE);
  assert.equal(await tried(open, [['Host', 'crier.example'], ['X-Forwarded-For', '203.0.113.9'], ['Forwarded', 'for=203.0.113.9']]), FINE);
  assert.equal(await tried(open, [['Host', 'crier.example'], ['Origin', 'http://crier.example']]), FINE);
  assert.equal(await tried(open, [['Host', 'crier.example'], ['Origin', 'http://evil.test']]), REFUSED);
  assert.equal(await tried(open, [['Host', 'crier.example'], ['Origin', 'null']]), REFUSED);
  assertProblem(await ask(open, 'GET', '/healthz', { headers: [['Host', 'a b']] }), 400);
  await open.stop();
});

checkStop(server, { fdsBefore });
