/* A WebSocket connection by its bytes: what it answers, in which order, and how
 * it ends. A raw subscriber gets back what it publishes, so it is an echo. */
#include "live.h"
#include <criterion/criterion.h>
#include <fcntl.h>

#define M "\0\0\0\0" /* a mask that leaves the payload readable */
#define BYTES(s) view_of(s, sizeof(s) - 1)

static poster_s poster;

static void begin(live_options_s o) {
  cr_assert(live_start(o));
}

static void end(void) {
  client_close(&poster.c);
  int status = live_stop();
  cr_assert_eq(status, 0, "%d", status);
}

static client_s echo(void) {
  client_s c = client_open("/channels/echo", NULL);
  cr_assert_geq(c.fd, 0);
  return c;
}

/* Send bytes at once, or one by one. */
static void send_bytes(client_s *c, view_s bytes, bool one_by_one) {
  if (!one_by_one) {
    client_send(c, bytes.data, bytes.len);
    return;
  }
  for (size_t i = 0; i < bytes.len; i++)
    if (!client_send(c, bytes.data + i, 1))
      return;
}

/* All frames that come until the end, or until nothing comes for a while, as
 * "xx payload|". */
static const char *all_frames(client_s *c, int quiet_ms) {
  static char text[8192];
  size_t n = 0;
  live_frame_s f;
  while (n < 8000 && client_frame(c, &f, quiet_ms)) {
    n += (size_t)snprintf(text + n, 8, "%02x ", f.first);
    for (size_t i = 0; i < f.payload.len && i < 200; i++) {
      uint8_t b = (uint8_t)f.payload.data[i];
      n += (size_t)snprintf(text + n, 8, b >= ' ' && b < 0x7f ? "%c" : "\\%02x",
                            b);
    }
    n += (size_t)snprintf(text + n, 8, "|");
  }
  snprintf(text + n, 16, "%s", c->has_ended ? "end" : "");
  return text;
}

typedef struct {
  const char *name;
  view_s in;
  const char *out;
} talk_s;

#define TALK(name, in, out)                                                    \
  { name, VIEW_INIT(in), out }

static const talk_s talks[] = {
    TALK("F01", "\x01\x82" M "ab\x80\x82" M "cd", "81 abcd|"),
    TALK("F02", "\x01\x81" M "a\x89\x81" M "x\x80\x81" M "b", "8a x|81 ab|"),
    TALK("F02 masked",
         "\x01\x81\x01\x02\x03\x04"
         "`\x89\x81\x01\x02\x03\x04y\x00\x83\x01\x02\x03\x04"
         "cab\x80\x85\x01\x02\x03\x04ggkmh",
         "8a x|81 abcafehii|"),
    TALK("F04", "\x01\x81" M "a\x81\x81" M "b",
         "88 \\03\\eanew message inside a message|end"),
    TALK("F05", "\x81\x02hi", "88 \\03\\eaunmasked frame from a client|end"),
    TALK("F07", "\x83\x80" M, "88 \\03\\eareserved opcode|end"),
    TALK("F07 control", "\x8b\x80" M, "88 \\03\\eareserved opcode|end"),
    TALK("F08", "\x89\xfe\x00\x7e" M,
         "88 \\03\\eacontrol frame above 125 bytes|end"),
    TALK("F10", "\x82\xff\x80\0\0\0\0\0\0\0" M,
         "88 \\03\\ealength above 63 bits|end"),
    TALK("F10 fits", "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff" M,
         "88 \\03\\f1message too big|end"),
    TALK("F11", "\x82\xff\0\0\0\0\x80\0\0\0" M,
         "88 \\03\\f1message too big|end"),
    TALK("F13", "\x8a\x80" M "\x8a\xff\xff\xff\xff\xff\xff\xff\xff\xff" M,
         "88 \\03\\eacontrol frame above 125 bytes|end"),
    TALK("F25", "\x81\x80" M "\x82\x80" M, "81 |82 |"),
    TALK("F27", "\x81\x83" M "a\0b", "81 a\\00b|"),
    TALK("F31", "\x81\x83" M "abc\x81\x82" M "de\x82\x81" M "p",
         "81 abc|81 de|82 p|"),
    TALK("ping", "\x89\x80" M "\x89\x81" M "1\x8a\x80" M "\x89\x82" M "22",
         "8a |8a 1|8a 22|"),
    TALK("binary in parts", "\x02\x80" M "\0\x81" M "\xff\x80\x80" M,
         "82 \\ff|"),
    TALK("not UTF-8", "\x81\x81" M "\xff", "88 \\03\\eftext is not UTF-8|end"),
    TALK("half a character", "\x81\x81" M "\xc3",
         "88 \\03\\eftext ends inside a character|end"),
    TALK("C01", "\x88\x80" M, "88 |end"),
    TALK("C03 1000",
         "\x88\x85" M "\x03\xe8"
         "bye",
         "88 \\03\\e8bye|end"),
    TALK("C03 4999", "\x88\x82" M "\x13\x87", "88 \\13\\87|end"),
    TALK("C03 0", "\x88\x82" M "\0\0", "88 \\03\\eabad close|end"),
    TALK("C03 999", "\x88\x82" M "\x03\xe7", "88 \\03\\eabad close|end"),
    TALK("C03 1004", "\x88\x82" M "\x03\xec", "88 \\03\\eabad close|end"),
    TALK("C03 1005", "\x88\x82" M "\x03\xed", "88 \\03\\eabad close|end"),
    TALK("C03 1006", "\x88\x82" M "\x03\xee", "88 \\03\\eabad close|end"),
    TALK("C03 1015", "\x88\x82" M "\x03\xf7", "88 \\03\\eabad close|end"),
    TALK("C03 2999", "\x88\x82" M "\x0b\xb7", "88 \\03\\eabad close|end"),
    TALK("C03 5000", "\x88\x82" M "\x13\x88", "88 \\03\\eabad close|end"),
    TALK("one byte", "\x88\x81" M "x", "88 \\03\\eabad close|end"),
    TALK("C04", "\x88\x84" M "\x03\xe8\xc3\x28", "88 \\03\\efbad close|end"),
    TALK("nothing counts after a close",
         "\x88\x80" M "\x89\x80" M "\x81\x81" M "x\x88\x80" M, "88 |end"),
    TALK("nothing counts after an error",
         "\x83\x80" M "\x88\x80" M "\x89\x80" M,
         "88 \\03\\eareserved opcode|end"),
};

Test(websocket, each_talk_has_its_answer_however_it_is_cut, .timeout = 90) {
  begin((live_options_s){.workers = 1});
  for (size_t i = 0; i < 2 * sizeof talks / sizeof *talks; i++) {
    const talk_s *t = &talks[i / 2];
    client_s c = echo();
    send_bytes(&c, t->in, i & 1);
    bool ends = strstr(t->out, "end");
    const char *got = all_frames(&c, ends ? 3000 : 40);
    /* pongs go by the own queue, messages come back by the channel */
    cr_expect_str_eq(got, t->out, "%s: %s", t->name, got);
    client_close(&c);
  }
  end();
}

Test(websocket, lengths_at_every_border_come_back_whole, .timeout = 60) {
  begin((live_options_s){.workers = 1}); /* F14, F16 */
  client_s c = echo();
  static const size_t lengths[] = {0,     1,     125,   126,    127,
                                   128,   4095,  4096,  4097,   65534,
                                   65535, 65536, 65537, 131072, 1 << 20};
  static char data[1 << 20];
  for (size_t i = 0; i < sizeof data; i++)
    data[i] = (char)(i * 31 + i / 1000);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    live_frame_s f;
    client_write(&c, WS_FIN_BINARY, view_of(data, lengths[i]));
    cr_assert(client_frame(&c, &f, 5000), "%zu", lengths[i]);
    cr_expect_eq(f.first, WS_FIN_BINARY);
    cr_expect(view_eq(f.payload, view_of(data, lengths[i])), "%zu", lengths[i]);
  }
  static char many[1000 * 40];
  size_t n = 0;
  for (uint32_t i = 0; i < 1000; i++) {
    uint8_t mask[4] = {(uint8_t)i, (uint8_t)(i * 7), (uint8_t)(i * 13), 99};
    n += ws_frame_client(many + n, WS_FIN_BINARY, mask,
                         view_of(data + i, i % 17 + 1));
  }
  client_send(&c, many, n);
  for (uint32_t i = 0; i < 1000; i++) {
    live_frame_s f;
    cr_assert(client_frame(&c, &f, 5000));
    cr_assert(view_eq(f.payload, view_of(data + i, i % 17 + 1)), "%u", i);
  }
  client_close(&c);
  end();
}

Test(websocket, fragments_end_at_the_limit_of_the_message, .timeout = 30) {
  begin((live_options_s){.message_max = 4096}); /* F19 */
  client_s c = echo();
  static char half[2048];
  client_write(&c, WS_BINARY, view_of(half, sizeof half));
  client_write(&c, WS_CONTINUATION, view_of(half, sizeof half));
  client_write(&c, WS_CONTINUATION, view_of(half, 1));
  cr_expect_str_eq(all_frames(&c, 3000), "88 \\03\\f1message too big|end");
  client_close(&c);
  end();
}

/* F17: bytes behind the handshake, and both cut at every place. */
Test(websocket, the_first_frame_counts_wherever_the_handshake_is_cut,
     .timeout = 60) {
  begin((live_options_s){.workers = 1});
  client_s c = {.fd = live_connect(0)};
  cr_assert_eq(
      client_upgrade(&c, "/channels/echo", NULL, BYTES("\x81\x82" M "hi")),
      101);
  cr_expect_str_eq(client_next(&c), "hi");
  client_close(&c);
  static const char all[] =
      "GET /channels/f17 HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
      "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
      "Sec-WebSocket-Version: 13\r\n\r\n\x81\x82" M "hi";
  for (size_t cut = 1; cut < sizeof all - 1; cut += cut < 150 ? 7 : 1) {
    c = (client_s){.fd = live_connect(0)};
    client_send(&c, all, cut);
    live_pause(1);
    client_send(&c, all + cut, sizeof all - 1 - cut);
    cr_assert_gt(client_head(&c), 0);
    const char *got = client_next(&c);
    cr_expect_str_eq(got, "hi", "%zu: %s", cut, got);
    client_reset(&c);
  }
  end();
}

/* ---- a full socket ----------------------------------------------------- */

/* A subscriber that does not read, and a socket that is full. */
static client_s stopped(const char *protocol, size_t bytes, int messages) {
  client_s c = client_open_with("/channels/echo", protocol, 4096);
  cr_assert_geq(c.fd, 0);
  char *body = malloc(bytes);
  memset(body, 'b', bytes);
  for (int i = 0; i < messages; i++)
    cr_assert_eq(
        post(&poster, "/channels/echo", "text/plain", view_of(body, bytes)),
        201);
  free(body);
  return c;
}

static void pongs_in_order(size_t bytes, bool no_uring) { /* F21, F22 */
  begin((live_options_s){.no_uring = no_uring, .tail_size = 8 << 20});
  client_s c = stopped(NULL, bytes, 4);
  for (int i = 0; i < 100; i++) {
    char text[16];
    snprintf(text, sizeof text, "%d", i);
    cr_assert(client_write(&c, WS_FIN_PING, view_str(text)));
  }
  live_pause(50);
  int pongs = 0, messages = 0;
  live_frame_s f;
  while (pongs + messages < 104 && client_frame(&c, &f, 5000)) {
    if (f.first == WS_FIN_TEXT) {
      cr_expect_eq(f.payload.len, bytes);
      for (size_t i = 0; i < f.payload.len; i++)
        cr_assert_eq(f.payload.data[i], 'b', "torn");
      messages++;
      continue;
    }
    char want[8];
    snprintf(want, sizeof want, "%d", pongs++);
    cr_expect_eq(f.first, WS_FIN_PONG);
    cr_expect(view_eq(f.payload, view_str(want)), "%s", want);
  }
  cr_expect_eq(pongs, 100);
  cr_expect_eq(messages, 4);
  client_close(&c);
  end();
}

Test(websocket, pings_to_a_full_socket_are_answered_in_order, .timeout = 30) {
  pongs_in_order(200000, false);
}

Test(websocket, pings_to_a_full_socket_are_answered_in_order_by_plain_send,
     .timeout = 30) {
  pongs_in_order(200000, true);
}

Test(websocket, pings_behind_a_frame_of_a_mebibyte_are_answered,
     .timeout = 30) {
  pongs_in_order(1 << 20, false);
}

/* F24: what is not read costs little, and ends by slow.timeout. */
Test(websocket, a_flood_of_pings_without_reading_is_held_and_ends,
     .timeout = 60) {
  begin((live_options_s){.ping_ms = 200, .slow_ms = 600});
  client_s c = client_open_with("/channels/echo", NULL, 4096);
  live_recount();
  size_t before = live_sum(heap), most = 0;
  static const uint8_t mask[4] = {1, 2, 3, 4};
  static char frames[131 * 500], payload[125];
  size_t n = 0;
  for (int i = 0; i < 500; i++)
    n += ws_frame_client(frames + n, WS_FIN_PING, mask,
                         view_of(payload, sizeof payload));
  fcntl(c.fd, F_SETFL, O_NONBLOCK);
  uint64_t from = live_ms();
  size_t sent = 0;
  bool is_lost = false;
  while (!is_lost && live_ms() - from < 20000 && sent < 200u << 20) {
    size_t at = sent % n; /* the stream stays whole over short sends */
    ssize_t r = send(c.fd, frames + at, n - at, MSG_NOSIGNAL);
    sent += r > 0 ? (size_t)r : 0;
    is_lost = r < 0 && errno != EAGAIN;
    if (r < 0)
      live_pause(1);
    if (live_sum(heap) > most)
      most = live_sum(heap);
  }
  cr_expect(is_lost, "it is never lost: %zu bytes were taken", sent);
  cr_expect_geq(live_ms() - from, 500, "after %d ms", (int)(live_ms() - from));
#ifndef LIVE_ASAN
  cr_expect_lt(most - before, 300000, "%zu bytes", most - before);
#else
  (void)before;
#endif
  client_s other = client_open("/channels/other", NULL);
  client_write(&other, WS_FIN_PING, VIEW_LIT("x"));
  cr_expect_str_eq(client_next(&other), "(8a x)");
  client_close(&c);
  client_close(&other);
  end();
}

/* Who sends all the time and never reads is no less slow. */
Test(websocket, sending_does_not_make_up_for_not_reading, .timeout = 60) {
  begin((live_options_s){.ping_ms = 300, .slow_ms = 500});
  client_s c = stopped(NULL, 200000, 20);
  bool is_lost = false;
  for (int i = 0; i < 200 && !is_lost; i++) {
    is_lost = !client_write(&c, 0x8a, VIEW_LIT("")); /* a pong: no answer */
    live_pause(20);
  }
  cr_expect(is_lost);
  client_close(&c);
  end();
}

/* ---- time -------------------------------------------------------------- */

Test(websocket, silence_is_pinged_and_then_lost, .timeout = 30) {
  begin((live_options_s){.ping_ms = 200});
  client_s c = echo();
  uint64_t from = live_ms();
  cr_expect_str_eq(client_next(&c), "(89 )");
  cr_expect_geq(live_ms() - from, 150);
  client_write(&c, WS_FIN_PONG, VIEW_LIT(""));
  cr_expect_str_eq(client_next(&c), "(89 )");
  from = live_ms();
  cr_expect_str_eq(client_next(&c), "(end)");
  cr_expect_geq(live_ms() - from, 150);
  cr_expect_leq(live_ms() - from, 2000);
  client_close(&c);
  end();
}

Test(websocket, any_byte_counts_as_life, .timeout = 30) { /* F21 */
  begin((live_options_s){.ping_ms = 200});
  client_s c = echo();
  uint64_t from = live_ms();
  client_send(&c, "\x81\x8a" M, 6); /* and its payload by and by */
  for (int i = 0; i < 10; i++) {
    live_pause(120);
    client_send(&c, "x", 1);
  }
  cr_expect_str_eq(client_next(&c), "xxxxxxxxxx");
  cr_expect_geq(live_ms() - from, 1000);
  client_close(&c);
  end();
}

Test(websocket, a_close_that_is_not_answered_ends_all_the_same,
     .timeout = 30) { /* C07 */
  begin((live_options_s){.close_ms = 300, .message_max = 4096});
  client_s c = client_open("/channels/echo", NULL);
  live_terminate();
  uint64_t from = live_ms();
  cr_expect_str_eq(client_next(&c), "(close 1001 shutting down)");
  cr_expect_str_eq(client_next(&c), "(end)");
  cr_expect_geq(live_ms() - from, 250);
  cr_expect_leq(live_ms() - from, 3000);
  client_close(&c);
  end();
}

Test(websocket, a_stop_says_1001_once_and_takes_the_answer, .timeout = 30) {
  begin((live_options_s){.workers = 1}); /* C06 */
  client_s raw = echo(), v1 = client_open("/channels/a", "crier.v1");
  client_next(&v1);
  live_terminate();
  cr_expect_str_eq(client_next(&raw), "(close 1001 shutting down)");
  client_write(&raw, WS_FIN_CLOSE, BYTES("\x03\xe9"));
  cr_expect_str_eq(client_next(&raw), "(end)");
  cr_expect(strstr(client_next(&v1), "{\"op\":\"drain\",\"after_ms\":"));
  cr_expect_str_eq(client_next(&v1), "(close 1001 shutting down)");
  client_write(&v1, WS_FIN_CLOSE, BYTES("\x03\xe9"));
  cr_expect_str_eq(client_next(&v1), "(end)");
  client_close(&raw);
  client_close(&v1);
  end();
}

Test(websocket, a_notice_comes_first_and_all_is_served_in_it, .timeout = 30) {
  begin((live_options_s){.notice_ms = 500});
  client_s v1 = client_open("/channels/a", "crier.v1");
  client_next(&v1);
  uint64_t from = live_ms();
  live_terminate();
  const char *text = client_next(&v1);
  cr_expect(strstr(text, "\"op\":\"drain\""), "%s", text);
  cr_expect_geq(json_number(text, "after_ms"), 500);
  cr_expect_lt(json_number(text, "after_ms"), 1500);
  client_text(&v1, "{\"op\":\"publish\",\"channel\":\"a\",\"data\":1}");
  int met = 0;
  for (int i = 0; i < 2; i++) {
    text = client_next(&v1);
    met += strstr(text, "published") || strstr(text, "\"data\":1");
  }
  cr_expect_eq(met, 2);
  cr_expect_str_eq(client_next(&v1), "(close 1001 shutting down)");
  cr_expect_geq(live_ms() - from, 450);
  client_close(&v1);
  end();
}

/* Both close at once: one Close each way. */
Test(websocket, closes_that_cross_are_one_each_way, .timeout = 30) {
  begin((live_options_s){.workers = 1});
  client_s c = echo();
  live_terminate();
  client_write(&c, WS_FIN_CLOSE, BYTES("\x03\xe8"));
  live_frame_s f;
  cr_assert(client_frame(&c, &f, 5000));
  cr_expect_eq(f.first, WS_FIN_CLOSE);
  cr_expect_str_eq(client_next(&c), "(end)");
  client_close(&c);
  end();
}

Test(websocket, a_frame_cut_off_by_the_end_is_no_message, .timeout = 30) {
  begin((live_options_s){.workers = 1}); /* F31 */
  client_s other = echo();
  static const view_s cuts[] = {VIEW_INIT("\x81"), VIEW_INIT("\x81\x85" M),
                                VIEW_INIT("\x81\x85" M "hell"),
                                VIEW_INIT("\x01\x81" M "a"),
                                VIEW_INIT("\x88\x82" M "\x03")};
  for (size_t i = 0; i < 2 * sizeof cuts / sizeof *cuts; i++) {
    client_s c = echo();
    client_send(&c, cuts[i / 2].data, cuts[i / 2].len);
    if (i & 1)
      client_reset(&c);
    else
      client_close(&c);
  }
  cr_expect(live_until(live_sum(connections) == 1));
  client_text(&other, "still here");
  cr_expect_str_eq(client_next(&other), "still here");
  client_close(&other);
  end();
}

/* Nothing is kept for a connection between two messages. */
Test(websocket, parts_are_kept_for_as_long_as_something_is_cut_off,
     .timeout = 60) {
  begin((live_options_s){.workers = 1});
  enum { N = 100 };
  static client_s c[N];
  for (int i = 0; i < N; i++) {
    char path[64];
    snprintf(path, sizeof path, "/channels/own-%d", i);
    c[i] = client_open(path, NULL);
  }
  live_recount();
  size_t idle = live_sum(heap);
  for (int i = 0; i < N; i++)
    client_send(&c[i], "\x01\x83" M "abc\x89\x84" M "pi", 17);
  live_pause(30);
  live_recount();
  size_t cut = live_sum(heap);
  for (int i = 0; i < N; i++) {
    client_send(&c[i], "ng\x80\x83" M "def", 11);
    cr_expect_str_eq(client_next(&c[i]), "(8a ping)");
    cr_expect_str_eq(client_next(&c[i]), "abcdef");
  }
  live_pause(30);
  live_recount();
#ifndef LIVE_ASAN
  cr_expect_gt(cut, idle + N * 200, "%zu %zu", cut, idle);
  cr_expect_lt(live_sum(heap), idle + N * 40 + 20000, "%zu %zu", idle,
               live_sum(heap));
#else
  (void)cut, (void)idle;
#endif
  for (int i = 0; i < N; i++)
    client_close(&c[i]);
  end();
}
