// Waiting, with a limit and a name for what is awaited: a test that waits in
// vain says for what, and what there was instead.
import { setTimeout as delay } from 'node:timers/promises';
import { slow } from './build.mjs';

export const sleep = (ms) => delay(ms);

// Something that changes. until(fn) gives fn's first result that is neither
// undefined, null nor false; fn runs at each change only.
export class Watch {
  #waiting = new Set();

  changed() {
    for (const wake of [...this.#waiting]) wake();
  }

  until(fn, what, ms = 10_000) {
    const limit = ms * slow;
    return new Promise((resolve, reject) => {
      const settle = (then, value) => {
        clearTimeout(timer);
        this.#waiting.delete(look);
        then(value);
      };
      const look = () => {
        try {
          const value = fn();
          if (value !== undefined && value !== null && value !== false) settle(resolve, value);
        } catch (error) {
          settle(reject, error);
        }
      };
      const late = new Error(`waited ${limit} ms in vain for ${what}`);
      const timer = setTimeout(() => {
        late.message += `; there is: ${this.describe?.() ?? 'nothing to tell'}`;
        settle(reject, late);
      }, limit);
      this.#waiting.add(look);
      look();
    });
  }
}

// The same for what cannot tell of its changes: asks every `every` ms.
export async function poll(fn, what, { ms = 10_000, every = 20 } = {}) {
  const end = Date.now() + ms * slow;
  let last;
  for (;;) {
    try {
      const value = await fn();
      if (value !== undefined && value !== null && value !== false) return value;
      last = value;
    } catch (error) {
      last = error;
    }
    if (Date.now() > end) {
      throw new Error(`waited ${ms * slow} ms in vain for ${what}; last: ${last?.message ?? last}`);
    }
    await delay(every);
  }
}

// Runs `work(i)` for 0 … count - 1, at most `width` at a time.
export async function spread(count, width, work) {
  let next = 0;
  const lane = async () => {
    while (next < count) await work(next++);
  };
  await Promise.all(Array.from({ length: Math.min(width, count) }, lane));
}

export function quantile(values, q) {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))];
}
