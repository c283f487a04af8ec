/* access_test.c - the loopback rules and the rule of the same origin, by
 * tables: what is let in, what is not, and what is said. H05 of the cases. */
#include "access.h"
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/un.h>

static const access_s closed = {.open = false};
static const access_s opened = {.open = true};

static const char host_refused[] =
    "The Host is not a loopback name or address, and only those are answered; "
    "start the broker with --open to answer to every name.";
static const char proxy_refused[] =
    "The request came through a proxy (Forwarded or X-Forwarded-*), and only "
    "direct ones are answered; start the broker with --open to serve behind a "
    "proxy.";
static const char origin_refused[] =
    "The Origin is not that of the Host, and pages of other sites are refused, "
    "also with --open; load the page from this Host, and let a proxy pass the "
    "Host on unchanged.";

static struct sockaddr_storage address_of(const char *text, uint16_t port) {
  struct sockaddr_storage out = {0};
  struct sockaddr_in *in = (struct sockaddr_in *)&out;
  struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&out;
  if (text[0] == '/') {
    out.ss_family = AF_UNIX;
  } else if (inet_pton(AF_INET, text, &in->sin_addr) == 1) {
    in->sin_family = AF_INET;
    in->sin_port = htons(port);
  } else {
    cr_assert_eq(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
  }
  return out;
}

Test(access, loopback_addresses_are_told_from_others) {
  static const struct {
    const char *text;
    bool is_loopback;
  } rows[] = {
      {"127.0.0.1", true},
      {"127.0.0.0", true},
      {"127.255.255.255", true},
      {"::1", true},
      {"::ffff:127.0.0.1", true},
      {"::ffff:127.9.8.7", true},
      {"/run/crier", true},
      {"126.255.255.255", false},
      {"128.0.0.0", false},
      {"0.0.0.0", false},
      {"10.0.0.127", false},
      {"::", false},
      {"::2", false},
      {"::ffff:128.0.0.1", false},
      {"::ffff:0.0.0.0", false},
      {"::127.0.0.1", false},
      {"fe80::1", false},
      {"7f00:1::", false},
      {"1::1", false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct sockaddr_storage a = address_of(rows[i].text, 80);
    cr_expect_eq(access_is_loopback_address((struct sockaddr *)&a),
                 rows[i].is_loopback, "%s", rows[i].text);
  }
}

Test(access, an_address_of_an_unknown_family_is_not_loopback) {
  struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
  cr_assert_not(access_is_loopback_address((struct sockaddr *)&a));
}

Test(access, a_host_that_spells_loopback_is_one) {
  static const char *const hosts[] = {
      "localhost",         "LocalHost",         "localhost:8080",
      "localhost.",        "localhost.:8080",   "app.localhost",
      "a.b-c.LOCALHOST:1", "app.localhost.",    "127.0.0.1",
      "127.0.0.1:65535",   "127.255.0.3:80",    "[::1]",
      "[::1]:8080",        "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]:8080",
      "[::FFFF:7f00:1]",
  };
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
    cr_expect(access_is_loopback_host(view_str(hosts[i])), "%s", hosts[i]);
}

Test(access, a_host_that_only_looks_like_loopback_is_none) {
  static const char *const hosts[] = {
      "",
      ".",
      "localhost..",
      ".localhost",
      "..localhost",
      ".a.localhost",
      "a..localhost",
      "a.localhost..",
      "xlocalhost",
      "localhost.evil.test",
      "localhost.evil.test:8080",
      "localhostx",
      "evil.test",
      "evil.test.",
      "127.0.0.1.evil.test",
      "127.0.0.1.",
      "127.0.0.1.:80",
      "127.0.0",
      "127.1",
      "127.0.0.1.1",
      "127.0.0.256",
      "127.0.0.01",
      "0127.0.0.1",
      "0177.0.0.1",
      "0x7f.0.0.1",
      "0x7f000001",
      "2130706433",
      "017700000001",
      "128.0.0.1",
      "0.0.0.0",
      "1.127.0.0",
      "::1",
      "::1:8080",
      "[::1",
      "[::1]x",
      "[::1]8080",
      "[]",
      "[]:80",
      "[",
      "[::1%lo]",
      "[::]",
      "[::2]:80",
      "[127.0.0.1]",
      "[localhost]",
      "[::ffff:128.0.0.1]",
      "[::1]]",
      "[[::1]]",
      "localhost:",
      "localhost:0",
      "localhost:080",
      "localhost:65536",
      "localhost:99999",
      "localhost:100000",
      "localhost:8080x",
      "localhost:+80",
      "localhost:80:80",
      ":8080",
      "user@localhost",
      "localhost@evil.test",
      "localhost:80@evil.test",
      "localhost/",
      "localhost#",
      "localhost?",
      "localhost%2e",
      "localhost,evil.test",
      " localhost",
      "localhost ",
      "http://localhost",
      "localh\xc3\xb6st",
      "\xe2\x91\xa0\x32\x37.0.0.1",
  };
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
    cr_expect_not(access_is_loopback_host(view_str(hosts[i])), "%s", hosts[i]);
}

Test(access, a_nul_byte_does_not_end_a_host) {
  cr_expect_not(access_is_loopback_host(VIEW_LIT("localhost\0.evil.test")));
  cr_expect_not(access_is_loopback_host(VIEW_LIT("127.0.0.1\0.evil.test")));
  cr_expect_not(access_is_loopback_host(VIEW_LIT("[::1\0x]")));
  cr_expect_not(access_is_loopback_host(VIEW_LIT("evil.test\0.localhost")));
  cr_expect_not(access_is_loopback_host(view_of(NULL, 0)));
}

Test(access, a_host_beyond_255_bytes_is_refused) {
  char name[300];
  memset(name, 'a', sizeof name);
  memcpy(name + 245, ".localhost", 10);
  cr_expect(access_is_loopback_host(view_of(name, 255)));
  memset(name + 245, 'a', 10);
  memcpy(name + 246, ".localhost", 10);
  cr_expect_not(access_is_loopback_host(view_of(name, 256)));
}

Test(access, forwarding_fields_are_known_by_name) {
  static const struct {
    const char *name;
    bool is_forwarding;
  } rows[] = {
      {"Forwarded", true},
      {"forwarded", true},
      {"X-Forwarded-For", true},
      {"x-forwarded-host", true},
      {"X-FORWARDED-Port", true},
      {"X-Forwarded-", true},
      {"X-Forwarded", false},
      {"Forwarded-For", false},
      {"XX-Forwarded-For", false},
      {"Via", false},
      {"", false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    cr_expect_eq(access_is_forwarding_field(view_str(rows[i].name)),
                 rows[i].is_forwarding, "%s", rows[i].name);
}

/* ---- access_check ---- */

static void expect_served(const access_s *rules, const char *host,
                          const char *origin, bool has_forwarded) {
  const char *detail = NULL;
  int status = access_check(rules, view_str(host), view_str(origin),
                            has_forwarded, &detail);
  cr_expect_eq(status, 0, "%s from %s: %d", host, origin ? origin : "nowhere",
               status);
  cr_expect_null(detail);
}

static void expect_refused(const access_s *rules, const char *host,
                           const char *origin, bool has_forwarded,
                           const char *why) {
  const char *detail = NULL;
  int status = access_check(rules, view_str(host), view_str(origin),
                            has_forwarded, &detail);
  cr_expect_eq(status, 403, "%s from %s: %d", host, origin ? origin : "nowhere",
               status);
  cr_expect_str_eq(detail ? detail : "(none)", why, "%s from %s: %s", host,
                   origin ? origin : "nowhere", detail ? detail : "(none)");
}

Test(access, a_loopback_host_is_served_without_open) {
  expect_served(&closed, "127.0.0.1:8080", NULL, false);
  expect_served(&closed, "localhost", NULL, false);
}

Test(access, another_host_is_refused_without_open_and_served_with_it) {
  expect_refused(&closed, "evil.test", NULL, false, host_refused);
  expect_refused(&closed, "evil.test", "http://evil.test", false, host_refused);
  expect_refused(&closed, NULL, NULL, false, host_refused);
  expect_served(&opened, "evil.test", NULL, false);
  expect_served(&opened, NULL, NULL, false);
}

Test(access, what_a_proxy_passes_on_is_refused_without_open) {
  expect_refused(&closed, "localhost:8080", NULL, true, proxy_refused);
  expect_served(&opened, "localhost:8080", NULL, true);
}

Test(access, the_host_is_judged_before_the_proxy_and_the_origin_last) {
  expect_refused(&closed, "evil.test", "null", true, host_refused);
  expect_refused(&closed, "localhost", "null", true, proxy_refused);
  expect_refused(&closed, "localhost", "null", false, origin_refused);
}

Test(access, H05_a_missing_origin_is_let_in) {
  expect_served(&closed, "localhost:8080", NULL, false);
  expect_served(&opened, "a.test", NULL, false);
}

Test(access, H05_a_null_or_empty_origin_is_refused) {
  expect_refused(&closed, "localhost", "null", false, origin_refused);
  expect_refused(&opened, "a.test", "null", false, origin_refused);
  expect_refused(&opened, "null", "null", false, origin_refused);
  expect_refused(&opened, "a.test", "", false, origin_refused);
}

Test(access, H05_the_origin_of_the_host_is_let_in) {
  static const struct {
    const char *host, *origin;
  } rows[] = {
      {"a.test", "http://a.test"},
      {"a.test", "https://a.test"},
      {"a.test", "http://a.test:80"},
      {"a.test:80", "http://a.test"},
      {"a.test", "https://a.test:443"},
      {"a.test:443", "https://a.test"},
      {"a.test:8443", "https://a.test:8443"},
      {"a.test:8080", "http://a.test:8080"},
      {"A.test", "HTTP://a.TEST"},
      {"[2001:db8::a]:8080", "http://[2001:DB8::A]:8080"},
      {"192.0.2.1", "http://192.0.2.1"},
      {"a.test.", "http://a.test."},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    expect_served(&opened, rows[i].host, rows[i].origin, false);
  expect_served(&closed, "localhost:8080", "http://localhost:8080", false);
  expect_served(&closed, "[::1]:8080", "http://[::1]:8080", false);
}

Test(access, H05_any_other_origin_is_refused) {
  static const struct {
    const char *host, *origin;
  } rows[] = {
      {"a.test", "https://a.test:8443"},
      {"a.test:8443", "https://a.test"},
      {"a.test", "https://a.test.evil.test"},
      {"a.test", "https://evil.test"},
      {"a.test", "https://evila.test"},
      {"a.test", "https://a.tes"},
      {"a.test", "https://www.a.test"},
      {"www.a.test", "https://a.test"},
      {"a.test", "https://a.test."},
      {"a.test:443", "http://a.test"},
      {"a.test:80", "https://a.test"},
      {"a.test", "http://a.test:443"},
      {"a.test", "https://a.test:80"},
      {"localhost:8080", "http://127.0.0.1:8080"},
      {"localhost:8080", "http://localhost:8081"},
      {"localhost:8080", "http://localhost"},
      {"a.test", "a.test"},
      {"a.test", "//a.test"},
      {"a.test", "ws://a.test"},
      {"a.test", "wss://a.test"},
      {"a.test", "ftp://a.test"},
      {"a.test", "file://"},
      {"a.test", "chrome-extension://a.test"},
      {"a.test", "http:a.test"},
      {"a.test", "http://"},
      {"a.test", "http://:80"},
      {"a.test", "http://a.test/"},
      {"a.test", "http://a.test?"},
      {"a.test", "http://a.test#"},
      {"a.test", "http://user@a.test"},
      {"a.test", "http://a.test@evil.test"},
      {"a.test", "http://a.test, http://a.test"},
      {"a.test", "http://a.test http://evil.test"},
      {"a.test", " http://a.test"},
      {"a.test", "http://a.test "},
      {"a.test", "http://a.test:"},
      {"a.test", "http://a.test:080"},
      {"a.test:65616", "http://a.test"},
      {"a.test", "http://a.test:65616"},
      {"[::1]", "http://::1"},
      {"[::1]", "http://[::1"},
      {"[::1]", "http://[::2]"},
      {"", "http://a.test"},
      {"", "http://"},
      {"*", "http://*"},
      {"a/b", "http://a/b"},
      {"http://a.test", "http://a.test"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    expect_refused(&opened, rows[i].host, rows[i].origin, false,
                   origin_refused);
}

/* ---- access_may_listen ---- */

static int may_listen(const access_s *rules, const char *text, char err[256]) {
  struct sockaddr_storage a = address_of(text, 8080);
  err[0] = '\0';
  errno = 0;
  return access_may_listen(rules, (struct sockaddr *)&a, err, 256);
}

Test(access, without_open_only_loopback_is_listened_on) {
  char err[256];
  cr_expect_eq(may_listen(&closed, "127.0.0.1", err), 0);
  cr_expect_eq(may_listen(&closed, "::1", err), 0);
  cr_expect_eq(may_listen(&closed, "/run/crier", err), 0);
  cr_expect_str_empty(err);
  cr_expect_eq(may_listen(&closed, "0.0.0.0", err), -1);
  cr_expect_eq(errno, EACCES);
  cr_expect_str_eq(err, "crier: listen: 0.0.0.0:8080 is not a loopback address "
                        "(add --open to serve everyone who can reach it)");
  cr_expect_eq(may_listen(&closed, "::", err), -1);
  cr_expect_str_eq(err, "crier: listen: [::]:8080 is not a loopback address "
                        "(add --open to serve everyone who can reach it)");
  cr_expect_eq(
      may_listen(&closed, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", err), -1);
  cr_expect_str_eq(err,
                   "crier: listen: [ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:"
                   "8080 is not a loopback address "
                   "(add --open to serve everyone who can reach it)");
}

Test(access, with_open_everything_is_listened_on) {
  char err[256];
  cr_expect_eq(may_listen(&opened, "0.0.0.0", err), 0);
  cr_expect_eq(may_listen(&opened, "2001:db8::1", err), 0);
  cr_expect_str_empty(err);
}

Test(access, an_unknown_family_is_not_listened_on_without_open) {
  char err[256];
  struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
  cr_expect_eq(
      access_may_listen(&closed, (struct sockaddr *)&a, err, sizeof err), -1);
  cr_expect_str_eq(err,
                   "crier: listen: an address of family 0 is not a loopback "
                   "address (add --open to serve everyone who can reach it)");
}
