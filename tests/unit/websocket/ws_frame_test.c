/* ws_frame_test.c - frames: bytes in, events out, and bytes out.
 *
 * Most tests compare a transcript: what an endpoint would make of a stream of
 * bytes, written as text. Each stream is fed whole, byte by byte, split at
 * every place, and in random pieces, and the transcript has to be the same;
 * streams made of frames are also sent under several masks, and without one to
 * a client's decoder. Every piece lies in a block of its own, of its exact
 * size, so that a sanitizer sees whoever reads past it. */
#include "facil/utf8.h"
#include "facil/ws_frame.h"
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define SMALL 3000 /* a stream up to this is split at every place */

static const ws_limits_s server = {
    .message_max = 1 << 20, .fragments_max = 1000, .expects_masked = true};
static const ws_limits_s client = {
    .message_max = 1 << 20, .fragments_max = 1000, .expects_masked = false};

/* --- growing text --- */

typedef struct {
  char *data;
  size_t len, cap;
} text_s;

static void add(text_s *t, const void *p, size_t n) {
  if (n > t->cap - t->len) {
    t->cap = 2 * t->cap + n + 64;
    t->data = realloc(t->data, t->cap);
    cr_assert_not_null(t->data);
  }
  if (n)
    memcpy(t->data + t->len, p, n);
  t->len += n;
}

static void add_str(text_s *t, const char *s) {
  add(t, s, strlen(s));
}

/* Printable bytes as they are, others as \xNN. */
static void add_shown(text_s *t, view_s v) {
  for (size_t i = 0; i < v.len; i++) {
    char s[8];
    const uint8_t c = (uint8_t)v.data[i];
    snprintf(s, sizeof s, c >= 0x20 && c < 0x7F ? "%c" : "\\x%02x", c);
    add_str(t, s);
  }
}

/* --- an endpoint that writes down what it gets --- */

typedef struct {
  ws_decoder_s decoder;
  const ws_limits_s *limits;
  text_s message, control, transcript;
  bool is_message_open, is_control_open;
  uint64_t remaining; /* as the last part told */
  int control_type;
  size_t events;
} endpoint_s;

static void entry(endpoint_s *e, const char *what, view_s payload) {
  if (e->transcript.len)
    add_str(&e->transcript, "|");
  add_str(&e->transcript, what);
  add_str(&e->transcript, " '");
  add_shown(&e->transcript, payload);
  add_str(&e->transcript, "'");
}

static void on_data(endpoint_s *e, const ws_event_s *ev) {
  cr_assert_eq(ev->is_first, !e->is_message_open);
  cr_assert(ev->payload.len > 0 || ev->is_last, "an empty part was reported");
  e->is_message_open = !ev->is_last;
  add(&e->message, ev->payload.data, ev->payload.len);
  cr_assert_leq(e->message.len, e->limits->message_max);
  if (!ev->is_last)
    return;
  cr_assert_eq(ev->remaining, 0);
  entry(e, ev->is_text ? "text" : "binary",
        view_of(e->message.data, e->message.len));
  e->message.len = 0;
}

static void on_close(endpoint_s *e, view_s payload) {
  uint16_t code;
  view_s reason;
  char what[32];
  const int rc = ws_close_parse(payload, &code, &reason);
  snprintf(what, sizeof what, rc < 0 ? "bad close %u" : "close %u", code);
  entry(e, what, reason);
}

static void on_control(endpoint_s *e, int type, const ws_event_s *ev) {
  cr_assert_eq(ev->is_first, !e->is_control_open);
  cr_assert(ev->is_first || type == e->control_type);
  e->control_type = type;
  e->is_control_open = !ev->is_last;
  add(&e->control, ev->payload.data, ev->payload.len);
  cr_assert_leq(e->control.len, WS_CONTROL_MAX);
  if (!ev->is_last)
    return;
  const view_s payload = view_of(e->control.data, e->control.len);
  if (type == WS_CLOSE)
    on_close(e, payload);
  else
    entry(e, type == WS_PING ? "ping" : "pong", payload);
  e->control.len = 0;
}

static void on_event(endpoint_s *e, int type, const ws_event_s *ev) {
  char what[32];
  e->events++;
  if (type == WS_DATA) {
    on_data(e, ev);
  } else if (type != WS_ERROR) {
    on_control(e, type, ev);
  } else {
    cr_assert_not_null(ev->reason);
    snprintf(what, sizeof what, "error %u", ev->close_code);
    entry(e, what, view_of(NULL, 0));
  }
}

/* Feed one piece, from a block of exactly its size. */
static void feed(endpoint_s *e, const char *data, size_t len) {
  char *block = malloc(len ? len : 1), *p = block;
  ws_event_s ev;
  size_t used = 0;
  int type;
  memcpy(block, data, len);
  while ((type = ws_decode(&e->decoder, e->limits, p, len, &used, &ev)) !=
         WS_MORE) {
    cr_assert_leq(used, len);
    if (type != WS_ERROR) {
      cr_assert_geq(ev.payload.data, p, "the payload lies elsewhere");
      cr_assert_leq(ev.payload.data + ev.payload.len, p + used);
    } else {
      cr_assert_eq(used, len);
    }
    on_event(e, type, &ev);
    p += used;
    len -= used;
  }
  cr_assert_eq(used, len);
  free(block);
}

static void endpoint_init(endpoint_s *e, const ws_limits_s *limits) {
  *e = (endpoint_s){.limits = limits};
  ws_decoder_init(&e->decoder);
}

static void endpoint_fini(endpoint_s *e) {
  free(e->message.data);
  free(e->control.data);
  free(e->transcript.data);
}

static void expect_transcript(endpoint_s *e, const char *expect,
                              const char *how, size_t at) {
  add(&e->transcript, "", 1);
  cr_assert_str_eq(e->transcript.data, expect, "%s %zu", how, at);
  endpoint_fini(e);
}

static void check_split(const ws_limits_s *limits, view_s in, size_t at,
                        const char *expect) {
  endpoint_s e;
  endpoint_init(&e, limits);
  feed(&e, in.data, at);
  feed(&e, in.data + at, in.len - at);
  expect_transcript(&e, expect, "split at", at);
}

/* In pieces of 1..max bytes; 1: byte by byte. */
static void check_pieces(const ws_limits_s *limits, view_s in, size_t max,
                         const char *expect) {
  endpoint_s e;
  endpoint_init(&e, limits);
  for (size_t at = 0, n; at < in.len; at += n) {
    n = 1 + (size_t)rand() % max;
    n = n > in.len - at ? in.len - at : n;
    feed(&e, in.data + at, n);
  }
  expect_transcript(&e, expect, "pieces up to", max);
}

static void check(const ws_limits_s *limits, const void *bytes, size_t len,
                  const char *expect) {
  const view_s in = view_of(bytes, len);
  check_split(limits, in, len, expect);
  check_pieces(limits, in, 1, expect);
  for (size_t at = 0; len <= SMALL && at < len; at++)
    check_split(limits, in, at, expect);
  for (size_t max = 3; max < len; max *= 3)
    check_pieces(limits, in, max, expect);
}

#define BYTES(s) s, sizeof(s) - 1
#define M "\0\0\0\0"

/* --- streams of frames --- */

typedef struct {
  uint8_t first;
  view_s payload;
} frame_s;

#define F(first, s)                                                            \
  {                                                                            \
    first, {                                                                   \
      s, sizeof(s) - 1                                                         \
    }                                                                          \
  }

static void add_masked(text_s *t, const frame_s *f, const uint8_t mask[4]) {
  char *out = malloc(f->payload.len + 14);
  const size_t n = ws_frame_client(out, f->first, mask, f->payload);
  add(t, out, n);
  free(out);
}

static void add_plain(text_s *t, const frame_s *f) {
  char head[WS_FRAME_HEAD_MAX];
  add(t, head, ws_frame_head(head, f->first, f->payload.len));
  add(t, f->payload.data, f->payload.len);
}

static void random_mask(uint8_t mask[4]) {
  for (size_t i = 0; i < 4; i++)
    mask[i] = (uint8_t)rand();
}

/* kind 0: mask 0; 1: 01 02 03 04; 2: without one; else random for each. */
static void add_frame(text_s *t, const frame_s *f, int kind) {
  uint8_t mask[4] = {0, 0, 0, 0};
  if (kind == 1)
    memcpy(mask, "\1\2\3\4", 4);
  if (kind > 2)
    random_mask(mask);
  if (kind == 2)
    add_plain(t, f);
  else
    add_masked(t, f, mask);
}

static void check_frames_within(ws_limits_s limits, const frame_s *frames,
                                size_t n, const char *expect) {
  for (int kind = 0; kind < 5; kind++) {
    text_s wire = {0};
    for (size_t i = 0; i < n; i++)
      add_frame(&wire, &frames[i], kind);
    limits.expects_masked = kind != 2;
    check(&limits, wire.data, wire.len, expect);
    free(wire.data);
  }
}

#define CHECK_WITHIN(limits, expect, ...)                                      \
  do {                                                                         \
    const frame_s list[] = {__VA_ARGS__};                                      \
    check_frames_within(limits, list, COUNT(list), expect);                    \
  } while (0)
#define CHECK(expect, ...) CHECK_WITHIN(server, expect, __VA_ARGS__)

/* --- RFC 6455 section 5.7 --- */

Test(ws_frame, the_examples_of_the_rfc_are_read) {
  check(&client, BYTES("\x81\x05Hello"), "text 'Hello'");
  check(&server, BYTES("\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"),
        "text 'Hello'");
  check(&client, BYTES("\x01\x03Hel\x80\x02lo"), "text 'Hello'");
  check(&client, BYTES("\x89\x05Hello"), "ping 'Hello'");
  check(&server, BYTES("\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"),
        "pong 'Hello'");
}

Test(ws_frame, the_examples_of_the_rfc_are_written) {
  char out[16];
  const uint8_t mask[4] = {0x37, 0xfa, 0x21, 0x3d};
  cr_assert_eq(ws_frame_client(out, WS_FIN_TEXT, mask, VIEW_LIT("Hello")), 11);
  cr_assert_arr_eq(out, "\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", 11);
  cr_assert_eq(ws_frame_head(out, WS_FIN_BINARY, 256), 4);
  cr_assert_arr_eq(out, "\x82\x7e\x01\x00", 4);
  cr_assert_eq(ws_frame_head(out, WS_FIN_BINARY, 65536), 10);
  cr_assert_arr_eq(out, "\x82\x7f\0\0\0\0\0\1\0\0", 10);
  cr_assert_eq(ws_frame_head(out, WS_FIN_TEXT, 5), 2);
  cr_assert_arr_eq(out, "\x81\x05", 2);
}

/* --- messages and fragments --- */

Test(ws_frame, F01_fragments_become_one_message) {
  check(&server, BYTES("\x01\x82" M "ab\x80\x82" M "cd"), "text 'abcd'");
  CHECK("text 'abcd'", F(0x01, "ab"), F(0x80, "cd"));
  CHECK("binary 'abcdef'", F(0x02, "ab"), F(0x00, "cd"), F(0x80, "ef"));
}

Test(ws_frame, F02_a_control_frame_inside_a_message_comes_at_once) {
  check(&server, BYTES("\x01\x81" M "a\x89\x81" M "x\x80\x81" M "b"),
        "ping 'x'|text 'ab'");
  CHECK("ping 'x'|text 'ab'", F(0x01, "a"), F(0x89, "x"), F(0x80, "b"));
  CHECK("ping ''|pong 'yy'|text 'ab'", F(0x01, "a"), F(0x89, ""), F(0x8A, "yy"),
        F(0x80, "b"));
}

Test(ws_frame, F02_every_fragment_is_unmasked_from_the_first_mask_byte) {
  CHECK("ping 'x'|text 'abcdefghi'", F(0x01, "a"), F(0x89, "x"), F(0x00, "bcd"),
        F(0x80, "efghi"));
}

Test(ws_frame, F04_a_new_message_inside_a_message_is_1002) {
  check(&server, BYTES("\x01\x81" M "a\x81\x81" M "b"), "error 1002 ''");
  CHECK("error 1002 ''", F(0x01, "a"), F(0x82, "b"));
  CHECK("error 1002 ''", F(0x02, "a"), F(0x01, "b"), F(0x80, "c"));
}

Test(ws_frame, a_continuation_of_no_message_is_1002) {
  CHECK("error 1002 ''", F(0x80, "a"));
  CHECK("error 1002 ''", F(0x00, "a"), F(0x80, "b"));
  CHECK("text 'a'|error 1002 ''", F(0x81, "a"), F(0x80, "b"));
  CHECK("text 'ab'|error 1002 ''", F(0x01, "a"), F(0x80, "b"), F(0x80, "c"));
}

Test(ws_frame, F25_an_empty_message_is_a_message) {
  check(&server, BYTES("\x81\x80" M), "text ''");
  CHECK("text ''|binary ''", F(0x81, ""), F(0x82, ""));
  CHECK("text ''", F(0x01, ""), F(0x00, ""), F(0x80, ""));
  CHECK("text 'a'", F(0x01, ""), F(0x00, "a"), F(0x80, ""));
}

Test(ws_frame, F27_NUL_and_line_ends_pass_as_they_are) {
  check(&server, BYTES("\x81\x83" M "a\0b"), "text 'a\\x00b'");
  CHECK("text 'a\\x0d\\x0ab\\x0dc\\x0ad'", F(0x81, "a\r\nb\rc\nd"));
}

/* --- what only one side may send --- */

Test(ws_frame, F05_an_unmasked_client_frame_is_1002_before_any_data) {
  check(&server, BYTES("\x81\x02hi"), "error 1002 ''");
  check(&server, BYTES("\x89\x00"), "error 1002 ''");
  ws_decoder_s d;
  ws_event_s ev;
  size_t used;
  char bytes[] = "\x81\x02hi";
  ws_decoder_init(&d);
  cr_assert_eq(ws_decode(&d, &server, bytes, 4, &used, &ev), WS_ERROR);
  cr_assert_eq(used, 4);
  cr_assert_eq(ev.payload.len, 0);
  cr_assert_str_eq(ev.reason, "unmasked frame from a client");
}

Test(ws_frame, a_masked_server_frame_is_1002) {
  check(&client, BYTES("\x81\x82" M "hi"), "error 1002 ''");
}

/* --- heads that must not be --- */

Test(ws_frame, F07_a_reserved_opcode_is_1002) {
  for (int opcode = 0; opcode < 16; opcode++) {
    const bool is_known = opcode < 3 || (opcode > 7 && opcode < 11);
    const char bytes[] = {(char)(0x80 | opcode), (char)0x80, 0, 0, 0, 0};
    if (!is_known)
      check(&server, bytes, sizeof bytes, "error 1002 ''");
  }
}

Test(ws_frame, a_reserved_bit_is_1002) {
  for (int bit = 0x10; bit < 0x80; bit <<= 1)
    for (int opcode = 0; opcode < 11; opcode++) {
      const char bytes[] = {
          (char)(0x80 | bit | opcode), (char)0x80, 0, 0, 0, 0};
      check(&server, bytes, sizeof bytes, "error 1002 ''");
    }
}

Test(ws_frame, a_fragmented_control_frame_is_1002) {
  CHECK("error 1002 ''", F(0x08, ""));
  CHECK("error 1002 ''", F(0x09, "a"), F(0x80, "b"));
  CHECK("error 1002 ''", F(0x0A, ""));
}

Test(ws_frame, F08_a_control_frame_above_125_bytes_is_1002) {
  char bytes[4 + 4 + 126] = {(char)0x89, (char)0xFE, 0, 0x7E};
  check(&server, bytes, sizeof bytes, "error 1002 ''");
  check(&server, BYTES("\x89\xfe"), "error 1002 ''");
  check(&server, BYTES("\x88\xff\0\0\0\0\0\0\0\x7e" M), "error 1002 ''");
}

Test(ws_frame, a_control_frame_of_125_bytes_is_right) {
  char payload[126], expect[140];
  memset(payload, 'p', 125);
  payload[125] = 0;
  snprintf(expect, sizeof expect, "ping '%s'", payload);
  const frame_s f = {0x89, {payload, 125}};
  check_frames_within(server, &f, 1, expect);
}

Test(ws_frame, a_length_not_in_its_shortest_form_is_1002) {
  check(&server, BYTES("\x82\xfe\x00\x7d" M), "error 1002 ''");
  check(&server, BYTES("\x82\xfe\x00\x00" M), "error 1002 ''");
  check(&server, BYTES("\x82\xff\0\0\0\0\0\0\xff\xff" M), "error 1002 ''");
  check(&server, BYTES("\x82\xff\0\0\0\0\0\0\0\x05" M "hello"),
        "error 1002 ''");
  check(&client, BYTES("\x82\x7e\x00\x7d"), "error 1002 ''");
  check(&client, BYTES("\x82\x7f\0\0\0\0\0\0\xff\xff"), "error 1002 ''");
}

Test(ws_frame, F10_a_length_with_the_top_bit_is_1002) {
  const ws_limits_s endless = {
      .message_max = UINT64_MAX, .fragments_max = 0, .expects_masked = true};
  check(&server, BYTES("\x82\xff\x80\0\0\0\0\0\0\0" M), "error 1002 ''");
  check(&server, BYTES("\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff" M),
        "error 1002 ''");
  check(&endless, BYTES("\x82\xff\x80\0\0\0\0\0\0\0" M), "error 1002 ''");
  check(&server, BYTES("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff" M),
        "error 1009 ''");
}

Test(ws_frame, F10_sums_of_huge_lengths_do_not_wrap) {
  /* 1 byte, then 2^63 - 1 declared within a limit of 2^63 - 1. */
  const ws_limits_s limits = {
      .message_max = INT64_MAX, .fragments_max = 0, .expects_masked = true};
  check(&limits,
        BYTES("\x02\x81" M "a\x80\xff\x7f\xff\xff\xff\xff\xff\xff\xff" M),
        "error 1009 ''");
}

Test(ws_frame, F11_a_declared_huge_message_is_1009_when_its_head_is_read) {
  check(&server, BYTES("\x82\xff\0\0\0\0\x80\0\0\0" M), "error 1009 ''");
  const ws_limits_s limits = {
      .message_max = 4, .fragments_max = 1000, .expects_masked = true};
  check(&limits, BYTES("\x82\x84" M "abcd"), "binary 'abcd'");
  check(&limits, BYTES("\x82\x85" M), "error 1009 ''");
  check(&limits, BYTES("\x89\x85" M "abcde"), "ping 'abcde'");
}

Test(ws_frame, F19_the_sum_of_fragments_is_limited_as_it_passes_the_limit) {
  const ws_limits_s limits = {
      .message_max = 8, .fragments_max = 1000, .expects_masked = true};
  const frame_s frames[] = {
      F(0x82, "12345678"),    F(0x01, "abcd"), F(0x00, "efgh"),
      F(0x89, "not counted"), F(0x80, ""),     F(0x01, "abcd"),
      F(0x00, "efgh"),        F(0x00, "i"),    F(0x80, "j")};
  check_frames_within(limits, frames, 6,
                      "binary '12345678'|ping 'not counted'|text 'abcdefgh'");
  check_frames_within(limits, frames, COUNT(frames),
                      "binary '12345678'|ping 'not counted'|text 'abcdefgh'|"
                      "error 1009 ''");
  /* By the head alone: the payload never comes. */
  check(&limits, BYTES("\x01\x84" M "abcd\0\x84" M "efgh\0\x81" M),
        "error 1009 ''");
}

Test(ws_frame, a_limit_that_was_lowered_inside_a_message_holds_at_once) {
  ws_limits_s limits = server;
  ws_decoder_s d;
  ws_event_s ev;
  size_t used;
  char bytes[] = "\x01\x84" M "abcd\x80\x80" M;
  ws_decoder_init(&d);
  cr_assert_eq(ws_decode(&d, &limits, bytes, 16, &used, &ev), WS_DATA);
  limits.message_max = 3;
  cr_assert_eq(ws_decode(&d, &limits, bytes + used, 16 - used, &used, &ev),
               WS_ERROR);
  cr_assert_eq(ev.close_code, 1009);
}

Test(ws_frame, too_many_fragments_are_1009) {
  const ws_limits_s limits = {
      .message_max = 100, .fragments_max = 3, .expects_masked = true};
  const frame_s three[] = {F(0x01, "a"), F(0x00, ""), F(0x80, "b")};
  const frame_s four[] = {F(0x01, "a"), F(0x00, ""), F(0x89, "x"), F(0x00, ""),
                          F(0x80, "b")};
  check_frames_within(limits, three, 3, "text 'ab'");
  CHECK_WITHIN(limits, "text 'ab'|text 'c'|binary 'de'", F(0x01, "a"),
               F(0x80, "b"), F(0x81, "c"), F(0x02, "d"), F(0x80, "e"));
  check_frames_within(limits, four, 5, "ping 'x'|error 1009 ''");
}

/* --- streams --- */

Test(ws_frame, F13_a_bad_second_frame_ends_the_stream_after_the_first) {
  check(&server,
        BYTES("\x8a\x80" M "\x8a\xff\xff\xff\xff\xff\xff\xff\xff\xff" M),
        "pong ''|error 1002 ''");
  check(&server,
        BYTES("\x8a\x80" M "\x89\xff\xff\xff\xff\xff\xff\xff\xff\xff" M),
        "pong ''|error 1002 ''");
}

/* Where a transcript would be long: the payload bytes are compared at once. */
typedef struct {
  ws_decoder_s decoder;
  const char *expect; /* bytes that are still to come */
  size_t left, messages;
} sink_s;

static void sink_feed(sink_s *s, const ws_limits_s *limits, char *p, size_t n) {
  ws_event_s ev;
  size_t used;
  int type;
  while ((type = ws_decode(&s->decoder, limits, p, n, &used, &ev)) != WS_MORE) {
    cr_assert_eq(type, WS_DATA);
    cr_assert_leq(ev.payload.len, s->left);
    cr_assert_eq(memcmp(ev.payload.data, s->expect, ev.payload.len), 0);
    s->expect += ev.payload.len;
    s->left -= ev.payload.len;
    s->messages += ev.is_last;
    p += used;
    n -= used;
  }
}

static const size_t borders[] = {0,     1,     125,   126,    127,
                                 128,   4095,  4096,  4097,   65534,
                                 65535, 65536, 65537, 131072, 1048576};

static char *random_bytes(size_t n) {
  char *p = malloc(n ? n : 1);
  cr_assert_not_null(p);
  for (size_t i = 0; i < n; i++)
    p[i] = (char)rand();
  return p;
}

/* Feed `wire` in pieces of `step`, the first of `first`; the payload has to
 * come out. */
static void check_payload(const ws_limits_s *limits, view_s wire,
                          view_s payload, size_t first, size_t step) {
  sink_s s = {.expect = payload.data, .left = payload.len};
  char *copy = malloc(wire.len);
  memcpy(copy, wire.data, wire.len);
  for (size_t at = 0, n = first; at < wire.len; at += n, n = step) {
    n = n > wire.len - at ? wire.len - at : n;
    sink_feed(&s, limits, copy + at, n);
  }
  cr_assert_eq(s.left, 0);
  cr_assert_eq(s.messages, 1);
  free(copy);
}

Test(ws_frame, F14_payloads_at_the_length_borders_are_the_same_bytes,
     .timeout = 100) {
  for (size_t i = 0; i < COUNT(borders); i++) {
    char *payload = random_bytes(borders[i]);
    for (int kind = 1; kind < 4; kind++) {
      const frame_s f = {WS_FIN_BINARY, {payload, borders[i]}};
      text_s wire = {0};
      add_frame(&wire, &f, kind);
      const view_s w = view_of(wire.data, wire.len);
      const ws_limits_s *limits = kind == 2 ? &client : &server;
      check_payload(limits, w, f.payload, w.len, w.len);
      check_payload(limits, w, f.payload, 1, 1);
      check_payload(limits, w, f.payload, 7, 4093);
      for (size_t at = 1; at < 24 && at < w.len; at++)
        check_payload(limits, w, f.payload, at, w.len);
      free(wire.data);
    }
    free(payload);
  }
}

Test(ws_frame, F14_the_head_has_the_form_that_its_length_requires) {
  for (size_t i = 0; i < COUNT(borders); i++) {
    char out[WS_FRAME_HEAD_MAX];
    const size_t n = borders[i];
    const size_t size = ws_frame_head(out, WS_FIN_BINARY, n);
    cr_assert_eq(size, ws_frame_head_size(n));
    cr_assert_eq((uint8_t)out[0], 0x82);
    if (n < 126) {
      cr_assert_eq(size, 2);
      cr_assert_eq((uint8_t)out[1], n);
    } else if (n < 65536) {
      cr_assert_eq(size, 4);
      cr_assert_eq(out[1], 126);
      cr_assert_eq(view_u16(out + 2), n);
    } else {
      cr_assert_eq(size, 10);
      cr_assert_eq(out[1], 127);
      cr_assert_eq(view_u64(out + 2), n);
    }
  }
}

Test(ws_frame, F14_every_byte_of_a_long_length_is_written) {
  char out[WS_FRAME_HEAD_MAX];
  cr_assert_eq(ws_frame_head(out, WS_FIN_TEXT, 0x0123456789abcdef), 10);
  cr_assert_arr_eq(out, "\x81\x7f\x01\x23\x45\x67\x89\xab\xcd\xef", 10);
}

Test(ws_frame, F16_pipelined_frames_at_odd_places_are_unmasked_right) {
  text_s wire = {0}, all = {0};
  for (size_t i = 0; i < 1000; i++) {
    char *payload = random_bytes(1 + i % 17);
    const frame_s f = {WS_FIN_BINARY, {payload, 1 + i % 17}};
    add_frame(&wire, &f, 4);
    add(&all, payload, f.payload.len);
    free(payload);
  }
  for (size_t step = 1; step <= wire.len;
       step = step < 60 ? step + 1 : 3 * step) {
    sink_s s = {.expect = all.data, .left = all.len};
    char *copy = malloc(wire.len);
    memcpy(copy, wire.data, wire.len);
    for (size_t at = 0, n; at < wire.len; at += n) {
      n = step > wire.len - at ? wire.len - at : step;
      sink_feed(&s, &server, copy + at, n);
    }
    cr_assert_eq(s.left, 0);
    cr_assert_eq(s.messages, 1000);
    free(copy);
  }
  free(wire.data);
  free(all.data);
}

Test(ws_frame, F31_more_bytes_than_a_frame_declares_belong_to_the_next) {
  char payload[4000 - 8];
  memset(payload, 'z', sizeof payload);
  text_s wire = {0}, expect = {0};
  const frame_s frames[] = {F(0x81, "abc"), {0x82, {payload, sizeof payload}}};
  add_frame(&wire, &frames[0], 3);
  add_frame(&wire, &frames[1], 3);
  add_str(&expect, "text 'abc'|binary '");
  add(&expect, payload, sizeof payload);
  add(&expect, "'", 2);
  check(&server, wire.data, wire.len, expect.data);
  free(wire.data);
  free(expect.data);
}

Test(ws_frame, F31_a_stream_cut_inside_a_frame_is_not_idle) {
  const char bytes[] = "\x01\x82" M "ab\x80\x81" M "c";
  for (size_t at = 0; at < sizeof bytes; at++) {
    endpoint_s e;
    endpoint_init(&e, &server);
    feed(&e, bytes, at);
    cr_assert_eq(ws_decoder_is_idle(&e.decoder),
                 at == 0 || at == sizeof bytes - 1, "after %zu bytes", at);
    endpoint_fini(&e);
  }
}

Test(ws_frame, F31_nothing_is_read_behind_a_close_frame) {
  CHECK("text 'a'|close 1000 ''", F(0x81, "a"), F(0x88, "\x03\xe8"),
        F(0x81, "b"), F(0x89, "x"), F(0x8F, ""));
}

Test(ws_frame, nothing_is_read_behind_an_error) {
  CHECK("error 1002 ''", F(0x83, "a"), F(0x81, "b"), F(0x88, ""));
}

Test(ws_frame, F24_a_flood_of_pings_costs_one_event_each_and_no_memory) {
  const size_t size = 6 + 125, count = 8000;
  char *bytes = calloc(count, size);
  ws_decoder_s d;
  ws_event_s ev;
  size_t used, pings = 0, at = 0;
  for (size_t i = 0; i < count; i++)
    memcpy(bytes + i * size, "\x89\xfd", 2);
  ws_decoder_init(&d);
  while (ws_decode(&d, &server, bytes + at, count * size - at, &used, &ev) ==
         WS_PING) {
    cr_assert_eq(used, size);
    cr_assert(ev.is_first && ev.is_last);
    cr_assert_eq(ev.payload.len, 125);
    at += used;
    pings++;
  }
  cr_assert_eq(pings, count);
  cr_assert_leq(sizeof d, 56);
  cr_assert(ws_decoder_is_idle(&d));
  free(bytes);
}

Test(ws_frame, a_whole_frame_is_one_event_in_place) {
  char bytes[] = "\x82\x85\1\2\3\4"
                 "abcde";
  ws_decoder_s d;
  ws_event_s ev;
  size_t used;
  ws_decoder_init(&d);
  cr_assert_eq(ws_decode(&d, &server, bytes, 11, &used, &ev), WS_DATA);
  cr_assert_eq(used, 11);
  cr_assert(ev.is_first && ev.is_last && !ev.is_text);
  cr_assert_eq(ev.payload.data, bytes + 6);
  cr_assert_eq(ev.payload.len, 5);
  cr_assert_eq(ev.remaining, 0);
  cr_assert_arr_eq(ev.payload.data, "\x60\x60\x60\x60\x64", 5);
}

Test(ws_frame, a_part_tells_how_much_of_its_frame_is_to_come) {
  char bytes[6 + 100] = "\x02\xe4";
  ws_decoder_s d;
  ws_event_s ev;
  size_t used;
  ws_decoder_init(&d);
  cr_assert_eq(ws_decode(&d, &server, bytes, 16, &used, &ev), WS_DATA);
  cr_assert_eq(ev.payload.len, 10);
  cr_assert_eq(ev.remaining, 90);
  cr_assert(ev.is_first && !ev.is_last);
  cr_assert_eq(ws_decode(&d, &server, bytes + 16, 90, &used, &ev), WS_DATA);
  cr_assert_eq(ev.payload.len, 90);
  cr_assert_eq(ev.remaining, 0);
  cr_assert(!ev.is_first && !ev.is_last);
}

/* --- UTF-8 (section 8.1) --- */

Test(ws_frame, text_that_is_not_UTF8_is_1007) {
  CHECK("error 1007 ''", F(0x81, "\xff"));
  CHECK("error 1007 ''", F(0x81, "\xce\xba\xe1\xbd\xb9\xed\xa0\x80 edited"));
  CHECK("text 'ok'|error 1007 ''", F(0x81, "ok"), F(0x81, "\xc3\x28"));
  CHECK("error 1007 ''", F(0x01, "\xc3"), F(0x80, "\x28"));
  CHECK("error 1007 ''", F(0x01, "abc"), F(0x80, "\xf4\x90\x80\x80"));
}

Test(ws_frame, text_that_ends_inside_a_character_is_1007) {
  CHECK("error 1007 ''", F(0x81, "ab\xc3"));
  CHECK("error 1007 ''", F(0x01, "ab\xe2"), F(0x80, "\x82"));
  CHECK("error 1007 ''", F(0x01, "\xf0\x9f\x98"), F(0x80, ""));
}

Test(ws_frame, a_character_may_be_split_over_fragments_and_control_frames) {
  CHECK("ping '\\xff'|text '\\xf0\\x9f\\x98\\x80'", F(0x01, "\xf0\x9f"),
        F(0x89, "\xff"), F(0x00, "\x98"), F(0x80, "\x80"));
}

Test(ws_frame, binary_data_is_not_looked_at) {
  CHECK("binary '\\xff\\xc3('|text 'a'", F(0x02, "\xff"), F(0x80, "\xc3("),
        F(0x81, "a"));
}

Test(ws_frame, bad_text_is_refused_inside_an_unfinished_message) {
  const char bytes[] = "\x01\xe4" M "good\xff"; /* 100 are declared */
  for (size_t at = 0; at <= 9; at++) {
    endpoint_s e;
    endpoint_init(&e, &server);
    feed(&e, bytes, at);
    feed(&e, bytes + at, 10 - at);
    cr_assert_eq(e.transcript.len, 0);
    feed(&e, bytes + 10, 1);
    expect_transcript(&e, "error 1007 ''", "at", at);
  }
}

/* --- close frames --- */

static size_t answer_close(const char *payload, size_t len, char *out) {
  uint16_t code;
  view_s reason;
  const int rc = ws_close_parse(view_of(payload, len), &code, &reason);
  (void)rc;
  return ws_close_frame(out, code, view_of(NULL, 0));
}

Test(ws_frame, C01_an_empty_close_is_answered_by_an_empty_close) {
  char out[WS_CLOSE_FRAME_MAX];
  check(&server, BYTES("\x88\x80" M), "close 1005 ''");
  cr_assert_eq(answer_close("", 0, out), 2);
  cr_assert_arr_eq(out, "\x88\x00", 2);
  cr_assert_eq(ws_close_frame(out, 0, VIEW_LIT("not sent")), 2);
  cr_assert_arr_eq(out, "\x88\x00", 2);
}

static const uint16_t illegal[] = {0,    999,  1004, 1005, 1006, 1015,
                                   1016, 1100, 2000, 2999, 5000, 65535};

Test(ws_frame, C03_illegal_close_codes_are_answered_by_1002) {
  for (size_t i = 0; i < COUNT(illegal); i++) {
    char out[WS_CLOSE_FRAME_MAX];
    const char payload[] = {(char)(illegal[i] >> 8), (char)illegal[i]};
    const frame_s f = {0x88, {payload, 2}};
    check_frames_within(server, &f, 1, "bad close 1002 ''");
    cr_assert_eq(answer_close(payload, 2, out), 4);
    cr_assert_arr_eq(out, "\x88\x02\x03\xea", 4);
  }
}

Test(ws_frame, C03_legal_close_codes_are_echoed) {
  size_t legal = 0;
  for (uint32_t code = 0; code <= 65535; code++) {
    const char payload[] = {(char)(code >> 8), (char)code};
    char out[WS_CLOSE_FRAME_MAX];
    uint16_t got;
    view_s reason;
    const bool is_legal = (code >= 1000 && code <= 1003) ||
                          (code >= 1007 && code <= 1014) ||
                          (code >= 3000 && code <= 4999);
    const int rc = ws_close_parse(view_of(payload, 2), &got, &reason);
    cr_assert_eq(rc, is_legal ? 0 : -1);
    cr_assert_eq(got, is_legal ? code : 1002);
    cr_assert_eq(answer_close(payload, 2, out), 4);
    cr_assert_eq(view_u16(out + 2), got);
    legal += is_legal;
  }
  cr_assert_eq(legal, 4 + 8 + 2000);
}

Test(ws_frame, a_close_payload_of_one_byte_is_1002) {
  CHECK("bad close 1002 ''", F(0x88, "\x03"));
  /* The byte behind the payload would make it a legal code. */
  uint16_t code;
  view_s reason;
  cr_assert_eq(ws_close_parse(view_of("\x03\xe8", 1), &code, &reason), -1);
  cr_assert_eq(code, 1002);
  cr_assert_eq(reason.len, 0);
}

Test(ws_frame, C04_a_bad_reason_is_1007_and_not_echoed) {
  char out[WS_CLOSE_FRAME_MAX];
  check(&server, BYTES("\x88\x84" M "\x03\xe8\xc3\x28"), "bad close 1007 ''");
  CHECK("bad close 1007 ''", F(0x88, "\x03\xe8\xe2\x82"));
  CHECK("close 1000 'bye \\xc3\\xa9'", F(0x88, "\x03\xe8"
                                               "bye \xc3\xa9"));
  cr_assert_eq(answer_close("\x03\xe8\xc3\x28", 4, out), 4);
  cr_assert_arr_eq(out, "\x88\x02\x03\xef", 4);
}

Test(ws_frame, C09_a_close_frame_is_exactly_its_bytes) {
  char out[WS_CLOSE_FRAME_MAX + 1];
  memset(out, '!', sizeof out);
  cr_assert_eq(ws_close_frame(out, 1001, VIEW_LIT("shutting down")), 17);
  cr_assert_arr_eq(out, "\x88\x0f\x03\xe9shutting down!", 18);
  cr_assert_eq(ws_close_frame(out, 4001, view_of(NULL, 0)), 4);
  cr_assert_arr_eq(out, "\x88\x02\x0f\xa1", 4);
}

Test(ws_frame, a_long_reason_is_cut_before_the_character_that_does_not_fit) {
  char out[WS_CLOSE_FRAME_MAX], reason[200];
  for (size_t shift = 0; shift < 4; shift++) {
    memset(reason, 'a', sizeof reason);
    for (size_t i = shift; i + 4 <= sizeof reason; i += 4)
      memcpy(reason + i, "\xf0\x9f\x98\x80", 4);
    const size_t kept = shift + (123 - shift) / 4 * 4;
    const size_t n = ws_close_frame(out, 1000, view_of(reason, sizeof reason));
    cr_assert_eq(n, 4 + kept, "shift %zu: %zu", shift, n);
    cr_assert_eq((uint8_t)out[1], 2 + kept);
    cr_assert_eq(memcmp(out + 4, reason, kept), 0);
  }
  memset(reason, 'a', sizeof reason);
  cr_assert_eq(ws_close_frame(out, 1000, view_of(reason, 123)), 127);
  cr_assert_eq(ws_close_frame(out, 1000, view_of(reason, 124)), 127);
}

Test(ws_frame, a_reason_that_is_not_UTF8_is_left_out) {
  char out[WS_CLOSE_FRAME_MAX], reason[200];
  cr_assert_eq(ws_close_frame(out, 1000, VIEW_LIT("\xc3\x28")), 4);
  memset(reason, 0x80, sizeof reason);
  cr_assert_eq(ws_close_frame(out, 1000, view_of(reason, sizeof reason)), 4);
}

Test(ws_frame, every_reason_of_an_error_fits_a_close_frame) {
  const char *streams[] = {"\x83\x80", "\x8b\x80", "\x81\x02", "\x80\x80",
                           "\x09\x80", "\x89\xfe", "\xc1\x80"};
  for (size_t i = 0; i < COUNT(streams); i++) {
    char bytes[3], out[WS_CLOSE_FRAME_MAX];
    ws_decoder_s d;
    ws_event_s ev;
    size_t used;
    memcpy(bytes, streams[i], 2);
    ws_decoder_init(&d);
    cr_assert_eq(ws_decode(&d, &server, bytes, 2, &used, &ev), WS_ERROR);
    cr_assert_eq(ws_close_frame(out, ev.close_code, view_str(ev.reason)),
                 4 + strlen(ev.reason));
  }
}

/* A close frame without a legal code is our own mistake. */
Test(ws_frame, C01_a_code_that_may_not_be_sent_is_not_sent, .signal = SIGABRT) {
  char out[WS_CLOSE_FRAME_MAX];
  const size_t n = ws_close_frame(out, 1006, view_of(NULL, 0));
  (void)n;
}

/* --- random streams against a model --- */

static void add_random_control(text_s *wire, text_s *expect) {
  static const char letters[] = "control";
  const size_t n = (size_t)rand() % sizeof letters;
  const frame_s f = {(uint8_t)(rand() % 2 ? 0x89 : 0x8A), {letters, n}};
  add_frame(wire, &f, 4);
  if (expect->len)
    add_str(expect, "|");
  add_str(expect, f.first == 0x89 ? "ping '" : "pong '");
  add(expect, letters, n);
  add_str(expect, "'");
}

static void add_random_message(text_s *wire, text_s *expect) {
  char text[300];
  const size_t len = (size_t)rand() % sizeof text,
               pieces = 1 + (size_t)rand() % 4;
  const uint8_t opcode = (uint8_t)(1 + rand() % 2);
  for (size_t i = 0; i < len; i++)
    text[i] = (char)('a' + rand() % 26);
  size_t at = 0;
  for (size_t i = 0; i < pieces; i++) {
    const bool is_last = i == pieces - 1;
    const size_t n = is_last ? len - at : (size_t)rand() % (len - at + 1);
    const frame_s f = {(uint8_t)((is_last ? 0x80 : 0) | (i ? 0 : opcode)),
                       {text + at, n}};
    add_frame(wire, &f, 4);
    at += n;
    if (!is_last && rand() % 3 == 0)
      add_random_control(wire, expect);
  }
  if (expect->len)
    add_str(expect, "|");
  add_str(expect, opcode == 1 ? "text '" : "binary '");
  add(expect, text, len);
  add_str(expect, "'");
}

Test(ws_frame, random_streams_come_out_as_they_were_made, .timeout = 100) {
  srand(6455);
  for (size_t i = 0; i < 60; i++) {
    text_s wire = {0}, expect = {0};
    for (int k = 0; k < 5; k++)
      add_random_message(&wire, &expect);
    add(&expect, "", 1);
    check(&server, wire.data, wire.len, expect.data);
    free(wire.data);
    free(expect.data);
  }
}
