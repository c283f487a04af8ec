/* http_parse_test.c - every row of http_heads.h, in one piece, byte by byte and
 * in two pieces at every place, with a next request behind it that has to stay
 * untouched; and the limits at exactly N and N + 1. */
#include "http_heads.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define CANARY "GET /canary HTTP/1.1\r\nHost: t\r\n\r\n"
#define ROWS (sizeof head_rows / sizeof *head_rows)

static const http_limits_s wide = {.header_bytes = 2000,
                                   .header_count = 8,
                                   .url_bytes = 500,
                                   .body_bytes = 1000};

static http_header_s headers[HTTP_HEADERS_MAX];

/* In memory of its own, so that a sanitizer sees a read past the end. */
static ssize_t parse(view_s in, const http_limits_s *limits, size_t *scanned,
                     http_request_s *req, char **memory) {
  *memory = malloc(in.len + 1);
  cr_assert(*memory);
  memmove(*memory + 1, in.data, in.len);
  return http_parse_head(view_of(*memory + 1, in.len), limits, headers, scanned,
                         req);
}

static void describe(const http_request_s *r, char *out, size_t cap) {
  char body[32] = "none";
  if (r->chunked)
    snprintf(body, sizeof body, "chunked");
  else if (r->has_length)
    snprintf(body, sizeof body, "len=%llu",
             (unsigned long long)r->content_length);
  snprintf(out, cap, "%.*s %.*s?%.*s @%.*s 1.%d %s %s%s%s #%zu",
           (int)r->method.len, r->method.data, (int)r->path.len, r->path.data,
           (int)r->query.len, r->query.data, (int)r->host.len, r->host.data,
           r->minor, r->keep_alive ? "keep" : "close", body,
           r->expects_100 ? " 100" : "", r->wants_upgrade ? " up" : "",
           r->header_count);
}

/* `n` and `r` are what came of the row, of which `given` bytes were there. */
static void check(const head_row_s *row, ssize_t n, const http_request_s *r,
                  const char *how) {
  char text[512];
  if (row->status) {
    cr_assert(n == -1 && r->status == row->status && r->detail && *r->detail,
              "%s (%s): %zd %d, not %d: %.*s", row->rule, how, n, r->status,
              row->status, (int)row->head.len, row->head.data);
    return;
  }
  cr_assert(n == (ssize_t)row->head.len, "%s (%s): %zd of %zu, %d %s: %.*s",
            row->rule, how, n, row->head.len, r->status,
            r->detail ? r->detail : "", (int)row->head.len, row->head.data);
  describe(r, text, sizeof text);
  cr_assert_str_eq(text, row->reads, "%s (%s): %s, not %s", row->rule, how,
                   text, row->reads);
}

static void run_whole(const head_row_s *row) {
  char *memory, all[1024];
  http_request_s r;
  size_t scanned = 0;
  memcpy(all, row->head.data, row->head.len);
  memcpy(all + row->head.len, CANARY, sizeof CANARY);
  ssize_t n = parse(view_of(all, row->head.len + sizeof CANARY - 1), &wide,
                    &scanned, &r, &memory);
  check(row, n, &r, "with a canary");
  if (n > 0)
    cr_assert_eq(memcmp(memory + 1 + n, CANARY, sizeof CANARY - 1), 0);
  free(memory);
}

/* Fed in pieces of which the first has `first` bytes and others `step`. */
static void run_split(const head_row_s *row, size_t first, size_t step) {
  char *memory;
  http_request_s r;
  ssize_t n = 0;
  size_t scanned = 0, given = first;
  for (;; given += step) {
    if (given > row->head.len)
      given = row->head.len;
    n = parse(view_sub(row->head, 0, given), &wide, &scanned, &r, &memory);
    if (n != 0 || given == row->head.len)
      break;
    cr_assert_leq(scanned, given);
    free(memory);
  }
  check(row, n, &r, step == 1 ? "byte by byte" : "in two");
  free(memory);
}

static size_t run_rows(const char *id) {
  size_t rows = 0;
  for (size_t i = 0; i < ROWS; i++) {
    const head_row_s *row = &head_rows[i];
    if (strcmp(row->id, id) != 0)
      continue;
    run_whole(row);
    run_split(row, 0, 1);
    for (size_t at = 1; at < row->head.len; at++)
      run_split(row, at, row->head.len);
    rows++;
  }
  return rows;
}

Test(http_parse, the_table_has_at_least_a_hundred_rows) {
  cr_assert_geq(ROWS, 100);
}

Test(http_parse, heads_read_as_the_rfcs_say) {
  cr_assert_gt(run_rows(""), 40);
}

Test(http_parse, P01_a_request_line_without_a_version_is_refused) {
  cr_assert_eq(run_rows("P01"), 4);
}

Test(http_parse, P03_a_folded_line_is_refused) {
  cr_assert_eq(run_rows("P03"), 5);
}

Test(http_parse, P04_a_folded_transfer_encoding_is_refused) {
  cr_assert_eq(run_rows("P04"), 2);
}

Test(http_parse, P06_only_one_exact_chunked_frames_a_body) {
  cr_assert_eq(run_rows("P06"), 31);
}

Test(http_parse, P07_a_length_is_one_plain_number) {
  cr_assert_eq(run_rows("P07"), 25);
}

Test(http_parse, P12_there_is_one_good_host) {
  cr_assert_eq(run_rows("P12"), 44);
}

Test(http_parse, P13_line_ends_names_and_values_are_exact) {
  cr_assert_eq(run_rows("P13"), 23);
}

Test(http_parse, P15_any_query_is_handed_on_as_it_is) {
  cr_assert_eq(run_rows("P15"), 7);
}

Test(http_parse, P21_a_target_has_the_form_of_its_method) {
  cr_assert_eq(run_rows("P21"), 6);
}

Test(http_parse, P25_what_is_no_request_is_refused_at_once) {
  cr_assert_eq(run_rows("P25"), 8);
}

Test(http_parse, H01_an_upgrade_is_seen_in_every_spelling) {
  cr_assert_eq(run_rows("H01"), 7);
}

Test(http_parse, H04_only_the_two_versions_are_spoken) {
  cr_assert_eq(run_rows("H04"), 15);
}

Test(http_parse, P25_the_first_byte_of_a_tls_hello_is_enough) {
  http_request_s r;
  size_t scanned = 0;
  cr_assert_eq(http_parse_head(VIEW_LIT("\x16"), &wide, headers, &scanned, &r),
               -1);
  cr_assert_eq(r.status, 400);
}

/* ---- limits ---- */

/* The status of `in` under `limits`, the same whole and byte by byte; 0 if it
 * was taken whole. */
static int status_of(view_s in, const http_limits_s *limits) {
  char *memory;
  http_request_s r;
  size_t scanned = 0;
  ssize_t n = parse(in, limits, &scanned, &r, &memory);
  int whole = n == (ssize_t)in.len ? 0 : n < 0 ? r.status : 1;
  free(memory);
  scanned = 0;
  for (size_t len = 0; len <= in.len; len++) {
    n = parse(view_sub(in, 0, len), limits, &scanned, &r, &memory);
    free(memory);
    if (n)
      break;
  }
  cr_assert_eq(n == (ssize_t)in.len ? 0 : n < 0 ? r.status : 1, whole);
  return whole;
}

/* How many of its bytes it took to refuse `in`. */
static size_t refused_after(view_s in, const http_limits_s *limits) {
  http_request_s r;
  size_t scanned = 0;
  for (size_t len = 0; len <= in.len; len++)
    if (http_parse_head(view_sub(in, 0, len), limits, headers, &scanned, &r) ==
        -1)
      return len;
  return 0;
}

Test(http_parse, a_head_may_have_just_as_many_bytes_as_the_limit) {
  view_s head = VIEW_LIT("GET / HTTP/1.1\r\nHost: t\r\nX: 12345\r\n\r\n");
  http_limits_s limits = wide;
  limits.header_bytes = head.len;
  cr_assert_eq(status_of(head, &limits), 0);
  limits.header_bytes = head.len - 1;
  cr_assert_eq(status_of(head, &limits), 431);
  limits.header_bytes = head.len - 2;
  cr_assert_eq(status_of(head, &limits), 431);
}

Test(http_parse, a_head_that_is_too_long_is_refused_before_its_end) {
  http_limits_s limits = wide;
  limits.header_bytes = 40;
  char head[200] = "GET / HTTP/1.1\r\nHost: t\r\nX: ";
  memset(head + 28, 'x', sizeof head - 28);
  cr_assert_eq(refused_after(view_of(head, sizeof head), &limits), 40);
}

Test(http_parse, empty_lines_in_front_do_not_count_for_the_head) {
  view_s head = VIEW_LIT("\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n");
  http_limits_s limits = wide;
  limits.header_bytes = head.len - 4;
  cr_assert_eq(status_of(head, &limits), 0);
  limits.header_bytes--;
  cr_assert_eq(status_of(head, &limits), 431);
}

Test(http_parse, there_may_be_just_as_many_fields_as_the_limit) {
  view_s head = VIEW_LIT("GET / HTTP/1.1\r\nHost: t\r\nA: 1\r\nB: 2\r\n\r\n");
  http_limits_s limits = wide;
  limits.header_count = 3;
  cr_assert_eq(status_of(head, &limits), 0);
  limits.header_count = 2;
  cr_assert_eq(status_of(head, &limits), 431);
  cr_assert_eq(refused_after(head, &limits),
               sizeof "GET / HTTP/1.1\r\nHost: t\r\nA: 1\r\nB" - 1);
  limits.header_count = 0;
  cr_assert_eq(status_of(head, &limits), 431);
}

Test(http_parse, as_many_fields_as_there_may_ever_be_are_kept_in_order) {
  static char head[HTTP_HEADERS_MAX * 8 + 64];
  size_t len =
      (size_t)snprintf(head, sizeof head, "GET / HTTP/1.1\r\nHost: t\r\n");
  for (int i = 1; i < HTTP_HEADERS_MAX; i++)
    len += (size_t)snprintf(head + len, sizeof head - len, "X:%d\r\n", i);
  len += (size_t)snprintf(head + len, sizeof head - len, "\r\n");
  http_limits_s limits = {sizeof head, HTTP_HEADERS_MAX, 500, 1000};
  http_request_s r;
  size_t scanned = 0;
  cr_assert_eq(
      http_parse_head(view_of(head, len), &limits, headers, &scanned, &r),
      (ssize_t)len);
  cr_assert_eq(r.header_count, HTTP_HEADERS_MAX);
  for (int i = 1; i < HTTP_HEADERS_MAX; i++)
    cr_assert_eq(atol(r.headers[i].value.data), i);
}

Test(http_parse, a_target_may_be_just_as_long_as_the_limit) {
  view_s head = VIEW_LIT("GET /12345678 HTTP/1.1\r\nHost: t\r\n\r\n");
  http_limits_s limits = wide;
  limits.url_bytes = 9;
  cr_assert_eq(status_of(head, &limits), 0);
  limits.url_bytes = 8;
  cr_assert_eq(status_of(head, &limits), 414);
  cr_assert_eq(refused_after(head, &limits), sizeof "GET /12345678" - 1);
}

Test(http_parse, a_body_may_be_just_as_long_as_the_limit) {
  view_s head =
      VIEW_LIT("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1234\r\n\r\n");
  http_limits_s limits = wide;
  limits.body_bytes = 1234;
  cr_assert_eq(status_of(head, &limits), 0);
  limits.body_bytes = 1233;
  cr_assert_eq(status_of(head, &limits), 413);
  limits.body_bytes = 0;
  cr_assert_eq(status_of(head, &limits), 413);
  limits.body_bytes = SIZE_MAX;
  cr_assert_eq(status_of(head, &limits), 0);
}

Test(http_parse, a_length_above_64_bits_is_too_large_under_any_limit) {
  http_limits_s limits = wide;
  limits.body_bytes = SIZE_MAX;
  cr_assert_eq(status_of(VIEW_LIT("POST / HTTP/1.1\r\nHost: t\r\n"
                                  "Content-Length: 18446744073709551616\r\n"
                                  "\r\n"),
                         &limits),
               413);
}

Test(http_parse, a_small_limit_holds_for_one_digit_too) {
  view_s head =
      VIEW_LIT("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\n");
  http_limits_s limits = wide;
  limits.body_bytes = 5;
  cr_assert_eq(status_of(head, &limits), 0);
  limits.body_bytes = 4;
  cr_assert_eq(status_of(head, &limits), 413);
}

/* `good` may be the beginning of a head, with `bad` behind it not any more. */
static void refused_at_once(const char *good, view_s bad, int status) {
  char in[256] = "";
  http_request_s r;
  size_t scanned = 0, len = strlen(good);
  memcpy(in, good, len);
  memcpy(in + len, bad.data, bad.len);
  view_s all = view_of(in, len + bad.len);
  for (size_t n = 0; n < all.len; n++)
    cr_assert_eq(
        http_parse_head(view_sub(all, 0, n), &wide, headers, &scanned, &r), 0,
        "%s: %zu", good, n);
  cr_assert_eq(http_parse_head(all, &wide, headers, &scanned, &r), -1, "%s",
               good);
  cr_assert_eq(r.status, status);
  scanned = 0; /* and in one piece with more behind it */
  memset(in + all.len, 'x', 16);
  all.len += 16;
  cr_assert_eq(http_parse_head(all, &wide, headers, &scanned, &r), -1, "%s",
               good);
  cr_assert_eq(r.status, status);
}

Test(http_parse, a_fault_is_found_at_its_first_byte) {
#define LINE "GET / HTTP/1.1\r\n"
  refused_at_once("", VIEW_LIT("\x16"), 400);
  refused_at_once("", VIEW_LIT("\n"), 400);
  refused_at_once("\r", VIEW_LIT("G"), 400);
  refused_at_once("GET / HTTP/1.1", VIEW_LIT("\n"), 400);
  refused_at_once("GET / HTTP/1.1", VIEW_LIT("1"), 400);
  refused_at_once("GET / HTTP/1.1\r", VIEW_LIT("X"), 400);
  refused_at_once("GET / HTTP/2.0\r", VIEW_LIT("\n"), 505);
  refused_at_once("GET /#x HTTP/1.1\r", VIEW_LIT("\n"), 400);
  refused_at_once("GET\r", VIEW_LIT("\n"), 400);
  refused_at_once(LINE, VIEW_LIT(" "), 400);
  refused_at_once(LINE, VIEW_LIT("\t"), 400);
  refused_at_once(LINE, VIEW_LIT(":"), 400);
  refused_at_once(LINE, VIEW_LIT("\n"), 400);
  refused_at_once(LINE "\r", VIEW_LIT("X"), 400);
  refused_at_once(LINE "X: abc", VIEW_LIT("\n"), 400);
  refused_at_once(LINE "X: abc\r", VIEW_LIT("\r"), 400);
  refused_at_once(LINE "X: abcdefghijklm", VIEW_LIT("\0"), 400);
  refused_at_once(LINE "X: abc\tdefgh", VIEW_LIT("\x7f"), 400);
}

/* All bytes but controls may stand in a value, wherever a word of it begins. */
Test(http_parse, every_byte_of_a_value_is_judged_alike_at_every_place) {
  for (int byte = 0; byte < 256; byte++)
    for (size_t at = 0; at < 17; at++) {
      char head[] = "GET / HTTP/1.1\r\nHost: t\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaa"
                    "\r\n\r\n";
      head[32 + at] = (char)byte;
      bool is_fine = (byte >= 0x20 || byte == '\t') && byte != 0x7f;
      cr_assert_eq(status_of(view_of(head, sizeof head - 1), &wide),
                   is_fine ? 0 : 400, "%02x at %zu", (unsigned)byte, at);
    }
}

/* ---- what comes out ---- */

Test(http_parse, fields_are_views_into_the_input_without_outer_white_space) {
  view_s head = VIEW_LIT("\r\nGET / HTTP/1.1\r\nHost:t\r\n"
                         "A: \t b  c\t \r\nE:\r\nF: \r\n\r\nrest");
  http_request_s r;
  size_t scanned = 0;
  cr_assert_eq(http_parse_head(head, &wide, headers, &scanned, &r),
               (ssize_t)head.len - 4);
  cr_assert_eq(r.headers, headers);
  cr_assert_eq(r.header_count, 4);
  cr_assert(view_eq(r.headers[1].name, VIEW_LIT("A")));
  cr_assert(view_eq(r.headers[1].value, VIEW_LIT("b  c")));
  cr_assert_eq(r.headers[2].value.len, 0);
  cr_assert_eq(r.headers[3].value.len, 0);
  for (size_t i = 0; i < r.header_count; i++) {
    cr_assert_geq(r.headers[i].name.data, head.data);
    cr_assert_geq(r.headers[i].value.data, head.data);
    cr_assert_leq(r.headers[i].value.data, head.data + head.len);
  }
}

Test(http_parse, pipelined_requests_come_out_one_after_the_other) {
  view_s in = VIEW_LIT(CANARY "\r\n" CANARY CANARY);
  int count = 0;
  while (in.len) {
    http_request_s r;
    size_t scanned = 0;
    ssize_t n = http_parse_head(in, &wide, headers, &scanned, &r);
    cr_assert_gt(n, 0);
    cr_assert(view_eq(r.path, VIEW_LIT("/canary")));
    in = view_sub(in, (size_t)n, in.len);
    count++;
  }
  cr_assert_eq(count, 3);
}

Test(http_parse, nothing_is_no_head_yet) {
  http_request_s r;
  size_t scanned = 0;
  cr_assert_eq(http_parse_head(view_of(NULL, 0), &wide, headers, &scanned, &r),
               0);
  cr_assert_eq(scanned, 0);
}

Test(http_parse, the_search_goes_on_where_it_stopped) {
  http_request_s r;
  size_t scanned = 0;
  view_s head = VIEW_LIT("GET / HTTP/1.1\r\nHost: t\r\nX: 12345");
  cr_assert_eq(http_parse_head(head, &wide, headers, &scanned, &r), 0);
  cr_assert_eq(scanned, head.len);
}
