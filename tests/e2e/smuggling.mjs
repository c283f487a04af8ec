// Requests that a proxy and the broker could read in two ways (P01 to P13,
// P25). Each is followed, in the same write, by a canary request: it must
// neither be swallowed into a body nor a body be run as a request. After what
// is malformed exactly one answer comes, and the connection ends.
import assert from 'node:assert/strict';
import { Tcp, assertUnharmed, check, checkStop, sleep, start } from './lib/crier.mjs';
import { answer, assertProblem, parseAnswer, request } from './lib/http.mjs';
import { WebSocket } from './lib/websocket.mjs';

const server = await start({ workers: 1 });
await assertUnharmed(server);
const fdsBefore = server.fds();
const canary = Buffer.from(`POST /channels/smuggled HTTP/1.1\r\nHost: ${server.host}\r\nContent-Length: 6\r\n\r\ncanary`);
const HOST = `Host: ${server.host}`;

// All answers until the end, or until nothing came for a while.
async function talk(bytes, { pieces = false } = {}) {
  const tcp = await Tcp.connect(server.target);
  if (pieces) await tcp.sendPieces(bytes);
  else await tcp.send(bytes);
  const answers = [];
  await tcp.until(() => {
    for (let one; (one = parseAnswer(tcp.buffer, { ended: tcp.ended })) !== null;) {
      answers.push(one);
      tcp.take(one.length);
    }
    return tcp.ended;
  }, 'the end', 1500).catch((error) => {
    if (!/^waited/.test(error.message)) throw error;
  });
  const ended = tcp.ended;
  const rest = tcp.buffer.length;
  tcp.destroy();
  return { answers, ended, rest };
}

async function assertRefused(bytes, statuses, options) {
  const { answers, ended, rest } = await talk(Buffer.concat([Buffer.from(bytes, 'latin1'), canary]), options);
  const shown = JSON.stringify(bytes.slice(0, 120));
  assert.equal(answers.length, 1, `${answers.length} answers (${answers.map((a) => a.status)}) to ${shown}`);
  assertProblem(answers[0], statuses);
  assert.ok(ended, `the connection stayed after ${shown}`);
  assert.equal(rest, 0);
}

// name, bytes (without the canary), statuses
function refused(name, list, statuses = 400) {
  check(name, { seconds: 60 }, async () => {
    const ws = await WebSocket.channel(server, 'smuggled');
    const victim = await WebSocket.channel(server, 'p');
    for (const bytes of list) {
      await assertRefused(bytes, statuses);
    }
    await assertRefused(list[0], statuses, { pieces: true });
    await ws.expectSilence();
    await victim.expectSilence();
    await ws.close();
    await victim.close();
    await assertUnharmed(server);
  });
}

const P = 'POST /channels/p HTTP/1.1\r\n';
const CHUNKED = '5\r\nhello\r\n0\r\n\r\n';

refused('P01: a request line without a version is refused', [
  `GET /healthz\r\n${HOST}\r\nContent-Length: 5\r\n\r\nhello`, `GET /healthz\n${HOST}\n\n`, `POST /channels/p\r\n${HOST}\r\n\r\n`,
], [400, 505]);

refused('P03: a folded or indented header is refused', [
  `${P} Content-Length: 5\r\n${HOST}\r\n\r\nhello`, `${P}${HOST}\r\nX: a\r\n Content-Length: 5\r\n\r\nhello`,
  `${P}${HOST}\r\nX: a\r\n\tb\r\nContent-Length: 5\r\n\r\nhello`, `${P}${HOST}\r\nContent-Length:\r\n 5\r\n\r\nhello`,
]);

refused('P04: a folded Transfer-Encoding is refused', [
  `${P}${HOST}\r\nTransfer-Encoding:\r\n chunked\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nTransfer-Encoding: chunked\r\n , identity\r\n\r\n${CHUNKED}`,
]);

refused('P06: Content-Length and Transfer-Encoding together are refused', [
  `${P}${HOST}\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nTransfer-Encoding: chunked\r\nContent-Length: 15\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nContent-Length: 15\r\nTransfer-Encoding : chunked\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nContent-Length: 15\r\nTransfer-Encoding: xchunked\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nContent-Length: 15\r\nTransfer-Encoding:\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\t\r\n\r\n${CHUNKED}`,
], [400, 501]);

refused('P06: any transfer coding but one exact chunked is refused', [
  'identity, chunked', 'chunked, identity', 'xchunked', 'chunkedx', 'gzip', 'gzip, chunked', 'chunked, chunked', '"chunked"', 'chunked;q=1',
  'chu nked', ',chunked', 'chunked,', '', 'identity', '\x0bchunked', 'chunked\x00',
].map((value) => `${P}${HOST}\r\nTransfer-Encoding: ${value}\r\n\r\n${CHUNKED}`), [400, 501]);

refused('P06: two Transfer-Encoding lines, or a space before the colon, are refused', [
  `${P}${HOST}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nTransfer-Encoding : chunked\r\n\r\n${CHUNKED}`,
  `${P}${HOST}\r\nTransfer_Encoding: chunked\r\nContent-Length: 15\r\n\r\n${CHUNKED}`,
], [400, 501]);

refused('P06: a transfer coding by HTTP/1.0 is refused', [
  `POST /channels/p HTTP/1.0\r\n${HOST}\r\nTransfer-Encoding: chunked\r\n\r\n${CHUNKED}`,
], [400, 501]);

check('P06: Chunked in any case, with spaces around, is chunked', async () => {
  for (const value of ['chunked', 'Chunked', 'CHUNKED', '  chunked', 'chunked  ']) {
    const { answers } = await talk(Buffer.from(
      `${P}${HOST}\r\nConnection: close\r\nTransfer-Encoding: ${value}\r\n\r\n${CHUNKED}`));
    assert.equal(answers.length, 1);
    assert.equal(answers[0].status, 201, value);
  }
});

const lengths = ['5\r\nContent-Length: 6', '6\r\nContent-Length: 5', '5, 6', '+5', '-1', '-5', '0x5', '5x', '5 5', '5;', '5.0', '1e1', '',
  '18446744073709551621', '18446744073709551616', '99999999999999999999999', '４', '5\x0b', '5\x00', '0b101', '"5"'];
refused('P07: a Content-Length that is not one number is refused', lengths.map((value) =>
  `${P}${HOST}\r\nContent-Length: ${Buffer.from(value).toString('latin1')}\r\n\r\nhello`), [400, 413]);

check('P07: an identical pair of lengths, or blanks around one, is refused or read as that length', async () => {
  for (const value of ['5\r\nContent-Length: 5', '5, 5', '\t5', ' 5\t', '005']) {
    const { answers, ended } = await talk(Buffer.concat([
      Buffer.from(`${P}${HOST}\r\nContent-Length: ${value}\r\n\r\nhello`),
      request(server, 'GET', '/healthz', { headers: [['Connection', 'close']] })]));
    assert.ok(ended);
    const statuses = answers.map((a) => a.status);
    assert.ok(`${statuses}` === '400' || `${statuses}` === '201,200', `${JSON.stringify(value)}: ${statuses}`);
  }
});

refused('P09: a bare line feed, or a control character, in the frame of a chunk is refused', [
  '5\nhello\r\n0\r\n\r\n', '5;a\nhello\r\n0\r\n\r\n', '5;a\rb\r\nhello\r\n0\r\n\r\n', '5\r\nhello\n0\r\n\r\n', '5\r\nhello\r\n0\n\r\n', '5\r\nhello\r\n0\r\n\n',
  '5 \r\nhello\r\n0\r\n\r\n', ' 5\r\nhello\r\n0\r\n\r\n', '+5\r\nhello\r\n0\r\n\r\n', '0x5\r\nhello\r\n0\r\n\r\n', '-5\r\nhello\r\n0\r\n\r\n', '\r\nhello\r\n0\r\n\r\n',
  '5;a\x00b\r\nhello\r\n0\r\n\r\n', 'g\r\nhello\r\n0\r\n\r\n', '5\r\nhelloX0\r\n\r\n',
].map((body) => `${P}${HOST}\r\nTransfer-Encoding: chunked\r\n\r\n${body}`));

refused('P10: what follows the last chunk must be a line end or trailers', [
  '5\r\nhello\r\n0\r\nXX', '5\r\nhello\r\n0\r\n\rX', '5\r\nhello\r\n0\r\nX\r\n\r\n', '5\r\nhello\r\n0\r\n: x\r\n\r\n', '5\r\nhello\r\n0\r\nX y: z\r\n\r\n',
].map((body) => `${P}${HOST}\r\nTransfer-Encoding: chunked\r\n\r\n${body}`));

check('P10: trailers are dropped, and limited in size', async () => {
  const head = `${P}${HOST}\r\nTransfer-Encoding: chunked\r\n\r\n`;
  const good = await talk(Buffer.concat([Buffer.from(`${head}5\r\nhello\r\n0\r\nX: y\r\nContent-Length: 100\r\nHost: evil.test\r\n\r\n`),
    request(server, 'GET', '/healthz', { headers: [['Connection', 'close']] })]));
  const statuses = `${good.answers.map((a) => a.status)}`;
  assert.ok(statuses === '201,200' || statuses === '400', statuses);
  const long = await talk(Buffer.from(`${head}5\r\nhello\r\n0\r\n${`X: ${'y'.repeat(1000)}\r\n`.repeat(100)}\r\n`));
  assert.equal(long.answers.length, 1);
  assertProblem(long.answers[0], [400, 413, 431]);
  await assertUnharmed(server);
});

refused('P12: a Host that is missing, doubled or malformed is refused', [
  'GET /healthz HTTP/1.1\r\n\r\n', `GET /healthz HTTP/1.1\r\n${HOST}\r\n${HOST}\r\n\r\n`, `GET /healthz HTTP/1.1\r\n${HOST}\r\nHost: evil.test\r\n\r\n`,
  'GET /healthz HTTP/1.1\r\nHost: a b\r\n\r\n', 'GET /healthz HTTP/1.1\r\nHost: \r\n\r\n', 'GET /healthz HTTP/1.1\r\nHost:\r\n\r\n',
  'GET /healthz HTTP/1.1\r\nHost: localhost:99999\r\n\r\n', 'GET /healthz HTTP/1.1\r\nHost: localhost:x\r\n\r\n',
  'GET /healthz HTTP/1.1\r\nHost: localhost, localhost\r\n\r\n', 'GET /healthz HTTP/1.1\r\nHost: user@localhost\r\n\r\n',
  'GET /healthz HTTP/1.1\r\nHost: localhost/x\r\n\r\n', 'GET /healthz HTTP/1.1\r\nHost: [::1\r\n\r\n', 'GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n',
]);

check('P12: an absolute target is judged by its own host', async () => {
  const get = async (target, host) => {
    const tcp = await Tcp.connect(server.target);
    await tcp.send(`GET ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
    const got = await answer(tcp);
    tcp.destroy();
    return got;
  };
  assertProblem(await get('http://evil.test/healthz', server.host), [400, 403]);
  assertProblem(await get('http://evil.test/healthz', 'evil.test'), [400, 403]);
  const other = await get(`http://${server.host}/healthz`, 'evil.test'); // the target's host is what counts
  if (other.status !== 200) assertProblem(other, [400, 403]);
  const same = await get(`http://${server.host}/healthz`, server.host);
  assert.equal(same.status, 200);
  assertProblem(await get('ftp://x', server.host), [400, 403, 404]);
  assertProblem(await get('healthz', server.host), [400]);
  assertProblem(await get('*', server.host), [400, 404, 405]);
});

const line = (header) => `GET /healthz HTTP/1.1\r\n${HOST}\r\n${header}\r\n\r\n`;
refused('P13: header lines that are none are refused', [
  `GET /healthz HTTP/1.1\n${HOST}\n\n`, `GET /healthz HTTP/1.1\r\n${HOST}\n\r\n`, `GET /healthz HTTP/1.1\r\n${HOST}\r\nX: a\nY: b\r\n\r\n`,
  `GET /healthz HTTP/1.1\r\n${HOST}\rX: a\r\n\r\n`, line('X: a\x00b'), line('X\xe9: a'), line('X : a'), line('no colon'), line(': empty'), line('X: a\x01'),
  line('X: a\x7f'), line('X\x00: a'), line('X(: a'), line('"X": a'), line('X: a\rb'),
]);

refused('a request line that is none is refused', [
  `GET  /healthz HTTP/1.1\r\n${HOST}\r\n\r\n`, `GET /healthz  HTTP/1.1\r\n${HOST}\r\n\r\n`, `GET /healthz HTTP/1.1 \r\n${HOST}\r\n\r\n`,
  `GET\t/healthz\tHTTP/1.1\r\n${HOST}\r\n\r\n`, `GET /health\x00z HTTP/1.1\r\n${HOST}\r\n\r\n`, `GET /health z HTTP/1.1\r\n${HOST}\r\n\r\n`,
  `GET /healthz HTTP/1.1\x0b\r\n${HOST}\r\n\r\n`, `GET /healthz http/1.1\r\n${HOST}\r\n\r\n`, `GET /healthz HTTP/11\r\n${HOST}\r\n\r\n`,
  `GET /healthz HTTP/1.1x\r\n${HOST}\r\n\r\n`, `GET /healthz HTTPS/1.1\r\n${HOST}\r\n\r\n`, `G\x00T /healthz HTTP/1.1\r\n${HOST}\r\n\r\n`,
  ` GET /healthz HTTP/1.1\r\n${HOST}\r\n\r\n`, `GET /#x HTTP/1.1\r\n${HOST}\r\n\r\n`,
], [400, 501, 505]);

check('P25: bytes that are no HTTP are answered by 400 or a close', async () => {
  for (const bytes of ['160301020001000001fc0303', '00', 'ff'.repeat(100), Buffer.from('GET\r\n\r\n').toString('hex'), '0d0a0d0a'.repeat(50),
    Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n').toString('hex'), Buffer.from('\x15\x03\x03\x00\x02\x02\x28', 'latin1').toString('hex')]) {
    const { answers } = await talk(Buffer.concat([Buffer.from(bytes, 'hex'), Buffer.from('\r\n\r\n'), canary]));
    if (answers.length > 0 && !bytes.startsWith('0d0a')) {
      assert.ok([400, 501, 505].includes(answers[0].status), `${answers[0].status}`);
      assert.equal(answers.length, 1);
    }
  }
  await sleep(50);
  await assertUnharmed(server);
});

check('a request in which everything is legal and odd passes', async () => {
  const tcp = await Tcp.connect(server.target);
  await tcp.send(`\r\nPOST /channels/p?event=b HTTP/1.1\r\nhOsT: ${server.host}\r\nX-Empty:\r\nX-Tabs:\t a \t\r\n!#$%&'*+-.^_\`|~: x\r\n` +
    'X-High: caf\u00e9\r\nContent-Length:5\r\n\r\nhello');
  assert.equal((await answer(tcp, 'POST')).status, 201);
  tcp.destroy();
});

checkStop(server, { fdsBefore });
