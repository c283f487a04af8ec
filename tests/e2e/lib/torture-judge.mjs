// The judgement: who lacks what, and whether a gap that was told can be.

const shown = (list) => `${list.length}: ${list.slice(0, 5).map((r) => `${r.tag}@${r.id}`).join(' ')}${list.length > 5 ? ' …' : ''}`;

// Records with an id above `start`, in order.
const published = (world, unit) => world.matching(unit.matches).filter((r) => r.id > unit.start)
  .sort((a, b) => a.id - b.id);

function judgeUnit(world, reader, unit, all) {
  const wanted = all.filter((r) => r.id > unit.start);
  const got = new Set();
  let last = 0;
  for (const record of unit.records) {
    if (!record.id) {
      if (!record.isRaw && record.isAnswered) reader.wrong(`${unit.name}: ${record.tag} came, and has no id`);
      continue;
    }
    if (got.has(record)) reader.wrong(`${unit.name}: ${record.tag} came twice`);
    got.add(record);
    if (record.id <= last) reader.wrong(`${unit.name}: ${record.tag}@${record.id} came behind id ${last}`);
    last = record.id;
    if (record.id <= unit.start) reader.wrong(`${unit.name}: ${record.tag}@${record.id} came though it began at ${unit.start}`);
  }
  // What comes by a channel and by a pattern goes once.
  const others = reader.units.filter((other) => other !== unit && (other.isPattern || unit.isPattern));
  const also = new Set(others.flatMap((other) => other.records));
  const missing = wanted.filter((r) => !got.has(r) && !also.has(r));
  const gaps = [unit, ...others].flatMap((one) => one.gaps.map((gap) => ({ ...gap, matches: one.matches })));
  const untold = missing.filter((r) => !gaps.some(({ from, to, matches }) => from <= r.id && r.id <= to && matches(r.channel)));
  if (untold.length > 0) {
    reader.wrong(`${unit.name} from ${unit.start}: of ${wanted.length} it lacks ${shown(untold)}; gaps ${JSON.stringify(unit.gaps.slice(-5))}; ` +
      `the last that came ${unit.records.slice(-3).map((r) => `${r.tag}@${r.id}`).join(' ')}`);
  }
  world.count('judged', wanted.length);
  world.count('in gaps', missing.length);
  for (const gap of unit.gaps) judgeGap(world, reader, unit, gap);
}

// A gap ends at a mark: the last message that was dropped from the channel (of
// a pattern: from any), or where a memory store began.
function judgeGap(world, reader, unit, { from, to }) {
  if (!unit.isKept) return;
  if (world.restarts.some(({ before, after }) => to >= before && to < after)) return;
  const record = world.byId.get(to);
  if (world.historyCount && record) {
    const where = unit.isPattern || reader.units.length > 1 ? record.channel : unit.name;
    const behind = (world.sorted.get(where) ?? []).filter((r) => r.id > to).length;
    if (record.channel === where && behind >= world.historyCount) return;
  }
  reader.wrong(`${unit.name}: a gap from ${from} to ${to} that cannot be (${record ? `${record.tag} on ${record.channel}` : 'no message has that id'})`);
}

// Each stretch that a reader of overlapping patterns was there for.
function judgeStretches(world, reader) {
  for (const { start, end, ids, gaps } of reader.stretches) {
    const got = new Set(ids);
    const wanted = world.matching((name) => reader.units.some((unit) => unit.matches(name))).filter((r) => r.id > start && r.id <= end);
    const missing = wanted.filter((r) => !got.has(r.id) && !gaps.some(({ from, to }) => from <= r.id && r.id <= to));
    if (missing.length > 0) reader.wrong(`from ${start} to ${end}: of ${wanted.length} it lacks ${shown(missing)}`);
    for (const { channel, from, to } of gaps) judgeGap(world, reader, reader.units.find((u) => u.name === channel), { from, to });
    world.count('judged', wanted.length);
  }
}

// Of what a connection sent as raw frames a first part was published, in order.
function judgeFrames(world, publisher) {
  for (const sent of publisher.sent) {
    let last = 0;
    let isOver = false;
    for (const record of sent) {
      if (!record.id) {
        isOver = true;
        continue;
      }
      if (isOver) world.wrong(`${publisher.name}: ${record.tag} is published, one before it is not`);
      if (record.id <= last) world.wrong(`${publisher.name}: ${record.tag}@${record.id} is behind ${last}`);
      last = record.id;
    }
  }
}

export function judge(world, readers, publishers) {
  world.sorted = new Map();
  for (const [channel, records] of world.byChannel) {
    world.sorted.set(channel, records.filter((r) => r.id).sort((a, b) => a.id - b.id));
  }
  for (const record of world.byTag.values()) {
    if (!record.isRaw && !record.isAnswered && record.epoch === world.epoch) world.wrong(`${record.tag} was never answered`);
  }
  const lists = new Map(); // by name: many have the same
  for (const reader of readers) {
    if (reader.stretches) {
      judgeStretches(world, reader);
      continue;
    }
    for (const unit of reader.units) {
      if (!lists.has(unit.name)) lists.set(unit.name, published(world, { ...unit, start: 0 }));
      judgeUnit(world, reader, unit, lists.get(unit.name));
    }
  }
  for (const publisher of publishers) if (publisher.sent) judgeFrames(world, publisher);
}

// What the broker still has must be what was published: asked channel by
// channel. Raw frames become known by it.
export async function compareHistory(world, ask) {
  for (const [channel, records] of world.byChannel) {
    if (!world.isKept(channel)) continue;
    const kept = [];
    let since = 'first';
    for (;;) {
      const got = await ask(channel, since);
      for (const message of got.messages) {
        const tag = message.data64 !== undefined ? Buffer.from(message.data64, 'base64').toString('latin1').split(' ')[0]
          : typeof message.data === 'string' ? message.data.split(' ')[0] : message.data.t;
        const record = world.byTag.get(tag);
        if (!record || record.channel !== channel) world.wrong(`history of ${channel}: ${tag} is there`);
        else world.identify(record, message.id, `history of ${channel}`);
        kept.push(message.id);
      }
      since = got.cursor;
      if (!got.more) break;
    }
    const wanted = records.filter((r) => r.id && r.epoch === world.epoch).map((r) => r.id).sort((a, b) => a - b);
    const want = world.historyCount ? wanted.slice(-world.historyCount) : wanted;
    if (want.join() !== kept.join()) {
      const lacks = want.filter((id) => !kept.includes(id));
      const extra = kept.filter((id) => !want.includes(id));
      world.wrong(`history of ${channel} has ${kept.length} of ${want.length}: it lacks ${lacks.length} (${lacks.slice(0, 5)}), has ${extra.slice(0, 5)} besides`);
    }
  }
}
