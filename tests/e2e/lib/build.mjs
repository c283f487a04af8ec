// Which crier is under test, and how much slower than a plain build it may be.
import { readFileSync, existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { resolve } from 'node:path';

export const root = fileURLToPath(new URL('../../..', import.meta.url));
export const binary = resolve(root, process.env.CRIER_BIN ?? 'build/crier');

if (!existsSync(binary)) {
  throw new Error(`there is no ${binary}: build it, or set CRIER_BIN`);
}

const bytes = readFileSync(binary);
export const sanitized = bytes.includes('__asan_init') || bytes.includes('__ubsan_handle') ||
  bytes.includes('__tsan_init');
export const slow = sanitized ? 4 : 1;
