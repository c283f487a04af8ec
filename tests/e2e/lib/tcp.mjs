// A raw client: sends exactly the bytes it is given, in the pieces it is given,
// and keeps what comes back. It never ends the connection by itself.
import net from 'node:net';
import { Watch, sleep } from './watch.mjs';

const open = new Set();

export function destroyAll() {
  for (const tcp of open) tcp.socket.destroy();
  open.clear();
}

export const bytes = (data) => Buffer.isBuffer(data) ? data : Buffer.from(data, 'utf8');

// hex('81 82', mask, 'hi'): a part that is a string of hex pairs is read as such.
export const hex = (text) => Buffer.from(text.replace(/\s+/g, ''), 'hex');

export class Tcp extends Watch {
  #chunks = [];
  #length = 0;

  constructor(socket) {
    super();
    this.socket = socket;
    this.ended = false; // the server's FIN came
    this.closed = false; // nothing more can come
    this.error = null; // ECONNRESET and the like
    this.total = 0;
    this.onChunk = null;
    open.add(this);
    socket.setNoDelay(true);
    socket.on('data', (chunk) => {
      this.total += chunk.length;
      if (this.onChunk) {
        this.onChunk(chunk);
      } else {
        this.#chunks.push(chunk);
        this.#length += chunk.length;
      }
      this.changed();
    });
    socket.on('end', () => {
      this.ended = true;
      this.changed();
    });
    socket.on('error', (error) => {
      this.error = error;
    });
    socket.on('close', () => {
      this.ended = true;
      this.closed = true;
      open.delete(this);
      this.changed();
    });
  }

  // `target`: {port, host} or {path}.
  static connect(target) {
    return new Promise((resolve, reject) => {
      const socket = net.connect({ ...target, allowHalfOpen: true });
      socket.once('error', reject);
      socket.once('connect', () => {
        socket.off('error', reject);
        const tcp = new Tcp(socket);
        tcp.port = socket.localPort;
        resolve(tcp);
      });
    });
  }

  describe() {
    const shown = this.buffer.subarray(0, 400).toString('latin1');
    return `${this.#length} bytes ${JSON.stringify(shown)}${this.ended ? ', then the end' : ''}` +
      `${this.error ? `, ${this.error.code}` : ''}`;
  }

  get buffer() {
    if (this.#chunks.length > 1) this.#chunks = [Buffer.concat(this.#chunks)];
    return this.#chunks[0] ?? Buffer.alloc(0);
  }

  // Removes and gives the first n bytes.
  take(n) {
    const whole = this.buffer;
    this.#chunks = n < whole.length ? [whole.subarray(n)] : [];
    this.#length = whole.length - n;
    return whole.subarray(0, n);
  }

  send(data) {
    return new Promise((resolve) => {
      if (this.socket.destroyed || this.socket.writableEnded) resolve();
      else this.socket.write(bytes(data), () => resolve());
    });
  }

  // In pieces of `size` bytes, or cut at the given offsets; each its own write,
  // after `pause` ms (0: after a turn of the loop, by when it is in the kernel).
  async sendPieces(data, { size = 1, cuts, pause = 0 } = {}) {
    const whole = bytes(data);
    const at = cuts ?? Array.from({ length: Math.ceil(whole.length / size) - 1 },
      (_, i) => (i + 1) * size);
    let from = 0;
    for (const to of [...at, whole.length]) {
      if (this.closed) return;
      await this.send(whole.subarray(from, to));
      if (pause > 0) await sleep(pause);
      else await new Promise(setImmediate);
      from = to;
    }
  }

  // The connection's end: FIN or reset.
  untilEnd(what = 'the end of the connection', ms) {
    return this.until(() => this.ended, what, ms);
  }

  finish() {
    this.socket.end();
  }

  reset() {
    this.socket.resetAndDestroy();
  }

  destroy() {
    this.socket.destroy();
  }

  pause() {
    this.socket.pause();
  }

  resume() {
    this.socket.resume();
  }
}
