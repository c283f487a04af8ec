// A WebSocket client whose frames are built by hand and whose reader accepts
// nothing that RFC 6455 does not allow a server to send.
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { Tcp, bytes } from './tcp.mjs';
import { answer } from './http.mjs';
import { Watch } from './watch.mjs';

export const OP = { CONT: 0, TEXT: 1, BINARY: 2, CLOSE: 8, PING: 9, PONG: 10 };
export const ZERO = Buffer.alloc(4);
export const KEY = 'dGhlIHNhbXBsZSBub25jZQ==';
export const ACCEPT = 's3pPLMBiTxaQ9kYGzzhZRbK+xOo=';

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
export const decode = (buffer) => utf8.decode(buffer);

// One client frame. `mask`: four bytes, or null for none; `first` and `length`
// override the first byte and the length that is declared.
export function frame(op, payload = '', { fin = true, rsv = 0, mask = ZERO, first, length, form } = {}) {
  const data = Buffer.from(bytes(payload));
  const n = length ?? data.length;
  const kind = form ?? (n < 126 ? 7 : n < 65536 ? 16 : 64);
  const head = Buffer.alloc(kind === 7 ? 2 : kind === 16 ? 4 : 10);
  head[0] = first ?? ((fin ? 0x80 : 0) | (rsv << 4) | op);
  head[1] = (mask ? 0x80 : 0) | (kind === 7 ? n : kind === 16 ? 126 : 127);
  if (kind === 16) head.writeUInt16BE(n, 2);
  if (kind === 64) head.writeBigUInt64BE(BigInt(n), 2);
  if (mask) for (let i = 0; i < data.length; i++) data[i] ^= mask[i & 3];
  return Buffer.concat([head, mask ?? Buffer.alloc(0), data]);
}

export const text = (payload, options) => frame(OP.TEXT, payload, options);
export const binary = (payload, options) => frame(OP.BINARY, payload, options);

export function closeFrame(code, reason = '') {
  if (code === undefined) return frame(OP.CLOSE);
  const payload = Buffer.alloc(2 + bytes(reason).length);
  payload.writeUInt16BE(code, 0);
  bytes(reason).copy(payload, 2);
  return frame(OP.CLOSE, payload);
}

export const randomMask = () => randomBytes(4);

// Bytes in, whole frames out; throws on the first byte that is not allowed.
export class FrameReader {
  #rest = Buffer.alloc(0);
  #inMessage = false;
  #closed = false;

  get pending() {
    return this.#rest.length;
  }

  push(chunk) {
    const frames = [];
    let data = this.#rest.length > 0 ? Buffer.concat([this.#rest, chunk]) : chunk;
    for (;;) {
      const one = this.#one(data);
      if (one === null) break;
      frames.push(one);
      data = data.subarray(one.size);
    }
    this.#rest = data;
    return frames;
  }

  #one(data) {
    if (data.length === 0) return null;
    assert.ok(!this.#closed, `bytes after the close frame: ${data.subarray(0, 16).toString('hex')}`);
    if (data.length < 2) return null;
    const fin = (data[0] & 0x80) !== 0;
    const op = data[0] & 0x0f;
    const control = op >= 8;
    assert.equal(data[0] & 0x70, 0, `reserved bits in ${data.subarray(0, 8).toString('hex')}`);
    assert.ok([0, 1, 2, 8, 9, 10].includes(op), `opcode ${op}`);
    assert.equal(data[1] & 0x80, 0, 'a server frame is masked');
    let n = data[1];
    let start = 2;
    if (n === 126) {
      if (data.length < 4) return null;
      n = data.readUInt16BE(2);
      start = 4;
      assert.ok(n >= 126, 'length is not in its shortest form');
    } else if (n === 127) {
      if (data.length < 10) return null;
      n = Number(data.readBigUInt64BE(2));
      start = 10;
      assert.ok(n >= 65536 && n < 2 ** 53, 'length is not in its shortest form');
    }
    if (control) assert.ok(fin && start === 2, 'a control frame that is long or in pieces');
    else assert.equal(op === 0, this.#inMessage, 'a fragment out of its place');
    if (data.length < start + n) return null;
    if (!control) this.#inMessage = !fin;
    if (op === OP.CLOSE) this.#closed = true;
    return { fin, op, payload: data.subarray(start, start + n), size: start + n, form: start };
  }
}

// Close payload → { code, reason }; code 1005 stands for "none given".
export function readClose(payload) {
  if (payload.length === 0) return { code: 1005, reason: '' };
  assert.ok(payload.length >= 2, 'a close frame of one byte');
  const code = payload.readUInt16BE(0);
  assert.ok((code >= 1000 && code <= 1014 && ![1004, 1005, 1006].includes(code)) ||
    (code >= 3000 && code <= 4999), `close code ${code} must not be on the wire`);
  return { code, reason: decode(payload.subarray(2)) };
}

export function handshake(server, target, { headers = [], protocol, host, method = 'GET', version = '1.1' } = {}) {
  return Buffer.from(`${method} ${target} HTTP/${version}\r\n` +
    `Host: ${host ?? server.host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n` +
    `Sec-WebSocket-Key: ${KEY}\r\nSec-WebSocket-Version: 13\r\n` +
    (protocol ? `Sec-WebSocket-Protocol: ${protocol}\r\n` : '') +
    headers.map(([name, value]) => `${name}: ${value}\r\n`).join('') + '\r\n', 'latin1');
}

export function assertSwitched(got, protocol, key = KEY) {
  assert.equal(got.status, 101, `${got.head}\n${got.body}`);
  assert.equal(got.header('upgrade')?.toLowerCase(), 'websocket');
  assert.equal(got.header('connection')?.toLowerCase(), 'upgrade');
  const accept = createHash('sha1').update(key + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64');
  assert.equal(got.header('sec-websocket-accept'), accept);
  assert.equal(got.header('sec-websocket-protocol'), protocol);
  assert.equal(got.header('sec-websocket-extensions'), undefined, 'an extension nobody offered');
}

// An open WebSocket. Messages, pongs and the close lie in lists as they come.
export class WebSocket extends Watch {
  constructor(tcp, { answerPings = true } = {}) {
    super();
    this.tcp = tcp;
    this.port = tcp.port;
    this.reader = new FrameReader();
    this.answerPings = answerPings;
    this.messages = []; // { op, data, form }
    this.pings = [];
    this.pongs = [];
    this.frames = 0;
    this.closeInfo = null;
    this.closeBytes = null;
    this.violation = null;
    this.onMessage = null; // instead of the list
    this.parts = null;
    const early = tcp.take(tcp.buffer.length);
    tcp.onChunk = (chunk) => this.#take(chunk);
    tcp.socket.on('end', () => this.changed());
    tcp.socket.on('close', () => this.changed());
    if (early.length > 0) this.#take(early);
  }

  // `extra`: bytes for the same write as the handshake.
  static async connect(server, target, options = {}) {
    const tcp = await Tcp.connect(server.target);
    const first = handshake(server, target, options);
    await tcp.send(options.extra ? Buffer.concat([first, options.extra]) : first);
    assertSwitched(await answer(tcp, 'GET', options.ms), options.protocol);
    return new WebSocket(tcp, options);
  }

  static channel(server, name, options) {
    return WebSocket.connect(server, `/channels/${encodeURIComponent(name)}`, options);
  }

  describe() {
    const last = this.messages.slice(-3).map((m) => m.data.subarray(0, 80).toString('latin1'));
    return `${this.messages.length} messages, the last ${JSON.stringify(last)}; close ` +
      `${JSON.stringify(this.closeInfo)}; ${this.tcp.ended ? 'ended' : 'open'}` +
      `${this.tcp.error ? ` ${this.tcp.error.code}` : ''}`;
  }

  #take(chunk) {
    if (this.violation) return;
    try {
      for (const one of this.reader.push(chunk)) this.#frame(one);
    } catch (error) {
      this.violation = error;
    }
    this.changed();
  }

  #frame(one) {
    this.frames += 1;
    switch (one.op) {
    case OP.PING:
      this.pings.push(Buffer.from(one.payload));
      if (this.answerPings) this.send(frame(OP.PONG, one.payload));
      return;
    case OP.PONG:
      this.pongs.push(Buffer.from(one.payload));
      return;
    case OP.CLOSE:
      this.closeBytes = Buffer.from(one.payload);
      this.closeInfo = readClose(one.payload);
      return;
    }
    if (one.op !== OP.CONT) this.parts = { op: one.op, list: [], form: one.form };
    this.parts.list.push(one.payload);
    if (!one.fin) return;
    const { op, list, form } = this.parts;
    const message = { op, form, data: list.length === 1 ? Buffer.from(list[0]) : Buffer.concat(list) };
    this.parts = null;
    if (op === OP.TEXT) decode(message.data);
    if (this.onMessage) this.onMessage(message);
    else this.messages.push(message);
  }

  send(data) {
    return this.tcp.send(data);
  }

  // Like until, but ends at once when the stream is broken or over.
  wait(fn, what, ms) {
    return this.until(() => {
      if (this.violation) throw this.violation;
      const value = fn();
      if ((value === undefined || value === null || value === false) && this.tcp.ended) {
        throw new Error(`the connection ended while waiting for ${what}: ${this.describe()}`);
      }
      return value;
    }, what, ms);
  }

  async message(ms) {
    await this.wait(() => this.messages.length > 0, 'a message', ms);
    return this.messages.shift();
  }

  async text(ms) {
    const one = await this.message(ms);
    assert.equal(one.op, OP.TEXT, 'not a text frame');
    return decode(one.data);
  }

  async binary(ms) {
    const one = await this.message(ms);
    assert.equal(one.op, OP.BINARY, 'not a binary frame');
    return one.data;
  }

  async pong(ms) {
    await this.wait(() => this.pongs.length > 0, 'a pong', ms);
    return this.pongs.shift();
  }

  // The server closes: its close frame, then the end of the connection by the
  // server, whatever we do.
  async closed({ echo = true, ms } = {}) {
    await this.wait(() => this.closeInfo, 'a close frame', ms);
    if (echo) await this.send(frame(OP.CLOSE, this.closeBytes));
    await this.until(() => this.tcp.ended, 'the end of the connection', ms);
    if (this.violation) throw this.violation;
    assert.equal(this.reader.pending, 0, 'half a frame at the end');
    this.tcp.destroy();
    return this.closeInfo;
  }

  async expectClose(code, options) {
    const info = await this.closed(options);
    const codes = [code].flat();
    assert.ok(codes.includes(info.code), `close ${info.code} "${info.reason}" instead of ${codes}`);
    return info;
  }

  // We close; asserts the echo.
  async close(code = 1000) {
    if (!this.tcp.closed && !this.closeInfo) {
      await this.send(closeFrame(code));
      const info = await this.closed({ echo: false });
      assert.equal(info.code, code);
    }
    this.tcp.destroy();
  }

  drop() {
    this.tcp.destroy();
  }

  // Nothing arrived so far and nothing does in a round trip.
  async expectSilence() {
    const before = this.pongs.length;
    await this.send(frame(OP.PING, 'quiet?'));
    await this.wait(() => this.pongs.length > before, 'a pong');
    this.pongs.pop();
    assert.deepEqual(this.messages.map((m) => m.data.toString('latin1').slice(0, 100)), [],
      'something arrived');
  }
}
