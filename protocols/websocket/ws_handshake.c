/* ws_handshake.c - the server's side of the opening handshake (RFC 6455
 * section 4.2), as bytes.
 *
 * The checks stand in the order in which they are worth telling: method and
 * HTTP version, then whether a WebSocket is meant at all, then its version
 * (which must be settled before anything else of the handshake is judged), then
 * the rest. All of them take time linear in the bytes of the head.
 *
 * Invariant: out->accept is made only of a key of exactly 24 base64 bytes, so
 * nothing that a peer sent gets into an answer. */
#include "facil/ws_handshake.h"
#include <openssl/evp.h>
#include <pthread.h>

#define KEY_LEN 24 /* base64 of 16 bytes */
#define SHA1_LEN 20

#define FIELD_UPGRADE VIEW_LIT("Upgrade")
#define FIELD_CONNECTION VIEW_LIT("Connection")
#define FIELD_KEY VIEW_LIT("Sec-WebSocket-Key")
#define FIELD_VERSION VIEW_LIT("Sec-WebSocket-Version")
#define FIELD_PROTOCOL VIEW_LIT("Sec-WebSocket-Protocol")

/* --- Sec-WebSocket-Accept --- */

static pthread_once_t sha1_once = PTHREAD_ONCE_INIT;
static EVP_MD *sha1;

/* Fetching takes longer than hashing; it is kept for the process's life. */
static void fetch_sha1(void) {
  sha1 = EVP_MD_fetch(NULL, "SHA1", NULL);
}

static bool make_accept(view_s key, char accept[WS_ACCEPT_LEN + 1]) {
  static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  char text[KEY_LEN + sizeof guid - 1];
  unsigned char hash[SHA1_LEN];
  pthread_once(&sha1_once, fetch_sha1);
  memcpy(text, key.data, KEY_LEN);
  memcpy(text + KEY_LEN, guid, sizeof guid - 1);
  if (!sha1 || EVP_Digest(text, sizeof text, hash, NULL, sha1, NULL) != 1)
    return false;
  EVP_EncodeBlock((unsigned char *)accept, hash, sizeof hash);
  return true;
}

void ws_handshake_prepare(void) {
  char accept[WS_ACCEPT_LEN + 1];
  (void)make_accept(VIEW_LIT("dGhlIHNhbXBsZSBub25jZQ=="), accept);
}

/* --- fields --- */

static bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
         (c >= 'a' && c <= 'z');
}

/* RFC 9110 section 5.6.2. */
static bool is_token(view_s v) {
  for (size_t i = 0; i < v.len; i++)
    if (!is_alnum(v.data[i]) &&
        (!v.data[i] || !strchr("!#$%&'*+-.^_`|~", v.data[i])))
      return false;
  return v.len > 0;
}

/* Base64 of 16 bytes: 22 digits and two paddings. The four bits of the last
 * digit that nobody needs may be set; there are clients which make up their
 * keys as text, and the key is used as it was sent. */
static bool is_key(view_s v) {
  for (size_t i = 0; i < v.len && i < KEY_LEN - 2; i++)
    if (!is_alnum(v.data[i]) && v.data[i] != '+' && v.data[i] != '/')
      return false;
  return v.len == KEY_LEN && memcmp(v.data + KEY_LEN - 2, "==", 2) == 0;
}

/* The place of `name` among the `n` names, -1 if it is not there. */
static int place_of(view_s name, const view_s *names, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (view_eq(name, names[i]))
      return (int)i;
  return -1;
}

/* One field's list of subprotocols: at least one token, nothing else. */
static bool read_subprotocols(view_s list, const view_s *names, size_t n,
                              int *chosen) {
  view_s name;
  size_t count = 0;
  for (; http_list_next(&list, &name); count++) {
    if (!is_token(name))
      return false;
    if (*chosen < 0)
      *chosen = place_of(name, names, n);
  }
  return count > 0;
}

/* Several fields are one list, in their order. */
static bool choose_subprotocol(const http_request_s *req, const view_s *names,
                               size_t n, int *chosen) {
  *chosen = -1;
  for (size_t i = 0; i < req->header_count; i++)
    if (view_eq_nocase(req->headers[i].name, FIELD_PROTOCOL) &&
        !read_subprotocols(req->headers[i].value, names, n, chosen))
      return false;
  return true;
}

/* --- the request --- */

static int refuse(ws_handshake_s *out, int status, const char *detail) {
  out->detail = detail;
  return status;
}

/* What makes it a request for a WebSocket. */
static int check_upgrade(const http_request_s *req, ws_handshake_s *out) {
  if (!view_eq(req->method, VIEW_LIT("GET")))
    return refuse(out, 405, "A WebSocket is opened by GET.");
  if (req->minor < 1)
    return refuse(out, 400, "A WebSocket needs HTTP/1.1.");
  if (!http_header_has_token(req, FIELD_CONNECTION, VIEW_LIT("upgrade")))
    return refuse(out, 400, "The Connection field does not name Upgrade.");
  if (!http_header_has_token(req, FIELD_UPGRADE, VIEW_LIT("websocket")))
    return refuse(out, 400, "The Upgrade field does not name websocket.");
  if (req->chunked || req->content_length)
    return refuse(out, 400, "A WebSocket is opened without a body.");
  return 0;
}

static int check_version(const http_request_s *req, ws_handshake_s *out) {
  if (http_header_times(req, FIELD_VERSION) > 1)
    return refuse(out, 400, "Sec-WebSocket-Version was sent twice.");
  if (!view_eq(http_header(req, FIELD_VERSION), VIEW_LIT("13")))
    return refuse(out, 426, "Sec-WebSocket-Version has to be 13.");
  return 0;
}

int ws_handshake_read(const http_request_s *req, const view_s *subprotocols,
                      size_t n, ws_handshake_s *out) {
  *out = (ws_handshake_s){.subprotocol = -1};
  int status = check_upgrade(req, out);
  if (status == 0)
    status = check_version(req, out);
  if (status)
    return status;
  const view_s key = http_header(req, FIELD_KEY);
  if (http_header_times(req, FIELD_KEY) != 1 || !is_key(key))
    return refuse(out, 400, "Sec-WebSocket-Key has to be one, of 16 bytes.");
  if (!choose_subprotocol(req, subprotocols, n, &out->subprotocol)) {
    out->subprotocol = -1;
    return refuse(out, 400, "Sec-WebSocket-Protocol is not a list of tokens.");
  }
  if (!make_accept(key, out->accept))
    return refuse(out, 500, "SHA-1 is not available.");
  return 0;
}

/* --- the answer --- */

typedef struct {
  char *out;
  size_t cap;
  size_t len; /* cap + 1 and more: it did not fit */
} text_s;

static void put(text_s *t, view_s v) {
  if (t->len <= t->cap && v.len <= t->cap - t->len) {
    memcpy(t->out + t->len, v.data, v.len);
    t->len += v.len;
  } else {
    t->len = t->cap + 1;
  }
}

size_t ws_handshake_response(char *out, size_t cap, const ws_handshake_s *h,
                             view_s subprotocol) {
  text_s t = {.out = out, .cap = cap};
  put(&t, VIEW_LIT("HTTP/1.1 101 Switching Protocols\r\n"
                   "Upgrade: websocket\r\n"
                   "Connection: Upgrade\r\n"
                   "Sec-WebSocket-Accept: "));
  put(&t, view_of(h->accept, WS_ACCEPT_LEN));
  if (subprotocol.len) {
    put(&t, VIEW_LIT("\r\nSec-WebSocket-Protocol: "));
    put(&t, subprotocol);
  }
  put(&t, VIEW_LIT("\r\n\r\n"));
  return t.len <= cap ? t.len : 0;
}
