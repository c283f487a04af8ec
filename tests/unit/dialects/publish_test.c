/* POST /channels/{name}: what a message becomes (api.md section 2), and what is
 * refused before it becomes one. */
#include "live.h"
#include <criterion/criterion.h>

#define starts(text, with) (strncmp(text, with, strlen(with)) == 0)

static poster_s poster;

static void begin(void) {
  cr_assert(live_start((live_options_s){.workers = 1}));
}

static void end(void) {
  client_close(&poster.c);
  cr_assert_eq(live_stop(), 0);
}

/* How a crier.v1 subscriber sees what is posted, from "type" on. */
typedef struct {
  const char *type;
  view_s body;
  int status;
  const char *shown;
} kind_s;

#define BODY(s) VIEW_INIT(s)

static const kind_s kinds[] = {
    {NULL, BODY("hi"), 201, "\"type\":\"text/plain\",\"data\":\"hi\"}"},
    {NULL, BODY(""), 201, "\"type\":\"text/plain\",\"data\":\"\"}"},
    {NULL, BODY("a\0\"\\\n\x7f"), 201,
     "\"type\":\"text/plain\",\"data\":\"a\\u0000\\\"\\\\\\n\x7f\"}"},
    {NULL, BODY("\xff"), 201,
     "\"type\":\"application/octet-stream\",\"data64\":\"/w==\"}"},
    {"application/x-www-form-urlencoded", BODY("a=1&b"), 201,
     "\"type\":\"text/plain\",\"data\":\"a=1&b\"}"},
    {"Application/X-WWW-form-URLencoded; charset=x", BODY("\xC0"), 201,
     "\"type\":\"application/octet-stream\",\"data64\":\"wA==\"}"},
    {"application/json", BODY(" {\"a\" : 1.10}"), 201,
     "\"type\":\"application/json\",\"data\": {\"a\" : 1.10}}"},
    {"application/json;charset=utf-8", BODY("12345678901234567890123"), 201,
     "\"type\":\"application/json;charset=utf-8\",\"data\":"
     "12345678901234567890123}"},
    {"application/json", BODY("{\"a\":1,\"a\":2}"), 201,
     "\"type\":\"application/json\",\"data\":{\"a\":1,\"a\":2}}"},
    {"application/cloudevents+json", BODY("null"), 201,
     "\"type\":\"application/cloudevents+json\",\"data\":null}"},
    {"text/html", BODY("<p>\xC3\xA9"), 201,
     "\"type\":\"text/html\",\"data\":\"<p>\xC3\xA9\"}"},
    {"image/png", BODY("text"), 201,
     "\"type\":\"image/png\",\"data64\":\"dGV4dA==\"}"},
    {"application/json", BODY(""), 400, NULL},
    {"application/json", BODY("{\"a\":1}x"), 400, NULL},
    {"application/json", BODY("{\"a\":1},\"op\":\"error\""), 400, NULL},
    {"application/json", BODY("1,\"op\":2"), 400, NULL},
    {"application/json", BODY("{'a':1}"), 400, NULL},
    {"application/json", BODY("[1,]"), 400, NULL},
    {"application/json", BODY("nul"), 400, NULL},
    {"application/json", BODY("\"\xff\""), 400, NULL},
    {"application/json", BODY("\"a\nb\""), 400, NULL},
    {"application/json", BODY("\0"), 400, NULL},
    {"application/x+json", BODY("]"), 400, NULL},
    {"text/plain", BODY("\xff"), 400, NULL},
    {"text/plain", BODY("\xED\xA0\x80"), 400, NULL},
    {"text", BODY("x"), 400, NULL},
    {";;;", BODY("x"), 400, NULL},
    {"/", BODY("x"), 400, NULL},
    {"a/b c", BODY("x"), 400, NULL},
    {"text/plain; x=\xff", BODY("x"), 400, NULL},
    {"text/plain; x=\xC3\xA9", BODY("x"), 400, NULL},
};

Test(publish, each_content_type_becomes_what_the_contract_says, .timeout = 30) {
  begin();
  client_s c = client_open("/channels/a", "crier.v1");
  cr_assert(starts(client_next(&c), "{\"op\":\"subscribed\""));
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    const kind_s *k = &kinds[i];
    cr_expect_eq(post(&poster, "/channels/a", k->type, k->body), k->status,
                 "%zu: %d %s", i, poster.status, poster.body);
    if (k->status != 201)
      continue;
    const char *text = client_next(&c), *type = strstr(text, "\"type\"");
    cr_expect_str_eq(type ? type : text, k->shown, "%zu: %s", i, text);
  }
  client_close(&c);
  end();
}

Test(publish, json_may_be_nested_64_deep_and_no_deeper, .timeout = 30) {
  begin();
  char body[400];
  for (int deep = 63; deep <= 66; deep++) {
    memset(body, '[', (size_t)deep);
    memset(body + deep, ']', (size_t)deep);
    cr_expect_eq(post(&poster, "/channels/a", "application/json",
                      view_of(body, 2 * (size_t)deep)),
                 deep <= 64 ? 201 : 400, "%d", deep);
  }
  /* brackets inside strings are none */
  char text[300] = "\"\\\"";
  memset(text + 3, '[', 200);
  text[203] = '"';
  cr_expect_eq(
      post(&poster, "/channels/a", "application/json", view_of(text, 204)),
      201);
  end();
}

static int post_query(const char *query) {
  char path[8192];
  snprintf(path, sizeof path, "/channels/a?%s", query);
  return post(&poster, path, NULL, VIEW_LIT("x"));
}

Test(publish, the_query_is_taken_whole_or_refused, .timeout = 30) {
  begin();
  static const struct {
    const char *query;
    int status;
  } cases[] = {
      {"", 201},
      {"&", 201},
      {"event=news", 201},
      {"event=a%20b", 201},
      {"event=", 201},
      {"event=%C3%A9", 201},
      {"ttl=60", 201},
      {"event=a&ttl=1", 201},
      {"event=a&event=b", 400},
      {"evnt=a", 400},
      {"=a", 400},
      {"event=%", 400},
      {"event=%zz", 400},
      {"event=a%0Ab", 400},
      {"event=a%0Db", 400},
      {"event=a%00b", 400},
      {"event=%FF", 400}, /* would make a frame that is no UTF-8 */
      {"event=%C3", 400},
      {"event=%ED%A0%80", 400},
      {"event=gap", 400},
      {"event=%67ap", 400},
      {"event=binary", 400},
      {"event=drain", 400},
      {"event=message", 400},
      {"ttl=", 400},
      {"ttl=-1", 400},
      {"ttl=1.5", 400},
      {"ttl=x", 400},
      {"ttl=99999999999999999999", 400},
      {"ttl=xxxxxxxxxxxxxxxxxxxx", 400},
      {"ttl=1&ttl=2", 400},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    cr_expect_eq(post_query(cases[i].query), cases[i].status, "%s: %d %s",
                 cases[i].query, poster.status, poster.body);
  end();
}

Test(publish, an_events_name_has_255_bytes_at_most_however_it_is_written,
     .timeout = 30) {
  begin();
  char query[4096];
  for (int n = 254; n <= 2000; n = n < 257 ? n + 1 : n + 581) {
    int at = snprintf(query, sizeof query, "event=");
    for (int i = 0; i < n; i++)
      query[at++] = 'e';
    query[at] = '\0';
    cr_expect_eq(post_query(query), n <= 255 ? 201 : 400, "%d", n);
  }
  for (int n = 254; n <= 300; n += 46) {
    int at = snprintf(query, sizeof query, "event=");
    for (int i = 0; i < n; i++)
      at += snprintf(query + at, 4, "%%65");
    cr_expect_eq(post_query(query), n <= 255 ? 201 : 400, "%d escaped", n);
  }
  end();
}

Test(publish, the_event_travels_with_the_message, .timeout = 30) {
  begin();
  client_s c = client_open("/channels/a", "crier.v1");
  client_next(&c);
  post_query("event=a%22%C3%A9+%09");
  const char *text = client_next(&c), *type = strstr(text, "\"type\"");
  cr_expect_str_eq(type ? type : text, "\"type\":\"text/plain\",\"data\":\"x\","
                                       "\"event\":\"a\\\"\xC3\xA9+\\t\"}");
  client_close(&c);
  end();
}

Test(publish, the_answer_names_id_channel_and_subscribers, .timeout = 30) {
  begin();
  cr_assert_eq(post(&poster, "/channels/a%22%5C%2Fb", NULL, VIEW_LIT("x")),
               201);
  uint64_t id = json_number(poster.body, "id");
  char want[128];
  snprintf(want, sizeof want,
           "{\"id\":%llu,\"channel\":\"a\\\"\\\\/b\",\"subscribers\":0}",
           (unsigned long long)id);
  cr_expect_str_eq(poster.body, want);
  client_s a = client_open("/channels/a%22%5C%2Fb", NULL);
  client_s b = client_open("/channels/a%22%5C%2Fb", NULL);
  cr_assert_eq(post(&poster, "/channels/a%22%5C%2Fb", NULL, VIEW_LIT("x")),
               201);
  cr_expect_gt(json_number(poster.body, "id"), id);
  cr_expect_eq(json_number(poster.body, "subscribers"), 2);
  client_close(&a);
  client_close(&b);
  end();
}

Test(publish, a_name_that_is_none_is_refused, .timeout = 30) { /* S01, S03 */
  begin();
  static const char *const bad[] = {
      "/channels/",    "/channels/a*",     "/channels/%00", "/channels/a%0a",
      "/channels/%7f", "/channels/%ff",    "/channels/%2e", "/channels/..",
      "/channels/a%2", "/channels/%C2%85", "/channels/a/b",
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int status = post(&poster, bad[i], NULL, VIEW_LIT("x"));
    cr_expect(status == 400 || status == 404, "%s: %d", bad[i], status);
  }
  char path[600] = "/channels/";
  memset(path + 10, 'n', 256);
  cr_expect_eq(post(&poster, path, NULL, VIEW_LIT("x")), 400);
  path[10 + 255] = '\0';
  cr_expect_eq(post(&poster, path, NULL, VIEW_LIT("x")), 201);
  end();
}

Test(publish, a_body_of_unknown_length_is_refused_as_that, .timeout = 30) {
  begin(); /* P18 */
  cr_expect_eq(post_raw(&poster, "/channels/a", "", VIEW_LIT("")), 411);
  cr_expect_eq(post_raw(&poster, "/channels/a",
                        "Content-Type: application/json\r\n", VIEW_LIT("")),
               411);
  cr_expect_eq(
      post_raw(&poster, "/channels/a", "Content-Length: 0\r\n", VIEW_LIT("")),
      201);
  cr_expect_eq(post_raw(&poster, "/channels/a",
                        "Transfer-Encoding: chunked\r\n",
                        VIEW_LIT("1\r\na\r\n2;x\r\nbc\r\n0\r\n\r\n")),
               201);
  cr_expect_eq(post_raw(&poster, "/channels/a",
                        "Content-Length: 1\r\nContent-Type: text/plain\r\n"
                        "Content-Type: text/html\r\n",
                        VIEW_LIT("a")),
               400);
  end();
}
