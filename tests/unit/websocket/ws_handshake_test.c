/* ws_handshake_test.c - opening handshakes: the bytes of a request in, a status
 * or the bytes of a 101 out.
 *
 * The requests go through http_parse.h as they would come from a peer. */
#include "facil/ws_handshake.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define KEY "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define VERSION "Sec-WebSocket-Version: 13\r\n"
#define UPGRADE "Upgrade: websocket\r\nConnection: Upgrade\r\n"
#define GET "GET /channels/a HTTP/1.1\r\nHost: t\r\n"
#define ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

static const http_limits_s limits = {.header_bytes = 1 << 20,
                                     .header_count = HTTP_HEADERS_MAX,
                                     .url_bytes = 8192,
                                     .body_bytes = 1 << 20};
static const view_s ours[] = {{"crier.v1", 8}, {"chat", 4}, {"crier.v2", 8}};

/* Bytes that come in two pieces, split at `at`, then the handshake. */
static int shake_split(view_s in, size_t at, ws_handshake_s *h) {
  static http_header_s headers[HTTP_HEADERS_MAX];
  http_request_s req;
  size_t scanned = 0;
  ssize_t n =
      http_parse_head(view_of(in.data, at), &limits, headers, &scanned, &req);
  if (n == 0)
    n = http_parse_head(in, &limits, headers, &scanned, &req);
  cr_assert_eq(n, (ssize_t)in.len, "%zd: %s", n, n < 0 ? req.detail : "short");
  return ws_handshake_read(&req, ours, COUNT(ours), h);
}

static int shake(view_s in, ws_handshake_s *h) {
  return shake_split(in, in.len, h);
}

/* The status for a head made of `lines`, without its empty line; the same
 * wherever it is split. */
static int status_of(const char *lines) {
  ws_handshake_s h;
  char text[4096];
  const int n = snprintf(text, sizeof text, "%s\r\n", lines);
  const view_s in = view_of(text, (size_t)n);
  const int status = shake(in, &h);
  cr_assert(status == 0 ? h.detail == NULL : h.detail != NULL);
  for (size_t at = 0; at < in.len; at++)
    cr_assert_eq(shake_split(in, at, &h), status, "split at %zu", at);
  return status;
}

static void expect_each(int status, const char *const *lines, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const int got = status_of(lines[i]);
    cr_assert_eq(got, status, "number %zu: %d for\n%s", i, got, lines[i]);
  }
}

#define EXPECT(status, ...)                                                    \
  do {                                                                         \
    const char *const all[] = {__VA_ARGS__};                                   \
    expect_each(status, all, COUNT(all));                                      \
  } while (0)

Test(ws_handshake, the_sample_of_the_rfc_gets_its_accept_value) {
  ws_handshake_s h;
  cr_assert_eq(shake(VIEW_LIT(GET UPGRADE KEY VERSION "\r\n"), &h), 0);
  cr_assert_str_eq(h.accept, ACCEPT);
  cr_assert_eq(h.subprotocol, -1);
  cr_assert_null(h.detail);
}

Test(ws_handshake, H01_the_forms_of_Connection_and_Upgrade_in_use_are_taken) {
#define LINE(s) GET s KEY VERSION
  EXPECT(0, LINE("Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"),
         LINE("Upgrade: websocket\r\nConnection: Upgrade,keep-alive\r\n"),
         LINE("Upgrade: websocket\r\nConnection:  upgrade \r\n"),
         LINE("Upgrade: websocket\r\nConnection: keep-alive\r\n"
              "Connection: Upgrade\r\n"),
         LINE("Upgrade: WebSocket\r\nConnection: upgrade\r\n"),
         LINE("Upgrade: h2c, websocket\r\nConnection: UPGRADE\r\n"),
         LINE("Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"),
         LINE("Upgrade: ,websocket,\r\nConnection: , Upgrade ,,\r\n"));
#undef LINE
}

Test(ws_handshake, H01_names_of_fields_have_no_case) {
  EXPECT(0, "GET / HTTP/1.1\r\nhost: t\r\nupgrade: websocket\r\n"
            "connection: upgrade\r\n"
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "SEC-WEBSOCKET-VERSION: 13\r\n");
}

Test(ws_handshake, a_request_that_does_not_ask_for_an_upgrade_is_400) {
  EXPECT(400, GET KEY VERSION, GET "Upgrade: websocket\r\n" KEY VERSION,
         GET "Connection: Upgrade\r\n" KEY VERSION,
         GET "Upgrade: websocket\r\nConnection: close\r\n" KEY VERSION,
         GET "Upgrade: websocket\r\nConnection: upgraded\r\n" KEY VERSION,
         GET "Upgrade: h2c\r\nConnection: Upgrade\r\n" KEY VERSION,
         GET "Upgrade: websockets\r\nConnection: Upgrade\r\n" KEY VERSION,
         GET "Upgrade: web socket\r\nConnection: Upgrade\r\n" KEY VERSION);
}

Test(ws_handshake, H02_a_key_that_is_not_16_bytes_is_400) {
#define LINE(s) GET UPGRADE VERSION "Sec-WebSocket-Key: " s "\r\n"
  EXPECT(400, LINE("abc"), LINE(""), LINE("dGhlIHNhbXBsZSBub25j"), /* 15 */
         LINE("dGhlIHNhbXBsZSBub25jZWU="),                         /* 17 */
         LINE("dGhlIHNhbXBsZSBub25jZWVl"),                         /* 18 */
         LINE("dGhlIHNhbXBsZSBub25jZQ"), LINE("dGhlIHNhbXBsZSBub25jZQ="),
         LINE("dGhlIHNhbXBsZSBub25jZQ==="), LINE("dGhlIHNhbXBsZSBub25jZ==="),
         LINE("dGhlIHNhbXBsZSBub25j=Q=="), LINE("dGhlIHNhbXBsZSBub25 ZQ=="),
         LINE("dGhlIHNhbXBsZSBub2-_ZQ=="), LINE("dGhlIHNhbXBsZSBub2\x80jZQ=="));
#undef LINE
}

Test(ws_handshake, H02_a_key_that_is_missing_or_sent_twice_is_400) {
  EXPECT(400, GET UPGRADE VERSION, GET UPGRADE VERSION KEY KEY,
         GET UPGRADE VERSION KEY
         "Sec-WebSocket-Key: AQIDBAUGBwgJCgsMDQ4PEA==\r\n");
}

Test(ws_handshake, H04_only_GET_opens_a_WebSocket) {
#define LINE(method) method " / HTTP/1.1\r\nHost: t\r\n" UPGRADE KEY VERSION
  EXPECT(405, LINE("POST"), LINE("HEAD"), LINE("PUT"), LINE("OPTIONS"),
         LINE("DELETE"));
#undef LINE
}

Test(ws_handshake, H04_HTTP_1_0_opens_no_WebSocket) {
  EXPECT(400, "GET / HTTP/1.0\r\nHost: t\r\n" UPGRADE KEY VERSION);
}

Test(ws_handshake, H04_a_version_other_than_13_is_426) {
#define LINE(v) GET UPGRADE KEY "Sec-WebSocket-Version: " v "\r\n"
  EXPECT(426, LINE("8"), LINE("12"), LINE("14"), LINE("013"), LINE("+13"),
         LINE("130"), LINE(""), LINE("13, 8"), GET UPGRADE KEY);
  /* An old client is told the version, whatever else is strange to us. */
  EXPECT(426, GET UPGRADE "Sec-WebSocket-Version: 8\r\n");
#undef LINE
}

Test(ws_handshake, H04_a_version_sent_twice_is_400) {
  EXPECT(400, GET UPGRADE KEY VERSION VERSION,
         GET UPGRADE KEY VERSION "Sec-WebSocket-Version: 8\r\n");
}

/* That http_parse.h refuses some of these by itself does not matter here. */
Test(ws_handshake, a_request_with_a_body_is_400) {
  http_header_s headers[] = {
      {VIEW_LIT("Connection"), VIEW_LIT("Upgrade")},
      {VIEW_LIT("Upgrade"), VIEW_LIT("websocket")},
      {VIEW_LIT("Sec-WebSocket-Version"), VIEW_LIT("13")},
      {VIEW_LIT("Sec-WebSocket-Key"), VIEW_LIT("dGhlIHNhbXBsZSBub25jZQ==")}};
  http_request_s req = {.method = VIEW_LIT("GET"),
                        .headers = headers,
                        .header_count = COUNT(headers),
                        .minor = 1};
  ws_handshake_s h;
  cr_assert_eq(ws_handshake_read(&req, NULL, 0, &h), 0);
  req.has_length = true;
  cr_assert_eq(ws_handshake_read(&req, NULL, 0, &h), 0);
  req.content_length = 1;
  cr_assert_eq(ws_handshake_read(&req, NULL, 0, &h), 400);
  req.content_length = 0;
  req.chunked = true;
  cr_assert_eq(ws_handshake_read(&req, NULL, 0, &h), 400);
}

/* --- subprotocols --- */

static int chosen(const char *fields) {
  ws_handshake_s h;
  char text[1024];
  const int n =
      snprintf(text, sizeof text, GET UPGRADE KEY VERSION "%s\r\n", fields);
  cr_assert_eq(shake(view_of(text, (size_t)n), &h), 0);
  return h.subprotocol;
}

#define PROTOCOL "Sec-WebSocket-Protocol: "

Test(ws_handshake, the_first_subprotocol_of_the_client_that_we_speak_is_taken) {
  cr_assert_eq(chosen(""), -1);
  cr_assert_eq(chosen(PROTOCOL "mqtt\r\n"), -1);
  cr_assert_eq(chosen(PROTOCOL "crier.v1\r\n"), 0);
  cr_assert_eq(chosen(PROTOCOL "crier.v2, crier.v1\r\n"), 2);
  cr_assert_eq(chosen(PROTOCOL "mqtt,chat,crier.v1\r\n"), 1);
  cr_assert_eq(chosen(PROTOCOL ", ,chat ,\r\n"), 1);
  cr_assert_eq(chosen(PROTOCOL "Crier.V1, crier.v\r\n"), -1);
}

Test(ws_handshake, subprotocols_in_several_fields_are_one_list) {
  cr_assert_eq(chosen(PROTOCOL "mqtt\r\n" PROTOCOL "chat\r\n"), 1);
  cr_assert_eq(chosen(PROTOCOL "crier.v2\r\nX: y\r\n" PROTOCOL "chat\r\n"), 2);
}

Test(ws_handshake, a_malformed_list_of_subprotocols_is_400) {
#define LINE(v) GET UPGRADE KEY VERSION PROTOCOL v "\r\n"
  EXPECT(400, LINE(""), LINE(","), LINE(" , ,"), LINE("a b"), LINE("chat, a/b"),
         LINE("chat;q=1"), LINE("\"chat\""), LINE("chat, (x)"),
         LINE("ch\xc3\xa9t"), LINE("chat") PROTOCOL "a b\r\n", LINE("a@b"),
         LINE("a\tb"));
  EXPECT(0, LINE("!#$%&'*+-.^_`|~09azAZ"), LINE("chat\t,\ta"));
#undef LINE
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A head whose list is "a", `n` times `fill`, "b"; the time that it takes. */
static double time_of(const char *fill, size_t n, int expect) {
  static const char before[] = GET UPGRADE KEY VERSION PROTOCOL "a";
  const size_t unit = strlen(fill);
  char *text = malloc(sizeof before + n * unit + 5);
  size_t len = sizeof before - 1;
  ws_handshake_s h;
  memcpy(text, before, len);
  for (size_t i = 0; i < n; i++, len += unit)
    memcpy(text + len, fill, unit);
  memcpy(text + len, "b\r\n\r\n", 5);
  const double start = seconds();
  cr_assert_eq(shake(view_of(text, len + 5), &h), expect);
  const double took = seconds() - start;
  free(text);
  return took;
}

/* A quadratic reader takes seconds for the last ones. */
Test(ws_handshake, H07_a_long_list_of_subprotocols_is_read_in_linear_time) {
  cr_assert_lt(time_of(" ", 60000, 400), 0.5);
  cr_assert_lt(time_of("\t ", 400000, 400), 0.5);
  cr_assert_lt(time_of(",", 900000, 0), 0.5);
  cr_assert_lt(time_of(" ,", 450000, 0), 0.5);
  cr_assert_lt(time_of("x,", 450000, 0), 0.5);
}

Test(ws_handshake, H08_extensions_are_ignored_whatever_they_hold) {
#define LINE(v) GET UPGRADE KEY VERSION "Sec-WebSocket-Extensions: " v "\r\n"
  EXPECT(0, LINE("constructor"), LINE("__proto__; a=b"), LINE("%s%n"), LINE(""),
         LINE("permessage-deflate; client_max_window_bits"), LINE(";;;,,,==="),
         LINE("\"unfinished"), LINE("a") "Sec-WebSocket-Extensions: b\r\n");
#undef LINE
}

/* --- the answer --- */

Test(ws_handshake, H14_the_answer_has_each_field_once) {
  ws_handshake_s h;
  char out[WS_RESPONSE_MAX];
  cr_assert_eq(shake(VIEW_LIT(GET UPGRADE KEY VERSION "\r\n"), &h), 0);
  static const char expect[] = "HTTP/1.1 101 Switching Protocols\r\n"
                               "Upgrade: websocket\r\n"
                               "Connection: Upgrade\r\n"
                               "Sec-WebSocket-Accept: " ACCEPT "\r\n"
                               "\r\n";
  const size_t n = ws_handshake_response(out, sizeof out, &h, view_of(NULL, 0));
  cr_assert_eq(n, sizeof expect - 1);
  cr_assert_arr_eq(out, expect, sizeof expect - 1);
}

Test(ws_handshake, H14_the_answer_names_the_subprotocol_once) {
  ws_handshake_s h;
  char out[WS_RESPONSE_MAX];
  cr_assert_eq(shake(VIEW_LIT(GET UPGRADE KEY VERSION PROTOCOL
                              "x, crier.v1, chat\r\n\r\n"),
                     &h),
               0);
  static const char expect[] = "HTTP/1.1 101 Switching Protocols\r\n"
                               "Upgrade: websocket\r\n"
                               "Connection: Upgrade\r\n"
                               "Sec-WebSocket-Accept: " ACCEPT "\r\n"
                               "Sec-WebSocket-Protocol: crier.v1\r\n"
                               "\r\n";
  const size_t n =
      ws_handshake_response(out, sizeof out, &h, ours[h.subprotocol]);
  cr_assert_eq(n, sizeof expect - 1);
  cr_assert_arr_eq(out, expect, sizeof expect - 1);
}

Test(ws_handshake, an_answer_that_does_not_fit_is_not_begun) {
  ws_handshake_s h = {.accept = ACCEPT, .subprotocol = 0};
  char out[2 * WS_RESPONSE_MAX];
  const size_t n = ws_handshake_response(out, sizeof out, &h, ours[0]);
  cr_assert_gt(n, 0);
  cr_assert_leq(n, WS_RESPONSE_MAX + ours[0].len);
  for (size_t cap = 0; cap < n; cap++) {
    char *small = malloc(cap ? cap : 1);
    cr_assert_eq(ws_handshake_response(small, cap, &h, ours[0]), 0);
    free(small);
  }
  cr_assert_eq(ws_handshake_response(out, n, &h, ours[0]), n);
}
