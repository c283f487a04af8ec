/* The promise of the registry over real sockets and the real ring: slow
 * readers, workers that were stopped, the seam of subscribing, many clients
 * that leave at once. */
#include "live.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/resource.h>

static poster_s poster;

static void begin(live_options_s o) {
  cr_assert(live_start(o));
}

static void end(void) {
  client_close(&poster.c);
  int status = live_stop();
  cr_assert_eq(status, 0, "%d", status);
}

/* ---- slow readers ------------------------------------------------------ */

/* "SEQ." and letters up to the size: see judge.py. */
static view_s body_of(unsigned seq, size_t size) {
  static char body[1 << 20];
  int n = snprintf(body, 16, "%u.", seq);
  if (size <= 8)
    return view_of(body, (size_t)n);
  memset(body + n, 'a' + (int)(seq % 26), size - (size_t)n);
  return view_of(body, size);
}

/* Publish to `path`, with pings from `c` in between; a line each in `list`. */
static void publish_many(client_s *c, FILE *list, const char *path,
                         unsigned count, size_t size) {
  unsigned pings = 0;
  for (unsigned i = 0; i < count; i++) {
    if (i % (count / 20) == 0 && pings < 20) {
      char text[8];
      snprintf(text, sizeof text, "%u", pings++);
      client_write(c, WS_FIN_PING, view_str(text));
    }
    int status = post(&poster, path, "text/plain", body_of(i, size));
    cr_assert_eq(status, 201, "%u of %zu: %d", i, size, status);
    fprintf(list, "%llu %zu\n",
            (unsigned long long)json_number(poster.body, "id"), size);
  }
}

/* Read everything into a file: first byte by byte, then as it comes, until the
 * end or until nothing comes; a Close is answered. */
static void capture(client_s *c, const char *to) {
  FILE *f = fopen(to, "w");
  view_s left = client_left(c);
  fwrite(left.data, 1, left.len, f);
  static char chunk[65536];
  size_t total = 0, step = 1;
  for (;;) {
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    if (poll(&p, 1, 400) <= 0)
      break;
    ssize_t n = recv(c->fd, chunk, step, 0);
    if (n <= 0)
      break;
    fwrite(chunk, 1, (size_t)n, f);
    total += (size_t)n;
    step = total < 2000 ? 1 : total < 100000 ? 1 + total % 997 : sizeof chunk;
  }
  fclose(f);
}

static int judge(const char *mode, const char *captured, const char *listed) {
  pid_t pid = fork();
  if (pid == 0) {
    execl("/usr/bin/python3", "python3", JUDGE, mode, captured, listed,
          (char *)NULL);
    _exit(99);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
    ;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

static void slow_reader(const char *mode, bool no_uring) {
  bool has_history = strstr(mode, "all") != NULL;
  begin((live_options_s){.tail_size = 32 << 10,
                         .no_uring = no_uring,
                         .history = has_history ? 10000 : 0,
                         .slow_closes =
                             has_history || strstr(mode, "close") != NULL});
  static const struct {
    size_t size;
    unsigned count;
  } loads[] = {
      {10, 5000}, {3072, 140}, {5120, 120}, {71680, 50}, {1 << 20, 40}};
  for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
    char path[64], captured[64], listed[64];
    snprintf(path, sizeof path, "/channels/slow-%zu", i);
    snprintf(captured, sizeof captured, "/tmp/crier-slow-%d.got", live.pid);
    snprintf(listed, sizeof listed, "/tmp/crier-slow-%d.ids", live.pid);
    bool is_v1 = strncmp(mode, "v1", 2) == 0;
    client_s c = client_open_with(path, is_v1 ? "crier.v1" : NULL, 4096);
    cr_assert_geq(c.fd, 0);
    FILE *list = fopen(listed, "w");
    post(&poster, "/channels/other", NULL, VIEW_LIT("x"));
    uint64_t cursor = json_number(poster.body, "id");
    if (is_v1) {
      const char *text = client_next(&c);
      cursor = json_number(text, "cursor");
    }
    /* raw has no cursor: it may be any id up to the first message */
    fprintf(list, "%llu\n", (unsigned long long)cursor);
    publish_many(&c, list, path, loads[i].count, loads[i].size);
    fclose(list);
    capture(&c, captured);
    cr_expect_eq(judge(mode, captured, listed), 0, "%s of %zu", mode,
                 loads[i].size);
    unlink(captured);
    unlink(listed);
    client_close(&c);
  }
  live_recount();
  cr_expect(live_until(live_sum(tails) == 0));
  cr_expect_eq(live_sum(tail_bytes), 0);
  end();
}

Test(slow, v1_is_told_the_gap, .timeout = 90) {
  slow_reader("v1", false);
}
Test(slow, v1_is_told_the_gap_by_plain_send, .timeout = 90) {
  slow_reader("v1", true);
}
Test(slow, raw_ends_with_the_gap, .timeout = 90) {
  slow_reader("raw-gap", false);
}
Test(slow, raw_ends_with_the_gap_by_plain_send, .timeout = 90) {
  slow_reader("raw-gap", true);
}
Test(slow, raw_is_closed_where_slow_closes, .timeout = 90) {
  slow_reader("raw-close", false);
}
Test(slow, v1_is_closed_where_slow_closes, .timeout = 90) {
  slow_reader("v1-close", true);
}

Test(slow, v1_lacks_nothing_where_history_is_kept, .timeout = 90) {
  slow_reader("v1-all", false);
}
Test(slow, raw_lacks_nothing_where_history_is_kept, .timeout = 90) {
  slow_reader("raw-all", true);
}

Test(slow, a_raw_since_is_a_gap_and_not_slow, .timeout = 30) {
  begin((live_options_s){.slow_closes = true});
  client_s c = client_open("/channels/a?since=5", NULL);
  const char *text = client_next(&c);
  cr_expect(strncmp(text, "(close 4001 gap 6 ", 18) == 0, "%s", text);
  client_close(&c);
  end();
}

/* core.md 4.15, 20: what a stopped reader costs in user memory. */
Test(slow, stopped_readers_cost_little, .timeout = 60) {
  begin((live_options_s){.workers = 1});
  enum { N = 50 };
  static client_s c[N];
  for (int i = 0; i < N; i++)
    c[i] = client_open_with("/channels/busy", "crier.v1", 4096);
  client_s quick = client_open("/channels/busy", NULL);
  live_recount();
  size_t before = live_sum(heap);
  for (unsigned i = 0; i < 1500; i++) {
    post(&poster, "/channels/busy", "text/plain", body_of(i, 1024));
    cr_assert_eq(strtoul(client_next(&quick), NULL, 10), i);
  }
  live_recount();
#ifndef LIVE_ASAN
  cr_expect_lt(live_sum(heap) - before, N * 16384 + (512 << 10), "%zu",
               live_sum(heap) - before);
#else
  (void)before;
#endif
  cr_expect_lt(live_sum(tail_bytes), 1 << 20);
  for (int i = 0; i < N; i++)
    client_reset(&c[i]);
  client_close(&quick);
  cr_expect(live_until(live_sum(tails) == 0));
  end();
}

/* ---- many at once ------------------------------------------------------ */

Test(crowd, all_that_leave_at_once_leave_nothing, .timeout = 60) {
  begin((live_options_s){.workers = 2}); /* core.md 4.15, 37 */
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  enum { N = 1000 };
  static client_s c[N];
  size_t heap = 0;
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < N; i++) {
      char path[512];
      int n = snprintf(path, sizeof path, "/subscribe?since=now");
      for (int k = 0; k < 10; k++)
        n += snprintf(path + n, sizeof path - (size_t)n, "&channel=c%d",
                      (i * 7 + k) % 997);
      c[i] = client_open(path, "crier.v1");
      cr_assert_geq(c[i].fd, 0);
    }
    cr_expect(live_until(live_sum(subscriptions) == 10 * N));
    cr_expect_eq(post(&poster, "/channels/c5", NULL, VIEW_LIT("x")), 201);
    cr_expect_geq(json_number(poster.body, "subscribers"), 10);
    for (int i = 0; i < N; i++)
      client_reset(&c[i]);
    cr_expect(live_until(live_sum(channels) == 0));
    cr_expect_eq(live_sum(subscriptions), 0);
    cr_expect(live_until(live_sum(connections) == 1));
    post(&poster, "/channels/c5", NULL, VIEW_LIT("x"));
    cr_expect_eq(json_number(poster.body, "subscribers"), 0);
    cr_expect(live_until(chantable_used(ring_channels(live.ring)) == 0));
    live_recount();
    if (round == 0)
      heap = live_sum(heap);
  }
#ifndef LIVE_ASAN
  cr_expect_lt(live_sum(heap), heap + heap / 20 + 65536, "%zu, then %zu", heap,
               live_sum(heap));
#else
  (void)heap;
#endif
  end();
}

/* core.md 4.15, 19: the same order for everybody, on all workers. */
Test(crowd, everyone_gets_everything_in_one_order, .timeout = 90) {
  begin((live_options_s){.workers = 4});
  enum { PUBLISHERS = 8, SUBSCRIBERS = 60 };
  const int each = (int)live_soak(250, 1000);
  static client_s pub[PUBLISHERS], sub[SUBSCRIBERS];
  for (int i = 0; i < SUBSCRIBERS; i++) {
    sub[i] = client_open("/channels/all", "crier.v1");
    cr_assert(strstr(client_next(&sub[i]), "subscribed"));
  }
  for (int i = 0; i < PUBLISHERS; i++)
    pub[i] = client_open("/subscribe", "crier.v1");
  for (int n = 0; n < each; n++)
    for (int i = 0; i < PUBLISHERS; i++) {
      char text[128];
      snprintf(text, sizeof text,
               "{\"op\":\"publish\",\"channel\":\"all\",\"data\":[%d,%d]}", i,
               n);
      cr_assert(client_text(&pub[i], text));
    }
  uint64_t *order = calloc((size_t)(PUBLISHERS * each), sizeof *order);
  for (int s = 0; s < SUBSCRIBERS; s++) {
    int next[PUBLISHERS] = {0};
    uint64_t last = 0;
    for (int k = 0; k < PUBLISHERS * each; k++) {
      const char *text = client_next(&sub[s]);
      uint64_t id = json_number(text, "id");
      const char *data = strstr(text, "\"data\":[");
      cr_assert(data, "subscriber %d, %d: %s", s, k, text);
      char *at;
      long from = strtol(data + 8, &at, 10), n = strtol(at + 1, NULL, 10);
      cr_assert_gt(id, last);
      cr_assert_eq(n, next[from], "a publisher's order");
      next[from]++;
      last = id;
      if (s == 0)
        order[k] = id;
      cr_assert_eq(order[k], id, "another order");
    }
  }
  for (int i = 0; i < PUBLISHERS; i++) {
    for (int n = 0; n < each; n++)
      cr_assert(strstr(client_next(&pub[i]), "published"));
    client_close(&pub[i]);
  }
  for (int i = 0; i < SUBSCRIBERS; i++)
    client_close(&sub[i]);
  free(order);
  end();
}

/* ---- workers ----------------------------------------------------------- */

/* A connection that worker `w` has. */
static client_s client_on(unsigned w, const char *path, const char *protocol) {
  for (int i = 0; i < 64; i++) {
    live_recount();
    size_t before = live.board->worker[w].connections;
    size_t all = live_sum(connections);
    client_s c = client_open(path, protocol);
    cr_assert(live_until(live_sum(connections) == all + 1));
    if (live.board->worker[w].connections == before + 1)
      return c;
    client_close(&c);
    cr_assert(live_until(live_sum(connections) == all));
  }
  return (client_s){.fd = -1};
}

static const char *ask(client_s *c, const char *command) {
  cr_assert(client_text(c, command));
  return client_next(c);
}

/* core.md 4.15, 36: a publish that begins after an answered subscribe. */
Test(workers, what_is_published_after_subscribed_arrives, .timeout = 120) {
  begin((live_options_s){.workers = 2});
  client_s a = client_on(0, "/subscribe", "crier.v1");
  client_s b = client_on(1, "/subscribe", "crier.v1");
  unsigned rounds = live_soak(3000, 100000);
  for (unsigned i = 0; i < rounds; i++) {
    char text[128];
    snprintf(text, sizeof text, "{\"op\":\"subscribe\",\"channel\":\"s%u\"}",
             i % 50);
    cr_assert(strstr(ask(&a, text), "\"subscribed\""));
    snprintf(text, sizeof text,
             "{\"op\":\"publish\",\"channel\":\"s%u\",\"data\":%u}", i % 50, i);
    uint64_t id = json_number(ask(&b, text), "id");
    const char *got = client_next_within(&a, 2000);
    cr_assert_eq(json_number(got, "id"), id, "round %u: %s", i, got);
    snprintf(text, sizeof text, "{\"op\":\"unsubscribe\",\"channel\":\"s%u\"}",
             i % 50);
    cr_assert(strstr(ask(&a, text), "\"unsubscribed\""));
  }
  client_close(&a);
  client_close(&b);
  end();
}

/* core.md 4.15, 35: no wake-up is lost. */
Test(workers, a_message_wakes_an_idle_worker, .timeout = 60) {
  begin((live_options_s){.workers = 2});
  client_s a = client_on(0, "/channels/w", "crier.v1");
  client_s b = client_on(1, "/subscribe", "crier.v1");
  client_next(&a);
  uint32_t dice = 1;
  uint64_t worst = 0;
  for (unsigned i = 0; i < live_soak(400, 100000); i++) {
    dice = dice * 1664525u + 1013904223u;
    struct timespec t = {0, (long)(dice >> 8) % 4000000};
    nanosleep(&t, NULL);
    uint64_t from = live_ms();
    client_text(&b, "{\"op\":\"publish\",\"channel\":\"w\",\"data\":1}");
    cr_assert(strstr(client_next(&a), "\"message\""));
    uint64_t took = live_ms() - from;
    worst = took > worst ? took : worst;
    cr_assert(strstr(client_next(&b), "\"published\""));
  }
  cr_expect_lt(worst, 200, "%d ms", (int)worst); /* 20 are meant */
  client_close(&a);
  client_close(&b);
  end();
}

static void stop_worker(unsigned w, int signal) {
  kill(live.board->worker[w].pid, signal);
  live_pause(20);
}

Test(workers, one_that_was_lapped_tells_whom_it_concerns, .timeout = 60) {
  begin((live_options_s){
      .workers = 2, .message_max = 4096, .ring_size = 64 << 10});
  client_s busy = client_on(0, "/channels/busy", "crier.v1");
  client_s raw = client_on(0, "/channels/busy", NULL);
  client_s quiet = client_on(0, "/channels/quiet", "crier.v1");
  client_s own = client_on(0, "/subscribe", "crier.v1");
  client_s b = client_on(1, "/subscribe", "crier.v1");
  uint64_t cursor = json_number(client_next(&busy), "cursor");
  client_next(&quiet);
  uint64_t first = json_number(
      ask(&b, "{\"op\":\"publish\",\"channel\":\"busy\",\"data\":1}"), "id");
  cr_assert_eq(json_number(client_next(&busy), "id"), first);
  cr_expect_str_eq(client_next(&raw), "1");
  cr_expect_lt(cursor, first);
  stop_worker(0, SIGSTOP);
  for (int i = 0; i < 5; i++)
    client_text(&own, "{\"op\":\"publish\",\"channel\":\"own\",\"data\":1}");
  char text[2048];
  int n = snprintf(text, sizeof text,
                   "{\"op\":\"publish\",\"channel\":\"busy\",\"data\":\"");
  memset(text + n, 'x', 1000);
  strcpy(text + n + 1000, "\"}");
  uint64_t last = 0;
  for (int i = 0; i < 200; i++) {
    const char *answer = ask(&b, text);
    cr_assert(strstr(answer, "\"published\""), "%d: %s", i, answer);
    last = json_number(answer, "id");
  }
  stop_worker(0, SIGCONT);
  const char *gap = client_next(&busy);
  cr_expect(strstr(gap, "{\"op\":\"gap\",\"channel\":\"busy\""), "%s", gap);
  cr_expect_eq(json_number(gap, "from"), first + 1);
  cr_expect_geq(json_number(gap, "to"), last);
  char close[64];
  snprintf(close, sizeof close, "(close 4001 gap %llu ",
           (unsigned long long)first + 1);
  const char *got = client_next(&raw);
  cr_expect(strncmp(got, close, strlen(close)) == 0, "%s", got);
  /* each of its own is answered, once */
  for (int i = 0; i < 5; i++) {
    got = client_next(&own);
    cr_expect(strstr(got, "\"published\"") || strstr(got, "\"unavailable\""),
              "%s", got);
  }
  cr_expect_str_eq(ask(&own, "{\"op\":\"ping\"}"), "{\"op\":\"pong\"}");
  cr_expect_str_eq(ask(&quiet, "{\"op\":\"ping\"}"), "{\"op\":\"pong\"}");
  uint64_t after = json_number(
      ask(&b, "{\"op\":\"publish\",\"channel\":\"busy\",\"data\":2}"), "id");
  cr_expect_eq(json_number(client_next(&busy), "id"), after);
  client_close(&busy);
  client_close(&raw);
  client_close(&quiet);
  client_close(&own);
  client_close(&b);
  end();
}

/* A subscriber joins behind all that was stable, however much that is. */
Test(workers, who_subscribes_late_gets_nothing_from_before, .timeout = 60) {
  begin((live_options_s){.workers = 2});
  client_s a = client_on(0, "/subscribe", "crier.v1");
  client_s b = client_on(1, "/subscribe", "crier.v1");
  static char text[400000];
  int n =
      snprintf(text, 64, "{\"op\":\"publish\",\"channel\":\"big\",\"data\":\"");
  memset(text + n, 'x', 390000);
  strcpy(text + n + 390000, "\"}");
  for (int round = 0; round < 10; round++) {
    stop_worker(0, SIGSTOP);
    client_text(&a, "{\"op\":\"subscribe\",\"channel\":\"big\"}");
    for (int i = 0; i < 12; i++)
      cr_assert(strstr(ask(&b, text), "published"));
    stop_worker(0, SIGCONT);
    cr_assert(strstr(client_next(&a), "\"subscribed\""));
    const char *got = ask(&a, "{\"op\":\"unsubscribe\",\"channel\":\"big\"}");
    cr_expect(strstr(got, "\"unsubscribed\""), "round %d: %.80s", round, got);
    while (!strstr(got, "\"unsubscribed\""))
      got = client_next(&a);
  }
  client_close(&a);
  client_close(&b);
  end();
}
