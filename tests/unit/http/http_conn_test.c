/* http_conn_test.c - the HTTP server, by the bytes that a client sees.
 *
 * Each test has a server of its own in a child process on a loopback port that
 * the kernel picks. Answers are compared byte for byte, but for the Date line,
 * which is checked once and then left out. */
#include "facil/http.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define H "Host: t\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"
#define PATIENCE_MS 10000
#define UNTIL_END SIZE_MAX
#define HEAD_MAX 1024 /* of an answer */

/* What `body` of `len` bytes looks like on the wire. */
#define OK(len, body) "HTTP/1.1 200 OK\r\nContent-Length: " len "\r\n\r\n" body

size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

/* ---- the server -----------------------------------------------------------
 */

#define PARKED_MAX 256
#define PARKED_LEN 2000 /* of the answer */

static http_s *parked[PARKED_MAX];
static size_t parked_count;
static size_t echoed;

static void reply_text(http_s *h, view_s body) {
  http_reply(h, .status = 200, .body = body);
}

static void on_echo(http_s *h, view_s segment) {
  (void)segment;
  echoed++;
  reply_text(h, http_request(h)->body);
}

static void on_hello(http_s *h, view_s segment) {
  (void)segment;
  reply_text(h, VIEW_LIT("hello"));
}

static void on_segment(http_s *h, view_s segment) {
  reply_text(h, segment);
}

static void on_big(http_s *h, view_s segment) {
  size_t n = strtoul(segment.data, NULL, 10);
  char *body = malloc(n);
  for (size_t i = 0; i < n; i++)
    body[i] = (char)('a' + i % 26);
  reply_text(h, view_of(body, n));
  free(body);
}

/* Answered by /release, the last one first. */
static void on_park(http_s *h, view_s segment) {
  (void)segment;
  if (parked_count < PARKED_MAX)
    parked[parked_count++] = h;
  else
    http_problem(h, 503, "full", view_of(NULL, 0));
}

static void on_release(http_s *h, view_s segment) {
  (void)segment;
  while (parked_count) {
    char name[32], body[PARKED_LEN + 1];
    snprintf(name, sizeof name, "parked %zu", parked_count - 1);
    int n = snprintf(body, sizeof body, "%-*s", PARKED_LEN, name);
    reply_text(parked[--parked_count], view_of(body, (size_t)n));
  }
  reply_text(h, VIEW_LIT("released"));
}

typedef struct {
  http_s *h;
  char body[64];
  size_t len;
  bool closes;
} late_s;

static void late_answer(void *arg) {
  late_s *l = arg;
  http_reply(l->h, .status = 200, .body = view_of(l->body, l->len),
             .close = l->closes);
  free(l);
}

/* Answered after as many milliseconds as the segment says; "…-close" ends the
 * connection. */
static void on_later(http_s *h, view_s segment) {
  late_s *l = calloc(1, sizeof *l);
  uint32_t ms = (uint32_t)strtoul(segment.data, NULL, 10);
  l->h = h;
  l->closes = memchr(segment.data, '-', segment.len) != NULL;
  l->len = http_request(h)->body.len;
  if (l->len > sizeof l->body)
    l->len = sizeof l->body;
  memcpy(l->body, http_request(h)->body.data, l->len);
  if (facil_run_every(ms, 1, late_answer, l, NULL) < 0)
    late_answer(l);
}

static void on_last(http_s *h, view_s segment) {
  (void)segment;
  http_reply(h, .status = 200, .body = VIEW_LIT("last"), .close = true);
}

static void on_status(http_s *h, view_s segment) {
  http_reply(h, .status = (int)strtoul(segment.data, NULL, 10),
             .type = VIEW_LIT("text/plain"), .body = VIEW_LIT("body"),
             .headers = VIEW_LIT("X-A: b\r\nX-C: d\r\n"));
}

static void on_problem(http_s *h, view_s segment) {
  view_s headers = view_of(NULL, 0), kind = view_sub(segment, 3, 6);
  if (view_eq(kind, VIEW_LIT("-own")))
    headers = VIEW_LIT("retry-after: 7\r\n");
  if (view_eq(kind, VIEW_LIT("-other")))
    headers = VIEW_LIT("X-Retry-After: 7\r\n");
  http_problem(h, (int)strtoul(segment.data, NULL, 10), "a \"quote\"\n\x01",
               headers);
}

/* ---- … the protocol that it upgrades to: echoes behind "<" ---- */

static void raw_on_data(intptr_t uuid, protocol_s *p) {
  char chunk[64];
  (void)p;
  ssize_t n = sock_read(uuid, chunk, sizeof chunk);
  if (n > 0 && sock_write(uuid, chunk, (size_t)n) < 0)
    sock_abort(uuid, "full");
}

static void raw_on_close(intptr_t uuid, protocol_s *p) {
  (void)uuid;
  free(p);
}

static const protocol_ops_s raw_ops = {
    .service = "raw", .on_data = raw_on_data, .on_close = raw_on_close};

static void on_upgrade(http_s *h, view_s segment) {
  intptr_t uuid = http_uuid(h);
  protocol_s *p = malloc(sizeof *p);
  (void)segment;
  p->ops = &raw_ops;
  if (http_upgrade(h,
                   VIEW_LIT("HTTP/1.1 101 Switching Protocols\r\n"
                            "Upgrade: raw\r\nConnection: upgrade\r\n\r\n"),
                   p) == 0 &&
      sock_write(uuid, "<", 1) < 0)
    sock_abort(uuid, "full");
}

/* ---- … what it says of itself ---- */

static size_t open_descriptors(void) {
  size_t n = 0;
  DIR *d = opendir("/proc/self/fd");
  while (readdir(d))
    n++;
  closedir(d);
  return n;
}

static size_t heap_bytes(void) {
  if (__sanitizer_get_current_allocated_bytes)
    return __sanitizer_get_current_allocated_bytes();
  struct mallinfo2 m = mallinfo2();
  return m.uordblks + m.hblkhd;
}

static void on_stats(http_s *h, view_s segment) {
  char body[128];
  (void)segment;
  size_t cpu_ms = (size_t)clock() / (CLOCKS_PER_SEC / 1000);
  int n =
      snprintf(body, sizeof body, "%zu %zu %zu %zu %zu %zu %zu",
               facil_count(http_service), facil_count(raw_ops.service),
               open_descriptors(), heap_bytes(), echoed, parked_count, cpu_ms);
  reply_text(h, view_of(body, (size_t)n));
}

static bool gate(http_s *h) {
  if (http_header(http_request(h), VIEW_LIT("X-Stop")).data == NULL)
    return true;
  http_problem(h, 403, "The gate is shut.", view_of(NULL, 0));
  return false;
}

static const http_route_s routes[] = {
    {"POST", "/echo", on_echo},        {"GET", "/hello", on_hello},
    {"GET", "/seg/*", on_segment},     {"GET", "/seg/*/tail", on_segment},
    {"GET", "/big/*", on_big},         {"GET", "/park", on_park},
    {"GET", "/release", on_release},   {"POST", "/later/*", on_later},
    {"GET", "/last", on_last},         {"GET", "/status/*", on_status},
    {"GET", "/problem/*", on_problem}, {"GET", "/upgrade", on_upgrade},
    {"DELETE", "/echo", on_echo},      {"GET", "/stats", on_stats},
};

static http_settings_s settings = {
    .limits = {.header_bytes = 4096,
               .header_count = 32,
               .url_bytes = 1024,
               .body_bytes = 1 << 20},
    .routes = routes,
    .route_count = sizeof routes / sizeof *routes,
    .gate = gate,
};

static pid_t server = -1;
static uint16_t port;

/* Whether the server ends by itself, in order and without a leak. */
static bool ends_well(long within_ms) {
  int status = -1;
  pid_t gone = 0;
  for (long ms = 0; ms < within_ms && gone == 0; ms += 5) {
    gone = waitpid(server, &status, WNOHANG);
    if (gone == 0)
      poll(NULL, 0, 5);
  }
  if (gone != server)
    return false;
  server = -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static size_t queue_limit = 65536;

static int set_limits(void *unused) {
  (void)unused;
  sock_set_queue_limit(queue_limit);
  return 0;
}

static void start_server(void) {
  pid_t parent = getpid();
  cr_assert_eq(
      facil_listen(.port = "0", .on_open = http_open, .udata = &settings), 0);
  port = (uint16_t)strtoul(strrchr(facil_listening_at(), ':') + 1, NULL, 10);
  server = fork();
  cr_assert(server >= 0);
  if (server)
    return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent)
    _exit(1);
  int status =
      facil_run(.processes = 1, .drain_ms = 3000, .on_start = set_limits);
  if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check())
    status = 1;
  _exit(status);
}

static void hang_up(void);

static void stop_server(void) {
  if (server < 0)
    return;
  hang_up();
  kill(server, SIGTERM);
  if (!ends_well(5000))
    abort(); /* an assertion here would not count */
}

TestSuite(http_conn, .init = start_server, .fini = stop_server, .timeout = 60);
/* These have settings of their own and start theirs themselves. */
TestSuite(http_queue, .fini = stop_server, .timeout = 60);
TestSuite(http_time, .fini = stop_server, .timeout = 60);

/* ---- the client -----------------------------------------------------------
 */

#define FDS_MAX 1024

/* What was read and not looked at, by descriptor. */
static struct {
  char bytes[4096];
  size_t at, len;
  bool is_dialled;
} inbox[FDS_MAX];

static void hang_up(void) {
  for (int fd = 0; fd < FDS_MAX; fd++)
    if (inbox[fd].is_dialled)
      close(fd); /* closed before, if the test did so */
}

static int dial(void) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
  struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  cr_assert(fd >= 0 && fd < FDS_MAX);
  inbox[fd].at = inbox[fd].len = 0;
  inbox[fd].is_dialled = true;
  cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return fd;
}

static void send_bytes(int fd, const void *data, size_t len) {
  const char *at = data;
  while (len) {
    ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
    cr_assert(n > 0, "send: %s", strerror(errno));
    at += n;
    len -= (size_t)n;
  }
}

static void send_text(int fd, const char *text) {
  send_bytes(fd, text, strlen(text));
}

/* Like recv(2), with few system calls for many small reads. */
static ssize_t read_some(int fd, char *out, size_t len) {
  if (inbox[fd].at == inbox[fd].len) {
    ssize_t n = recv(fd, inbox[fd].bytes, sizeof inbox[fd].bytes, 0);
    if (n <= 0)
      return n;
    inbox[fd].at = 0;
    inbox[fd].len = (size_t)n;
  }
  if (len > inbox[fd].len - inbox[fd].at)
    len = inbox[fd].len - inbox[fd].at;
  memcpy(out, inbox[fd].bytes + inbox[fd].at, len);
  inbox[fd].at += len;
  return (ssize_t)len;
}

/* Read `len` bytes, or until the end; NUL-terminated, malloc'ed. */
static char *receive(int fd, size_t len, size_t *got) {
  size_t cap = 4096;
  char *all = malloc(cap);
  *got = 0;
  while (*got < len) {
    if (cap - *got < 2)
      all = realloc(all, cap *= 2);
    size_t want = cap - *got - 1;
    ssize_t n =
        read_some(fd, all + *got, want < len - *got ? want : len - *got);
    cr_assert(n >= 0, "after %zu bytes: %s", *got, strerror(errno));
    if (n == 0)
      break;
    *got += (size_t)n;
  }
  all[*got] = 0;
  return all;
}

/* Take the Date lines out. */
static void strip_dates(char *text) {
  char *at;
  while ((at = strstr(text, "Date: "))) {
    char *end = strstr(at, "\r\n");
    cr_assert_not_null(end);
    memmove(at, end + 2, strlen(end + 2) + 1);
  }
}

/* All that comes until the server's end, without Date lines. */
static char *until_end(int fd) {
  size_t got;
  char *text = receive(fd, UNTIL_END, &got);
  strip_dates(text);
  close(fd);
  return text;
}

static void expect_text(const char *text, const char *expected) {
  cr_assert_str_eq(text, expected, "got:\n%s\nexpected:\n%s\n", text, expected);
}

/* The server says all of `expected` and ends the connection. */
static void expect_end(int fd, const char *expected) {
  char *text = until_end(fd);
  expect_text(text, expected);
  free(text);
}

/* Read one head, through its empty line. */
static char *one_head(int fd) {
  char *head = calloc(1, HEAD_MAX + 1);
  size_t n = 0;
  while (n < 4 || memcmp(head + n - 4, "\r\n\r\n", 4) != 0) {
    cr_assert(n < HEAD_MAX, "no end of a head in:\n%s", head);
    cr_assert_eq(read_some(fd, head + n, 1), 1, "the end after:\n%s", head);
    n++;
  }
  return head;
}

/* One answer: its head without Date, then its body. */
static char *one_answer(int fd) {
  char *head = one_head(fd);
  char *length = strstr(head, "Content-Length: ");
  size_t want = length ? strtoul(length + 16, NULL, 10) : 0, got;
  char *body = receive(fd, want, &got);
  cr_assert_eq(got, want);
  strip_dates(head);
  size_t n = strlen(head);
  char *whole = malloc(n + got + 1);
  memcpy(whole, head, n);
  memcpy(whole + n, body, got + 1);
  free(head);
  free(body);
  return whole;
}

static void expect_answer(int fd, const char *expected) {
  char *text = one_answer(fd);
  expect_text(text, expected);
  free(text);
}

/* All that is said to `in`, on a connection of its own that is half closed
 * behind it. */
static void expect_exchange(const char *in, const char *expected) {
  int fd = dial();
  send_text(fd, in);
  shutdown(fd, SHUT_WR);
  expect_end(fd, expected);
}

/* … which begins with `start` and has `part` in it. */
static void expect_start(const char *in, const char *start, const char *part) {
  int fd = dial();
  send_text(fd, in);
  shutdown(fd, SHUT_WR);
  char *text = until_end(fd);
  cr_assert(strncmp(text, start, strlen(start)) == 0, "to %s:\n%s", in, text);
  cr_assert_not_null(strstr(text, part), "to %s:\n%s", in, text);
  free(text);
}

/* The server has done a whole turn since the bytes that were sent before. */
static void let_it_read(int other) {
  send_text(other, GET("/hello"));
  expect_answer(other, OK("5", "hello"));
}

typedef struct {
  size_t http, raw, fds, heap, echoed, parked, cpu_ms;
} stats_s;

static stats_s stats_of(int fd) {
  stats_s s;
  send_text(fd, GET("/stats"));
  char *text = one_answer(fd);
  int n =
      sscanf(strstr(text, "\r\n\r\n"), "%zu %zu %zu %zu %zu %zu %zu", &s.http,
             &s.raw, &s.fds, &s.heap, &s.echoed, &s.parked, &s.cpu_ms);
  free(text);
  cr_assert_eq(n, 7);
  return s;
}

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void sleep_ms(long ms) {
  struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static void reset(int fd) {
  struct linger now = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd);
}

/* Wait until the server has `n` connections, `fd` included. */
static stats_s wait_for(int fd, size_t n) {
  stats_s s = stats_of(fd);
  for (uint64_t end = now_ms() + PATIENCE_MS; s.http != n && now_ms() < end;
       s = stats_of(fd))
    sleep_ms(5);
  cr_assert_eq(s.http, n, "%zu connections", s.http);
  return stats_of(fd); /* descriptors go at the end of a turn */
}

static void release_parked(int fd) {
  send_text(fd, GET("/release"));
  expect_answer(fd, OK("8", "released"));
}

/* ---- one request ----------------------------------------------------------
 */

Test(http_conn, a_request_is_answered_with_a_date_and_the_connection_is_kept) {
  int fd = dial();
  size_t got;
  send_text(fd, GET("/hello"));
  char *text = receive(fd, 80, &got);
  char day[4], month[4], line[80];
  int d, y, h, m, s;
  char *date = strstr(text, "Date: ");
  cr_assert_not_null(date, "%s", text);
  cr_assert_eq(sscanf(date, "Date: %3s, %2d %3s %4d %2d:%2d:%2d GMT\r\n", day,
                      &d, month, &y, &h, &m, &s),
               7);
  time_t now = time(NULL);
  bool fits = false;
  for (time_t t = now - 2; t <= now; t++) {
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(line, sizeof line, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm);
    fits |= strncmp(date, line, strlen(line)) == 0;
  }
  cr_assert(fits, "%s against %s", date, line);
  free(text);
  send_text(fd, GET("/hello"));
  expect_answer(fd, OK("5", "hello"));
  close(fd);
}

Test(http_conn, status_type_headers_and_body_come_in_one_order) {
  expect_exchange(GET("/status/404"), "HTTP/1.1 404 Not Found\r\n"
                                      "Content-Type: text/plain\r\n"
                                      "Content-Length: 4\r\n"
                                      "X-A: b\r\nX-C: d\r\n\r\nbody");
  /* RFC 9110 sections 8.6 and 15.4.5: neither length nor body */
  expect_exchange(GET("/status/204"), "HTTP/1.1 204 No Content\r\n"
                                      "Content-Type: text/plain\r\n"
                                      "X-A: b\r\nX-C: d\r\n\r\n");
  expect_exchange(GET("/status/304"), "HTTP/1.1 304 Not Modified\r\n"
                                      "Content-Type: text/plain\r\n"
                                      "X-A: b\r\nX-C: d\r\n\r\n");
}

static void expect_problem(const char *path, const char *status,
                           const char *title, const char *field) {
  char in[128], body[256], out[512];
  snprintf(in, sizeof in, "GET /problem/%s HTTP/1.1\r\n" H "\r\n", path);
  int n = snprintf(body, sizeof body,
                   "{\"type\":\"about:blank\",\"title\":\"%s\",\"status\":%s,"
                   "\"detail\":\"a \\\"quote\\\"\\n\\u0001\"}\n",
                   title, status);
  snprintf(out, sizeof out,
           "HTTP/1.1 %s %s\r\nContent-Type: application/problem+json\r\n"
           "Content-Length: %d\r\n%s\r\n%s",
           status, title, n, field, body);
  expect_exchange(in, out);
}

Test(http_conn, a_problem_is_json_and_says_when_to_come_back) {
  expect_problem("409", "409", "Conflict", "");
  expect_problem("503", "503", "Service Unavailable", "Retry-After: 1\r\n");
  expect_problem("429", "429", "Too Many Requests", "Retry-After: 1\r\n");
  expect_problem("429-own", "429", "Too Many Requests", "retry-after: 7\r\n");
  expect_problem("429-other", "429", "Too Many Requests",
                 "X-Retry-After: 7\r\nRetry-After: 1\r\n");
}

Test(http_conn, P21_head_gets_the_head_of_get) {
  expect_exchange("HEAD /hello HTTP/1.1\r\n" H "\r\n" GET("/hello"),
                  OK("5", "") OK("5", "hello"));
  expect_start("HEAD /nowhere HTTP/1.1\r\n" H "\r\n" GET("/hello"),
               "HTTP/1.1 404 Not Found\r\n", "\r\n\r\n" OK("5", "hello"));
}

Test(http_conn, P21_methods_are_answered_by_what_the_path_has) {
  expect_exchange("OPTIONS /echo HTTP/1.1\r\n" H "\r\n",
                  "HTTP/1.1 204 No Content\r\n"
                  "Allow: POST, DELETE, OPTIONS\r\n\r\n");
  expect_exchange("OPTIONS /seg/x HTTP/1.1\r\n" H "\r\n",
                  "HTTP/1.1 204 No Content\r\n"
                  "Allow: GET, HEAD, OPTIONS\r\n\r\n");
  expect_exchange("OPTIONS * HTTP/1.1\r\n" H "\r\n",
                  "HTTP/1.1 204 No Content\r\n"
                  "Allow: POST, GET, HEAD, DELETE, OPTIONS\r\n\r\n");
  expect_start("OPTIONS /nowhere HTTP/1.1\r\n" H "\r\n", "HTTP/1.1 204 ", "");
  expect_start("PUT /echo HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n",
               "HTTP/1.1 405 Method Not Allowed\r\n",
               "\r\nAllow: POST, DELETE, OPTIONS\r\n");
  expect_start("PUT /nowhere HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n",
               "HTTP/1.1 404 ", "");
  expect_start("TRACE /hello HTTP/1.1\r\n" H "\r\n", "HTTP/1.1 501 ", "");
  expect_start("CONNECT t:80 HTTP/1.1\r\n" H "\r\n", "HTTP/1.1 501 ", "");
  expect_start("FOO /hello HTTP/1.1\r\n" H "\r\n", "HTTP/1.1 501 ",
               "\r\nConnection: close\r\n");
}

Test(http_conn, a_segment_is_decoded_once_and_nothing_is_normalised) {
  static const struct {
    const char *path, *body;
  } fits[] = {{"/seg/a", "a"},           {"/seg/a%2Fb", "a/b"},
              {"/seg/%252e", "%2e"},     {"/seg/..", ".."},
              {"/seg/%2E%2e", ".."},     {"/seg/a/tail?x", "a"},
              {"/seg/a+b?c=%zz", "a+b"}, {"/seg/*", "*"}};
  static const char *const none[] = {
      "/seg/",    "/seg",     "/seg//tail",    "/seg/a/", "/seg/a/b", "//seg/a",
      "/%73eg/a", "/seg%2Fa", "/seg/../hello", "/SEG/a",  "/"};
  char in[256], out[256];
  for (size_t i = 0; i < sizeof fits / sizeof *fits; i++) {
    snprintf(in, sizeof in, "GET %s HTTP/1.1\r\n" H "\r\n", fits[i].path);
    snprintf(out, sizeof out, OK("%zu", "%s"), strlen(fits[i].body),
             fits[i].body);
    expect_exchange(in, out);
  }
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    snprintf(in, sizeof in, "GET %s HTTP/1.1\r\n" H "\r\n", none[i]);
    expect_start(in, "HTTP/1.1 404 ", "");
  }
  expect_start(GET("/seg/%zz"), "HTTP/1.1 400 ", "hexadecimal");
  expect_start(GET("/seg/a%2") GET("/hello"), "HTTP/1.1 400 ",
               OK("5", "hello"));
}

Test(http_conn, the_gate_answers_instead_of_a_route) {
  expect_start("GET /hello HTTP/1.1\r\n" H "X-Stop: 1\r\n\r\n" GET("/hello"),
               "HTTP/1.1 403 ", OK("5", "hello"));
}

/* ---- keep-alive, RFC 9112 section 9.3 -------------------------------------
 */

Test(http_conn, the_connection_is_kept_or_closed_as_the_request_says) {
  const char *closed = "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                       "Content-Length: 5\r\n\r\nhello";
  int fd = dial();
  send_text(fd, "GET /hello HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
  expect_end(fd, closed);
  fd = dial();
  send_text(fd, "GET /hello HTTP/1.0\r\n\r\n");
  expect_end(fd, closed);
  fd = dial();
  for (int i = 0; i < 2; i++) {
    send_text(fd, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    expect_answer(fd, "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n"
                      "Content-Length: 5\r\n\r\nhello");
  }
  send_text(fd, GET("/last") GET("/hello"));
  expect_end(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                 "Content-Length: 4\r\n\r\nlast");
}

Test(http_conn, nothing_is_handled_behind_a_request_that_closes) {
  int fd = dial(), other = dial();
  send_text(fd, "POST /later/30 HTTP/1.1\r\n" H
                "Connection: close\r\nContent-Length: 1\r\n\r\n1"
                "POST /echo HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n2");
  expect_end(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                 "Content-Length: 1\r\n\r\n1");
  cr_assert_eq(stats_of(other).echoed, 0);
}

Test(http_conn, a_client_that_ends_its_half_gets_the_whole_answer) { /* #10 */
  size_t got;
  int fd = dial();
  send_text(fd, GET("/big/3000000") GET("/hello"));
  shutdown(fd, SHUT_WR);
  char *text = receive(fd, UNTIL_END, &got);
  char *body = strstr(text, "\r\n\r\n") + 4;
  for (size_t i = 0; i < 3000000; i++)
    cr_assert_eq(body[i], (char)('a' + i % 26), "at %zu", i);
  strip_dates(body + 3000000);
  /* by then it may be known that this is the last */
  cr_assert(strstr(body + 3000000, "\r\n\r\nhello"));
  free(text);
  close(fd);
  fd = dial();
  send_text(fd,
            "POST /later/50 HTTP/1.1\r\n" H "Content-Length: 4\r\n\r\nlate");
  shutdown(fd, SHUT_WR);
  expect_end(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                 "Content-Length: 4\r\n\r\nlate");
}

/* ---- order ----------------------------------------------------------------
 */

Test(http_conn, answers_come_in_the_order_of_the_requests) {
  expect_exchange(
      "POST /later/60 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1"
      "POST /later/1 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n2" GET(
          "/hello") "POST /later/30 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n4"
                    "HEAD /hello HTTP/1.1\r\n" H "\r\n" GET("/last")
                        GET("/hello"),
      OK("1", "1") OK("1", "2") OK("5", "hello") OK("1", "4")
          OK("5", "") "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                      "Content-Length: 4\r\n\r\nlast");
}

Test(http_conn, answers_given_backwards_come_forwards) {
  int fd = dial();
  for (int i = 0; i < 40; i++)
    send_text(fd, GET("/park"));
  send_text(fd, GET("/release"));
  for (int i = 0; i < 40; i++) {
    char name[32], out[PARKED_LEN + 128];
    snprintf(name, sizeof name, "parked %d", i);
    snprintf(out, sizeof out, OK("%d", "%-*s"), PARKED_LEN, PARKED_LEN, name);
    expect_answer(fd, out);
  }
  expect_answer(fd, OK("8", "released"));
  close(fd);
}

Test(http_conn, large_answers_keep_their_place) {
  size_t got;
  int fd = dial();
  send_text(fd, "POST /later/20 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1");
  send_text(fd,
            GET("/big/200000") GET("/big/100000") GET("/hello") GET("/hello"));
  shutdown(fd, SHUT_WR);
  char *text = receive(fd, UNTIL_END, &got), *at = text;
  static const size_t lens[] = {1, 200000, 100000, 5, 5};
  for (size_t i = 0; i < 5; i++) {
    at = strstr(at, "Content-Length: ");
    cr_assert_not_null(at);
    cr_assert_eq(strtoul(at + 16, NULL, 10), lens[i], "number %zu", i);
    at = strstr(at, "\r\n\r\n") + 4;
    if (lens[i] > 5)
      for (size_t k = 0; k < lens[i]; k++)
        cr_assert_eq(at[k], (char)('a' + k % 26));
    at += lens[i];
  }
  cr_assert_eq(*at, 0);
  free(text);
  close(fd);
}

Test(http_conn, an_answer_to_a_client_that_has_gone_is_dropped) {
  int fd = dial(), other = dial();
  send_text(fd, GET("/park") GET("/park"));
  let_it_read(other);
  reset(fd);
  fd = dial();
  send_text(fd, GET("/park") GET("/hello")); /* that one is kept, and dropped */
  let_it_read(other);
  reset(fd);
  wait_for(other, 1);
  release_parked(other);
  let_it_read(other);
}

Test(http_conn, no_more_requests_are_handed_on_than_may_be_owed) {
  enum { COUNT = 3 * HTTP_OWED_MAX + 5 };
  int fd = dial(), other = dial();
  for (int i = 0; i < COUNT; i++)
    send_text(fd, GET("/park"));
  for (size_t left = COUNT, now; left; left -= now) {
    let_it_read(other);
    let_it_read(other);
    now = stats_of(other).parked;
    cr_assert_eq(now, left < HTTP_OWED_MAX ? left : HTTP_OWED_MAX, "%zu", now);
    release_parked(other);
    for (size_t i = 0; i < now; i++)
      free(one_answer(fd));
  }
}

Test(http_conn, what_is_not_read_costs_no_time) {
  int fd = dial(), other = dial();
  send_text(fd, "POST /later/1000 HTTP/1.1\r\n" H
                "Connection: close\r\nContent-Length: 1\r\n\r\n1");
  let_it_read(other);
  send_text(fd, GET("/hello"));
  size_t before = stats_of(other).cpu_ms;
  expect_end(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                 "Content-Length: 1\r\n\r\n1");
  size_t after = stats_of(other).cpu_ms;
  cr_assert(after - before < 300, "%zu ms of processor time", after - before);
}

/* ---- pieces ---------------------------------------------------------------
 */

/* Send `in` in two pieces, split at each byte, and expect the same. */
static void expect_at_each_split(const char *in, const char *expected) {
  int other = dial();
  for (size_t at = 1; at < strlen(in); at++) {
    int fd = dial();
    send_bytes(fd, in, at);
    let_it_read(other);
    send_text(fd, in + at);
    shutdown(fd, SHUT_WR);
    expect_end(fd, expected);
  }
  close(other);
}

Test(http_conn, requests_may_be_split_at_any_byte) {
  expect_at_each_split(
      "POST /echo HTTP/1.1\r\n" H "Content-Length: 10\r\n\r\n0123456789"
      "\r\nPOST /later/1 HTTP/1.1\r\n" H
      "Content-Length: 3\r\n\r\nabc" GET("/last"),
      OK("10", "0123456789")
          OK("3", "abc") "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                         "Content-Length: 4\r\n\r\nlast");
}

Test(http_conn, requests_may_come_byte_by_byte) {
  const char *in = "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nabcde"
                   "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n"
                   "\r\n3\r\nfgh\r\n0\r\n\r\n" GET("/hello");
  int fd = dial(), other = dial();
  for (; *in; in++) {
    send_bytes(fd, in, 1);
    let_it_read(other);
  }
  expect_answer(fd, OK("5", "abcde"));
  expect_answer(fd, OK("3", "fgh"));
  expect_answer(fd, OK("5", "hello"));
}

Test(http_conn, P16_chunks_may_be_split_at_any_byte) {
  expect_at_each_split(
      "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked"
      "\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n"
      "Trailer: dropped\r\n\r\n" GET("/last"),
      OK("13", "abc0123456789") "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                                "Content-Length: 4\r\n\r\nlast");
}

/* A POST /echo of `count` chunks of one byte each; its length. */
static size_t print_small_chunks(char *in, size_t cap, size_t count) {
  size_t n = (size_t)snprintf(in, cap,
                              "POST /echo HTTP/1.1\r\n" H
                              "Transfer-Encoding: chunked\r\n\r\n");
  for (size_t i = 0; i < count; i++)
    n += (size_t)snprintf(in + n, cap - n, "1\r\n%c\r\n", (int)('a' + i % 26));
  return n + (size_t)snprintf(in + n, cap - n, "0\r\n\r\n");
}

Test(http_conn, P16_a_body_of_many_chunks_of_one_byte_is_whole) {
  enum { COUNT = 50000 };
  size_t cap = COUNT * 6 + 256, got;
  char *in = malloc(cap);
  int fd = dial();
  send_bytes(fd, in, print_small_chunks(in, cap, COUNT));
  send_text(fd, GET("/last"));
  char *text = receive(fd, UNTIL_END, &got);
  char *body = strstr(text, "\r\n\r\n") + 4;
  cr_assert_not_null(strstr(text, "Content-Length: 50000\r\n"));
  for (size_t i = 0; i < COUNT; i++)
    cr_assert_eq(body[i], (char)('a' + i % 26), "at %zu", i);
  cr_assert_not_null(strstr(body + COUNT, "\r\n\r\nlast"));
  free(text);
  free(in);
  close(fd);
}

Test(http_conn, bodies_of_all_sizes_come_back) {
  static const size_t lens[] = {0,     1,     4096,   8191,   65535,
                                65536, 65537, 300001, 1 << 20};
  char *body = malloc(1 << 20);
  int fd = dial();
  for (size_t i = 0; i < 1 << 20; i++)
    body[i] = (char)(i * 7 + i / 251);
  for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
    char head[128], expected[64];
    size_t n = (size_t)snprintf(
        head, sizeof head,
        "POST /echo HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n", lens[i]);
    send_bytes(fd, head, n);
    send_bytes(fd, body, lens[i]);
    send_text(fd, GET("/hello"));
    n = (size_t)snprintf(expected, sizeof expected, OK("%zu", ""), lens[i]);
    char *got = one_answer(fd);
    cr_assert(memcmp(got, expected, n) == 0, "%zu: %.80s", lens[i], got);
    cr_assert(memcmp(got + n, body, lens[i]) == 0, "%zu", lens[i]);
    free(got);
    expect_answer(fd, OK("5", "hello"));
  }
  free(body);
  close(fd);
}

/* ---- 100-continue, RFC 9110 section 10.1.1 --------------------------------
 */

#define EXPECT "Expect: 100-continue\r\n"
#define CONTINUE "HTTP/1.1 100 Continue\r\n\r\n"

Test(http_conn, a_body_that_is_waited_for_is_asked_for) {
  int fd = dial();
  send_text(fd, "POST /echo HTTP/1.1\r\n" H EXPECT "Content-Length: 3\r\n\r\n");
  expect_answer(fd, CONTINUE);
  send_text(fd, "abc");
  expect_answer(fd, OK("3", "abc"));
  send_text(fd, "POST /echo HTTP/1.1\r\n" H EXPECT
                "Transfer-Encoding: chunked\r\n\r\n");
  expect_answer(fd, CONTINUE);
  send_text(fd, "2\r\nde\r\n0\r\n\r\n");
  expect_answer(fd, OK("2", "de"));
  close(fd);
}

Test(http_conn, a_body_is_asked_for_when_its_turn_has_come) {
  int fd = dial();
  send_text(fd, "POST /later/50 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1"
                "POST /echo HTTP/1.1\r\n" H EXPECT "Content-Length: 3\r\n\r\n");
  expect_answer(fd, OK("1", "1"));
  expect_answer(fd, CONTINUE);
  send_text(fd, "abc");
  expect_answer(fd, OK("3", "abc"));
  close(fd);
}

Test(http_conn, a_body_is_not_asked_for_behind_the_last_answer) {
  int fd = dial();
  send_text(fd,
            "POST /later/50-close HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1"
            "POST /echo HTTP/1.1\r\n" H EXPECT "Content-Length: 3\r\n\r\n");
  expect_end(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                 "Content-Length: 1\r\n\r\n1");
}

Test(http_conn, a_body_that_comes_or_never_will_is_not_asked_for) {
  expect_exchange("POST /echo HTTP/1.1\r\n" H EXPECT
                  "Content-Length: 3\r\n\r\nabc",
                  OK("3", "abc"));
  expect_exchange("POST /echo HTTP/1.1\r\n" H EXPECT
                  "Content-Length: 0\r\n\r\n",
                  OK("0", ""));
  int fd = dial(), other = dial();
  send_text(fd,
            "POST /echo HTTP/1.1\r\n" H EXPECT "Content-Length: 3\r\n\r\na");
  let_it_read(other);
  send_text(fd, "bc");
  expect_answer(fd, OK("3", "abc"));
  send_text(fd, "POST /echo HTTP/1.0\r\n" H EXPECT "Content-Length: 3\r\n\r\n");
  let_it_read(other);
  send_text(fd, "abc");
  expect_end(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                 "Content-Length: 3\r\n\r\nabc");
  expect_start("POST /echo HTTP/1.1\r\n" H EXPECT
               "Content-Length: 9999999\r\n\r\n",
               "HTTP/1.1 413 ", "\r\nConnection: close\r\n");
}

/* ---- refused --------------------------------------------------------------
 */

Test(http_conn, what_is_refused_ends_the_connection_behind_earlier_answers) {
  static const struct {
    const char *in, *status;
  } refused[] = {
      {"GET /hello HTTP/1.1\r\n\r\n", "400"},
      {"GET /hello\r\n\r\n", "400"},
      {"\x16\x03\x01\x02\x01\x01\x00\x01", "400"}, /* P25: a TLS hello */
      {"GET /hello HTTP/2.0\r\n" H "\r\n", "505"},
      {"FOO /hello HTTP/1.1\r\n" H "\r\n", "501"},
      {"POST /echo HTTP/1.1\r\n" H "Content-Length: 1048577\r\n\r\n", "413"},
      {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: gzip\r\n\r\n", "501"},
      {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
       "100001\r\n",
       "413"},
      {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
       "5\nhello\r\n0\r\n\r\n", /* P09 */
       "400"},
  };
  int other = dial();
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    char start[64];
    int fd = dial();
    snprintf(start, sizeof start, "HTTP/1.1 %s ", refused[i].status);
    send_text(fd,
              "POST /later/20 HTTP/1.1\r\n" H "Content-Length: 4\r\n\r\nlate");
    send_text(fd, refused[i].in);
    send_text(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1");
    expect_answer(fd, OK("4", "late"));
    char *text = until_end(fd);
    cr_assert(strncmp(text, start, strlen(start)) == 0, "%zu: %s", i, text);
    cr_assert_not_null(strstr(text, "\r\nConnection: close\r\n"), "%s", text);
    char *body = strstr(text, "\r\n\r\n{\"type\":\"about:blank\",");
    cr_assert_not_null(body, "%s", text);
    cr_assert_str_eq(strchr(body, '}'), "}\n");
    free(text);
  }
  cr_assert_eq(stats_of(other).echoed, 0);
}

Test(http_conn, P30_a_body_that_is_too_large_is_never_a_request) {
  int fd = dial(), other = dial();
  char in[] = "POST /echo HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1";
  send_text(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 2000000\r\n\r\n");
  for (int i = 0; i < 5000; i++) /* what of it is taken, is thrown away */
    if (send(fd, in, sizeof in - 1, MSG_NOSIGNAL) < 0)
      break;
  char *text = until_end(fd);
  cr_assert(strncmp(text, "HTTP/1.1 413 ", 13) == 0, "%s", text);
  cr_assert_null(strstr(text, "HTTP/1.1 200"));
  free(text);
  cr_assert_eq(stats_of(other).echoed, 0);
}

/* ---- clients that go ------------------------------------------------------
 */

Test(http_conn, an_end_inside_a_request_handles_nothing) {
  static const char *const parts[] = {
      "P", "POST /echo HTTP/1.1\r\n" H "Content-Length: 10\r\n",
      "POST /echo HTTP/1.1\r\n" H "Content-Length: 10\r\n\r\n123456789",
      "POST /echo HTTP/1.1\r\n" H
      "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"};
  int other = dial();
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    expect_exchange(parts[i], "");
  expect_exchange("", "");
  cr_assert_eq(stats_of(other).echoed, 0);
}

/* Send ten bytes of a thousand, then leave; every second time with an RST. */
static void abort_publishes(size_t count) {
  for (size_t i = 0; i < count; i++) {
    int fd = dial();
    send_text(fd, i & 2 ? "POST /echo HTTP/1.1\r\n" H
                          "Content-Length: 1000\r\n\r\n0123456789"
                        : "POST /echo HTTP/1.1\r\n" H
                          "Transfer-Encoding: chunked\r\n\r\n"
                          "a\r\n0123456789\r\n");
    if (i & 1)
      reset(fd);
    else
      close(fd);
  }
}

Test(http_conn, P19_aborted_publishers_leave_nothing_behind) {
  int other = dial();
  abort_publishes(1000);
  stats_s before = wait_for(other, 1);
  abort_publishes(1000);
  stats_s after = wait_for(other, 1);
  cr_assert_eq(after.fds, before.fds, "%zu after %zu", after.fds, before.fds);
  cr_assert(after.heap < before.heap + 16384, "%zu after %zu", after.heap,
            before.heap);
  cr_assert_eq(after.echoed, 0);
}

/* ---- clients that do not read ---------------------------------------------
 */

/* Send what the socket takes until `len` are sent or `ms` pass without one. */
static size_t send_what_fits(int fd, const char *data, size_t len, int ms) {
  size_t sent = 0;
  while (sent < len) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, ms) == 0)
      break;
    ssize_t n = send(fd, data + sent, len - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    cr_assert(n > 0 || errno == EAGAIN);
    if (n > 0)
      sent += (size_t)n;
  }
  return sent;
}

/* Pipeline `count` requests `one` without reading: the server must not keep
 * more than 256 KiB, and then answer them all, each with `expected`. The heap
 * of the server afterwards. */
static size_t hold_once(int other, const char *one, size_t count,
                        const char *expected) {
  size_t len = strlen(one) * count;
  int fd = dial(), small = 131072;
  char *in = malloc(len);
  let_it_read(other);
  size_t heap = stats_of(other).heap;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  for (size_t i = 0; i < count; i++)
    memcpy(in + i * strlen(one), one, strlen(one));
  size_t at = send_what_fits(fd, in, len, 300);
  size_t now = stats_of(other).heap;
  cr_assert(now < heap + (256 << 10), "%zu bytes more", now - heap);
  for (size_t i = 0; i < count; i++) {
    at += send_what_fits(fd, in + at, len - at, 0);
    expect_answer(fd, expected);
  }
  cr_assert_eq(at, len);
  free(in);
  close(fd);
  return wait_for(other, 1).heap;
}

/* What the first round leaves behind are spare objects for the second. */
static void expect_held(const char *one, size_t count, const char *expected) {
  int other = dial();
  wait_for(other, 1);
  size_t first = hold_once(other, one, count, expected);
  size_t second = hold_once(other, one, count, expected);
  cr_assert(second < first + 4096, "%zu after %zu", second, first);
  close(other);
}

Test(http_conn, a_client_that_does_not_read_is_not_read) {
  char body[1001], one[1100], expected[1100];
  memset(body, 'x', 1000);
  body[1000] = 0;
  snprintf(one, sizeof one,
           "POST /echo HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\n%s", body);
  snprintf(expected, sizeof expected, OK("1000", "%s"), body);
  expect_held(one, 10000, expected);
}

Test(http_conn, large_answers_hold_the_client_too) {
  char body[20001], expected[21000];
  for (size_t i = 0; i < 20000; i++)
    body[i] = (char)('a' + i % 26);
  body[20000] = 0;
  snprintf(expected, sizeof expected, OK("20000", "%s"), body);
  expect_held(GET("/big/20000"), 600, expected);
}

Test(http_conn, late_answers_hold_the_client_too) {
  expect_held("POST /later/1 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1", 2000,
              OK("1", "1"));
}

static void expect_held_with(size_t limit) {
  char body[20001], expected[21000];
  queue_limit = limit;
  start_server();
  for (size_t i = 0; i < 20000; i++)
    body[i] = (char)('a' + i % 26);
  body[20000] = 0;
  snprintf(expected, sizeof expected, OK("20000", "%s"), body);
  expect_held(GET("/big/20000"), 600, expected);
  snprintf(expected, sizeof expected, OK("5000", "%.5000s"), body);
  expect_held(GET("/big/5000"), 2000, expected);
}

Test(http_queue, a_short_queue_takes_all_answers_in_time) {
  expect_held_with(4096);
}

Test(http_queue, a_long_queue_is_not_filled) {
  expect_held_with(16 << 20);
}

/* One late answer, then two that are kept and larger than the queue. */
Test(http_queue, large_answers_wait_for_a_short_queue) {
  queue_limit = 4096;
  start_server();
  size_t got;
  int fd = dial();
  send_text(fd, "POST /later/20 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1");
  send_text(fd, GET("/big/20000") GET("/big/30000") GET("/hello"));
  shutdown(fd, SHUT_WR);
  char *text = receive(fd, UNTIL_END, &got);
  cr_assert(got > 50000 && got < 51000, "%zu", got);
  cr_assert_not_null(strstr(text, "\r\n\r\nhello"));
  free(text);
  close(fd);
}

Test(http_conn, many_requests_in_one_go_are_all_answered) {
  int fd = dial();
  char *in = malloc(1 << 20);
  size_t n = 0, count = 0;
  for (; n < (1 << 20) - 100; count++)
    n += (size_t)snprintf(in + n, 100,
                          "POST /echo HTTP/1.1\r\n" H
                          "Content-Length: %d\r\n\r\n%zu",
                          count < 10      ? 1
                          : count < 100   ? 2
                          : count < 1000  ? 3
                          : count < 10000 ? 4
                                          : 5,
                          count);
  size_t at = 0;
  for (size_t i = 0; i < count; i++) {
    char expected[128], number[24];
    snprintf(number, sizeof number, "%zu", i);
    snprintf(expected, sizeof expected, OK("%zu", "%s"), strlen(number),
             number);
    at += send_what_fits(fd, in + at, n - at, 0);
    expect_answer(fd, expected);
  }
  free(in);
  close(fd);
}

/* ---- upgrade --------------------------------------------------------------
 */

#define UPGRADE                                                                \
  "GET /upgrade HTTP/1.1\r\n" H "Connection: upgrade\r\nUpgrade: raw\r\n\r\n"
#define UPGRADED                                                               \
  "HTTP/1.1 101 Switching Protocols\r\nUpgrade: raw\r\n"                       \
  "Connection: upgrade\r\n\r\n"

Test(http_conn, F17_bytes_behind_an_upgrade_reach_the_protocol) {
  const char *in = UPGRADE "some bytes that follow";
  int other = dial();
  for (size_t at = 1; at <= strlen(in); at++) {
    int fd = dial();
    send_bytes(fd, in, at);
    let_it_read(other);
    if (in[at])
      send_text(fd, in + at);
    shutdown(fd, SHUT_WR);
    expect_end(fd, UPGRADED "<some bytes that follow");
  }
}

Test(http_conn, an_upgrade_waits_for_the_answers_before_it) {
  int fd = dial();
  send_text(fd, "POST /later/30 HTTP/1.1\r\n" H
                "Content-Length: 1\r\n\r\n1" GET("/hello") UPGRADE "abc");
  expect_answer(fd, OK("1", "1"));
  expect_answer(fd, OK("5", "hello"));
  expect_answer(fd, UPGRADED);
  send_text(fd, "def");
  shutdown(fd, SHUT_WR);
  expect_end(fd, "<abcdef");
}

Test(http_conn, an_upgrade_leaves_nothing_of_http) {
  enum { COUNT = 200 };
  int other = dial(), fds[COUNT];
  for (int round = 0; round < 2; round++) {
    stats_s before = wait_for(other, 1);
    for (int i = 0; i < COUNT; i++) {
      fds[i] = dial();
      send_text(fds[i], UPGRADE);
      expect_answer(fds[i], UPGRADED);
    }
    stats_s s = stats_of(other);
    cr_assert_eq(s.http, 1);
    cr_assert_eq(s.raw, COUNT);
    /* a protocol of 8 bytes is at least 32 of the heap */
    if (round == 1)
      cr_assert(s.heap - before.heap <= COUNT * 40, "%zu bytes each",
                (s.heap - before.heap) / COUNT);
    for (int i = 0; i < COUNT; i++)
      close(fds[i]);
    for (uint64_t end = now_ms() + PATIENCE_MS; now_ms() < end;)
      if (stats_of(other).raw == 0)
        break;
    cr_assert_eq(stats_of(other).raw, 0);
  }
}

Test(http_conn, an_idle_connection_costs_little) {
  enum { COUNT = 500 };
  int other = dial(), fds[COUNT];
  let_it_read(other);
  size_t before = stats_of(other).heap;
  for (int i = 0; i < COUNT; i++) {
    fds[i] = dial();
    let_it_read(fds[i]);
  }
  size_t each = (stats_of(other).heap - before) / COUNT;
  cr_assert(each <= 128, "%zu bytes each", each);
}

/* ---- time -----------------------------------------------------------------
 */

static void start_with(uint32_t head_ms, uint32_t idle_ms, uint32_t rate) {
  settings.head_timeout_ms = head_ms;
  settings.idle_ms = idle_ms;
  settings.body_rate = rate;
  start_server();
}

/* The server ends the connection by itself, in `from` to `to` ms, saying
 * something that begins with `start`. */
static void expect_end_within(int fd, uint64_t from, uint64_t to,
                              const char *start) {
  uint64_t begun = now_ms();
  char *text = until_end(fd);
  uint64_t took = now_ms() - begun;
  cr_assert(strncmp(text, start, strlen(start)) == 0, "%s", text);
  cr_assert(*start || !*text, "%s", text);
  cr_assert(took >= from && took <= to, "%zu ms", (size_t)took);
  free(text);
}

/* Send `in`, then its end again and again, a byte each `ms`, until the server
 * says something. How long that took. */
static uint64_t trickle(int fd, const char *in, size_t repeat_from, int ms) {
  uint64_t begun = now_ms();
  for (size_t at = 0;; at = in[at + 1] ? at + 1 : repeat_from) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (send(fd, in + at, 1, MSG_NOSIGNAL) < 0 || poll(&p, 1, ms) > 0)
      return now_ms() - begun;
    cr_assert(now_ms() - begun < PATIENCE_MS);
  }
}

Test(http_time, H16_a_head_that_trickles_in_is_late_by_the_whole_of_it) {
  start_with(400, 60000, 0);
  int fd = dial();
  uint64_t took = trickle(fd, "GET /hello HTTP/1.1\r\nX: aaaaaaaaa", 25, 30);
  cr_assert(took >= 390 && took < 1500, "%zu ms", (size_t)took);
  expect_end_within(fd, 0, 1000, "HTTP/1.1 408 Request Timeout\r\n");
  fd = dial(); /* faster than a clock that starts anew with each byte */
  took = trickle(fd, "GET /hello HTTP/1.1\r\nX: aaaaaaaaa", 25, 1);
  cr_assert(took >= 390 && took < 1500, "%zu ms", (size_t)took);
  expect_end_within(fd, 0, 1000, "HTTP/1.1 408 Request Timeout\r\n");
  fd = dial(); /* the same on a connection that was used */
  let_it_read(fd);
  took = trickle(fd, "GET /hello HTTP/1.1\r\nX: aaaaaaaaa", 25, 150);
  cr_assert(took >= 390 && took < 1500, "%zu ms", (size_t)took);
  expect_end_within(fd, 0, 1000, "HTTP/1.1 408 Request Timeout\r\n");
}

Test(http_time, a_head_that_stops_is_late_and_silence_is_no_request) {
  start_with(300, 60000, 0);
  int fd = dial();
  send_text(fd, "GET / HT");
  expect_end_within(fd, 250, 1500,
                    "HTTP/1.1 408 Request Timeout\r\n"
                    "Connection: close\r\n");
  fd = dial();
  expect_end_within(fd, 250, 1500, "");
}

Test(http_time, a_head_is_late_by_its_first_byte) {
  start_with(1000, 60000, 0);
  int fd = dial();
  uint64_t begun = now_ms();
  send_text(fd, "G");
  sleep_ms(900);
  send_text(fd, "E");
  expect_end_within(fd, 50, 900, "HTTP/1.1 408 Request Timeout\r\n");
  cr_assert(now_ms() - begun >= 1000);
}

Test(http_time, a_late_head_is_answered_in_turn) {
  start_with(200, 60000, 0);
  int fd = dial();
  send_text(fd,
            "POST /later/600 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1GET /");
  expect_answer(fd, OK("1", "1"));
  expect_end_within(fd, 0, 1000, "HTTP/1.1 408 ");
}

Test(http_time, a_body_below_the_rate_is_late) {
  start_with(300, 60000, 100);
  int fd = dial();
  send_text(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 10000\r\n\r\n");
  uint64_t took = trickle(fd, "aaaa", 0, 30); /* 33 a second */
  cr_assert(took >= 300 && took < 2000, "%zu ms", (size_t)took);
  expect_end_within(fd, 0, 1000, "HTTP/1.1 408 ");
  fd = dial();
  send_text(fd, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
                "ffff\r\n");
  expect_end_within(fd, 250, 1500, "HTTP/1.1 408 ");
}

Test(http_time, a_body_above_the_rate_may_take_its_time) {
  start_with(200, 60000, 100);
  int fd = dial();
  char chunk[21] = "01234567890123456789";
  send_text(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 200\r\n\r\n");
  for (int i = 0; i < 10; i++) { /* 200 a second, 1 s in all */
    sleep_ms(100);
    send_bytes(fd, chunk, 20);
  }
  char *text = one_answer(fd);
  cr_assert(strncmp(text, "HTTP/1.1 200 ", 13) == 0, "%s", text);
  free(text);
  close(fd);
}

Test(http_time, an_idle_connection_is_closed_quietly) {
  start_with(5000, 300, 0);
  int fd = dial();
  let_it_read(fd);
  expect_end_within(fd, 250, 1500, "");
}

Test(http_time, a_connection_that_waits_for_an_answer_is_not_idle) {
  start_with(5000, 200, 0);
  int fd = dial();
  send_text(fd, "POST /later/900 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1");
  expect_answer(fd, OK("1", "1"));
  /* and from the answer on it may be idle as long as any other */
  expect_end_within(fd, 150, 1000, "");
}

Test(http_time, a_client_that_never_reads_is_lost) {
  start_with(5000, 300, 0);
  int fd = dial(), other = dial(), small = 4096;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  send_text(fd, GET("/big/9000000"));
  let_it_read(other);
  cr_assert_eq(stats_of(other).http, 2);
  wait_for(other, 1);
}

Test(http_time, an_upgrade_ends_the_times_of_http) {
  start_with(200, 200, 0);
  int fd = dial();
  send_text(fd, UPGRADE);
  expect_answer(fd, UPGRADED);
  sleep_ms(700);
  send_text(fd, "alive");
  shutdown(fd, SHUT_WR);
  expect_end(fd, "<alive");
}

/* ---- the end of the process -----------------------------------------------
 */

Test(http_conn, a_stop_closes_what_is_idle_and_answers_what_is_not) {
  int idle = dial(), late = dial(), partial = dial(), unread = dial();
  let_it_read(idle);
  let_it_read(unread);
  send_text(late,
            "POST /later/300 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1"
            "POST /later/200 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n2");
  send_text(partial, "POST /echo HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\n1");
  let_it_read(idle);
  send_text(unread, GET("/hello"));
  kill(server, SIGTERM);
  char *text = until_end(unread); /* read before the stop or after it */
  cr_assert_not_null(strstr(text, "\r\n\r\nhello"), "%s", text);
  free(text);
  expect_end(idle, "");
  send_text(partial, "23" GET("/hello"));
  expect_end(late, OK("1", "1") "HTTP/1.1 200 OK\r\nConnection: close\r\n"
                                "Content-Length: 1\r\n\r\n2");
  expect_end(partial, OK("3", "123") "HTTP/1.1 200 OK\r\nConnection: close"
                                     "\r\nContent-Length: 5\r\n\r\nhello");
  cr_assert(ends_well(2000));
}

/* ---- JSON -----------------------------------------------------------------
 */

Test(http_json, text_is_escaped_and_bad_bytes_are_replaced) {
  static const struct {
    const char *in, *out;
  } cases[] = {
      {"plain", "plain"},
      {"a\"b\\c/", "a\\\"b\\\\c/"},
      {"\n\r\t\x01\x1f\x7f", "\\n\\r\\t\\u0001\\u001f\x7f"},
      {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac"
                                               "\xf0\x9f\x98\x80"},
      {"\xff", "\xef\xbf\xbd"},
      {"a\xc3", "a\xef\xbf\xbd"},
      {"\xe2\x82\"", "\xef\xbf\xbd\\\""},
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char out[64];
    size_t n = http_json_escape(out, sizeof out, view_str(cases[i].in));
    cr_assert(view_eq(view_of(out, n), view_str(cases[i].out)), "%zu: %.*s", i,
              (int)n, out);
  }
}

Test(http_json, an_escape_is_never_cut) {
  char out[16];
  view_s text = VIEW_LIT("a\x01\xe2\x82\xac");
  static const size_t lens[] = {0, 1, 1, 1, 1, 1, 1, 7, 7, 7, 10};
  for (size_t cap = 0; cap <= 10; cap++)
    cr_assert_eq(http_json_escape(out, cap, text), lens[cap], "%zu", cap);
  cr_assert_eq(http_json_escape(out, 2, VIEW_LIT("\"")), 2);
  cr_assert_eq(http_json_escape(out, 1, VIEW_LIT("\"")), 0);
  cr_assert_eq(http_json_escape(out, 2, VIEW_LIT("\xff")), 0);
}
