/* native.c - our own dialect: WebSocket on /channels/{name} and /subscribe.
 *
 * Two subprotocols. None ("raw"): a frame is a message, both ways; it cannot
 * say "gap", so a gap ends it. crier.v1: JSON objects, both ways, with ids,
 * cursors and gaps; its commands are in native_v1.c. */
#include "native.h"
#include "facil/websocket.h"
#include "json_text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CLOSE_SLOW 4000
#define CLOSE_GAP 4001

/* ---- raw --------------------------------------------------------------- */

typedef struct {
  reader_s reader; /* first */
} raw_s;

static uint8_t raw_first(const message_s *m) {
  return m->kind == MESSAGE_BINARY ? WS_FIN_BINARY : WS_FIN_TEXT;
}

static size_t raw_size(const message_s *m) {
  return ws_frame_head_size(m->data.len) + m->data.len;
}

static void raw_write(const message_s *m, char *out) {
  char head[WS_FRAME_HEAD_MAX];
  size_t n = ws_frame_head(head, raw_first(m), m->data.len);
  memcpy(out, head, n);
  json_raw(out + n, m->data);
}

static void raw_on_gap(reader_s *r, view_s channel, uint64_t from, uint64_t to,
                       bool is_slow) {
  (void)channel;
  websocket_s *ws = websocket_of(r);
  char reason[64];
  int n = snprintf(reason, sizeof reason, "gap %llu %llu",
                   (unsigned long long)from, (unsigned long long)to);
  if (is_slow && dialect_settings.slow_closes)
    websocket_close(ws, CLOSE_SLOW, VIEW_LIT("slow"));
  else
    websocket_close(ws, CLOSE_GAP, view_of(reason, (size_t)n));
}

static const reader_kind_s raw_kind = {raw_size, raw_write, raw_on_gap};

static void raw_on_open(websocket_s *ws, void *arg) {
  const subscribe_s *ask = arg;
  raw_s *raw = websocket_user(ws);
  uint64_t cursor;
  reader_init(&raw->reader, websocket_uuid(ws), &raw_kind);
  if (reader_subscribe(&raw->reader, ask->names[0], &cursor) < 0)
    websocket_close(ws, WS_CLOSE_TRY_LATER, VIEW_LIT("no room"));
  else if (ask->since.what != SINCE_NOW)
    reader_rewind(&raw->reader, ask->names[0],
                  since_cursor(&ask->since, ask->names, 1, cursor));
}

static void raw_published(void *arg, const published_s *p) {
  websocket_s *ws = websocket_find((intptr_t)arg);
  if (ws && p->status != 201)
    websocket_close(ws, WS_CLOSE_TRY_LATER, VIEW_LIT("not published"));
}

static void raw_on_message(websocket_s *ws, view_s data, bool is_text) {
  raw_s *raw = websocket_user(ws);
  message_s m = {.channel = reader_channel(&raw->reader),
                 .data = data,
                 .kind = is_text ? MESSAGE_TEXT : MESSAGE_BINARY,
                 .type = is_text ? VIEW_LIT("text/plain")
                                 : VIEW_LIT("application/octet-stream")};
  if (pubsub_publish(&m, raw_published, (void *)websocket_uuid(ws)) < 0)
    websocket_close(ws,
                    errno == EMSGSIZE ? WS_CLOSE_TOO_BIG : WS_CLOSE_TRY_LATER,
                    VIEW_LIT("not published"));
}

static void raw_on_ready(websocket_s *ws) {
  reader_ready(&((raw_s *)websocket_user(ws))->reader);
}

static size_t raw_on_sent(websocket_s *ws, size_t sent) {
  return reader_sent(&((raw_s *)websocket_user(ws))->reader, sent);
}

static void raw_on_close(websocket_s *ws) {
  reader_fini(&((raw_s *)websocket_user(ws))->reader);
}

static const websocket_handler_s raw_handler = {.size = sizeof(raw_s),
                                                .on_open = raw_on_open,
                                                .on_message = raw_on_message,
                                                .on_ready = raw_on_ready,
                                                .on_sent = raw_on_sent,
                                                .on_close = raw_on_close};

/* ---- the handshake ----------------------------------------------------- */

void native_start(http_s *h, subscribe_s *ask) {
  static const view_s names[] = {VIEW_INIT("crier.v1"), VIEW_INIT("")};
  static const websocket_handler_s *const handlers[] = {&native_v1_handler,
                                                        &raw_handler};
  bool is_raw_possible = ask->count == 1 && !ask->has_pattern;
  if (facil_is_draining())
    http_problem(h, 503, "The broker is shutting down.", VIEW_LIT(""));
  else /* raw serves exactly one channel */
    websocket_upgrade(h, names, handlers, is_raw_possible ? 2 : 1, ask);
}
