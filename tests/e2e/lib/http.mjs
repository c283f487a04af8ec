// HTTP/1.1 as a strict reader sees it: an answer that a proxy could read in two
// ways is an error here.
import assert from 'node:assert/strict';
import { Tcp, bytes } from './tcp.mjs';

const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;

// The first answer in `buffer` to a request of `method`, or null if it is not
// whole yet: { status, headers: [[name, value]…], body, length, raw }.
export function parseAnswer(buffer, { method = 'GET', ended = false } = {}) {
  const stop = buffer.indexOf('\r\n\r\n');
  if (stop < 0) return null;
  const lines = buffer.toString('latin1', 0, stop).split('\r\n');
  const first = /^HTTP\/1\.1 (\d{3}) [\x20-\x7e]*$/.exec(lines[0]);
  assert.ok(first, `not a status line: ${JSON.stringify(lines[0])}`);
  const headers = lines.slice(1).map((line) => {
    const colon = line.indexOf(':');
    assert.ok(colon > 0 && TOKEN.test(line.slice(0, colon)), `not a header: ${JSON.stringify(line)}`);
    assert.ok(!/[\x00-\x08\x0a-\x1f\x7f]/.test(line), `control character in ${JSON.stringify(line)}`);
    return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
  });
  const names = headers.map(([name]) => name);
  assert.deepEqual(names.filter((name, i) => names.indexOf(name) !== i && name !== 'set-cookie'), [],
    'a header stands twice');
  const status = Number(first[1]);
  const answer = { status, headers, head: lines.join('\r\n') };
  answer.header = (name) => headers.find(([n]) => n === name.toLowerCase())?.[1];
  const body = bodyOf(buffer, stop + 4, answer, method, ended);
  if (body === null) return null;
  answer.body = body.bytes;
  answer.length = body.end;
  answer.raw = buffer.subarray(0, body.end);
  return answer;
}

function bodyOf(buffer, start, answer, method, ended) {
  const coding = answer.header('transfer-encoding');
  const length = answer.header('content-length');
  assert.ok(!(coding && length), 'both Content-Length and Transfer-Encoding');
  if (length !== undefined) assert.match(length, /^\d+$/);
  const { status } = answer;
  if (status < 200 || status === 204 || status === 304) {
    assert.ok(length === undefined || status === 304, `a ${status} with Content-Length`);
    assert.equal(coding, undefined, `a ${status} with Transfer-Encoding`);
    return { bytes: Buffer.alloc(0), end: start };
  }
  if (method === 'HEAD') return { bytes: Buffer.alloc(0), end: start };
  if (coding !== undefined) {
    assert.equal(coding.toLowerCase(), 'chunked');
    return chunks(buffer, start);
  }
  if (length === undefined) {
    assert.equal(answer.header('connection')?.toLowerCase(), 'close',
      'an answer without a length that does not close');
    return ended ? { bytes: buffer.subarray(start), end: buffer.length } : null;
  }
  const end = start + Number(length);
  return end > buffer.length ? null : { bytes: buffer.subarray(start, end), end };
}

function chunks(buffer, start) {
  const parts = [];
  for (let at = start; ;) {
    const stop = buffer.indexOf('\r\n', at);
    if (stop < 0) return null;
    const line = buffer.toString('latin1', at, stop);
    assert.match(line, /^[0-9A-Fa-f]+$/, 'not a chunk size');
    const size = parseInt(line, 16);
    const end = stop + 2 + size + 2;
    if (end > buffer.length) return null;
    assert.equal(buffer.toString('latin1', end - 2, end), '\r\n');
    if (size === 0) return { bytes: Buffer.concat(parts), end };
    parts.push(buffer.subarray(stop + 2, stop + 2 + size));
    at = end;
  }
}

// The next answer on a raw connection, taken out of its buffer.
export async function answer(tcp, method = 'GET', ms) {
  const found = await tcp.until(() => {
    const parsed = parseAnswer(tcp.buffer, { method, ended: tcp.ended });
    if (!parsed && tcp.ended) {
      throw new Error(`the connection ended before the answer: ${tcp.describe()}`);
    }
    return parsed;
  }, `the answer to a ${method}`, ms);
  tcp.take(found.length);
  return found;
}

// The bytes of a request. A Host is put in unless `headers` has one; `headers`
// are pairs, so that one may stand twice.
export function request(server, method, target, { headers = [], body, version = '1.1' } = {}) {
  const pairs = Array.isArray(headers) ? [...headers] : Object.entries(headers);
  const has = (name) => pairs.some(([n]) => n.toLowerCase() === name);
  if (!has('host')) pairs.unshift(['Host', server.host]);
  if (body !== undefined && !has('content-length') && !has('transfer-encoding')) {
    pairs.push(['Content-Length', bytes(body).length]);
  }
  const head = `${method} ${target} HTTP/${version}\r\n` +
    pairs.map(([n, v]) => `${n}: ${v}\r\n`).join('') + '\r\n';
  return Buffer.concat([Buffer.from(head, 'latin1'), bytes(body ?? '')]);
}

// One request on a connection of its own.
export async function ask(server, method, target, options = {}) {
  const tcp = await Tcp.connect(server.target);
  try {
    await tcp.send(request(server, method, target, options));
    return await answer(tcp, method, options.ms);
  } finally {
    tcp.destroy();
  }
}

export const segment = (name) => encodeURIComponent(name);

export function post(server, channel, body, { headers = [], query = '', ms } = {}) {
  return ask(server, 'POST', `/channels/${segment(channel)}${query}`, { headers, body, ms });
}

// Publishes, asserts 201 and gives the parsed answer.
export async function publish(server, channel, body, options) {
  const got = await post(server, channel, body, options);
  assert.equal(got.status, 201, `${got.head}\n${got.body}`);
  return JSON.parse(got.body);
}

// The shape of every error (RFC 9457).
export function assertProblem(got, status, what = 'the answer') {
  const statuses = [status].flat();
  assert.ok(statuses.includes(got.status), `${what}: ${got.status} instead of ${statuses}: ${got.body}`);
  assert.match(got.header('content-type') ?? '', /^application\/problem\+json(;|$)/);
  const problem = JSON.parse(got.body);
  assert.equal(problem.status, got.status);
  for (const field of ['type', 'title', 'detail']) {
    assert.equal(typeof problem[field], 'string', `${field} is missing in ${got.body}`);
    assert.notEqual(problem[field], '', `${field} is empty`);
  }
  return problem;
}
