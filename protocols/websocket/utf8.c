/* utf8.c - UTF-8 checked as it arrives (RFC 3629 section 4).
 *
 * An automaton of nine states. For each byte the table holds one 64-bit row
 * with the next state for each present state, six bits each; a state is named
 * by the place of its field in a row, so one step is one load and one shift,
 * and there is no branch to guess wrong. Runs of ASCII between characters are
 * passed over in words.
 *
 * Invariant: NO leads only to NO, so an error need not be looked for after
 * each byte. */
#include "facil/utf8.h"

/* What is awaited, times six. */
enum {
  OK = 0,  /* a first byte; must be UTF8_START */
  T1 = 6,  /* one more byte, 80..BF */
  T2 = 12, /* two more */
  T3 = 18, /* three more */
  E0 = 24, /* A0..BF, then one: shorter forms would do below */
  ED = 30, /* 80..9F, then one: surrogates lie above */
  F0 = 36, /* 90..BF, then two: shorter forms would do below */
  F4 = 42, /* 80..8F, then two: U+10FFFF is the last */
  NO = 48  /* refused */
};

#define PUT(next, state) ((uint64_t)(next) << (state))
#define ROW(ok, t1, t2, t3, e0, ed, f0, f4)                                    \
  (PUT(ok, OK) | PUT(t1, T1) | PUT(t2, T2) | PUT(t3, T3) | PUT(e0, E0) |       \
   PUT(ed, ED) | PUT(f0, F0) | PUT(f4, F4) | PUT(NO, NO))
#define LEAD(next) ROW(next, NO, NO, NO, NO, NO, NO, NO)

#define TWICE(row) row, row
#define X4(row) TWICE(row), TWICE(row)
#define X16(row) X4(row), X4(row), X4(row), X4(row)

/* clang-format off */
static const uint64_t row_of[256] = {
    /* 00..7F */ X16(LEAD(OK)), X16(LEAD(OK)), X16(LEAD(OK)), X16(LEAD(OK)),
                 X16(LEAD(OK)), X16(LEAD(OK)), X16(LEAD(OK)), X16(LEAD(OK)),
    /* in state:      OK  T1  T2  T3  E0  ED  F0  F4 */
    /* 80..8F */ X16(ROW(NO, OK, T1, T2, NO, T1, NO, T2)),
    /* 90..9F */ X16(ROW(NO, OK, T1, T2, NO, T1, T2, NO)),
    /* A0..BF */ X16(ROW(NO, OK, T1, T2, T1, NO, T2, NO)),
                 X16(ROW(NO, OK, T1, T2, T1, NO, T2, NO)),
    /* C0..C1 */ TWICE(LEAD(NO)),
    /* C2..DF */ TWICE(LEAD(T1)), X4(LEAD(T1)), X4(LEAD(T1)), X4(LEAD(T1)),
                 X16(LEAD(T1)),
    /* E0     */ LEAD(E0),
    /* E1..EC */ X4(LEAD(T2)), X4(LEAD(T2)), X4(LEAD(T2)),
    /* ED     */ LEAD(ED),
    /* EE..EF */ TWICE(LEAD(T2)),
    /* F0     */ LEAD(F0),
    /* F1..F3 */ TWICE(LEAD(T3)), LEAD(T3),
    /* F4     */ LEAD(F4),
    /* F5..FF */ TWICE(LEAD(NO)), LEAD(NO), X4(LEAD(NO)), X4(LEAD(NO)),
};
/* clang-format on */

#define ASCII_BLOCK 32

static uint64_t word_at(const uint8_t *p) {
  uint64_t word;
  memcpy(&word, p, sizeof word);
  return word;
}

static bool is_ascii(uint64_t word) {
  return (word & UINT64_C(0x8080808080808080)) == 0;
}

/* The end of the run of ASCII blocks that begins at `p`. */
static const uint8_t *skip_ascii(const uint8_t *p, const uint8_t *end) {
  while (end - p >= ASCII_BLOCK && is_ascii(word_at(p) | word_at(p + 8) |
                                            word_at(p + 16) | word_at(p + 24)))
    p += ASCII_BLOCK;
  while (end - p >= 8 && is_ascii(word_at(p)))
    p += 8;
  return p;
}

static uint64_t steps(uint64_t state, const uint8_t *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    state = row_of[p[i]] >> (state & 63);
  return state & 63;
}

int utf8_check(uint32_t *state, const void *data, size_t len) {
  uint64_t now = *state;
  const uint8_t *p = (const uint8_t *)data;
  if (len == 0)
    return now == NO ? -1 : 0;
  const uint8_t *end = p + len;
  while (end - p >= 8 && now != NO) {
    if (now == OK && is_ascii(word_at(p))) {
      p = skip_ascii(p, end);
    } else {
      now = steps(now, p, 8);
      p += 8;
    }
  }
  if (now != NO)
    now = steps(now, p, (size_t)(end - p));
  *state = (uint32_t)now;
  return now == NO ? -1 : 0;
}

bool utf8_is_valid(view_s text) {
  uint32_t state = UTF8_START;
  return utf8_check(&state, text.data, text.len) == 0 && utf8_is_whole(state);
}
