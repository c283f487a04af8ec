/* store_prepare.c - what the master does for the store.
 *
 * Invariants:
 * - a file that was there is only opened, locked and read before it is known to
 *   be a store of ours, whole as far as can be told; the reading is done by a
 *   child, which a damaged file may end;
 * - who has the flock of the file owns the store. All processes of a broker
 *   have it, by the descriptor that they inherit, so a broker whose master died
 *   still owns it while a worker lives;
 * - LMDB's environment is closed again here: nothing of it crosses the fork. */
#include "store_shared.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STALE_PREFIX "crier-store-"
#define LOCK_SUFFIX "-lock"
#define LOCK_WAIT_MS 500 /* the last processes of a killed broker */

enum { META_MAGIC = 16, META_VERSION = 20, META_LEAST = 8192 };
#define LMDB_MAGIC 0xBEEFC0DEu

typedef struct {
  char *text;
  size_t len;
} report_s;

FACIL_PRINTF(4, 5)
static int refuse(const report_s *r, const char *path, int code,
                  const char *fmt, ...) {
  char what[200];
  va_list args;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  snprintf(r->text, r->len, "crier: store: %.250s: %s", path, what);
  errno = code;
  return -1;
}

static int refuse_errno(const report_s *r, const char *path, int code) {
  return refuse(r, path, code, "%s", strerror(code));
}

/* --- The file --- */

static int lock_take(int fd, const char *path, const report_s *r) {
  for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; waited += 20) {
    if (errno != EWOULDBLOCK)
      return refuse_errno(r, path, errno);
    if (waited >= LOCK_WAIT_MS)
      return refuse(r, path, EBUSY, "another broker has it open");
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  }
  return 0;
}

static void lock_path(const char *path, char out[PATH_MAX]) {
  snprintf(out, PATH_MAX, "%.*s" LOCK_SUFFIX,
           (int)(PATH_MAX - sizeof LOCK_SUFFIX), path);
}

static void files_remove(const char *path) {
  char other[PATH_MAX];
  lock_path(path, other);
  unlink(other);
  unlink(path);
}

/* What is LMDB's, by its first page. */
static int content_check(int fd, uint64_t size, const char *path,
                         const report_s *r) {
  unsigned char head[24];
  uint32_t magic, version;
  if (size < META_LEAST || pread(fd, head, sizeof head, 0) != sizeof head)
    return refuse(r, path, EINVAL, "it is no store of crier");
  memcpy(&magic, head + META_MAGIC, sizeof magic);
  memcpy(&version, head + META_VERSION, sizeof version);
  if (magic != LMDB_MAGIC)
    return refuse(r, path, EINVAL, "it is no store of crier");
  if (version != 1)
    return refuse(r, path, EINVAL, "its LMDB format is %u, not 1", version);
  return 0;
}

/* What became of the file: ours if it was not there, or had nothing in it. */
typedef struct {
  bool is_made, is_new;
} file_s;

static int file_open(store_shared_s *h, file_s *f, const report_s *r) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  struct stat st;
  h->fd = open(h->path, flags);
  if (h->fd < 0 && errno == ENOENT) {
    h->fd = open(h->path, flags | O_CREAT | O_EXCL, 0600);
    f->is_made = h->fd >= 0;
  }
  if (h->fd < 0)
    return errno == EISDIR
               ? refuse(r, h->path, EINVAL, "it is a folder: name a file in it")
               : refuse_errno(r, h->path, errno);
  if (fstat(h->fd, &st) < 0)
    return refuse_errno(r, h->path, errno);
  if (!S_ISREG(st.st_mode))
    return refuse(r, h->path, EINVAL, "it is no file");
  if (lock_take(h->fd, h->path, r) < 0)
    return -1;
  if (fstat(h->fd, &st) < 0) /* what its last owner made of it */
    return refuse_errno(r, h->path, errno);
  f->is_new = st.st_size == 0;
  uint64_t size = (uint64_t)st.st_size;
  atomic_store(&h->allocated, size / h->page * h->page);
  return f->is_new ? 0 : content_check(h->fd, size, h->path, r);
}

/* --- A look into a file that was there, by a child --- */

enum {
  LOOK_FINE,
  LOOK_FOREIGN,
  LOOK_FORMAT,
  LOOK_SHORT,
  LOOK_DAMAGED,
  LOOK_EMPTY /* its maker died before it put anything */
};

static int look_mark(MDB_txn *txn, MDB_dbi dbi) {
  MDB_val data, key = val_of(VIEW_LIT("crier"));
  mark_s m;
  MDB_stat st;
  if (mdb_stat(txn, dbi, &st) == 0 && st.ms_entries == 0)
    return LOOK_EMPTY;
  int rc = mdb_get(txn, dbi, &key, &data);
  if (rc && rc != MDB_NOTFOUND)
    return LOOK_DAMAGED;
  if (rc || data.mv_size < sizeof m)
    return LOOK_FOREIGN;
  memcpy(&m, data.mv_data, sizeof m);
  if (memcmp(m.magic, STORE_MAGIC, sizeof STORE_MAGIC))
    return LOOK_FOREIGN;
  return m.format == STORE_FORMAT && m.order == 0x01020304 ? LOOK_FINE
                                                           : LOOK_FORMAT;
}

/* What a damaged page shows is hardly ever this. */
static bool is_entry(int table, MDB_val key, MDB_val data) {
  switch (table) {
  case -1: /* LMDB's own table of free pages */
    return key.mv_size == sizeof(size_t) && data.mv_size >= sizeof(size_t);
  case TABLE_IDS:
    return key.mv_size == 8 && data.mv_size <= STORE_NAME_MAX;
  case TABLE_CHANNELS:
    return key.mv_size <= STORE_NAME_MAX && data.mv_size == sizeof(chan_s);
  case TABLE_KEYS:
    return key.mv_size <= 511 && data.mv_size == sizeof(known_s);
  case TABLE_TIMES:
    return key.mv_size >= 10 && key.mv_size <= 511 && data.mv_size <= 511;
  default:
    return key.mv_size && key.mv_size <= 511 && data.mv_size;
  }
}

static bool is_end_whole(MDB_cursor *c, int table, MDB_cursor_op end) {
  MDB_val key, data;
  int rc = mdb_cursor_get(c, &key, &data, end);
  return rc == MDB_NOTFOUND || (rc == 0 && is_entry(table, key, data));
}

/* Both ends of each table, so that at least their paths are whole. */
static int look_tables(MDB_txn *txn) {
  MDB_dbi dbi[TABLES];
  state_s state;
  if (env_tables(txn, dbi, 0) || state_get(txn, dbi[TABLE_MAIN], &state))
    return LOOK_DAMAGED;
  for (int i = -1; i < TABLES; i++) {
    MDB_cursor *c;
    if (mdb_cursor_open(txn, i < 0 ? 0 : dbi[i], &c) ||
        !is_end_whole(c, i, MDB_FIRST) || !is_end_whole(c, i, MDB_LAST))
      return LOOK_DAMAGED;
  }
  return LOOK_FINE;
}

static int look(const store_shared_s *h) {
  MDB_env *env;
  MDB_txn *txn;
  MDB_dbi dbi;
  MDB_envinfo info;
  if (mdb_env_create(&env) || mdb_env_set_maxdbs(env, TABLES) ||
      mdb_env_open(env, h->path, MDB_RDONLY | MDB_NOLOCK | MDB_NOSUBDIR, 0600))
    return LOOK_DAMAGED;
  mdb_env_info(env, &info);
  if ((info.me_last_pgno + 1) * h->page > atomic_load(&h->allocated))
    return LOOK_SHORT;
  if (mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) ||
      mdb_dbi_open(txn, NULL, 0, &dbi))
    return LOOK_DAMAGED;
  int result = look_mark(txn, dbi);
  return result == LOOK_FINE ? look_tables(txn) : result;
}

/* A crash of the child is an answer, whoever else handles signals. */
static void look_alone(void) {
  static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
    signal(signals[i], SIG_DFL);
  alarm(10);
  prctl(PR_SET_DUMPABLE, 0); /* it leaves no core */
  int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (null >= 0)
    dup2(null, 2); /* LMDB says why it gives up */
}

static int file_look(const store_shared_s *h, file_s *f, const report_s *r) {
  static const char *const words[] = {
      NULL, "it is an LMDB file, but no store of crier",
      "it is a store of another version of crier", "it was cut short",
      "it is damaged"};
  pid_t pid = fork();
  if (pid < 0)
    return refuse_errno(r, h->path, errno);
  if (pid == 0) {
    look_alone();
    _exit(look(h));
  }
  int status;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR)
      return refuse_errno(r, h->path, errno);
  int result = WIFEXITED(status) ? WEXITSTATUS(status) : LOOK_DAMAGED;
  f->is_new = result == LOOK_EMPTY;
  if (result == LOOK_FINE || result == LOOK_EMPTY)
    return 0;
  return refuse(r, h->path, EINVAL, "%s",
                words[result <= LOOK_DAMAGED ? result : LOOK_DAMAGED]);
}

/* --- Memory stores --- */

static void boot_id(char out[9]) {
  memcpy(out, "00000000", 9);
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  char text[8];
  if (fd >= 0 && read(fd, text, 8) == 8)
    memcpy(out, text, 8);
  if (fd >= 0)
    close(fd);
}

/* A memory store whose lock nobody has is nobody's. */
static void stale_remove(const char *path) {
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0)
    return;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0)
    files_remove(path);
  close(fd);
}

static bool is_lock_name(const char *name) {
  size_t n = strlen(name), m = sizeof LOCK_SUFFIX - 1;
  return n > m && strcmp(name + n - m, LOCK_SUFFIX) == 0;
}

static void stale_remove_all(const char *folder) {
  DIR *d = opendir(folder);
  struct dirent *e;
  while (d && (e = readdir(d))) {
    char path[PATH_MAX];
    if (strncmp(e->d_name, STALE_PREFIX, sizeof STALE_PREFIX - 1) != 0 ||
        is_lock_name(e->d_name))
      continue;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, e->d_name) <
        sizeof path)
      stale_remove(path);
  }
  if (d)
    closedir(d);
}

/* A new file of ours, locked. Who removes stale ones may have been quicker than
 * our lock: then another name. */
static int memory_open(store_shared_s *h, const char *folder,
                       const report_s *r) {
  char boot[9];
  boot_id(boot);
  stale_remove_all(folder);
  for (unsigned n = 0; n < 1000; n++) {
    struct stat mine, there;
    snprintf(h->path, sizeof h->path, "%.3900s/" STALE_PREFIX "%s-%ld-%u",
             folder, boot, (long)getpid(), n);
    h->fd = open(h->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (h->fd < 0 && errno != EEXIST)
      return refuse_errno(r, folder, errno);
    if (h->fd < 0)
      continue;
    if (flock(h->fd, LOCK_EX | LOCK_NB) == 0 && fstat(h->fd, &mine) == 0 &&
        stat(h->path, &there) == 0 && mine.st_ino == there.st_ino)
      return 0;
    close(h->fd);
    h->fd = -1;
  }
  return refuse_errno(r, folder, EEXIST);
}

/* --- What is in it --- */

static uint64_t wall_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int mark_make(MDB_txn *txn, MDB_dbi dbi, mark_s *m) {
  *m = (mark_s){.magic = STORE_MAGIC, .format = STORE_FORMAT};
  m->order = 0x01020304;
  if (getrandom(&m->key, sizeof m->key, 0) != sizeof m->key)
    return EIO;
  MDB_val key = val_of(VIEW_LIT("crier")), data = val_of(view_of(m, sizeof *m));
  return mdb_put(txn, dbi, &key, &data, MDB_NOOVERWRITE);
}

static int mark_get(MDB_txn *txn, MDB_dbi dbi, mark_s *m) {
  MDB_val data, key = val_of(VIEW_LIT("crier"));
  int rc = mdb_get(txn, dbi, &key, &data);
  if (!rc && data.mv_size < sizeof *m)
    rc = MDB_CORRUPTED;
  if (!rc)
    memcpy(m, data.mv_data, sizeof *m);
  return rc;
}

/* All ids of this run lie above the floor, and below the ceiling until a commit
 * raises it. */
static int state_take_over(store_shared_s *h, MDB_txn *txn, MDB_dbi dbi,
                           bool is_new) {
  uint64_t now = h->config.now ? h->config.now : wall_us();
  state_s d = {.birth = now, .ceiling = now};
  int rc = is_new ? 0 : state_get(txn, dbi, &d);
  if (rc)
    return rc;
  h->floor = d.ceiling > d.committed ? d.ceiling : d.committed;
  h->birth = d.birth;
  d.ceiling = (h->floor > now ? h->floor : now) + h->config.lease_us;
  atomic_store(&h->ceiling, d.ceiling);
  atomic_store(&h->messages, d.messages);
  atomic_store(&h->bytes, d.bytes);
  atomic_store(&h->channels, d.channels);
  atomic_store(&h->forgotten, d.forgotten);
  atomic_store(&h->committed, d.committed);
  return state_put(txn, dbi, &d);
}

static int content_make(store_shared_s *h, MDB_env *env, bool is_new) {
  MDB_txn *txn;
  MDB_dbi dbi[TABLES];
  mark_s m;
  int rc = mdb_txn_begin(env, NULL, 0, &txn);
  if (rc)
    return rc;
  rc = env_tables(txn, dbi, is_new ? MDB_CREATE : 0);
  if (!rc)
    rc = is_new ? mark_make(txn, dbi[TABLE_MAIN], &m)
                : mark_get(txn, dbi[TABLE_MAIN], &m);
  if (!rc)
    rc = state_take_over(h, txn, dbi[TABLE_MAIN], is_new);
  if (rc) {
    mdb_txn_abort(txn);
    return rc;
  }
  h->key = m.key;
  return mdb_txn_commit(txn);
}

/* The table of readers is written in place too. */
static int lock_allocate(const store_shared_s *h) {
  char path[PATH_MAX];
  struct stat st;
  lock_path(h->path, path);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return errno;
  int rc = fstat(fd, &st) < 0 ? errno : posix_fallocate(fd, 0, st.st_size);
  close(fd);
  return rc;
}

static void folder_sync(const char *path) {
  char folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  if (slash)
    slash[slash == folder] = '\0';
  int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    fsync(fd);
    close(fd);
  }
}

/* Open it by LMDB for the first time, with the first step allocated before
 * anything is written. */
static int file_take_over(store_shared_s *h, bool is_new, const report_s *r) {
  MDB_env *env;
  int rc = env_open(h, &env);
  if (rc == 0) {
    rc = lock_allocate(h);
    if (!rc && atomic_load(&h->allocated) < STORE_STEP)
      rc = file_grow(h, STORE_STEP);
    if (!rc && !h->is_durable)
      rc = mdb_env_set_mapsize(env, atomic_load(&h->allocated));
    if (!rc)
      rc = content_make(h, env, is_new);
    mdb_env_close(env);
  }
  if (rc == ENOSPC || rc == EFBIG || rc == EDQUOT || rc == MDB_MAP_FULL)
    return refuse(r, h->path, ENOSPC, "there is no room for it");
  if (rc)
    return refuse(r, h->path, store_errno(rc), "%s", mdb_strerror(rc));
  if (is_new && h->is_durable)
    folder_sync(h->path);
  return 0;
}

/* --- Preparing --- */

static store_shared_s *shared_new(const store_config_s *c) {
  size_t readings = (size_t)c->slots * STORE_READERS;
  size_t bytes =
      sizeof(store_shared_s) + readings * (sizeof(reading_s) + sizeof(seen_s));
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return NULL;
  store_shared_s *h = (store_shared_s *)p;
  h->config = *c;
  h->seen = (seen_s *)(void *)&h->readings[readings];
  h->map_bytes = bytes;
  h->is_durable = c->path != NULL;
  h->fd = -1;
  h->page = (size_t)sysconf(_SC_PAGESIZE);
  h->config.size = c->size / h->page * h->page;
  return h;
}

static void shared_free(store_shared_s *h) {
  if (h->fd >= 0)
    close(h->fd);
  munmap(h, h->map_bytes);
}

static int file_prepare(store_shared_s *h, const report_s *r) {
  const char *folder = h->config.memory ? h->config.memory : "/dev/shm";
  file_s f = {.is_made = !h->is_durable, .is_new = true};
  if (!h->is_durable) {
    if (memory_open(h, folder, r) < 0)
      return -1;
  } else if (file_open(h, &f, r) < 0 ||
             (!f.is_new && file_look(h, &f, r) < 0)) {
    return -1;
  }
  if (file_take_over(h, f.is_new, r) == 0)
    return 0;
  if (f.is_made) {
    int e = errno;
    files_remove(h->path);
    errno = e;
  }
  return -1;
}

int store_prepare(const store_config_s *c, store_shared_s **out, char *err,
                  size_t err_len) {
  report_s r = {err, err_len};
  const char *name = c->path ? c->path : "memory";
  if (c->size < STORE_SIZE_MIN)
    return refuse(&r, name, EINVAL, "store.size is less than 16MiB");
  if (strlen(name) > 3900)
    return refuse_errno(&r, name, ENAMETOOLONG);
  store_shared_s *h = shared_new(c);
  if (!h)
    return refuse_errno(&r, name, ENOMEM);
  if (c->path)
    memcpy(h->path, c->path, strlen(c->path) + 1);
  if (file_prepare(h, &r) == 0) {
    *out = h;
    return 0;
  }
  int e = errno;
  shared_free(h);
  errno = e;
  return -1;
}

uint64_t store_floor(const store_shared_s *h) {
  return h->floor;
}

void store_release(store_shared_s *h) {
  if (!h->is_durable)
    files_remove(h->path);
  shared_free(h);
}

/* --- Deaths, the watchdog, figures --- */

void store_mark_dead(store_shared_s *h, unsigned slot) {
  for (size_t i = 0; i < STORE_READERS; i++)
    atomic_store(&h->readings[slot * STORE_READERS + i].since_ms, 0);
  atomic_fetch_add(&h->deaths, 1);
}

/* Twice the same start, with the limit between: a machine or a process group
 * that was stopped as a whole costs nobody. */
int store_reader_stuck(store_shared_s *h, uint64_t now_ms, uint64_t limit_ms,
                       unsigned *slot) {
  for (size_t i = 0; i < (size_t)h->config.slots * STORE_READERS; i++) {
    uint64_t since = atomic_load(&h->readings[i].since_ms);
    seen_s *seen = &h->seen[i];
    if (since == 0 || seen->since_ms != since) {
      *seen = (seen_s){since, now_ms};
    } else if (now_ms - seen->seen_ms > limit_ms) {
      *slot = (unsigned)(i / STORE_READERS);
      return 1;
    }
  }
  return 0;
}

void store_figures(const store_shared_s *h, store_figures_s *out) {
  *out = (store_figures_s){.size = h->config.size,
                           .allocated = atomic_load(&h->allocated),
                           .used = atomic_load(&h->used_pages) * h->page +
                                   2 * atomic_load(&h->grown),
                           .messages = atomic_load(&h->messages),
                           .bytes = atomic_load(&h->bytes),
                           .channels = atomic_load(&h->channels),
                           .birth = h->birth,
                           .forgotten = atomic_load(&h->forgotten),
                           .committed = atomic_load(&h->committed),
                           .evicted = atomic_load(&h->evicted),
                           .refused = atomic_load(&h->refused)};
}
