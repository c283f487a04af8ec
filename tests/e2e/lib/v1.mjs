// A client of the subprotocol crier.v1 on the strict WebSocket: requests wait
// for the answer that carries their ref; what is pushed lies in lists.
import assert from 'node:assert/strict';
import { WebSocket, OP, decode, text } from './websocket.mjs';

let refs = 0;

export class V1 {
  constructor(ws) {
    this.ws = ws;
    this.port = ws.port;
    this.answers = []; // frames with ref, and errors
    this.subscribed = []; // those that came by themselves
    this.messages = [];
    this.gaps = [];
    this.cursors = [];
    this.drains = [];
    this.onMessage = null;
    const early = ws.messages.splice(0);
    ws.onMessage = (message) => this.#take(message);
    for (const message of early) this.#take(message);
  }

  // Connects to /channels/NAME; the channel is subscribed when this returns.
  static async channel(server, name, { query = '', ...options } = {}) {
    return V1.open(server, `/channels/${encodeURIComponent(name)}${query}`, { expect: 1, ...options });
  }

  static async open(server, target, { expect = 0, ...options } = {}) {
    const ws = await WebSocket.connect(server, target, { protocol: 'crier.v1', ...options });
    const v1 = new V1(ws);
    await ws.wait(() => v1.subscribed.length >= expect, `${expect} subscribed frames`);
    return v1;
  }

  #take(message) {
    assert.equal(message.op, OP.TEXT, 'a crier.v1 frame is not text');
    const one = JSON.parse(decode(message.data));
    assert.equal(typeof one, 'object');
    if ('ref' in one || one.op === 'error' || one.op === 'pong') this.answers.push(one);
    else if (one.op === 'message') this.#message(one);
    else if (one.op === 'gap') this.gaps.push(one);
    else if (one.op === 'cursor') this.cursors.push(one);
    else if (one.op === 'drain') this.drains.push(one);
    else if (one.op === 'subscribed') this.subscribed.push(one);
    else this.answers.push(one);
  }

  #message(one) {
    if (this.onMessage) this.onMessage(one);
    else this.messages.push(one);
  }

  send(object) {
    return this.ws.send(text(JSON.stringify(object)));
  }

  // Sends with a ref of its own, gives the answer that carries it.
  async ask(object, ms) {
    const ref = `r${++refs}`;
    await this.send({ ...object, ref });
    await this.ws.wait(() => this.answers.some((a) => a.ref === ref), `the answer to ${object.op}`, ms);
    const at = this.answers.findIndex((a) => a.ref === ref);
    const [found] = this.answers.splice(at, 1);
    delete found.ref;
    return found;
  }

  // The next answer, whatever it is.
  async answer(ms) {
    await this.ws.wait(() => this.answers.length > 0, 'an answer', ms);
    return this.answers.shift();
  }

  async message(ms) {
    await this.ws.wait(() => this.messages.length > 0, 'a message', ms);
    return this.messages.shift();
  }

  async subscribe(channel) {
    const got = await this.ask({ op: 'subscribe', channel });
    assert.equal(got.op, 'subscribed', JSON.stringify(got));
    assert.equal(got.channel, channel);
    return got;
  }

  async unsubscribe(channel) {
    const got = await this.ask({ op: 'unsubscribe', channel });
    assert.deepEqual(got, { op: 'unsubscribed', channel });
  }

  async publish(channel, fields) {
    const got = await this.ask({ op: 'publish', channel, ...fields });
    assert.equal(got.op, 'published', JSON.stringify(got));
    assert.equal(got.channel, channel);
    assert.ok(Number.isSafeInteger(got.id));
    return got.id;
  }

  // The connection still works, and nothing but the pong comes.
  async expectAlive() {
    const got = await this.ask({ op: 'ping' });
    assert.deepEqual(got, { op: 'pong' });
  }

  async expectSilence() {
    await this.expectAlive();
    assert.deepEqual(this.messages, [], 'a message arrived');
  }

  close() {
    return this.ws.close();
  }

  drop() {
    this.ws.drop();
  }
}
