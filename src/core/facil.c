/* facil.c - the loop: one iteration does a fixed list of things in a fixed
 * order.
 *
 *   1 the time          2 timers, deadlines     3, 4 sockets: on_data, accept
 *   5 other threads' tasks, the engine          6 tasks
 *   7 walks             8 fan-out and flush     9 reap: on_close
 *
 * Invariant: no iteration is longer than its budgets and one callback; what a
 * phase does not get done stays first in line for the next iteration, which
 * then does not sleep. */
#include "core.h"
#include "evio.h"
#include "facil/clock.h"
#include "facil/defer.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SLEEP_MAX_MS 1000
#define WALK_BUDGET 1000
#define SLICE_SEND 256
#define SLICE_URING 1000
#define FLUSH_BUDGET 4096
#define ENDINGS 16 /* rounds for what comes of endings */

static struct {
  uint64_t now_ms;
  int worker_id;
  bool is_master, draining, drained, stop_now;
  uint64_t notice_until_ms; /* 0: the notice is over */
  uint64_t drain_until_ms;
  const struct facil_run_args *args;
  facil_engine_s engine;
  bool has_engine;
  int signal_fd, control_fd;
  bool was_busy;
} loop = {.signal_fd = -1, .control_fd = -1};

static atomic_bool stop_asked;

uint64_t facil_now_ms(void) {
  if (!loop.now_ms)
    loop.now_ms = clock_ms();
  return loop.now_ms;
}

int facil_worker_id(void) {
  return loop.is_master ? -1 : loop.worker_id;
}

void loop_set_master(bool is_master) {
  loop.is_master = is_master;
}

bool facil_is_draining(void) {
  return loop.draining;
}

bool loop_is_ending(void) {
  return loop.draining && !loop.notice_until_ms;
}

int facil_set_engine(const facil_engine_s *engine) {
  loop.engine = *engine;
  loop.has_engine = true;
  if (engine->wake_fd < 0)
    return 0;
  return evio_add(engine->wake_fd, TAG_ENGINE, EVIO_IN);
}

/* ---- facil_defer ------------------------------------------------------- */

static void run_deferred(void *arg, void *unused) {
  (void)unused;
  struct facil_defer_args *a = arg;
  slot_s *s = sock_slot(a->uuid);
  if (s && s->protocol)
    a->task(a->uuid, s->protocol, a->arg);
  else if (a->fallback)
    a->fallback(a->uuid, a->arg);
  free(a);
}

int(facil_defer)(struct facil_defer_args a) {
  struct facil_defer_args *copy = a.task ? malloc(sizeof *copy) : NULL;
  if (copy) {
    *copy = a;
    if (defer(run_deferred, copy, NULL) == 0)
      return 0;
    free(copy);
  }
  int error = a.task ? ENOMEM : EINVAL;
  if (a.fallback)
    a.fallback(a.uuid, a.arg);
  errno = error;
  return -1;
}

/* ---- stopping ---------------------------------------------------------- */

void facil_stop(void) {
  atomic_store(&stop_asked, true);
  if (loop.is_master)
    kill(getpid(), SIGTERM);
  else
    defer_wake();
}

static void drain_begin(void) {
  if (loop.draining) {
    loop.stop_now = true;
    return;
  }
  loop.draining = true;
  loop.notice_until_ms = loop.now_ms + loop.args->notice_ms;
  loop.drain_until_ms = loop.notice_until_ms + loop.args->drain_ms;
  log_line(LOG_DEBUG, "drain", "worker=%d connections=%zu", loop.worker_id,
           service_total());
  if (loop.args->on_shutdown)
    loop.args->on_shutdown(loop.args->udata);
}

/* The notice is over: no more is taken in, and all that is open ends. */
static void drain_now(void) {
  loop.notice_until_ms = 0;
  listen_end(true);
  conn_shutdown_all();
}

static void drain_check(void) {
  if (loop.notice_until_ms) {
    if (loop.now_ms >= loop.notice_until_ms)
      drain_now();
    return;
  }
  bool stays = loop.has_engine && loop.engine.is_busy &&
               loop.engine.is_busy(loop.engine.arg);
  if (service_total() == 0 && !stays)
    loop.drained = true;
  else if (loop.now_ms >= loop.drain_until_ms)
    loop.stop_now = true;
}

static void on_signal(void) {
  struct signalfd_siginfo info;
  while (read(loop.signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
    /* With a master one stop may be told in three ways: by its word, by a
     * signal to the whole group, by its death. Only its word can be a second.
     */
    bool has_master = loop.control_fd >= 0;
    if (!has_master || (info.ssi_signo == SIGTERM && !loop.draining))
      drain_begin();
  }
}

/* The master's word: 'D' drain, 'Q' end at once; its end means that it is gone.
 */
static void on_control(void) {
  char word;
  ssize_t n = read(loop.control_fd, &word, 1);
  if (n == 1 && word == 'Q') {
    loop.stop_now = true;
  } else if (n == 1 || n == 0) {
    if (n == 0) {
      evio_remove(loop.control_fd);
      log_line(LOG_WARN, "master_gone", "worker=%d", loop.worker_id);
    }
    if (!loop.draining)
      drain_begin();
  }
}

/* ---- events ------------------------------------------------------------ */

static void on_connection(slot_s *s, uint8_t flags) {
  intptr_t uuid = s->uuid;
  if (flags & EVIO_OUT)
    sock_can_write(s);
  if (s->state == SLOT_DRAINING) {
    /* To close with unread bytes would be a reset, and might destroy what was
     * sent: also when both ends are shut, all is read first. */
    if ((flags & (EVIO_IN | EVIO_HUP)) && sock_discard(s) &&
        (flags & EVIO_HUP) && s->uuid == uuid)
      sock_lose(s, NULL);
    return;
  }
  if (flags & (EVIO_IN | EVIO_HUP) && !s->suspended)
    conn_call_data(s);
  if ((flags & EVIO_HUP) && s->uuid == uuid && !(flags & EVIO_IN))
    sock_lose(s, "hung up");
}

static void on_event(uint64_t tag, uint8_t flags) {
  if (!(tag >> 63)) {
    slot_s *s = sock_slot((intptr_t)tag);
    if (s)
      on_connection(s, flags);
    return;
  }
  switch (tag & ~UINT64_C(0xFFFFFFFF)) {
  case TAG_LISTENER:
    listen_ready((uint32_t)tag);
    break;
  case TAG_CONTROL:
    on_control();
    break;
  case TAG_SIGNAL:
    on_signal();
    break;
  case TAG_INBOX:
    defer_woken();
    break;
  default: /* the engine is asked in phase 5 */
    break;
  }
}

/* ---- one iteration ----------------------------------------------------- */

static int sooner(int a, int b) {
  return a < 0 ? b : b < 0 ? a : a < b ? a : b;
}

static bool is_runnable(void) {
  return defer_has_queue() || sock_has_dirty() || sock_has_forced() ||
         set_has_walks() || set_has_ready() || loop.stop_now ||
         atomic_load_explicit(&stop_asked, memory_order_relaxed);
}

static int sleep_ms(void) {
  int ms = SLEEP_MAX_MS;
  ms = sooner(ms, timer_next_due(loop.now_ms));
  ms = sooner(ms, conn_next_due(loop.now_ms));
  ms = sooner(ms, listen_next_due(loop.now_ms));
  if (loop.draining && ms > 20)
    ms = 20;
  if (loop.control_fd >= 0 && loop.args->watchdog_ms) /* seen to live in time */
    ms = sooner(ms, (int)(loop.args->watchdog_ms / 3));
  return ms;
}

static int poll_sockets(void) {
  bool looks = loop.was_busy && loop.args->on_idle; /* before it sleeps */
  int ms = is_runnable() || looks ? 0 : sleep_ms();
  bool asleep = false;
  if (ms > 0 && loop.has_engine) {
    asleep = loop.engine.may_sleep(loop.engine.arg);
    if (!asleep)
      ms = 0;
  }
  int n = evio_wait(ms);
  loop.now_ms =
      clock_ms(); /* it may have slept: callbacks get the time of now */
  if (asleep)
    loop.engine.woke(loop.engine.arg);
  evio_dispatch(on_event);
  return n;
}

/* Dirty connections and one slice of fan-out; with io_uring by as few system
 * calls as may be. */
static bool flush_phase(void) {
  if (!sock_has_dirty() && !set_has_ready())
    return false;
  sock_flush_dirty(FLUSH_BUDGET);
  set_ready_slice(uring_is_open() ? SLICE_URING : SLICE_SEND);
  uring_flush();
  return true;
}

static void turn(_Atomic uint64_t *beat) {
  loop.now_ms = clock_ms();
  if (beat)
    atomic_store_explicit(beat, loop.now_ms, memory_order_relaxed);
  bool did = timer_run(loop.now_ms);
  did |= conn_expire(loop.now_ms);
  did |= listen_tick(loop.now_ms);
  did |= poll_sockets() > 0;
  did |= sock_forced_run();
  defer_inbox();
  if (loop.has_engine)
    did |= loop.engine.turn(loop.engine.arg);
  did |= defer_run();
  if (set_has_walks()) {
    did = true;
    set_walks_run(WALK_BUDGET);
  }
  did |= flush_phase();
  did |= sock_reap();
  if (atomic_exchange_explicit(&stop_asked, false, memory_order_relaxed))
    drain_begin();
  if (loop.draining)
    drain_check();
  if (!did && loop.was_busy && loop.args->on_idle)
    loop.args->on_idle(loop.args->udata);
  loop.was_busy = did;
}

/* ---- serving ----------------------------------------------------------- */

static int open_fds(int control) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGINT);
  loop.signal_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
  loop.control_fd = control;
  int inbox = defer_open();
  if (loop.signal_fd < 0 || inbox < 0 || evio_open() < 0)
    return -1;
  if (evio_add(inbox, TAG_INBOX, EVIO_IN) < 0 ||
      evio_add(loop.signal_fd, TAG_SIGNAL, EVIO_IN) < 0)
    return -1;
  return control < 0 ? 0 : evio_add(control, TAG_CONTROL, EVIO_IN);
}

/* What is still open when time is up is lost at once. Walks find nobody any
 * more and end; one that starts another for ever is left. */
static void end_now(void) {
  service_lose_all("the drain time is over");
  for (int i = 0; i < ENDINGS && set_has_walks(); i++)
    set_walks_run(UINT32_MAX);
  for (int i = 0; i < 3; i++) {
    sock_flush_dirty(UINT32_MAX); /* only unchains */
    uring_flush();
    sock_forced_run();
    sock_reap();
  }
}

static void close_fds(void) {
  uring_close();
  evio_close();
  defer_close();
  if (loop.signal_fd >= 0)
    close(loop.signal_fd);
  loop.signal_fd = -1;
  loop.has_engine = false;
}

int loop_serve(const struct facil_run_args *args, int id, int control,
               _Atomic uint64_t *beat) {
  loop.args = args;
  loop.worker_id = id;
  loop.is_master = false;
  loop.draining = loop.drained = loop.stop_now = false;
  loop.notice_until_ms = 0;
  loop.now_ms = clock_ms();
  int status = 1;
  if (sock_table_init(args->max_connections) < 0 || open_fds(control) < 0)
    goto done;
  if (!args->no_uring && uring_open() < 0)
    log_line(LOG_DEBUG, "io_uring", "use=no reason=\"%s\"", strerror(errno));
  timer_start_all(loop.now_ms);
  if (args->on_start && args->on_start(args->udata) < 0)
    goto done;
  if (listen_begin((uint16_t)id) < 0)
    goto done;
  if (control >= 0 && write(control, "R", 1) != 1)
    goto done;
  while (!loop.drained && !loop.stop_now)
    turn(beat);
  status = 0; /* also when time was up: a slow peer is no failure */
  listen_end(false);
  end_now();
done:
  timer_cancel_all();
  listen_finish();
  defer_end();
  sock_reap();
  if (args->on_finish)
    args->on_finish(args->udata);
  close_fds();
  conn_reset();
  return status;
}

/* ---- running ----------------------------------------------------------- */

uint16_t facil_usable_cores(void) {
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
  long quota = 0, period = 0;
  if (f) {
    if (fscanf(f, "%ld %ld", &quota, &period) == 2 && period > 0 &&
        quota / period < n)
      n = quota / period > 0 ? (int)(quota / period) : 1;
    fclose(f);
  }
  return (uint16_t)(n < 1 ? 1 : n > 64 ? 64 : n);
}

/* Signals that came at the very end were for the server, not for the caller. */
static void signals_taken(const sigset_t *kinds, const sigset_t *before) {
  sigset_t ours;
  sigemptyset(&ours);
  for (int n = 1; n < 32; n++)
    if (sigismember(kinds, n) == 1 && sigismember(before, n) == 0)
      sigaddset(&ours, n);
  struct timespec none = {0, 0};
  while (sigtimedwait(&ours, NULL, &none) > 0)
    ;
}

int(facil_run)(struct facil_run_args args) {
  sock_std_fds();
  if (!args.processes)
    args.processes = facil_usable_cores();
  if (!args.drain_ms)
    args.drain_ms = 10000;
  sigset_t block, before;
  struct sigaction ignore = {.sa_handler = SIG_IGN}, pipe_before;
  sigemptyset(&block);
  int kinds[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    sigaddset(&block, kinds[i]);
  sigprocmask(SIG_BLOCK, &block, &before);
  sigaction(SIGPIPE, &ignore, &pipe_before);
  listen_set_max(args.max_connections);
  int status;
  if (listen_spread(args.processes) < 0)
    status = 1;
  else if (args.master || args.processes > 1)
    status = master_serve(&args, args.processes);
  else
    status = loop_serve(&args, 0, -1, NULL);
  listen_close_all();
  atomic_store(&stop_asked, false);
  signals_taken(&block, &before);
  sigaction(SIGPIPE, &pipe_before, NULL);
  sigprocmask(SIG_SETMASK, &before, NULL);
  return status;
}
