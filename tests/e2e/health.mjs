// /healthz, /readyz and the page: status, types and the headers that keep a
// page harmless.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { check, checkStop, start } from './lib/crier.mjs';
import { ask, assertProblem, answer, request } from './lib/http.mjs';
import { root } from './lib/build.mjs';
import { Tcp } from './lib/tcp.mjs';

const server = await start({ workers: 2 });
const fdsBefore = server.fds();

for (const target of ['/healthz', '/readyz']) {
  check(`${target} is 200, and not to be kept by a cache`, async () => {
    const got = await ask(server, 'GET', target);
    assert.equal(got.status, 200);
    assert.match(got.header('cache-control') ?? 'no-store', /no-store|no-cache/);
    assertProblem(await ask(server, 'POST', target, { body: 'x' }), 405);
  });
}

const files = [['/', 'index.html', /^text\/html; ?charset=utf-8$/i], ['/style.css', 'style.css', /^text\/css; ?charset=utf-8$/i],
  ['/page.js', 'page.js', /^text\/javascript; ?charset=utf-8$/i]];
for (const [target, file, type] of files) {
  check(`${target} is the page's file, with its type and the headers that keep it harmless`, async () => {
    const got = await ask(server, 'GET', target);
    assert.equal(got.status, 200);
    assert.match(got.header('content-type'), type);
    assert.ok(got.body.equals(readFileSync(path.join(root, 'web/client', file))), 'other bytes than the tree has');
    assert.match(got.header('content-security-policy') ?? '', /default-src 'self'/);
    assert.equal(got.header('referrer-policy'), 'no-referrer');
    assert.equal(got.header('x-content-type-options'), 'nosniff');
    const csp = got.header('content-security-policy');
    assert.ok(!/unsafe|\*/.test(csp), csp);
  });
  check(`${target} is revalidated by its ETag`, async () => {
    const etag = (await ask(server, 'GET', target)).header('etag');
    assert.match(etag ?? '', /^"[^"]+"$/);
    for (const value of [etag, `"other", ${etag}`, `W/${etag}`, '*']) {
      const got = await ask(server, 'GET', target, { headers: [['If-None-Match', value]] });
      assert.equal(got.status, 304, value);
      assert.equal(got.header('etag'), etag);
    }
    assert.equal((await ask(server, 'GET', target, { headers: [['If-None-Match', '"other"']] })).status, 200);
  });
}

check('the page needs nothing from elsewhere and has no inline script or style', () => {
  for (const [, file] of files) {
    const text = readFileSync(path.join(root, 'web/client', file), 'utf8');
    assert.doesNotMatch(text, /https?:\/\//, `${file} points elsewhere`);
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(/);
  }
  const html = readFileSync(path.join(root, 'web/client/index.html'), 'utf8');
  assert.doesNotMatch(html, /<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)/i);
});

check('a body that comes with a GET is not taken for the next request', async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(Buffer.concat([request(server, 'GET', '/healthz', { body: 'GET /nope HTTP/1.1\r\n\r\n' }), request(server, 'GET', '/readyz')]));
  assert.equal((await answer(tcp)).status, 200);
  assert.equal((await answer(tcp)).status, 200);
  tcp.destroy();
});

checkStop(server, { fdsBefore });
