/* http_internal.h - what the files of the HTTP server share. Private to
 * protocols/http.
 *
 * A request's way: http_conn.c reads bytes, makes an http_s of a whole request
 * and hands it to http_route.c, which finds its handler; http_reply.c writes
 * the answer, in turn, and tells http_conn.c that there is room again.
 *
 * Invariant: the owed requests of a connection, `first` to `last`, are those
 * that were handed on and whose answer has not been given to sock, in order. */
#ifndef FACIL_HTTP_INTERNAL_H
#define FACIL_HTTP_INTERNAL_H

#include "facil/http.h"

#define HTTP_READ_BYTES ((size_t)65536)  /* of input a turn */
#define HTTP_PENDING_MAX ((size_t)65536) /* of output, then no more input */

typedef struct {
  char *data;
  size_t len;
} http_bytes_s;

/* What is awaited of the input that is kept. */
enum http_want {
  HTTP_WANT_HEAD,   /* the rest of a head */
  HTTP_WANT_BODY,   /* the rest of a body with a length */
  HTTP_WANT_CHUNKS, /* the rest of a chunked body */
  HTTP_WANT_ROOM    /* nothing: it may be whole, but answers have to leave */
};

/* Input that could not be handed on yet. */
typedef struct {
  enum http_want want;
  bool owes_continue;   /* 100 was asked for and is not sent */
  size_t cap, at, len;  /* bytes[at … len) count; at is 0 but in WANT_ROOM */
  size_t head_len;      /* of a body: what comes before it */
  size_t scanned;       /* of a head: see http_parse_head */
  http_chunks_s chunks; /* of a chunked body, which is kept decoded */
  char bytes[];         /* a body with a length fills `cap` */
} http_input_s;

typedef struct {
  protocol_s super; /* first: a protocol_s with the ops of http_conn.c */
  const http_settings_s *settings;
  intptr_t uuid;
  http_s *first, *last;
  http_input_s *in;          /* NULL: nothing is kept */
  uint32_t since_ms;         /* when the awaited head or body began */
  uint32_t answered_ms;      /* when nothing was owed any more */
  uint8_t owed;              /* from first to last */
  bool has_ended : 1;        /* no more input counts */
  bool is_held : 1;          /* not reading, until answers have left */
  bool is_held_for_turn : 1; /* … all of them */
  bool has_short_time : 1;   /* the core's time-out is not the idle one */
  bool has_read : 1;         /* a byte, ever */
} http_conn_s;

struct http_s {
  http_s *next;      /* in turn; in the list of spare ones */
  http_conn_s *conn; /* NULL: it has gone */
  const http_settings_s *settings;
  char *kept;      /* an answer that waits for its turn, malloc'ed */
  size_t kept_len; /* from HTTP_FRONT_MAX on, see http_reply.c */
  uint16_t status;
  bool is_answered, is_head, is_http10;
  bool closes; /* the connection ends after this answer */
};

/* The request being handled. Handlers do not nest, so there is one. */
typedef struct {
  http_s *h; /* NULL: none, or it has been answered */
  http_conn_s *conn;
  http_request_s request;
  http_bytes_s rest; /* what was read behind it */
} http_current_s;

extern http_current_s http_current;

/* ---- http_reply.c ------------------------------------------------------ */

/* Owe one more answer. NULL: there is no memory. */
http_s *http_owe(http_conn_s *c);

/* Write what is answered and has its turn. */
void http_write_on(http_conn_s *c);

/* Let go of what is owed: the connection is gone. */
void http_disown(http_conn_s *c);

/* ---- http_conn.c ------------------------------------------------------- */

/* No more input counts; the connection ends when what is owed has left. */
void http_end_input(http_conn_s *c);

/* An answer has left, or the queue is empty: go on reading if there is room. */
void http_has_room(http_conn_s *c);

/* ---- http_route.c ------------------------------------------------------ */

/* Room for the segment of a path with at most `url_bytes`. -1 and ENOMEM. */
FACIL_MUST_CHECK int http_route_reserve(size_t url_bytes);

/* Hand the current request to the gate and to its route. */
void http_route(http_s *h);

#endif
