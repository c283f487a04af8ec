/* facil_conn.c - the life of a connection: attach, idle time, deadlines, the
 * end.
 *
 * Idle means that no byte was read. Activity only stores a time: the wheel
 * looks at a connection when it might be due and puts it back if it is not, so
 * a byte costs nothing. Invariant: each open connection whose time can run out
 * is in the wheel, at or before the tick at which it must be looked at. */
#include "core.h"
#include "evio.h"
#include <errno.h>

#define TIMEOUT_DEFAULT 300000u
#define LINGER_MS 2000u /* for the peer's end after ours */
#define STUCK_MS 30000u /* closing, and no byte is taken */

#define TICK_MS 8u
#define TICKS                                                                  \
  4096u /* the wheel turns once in 33 s; what is later goes round              \
         */

#define COMMON_TICKS 128u /* a second or so */

#define DUE TICKS /* the list of those whose time has come */

static uint32_t wheel[TICKS + 1];
static uint64_t wheel_bits[TICKS / 64 + 1];
static uint64_t wheel_at; /* ticks before this one have been looked at */
static bool wheel_made;

/* ---- the wheel --------------------------------------------------------- */

static void wheel_make(void) {
  if (wheel_made)
    return;
  for (uint32_t i = 0; i <= TICKS; i++)
    wheel[i] = SLOT_NONE;
  wheel_at = facil_now_ms() / TICK_MS;
  wheel_made = true;
}

static uint32_t wheel_place(uint64_t due) {
  uint64_t tick = (due + TICK_MS - 1) / TICK_MS;
  if (tick < wheel_at)
    tick = wheel_at;
  if (tick >= wheel_at + TICKS) /* looked at again in a round, with others */
    tick = (wheel_at + TICKS - 1) / COMMON_TICKS * COMMON_TICKS;
  return (uint32_t)(tick % TICKS);
}

static void wheel_link(slot_s *s, uint32_t place) {
  uint32_t i = sock_slot_index(s);
  s->due = place;
  s->wheel_prev = SLOT_NONE;
  s->wheel_next = wheel[place];
  if (s->wheel_next != SLOT_NONE)
    sock_slot_at(s->wheel_next)->wheel_prev = i;
  wheel[place] = i;
  wheel_bits[place / 64] |= UINT64_C(1) << (place % 64);
  s->in_wheel = true;
}

void conn_unschedule(slot_s *s) {
  if (!s->in_wheel)
    return;
  uint32_t place = s->due;
  if (s->wheel_prev != SLOT_NONE)
    sock_slot_at(s->wheel_prev)->wheel_next = s->wheel_next;
  else
    wheel[place] = s->wheel_next;
  if (s->wheel_next != SLOT_NONE)
    sock_slot_at(s->wheel_next)->wheel_prev = s->wheel_prev;
  if (wheel[place] == SLOT_NONE)
    wheel_bits[place / 64] &= ~(UINT64_C(1) << (place % 64));
  s->in_wheel = false;
}

/* ---- what is due when -------------------------------------------------- */

/* Milliseconds that have passed since a time of which the low 32 bits were
 * kept. */
static uint32_t since(uint32_t then) {
  return (uint32_t)facil_now_ms() - then;
}

static uint32_t left_of(uint32_t period, uint32_t passed) {
  return passed >= period ? 0 : period - passed;
}

static uint32_t period_of(const slot_s *s) {
  return s->timeout_ms ? s->timeout_ms : TIMEOUT_DEFAULT;
}

/* Long periods are looked at on common ticks, so that many idle connections do
 * not wake the loop one by one. */
static uint32_t coarse(uint32_t wait, uint32_t period) {
  uint32_t grain = period / 16;
  if (grain < 64)
    return wait;
  uint64_t due = facil_now_ms() + wait;
  return wait + (uint32_t)((grain - due % grain) % grain);
}

/* Milliseconds until the wheel has to look, UINT32_MAX for never. */
static uint32_t wait_of(const slot_s *s) {
  if (s->state == SLOT_DRAINING)
    return left_of(s->shut ? LINGER_MS : STUCK_MS, since(s->blocked_ms));
  uint32_t wait = UINT32_MAX;
  if (period_of(s) != FACIL_TIMEOUT_NEVER) {
    uint64_t period = period_of(s);
    if (s->pinged)
      period *= 2;
    if (period > UINT32_MAX / 2)
      period = UINT32_MAX / 2;
    wait = left_of((uint32_t)period, since(s->read_ms));
    if (s->pinged && wait == 0) /* overdue, but bytes wait to be sent */
      wait = period_of(s);
    wait = coarse(wait, period_of(s));
  }
  if (s->has_deadline) {
    int32_t d = (int32_t)(s->deadline_ms - (uint32_t)facil_now_ms());
    uint32_t due = d > 0 ? (uint32_t)d : 0;
    if (due < wait)
      wait = due;
  }
  return wait;
}

void conn_schedule(slot_s *s) {
  wheel_make();
  conn_unschedule(s);
  uint32_t wait = wait_of(s);
  if (wait != UINT32_MAX)
    wheel_link(s, wheel_place(facil_now_ms() + wait));
}

void conn_alive(slot_s *s) {
  s->read_ms = (uint32_t)facil_now_ms();
  s->pinged = false;
}

/* ---- time runs out ----------------------------------------------------- */

static void idle_check(slot_s *s) {
  uint32_t period = period_of(s);
  if (period == FACIL_TIMEOUT_NEVER)
    return;
  uint32_t quiet = since(s->read_ms);
  if (quiet < period)
    return;
  if (!s->pinged) {
    s->pinged = true;
    s->read_ms =
        (uint32_t)facil_now_ms() - period; /* one more period from now */
    if (s->protocol && s->protocol->ops->ping)
      s->protocol->ops->ping(s->uuid, s->protocol);
    else
      sock_lose(s, "idle");
  } else if (quiet >= 2 * period) {
    if (s->blocked) { /* progress of writing decides */
      s->read_ms = (uint32_t)facil_now_ms() - period;
      if (s->protocol && s->protocol->ops->ping)
        s->protocol->ops->ping(s->uuid, s->protocol);
    } else {
      sock_lose(s, "no answer to a ping");
    }
  }
}

static void expire(slot_s *s) {
  if (s->state == SLOT_DRAINING) {
    if (since(s->blocked_ms) >= (s->shut ? LINGER_MS : STUCK_MS))
      sock_lose(s, s->shut ? NULL : "closing, and the peer does not read");
  } else {
    if (s->has_deadline &&
        (int32_t)(s->deadline_ms - (uint32_t)facil_now_ms()) <= 0) {
      sock_lose(s, s->reason ? s->reason : "deadline");
      return;
    }
    idle_check(s);
  }
  if (s->uuid > 0)
    conn_schedule(s);
}

/* What is due leaves the wheel for a list of its own first, so that what is put
 * back while the list is worked off is not met again. */
static void collect_due(uint64_t until) {
  if (until >= wheel_at + TICKS)
    wheel_at = until - TICKS + 1; /* one whole round looks at everything */
  for (; wheel_at <= until; wheel_at++) {
    uint32_t place = (uint32_t)(wheel_at % TICKS);
    if (!(wheel_bits[place / 64] >> (place % 64) & 1))
      continue;
    while (wheel[place] != SLOT_NONE) {
      slot_s *s = sock_slot_at(wheel[place]);
      conn_unschedule(s);
      wheel_link(s, DUE);
    }
  }
}

bool conn_expire(uint64_t now_ms) {
  if (!wheel_made)
    return false;
  collect_due(now_ms / TICK_MS);
  bool did = wheel[DUE] != SLOT_NONE;
  while (wheel[DUE] != SLOT_NONE) {
    slot_s *s = sock_slot_at(wheel[DUE]);
    conn_unschedule(s);
    expire(s);
  }
  return did;
}

int conn_next_due(uint64_t now_ms) {
  if (!wheel_made)
    return -1;
  for (uint32_t i = 0; i < TICKS;) {
    uint32_t place = (uint32_t)((wheel_at + i) % TICKS);
    uint64_t word = wheel_bits[place / 64] >> (place % 64);
    if (!word) {
      i += 64 - place % 64;
      continue;
    }
    uint64_t tick = wheel_at + i + (uint64_t)__builtin_ctzll(word);
    uint64_t due = tick * TICK_MS;
    return due <= now_ms ? 0 : (int)(due - now_ms);
  }
  return -1;
}

/* ---- attach ------------------------------------------------------------ */

int conn_enter(slot_s *s, bool reads) {
  uint8_t mask = s->blocked ? EVIO_OUT : 0;
  if (reads && !s->eof)
    mask |= EVIO_IN;
  if (evio_add(sock_uuid2fd(s->uuid), (uint64_t)s->uuid, mask) < 0)
    return -1;
  s->mask = mask;
  return 0;
}

static void shutdown_one(intptr_t uuid, protocol_s *p, void *arg) {
  (void)arg;
  slot_s *s = sock_slot(uuid);
  if (s->told || s->state == SLOT_DRAINING)
    return;
  s->told = true;
  if (p->ops->on_shutdown)
    p->ops->on_shutdown(uuid, p);
  if (!p->ops->holds_shutdown)
    sock_close(uuid);
}

int facil_attach(intptr_t uuid, protocol_s *protocol) {
  slot_s *s = sock_slot(uuid);
  if (!protocol) {
    errno = EINVAL;
    return -1;
  }
  if (s && s->protocol == protocol)
    return 0;
  int error = !s || s->state == SLOT_DRAINING ? EBADF : 0;
  if (!error && s->state == SLOT_OPENING && conn_enter(s, !s->suspended) < 0) {
    error = errno;
    sock_lose(s, "epoll");
  }
  if (error) {
    sock_retire(uuid, protocol);
    errno = error;
    return -1;
  }
  if (s->protocol) {
    conn_unlisted(s);
    sock_retire(uuid, s->protocol);
    s->has_deadline = false; /* that was the old one's */
  }
  s->state = SLOT_OPEN;
  s->protocol = protocol;
  s->svc = service_id(protocol->ops->service);
  s->told = false;
  conn_listed(s);
  conn_schedule(s);
  if (s->extra || s->eof) /* nothing more comes that would tell it */
    facil_force_event(uuid);
  if (loop_is_ending())
    facil_defer(.uuid = uuid, .task = shutdown_one);
  return 0;
}

void conn_listed(slot_s *s) {
  service_join(s);
}

void conn_unlisted(slot_s *s) {
  if (s->protocol)
    service_leave(s);
}

protocol_s *facil_protocol(intptr_t uuid, const char *service) {
  slot_s *s = sock_slot(uuid);
  if (!s || !s->protocol || (service && s->protocol->ops->service != service))
    return NULL;
  return s->protocol;
}

/* ---- settings of a connection ------------------------------------------ */

void facil_set_timeout_ms(intptr_t uuid, uint32_t ms) {
  slot_s *s = sock_slot(uuid);
  if (!s)
    return;
  s->timeout_ms = ms;
  conn_alive(s);
  conn_schedule(s);
}

uint32_t facil_get_timeout_ms(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  return s ? period_of(s) : 0;
}

void facil_set_deadline_ms(intptr_t uuid, uint32_t ms, const char *reason) {
  slot_s *s = sock_slot(uuid);
  if (!s || s->state == SLOT_DRAINING)
    return;
  if (ms > INT32_MAX) /* times are compared by their low 32 bits */
    ms = INT32_MAX;
  s->has_deadline = ms != 0;
  s->deadline_ms = (uint32_t)facil_now_ms() + ms;
  s->reason = reason;
  if (ms)
    conn_schedule(s); /* one that was taken away may stay in the wheel */
}

void facil_suspend_read(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  if (!s || s->state == SLOT_DRAINING)
    return;
  s->suspended = true;
  if (s->state == SLOT_OPEN)
    (void)sock_arm(s, s->mask & (uint8_t)~EVIO_IN);
}

void facil_resume_read(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  if (!s || !s->suspended)
    return;
  s->suspended = false;
  if (s->state == SLOT_OPEN && !s->eof)
    (void)sock_arm(s, s->mask | EVIO_IN);
  if (s->extra || s->eof)
    facil_force_event(uuid);
}

/* ---- callbacks --------------------------------------------------------- */

void conn_call_data(slot_s *s) {
  protocol_s *p = s->protocol;
  intptr_t uuid = s->uuid;
  if (p->ops->on_data)
    p->ops->on_data(uuid, p);
  else
    facil_suspend_read(uuid);
  /* At the peer's end, unless somebody has yet to see what came before it. */
  if (s->uuid == uuid && s->eof && !s->extra && s->protocol == p &&
      s->state == SLOT_OPEN && !p->ops->half_open)
    sock_close(uuid);
}

/* ---- the end of the process -------------------------------------------- */

void conn_shutdown_all(void) {
  facil_each(.service = NULL, .task = shutdown_one);
}

void conn_reset(void) {
  wheel_made = false;
  for (uint32_t i = 0; i <= TICKS / 64; i++)
    wheel_bits[i] = 0;
}
