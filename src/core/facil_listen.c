/* facil_listen.c - listening sockets, one a worker, and accepting.
 *
 * The master makes a SO_REUSEPORT socket for each worker before it forks and
 * keeps them for life, so a worker that is restarted takes over its queue and
 * the port never refuses. A Unix path has one socket for all. Invariant: an
 * accepted socket is attached, or closed: never lost. */
#include "core.h"
#include "evio.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#define LISTENERS_MAX 64
#define ACCEPT_BUDGET 64
#define PAUSE_MS 100

typedef struct {
  struct facil_listen_args args;
  struct sockaddr_storage at;
  socklen_t at_len;
  char name[160];
  int *fds; /* one a worker; of a Unix path just the first */
  uint16_t fd_count;
  int own;     /* this worker's */
  pid_t maker; /* who may take a Unix path away */
} listener_s;

static listener_s listeners[LISTENERS_MAX];
static uint32_t listener_count;
static uint64_t paused_until_ms; /* descriptors ran out; 0: accepting */
static bool slot_freed, is_listening;
static uint64_t logged_ms;
static size_t connections_max;

/* ---- before the run ---------------------------------------------------- */

int(facil_listen)(struct facil_listen_args a) {
  if (!a.on_open || listener_count == LISTENERS_MAX) {
    errno = EINVAL;
    return -1;
  }
  sock_std_fds();
  listener_s *l = &listeners[listener_count];
  *l = (listener_s){
      .args = a, .own = -1, .maker = getpid(), .fds = malloc(sizeof(int))};
  if (!l->fds)
    return -1;
  if (!l->args.backlog)
    l->args.backlog = 4096;
  int fd = sock_bind(a.address, a.port ? a.port : "3000", l->args.backlog,
                     a.mode ? a.mode : 0660, true, &l->at, &l->at_len);
  if (fd < 0) {
    int saved = errno;
    free(l->fds);
    errno = saved;
    return -1;
  }
  l->fds[0] = fd;
  l->fd_count = 1;
  sock_addr_print(&l->at, l->at_len, l->name, sizeof l->name);
  listener_count++;
  return 0;
}

const char *facil_listening_at(void) {
  return listener_count ? listeners[listener_count - 1].name : "";
}

int listen_spread(uint16_t workers) {
  for (uint32_t i = 0; i < listener_count; i++) {
    listener_s *l = &listeners[i];
    if (l->at.ss_family == AF_UNIX || l->fd_count >= workers)
      continue;
    int *fds = realloc(l->fds, workers * sizeof *fds);
    if (!fds)
      return -1;
    l->fds = fds;
    while (l->fd_count < workers) {
      int fd = sock_bind_again(&l->at, l->at_len, l->args.backlog);
      if (fd < 0)
        return -1;
      l->fds[l->fd_count++] = fd;
    }
  }
  return 0;
}

/* ---- in a worker ------------------------------------------------------- */

static int arm(uint32_t i, bool in) {
  return evio_change(listeners[i].own, TAG_LISTENER | i, in ? EVIO_IN : 0);
}

int listen_begin(uint16_t worker) {
  int lowat = (int)sock_lowat();
  for (uint32_t i = 0; i < listener_count; i++) {
    listener_s *l = &listeners[i];
    uint16_t mine = l->at.ss_family == AF_UNIX ? 0 : worker;
    if (mine >= l->fd_count)
      return -1;
    for (uint16_t w = 0; w < l->fd_count; w++)
      if (w != mine)
        close(l->fds[w]);
    l->own = l->fds[mine];
    l->fd_count = 0;
    if (lowat && l->at.ss_family != AF_UNIX) /* accepted sockets inherit it */
      setsockopt(l->own, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof lowat);
    if (evio_add(l->own, TAG_LISTENER | i, EVIO_IN) < 0)
      return -1;
  }
  is_listening = true;
  paused_until_ms = 0;
  return 0;
}

static void pause_all(const char *why) {
  if (log_seldom(&logged_ms))
    log_line(LOG_WARN, "accept_paused", "reason=\"%s\"", why);
  for (uint32_t i = 0; i < listener_count; i++)
    (void)arm(i, false);
  paused_until_ms = facil_now_ms() + PAUSE_MS;
}

static void serve(listener_s *l, int fd) {
  intptr_t uuid = sock_open(fd);
  if (uuid < 0)
    return;
  protocol_s *p = l->args.on_open(uuid, l->args.udata);
  if (!p || facil_attach(uuid, p) < 0) /* then its on_close follows */
    sock_abort(uuid, "refused");
}

/* False: nothing more to accept now. */
static bool accept_one(listener_s *l) {
  if (connections_max && service_total() >= connections_max) {
    pause_all("connections.max is reached");
    return false;
  }
  int fd = accept4(l->own, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) {
    serve(l, fd);
    return true;
  }
  switch (errno) {
  case EMFILE:
  case ENFILE:
  case ENOBUFS:
  case ENOMEM:
    pause_all(strerror(errno));
    return false;
  case EAGAIN:
    return false;
  default: /* the peer's affair: EINTR, ECONNABORTED, EPROTO … */
    return true;
  }
}

void listen_ready(uint32_t i) {
  for (int n = 0; n < ACCEPT_BUDGET && is_listening; n++)
    if (!accept_one(&listeners[i]))
      return;
}

void listen_slot_freed(void) {
  slot_freed = true;
}

bool listen_tick(uint64_t now_ms) {
  bool resume = paused_until_ms && (now_ms >= paused_until_ms || slot_freed);
  slot_freed = false;
  if (!resume || !is_listening)
    return false;
  paused_until_ms = 0;
  for (uint32_t i = 0; i < listener_count; i++)
    (void)arm(i, true);
  return true;
}

int listen_next_due(uint64_t now_ms) {
  if (!paused_until_ms || !is_listening)
    return -1;
  return paused_until_ms > now_ms ? (int)(paused_until_ms - now_ms) : 0;
}

void listen_end(bool accept_rest) {
  if (!is_listening)
    return;
  for (uint32_t i = 0; i < listener_count; i++) {
    listener_s *l = &listeners[i];
    if (l->own < 0)
      continue;
    for (int n = 0; accept_rest && n < l->args.backlog; n++)
      if (!accept_one(l))
        break;
    evio_remove(l->own);
    close(l->own);
    l->own = -1;
  }
  is_listening = false;
}

void listen_finish(void) {
  for (uint32_t i = 0; i < listener_count; i++)
    if (listeners[i].args.on_finish)
      listeners[i].args.on_finish(listeners[i].args.udata);
}

void listen_set_max(size_t connections) {
  connections_max = connections;
}

void listen_close_all(void) {
  for (uint32_t i = 0; i < listener_count; i++) {
    listener_s *l = &listeners[i];
    for (uint16_t w = 0; w < l->fd_count; w++)
      close(l->fds[w]);
    if (l->own >= 0) /* one that was not begun whole */
      close(l->own);
    if (l->maker == getpid() && l->at.ss_family == AF_UNIX)
      unlink(l->name + sizeof "unix:" - 1);
    free(l->fds);
  }
  listener_count = 0;
}
