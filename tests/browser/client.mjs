// The browser client in Chromium: a page of the broker's own imports it and
// keeps all it is told, while workers die, the broker goes, the page sleeps, and
// the network lets less through.
import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';
import { check, finish, poll, sleep, slow, start } from '../e2e/lib/crier.mjs';
import { Source, assertPromise } from '../e2e/lib/client.mjs';
import { publish } from '../e2e/lib/http.mjs';

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
});
process.on('exit', () => browser.process?.()?.kill('SIGKILL'));

// A server, and a tab of it in which `crier` is a client. `before(page)` runs
// before anything is loaded.
async function withPage(options, body, before = () => {}) {
  const world = { server: await start({ workers: 2, history: true, ...options }) };
  const context = await browser.newContext();
  try {
    world.context = context;
    world.page = await context.newPage();
    world.faults = [];
    world.page.on('pageerror', (error) => world.faults.push(error.message));
    await before(world.page);
    await world.page.goto(`http://${world.server.host}/crier.js`); // a page without a client of its own
    await world.page.evaluate(async () => {
      const { Crier } = await import('/crier.js');
      window.crier = new Crier();
      window.readers = {};
      window.read = (name, options) => {
        const reader = { messages: [], gaps: [], states: [] };
        window.readers[name] = reader;
        reader.sub = window.crier.subscribe(name, (message) => reader.messages.push(message), {
          ...options,
          onGap: (gap) => reader.gaps.push(gap),
          onState: (state, detail) => {
            reader.states.push(state);
            reader.again = Date.now() + detail?.afterMs;
          },
        });
      };
    });
    await body(world);
    assert.deepEqual(world.faults, []);
    if (!world.server.exit) await world.server.stop();
  } finally {
    await context.close();
    world.server.killAll();
  }
}

const read = async ({ page }, name, options) => {
  await page.evaluate(([n, o]) => window.read(n, o), [name, options]);
  await opened({ page }, name, 1);
};
const opened = ({ page }, name, times) => page.waitForFunction(([n, t]) =>
  window.readers[n].states.filter((state) => state === 'open').length >= t, [name, times], { timeout: 40_000 * slow });
const report = ({ page }, name) => page.evaluate((n) => {
  const { messages, gaps, states, sub } = window.readers[n];
  return { messages, gaps, states, cursor: sub.cursor };
}, name);
const until = ({ page }, name, id) => page.waitForFunction(([n, i]) => window.readers[n].sub.cursor >= i, [name, id], { timeout: 30_000 * slow });
const counted = ({ page }, name, n) => page.waitForFunction(([a, b]) => window.readers[a].messages.length >= b, [name, n], { timeout: 30_000 * slow });

// The promise, and whether there was a gap.
async function assertComplete(world, name, published, { gaps }) {
  await until(world, name, published.at(-1)[0]);
  const got = await report(world, name);
  assertPromise(got, published);
  if (gaps) assert.ok(got.gaps.length > 0, 'no gap was told');
  else assert.deepEqual(got.gaps, []);
  return got;
}

check('workers are killed: the tab has all, once, in order, and no gap', { seconds: 60 }, () => withPage({}, async (world) => {
  await read(world, 'news');
  const source = new Source(() => world.server, 'news');
  for (let round = 1; round <= 3; round++) {
    await counted(world, 'news', (await report(world, 'news')).messages.length + 20);
    await sleep(1200); // a worker that dies younger is held to be broken
    for (const pid of world.server.workerPids()) world.server.signal('SIGKILL', pid);
    await opened(world, 'news', round + 1);
  }
  await assertComplete(world, 'news', await source.stop(), { gaps: false });
}));

check('the broker goes and comes back: the tab has all, and is told of the gap', { seconds: 60 }, () => withPage({}, async (world) => {
  const { listeners } = world.server;
  await read(world, 'news');
  const source = new Source(() => world.server, 'news');
  await counted(world, 'news', 20);
  await world.server.stop();
  await world.page.waitForFunction(() => window.crier.state === 'waiting');
  await sleep(2000);
  world.server = await start({ workers: 2, history: true, listen: listeners });
  await opened(world, 'news', 2);
  await counted(world, 'news', (await report(world, 'news')).messages.length + 20);
  await assertComplete(world, 'news', await source.stop(), { gaps: true });
}));

for (const kills of [false, true]) {
  check(`the page is frozen for a while${kills ? ' and its worker dies meanwhile' : ''}: no hole`, { seconds: 60 }, () => withPage({}, async (world) => {
    await read(world, 'news');
    const source = new Source(() => world.server, 'news', { every: 20 });
    await counted(world, 'news', 5);
    const devtools = await world.context.newCDPSession(world.page);
    await devtools.send('Page.setWebLifecycleState', { state: 'frozen' });
    const { length } = source.published;
    if (kills) for (const pid of world.server.workerPids()) world.server.signal('SIGKILL', pid);
    await poll(() => source.published.length > length + 100, '100 messages in its sleep', { ms: 20_000 });
    await devtools.send('Page.setWebLifecycleState', { state: 'active' });
    const published = await source.stop();
    const got = await assertComplete(world, 'news', published, { gaps: false });
    assert.equal(got.messages.length, published.length);
    if (kills) assert.ok(got.states.includes('waiting'));
  }));
}

for (const what of ['online', 'visibilitychange']) {
  check(`a tab that waits for long is there at once on ${what}`, { seconds: 90 }, () => withPage({}, async (world) => {
    const { listeners } = world.server;
    await read(world, 'news');
    await world.server.stop();
    await world.page.waitForFunction(() => window.readers.news.again - Date.now() > 5000, null, { timeout: 60_000 });
    world.server = await start({ workers: 2, history: true, listen: listeners });
    assert.equal((await report(world, 'news')).states.at(-1), 'waiting');
    const at = Date.now();
    if (what === 'online') {
      await world.context.setOffline(true);
      await world.context.setOffline(false);
    } else {
      await world.page.evaluate(() => document.dispatchEvent(new Event('visibilitychange', { bubbles: true })));
    }
    await opened(world, 'news', 2);
    const ms = Date.now() - at;
    assert.ok(ms < 2000 * slow, `back after ${ms} ms`);
    await publish(world.server, 'news', 'on');
    await counted(world, 'news', 1);
  }));
}

// No WebSocket opens; with `isStreamHeld` no stream gets a byte either.
const blocking = (isStreamHeld) => async (page) => {
  await page.addInitScript((isHeld) => {
    window.seen = { sockets: 0, streams: 0, polls: 0 };
    window.WebSocket = class extends EventTarget {
      constructor() {
        super();
        window.seen.sockets++;
        setTimeout(() => this.onclose?.(new CloseEvent('close', { code: 1006 })), 5);
      }

      close() {}
    };
    const { fetch } = window;
    window.fetch = (url, init) => {
      const isStream = init?.headers?.accept === 'text/event-stream';
      if (isStream) window.seen.streams++;
      if (/wait=/.test(url)) window.seen.polls++;
      return isStream && isHeld
        ? new Promise((_, reject) => init.signal.addEventListener('abort', () => reject(init.signal.reason)))
        : fetch(url, init);
    };
  }, isStreamHeld);
};

check('WebSockets are blocked: one stream carries channels and patterns, through the death of workers', { seconds: 60 }, () => withPage({}, async (world) => {
  await Promise.all(['one', 'two', 'room:*'].map((name) => read(world, name)));
  const names = ['one', 'two', 'room:1'];
  const sources = names.map((name) => new Source(() => world.server, name, { every: 20 }));
  await counted(world, 'two', 20);
  for (const pid of world.server.workerPids()) world.server.signal('SIGKILL', pid);
  await opened(world, 'one', 2);
  await counted(world, 'two', (await report(world, 'two')).messages.length + 20);
  const published = await Promise.all(sources.map((source) => source.stop()));
  await assertComplete(world, 'one', published[0], { gaps: false });
  await assertComplete(world, 'two', published[1], { gaps: false });
  await assertComplete(world, 'room:*', published[2], { gaps: false });
  const seen = await world.page.evaluate(() => window.seen);
  assert.ok(seen.sockets >= 2 && seen.streams >= 2, JSON.stringify(seen));
}, blocking(false)));

check('streams are held up too: long polls', { seconds: 60 }, () => withPage({}, async (world) => {
  await Promise.all(['one', 'room:*'].map((name) => read(world, name)));
  const sources = ['one', 'room:1'].map((name) => new Source(() => world.server, name, { every: 20 }));
  await counted(world, 'one', 50);
  const published = await Promise.all(sources.map((source) => source.stop()));
  await assertComplete(world, 'one', published[0], { gaps: false });
  await assertComplete(world, 'room:*', published[1], { gaps: false });
  assert.ok((await world.page.evaluate(() => window.seen.polls)) > 3);
}, blocking(true)));

check('what a tab publishes arrives as it was given, once, in another', { seconds: 60 }, () => withPage({}, async (world) => {
  await read(world, 'caf\u00e9/1');
  const ids = await world.page.evaluate(async () => {
    const all = [];
    for (const data of ['words', { a: [1] }, new Uint8Array([0, 255])]) {
      const { id, subscribers } = await window.crier.publish('caf\u00e9/1', data);
      all.push(id);
      if (subscribers !== 1) throw new Error(`${subscribers} subscribers`);
    }
    return all;
  });
  await counted(world, 'caf\u00e9/1', 3);
  const got = await world.page.evaluate(() => window.readers['caf\u00e9/1'].messages.map(({ id, type, data }) =>
    [id, type, data instanceof Uint8Array ? [...data] : data]));
  assert.deepEqual(got, [[ids[0], 'text/plain', 'words'], [ids[1], 'application/json', { a: [1] }],
    [ids[2], 'application/octet-stream', [0, 255]]]);
}));

check('the page at / shows no hole when its workers die', { seconds: 60 }, async () => {
  const server = await start({ workers: 2, history: true });
  const context = await browser.newContext();
  try {
    const page = await context.newPage();
    await page.goto(`http://${server.host}/#news`);
    await page.waitForSelector('#state[data-state="open"]');
    const source = new Source(() => server, 'news', { every: 20 });
    for (let round = 0; round < 2; round++) {
      await sleep(1200);
      for (const pid of server.workerPids()) server.signal('SIGKILL', pid);
      await page.waitForSelector('#state[data-state="waiting"], #state[data-state="connecting"]');
      await page.waitForSelector('#state[data-state="open"]');
    }
    const published = await source.stop();
    const last = `${published.at(-1)[0]}`;
    await page.waitForSelector(`#messages > li[data-id="${last}"]`);
    const shown = await page.locator('#messages > li[data-id]').evaluateAll((rows) => rows.map((row) => Number(row.dataset.id)));
    assert.deepEqual(shown, published.map(([id]) => id).reverse().slice(0, 500));
    assert.equal(await page.locator('#messages > li.gap').count(), 0);
    await server.stop();
  } finally {
    await context.close();
    server.killAll();
  }
});

check('the browser ends cleanly', async () => {
  try {
    await browser.close();
  } finally {
    finish();
  }
});
