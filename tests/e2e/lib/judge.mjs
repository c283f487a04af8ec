// Two parsers that others wrote judge the bytes of a server: npm's ws, and
// Python's wsproto where it is installed. Both give
// { events: [[kind, length, sha256, text]…], error, half }.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { Receiver } from 'ws';

const script = fileURLToPath(new URL('judge.py', import.meta.url));
const python = ['/usr/bin/python3', 'python3'].find((name) =>
  spawnSync(name, ['-c', 'import wsproto']).status === 0);

export const hash = (data) => createHash('sha256').update(data).digest('hex');

function byWs(bytes) {
  return new Promise((resolve) => {
    const events = [];
    const receiver = new Receiver({ isServer: false, allowSynchronousEvents: true });
    const note = (kind, data) => events.push([kind, data.length,
      kind === 'message' ? hash(data) : '', data.subarray(0, 200).toString('latin1')]);
    const done = (error) => resolve({ events, error: error?.message ?? null, half: receiver._fragmented > 0 });
    receiver.on('message', (data) => note('message', data));
    receiver.on('ping', (data) => note('ping', data));
    receiver.on('pong', (data) => note('pong', data));
    receiver.on('conclude', (code, reason) => events.push(['close', code, '', reason.toString('latin1')]));
    receiver.on('error', done);
    receiver.on('close', () => done(null));
    receiver.end(bytes, () => setImmediate(() => done(null)));
  });
}

function byWsproto(bytes) {
  const run = spawnSync(python, [script], { input: bytes, maxBuffer: 1 << 28 });
  assert.equal(run.status, 0, `${run.stderr}`);
  return JSON.parse(run.stdout);
}

// What both agree on; throws where they do not, or where either finds a fault.
export async function judge(bytes) {
  const first = await byWs(bytes);
  assert.equal(first.error, null, `ws: ${first.error}`);
  if (python) {
    const second = byWsproto(bytes);
    assert.equal(second.error, null, `wsproto: ${second.error}`);
    const plain = (list) => list.map((event) => event.join('|')).join('\n');
    assert.ok(plain(first.events) === plain(second.events), 'ws and wsproto saw different frames');
  }
  return first.events;
}
