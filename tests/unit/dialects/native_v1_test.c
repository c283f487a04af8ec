/* crier.v1 as a client sees it: each command and the exact text of its answer,
 * what hostile commands do, and that no message can be made to look like
 * another (judged by jansson, which had no part in writing it). */
#include "live.h"
#include <criterion/criterion.h>
#include <jansson.h>

static client_s c;
static poster_s poster;

static void begin(void) {
  cr_assert(live_start((live_options_s){.workers = 1}));
  c = client_open("/subscribe", "crier.v1");
  cr_assert_geq(c.fd, 0);
}

static void end(void) {
  client_close(&poster.c);
  client_close(&c);
  cr_assert_eq(live_stop(), 0);
}

/* Send a command; its answer, with every id of sixteen digits as "ID". */
static const char *ask(const char *command) {
  static char out[262144];
  if (!client_text(&c, command))
    return "(not sent)";
  const char *in = client_next(&c);
  size_t n = 0;
  while (*in && n < sizeof out - 3) {
    size_t digits = strspn(in, "0123456789");
    if (digits == 16) {
      memcpy(out + n, "ID", 2);
      n += 2;
      in += digits;
    } else {
      out[n++] = *in++;
    }
  }
  out[n] = '\0';
  return out;
}

#define ERROR_(code, detail, more)                                             \
  "{\"op\":\"error\",\"code\":\"" code "\",\"detail\":\"" detail "\"" more "}"

Test(native_v1, each_command_has_its_answer, .timeout = 30) {
  begin();
  static const char *const talk[][2] = {
      {"{\"op\":\"ping\"}", "{\"op\":\"pong\"}"},
      {" {\"op\" : \"ping\" } ", "{\"op\":\"pong\"}"},
      {"{\"op\":\"p\\u0069ng\",\"ref\":7}", "{\"op\":\"pong\",\"ref\":7}"},
      {"{\"op\":\"subscribe\",\"channel\":\"a\"}",
       "{\"op\":\"subscribed\",\"channel\":\"a\",\"messages\":[],\"cursor\":ID,"
       "\"gap\":null,\"more\":false}"},
      {"{\"op\":\"subscribe\",\"channel\":\"a\",\"ref\":\"again\"}",
       "{\"op\":\"subscribed\",\"channel\":\"a\",\"messages\":[],\"cursor\":ID,"
       "\"gap\":null,\"more\":false,\"ref\":\"again\"}"},
      {"{\"op\":\"unsubscribe\",\"channel\":\"a\"}",
       "{\"op\":\"unsubscribed\",\"channel\":\"a\"}"},
      {"{\"op\":\"unsubscribe\",\"channel\":\"a\"}",
       ERROR_("not_subscribed", "There is no such subscription.", "")},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"ref\":null}",
       "{\"op\":\"published\",\"channel\":\"a\",\"id\":ID,\"ref\":null}"},
      {"{\"op\":\"subscribe\",\"channel\":\"b\",\"since\":\"first\"}",
       "{\"op\":\"subscribed\",\"channel\":\"b\",\"messages\":[],\"cursor\":ID,"
       "\"gap\":null,\"more\":false}"},
      {"{\"op\":\"subscribe\",\"channel\":\"c\",\"since\":41}",
       "{\"op\":\"subscribed\",\"channel\":\"c\",\"messages\":[],\"cursor\":ID,"
       "\"gap\":{\"from\":42,\"to\":ID},\"more\":false}"},
      {"{\"op\":\"subscribe\",\"channel\":\"d\",\"since\":-3}",
       "{\"op\":\"subscribed\",\"channel\":\"d\",\"messages\":[],\"cursor\":ID,"
       "\"gap\":null,\"more\":false}"},
      {"{\"op\":\"subscribe\",\"channel\":\"e\",\"since\":\"now\"}",
       "{\"op\":\"subscribed\",\"channel\":\"e\",\"messages\":[],\"cursor\":ID,"
       "\"gap\":null,\"more\":false}"},
      /* a cursor of a broker whose clock is ahead */
      {"{\"op\":\"subscribe\",\"channel\":\"f\",\"since\":9007199254740991}",
       "{\"op\":\"subscribed\",\"channel\":\"f\",\"messages\":[],\"cursor\":ID,"
       "\"gap\":{\"from\":1,\"to\":ID},\"more\":false}"},
      {"{\"op\":\"subscribe\",\"channel\":\"q\\\"\\\\\\/\\u00e9\"}",
       "{\"op\":\"subscribed\",\"channel\":\"q\\\"\\\\/"
       "\xC3\xA9\",\"messages\":[],"
       "\"cursor\":ID,\"gap\":null,\"more\":false}"},
      {"{\"op\":\"ping\",\"ref\":{\"a\":[1.5,\"\\u0000\\n\",true]}}",
       "{\"op\":\"pong\",\"ref\":{\"a\":[1.5,\"\\u0000\\n\",true]}}"},
      {"{\"op\":\"ping\",\"ref\":\"\\\",\\\"op\\\":\\\"drain\"}",
       "{\"op\":\"pong\",\"ref\":\"\\\",\\\"op\\\":\\\"drain\"}"},
  };
  for (size_t i = 0; i < sizeof talk / sizeof *talk; i++)
    cr_expect_str_eq(ask(talk[i][0]), talk[i][1], "%s", talk[i][0]);
  end();
}

Test(native_v1, what_is_wrong_is_an_error_and_the_connection_stays,
     .timeout = 30) { /* F28, A01 */
  begin();
  static const struct {
    const char *command, *code;
  } wrong[] = {
      {"", "bad_request"},
      {" ", "bad_request"},
      {"x", "bad_request"},
      {"null", "bad_request"},
      {"1", "bad_request"},
      {"\"ping\"", "bad_request"},
      {"[]", "bad_request"},
      {"[{\"op\":\"ping\"}]", "bad_request"},
      {"{}", "bad_request"},
      {"{\"op\":\"ping\"", "bad_request"},
      {"{\"op\":\"ping\"}}", "bad_request"},
      {"{\"op\":\"ping\"}\n{\"op\":\"ping\"}", "bad_request"},
      {"{'op':'ping'}", "bad_request"},
      {"{\"op\":1}", "bad_request"},
      {"{\"op\":null}", "bad_request"},
      {"{\"op\":{\"op\":\"ping\"}}", "bad_request"},
      {"{\"op\":\"ping\",\"op\":\"ping\"}", "bad_request"},
      {"{\"op\":\"ping\",\"\\u006fp\":\"ping\"}", "bad_request"},
      {"{\"op\":\"\"}", "unknown_op"},
      {"{\"op\":\"PING\"}", "unknown_op"},
      {"{\"op\":\"ping\\u0000\"}", "unknown_op"},
      {"{\"op\":\"ping\\u0000x\"}", "unknown_op"},
      {"{\"op\":\"message\",\"channel\":\"a\"}", "unknown_op"},
      {"{\"op\":\"subscribe\"}", "bad_channel"},
      {"{\"op\":\"subscribe\",\"channel\":null}", "bad_channel"},
      {"{\"op\":\"subscribe\",\"channel\":1}", "bad_channel"},
      {"{\"op\":\"subscribe\",\"channel\":[\"a\"]}", "bad_channel"},
      {"{\"op\":\"subscribe\",\"channel\":\"\"}", "bad_channel"},
      {"{\"op\":\"subscribe\",\"channel\":\"a*\"}", "bad_channel"},
      {"{\"op\":\"subscribe\",\"channel\":\"..\"}", "bad_channel"},
      {"{\"op\":\"subscribe\",\"channel\":\"a\\u0000b\"}", "bad_channel"},
      {"{\"op\":\"subscribe\",\"channel\":\"\\u0085\"}", "bad_channel"},
      {"{\"op\":\"subscribe\",\"channel\":\"a\",\"since\":1.5}", "bad_request"},
      {"{\"op\":\"subscribe\",\"channel\":\"a\",\"since\":\"x\"}",
       "bad_request"},
      {"{\"op\":\"subscribe\",\"channel\":\"a\",\"since\":\"\"}",
       "bad_request"},
      {"{\"op\":\"subscribe\",\"channel\":\"a\",\"since\":{}}", "bad_request"},
      {"{\"op\":\"subscribe\",\"channel\":\"a\",\"since\":"
       "99999999999999999999}",
       "bad_request"},
      {"{\"op\":\"unsubscribe\",\"channel\":2}", "bad_channel"},
      {"{\"op\":\"publish\",\"channel\":\"a\"}", "bad_request"},
      {"{\"op\":\"publish\",\"data\":1}", "bad_channel"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"data64\":\"\"}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data64\":1}", "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"type\":1}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"type\":\"x\"}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"type\":"
       "\"a/b;\\u00e9\"}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"type\":"
       "\"a/b;\\n\"}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"event\":1}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"event\":\"gap\"}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"event\":"
       "\"a\\nb\"}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"event\":"
       "\"a\\u0000\"}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,\"echo\":0}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":\"\\ud800\"}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"data\":[1,]}", "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"\\u0064ata\":[1,2,3]}",
       "bad_request"},
      {"{\"op\":\"publish\",\"channel\":\"a\",\"\\u0064ata\":[1,2,3],\"type\":"
       "\"text/plain\"}",
       "bad_request"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    char want[64];
    snprintf(want, sizeof want, "{\"op\":\"error\",\"code\":\"%s\",",
             wrong[i].code);
    const char *got = ask(wrong[i].command);
    cr_expect(strncmp(got, want, strlen(want)) == 0, "%s: %s", wrong[i].command,
              got);
  }
  client_write(&c, WS_FIN_BINARY, VIEW_LIT("{\"op\":\"ping\"}"));
  cr_expect_str_eq(client_next(&c),
                   ERROR_("bad_request", "Commands are text frames.", ""));
  cr_expect_str_eq(ask("{\"op\":\"ping\"}"), "{\"op\":\"pong\"}");
  end();
}

static void fill(char *out, const char *with, int times) {
  *out = '\0';
  for (int i = 0; i < times; i++, out += strlen(with))
    strcpy(out, with);
}

Test(native_v1, nesting_ends_at_64_and_costs_nothing_before, .timeout = 30) {
  begin(); /* S06 */
  static char command[300000];
  char *at = command + snprintf(command, 64, "{\"op\":\"ping\",\"ref\":");
  fill(at, "[", 63);
  fill(at + 63, "]", 63);
  strcpy(at + 126, "}");
  cr_expect(strncmp(ask(command), "{\"op\":\"pong\",", 13) == 0);
  fill(at, "[", 64);
  fill(at + 64, "]", 64);
  strcpy(at + 128, "}");
  cr_expect(strstr(ask(command), "64 deep"));
  fill(command, "[", 299999);
  cr_expect(strstr(ask(command), "bad_request"));
  fill(command, "{\"a\":", 50000);
  cr_expect(strstr(ask(command), "bad_request"));
  end();
}

Test(native_v1, a_ref_of_64_kib_comes_back, .timeout = 30) {
  begin();
  static char command[140000], want[140000];
  size_t n = (size_t)snprintf(command, 64, "{\"op\":\"ping\",\"ref\":\"");
  size_t w = (size_t)snprintf(want, 64, "{\"op\":\"pong\",\"ref\":\"");
  memset(command + n, 'r', 65536);
  memset(want + w, 'r', 65536);
  strcpy(command + n + 65536, "\"}");
  strcpy(want + w + 65536, "\"}");
  for (int i = 0; i < 3; i++) {
    client_text(&c, command);
    cr_expect_str_eq(client_next(&c), want);
  }
  end();
}

/* ---- what is published ------------------------------------------------- */

/* What follows "type" in the message that a command makes. */
static const char *published_as(const char *rest) {
  char command[4096];
  snprintf(command, sizeof command, "{\"op\":\"publish\",\"channel\":\"a\",%s}",
           rest);
  client_text(&c, command);
  static char shown[4096];
  snprintf(shown, sizeof shown, "(no message)");
  for (int i = 0; i < 2; i++) { /* the answer and the message, in any order */
    const char *text = client_next(&c);
    const char *type = strstr(text, "\"type\":");
    if (strncmp(text, "{\"op\":\"published\"", 17) == 0)
      continue;
    snprintf(shown, sizeof shown, "%s", type ? type : text);
    if (!type)
      break;
  }
  return shown;
}

Test(native_v1, data_travels_as_it_is, .timeout = 30) {
  begin();
  ask("{\"op\":\"subscribe\",\"channel\":\"a\"}");
  static const char *const made[][2] = {
      {"\"data\":\"x\"", "\"type\":\"text/plain\",\"data\":\"x\"}"},
      {"\"data\":\"\"", "\"type\":\"text/plain\",\"data\":\"\"}"},
      {"\"data\":\"a\\u0000\\\"\\\\\\/\\n\\u00e9\\ud83d\\ude00\\u001f\"",
       "\"type\":\"text/plain\",\"data\":\"a\\u0000\\\"\\\\/\\n\xC3\xA9"
       "\xF0\x9F\x98\x80\\u001f\"}"},
      {"\"data\":1", "\"type\":\"application/json\",\"data\":1}"},
      {"\"data\":null", "\"type\":\"application/json\",\"data\":null}"},
      {"\"data\":false", "\"type\":\"application/json\",\"data\":false}"},
      {"\"data\":1.10", "\"type\":\"application/json\",\"data\":1.10}"},
      {"\"data\":1E400", "\"type\":\"application/json\",\"data\":1E400}"},
      {"\"data\":-0.0e-0", "\"type\":\"application/json\",\"data\":-0.0e-0}"},
      {"\"data\":123456789012345678901234567890",
       "\"type\":\"application/"
       "json\",\"data\":123456789012345678901234567890}"},
      {"\"data\":{\"a\" : [1, 2.0],\"a\":\"\\u0041\"}",
       "\"type\":\"application/json\",\"data\":{\"a\" : [1, "
       "2.0],\"a\":\"\\u0041\"}}"},
      {"\"data\":{\"op\":\"error\",\"id\":1}",
       "\"type\":\"application/json\",\"data\":{\"op\":\"error\",\"id\":1}}"},
      {"\"data\":\"\\u0041\",\"type\":\"application/json\"",
       "\"type\":\"application/json\",\"data\":\"\\u0041\"}"},
      {"\"data\":[\"\xC3\xA9\"],\"type\":\"text/plain\"",
       "\"type\":\"text/plain\",\"data\":\"[\\\"\xC3\xA9\\\"]\"}"},
      {"\"data\":\"hi\",\"type\":\"text/html; charset=utf-8\"",
       "\"type\":\"text/html; charset=utf-8\",\"data\":\"hi\"}"},
      {"\"data\":\"hi\",\"type\":\"image/png\"",
       "\"type\":\"image/png\",\"data64\":\"aGk=\"}"},
      {"\"data\":\"hi\",\"type\":\"a/b; x=\\\"y\\\"\"",
       "\"type\":\"a/b; x=\\\"y\\\"\",\"data64\":\"aGk=\"}"},
      {"\"data\":\"\",\"event\":\"e\\\"v\"",
       "\"type\":\"text/plain\",\"data\":\"\",\"event\":\"e\\\"v\"}"},
      {"\"data64\":\"\"",
       "\"type\":\"application/octet-stream\",\"data64\":\"\"}"},
      {"\"data64\":\"AA==\"",
       "\"type\":\"application/octet-stream\",\"data64\":\"AA==\"}"},
      {"\"data64\":\"/+8=\"",
       "\"type\":\"application/octet-stream\",\"data64\":\"/+8=\"}"},
      {"\"data64\":\"aGk=\",\"type\":\"text/plain\"",
       "\"type\":\"text/plain\",\"data\":\"hi\"}"},
      {"\"data64\":\"eyJhIjoxfQ==\",\"type\":\"application/json\"",
       "\"type\":\"application/json\",\"data\":{\"a\":1}}"},
  };
  for (size_t i = 0; i < sizeof made / sizeof *made; i++)
    cr_expect_str_eq(published_as(made[i][0]), made[i][1], "%s", made[i][0]);
  end();
}

Test(native_v1, data64_is_base64_and_nothing_else, .timeout = 30) {
  begin();
  static const char *const bad[] = {
      "A",          "AA",   "AAA",      "AAA=AAAA",  "====",    "A===",
      "AA=A",       "=AAA", "AAAA====", "AA==AA==",  "AAA-",    "AAA_",
      " AAA",       "AAA ", "    AAAA", "AAAA    ",  "AAAA\\n", "\\nAAAA",
      "AA\\u0000=", "AB==", "AAB=",     "\\u00e9AA",
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char command[128];
    snprintf(command, sizeof command,
             "{\"op\":\"publish\",\"channel\":\"a\",\"data64\":\"%s\"}",
             bad[i]);
    const char *got = ask(command);
    cr_expect(strstr(got, "\"bad_request\""), "%s: %s", bad[i], got);
  }
  end();
}

Test(native_v1, data64_of_every_length_and_byte_is_exact, .timeout = 60) {
  begin();
  client_s raw = client_open("/channels/a", NULL);
  static char command[40000], text[30000], bytes[9500];
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (char)(i * 7 + i / 256);
  for (size_t n = 0; n < sizeof bytes; n = n < 20 ? n + 1 : n + n / 2) {
    /* the test's own base64 */
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnop"
                                   "qrstuvwxyz0123456789+/";
    char *out = text;
    for (size_t i = 0; i < n; i += 3) {
      uint32_t w = 0;
      for (size_t k = 0; k < 3; k++)
        w = w << 8 | (i + k < n ? (uint8_t)bytes[i + k] : 0);
      for (size_t k = 0; k < 4; k++)
        *out++ = i + k <= n ? alphabet[w >> (18 - 6 * k) & 63] : '=';
    }
    *out = '\0';
    snprintf(command, sizeof command,
             "{\"op\":\"publish\",\"channel\":\"a\",\"data64\":\"%s\"}", text);
    cr_expect(strstr(ask(command), "published"), "%zu", n);
    live_frame_s f;
    cr_assert(client_frame(&raw, &f, 5000));
    cr_expect_eq(f.first, WS_FIN_BINARY);
    cr_expect(view_eq(f.payload, view_of(bytes, n)), "%zu", n);
  }
  client_close(&raw);
  end();
}

/* Whether a text is one JSON object with just the fields of a message, in the
 * eyes of another parser. */
static bool is_message_on(const char *text, const char *channel) {
  json_error_t error;
  json_t *j = json_loads(
      text, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL,
      &error);
  const char *op = json_string_value(json_object_get(j, "op"));
  const char *on = json_string_value(json_object_get(j, "channel"));
  size_t known = 0;
  static const char *const fields[] = {"op",   "channel", "id",   "type",
                                       "data", "data64",  "event"};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    known += json_object_get(j, fields[i]) != NULL;
  bool is_one = j && op && strcmp(op, "message") == 0 && on &&
                strcmp(on, channel) == 0 && known == json_object_size(j);
  if (!is_one)
    fprintf(stderr, "# %s: %s\n", error.text, text);
  json_decref(j);
  return is_one;
}

Test(native_v1, no_body_can_forge_a_field, .timeout = 60) {
  begin();
  ask("{\"op\":\"subscribe\",\"channel\":\"a\\\"b\"}");
  static const char *const bodies[] = {
      "\"",
      "\\",
      "\",\"op\":\"drain",
      "x\"}",
      "\",\"id\":1}",
      "\\\",\"op\":\"drain\"}",
      "{\"op\":\"drain\"}",
      "1,\"op\":\"drain\"",
      "null}",
      "}{",
      "\x01\x02\x1f\x7f",
      "\xE2\x80\xA8\xE2\x80\xA9",
      "[1,2",
      "\"\\u0022,\\u0022op\\u0022:1\"",
      "\xEF\xBF\xBF",
      "/*x*/1",
      "-",
      "\"a\tb\"",
  };
  static const char *const types[] = {NULL,        "text/plain",
                                      "text/x",    "application/json",
                                      "image/png", "a/b;c=\"d\\\"}\""};
  unsigned taken = 0;
  for (size_t b = 0; b < sizeof bodies / sizeof *bodies; b++)
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
      int status = post(&poster, "/channels/a%22b?event=e%22%5C%7D", types[t],
                        view_str(bodies[b]));
      if (status != 201) {
        cr_expect(status == 400 && t == 3, "%zu %zu: %d", b, t, status);
        continue;
      }
      taken++;
      cr_expect(is_message_on(client_next(&c), "a\"b"), "%zu %zu", b, t);
    }
  cr_expect_gt(taken, 80);
  end();
}

Test(native_v1, without_echo_the_sender_alone_does_not_get_it, .timeout = 30) {
  begin();
  client_s other = client_open("/channels/a", "crier.v1");
  client_next(&other);
  ask("{\"op\":\"subscribe\",\"channel\":\"a\"}");
  const char *answer = ask("{\"op\":\"publish\",\"channel\":\"a\",\"data\":1,"
                           "\"echo\":false}");
  cr_expect(strstr(answer, "published"), "%s", answer);
  cr_expect_str_eq(ask("{\"op\":\"ping\"}"), "{\"op\":\"pong\"}");
  cr_expect(is_message_on(client_next(&other), "a"));
  cr_expect_str_eq(published_as("\"data\":2,\"echo\":true"),
                   "\"type\":\"application/json\",\"data\":2}");
  cr_expect(is_message_on(client_next(&other), "a"));
  client_close(&other);
  end();
}

Test(native_v1, a_burst_of_commands_that_is_read_is_answered_in_full,
     .timeout = 60) { /* O07 */
  begin();
  enum { N = 5000 };
  static char burst[N * 90];
  size_t n = 0;
  for (int i = 0; i < N; i++) {
    char text[80];
    int len = snprintf(text, sizeof text,
                       "{\"op\":\"publish\",\"channel\":\"abc\",\"data\":\"x\","
                       "\"ref\":%d}",
                       i);
    static const uint8_t mask[4] = {1, 2, 3, 4};
    n += ws_frame_client(burst + n, WS_FIN_TEXT, mask,
                         view_of(text, (size_t)len));
  }
  cr_assert(client_send(&c, burst, n));
  int answers = 0;
  for (; answers < N; answers++) {
    const char *text = client_next(&c);
    if (!strstr(text, "published") ||
        json_number(text, "ref") != (uint64_t)answers) {
      cr_expect_fail("%d: %s", answers, text);
      break;
    }
  }
  cr_expect_eq(answers, N);
  end();
}

Test(native_v1, a_burst_of_nonsense_that_is_read_is_answered_in_full,
     .timeout = 60) {
  begin();
  enum { N = 20000 };
  static char burst[N * 8];
  size_t n = 0;
  for (int i = 0; i < N; i++) {
    static const uint8_t mask[4] = {1, 2, 3, 4};
    n += ws_frame_client(burst + n, WS_FIN_TEXT, mask, VIEW_LIT("{}"));
  }
  cr_assert(client_send(&c, burst, n));
  int answers = 0;
  while (answers < N && strstr(client_next(&c), "bad_request"))
    answers++;
  cr_expect_eq(answers, N);
  cr_expect_str_eq(ask("{\"op\":\"ping\"}"), "{\"op\":\"pong\"}");
  end();
}

Test(native_v1, channels_per_connection_ends_with_an_error, .timeout = 30) {
  cr_assert(live_start((live_options_s){.subscriptions = 3}));
  c = client_open("/subscribe?channel=a&channel=b&channel=c&channel=d",
                  "crier.v1");
  for (int i = 0; i < 3; i++)
    cr_expect(strstr(client_next(&c), "subscribed"));
  cr_expect(strstr(client_next(&c), "\"code\":\"too_many\""));
  cr_expect(strstr(ask("{\"op\":\"subscribe\",\"channel\":\"e\"}"),
                   "\"code\":\"too_many\""));
  cr_expect(strstr(ask("{\"op\":\"subscribe\",\"channel\":\"a\"}"),
                   "\"op\":\"subscribed\""));
  ask("{\"op\":\"unsubscribe\",\"channel\":\"b\"}");
  cr_expect(strstr(ask("{\"op\":\"subscribe\",\"channel\":\"e\"}"),
                   "\"op\":\"subscribed\""));
  end();
}

Test(native_v1, a_second_subscription_is_counted_and_delivered_once,
     .timeout = 30) {
  begin();
  for (int i = 0; i < 3; i++)
    ask("{\"op\":\"subscribe\",\"channel\":\"a\"}");
  cr_expect_eq(post(&poster, "/channels/a", NULL, VIEW_LIT("once")), 201);
  cr_expect_eq(json_number(poster.body, "subscribers"), 1);
  cr_expect(is_message_on(client_next(&c), "a"));
  cr_expect_str_eq(ask("{\"op\":\"unsubscribe\",\"channel\":\"a\"}"),
                   "{\"op\":\"unsubscribed\",\"channel\":\"a\"}");
  post(&poster, "/channels/a", NULL, VIEW_LIT("none"));
  cr_expect_eq(json_number(poster.body, "subscribers"), 0);
  cr_expect_str_eq(ask("{\"op\":\"ping\"}"), "{\"op\":\"pong\"}");
  end();
}
