/* http_conn.c - a connection's life: input, whose turn it is, time.
 *
 * Input is read into one buffer of the process and handed on from there. What
 * is not whole is kept by its connection, exactly that long; a connection
 * between two requests keeps nothing. Invariants:
 *   - a request is handed on once, whole, and only if all bytes before it were;
 *   - after the end of input (a refused request, one that ends the connection,
 *     the peer's end) no byte is looked at any more;
 *   - a connection that stops reading for want of room has either an answer to
 *     give or asked for on_ready: one of both makes it go on.
 *
 * Time: the core's time-out is the idle one while nothing is kept, else what is
 * left until the awaited part is late. It is set anew after each read, so it
 * counts from the part's begin, however the bytes trickle in. */
#include "http_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define EMPTY_LINES ((size_t)16) /* that may come before a head, and more */
#define RESUME_OWED (HTTP_OWED_MAX / 2) /* so that it is worth the while */
#define RESUME_PENDING (HTTP_PENDING_MAX / 2)
#define HEAD_MS 10000u
#define IDLE_MS 60000u

static struct {
  char *data; /* a head that is not whole yet, and what is read behind it */
  size_t cap;
} room;

static http_header_s headers[HTTP_HEADERS_MAX];

const char http_service[] = "http";

static const protocol_ops_s http_ops;

static http_conn_s *conn_of(protocol_s *p) {
  assert(p->ops == &http_ops);
  return (http_conn_s *)p;
}

/* The connection is open and has not been given to another protocol. */
static bool is_ours(const http_conn_s *c) {
  return facil_protocol(c->uuid, NULL) == &c->super;
}

/* ---- what is kept ------------------------------------------------------ */

/* NULL: there is no memory, and the connection is lost. */
static http_input_s *input_new(http_conn_s *c, enum http_want want,
                               size_t cap) {
  http_input_s *in = (http_input_s *)malloc(sizeof *in + cap);
  if (!in) {
    sock_abort(c->uuid, "out of memory");
    return NULL;
  }
  in->want = want;
  in->owes_continue = false;
  in->cap = cap;
  in->at = in->len = in->head_len = in->scanned = 0;
  return in;
}

/* Append to c->in. False: the connection is lost. */
static bool input_add(http_conn_s *c, const char *data, size_t len) {
  http_input_s *in = c->in;
  if (len > in->cap - in->len) {
    size_t cap = in->len + len + in->len / 2;
    http_input_s *bigger = (http_input_s *)realloc(in, sizeof *in + cap);
    if (!bigger) {
      sock_abort(c->uuid, "out of memory");
      return false;
    }
    c->in = in = bigger;
    in->cap = cap;
  }
  if (len)
    memcpy(in->bytes + in->len, data, len);
  in->len += len;
  return true;
}

static void input_free(http_conn_s *c) {
  free(c->in);
  c->in = NULL;
}

/* ---- refusing, room ---------------------------------------------------- */

void http_end_input(http_conn_s *c) {
  c->has_ended = true;
  input_free(c);
  if (!c->first)
    sock_close(c->uuid);
}

static void refuse(http_conn_s *c, int status, const char *detail) {
  http_s *h = http_owe(c);
  http_end_input(c);
  if (!h) {
    sock_abort(c->uuid, "out of memory");
    return;
  }
  h->closes = true;
  http_problem(h, status, detail, view_of(NULL, 0));
}

static void hold(http_conn_s *c, bool for_turn) {
  c->is_held = true;
  c->is_held_for_turn = for_turn;
  if (!for_turn && sock_pending(c->uuid) > RESUME_PENDING)
    sock_want_ready(c->uuid);
}

/* Whether one more request may be handed on. */
static bool has_room(http_conn_s *c) {
  if (c->has_ended || !is_ours(c))
    return false;
  bool is_stuck = c->first && c->first->is_answered; /* it waits for sock */
  if (!is_stuck && c->owed < HTTP_OWED_MAX &&
      sock_pending(c->uuid) < HTTP_PENDING_MAX)
    return true;
  hold(c, false);
  return false;
}

/* RFC 9110 section 10.1.1: when it is the request's turn to be answered, and
 * its body has not begun to come by itself. */
static void send_continue(http_conn_s *c) {
  static const view_s line = {"HTTP/1.1 100 Continue\r\n\r\n", 25};
  http_input_s *in = c->in;
  if (!in || !in->owes_continue || c->first)
    return;
  in->owes_continue = false;
  if (in->len == in->head_len && sock_write(c->uuid, line.data, line.len) < 0)
    sock_abort(c->uuid, "an answer cannot be sent");
}

void http_has_room(http_conn_s *c) {
  if (c->has_ended || !sock_isvalid(c->uuid))
    return;
  send_continue(c);
  if (!c->is_held || c->owed > (c->is_held_for_turn ? 0 : RESUME_OWED))
    return;
  if (sock_pending(c->uuid) > RESUME_PENDING) {
    sock_want_ready(c->uuid);
    return;
  }
  c->is_held = false;
  facil_resume_read(c->uuid);
  if (c->in)
    facil_force_event(c->uuid);
}

/* ---- whole requests ---------------------------------------------------- */

static void skip(http_bytes_s *b, size_t n) {
  b->data += n;
  b->len -= n;
}

/* Hand the current request on; `rest` is what was read behind it. */
static void hand_on(http_conn_s *c, http_bytes_s rest) {
  const http_request_s *req = &http_current.request;
  http_s *h = http_owe(c);
  if (!h) {
    sock_abort(c->uuid, "out of memory");
    return;
  }
  h->is_head = view_eq(req->method, VIEW_LIT("HEAD"));
  h->is_http10 = req->minor == 0;
  h->closes = !req->keep_alive;
  c->has_ended |= h->closes;
  http_current.h = h;
  http_current.conn = c;
  http_current.rest = rest;
  http_route(h);
  http_current.h = NULL;
  http_current.conn = NULL;
}

/* A body that began in `b`, behind the head, and is not whole. */
static void begin_body(http_conn_s *c, http_bytes_s *b, size_t head_len) {
  const http_request_s *req = &http_current.request;
  c->in = input_new(c, HTTP_WANT_BODY, head_len + (size_t)req->content_length);
  if (!c->in)
    return;
  c->in->head_len = head_len;
  c->in->owes_continue = req->expects_100;
  c->since_ms = (uint32_t)facil_now_ms();
  if (input_add(c, b->data, b->len))
    send_continue(c);
  b->len = 0;
}

static const char *fault_of(int status) {
  return status == 413 ? "The body is larger than is taken here."
                       : "The chunked body is not well formed.";
}

/* The chunks in `b` behind the head: handed on as a body, or kept. */
static void take_chunks(http_conn_s *c, http_bytes_s *b, size_t head_len) {
  http_chunks_s chunks;
  size_t used, decoded;
  int status;
  bool expects_100 = http_current.request.expects_100 && b->len == head_len;
  char *body = b->data + head_len;
  http_chunks_init(&chunks);
  int r = http_chunks_feed(&chunks, body, b->len - head_len,
                           c->settings->limits.body_bytes, &used, &decoded,
                           &status);
  if (r < 0) {
    b->len = 0;
    refuse(c, status, fault_of(status));
    return;
  }
  if (r > 0) {
    http_current.request.body = view_of(body, decoded);
    skip(b, head_len + used);
    hand_on(c, *b);
    return;
  }
  c->in = input_new(c, HTTP_WANT_CHUNKS, head_len + decoded);
  if (!c->in)
    return;
  c->in->head_len = head_len;
  c->in->chunks = chunks;
  c->in->owes_continue = expects_100;
  c->since_ms = (uint32_t)facil_now_ms();
  if (input_add(c, b->data, head_len + decoded))
    send_continue(c);
  b->len = 0;
}

/* Whether the answer may take the connection over: it is given its turn first.
 */
static bool takes_over(const http_request_s *req) {
  return req->wants_upgrade ||
         http_accepts_exactly(http_header(req, VIEW_LIT("Accept")),
                              VIEW_LIT("text/event-stream"));
}

/* Take the request at the start of `b` off it. False: its head is not whole. */
static bool take_request(http_conn_s *c, http_bytes_s *b, size_t *scanned) {
  http_request_s *req = &http_current.request;
  ssize_t n = http_parse_head(view_of(b->data, b->len), &c->settings->limits,
                              headers, scanned, req);
  if (n == 0)
    return false;
  *scanned = 0;
  if (n < 0) {
    b->len = 0;
    refuse(c, req->status, req->detail);
    return true;
  }
  size_t head_len = (size_t)n;
  if (c->first && takes_over(req)) {
    hold(c, true);
  } else if (req->chunked) {
    take_chunks(c, b, head_len);
  } else if (req->content_length > b->len - head_len) {
    begin_body(c, b, head_len);
  } else {
    size_t body_len = (size_t)req->content_length;
    req->body = view_of(b->data + head_len, body_len);
    skip(b, head_len + body_len);
    hand_on(c, *b);
  }
  return true;
}

/* Keep what is left of `b`. `old` is what was kept before, whose bytes `b` may
 * begin with or lie in; it is used again or freed. */
static void keep_rest(http_conn_s *c, http_bytes_s b, size_t scanned,
                      http_input_s *old, size_t old_left) {
  enum http_want want = c->is_held ? HTTP_WANT_ROOM : HTTP_WANT_HEAD;
  if (old && old->want == HTTP_WANT_HEAD && b.data == room.data) {
    c->in = old;
    old->want = want;
    old->scanned = scanned;
    input_add(c, b.data + old->len, b.len - old->len);
    return;
  }
  if (old && want == HTTP_WANT_ROOM && old->want == HTTP_WANT_ROOM) {
    old->at += old_left - b.len;
    c->in = old;
    return;
  }
  c->in = input_new(c, want, b.len);
  if (c->in) {
    c->in->scanned = scanned;
    input_add(c, b.data, b.len);
    if (want == HTTP_WANT_HEAD)
      c->since_ms = (uint32_t)facil_now_ms();
  }
  free(old);
}

/* Hand on the requests in `b`, of which the first `scanned` bytes are known not
 * to end a head, and keep what is left. */
static void take_all(http_conn_s *c, http_bytes_s b, size_t scanned,
                     http_input_s *old) {
  size_t len = b.len;
  while (b.len && has_room(c) && take_request(c, &b, &scanned))
    if (c->is_held)
      break;
  if (b.len && !c->has_ended && is_ours(c))
    keep_rest(c, b, scanned, old, len);
  else
    free(old);
}

/* ---- a body that is kept ----------------------------------------------- */

/* The body is whole: `b` is what comes behind it. */
static void body_done(http_conn_s *c, http_bytes_s b) {
  http_request_s *req = &http_current.request;
  http_input_s *in = c->in;
  size_t scanned = 0;
  c->in = NULL;
  ssize_t n = http_parse_head(view_of(in->bytes, in->len), &c->settings->limits,
                              headers, &scanned, req);
  assert(n == (ssize_t)in->head_len);
  (void)n;
  req->body = view_of(in->bytes + in->head_len, in->len - in->head_len);
  hand_on(c, b);
  free(in);
  take_all(c, b, 0, NULL);
}

static void add_body(http_conn_s *c, http_bytes_s b) {
  size_t n = c->in->cap - c->in->len;
  if (n > b.len)
    n = b.len;
  input_add(c, b.data, n);
  skip(&b, n);
  if (c->in->len == c->in->cap)
    body_done(c, b);
}

static void add_chunks(http_conn_s *c, http_bytes_s b) {
  size_t used, decoded;
  int status;
  int r = http_chunks_feed(&c->in->chunks, b.data, b.len,
                           c->settings->limits.body_bytes, &used, &decoded,
                           &status);
  if (r < 0) {
    refuse(c, status, fault_of(status));
    return;
  }
  if (!input_add(c, b.data, decoded) || r == 0)
    return;
  skip(&b, used);
  body_done(c, b);
}

/* ---- time -------------------------------------------------------------- */

static uint32_t head_ms(const http_conn_s *c) {
  uint32_t ms = c->settings->head_timeout_ms;
  return ms ? ms : HEAD_MS;
}

static uint32_t idle_ms(const http_conn_s *c) {
  uint32_t ms = c->settings->idle_ms;
  return ms ? ms : IDLE_MS;
}

/* How long the awaited part may take in all, by what has come of it. */
static uint64_t allowed_ms(const http_conn_s *c) {
  uint32_t rate = c->settings->body_rate;
  if (c->in->want == HTTP_WANT_HEAD)
    return head_ms(c);
  uint64_t body = c->in->len - c->in->head_len;
  return head_ms(c) + body * 1000 / rate;
}

static bool is_timed(const http_conn_s *c) {
  return c->in && !c->is_held &&
         (c->in->want == HTTP_WANT_HEAD || c->settings->body_rate);
}

static void set_time(http_conn_s *c) {
  if (!is_timed(c)) {
    if (c->has_short_time)
      facil_set_timeout_ms(c->uuid, idle_ms(c));
    c->has_short_time = false;
    return;
  }
  uint32_t passed = (uint32_t)facil_now_ms() - c->since_ms;
  uint64_t allowed = allowed_ms(c);
  uint64_t left = allowed > passed ? allowed - passed : 1;
  facil_set_timeout_ms(c->uuid,
                       left < UINT32_MAX ? (uint32_t)left : UINT32_MAX - 1);
  c->has_short_time = true;
}

/* After each time that something was read or refused. */
static void settle(http_conn_s *c) {
  if (!is_ours(c))
    return;
  if (c->has_ended || c->is_held)
    facil_suspend_read(c->uuid);
  set_time(c);
}

/* Nothing is owed and nothing awaited: how long has it been like this? */
static void idle_check(http_conn_s *c) {
  uint32_t quiet = (uint32_t)facil_now_ms() - c->answered_ms;
  if (c->has_read && quiet < idle_ms(c)) {
    facil_set_timeout_ms(c->uuid, idle_ms(c) - quiet);
    c->has_short_time = true;
  } else {
    sock_close(c->uuid);
  }
}

static void http_ping(intptr_t uuid, protocol_s *p) {
  http_conn_s *c = conn_of(p);
  if (c->in && !c->is_held) {
    refuse(c, 408, "The request did not come in time.");
    settle(c);
  } else if (sock_blocked_ms(uuid) >= idle_ms(c)) {
    sock_abort(uuid, "the peer does not read its answers");
  } else if (c->first || c->is_held || sock_pending(uuid)) {
    facil_set_timeout_ms(uuid, idle_ms(c));
  } else {
    idle_check(c);
  }
}

/* ---- callbacks --------------------------------------------------------- */

static void read_more(http_conn_s *c) {
  http_input_s *old = c->in;
  size_t have = old && old->want == HTTP_WANT_HEAD ? old->len : 0;
  assert(have <= room.cap - HTTP_READ_BYTES);
  if (have)
    memcpy(room.data, old->bytes, have);
  ssize_t n = sock_read(c->uuid, room.data + have, HTTP_READ_BYTES);
  if (n < 0 && errno == ESHUTDOWN)
    http_end_input(c);
  if (n <= 0)
    return;
  c->has_read = true;
  http_bytes_s b = {room.data, have + (size_t)n};
  if (old && old->want == HTTP_WANT_BODY) {
    add_body(c, b);
  } else if (old && old->want == HTTP_WANT_CHUNKS) {
    add_chunks(c, b);
  } else {
    c->in = NULL;
    take_all(c, b, old ? old->scanned : 0, old);
  }
}

static void http_on_data(intptr_t uuid, protocol_s *p) {
  http_conn_s *c = conn_of(p);
  http_input_s *in = c->in;
  (void)uuid;
  if (c->has_ended)
    return;
  if (in && in->want == HTTP_WANT_ROOM) { /* comes before what can be read */
    http_bytes_s b = {in->bytes + in->at, in->len - in->at};
    c->in = NULL;
    take_all(c, b, 0, in);
  } else {
    read_more(c);
  }
  settle(c);
}

static void http_on_ready(intptr_t uuid, protocol_s *p) {
  (void)uuid;
  http_write_on(conn_of(p));
  http_has_room(conn_of(p));
}

/* Requests that have come are answered, so look once more. */
static void http_on_shutdown(intptr_t uuid, protocol_s *p) {
  http_conn_s *c = conn_of(p);
  if (!c->is_held && !c->has_ended)
    http_on_data(uuid, p);
  if (is_ours(c) && !c->first && !c->in)
    sock_close(uuid);
}

static void http_on_close(intptr_t uuid, protocol_s *p) {
  http_conn_s *c = conn_of(p);
  (void)uuid;
  http_disown(c);
  input_free(c);
  free(c);
}

static const protocol_ops_s http_ops = {.service = http_service,
                                        .on_data = http_on_data,
                                        .on_ready = http_on_ready,
                                        .on_shutdown = http_on_shutdown,
                                        .on_close = http_on_close,
                                        .ping = http_ping,
                                        .half_open = true,
                                        .holds_shutdown = true};

/* Room for the largest head that may be kept and a read behind it. */
static int reserve(const http_limits_s *limits) {
  size_t cap = limits->header_bytes + EMPTY_LINES + HTTP_READ_BYTES;
  if (http_route_reserve(limits->url_bytes) < 0)
    return -1;
  if (cap <= room.cap)
    return 0;
  char *bigger = (char *)malloc(cap);
  if (!bigger)
    return -1;
  free(room.data); /* nothing lies in it between two callbacks */
  room.data = bigger;
  room.cap = cap;
  return 0;
}

protocol_s *http_open(intptr_t uuid, void *settings) {
  const http_settings_s *s = (const http_settings_s *)settings;
  assert(s->limits.body_bytes < SIZE_MAX / 4); /* sums with it stay sizes */
  http_conn_s *c =
      reserve(&s->limits) < 0 ? NULL : (http_conn_s *)calloc(1, sizeof *c);
  if (!c)
    return NULL;
  c->super.ops = &http_ops;
  c->settings = s;
  c->uuid = uuid;
  c->has_short_time = true;
  facil_set_timeout_ms(uuid, head_ms(c));
  return &c->super;
}
