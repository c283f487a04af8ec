/* siphash.c - SipHash-1-3 and SipHash-2-4.
 *
 * Written from the paper "SipHash: a fast short-input PRF": a state of four
 * words, c rounds for each word of input, d rounds at the end. The last word
 * carries the bytes that are left and, on top, the length modulo 256.
 *
 * Invariant: no byte outside the view is read, whatever its length. */
#include <facil/siphash.h>

typedef struct {
  uint64_t v0, v1, v2, v3;
} sip_s;

static inline uint64_t rotl(uint64_t x, unsigned by) {
  return x << by | x >> (64 - by);
}

static inline uint64_t le64(const void *p, size_t n) {
  const uint8_t *b = (const uint8_t *)p;
  uint64_t w = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  if (n == 8) {
    memcpy(&w, b, 8);
    return w;
  }
#endif
  for (size_t i = 0; i < n; i++)
    w |= (uint64_t)b[i] << (8 * i);
  return w;
}

static inline void sip_rounds(sip_s *s, unsigned n) {
  while (n--) {
    s->v0 += s->v1;
    s->v2 += s->v3;
    s->v1 = rotl(s->v1, 13) ^ s->v0;
    s->v3 = rotl(s->v3, 16) ^ s->v2;
    s->v0 = rotl(s->v0, 32) + s->v3;
    s->v2 += s->v1;
    s->v3 = rotl(s->v3, 21) ^ s->v0;
    s->v1 = rotl(s->v1, 17) ^ s->v2;
    s->v2 = rotl(s->v2, 32);
  }
}

static inline void sip_word(sip_s *s, uint64_t w, unsigned c) {
  s->v3 ^= w;
  sip_rounds(s, c);
  s->v0 ^= w;
}

/* Inlined into the two public forms, so the round counts are constants. */
static inline __attribute__((always_inline)) uint64_t
sip_hash(siphash_key_s key, view_s in, unsigned c, unsigned d) {
  sip_s s = {key.k0 ^ 0x736f6d6570736575, key.k1 ^ 0x646f72616e646f6d,
             key.k0 ^ 0x6c7967656e657261, key.k1 ^ 0x7465646279746573};
  size_t whole = in.len - in.len % 8;
  for (size_t i = 0; i < whole; i += 8)
    sip_word(&s, le64(in.data + i, 8), c);
  uint64_t last = (uint64_t)in.len << 56;
  if (in.len > whole)
    last |= le64(in.data + whole, in.len - whole);
  sip_word(&s, last, c);
  s.v2 ^= 0xff;
  sip_rounds(&s, d);
  return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

siphash_key_s siphash_key(const uint8_t bytes[16]) {
  return (siphash_key_s){le64(bytes, 8), le64(bytes + 8, 8)};
}

uint64_t siphash_13(siphash_key_s key, view_s bytes) {
  return sip_hash(key, bytes, 1, 3);
}

uint64_t siphash_24(siphash_key_s key, view_s bytes) {
  return sip_hash(key, bytes, 2, 4);
}
