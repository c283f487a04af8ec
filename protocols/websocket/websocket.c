/* websocket.c - the glue between frames (ws_frame.c) and a connection (sock).
 *
 * Bytes are read into one buffer of the process and decoded there; a message
 * that lies in it whole is handed on without a copy. A decoder, and a buffer
 * for the parts, exist only while a frame or message is cut off, so an idle
 * connection has neither. Invariant: only whole valid frames are queued, and
 * none after Close. */
#include "facil/websocket.h"
#include "facil/log.h"
#include "facil/ws_handshake.h"
#include <assert.h>
#include <errno.h>

#define READ_SIZE 65536

/* What a cut-off frame or message needs. */
typedef struct {
  ws_decoder_s decoder;
  char control[WS_CONTROL_MAX];
  uint8_t control_len;
  char *message; /* malloc'ed, the parts so far */
  size_t len, cap;
  bool is_text;
} partial_s;

struct websocket_s {
  protocol_s super;
  const websocket_handler_s *handler;
  intptr_t uuid;
  partial_s *partial; /* NULL between whole messages */
  uint32_t owed;      /* bytes of answers to come */
  bool is_closing;    /* our Close is queued */
  bool is_suspended;  /* reading pauses until the queue has drained */
  _Alignas(uint64_t) char user[]; /* pointers and numbers */
};

static websocket_settings_s settings;
static char read_buffer[READ_SIZE];
static const protocol_ops_s websocket_ops;

void websocket_set(const websocket_settings_s *s) {
  settings = *s;
  ws_handshake_prepare();
}

static websocket_s *websocket_cast(protocol_s *p) {
  assert(p->ops == &websocket_ops);
  return (websocket_s *)p;
}

void *websocket_user(websocket_s *ws) {
  return ws->user;
}

websocket_s *websocket_of(void *user) {
  return FACIL_CONTAINER(user, websocket_s, user);
}

intptr_t websocket_uuid(const websocket_s *ws) {
  return ws->uuid;
}

bool websocket_is(const websocket_s *ws, const websocket_handler_s *handler) {
  return ws->handler == handler;
}

bool websocket_is_closing(const websocket_s *ws) {
  return ws->is_closing;
}

/* ---- writing ----------------------------------------------------------- */

static bool is_full(const websocket_s *ws) {
  return sock_pending(ws->uuid) + ws->owed >= settings.queue_limit / 2;
}

static void pause_reading(websocket_s *ws) {
  if (ws->is_suspended || ws->is_closing || !is_full(ws))
    return;
  ws->is_suspended = true;
  facil_suspend_read(ws->uuid);
  sock_want_ready(ws->uuid);
}

static void write_frame(websocket_s *ws, uint8_t first, view_s payload) {
  char head[WS_FRAME_HEAD_MAX + WS_CONTROL_MAX];
  size_t n = ws_frame_head(head, first, payload.len);
  if (payload.len <= WS_CONTROL_MAX) { /* one write keeps it whole */
    if (payload.len)
      memcpy(head + n, payload.data, payload.len);
    if (sock_write(ws->uuid, head, n + payload.len) == 0)
      return;
  } else {
    char *frame = malloc(n + payload.len);
    if (frame) {
      memcpy(frame, head, n);
      memcpy(frame + n, payload.data, payload.len);
      if (sock_write2(.uuid = ws->uuid, .data = frame, .len = n + payload.len,
                      .move = true) == 0)
        return;
    }
  }
  if (errno != EBADF && errno != EPIPE)
    sock_abort(ws->uuid, "websocket: answers are not read");
}

void websocket_write(websocket_s *ws, view_s data, bool is_text) {
  if (ws->is_closing)
    return;
  write_frame(ws, is_text ? WS_FIN_TEXT : WS_FIN_BINARY, data);
  pause_reading(ws);
}

void websocket_owe(websocket_s *ws, size_t bytes, bool is_owed) {
  if (is_owed) {
    ws->owed += (uint32_t)bytes;
    pause_reading(ws);
  } else {
    ws->owed -= (uint32_t)bytes;
    if (ws->is_suspended) /* there it is looked at again */
      sock_want_ready(ws->uuid);
  }
}

static void write_close(websocket_s *ws, uint16_t code, view_s reason) {
  char frame[WS_CLOSE_FRAME_MAX];
  size_t n = ws_close_frame(frame, code, reason);
  ws->is_closing = true;
  if (sock_write(ws->uuid, frame, n) < 0)
    sock_abort(ws->uuid, "websocket: no room for a close");
}

void websocket_close(websocket_s *ws, uint16_t code, view_s reason) {
  if (ws->is_closing)
    return;
  write_close(ws, code, reason);
  facil_set_deadline_ms(ws->uuid, settings.close_timeout_ms,
                        "websocket: close not answered");
  if (ws->is_suspended) /* the peer's Close has to be read */
    facil_resume_read(ws->uuid);
  ws->is_suspended = false;
}

/* ---- what comes in ----------------------------------------------------- */

static int keep_part(partial_s *p, const ws_event_s *ev) {
  size_t need = ev->payload.len;
  if (need > p->cap - p->len) {
    /* The rest of this frame is known, so most messages need one buffer. */
    size_t cap = p->len + need;
    if (ev->remaining < SIZE_MAX / 4)
      cap += (size_t)ev->remaining;
    if (!ev->is_last && cap < 2 * p->cap)
      cap = 2 * p->cap;
    char *bigger = realloc(p->message, cap ? cap : 1);
    if (!bigger)
      return -1;
    p->message = bigger;
    p->cap = cap;
  }
  if (need)
    memcpy(p->message + p->len, ev->payload.data, need);
  p->len += need;
  p->is_text = ev->is_text;
  return 0;
}

static void drop_message(partial_s *p) {
  free(p->message);
  p->message = NULL;
  p->len = p->cap = 0;
}

static void on_data_event(websocket_s *ws, partial_s *p, ws_event_s *ev) {
  if (ws->is_closing) /* only the peer's Close matters now */
    return;
  if (ev->is_first && ev->is_last) {
    ws->handler->on_message(ws, ev->payload, ev->is_text);
    return;
  }
  if (keep_part(p, ev) < 0) {
    drop_message(p);
    websocket_close(ws, WS_CLOSE_INTERNAL, VIEW_LIT("out of memory"));
  } else if (ev->is_last) {
    view_s whole = view_of(p->message, p->len);
    p->message = NULL; /* the handler may close, and the end frees `partial` */
    p->len = p->cap = 0;
    ws->handler->on_message(ws, whole, p->is_text);
    free((void *)(uintptr_t)whole.data);
  }
}

static void on_control_event(websocket_s *ws, partial_s *p, int type,
                             ws_event_s *ev) {
  if (ev->is_first)
    p->control_len = 0;
  if (ev->payload.len) /* the decoder lets no more than 125 through */
    memcpy(p->control + p->control_len, ev->payload.data, ev->payload.len);
  p->control_len = (uint8_t)(p->control_len + ev->payload.len);
  if (!ev->is_last)
    return;
  view_s payload = view_of(p->control, p->control_len);
  if (type == WS_PING && !ws->is_closing) {
    write_frame(ws, WS_FIN_PONG, payload);
    pause_reading(ws);
  } else if (type == WS_CLOSE) {
    uint16_t code;
    view_s reason;
    bool is_legal = ws_close_parse(payload, &code, &reason) == 0;
    if (!ws->is_closing)
      write_close(ws, code, is_legal ? reason : VIEW_LIT("bad close"));
    sock_close(ws->uuid);
  }
}

static void on_broken(websocket_s *ws, const ws_event_s *ev) {
  if (!ws->is_closing)
    write_close(ws, ev->close_code, view_str(ev->reason));
  sock_close(ws->uuid);
}

/* Decode what was read. The connection may end in any of it, or have to wait
 * before the rest of it is looked at. */
static void decode(websocket_s *ws, partial_s *p, char *data, size_t len) {
  ws_event_s ev;
  size_t used;
  intptr_t uuid = ws->uuid;
  int type;
  while ((type = ws_decode(&p->decoder, &settings.limits, data, len, &used,
                           &ev)) != WS_MORE) {
    if (type == WS_DATA)
      on_data_event(ws, p, &ev);
    else if (type == WS_ERROR)
      on_broken(ws, &ev);
    else
      on_control_event(ws, p, type, &ev);
    if (!sock_isvalid(uuid))
      return;
    data += used;
    len -= used;
    if (ws->is_suspended) {
      if (sock_unread(uuid, data, len) < 0)
        sock_abort(uuid, "out of memory");
      return;
    }
  }
}

/* True: nothing is cut off, so nothing has to be kept. */
static bool is_whole(const partial_s *p) {
  return ws_decoder_is_idle(&p->decoder) && !p->message;
}

/* A peer that takes nothing for too long, whatever it sends meanwhile. */
static bool is_stuck(intptr_t uuid) {
  return sock_is_blocked(uuid) &&
         sock_blocked_ms(uuid) >= settings.slow_timeout_ms;
}

static void abort_stuck(intptr_t uuid) {
  sock_abort(uuid, "slow.timeout: nothing is read");
}

static void websocket_on_data(intptr_t uuid, protocol_s *protocol) {
  websocket_s *ws = websocket_cast(protocol);
  if (is_stuck(uuid)) {
    abort_stuck(uuid);
    return;
  }
  ssize_t n = sock_read(uuid, read_buffer, sizeof read_buffer);
  if (n <= 0)
    return;
  partial_s local = {.cap = 0}, *p = ws->partial ? ws->partial : &local;
  decode(ws, p, read_buffer, (size_t)n);
  if (ws->partial) {
    if (is_whole(p)) {
      free(p);
      ws->partial = NULL;
    }
  } else if (!is_whole(&local) && sock_isvalid(uuid)) {
    ws->partial = malloc(sizeof local);
    if (ws->partial)
      *ws->partial = local;
    else
      sock_abort(uuid, "out of memory");
  }
  if (!ws->partial)
    drop_message(&local);
}

/* ---- the rest of a protocol's callbacks -------------------------------- */

static void websocket_on_ready(intptr_t uuid, protocol_s *protocol) {
  websocket_s *ws = websocket_cast(protocol);
  if (ws->is_suspended && !is_full(ws)) {
    ws->is_suspended = false;
    facil_resume_read(uuid);
  }
  if (!ws->is_closing && ws->handler->on_ready)
    ws->handler->on_ready(ws);
}

static size_t websocket_on_sent(intptr_t uuid, protocol_s *protocol,
                                size_t sent) {
  (void)uuid;
  websocket_s *ws = websocket_cast(protocol);
  return ws->handler->on_sent ? ws->handler->on_sent(ws, sent) : 0;
}

static void websocket_ping(intptr_t uuid, protocol_s *protocol) {
  websocket_s *ws = websocket_cast(protocol);
  if (ws->is_closing)
    return;
  if (sock_is_blocked(uuid)) { /* progress of writing decides */
    if (is_stuck(uuid))
      abort_stuck(uuid);
    return;
  }
  if (ws->handler->on_ping)
    ws->handler->on_ping(ws);
  write_frame(ws, WS_FIN_PING, VIEW_LIT(""));
}

static void websocket_on_shutdown(intptr_t uuid, protocol_s *protocol) {
  (void)uuid;
  websocket_s *ws = websocket_cast(protocol);
  if (ws->handler->on_shutdown)
    ws->handler->on_shutdown(ws);
  else
    websocket_close(ws, WS_CLOSE_GOING_AWAY, VIEW_LIT("shutting down"));
}

static void websocket_on_close(intptr_t uuid, protocol_s *protocol) {
  (void)uuid;
  websocket_s *ws = websocket_cast(protocol);
  ws->handler->on_close(ws);
  if (ws->partial) {
    free(ws->partial->message);
    free(ws->partial);
  }
  free(ws);
}

static const protocol_ops_s websocket_ops = {.service = "websocket",
                                             .on_data = websocket_on_data,
                                             .on_ready = websocket_on_ready,
                                             .on_sent = websocket_on_sent,
                                             .on_shutdown =
                                                 websocket_on_shutdown,
                                             .on_close = websocket_on_close,
                                             .ping = websocket_ping,
                                             .holds_shutdown = true};

websocket_s *websocket_find(intptr_t uuid) {
  protocol_s *p = facil_protocol(uuid, websocket_ops.service);
  return p ? websocket_cast(p) : NULL;
}

typedef struct {
  void (*task)(websocket_s *ws);
} each_s;

static void each_one(intptr_t uuid, protocol_s *p, void *arg) {
  (void)uuid;
  ((each_s *)arg)->task(websocket_cast(p));
}

static void each_done(intptr_t origin, void *arg) {
  (void)origin;
  free(arg);
}

void websocket_each(void (*task)(websocket_s *ws)) {
  each_s *each = malloc(sizeof *each);
  if (!each)
    return;
  each->task = task;
  facil_each(.service = websocket_ops.service, .task = each_one, .arg = each,
             .on_complete = each_done);
}

/* ---- the handshake ----------------------------------------------------- */

static void refuse(http_s *h, int status, const char *detail) {
  view_s version = VIEW_LIT("Upgrade: websocket\r\nConnection: Upgrade\r\n"
                            "Sec-WebSocket-Version: 13\r\n");
  http_problem(h, status, detail, status == 426 ? version : VIEW_LIT(""));
}

void websocket_upgrade(http_s *h, const view_s *subprotocols,
                       const websocket_handler_s *const *handlers, size_t count,
                       void *arg) {
  ws_handshake_s hs;
  int status = ws_handshake_read(http_request(h), subprotocols, count, &hs);
  if (status) {
    refuse(h, status, hs.detail);
    return;
  }
  size_t which = (size_t)(hs.subprotocol < 0 ? 0 : hs.subprotocol);
  while (hs.subprotocol < 0 && which < count && subprotocols[which].len)
    which++;
  if (which >= count) {
    refuse(h, 400, "Sec-WebSocket-Protocol names no subprotocol of this path.");
    return;
  }
  const websocket_handler_s *handler = handlers[which];
  websocket_s *ws = calloc(1, sizeof *ws + handler->size);
  char head[WS_RESPONSE_MAX + 64];
  size_t n = ws_handshake_response(head, sizeof head, &hs, subprotocols[which]);
  if (!ws || !n) {
    free(ws);
    refuse(h, 503, "There is no memory for another connection.");
    return;
  }
  intptr_t uuid = http_uuid(h);
  ws->super.ops = &websocket_ops;
  ws->handler = handler;
  ws->uuid = uuid;
  if (http_upgrade(h, view_of(head, n), &ws->super) < 0)
    return; /* its on_close follows */
  facil_set_timeout_ms(uuid, settings.ping_ms);
  if (handler->on_open)
    handler->on_open(ws, arg);
}
