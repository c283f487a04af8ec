// A connection that can be read as badly as a peer may read: not at all for a
// while, a byte at a time, up to its FIN or RST.
import net from 'node:net';

const WHOLE = 65_536;

export class Line {
  constructor(target, { onBytes, onEnd }) {
    this.isEnded = false;
    this.isOpen = false;
    this.size = WHOLE;
    this.isPaused = false;
    const room = Buffer.alloc(WHOLE);
    this.ready = new Promise((resolve) => {
      this.socket = net.connect({
        ...target, allowHalfOpen: true, noDelay: true,
        onread: {
          buffer: () => (this.size === WHOLE ? room : Buffer.alloc(this.size)),
          callback: (n, buffer) => {
            if (!this.isEnded) onBytes(Buffer.from(buffer.subarray(0, n)));
            return !this.isPaused;
          },
        },
      });
      const end = (how) => {
        resolve(false);
        if (this.isEnded) return;
        this.isEnded = true;
        onEnd(how);
      };
      this.socket.once('connect', () => {
        this.isOpen = true;
        this.port = this.socket.localPort;
        resolve(true);
      });
      this.socket.on('end', () => end('fin'));
      this.socket.on('error', (error) => end(error.code));
      this.socket.on('close', () => end('closed'));
    });
  }

  send(data) {
    if (!this.socket.destroyed && !this.socket.writableEnded) this.socket.write(data);
  }

  pause() {
    this.isPaused = true;
    this.socket.pause();
  }

  resume() {
    this.size = WHOLE;
    this.isPaused = false;
    this.socket.resume();
  }

  trickle() {
    this.size = 1;
  }

  finish() {
    this.socket.end();
  }

  reset() {
    this.isEnded = true;
    if (this.isOpen) this.socket.resetAndDestroy();
    else this.socket.destroy();
  }

  destroy() {
    this.isEnded = true;
    this.socket.destroy();
  }
}
