// Many subscribers of one channel, raw and crier.v1 in turn, and the proof that
// all of them saw the same messages in the same order.
import assert from 'node:assert/strict';
import { WebSocket } from './websocket.mjs';
import { V1 } from './v1.mjs';
import { spread } from './watch.mjs';

export class Member {
  constructor(kind, client) {
    this.kind = kind;
    this.client = client;
    this.ws = client.ws ?? client;
    this.port = client.port;
    this.words = []; // data, as it came
    this.ids = []; // crier.v1 only
    client.onMessage = (message) => {
      if (kind === 'raw') {
        this.words.push(message.data.toString('utf8'));
      } else {
        this.words.push(message.data);
        this.ids.push(message.id);
      }
    };
  }

  get whole() {
    return this.ws.violation === null && this.ws.closeInfo === null && !this.ws.tcp.ended &&
      (this.client.gaps?.length ?? 0) === 0;
  }

  until(count, ms) {
    return this.ws.wait(() => this.words.length >= count, `${count} messages (${this.kind})`, ms);
  }

  drop() {
    this.ws.drop();
  }
}

export async function gather(server, channel, count, kinds = ['raw', 'v1']) {
  const members = new Array(count);
  await spread(count, 16, async (i) => {
    const kind = kinds[i % kinds.length];
    const client = kind === 'raw' ? await WebSocket.channel(server, channel) : await V1.channel(server, channel);
    members[i] = new Member(kind, client);
  });
  return members;
}

// Everybody has exactly `expected` messages (a Map of word → id), each once, in
// one order, which is the order of ids.
export function assertOneOrder(members, expected) {
  const order = [...expected].sort((a, b) => a[1] - b[1]);
  const words = order.map(([word]) => word).join('\n');
  const ids = order.map(([, id]) => id).join('\n');
  for (const member of members) {
    if (member.ws.violation) throw member.ws.violation;
    assert.equal(member.words.length, expected.size, `a ${member.kind} subscriber has another number`);
    assert.ok(member.words.join('\n') === words, `a ${member.kind} subscriber has another order or other words`);
    if (member.kind === 'v1') {
      assert.ok(member.ids.join('\n') === ids, 'a subscriber was told other ids than the publishers');
      assert.deepEqual(member.client.gaps, []);
    }
  }
}
