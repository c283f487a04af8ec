// A private server: started on a free port with a log of its own, watched by
// pid, stopped with SIGTERM, and in any case gone when the test file ends.
import assert from 'node:assert/strict';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import test from 'node:test';
import { spawn, spawnSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { binary, sanitized, slow } from './build.mjs';
import { alive, children, fds, ofGroup, placement } from './proc.mjs';
import { Tcp, destroyAll } from './tcp.mjs';
import { WebSocket } from './websocket.mjs';
import { ask, publish } from './http.mjs';
import { poll, sleep } from './watch.mjs';

export { sanitized, slow };

// What makes every channel one without history; empty while that is the only kind.
export const NO_HISTORY = (process.env.CRIER_NO_HISTORY ?? '--history.count 0').split(' ').filter(Boolean);

const REPORT = /ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|Assertion .* failed/;
const scratch = mkdtempSync(path.join(os.tmpdir(), 'crier-e2e-'));
const started = new Set();
// Sockets keep the loop alive; so must a wait for a process.
const held = setInterval(() => {}, 60_000);
let logs = 0;

process.on('exit', (code) => {
  for (const server of started) server.killAll();
  if (code === 0) rmSync(scratch, { recursive: true, force: true });
  else process.stderr.write(`# logs of the servers: ${scratch}\n`);
});
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => process.exit(1));

export const scratchPath = (name) => path.join(scratch, name);

// Settings must come from the test alone.
export function cleanEnv(extra = {}) {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^CRIER/.test(name)));
  env.ASAN_OPTIONS ??= 'detect_leaks=1:exitcode=99:allocator_may_return_null=1';
  env.UBSAN_OPTIONS ??= 'print_stacktrace=1:halt_on_error=1:exitcode=99';
  return { ...env, ...extra };
}

export function freePort(host = '127.0.0.1') {
  return new Promise((resolve, reject) => {
    const probe = net.createServer();
    probe.once('error', reject);
    probe.listen(0, host, () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

export class Crier {
  constructor(child, log, options) {
    Object.assign(this, options);
    this.child = child;
    this.pid = child.pid;
    this.log = log;
    this.exit = null; // { code, signal }
    child.on('exit', (code, signal) => {
      this.exit = { code, signal };
    });
    started.add(this);
  }

  readLog() {
    return readFileSync(this.log, 'utf8');
  }

  logTail() {
    return this.readLog().split('\n').slice(-40).join('\n');
  }

  workerPids() {
    return children(this.pid);
  }

  // Pids of the master and all that belong to it.
  pids() {
    return [...new Set([this.pid, ...this.workerPids(), ...ofGroup(this.pid)])].filter(alive);
  }

  fds() {
    return fds(this.workerPids());
  }

  placement() {
    return placement(this.workerPids(), this.port);
  }

  signal(name, pid = this.pid) {
    process.kill(pid, name);
  }

  killAll() {
    for (const pid of this.pids()) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch { /* it is gone */ }
    }
    started.delete(this);
  }

  untilExit(what = 'the server to end', ms = 15_000) {
    return poll(() => this.exit, what, { ms, every: 10 });
  }

  assertCleanLog() {
    const log = this.readLog();
    assert.ok(!REPORT.test(log), `the log has a report:\n${log.slice(0, 20_000)}`);
  }

  // SIGTERM: exit 0, nothing left running, nothing complained of.
  async stop({ ms = 15_000 } = {}) {
    try {
      if (!this.exit) this.signal('SIGTERM');
      const end = await this.untilExit('the server to end after SIGTERM', ms);
      assert.deepEqual(end, { code: 0, signal: null }, `it ended otherwise:\n${this.logTail()}`);
      await poll(() => ofGroup(this.pid).length === 0, 'its workers to be gone', { ms: 3000 });
      this.assertCleanLog();
    } finally {
      this.killAll();
    }
  }
}

// Where a value of --listen can be reached, and the Host that goes with it.
export function addressOf(listener) {
  if (listener.startsWith('unix:')) return { target: { path: listener.slice(5) }, host: 'localhost' };
  const [, name, port] = /^(.*):(\d+)$/.exec(listener);
  const host = name.replace(/^\[(.*)\]$/, '$1');
  return { target: { host: host === '0.0.0.0' ? '127.0.0.1' : host, port: Number(port) }, port: Number(port), host: listener };
}

// Starts `crier serve`. `listen`: list of values for --listen (a free TCP port
// if there is none; the tests talk to the first); `args`: further arguments.
export async function start({ workers = 2, args = [], listen, env, history = false } = {}) {
  const listeners = listen ?? [`127.0.0.1:${await freePort()}`];
  const log = scratchPath(`crier-${++logs}.log`);
  const fd = openSync(log, 'w');
  const child = spawn(binary, ['serve', ...listeners.flatMap((l) => ['--listen', l]),
    '--workers', String(workers), ...(history ? [] : NO_HISTORY), ...args],
  { stdio: ['ignore', fd, fd], detached: true, env: cleanEnv(env), cwd: scratch });
  closeSync(fd);
  const server = new Crier(child, log, { listeners, ...addressOf(listeners[0]) });
  await poll(async () => {
    if (server.exit) return true;
    const got = await ask(server, 'GET', '/readyz', { ms: 2000 });
    return got.status === 200 && server.workerPids().length === workers;
  }, `crier to serve with ${workers} workers`, { ms: 10_000 }).then(() => {
    if (server.exit) throw new Error('it ended at once');
  }).catch((error) => {
    const tail = server.logTail();
    const end = server.exit;
    server.killAll();
    throw new Error(`${error.message}; exit ${JSON.stringify(end)}; its log:\n${tail}`);
  });
  server.firstWorkers = server.workerPids();
  return server;
}

// Runs crier to its end: { code, signal, stdout, stderr, ms, left: pids left }.
export function run(args, { env, input = '', ms = 10_000 } = {}) {
  const from = Date.now();
  const done = spawnSync(binary, args, {
    env: cleanEnv(env), input, timeout: ms * slow, killSignal: 'SIGKILL', detached: true,
    encoding: 'utf8', cwd: scratch,
  });
  return {
    code: done.status, signal: done.signal, stdout: done.stdout, stderr: done.stderr,
    ms: Date.now() - from, pid: done.pid, left: ofGroup(done.pid),
  };
}

// A test with a limit. Flat, so that every reader of TAP counts it.
export function check(name, options, fn) {
  const body = fn ?? options;
  const { seconds = 30, ...rest } = fn ? options : {};
  test(name, { timeout: seconds * slow * 1000, ...rest }, body);
}

// The same server for a whole file: after any hostile input the same workers
// run, and a well-behaved subscriber still gets what is published.
export async function assertUnharmed(server) {
  assert.deepEqual(server.workerPids(), server.firstWorkers, `a worker died:\n${server.logTail()}`);
  server.canary ??= await WebSocket.channel(server, 'canary');
  const word = `alive ${Math.random()}`;
  await publish(server, 'canary', word);
  assert.equal(await server.canary.text(), word);
}

// To be the last test of a file: descriptors came back, and the stop is clean.
export function checkStop(server, { fdsBefore } = {}) {
  check('the server has let go of every connection and stops cleanly', async () => {
    try {
      server.canary?.drop();
      destroyAll();
      if (fdsBefore !== undefined) {
        await poll(() => server.fds() <= fdsBefore, `descriptors to fall to ${fdsBefore}`,
          { ms: 5000 }).catch((error) => {
          throw new Error(`${error.message}; there are ${server.fds()}`);
        });
      }
      await server.stop();
    } finally {
      server.killAll();
      finish();
    }
  });
}

// Lets the process end.
export function finish() {
  destroyAll();
  clearInterval(held);
}

export { sleep, poll, Tcp };
