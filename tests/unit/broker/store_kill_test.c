/* store_kill_test.c - the ring and the store together, and their processes
 * killed: what was answered is there, once, and no id is given twice.
 *
 * The body of a message is its number; what was answered stands on a board in
 * shared memory. */
#include "ring_hook.h"
#include "store_support.h"
#include <sys/mman.h>
#include <sys/prctl.h>

enum { NUMBERS = 1 << 16, CHANNELS = 5 };

typedef struct {
  _Atomic uint32_t next;         /* number */
  _Atomic uint64_t last_id;      /* that was given */
  _Atomic uint64_t ids[NUMBERS]; /* answered: 201 */
} board_s;

static const char *folder;
static char path[256];
static board_s *board;
static ring_s *ring;

static void setup(void) {
  folder = temp_folder();
  config_usual(folder);
  rule("** count=100000 bytes=0 age=0");
  config.now = 0;
  snprintf(path, sizeof path, "%s/store", folder);
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert(board != MAP_FAILED);
}

static void teardown(void) {
  rules_free(rules);
  folder_remove(folder);
}

TestSuite(store_kill, .init = setup, .fini = teardown, .timeout = 100);

static uint64_t clock_of_ring(void *arg) {
  return ring_clock(arg);
}

static uint64_t low_of_ring(void *arg) {
  ring_marks_s m;
  ring_marks(arg, &m);
  return m.low_id;
}

static void start(void) {
  cr_assert_eq(store_prepare(&config, &shared, err, sizeof err), 0, "%s", err);
  cr_assert_gt(store_floor(shared), board->last_id,
               "a restart begins above all ids that were given");
  ring_config_s c = {.size = 1 << 18,
                     .message_max = 4096,
                     .workers = 2,
                     .channels = 64,
                     .floor = store_floor(shared),
                     .is_durable = config.path != NULL};
  ring = ring_new(&c);
  cr_assert(ring);
}

static void stop(void) {
  ring_free(ring);
  store_release(shared);
}

static store_s *open_on_ring(unsigned slot) {
  store_setup_s s = {slot, clock_of_ring, low_of_ring, ring};
  return store_open(shared, &s);
}

/* --- A worker --- */

static void on_record(void *arg, const ring_record_s *rec) {
  (void)arg;
  char number[16];
  if (!rec->is_own || rec->verdict.verdict != RING_KEPT)
    return;
  memcpy(number, rec->body.data, rec->body.len);
  number[rec->body.len] = '\0';
  board->ids[strtoul(number, NULL, 10)] = rec->id;
}

/* One to three messages as a group. */
static int append(unsigned seed) {
  char bodies[3][16], names[3][8];
  ring_message_s m[3];
  ring_place_s places[3];
  size_t n = seed % 3 + 1;
  for (size_t i = 0; i < n; i++) {
    uint32_t number = atomic_fetch_add(&board->next, 1);
    snprintf(bodies[i], sizeof bodies[i], "%u", number);
    snprintf(names[i], sizeof names[i], "c%u", (number * 7) % CHANNELS);
    m[i] = (ring_message_s){.flags = RING_STORE,
                            .channel = view_str(names[i]),
                            .type = view_str("text/plain"),
                            .body = view_str(bodies[i])};
    m[i].hash = ring_hash(ring, m[i].channel);
  }
  if (ring_append(ring, m, n, places) < 0)
    return errno == EAGAIN || errno == ETIMEDOUT ? 0 : -1;
  board->last_id = places[n - 1].id;
  return 0;
}

static int worker(unsigned slot, unsigned turns) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(30);
  if (ring_join(ring, slot) < 0)
    return 2;
  st = open_on_ring(slot);
  if (!st)
    return 3;
  for (unsigned i = 0; i < turns; i++) {
    while (board->next > NUMBERS - 100)
      pause(); /* the board is full: be killed */
    ring_turn(ring);
    if (append(i) < 0 || (i % 2 && append(i + 1) < 0))
      return 4;
    if (ring_commit_wait(ring, store_ring(st)) < 0)
      return 5;
    if (ring_read(ring, 1 << 20, 1000, on_record, NULL) < 0 &&
        errno != EOVERFLOW) /* a lap: nobody was answered */
      return 6;
  }
  store_close(st);
  return 0;
}

static pid_t spawn(unsigned slot, unsigned turns, void (*hook)(const char *)) {
  pid_t pid = fork();
  if (pid)
    return pid;
#ifdef RING_HOOKS
  ring_hook = hook;
#endif
  _exit(worker(slot, turns));
}

static int reaped(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* --- What must be true afterwards --- */

static uint64_t found[NUMBERS];
static unsigned doubled;

static bool find(void *arg, const stored_s *m) {
  char number[16];
  (void)arg;
  memcpy(number, m->body.data, m->body.len);
  number[m->body.len] = '\0';
  unsigned long n = strtoul(number, NULL, 10);
  doubled += found[n] != 0;
  found[n] = m->id;
  return true;
}

static unsigned check(void) {
  store_limit_s all = {SIZE_MAX, SIZE_MAX};
  memset(found, 0, sizeof found);
  doubled = 0;
  cr_assert_eq(store_read_all(st, 0, ALL, all, find, NULL, &result), 0);
  cr_assert_eq(doubled, 0);
  unsigned answered = 0;
  for (uint32_t n = 0; n < board->next; n++) {
    if (!board->ids[n])
      continue;
    answered++;
    cr_assert_eq(found[n], board->ids[n], "number %u: answered %ju, stored %ju",
                 n, (uintmax_t)board->ids[n], (uintmax_t)found[n]);
  }
  cr_assert_eq(result.messages, figures().messages);
  return answered;
}

/* All processes are gone. */
static unsigned check_restarted(void) {
  start();
  st = open_on_ring(0);
  cr_assert(st);
  unsigned answered = check();
  store_close(st);
  return answered;
}

static void check_all(void) {
  cr_assert_gt(check_restarted(), 50);
  stop();
}

/* --- The whole broker dies --- */

static const char *const points[] = {
    "commit: locked", "commit: begun",    "commit: decided",
    "commit: stored", "commit: noted",    "commit: marked",
    "commit: stable", "commit: unlocked", "commit: woke"};
enum { POINTS = sizeof points / sizeof *points };

static const char *point;
static unsigned passes;

static void die_at_point(const char *at) {
  if (strcmp(at, point) == 0 && passes-- == 0)
    raise(SIGKILL);
}

Test(store_kill, what_was_answered_survives_a_death_at_each_step) {
  config.path = path;
  for (unsigned i = 0; i < 2 * POINTS; i++) {
    if (i)
      check_restarted();
    else
      start();
    point = points[i % POINTS];
    passes = i / POINTS * 3 + 2;
    cr_assert_eq(reaped(spawn(0, 1000, die_at_point)), 1000 + SIGKILL, "%s",
                 point);
    stop();
  }
  check_all();
}

Test(store_kill, what_was_answered_survives_a_death_at_any_moment) {
  config.path = path;
  uint32_t x = 12345;
  for (unsigned i = 0; i < 50; i++) {
    if (i)
      check_restarted();
    else
      start();
    pid_t a = spawn(0, 1000000, NULL), b = spawn(1, 1000000, NULL);
    x = x * 1664525 + 1013904223;
    struct timespec t = {0, 4000000 + (x >> 8) % 20000000};
    nanosleep(&t, NULL);
    kill(a, SIGKILL);
    kill(b, SIGKILL);
    cr_assert_eq(reaped(a), 1000 + SIGKILL);
    cr_assert_eq(reaped(b), 1000 + SIGKILL);
    stop();
    if (board->next > NUMBERS - 2000)
      break; /* a very fast disk */
  }
  check_all();
}

/* --- A worker dies, the others go on --- */

static void one_dies_at_each_point(void) {
  start();
  for (unsigned i = 0; i < POINTS; i++) {
    uint32_t from = board->next;
    point = points[i];
    passes = 2;
    cr_assert_eq(reaped(spawn(0, 1000, die_at_point)), 1000 + SIGKILL);
    ring_mark_dead(ring, 0);
    store_mark_dead(shared, 0);
    cr_assert_eq(reaped(spawn(1, 3, NULL)), 0);
    ring_mark_dead(ring, 1);
    store_mark_dead(shared, 1);
    st = open_on_ring(2);
    cr_assert(st);
    check();
    /* what was whole in the ring was committed by the next one */
    for (uint32_t n = from; n < board->next; n++)
      cr_assert(found[n], "%s: number %u", point, n);
    store_close(st);
  }
  stop();
}

Test(store_kill, the_next_worker_commits_what_a_dead_one_left_durable) {
  config.path = path;
  one_dies_at_each_point();
}

Test(store_kill, the_next_worker_commits_what_a_dead_one_left_in_memory) {
  one_dies_at_each_point();
}

Test(store_kill, workers_that_die_at_any_moment_leave_a_whole_memory_store) {
  uint32_t x = 54321;
  start();
  pid_t pids[2] = {spawn(0, 1000000, NULL), spawn(1, 1000000, NULL)};
  for (unsigned i = 0; i < 60 && board->next < NUMBERS - 6000; i++) {
    x = x * 1664525 + 1013904223;
    struct timespec t = {0, 500000 + (x >> 8) % 3000000};
    nanosleep(&t, NULL);
    unsigned slot = i % 2;
    kill(pids[slot], SIGKILL);
    cr_assert_eq(reaped(pids[slot]), 1000 + SIGKILL);
    ring_mark_dead(ring, slot);
    store_mark_dead(shared, slot);
    pids[slot] = spawn(slot, 1000000, NULL);
  }
  for (unsigned slot = 0; slot < 2; slot++) {
    kill(pids[slot], SIGKILL);
    cr_assert_eq(reaped(pids[slot]), 1000 + SIGKILL);
    ring_mark_dead(ring, slot);
    store_mark_dead(shared, slot);
  }
  cr_assert_eq(reaped(spawn(0, 1, NULL)), 0);
  st = open_on_ring(2);
  cr_assert(st);
  check();
  store_close(st);
  stop();
}
