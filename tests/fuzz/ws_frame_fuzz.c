/* ws_frame_fuzz.c - the frame decoder, fed with one stream in different pieces.
 *
 * Input: limits and a seed in SETTINGS bytes, then the stream. It is decoded
 * whole, byte by byte, and in pieces chosen by the seed, and has to mean the
 * same each time: the same messages and control frames with the same bytes, and
 * the same end. Besides: no message above the limit, no control frame above 125
 * bytes, no text that is not UTF-8, events inside the bytes given, and nothing
 * more after the end. */
#include "facil/ws_frame.h"
#include "fuzz.h"
#include <assert.h>
#include <stdlib.h>

#define SETTINGS 4

typedef struct {
  uint8_t *data;
  size_t len, cap;
} bytes_s;

/* What was understood. */
typedef struct {
  bytes_s done; /* records: type, is_text, length, payload */
  bytes_s open; /* of the message that is not whole yet */
  uint8_t control[WS_CONTROL_MAX];
  size_t control_len;
  bool is_message_open, is_control_open;
  int end; /* 0, WS_CLOSE or WS_ERROR */
  uint16_t close_code;
} story_s;

static bytes_s bytes_new(size_t cap) {
  bytes_s b = {.data = malloc(cap), .cap = cap};
  assert(b.data);
  return b;
}

static void add(bytes_s *b, const void *p, size_t n) {
  assert(n <= b->cap - b->len);
  if (n)
    memcpy(b->data + b->len, p, n);
  b->len += n;
}

static story_s story_new(size_t size) {
  return (story_s){.done = bytes_new(16 * size + 64),
                   .open = bytes_new(size + 1)};
}

static void story_free(story_s *s) {
  free(s->done.data);
  free(s->open.data);
}

/* The plain way: decode the code point, then judge it. */
static size_t char_len(const uint8_t *p, size_t left) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const size_t n = p[0] < 0x80           ? 1
                   : (p[0] >> 5) == 0x06 ? 2
                   : (p[0] >> 4) == 0x0E ? 3
                   : (p[0] >> 3) == 0x1E ? 4
                                         : 0;
  if (n == 0 || n > left)
    return 0;
  uint32_t c = n == 1 ? p[0] : p[0] & (0x7Fu >> n);
  for (size_t i = 1; i < n; i++) {
    if ((p[i] & 0xC0) != 0x80)
      return 0;
    c = c << 6 | (p[i] & 0x3Fu);
  }
  const bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
  return c < least[n] || c > 0x10FFFF || is_surrogate ? 0 : n;
}

static bool is_utf8(const uint8_t *p, size_t len) {
  for (size_t at = 0, n; at < len; at += n)
    if ((n = char_len(p + at, len - at)) == 0)
      return false;
  return true;
}

static void record(story_s *s, int type, bool is_text, const uint8_t *p,
                   size_t n) {
  const uint32_t len = (uint32_t)n;
  const uint8_t kind[2] = {(uint8_t)type, is_text};
  add(&s->done, kind, sizeof kind);
  add(&s->done, &len, sizeof len);
  add(&s->done, p, n);
}

static void on_data(story_s *s, const ws_limits_s *limits,
                    const ws_event_s *ev) {
  assert(ev->is_first == !s->is_message_open);
  assert(ev->payload.len > 0 || ev->is_last);
  add(&s->open, ev->payload.data, ev->payload.len);
  assert(s->open.len <= limits->message_max);
  s->is_message_open = !ev->is_last;
  if (!ev->is_last)
    return;
  assert(ev->remaining == 0);
  assert(!ev->is_text || is_utf8(s->open.data, s->open.len));
  record(s, WS_DATA, ev->is_text, s->open.data, s->open.len);
  s->open.len = 0;
}

/* What a peer would read of our answer to a close frame. */
static void check_answer(uint16_t code, view_s reason) {
  char out[WS_CLOSE_FRAME_MAX];
  const ws_limits_s limits = {.expects_masked = false};
  const size_t n = ws_close_frame(out, code, reason);
  ws_decoder_s d;
  ws_event_s ev;
  size_t used;
  uint16_t got;
  view_s text;
  ws_decoder_init(&d);
  const int type = ws_decode(&d, &limits, out, n, &used, &ev);
  assert(type == WS_CLOSE && used == n && ev.is_first && ev.is_last);
  const int rc = ws_close_parse(ev.payload, &got, &text);
  assert(rc == 0 && got == code && view_eq(text, reason));
}

static void on_close(story_s *s) {
  uint16_t code;
  view_s reason;
  const int rc =
      ws_close_parse(view_of(s->control, s->control_len), &code, &reason);
  assert(rc == 0 || code == WS_CLOSE_PROTOCOL || code == WS_CLOSE_NOT_UTF8);
  check_answer(code, reason);
  s->end = WS_CLOSE;
}

static void on_control(story_s *s, int type, const ws_event_s *ev) {
  assert(ev->is_first == !s->is_control_open);
  assert(ev->payload.len <= sizeof s->control - s->control_len);
  if (ev->payload.len)
    memcpy(s->control + s->control_len, ev->payload.data, ev->payload.len);
  s->control_len += ev->payload.len;
  s->is_control_open = !ev->is_last;
  if (!ev->is_last)
    return;
  record(s, type, false, s->control, s->control_len);
  if (type == WS_CLOSE)
    on_close(s);
  s->control_len = 0;
}

static void on_error(story_s *s, const ws_event_s *ev) {
  assert(ev->close_code == 1002 || ev->close_code == 1007 ||
         ev->close_code == 1009);
  check_answer(ev->close_code, view_str(ev->reason));
  s->end = WS_ERROR;
  s->close_code = ev->close_code;
}

static void feed(story_s *s, ws_decoder_s *d, const ws_limits_s *limits,
                 char *p, size_t len) {
  ws_event_s ev;
  size_t used;
  int type;
  while ((type = ws_decode(d, limits, p, len, &used, &ev)) != WS_MORE) {
    assert(s->end == 0);
    assert(used > 0 && used <= len);
    if (type == WS_ERROR) {
      assert(used == len);
      on_error(s, &ev);
    } else {
      assert(ev.payload.data >= p && ev.payload.len <= used);
      assert(ev.payload.data + ev.payload.len == p + used);
      if (type == WS_DATA)
        on_data(s, limits, &ev);
      else
        on_control(s, type, &ev);
    }
    p += used;
    len -= used;
  }
  assert(used == len);
}

/* Decode `stream` in pieces of 1..`most` bytes, each in its own block. */
static story_s decode(const uint8_t *stream, size_t size,
                      const ws_limits_s *limits, size_t most, uint32_t seed) {
  story_s s = story_new(size);
  ws_decoder_s d;
  ws_decoder_init(&d);
  for (size_t at = 0, n; at < size; at += n) {
    seed = seed * 1664525u + 1013904223u;
    n = most == SIZE_MAX ? size : 1 + (seed >> 8) % most;
    n = n > size - at ? size - at : n;
    char *piece = malloc(n);
    assert(piece);
    memcpy(piece, stream + at, n);
    feed(&s, &d, limits, piece, n);
    free(piece);
  }
  return s;
}

static bool begins_with(const bytes_s *b, const bytes_s *start) {
  return start->len <= b->len &&
         (!start->len || memcmp(b->data, start->data, start->len) == 0);
}

/* In an error the part that holds it is not told, so smaller pieces may have
 * told more of the message that was never whole. */
static void compare(const story_s *whole, const story_s *split) {
  assert(whole->done.len == split->done.len);
  assert(begins_with(&whole->done, &split->done));
  assert(whole->end == split->end && whole->close_code == split->close_code);
  assert(begins_with(&split->open, &whole->open));
  assert(whole->end == WS_ERROR || whole->open.len == split->open.len);
  assert(whole->control_len == split->control_len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < SETTINGS)
    return 0;
  const ws_limits_s limits = {.message_max = (uint64_t)data[1]
                                             << (data[0] >> 4),
                              .fragments_max = data[2],
                              .expects_masked = data[0] & 1};
  const uint8_t *stream = data + SETTINGS;
  size -= SETTINGS;
  story_s whole = decode(stream, size, &limits, SIZE_MAX, 0);
  const size_t most[] = {1, 3, 40};
  for (size_t i = 0; i < 3; i++) {
    story_s split = decode(stream, size, &limits, most[i], data[3]);
    compare(&whole, &split);
    story_free(&split);
  }
  story_free(&whole);
  return 0;
}
