// POST /channels/{name} and the manners of the HTTP around it: what is
// answered, what is kept of a message, and what is refused with which status.
import assert from 'node:assert/strict';
import { fetch } from 'undici';
import { Tcp, assertUnharmed, check, checkStop, poll, sanitized, sleep, start } from './lib/crier.mjs';
import { answer, ask, assertProblem, parseAnswer, post, publish, request } from './lib/http.mjs';
import { OP, WebSocket } from './lib/websocket.mjs';
import { V1 } from './lib/v1.mjs';
import { hex } from './lib/tcp.mjs';
import { ownBytes } from './lib/proc.mjs';
import { spread } from './lib/watch.mjs';

const MIB = 1024 * 1024;
const server = await start({ workers: 2 });
await assertUnharmed(server);
const fdsBefore = server.fds();
let names = 0;
const fresh = () => `pub-${++names}`;

// --- the answer ----------------------------------------------------------------

check('a POST is 201 with exactly id, channel and subscribers', async () => {
  const from = Date.now();
  const got = await post(server, 'news', 'hello', { headers: [['Content-Type', 'application/x-www-form-urlencoded']] });
  assert.equal(got.status, 201);
  assert.match(got.header('content-type'), /^application\/json(;|$)/);
  assert.match(got.body.toString(), /^\{"id":\d+,"channel":"news","subscribers":0\}\n?$/);
  const { id } = JSON.parse(got.body);
  assert.ok(Number.isSafeInteger(id));
  assert.ok(id / 1000 > from - 2000 && id / 1000 < Date.now() + 2000, 'the id is not the clock in microseconds');
});

check('ids grow from message to message, whatever the channel and the connection', async () => {
  let last = 0;
  for (let i = 0; i < 50; i++) {
    const { id } = await publish(server, fresh(), 'x');
    assert.ok(id > last, `${id} after ${last}`);
    last = id;
  }
});

check('subscribers counts raw and crier.v1 readers, and no longer those that left', async () => {
  const channel = fresh();
  const raw = [];
  for (let i = 1; i <= 5; i++) {
    raw.push(await WebSocket.channel(server, channel));
    assert.equal((await publish(server, channel, 'x')).subscribers, i);
  }
  const v1 = await V1.channel(server, channel);
  assert.equal((await publish(server, channel, 'x')).subscribers, 6);
  await raw[0].close();
  await poll(async () => (await publish(server, channel, 'x')).subscribers === 5, 'five subscribers');
  raw[1].drop();
  await poll(async () => (await publish(server, channel, 'x')).subscribers === 4, 'four subscribers');
  await v1.close();
  for (const ws of raw.slice(2)) await ws.close();
  await poll(async () => (await publish(server, channel, 'x')).subscribers === 0, 'no subscribers');
});

check('the fetch of undici publishes', async () => {
  const channel = fresh();
  const ws = await WebSocket.channel(server, channel);
  const got = await fetch(`http://${server.host}/channels/${channel}`, {
    method: 'POST', body: JSON.stringify({ n: 1 }), headers: { 'Content-Type': 'application/json' },
  });
  assert.equal(got.status, 201);
  assert.equal((await got.json()).subscribers, 1);
  assert.equal(await ws.text(), '{"n":1}');
  await ws.close();
});

// --- content types -------------------------------------------------------------

const json = (body) => post(server, 'json', body, { headers: [['Content-Type', 'application/json']] });
const nested = (depth) => '['.repeat(depth) + ']'.repeat(depth);

const goodJson = ['{}', '[]', '1', '-0', '-1.5e+10', '1e400', '123456789012345678901234567890', 'true', 'null', '""', '"\\u0000"',
  '"\\ud83d\\ude00"', ' \t\r\n1 \t\r\n', '{"a":1,"b":[{"c":"é"}]}', '{"":""}', nested(64), '"\u007f"', '"\\/\\b\\f"',
  '[[],{},0]', '1E5', '0.0'];
check('JSON that RFC 8259 allows is taken', async () => {
  for (const body of goodJson) assert.equal((await json(body)).status, 201, body.slice(0, 60));
});

const badJson = ['', ' ', '{', '{]', '[1,]', '{"a":1,}', '{"a"}', '{a:1}', "{'a':1}", '01', '+1', '1.', '.5', '1e', '0x10', 'NaN',
  'Infinity', 'nul', 'True', '"', '"\\x"', '"\\u12"', '"a\nb"', '"\t"', '1 2', '{}{}', '[1 2]', '/* c */1', '\ufeff{}', '-', '--1',
  '[', ']', '{"a":}', '{,}', '1,', nested(65), nested(100_000), '"\u0000"', '{"a" 1}'];
check('JSON that is none is 400 and reaches nobody', async () => {
  const ws = await WebSocket.channel(server, 'json');
  for (const body of badJson) assertProblem(await json(body), 400, body.slice(0, 60));
  for (const bytes of ['22ff22', '22c0af22', '22eda08022', '7b7d80']) assertProblem(await json(hex(bytes)), 400);
  await ws.expectSilence();
  await ws.close();
  await assertUnharmed(server);
});

check('+json types must parse as well, and a type is compared without regard to case', async () => {
  for (const type of ['application/ld+json', 'Application/JSON', 'application/json; charset=utf-8', 'application/json;charset=UTF-8',
    'application/problem+JSON', 'application/vnd.api+json ; x=y']) {
    const headers = [['Content-Type', type]];
    assertProblem(await post(server, 'json', '{', { headers }), 400);
    assert.equal((await post(server, 'json', '{}', { headers })).status, 201, type);
  }
  for (const type of ['application/jsonx', 'application/xjson', 'application/json-seq']) {
    assert.equal((await post(server, 'json', '{', { headers: [['Content-Type', type]] })).status, 201, type);
  }
});

check('text must be UTF-8', async () => {
  const ws = await WebSocket.channel(server, 'text');
  for (const type of ['text/plain', 'text/html; charset=utf-8', 'TEXT/Plain', 'text/x-thing']) {
    const headers = [['Content-Type', type]];
    for (const bad of ['ff', '80', 'c0af', 'eda080', 'f4908080', 'e282', '41c3']) {
      assertProblem(await post(server, 'text', hex(bad), { headers }), 400);
    }
    assert.equal((await post(server, 'text', 'κόσμε \u{10ffff}', { headers })).status, 201);
    assert.equal(await ws.text(), 'κόσμε \u{10ffff}');
  }
  await ws.expectSilence();
  await ws.close();
});

check('anything else is binary and comes back byte by byte', async () => {
  const ws = await WebSocket.channel(server, 'bytes');
  const body = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  for (const type of ['application/octet-stream', 'image/png', 'application/x-thing; a="b;c"']) {
    await publish(server, 'bytes', body, { headers: [['Content-Type', type]] });
    assert.ok((await ws.binary()).equals(body));
  }
  await ws.close();
});

check('P24: a content type that is none is 400', async () => {
  for (const type of [';;;', '/', 'text', 'text/', '/plain', 'text/plain/x', 'te xt/plain', '(x)/y', 'text/pl\u00e9']) {
    assertProblem(await post(server, 'types', 'x', { headers: [['Content-Type', type]] }), [400, 415], type);
  }
  await assertUnharmed(server);
});

check('F25: an empty body is an empty message', async () => {
  const ws = await WebSocket.channel(server, 'empty');
  const v1 = await V1.channel(server, 'empty');
  await publish(server, 'empty', '');
  await publish(server, 'empty', '', { headers: [['Content-Type', 'text/plain']] });
  for (let i = 0; i < 2; i++) {
    assert.equal(await ws.text(), '');
    assert.equal((await v1.message()).data, '');
  }
  await ws.close();
  await v1.close();
});

check('F27: line ends and NUL of a body are kept', async () => {
  const ws = await WebSocket.channel(server, 'lines');
  await publish(server, 'lines', 'a\r\nb\rc\nd\0e');
  assert.equal(await ws.text(), 'a\r\nb\rc\nd\0e');
  await ws.close();
});

// --- size ------------------------------------------------------------------------

check('exactly one MiB passes and arrives, one more byte is 413', { seconds: 60 }, async () => {
  const ws = await WebSocket.channel(server, 'big');
  const body = Buffer.alloc(MIB, 97);
  await publish(server, 'big', body);
  assert.equal((await ws.text()).length, MIB);
  assertProblem(await post(server, 'big', Buffer.alloc(MIB + 1, 97)), 413);
  const chunk = (data) => Buffer.concat([Buffer.from(`${data.length.toString(16)}\r\n`), data, Buffer.from('\r\n')]);
  const chunked = (...parts) => Buffer.concat([
    request(server, 'POST', '/channels/big', { headers: [['Transfer-Encoding', 'chunked']] }),
    ...parts.map(chunk), Buffer.from('0\r\n\r\n')]);
  const fits = await Tcp.connect(server.target);
  await fits.send(chunked(body.subarray(0, 1), body.subarray(1)));
  assert.equal((await answer(fits, 'POST')).status, 201);
  assert.equal((await ws.text()).length, MIB);
  fits.destroy();
  for (const parts of [[body, body.subarray(0, 1)], [Buffer.alloc(MIB + 1)]]) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(chunked(...parts));
    assertProblem(await answer(tcp, 'POST'), 413);
    tcp.destroy();
  }
  await ws.expectSilence();
  await ws.close();
});

check('a chunk size that does not fit any integer is 413 or 400', async () => {
  for (const size of ['100001', 'ffffffff', 'ffffffffffffffff', '10000000000000000', 'f'.repeat(100)]) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(Buffer.concat([request(server, 'POST', '/channels/big', { headers: [['Transfer-Encoding', 'chunked']] }),
      Buffer.from(`${size}\r\nabc`)]));
    assertProblem(await answer(tcp, 'POST'), [400, 413]);
    tcp.destroy();
  }
  await assertUnharmed(server);
});

check('P30: after a 413 the rest of the body is never read as a request', async () => {
  const ws = await WebSocket.channel(server, 'smuggled');
  const inner = request(server, 'POST', '/channels/smuggled', { body: 'gotcha' });
  const filler = Buffer.concat(Array.from({ length: Math.ceil((MIB + 1) / inner.length) }, () => inner));
  const tcp = await Tcp.connect(server.target);
  await tcp.send(request(server, 'POST', '/channels/big', { headers: [['Content-Length', filler.length]] }));
  const early = tcp.send(filler);
  assertProblem(await answer(tcp, 'POST'), 413);
  await Promise.race([early, sleep(500)]);
  await tcp.send(request(server, 'POST', '/channels/after', { body: 'next' }));
  await Promise.race([tcp.untilEnd().catch(() => {}), sleep(1500)]);
  if (tcp.buffer.length > 0) { // the body was dropped as a whole: then one more answer may come
    const next = parseAnswer(tcp.buffer, { ended: tcp.ended });
    assert.equal(next.status, 201);
    assert.equal(JSON.parse(next.body).channel, 'after');
  }
  tcp.destroy();
  await ws.expectSilence();
  await ws.close();
  await assertUnharmed(server);
});

// --- ways to send a body -----------------------------------------------------------

const chunkedHead = (channel) => request(server, 'POST', `/channels/${channel}`, { headers: [['Transfer-Encoding', 'chunked']] });

check('P16: a chunked body, a byte a chunk, each in its own segment, is whole', async () => {
  const ws = await WebSocket.channel(server, 'chunks');
  const tcp = await Tcp.connect(server.target);
  await tcp.send(chunkedHead('chunks'));
  for (const letter of 'chunked body') await tcp.send(`1\r\n${letter}\r\n`).then(() => sleep(2));
  await tcp.send('0\r\n\r\n');
  assert.equal((await answer(tcp, 'POST')).status, 201);
  assert.equal(await ws.text(), 'chunked body');
  const all = Buffer.concat([chunkedHead('chunks'), Buffer.from('00a;x=y\r\n0123456789\r\n2;q="a b"\r\nab\r\n0\r\nTrailer: t\r\n\r\n')]);
  await tcp.sendPieces(all); // the size line split as well; extensions and trailers are dropped
  assert.equal((await answer(tcp, 'POST')).status, 201);
  assert.equal(await ws.text(), '0123456789ab');
  await tcp.send(Buffer.concat([chunkedHead('chunks'), Buffer.from('0\r\n\r\n')]));
  assert.equal((await answer(tcp, 'POST')).status, 201);
  assert.equal(await ws.text(), '');
  tcp.destroy();
  await ws.close();
});

check('a request and its body may come byte by byte', async () => {
  const ws = await WebSocket.channel(server, 'bytewise');
  const tcp = await Tcp.connect(server.target);
  await tcp.sendPieces(request(server, 'POST', '/channels/bytewise', { body: 'bit by bit' }));
  assert.equal((await answer(tcp, 'POST')).status, 201);
  assert.equal(await ws.text(), 'bit by bit');
  tcp.destroy();
  await ws.close();
});

check('pipelined POSTs are answered in order, and published in order', async () => {
  const channel = fresh();
  const ws = await WebSocket.channel(server, channel);
  const tcp = await Tcp.connect(server.target);
  await tcp.send(Buffer.concat(Array.from({ length: 200 }, (_, i) =>
    request(server, 'POST', `/channels/${channel}`, { body: `${i}` }))));
  let last = 0;
  for (let i = 0; i < 200; i++) {
    const got = await answer(tcp, 'POST');
    assert.equal(got.status, 201);
    const { id } = JSON.parse(got.body);
    assert.ok(id > last);
    last = id;
    assert.equal(await ws.text(), `${i}`);
  }
  tcp.destroy();
  await ws.close();
});

check('pipelined requests of several kinds are answered in order', async () => {
  const tcp = await Tcp.connect(server.target);
  const kinds = [['POST', '/channels/mixed', 201, 'x'], ['GET', '/healthz', 200], ['HEAD', '/healthz', 200], ['GET', '/nope', 404],
    ['PUT', '/channels/mixed', 405, 'y'], ['OPTIONS', '/channels/mixed', 204], ['POST', '/channels/mixed', 201, ''],
    ['HEAD', '/', 200], ['GET', '/', 200], ['POST', '/channels/a*', 400, 'z'], ['POST', '/channels/mixed', 201, 'last']];
  await tcp.send(Buffer.concat(kinds.map(([method, target, , body]) => request(server, method, target, { body }))));
  for (const [method, target, status] of kinds) {
    assert.equal((await answer(tcp, method)).status, status, `${method} ${target}`);
  }
  assert.equal(tcp.ended, false, 'an error that leaves the framing whole closed the connection');
  tcp.destroy();
});

check('Expect: 100-continue gets its 100, then the answer', async () => {
  const tcp = await Tcp.connect(server.target);
  const whole = request(server, 'POST', '/channels/expect', { headers: [['Expect', '100-continue']], body: 'patience' });
  await tcp.send(whole.subarray(0, whole.length - 8));
  const first = await answer(tcp, 'POST');
  assert.equal(first.status, 100);
  await tcp.send('patience');
  assert.equal((await answer(tcp, 'POST')).status, 201);
  await tcp.send(whole); // nobody waited: the 100 may be left out
  let got = await answer(tcp, 'POST');
  if (got.status === 100) got = await answer(tcp, 'POST');
  assert.equal(got.status, 201);
  tcp.destroy();
});

check('Expect: 100-continue for a body that is too long gets no 100', async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(request(server, 'POST', '/channels/expect', { headers: [['Expect', '100-continue'], ['Content-Length', MIB + 1]] }));
  assertProblem(await answer(tcp, 'POST'), 413);
  tcp.destroy();
});

check('another expectation is ignored, or 417', async () => {
  const got = await post(server, 'expect', 'x', { headers: [['Expect', 'miracles']] });
  if (got.status !== 201) assertProblem(got, 417);
});

check('connections are kept, and closed where either side says so', async () => {
  const tcp = await Tcp.connect(server.target);
  for (let i = 0; i < 100; i++) {
    await tcp.send(request(server, 'POST', '/channels/keep', { body: 'x' }));
    assert.equal((await answer(tcp, 'POST')).status, 201);
  }
  await tcp.send(request(server, 'POST', '/channels/keep', { body: 'x', headers: [['Connection', 'close']] }));
  const got = await answer(tcp, 'POST');
  assert.equal(got.status, 201);
  assert.equal(got.header('connection')?.toLowerCase(), 'close');
  await tcp.untilEnd();
  tcp.destroy();
  const old = await Tcp.connect(server.target);
  await old.send(request(server, 'GET', '/healthz', { version: '1.0' }));
  assert.equal((await answer(old)).status, 200);
  await old.untilEnd('the end after HTTP/1.0');
  old.destroy();
});

check('P18: a POST without a length is an empty message or 411', async () => {
  const got = await ask(server, 'POST', '/channels/nolength');
  if (got.status !== 411) assert.equal(got.status, 201);
  await assertUnharmed(server);
});

check('P19: three hundred publishers that leave in the middle publish nothing and leak nothing', { seconds: 60 }, async () => {
  const ws = await WebSocket.channel(server, 'aborted');
  const open = server.fds();
  const round = () => spread(300, 20, async (i) => {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(Buffer.concat([request(server, 'POST', '/channels/aborted', { headers: [['Content-Length', 1000]] }),
      Buffer.alloc(10, 97)]));
    if (i % 3 === 0) tcp.finish();
    if (i % 3 !== 2) await new Promise(setImmediate);
    if (i % 3 === 0) await tcp.untilEnd();
    else tcp.reset();
    tcp.destroy();
  });
  await round();
  const before = ownBytes(server.firstWorkers);
  await round();
  await ws.expectSilence();
  await ws.close();
  if (!sanitized) assert.ok(ownBytes(server.firstWorkers) - before < MIB, 'memory stayed');
  await poll(() => server.fds() <= open, 'the descriptors to come back', { ms: 5000 });
  await assertUnharmed(server);
});

check('P19: a publisher that leaves before the answer has published', async () => {
  const ws = await WebSocket.channel(server, 'hasty');
  for (let i = 0; i < 20; i++) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(request(server, 'POST', '/channels/hasty', { body: `${i}` }));
    tcp.finish(); // half closed: the answer can still be sent
    assert.equal((await answer(tcp, 'POST')).status, 201);
    assert.equal(await ws.text(), `${i}`);
    tcp.destroy();
  }
  await ws.close();
});

// --- methods and routes --------------------------------------------------------------

check('P21: HEAD has the head of GET and no body, on every route', async () => {
  const tcp = await Tcp.connect(server.target);
  for (const target of ['/', '/page.js', '/style.css', '/healthz', '/readyz', '/nope', '/channels/x', '/channels', '/subscribe?channel=a']) {
    await tcp.send(Buffer.concat([request(server, 'HEAD', target), request(server, 'GET', '/healthz')]));
    const head = await answer(tcp, 'HEAD');
    const next = await answer(tcp); // anything of a body would be in its way
    assert.equal(next.status, 200, target);
    if (['/', '/page.js', '/style.css', '/healthz', '/readyz', '/nope'].includes(target)) {
      const get = await ask(server, 'GET', target);
      assert.equal(head.status, get.status, target);
      assert.equal(head.header('content-type'), get.header('content-type'));
      assert.equal(head.header('content-length'), get.header('content-length'), `Content-Length of HEAD ${target}`);
    }
  }
  tcp.destroy();
});

check('P21: OPTIONS is 204 and grants a foreign origin nothing', async () => {
  for (const target of ['*', '/', '/channels/x', '/channels', '/subscribe', '/healthz']) {
    const got = await ask(server, 'OPTIONS', target);
    assert.equal(got.status, 204, target);
    assert.equal(got.header('access-control-allow-origin'), undefined);
  }
  const got = await ask(server, 'OPTIONS', '/channels/x', {
    headers: [['Origin', 'http://evil.test'], ['Access-Control-Request-Method', 'POST']],
  });
  assert.ok([204, 403].includes(got.status));
  assert.equal(got.header('access-control-allow-origin'), undefined);
});

check('P21: a method that a route does not have is 405 with Allow', async () => {
  for (const [method, target, allowed] of [['PUT', '/channels/x', ['GET', 'POST']], ['PATCH', '/channels/x', ['GET', 'POST']],
    ['POST', '/healthz', ['GET']], ['DELETE', '/', ['GET']], ['POST', '/subscribe', ['GET']],
    ['PUT', '/page.js', ['GET']]]) {
    const got = await ask(server, method, target, { body: 'x' });
    assertProblem(got, 405, `${method} ${target}`);
    const list = (got.header('allow') ?? '').split(/\s*,\s*/);
    for (const name of allowed) assert.ok(list.includes(name), `${method} ${target}: Allow: ${got.header('allow')}`);
    assert.ok(!list.includes(method), 'Allow names what was refused');
  }
  await assertUnharmed(server);
});

check('P21: a method that nobody knows is 501', async () => {
  for (const method of ['FOO', 'POSTX', 'get', 'TRACE', 'M-SEARCH', 'PROPFIND']) {
    assertProblem(await ask(server, method, '/channels/x'), /^(FOO|POSTX)$/.test(method) ? 501 : [400, 405, 501]);
  }
  const tcp = await Tcp.connect(server.target);
  await tcp.send(`CONNECT ${server.host} HTTP/1.1\r\nHost: ${server.host}\r\n\r\n`);
  const got = await answer(tcp);
  assertProblem(got, [400, 405, 501]);
  tcp.destroy();
  await assertUnharmed(server);
});

check('every error is a problem of RFC 9457', async () => {
  const cases = [
    ['GET', '/nope', {}, 404], ['GET', '/channels/x/y/z', {}, 404], ['PUT', '/channels/x', { body: 'x' }, 405],
    ['POST', '/channels/a*b', { body: 'x' }, 400], ['GET', `/${'x'.repeat(9000)}`, {}, 414],
    ['GET', '/healthz', { headers: [['X', 'y'.repeat(17_000)]] }, 431],
    ['GET', '/healthz', { headers: Array.from({ length: 130 }, (_, i) => [`x${i}`, 'y']) }, 431],
    ['POST', '/channels/x', { headers: [['Transfer-Encoding', 'gzip, chunked']] }, 501],
    ['GET', '/healthz', { version: '2.0' }, 505], ['GET', '/healthz', { version: '3.7' }, 505],
    ['GET', '/healthz', { headers: [['Host', 'evil.test']] }, 403],
  ];
  for (const [method, target, options, status] of cases) {
    assertProblem(await ask(server, method, target, options), status, `${method} ${target.slice(0, 40)}`);
  }
  await assertUnharmed(server);
});

// --- queries -----------------------------------------------------------------------------

check('event: a name is kept, reserved ones and control characters are 400', async () => {
  const v1 = await V1.channel(server, 'events');
  for (const [query, event] of [['?event=tick', 'tick'], ['?event=a%20b', 'a b'], ['?event=%C3%A9', 'é'], ['?event=GAP', 'GAP'],
    ['?event=a%26b%3Dc', 'a&b=c']]) {
    await publish(server, 'events', 'x', { query });
    assert.equal((await v1.message()).event, event, query);
  }
  for (const query of ['?event=gap', '?event=binary', '?event=drain', '?event=message', '?event=a%0Ab', '?event=a%0Db', '?event=a%00b',
    '?event=%zz', '?event=%', '?event=%ff', '?event=g%61p']) {
    assertProblem(await post(server, 'events', 'x', { query }), 400, query);
  }
  await v1.expectSilence();
  await v1.close();
});

check('no name and no type puts bytes that are no UTF-8 into the frames of crier.v1', async () => {
  const v1 = await V1.channel(server, 'poison');
  const raw = (head) => Buffer.from(`POST /channels/poison${head[0]} HTTP/1.1\r\nHost: ${server.host}\r\n${head[1]}Content-Length: 1\r\n\r\nx`, 'latin1');
  let taken = 0;
  for (const head of [['', 'Content-Type: text/plain; x="\xe9\xff"\r\n'], ['', 'Content-Type: image/x; y="\xc0\xaf"\r\n'], ['?event=%ff', ''],
    ['?event=%ed%a0%80', ''], ['?event=a%c3', '']]) {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(raw(head));
    const got = await answer(tcp, 'POST');
    if (got.status === 201) taken += 1;
    else assertProblem(got, [400, 415], head.join(''));
    tcp.destroy();
  }
  for (let i = 0; i < taken; i++) await v1.message(); // the strict reader refuses a frame that is no UTF-8
  await v1.expectSilence();
  await v1.close();
});

check('ttl: seconds are taken, anything else is 400', async () => {
  for (const query of ['?ttl=5', '?ttl=1', '?ttl=86400']) assert.equal((await post(server, 'ttl', 'x', { query })).status, 201, query);
  for (const query of ['?ttl=abc', '?ttl=-1', '?ttl=1x', '?ttl=', '?ttl=99999999999999999999', '?ttl=%20']) {
    assertProblem(await post(server, 'ttl', 'x', { query }), 400, query);
  }
});

check('P15, P24: strange queries are answered, never dropped', async () => {
  for (const query of ['?', '?&', '?c', '?c=', '?=', '?'.repeat(1000), '?c[]=1&c[a]=2', '?event=a&event=b', '?%', '?%2', '?%zz', '?a=%',
    '?&&&&', '?event', '?;', `?${'a=1&'.repeat(1000)}`]) {
    const got = await post(server, 'odd', 'x', { query });
    assert.ok([201, 400].includes(got.status), `${query.slice(0, 40)}: ${got.status}`);
    if (got.status === 400) assertProblem(got, 400);
    const plain = await ask(server, 'GET', `/healthz${query}`);
    assert.ok([200, 400].includes(plain.status), `/healthz${query.slice(0, 40)}: ${plain.status}`);
  }
  for (const target of ['/channels/%', '/channels/%2', '/channels/%zz', '/channels/a%']) {
    assertProblem(await ask(server, 'POST', target, { body: 'x' }), 400);
  }
  for (const target of ['/%', '/%2', '/%zz']) assertProblem(await ask(server, 'GET', target), [400, 404]);
  await assertUnharmed(server);
});

// --- names ---------------------------------------------------------------------------------

check('S01: a channel without a name is 400 or 404', async () => {
  for (const target of ['/channels/', '/channels//', '/channels/?event=x', '//channels/x']) {
    assertProblem(await ask(server, 'POST', target, { body: 'x' }), [400, 404]);
  }
});

check('S03: names that are none are 400', async () => {
  for (const part of ['.', '..', '%2e', '%2E%2e', '.%2e', '%00', 'a%00b', '%0d%0a', 'a%0Ab', '%1f', '%7f', '%c2%80', '%c2%85', '%c2%9f', '*', 'a*',
    '%2A', 'a:**', '%ff', 'a%c0%af', '%ed%a0%80', '%f4%90%80%80', '%e2%82', 'x'.repeat(256), '%c3%a9'.repeat(128)]) {
    assertProblem(await ask(server, 'POST', `/channels/${part}`, { body: 'x' }), 400, part.slice(0, 40));
  }
  await assertUnharmed(server);
});

check('S03: a name is decoded once, and is the same by every spelling', async () => {
  for (const [name, ...spellings] of [
    ['aa', 'aa', '%61a', 'a%61', '%61%61'], ['a/b', 'a%2Fb', 'a%2fb'], ['a b', 'a%20b'], ['a+b', 'a+b', 'a%2Bb'],
    ['%', '%25'], ['%2F', '%252F', '%252f'.replace('f', 'F')], ['#', '%23'], ['?', '%3F'], ['é', '%C3%A9', '%c3%a9'], ['a:b', 'a:b', 'a%3Ab'],
    ['"\\', '%22%5C'], ['<b>', '%3Cb%3E'], ['...', '...', '%2e..'], ['x'.repeat(255), 'x'.repeat(255), '%78'.repeat(255)],
    ['\u{1f600}', '%F0%9F%98%80'], ["!$&'()+,;=@-._~", "!$&'()+,;=@-._~"],
  ]) {
    const ws = await WebSocket.connect(server, `/channels/${spellings.at(-1)}`);
    for (const part of spellings) {
      const got = await ask(server, 'POST', `/channels/${part}`, { body: part });
      assert.equal(got.status, 201, `${part}: ${got.body}`);
      const told = JSON.parse(got.body);
      assert.equal(told.channel, name);
      assert.equal(told.subscribers, 1, part);
      assert.equal(await ws.text(), part);
    }
    await ws.close();
  }
});

check('S03: names are compared byte by byte, never normalised', async () => {
  const composed = await WebSocket.channel(server, 'caf\u00e9');
  const decomposed = await WebSocket.channel(server, 'cafe\u0301');
  const upper = await WebSocket.channel(server, 'CAF\u00c9');
  await publish(server, 'caf\u00e9', 'composed');
  await publish(server, 'cafe\u0301', 'decomposed');
  assert.equal(await composed.text(), 'composed');
  assert.equal(await decomposed.text(), 'decomposed');
  for (const ws of [composed, decomposed, upper]) {
    await ws.expectSilence();
    await ws.close();
  }
  assertProblem(await ask(server, 'POST', '/channels/a/b', { body: 'x' }), 404);
  assertProblem(await ask(server, 'POST', '/channels/x/', { body: 'x' }), [400, 404]);
});

check('S04: names that begin like reserved ones are ordinary', async () => {
  for (const name of ['private', 'private-', 'PRIVATE-x', ' private-x', '$sys', 'presence-', '/meta/subscribe/x', 'constructor', '__proto__']) {
    assert.equal((await publish(server, name, 'x')).channel, name);
  }
});

checkStop(server, { fdsBefore });
