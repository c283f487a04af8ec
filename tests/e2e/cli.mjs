// The command line: flags, settings, what is refused with which exit code and
// which one line, and the kinds of listeners.
import assert from 'node:assert/strict';
import net from 'node:net';
import { existsSync, statSync, writeFileSync } from 'node:fs';
import { check, cleanEnv, finish, freePort, poll, run, scratchPath, sleep, slow, start } from './lib/crier.mjs';
import { ask, publish } from './lib/http.mjs';
import { WebSocket, text } from './lib/websocket.mjs';

// One clear line on stderr, nothing else, the right code, and nothing running.
function assertFails(done, code, ...words) {
  assert.equal(done.code, code, `exit ${done.code ?? done.signal}: ${done.stderr}`);
  assert.match(done.stderr, /^[^\n]+\n$/, `not one line: ${JSON.stringify(done.stderr)}`);
  for (const word of words) {
    if (word instanceof RegExp) assert.match(done.stderr, word);
    else assert.ok(done.stderr.includes(word), `"${word}" is not in: ${done.stderr}`);
  }
  assert.equal(done.stdout, '');
  assert.deepEqual(done.left, [], 'something is left running');
}

check('--version prints the name and a version, exit 0', () => {
  for (const args of [['--version']]) {
    const done = run(args);
    assert.equal(done.code, 0, done.stderr);
    assert.match(done.stdout, /^crier \d+\.\d+\.\d+\S*\n/);
    assert.equal(done.stderr, '');
  }
});

check('--help names the commands and the settings, exit 0', () => {
  for (const args of [['--help'], ['serve', '--help']]) {
    const done = run(args);
    assert.equal(done.code, 0, done.stderr);
    for (const word of ['serve', '--listen', '--workers']) assert.ok(done.stdout.includes(word), `${word} is not in ${args}`);
    assert.equal(done.stderr, '');
    for (const line of done.stdout.split('\n')) assert.ok(line.length <= 100, `a long line: ${line}`);
  }
});

check('check tells that the settings are right, exit 0, and starts nothing', () => {
  const done = run(['check']);
  assert.equal(done.code, 0, done.stderr);
  assert.deepEqual(done.left, []);
});

check('check finds what serve would refuse', () => {
  assertFails(run(['check', '--workers', 'many']), 2, 'workers');
});

const usage = [
  ['a flag that is none', ['serve', '--nonsense'], ['nonsense']],
  ['a short flag that is none', ['serve', '-Z'], ['-Z']],
  ['a flag before any command', ['--nonsense'], ['nonsense']],
  ['a command that is none', ['frobnicate'], ['frobnicate']],
  ['a word too many', ['serve', 'extra'], ['extra']],
  ['a flag without its value', ['serve', '--workers'], ['workers']],
  ['a flag without its value, at --listen', ['serve', '--listen'], ['listen']],
  ['an unknown setting: workrs', ['serve', '--workrs', '2'], ['workrs', "'workers'"]],
  ['an unknown setting: message.mx', ['serve', '--message.mx=1MiB'], ['message.mx', 'message.max']],
  ['an unknown setting: http.idel', ['serve', '--http.idel', '5s'], ['http.idel', 'http.idle']],
  ['a number that is none', ['serve', '--workers', 'two'], ['workers', 'two']],
  ['a negative number', ['serve', '--workers', '-1'], ['workers', '-1']],
  ['an absurd number of workers', ['serve', '--workers', '99999999999999999999'], ['workers']],
  ['a number with a tail', ['serve', '--workers', '2x'], ['workers', '2x']],
  ['an empty value', ['serve', '--workers='], ['workers']],
  ['a size that is none', ['serve', '--message.max', '1 potato'], ['message.max', '1 potato']],
  ['a size too big for any integer', ['serve', '--message.max', '99999999999999999999GiB'], ['message.max']],
  ['a duration that is none', ['serve', '--http.idle', 'soon'], ['http.idle', 'soon']],
  ['a negative duration', ['serve', '--http.idle', '-5s'], ['http.idle']],
  ['a word that is not among the choices', ['serve', '--slow', 'maybe'], ['slow', 'maybe']],
  ['a boolean that is none', ['serve', '--open=perhaps'], ['open', 'perhaps']],
  ['a ring smaller than sixteen messages', ['serve', '--ring.size', '1MiB', '--message.max', '1MiB'], ['ring.size']],
  ['a history rule that is none', ['serve', '--history.rule', 'news:* count=lots'], ['history.rule', 'lots']],
  ['an address without a port', ['serve', '--listen', '127.0.0.1'], ['127.0.0.1']],
  ['a port that is none', ['serve', '--listen', '127.0.0.1:http'], ['127.0.0.1:http']],
  ['a port above 65535', ['serve', '--listen', '127.0.0.1:65536'], ['65536']],
  ['an address that is none', ['serve', '--listen', '127.0.0.1.1:80'], ['127.0.0.1.1']],
  ['an IPv6 address without brackets', ['serve', '--listen', '::1:8080'], ['::1:8080']],
];
for (const [name, args, words] of usage) {
  check(`${name} is exit 2 and one line that names it`, () => assertFails(run(args), 2, ...words));
}

check('a setting that is wrong in the environment is exit 2 and named', async () => {
  const port = await freePort();
  assertFails(run(['serve', '--listen', `127.0.0.1:${port}`], { env: { CRIER_WORKERS: 'many' } }), 2, 'many', /workers/i);
});

check('a setting comes from the environment, and the command line wins over it', async () => {
  const port = await freePort();
  const listen = [`127.0.0.1:${port}`];
  const server = await start({ workers: 3, listen, env: { CRIER_WORKERS: '1', CRIER_MESSAGE_MAX: '1KiB' } });
  assert.equal(server.workerPids().length, 3);
  assert.equal((await ask(server, 'POST', '/channels/x', { body: 'x'.repeat(1024) })).status, 201);
  assert.equal((await ask(server, 'POST', '/channels/x', { body: 'x'.repeat(1025) })).status, 413);
  await server.stop();
});

check('sizes and durations take units, in both spellings of a flag', async () => {
  const server = await start({ workers: 1, args: ['--message.max=2KiB', '--http.idle', '1500ms', '--watchdog', '1m', '--ws.ping=10s'] });
  assert.equal((await ask(server, 'POST', '/channels/x', { body: 'x'.repeat(2048) })).status, 201);
  assert.equal((await ask(server, 'POST', '/channels/x', { body: 'x'.repeat(2049) })).status, 413);
  await server.stop();
});

check('a port in use is exit 1 and one line; the one that has it serves on', async () => {
  const other = net.createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => other.once('listening', resolve));
  const { port } = other.address();
  const done = run(['serve', '--listen', `127.0.0.1:${port}`, '--workers', '2']);
  assertFails(done, 1, `${port}`, /in use/i);
  assert.ok(done.ms < 2000 * slow);
  other.close();
  const server = await start({ workers: 2 });
  assertFails(run(['serve', '--listen', server.host, '--workers', '2']), 1, server.host); // also with SO_REUSEPORT
  assertFails(run(['serve', '--listen', `127.0.0.1:${await freePort()}`, '--listen', server.host]), 1, server.host);
  await publish(server, 'still', 'here');
  assert.deepEqual(server.workerPids(), server.firstWorkers);
  await server.stop();
});

check('an address that is not ours is exit 1 and one line', () => {
  assertFails(run(['serve', '--open', '--listen', '203.0.113.7:8080']), 1, '203.0.113.7');
});

check('without --open it refuses to listen beyond loopback, and says what to set', async () => {
  const port = await freePort();
  for (const listen of [`0.0.0.0:${port}`, `[::]:${port}`, '203.0.113.7:8080']) {
    const done = run(['serve', '--listen', listen]);
    assert.ok([1, 2].includes(done.code), `exit ${done.code ?? done.signal}`);
    assertFails(done, done.code, '--open');
  }
});

check('with --open it listens on every address', async () => {
  const port = await freePort();
  const server = await start({ workers: 1, listen: [`0.0.0.0:${port}`], args: ['--open'] });
  assert.equal((await ask(server, 'GET', '/healthz')).status, 200);
  await server.stop();
});

check('it says where it listens and one curl line to try', async () => {
  const server = await start({ workers: 1 });
  const log = await poll(() => server.readLog().includes('curl') && server.readLog(), 'the curl line');
  assert.ok(log.includes(server.host), log);
  assert.match(log, new RegExp(`curl .*${server.host.replaceAll('.', '\\.')}/channels/`));
  await server.stop();
});

check('IPv6: [::1] serves, by its own Host', async () => {
  const port = await freePort('::1');
  const server = await start({ workers: 2, listen: [`[::1]:${port}`] });
  const ws = await WebSocket.channel(server, 'six');
  assert.equal((await publish(server, 'six', 'x')).subscribers, 1);
  assert.equal(await ws.text(), 'x');
  await ws.close();
  await server.stop();
});

check('a Unix socket serves, and its file is gone after the stop', async () => {
  const path = scratchPath('crier.sock');
  const server = await start({ workers: 2, listen: [`unix:${path}`] });
  assert.ok(statSync(path).isSocket());
  const all = [];
  for (let i = 0; i < 8; i++) all.push(await WebSocket.channel(server, 'unix'));
  assert.equal((await publish(server, 'unix', 'x')).subscribers, 8);
  await all[0].send(text('y'));
  for (const ws of all) {
    assert.equal(await ws.text(), 'x');
    assert.equal(await ws.text(), 'y');
    ws.drop();
  }
  await server.stop();
  assert.ok(!existsSync(path), 'the socket file stayed');
});

check('O06: a stale socket file is replaced; a live one is not, nor a file that is no socket', async () => {
  const path = scratchPath('stale.sock');
  const first = await start({ workers: 1, listen: [`unix:${path}`] });
  for (const pid of first.pids()) process.kill(pid, 'SIGKILL');
  await first.untilExit();
  await poll(() => first.pids().length === 0, 'all to be gone');
  assert.ok(existsSync(path), 'nothing stale is left to try with');
  const second = await start({ workers: 1, listen: [`unix:${path}`] });
  assertFails(run(['serve', '--listen', `unix:${path}`]), 1, path);
  assert.equal((await publish(second, 'x', 'still here')).channel, 'x');
  await second.stop();
  const file = scratchPath('precious');
  writeFileSync(file, 'data');
  assertFails(run(['serve', '--listen', `unix:${file}`]), 1, file);
  assert.ok(statSync(file).isFile(), 'it removed a file');
});

check('a directory that is not there, and a path that is too long, are exit 1 or 2 and one line', () => {
  for (const path of [scratchPath('no/such/place.sock'), `/tmp/${'x'.repeat(200)}.sock`]) {
    const done = run(['serve', '--listen', `unix:${path}`]);
    assert.ok([1, 2].includes(done.code));
    assertFails(done, done.code, /such|place|path|socket/i);
  }
});

check('several listeners are one broker', async () => {
  const path = scratchPath('several.sock');
  const [one, two, six] = [await freePort(), await freePort(), await freePort('::1')];
  const server = await start({ workers: 2, listen: [`127.0.0.1:${one}`, `127.0.0.1:${two}`, `[::1]:${six}`, `unix:${path}`] });
  const at = (target, host) => ({ target, host });
  const places = [at({ host: '127.0.0.1', port: one }, `127.0.0.1:${one}`), at({ host: '127.0.0.1', port: two }, `127.0.0.1:${two}`),
    at({ host: '::1', port: six }, `[::1]:${six}`), at({ path }, 'localhost')];
  const all = [];
  for (const place of places) all.push(await WebSocket.channel(place, 'several'));
  for (const [i, place] of places.entries()) {
    assert.equal((await publish(place, 'several', `by ${i}`)).subscribers, 4);
    for (const ws of all) assert.equal(await ws.text(), `by ${i}`);
  }
  for (const ws of all) ws.drop();
  await server.stop();
});

check('crier alone serves on 127.0.0.1:8080 with one worker per core, or says that the port is taken', async () => {
  const probe = net.createServer();
  const free = await new Promise((resolve) => {
    probe.once('error', () => resolve(false));
    probe.listen(8080, '127.0.0.1', () => probe.close(() => resolve(true)));
  });
  if (!free) { // somebody else's: then that is what it has to say
    assertFails(run([]), 1, '127.0.0.1:8080');
    return;
  }
  const { spawn } = await import('node:child_process');
  const { binary } = await import('./lib/build.mjs');
  const { children } = await import('./lib/proc.mjs');
  const child = spawn(binary, [], { stdio: 'ignore', env: cleanEnv() });
  const exited = new Promise((resolve) => child.once('exit', (code) => resolve(code)));
  try {
    const place = { target: { host: '127.0.0.1', port: 8080 }, host: '127.0.0.1:8080' };
    await poll(async () => (await ask(place, 'GET', '/readyz')).status === 200, 'service on 8080');
    assert.ok(children(child.pid).length >= 1);
    assert.equal((await publish(place, 'news', 'hello')).subscribers, 0);
    child.kill('SIGTERM');
    assert.equal(await exited, 0);
  } finally {
    child.kill('SIGKILL');
  }
});

check('settings that need descriptors: it starts under a small limit and recovers, or says why not (O04)', async () => {
  const { spawn } = await import('node:child_process');
  const { binary } = await import('./lib/build.mjs');
  const { children, cpuMs } = await import('./lib/proc.mjs');
  const { Tcp } = await import('./lib/crier.mjs');
  const port = await freePort();
  const child = spawn('/bin/sh', ['-c', 'ulimit -n 64; exec "$0" serve --listen "$1" --workers 1', binary, `127.0.0.1:${port}`],
    { stdio: ['ignore', 'pipe', 'pipe'], env: cleanEnv() });
  let said = '';
  child.stderr.on('data', (chunk) => { said += chunk; });
  child.stdout.on('data', () => {});
  let code = null;
  const exited = new Promise((resolve) => child.once('exit', (c) => resolve(code = c)));
  const place = { target: { host: '127.0.0.1', port }, host: `127.0.0.1:${port}` };
  try {
    await poll(async () => code !== null || (await ask(place, 'GET', '/readyz')).status === 200, 'service or a refusal');
    if (code !== null) {
      assert.ok([1, 2].includes(code) && /descriptor|file/i.test(said), `exit ${code}: ${said}`);
      return;
    }
    const crowd = [];
    for (let i = 0; i < 200; i++) crowd.push(await Tcp.connect(place.target));
    await sleep(300);
    const busy = cpuMs(children(child.pid));
    await sleep(1000);
    assert.ok(cpuMs(children(child.pid)) - busy < 200 * slow, 'a worker burns CPU while it is full');
    for (const tcp of crowd) tcp.destroy();
    await poll(async () => (await ask(place, 'GET', '/healthz', { ms: 1000 })).status === 200, 'service after the crowd left', { ms: 5000 });
    child.kill('SIGTERM');
    assert.equal(await exited, 0, said);
  } finally {
    child.kill('SIGKILL');
  }
});

check('everything is let go', () => finish());
