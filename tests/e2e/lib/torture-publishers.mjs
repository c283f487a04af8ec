// The publishers of the torture test: at full speed in bursts, over HTTP (one
// behind the other, and as batches), crier.v1 and raw frames. Each message has
// an idempotency key and is sent until it is answered, so what was published is
// known; raw frames are not answered, and known from those who get them.
import { FrameReader, OP, assertSwitched, binary, frame, handshake, text } from './websocket.mjs';
import { parseAnswer, request, segment } from './http.mjs';
import { Line } from './torture-line.mjs';
import { sleep } from './watch.mjs';

const itemOf = (r) => JSON.stringify({
  channel: r.channel, key: r.key, type: r.type,
  ...(r.kind === 'binary' ? { data64: r.body.toString('base64') } : { data: r.body.toString() }),
});

class Publisher {
  constructor(world, index, rng, channels, rate) {
    Object.assign(this, { world, rng, channels, rate });
    this.name = `${this.constructor.name}${index}`;
    this.seq = 0;
    this.line = null;
    this.isIdle = false;
    this.old = []; // answered ones, to be published once more
  }

  compose() {
    const { rng } = this;
    const kind = rng.one(this.kinds ?? ['text', 'text', 'text', 'json', 'json', 'binary', 'lines']);
    return this.world.compose(this.name, this.seq++, rng.one(this.channels), kind, rng, this.world.most);
  }

  // What was begun before a memory store's restart may be published or not,
  // and its key is forgotten: it is given up.
  stillWanted(records) {
    return records.filter((r) => !r.isAnswered && r.epoch === this.world.epoch);
  }

  async run() {
    const { rng, world } = this;
    while (!world.isStopped) {
      const began = Date.now();
      const burst = Array.from({ length: rng.chance(0.2) ? rng.int(40, 150) : rng.int(1, 30) }, () => this.compose());
      const again = world.hasKeys && this.old.length > 0 && rng.chance(0.3) ? [rng.one(this.old)] : [];
      await this.untilAnswered(burst, again);
      this.old = burst.slice(-3);
      const next = began + burst.length / this.rate * 1000 * rng.between(0.5, 1.5);
      while (Date.now() < next && !world.isStopped) await sleep(Math.min(50, next - Date.now()));
    }
    this.line?.destroy();
    this.isIdle = true;
  }

  async untilAnswered(burst, again = []) {
    const { world, rng } = this;
    let left = burst;
    for (let tries = 0; left.length > 0 && !world.isOver; tries++) {
      while (world.isDown) await sleep(20);
      left = this.stillWanted(left);
      if (left.length === 0) return;
      if (tries > 0) world.count('retries', left.length);
      const list = tries === 0 ? [...again.filter((r) => r.epoch === world.epoch), ...left] : left;
      this.isLost = rng.chance(0.08) && !world.isCalm; // goes before the answers come
      await this.send(list);
      left = this.stillWanted(left);
      if (left.length > 0) await sleep(rng.between(5, 60));
    }
  }

  // Opens a line if there is none, sends, waits until `isDone()` says so, it
  // ends, or its time is over.
  async exchange(bytes, isDone) {
    if (!this.line || this.line.isEnded || this.line.isSpoilt) await this.connect();
    const { line } = this;
    this.isDone = isDone;
    await new Promise((resolve) => {
      this.wake = resolve;
      if (line.isEnded) {
        resolve();
        return;
      }
      line.send(bytes);
      if (this.isLost) {
        setTimeout(() => {
          line.reset();
          resolve();
        }, this.rng.between(0, 5));
        return;
      }
      const timer = setTimeout(() => {
        this.world.count('answers too late');
        line.reset();
        resolve();
      }, this.rng.between(600, 3000) * this.world.slow);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
      if (isDone()) this.wake();
    });
  }

  async connect() {
    let line;
    this.rest = Buffer.alloc(0);
    const onBytes = (bytes) => {
      if (this.line !== line) return;
      try {
        this.bytes(bytes);
      } catch (error) {
        this.world.wrong(`${this.name}: ${error.stack}`);
        line.reset();
        this.wake?.();
        return;
      }
      if (this.isDone?.()) this.wake?.();
    };
    this.line = line = new Line(this.world.server.target, {
      onBytes, onEnd: () => {
        if (this.line === line) this.wake?.();
      },
    });
    const limit = setTimeout(() => line.reset(), 4000 * this.world.slow);
    await line.ready;
    clearTimeout(limit);
    await this.greet?.();
  }
}

// One POST behind the other, without waiting for the answers.
export class Posts extends Publisher {
  async send(records) {
    this.waiting = [...records];
    this.first = 0;
    const bytes = Buffer.concat(records.map((r) => request(this.world.server, 'POST', `/channels/${segment(r.channel)}`, {
      body: r.body, headers: [['Content-Type', r.type], ['Idempotency-Key', r.key]],
    })));
    await this.exchange(bytes, () => this.waiting.length === 0);
  }

  bytes(chunk) {
    this.rest = Buffer.concat([this.rest, chunk]);
    for (;;) {
      const got = parseAnswer(this.rest, { method: 'POST' });
      if (!got) return;
      this.rest = this.rest.subarray(got.length);
      const record = this.waiting.shift();
      if (!record) throw new Error('an answer too many');
      if (got.status === 503) {
        this.world.count('refused');
        continue;
      }
      if (got.status !== 201) throw new Error(`${record.tag} is answered ${got.head}\n${got.body}`);
      const { id, channel } = JSON.parse(got.body);
      if (channel !== record.channel) throw new Error(`answered for ${channel}`);
      const isNew = !record.id;
      this.world.answer(record, id, this.name);
      if (isNew && id <= this.first && id > this.world.highestAt(this)) throw new Error(`${record.tag} has id ${id}, behind ${this.first}`);
    }
  }
}

// Many at once: all of them, or none.
export class Batches extends Publisher {
  kinds = ['text', 'binary', 'lines'];

  async send(records) {
    this.waiting = records;
    const items = records.map(itemOf);
    const body = this.rng.chance(0.5) ? items.join('\n') : `[${items.join()}]`;
    await this.exchange(request(this.world.server, 'POST', '/channels', { body }), () => this.waiting === null);
  }

  // Cut into batches that may be as large as that.
  async untilAnswered(burst) {
    let part = [], size = 2;
    for (const record of burst) {
      const cost = itemOf(record).length + 40;
      if (part.length > 0 && size + cost > this.world.batchBytes) {
        await super.untilAnswered(part);
        part = [];
        size = 2;
      }
      part.push(record);
      size += cost;
    }
    await super.untilAnswered(part);
  }

  bytes(chunk) {
    this.rest = Buffer.concat([this.rest, chunk]);
    const got = parseAnswer(this.rest, { method: 'POST' });
    if (!got) return;
    this.rest = this.rest.subarray(got.length);
    const records = this.waiting;
    this.waiting = null;
    if (got.status === 503) {
      this.world.count('refused');
      return;
    }
    if (got.status !== 200) throw new Error(`a batch is answered ${got.head}\n${got.body}`);
    const { results } = JSON.parse(got.body);
    if (results.length !== records.length) throw new Error(`${results.length} results of ${records.length}`);
    let last = 0;
    const isNew = records.every((r) => !r.id);
    for (const [i, { id, channel }] of results.entries()) {
      if (channel !== records[i].channel) throw new Error(`result ${i} is for ${channel}`);
      this.world.answer(records[i], id, this.name);
      if (isNew && id <= last) this.world.count('batches out of order');
      last = id;
    }
  }
}

// By commands over crier.v1, without waiting for the answers.
export class Commands extends Publisher {
  async greet() {
    this.frames = new FrameReader();
    this.isUpgraded = false;
    await this.exchangeRaw(handshake(this.world.server, '/subscribe', { protocol: 'crier.v1' }), () => this.isUpgraded);
  }

  async exchangeRaw(bytes, isDone) {
    await new Promise((resolve) => {
      this.isDone = isDone;
      const timer = setTimeout(resolve, 4000 * this.world.slow);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
      if (this.line.isEnded) this.wake();
      else this.line.send(bytes);
    });
    if (!this.isUpgraded) this.line.reset();
  }

  async send(records) {
    this.waiting = new Map(records.map((r) => [r.tag, r]));
    const echo = this.rng.chance(0.5) ? { echo: false } : {};
    const bytes = Buffer.concat(records.map((r) => text(JSON.stringify({
      op: 'publish', channel: r.channel, key: r.key, ref: r.tag, type: r.type, ...echo,
      ...(r.kind === 'binary' ? { data64: r.body.toString('base64') }
        : { data: r.kind === 'json' ? JSON.parse(r.body) : r.body.toString() }),
    }))));
    await this.exchange(bytes, () => this.waiting.size === 0);
  }

  kinds = ['text', 'binary', 'lines'];

  bytes(chunk) {
    let data = chunk;
    if (!this.isUpgraded) {
      this.rest = Buffer.concat([this.rest, chunk]);
      const got = parseAnswer(this.rest);
      if (!got) return;
      if (got.status === 503) {
        this.line.reset();
        this.wake();
        return;
      }
      assertSwitched(got, 'crier.v1');
      this.isUpgraded = true;
      data = this.rest.subarray(got.length);
    }
    for (const one of this.frames.push(data)) {
      if (one.op === OP.PING) this.line.send(frame(OP.PONG, one.payload));
      if (one.op === OP.TEXT) this.answer(JSON.parse(one.payload));
    }
  }

  answer(got) {
    const record = this.waiting?.get(got.ref);
    if (got.op === 'error' && got.code === 'unavailable') {
      this.world.count('refused');
      this.waiting.delete(got.ref);
    } else if (got.op === 'published') {
      if (!record) throw new Error(`answered ${JSON.stringify(got)}`);
      this.waiting.delete(got.ref);
      this.world.answer(record, got.id, this.name);
    } else if (got.op === 'error') {
      throw new Error(`answered ${JSON.stringify(got)}`);
    }
  }
}

// Raw frames. There is no answer: of what was sent on one connection a first
// part is published, in order.
export class Frames extends Publisher {
  kinds = ['text', 'lines', 'binary'];

  constructor(...args) {
    super(...args);
    this.channels = [this.rng.one(this.channels)];
    this.sent = []; // a list for each connection
    this.old = [];
  }

  async greet() {
    this.frames = new FrameReader();
    this.isUpgraded = false;
    this.sent.push([]);
    await Commands.prototype.exchangeRaw.call(this, handshake(this.world.server, `/channels/${segment(this.channels[0])}`), () => this.isUpgraded);
  }

  async untilAnswered(burst) {
    while (this.world.isDown) await sleep(20);
    for (const record of burst) record.isRaw = true;
    const size = this.rng.chance(0.03);
    if (!this.line || this.line.isEnded) await this.connect();
    if (!this.isUpgraded || this.line.isEnded) return;
    for (const record of burst) record.epoch = this.world.epoch;
    this.sent.at(-1).push(...burst);
    this.line.send(Buffer.concat(burst.map((r) => (r.kind === 'binary' ? binary(r.body) : text(r.body)))));
    if (size) this.line.reset();
  }

  bytes(chunk) { // it gets its own like everybody, and leaves the judgement to them
    let data = chunk;
    if (!this.isUpgraded) {
      this.rest = Buffer.concat([this.rest, chunk]);
      const got = parseAnswer(this.rest);
      if (!got) return;
      if (got.status === 503) {
        this.line.reset();
        this.wake();
        return;
      }
      assertSwitched(got);
      this.isUpgraded = true;
      data = this.rest.subarray(got.length);
    }
    for (const one of this.frames.push(data)) {
      if (one.op === OP.PING) this.line.send(frame(OP.PONG, one.payload));
      if (one.op === OP.CLOSE) {
        this.line.send(frame(OP.CLOSE, one.payload));
        this.line.finish();
        this.line.isEnded = true;
      }
    }
  }
}
