// The subscribers of the torture test: one class a transport. Each keeps what
// it got by cursor (a unit), behaves badly at random, and comes back from where
// it was. What can be judged at once is: each id once, in order, what it says.
import { FrameReader, OP, assertSwitched, closeFrame, decode, frame, handshake, readClose, text } from './websocket.mjs';
import { parseAnswer, request } from './http.mjs';
import { Line } from './torture-line.mjs';
import { matcher } from './torture-world.mjs';
import { sleep } from './watch.mjs';

// A channel or pattern of a reader, and all that it got of it.
export class Unit {
  constructor(name, start, world) {
    this.name = name;
    this.matches = matcher(name);
    this.isPattern = name.includes('*');
    this.isKept = world.isKept(name);
    this.start = start; // what is published after it must come
    this.cursor = start;
    this.last = 0; // the highest id that came
    this.records = [];
    this.gaps = [];
  }
}

const query = (object) => Object.entries(object).flatMap(([name, values]) =>
  [values].flat().map((value) => `${name}=${encodeURIComponent(value)}`)).join('&');

const isName = (name) => !name.includes('*');

export class Reader {
  constructor(world, index, rng, names) {
    this.world = world;
    this.rng = rng;
    this.names = names;
    this.who = `${this.constructor.name} ${index} of ${names}`;
    this.units = [];
    this.trace = []; // what happened to it, for the report
    this.isDone = false;
    this.line = null;
    this.visits = 0;
  }

  note(what) {
    this.trace.push(what);
    if (this.trace.length > 60) this.trace.shift();
  }

  wrong(what) {
    this.world.wrong(`${this.who}: ${what}\n      ${this.trace.slice(-25).join('\n      ')}`);
  }

  // The cursor "now", as the broker says.
  async begin() {
    const since = this.rng.chance(this.world.pFirst) ? 'first' : 'now';
    const start = since === 'first' ? 0 : await this.world.now(this.names[0]);
    for (const name of this.names) this.units.push(new Unit(name, start, this.world));
    this.note(`begins at ${start}`);
  }

  unitOf(channel) {
    return this.units.find((unit) => unit.name === channel) ?? this.units.find((unit) => unit.matches(channel));
  }

  // One message with its id; `last`: the highest id that must be below it.
  take(unit, last, record, id) {
    if (!record) return;
    if (!unit) {
      this.wrong(`${record.tag} is of ${record.channel}, which it has not`);
      return;
    }
    if (id <= last) this.wrong(`${record.tag} with id ${id} came behind id ${last}`);
    if (id <= unit.start) this.wrong(`${record.tag} with id ${id} is not above ${unit.start}`);
    unit.last = Math.max(unit.last, id);
    unit.records.push(record);
    this.world.count('delivered');
  }

  gap(unit, from, to) {
    this.note(`gap ${unit?.name} ${from} ${to}`);
    if (!unit || !Number.isSafeInteger(from) || !Number.isSafeInteger(to) || from > to) {
      this.wrong(`a gap of ${unit?.name} from ${from} to ${to}`);
      return;
    }
    if (from <= unit.last) this.wrong(`a gap from ${from}, but ${unit.last} came`);
    unit.gaps.push({ from, to });
    this.world.count('gaps');
  }

  // Connects, reads, misbehaves, comes again, until all is over.
  async run() {
    await this.begin();
    while (!this.world.isOver) {
      if (this.world.isDown) {
        await sleep(50);
        continue;
      }
      await this.visit();
      if (!this.world.isCalm) await sleep(this.rng.chance(0.5) ? 5 : this.rng.between(20, 800));
      else await sleep(20);
    }
    this.line?.destroy();
  }

  // One connection, from its start to its end.
  async visit() {
    this.visits += 1;
    this.world.count('connections');
    const ended = new Promise((resolve) => {
      this.end = resolve;
    });
    const trouble = [];
    this.isServed = false;
    this.rest = Buffer.alloc(0);
    this.reset();
    let line;
    const alarm = setTimeout(() => {
      if (!this.isServed) {
        this.note('not served in time');
        line.reset();
        this.end('late');
      }
    }, 4000 * this.world.slow);
    this.line = line = new Line(this.world.server.target, {
      onBytes: (bytes) => {
        try {
          if (this.line === line) this.bytes(bytes);
        } catch (error) {
          this.wrong(`${error.message}`);
          line.reset();
          this.end('wrong');
        }
      },
      onEnd: (how) => {
        if (this.line === line) this.atEnd?.(how);
        this.end(how);
      },
    });
    if (await line.ready) {
      this.greet();
      this.torment(line, trouble);
    }
    const how = await ended;
    clearTimeout(alarm);
    for (const timer of trouble) clearTimeout(timer);
    this.note(`end: ${how}`);
    line.destroy();
    await this.afterEnd?.();
  }

  // At random: stops, reads a byte at a time, goes by FIN or RST.
  torment(line, timers) {
    const { rng, world } = this;
    const later = (ms, act) => timers.push(setTimeout(act, ms));
    const step = () => {
      if (world.isCalm || line.isEnded) {
        line.resume();
        return;
      }
      const what = rng.next();
      let ms = rng.between(100, 2500);
      if (what < 0.3) {
        line.pause();
        ms = rng.between(100, 3000);
        this.note('stops reading');
        world.count('stops');
        later(ms, () => line.resume());
      } else if (what < 0.42) {
        line.trickle();
        ms = rng.between(100, 600);
        this.note('reads bytes');
        world.count('trickles');
        later(ms, () => line.resume());
      } else if (what < 0.5) {
        this.note('RST');
        world.count('resets');
        line.reset();
        this.end('reset');
        return;
      } else if (what < 0.55) {
        this.note('FIN, and away');
        world.count('fins');
        line.finish();
        line.destroy();
        this.end('finished');
        return;
      } else if (what < 0.6) {
        this.note('FIN, and waits');
        world.count('fins');
        this.bye(line);
        later(2500 * world.slow, () => {
          line.destroy();
          this.end('waited');
        });
        return;
      } else if (what < 0.75) {
        this.tease?.();
      }
      later(ms, step);
    };
    later(rng.between(50, 2500), step);
  }

  bye(line) {
    line.finish();
  }

  calm() {
    if (this.line?.isPaused || this.line?.size === 1) this.line.resume();
  }

  reset() {}

  missingUnits(finals) {
    return this.units.filter((unit) => this.reach(unit) < finals(unit));
  }

  // The id up to which the unit has everything, as far as it shows.
  reach(unit) {
    return Math.max(unit.last, ...unit.gaps.map((gap) => gap.to));
  }
}

// ---- WebSocket ---------------------------------------------------------------------

class Socket extends Reader {
  reset() {
    this.isUpgraded = false;
    this.frames = new FrameReader();
    this.parts = null;
    this.closing = null;
  }

  bytes(chunk) {
    let data = chunk;
    if (!this.isUpgraded) {
      this.rest = Buffer.concat([this.rest, chunk]);
      const answer = parseAnswer(this.rest);
      if (!answer) return;
      if (answer.status !== 101) {
        this.note(`answered ${answer.status}`);
        if (answer.status !== 503) this.wrong(`the handshake is answered ${answer.status} ${answer.body}`);
        this.line.destroy();
        this.end('refused');
        return;
      }
      assertSwitched(answer, this.protocol);
      this.isUpgraded = true;
      this.isServed = true;
      data = this.rest.subarray(answer.length);
      this.opened?.();
    }
    for (const one of this.frames.push(data)) this.frame(one);
  }

  frame(one) {
    if (one.op === OP.PING) this.line.send(frame(OP.PONG, one.payload));
    if (one.op === OP.CLOSE) {
      this.closing = readClose(one.payload);
      this.note(`close ${this.closing.code} ${this.closing.reason}`);
      this.closed?.(this.closing);
      this.line.send(frame(OP.CLOSE, one.payload));
    }
    if (one.op >= OP.CLOSE) return;
    if (one.op !== OP.CONT) this.parts = { op: one.op, list: [] };
    this.parts.list.push(one.payload);
    if (!one.fin) return;
    const { op, list } = this.parts;
    this.message(op, list.length === 1 ? list[0] : Buffer.concat(list));
  }

  bye(line) {
    if (this.rng.chance(0.5) && this.isUpgraded) line.send(closeFrame(1000));
    else line.finish();
  }
}

// No subprotocol: a frame is a message, without an id. It comes back with the
// id of the last message whose id is known by then.
export class Raw extends Socket {
  greet() {
    const [unit] = this.units;
    this.shown = false;
    this.line.send(handshake(this.world.server, `/channels/${encodeURIComponent(unit.name)}?since=${unit.cursor || 'first'}`));
    this.note(`since ${unit.cursor}`);
  }

  message(op, bytes) {
    const [unit] = this.units;
    const record = this.world.recognise({ channel: unit.name, bytes: Buffer.from(bytes) }, this.who);
    if (!record) return;
    if ((op === OP.BINARY) !== (record.kind === 'binary')) this.wrong(`${record.tag} came as opcode ${op}`);
    const last = unit.records.at(-1);
    if (record.id && last?.id && record.id <= last.id) this.wrong(`${record.tag} ${record.id} came behind ${last.tag} ${last.id}`);
    unit.records.push(record);
    this.world.count('delivered');
  }

  closed({ code, reason }) {
    if (code === 4001) {
      const [, from, to] = /^gap (\d+) (\d+)$/.exec(reason) ?? [];
      this.pendingGap = { from: Number(from), to: Number(to) };
    } else if (![1000, 1001, 1012].includes(code)) {
      this.wrong(`close ${code} ${reason}`);
    }
  }

  // What came last and has no known id yet is thrown away, to come again.
  async afterEnd() {
    const [unit] = this.units;
    const end = Date.now() + 1500;
    while (unit.records.length > 0 && !unit.records.at(-1).id && Date.now() < end && !this.world.isOver) await sleep(20);
    if (this.pendingGap) {
      while (unit.records.length > 0 && !unit.records.at(-1).id && Date.now() < end + 8000) await sleep(20);
    }
    if (this.world.isOver) return;
    while (unit.records.length > 0 && !unit.records.at(-1).id) unit.records.pop();
    const last = unit.records.at(-1);
    unit.last = last?.id ?? 0;
    unit.cursor = Math.max(unit.start, unit.last, ...unit.gaps.map((gap) => gap.to));
    if (this.pendingGap) {
      this.gap(unit, this.pendingGap.from, this.pendingGap.to);
      unit.cursor = Math.max(unit.cursor, this.pendingGap.to);
      this.pendingGap = null;
    }
  }

  reach(unit) {
    for (let i = unit.records.length - 1; i >= 0; i--) {
      if (unit.records[i].id) return Math.max(unit.records[i].id, unit.cursor);
    }
    return unit.cursor;
  }
}

// crier.v1: a cursor for each channel and pattern.
export class V1 extends Socket {
  protocol = 'crier.v1';

  greet() {
    this.live = new Map(); // unit → may get messages
    this.refs = new Map();
    this.isOne = this.units.length === 1 && isName(this.names[0]) && this.rng.chance(0.7);
    const [unit] = this.units;
    this.line.send(handshake(this.world.server, this.isOne
      ? `/channels/${encodeURIComponent(unit.name)}?since=${unit.cursor || 'first'}` : '/subscribe', { protocol: this.protocol }));
    if (this.isOne) this.expectSubscribed(unit);
  }

  expectSubscribed(unit) {
    this.live.set(unit, 'asked');
    this.note(`asks for ${unit.name} since ${unit.cursor}`);
  }

  opened() {
    if (this.isOne) return;
    for (const unit of this.units) this.subscribe(unit);
  }

  subscribe(unit) {
    this.expectSubscribed(unit);
    this.line.send(text(JSON.stringify({
      op: 'subscribe', [unit.isPattern ? 'pattern' : 'channel']: unit.name, since: unit.cursor || 'first', ref: `s ${unit.name}`,
    })));
  }

  // Leaves a channel and comes again while messages pass.
  tease() {
    if (!this.isUpgraded || this.line.isPaused) return;
    const unit = this.rng.one(this.units);
    if (this.live.get(unit) !== 'live') return;
    this.live.set(unit, 'leaving');
    this.note(`leaves ${unit.name}`);
    this.world.count('leaves');
    this.line.send(text(JSON.stringify({ op: 'unsubscribe', [unit.isPattern ? 'pattern' : 'channel']: unit.name })));
  }

  message(op, bytes) {
    if (op !== OP.TEXT) throw new Error('a crier.v1 frame is not text');
    const one = JSON.parse(decode(bytes));
    switch (one.op) {
    case 'message':
      this.one(one, this.unitOf(one.channel));
      return;
    case 'subscribed': {
      const unit = this.units.find((u) => u.name === (one.pattern ?? one.channel));
      this.note(`subscribed ${unit?.name} cursor ${one.cursor} gap ${JSON.stringify(one.gap)} more ${one.more} with ${one.messages.length}`);
      if (this.live.get(unit) !== 'asked') this.wrong('subscribed to what it did not ask for');
      this.live.set(unit, 'live');
      if (one.gap) this.gap(unit, one.gap.from, one.gap.to);
      for (const message of one.messages) this.one(message, unit);
      if (one.cursor < unit.cursor && !one.gap) this.wrong(`subscribed at ${one.cursor}, behind ${unit.cursor}`);
      unit.cursor = Math.max(unit.cursor, one.cursor);
      return;
    }
    case 'unsubscribed': {
      const unit = this.units.find((u) => u.name === (one.pattern ?? one.channel));
      if (this.live.get(unit) !== 'leaving') this.wrong('unsubscribed from what it did not leave');
      this.live.set(unit, 'away');
      const { line } = this;
      const again = () => {
        if (this.line === line && !line.isEnded && this.live.get(unit) === 'away') this.subscribe(unit);
      };
      if (this.rng.chance(0.4)) again();
      else setTimeout(again, this.rng.between(1, 500));
      return;
    }
    case 'gap': {
      const unit = this.units.find((u) => u.name === one.channel);
      this.gap(unit, one.from, one.to);
      if (unit) unit.cursor = Math.max(unit.cursor, one.to);
      return;
    }
    case 'cursor':
      this.note(`cursor ${one.id}`);
      this.world.count('cursors');
      for (const [unit, state] of this.live) if (state === 'live') unit.cursor = Math.max(unit.cursor, one.id);
      return;
    case 'pong':
    case 'drain':
      return;
    default:
      this.wrong(`it says ${JSON.stringify(one)}`);
    }
  }

  one(message, unit) {
    const record = this.world.recognise(fieldsOf(message), this.who);
    if (!unit || !['live', 'leaving'].includes(this.live.get(unit))) {
      this.wrong(`${record?.tag} on ${message.channel} while that is ${this.live.get(unit)}`);
    }
    this.take(unit, unit?.cursor ?? 0, record, message.id);
    if (unit) unit.cursor = Math.max(unit.cursor, message.id);
  }
}

// crier.v1 with channels and patterns that have the same messages. By which of
// them one came is not said, so it begins anew with each connection: from where
// all are live, each message comes once, in order of id.
export class Both extends Socket {
  protocol = 'crier.v1';
  stretches = []; // { start, end, ids, gaps }

  async begin() {
    this.units = this.names.map((name) => new Unit(name, 0, this.world));
  }

  greet() {
    this.stretch = { start: 0, end: 0, ids: [], gaps: [] };
    this.stretches.push(this.stretch);
    this.asked = this.names.length;
    this.line.send(handshake(this.world.server,
      `/subscribe?${query({ channel: this.names.filter(isName), pattern: this.names.filter((n) => !isName(n)) })}`, { protocol: this.protocol }));
  }

  message(op, bytes) {
    const one = JSON.parse(decode(bytes));
    const { stretch } = this;
    if (one.op === 'subscribed') {
      stretch.start = Math.max(stretch.start, one.cursor);
      stretch.end = Math.max(stretch.end, one.cursor);
      this.asked -= 1;
      this.note(`subscribed at ${one.cursor}`);
    } else if (one.op === 'gap') {
      stretch.gaps.push(one);
      this.note(`gap ${one.channel} ${one.from} ${one.to}`);
      if (one.from > one.to) this.wrong('an empty gap');
      this.world.count('gaps');
    } else if (one.op === 'message') {
      const record = this.world.recognise(fieldsOf(one), this.who);
      if (one.id <= (stretch.ids.at(-1) ?? 0)) this.wrong(`${record?.tag}@${one.id} came behind ${stretch.ids.at(-1)}`);
      stretch.ids.push(one.id);
      stretch.end = Math.max(stretch.end, one.id);
      this.world.count('delivered');
    } else if (one.op === 'cursor') {
      if (this.asked === 0) stretch.end = Math.max(stretch.end, one.id);
    }
  }

  // Nothing to wait for: what it lacks it lacks at once.
  missingUnits() {
    return [];
  }
}

// What a `message` object carries, as recognise() takes it.
function fieldsOf(message) {
  const got = { channel: message.channel, id: message.id, type: message.type };
  if (typeof message.data64 === 'string') got.bytes = Buffer.from(message.data64, 'base64');
  else if (/^application\/json/.test(message.type)) got.value = message.data;
  else got.text = message.data;
  return got;
}

// ---- server-sent events ------------------------------------------------------------

export class Sse extends Reader {
  reset() {
    this.hasHead = false;
    this.event = { id: null, name: '', data: [] };
    this.partial = '';
    this.bytesLeft = Buffer.alloc(0);
  }

  async begin() {
    await super.begin();
    this.cursor = this.units[0].start; // one for all
    this.lastId = 0;
    this.isMany = this.names.length > 1 || !isName(this.names[0]);
  }

  greet() {
    const path = this.isMany
      ? `/subscribe?${query({ channel: this.names.filter(isName), pattern: this.names.filter((n) => !isName(n)) })}`
      : `/channels/${encodeURIComponent(this.names[0])}`;
    const since = this.cursor || 'first';
    const headers = [['Accept', 'text/event-stream']];
    const asHeader = this.rng.chance(0.5);
    if (asHeader) headers.push(['Last-Event-ID', since]);
    this.note(`since ${since}`);
    this.line.send(request(this.world.server, 'GET', asHeader ? path : `${path}${path.includes('?') ? '&' : '?'}since=${since}`, { headers }));
  }

  bytes(chunk) {
    let data = this.bytesLeft.length > 0 ? Buffer.concat([this.bytesLeft, chunk]) : chunk;
    if (!this.hasHead) {
      const stop = data.indexOf('\r\n\r\n');
      if (stop < 0) {
        this.bytesLeft = data;
        return;
      }
      const head = data.toString('latin1', 0, stop);
      if (!/^HTTP\/1\.1 200 /.test(head) || !/^content-type: text\/event-stream\r?$/im.test(head)) {
        if (!/^HTTP\/1\.1 503 /.test(head)) this.wrong(`the stream is answered ${head}`);
        this.line.destroy();
        this.end('refused');
        return;
      }
      this.hasHead = true;
      this.isServed = true;
      data = data.subarray(stop + 4);
    }
    // Whole lines only: what is behind the last line end waits.
    const end = data.lastIndexOf(10);
    this.bytesLeft = Buffer.from(data.subarray(end + 1));
    if (end < 0) return;
    for (const line of decode(data.subarray(0, end)).split('\n')) this.lineOf(line);
  }

  lineOf(line) {
    if (line.includes('\r')) this.wrong('a carriage return in a line');
    if (line === '') {
      this.dispatch();
      return;
    }
    const [, field, value] = /^(id|event|data|retry): (.*)$/s.exec(line) ?? [];
    if (field === 'id') this.event.id = Number(value);
    else if (field === 'event') this.event.name = value;
    else if (field === 'data') this.event.data.push(value);
    else if (field !== 'retry') this.wrong(`a line of no known field: ${JSON.stringify(line.slice(0, 80))}`);
  }

  dispatch() {
    const { id, name, data } = this.event;
    this.event = { id: null, name: '', data: [] };
    if (id !== null && !Number.isSafeInteger(id)) this.wrong(`id ${id}`);
    if (data.length === 0) { // a keep-alive
      if (id === null) return;
      this.note(`cursor ${id}`);
      this.world.count('cursors');
      if (id < this.cursor) this.wrong(`a cursor ${id} behind ${this.cursor}`);
      this.cursor = Math.max(this.cursor, id);
      return;
    }
    const joined = data.join('\n');
    if (name === 'gap') {
      const gap = JSON.parse(joined);
      const unit = this.units.find((u) => u.name === gap.channel);
      this.note(`event gap, its id ${id}`);
      this.gap(unit, gap.from, gap.to);
      if (id < this.cursor) this.wrong(`a gap whose id is ${id} behind ${this.cursor}`);
      this.cursor = Math.max(this.cursor, id);
      return;
    }
    let got;
    if (this.isMany) {
      const message = JSON.parse(joined);
      got = fieldsOf(message);
      if (message.id !== id) this.wrong(`an event with id ${id} and message ${message.id}`);
    } else if (name === 'binary') {
      got = { channel: this.names[0], id, bytes: Buffer.from(joined, 'base64') };
    } else {
      got = { channel: this.names[0], id, text: joined, isLines: true };
    }
    const record = this.world.recognise(got, this.who);
    this.take(this.unitOf(got.channel), this.cursor, record, id);
    for (const unit of this.units) if (unit.matches(got.channel)) unit.last = Math.max(unit.last, id);
    this.cursor = Math.max(this.cursor, id);
  }

  reach(unit) {
    return Math.max(unit.last, ...unit.gaps.map((gap) => gap.to));
  }
}

// ---- by GET ------------------------------------------------------------------------

// Asks for what is behind its cursor, again and again; waits for it, or not.
export class Poll extends Reader {
  waits = true;

  reset() {
    this.ask = null;
  }

  async begin() {
    await super.begin();
    this.cursor = this.units[0].start;
    this.isMany = this.names.length > 1 || !isName(this.names[0]);
  }

  greet() {
    const limit = this.rng.chance(0.5) ? { limit: this.rng.int(1, 200) } : {};
    const wait = this.waits && this.rng.chance(0.8) ? { wait: this.rng.int(1, 3) } : {};
    const since = this.cursor || 'first';
    const asHeader = this.rng.chance(0.3);
    const names = this.isMany ? { channel: this.names.filter(isName), pattern: this.names.filter((n) => !isName(n)) } : {};
    const path = this.isMany ? '/subscribe' : `/channels/${encodeURIComponent(this.names[0])}`;
    this.note(`GET since ${since} ${JSON.stringify({ ...limit, ...wait })}`);
    this.world.count('polls');
    this.line.send(request(this.world.server, 'GET', `${path}?${query({ ...names, ...limit, ...wait, ...(asHeader ? {} : { since }) })}`,
      { headers: asHeader ? [['Last-Event-ID', since]] : [] }));
  }

  bytes(chunk) {
    this.rest = Buffer.concat([this.rest, chunk]);
    const answer = parseAnswer(this.rest);
    if (!answer) return;
    this.rest = this.rest.subarray(answer.length);
    if (answer.status !== 200) {
      this.note(`answered ${answer.status}`);
      if (![204, 503].includes(answer.status)) this.wrong(`a poll is answered ${answer.status} ${answer.body}`);
      this.line.destroy();
      this.end('refused');
      return;
    }
    this.isServed = true;
    this.answer(JSON.parse(answer.body));
    if (this.world.isOver || this.rng.chance(0.02)) {
      this.line.destroy();
      this.end('enough');
    } else if (this.waits && !this.world.isDown) {
      this.greet();
    } else {
      const { line } = this;
      setTimeout(() => {
        if (this.line === line && !line.isEnded) this.greet();
      }, this.world.isCalm ? 100 : this.rng.between(10, 1500));
    }
  }

  answer({ messages, cursor, gap, more }) {
    this.note(`${messages.length} messages, cursor ${cursor} gap ${JSON.stringify(gap)} more ${more}`);
    if (gap) for (const unit of this.units) this.gapOf(unit, gap);
    let last = gap ? 0 : this.cursor; // in what is missing some may be there
    for (const message of messages) {
      const record = this.world.recognise(fieldsOf(message), this.who);
      if (message.id <= this.cursor) this.wrong(`${record?.tag} ${message.id} is not above the cursor ${this.cursor}`);
      this.take(this.unitOf(message.channel), last, record, message.id);
      last = message.id;
    }
    for (const unit of this.units) unit.last = Math.max(unit.last, Math.min(last, cursor));
    if (cursor < this.cursor && !gap) this.wrong(`the cursor ${cursor} is behind ${this.cursor}`);
    if (cursor < last) this.wrong(`the cursor ${cursor} is behind the last message ${last}`);
    this.cursor = cursor;
    if (more && messages.length === 0 && !gap) this.wrong('more, and nothing');
  }

  gapOf(unit, gap) {
    this.gap(unit, gap.from, gap.to);
  }

  reach() {
    return this.cursor;
  }
}

export class History extends Poll {
  waits = false;
}
