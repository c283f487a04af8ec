/* http_route.c - from a request to its handler.
 *
 * Routes are a table, read from the top. A path is compared as it was sent,
 * segment by segment; only what stands for a "*" is percent-decoded, once,
 * after the match. So no encoding of a slash or a dot can move a request to
 * another route: nothing is normalised, and ".." is a segment like any other.
 */
#include "http_internal.h"

#include <stdlib.h>

#define ALLOW_MAX 256

static struct {
  char *data; /* the decoded segment; never shorter than the longest path */
  size_t cap;
} segment_room;

int http_route_reserve(size_t url_bytes) {
  if (url_bytes <= segment_room.cap)
    return 0;
  char *bigger = (char *)realloc(segment_room.data, url_bytes);
  if (!bigger)
    return -1;
  segment_room.data = bigger;
  segment_room.cap = url_bytes;
  return 0;
}

/* ---- matching ---------------------------------------------------------- */

static bool is_star(const char *pattern, const char *at) {
  return *at == '*' && at > pattern && at[-1] == '/' &&
         (at[1] == '/' || at[1] == 0);
}

static bool fits_path(const char *pattern, view_s path, view_s *segment) {
  size_t i = 0;
  for (const char *p = pattern; *p; p++) {
    size_t from = i;
    if (!is_star(pattern, p)) {
      if (i == path.len || path.data[i++] != *p)
        return false;
      continue;
    }
    while (i < path.len && path.data[i] != '/')
      i++;
    *segment = view_sub(path, from, i - from);
    if (segment->len == 0)
      return false;
  }
  return i == path.len;
}

static bool fits_method(const http_route_s *r, view_s method) {
  view_s own = view_str(r->method);
  return view_eq(own, method) ||
         (view_eq(own, VIEW_LIT("GET")) && view_eq(method, VIEW_LIT("HEAD")));
}

static view_s decode(view_s segment) {
  if (!memchr(segment.data, '%', segment.len))
    return segment;
  ssize_t n = http_percent_decode(segment, segment_room.data);
  return n < 0 ? view_of(NULL, 0) : view_of(segment_room.data, (size_t)n);
}

/* ---- Allow: RFC 9110 section 10.2.1 ------------------------------------ */

typedef struct {
  char text[ALLOW_MAX];
  size_t len;
} allow_s;

static void allow_add(allow_s *a, view_s method) {
  view_s list = view_of(a->text, a->len), member;
  while (http_list_next(&list, &member))
    if (view_eq(member, method))
      return;
  const char *between = a->len ? ", " : "";
  size_t gap = strlen(between);
  if (method.len + gap > sizeof a->text - a->len)
    return;
  memcpy(a->text + a->len, between, gap);
  memcpy(a->text + a->len + gap, method.data, method.len);
  a->len += gap + method.len;
}

/* The methods of all routes for `path`; of all there are for "*". */
static allow_s allow_of(const http_settings_s *s, view_s path) {
  bool is_all = view_eq(path, VIEW_LIT("*"));
  allow_s a = {.len = 0};
  view_s segment;
  for (size_t i = 0; i < s->route_count; i++) {
    const http_route_s *r = &s->routes[i];
    if (!is_all && !fits_path(r->path, path, &segment))
      continue;
    allow_add(&a, view_str(r->method));
    if (fits_method(r, VIEW_LIT("HEAD")))
      allow_add(&a, VIEW_LIT("HEAD"));
  }
  if (a.len || is_all)
    allow_add(&a, VIEW_LIT("OPTIONS"));
  return a;
}

/* No route has this path with this method. */
static void answer_without_route(http_s *h, const http_settings_s *s) {
  const http_request_s *req = &http_current.request;
  allow_s allow = allow_of(s, req->path);
  char line[ALLOW_MAX + 16] = "Allow: ";
  size_t n = strlen(line);
  if (allow.len == 0 && view_eq(req->method, VIEW_LIT("OPTIONS")))
    allow_add(&allow, req->method); /* it may be asked of anything */
  if (allow.len == 0) {
    http_problem(h, 404, "There is nothing at this path.", view_of(NULL, 0));
    return;
  }
  memcpy(line + n, allow.text, allow.len);
  memcpy(line + n + allow.len, "\r\n", 2);
  view_s headers = view_of(line, n + allow.len + 2);
  if (view_eq(req->method, VIEW_LIT("OPTIONS")))
    http_reply(h, .status = 204, .headers = headers);
  else
    http_problem(h, 405, "This path does not take the method.", headers);
}

/* ---- the way of a request ---------------------------------------------- */

static void call(http_s *h, const http_route_s *r, view_s segment) {
  view_s decoded = segment.len ? decode(segment) : segment;
  if (segment.len && !decoded.len)
    http_problem(h, 400,
                 "A '%' in the path is not followed by two "
                 "hexadecimal digits.",
                 view_of(NULL, 0));
  else
    r->handle(h, decoded);
}

/* TRACE would send credentials back to whoever asks, and CONNECT is for
 * proxies: RFC 9110 section 9.3. */
static bool is_never_served(view_s method) {
  return view_eq(method, VIEW_LIT("TRACE")) ||
         view_eq(method, VIEW_LIT("CONNECT"));
}

void http_route(http_s *h) {
  const http_settings_s *s = h->conn->settings;
  const http_request_s *req = &http_current.request;
  if (is_never_served(req->method)) {
    http_problem(h, 501, "The method is not served here.", view_of(NULL, 0));
    return;
  }
  if (s->gate && !s->gate(h))
    return;
  for (size_t i = 0; i < s->route_count; i++) {
    const http_route_s *r = &s->routes[i];
    view_s segment = view_of(NULL, 0);
    if (fits_path(r->path, req->path, &segment) &&
        fits_method(r, req->method)) {
      call(h, r, segment);
      return;
    }
  }
  answer_without_route(h, s);
}
