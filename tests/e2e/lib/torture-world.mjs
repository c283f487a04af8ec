// What the torture test knows of everything: the dice, the channels, what was
// published with which id, and what is wrong. The body of a message tells who
// published it and as which in its order (its tag), so that whoever gets it can
// be judged byte by byte.

// Dice that fall the same for the same seed (mulberry32).
export function dice(...seed) {
  let state = 0x9e3779b9;
  for (const part of seed) state = Math.imul(state ^ part, 0x85ebca6b) ^ (state >>> 13);
  const next = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const between = (low, high) => low + next() * (high - low);
  return {
    next, between,
    int: (low, high) => Math.floor(between(low, high + 1)),
    chance: (p) => next() < p,
    one: (list) => list[Math.floor(next() * list.length)],
  };
}

// `a:*` and `a:**` as api.md section 1 has them.
export function matcher(name) {
  if (!name.includes('*')) return (channel) => channel === name;
  const source = name.split(/([:/])/).map((part, i, all) => {
    if (part === '**' && i === all.length - 1) return '.+';
    return part === '*' ? '[^:/]+' : part.replace(/[.+?^${}()|[\]\\]/g, '\\$&');
  }).join('');
  const test = new RegExp(`^${source}$`, 's');
  return (channel) => test.test(channel);
}

// JSON with its insignificant space taken out, for what was parsed on the way.
const canonical = (value) => JSON.stringify(value);

const FILLER = 'the quick brown fox jumps over the lazy dog, 0123456789; "quoted" \\ back / äöü € 😀 ';

function bodyOf(kind, tag, size, rng) {
  const start = rng.int(0, 60);
  const filler = FILLER.repeat(Math.ceil(size / 80) + 1);
  switch (kind) {
  case 'binary': {
    const bytes = Buffer.alloc(tag.length + 2 + size);
    bytes.write(`${tag} `, 0, 'latin1');
    bytes[tag.length + 1] = 0xff; // never UTF-8
    for (let i = tag.length + 2; i < bytes.length; i++) bytes[i] = (i * 31 + start) & 255;
    return bytes;
  }
  case 'json':
    return Buffer.from(rng.chance(0.3) ? `{ "t": "${tag}",\n  "f" :\r\n ${JSON.stringify(filler.slice(0, size))} }\n`
      : JSON.stringify({ t: tag, f: filler.slice(0, size), n: [1, -2.5, true, null] }));
  case 'lines':
    return Buffer.from(`${tag} one\ntwo\r\nthree\rfour\n\n${filler.slice(0, size)}\n`);
  default:
    return Buffer.from(`${tag} ${[...filler.slice(0, size)].join('')}`);
  }
}

export class World {
  constructor(options) {
    Object.assign(this, options); // seed, channels, history, isDurable, …
    this.errors = [];
    this.byTag = new Map();
    this.byId = new Map();
    this.byChannel = new Map(); // name → records
    this.epoch = 0; // of a memory store: what was before a restart is gone
    this.restarts = []; // { before, after }: highest id answered before, lowest seen after
    this.isDown = false;
    this.isCalm = false; // no more trouble
    this.isOver = false;
    this.answered = 0;
    this.highest = 0;
    this.counts = {};
  }

  wrong(what) {
    if (this.errors.length < 40) this.errors.push(what);
    if (this.isVerbose) console.error(`WRONG ${what}`);
  }

  count(what, n = 1) {
    this.counts[what] = (this.counts[what] ?? 0) + n;
  }

  // A message to be published.
  compose(publisher, seq, channel, kind, rng, most) {
    const tag = `${publisher}.${seq}`;
    const size = rng.chance(0.1) ? rng.int(most >> 1, most) : rng.chance(0.5) ? rng.int(0, 80) : rng.int(80, 900);
    const body = bodyOf(kind, tag, size, rng);
    const record = {
      tag, channel, kind, body, id: 0, key: `key ${tag}`, epoch: this.epoch, isAnswered: false,
      type: kind === 'json' ? 'application/json' : kind === 'binary' ? 'application/octet-stream' : 'text/plain',
    };
    this.byTag.set(tag, record);
    if (!this.byChannel.has(channel)) this.byChannel.set(channel, []);
    this.byChannel.get(channel).push(record);
    return record;
  }

  // It is known that `record` has `id`; says so if that cannot be.
  identify(record, id, who) {
    if (record.id === id) return;
    if (record.id) {
      this.wrong(`${who}: ${record.tag} on ${record.channel} has id ${id}, and id ${record.id}`);
      return;
    }
    const other = this.byId.get(id);
    if (other) {
      this.wrong(`${who}: id ${id} is given to ${record.tag}, and to ${other.tag}`);
      return;
    }
    record.id = id;
    this.byId.set(id, record);
    this.highest = Math.max(this.highest, id);
  }

  answer(record, id, who) {
    if (!Number.isSafeInteger(id) || id <= 0) this.wrong(`${who}: ${id} is no id`);
    this.identify(record, id, who);
    if (!record.isAnswered) this.answered += 1;
    record.isAnswered = true;
  }

  // A message came: its record, or null if it is wrong. `got`: { channel, id,
  // bytes } or { value } (parsed JSON) or { lines } (of an event stream).
  recognise(got, who) {
    const tag = tagOf(got);
    const record = this.byTag.get(tag);
    if (!record) {
      this.wrong(`${who}: a message that nobody published: ${JSON.stringify(tag)}`);
      return null;
    }
    if (record.channel !== got.channel) this.wrong(`${who}: ${tag} came on ${got.channel}, not ${record.channel}`);
    if (!isSame(record, got)) this.wrong(`${who}: ${tag} has another body`);
    if (got.type !== undefined && got.type.split(';')[0] !== record.type) this.wrong(`${who}: ${tag} is ${got.type}, not ${record.type}`);
    if (got.id !== undefined) this.identify(record, got.id, who);
    return record;
  }

  matching(matches) {
    const list = [];
    for (const [channel, records] of this.byChannel) if (matches(channel)) list.push(...records);
    return list;
  }
}

function tagOf(got) {
  if (got.value !== undefined) return String(got.value?.t);
  const start = got.bytes ? got.bytes.toString('latin1', 0, 60) : got.text;
  return /^\{\s*"t"\s*:\s*"([^"]*)"/.exec(start)?.[1] ?? start.slice(0, Math.max(0, start.indexOf(' ')));
}

function isSame(record, got) {
  if (got.value !== undefined) {
    record.canonical ??= canonical(JSON.parse(record.body));
    return record.kind === 'json' && canonical(got.value) === record.canonical;
  }
  if (got.isLines) {
    record.lines ??= record.body.toString().replace(/\r\n?/g, '\n');
    return got.text === record.lines;
  }
  if (got.bytes) return record.body.equals(got.bytes);
  record.text ??= record.body.toString();
  return got.text === record.text;
}
