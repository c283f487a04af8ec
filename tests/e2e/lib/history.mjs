// History by GET, and what must hold of every answer.
import assert from 'node:assert/strict';
import { ask, segment } from './http.mjs';

const MESSAGE = ['channel', 'data', 'data64', 'event', 'id', 'type'];

// One answer of history: its shape is checked, whatever was asked.
export async function read(server, target, { headers = [], ms } = {}) {
  const got = await ask(server, 'GET', target, { headers, ms });
  assert.equal(got.status, 200, `${target}: ${got.head}\n${got.body}`);
  assert.match(got.header('content-type'), /^application\/json(;|$)/);
  return assertHistory(JSON.parse(got.body), target);
}

export function assertHistory(one, what = 'history') {
  assert.deepEqual(Object.keys(one).sort(), ['cursor', 'gap', 'messages', 'more'], what);
  assert.ok(Number.isSafeInteger(one.cursor), `${what}: the cursor is ${one.cursor}`);
  assert.equal(typeof one.more, 'boolean');
  if (one.gap !== null) assertRange(one.gap, what);
  let last = 0;
  for (const message of one.messages) {
    const keys = Object.keys(message);
    assert.ok(keys.every((key) => MESSAGE.includes(key)), `${what}: ${keys}`);
    assert.ok(('data' in message) !== ('data64' in message), `${what}: ${keys}`);
    assert.ok(Number.isSafeInteger(message.id) && message.id > last, `${what}: ${message.id} after ${last}`);
    assert.equal(typeof message.type, 'string');
    assert.equal(typeof message.channel, 'string');
    last = message.id;
  }
  if (one.messages.length > 0) {
    assert.ok(one.cursor >= last, `${what}: cursor ${one.cursor} below the last message ${last}`);
  }
  return one;
}

function assertRange(gap, what) {
  assert.deepEqual(Object.keys(gap).sort(), ['from', 'to'], what);
  assert.ok(Number.isSafeInteger(gap.from) && Number.isSafeInteger(gap.to) && gap.from <= gap.to,
    `${what}: a gap ${JSON.stringify(gap)}`);
}

export const history = (server, channel, query = '?since=first', options) =>
  read(server, `/channels/${segment(channel)}${query}`, options);

// Follows the cursor to the end in answers of `limit`; the messages, and the
// gaps that were told.
export async function chain(server, target, since, limit, { rounds = 5000 } = {}) {
  const messages = [];
  const gaps = [];
  for (let i = 0; i < rounds; i++) {
    const got = await read(server, `${target}${target.includes('?') ? '&' : '?'}since=${since}&limit=${limit}`);
    assert.ok(got.messages.length <= limit, `${got.messages.length} with a limit of ${limit}`);
    messages.push(...got.messages);
    if (got.gap) gaps.push(got.gap);
    since = got.cursor;
    if (!got.more) return { messages, gaps, cursor: got.cursor, answers: i + 1 };
    assert.ok(got.messages.length > 0, 'more, and none here');
  }
  throw new Error(`no end after ${rounds} answers`);
}

export async function info(server, channel) {
  const got = await ask(server, 'GET', `/channels/${segment(channel)}/info`);
  if (got.status === 404) return null;
  assert.equal(got.status, 200, `${got.head}\n${got.body}`);
  return JSON.parse(got.body);
}

export const remove = async (server, channel, query = '') => {
  const got = await ask(server, 'DELETE', `/channels/${segment(channel)}${query}`);
  assert.equal(got.status, 204, `${got.head}\n${got.body}`);
};

export const ids = (list) => list.map((one) => one.id);
export const datas = (list) => list.map((one) => one.data);
