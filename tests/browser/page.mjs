// The newcomer's page in Chromium: two tabs, what a person sees in each, what
// the keyboard does, and what happens when the broker goes and comes back.
// SCREENSHOT=path keeps a picture of the page at work.
import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';
import { check, finish, start } from '../e2e/lib/crier.mjs';
import { publish } from '../e2e/lib/http.mjs';

let server = await start({ workers: 2 });
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
});
process.on('exit', () => browser.process?.()?.kill('SIGKILL'));
const context = await browser.newContext({ viewport: { width: 1180, height: 860 } });
const url = (channel = '') => `http://${server.host}/${channel ? `#${encodeURIComponent(channel)}` : ''}`;

// A tab, with all that went wrong in it.
async function tab(channel, { ctx = context } = {}) {
  const page = await ctx.newPage();
  page.faults = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) page.faults.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => page.faults.push(`error: ${error.message}`));
  page.on('requestfailed', (request) => page.faults.push(`failed: ${request.url()}`));
  page.on('response', (response) => {
    if (response.status() >= 400) page.faults.push(`${response.status()}: ${response.url()}`);
  });
  page.on('dialog', (dialog) => {
    page.faults.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  await page.goto(url(channel));
  await connected(page);
  return page;
}

const connected = (page, ms = 10_000) => page.waitForSelector('#state[data-state="open"]', { timeout: ms });
const say = async (page, text) => {
  await page.fill('#text', text);
  await page.click('#send');
};
const row = (page, text) => page.locator('#messages > li[data-id]', { hasText: text });
const idOf = (locator) => locator.first().getAttribute('data-id', { timeout: 5000 });

check('two tabs: what one publishes, both show with the same id', { seconds: 60 }, async () => {
  const one = await tab('news');
  const two = await tab('news');
  await say(one, 'hello from the first tab');
  const first = await idOf(row(one, 'hello from the first tab'));
  const second = await idOf(row(two, 'hello from the first tab'));
  assert.match(first, /^\d{16}$/);
  assert.equal(first, second);
  await one.waitForFunction((id) => document.querySelector('#result').textContent.includes(id), first);
  assert.match(await one.textContent('#result'), /2 subscribers/);
  assert.ok((await row(one, 'hello').first().textContent()).includes('from this tab'));
  assert.ok(!(await row(two, 'hello').first().textContent()).includes('from this tab'));
  await say(two, 'and hello from the second');
  assert.equal(await idOf(row(one, 'and hello from the second')), await idOf(row(two, 'and hello from the second')));
  const order = await one.locator('#messages > li[data-id]').evaluateAll((rows) => rows.map((r) => Number(r.dataset.id)));
  assert.equal(order.length, 2);
  assert.ok(order[0] > order[1], 'the newest is not at the top');
  assert.equal(await one.textContent('#count'), '2');
  assert.equal(await one.inputValue('#text'), '', 'the form keeps what was sent');
  assert.deepEqual([...one.faults, ...two.faults], []);
  if (process.env.SCREENSHOT) {
    await publish(server, 'news', '{"price":{"from":9.5,"to":12},"currency":"EUR"}', { headers: [['Content-Type', 'application/json']], query: '?event=price' });
    await publish(server, 'news', 'hello from a terminal');
    await row(one, 'hello from a terminal').waitFor();
    await say(one, 'Hear ye, hear ye');
    await row(one, 'Hear ye').getByText('from this tab').waitFor();
    await one.waitForTimeout(700);
    await one.screenshot({ path: process.env.SCREENSHOT });
  }
  await one.close();
  await two.close();
});

check('what is published by POST appears: text, JSON, binary, an empty one, an event', async () => {
  const page = await tab('kinds');
  await publish(server, 'kinds', 'plain words');
  await publish(server, 'kinds', '{"a":[1,2]}', { headers: [['Content-Type', 'application/json']] });
  await publish(server, 'kinds', Buffer.from([0, 255]), { headers: [['Content-Type', 'application/octet-stream']] });
  await publish(server, 'kinds', '');
  const { id } = await publish(server, 'kinds', 'with an event', { query: '?event=tick' });
  await page.locator(`#messages > li[data-id="${id}"]`).waitFor();
  const rows = await page.locator('#messages > li .body').allTextContents();
  assert.deepEqual(rows.reverse(), ['plain words', '{\n  "a": [\n    1,\n    2\n  ]\n}', '2 bytes: AP8=', '(empty)', 'with an event']);
  assert.match(await page.locator('#messages > li').first().textContent(), /tick/);
  const time = await page.locator('#messages > li time').first().getAttribute('datetime');
  assert.ok(Math.abs(Date.parse(time) - Date.now()) < 60_000, time);
  assert.deepEqual(page.faults, []);
  await page.close();
});

check('markup in a message and in a channel name is shown as text', async () => {
  const evil = '<img src=x onerror=alert(1)><script>alert(2)</script>';
  const page = await tab(evil);
  await say(page, evil);
  await row(page, evil).waitFor();
  assert.equal(await page.locator('#messages > li .body').first().textContent(), evil);
  assert.equal(await page.locator('#messages img, #messages script').count(), 0);
  assert.equal(await page.textContent('#joined'), evil);
  assert.deepEqual(page.faults, []);
  await page.close();
});

check('the channel stands in the address, survives a reload, and changes by the form and by going back', async () => {
  const page = await tab('first');
  await page.fill('#channel', 'caf\u00e9/two');
  await page.press('#channel', 'Enter');
  await connected(page);
  await page.waitForFunction(() => document.querySelector('#joined').textContent === 'caf\u00e9/two');
  assert.ok(page.url().endsWith('#caf%C3%A9%2Ftwo'), page.url());
  await publish(server, 'caf\u00e9/two', 'to the second');
  await row(page, 'to the second').waitFor();
  await page.reload();
  await connected(page);
  assert.equal(await page.inputValue('#channel'), 'caf\u00e9/two');
  assert.equal(await page.locator('#messages > li').count(), 0);
  await page.goBack();
  await page.waitForFunction(() => document.querySelector('#joined').textContent === 'first');
  await connected(page);
  await publish(server, 'caf\u00e9/two', 'not for us');
  await publish(server, 'first', 'for us');
  await row(page, 'for us').first().waitFor();
  assert.equal(await page.locator('#messages > li').count(), 1);
  assert.deepEqual(page.faults, []);
  await page.close();
});

check('a name that cannot be is refused beside its field', async () => {
  const page = await tab('good');
  for (const name of ['', 'a*', '..', 'x'.repeat(255).replaceAll('x', '\u00e9')]) {
    await page.fill('#channel', name);
    await page.click('#subscribe');
    await page.waitForFunction(() => document.querySelector('#channel-error').textContent !== '');
    assert.equal(await page.getAttribute('#channel', 'aria-invalid'), 'true');
  }
  assert.equal(await page.textContent('#joined'), 'good');
  await page.fill('#channel', 'good2');
  assert.equal(await page.textContent('#channel-error'), '');
  assert.deepEqual(page.faults, []);
  await page.close();
});

check('a message that the broker refuses says why, and is kept in the form', async () => {
  const page = await tab('refused');
  await page.selectOption('#kind', 'application/json');
  await say(page, '{broken');
  await page.waitForSelector('#result[data-ok="no"]');
  assert.match(await page.textContent('#result'), /400/);
  assert.equal(await page.inputValue('#text'), '{broken');
  assert.equal(page.faults.filter((fault) => !/400/.test(fault)).length, 0, `${page.faults}`);
  await page.fill('#text', '{"n":1}');
  await page.press('#text', 'Control+Enter');
  await page.waitForSelector('#result[data-ok="yes"]');
  await row(page, '"n": 1').waitFor();
  await page.close();
});

check('the curl line is for this host and channel, and what it does arrives', async () => {
  const page = await tab("it's a/b");
  const line = await page.textContent('#curl');
  assert.equal(line, `curl -d 'hello' http://${server.host}/channels/it%27s%20a%2Fb`);
  const { spawnSync } = await import('node:child_process');
  const done = spawnSync('/bin/sh', ['-c', `${line} -s`], { encoding: 'utf8' });
  if (done.status !== 127) { // there is a curl
    const { id, subscribers } = JSON.parse(done.stdout);
    assert.equal(subscribers, 1);
    assert.equal(await idOf(row(page, 'hello')), `${id}`);
  }
  assert.deepEqual(page.faults, []);
  await page.close();
});

check('all of it works from the keyboard alone, and every control has a name', async () => {
  const page = await tab('keys');
  await page.locator('#channel').focus();
  const seen = [];
  for (let i = 0; i < 10; i++) {
    seen.push(await page.evaluate(() => document.activeElement.id));
    await page.keyboard.press('Tab');
  }
  for (const id of ['channel', 'subscribe', 'second', 'text', 'kind', 'send', 'curl', 'copy', 'clear']) {
    assert.ok(seen.includes(id), `${id} is not reached by Tab: ${seen}`);
  }
  await page.locator('#text').focus();
  await page.keyboard.type('typed');
  await page.keyboard.press('Control+Enter');
  await row(page, 'typed').waitFor();
  for (const [role, name] of [['textbox', /channel/i], ['textbox', /message/i], ['button', 'Subscribe'], ['button', 'Publish'],
    ['button', 'Copy'], ['button', 'Clear'], ['combobox', /send as/i], ['log', /messages/i], ['status', /connected/i]]) {
    assert.ok(await page.getByRole(role, { name: role === 'status' ? undefined : name }).count() >= 1, `${role} ${name}`);
  }
  assert.equal(await page.getAttribute('#messages', 'aria-live'), 'polite');
  assert.deepEqual(page.faults, []);
  await page.close();
});

check('it fits a telephone and a dark room', async () => {
  const small = await browser.newContext({ viewport: { width: 360, height: 740 }, colorScheme: 'dark' });
  const page = await tab('small', { ctx: small });
  await publish(server, 'small', 'w'.repeat(2000));
  await row(page, 'www').waitFor();
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 360, `the page is ${wide} wide`);
  const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.ok(ground.match(/\d+/g).slice(0, 3).every((part) => Number(part) < 60), `a ground of ${ground}`);
  if (process.env.SCREENSHOT) {
    await page.waitForTimeout(700);
    await page.screenshot({ path: process.env.SCREENSHOT.replace(/(\.\w+)?$/, '-dark$1') });
  }
  assert.deepEqual(page.faults, []);
  await small.close();
});

check('many messages at once all arrive, in order, and old rows leave', { seconds: 60 }, async () => {
  const page = await tab('many');
  const ids = [];
  for (let i = 0; i < 600; i++) ids.push((await publish(server, 'many', `m${i}`)).id);
  await row(page, 'm599').waitFor();
  const shown = await page.locator('#messages > li[data-id]').evaluateAll((rows) => rows.map((r) => Number(r.dataset.id)));
  assert.deepEqual(shown, ids.reverse().slice(0, 500));
  assert.equal(await page.textContent('#count'), '600');
  assert.deepEqual(page.faults, []);
  await page.close();
});

check('the broker goes: the page says so, comes back by itself and tells of the gap', { seconds: 90 }, async () => {
  const page = await tab('again');
  await say(page, 'before');
  await row(page, 'before').waitFor();
  const { listeners } = server;
  await server.stop();
  await page.waitForSelector('#state[data-state="waiting"]');
  assert.match(await page.textContent('#state-text'), /lost/i);
  await page.fill('#text', 'into the void');
  await page.click('#send');
  await page.waitForSelector('#result[data-ok="no"]');
  assert.equal(await page.inputValue('#text'), 'into the void');
  server = await start({ workers: 2, listen: listeners });
  await connected(page, 20_000);
  const gap = page.locator('#messages > li.gap');
  await gap.waitFor({ timeout: 5000 });
  assert.match(await gap.first().textContent(), /\d+ to \d+ may be missing/);
  await say(page, 'after');
  await row(page, 'after').waitFor();
  await row(page, 'before').waitFor();
  await page.close();
});

check('the browser and the broker end cleanly', async () => {
  try {
    await browser.close();
    await server.stop();
  } finally {
    finish();
  }
});
