/* events.c - subscribing over server-sent events (api: section 4).
 *
 * A stream has one cursor for all of its channels, and its ids only grow. Two
 * kinds: of one channel, whose data is the message's own bytes; of several,
 * whose data is the message as a JSON object. */
#include "facil/sse.h"
#include "facil/sse_event.h"
#include "json_text.h"
#include "message_json.h"
#include "subscribe.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  reader_s reader; /* first */
} stream_s;

static stream_s *stream_of(sse_s *sse) {
  return sse_user(sse);
}

/* ---- one channel --------------------------------------------------------- */

/* Bytes that are no text go as base64, made here for one message at a time. */
static char *base64_room(const message_s *m, size_t *len) {
  static char *room;
  static size_t cap;
  *len = json_base64_size(m->data);
  if (*len > cap) {
    char *bigger = realloc(room, *len + 1);
    if (!bigger)
      return NULL;
    room = bigger;
    cap = *len;
  }
  return room;
}

static sse_event_s event_of(const message_s *m) {
  sse_event_s e = {.id = m->id, .event = m->event, .data = m->data};
  if (m->kind != MESSAGE_BINARY)
    return e;
  size_t len;
  char *room = base64_room(m, &len);
  e.event = VIEW_LIT("binary");
  e.data = VIEW_LIT("");
  if (room) {
    json_base64_write(room, m->data);
    e.data = view_of(room + 1, len - 2); /* without the quotes */
  }
  return e;
}

/* The length of base64 is known without making it. */
static size_t one_size(const message_s *m) {
  sse_event_s e = {.id = m->id, .event = m->event, .data = m->data};
  if (m->kind != MESSAGE_BINARY)
    return sse_event_size(&e);
  e.event = VIEW_LIT("binary");
  e.data = VIEW_LIT("");
  return sse_event_size(&e) + json_base64_size(m->data) - 2;
}

static void one_write(const message_s *m, char *out) {
  sse_event_s e = event_of(m);
  sse_event_write(out, &e);
}

/* ---- several
 * ----------------------------------------------------------------- */

/* A JSON message may have line ends between its tokens: each line of the object
 * is a data line, and the browser joins them again. */
static size_t many_lines(const message_s *m) {
  size_t lines = 1;
  if (m->kind == MESSAGE_JSON)
    for (size_t i = 0; i < m->data.len; i++)
      lines += m->data.data[i] == '\n' || m->data.data[i] == '\r';
  return lines;
}

static char *object_of(const message_s *m, size_t *len) {
  *len = message_json_size(m, false);
  char *object = malloc(*len + 1);
  if (object)
    message_json_write(object, m, false);
  return object;
}

static size_t many_size(const message_s *m) {
  sse_event_s e = {.id = m->id, .event = m->event};
  if (many_lines(m) == 1)
    return sse_event_size(&e) + message_json_size(m, false);
  size_t len;
  char *object = object_of(m, &len);
  e.data = view_of(object ? object : "", object ? len : 0);
  size_t n = sse_event_size(&e);
  free(object);
  return n;
}

static void many_write(const message_s *m, char *out) {
  size_t len;
  char *object = object_of(m, &len);
  sse_event_s e = {.id = m->id,
                   .event = m->event,
                   .data = view_of(object ? object : "", object ? len : 0)};
  sse_event_write(out, &e);
  free(object);
}

/* ---- gaps
 * ---------------------------------------------------------------------- */

/* Its id is where the stream goes on, never the end of the gap: messages of
 * other channels may lie in between. */
static void on_gap(reader_s *r, view_s channel, uint64_t from, uint64_t to,
                   bool is_slow) {
  (void)is_slow;
  sse_s *sse = sse_of(r);
  char data[2048], out[4096];
  char *end = json_raw(data, VIEW_LIT("{\"channel\":"));
  end = json_string_write(end, channel);
  end += snprintf(end, 80, ",\"from\":%llu,\"to\":%llu}",
                  (unsigned long long)from, (unsigned long long)to);
  sse_event_s e = {.id = r->cursor,
                   .event = VIEW_LIT("gap"),
                   .data = view_of(data, (size_t)(end - data))};
  end = sse_event_write(out, &e);
  sse_write(sse, view_of(out, (size_t)(end - out)));
}

static const reader_kind_s one_kind = {one_size, one_write, on_gap};
static const reader_kind_s many_kind = {many_size, many_write, on_gap};

/* ---- the stream
 * ------------------------------------------------------------------ */

static void on_open(sse_s *sse, void *arg) {
  const subscribe_s *ask = arg;
  reader_s *r = &stream_of(sse)->reader;
  uint64_t cursor = 0, now = 0;
  reader_init(r, sse_uuid(sse), ask->is_many ? &many_kind : &one_kind);
  r->is_merged = true;
  for (size_t i = 0; i < ask->count; i++) {
    if (reader_subscribe(r, ask->names[i], &cursor) < 0 && errno != EEXIST) {
      sse_end(sse);
      return;
    }
    if (!now)
      now = cursor;
  }
  if (ask->since.what != SINCE_NOW)
    reader_rewind(r, ask->names[0],
                  since_cursor(&ask->since, ask->names, ask->count, now));
}

static void on_ready(sse_s *sse) {
  reader_ready(&stream_of(sse)->reader);
}

static size_t on_sent(sse_s *sse, size_t sent) {
  return reader_sent(&stream_of(sse)->reader, sent);
}

static void on_keepalive(sse_s *sse) {
  reader_s *r = &stream_of(sse)->reader;
  uint64_t cursor = reader_cursor(r);
  char out[SSE_CURSOR_MAX];
  if (cursor < r->cursor)
    cursor = r->cursor;
  r->cursor = cursor; /* what is told later goes on from here */
  char *end = sse_cursor_write(out, cursor);
  sse_write(sse, view_of(out, (size_t)(end - out)));
}

static void on_close(sse_s *sse) {
  reader_fini(&stream_of(sse)->reader);
}

static const sse_handler_s handler = {.size = sizeof(stream_s),
                                      .on_open = on_open,
                                      .on_ready = on_ready,
                                      .on_sent = on_sent,
                                      .on_keepalive = on_keepalive,
                                      .on_close = on_close};

void events_start(http_s *h, subscribe_s *ask) {
  if (facil_is_draining())
    http_problem(h, 503, "The broker is shutting down.", VIEW_LIT(""));
  else if (!ask->count)
    http_problem(h, 400, "The query names no channel.", VIEW_LIT(""));
  else if (view_eq(http_request(h)->method, VIEW_LIT("HEAD")))
    http_reply(h, .status = 200, .type = VIEW_LIT("text/event-stream"));
  else
    sse_start(h, &handler, ask);
}
