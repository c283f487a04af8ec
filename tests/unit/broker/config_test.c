/* config_test.c - the settings by tables of good and bad values, their texts,
 * their precedence, and the command line above them. */
#include "cli.h"
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>

static char *const nothing[] = {NULL};
static char err[CONFIG_ERROR_MAX];

/* Set one from the command line on top of the defaults. */
static int set(crier_config_s *c, const char *name, const char *value) {
  const config_setting_s *s = config_find(name);
  cr_assert_not_null(s, "%s", name);
  config_init(c);
  err[0] = '\0';
  errno = 0;
  return config_set(c, s, value, CONFIG_FROM_COMMAND_LINE, err, sizeof err);
}

static void expect_shown(const crier_config_s *c, const char *name,
                         const char *text) {
  char shown[CONFIG_VALUE_MAX];
  config_format(c, config_find(name), shown, sizeof shown);
  cr_expect_str_eq(shown, text, "%s: %s, not %s", name, shown, text);
}

static void expect_refused(const char *name, const char *value,
                           const char *text) {
  crier_config_s c;
  cr_expect_eq(set(&c, name, value), -1, "%s %s", name, value);
  cr_expect_eq(errno, EINVAL);
  cr_expect_str_eq(err, text, "got: %s", err);
}

/* ---- The table ---- */

Test(config, each_default_is_shown_as_the_table_has_it) {
  size_t n;
  const config_setting_s *s = config_settings(&n);
  crier_config_s c;
  config_init(&c);
  for (size_t i = 0; i < n; i++) {
    expect_shown(&c, s[i].name, s[i].usual);
    cr_expect_eq(config_from(&c, &s[i]), CONFIG_FROM_DEFAULT);
  }
}

Test(config, the_defaults_are_those_of_the_contract) {
  crier_config_s c;
  config_init(&c);
  cr_expect_eq(c.listen_count, 1);
  cr_expect_str_eq(c.listen[0].address, "127.0.0.1");
  cr_expect_str_eq(c.listen[0].port, "8080");
  cr_expect_eq(c.workers, 0);
  cr_expect_eq(c.open, false);
  cr_expect_eq(c.message_max, 1048576);
  cr_expect_eq(c.ring_size, 16777216);
  cr_expect_eq(c.tail_size, 262144);
  cr_expect_eq(c.tail_total, 67108864);
  cr_expect_eq(c.queue_limit, 65536);
  cr_expect_eq(c.slow, CONFIG_SLOW_SKIP);
  cr_expect_eq(c.slow_timeout_ms, 60000);
  cr_expect_eq(c.http_header_bytes, 16384);
  cr_expect_eq(c.http_header_count, 128);
  cr_expect_eq(c.http_url, 8192);
  cr_expect_eq(c.http_timeout_ms, 10000);
  cr_expect_eq(c.http_idle_ms, 60000);
  cr_expect_eq(c.ws_ping_ms, 25000);
  cr_expect_eq(c.ws_close_timeout_ms, 2000);
  cr_expect_eq(c.ws_fragments, 131072);
  cr_expect_eq(c.sse_keepalive_ms, 25000);
  cr_expect_eq(c.sse_retry_ms, 1000);
  cr_expect_eq(c.poll_max_wait_ms, 60000);
  cr_expect_eq(c.history_count, 1000);
  cr_expect_eq(c.history_bytes, 1048576);
  cr_expect_eq(c.history_age_ms, 600000);
  cr_expect_eq(c.history_rule.count, 0);
  cr_expect_eq(c.history_forget_ms, 3600000);
  cr_expect_str_eq(c.store, "memory");
  cr_expect_eq(c.store_size, 1073741824);
  cr_expect_eq(c.store_full, CONFIG_FULL_EVICT);
  cr_expect_eq(c.idempotency_window_ms, 600000);
  cr_expect_eq(c.replay_limit, 1000);
  cr_expect_eq(c.batch_max, 1000);
  cr_expect_eq(c.channels_per_connection, 256);
  cr_expect_eq(c.connections_max, 0);
  cr_expect_eq(c.drain_notice_ms, 0);
  cr_expect_eq(c.drain_time_ms, 10000);
  cr_expect_eq(c.watchdog_ms, 3000);
  cr_expect_eq(c.socket_lowat, 16384);
  cr_expect_eq(c.socket_uring, CONFIG_URING_AUTO);
  cr_expect_eq(c.socket_file_mode, 0660);
  cr_expect_eq(c.log_level, CONFIG_LOG_INFO);
  cr_expect_eq(config_check(&c, err, sizeof err), 0);
}

static void variable(const char *name, char out[64]) {
  snprintf(out, 64, "CRIER_%s", name);
  for (char *p = out; *p; p++)
    *p = *p == '.' ? '_' : *p >= 'a' && *p <= 'z' ? (char)(*p - 32) : *p;
}

Test(config, no_two_settings_share_a_name_a_variable_or_a_member) {
  size_t n;
  const config_setting_s *s = config_settings(&n);
  char a[64], b[64];
  for (size_t i = 0; i < n; i++)
    for (size_t k = 0; k < i; k++) {
      variable(s[i].name, a);
      variable(s[k].name, b);
      cr_expect_str_neq(s[i].name, s[k].name);
      cr_expect_str_neq(a, b);
      cr_expect_neq(s[i].offset, s[k].offset, "%s, %s", s[i].name, s[k].name);
    }
}

Test(config, what_is_shown_at_both_limits_is_read_again) {
  size_t n;
  const config_setting_s *s = config_settings(&n);
  crier_config_s c;
  char shown[CONFIG_VALUE_MAX];
  for (size_t i = 0; i < n; i++) {
    if (s[i].type != CONFIG_UINT && s[i].type != CONFIG_SIZE &&
        s[i].type != CONFIG_DURATION && s[i].type != CONFIG_MODE)
      continue;
    const uint64_t limits[] = {s[i].min, s[i].max};
    for (size_t k = 0; k < 2; k++) {
      config_init(&c);
      memcpy((char *)&c + s[i].offset, &limits[k], sizeof limits[k]);
      config_format(&c, &s[i], shown, sizeof shown);
      cr_expect_eq(set(&c, s[i].name, shown), 0, "%s", err);
      uint64_t got;
      memcpy(&got, (char *)&c + s[i].offset, sizeof got);
      cr_expect_eq(got, limits[k], "%s %s", s[i].name, shown);
    }
  }
}

/* ---- Values ---- */

Test(config, sizes_take_units) {
  static const struct {
    const char *text;
    uint64_t bytes;
    const char *shown;
  } rows[] = {
      {"1", 1, "1B"},          {"1000", 1000, "1000B"},
      {"1024B", 1024, "1KiB"}, {"7b", 7, "7B"},
      {"3K", 3072, "3KiB"},    {"3k", 3072, "3KiB"},
      {"3KiB", 3072, "3KiB"},  {"3kib", 3072, "3KiB"},
      {"2M", 2097152, "2MiB"}, {"256MiB", 268435456, "256MiB"},
      {"1025", 1025, "1025B"}, {"00001", 1, "1B"},
  };
  crier_config_s c;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    cr_expect_eq(set(&c, "message.max", rows[i].text), 0, "%s", err);
    cr_expect_eq(c.message_max, rows[i].bytes, "%s", rows[i].text);
    expect_shown(&c, "message.max", rows[i].shown);
  }
  cr_expect_eq(set(&c, "ring.size", "8G"), 0);
  cr_expect_eq(c.ring_size, UINT64_C(8589934592));
  expect_shown(&c, "ring.size", "8GiB");
}

Test(config, what_is_no_size_is_refused) {
  static const char *const values[] = {
      "",    "K",       "abc",   "-1",    "+1",   "1.5MiB", "1 KiB",
      " 1",  "1KiB ",   "1KB",   "1MB",   "1Ki",  "1T",     "0x10",
      "1e3", "1KiBKiB", "1,000", "1_000", "1\n2", "10Gib8"};
  crier_config_s c;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    cr_expect_eq(set(&c, "message.max", values[i]), -1, "%s", values[i]);
  expect_refused("message.max", "1MB",
                 "crier: message.max: '1MB' is not a size (a number with B, "
                 "KiB, MiB or GiB)");
  expect_refused("message.max", "a\nb",
                 "crier: message.max: 'a?b' is not a size (a number with B, "
                 "KiB, MiB or GiB)");
}

Test(config, sizes_beyond_their_limits_are_refused_also_beyond_64_bits) {
  static const char *const values[] = {
      "0",
      "268435457",
      "257MiB",
      "1GiB",
      "18446744073709551615",
      "18446744073709551616",
      "18446744073709551617",
      "17179869184GiB",
      "17179869185GiB",
      "99999999999999999999999999999999999999999999",
  };
  crier_config_s c;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    cr_expect_eq(set(&c, "message.max", values[i]), -1, "%s", values[i]);
  expect_refused("message.max", "18446744073709551617",
                 "crier: message.max: '18446744073709551617' is out of range "
                 "(1B to 256MiB)");
  expect_refused("message.max", "17179869184GiB",
                 "crier: message.max: '17179869184GiB' is out of range "
                 "(1B to 256MiB)");
}

Test(config, durations_take_units) {
  static const struct {
    const char *text;
    uint64_t ms;
    const char *shown;
  } rows[] = {
      {"100ms", 100, "100ms"}, {"5", 5000, "5s"},
      {"5s", 5000, "5s"},      {"1500ms", 1500, "1500ms"},
      {"1m", 60000, "60s"},    {"10m", 600000, "10m"},
      {"90s", 90000, "90s"},   {"120s", 120000, "2m"},
      {"1h", 3600000, "60m"},  {"24h", 86400000, "24h"},
  };
  crier_config_s c;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    cr_expect_eq(set(&c, "http.idle", rows[i].text), 0, "%s", err);
    cr_expect_eq(c.http_idle_ms, rows[i].ms, "%s", rows[i].text);
    expect_shown(&c, "http.idle", rows[i].shown);
  }
}

Test(config, wrong_durations_are_refused) {
  expect_refused("ws.ping", "5x",
                 "crier: ws.ping: '5x' is not a duration (a number with ms, s, "
                 "m or h)");
  expect_refused("ws.ping", "5S",
                 "crier: ws.ping: '5S' is not a duration (a number with ms, s, "
                 "m or h)");
  expect_refused("ws.ping", "1m30s",
                 "crier: ws.ping: '1m30s' is not a duration (a number with ms, "
                 "s, m or h)");
  expect_refused("ws.ping", "99ms",
                 "crier: ws.ping: '99ms' is out of range (100ms to 24h)");
  expect_refused("ws.ping", "25h",
                 "crier: ws.ping: '25h' is out of range (100ms to 24h)");
  expect_refused("ws.ping", "18446744073709552",
                 "crier: ws.ping: '18446744073709552' is out of range "
                 "(100ms to 24h)");
}

Test(config, numbers_are_plain_and_within_their_range) {
  crier_config_s c;
  cr_expect_eq(set(&c, "workers", "64"), 0);
  cr_expect_eq(c.workers, 64);
  expect_refused("workers", "65",
                 "crier: workers: '65' is out of range (0 to 64)");
  expect_refused("workers", "abc", "crier: workers: 'abc' is not a number");
  expect_refused("workers", "4K", "crier: workers: '4K' is not a number");
  expect_refused("workers", "-1", "crier: workers: '-1' is not a number");
  expect_refused("workers", "", "crier: workers: '' is not a number");
}

Test(config, the_limits_of_history_are_zero_and_large) {
  crier_config_s c;
  cr_expect_eq(set(&c, "history.count", "4294967296"), 0, "%s", err);
  cr_expect_eq(c.history_count, UINT64_C(4294967296));
  expect_refused("history.count", "4294967297",
                 "crier: history.count: '4294967297' is out of range (0 to "
                 "4294967296)");
  cr_expect_eq(set(&c, "history.count", "0"), 0, "%s", err);
  cr_expect_eq(set(&c, "history.bytes", "0"), 0, "%s", err);
  expect_shown(&c, "history.bytes", "0B");
  cr_expect_eq(set(&c, "history.age", "0"), 0, "%s", err);
  expect_shown(&c, "history.age", "0s");
  cr_expect_eq(set(&c, "store.size", "16M"), 0, "%s", err);
  expect_refused("store.size", "16777215",
                 "crier: store.size: '16777215' is out of range (16MiB to "
                 "1024GiB)");
  cr_expect_eq(set(&c, "idempotency.window", "0"), 0, "%s", err);
  expect_refused("idempotency.window", "86401",
                 "crier: idempotency.window: '86401' is out of range (0s to "
                 "24h)");
  expect_refused("replay.limit", "0",
                 "crier: replay.limit: '0' is out of range (1 to 100000)");
  expect_refused("batch.max", "100001",
                 "crier: batch.max: '100001' is out of range (1 to 100000)");
  cr_expect_eq(set(&c, "store.full", "refuse"), 0, "%s", err);
  cr_expect_eq(c.store_full, CONFIG_FULL_REFUSE);
}

/* ---- Texts ---- */

Test(config, a_text_is_kept_as_it_is) {
  crier_config_s c;
  char text[CONFIG_TEXT_SIZE + 1];
  cr_expect_eq(set(&c, "store", " /a;b, c "), 0, "%s", err);
  cr_expect_str_eq(c.store, " /a;b, c ");
  expect_shown(&c, "store", " /a;b, c ");
  memset(text, 'x', sizeof text);
  text[1023] = '\0';
  cr_expect_eq(set(&c, "store", text), 0, "%s", err);
  cr_expect_str_eq(c.store, text);
  cr_expect_eq(c.store_size, 1073741824, "the member behind it was hit");
  text[1023] = 'x';
  text[1024] = '\0';
  expect_refused("store", text,
                 "crier: store: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                 "xxxxxxxxxxxxxxxx...' is longer than 1023 bytes");
  expect_refused("store", "", "crier: store: it must not be empty");
  expect_refused("store", "/a\nb",
                 "crier: store: '/a?b' holds a control character");
}

Test(config, what_a_shorter_text_leaves_of_a_longer_one_is_not_seen) {
  crier_config_s c;
  cr_expect_eq(set(&c, "store", "/a/long/one"), 0);
  cr_expect_eq(config_set(&c, config_find("store"), "/b",
                          CONFIG_FROM_COMMAND_LINE, err, sizeof err),
               0);
  cr_expect_str_eq(c.store, "/b");
}

Test(config, a_text_of_a_list_has_at_most_255_bytes) {
  crier_config_s c;
  char text[CONFIG_TEXTS_SIZE + 1];
  memset(text, 'x', sizeof text);
  text[255] = '\0';
  cr_expect_eq(set(&c, "history.rule", text), 0, "%s", err);
  cr_expect_eq(c.history_rule.count, 1);
  cr_expect_str_eq(c.history_rule.text[0], text);
  text[255] = 'x';
  text[256] = '\0';
  expect_refused("history.rule", text,
                 "crier: history.rule: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                 "xxxxxxxxxxxxxxxxxxxxxxxx...' is longer than 255 bytes");
  expect_refused("history.rule", "a\tcount=1",
                 "crier: history.rule: 'a?count=1' holds a control character");
}

Test(config, a_truth_has_four_pairs_of_words) {
  static const char *const yes[] = {"true", "yes", "on", "1", "TRUE"};
  static const char *const no[] = {"false", "no", "off", "0", "No"};
  crier_config_s c;
  for (size_t i = 0; i < 5; i++) {
    cr_expect_eq(set(&c, "open", yes[i]), 0);
    cr_expect(c.open, "%s", yes[i]);
    expect_shown(&c, "open", "true");
    cr_expect_eq(set(&c, "open", no[i]), 0);
    cr_expect_not(c.open, "%s", no[i]);
  }
  expect_refused("open", "maybe",
                 "crier: open: 'maybe' is neither true nor false");
  expect_refused("open", "", "crier: open: '' is neither true nor false");
}

Test(config, a_choice_is_one_of_its_words) {
  crier_config_s c;
  cr_expect_eq(set(&c, "slow", "close"), 0);
  cr_expect_eq(c.slow, CONFIG_SLOW_CLOSE);
  expect_shown(&c, "slow", "close");
  cr_expect_eq(set(&c, "socket.uring", "off"), 0);
  cr_expect_eq(c.socket_uring, CONFIG_URING_OFF);
  cr_expect_eq(set(&c, "log.level", "debug"), 0);
  cr_expect_eq(c.log_level, CONFIG_LOG_DEBUG);
  cr_expect_eq(set(&c, "log.level", "error"), 0);
  cr_expect_eq(c.log_level, CONFIG_LOG_ERROR);
  expect_refused("slow", "skp", "crier: slow: 'skp' is none of skip, close");
  expect_refused("log.level", "INFO",
                 "crier: log.level: 'INFO' is none of error, warn, info, "
                 "debug");
}

Test(config, a_file_mode_is_octal) {
  crier_config_s c;
  cr_expect_eq(set(&c, "socket.file_mode", "600"), 0);
  cr_expect_eq(c.socket_file_mode, 0600);
  expect_shown(&c, "socket.file_mode", "0600");
  expect_refused("socket.file_mode", "0680",
                 "crier: socket.file_mode: '0680' is not an octal file mode");
  expect_refused("socket.file_mode", "1777",
                 "crier: socket.file_mode: '1777' is out of range "
                 "(0000 to 0777)");
}

/* ---- Addresses ---- */

Test(config, addresses_are_taken_apart) {
  static const struct {
    const char *text, *address, *port, *shown;
  } rows[] = {
      {"127.0.0.1:8080", "127.0.0.1", "8080", "127.0.0.1:8080"},
      {"0.0.0.0:0", "0.0.0.0", "0", "0.0.0.0:0"},
      {"localhost:65535", "127.0.0.1", "65535", "127.0.0.1:65535"},
      {"[::1]:080", "::1", "80", "[::1]:80"},
      {"[::]:80", "::", "80", "[::]:80"},
      {"unix:/run/crier.sock", "/run/crier.sock", "", "unix:/run/crier.sock"},
      {"unix:/a:b,c", "/a:b,c", "", "unix:/a:b,c"},
  };
  crier_config_s c;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    cr_expect_eq(set(&c, "listen", rows[i].text), 0, "%s", err);
    cr_expect_eq(c.listen_count, 1);
    cr_expect_str_eq(c.listen[0].address, rows[i].address);
    cr_expect_str_eq(c.listen[0].port, rows[i].port);
    expect_shown(&c, "listen", rows[i].shown);
  }
}

Test(config, wrong_addresses_are_refused) {
  static const char *const shapeless[] = {"",      "::1:80", "8080",    ":8080",
                                          "[]:80", "[::1]",  "[::1]80", "[::1",
                                          "foo",   "/run/x", "unix"};
  static const char *const hosts[] = {
      "example.test:80", "*:80",           "127.1:80",    "0127.0.0.1:80",
      "[::1%lo]:80",     "[127.0.0.1]:80", "http://x:80", "[localhost]:80"};
  static const char *const ports[] = {
      "127.0.0.1:",      "127.0.0.1:65536",
      "127.0.0.1:http",  "127.0.0.1:80 ",
      "127.0.0.1:80:80", "[::1]:",
      "127.0.0.1:-1",    "127.0.0.1:18446744073709551696"};
  char text[CONFIG_ERROR_MAX];
  for (size_t i = 0; i < sizeof shapeless / sizeof *shapeless; i++) {
    snprintf(text, sizeof text,
             "crier: listen: '%s' is not HOST:PORT, [IPv6]:PORT or unix:/PATH",
             shapeless[i]);
    expect_refused("listen", shapeless[i], text);
  }
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
    snprintf(text, sizeof text,
             "crier: listen: the host of '%s' is neither an IP address nor "
             "localhost",
             hosts[i]);
    expect_refused("listen", hosts[i], text);
  }
  for (size_t i = 0; i < sizeof ports / sizeof *ports; i++) {
    snprintf(text, sizeof text,
             "crier: listen: the port of '%s' is not a number from 0 to 65535",
             ports[i]);
    expect_refused("listen", ports[i], text);
  }
}

Test(config, the_path_of_a_unix_socket_is_absolute_and_fits) {
  crier_config_s c;
  char path[5 + 108 + 1] = "unix:/";
  memset(path + 6, 'a', 106);
  cr_expect_eq(set(&c, "listen", path), 0, "%s", err);
  cr_expect_eq(strlen(c.listen[0].address), 107);
  path[112] = 'a';
  expect_refused("listen", path,
                 "crier: listen: the path of a Unix socket begins with / and "
                 "has at most 107 bytes");
  expect_refused("listen", "unix:run",
                 "crier: listen: the path of a Unix socket begins with / and "
                 "has at most 107 bytes");
  expect_refused("listen", "unix:",
                 "crier: listen: the path of a Unix socket begins with / and "
                 "has at most 107 bytes");
}

Test(config, an_address_becomes_a_socket_address) {
  crier_config_s c;
  struct sockaddr_storage a;
  char text[INET6_ADDRSTRLEN];
  cr_assert_eq(set(&c, "listen", "127.0.0.2:8081"), 0);
  cr_expect_eq(config_listen_address(&c.listen[0], &a),
               sizeof(struct sockaddr_in));
  const struct sockaddr_in *in = (struct sockaddr_in *)&a;
  cr_expect_eq(in->sin_family, AF_INET);
  cr_expect_eq(ntohs(in->sin_port), 8081);
  cr_expect_eq(ntohl(in->sin_addr.s_addr), 0x7f000002);
  cr_assert_eq(set(&c, "listen", "[2001:db8::5]:65535"), 0);
  cr_expect_eq(config_listen_address(&c.listen[0], &a),
               sizeof(struct sockaddr_in6));
  const struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&a;
  cr_expect_eq(in6->sin6_family, AF_INET6);
  cr_expect_eq(ntohs(in6->sin6_port), 65535);
  inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof text);
  cr_expect_str_eq(text, "2001:db8::5");
  cr_assert_eq(set(&c, "listen", "unix:/run/x"), 0);
  cr_expect_eq(config_listen_address(&c.listen[0], &a),
               sizeof(struct sockaddr_un));
  const struct sockaddr_un *un = (struct sockaddr_un *)&a;
  cr_expect_eq(un->sun_family, AF_UNIX);
  cr_expect_str_eq(un->sun_path, "/run/x");
}

/* ---- The command line ---- */

#define WORDS(...) ((char *const[]){(char *)"crier", __VA_ARGS__, NULL})
#define ENV(...) ((char *const[]){__VA_ARGS__, NULL})

static int parse(char *const argv[], char *const envp[], cli_s *out) {
  int argc = 0;
  while (argv[argc])
    argc++;
  err[0] = '\0';
  return cli_parse(argc, argv, envp, out, err, sizeof err);
}

#define EXPECT_USAGE(text, envp, ...)                                          \
  do {                                                                         \
    cli_s cli_;                                                                \
    cr_expect_eq(parse(WORDS(__VA_ARGS__), envp, &cli_), 2, "%s", text);       \
    cr_expect_str_eq(err, text, "got: %s", err);                               \
  } while (0)

Test(cli, alone_it_serves_with_the_defaults) {
  cli_s cli;
  char *const argv[] = {(char *)"crier", NULL};
  cr_expect_eq(parse(argv, nothing, &cli), 0);
  cr_expect_eq(cli.command, CLI_SERVE);
  expect_shown(&cli.config, "listen", "127.0.0.1:8080");
  char *const none[] = {NULL};
  cr_expect_eq(cli_parse(0, none, none, &cli, err, sizeof err), 0);
  cr_expect_eq(cli.command, CLI_SERVE);
}

Test(cli, a_value_follows_behind_a_space_or_an_equals_sign) {
  cli_s cli;
  cr_assert_eq(parse(WORDS("serve", "--workers", "3", "--message.max=2K"),
                     nothing, &cli),
               0, "%s", err);
  cr_expect_eq(cli.command, CLI_SERVE);
  cr_expect_eq(cli.config.workers, 3);
  cr_expect_eq(cli.config.message_max, 2048);
  cr_assert_eq(parse(WORDS("--workers=5"), nothing, &cli), 0, "%s", err);
  cr_expect_eq(cli.command, CLI_SERVE);
  cr_expect_eq(cli.config.workers, 5);
  cr_assert_eq(
      parse(WORDS("check", "--workers", "1", "--workers", "2"), nothing, &cli),
      0, "%s", err);
  cr_expect_eq(cli.command, CLI_CHECK);
  cr_expect_eq(cli.config.workers, 2);
}

Test(cli, open_takes_no_word_after_it) {
  cli_s cli;
  cr_assert_eq(parse(WORDS("--open", "--workers", "1"), nothing, &cli), 0);
  cr_expect(cli.config.open);
  cr_assert_eq(parse(WORDS("--open=false"), nothing, &cli), 0);
  cr_expect_not(cli.config.open);
  EXPECT_USAGE("crier: unexpected argument 'false'", nothing, "--open",
               "false");
}

Test(cli, each_listen_adds_an_address_and_the_default_goes) {
  cli_s cli;
  cr_assert_eq(parse(WORDS("--listen", "[::1]:81", "--listen=unix:/run/x"),
                     nothing, &cli),
               0, "%s", err);
  cr_expect_eq(cli.config.listen_count, 2);
  expect_shown(&cli.config, "listen", "[::1]:81, unix:/run/x");
}

Test(cli, sixteen_addresses_are_enough) {
  char words[17][32];
  char *argv[19] = {(char *)"crier"};
  cli_s cli;
  for (int i = 0; i < 17; i++) {
    snprintf(words[i], sizeof words[i], "--listen=127.0.0.1:%d", 1000 + i);
    argv[1 + i] = words[i];
  }
  cr_expect_eq(parse(argv, nothing, &cli), 2);
  cr_expect_str_eq(err, "crier: listen: more than 16 addresses");
  argv[17] = NULL;
  cr_expect_eq(parse(argv, nothing, &cli), 0);
  cr_expect_eq(cli.config.listen_count, 16);
}

Test(cli, the_longest_list_of_addresses_is_shown_whole) {
  char words[16][160], shown[CONFIG_VALUE_MAX];
  char *argv[18] = {(char *)"crier"};
  cli_s cli;
  for (int i = 0; i < 16; i++) {
    snprintf(words[i], sizeof words[i], "--listen=unix:/%0106d", i);
    argv[1 + i] = words[i];
  }
  cr_expect_eq(parse(argv, nothing, &cli), 0, "%s", err);
  config_format(&cli.config, config_find("listen"), shown, sizeof shown);
  cr_expect_eq(strlen(shown), 16 * 112 + 15 * 2);
}

Test(cli, each_text_of_a_list_is_added_in_order) {
  cli_s cli;
  cr_assert_eq(parse(WORDS("--history.rule", "a:* count=1",
                           "--history.rule=", "--history.rule=b:; age=2s"),
                     nothing, &cli),
               0, "%s", err);
  cr_expect_eq(cli.config.history_rule.count, 2);
  cr_expect_str_eq(cli.config.history_rule.text[0], "a:* count=1");
  cr_expect_str_eq(cli.config.history_rule.text[1], "b:; age=2s");
}

Test(cli, thirty_two_texts_are_enough_and_are_shown_whole) {
  char words[33][300], shown[CONFIG_VALUE_MAX];
  char *argv[35] = {(char *)"crier"};
  cli_s cli;
  for (int i = 0; i < 33; i++) {
    snprintf(words[i], sizeof words[i], "--history.rule=%0247d count=1", i);
    argv[1 + i] = words[i];
  }
  cr_expect_eq(parse(argv, nothing, &cli), 2);
  cr_expect_str_eq(err, "crier: history.rule: more than 32 of them");
  argv[33] = NULL;
  cr_expect_eq(parse(argv, nothing, &cli), 0, "%s", err);
  cr_expect_eq(cli.config.history_rule.count, 32);
  config_format(&cli.config, config_find("history.rule"), shown, sizeof shown);
  cr_expect_eq(strlen(shown), 32 * 255 + 31 * 2);
}

Test(cli, texts_in_the_environment_are_separated_by_semicolons) {
  cli_s cli;
  char *const argv[] = {(char *)"crier", NULL};
  cr_assert_eq(parse(argv,
                     ENV("CRIER_HISTORY_RULE= a:* count=1 ;;b age=2s;c "
                         "bytes=1K; "),
                     &cli),
               0, "%s", err);
  expect_shown(&cli.config, "history.rule",
               "a:* count=1; b age=2s; c bytes=1K");
  cr_expect_eq(config_from(&cli.config, config_find("history.rule")),
               CONFIG_FROM_ENVIRONMENT);
  cr_assert_eq(parse(argv, ENV("CRIER_STORE=/a;b"), &cli), 0, "%s", err);
  cr_expect_str_eq(cli.config.store, "/a;b");
  EXPECT_USAGE("crier: CRIER_STORE: it must not be empty", ENV("CRIER_STORE="),
               "serve");
}

Test(cli, texts_of_the_command_line_replace_those_of_the_environment) {
  cli_s cli;
  char *const envp[] = {(char *)"CRIER_HISTORY_RULE=a count=1;b count=2", NULL};
  cr_assert_eq(
      parse(WORDS("--history.rule", "c count=3", "--history.rule", "d count=4"),
            envp, &cli),
      0, "%s", err);
  expect_shown(&cli.config, "history.rule", "c count=3; d count=4");
  cr_assert_eq(parse(WORDS("--history.rule="), envp, &cli), 0, "%s", err);
  cr_expect_eq(cli.config.history_rule.count, 0);
  cr_expect_eq(config_from(&cli.config, config_find("history.rule")),
               CONFIG_FROM_COMMAND_LINE);
}

Test(cli, the_command_line_wins_over_the_environment_and_that_over_defaults) {
  cli_s cli;
  cr_assert_eq(
      parse(WORDS("--workers", "3", "--listen", "127.0.0.1:1"),
            ENV("PATH=/bin", "CRIER_WORKERS=2", "CRIER_MESSAGE_MAX=64K",
                "CRIER_LISTEN=127.0.0.1:2,127.0.0.1:3"),
            &cli),
      0, "%s", err);
  cr_expect_eq(cli.config.workers, 3);
  cr_expect_eq(cli.config.message_max, 65536);
  expect_shown(&cli.config, "listen", "127.0.0.1:1");
  cr_expect_eq(config_from(&cli.config, config_find("workers")),
               CONFIG_FROM_COMMAND_LINE);
  cr_expect_eq(config_from(&cli.config, config_find("message.max")),
               CONFIG_FROM_ENVIRONMENT);
  cr_expect_eq(config_from(&cli.config, config_find("ring.size")),
               CONFIG_FROM_DEFAULT);
}

Test(cli, each_setting_is_found_by_its_variable) {
  size_t n;
  const config_setting_s *s = config_settings(&n);
  char entry[200];
  crier_config_s c;
  for (size_t i = 0; i < n; i++) {
    variable(s[i].name, entry);
    strncat(entry, "=", 2);
    strncat(entry, s[i].usual, 100);
    char *const envp[] = {entry, NULL};
    config_init(&c);
    cr_expect_eq(config_environment(&c, envp, err, sizeof err), 0, "%s", err);
    cr_expect_eq(config_from(&c, &s[i]), CONFIG_FROM_ENVIRONMENT, "%s", entry);
    expect_shown(&c, s[i].name, s[i].usual);
  }
}

Test(cli, addresses_in_the_environment_are_separated_by_commas) {
  cli_s cli;
  char *const argv[] = {(char *)"crier", NULL};
  cr_assert_eq(
      parse(argv, ENV("CRIER_LISTEN= 127.0.0.1:1 , [::1]:2,unix:/run/x"), &cli),
      0, "%s", err);
  expect_shown(&cli.config, "listen", "127.0.0.1:1, [::1]:2, unix:/run/x");
  cr_expect_eq(parse(argv, ENV("CRIER_LISTEN=127.0.0.1:1,"), &cli), 2);
  cr_expect_str_eq(err, "crier: CRIER_LISTEN: '' is not HOST:PORT, "
                        "[IPv6]:PORT or unix:/PATH");
}

Test(cli, a_wrong_variable_is_an_error_that_names_the_nearest) {
  EXPECT_USAGE("crier: unknown setting 'CRIER_HISTROY_COUNT' in the "
               "environment (did you mean 'CRIER_HISTORY_COUNT'?)",
               ENV("CRIER_HISTROY_COUNT=0"), "serve");
  EXPECT_USAGE("crier: unknown setting 'CRIER_message.max' in the "
               "environment (did you mean 'CRIER_MESSAGE_MAX'?)",
               ENV("CRIER_message.max=1K"), "check");
  EXPECT_USAGE("crier: CRIER_WS_CLOSE_TIMEOUT: 'soon' is not a duration (a "
               "number with ms, s, m or h)",
               ENV("CRIER_WS_CLOSE_TIMEOUT=soon"), "serve");
  EXPECT_USAGE("crier: CRIER_WORKERS: '' is not a number",
               ENV("CRIER_WORKERS="), "serve");
  EXPECT_USAGE("crier: CRIER_WORKERS: '65' is out of range (0 to 64)",
               ENV("CRIER_WORKERS=65"), "serve", "--workers", "1");
}

Test(cli, a_wrong_word_is_told_before_a_wrong_variable) {
  EXPECT_USAGE("crier: unexpected argument 'x'", ENV("CRIER_WORKERS=65"),
               "serve", "x");
}

Test(cli, what_kubernetes_and_docker_make_up_is_passed_over) {
  cli_s cli;
  char *const argv[] = {(char *)"crier", NULL};
  cr_expect_eq(
      parse(argv,
            ENV("CRIER_SERVICE_HOST=10.0.0.1", "CRIER_SERVICE_PORT=8080",
                "CRIER_SERVICE_PORT_HTTP=8080", "CRIER_PORT=tcp://10.0.0.1:80",
                "CRIER_PORT_80_TCP_ADDR=10.0.0.1", "CRIER_NAME=/web/crier",
                "CRIER_ENV_PATH=/bin", "CRIERX=1", "crier_workers=99"),
            &cli),
      0, "%s", err);
  EXPECT_USAGE("crier: unknown setting 'CRIER_PORTS' in the environment "
               "(did you mean 'CRIER_WORKERS'?)",
               ENV("CRIER_PORTS=1"), "serve");
}

Test(cli, an_unknown_setting_is_an_error_that_names_the_nearest) {
  EXPECT_USAGE("crier: unknown setting 'histroy.count' (did you mean "
               "'history.count'?)",
               nothing, "serve", "--histroy.count", "1000");
  EXPECT_USAGE("crier: unknown setting 'histroy.count' (did you mean "
               "'history.count'?)",
               nothing, "--histroy.count=1000");
  EXPECT_USAGE("crier: unknown setting 'wrokers' (did you mean 'workers'?)",
               nothing, "check", "--wrokers", "1");
  EXPECT_USAGE("crier: unknown setting 'Message-Max' (did you mean "
               "'message.max'?)",
               nothing, "--Message-Max=1");
  EXPECT_USAGE("crier: unknown setting 'hlep' (did you mean '--help'?)",
               nothing, "--hlep");
  EXPECT_USAGE("crier: unknown setting 'verison' (did you mean '--version'?)",
               nothing, "serve", "--verison");
  EXPECT_USAGE("crier: unknown option '-listen' (did you mean '--listen'?)",
               nothing, "-listen", "127.0.0.1:1");
  EXPECT_USAGE("crier: unknown option '-x' (did you mean '-h'?)", nothing,
               "-x");
}

Test(cli, an_unknown_setting_of_any_length_stays_one_short_line) {
  char word[5000] = "--";
  memset(word + 2, 'a', sizeof word - 3);
  word[10] = '\n';
  cli_s cli;
  cr_expect_eq(parse(WORDS(word), nothing, &cli), 2);
  cr_expect_null(strchr(err, '\n'));
  cr_expect_lt(strlen(err), 160, "%s", err);
  memmove(word + 8, word + 2, sizeof word - 8);
  word[sizeof word - 1] = '\0';
  memcpy(word, "CRIER_AA", 8);
  char *const argv[] = {(char *)"crier", NULL};
  cr_expect_eq(parse(argv, ENV(word), &cli), 2);
  cr_expect_null(strchr(err, '\n'));
  cr_expect_lt(strlen(err), 160, "%s", err);
}

Test(cli, a_long_value_is_cut_between_characters) {
  char value[200] = "";
  for (int i = 0; i < 50; i++)
    strncat(value, i ? "\xc3\xa4" : "x", 3);
  char shown[CONFIG_SHOWN_MAX];
  config_shown(value, shown);
  cr_expect_eq(strlen(shown), 59 + 3);
  cr_expect_str_eq(shown + 55, "\xc3\xa4\xc3\xa4...");
  cr_expect_str_eq(config_shown("a\x7f\x1b", shown), "a??");
}

Test(cli, an_unknown_command_is_an_error_that_names_the_nearest) {
  EXPECT_USAGE("crier: unknown command 'sevre' (did you mean 'serve'?)",
               nothing, "sevre");
  EXPECT_USAGE("crier: unknown command 'chekc' (did you mean 'check'?)",
               nothing, "chekc", "--workers", "1");
  EXPECT_USAGE("crier: unknown command 'hepl' (did you mean 'help'?)", nothing,
               "hepl");
  EXPECT_USAGE("crier: unknown command 'srve' (did you mean 'serve'?)", nothing,
               "help", "srve");
}

Test(cli, what_is_left_over_is_an_error) {
  EXPECT_USAGE("crier: unexpected argument 'check'", nothing, "serve", "check");
  EXPECT_USAGE("crier: unexpected argument '--'", nothing, "--");
  EXPECT_USAGE("crier: unexpected argument '-'", nothing, "serve", "-");
  EXPECT_USAGE("crier: unexpected argument ''", nothing, "serve", "");
  EXPECT_USAGE("crier: unexpected argument 'x'", nothing, "help", "serve", "x");
  EXPECT_USAGE("crier: --help takes no value", nothing, "--help=serve");
}

Test(cli, a_missing_value_is_an_error_that_shows_its_shape) {
  EXPECT_USAGE("crier: workers: the value is missing (--workers N)", nothing,
               "--workers");
  EXPECT_USAGE("crier: slow: the value is missing (--slow skip|close)", nothing,
               "serve", "--slow");
  EXPECT_USAGE("crier: workers: '--open' is not a number", nothing, "--workers",
               "--open");
  EXPECT_USAGE("crier: workers: '' is not a number", nothing, "--workers=");
}

Test(cli, settings_that_do_not_go_together_are_an_error) {
  EXPECT_USAGE("crier: ring.size (16MiB) must be at least 16 times "
               "message.max (1025KiB): set ring.size to 16400KiB or more",
               nothing, "--message.max=1025KiB");
  EXPECT_USAGE("crier: tail.total (1MiB) must be at least 4 times message.max "
               "(1MiB): set tail.total to 4MiB or more",
               nothing, "--tail.total=1MiB");
  EXPECT_USAGE("crier: tail.total (4MiB) must be at least tail.size (8MiB): "
               "set tail.total to 8MiB or more",
               nothing, "--tail.total=4MiB", "--tail.size=8MiB");
  EXPECT_USAGE("crier: http.header_bytes (4KiB) must be at least http.url "
               "(8KiB): set http.header_bytes to 8KiB or more",
               nothing, "--http.header_bytes=4K");
  EXPECT_USAGE("crier: listen: [::1]:80 is given twice", nothing,
               "--listen=[::1]:80", "--listen=[::1]:80");
}

Test(cli, a_rule_that_is_none_is_an_error_from_wherever_it_comes) {
  EXPECT_USAGE("crier: history.rule: 'a*' is no pattern (* is one part, ** the "
               "last ones)",
               nothing, "--history.rule=a:* count=1",
               "--history.rule=a* count=1");
  EXPECT_USAGE("crier: history.rule: 'a:*' says nothing: count=, bytes=, age= "
               "or slow=",
               nothing, "check", "--history.rule", "a:*");
  EXPECT_USAGE("crier: history.rule: age: '1y' is not a duration (a number "
               "with ms, s, m or h)",
               ENV("CRIER_HISTORY_RULE=a age=1h; b age=1y; c age=1x"), "serve");
  cli_s cli;
  cr_expect_eq(parse(WORDS("--history.rule=news:** count=5 bytes=0 age=2h "
                           "slow=close"),
                     ENV("CRIER_HISTORY_RULE=nonsense"), &cli),
               0, "%s", err);
}

Test(cli, settings_at_the_edge_of_going_together_pass) {
  cli_s cli;
  cr_expect_eq(
      parse(WORDS("--message.max=1M", "--ring.size=16M", "--tail.total=4M",
                  "--tail.size=4M", "--http.url=8K", "--http.header_bytes=8K",
                  "--listen=127.0.0.1:0", "--listen=127.0.0.1:0"),
            nothing, &cli),
      0, "%s", err);
}

Test(cli, an_address_beyond_loopback_needs_open) {
  cli_s cli;
  EXPECT_USAGE("crier: listen: 0.0.0.0:8080 is not a loopback address (add "
               "--open to serve everyone who can reach it)",
               nothing, "--listen", "0.0.0.0:8080");
  EXPECT_USAGE("crier: listen: [::]:80 is not a loopback address (add "
               "--open to serve everyone who can reach it)",
               nothing, "check", "--listen=localhost:1", "--listen=[::]:80");
  cr_expect_eq(
      parse(WORDS("--listen", "0.0.0.0:8080", "--open"), nothing, &cli), 0,
      "%s", err);
  cr_expect_eq(
      parse(WORDS("--listen", "0.0.0.0:8080"), ENV("CRIER_OPEN=1"), &cli), 0,
      "%s", err);
}

Test(cli, the_distance_counts_letters_and_swaps) {
  static const struct {
    const char *a, *b;
    size_t distance;
  } rows[] = {
      {"", "", 0},
      {"", "abc", 3},
      {"abc", "", 3},
      {"abc", "abc", 0},
      {"abc", "ABC", 0},
      {"abc", "acb", 1},
      {"abc", "ab", 1},
      {"abc", "abxc", 1},
      {"abc", "axc", 1},
      {"kitten", "sitting", 3},
      {"ab", "ba", 1},
      {"ca", "abc", 3},
      {"histroy", "history", 1},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    cr_expect_eq(config_distance(rows[i].a, rows[i].b), rows[i].distance,
                 "%s %s", rows[i].a, rows[i].b);
}

/* ---- What is printed ---- */

static char printed[16384];

static int print(const cli_s *cli) {
  FILE *file = fmemopen(printed, sizeof printed, "w");
  cr_assert_not_null(file);
  memset(printed, 0, sizeof printed);
  const int code = cli_print(cli, file);
  fclose(file);
  return code;
}

Test(cli, help_and_version_are_found_and_end_the_reading) {
  static const struct {
    const char *words[4];
    cli_command_e command;
  } rows[] = {
      {{"--help"}, CLI_HELP},
      {{"-h"}, CLI_HELP},
      {{"help"}, CLI_HELP},
      {{"help", "help"}, CLI_HELP},
      {{"help", "serve"}, CLI_HELP_SERVE},
      {{"help", "check"}, CLI_HELP_CHECK},
      {{"serve", "--help"}, CLI_HELP_SERVE},
      {{"serve", "-h", "--nonsense"}, CLI_HELP_SERVE},
      {{"check", "--help"}, CLI_HELP_CHECK},
      {{"--workers", "1", "--help"}, CLI_HELP},
      {{"--version"}, CLI_VERSION},
      {{"serve", "--version", "x"}, CLI_VERSION},
  };
  cli_s cli;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *argv[6] = {(char *)"crier"};
    for (size_t k = 0; k < 4; k++)
      argv[1 + k] = (char *)rows[i].words[k];
    cr_expect_eq(parse(argv, ENV("CRIER_NONSENSE=1"), &cli), 0, "%zu: %s", i,
                 err);
    cr_expect_eq(cli.command, rows[i].command, "%zu", i);
  }
}

Test(cli, the_version_is_that_of_the_project) {
  cli_s cli;
  cr_assert_eq(parse(WORDS("--version"), nothing, &cli), 0);
  cr_expect_eq(print(&cli), 0);
  cr_expect_str_eq(printed, "crier " PROJECT_VERSION "\n");
}

Test(cli, serving_prints_nothing) {
  cli_s cli;
  cr_assert_eq(parse(WORDS("serve"), nothing, &cli), 0);
  cr_expect_eq(print(&cli), 0);
  cr_expect_str_empty(printed);
}

Test(cli, help_names_the_commands_and_the_exit_codes) {
  cli_s cli;
  cr_assert_eq(parse(WORDS("help"), nothing, &cli), 0);
  cr_expect_eq(print(&cli), 0);
  cr_expect_not_null(strstr(printed, "\n  serve    "));
  cr_expect_not_null(strstr(printed, "\n  check    "));
  cr_expect_not_null(strstr(printed,
                            "\nexit codes: 0 all is well; 1 it failed; "
                            "2 a wrong flag or setting;\n70 "));
}

Test(cli, the_help_of_serve_lists_every_setting_with_its_default) {
  size_t n;
  const config_setting_s *s = config_settings(&n);
  cli_s cli;
  char entry[256];
  cr_assert_eq(parse(WORDS("serve", "--help"), nothing, &cli), 0);
  cr_expect_eq(print(&cli), 0);
  for (size_t i = 0; i < n; i++) {
    snprintf(entry, sizeof entry, " (%s)\n      %s\n",
             *s[i].usual ? s[i].usual : "none", s[i].help);
    const char *at = strstr(printed, entry);
    cr_expect_not_null(at, "%s", s[i].name);
    snprintf(entry, sizeof entry, "\n  --%s ", s[i].name);
    cr_expect_not_null(strstr(printed, entry), "%s", s[i].name);
  }
  cr_expect_not_null(
      strstr(printed, "\n  --slow skip|close (skip)\n"
                      "      a reader that falls behind skips messages or is "
                      "closed\n"));
  cr_expect_not_null(strstr(printed, "\n  --open (false)\n"));
  cr_expect_not_null(strstr(printed, "\n  --store memory|PATH (memory)\n"));
  cr_expect_not_null(
      strstr(printed, "\n  --history.rule 'PATTERN count=N bytes=SIZE age=TIME "
                      "slow=skip|close' (none)\n"));
  cr_expect_not_null(strstr(printed, "\n  --message.max SIZE (1MiB)\n"));
}

Test(cli, no_line_of_help_is_wider_than_80_columns) {
  static const cli_command_e all[] = {CLI_HELP, CLI_HELP_SERVE, CLI_HELP_CHECK};
  for (size_t i = 0; i < 3; i++) {
    const cli_s cli = {.command = all[i]};
    cr_expect_eq(print(&cli), 0);
    for (char *line = strtok(printed, "\n"); line; line = strtok(NULL, "\n"))
      cr_expect_leq(strlen(line), 80, "%s", line);
  }
}

Test(cli, check_prints_each_setting_in_force_with_its_origin) {
  size_t n, lines = 0;
  (void)config_settings(&n);
  cli_s cli;
  cr_assert_eq(parse(WORDS("check", "--listen=127.0.0.1:1",
                           "--listen=unix:/run/x", "--http.idle", "5m"),
                     ENV("CRIER_QUEUE_LIMIT=128K"), &cli),
               0, "%s", err);
  cr_expect_eq(print(&cli), 0);
  for (const char *p = printed; (p = strchr(p, '\n')); p++)
    lines++;
  cr_expect_eq(lines, n);
  cr_expect_eq(strstr(printed,
                      "listen = 127.0.0.1:1, unix:/run/x (command line)\n"
                      "workers = 0 (default)\nopen = false (default)\n"
                      "message.max = 1MiB (default)\n"),
               printed, "%s", printed);
  cr_expect_not_null(strstr(printed, "\nqueue.limit = 128KiB (environment)\n"));
  cr_expect_not_null(strstr(printed, "\nhttp.idle = 5m (command line)\n"));
  cr_expect_not_null(strstr(printed, "\nhistory.count = 1000 (default)\n"));
  cr_expect_not_null(strstr(printed, "\nhistory.rule = none (default)\n"));
  cr_expect_not_null(strstr(printed, "\nstore = memory (default)\n"));
}

Test(cli, check_prints_texts_and_lists_of_them) {
  cli_s cli;
  cr_assert_eq(parse(WORDS("check", "--store=/var/lib/crier store"),
                     ENV("CRIER_HISTORY_RULE=a:* count=1;b/** age=1h"), &cli),
               0, "%s", err);
  cr_expect_eq(print(&cli), 0);
  cr_expect_not_null(
      strstr(printed, "\nhistory.rule = a:* count=1; b/** age=1h "
                      "(environment)\nstore = /var/lib/crier store (command "
                      "line)\n"),
      "%s", printed);
}

Test(cli, output_that_cannot_be_written_is_a_failure) {
  FILE *full = fopen("/dev/full", "w");
  cr_assert_not_null(full);
  const cli_s cli = {.command = CLI_VERSION};
  cr_expect_eq(cli_print(&cli, full), 1);
  fclose(full);
}
