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
#define SINCE_DIGITS 16 /* ids are below 2^53 */

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

static void raw_on_gap(reader_s *r, view_s channel, uint64_t from,
                       uint64_t to) {
  (void)channel;
  websocket_s *ws = websocket_of(r);
  char reason[64];
  int n = snprintf(reason, sizeof reason, "gap %llu %llu",
                   (unsigned long long)from, (unsigned long long)to);
  if (dialect_settings.slow_closes)
    websocket_close(ws, CLOSE_SLOW, VIEW_LIT("slow"));
  else
    websocket_close(ws, CLOSE_GAP, view_of(reason, (size_t)n));
}

static const reader_kind_s raw_kind = {raw_size, raw_write, raw_on_gap};

static void raw_on_open(websocket_s *ws, void *arg) {
  const native_open_s *open = arg;
  raw_s *raw = websocket_user(ws);
  uint64_t cursor, from, to;
  reader_init(&raw->reader, websocket_uuid(ws), &raw_kind);
  if (reader_subscribe(&raw->reader, open->channels[0].name, &cursor) < 0)
    websocket_close(ws, WS_CLOSE_TRY_LATER, VIEW_LIT("no room"));
  else if (native_gap(&open->since, cursor, &from, &to))
    raw_on_gap(&raw->reader, open->channels[0].name, from, to);
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

/* ---- since ------------------------------------------------------------- */

bool native_gap(const native_since_s *since, uint64_t cursor, uint64_t *from,
                uint64_t *to) {
  /* Nothing is kept: whoever asks for more than what comes from now on is told
   * that it may be missing. An id between the last one and the clock lacks
   * nothing; one beyond the clock is of a broker whose clock was ahead. */
  if (since->is_now ||
      (since->is_id && since->id >= cursor && since->id <= pubsub_now()))
    return false;
  *from = since->is_id && since->id < cursor ? since->id + 1 : 1;
  *to = cursor;
  return true;
}

/* An id, "first", "now" or "-N". False: none of them. */
bool native_since(view_s text, native_since_s *since) {
  *since = (native_since_s){.is_now = view_eq(text, VIEW_LIT("now"))};
  if (since->is_now || view_eq(text, VIEW_LIT("first")))
    return true;
  bool is_last = text.len && text.data[0] == '-';
  if (is_last)
    text = view_sub(text, 1, text.len);
  if (!text.len || text.len > SINCE_DIGITS)
    return false;
  for (size_t i = 0; i < text.len; i++) {
    if (text.data[i] < '0' || text.data[i] > '9')
      return false;
    since->id = since->id * 10 + (uint64_t)(text.data[i] - '0');
  }
  since->is_id = !is_last;
  since->is_now = is_last && since->id == 0;
  return true;
}

/* ---- the routes -------------------------------------------------------- */

static void upgrade(http_s *h, native_open_s *open) {
  static const view_s names[] = {VIEW_INIT("crier.v1"), VIEW_INIT("")};
  static const websocket_handler_s *const handlers[] = {&native_v1_handler,
                                                        &raw_handler};
  view_s want = VIEW_LIT("Upgrade: websocket\r\nConnection: Upgrade\r\n");
  if (!http_request(h)->wants_upgrade)
    http_problem(h, 426, "Subscribe here over WebSocket.", want);
  else if (facil_is_draining())
    http_problem(h, 503, "The broker is shutting down.", VIEW_LIT(""));
  else /* raw serves exactly one channel */
    websocket_upgrade(h, names, handlers, open->count == 1 ? 2 : 1, open);
}

/* Fill open->channels and open->since from the query. NULL, or what is wrong.
 */
static const char *read_query(http_s *h, native_open_s *open, char *scratch) {
  view_s query = http_request(h)->query, name, value;
  bool has_since = false;
  while (http_query_next(&query, &name, &value)) {
    ssize_t n = http_percent_decode(value, scratch);
    if (n < 0)
      return "The query has a '%' without two hexadecimal digits.";
    view_s text = view_of(scratch, (size_t)n);
    scratch += n;
    if (view_eq(name, VIEW_LIT("since"))) {
      if (has_since || !native_since(text, &open->since))
        return "since is an id, 'first', 'now' or -N, once.";
      has_since = true;
    } else if (view_eq(name, VIEW_LIT("channel")) && open->takes_channels) {
      const char *fault = channel_name_fault(text);
      if (fault)
        return fault;
      if (open->count == NATIVE_CHANNELS_MAX)
        return "The query names too many channels.";
      open->channels[open->count++].name = text;
    } else {
      return "The query has a parameter that is not known here.";
    }
  }
  return NULL;
}

static void open_with(http_s *h, native_open_s *open) {
  char *scratch = malloc(http_request(h)->query.len + 1);
  const char *fault = scratch ? read_query(h, open, scratch) : NULL;
  if (!scratch)
    http_problem(h, 503, "There is no memory now.", VIEW_LIT(""));
  else if (fault)
    http_problem(h, 400, fault, VIEW_LIT(""));
  else
    upgrade(h, open);
  free(scratch);
}

static void on_channel(http_s *h, view_s channel) {
  native_open_s open = {.since = {.is_now = true}, .count = 1};
  const char *fault = channel_name_fault(channel);
  open.channels[0].name = channel;
  if (fault)
    http_problem(h, 400, fault, VIEW_LIT(""));
  else
    open_with(h, &open);
}

static void on_subscribe(http_s *h, view_s segment) {
  (void)segment;
  native_open_s open = {.since = {.is_now = true}, .takes_channels = true};
  open_with(h, &open);
}

const http_route_s native_routes[] = {
    {"GET", "/channels/*", on_channel},
    {"GET", "/subscribe", on_subscribe},
    {0},
};
