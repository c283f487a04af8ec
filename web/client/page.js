// The newcomer's page: one channel, what arrives on it, and a form to publish.
//
// Invariants: at most one Line (a WebSocket and its reconnects) is alive, and
// what an older one still reports is ignored; its cursor only grows, so that a
// reconnect asks for exactly what came after; and nothing that came from
// outside is ever put into the page but as text.

const KEEP = 500; // rows; older ones leave the page
const BACKOFF_FIRST_MS = 500;
const BACKOFF_MOST_MS = 15_000;
const PING_EVERY_MS = 20_000;
const PONG_WITHIN_MS = 10_000;

const $ = (id) => document.getElementById(id);

// --- names -----------------------------------------------------------------

// One path segment. encodeURIComponent leaves a few characters that a shell
// would read, so that the curl line can be pasted without quotes.
function segment(name) {
  return encodeURIComponent(name).replace(/[!'()*]/g, (c) =>
    '%' + c.charCodeAt(0).toString(16).toUpperCase());
}

// Why `name` cannot be a channel, or '' if it can.
function complaint(name) {
  if (name === '') return 'Give the channel a name.';
  if (name === '.' || name === '..') return 'A channel cannot be named . or ..';
  if (name.includes('*')) return 'A channel name has no * in it.';
  if (/\p{Cc}/u.test(name)) return 'A channel name has no control characters.';
  try {
    encodeURIComponent(name);
  } catch {
    return 'This is not valid Unicode.';
  }
  if (new TextEncoder().encode(name).length > 255)
    return 'A channel name is at most 255 bytes long.';
  return '';
}

function channelOfUrl() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return location.hash.slice(1);
  }
}

// --- the line to the broker ------------------------------------------------

// A subscription that survives lost connections. `on` has state(word, text),
// message(object) and gap(from, to).
class Line {
  constructor(name, on) {
    this.name = name;
    this.on = on;
    this.cursor = null; // everything up to this id is here
    this.failures = 0;
    this.drainMs = null; // how long a broker that shuts down asked us to wait
    this.socket = null;
    this.timers = new Map();
    this.ended = false;
    this.open();
  }

  end() {
    this.ended = true;
    this.stopTimers();
    this.socket?.close(1000);
    this.socket = null;
  }

  // At once, instead of at the end of the wait.
  hurry() {
    if (!this.ended && this.timers.has('retry')) this.open();
  }

  open() {
    this.stopTimers();
    const url = new URL('/channels/' + segment(this.name), location.href);
    url.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
    if (this.cursor !== null) url.searchParams.set('since', this.cursor);
    this.on.state('connecting', 'Connecting');
    const socket = new WebSocket(url, 'crier.v1');
    this.socket = socket;
    let lost = false;
    const lose = () => {
      if (lost || this.socket !== socket) return;
      lost = true;
      this.retry();
    };
    socket.onopen = () => {
      if (this.socket === socket) this.expectPong(socket, lose);
    };
    socket.onmessage = (event) => {
      if (this.socket === socket) this.take(event.data, socket, lose);
    };
    socket.onclose = lose;
  }

  retry() {
    const top = Math.min(BACKOFF_MOST_MS, BACKOFF_FIRST_MS * 2 ** this.failures);
    const wait = this.drainMs ?? top * (0.5 + Math.random() / 2);
    this.drainMs = null;
    this.failures = Math.min(this.failures + 1, 16);
    this.stopTimers();
    this.after('retry', wait, () => this.open());
    const tell = (left) => {
      this.on.state('waiting', left > 0 ? `Lost; again in ${left} s` : 'Lost; again at once');
      if (left > 1) this.after('tell', 1000, () => tell(left - 1));
    };
    tell(Math.round(wait / 1000));
  }

  // A connection can die without a word; then no pong comes.
  expectPong(socket, lose) {
    this.after('ping', PING_EVERY_MS, () => {
      if (socket.readyState !== WebSocket.OPEN) return;
      socket.send('{"op":"ping"}');
      this.after('pong', PONG_WITHIN_MS, () => {
        socket.close();
        lose();
      });
    });
  }

  take(text, socket, lose) {
    this.stop('pong');
    this.expectPong(socket, lose);
    let frame;
    try {
      frame = JSON.parse(text);
    } catch {
      return;
    }
    switch (frame.op) {
    case 'subscribed':
      this.failures = 0;
      this.on.state('open', 'Connected');
      if (frame.gap) this.on.gap(frame.gap.from, frame.gap.to);
      for (const message of frame.messages ?? []) this.deliver(message);
      this.move(frame.cursor);
      break;
    case 'message':
      this.deliver(frame);
      break;
    case 'gap':
      this.on.gap(frame.from, frame.to);
      break;
    case 'cursor':
      this.move(frame.id);
      break;
    case 'drain':
      this.drainMs = frame.after_ms;
      break;
    }
  }

  deliver(message) {
    this.move(message.id);
    this.on.message(message);
  }

  move(id) {
    if (Number.isSafeInteger(id) && !(id <= this.cursor)) this.cursor = id;
  }

  after(what, ms, then) {
    this.stop(what);
    this.timers.set(what, setTimeout(() => {
      this.timers.delete(what);
      then();
    }, ms));
  }

  stop(what) {
    clearTimeout(this.timers.get(what));
    this.timers.delete(what);
  }

  stopTimers() {
    for (const what of [...this.timers.keys()]) this.stop(what);
  }
}

// --- what the page shows ---------------------------------------------------

let line = null;
let channel = '';
let count = 0;
let unseen = 0;
const mine = new Set(); // ids that this tab published

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function showState(word, text) {
  $('state').dataset.state = word;
  if ($('state-text').textContent !== text) $('state-text').textContent = text;
}

function showTitle() {
  const lead = unseen > 0 ? `(${unseen}) ` : '';
  document.title = channel ? `${lead}${channel} · Crier` : 'Crier';
}

function addRow(row) {
  const list = $('messages');
  list.prepend(row);
  while (list.children.length > KEEP) list.lastElementChild.remove();
  $('empty').hidden = true;
}

// An id is microseconds of the broker's clock.
function timeOf(id) {
  const date = new Date(id / 1000);
  const node = make('time', '', date.toLocaleTimeString([], {
    hour: '2-digit', minute: '2-digit', second: '2-digit', fractionalSecondDigits: 3,
  }));
  node.dateTime = date.toISOString();
  node.title = date.toLocaleString();
  return node;
}

function bodyOf(message) {
  if (message.data64 !== undefined) {
    const pad = message.data64.endsWith('==') ? 2 : message.data64.endsWith('=') ? 1 : 0;
    const bytes = message.data64.length / 4 * 3 - pad;
    return make('pre', 'body quiet', `${bytes} bytes: ${message.data64}`);
  }
  if (message.data === '') return make('pre', 'body quiet', '(empty)');
  if (typeof message.data === 'string' && !/json/i.test(message.type))
    return make('pre', 'body', message.data);
  return make('pre', 'body', JSON.stringify(message.data, null, 2));
}

function markMine(row) {
  row.querySelector('.meta').append(make('span', 'tag mine', 'from this tab'));
}

function showMessage(message) {
  const row = make('li');
  row.dataset.id = message.id;
  const meta = make('div', 'meta');
  meta.append(timeOf(message.id), make('span', 'id', String(message.id)));
  if (message.event !== undefined) meta.append(make('span', 'tag', message.event));
  if (message.type !== 'text/plain') meta.append(make('span', 'tag', message.type));
  row.append(meta, bodyOf(message));
  if (mine.delete(message.id)) markMine(row);
  addRow(row);
  count += 1;
  $('count').textContent = String(count);
  if (document.hidden) {
    unseen += 1;
    showTitle();
  }
}

function showGap(from, to) {
  const row = make('li', 'gap', `Messages with ids from ${from} to ${to} may be missing here.`);
  addRow(row);
}

function clearFeed() {
  $('messages').replaceChildren();
  $('empty').hidden = false;
  count = 0;
  unseen = 0;
  $('count').textContent = '0';
  showTitle();
}

function showChannel() {
  $('channel').value = channel;
  $('target').textContent = channel;
  $('joined').textContent = channel;
  $('second').href = '#' + segment(channel);
  $('curl').textContent = `curl -d 'hello' ${location.origin}/channels/${segment(channel)}`;
  showTitle();
}

function showComplaint(text) {
  $('channel-error').textContent = text;
  $('channel').setAttribute('aria-invalid', String(text !== ''));
}

// --- what the person does --------------------------------------------------

function join(name) {
  const wrong = complaint(name);
  showComplaint(wrong);
  if (wrong) {
    $('channel').focus();
    return;
  }
  line?.end();
  channel = name;
  mine.clear();
  clearFeed();
  showChannel();
  $('result').textContent = '';
  line = new Line(name, { state: showState, message: showMessage, gap: showGap });
}

function showResult(text, ok) {
  $('result').dataset.ok = ok ? 'yes' : 'no';
  $('result').textContent = text;
}

function own(id) {
  const row = $('messages').querySelector(`li[data-id="${id}"]`);
  if (row) markMine(row);
  else mine.add(id); // it comes after its answer
}

async function problemOf(answer) {
  try {
    const problem = await answer.json();
    return problem.detail || problem.title || answer.statusText;
  } catch {
    return answer.statusText || 'no reason given';
  }
}

async function publish() {
  const name = channel;
  $('send').disabled = true;
  try {
    const answer = await fetch('/channels/' + segment(name), {
      method: 'POST',
      headers: { 'Content-Type': $('kind').value },
      body: $('text').value,
    });
    if (!answer.ok) {
      showResult(`Not published (${answer.status}): ${await problemOf(answer)}`, false);
      return;
    }
    const { id, subscribers } = await answer.json();
    if (name === channel) own(id);
    const many = subscribers === undefined ? '' :
      `, to ${subscribers} ${subscribers === 1 ? 'subscriber' : 'subscribers'}`;
    showResult(`Published with id ${id}${many}.`, true);
    $('text').value = '';
  } catch {
    showResult('Not published: the broker cannot be reached.', false);
  } finally {
    $('send').disabled = false;
    $('text').focus();
  }
}

async function copyCurl() {
  const text = $('curl').textContent;
  try {
    await navigator.clipboard.writeText(text);
    $('copy').textContent = 'Copied';
    setTimeout(() => { $('copy').textContent = 'Copy'; }, 1500);
  } catch { // not a secure context, or not allowed: let the person copy it
    getSelection().selectAllChildren($('curl'));
  }
}

$('join').addEventListener('submit', (event) => {
  event.preventDefault();
  const name = $('channel').value;
  if (name !== channel && complaint(name) === '') location.hash = segment(name);
  else join(name); // also a second press: subscribe anew
});
$('channel').addEventListener('input', () => showComplaint(''));
$('publish').addEventListener('submit', (event) => {
  event.preventDefault();
  if (!$('send').disabled) publish();
});
$('text').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  $('publish').requestSubmit();
});
$('copy').addEventListener('click', copyCurl);
$('clear').addEventListener('click', clearFeed);
addEventListener('hashchange', () => join(channelOfUrl() || 'news'));
addEventListener('online', () => line?.hurry());
document.addEventListener('visibilitychange', () => {
  if (document.hidden) return;
  unseen = 0;
  showTitle();
  line?.hurry();
});
addEventListener('pagehide', () => line?.end());
addEventListener('pageshow', (event) => { if (event.persisted) join(channel); });

join(channelOfUrl() || 'news');
