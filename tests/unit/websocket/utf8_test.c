/* utf8_test.c - the UTF-8 check against a table, and against a reference made
 * the other way round: the set of all encodings, by encoding every scalar
 * value, and the set of their beginnings. */
#include "facil/utf8.h"
#include <criterion/criterion.h>
#include <stdlib.h>

typedef struct {
  const char *bytes;
  size_t good; /* bytes that a valid text may begin with; len if all */
  bool is_whole;
} sample_s;

static const sample_s samples[] = {
    {"", 0, true},
    {"a", 1, true},
    {"\x7f", 1, true},
    {"\xc2\x80", 2, true},
    {"\xdf\xbf", 2, true},
    {"\xe0\xa0\x80", 3, true},
    {"\xed\x9f\xbf", 3, true}, /* the last before the surrogates */
    {"\xee\x80\x80", 3, true}, /* the first behind them */
    {"\xef\xbf\xbf", 3, true},
    {"\xf0\x90\x80\x80", 4, true},
    {"\xf4\x8f\xbf\xbf", 4, true}, /* U+10FFFF */
    {"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5", 11, true},
    {"abc\xe2\x82\xac"
     "def\xf0\x9f\x98\x80"
     "ghi",
     16, true},
    /* incomplete, not wrong yet */
    {"\xc2", 1, false},
    {"\xe0\xa0", 2, false},
    {"\xed\x9f", 2, false},
    {"\xf0\x90\x80", 3, false},
    {"\xf4\x8f", 2, false},
    {"ab\xf1", 3, false},
    /* wrong at the first byte */
    {"\x80", 0, false},
    {"\xbf", 0, false},
    {"\xc0\x80", 0, false}, /* overlong NUL */
    {"\xc1\xbf", 0, false},
    {"\xf5\x80\x80\x80", 0, false},
    {"\xf8\x88\x80\x80\x80", 0, false},
    {"\xfe", 0, false},
    {"\xff", 0, false},
    {"ab\xff", 2, false},
    /* at the second */
    {"\xc3\x28", 1, false},
    {"\xc2\xc2", 1, false},
    {"\xe0\x80\xaf", 1, false}, /* overlong '/' */
    {"\xe0\x9f\xbf", 1, false},
    {"\xed\xa0\x80", 1, false}, /* U+D800 */
    {"\xed\xbf\xbf", 1, false}, /* U+DFFF */
    {"\xf0\x80\x80\xaf", 1, false},
    {"\xf0\x8f\xbf\xbf", 1, false},
    {"\xf4\x90\x80\x80", 1, false}, /* U+110000 */
    /* later */
    {"\xe2\x82\x41", 2, false},
    {"\xf0\x9f\x98\x41", 3, false},
    {"\xf0\x9f\x41", 2, false},
    {"\xce\xba\xe1\xbd\xb9\xed\xa0\x80 edited", 6, false},
    /* a word of ASCII inside a character */
    {"123456\xe2\x82"
     "12345678\xac",
     8, false},
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* How many bytes are let through one by one. */
static size_t good_bytes(const char *p, size_t len, uint32_t *state) {
  for (size_t i = 0; i < len; i++)
    if (utf8_check(state, p + i, 1) < 0)
      return i;
  return len;
}

Test(utf8, each_sample_is_refused_at_its_first_bad_byte) {
  for (size_t i = 0; i < COUNT(samples); i++) {
    const sample_s *s = &samples[i];
    uint32_t state = UTF8_START;
    const size_t good = good_bytes(s->bytes, strlen(s->bytes), &state);
    cr_assert_eq(good, s->good, "sample %zu: %zu", i, good);
    cr_assert_eq(utf8_is_valid(view_str(s->bytes)), s->is_whole, "sample %zu",
                 i);
    if (good == strlen(s->bytes))
      cr_assert_eq(utf8_is_whole(state), s->is_whole, "sample %zu", i);
  }
}

Test(utf8, a_split_at_any_byte_changes_nothing) {
  for (size_t i = 0; i < COUNT(samples); i++) {
    const view_s v = view_str(samples[i].bytes);
    for (size_t at = 0; at <= v.len; at++) {
      uint32_t state = UTF8_START;
      const int first = utf8_check(&state, v.data, at);
      const int second = utf8_check(&state, v.data + at, v.len - at);
      cr_assert_eq(first, at > samples[i].good ? -1 : 0, "%zu at %zu", i, at);
      cr_assert_eq(second, v.len > samples[i].good ? -1 : 0, "%zu at %zu", i,
                   at);
      if (second == 0)
        cr_assert_eq(utf8_is_whole(state), samples[i].is_whole);
    }
  }
}

Test(utf8, once_refused_is_refused_for_ever) {
  uint32_t state = UTF8_START;
  cr_assert_eq(utf8_check(&state, "\xff", 1), -1);
  cr_assert_eq(utf8_check(&state, "", 0), -1);
  cr_assert_eq(utf8_check(&state, "plain text, long enough for words", 33), -1);
  cr_assert(!utf8_is_whole(state));
}

/* The words of the quick way must see what single bytes see. */
static void check_sample_inside(const char *filler, const sample_s *s) {
  const size_t len = strlen(s->bytes), unit = strlen(filler);
  for (size_t before = 0; before < 80; before += unit)
    for (size_t after = 0; after < 80; after += 13 * unit) {
      char *text = malloc(before + len + after + 1);
      for (size_t i = 0; i < before; i++)
        text[i] = filler[i % unit];
      memcpy(text + before, s->bytes, len);
      for (size_t i = 0; i < after; i++)
        text[before + len + i] = filler[i % unit];
      const bool is_valid = utf8_is_valid(view_of(text, before + len + after));
      cr_assert_eq(is_valid, s->is_whole, "%zu + sample %zu + %zu", before,
                   (size_t)(s - samples), after);
      free(text);
    }
}

Test(utf8, a_sample_is_found_at_every_place_in_longer_text) {
  for (size_t i = 0; i < COUNT(samples); i++) {
    check_sample_inside("x", &samples[i]);
    check_sample_inside("\xc3\xa9", &samples[i]);
    check_sample_inside("\xe2\x82\xac", &samples[i]);
  }
}

/* --- the reference --- */

enum { IS_WHOLE = 1, IS_BEGINNING = 2 };

typedef struct {
  uint8_t one[1 << 8], two[1 << 16], three[1 << 24];
} reference_s;

static size_t encode(uint32_t c, uint8_t out[4]) {
  if (c < 0x80) {
    out[0] = (uint8_t)c;
    return 1;
  }
  const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = n; i-- > 1; c >>= 6)
    out[i] = (uint8_t)(0x80 | (c & 0x3F));
  static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  out[0] = (uint8_t)(lead[n] | c);
  return n;
}

static uint8_t *known(reference_s *r, const uint8_t *p, size_t n) {
  if (n == 1)
    return &r->one[p[0]];
  if (n == 2)
    return &r->two[p[0] << 8 | p[1]];
  return &r->three[p[0] << 16 | p[1] << 8 | p[2]];
}

static reference_s *reference_new(void) {
  reference_s *r = calloc(1, sizeof *r);
  cr_assert_not_null(r);
  for (uint32_t c = 0; c <= 0x10FFFF; c++) {
    uint8_t p[4];
    if (c >= 0xD800 && c <= 0xDFFF)
      continue;
    const size_t n = encode(c, p);
    if (n < 4)
      *known(r, p, n) |= IS_WHOLE;
    for (size_t i = 1; i < n; i++)
      *known(r, p, i) |= IS_BEGINNING;
  }
  return r;
}

static bool is_whole_four(reference_s *r, const uint8_t *p) {
  return (*known(r, p, 3) & IS_BEGINNING) && p[3] >= 0x80 && p[3] <= 0xBF;
}

/* IS_WHOLE, IS_BEGINNING, or 0 for bytes that no valid text begins with. */
static int judge(reference_s *r, const uint8_t *p, size_t len) {
  if (len == 0)
    return IS_WHOLE;
  for (size_t n = 1; n <= len && n < 4; n++)
    if (*known(r, p, n) & IS_WHOLE)
      return judge(r, p + n, len - n);
  if (len >= 4)
    return is_whole_four(r, p) ? judge(r, p + 4, len - 4) : 0;
  return *known(r, p, len) & IS_BEGINNING;
}

static int judge_ours(const uint8_t *p, size_t len) {
  uint32_t state = UTF8_START;
  if (utf8_check(&state, p, len) < 0)
    return 0;
  return utf8_is_whole(state) ? IS_WHOLE : IS_BEGINNING;
}

Test(utf8, all_inputs_of_one_two_and_three_bytes_agree_with_the_reference,
     .timeout = 100) {
  reference_s *r = reference_new();
  size_t wrong = 0;
  for (size_t len = 1; len <= 3; len++)
    for (uint32_t i = 0; i < 1u << 8 * len; i++) {
      const uint8_t p[3] = {(uint8_t)i, (uint8_t)(i >> 8), (uint8_t)(i >> 16)};
      wrong += judge(r, p, len) != judge_ours(p, len);
    }
  cr_assert_eq(wrong, 0);
  free(r);
}

Test(utf8, sampled_inputs_of_four_bytes_agree_with_the_reference,
     .timeout = 100) {
  static const uint8_t last[] = {0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xFF};
  reference_s *r = reference_new();
  size_t wrong = 0;
  for (uint32_t lead = 0xED; lead <= 0xF8; lead++)
    for (uint32_t i = 0; i < 0x10000; i++)
      for (size_t k = 0; k < sizeof last; k++) {
        const uint8_t p[4] = {(uint8_t)lead, (uint8_t)(i >> 8), (uint8_t)i,
                              last[k]};
        wrong += judge(r, p, 4) != judge_ours(p, 4);
      }
  cr_assert_eq(wrong, 0);
  free(r);
}

Test(utf8, random_longer_inputs_agree_with_the_reference, .timeout = 100) {
  /* Bytes near every border, so that valid runs are not rare. */
  static const uint8_t some[] = {0x00, 'a',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF,
                                 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0x80, 0xA1, 'b'};
  reference_s *r = reference_new();
  size_t wrong = 0, valid = 0;
  srand(6455);
  for (size_t i = 0; i < 300000; i++) {
    uint8_t p[40];
    const size_t len = (size_t)rand() % sizeof p;
    for (size_t k = 0; k < len;) {
      uint8_t c[4];
      const size_t n = encode((uint32_t)rand() % 0xD800, c);
      if (rand() % 20 == 0)
        p[k++] = some[(size_t)rand() % sizeof some];
      else
        for (size_t m = 0; m < n && k < len; m++)
          p[k++] = c[m];
    }
    const int ours = judge_ours(p, len);
    wrong += judge(r, p, len) != ours;
    valid += ours != 0;
  }
  cr_assert_eq(wrong, 0);
  cr_assert_gt(valid, 50000, "the inputs are worth little: %zu", valid);
  free(r);
}
