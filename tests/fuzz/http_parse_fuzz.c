/* http_parse_fuzz.c - a request's head and its chunked body.
 *
 * Input: one byte of choices, two bytes that say where to cut, then the bytes
 * of a connection. What comes out must not depend on the cuts, every view must
 * lie in the input, and a request that is taken must have one reading: its head
 * ends at the first empty line and has no other line ends than CRLF. */
#include "facil/http_parse.h"
#include "fuzz.h"
#include <assert.h>
#include <stdlib.h>

enum {
  BIT_BODY = 1, /* a body from the start, no head */
  BIT_SMALL = 2 /* limits that inputs of this size reach */
};

static const http_limits_s limits[] = {{16384, 128, 8192, 1 << 20},
                                       {64, 3, 12, 20}};

/* A copy of its exact size, so that a sanitizer sees reads past it. */
static char *copy(view_s v) {
  char *p = (char *)malloc(v.len ? v.len : 1);
  assert(p);
  if (v.len)
    memcpy(p, v.data, v.len);
  return p;
}

/* ---- heads ---- */

typedef struct {
  char *memory; /* the input of the last call */
  ssize_t n;
  http_request_s req;
  http_header_s headers[HTTP_HEADERS_MAX];
} head_s;

/* Hand over the first cuts[0] bytes, then cuts[1], ..., then all. */
static void parse(head_s *h, view_s in, const size_t *cuts, size_t count,
                  const http_limits_s *l) {
  size_t scanned = 0;
  for (size_t i = 0; i <= count; i++) {
    const view_s part = i < count ? view_sub(in, 0, cuts[i]) : in;
    h->memory = copy(part);
    h->n = http_parse_head(view_of(h->memory, part.len), l, h->headers,
                           &scanned, &h->req);
    assert(scanned <= part.len && h->n <= (ssize_t)part.len);
    if (h->n || i == count)
      return;
    free(h->memory);
  }
}

/* The same bytes at the same place of their inputs. */
static void check_view(const head_s *a, view_s x, const head_s *b, view_s y) {
  assert(x.len == y.len);
  if (x.len == 0)
    return;
  assert(x.data >= a->memory && x.data + x.len <= a->memory + a->n);
  assert(x.data - a->memory == y.data - b->memory);
}

static void check_same(const head_s *a, const head_s *b) {
  const http_request_s *x = &a->req, *y = &b->req;
  assert(a->n == b->n);
  if (a->n < 0)
    assert(x->status == y->status && x->detail == y->detail);
  if (a->n <= 0)
    return;
  check_view(a, x->method, b, y->method);
  check_view(a, x->target, b, y->target);
  check_view(a, x->path, b, y->path);
  check_view(a, x->query, b, y->query);
  check_view(a, x->host, b, y->host);
  assert(x->header_count == y->header_count);
  for (size_t i = 0; i < x->header_count; i++) {
    check_view(a, a->headers[i].name, b, b->headers[i].name);
    check_view(a, a->headers[i].value, b, b->headers[i].value);
  }
  assert(x->content_length == y->content_length && x->minor == y->minor &&
         x->has_length == y->has_length && x->chunked == y->chunked &&
         x->keep_alive == y->keep_alive && x->expects_100 == y->expects_100 &&
         x->wants_upgrade == y->wants_upgrade);
}

static void check_refused(const http_request_s *r) {
  assert(r->status == 400 || r->status == 413 || r->status == 414 ||
         r->status == 431 || r->status == 501 || r->status == 505);
  assert(r->detail && *r->detail);
}

/* What whoever answers relies on. */
static void check_fields(const http_request_s *r, const http_limits_s *l) {
  assert(r->header_count <= l->header_count && r->minor <= 1);
  assert(r->method.len && r->target.len && r->target.len <= l->url_bytes);
  assert(r->content_length <= l->body_bytes);
  assert(r->has_length || r->content_length == 0);
  assert(!(r->chunked && (r->has_length || r->minor == 0)));
  assert(r->host.len || r->minor == 0);
  assert(!r->wants_upgrade || !(r->chunked || r->content_length));
  assert(http_header_times(r, VIEW_LIT("Content-Length")) == r->has_length);
  assert(http_header_times(r, VIEW_LIT("Transfer-Encoding")) == r->chunked);
  assert(http_header_times(r, VIEW_LIT("Host")) <= 1);
  if (!view_eq(r->method, VIEW_LIT("CONNECT")))
    assert(r->path.len && (r->path.data[0] == '/' || r->path.data[0] == '*'));
}

/* Lines, read in the plainest way: each field has its own, in order. */
static void check_lines(const head_s *h) {
  const char *p = h->memory, *end = p + h->n;
  size_t lines = 0;
  while (*p == '\r')
    p += 2;
  assert(end - p >= 4 && memcmp(end - 4, "\r\n\r\n", 4) == 0);
  for (; p < end; p++) {
    assert(*p && (p + 1 == end || (*p == '\r') == (p[1] == '\n')));
    if (*p == '\n' && lines++ < h->req.header_count) {
      const view_s name = h->headers[lines - 1].name;
      assert(name.data == p + 1 && name.len && name.data[name.len] == ':');
    }
  }
  assert(lines == h->req.header_count + 2);
}

static void check_taken(const head_s *h, const http_limits_s *l) {
  const view_s head = view_of(h->memory, (size_t)h->n);
  head_s again;
  check_fields(&h->req, l);
  check_lines(h);
  parse(&again, head, NULL, 0, l); /* nothing behind it counts */
  check_same(h, &again);
  free(again.memory);
  parse(&again, view_sub(head, 0, head.len - 1), NULL, 0, l);
  assert(again.n == 0);
  free(again.memory);
}

/* The length of the head if a chunked body follows, else 0. */
static size_t run_head(view_s in, const size_t *cuts, const http_limits_s *l) {
  head_s whole, parts;
  parse(&whole, in, NULL, 0, l);
  parse(&parts, in, cuts, 2, l);
  check_same(&whole, &parts);
  if (whole.n < 0)
    check_refused(&whole.req);
  if (whole.n > 0)
    check_taken(&whole, l);
  const size_t used = whole.n > 0 && whole.req.chunked ? (size_t)whole.n : 0;
  free(whole.memory);
  free(parts.memory);
  return used;
}

/* ---- bodies ---- */

typedef struct {
  int result, status;
  size_t used, len;
  char *body;
} body_s;

static void decode(body_s *b, view_s in, size_t first, size_t step,
                   size_t limit) {
  http_chunks_s c;
  http_chunks_init(&c);
  *b = (body_s){.body = copy(in)};
  for (size_t n = first; b->result == 0 && in.len; n = step) {
    const view_s part = view_sub(in, 0, n ? n : 1);
    size_t used, decoded;
    char *piece = copy(part);
    b->result = http_chunks_feed(&c, piece, part.len, limit, &used, &decoded,
                                 &b->status);
    assert(decoded <= used && used <= part.len);
    assert(b->result || used == part.len);
    assert(b->result >= 0 || b->status == 400 || b->status == 413);
    memcpy(b->body + b->len, piece, decoded);
    b->len += decoded;
    b->used += used;
    assert(b->len <= limit);
    in = view_sub(in, part.len, in.len);
    free(piece);
  }
}

static void run_body(view_s in, const size_t *cuts, size_t limit) {
  body_s whole, parts;
  decode(&whole, in, in.len, 1, limit);
  decode(&parts, in, cuts[0], cuts[1], limit);
  assert(whole.result == parts.result && whole.status == parts.status);
  if (whole.result >= 0) {
    assert(whole.used == parts.used && whole.len == parts.len);
    assert(memcmp(whole.body, parts.body, whole.len) == 0);
  }
  free(whole.body);
  free(parts.body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 3)
    return 0;
  const http_limits_s *l = &limits[data[0] & BIT_SMALL ? 1 : 0];
  const view_s in = view_of(data + 3, size - 3);
  const size_t cuts[2] = {data[1], data[1] + (size_t)data[2]};
  const bool is_body = data[0] & BIT_BODY;
  const size_t head = is_body ? 0 : run_head(in, cuts, l);
  if (is_body || head)
    run_body(view_sub(in, head, in.len), (const size_t[]){data[1], data[2]},
             l->body_bytes);
  return 0;
}
