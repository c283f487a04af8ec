// The newcomer's page: one channel, what arrives on it, and a form to publish.
//
// Invariants: at most one subscription is open, and what an older one still
// reports is ignored; and nothing that came from outside is ever put into the
// page but as text.
import { Crier } from './crier.js';

const KEEP = 500; // rows; older ones leave the page
const STILL_TRYING_MS = 1500;

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

// --- what the page shows ---------------------------------------------------

const crier = new Crier();
let subscription = null;
let countdown = null;
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

function showLost(until) {
  const left = Math.round((until - Date.now()) / 1000);
  showState('waiting', left > 0 ? `Lost; again in ${left} s` : 'Lost; again at once');
}

function onState(state, detail) {
  clearInterval(countdown);
  if (state === 'open') showState('open', 'Connected');
  if (state === 'opening') showState('connecting', 'Connecting');
  if (state === 'failed') showState('closed', `Refused: ${detail.message}`);
  if (state === 'waiting') {
    const until = Date.now() + (detail?.afterMs ?? 0);
    showLost(until);
    countdown = setInterval(showLost, 1000, until);
  }
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
  if (message.data instanceof Uint8Array) {
    const text = Array.from(message.data, (byte) => String.fromCharCode(byte)).join('');
    return make('pre', 'body quiet', `${message.data.length} bytes: ${btoa(text)}`);
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

function showGap({ from, to }) {
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
  subscription?.close();
  channel = name;
  mine.clear();
  clearFeed();
  showChannel();
  $('result').textContent = '';
  subscription = crier.subscribe(name, showMessage, { onGap: showGap, onState });
}

// `ok`: undefined while it is not known.
function showResult(text, ok) {
  $('result').dataset.ok = ok === undefined ? '' : ok ? 'yes' : 'no';
  $('result').textContent = text;
}

function own(id) {
  const row = $('messages').querySelector(`li[data-id="${id}"]`);
  if (row) markMine(row);
  else mine.add(id); // it comes after its answer
}

async function publish() {
  const name = channel;
  $('send').disabled = true;
  const patience = setTimeout(showResult, STILL_TRYING_MS, 'The broker does not answer; still trying.');
  try {
    const { id, subscribers } = await crier.publish(name, $('text').value, { type: $('kind').value });
    if (name === channel) own(id);
    const many = subscribers === undefined ? '' :
      `, to ${subscribers} ${subscribers === 1 ? 'subscriber' : 'subscribers'}`;
    showResult(`Published with id ${id}${many}.`, true);
    $('text').value = '';
  } catch (error) {
    showResult(error.status ? `Not published (${error.status}): ${error.message}` :
      'Not published: the broker cannot be reached.', false);
  } finally {
    clearTimeout(patience);
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
document.addEventListener('visibilitychange', () => {
  if (document.hidden) return;
  unseen = 0;
  showTitle();
});

join(channelOfUrl() || 'news');
