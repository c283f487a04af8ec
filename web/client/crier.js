// Subscribe to and publish through a Crier broker, from a browser or Node.
//
// The promise: a subscriber gets each message of its channel once, in order of
// id, or is told of the gap. A topic (a channel or pattern that is subscribed
// to) is a cursor, the id up to which it has everything. Whatever happens to
// the connection, it goes on from there; what does not lie above the cursor is
// dropped; and a cursor moves only by a message that is handed over or by the
// broker's word that nothing up to there is missing.
//
// A line is one connection and its topics: a WebSocket (crier.v1) or, where
// none can be opened, a stream of events or, where that is held up too, a long
// poll. The streams are read with fetch: an EventSource tells no status, hears
// no event whose name it does not know, and sends no Authorization.

const FIRST_WAIT_MS = 500; // before a new attempt; doubles
const MOST_WAIT_MS = 30_000;
const OPEN_WITHIN_MS = 10_000; // a connection, and the first bytes on it
const PING_EVERY_MS = 25_000; // of silence
const PONG_WITHIN_MS = 10_000;
const PROOF_WITHIN_MS = 3_000; // of life, when the page comes back
const SILENT_MS = 60_000; // of a stream: the broker writes each 25 s
const POLL_S = 25;
const STABLE_MS = 60_000;
const UPGRADE_MS = 300_000; // before another try of a WebSocket
const LINGER_MS = 1_000; // of a line without topics
const LINE_TOPICS = 200; // below the broker's channels.per_connection
const PUBLISH_WITHIN_MS = 30_000;

const root = globalThis;
const { now } = Date;
const { min, random } = Math;
// The timers of a line: the end of silence, the next attempt, the end.
const LIFE = 0;
const NEXT = 1;
const LINGER = 2;
let refs = 0; // given to commands

// Clients that lost the same broker shall not come back at the same moment.
const jitter = (n) => random() * min(MOST_WAIT_MS, FIRST_WAIT_MS * 2 ** n);

const makeError = (detail, more) => Object.assign(Error(detail), more);

// Whether the same request may succeed later.
const passes = ({ status = 0 }) => status < 400 || status === 429 || (status > 501 && status < 505);

// --- topics ----------------------------------------------------------------

// Another topic's head, or a channel's name.
const covers = ({ name, head }, other) => name === other || (name !== head && other?.startsWith(head));

// A fault of a handler is reported, and is none of the connection's.
const call = ({ subs }, handler, ...args) => {
  for (const sub of [...subs]) {
    try {
      if (subs.has(sub)) sub[handler]?.(...args);
    } catch (error) {
      queueMicrotask(() => { throw error; });
    }
  }
};

const tell = (topic, state, detail) => {
  topic.state = state;
  call(topic, 'onState', state, detail);
};

// `isAhead`: its cursor came from a broker whose clock was, and is worth nothing.
const tellGap = (topic, gap, isAhead) => {
  if (!gap) return;
  if (isAhead) topic.cursor = null;
  const { channel = topic.name, from, to } = gap;
  call(topic, 'onGap', { channel, from, to });
};

const move = (topic, id) => {
  if (!(id <= topic.cursor)) topic.cursor = id;
};

const hand = (topic, { op, data64, ...message }) => {
  if (message.id <= topic.cursor) return;
  topic.cursor = message.id;
  if (data64 != null) message.data = Uint8Array.from(atob(data64), (c) => c.charCodeAt());
  call(topic, 'onMessage', message);
};

// --- lines -----------------------------------------------------------------

function makeLine({ WebSocket, locate, bearer, ask }) {
  const topics = new Set();
  let state = 'idle';
  let run = 0; // number of the connection of now: older ones are not listened to
  const timers = [];
  let close; // the connection of now
  let send; // on it, if it is a WebSocket
  let check; // whether it lives
  let openedAt = 0; // 0: not yet
  let drainEnds = 0;
  let fails = 0; // in a row
  let refusals = WebSocket ? 0 : 2; // of a WebSocket, in a row
  let mayWork; // a WebSocket, although refused: nothing worked then
  let isStreamBlocked;

  const all = () => [...topics];
  const find = (channel) => all().find((topic) => covers(topic, channel));

  const show = (next, detail) => {
    state = next;
    for (const topic of topics) tell(topic, next, detail);
  };

  const after = (ms, name, then) => {
    clearTimeout(timers[name]);
    timers[name] = setTimeout(then, ms);
  };

  const quit = () => {
    run++;
    timers.forEach(clearTimeout);
    close?.();
    close = send = check = null;
    openedAt = 0;
    state = 'idle';
  };

  const connect = () => {
    quit();
    drainEnds = 0;
    if (!topics.size) return;
    show('opening');
    const mine = run;
    const isOver = () => mine !== run;
    (refusals < 2 ? socket : requests)(isOver).catch((error) => isOver() || lose(error));
  };

  // Connect again, by a WebSocket if one can be had now.
  const retry = () => {
    refusals = 1;
    connect();
  };

  const lose = ({ retryMs } = {}) => {
    if (openedAt) {
      if (now() - openedAt > STABLE_MS) fails = 0;
      isStreamBlocked = false; // perhaps that was bad luck
    } else if (refusals < 2) {
      refusals++;
    } else {
      mayWork = true;
    }
    const afterMs = Math.max(drainEnds - now(), (retryMs | 0) + jitter(fails++));
    quit();
    show('waiting', { afterMs });
    after(afterMs, NEXT, connect);
  };

  const remove = (topic) => {
    if (!topics.delete(topic)) return;
    send?.({ op: 'unsubscribe', [topic.kind]: topic.name });
    after(LINGER_MS, LINGER, () => topics.size || quit());
  };

  const fail = (topic, error) => {
    remove(topic);
    tell(topic, 'failed', error);
  };

  // --- crier.v1 over a WebSocket

  const subscribe = (topic) => {
    topic.isLive = false; // until the answer
    topic.ref = ++refs;
    send({ op: 'subscribe', [topic.kind]: topic.name, since: topic.cursor ?? topic.since, ref: refs });
  };

  const socket = async (isOver) => {
    let ws;
    const lost = () => isOver() || lose();
    // A connection can die without a word; then nothing answers.
    const ping = (ms) => {
      send({ op: 'ping' });
      after(ms, LIFE, lost);
    };
    close = () => ws?.close();
    send = (command) => ws?.readyState === 1 && ws.send(JSON.stringify(command));
    check = () => openedAt && ping(PROOF_WITHIN_MS);
    after(OPEN_WITHIN_MS, LIFE, lost);
    const token = await bearer();
    if (isOver()) return;
    ws = new WebSocket(locate('subscribe', []).replace('http', 'ws'),
      token ? ['crier.v1', `bearer.${token}`] : 'crier.v1');
    ws.onopen = () => topics.forEach(subscribe);
    ws.onclose = ws.onerror = lost;
    ws.onmessage = ({ data }) => {
      if (isOver()) return;
      after(PING_EVERY_MS, LIFE, () => ping(PONG_WITHIN_MS));
      if (!openedAt) {
        openedAt = now();
        state = 'open';
        refusals = 0;
        mayWork = true;
        isStreamBlocked = false;
      }
      take(JSON.parse(data));
    };
  };

  const take = (frame) => {
    const { op, ref, id, code, detail, channel, after_ms: afterMs } = frame;
    if (ref) { // an answer
      const topic = all().find((one) => one.ref === ref);
      if (code === 'unavailable') lose();
      else if (topic) code ? fail(topic, makeError(detail, { code })) : begin(topic, frame);
    }
    if (op === 'cursor')
      for (const one of topics) if (one.isLive && !one.isBehind) move(one, id);
    if (op === 'drain') { // come back then, not before
      drainEnds = now() + afterMs;
      after(afterMs, NEXT, connect);
    }
    const topic = find(channel);
    if (!topic?.isLive) return; // it is for one that was closed
    if (op === 'gap') tellGap(topic, frame);
    if (op === 'message') {
      fails = 0;
      hand(topic, frame);
    }
  };

  const begin = (topic, { gap, cursor, more, messages }) => {
    topic.isLive = true;
    topic.isBehind = more; // the rest comes as frames
    tell(topic, 'open');
    tellGap(topic, gap, cursor < topic.cursor);
    messages.forEach((message) => hand(topic, message));
    if (!more) move(topic, cursor);
  };

  // --- GET: pages of history, a stream of events, long polls

  const requests = async (isOver) => {
    const abort = new AbortController();
    let list = all();
    close = () => abort.abort();
    check = connect; // nothing can be asked on what is there

    const get = (some, since, headers, wait) => {
      after(OPEN_WITHIN_MS + (wait | 0) * 1000, LIFE, close);
      const query = [...some.map(({ kind, name }) => [kind, name]), ['since', since], ['wait', wait]];
      return ask(locate('subscribe', query), { headers, signal: abort.signal });
    };

    const deliver = (message) => {
      const topic = find(message.channel);
      if (!list.includes(topic)) return; // closed, and perhaps opened anew
      fails = 0;
      hand(topic, message);
    };

    // The next messages. True: there are more.
    const page = async (some, since, wait) => {
      const { messages, cursor, gap, more } = await (await get(some, since, {}, wait)).json();
      if (isOver()) return;
      for (const topic of some) tellGap(topic, gap, cursor < since);
      messages.forEach(deliver);
      for (const topic of some) move(topic, cursor);
      return more;
    };

    // Each by itself first: so all get cursors that can share a stream, and
    // those that are refused are known.
    await Promise.all(list.map(async (topic) => {
      try {
        while (!isOver() && await page([topic], topic.cursor ?? topic.since));
      } catch (error) {
        if (isOver() || passes(error)) throw error;
        fail(topic, error);
      }
    }));
    if (isOver() || !topics.size) return;
    if (mayWork) { // a WebSocket, now that the broker can be reached
      mayWork = false;
      return retry();
    }

    list = all();
    const least = () => min(...list.map(({ cursor }) => cursor));
    const opened = () => {
      openedAt = now();
      show('open');
      if (WebSocket) after(UPGRADE_MS, NEXT, retry);
    };
    if (isStreamBlocked) {
      opened();
      while (!isOver() && topics.size) await page(list, least(), POLL_S);
      return;
    }

    isStreamBlocked = true; // until bytes come
    const stream = await get(list, least(), { accept: 'text/event-stream' });
    const reader = stream.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    let retryMs;
    for (;;) {
      const { done, value } = await reader.read();
      if (isOver()) return;
      if (done) return lose({ retryMs });
      isStreamBlocked = false;
      if (!openedAt) opened();
      after(SILENT_MS, LIFE, close);
      const events = (text + value).split('\n\n');
      text = events.pop();
      for (const lines of events) {
        const field = { data: '' };
        for (const line of lines.split('\n')) {
          const [, name, rest] = /^([^:]*):? ?([^]*)/.exec(line);
          field[name] = name === 'data' ? field.data + rest : rest;
        }
        const { id, data, event } = field;
        const about = data && JSON.parse(data);
        retryMs = field.retry ?? retryMs;
        if (event === 'gap') {
          const topic = find(about.channel);
          for (const one of topic ? [topic] : list) tellGap(one, about);
        } else if (about) {
          deliver(about);
        }
        if (id) for (const topic of list) move(topic, +id);
      }
    }
  };

  return {
    topics, remove,
    state: () => (topics.size ? state : 'idle'),
    takes: (topic) => topics.size < LINE_TOPICS &&
      !all().some((other) => covers(other, topic.head) || covers(topic, other.head)),
    add(topic) {
      topics.add(topic);
      if (state === 'waiting') topic.state = state;
      else if (send) subscribe(topic);
      else {
        state = 'opening';
        after(0, NEXT, connect);
      }
    },
    // The network or the page is back.
    wake() {
      if (check) return check();
      if (now() < drainEnds) return;
      fails = 0;
      connect();
    },
    quit,
  };
}

// --- what is exported ------------------------------------------------------

export class Crier {
  #broker;
  #lines = [];
  #wake = ({ type }) => {
    if (type[0] === 'v' && document.hidden) return; // visibilitychange
    for (const line of this.#lines) line.wake();
  };

  constructor(base = '/', { token, WebSocket = root.WebSocket, fetch = root.fetch } = {}) {
    const home = new URL(base, root.location);
    const bearer = async () => (token?.call ? token() : token);
    this.#broker = {
      WebSocket, bearer,
      locate(path, query) {
        const url = new URL(path, home);
        url.search = home.search; // a signed capability
        for (const [name, value] of query)
          if (value != null) url.searchParams.append(name, value);
        return url.href;
      },
      // The answer, if it is a good one. 204: the broker drains.
      async ask(url, { headers, ...more }) {
        const word = await bearer();
        if (word) headers.authorization = `Bearer ${word}`;
        const answer = await fetch(url, { headers, ...more });
        const { status } = answer;
        if (status < 204) return answer;
        const { detail = `status ${status}` } = await answer.json().catch(() => 0); // 0: of a proxy
        throw makeError(detail, { status, retryMs: answer.headers.get('retry-after') * 1000 });
      },
    };
    this.#listen('addEventListener');
  }

  #listen(how) {
    for (const name of ['online', 'visibilitychange']) root[how]?.(name, this.#wake);
  }

  get state() {
    // The one that matters most is the last of idle, open, opening, waiting.
    return this.#lines.map((line) => line.state()).sort().pop() ?? 'idle';
  }

  subscribe(name, onMessage, { since, onGap, onState } = {}) {
    encodeURIComponent(name); // throws if it is no Unicode
    since ??= 'now';
    const sub = { onMessage, onGap, onState };
    // Who begins now can share what another has begun so.
    let topic = this.#lines.flatMap(({ topics }) => [...topics])
      .find((one) => one.name === name && one.since === since && since === 'now');
    if (!topic) {
      const [head] = name.split('*');
      topic = {
        name, head,
        kind: name === head ? 'channel' : 'pattern',
        since,
        cursor: since >= 0 ? +since : null,
        state: 'opening',
        subs: new Set(),
      };
      let line = this.#lines.find((one) => one.takes(topic));
      if (!line) this.#lines.push(line = makeLine(this.#broker));
      topic.line = line;
      line.add(topic);
    }
    topic.subs.add(sub);
    queueMicrotask(() => topic.subs.has(sub) && onState?.(topic.state));
    return {
      get cursor() { return topic.cursor; },
      close() {
        topic.subs.delete(sub);
        if (!topic.subs.size) topic.line.remove(topic);
      },
    };
  }

  async publish(channel, data, { type, event, ttl, key } = {}) {
    const { locate, ask } = this.#broker;
    const url = locate(`channels/${encodeURIComponent(channel)}`, [['event', event], ['ttl', ttl]]);
    const isText = data?.trim;
    const isBytes = data?.byteLength >= 0;
    const request = {
      method: 'POST',
      body: isText || isBytes ? data : JSON.stringify(data),
      headers: {
        'content-type': type ?? (isText ? 'text/plain' : `application/${isBytes ? 'octet-stream' : 'json'}`),
        // So that a retry is never a double. randomUUID is there in secure
        // contexts only; a key need not be a secret.
        'idempotency-key': key ?? root.crypto?.randomUUID?.() ?? `${random()}-${random()}`,
      },
    };
    const end = now() + PUBLISH_WITHIN_MS;
    for (let n = 0; ; n++) {
      try {
        request.signal = AbortSignal.timeout(OPEN_WITHIN_MS);
        return await (await ask(url, request)).json();
      } catch (error) {
        const wait = (error.retryMs | 0) + jitter(n);
        if (!passes(error) || now() + wait > end) throw error;
        await new Promise((done) => setTimeout(done, wait));
      }
    }
  }

  close() {
    for (const { topics, quit } of this.#lines.splice(0)) {
      for (const { subs } of topics) subs.clear();
      quit();
    }
    this.#listen('removeEventListener');
  }
}
