/** A JSON value, text, or bytes: what `type` says. */
export type Data = unknown;

export interface Message<T = Data> {
  /** Its channel; of interest with a pattern. */
  channel: string;
  /** Microseconds of the broker's clock; unique and increasing. */
  id: number;
  /** The media type that it was published with. */
  type: string;
  /** JSON as its value, text as a string, the rest as a Uint8Array. */
  data: T;
  event?: string;
}

/** Messages with ids from `from` to `to`, both included, may be missing. */
export interface Gap {
  channel: string;
  from: number;
  to: number;
}

/**
 * `opening`: a connection is being made. `open`: messages arrive. `waiting`: the
 * connection is lost, and the next attempt is `afterMs` away. `failed`: the
 * broker refuses it; it is over.
 */
export type SubscriptionState = 'opening' | 'open' | 'waiting' | 'failed';

export interface CrierError extends Error {
  /** Of the HTTP answer, if there was one. */
  status?: number;
  /** Of the broker's error over a WebSocket: `forbidden`, `bad_channel`… */
  code?: string;
  /** What a Retry-After said. */
  retryMs?: number;
}

export interface SubscribeOptions {
  /**
   * The id after which to begin; also 'first' (all that is kept), -N (the last N
   * of them) or 'now', the default.
   */
  since?: number | string | null;
  onGap?: (gap: Gap) => void;
  onState?: {
    (state: SubscriptionState, detail?: { afterMs: number } | CrierError): void;
  };
}

export interface Subscription {
  /** The id up to which everything has come; null before it is known. */
  readonly cursor: number | null;
  /** No handler of it is called any more. */
  close(): void;
}

export interface PublishOptions {
  /**
   * Media type. Without: text/plain for a string, application/octet-stream for
   * bytes, else application/json. A string is sent as it is, whatever the type.
   */
  type?: string;
  event?: string;
  /** Seconds after which it is forgotten. */
  ttl?: number;
  /** Idempotency key, 1 to 128 visible ASCII characters; by itself a fresh one. */
  key?: string;
}

export interface Published {
  id: number;
  channel: string;
  /** If the credentials allow to know. */
  subscribers?: number;
}

export interface CrierOptions {
  /** An API key or a JWT, or what gives one for each connection and request. */
  token?: string | (() => string | Promise<string>);
  /** Where the platform has none: that of npm's `ws`. null: do without. */
  WebSocket?: unknown;
  fetch?: typeof fetch;
}

export class Crier {
  /** `base`: the broker's address, by itself the page's host. */
  constructor(base?: string | URL, options?: CrierOptions);
  /** Of all its connections, the one that is worst off. */
  readonly state: 'idle' | 'open' | 'opening' | 'waiting';
  /** `name`: a channel, or a pattern such as `room:*` or `room:**`. */
  subscribe<T = Data>(
    name: string,
    onMessage: (message: Message<T>) => void,
    options?: SubscribeOptions,
  ): Subscription;
  /**
   * Tried again for about 30 s under one idempotency key where that may help;
   * then, and where it cannot, rejects with a CrierError.
   */
  publish(
    channel: string,
    data: string | ArrayBuffer | ArrayBufferView | unknown,
    options?: PublishOptions,
  ): Promise<Published>;
  /** Ends all subscriptions. */
  close(): void;
}
