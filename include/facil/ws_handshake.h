/* ws_handshake.h - the server's side of the opening handshake, as bytes
 * (RFC 6455 section 4.2).
 *
 * Reads a request that http_parse.h has taken apart and writes the head of the
 * answer; it knows no socket and keeps nothing of the request. What concerns
 * policy (path, Origin, credentials) is the caller's to check before.
 *
 * All functions may be called on any thread. */
#ifndef FACIL_WS_HANDSHAKE_H
#define FACIL_WS_HANDSHAKE_H

#include "http_parse.h"

#define WS_ACCEPT_LEN 28 /* base64 of a SHA-1 */

/* The whole 101 head without the name of a subprotocol is shorter. */
#define WS_RESPONSE_MAX 192

typedef struct {
  char accept[WS_ACCEPT_LEN + 1]; /* Sec-WebSocket-Accept, ends with NUL */
  int subprotocol;                /* index into `subprotocols`, -1: none */
  const char *detail; /* when refused: a static sentence, else NULL */
} ws_handshake_s;

/* Whether `req` is a valid opening handshake. 0 if it is: out->accept and
 * out->subprotocol are filled. Of the `n` subprotocols that we speak (names are
 * compared as they stand, with case) the one is taken that the client named
 * first. Extensions are not looked at: none is agreed on.
 *
 * Else the HTTP status to answer with, and out->detail:
 *   405 not a GET;
 *   426 Sec-WebSocket-Version is not 13: the answer must carry the field
 *       `Sec-WebSocket-Version: 13`;
 *   400 anything else, also a request with a body;
 *   500 OpenSSL has no SHA-1 or no memory. */
FACIL_PUBLIC FACIL_MUST_CHECK int ws_handshake_read(const http_request_s *req,
                                                    const view_s *subprotocols,
                                                    size_t n,
                                                    ws_handshake_s *out);

/* Load what the first handshake would otherwise wait for. */
FACIL_PUBLIC void ws_handshake_prepare(void);

/* Write the whole head of the 101 answer to `out`, each field once, and return
 * its length; 0 if `cap` is less. WS_RESPONSE_MAX + subprotocol.len is always
 * enough. `subprotocol` is the name that goes with h->subprotocol, or empty:
 * then the field is left out. */
FACIL_PUBLIC FACIL_MUST_CHECK size_t ws_handshake_response(
    char *out, size_t cap, const ws_handshake_s *h, view_s subprotocol);

#endif
