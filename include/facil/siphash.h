/* siphash.h - a keyed 64-bit hash of bytes (SipHash, Aumasson and Bernstein).
 *
 * With a key that nobody outside knows, a peer cannot choose names that fall
 * into one bucket, so tables keyed by peers' bytes stay O(1). SipHash-1-3 is
 * for tables; SipHash-2-4 is the conservative form, for values that leave the
 * process. Neither replaces a signature.
 *
 * The result is the same on every machine: input and key are read as
 * little-endian words. Nothing here allocates or fails; any thread. */
#ifndef FACIL_SIPHASH_H
#define FACIL_SIPHASH_H

#include "view.h"

/* 128 random bits (getrandom(2)), shared by all who must agree on a hash. */
typedef struct {
  uint64_t k0, k1;
} siphash_key_s;

/* The key whose 16 bytes are `bytes`, as the published vectors count them. */
FACIL_PUBLIC siphash_key_s siphash_key(const uint8_t bytes[16]);

FACIL_PUBLIC uint64_t siphash_13(siphash_key_s key, view_s bytes);
FACIL_PUBLIC uint64_t siphash_24(siphash_key_s key, view_s bytes);

#endif
