/* core_talk.h - a server for tests of processes: it does what a client asks for
 * by single bytes, and what `how` says. It listens on a port that the kernel
 * picks, in a process of its own. Included once a test program. */
#ifndef CORE_TALK_H
#define CORE_TALK_H

#include "core_support.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a server
 * ------------------------------------------------------------------ */

/* What a client can ask for by one byte; any other byte is sent back. */
enum {
  SAY_WORKER = 'w', /* one byte: its number */
  SAY_PID = 'p',    /* four bytes */
  LOOP = 'L',       /* for ever */
  DIE = 'K',
  FLOOD = 'F', /* 20 MiB */
  HOLD = 'H'   /* stay when told to shut down */
};

#define FLOOD_LEN (20u << 20)

static struct {
  uint16_t processes;
  bool master;
  uint32_t drain_ms, watchdog_ms;
  int (*on_start)(void *);
  rlim_t files;
  uint32_t max_connections;
  void (*before_run)(void);
  int log; /* becomes stderr */
} how;

typedef struct {
  protocol_s super;
  bool holds;
} talk_s;

static void talk_write(intptr_t uuid, const void *data, size_t len) {
  if (sock_write(uuid, data, len) < 0)
    sock_abort(uuid, "the test");
}

static void talk_data(intptr_t uuid, protocol_s *p) {
  char c[512];
  ssize_t n = sock_read(uuid, c, sizeof c);
  for (ssize_t i = 0; i < n; i++) {
    char worker = (char)facil_worker_id();
    int32_t pid = getpid();
    switch (c[i]) {
    case SAY_WORKER:
      talk_write(uuid, &worker, 1);
      break;
    case SAY_PID:
      talk_write(uuid, &pid, sizeof pid);
      break;
    case LOOP:
      for (volatile int forever = 1; forever;)
        ;
      break;
    case DIE:
      raise(SIGKILL);
      break;
    case FLOOD:
      (void)!sock_write2(.uuid = uuid, .data = calloc(1, FLOOD_LEN),
                         .len = FLOOD_LEN, .move = true);
      break;
    case HOLD:
      ((talk_s *)p)->holds = true;
      break;
    default:
      talk_write(uuid, &c[i], 1);
    }
  }
}

static void talk_shutdown(intptr_t uuid, protocol_s *p) {
  if (seen)
    seen->n[0]++;
  if (!((talk_s *)p)->holds)
    sock_close(uuid);
}

static void talk_close(intptr_t uuid, protocol_s *p) {
  (void)uuid;
  free(p);
}

static const protocol_ops_s talk_ops = {.service = "talk",
                                        .on_data = talk_data,
                                        .on_shutdown = talk_shutdown,
                                        .on_close = talk_close,
                                        .holds_shutdown = true};

static protocol_s *talk_open(intptr_t uuid, void *udata) {
  (void)uuid, (void)udata;
  talk_s *t = calloc(1, sizeof *t);
  if (t)
    t->super.ops = &talk_ops;
  return t ? &t->super : NULL;
}

static void all_serve(void *arg) {
  (void)arg;
  server_is_at();
}

static int serve_start(void *arg) {
  int r = how.on_start ? how.on_start(arg) : 0;
  if (!how.master && how.processes == 1)
    server_is_at();
  else
    server_forget();
  return r;
}

static int serve(void *arg) {
  (void)arg;
  if (how.log)
    dup2(how.log, STDERR_FILENO);
  else
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
  if (how.files) {
    struct rlimit limit = {how.files, how.files};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (facil_listen(.port = "0", .on_open = talk_open) < 0)
    return 99;
  if (how.before_run)
    how.before_run();
  return facil_run(.processes = how.processes,
                   .max_connections = how.max_connections, .master = how.master,
                   .drain_ms = how.drain_ms, .watchdog_ms = how.watchdog_ms,
                   .on_start = serve_start, .on_running = all_serve);
}

static pid_t start(int *port) {
  return server_fork(serve, NULL, port);
}

static int worker_behind(int fd) {
  char worker = -1;
  return write_full(fd, "w", 1) && read_full(fd, &worker, 1) == 1 ? worker : -1;
}

/* A client of each worker. */
static void client_each(int port, int workers, int *fds) {
  for (int i = 0; i < workers; i++)
    fds[i] = -1;
  for (int tries = 0, left = workers; left && tries < 500; tries++) {
    int fd = client_to(port), w = worker_behind(fd);
    cr_assert(w >= 0 && w < workers);
    if (fds[w] >= 0) {
      close(fd);
      continue;
    }
    fds[w] = fd;
    left--;
  }
}

static size_t read_slowly(int fd, int mib_per_s) {
  static char chunk[1 << 18];
  size_t at = 0;
  for (ssize_t n; (n = recv(fd, chunk, sizeof chunk, 0)) > 0; at += (size_t)n)
    if (mib_per_s)
      nap_ms(n > 1 << 16 ? 250 / mib_per_s : 1);
  return at;
}

static int flooded(int port) {
  int fd = client_to(port);
  cr_assert(echoes(fd, 'x') && write_full(fd, "F", 1));
  char c;
  cr_assert_eq(read_full(fd, &c, 1), 1, "it has begun");
  return fd;
}

/* End it in order: no client is left that a close would wait for. */
static void finish(pid_t pid, int *fds, int count) {
  for (int i = 0; i < count; i++)
    close(fds[i]);
  kill(pid, SIGTERM);
  cr_assert_eq(server_wait(pid, 8000), 0);
}

#endif
