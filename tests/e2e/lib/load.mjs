// Publishing at speed over a raw keep-alive connection.
import assert from 'node:assert/strict';
import { Tcp } from './tcp.mjs';
import { answer, request, segment } from './http.mjs';

export class Publisher {
  constructor(server, tcp) {
    this.server = server;
    this.tcp = tcp;
    this.port = tcp.port;
  }

  static async connect(server) {
    return new Publisher(server, await Tcp.connect(server.target));
  }

  // The whole answer of one POST.
  async post(channel, body, ms) {
    await this.tcp.send(request(this.server, 'POST', `/channels/${segment(channel)}`, { body }));
    return answer(this.tcp, 'POST', ms);
  }

  async publish(channel, body, ms) {
    const got = await this.post(channel, body, ms);
    assert.equal(got.status, 201, `${got.head}\n${got.body}`);
    return JSON.parse(got.body);
  }

  // Many in one write; the answers in order.
  async burst(channel, bodies) {
    await this.tcp.send(Buffer.concat(bodies.map((body) =>
      request(this.server, 'POST', `/channels/${segment(channel)}`, { body }))));
    const ids = [];
    for (let i = 0; i < bodies.length; i++) {
      const got = await answer(this.tcp, 'POST');
      assert.equal(got.status, 201, `${got.head}\n${got.body}`);
      ids.push(JSON.parse(got.body).id);
    }
    return ids;
  }

  close() {
    this.tcp.destroy();
  }
}
