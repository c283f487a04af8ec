/* facil_master.c - the master: forks workers, restarts those that die, kills
 * one that hangs, and passes signals on.
 *
 * It is single-threaded, serves no traffic and parses nothing that a peer sent.
 * Invariant: for each worker there is exactly one of a live process, a pending
 * restart, or the decision to give up; and signals go to explicit pids only. */
#include "core.h"
#include "facil/clock.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS_MAX 64
#define CHECK_MS 100
#define BACKOFF_MAX_MS 5000
#define LONG_LIFE_MS 10000 /* a life this long resets the back-off */
#define EARLY_MS 1000      /* a death before this after READY counts as early */
#define EARLY_MAX 5
#define STALL_MS 300  /* a turn of the master takes CHECK_MS */
#define AT_ONCE_MS 50 /* for a worker to obey a second stop */

typedef enum {
  WORKER_GONE,
  WORKER_STARTING,
  WORKER_READY,
  WORKER_DRAINING
} state_e;

typedef struct {
  state_e state;
  pid_t pid;
  int control;
  uint64_t started_ms, ready_ms, due_ms; /* due: of the restart, when GONE */
  uint32_t backoff_ms;
  uint32_t early; /* deaths at the start, in a row */
  bool failed;    /* did not end in order */
} worker_s;

static struct {
  const struct facil_run_args *args;
  worker_s worker[WORKERS_MAX];
  uint16_t count;
  int signal_fd;
  pid_t pid;
  _Atomic uint64_t *beat; /* shared: when each worker's loop last turned */
  bool stopping, is_running;
  int status;
  uint64_t kill_at_ms;
  uint64_t turned_ms;     /* the last turn */
  uint64_t watch_from_ms; /* the workers' silence counts from here on */
} master;

/* ---- forking ----------------------------------------------------------- */

static void child(uint16_t id, int control) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != master.pid)
    _exit(1);
  close(master.signal_fd);
  for (uint16_t i = 0; i < master.count; i++)
    if (master.worker[i].control >= 0)
      close(master.worker[i].control);
  int status = loop_serve(master.args, id, control, &master.beat[id]);
  fflush(NULL);
  _exit(status);
}

static int start(uint16_t id) {
  worker_s *w = &master.worker[id];
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) <
      0)
    return -1;
  fflush(NULL);
  atomic_store(&master.beat[id], clock_ms());
  pid_t pid = fork();
  if (pid < 0) {
    close(pair[0]);
    close(pair[1]);
    return -1;
  }
  if (pid == 0) {
    close(pair[0]);
    child(id, pair[1]);
  }
  close(pair[1]);
  w->state = WORKER_STARTING;
  w->pid = pid;
  w->control = pair[0];
  w->started_ms = clock_ms();
  w->ready_ms = 0;
  return 0;
}

/* ---- stopping ---------------------------------------------------------- */

static void tell(worker_s *w, char word) {
  if (w->state == WORKER_GONE)
    return;
  ssize_t n = send(w->control, &word, 1, MSG_NOSIGNAL);
  (void)n; /* it is gone then, and waitpid will say so */
  w->state = WORKER_DRAINING;
}

/* First request: drain. Second: at once. */
static void stop(int status) {
  if (status)
    master.status = status;
  bool again = master.stopping;
  master.stopping = true;
  uint64_t now = clock_ms();
  uint64_t by =
      now + (again ? AT_ONCE_MS
                   : master.args->notice_ms + master.args->drain_ms + 1000);
  if (!again || by < master.kill_at_ms)
    master.kill_at_ms = by;
  if (!again)
    listen_close_all();
  for (uint16_t i = 0; i < master.count; i++)
    tell(&master.worker[i], again ? 'Q' : 'D');
}

static void kill_worker(worker_s *w, const char *why) {
  if (w->state == WORKER_GONE)
    return;
  log_line(LOG_ERROR, "worker_killed", "worker=%d worker_pid=%d reason=\"%s\"",
           (int)(w - master.worker), (int)w->pid, why);
  kill(w->pid, SIGKILL);
}

/* ---- deaths ------------------------------------------------------------ */

static void plan_restart(worker_s *w, uint64_t now) {
  bool early = !w->ready_ms || now - w->ready_ms < EARLY_MS;
  w->early = early ? w->early + 1 : 0;
  if (now - w->started_ms >= LONG_LIFE_MS)
    w->backoff_ms = 0;
  w->due_ms = now + w->backoff_ms;
  w->backoff_ms = w->backoff_ms ? w->backoff_ms * 2 : 100;
  if (w->backoff_ms > BACKOFF_MAX_MS)
    w->backoff_ms = BACKOFF_MAX_MS;
}

static void gone(uint16_t id, int how) {
  worker_s *w = &master.worker[id];
  uint64_t now = clock_ms();
  bool in_order = WIFEXITED(how) && WEXITSTATUS(how) == 0;
  bool drained = w->state == WORKER_DRAINING;
  bool was_ready = w->ready_ms != 0;
  close(w->control);
  w->control = -1;
  w->state = WORKER_GONE;
  if (master.args->on_gone)
    master.args->on_gone(id, master.args->udata);
  if (drained && !in_order && !master.status && master.stopping)
    master.status = 1;
  if (master.stopping)
    return;
  log_line(LOG_ERROR, "worker_died", "worker=%d worker_pid=%d %s=%d", id,
           (int)w->pid, WIFSIGNALED(how) ? "signal" : "exit",
           WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
  if (!was_ready && !master.is_running) {
    stop(1); /* the first start has to succeed whole */
    return;
  }
  plan_restart(w, now);
  if (w->early >= EARLY_MAX) {
    log_line(LOG_ERROR, "give_up",
             "reason=\"workers keep dying at their start\"");
    stop(70);
  }
}

static void reap_all(void) {
  for (uint16_t i = 0; i < master.count; i++) {
    worker_s *w = &master.worker[i];
    int how;
    if (w->state != WORKER_GONE && waitpid(w->pid, &how, WNOHANG) == w->pid)
      gone(i, how);
  }
}

/* ---- what is to do ----------------------------------------------------- */

static void on_signals(void) {
  struct signalfd_siginfo info;
  while (read(master.signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
    switch (info.ssi_signo) {
    case SIGTERM:
    case SIGINT:
      stop(0);
      break;
    case SIGCHLD:
      break; /* each turn looks */
    default:
      log_line(LOG_WARN, "signal", "number=%u effect=none", info.ssi_signo);
    }
  }
}

static void on_word(uint16_t id) {
  worker_s *w = &master.worker[id];
  char word;
  if (w->control < 0 || read(w->control, &word, 1) != 1 || word != 'R')
    return;
  w->ready_ms = clock_ms();
  if (w->state == WORKER_STARTING)
    w->state = WORKER_READY;
  log_line(LOG_INFO, "worker_ready", "worker=%d worker_pid=%d ms=%d", id,
           (int)w->pid, (int)(w->ready_ms - w->started_ms));
  bool all = true;
  for (uint16_t i = 0; i < master.count; i++)
    all = all && master.worker[i].state == WORKER_READY;
  if (all && !master.is_running) {
    master.is_running = true;
    if (master.args->on_running)
      master.args->on_running(master.args->udata);
  }
}

static void watch(uint64_t now) {
  uint32_t limit = master.args->watchdog_ms;
  if (now - master.turned_ms > STALL_MS) /* suspended, and they too perhaps */
    master.watch_from_ms = now;
  for (uint16_t i = 0; i < master.count && limit; i++) {
    worker_s *w = &master.worker[i];
    uint64_t beat = atomic_load(&master.beat[i]);
    if (beat < master.watch_from_ms)
      beat = master.watch_from_ms;
    if (w->state != WORKER_GONE && now > beat && now - beat > limit) {
      kill_worker(w, "watchdog: its loop stands still");
      atomic_store(&master.beat[i], now + limit); /* said once */
    }
  }
  int stuck = master.args->on_check && !master.stopping
                  ? master.args->on_check(master.args->udata)
                  : -1;
  if (stuck >= 0 && stuck < master.count)
    kill_worker(&master.worker[stuck], "watchdog: it keeps a lock");
}

static void restart_due(uint64_t now) {
  for (uint16_t i = 0; i < master.count && !master.stopping; i++) {
    worker_s *w = &master.worker[i];
    if (w->state == WORKER_GONE && now >= w->due_ms && start(i) < 0) {
      log_line(LOG_ERROR, "fork", "error=\"%s\"", strerror(errno));
      w->due_ms = now + BACKOFF_MAX_MS;
    }
  }
}

static bool all_gone(void) {
  for (uint16_t i = 0; i < master.count; i++)
    if (master.worker[i].state != WORKER_GONE)
      return false;
  return true;
}

static void wait_for_news(void) {
  struct pollfd fds[WORKERS_MAX + 1] = {{master.signal_fd, POLLIN, 0}};
  nfds_t n = 1;
  for (uint16_t i = 0; i < master.count; i++)
    if (master.worker[i].control >= 0)
      fds[n++] = (struct pollfd){master.worker[i].control, POLLIN, 0};
  bool restarts = false;
  for (uint16_t i = 0; i < master.count; i++)
    restarts |= master.worker[i].state == WORKER_GONE &&
                master.worker[i].due_ms <= clock_ms();
  bool hurries = master.stopping && master.kill_at_ms < clock_ms() + CHECK_MS;
  poll(fds, n,
       restarts && !master.stopping ? 0
       : hurries                    ? CHECK_MS / 10
                                    : CHECK_MS);
}

static void master_turn(void) {
  wait_for_news();
  on_signals();
  for (uint16_t i = 0; i < master.count; i++)
    on_word(i);
  reap_all();
  uint64_t now = clock_ms();
  watch(now);
  master.turned_ms = now;
  restart_due(now);
  if (master.stopping && now >= master.kill_at_ms) {
    for (uint16_t i = 0; i < master.count; i++)
      kill_worker(&master.worker[i], "it did not end in time");
    master.kill_at_ms = now + 1000;
  }
}

int master_serve(const struct facil_run_args *args, uint16_t workers) {
  master.args = args;
  master.pid = getpid();
  master.count = workers > WORKERS_MAX ? WORKERS_MAX : workers;
  master.stopping = master.is_running = false;
  master.turned_ms = master.watch_from_ms = clock_ms();
  master.status = 0;
  size_t size = WORKERS_MAX * sizeof *master.beat;
  master.beat = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (master.beat == MAP_FAILED)
    return 1;
  sigset_t wanted;
  sigemptyset(&wanted);
  int kinds[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    sigaddset(&wanted, kinds[i]);
  master.signal_fd = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
  loop_set_master(true);
  for (uint16_t i = 0; i < master.count; i++)
    master.worker[i] = (worker_s){.control = -1};
  for (uint16_t i = 0; i < master.count; i++)
    if (start(i) < 0) {
      stop(1);
      break;
    }
  while (!master.stopping || !all_gone())
    master_turn();
  close(master.signal_fd);
  munmap((void *)master.beat, size);
  timer_cancel_all(); /* the copies that were here for the workers */
  loop_set_master(false);
  return master.status;
}
