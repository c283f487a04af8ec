/* table_test.c - ids and the table of connections: a uuid names one connection
 * and no other, ever, and costs nothing that is not used. */
#include "core.h" /* the slots themselves */
#include "core_support.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- 1: a stale id harms nobody
 * ---------------------------------------------- */

static struct {
  intptr_t a, b;
  int a_client, b_client, phase;
} one;

static void one_begin(void) {
  one.a = pair_with(&one.a_client, probe_new(&probe_ops, 0));
}

static bool one_step(void) {
  switch (one.phase++) {
  case 0:
    sock_abort(one.a, "the test");
    return false;
  case 1: { /* reaped: the lowest free descriptor is A's */
    int fds[2];
    cr_assert_not(fcntl(sock_uuid2fd(one.a), F_GETFD) >= 0, "A is not closed");
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    if (fds[1] == sock_uuid2fd(one.a))
      fds[1] = fds[0], fds[0] = sock_uuid2fd(one.a);
    one.b_client = fds[1];
    if (fds[0] != sock_uuid2fd(one.a)) {
      cr_assert_eq(dup2(fds[0], sock_uuid2fd(one.a)), sock_uuid2fd(one.a));
      close(fds[0]);
    }
    one.b = sock_open(sock_uuid2fd(one.a));
    probe_s *p = probe_new(&probe_ops, 1);
    p->on_data = probe_echo;
    cr_assert_eq(facil_attach(one.b, &p->super), 0);
    cr_assert_eq((one.b >> 24) - (one.a >> 24), 1, "one generation further");
    errno = 0;
    cr_assert_eq(sock_write(one.a, "stale", 5), -1);
    cr_assert_eq(errno, EBADF);
    cr_assert_eq(sock_close(one.a), -1);
    cr_assert_eq(sock_abort(one.a, "stale"), -1);
    facil_force_event(one.a);
    facil_suspend_read(one.a);
    facil_set_deadline_ms(one.a, 1, "stale");
    facil_set_timeout_ms(one.a, 1);
    cr_assert_eq(write(one.b_client, "x", 1), 1);
    return false;
  }
  default: {
    char c[8];
    ssize_t n = read(one.b_client, c, sizeof c);
    if (n < 0 && one.phase < 1000)
      return false;
    cr_assert_eq(n, 1, "B answers, and with its own bytes only");
    cr_assert_eq(c[0], 'x');
    cr_assert_eq(tally[1].close, 0);
    cr_assert(sock_isvalid(one.b));
    return true;
  }
  }
}

Test(table, a_write_to_a_stale_id_is_ebadf_and_harms_no_successor) {
  run_script(one_begin, one_step);
  cr_assert_eq(tally[0].close, 1);
  cr_assert_eq(tally[1].close, 1);
}

/* ---- 2: ids never come again
 * --------------------------------------------------- */

#define LIVES 100000

static intptr_t *ids;
static int lives;

static bool lives_step(void) {
  static int fd = -1;
  for (int i = 0; i < 500 && lives < LIVES; i++) {
    if (fd < 0)
      fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    intptr_t uuid = sock_open(fd);
    cr_assert_gt(uuid, 0);
    ids[lives++] = uuid;
    sock_abort(uuid, NULL);
    fd = -1; /* closed when it is reaped, so next time another or the same */
  }
  return lives == LIVES;
}

static int by_id(const void *a, const void *b) {
  intptr_t x = *(const intptr_t *)a, y = *(const intptr_t *)b;
  return x < y ? -1 : x > y;
}

Test(table, a_hundred_thousand_lives_have_as_many_ids_and_no_old_one_is_valid) {
  ids = calloc(LIVES, sizeof *ids);
  run_script(NULL, lives_step);
  qsort(ids, LIVES, sizeof *ids, by_id);
  for (int i = 0; i < LIVES; i++) {
    cr_assert_not(sock_isvalid(ids[i]));
    cr_assert(i == 0 || ids[i] != ids[i - 1], "an id came twice");
  }
  free(ids);
}

/* ---- 3: bad ids
 * ------------------------------------------------------------------ */

static void never(intptr_t uuid, protocol_s *p, void *arg) {
  (void)uuid, (void)p, (void)arg;
  cr_assert_fail("a task for a bad id ran");
}

static int fallbacks;

static void fell_back(intptr_t uuid, void *arg) {
  (void)uuid, (void)arg;
  fallbacks++;
}

static int moved_freed;

static void free_moved(void *p) {
  moved_freed++;
  free(p);
}

/* Every function that takes an id, with one that is none. */
static void poke(intptr_t bad) {
  char c[4] = "";
  struct sockaddr_storage a;
  socklen_t len;
  struct iovec iov = {c, 1};
  facil_buf_s *buf = facil_buf_new(8);
  facil_buf_s *owner[1] = {buf};
  facil_buf_add(buf, "12345678", 8);
#define BAD(call)                                                              \
  do {                                                                         \
    errno = 0;                                                                 \
    cr_assert_eq((call), -1, #call);                                           \
    cr_assert_eq(errno, EBADF, #call);                                         \
  } while (0)
  BAD(sock_peer(bad, &a, &len));
  BAD(sock_read(bad, c, 1));
  BAD(sock_unread(bad, c, 1));
  BAD(sock_write(bad, c, 1));
  BAD(sock_write(bad, c, 0));
  BAD(sock_write2(.uuid = bad, .data = malloc(4), .len = 4, .move = true,
                  .dealloc = free_moved));
  BAD(sock_write2(.uuid = bad, .data = malloc(4), .len = 0, .move = true,
                  .dealloc = free_moved));
  BAD(sock_write2(.uuid = bad, .shared = facil_buf_ref(buf)));
  BAD(sock_offer(bad, &iov, owner, 1));
  BAD(sock_want_ready(bad));
  BAD(sock_close(bad));
  BAD(sock_abort(bad, "bad"));
  int closes = tally[9].close;
  BAD(facil_attach(bad, &probe_new(&probe_ops, 9)->super));
  cr_assert_eq(tally[9].close, closes, "never inside the call");
  cr_assert_not(sock_isvalid(bad));
  cr_assert_eq(sock_pending(bad), 0);
  cr_assert_not(sock_is_blocked(bad));
  cr_assert_eq(sock_blocked_ms(bad), 0);
  cr_assert_null(facil_protocol(bad, NULL));
  cr_assert_eq(facil_get_timeout_ms(bad), 0);
  facil_set_timeout_ms(bad, 10);
  facil_set_deadline_ms(bad, 10, "bad");
  facil_force_event(bad);
  facil_suspend_read(bad);
  facil_resume_read(bad);
  int before = fallbacks;
  cr_assert_eq(facil_defer(.uuid = bad, .task = never, .fallback = fell_back),
               0);
  cr_assert_eq(fallbacks, before, "never inside the call");
  cr_assert_eq(buf->refs, 1, "the reference of a refused write is given back");
  facil_buf_unref(buf);
}

static intptr_t bad_ids[12];
static int bad_count, innocent;

static void bad_begin(void) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  int client;
  intptr_t gone = pair_with(&client, probe_new(&probe_ops, 1));
  intptr_t live = pair_with(&innocent, probe_new(&probe_ops, 0));
  sock_abort(gone, "the test");
  bad_ids[bad_count++] = gone;
  bad_ids[bad_count++] = -gone;
  bad_ids[bad_count++] = -1;
  bad_ids[bad_count++] = 0;
  bad_ids[bad_count++] = INT32_MIN;
  bad_ids[bad_count++] = INTPTR_MIN;
  bad_ids[bad_count++] = INTPTR_MAX;
  bad_ids[bad_count++] = (intptr_t)1 << 24 | (intptr_t)limit.rlim_cur;
  bad_ids[bad_count++] = (intptr_t)1 << 24 | 0xFFFFFF;
  bad_ids[bad_count++] = sock_uuid2fd(live);
  bad_ids[bad_count++] = live + ((intptr_t)1 << 24);
  bad_ids[bad_count++] = live | INTPTR_MIN;
}

static bool bad_step(void) {
  static int turn;
  if (turn++ > 0)
    return turn > 4;
  for (int i = 0; i < bad_count; i++)
    poke(bad_ids[i]);
  cr_assert_eq(moved_freed, 2 * bad_count, "moved data is freed on failure");
  return false;
}

Test(table, every_function_says_ebadf_for_an_id_that_is_none) {
  run_script(bad_begin, bad_step);
  cr_assert_eq(tally[9].close, bad_count,
               "attach took them, so they are ended");
  cr_assert_eq(fallbacks, bad_count);
  cr_assert_eq(tally[0].close, 1);
  cr_assert_eq(tally[0].data + tally[0].ready + tally[0].ping, 0,
               "the live one noticed nothing");
}

/* The seed looked at one place behind the last. Here the rest of the page is
 * there to be looked at: what lies in it must not count. */
Test(table, the_last_slot_works_and_what_lies_behind_it_is_none) {
  struct rlimit limit = {1001, 1001};
  cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
  int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  cr_assert_eq(dup2(fd, 1000), 1000);
  intptr_t uuid = sock_open(1000), behind = (intptr_t)1 << 24 | 1001;
  cr_assert(sock_isvalid(uuid));
  cr_assert_eq(sock_fd2uuid(1000), uuid);
  cr_assert_eq(sock_capacity(), 1001);
  slot_s *next = sock_slot_at(1001);
  cr_assert_neq((uintptr_t)next % 4096, 0, "choose another limit");
  next->uuid = behind;
  cr_assert_not(sock_isvalid(behind));
  cr_assert_eq(sock_fd2uuid(1001), -1);
  cr_assert_eq(sock_abort(uuid, NULL), 0);
}

Test(table, what_is_no_descriptor_is_refused) {
  errno = 0;
  cr_assert_eq(sock_open(-1), -1);
  cr_assert_eq(errno, EBADF);
  cr_assert_eq(sock_fd2uuid(-1), -1);
  struct rlimit limit = {256, 256};
  cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
  cr_assert_eq(sock_fd2uuid(3), -1, "before there is a table");
}

/* ---- 17, 32: what is not used costs nothing
 * --------------------------------------- */

/* Resident KiB of the process. */
static long resident_kib(void) {
  long total = 0, resident = 0;
  FILE *f = fopen("/proc/self/statm", "re");
  if (!f || fscanf(f, "%ld %ld", &total, &resident) != 2)
    abort();
  fclose(f);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static int walk_visits, walk_ends;

static void visit(intptr_t uuid, protocol_s *p, void *arg) {
  (void)uuid, (void)p, (void)arg;
  walk_visits++;
}

static void walk_ended(intptr_t origin, void *arg) {
  (void)origin, (void)arg;
  walk_ends++;
}

static int ten[10];
static long before_kib;
static uint64_t began_ms;

static void ten_begin(void) {
  before_kib = resident_kib();
  began_ms = real_ms();
  for (int i = 0; i < 10; i++)
    pair_with(&ten[i], probe_new(&probe_ops, i));
}

static bool ten_step(void) {
  static int walks;
  if (walks < 1000) {
    cr_assert_eq(facil_each(.service = probe_ops.service, .task = visit,
                            .on_complete = walk_ended),
                 0);
    walks++;
  }
  if (walk_ends < 1000)
    return false;
  cr_assert_lt(real_ms() - began_ms, 1000, "a walk costs its members");
#ifndef __SANITIZE_ADDRESS__
  cr_assert_lt(resident_kib() - before_kib, 2000, "pages that nobody needs");
#endif
  return true;
}

Test(table, ten_members_in_a_great_table_cost_ten_visits_a_walk_and_few_pages) {
  run_script(ten_begin, ten_step);
  cr_assert_eq(walk_visits, 10000);
}

/* In a child: limits cannot be raised by everybody, and the table is made
 * once. */
static int serve_huge(void *arg) {
  (void)arg;
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max = 1u << 20;
  (void)setrlimit(RLIMIT_NOFILE, &limit); /* where that is allowed */
  server_is_at();
  uint64_t began = real_ms();
  intptr_t uuid = sock_open(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!sock_isvalid(uuid))
    return 2;
  if (real_ms() - began > 100)
    return 3;
#ifndef __SANITIZE_ADDRESS__
  if (resident_kib() > 20 * 1024)
    return 4;
#endif
  return 0;
}

Test(table, a_huge_descriptor_limit_costs_no_time_and_no_memory) {
  int port;
  pid_t pid = server_fork(serve_huge, NULL, &port);
  cr_assert_eq(server_wait(pid, 5000), 0);
}
