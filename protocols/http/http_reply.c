/* http_reply.c - answers: in which order they leave, and their bytes.
 *
 * Invariant: bytes of an answer are given to sock only when all answers before
 * it have been, and in one piece, so that what is accepted is a whole answer.
 * One that comes early, or finds the queue full, is kept in its http_s.
 *
 * Whether an answer is the last on its connection is known only when it leaves.
 * So an answer has a front (status line and Connection) that is made then, and
 * a rest that does not depend on it. A kept answer leaves HTTP_FRONT_MAX bytes
 * free before its rest. */
#include "http_internal.h"

#include "facil/utf8.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define HTTP_FRONT_MAX 96
#define SMALL_MAX ((size_t)8192) /* up to this, an answer is copied */
#define SPARE_MAX 1024
#define DATE_LEN (sizeof "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n" - 1)
#define DETAIL_MAX 512

http_current_s http_current;

static http_s *spare;
static size_t spare_count;

/* ---- what is owed ------------------------------------------------------ */

http_s *http_owe(http_conn_s *c) {
  http_s *h = spare;
  if (h) {
    spare = h->next;
    spare_count--;
  } else if (!(h = (http_s *)malloc(sizeof *h))) {
    return NULL;
  }
  *h = (http_s){.conn = c, .settings = c->settings};
  if (c->last)
    c->last->next = h;
  else
    c->first = h;
  c->last = h;
  c->owed++;
  return h;
}

static void http_free(http_s *h) {
  free(h->kept);
  h->is_answered = true; /* so that a second answer is noticed */
  if (spare_count == SPARE_MAX) {
    free(h);
    return;
  }
  h->next = spare;
  spare = h;
  spare_count++;
}

static void take_off(http_conn_s *c) {
  http_s *h = c->first;
  c->first = h->next;
  if (!c->first)
    c->last = NULL;
  c->owed--;
  http_free(h);
}

void http_disown(http_conn_s *c) {
  for (http_s *h = c->first, *next; h; h = next) {
    next = h->next;
    h->next = NULL;
    h->conn = NULL;
    if (h->is_answered)
      http_free(h);
  }
  c->first = c->last = NULL;
  c->owed = 0;
}

const http_request_s *http_request(const http_s *h) {
  assert(h == http_current.h);
  return &http_current.request;
}

void *http_udata(const http_s *h) {
  return h->settings->udata;
}

intptr_t http_uuid(const http_s *h) {
  return h->conn ? h->conn->uuid : -1;
}

/* ---- the bytes --------------------------------------------------------- */

static char *put(char *at, const void *data, size_t len) {
  if (len)
    memcpy(at, data, len);
  return at + len;
}

static char *put_view(char *at, view_s v) {
  return put(at, v.data, v.len);
}

static char *put_number(char *at, size_t n) {
  char digits[20], *d = digits + sizeof digits;
  do
    *--d = (char)('0' + n % 10);
  while (n /= 10);
  return put(at, d, (size_t)(digits + sizeof digits - d));
}

static char *put_two(char *at, int n) {
  *at++ = (char)('0' + n / 10 % 10);
  *at++ = (char)('0' + n % 10);
  return at;
}

/* IMF-fixdate, RFC 9110 section 5.6.7. */
static void print_date(char *at, time_t now) {
  static const char days[] = "SunMonTueWedThuFriSat";
  static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
  struct tm t;
  gmtime_r(&now, &t);
  at = put(at, "Date: ", 6);
  at = put(at, days + t.tm_wday * 3, 3);
  at = put(at, ", ", 2);
  at = put_two(at, t.tm_mday);
  *at++ = ' ';
  at = put(at, months + t.tm_mon * 3, 3);
  *at++ = ' ';
  at = put_two(put_two(at, (t.tm_year + 1900) / 100), t.tm_year % 100);
  *at++ = ' ';
  at = put_two(at, t.tm_hour);
  *at++ = ':';
  at = put_two(at, t.tm_min);
  *at++ = ':';
  at = put_two(at, t.tm_sec);
  put(at, " GMT\r\n", 6);
}

/* The clock is read at most once a turn, the line made once a second. */
static char *put_date(char *at) {
  static char line[DATE_LEN];
  static uint64_t seen_ms;
  static time_t printed = (time_t)-1;
  uint64_t now_ms = facil_now_ms();
  if (now_ms != seen_ms) {
    seen_ms = now_ms;
    time_t now = time(NULL);
    if (now != printed)
      print_date(line, now);
    printed = now;
  }
  return put(at, line, DATE_LEN);
}

static char *put_front(char *at, const http_s *h, bool closes) {
  view_s text = view_str(http_status_text(h->status));
  at = put_view(at, VIEW_LIT("HTTP/1.1 "));
  at = put_number(at, h->status);
  *at++ = ' ';
  at = put_view(at, text);
  if (closes)
    return put_view(at, VIEW_LIT("\r\nConnection: close\r\n"));
  if (h->is_http10)
    return put_view(at, VIEW_LIT("\r\nConnection: keep-alive\r\n"));
  return put_view(at, VIEW_LIT("\r\n"));
}

/* RFC 9110 sections 6.4.1 and 8.6. */
static bool has_content(int status) {
  return status != 204 && status != 304;
}

static char *put_rest(char *at, const http_s *h, const struct http_answer *a) {
  at = put_date(at);
  if (a->type.len) {
    at = put_view(at, VIEW_LIT("Content-Type: "));
    at = put_view(at, a->type);
    at = put_view(at, VIEW_LIT("\r\n"));
  }
  if (has_content(a->status)) {
    at = put_view(at, VIEW_LIT("Content-Length: "));
    at = put_number(at, a->body.len);
    at = put_view(at, VIEW_LIT("\r\n"));
  }
  at = put_view(at, a->headers);
  at = put_view(at, VIEW_LIT("\r\n"));
  return has_content(a->status) && !h->is_head ? put_view(at, a->body) : at;
}

/* No less than front and rest take. */
static size_t size_of(const struct http_answer *a) {
  return HTTP_FRONT_MAX + DATE_LEN + 64 + a->type.len + a->headers.len +
         a->body.len;
}

/* ---- leaving ----------------------------------------------------------- */

/* Nothing can come after this answer. */
static bool is_last(const http_s *h) {
  const http_conn_s *c = h->conn;
  if (h->next)
    return false;
  if (c->has_ended)
    return true;
  bool has_more = c->in || (http_current.conn == c && http_current.rest.len);
  return facil_is_draining() && !has_more;
}

/* The answer of c->first was given to sock: `error` is how that went. False: it
 * has to wait. */
static bool has_left(http_conn_s *c, bool closes, int error) {
  if (error == ENOBUFS)
    return false;
  if (error) {          /* on_close lets go of what is owed */
    if (error != EPIPE) /* else it is closing in order */
      sock_abort(c->uuid, "an answer cannot be sent");
    return true;
  }
  take_off(c);
  if (closes) {
    http_disown(c);
    http_end_input(c);
  } else if (!c->first) {
    c->answered_ms = (uint32_t)facil_now_ms();
  }
  return true;
}

/* Write an answer that has its turn. False: it has to wait. */
static bool write_now(http_s *h, const struct http_answer *a, size_t size) {
  static char small[SMALL_MAX];
  http_conn_s *c = h->conn;
  if (sock_pending(c->uuid) >= HTTP_PENDING_MAX)
    return false;
  bool closes = h->closes || is_last(h);
  char *data = size <= SMALL_MAX ? small : (char *)malloc(size);
  if (!data)
    return has_left(c, closes, ENOMEM);
  char *end = put_rest(put_front(data, h, closes), h, a);
  int r = sock_write2(.uuid = c->uuid, .data = data,
                      .len = (size_t)(end - data), .move = data != small);
  return has_left(c, closes, r < 0 ? errno : 0);
}

static void keep(http_s *h, const struct http_answer *a, size_t size) {
  h->kept = (char *)malloc(size);
  if (!h->kept) {
    sock_abort(h->conn->uuid, "out of memory");
    return;
  }
  char *rest = h->kept + HTTP_FRONT_MAX;
  h->kept_len = (size_t)(put_rest(rest, h, a) - rest);
}

/* Put the front before the rest of a kept answer and write it. False: it has to
 * wait. What is moved would be lost if sock refused it; an empty queue refuses
 * nothing. */
static bool write_kept(http_s *h) {
  http_conn_s *c = h->conn;
  bool moves = HTTP_FRONT_MAX + h->kept_len > SMALL_MAX;
  if (sock_pending(c->uuid) >= (moves ? 1 : HTTP_PENDING_MAX))
    return false;
  bool closes = h->closes || is_last(h);
  char front[HTTP_FRONT_MAX];
  size_t n = (size_t)(put_front(front, h, closes) - front);
  char *rest = h->kept + HTTP_FRONT_MAX, *data = rest - n;
  if (moves) /* what is freed begins where it was made */
    data = (char *)memmove(h->kept + n, rest, h->kept_len) - n;
  memcpy(data, front, n);
  if (moves)
    h->kept = NULL;
  int r = sock_write2(.uuid = c->uuid, .data = data, .len = n + h->kept_len,
                      .move = moves);
  return has_left(c, closes, r < 0 ? errno : 0);
}

void http_write_on(http_conn_s *c) {
  while (sock_isvalid(c->uuid) && c->first && c->first->is_answered) {
    if (!c->first->kept)
      return; /* lost: on_close follows */
    if (write_kept(c->first))
      continue;
    sock_want_ready(c->uuid);
    return;
  }
}

void(http_reply)(http_s *h, struct http_answer a) {
  assert(!h->is_answered);
  assert(a.status >= 200 && a.status <= 599);
  http_conn_s *c = h->conn;
  if (http_current.h == h)
    http_current.h = NULL;
  h->is_answered = true;
  h->status = (uint16_t)a.status;
  h->closes |= a.close;
  if (!c) {
    http_free(h);
    return;
  }
  size_t size = size_of(&a);
  if (c->first != h) {
    keep(h, &a, size);
    return;
  }
  if (!write_now(h, &a, size)) {
    keep(h, &a, size);
    sock_want_ready(c->uuid);
    return;
  }
  if (c->first && c->first->is_answered)
    http_write_on(c);
  http_has_room(c);
}

/* ---- upgrade ----------------------------------------------------------- */

int http_upgrade(http_s *h, view_s head, protocol_s *protocol) {
  http_conn_s *c = h->conn;
  intptr_t uuid = c->uuid;
  assert(http_current.h == h && c->first == h && !h->next);
  http_bytes_s rest = http_current.rest;
  http_current.h = NULL;
  c->has_ended = true;
  take_off(c);
  if (sock_write(uuid, head.data, head.len) < 0 ||
      sock_unread(uuid, rest.data, rest.len) < 0)
    sock_abort(uuid, "the upgrade cannot be answered");
  facil_set_timeout_ms(uuid, 0);
  return facil_attach(uuid, protocol);
}

/* ---- problems: RFC 9457 ------------------------------------------------ */

/* The length of the character at the start of `v`, which is not empty. False:
 * it is none, and `*len` is what one U+FFFD stands for. */
static bool is_char(view_s v, size_t *len) {
  uint32_t state = UTF8_START;
  for (*len = 0; *len < v.len; ++*len) {
    if (utf8_check(&state, v.data + *len, 1) < 0) {
      *len += *len == 0; /* a byte that begins nothing; else what was begun */
      return false;
    }
    if (utf8_is_whole(state)) {
      ++*len;
      return true;
    }
  }
  return false;
}

/* RFC 8259 section 7. */
static view_s escape_of(unsigned char c, char room[6]) {
  static const char hex[] = "0123456789abcdef";
  switch (c) {
  case '"':
    return VIEW_LIT("\\\"");
  case '\\':
    return VIEW_LIT("\\\\");
  case '\n':
    return VIEW_LIT("\\n");
  case '\r':
    return VIEW_LIT("\\r");
  case '\t':
    return VIEW_LIT("\\t");
  default:
    break;
  }
  if (c >= 0x20)
    return view_of(NULL, 0);
  put(room, "\\u00", 4);
  room[4] = hex[c >> 4];
  room[5] = hex[c & 15];
  return view_of(room, 6);
}

size_t http_json_escape(char *out, size_t cap, view_s text) {
  size_t used = 0;
  for (size_t at = 0, len; at < text.len; at += len) {
    char room[6];
    view_s rest = view_sub(text, at, text.len);
    view_s piece = VIEW_LIT("\xef\xbf\xbd"); /* U+FFFD */
    if (is_char(rest, &len)) {
      view_s escape = escape_of((unsigned char)rest.data[0], room);
      piece = escape.len ? escape : view_sub(rest, 0, len);
    }
    if (piece.len > cap - used)
      break;
    put_view(out + used, piece);
    used += piece.len;
  }
  return used;
}

/* Whether one of the lines in `headers` is the field `name`. */
static bool has_field(view_s headers, view_s name) {
  while (headers.len) {
    if (headers.len > name.len && headers.data[name.len] == ':' &&
        view_eq_nocase(view_sub(headers, 0, name.len), name))
      return true;
    const char *end = (const char *)memchr(headers.data, '\n', headers.len);
    size_t line = end ? (size_t)(end - headers.data) + 1 : headers.len;
    headers = view_sub(headers, line, headers.len);
  }
  return false;
}

static view_s problem_body(char *body, int status, const char *detail) {
  char *at = put_view(body, VIEW_LIT("{\"type\":\"about:blank\",\"title\":\""));
  at = put_view(at, view_str(http_status_text(status)));
  at = put_view(at, VIEW_LIT("\",\"status\":"));
  at = put_number(at, (size_t)status);
  at = put_view(at, VIEW_LIT(",\"detail\":\""));
  at += http_json_escape(at, DETAIL_MAX, view_str(detail));
  at = put_view(at, VIEW_LIT("\"}\n"));
  return view_of(body, (size_t)(at - body));
}

static void reply_problem(http_s *h, int status, const char *detail,
                          view_s headers) {
  char body[DETAIL_MAX + 256];
  http_reply(h, .status = status, .type = VIEW_LIT("application/problem+json"),
             .body = problem_body(body, status, detail), .headers = headers);
}

void http_problem(http_s *h, int status, const char *detail, view_s headers) {
  static const view_s later = {"Retry-After: 1\r\n", 16};
  char *both = NULL;
  if ((status == 503 || status == 429) &&
      !has_field(headers, VIEW_LIT("Retry-After"))) {
    if (headers.len == 0)
      headers = later;
    else if ((both = (char *)malloc(headers.len + later.len)))
      headers = view_of(
          both, (size_t)(put_view(put_view(both, headers), later) - both));
  }
  reply_problem(h, status, detail, headers);
  free(both);
}
