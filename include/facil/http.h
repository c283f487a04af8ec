/* http.h - an HTTP/1.1 server on facil: connections, routes, answers.
 *
 * The invariant: one answer per request, in the order of the requests, however
 * late and in whatever order the handlers give them. A connection reads on
 * while answers are owed (pipelining, RFC 9112 section 9.3.2), up to
 * HTTP_OWED_MAX of them; then it stops reading until some have left.
 *
 * Loop thread only. */
#ifndef FACIL_HTTP_H
#define FACIL_HTTP_H

#include "facil.h"
#include "http_parse.h"

#define HTTP_OWED_MAX 64

/* The service tag of its connections, for facil_count and facil_each. */
FACIL_PUBLIC extern const char http_service[];

/* A request that waits for its answer. It lives until it is answered, also when
 * the connection has gone before: so whoever has an http_s answers it, exactly
 * once, in every case. */
typedef struct http_s http_s;

typedef struct {
  const char *method; /* "GET" (serves HEAD as well), "POST", … */
  const char *path;   /* "/healthz"; a segment "*" stands for any one segment
                       * that is not empty. The first route that fits is taken */
  /* Answer `h`, now or later. `segment` is what the "*" stood for,
   * percent-decoded once (a copy that is valid during the call); empty without
   * one. A path that a route has but not for this method is answered 405 with
   * Allow by the server, OPTIONS of anything 204 with Allow, an unknown path
   * 404, a segment that does not decode 400, TRACE and CONNECT 501. */
  void (*handle)(http_s *h, view_s segment);
} http_route_s;

typedef struct {
  http_limits_s limits;
  uint32_t head_timeout_ms; /* from the first byte of a head to its end: 408,
                             * and from the accept to the first byte. 0: 10 s */
  uint32_t idle_ms;         /* between requests on a kept connection, without
                             * a byte of a body, and without a byte taken by
                             * the peer of what is sent to it. 0: 60 s */
  uint32_t body_rate;       /* bytes a second that a body comes with at least,
                             * on average after head_timeout_ms: 408. 0: any */
  const http_route_s *routes;
  size_t route_count;
  /* Called before a route is looked for; false: it has answered `h` itself. */
  bool (*gate)(http_s *h);
  void *udata;
} http_settings_s;

/* For facil_listen's on_open, with `settings` (which must outlive the process's
 * connections) as its udata. NULL if there is no memory. */
FACIL_PUBLIC protocol_s *http_open(intptr_t uuid, void *settings);

/* The request. To be asked for in the gate and the handler, before the answer
 * is given, not later (asserted): keep copies of what is needed. */
FACIL_PUBLIC const http_request_s *http_request(const http_s *h);
FACIL_PUBLIC void *http_udata(const http_s *h); /* of the settings */

/* The connection; -1 when it has gone. */
FACIL_PUBLIC intptr_t http_uuid(const http_s *h);

struct http_answer {
  int status;
  view_s type;    /* Content-Type; empty: none is sent */
  view_s body;    /* copied */
  view_s headers; /* further fields, each a line that ends with CRLF */
  bool close;     /* end the connection after this answer */
};

/* Answer. `h` is gone after this. Content-Length, Date and, where it applies,
 * Connection are added; a HEAD request gets no body; 204 and 304 neither. A
 * connection that cannot take the answer is aborted. */
#define http_reply(h, ...) http_reply(h, (struct http_answer){__VA_ARGS__})
FACIL_PUBLIC void(http_reply)(http_s *h, struct http_answer answer);

/* Answer with application/problem+json (RFC 9457): type "about:blank", title
 * the reason phrase, status, and `detail`, which is escaped. `headers` as
 * above. 503 and 429 get `Retry-After: 1` if `headers` has none. */
FACIL_PUBLIC void http_problem(http_s *h, int status, const char *detail,
                               view_s headers);

/* Answer with `head`, a whole head (101, or one whose body the connection's end
 * ends), and give the connection to `protocol`, which gets what was read behind
 * the request (sock_unread) as its first bytes. Only in the handler: a request
 * that wants an upgrade or accepts text/event-stream is handed to its handler
 * when all before it have been answered. `h` is gone after this. 0; -1: the
 * connection is gone; `protocol`'s on_close is called in that case too. */
FACIL_PUBLIC int http_upgrade(http_s *h, view_s head, protocol_s *protocol);

/* Append `text` to `out` as the inside of a JSON string, escaped: '"', '\\',
 * controls; invalid UTF-8 becomes U+FFFD. At most `cap` bytes are written, and
 * never half an escape. Returns the bytes written. */
FACIL_PUBLIC size_t http_json_escape(char *out, size_t cap, view_s text);

#endif
