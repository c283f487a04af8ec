// A proxy that stands for a network that lets less through, and what the browser
// client has to bear behind it.
import assert from 'node:assert/strict';
import http from 'node:http';
import net from 'node:net';
import { Reader, Source, assertPromise } from './client.mjs';
import { poll } from './crier.mjs';
import { publish } from './http.mjs';

// A proxy that does to requests what the network may: `rules` says what.
// { refuses: upgrades get a 403, holds: streams never get a byte back,
//   losesAnswer(request): the broker's answer to it is thrown away }
export async function proxyOf(server, t, rules) {
  const seen = [];
  const sockets = new Set();
  const onward = (request, answered) => {
    const { method, url, headers } = request;
    const out = http.request({ ...server.target, method, path: url, headers, agent: false }, answered);
    out.on('error', () => request.socket.destroy());
    request.pipe(out);
    return out;
  };
  const proxy = http.createServer((request, answer) => {
    const isStream = request.headers.accept === 'text/event-stream';
    seen.push({ kind: request.method === 'POST' ? 'publish' : isStream ? 'stream' : /wait=/.test(request.url) ? 'poll' : 'page',
      url: request.url, key: request.headers['idempotency-key'], answer });
    const loses = rules.losesAnswer?.(request);
    const out = onward(request, (got) => {
      if (loses) {
        got.resume().on('end', () => request.socket.destroy());
      } else if (!(isStream && rules.holds)) {
        answer.writeHead(got.statusCode, got.headers);
        got.pipe(answer);
      }
    });
    answer.on('close', () => out.destroy());
  });
  proxy.on('connection', (socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
  });
  proxy.on('upgrade', (request, socket, head) => {
    seen.push({ kind: 'upgrade', url: request.url });
    socket.on('error', () => {});
    if (rules.refuses) return socket.end('HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n');
    const out = net.connect(server.target, () => {
      const pairs = request.rawHeaders.flatMap((name, i, all) => (i % 2 ? [] : [`${name}: ${all[i + 1]}\r\n`]));
      out.write(`GET ${request.url} HTTP/1.1\r\n${pairs.join('')}\r\n`);
      out.write(head);
      socket.pipe(out).pipe(socket);
    });
    out.on('error', () => socket.destroy());
  });
  await new Promise((done) => proxy.listen(0, '127.0.0.1', done));
  t.after(() => {
    proxy.close();
    for (const socket of sockets) socket.destroy();
  });
  return {
    seen,
    count: (kind) => seen.filter((one) => one.kind === kind).length,
    url: `http://127.0.0.1:${proxy.address().port}`,
    // All that goes through is cut off.
    cut() {
      for (const socket of sockets) socket.destroy();
    },
  };
}

const type = (name) => ({ headers: [['Content-Type', name]] });

// Cuts the connections `rounds` times while it is being published.
export async function throughCuts(server, proxy, crier, names, { rounds }) {
  const readers = names.map((name) => new Reader(crier, name));
  await Promise.all(readers.map((reader) => reader.isOpen()));
  const channels = names.map((name) => name.replaceAll('*', 'x'));
  const sources = channels.map((name) => new Source(() => server, name, { every: 30 })); // history keeps what 10 s bring
  for (let round = 0; round < rounds; round++) {
    const from = readers.map((reader) => reader.messages.length);
    await Promise.all(readers.map((reader, i) => reader.count(from[i] + 10, 20_000)));
    await Promise.all(readers.map((reader) => reader.isOpen()));
    const losses = () => readers[0].states.filter((state) => state[0] === 'waiting').length;
    const before = losses();
    await poll(() => { // one that falls between two polls is not noticed
      proxy.cut();
      return losses() > before;
    }, 'a cut to be told');
  }
  const published = await Promise.all(sources.map((source) => source.stop()));
  await Promise.all(readers.map(async (reader, i) => {
    await reader.until(() => reader.sub.cursor >= published[i].at(-1)[0], 'the last message', 20_000);
    assertPromise(reader, published[i]);
    assert.deepEqual(reader.gaps, []);
    assert.deepEqual(reader.messages.map(({ channel, id, data }) => [channel, id, data]), published[i].map((one) => [channels[i], ...one]));
  }));
}

export async function assertFidelity(server, crier) {
  const reader = new Reader(crier, 'kinds');
  await reader.isOpen();
  await publish(server, 'kinds', 'two\r\nlines \u2028\u{1f4ef}\n');
  await publish(server, 'kinds', '{"a":\n[1,\r\n null]}', type('application/json'));
  await publish(server, 'kinds', Buffer.from([0, 255, 10]), type('application/octet-stream'));
  await publish(server, 'kinds', '', { query: '?event=tick' });
  await reader.count(4);
  assert.deepEqual(reader.messages.map(({ id, ...rest }) => rest), [
    { channel: 'kinds', type: 'text/plain', data: 'two\r\nlines \u2028\u{1f4ef}\n' },
    { channel: 'kinds', type: 'application/json', data: { a: [1, null] } },
    { channel: 'kinds', type: 'application/octet-stream', data: new Uint8Array([0, 255, 10]) },
    { channel: 'kinds', type: 'text/plain', data: '', event: 'tick' },
  ]);
  assert.deepEqual(reader.gaps, []);
}
