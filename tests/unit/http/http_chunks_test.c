/* http_chunks_test.c - chunked bodies: every row whole, byte by byte and in two
 * pieces at every place, with a next request behind it that stays untouched;
 * and the limits at exactly N and N + 1. */
#include "facil/http_parse.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define CANARY "GET /canary HTTP/1.1\r\nHost: t\r\n\r\n"
#define LIMIT 64

typedef struct {
  int result; /* of the last feed */
  int status;
  size_t used;    /* of all bytes */
  char body[256]; /* decoded */
  size_t len;
} outcome_s;

/* Feed `in` in pieces: one of `first` bytes, then of `step`. */
static outcome_s decode(view_s in, size_t first, size_t step, size_t limit) {
  outcome_s o = {.result = 0};
  http_chunks_s c;
  http_chunks_init(&c);
  for (size_t at = 0, n = first; at < in.len && o.result == 0; n = step) {
    size_t used, decoded;
    view_s piece = view_sub(in, at, n);
    char *memory = malloc(piece.len ? piece.len : 1);
    cr_assert(memory);
    memcpy(memory, piece.data, piece.len);
    o.result = http_chunks_feed(&c, memory, piece.len, limit, &used, &decoded,
                                &o.status);
    cr_assert_leq(decoded, used);
    cr_assert(o.result != 0 || used == piece.len);
    memcpy(o.body + o.len, memory, decoded);
    o.len += decoded;
    o.used += used;
    at += piece.len;
    free(memory);
  }
  return o;
}

static void check(const char *name, outcome_s o, view_s in, int status,
                  const char *body) {
  if (status) {
    cr_assert(o.result == -1 && o.status == status, "%s: %d %d, not %d", name,
              o.result, o.status, status);
    return;
  }
  cr_assert(o.result == 1 && o.used == in.len, "%s: %d %d, %zu of %zu", name,
            o.result, o.status, o.used, in.len);
  cr_assert(view_eq(view_of(o.body, o.len), view_str(body)), "%s: %.*s", name,
            (int)o.len, o.body);
}

/* `in`, in all ways of cutting it, is refused with `status` or gives `body`. */
static void expect(view_s in, int status, const char *body) {
  char all[1024];
  memcpy(all, in.data, in.len);
  memcpy(all + in.len, CANARY, sizeof CANARY);
  view_s whole = view_of(all, in.len + sizeof CANARY - 1);
  check("with a canary", decode(whole, whole.len, 1, LIMIT), in, status, body);
  check("byte by byte", decode(in, 1, 1, LIMIT), in, status, body);
  for (size_t at = 1; at <= in.len; at++)
    check("in two", decode(in, at, in.len, LIMIT), in, status, body);
}

#define TAKES(bytes, body) expect(VIEW_LIT(bytes), 0, body)
#define REFUSES(status, bytes) expect(VIEW_LIT(bytes), status, NULL)

Test(http_chunks, P16_chunks_of_every_shape_come_out_as_one_body) {
  TAKES("0\r\n\r\n", "");
  TAKES("5\r\nhello\r\n0\r\n\r\n", "hello");
  TAKES("1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n", "abc");
  TAKES("A\r\n0123456789\r\n0\r\n\r\n", "0123456789");
  TAKES("a\r\n0123456789\r\n00\r\n\r\n", "0123456789");
  TAKES("0005\r\n\r\n0\r\n\r\n0\r\n\r\n", "\r\n0\r\n");
  TAKES("2\r\n\r\n\r\n1\r\n\n\r\n0\r\n\r\n", "\r\n\n");
}

Test(http_chunks, extensions_and_trailers_are_dropped) {
  TAKES("5;a\r\nhello\r\n0;b=c\r\n\r\n", "hello");
  TAKES("5;a=\"b\"\r\nhello\r\n0\r\n\r\n", "hello");
  TAKES("5\r\nhello\r\n0\r\nX: y\r\nZ: \r\n\r\n", "hello");
}

Test(http_chunks, P09_line_ends_are_cr_and_lf) {
  REFUSES(400, "5\nhello\r\n0\r\n\r\n");
  REFUSES(400, "5\rhello\r\n0\r\n\r\n");
  REFUSES(400, "5;a\nhello\r\n0\r\n\r\n");
  REFUSES(400, "5;a\rb\r\nhello\r\n0\r\n\r\n");
  REFUSES(400, "5;a=b\nhello\r\n0\r\n\r\n");
  REFUSES(400, "5;a=\"b\nc\"\r\nhello\r\n0\r\n\r\n");
  REFUSES(400, "5\r\nhello\n0\r\n\r\n");
  REFUSES(400, "5\r\nhello\r0\r\n\r\n");
  REFUSES(400, "5\r\nhello\r\n0\n\r\n");
  REFUSES(400, "5\r\nhello\r\n0\r\n\n");
  REFUSES(400, "5\r\nhello\r\n0\n\n");
  REFUSES(400, "0\r\nX: y\n\r\n");
  REFUSES(400, "0\r\nX: y\r\n\n");
  REFUSES(400, "0\r\nX: y\rZ: z\r\n\r\n");
}

Test(http_chunks, P09_a_size_is_plain_hexadecimal) {
  REFUSES(400, "\r\n");
  REFUSES(400, "g\r\n");
  REFUSES(400, "-1\r\n");
  REFUSES(400, "+1\r\n");
  REFUSES(400, "0x5\r\nhello\r\n");
  REFUSES(400, " 5\r\nhello\r\n");
  REFUSES(400, "5 \r\nhello\r\n");
  REFUSES(400, "5\t\r\nhello\r\n");
  REFUSES(400, "5 5\r\nhello\r\n");
  REFUSES(400, ";a\r\nhello\r\n");
  REFUSES(400, "\x35\0\r\nhello\r\n");
  REFUSES(400, "10000000000000000\r\n");
}

Test(http_chunks, P10_data_is_followed_by_a_line_end) {
  REFUSES(400, "3\r\nabcXX0\r\n\r\n");
  REFUSES(400, "3\r\nabcd\r\n0\r\n\r\n");
  REFUSES(400, "3\r\nab\r\n0\r\n\r\n");
}

Test(http_chunks, P10_the_body_ends_with_an_empty_line) {
  REFUSES(400, "0\r\nXX" CANARY);
  REFUSES(400, "0\r\n\rX");
  REFUSES(400, "0\r\n X: y\r\n\r\n");
  REFUSES(400, "0\r\nX: y\r\n Z\r\n\r\n");
  REFUSES(400, "0\r\nX: y\r\n\tZ\r\n\r\n");
  REFUSES(400, "0\r\n: y\r\n\r\n");
  REFUSES(400, "0\r\nX : y\r\n\r\n");
  REFUSES(400, "0\r\nX\r\n\r\n");
  REFUSES(400, "0\r\nX: \x01\r\n\r\n");
}

Test(http_chunks, a_body_that_is_cut_off_is_not_done) {
  view_s in = VIEW_LIT("5\r\nhello\r\n0\r\nX: y\r\n\r\n");
  for (size_t len = 1; len < in.len; len++)
    cr_assert_eq(decode(view_sub(in, 0, len), len, 1, LIMIT).result, 0);
}

/* ---- limits ---- */

Test(http_chunks, a_body_may_be_just_as_long_as_the_limit) {
  view_s in = VIEW_LIT("5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n");
  for (size_t step = 1; step < in.len; step++) {
    cr_assert_eq(decode(in, step, step, 10).result, 1);
    cr_assert_eq(decode(in, step, step, 9).status, 413);
    cr_assert_eq(decode(in, step, step, 4).status, 413);
    cr_assert_eq(decode(in, step, step, 0).status, 413);
  }
}

Test(http_chunks, a_size_that_is_too_large_is_refused_before_its_data) {
  outcome_s o = decode(VIEW_LIT("41\r\n"), 4, 1, 64);
  cr_assert(o.result == -1 && o.status == 413);
  o = decode(VIEW_LIT("ffffffffffffffff\r\n"), 40, 1, 64);
  cr_assert(o.result == -1 && o.status == 413);
}

/* A body with `extra` bytes of extension or trailer, which is fine or not. */
static int status_with(const char *format, int extra, size_t step) {
  static char in[16384];
  char filler[8192];
  memset(filler, 'x', sizeof filler);
  int len = snprintf(in, sizeof in, format, extra, filler);
  cr_assert(len > 0 && (size_t)len < sizeof in);
  outcome_s o = decode(view_of(in, (size_t)len), step, step, LIMIT);
  return o.result == 1 ? 0 : o.status;
}

Test(http_chunks, extensions_and_trailers_are_limited) {
  static const size_t steps[] = {1, 7, 16384};
  for (size_t i = 0; i < 3; i++) {
    size_t step = steps[i];
    const char *extension = "1;%.*s\r\na\r\n0\r\n\r\n";
    cr_assert_eq(status_with(extension, 4095, step), 0);
    cr_assert_eq(status_with(extension, 4096, step), 413);
    const char *trailer = "1\r\na\r\n0\r\nX:%.*s\r\n\r\n";
    cr_assert_eq(status_with(trailer, 4094, step), 0);
    cr_assert_eq(status_with(trailer, 4095, step), 413);
    const char *alone = "0\r\nX:%.*s\r\n\r\n";
    cr_assert_eq(status_with(alone, 4094, step), 0);
    cr_assert_eq(status_with(alone, 4095, step), 413);
  }
}

Test(http_chunks, zeros_in_front_of_a_size_are_limited) {
  static char in[8192];
  memset(in, '0', sizeof in);
  outcome_s o = decode(view_of(in, 16 + 4096), 10000, 1, LIMIT);
  cr_assert_eq(o.result, 0);
  o = decode(view_of(in, 16 + 4097), 10000, 1, LIMIT);
  cr_assert(o.result == -1 && o.status == 413);
}

Test(http_chunks, chunks_of_one_byte_are_not_limited_by_their_frame) {
  http_chunks_s c;
  http_chunks_init(&c);
  for (int i = 0; i < 20000; i++) {
    char chunk[] = "1\r\na\r\n";
    size_t used, decoded;
    int status;
    cr_assert_eq(
        http_chunks_feed(&c, chunk, 6, 20000, &used, &decoded, &status), 0);
    cr_assert_eq(decoded, 1);
  }
}

Test(http_chunks, a_decoder_may_be_copied) {
  http_chunks_s c, copy;
  char first[] = "5\r\nhel", second[] = "lo\r\n0\r\n\r\n";
  size_t used, decoded;
  int status;
  http_chunks_init(&c);
  cr_assert_eq(http_chunks_feed(&c, first, 6, LIMIT, &used, &decoded, &status),
               0);
  memcpy(&copy, &c, sizeof c);
  memset(&c, 0xff, sizeof c);
  cr_assert_eq(
      http_chunks_feed(&copy, second, 9, LIMIT, &used, &decoded, &status), 1);
  cr_assert_eq(decoded, 2);
  cr_assert_eq(memcmp(second, "lo", 2), 0);
}
