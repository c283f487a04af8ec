/* ws_handshake_fuzz.c - the opening handshake, fed with header fields.
 *
 * Input: a byte of bits (which fields of a good handshake are there by
 * themselves, the method, the version of HTTP), then lines `name:value`, with
 * any bytes but the line end: more than an HTTP parser would let through. What
 * is accepted has to give an answer of exactly the known lines, with a
 * subprotocol that the client named; what is not, a status that is promised. */
#include "facil/ws_handshake.h"
#include "fuzz.h"
#include <assert.h>
#include <stdlib.h>

enum {
  BIT_CONNECTION = 1,
  BIT_UPGRADE = 2,
  BIT_VERSION = 4,
  BIT_KEY = 8,
  BIT_POST = 16,
  BIT_HTTP_1_0 = 32,
  BIT_BODY = 64,
  BIT_CHUNKED = 128
};

static const view_s ours[] = {{"crier.v1", 8}, {"chat", 4}, {"a", 1}};
#define OURS (sizeof ours / sizeof *ours)

static http_header_s headers[HTTP_HEADERS_MAX];

static void add_header(http_request_s *req, view_s name, view_s value) {
  if (req->header_count < HTTP_HEADERS_MAX)
    headers[req->header_count++] = (http_header_s){name, view_trim(value)};
}

static void add_good_headers(http_request_s *req, uint8_t bits) {
  if (bits & BIT_CONNECTION)
    add_header(req, VIEW_LIT("Connection"), VIEW_LIT("keep-alive, Upgrade"));
  if (bits & BIT_UPGRADE)
    add_header(req, VIEW_LIT("Upgrade"), VIEW_LIT("websocket"));
  if (bits & BIT_VERSION)
    add_header(req, VIEW_LIT("Sec-WebSocket-Version"), VIEW_LIT("13"));
  if (bits & BIT_KEY)
    add_header(req, VIEW_LIT("Sec-WebSocket-Key"),
               VIEW_LIT("dGhlIHNhbXBsZSBub25jZQ=="));
}

static void add_lines(http_request_s *req, view_s text) {
  while (text.len) {
    const char *end = memchr(text.data, '\n', text.len);
    const view_s line =
        view_sub(text, 0, end ? (size_t)(end - text.data) : text.len);
    const char *colon = line.len ? memchr(line.data, ':', line.len) : NULL;
    if (colon) {
      const size_t at = (size_t)(colon - line.data);
      add_header(req, view_sub(line, 0, at), view_sub(line, at + 1, line.len));
    }
    text = view_sub(text, line.len + 1, text.len);
  }
}

static bool is_named(const http_request_s *req, view_s name) {
  return http_header_has_token(req, VIEW_LIT("Sec-WebSocket-Protocol"), name);
}

static void take(view_s *text, view_s expect) {
  assert(view_starts(*text, expect));
  *text = view_sub(*text, expect.len, text->len);
}

/* The known lines, and no byte more. */
static void check_answer(const ws_handshake_s *h) {
  char out[WS_RESPONSE_MAX + 16];
  const view_s name =
      h->subprotocol < 0 ? view_of(NULL, 0) : ours[h->subprotocol];
  view_s text = view_of(out, ws_handshake_response(out, sizeof out, h, name));
  take(&text, VIEW_LIT("HTTP/1.1 101 Switching Protocols\r\n"
                       "Upgrade: websocket\r\nConnection: Upgrade\r\n"
                       "Sec-WebSocket-Accept: "));
  take(&text, view_str(h->accept));
  take(&text, VIEW_LIT("\r\n"));
  if (name.len) {
    take(&text, VIEW_LIT("Sec-WebSocket-Protocol: "));
    take(&text, name);
    take(&text, VIEW_LIT("\r\n"));
  }
  take(&text, VIEW_LIT("\r\n"));
  assert(text.len == 0);
}

static void check_accepted(const http_request_s *req, uint8_t bits,
                           const ws_handshake_s *h) {
  assert(!(bits & (BIT_POST | BIT_HTTP_1_0 | BIT_BODY | BIT_CHUNKED)));
  assert(http_header_times(req, VIEW_LIT("Sec-WebSocket-Key")) == 1);
  assert(http_header_times(req, VIEW_LIT("Sec-WebSocket-Version")) == 1);
  assert(h->detail == NULL);
  assert(strlen(h->accept) == WS_ACCEPT_LEN);
  assert(h->accept[WS_ACCEPT_LEN - 1] == '=');
  assert(h->subprotocol >= -1 && h->subprotocol < (int)OURS);
  const view_s first = http_header(req, VIEW_LIT("Sec-WebSocket-Protocol"));
  for (size_t i = 0; i < OURS; i++)
    assert(!view_eq(first, ours[i]) || h->subprotocol == (int)i);
  if (h->subprotocol >= 0)
    assert(is_named(req, ours[h->subprotocol]));
  check_answer(h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  const uint8_t bits = data[0];
  http_request_s req = {.method = bits & BIT_POST ? VIEW_LIT("POST")
                                                  : VIEW_LIT("GET"),
                        .headers = headers,
                        .content_length = bits & BIT_BODY ? 1 : 0,
                        .minor = bits & BIT_HTTP_1_0 ? 0 : 1,
                        .chunked = bits & BIT_CHUNKED};
  ws_handshake_s h;
  add_good_headers(&req, bits);
  add_lines(&req, view_of(data + 1, size - 1));
  const int status = ws_handshake_read(&req, ours, OURS, &h);
  assert(status == 0 || status == 400 || status == 405 || status == 426);
  if (status == 0)
    check_accepted(&req, bits, &h);
  else
    assert(h.detail && h.subprotocol == -1 && h.accept[0] == 0);
  return 0;
}
