// A reader of event streams that keeps every byte, and reads them by the rules
// of the HTML standard (9.2.6), on its own.
import assert from 'node:assert/strict';
import { Tcp } from './tcp.mjs';
import { request } from './http.mjs';
import { Watch } from './watch.mjs';

const utf8 = new TextDecoder('utf-8', { fatal: true });

export class Sse extends Watch {
  constructor(tcp) {
    super();
    this.tcp = tcp;
    this.port = tcp.port;
    this.raw = []; // chunks after the head
    this.rest = Buffer.alloc(0);
    this.head = null;
    this.headAt = 0;
    this.events = []; // { id, event, data }; without data: not here
    this.lastId = ''; // what a browser would send
    this.ids = []; // every id line, in order
    this.cursors = []; // ids of blocks without data
    this.retry = null;
    this.onEvent = null;
    this.#fresh();
    tcp.onChunk = (chunk) => this.#take(chunk);
    tcp.socket.on('close', () => this.changed());
    tcp.socket.on('end', () => this.changed());
  }

  static async open(server, target, { headers = [], method = 'GET' } = {}) {
    const tcp = await Tcp.connect(server.target);
    const self = new Sse(tcp);
    self.from = performance.now();
    await tcp.send(request(server, method, target, { headers: [['Accept', 'text/event-stream'], ...headers] }));
    await self.until(() => self.head || tcp.ended, 'the head of the stream');
    assert.ok(self.head, 'the connection ended before the head');
    return self;
  }

  static channel(server, name, query = '', options) {
    return Sse.open(server, `/channels/${encodeURIComponent(name)}${query}`, options);
  }

  describe() {
    return `${this.events.length} events, the last ${JSON.stringify(this.events.slice(-2)).slice(0, 300)}; ${this.tcp.ended ? 'ended' : 'open'}`;
  }

  get bytes() {
    return Buffer.concat(this.raw);
  }

  get ended() {
    return this.tcp.ended;
  }

  header(name) {
    return this.head.find(([n]) => n === name.toLowerCase())?.[1];
  }

  #fresh() {
    this.block = { data: [], event: '', id: null };
  }

  #take(chunk) {
    let data = this.rest.length ? Buffer.concat([this.rest, chunk]) : chunk;
    if (!this.head) {
      const stop = data.indexOf('\r\n\r\n');
      if (stop < 0) {
        this.rest = data;
        return;
      }
      const lines = data.toString('latin1', 0, stop).split('\r\n');
      this.status = Number(/^HTTP\/1\.1 (\d{3}) /.exec(lines[0])[1]);
      this.head = lines.slice(1).map((line) => [line.slice(0, line.indexOf(':')).toLowerCase(), line.slice(line.indexOf(':') + 1).trim()]);
      this.headAt = performance.now();
      this.chunked = this.header('transfer-encoding') === 'chunked';
      data = data.subarray(stop + 4);
      this.rest = Buffer.alloc(0);
    }
    if (this.chunked) throw new Error('a stream in chunks is not read here');
    if (data.length > this.rest.length) this.raw.push(chunk.subarray(chunk.length - Math.min(chunk.length, data.length)));
    let at = 0;
    for (;;) { // the broker ends its lines by LF alone
      const stop = data.indexOf(10, at);
      if (stop < 0) break;
      this.#line(data.subarray(at, stop));
      at = stop + 1;
    }
    this.rest = data.subarray(at);
    this.changed();
  }

  #line(bytes) {
    assert.ok(!bytes.includes(13), `a CR in a line: ${JSON.stringify(bytes.toString('latin1').slice(0, 100))}`);
    const line = utf8.decode(bytes);
    if (line === '') {
      this.#dispatch();
      return;
    }
    if (line.startsWith(':')) return;
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? '' : line.slice(colon + 1);
    if (value.startsWith(' ')) value = value.slice(1);
    if (field === 'data') this.block.data.push(value);
    else if (field === 'event') this.block.event = value;
    else if (field === 'id') this.block.id = value;
    else if (field === 'retry') this.retry = Number(value);
    else throw new Error(`a field that nobody knows: ${field}`);
  }

  #dispatch() {
    const { data, event, id } = this.block;
    this.#fresh();
    if (id !== null) {
      assert.match(id, /^\d+$/);
      this.lastId = id;
      this.ids.push(Number(id));
    }
    if (data.length === 0) {
      if (id !== null) this.cursors.push(Number(id));
      return;
    }
    const one = { id: Number(this.lastId), event: event || 'message', data: data.join('\n') };
    if (this.onEvent) this.onEvent(one);
    else this.events.push(one);
  }

  async event(ms) {
    await this.until(() => {
      if (this.events.length === 0 && this.ended) throw new Error(`the stream ended: ${this.describe()}`);
      return this.events.length > 0;
    }, 'an event', ms);
    return this.events.shift();
  }

  async take(count, ms) {
    await this.until(() => {
      if (this.events.length < count && this.ended) throw new Error(`the stream ended: ${this.describe()}`);
      return this.events.length >= count;
    }, `${count} events`, ms);
    return this.events.splice(0, count);
  }

  drop() {
    this.tcp.destroy();
  }
}
