/* store_file_test.c - the store's file: whose it is, what it survives, what
 * happens when there is no room, who is stuck in it. */
#include "ring_hook.h"
#include "store_support.h"
#include <lmdb.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static const char *folder;
static char path[256];

static void setup(void) {
  folder = temp_folder();
  config_usual(folder);
  snprintf(path, sizeof path, "%s/store", folder);
}

static void teardown(void) {
  rules_free(rules);
  folder_remove(folder);
}

TestSuite(store_file, .init = setup, .fini = teardown, .timeout = 100);

static int prepare_errno(void) {
  int rc = store_prepare(&config, &shared, err, sizeof err);
  return rc == 0 ? 0 : errno;
}

static void durable(void) {
  config.path = path;
}

static int reaped(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
    ;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void pause_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

/* --- Whose it is --- */

Test(store_file, a_memory_store_leaves_nothing) {
  prepare();
  cr_assert_eq(folder_count(folder), 2);
  publish(START + 1, "a", "x");
  release();
  cr_assert_eq(folder_count(folder), 0);
}

Test(store_file, what_a_dead_broker_left_is_removed_and_no_other) {
  pid_t pid = fork();
  if (pid == 0)
    _exit(store_prepare(&config, &shared, err, sizeof err) ? 1 : 0);
  cr_assert_eq(reaped(pid), 0);
  cr_assert_eq(folder_count(folder), 2);
  prepare();
  cr_assert_eq(folder_count(folder), 2, "the dead one's two are gone");
  publish(START + 1, "a", "x");
  store_shared_s *other;
  cr_assert_eq(store_prepare(&config, &other, err, sizeof err), 0);
  cr_assert_eq(folder_count(folder), 4, "the living one's two are not");
  cr_assert_str_eq(kept("a"), "1:x");
  store_release(other);
  release();
}

Test(store_file, one_broker_owns_a_store) {
  char want[512];
  durable();
  prepare();
  publish(START + 1, "a", "x");
  store_shared_s *other;
  cr_assert_eq(store_prepare(&config, &other, err, sizeof err), -1);
  cr_assert_eq(errno, EBUSY);
  snprintf(want, sizeof want, "crier: store: %s: another broker has it open",
           path);
  cr_assert_str_eq(err, want);
  cr_assert_str_eq(kept("a"), "1:x");
  release();
}

Test(store_file, it_is_owned_while_a_worker_of_it_lives) {
  durable();
  pid_t pid = fork();
  if (pid == 0) {
    if (store_prepare(&config, &shared, err, sizeof err))
      _exit(1);
    pid_t worker = fork();
    if (worker == 0) {
      pause_ms(1500);
      _exit(0);
    }
    _exit(0); /* the master is dead */
  }
  cr_assert_eq(reaped(pid), 0);
  cr_assert_eq(prepare_errno(), EBUSY);
  pause_ms(1600);
  cr_assert_eq(prepare_errno(), 0);
  store_release(shared);
}

/* --- What is no store of ours --- */

static char *bytes_of(const char *name, size_t *len) {
  FILE *f = fopen(name, "r");
  cr_assert(f);
  fseek(f, 0, SEEK_END);
  *len = (size_t)ftell(f);
  rewind(f);
  char *p = malloc(*len + 1);
  cr_assert(p && fread(p, 1, *len, f) == *len);
  fclose(f);
  return p;
}

static void file_write(const void *bytes, size_t n) {
  FILE *f = fopen(path, "w");
  cr_assert(f && fwrite(bytes, 1, n, f) == n);
  fclose(f);
}

static void refused_untouched(const char *why) {
  char want[512];
  size_t before_len, after_len;
  struct stat before, after;
  char *bytes = bytes_of(path, &before_len);
  int files = folder_count(folder);
  stat(path, &before);
  durable();
  cr_assert_eq(prepare_errno(), EINVAL);
  snprintf(want, sizeof want, "crier: store: %s: %s", path, why);
  cr_assert_str_eq(err, want);
  stat(path, &after);
  char *now_bytes = bytes_of(path, &after_len);
  cr_assert_eq(before_len, after_len);
  cr_assert_eq(memcmp(bytes, now_bytes, after_len), 0);
  cr_assert_eq(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
  cr_assert_eq(before.st_ino, after.st_ino);
  cr_assert_eq(folder_count(folder), files);
  free(bytes);
  free(now_bytes);
}

Test(store_file, a_file_of_another_kind_is_refused_and_untouched) {
  file_write("hello, world\n", 13);
  refused_untouched("it is no store of crier");
  static char zeros[20000];
  file_write(zeros, sizeof zeros);
  refused_untouched("it is no store of crier");
}

/* An LMDB file of somebody else's, or of ours with `change` made to it. */
static void lmdb_change(const char *key, const void *value, size_t n) {
  MDB_env *env;
  MDB_txn *txn;
  MDB_dbi dbi;
  MDB_val k = {strlen(key), (void *)(uintptr_t)key};
  MDB_val v = {n, (void *)(uintptr_t)value};
  char lock[300];
  cr_assert_eq(mdb_env_create(&env), 0);
  mdb_env_set_maxdbs(env, 9);
  cr_assert_eq(mdb_env_open(env, path, MDB_NOSUBDIR, 0600), 0);
  cr_assert_eq(mdb_txn_begin(env, NULL, 0, &txn), 0);
  cr_assert_eq(mdb_dbi_open(txn, NULL, 0, &dbi), 0);
  cr_assert_eq(mdb_put(txn, dbi, &k, &v, 0), 0);
  cr_assert_eq(mdb_txn_commit(txn), 0);
  mdb_env_close(env);
  snprintf(lock, sizeof lock, "%s-lock", path);
  unlink(lock);
}

Test(store_file, an_lmdb_file_of_another_program_is_refused_and_untouched) {
  lmdb_change("theirs", "1", 1);
  refused_untouched("it is an LMDB file, but no store of crier");
}

static void store_made(void) {
  durable();
  prepare();
  publish(START + 1, "a", "x");
  release();
}

Test(store_file, a_store_of_another_format_is_refused_and_untouched) {
  struct {
    char magic[16];
    uint32_t format, order;
    uint64_t key[2];
  } mark = {"crier store\n\032\n", 2, 0x01020304, {0, 0}};
  store_made();
  lmdb_change("crier", &mark, sizeof mark);
  refused_untouched("it is a store of another version of crier");
  mark.format = 1;
  mark.order = 0x04030201;
  lmdb_change("crier", &mark, sizeof mark);
  refused_untouched("it is a store of another version of crier");
  mark.magic[0] = 'C';
  lmdb_change("crier", &mark, sizeof mark);
  refused_untouched("it is an LMDB file, but no store of crier");
}

Test(store_file, a_store_that_was_cut_short_is_refused_and_untouched) {
  store_made();
  cr_assert_eq(truncate(path, 12288), 0);
  refused_untouched("it was cut short");
}

Test(store_file, a_damaged_store_is_refused_and_untouched) {
  store_made();
  size_t n;
  char *bytes = bytes_of(path, &n);
  for (size_t at = 8192; at < n; at += 4096) /* all but the roots */
    if (!memmem(bytes + at, 4096, "crier store", 11))
      memset(bytes + at, 0x5a, 4096);
  file_write(bytes, n);
  free(bytes);
  refused_untouched("it is damaged");
}

Test(store_file, a_folder_and_a_missing_folder_are_said_so) {
  char want[512];
  config.path = folder;
  cr_assert_eq(prepare_errno(), EINVAL);
  snprintf(want, sizeof want,
           "crier: store: %s: it is a folder: name a file in it", folder);
  cr_assert_str_eq(err, want);
  config.path = "/nowhere/at/all";
  cr_assert_eq(prepare_errno(), ENOENT);
  cr_assert_str_eq(err, "crier: store: /nowhere/at/all: No such file or "
                        "directory");
  durable();
  config.size = 1000;
  cr_assert_eq(prepare_errno(), EINVAL);
  cr_assert(strstr(err, "store.size is less than 16MiB"));
  cr_assert_eq(folder_count(folder), 0);
}

Test(store_file, a_store_whose_maker_died_at_once_is_made_again) {
  lmdb_change("theirs", "1", 1);
  MDB_env *env;
  MDB_txn *txn;
  cr_assert_eq(unlink(path), 0);
  cr_assert_eq(mdb_env_create(&env), 0);
  cr_assert_eq(mdb_env_open(env, path, MDB_NOSUBDIR, 0600), 0);
  cr_assert_eq(mdb_txn_begin(env, NULL, 0, &txn), 0);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  durable();
  prepare();
  cr_assert_eq(publish(START + 1, "a", "x"), RING_KEPT);
  release();
}

/* --- Restarts --- */

Test(store_file, a_durable_store_is_as_it_was_after_a_restart) {
  rule("t count=2");
  durable();
  prepare();
  for (unsigned i = 1; i <= 3; i++)
    publish(START + i, "t", "x");
  publish_key(START + 4, "a", "k", "y");
  publish_ttl(START + 5, "a", "brief", 30);
  now += SECOND;
  restart();
  cr_assert_str_eq(kept("t"), "2:x 3:x");
  cr_assert_str_eq(kept("a"), "4:y 5:brief");
  cr_assert_str_eq(gap("t", START), "1-1");
  cr_assert_str_eq(gap("a", START), "none");
  cr_assert_str_eq(gap("never", START - 1), "0-0");
  cr_assert_eq(figures().birth, START);
  cr_assert_eq(figures().messages, 4);
  uint64_t id = store_floor(shared) + 1;
  cr_assert_eq(publish_key(id, "a", "k", "y").other, START + 4);
  cr_assert_eq(publish_key(id + 1, "a", "k", "z").verdict, RING_CONFLICT);
  now = START + 40 * SECOND;
  restart();
  cr_assert_str_eq(kept("a"), "4:y");
  release();
}

Test(store_file, a_memory_store_is_born_at_each_start) {
  prepare();
  publish(START + 5, "a", "x");
  now = START + 9;
  restart();
  cr_assert_str_eq(kept("a"), "");
  cr_assert_str_eq(gap("a", START + 5), "6-9");
  cr_assert_str_eq(gap("a", START + 9), "none");
  cr_assert_eq(store_floor(shared), START + 9);
  release();
}

Test(store_file, no_id_is_given_twice_even_if_the_clock_goes_back) {
  durable();
  prepare();
  const rule_s live = {0};
  cr_assert_not(store_concerns(st, &live, false));
  now = START + 9 * SECOND; /* 10 s were leased */
  cr_assert(store_concerns(st, &live, false), "a lease is due");
  ring_record_s r = record(now + 1, "live", "");
  r.op = STORE_TICK;
  publish_record(r);
  cr_assert_not(store_concerns(st, &live, false));
  uint64_t last = now;
  now = START - 3600 * SECOND;
  restart();
  cr_assert_gt(store_floor(shared), last);
  cr_assert_leq(store_floor(shared), last + 10 * SECOND);
  uint64_t floor = store_floor(shared);
  restart();
  cr_assert_gt(store_floor(shared), floor, "ids may have been given up to it");
  release();
}

/* --- No room --- */

static char big[100000];

static uint64_t next_id = START;

static ring_verdict_e publish_big(unsigned channel, size_t n) {
  char name[16];
  snprintf(name, sizeof name, "c%u", channel);
  ring_record_s r = record(++next_id, name, "");
  r.body = view_of(big, n);
  return publish_record(r).verdict;
}

Test(store_file, a_full_store_drops_the_oldest_of_all_channels) {
  rule("** bytes=0");
  config.size = 16 << 20;
  prepare();
  for (unsigned i = 0; i < 6000; i++)
    cr_assert_eq(publish_big(i % 7, 1000 + i % 9000), RING_KEPT, "%u", i);
  store_figures_s f = figures();
  cr_assert_lt(f.used, f.size);
  cr_assert_gt(f.used, f.size / 100 * 88);
  cr_assert_eq(f.messages + f.evicted, 6000);
  cr_assert_gt(f.evicted, 3000);
  uint64_t lowest = START + f.evicted; /* of all channels, in order of id */
  for (unsigned i = 0; i < 7; i++) {
    char name[16];
    snprintf(name, sizeof name, "c%u", i);
    store_info_s in = info(name);
    cr_assert_gt(in.first, lowest);
    cr_assert_leq(in.trim, lowest);
    cr_assert_gt(in.trim + 7, lowest);
    cr_assert_eq(in.first, in.trim + 7);
  }
  release();
}

Test(store_file, one_message_a_channel_is_evicted_with_its_channel) {
  config.size = 16 << 20;
  prepare();
  for (unsigned i = 0; i < 100000; i++)
    cr_assert_eq(publish_big(i, 100), RING_KEPT, "%u", i);
  store_figures_s f = figures();
  cr_assert_gt(f.messages, 20000);
  cr_assert_lt(f.channels - f.messages, 3, "no empty records are kept");
  cr_assert_str_eq(gap("never", START), gap("c0", START));
  cr_assert_gt(f.forgotten, START + 10000);
  release();
}

Test(store_file, a_full_store_refuses_if_it_is_told_to) {
  rule("** bytes=0 age=10s");
  config.size = 16 << 20;
  config.may_evict = false;
  prepare();
  unsigned kept_count = 0, refused = 0;
  for (unsigned i = 0; i < 6000; i++) {
    ring_verdict_e v = publish_big(i % 7, 4000);
    kept_count += v == RING_KEPT;
    refused += v == RING_REFUSED;
    cr_assert(v == RING_KEPT ? !refused : v == RING_REFUSED);
  }
  cr_assert_eq(kept_count + refused, 6000);
  cr_assert_gt(refused, 1000);
  store_figures_s f = figures();
  cr_assert_eq(f.messages, kept_count);
  cr_assert_eq(f.refused, refused);
  cr_assert_eq(f.evicted, 0);
  cr_assert_str_eq(gap("c0", START), "none");
  ring_record_s r = record(++next_id, "c0", "");
  r.body = view_of(big, 4000);
  r.key = view_str("k");
  cr_assert_eq(publish_record(r).verdict, RING_REFUSED);
  now = START + 11 * SECOND; /* all is too old: room again */
  next_id = now;
  for (unsigned i = 0; i < 20; i++)
    tick(++next_id);
  cr_assert_eq(publish_big(1, 4000), RING_KEPT);
  r.id = ++next_id;
  r.body = view_str("other");
  cr_assert_eq(publish_record(r).verdict, RING_KEPT,
               "a key of what was refused is not taken");
  release();
}

Test(store_file, a_group_is_refused_as_a_whole) {
  rule("** count=100000 bytes=0");
  config.size = 16 << 20;
  config.may_evict = false;
  prepare();
  while (publish_big(1, 4000) == RING_KEPT)
    ;
  store_figures_s f = figures();
  static ring_record_s g[300];
  static ring_verdict_s v[300];
  for (unsigned i = 0; i < 300; i++) {
    g[i] = record(++next_id, "g", "");
    g[i].body = view_of(big, 4000);
  }
  begin();
  ring_side()->ops->put(ring_side(), g, 300, v);
  commit(next_id);
  for (unsigned i = 0; i < 300; i++)
    cr_assert_eq(v[i].verdict, RING_REFUSED);
  cr_assert_str_eq(kept("g"), "");
  cr_assert_eq(figures().messages, f.messages);
  release();
}

Test(store_file, what_is_larger_than_the_store_is_refused) {
  rule("** bytes=0");
  static char huge[17 << 20];
  config.size = 16 << 20;
  prepare();
  publish(START + 1, "a", "x");
  ring_record_s r = record(START + 2, "a", "");
  r.body = view_of(huge, sizeof huge);
  cr_assert_eq(publish_record(r).verdict, RING_REFUSED);
  cr_assert_str_eq(kept("a"), "1:x", "nothing went for it in vain");
  cr_assert_eq(publish(START + 3, "b", "y"), RING_KEPT);
  cr_assert_str_eq(kept("b"), "3:y");
  for (uint64_t i = 4; i < 10; i++) { /* each takes the place of the last */
    r.id = START + i;
    r.body = view_of(huge, (12 << 20) + i * 100000);
    cr_assert_eq(publish_record(r).verdict, RING_KEPT, "%ju", (uintmax_t)i);
    cr_assert_leq(figures().bytes, r.body.len + (i == 4 ? 2 : 0));
  }
  release();
}

/* A tmpfs of 24 MiB in a mount namespace of this process; where that is not
 * allowed, a limit on the file's length, which says "full" in the same way. */
static const char *small_tmpfs(void) {
  bool has_ns =
      unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
  if (has_ns && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
      mount("tmpfs", folder, "tmpfs", 0, "size=24m") == 0)
    return folder;
  return NULL;
}

static void file_limit(uint64_t bytes) {
  struct rlimit r = {bytes, RLIM_INFINITY};
  signal(SIGXFSZ, SIG_IGN);
  if (setrlimit(RLIMIT_FSIZE, &r) < 0)
    _exit(50);
}

static size_t least = 1000; /* of the bodies that fill */

static int fill(unsigned n) {
  for (unsigned i = 0; i < n; i++) {
    uint64_t committed;
    ring_record_s r = record(++next_id, i % 2 ? "a" : "b", "");
    ring_verdict_s v = {RING_PENDING, 0};
    r.body = view_of(big, least + i * 37 % 20000);
    now = next_id;
    if (ring_side()->ops->begin(ring_side(), &committed) < 0)
      return 20;
    ring_side()->ops->put(ring_side(), &r, 1, &v);
    if (ring_side()->ops->commit(ring_side(), r.id) < 0)
      return 21;
    ring_verdict_e want = config.may_evict ? RING_KEPT : v.verdict;
    if (v.verdict != want ||
        (v.verdict != RING_KEPT && v.verdict != RING_REFUSED))
      return 22;
  }
  return 0;
}

static bool sum_body(void *arg, const stored_s *m) {
  *(uint64_t *)arg += m->body.len;
  return true;
}

static uint64_t sum_kept(void) {
  uint64_t sum = 0;
  store_limit_s all = {SIZE_MAX, SIZE_MAX};
  return store_read_all(st, START, ALL, all, sum_body, &sum, &result) ? 0 : sum;
}

static bool stop_here(void *arg, const stored_s *m) {
  (void)arg;
  (void)m;
  raise(SIGSTOP);
  return true;
}

/* A child that stops within a read. */
static pid_t stopped_reader(unsigned slot) {
  int status;
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    store_limit_s limit = {9, SIZE_MAX};
    st = open_slot(slot);
    _exit(!st ||
          store_read_all(st, START, ALL, limit, stop_here, NULL, &result));
  }
  waitpid(pid, &status, WUNTRACED);
  return pid;
}

/* All pages that a reader may see are his: what is made free cannot be used,
 * and what there is comes to its end. */
static int fill_held(void) {
  unsigned refused = 0;
  pid_t pid = stopped_reader(2);
  pause_ms(150);
  for (unsigned i = 0; i < 2000; i++) {
    uint64_t committed;
    ring_record_s r = record(++next_id, i % 2 ? "a" : "b", "");
    ring_verdict_s v = {RING_PENDING, 0};
    r.body = view_of(big, least + i * 37 % 20000);
    now = next_id;
    if (ring_side()->ops->begin(ring_side(), &committed) < 0)
      continue;
    ring_side()->ops->put(ring_side(), &r, 1, &v);
    if (ring_side()->ops->commit(ring_side(), r.id) < 0 &&
        ring_side()->ops->reopen(ring_side(), &committed) < 0)
      return 30;
    refused += v.verdict != RING_KEPT;
  }
  kill(pid, SIGKILL);
  if (reaped(pid) != 1000 + SIGKILL || !refused)
    return 31;
  store_mark_dead(shared, 2);
  return 0;
}

/* What is wrong with a full tmpfs; 0 is nothing. */
static int full_tmpfs(void) {
  bool has_tmpfs = small_tmpfs() != NULL;
  config.size = 128 << 20;
  if (store_prepare(&config, &shared, err, sizeof err) < 0)
    return 10;
  st = open_slot(0);
  if (!st)
    return 11;
  if (!has_tmpfs)
    file_limit(24 << 20);
  int rc = fill(10000); /* 100 MB */
  store_figures_s f = figures();
  if (rc)
    return rc;
  if (f.allocated > 24 << 20 || f.allocated < 17 << 20 ||
      f.used > f.allocated || f.used < f.allocated / 100 * 80)
    return 12;
  if (config.may_evict ? f.refused : f.evicted || !f.refused)
    return 13;
  if (sum_kept() != f.bytes)
    return 14;
  rc = fill_held();
  if (!rc && config.may_evict)
    rc = fill(500);
  if (rc)
    return rc;
  /* room again */
  if (has_tmpfs && mount("tmpfs", folder, "tmpfs", MS_REMOUNT, "size=200m"))
    return 15;
  if (!has_tmpfs)
    file_limit(RLIM_INFINITY);
  pause_ms(1100);
  f = figures();
  uint64_t refused = f.refused;
  rc = fill(3000);
  f = figures();
  if (rc || f.refused != refused || f.allocated < 30 << 20 ||
      sum_kept() != f.bytes)
    return 16;
  release();
  return 0;
}

Test(store_file, a_full_tmpfs_is_eviction_and_never_a_signal) {
  rule("** count=100000 bytes=0");
  pid_t pid = fork();
  if (pid == 0)
    _exit(full_tmpfs());
  cr_assert_eq(reaped(pid), 0);
}

Test(store_file, a_full_tmpfs_is_a_refusal_and_never_a_signal) {
  rule("** count=100000 bytes=0");
  config.may_evict = false;
  pid_t pid = fork();
  if (pid == 0)
    _exit(full_tmpfs());
  cr_assert_eq(reaped(pid), 0);
}

Test(store_file, a_full_disk_is_eviction_or_a_refusal) {
  rule("** count=100000 bytes=0");
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/store%d", folder, i);
    durable();
    config.may_evict = i == 0;
    config.size = 64 << 20;
    pid_t pid = fork();
    if (pid == 0) {
      if (store_prepare(&config, &shared, err, sizeof err) < 0 ||
          !(st = open_slot(0)))
        _exit(10);
      file_limit(20 << 20);
      least = 70000;
      int rc = fill(500);
      store_figures_s f = figures();
      if (rc)
        _exit(rc);
      if (f.allocated > 20 << 20 || f.messages + f.evicted + f.refused != 500)
        _exit(11);
      if (config.may_evict ? f.refused || !f.evicted : !f.refused)
        _exit(12);
      release();
      _exit(0);
    }
    cr_assert_eq(reaped(pid), 0);
    prepare();
    cr_assert_eq(sum_kept(), figures().bytes);
    release();
  }
}

Test(store_file, no_room_at_the_start_is_said) {
  pid_t pid = fork();
  if (pid == 0) {
    file_limit(64 << 10);
    durable();
    int rc = store_prepare(&config, &shared, err, sizeof err);
    _exit(rc == 0 ? 1 : strstr(err, "there is no room for it") ? 0 : 2);
  }
  cr_assert_eq(reaped(pid), 0);
  cr_assert_leq(folder_count(folder), 0);
}

/* --- Readers --- */

Test(store_file, a_stopped_reader_is_found) {
  unsigned slot = 99;
  prepare();
  for (unsigned i = 1; i <= 9; i++)
    publish(START + i, "a", "x");
  store_close(st);
  pid_t pid = fork();
  if (pid == 0) {
    store_limit_s limit = {9, 9};
    st = open_slot(2);
    _exit(!st || store_read(st, view_str("a"), START, ALL, limit, stop_here,
                            NULL, &result));
  }
  int status;
  cr_assert_eq(waitpid(pid, &status, WUNTRACED), pid);
  st = open_slot(0);
  cr_assert_eq(store_reader_stuck(shared, 5000, 1000, &slot), 0);
  cr_assert_eq(store_reader_stuck(shared, 6000, 1000, &slot), 0);
  cr_assert_eq(store_reader_stuck(shared, 6001, 1000, &slot), 1);
  cr_assert_eq(slot, 2);
  kill(pid, SIGKILL);
  cr_assert_eq(reaped(pid), 1000 + SIGKILL);
  store_mark_dead(shared, 2);
  cr_assert_eq(store_reader_stuck(shared, 99999, 1000, &slot), 0);
  /* and its pages are free again */
  config.size = 0;
  rule("b count=10 bytes=0");
  uint64_t before = figures().allocated;
  for (unsigned i = 0; i < 3000; i++) {
    ring_record_s r = record(START + 100 + i, "b", "");
    r.body = view_of(big, 10000);
    publish_record(r);
  }
  cr_assert_eq(figures().allocated, before);
  release();
}

Test(store_file, a_reader_that_goes_on_is_not_stuck) {
  unsigned slot = 99;
  prepare();
  publish(START + 1, "a", "x");
  for (unsigned i = 0; i < 20; i++) {
    kept("a");
    cr_assert_eq(store_reader_stuck(shared, 1000 * i, 500, &slot), 0);
  }
  release();
}

/* More than may read at a time. */
static _Atomic int inside;
static _Atomic bool may_leave;

static bool wait_inside(void *arg, const stored_s *m) {
  (void)arg;
  (void)m;
  inside++;
  while (!may_leave)
    pause_ms(1);
  return true;
}

static void *read_slowly(void *arg) {
  store_result_s r;
  store_limit_s limit = {9, 9};
  return store_read(st, view_str("a"), START, ALL, limit, wait_inside, NULL,
                    &r) == 0
             ? arg
             : NULL;
}

Test(store_file, so_many_threads_read_at_a_time) {
  pthread_t threads[STORE_READERS];
  durable();
  prepare();
  publish(START + 1, "a", "x");
  for (int i = 0; i < STORE_READERS; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, read_slowly, &threads), 0);
  while (inside < STORE_READERS)
    pause_ms(1);
  store_info_s in;
  cr_assert_eq(store_channel(st, view_str("a"), &in), -1);
  cr_assert_eq(errno, EAGAIN);
  cr_assert_eq(publish(START + 2, "a", "y"), RING_KEPT, "a commit is no read");
  may_leave = true;
  for (int i = 0; i < STORE_READERS; i++) {
    void *out;
    pthread_join(threads[i], &out);
    cr_assert_eq(out, &threads);
  }
  cr_assert_str_eq(kept("a"), "1:x 2:y");
  release();
}

/* The file grows in one process and is read in another. */
Test(store_file, a_reader_follows_a_file_that_grows) {
  rule("** count=100000 bytes=0");
  prepare();
  publish(++next_id, "a", "x");
  store_close(st);
  pid_t pid = fork();
  if (pid == 0) {
    st = open_slot(1);
    _exit(st ? fill(3600) : 9); /* 40 MB */
  }
  st = open_slot(0);
  uint64_t sum = 0;
  unsigned reads = 0;
  int status = 0;
  do {
    uint64_t more = sum_kept();
    cr_assert_geq(more, sum);
    sum = more;
    reads++;
  } while (waitpid(pid, &status, WNOHANG) == 0);
  cr_assert_eq(status, 0, "%x", (unsigned)status);
  cr_assert_eq(sum_kept(), figures().bytes);
  cr_assert_gt(figures().allocated, 32 << 20);
  cr_assert_gt(reads, 2);
  next_id = START + 3601;
  cr_assert_eq(fill(100), 0, "and writes after that");
  cr_assert_eq(sum_kept(), figures().bytes);
  release();
}

/* Each commit succeeds; who is told to try again does so. */
static int fill_read(unsigned n) {
  for (unsigned i = 0; i < n; i++) {
    uint64_t committed;
    ring_record_s r = record(++next_id, i % 2 ? "a" : "b", "");
    ring_verdict_s v = {RING_PENDING, 0};
    r.body = view_of(big, least + i * 37 % 20000);
    now = next_id;
    if (ring_side()->ops->begin(ring_side(), &committed) < 0)
      return 40;
    ring_side()->ops->put(ring_side(), &r, 1, &v);
    if (ring_side()->ops->commit(ring_side(), r.id) < 0)
      return 41;
    if (v.verdict != RING_KEPT && v.verdict != RING_VOID)
      return 42;
    if (v.verdict == RING_VOID)
      pause_ms(1);
  }
  return 0;
}

Test(store_file, readers_of_a_full_store_cost_nobody_a_commit) {
  rule("** count=100000 bytes=0");
  config.size = 32 << 20;
  prepare();
  publish(++next_id, "a", "x");
  store_close(st);
  pid_t pid = fork();
  if (pid == 0) {
    st = open_slot(1);
    _exit(st ? fill_read(5000) : 9);
  }
  st = open_slot(0);
  int status = 0;
  do
    sum_kept();
  while (waitpid(pid, &status, WNOHANG) == 0);
  cr_assert_eq(status, 0, "%x", (unsigned)status);
  next_id = START + 5001;
  cr_assert_eq(fill(500), 0, "and without readers none is refused");
  cr_assert_eq(sum_kept(), figures().bytes);
  cr_assert_gt(figures().evicted, 500);
  release();
}
