/* sock.c - the table of connections: ids, reading, and the end of a life.
 *
 * Invariant: a uuid is valid exactly while slot.uuid equals it, and nothing is
 * done for one that is not. The release follows one order: the id becomes
 * invalid, epoll forgets the descriptor, lists are left; at the end of the turn
 * the queue is freed, on_close runs, and the descriptor is closed last, so no
 * successor can get it before. */
#include "core.h"
#include "evio.h"
#include "facil/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define GENERATION_ONE ((intptr_t)1 << 24)
#define GENERATION_BITS ((((intptr_t)1 << 39) - 1) << 24)
#define SLOTS_MAX (1u << 20)

static slot_s *slots;
static size_t capacity;
static uint32_t reap_head = SLOT_NONE, reap_tail = SLOT_NONE;
static uint32_t forced_head = SLOT_NONE, forced_tail = SLOT_NONE;
static uint64_t losses;

/* Protocols that were replaced: their on_close is owed. */
static struct {
  intptr_t uuid;
  protocol_s *protocol;
} * retired;
static size_t retired_count, retired_cap;

/* ---- the table --------------------------------------------------------- */

int sock_table_init(size_t max_connections) {
  if (slots)
    return 0;
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
    return -1;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  size_t n = SLOTS_MAX;
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < n)
    n = (size_t)limit.rlim_max;
  if (max_connections && max_connections + 1024 < n)
    n = max_connections + 1024;
  /* Reserved, not touched: pages come with the descriptors that need them. */
  void *p = mmap(NULL, n * sizeof(slot_s), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return -1;
  slots = p;
  capacity = n;
  return 0;
}

size_t sock_capacity(void) {
  return capacity;
}

slot_s *sock_slot_at(uint32_t index) {
  return &slots[index];
}

uint32_t sock_slot_index(const slot_s *s) {
  return (uint32_t)(s - slots);
}

slot_s *sock_slot(intptr_t uuid) {
  uint32_t index = (uint32_t)sock_uuid2fd(uuid);
  if (uuid <= 0 || index >= capacity || slots[index].uuid != uuid)
    return NULL;
  return &slots[index];
}

bool sock_isvalid(intptr_t uuid) {
  return sock_slot(uuid) != NULL;
}

intptr_t sock_fd2uuid(int fd) {
  if (fd < 0 || (size_t)fd >= capacity || slots[fd].uuid <= 0)
    return -1;
  return slots[fd].uuid;
}

intptr_t sock_open(int fd) {
  if (fd < 0) {
    errno = EBADF;
    return -1;
  }
  if (sock_table_init(0) < 0 || (size_t)fd >= capacity) {
    close(fd);
    errno = EMFILE;
    return -1;
  }
  slot_s *s = &slots[fd];
  intptr_t last = s->uuid < 0 ? -s->uuid : s->uuid;
  intptr_t generation = (last + GENERATION_ONE) & GENERATION_BITS;
  if (!generation)
    generation = GENERATION_ONE;
  uint32_t now = (uint32_t)facil_now_ms();
  *s = (slot_s){.uuid = generation | fd,
                .state = SLOT_OPENING,
                .read_ms = now,
                .blocked_ms = now,
                .dirty_next = SLOT_NONE,
                .forced_next = SLOT_NONE,
                .reap_next = SLOT_NONE};
  return s->uuid;
}

int sock_peer(intptr_t uuid, struct sockaddr_storage *addr, socklen_t *len) {
  if (!sock_slot(uuid)) {
    errno = EBADF;
    return -1;
  }
  *len = sizeof *addr;
  return getpeername(sock_uuid2fd(uuid), (struct sockaddr *)addr, len);
}

int sock_arm(slot_s *s, uint8_t mask) {
  if (s->mask == mask)
    return 0;
  s->mask = mask;
  return evio_change((int)sock_slot_index(s), (uint64_t)s->uuid, mask);
}

/* ---- reading ----------------------------------------------------------- */

static ssize_t read_unread(slot_s *s, void *buf, size_t len) {
  sock_extra_s *x = s->extra;
  size_t n = x->unread_len - x->unread_at;
  if (n > len)
    n = len;
  memcpy(buf, x->unread + x->unread_at, n);
  x->unread_at += n;
  if (x->unread_at == x->unread_len) {
    free(x->unread);
    free(x);
    s->extra = NULL;
  } else {
    facil_force_event(s->uuid);
  }
  return (ssize_t)n;
}

static ssize_t read_ended(slot_s *s) {
  s->eof = true;
  (void)sock_arm(s, s->mask & (uint8_t)~EVIO_IN);
  errno = ESHUTDOWN;
  return -1;
}

ssize_t sock_read(intptr_t uuid, void *buf, size_t len) {
  slot_s *s = sock_slot(uuid);
  if (!s) {
    errno = EBADF;
    return -1;
  }
  if (s->extra)
    return read_unread(s, buf, len);
  if (s->eof)
    return read_ended(s);
  if (len == 0)
    return 0;
  ssize_t n = recv(sock_uuid2fd(uuid), buf, len, 0);
  if (n > 0) {
    conn_alive(s);
    return n;
  }
  if (n == 0)
    return read_ended(s);
  if (errno == EAGAIN || errno == EINTR)
    return 0;
  int saved = errno;
  sock_lose(s, "read");
  errno = saved;
  return -1;
}

int sock_unread(intptr_t uuid, const void *buf, size_t len) {
  slot_s *s = sock_slot(uuid);
  if (!s) {
    errno = EBADF;
    return -1;
  }
  if (len == 0)
    return 0;
  if (s->extra) {
    errno = EEXIST;
    return -1;
  }
  sock_extra_s *x = calloc(1, sizeof *x);
  char *copy = malloc(len);
  if (!x || !copy) {
    free(x);
    free(copy);
    errno = ENOMEM;
    return -1;
  }
  memcpy(copy, buf, len);
  *x = (sock_extra_s){.unread = copy, .unread_len = len};
  s->extra = x;
  facil_force_event(uuid);
  return 0;
}

bool sock_discard(slot_s *s) {
  char waste[16384];
  for (int i = 0; i < 4; i++) {
    ssize_t n = recv((int)sock_slot_index(s), waste, sizeof waste, 0);
    if (n > 0)
      continue;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      return true;
    s->eof = true;
    if (n < 0 || s->shut)
      sock_lose(s, NULL);
    else
      (void)sock_arm(s, s->mask & (uint8_t)~EVIO_IN);
    return true;
  }
  return false;
}

/* ---- forced events ----------------------------------------------------- */

void facil_force_event(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  if (!s || s->is_forced)
    return;
  uint32_t i = sock_slot_index(s);
  s->is_forced = true;
  s->forced_next = SLOT_NONE;
  if (forced_tail == SLOT_NONE)
    forced_head = i;
  else
    slots[forced_tail].forced_next = i;
  forced_tail = i;
}

bool sock_has_forced(void) {
  return forced_head != SLOT_NONE;
}

/* A slot leaves the chain only here, also one that was closed meanwhile:
 * sock_reap leaves a slot that is still chained for a later turn. */
bool sock_forced_run(void) {
  uint32_t i = forced_head;
  bool did = i != SLOT_NONE;
  forced_head = forced_tail = SLOT_NONE;
  while (i != SLOT_NONE) {
    slot_s *s = &slots[i];
    uint32_t next = s->forced_next;
    s->forced_next = SLOT_NONE;
    s->is_forced = false;
    if (s->state == SLOT_OPEN && !s->suspended)
      conn_call_data(s);
    i = next;
  }
  return did;
}

/* ---- the end ----------------------------------------------------------- */

void sock_lose(slot_s *s, const char *reason) {
  intptr_t uuid = s->uuid;
  if (s->state == SLOT_CLOSED || s->state == SLOT_FREE)
    return;
  if (reason) {
    losses++;
    if (log_on(LOG_DEBUG))
      log_line(LOG_DEBUG, "lost", "uuid=%ld reason=\"%s\"", (long)uuid, reason);
  }
  s->state = SLOT_CLOSED;
  s->uuid = -uuid;
  conn_unschedule(s);
  conn_unlisted(s);
  evio_remove(sock_uuid2fd(uuid));
  uint32_t i = sock_slot_index(s);
  s->reap_next = SLOT_NONE;
  if (reap_tail == SLOT_NONE)
    reap_head = i;
  else
    slots[reap_tail].reap_next = i;
  reap_tail = i;
}

int sock_abort(intptr_t uuid, const char *reason) {
  slot_s *s = sock_slot(uuid);
  if (!s) {
    errno = EBADF;
    return -1;
  }
  sock_lose(s, reason);
  return 0;
}

int sock_close(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  if (!s) {
    errno = EBADF;
    return -1;
  }
  if (s->state == SLOT_DRAINING)
    return 0;
  bool is_new = s->state == SLOT_OPENING;
  s->state = SLOT_DRAINING;
  s->want_ready = false;
  s->pinged = false;
  s->has_deadline = false;
  s->blocked_ms = (uint32_t)facil_now_ms();
  if (is_new && conn_enter(s, true) < 0) {
    sock_lose(s, "epoll");
    return 0;
  }
  if (!s->eof)
    (void)sock_arm(s, s->mask | EVIO_IN);
  conn_schedule(s);
  sock_mark_dirty(s); /* the flush ends our half when nothing is left */
  return 0;
}

void sock_shut(slot_s *s) {
  if (s->shut)
    return;
  s->shut = true;
  s->blocked_ms = (uint32_t)facil_now_ms(); /* from here the 2 s count */
  if (s->eof || shutdown((int)sock_slot_index(s), SHUT_WR) < 0)
    sock_lose(s, NULL);
  else
    conn_schedule(s);
}

void sock_retire(intptr_t uuid, protocol_s *p) {
  if (retired_count == retired_cap) {
    size_t cap = retired_cap ? retired_cap * 2 : 64;
    void *bigger = realloc(retired, cap * sizeof *retired);
    if (!bigger)
      abort(); /* an owed on_close can be neither made early nor dropped */
    retired = bigger;
    retired_cap = cap;
  }
  retired[retired_count].uuid = uuid;
  retired[retired_count++].protocol = p;
}

static void release(slot_s *s) {
  intptr_t uuid = -s->uuid;
  protocol_s *p = s->protocol;
  sock_queue_free(s);
  if (s->extra) {
    free(s->extra->unread);
    free(s->extra);
    s->extra = NULL;
  }
  s->protocol = NULL;
  if (p && p->ops->on_close)
    p->ops->on_close(uuid, p);
  s->state = SLOT_FREE;
  close(sock_uuid2fd(uuid));
  listen_slot_freed();
}

bool sock_reap(void) {
  bool did = retired_count > 0;
  for (size_t i = 0; i < retired_count; i++) {
    protocol_s *p = retired[i].protocol;
    if (p->ops->on_close)
      p->ops->on_close(retired[i].uuid, p);
  }
  retired_count = 0;
  uint32_t i = reap_head, kept_head = SLOT_NONE, kept_tail = SLOT_NONE;
  reap_head = reap_tail = SLOT_NONE;
  while (i != SLOT_NONE) {
    slot_s *s = &slots[i];
    uint32_t next = s->reap_next;
    if (s->is_dirty || s->is_forced || s->in_batch) { /* still chained */
      s->reap_next = SLOT_NONE;
      if (kept_tail == SLOT_NONE)
        kept_head = i;
      else
        slots[kept_tail].reap_next = i;
      kept_tail = i;
    } else {
      release(s);
      did = true;
    }
    i = next;
  }
  if (kept_head != SLOT_NONE) { /* before what on_close may have added */
    slots[kept_tail].reap_next = reap_head;
    reap_head = kept_head;
    if (reap_tail == SLOT_NONE)
      reap_tail = kept_tail;
  }
  return did;
}

uint64_t sock_losses(void) {
  return losses;
}
