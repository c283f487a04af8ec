// What the tests of the browser client share: clients of a server, readers that
// keep all they are told, the promise as an assertion, endless publishers, and
// WebSockets whose other end is the test.
import assert from 'node:assert/strict';
import Ws from 'ws';
import { Crier } from '../../../web/client/crier.js';
import { poll, sleep, start } from './crier.mjs';
import { publish } from './http.mjs';
import { Watch } from './watch.mjs';

// WebSockets that tell when they were made.
function counted(made = []) {
  return class extends Ws {
    constructor(...args) {
      super(...args);
      made.push({ at: Date.now(), ws: this });
    }
  };
}

// A client of `server` that is closed at the end of the test.
export function clientOf(server, t, options = {}, address = `http://${server.host}`) {
  const made = [];
  const crier = new Crier(address, { WebSocket: counted(made), ...options });
  crier.made = made;
  t.after(() => crier.close());
  return crier;
}

// A subscription that keeps all it is told.
export class Reader extends Watch {
  messages = [];
  gaps = [];
  states = [];

  constructor(crier, name, options = {}) {
    super();
    const keep = (list) => (what, more) => {
      list.push(more === undefined ? what : [what, more]);
      this.changed();
    };
    this.sub = crier.subscribe(name, keep(this.messages), { onGap: keep(this.gaps), onState: keep(this.states), ...options });
  }

  get state() {
    return [this.states.at(-1)].flat()[0];
  }

  // How often it was open.
  get opened() {
    return this.states.filter((state) => state === 'open').length;
  }

  get data() {
    return this.messages.map((message) => message.data);
  }

  describe() {
    return JSON.stringify({ messages: this.messages.length, gaps: this.gaps, states: this.states.slice(-9) });
  }

  isOpen() {
    return this.until(() => this.state === 'open', 'the subscription to open', 20_000);
  }

  count(n, ms) {
    return this.until(() => this.messages.length >= n, `${n} messages`, ms);
  }
}

// The promise: in order, none twice, and what is missing is in a gap.
export function assertPromise(reader, published) {
  const ids = reader.messages.map((message) => message.id);
  for (let i = 1; i < ids.length; i++) assert.ok(ids[i] > ids[i - 1], `${ids[i]} after ${ids[i - 1]}`);
  const got = new Map(reader.messages.map((message) => [message.id, message.data]));
  for (const [id, data] of published) {
    if (got.has(id)) assert.equal(got.get(id), data);
    else assert.ok(reader.gaps.some(({ from, to }) => from <= id && id <= to), `${id} (${data}) is missing, and no gap tells it`);
  }
}

// Publishes without end, over connections of its own; knows what was answered.
export class Source {
  published = [];
  #isOver = false;

  constructor(server, channel, { every = 2 } = {}) {
    this.done = this.#run(server, channel, every);
  }

  async #run(server, channel, every) {
    for (let n = 0; !this.#isOver; n++) {
      try {
        const data = `${channel} ${n}`;
        const { id } = await publish(server(), channel, data, { ms: 3000 });
        this.published.push([id, data]);
      } catch { /* the broker is away */ }
      await sleep(every);
    }
  }

  async stop() {
    this.#isOver = true;
    await this.done;
    return this.published;
  }
}

export async function withServer(t, options, body) {
  const server = await start(options);
  try {
    await body(server);
    if (!server.exit) await server.stop();
  } finally {
    server.killAll();
  }
}

// A WebSocket whose other end is the test.
export function scripted() {
  const sockets = [];
  class Scripted {
    readyState = 0;
    sent = [];

    constructor(url, protocols) {
      Object.assign(this, { url, protocols });
      sockets.push(this);
    }

    send(text) {
      this.sent.push(JSON.parse(text));
    }

    close() {
      this.readyState = 3;
    }

    // From the broker:
    open() {
      this.readyState = 1;
      this.onopen();
    }

    give(frame) {
      this.onmessage({ data: JSON.stringify(frame) });
    }

    drop() {
      this.readyState = 3;
      this.onclose({ code: 1006 });
    }

    // The answer to the last subscribe of a name.
    answer(name, fields) {
      const { ref } = this.sent.findLast(({ op, channel, pattern }) => op === 'subscribe' && (channel ?? pattern) === name);
      this.give({ op: 'subscribed', channel: name, gap: null, more: false, messages: [], ref, ...fields });
    }

    get asked() {
      return this.sent.filter(({ op }) => op === 'subscribe').map(({ op, ref, ...rest }) => rest);
    }
  }
  return { Scripted, sockets, socket: (n = 1) => poll(() => sockets.length >= n && sockets[n - 1], `WebSocket ${n}`) };
}

export const turn = () => new Promise(setImmediate);

export const message = (channel, id) => ({ op: 'message', channel, id, type: 'text/plain', data: `${id}` });

export function clientOfScript(t, options) {
  const script = scripted();
  const crier = new Crier('http://broker.example', { WebSocket: script.Scripted, ...options });
  t.after(() => crier.close());
  return { crier, ...script };
}
