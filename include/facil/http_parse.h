/* http_parse.h - HTTP/1.1 requests as bytes (RFC 9110, RFC 9112).
 *
 * Nothing here knows a socket, keeps a byte of input, or allocates for input:
 * the caller owns the bytes, and every view in a request points into them. The
 * syntax is llhttp's; the checks that llhttp leaves to its user are made here
 * (see http_parse.c), so what comes out is a request that no other HTTP/1.1
 * reader can read differently.
 *
 * All functions may be called on any thread. */
#ifndef FACIL_HTTP_PARSE_H
#define FACIL_HTTP_PARSE_H

#include "view.h"
#include <sys/types.h>

typedef struct {
  view_s name, value; /* value without the white space around it */
} http_header_s;

#define HTTP_HEADERS_MAX 256 /* the most that `header_count` may be set to */

typedef struct {
  size_t header_bytes; /* request line and header fields together: 431 */
  size_t header_count; /* fields: 431 */
  size_t url_bytes;    /* request target: 414 */
  size_t body_bytes;   /* 413 */
} http_limits_s;

typedef struct {
  view_s method; /* as it was sent: methods are case-sensitive */
  view_s target; /* as it was sent */
  view_s path;   /* of the target, still percent-encoded, "/" at least; "*" for
                    OPTIONS *, empty for CONNECT and only there */
  view_s query;  /* of the target, without the '?'; empty if there is none */
  view_s host;   /* of an absolute target, else of the Host field, with the
                    port; well formed; empty only in HTTP/1.0 */
  http_header_s *headers; /* the caller's storage */
  size_t header_count;
  view_s body;             /* set by whoever has gathered it */
  uint64_t content_length; /* 0 if there is none or chunked is set */
  uint8_t minor;           /* HTTP/1.minor */
  bool has_length;         /* a Content-Length field was there */
  bool chunked;
  bool keep_alive;    /* RFC 9112 section 9.3 */
  bool expects_100;   /* RFC 9110 section 10.1.1, and a body is to come */
  bool wants_upgrade; /* Connection: upgrade and an Upgrade field, no body;
                         set in HTTP/1.0 too: whoever switches asks minor */
  /* Filled on error: */
  int status;         /* what to answer: 400, 413, 414, 431, 501, 505 */
  const char *detail; /* one static sentence for the problem document */
} http_request_s;

/* Read the head of a request (through the empty line) from the start of
 * `input`. Returns its length; 0 if it is not whole yet (call again with more
 * bytes at the same start; `*scanned`, which starts at 0, remembers how far the
 * search came, so that a head that trickles in is not read over and over); -1
 * if it is refused: req->status and req->detail say how to answer, and the
 * connection has to be closed after the answer. A head is refused at the first
 * byte that shows its fault wherever the scan finds it (controls, line ends,
 * limits, the request line), else at its end; in which pieces it comes makes no
 * difference. But for a length above 0 and for -1 nothing in `req` counts.
 *
 * `headers` holds at least limits->header_count entries. Empty lines before the
 * request line are skipped (at most 4 CRLF) and counted in the length, not in
 * header_bytes.
 *
 * Not taken, though RFC 9112 would let a server take it: a repeated or listed
 * Content-Length, one with leading zeros, bare LF, folded lines, a fragment or
 * a byte above 0x7f in the target, user information or a comma in a host. */
FACIL_PUBLIC FACIL_MUST_CHECK ssize_t
http_parse_head(view_s input, const http_limits_s *limits,
                http_header_s *headers, size_t *scanned, http_request_s *req);

/* A chunked body (RFC 9112 section 7.1), decoded in place. Opaque; it owns
 * nothing and keeps no pointer into the data, so it may be copied and dropped.
 */
typedef struct {
  uint64_t opaque[24];
} http_chunks_s;

FACIL_PUBLIC void http_chunks_init(http_chunks_s *c);

/* Decode `len` bytes at `data`. The decoded bytes are moved to the front of
 * `data`, their number goes to `*decoded`. Returns 1 when the last chunk and
 * the trailer section are through, and then `*used` is how many of `len` bytes
 * belonged to the body; 0 for more (all were used); -1 when refused: *status is
 * 400, or 413 as soon as a chunk's size says that the sum of the decoded bytes
 * will pass `body_bytes`, or chunk extensions and trailers pass 4 KiB in all.
 * Trailers are dropped. After 1 or -1 the decoder is not fed again; after -1
 * `data` may be half moved. */
FACIL_PUBLIC FACIL_MUST_CHECK int
http_chunks_feed(http_chunks_s *c, char *data, size_t len, size_t body_bytes,
                 size_t *used, size_t *decoded, int *status);

/* The value of the first field with that name (any case), or an empty view with
 * data NULL. */
FACIL_PUBLIC view_s http_header(const http_request_s *req, view_s name);

/* How many fields have that name. */
FACIL_PUBLIC size_t http_header_times(const http_request_s *req, view_s name);

/* Whether `token` (any case) stands in the comma-separated list made of all
 * fields with that name (RFC 9110 section 5.6.1). */
FACIL_PUBLIC bool http_header_has_token(const http_request_s *req, view_s name,
                                        view_s token);

/* The next member of a comma-separated list, trimmed, taken off the front of
 * `*list`; false at its end. Empty members are skipped; a comma in a quoted
 * string (RFC 9110 section 5.6.4) divides nothing. Linear in the bytes. */
FACIL_PUBLIC bool http_list_next(view_s *list, view_s *member);

/* Percent-decode `in` into `out` (at least in.len bytes), once. Returns the
 * length; -1 for a '%' that two hexadecimal digits do not follow. '+' stays.
 * `out` may be where `in` is. What comes out is any bytes, also NUL. */
FACIL_PUBLIC FACIL_MUST_CHECK ssize_t http_percent_decode(view_s in, char *out);

/* The next `name=value` pair of a query, still encoded, taken off the front of
 * `*query`; false at its end. A part without '=' has an empty value; empty
 * parts are skipped. */
FACIL_PUBLIC bool http_query_next(view_s *query, view_s *name, view_s *value);

/* The reason phrase of a status code ("Not Found"), or "Unknown". */
FACIL_PUBLIC const char *http_status_text(int status);

/* Whether an Accept field (may be empty: everything) takes `type`, e.g.
 * "text/event-stream", named in full: a wildcard does not count. A member with
 * q=0 does not. Anything that does not parse is passed over. */
FACIL_PUBLIC bool http_accepts_exactly(view_s accept, view_s type);

#endif
