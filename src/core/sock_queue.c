/* sock_queue.c - the small write queue of a connection, and the flush.
 *
 * A connection is flushed in this order: the rest of a frame that was begun,
 * its own queue, then what on_ready offers. Invariant: accepted bytes leave
 * once and in order; between the first and the last byte of an offered frame
 * nothing else leaves.
 *
 * The queue is a list of packets. Small writes are joined in one packet, so
 * that all answers of a turn leave by one send. */
#include "core.h"
#include "evio.h"
#include <errno.h>
#include <string.h>

#define PACKET_SMALL 1000 /* with its head a packet is 1 KiB or so */
#define SPARE_MAX 256
#define KEEP_COPY 4096 /* a begun frame's rest up to this is copied */
#define IOV_MAX_FLUSH 16

typedef struct packet_s {
  struct packet_s *next;
  const char *data;
  size_t len, at;
  size_t cap;              /* of bytes[], 0 if data lies elsewhere */
  facil_buf_s *shared;     /* a reference, or NULL */
  void (*dealloc)(void *); /* for moved data, or NULL */
  bool begun;              /* the rest of a frame: nothing may go before it */
  bool batched;            /* nor before this, until its batch is done */
  bool borrowed;           /* the rest of a frame that others hold too: not this
                            * connection's memory, and not counted against its limit */
  char bytes[];
} packet_s;

struct sock_queue_s {
  packet_s *head, *tail;
  packet_s *urgent; /* the last urgent one, or NULL */
  size_t bytes;     /* not yet sent, but for what is borrowed */
};

static size_t queue_limit = 16u << 20;
static uint32_t lowat;
static packet_s *spare; /* free packets of PACKET_SMALL */
static unsigned spare_count;
static sock_queue_s *spare_queue; /* free queues, chained by their head */
static unsigned spare_queues;
static uint32_t dirty_head = SLOT_NONE, dirty_tail = SLOT_NONE;

/* The offer being made by on_ready. */
static struct {
  slot_s *slot;
  protocol_s *by;
  struct iovec iov[SOCK_OFFER_MAX];
  facil_buf_s *owner[SOCK_OFFER_MAX];
  int n;
} offer;

void sock_set_queue_limit(size_t bytes) {
  queue_limit = bytes;
}

void sock_set_lowat(uint32_t bytes) {
  lowat = bytes;
}

uint32_t sock_lowat(void) {
  return lowat;
}

/* ---- packets ----------------------------------------------------------- */

static packet_s *packet_new(size_t cap) {
  packet_s *p;
  if (cap <= PACKET_SMALL && spare) {
    p = spare;
    spare = p->next;
    spare_count--;
    cap = PACKET_SMALL;
  } else {
    if (cap && cap < PACKET_SMALL)
      cap = PACKET_SMALL;
    p = malloc(sizeof *p + cap);
    if (!p)
      return NULL;
  }
  *p = (packet_s){.cap = cap};
  p->data = p->bytes;
  return p;
}

static void packet_free(packet_s *p) {
  facil_buf_unref(p->shared);
  if (p->dealloc)
    p->dealloc((void *)(uintptr_t)p->data);
  if (p->cap == PACKET_SMALL && spare_count < SPARE_MAX) {
    p->next = spare;
    spare = p;
    spare_count++;
  } else {
    free(p);
  }
}

static sock_queue_s *queue_of(slot_s *s) {
  if (s->queue)
    return s->queue;
  sock_queue_s *q = spare_queue;
  if (q) {
    spare_queue = (sock_queue_s *)(void *)q->head;
    spare_queues--;
  } else if (!(q = malloc(sizeof *q))) {
    return NULL;
  }
  *q = (sock_queue_s){.head = NULL};
  return s->queue = q;
}

static void queue_drop(slot_s *s) {
  sock_queue_s *q = s->queue;
  s->queue = NULL;
  if (spare_queues == SPARE_MAX) {
    free(q);
    return;
  }
  q->head = (packet_s *)(void *)spare_queue;
  spare_queue = q;
  spare_queues++;
}

static void queue_append(sock_queue_s *q, packet_s *p) {
  p->next = NULL;
  if (q->tail)
    q->tail->next = p;
  else
    q->head = p;
  q->tail = p;
  q->bytes += p->len;
}

/* Put `p` in at `*at`. */
static void queue_insert(sock_queue_s *q, packet_s **at, packet_s *p) {
  p->next = *at;
  *at = p;
  if (!p->next)
    q->tail = p;
  if (!p->borrowed)
    q->bytes += p->len;
}

static void queue_urgent(sock_queue_s *q, packet_s *p) {
  packet_s **at = q->urgent ? &q->urgent->next : &q->head;
  while (*at && ((*at)->begun || (*at)->at || (*at)->batched))
    at = &(*at)->next;
  queue_insert(q, at, p);
  q->urgent = p;
}

void sock_queue_free(slot_s *s) {
  if (!s->queue)
    return;
  for (packet_s *p = s->queue->head, *next; p; p = next) {
    next = p->next;
    packet_free(p);
  }
  queue_drop(s);
}

size_t sock_pending(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  return s && s->queue ? s->queue->bytes : 0;
}

/* ---- writing ----------------------------------------------------------- */

static int refuse(struct sock_write_args *a, int error) {
  facil_buf_unref(a->shared);
  if (a->move && a->data)
    (a->dealloc ? a->dealloc : free)((void *)(uintptr_t)a->data);
  if (!error)
    return 0;
  errno = error;
  return -1;
}

/* Room at the end of the last packet, where a copy may join it. */
static bool joins_tail(sock_queue_s *q, const struct sock_write_args *a) {
  packet_s *t = q->tail;
  if (!t || a->move || a->shared || a->urgent || t->data != t->bytes ||
      t->begun || t->batched || t == q->urgent || a->len > t->cap - t->len)
    return false;
  memcpy(t->bytes + t->len, a->data, a->len);
  t->len += a->len;
  q->bytes += a->len;
  return true;
}

static packet_s *packet_of(const struct sock_write_args *a) {
  bool copies = !a->move && !a->shared;
  packet_s *p = packet_new(copies ? a->len : 0);
  if (!p)
    return NULL;
  p->len = a->len;
  if (copies)
    memcpy(p->bytes, a->data, a->len);
  else if (a->shared)
    p->data = a->shared->data, p->shared = a->shared;
  else
    p->data = a->data, p->dealloc = a->dealloc ? a->dealloc : free;
  return p;
}

int(sock_write2)(struct sock_write_args a) {
  slot_s *s = sock_slot(a.uuid);
  if (a.shared)
    a.len = a.shared->len;
  if (!s)
    return refuse(&a, EBADF);
  if (s->state == SLOT_DRAINING || s->shut)
    return refuse(&a, EPIPE);
  if (a.len == 0)
    return refuse(&a, 0);
  sock_queue_s *q = queue_of(s);
  if (!q)
    return refuse(&a, ENOMEM);
  if (q->bytes >= queue_limit)
    return refuse(&a, ENOBUFS);
  if (!joins_tail(q, &a)) {
    packet_s *p = packet_of(&a);
    if (!p)
      return refuse(&a, ENOMEM);
    if (a.urgent)
      queue_urgent(q, p);
    else
      queue_append(q, p);
  }
  sock_mark_dirty(s);
  return 0;
}

int sock_write(intptr_t uuid, const void *data, size_t len) {
  return sock_write2(.uuid = uuid, .data = data, .len = len);
}

/* ---- who has to be flushed --------------------------------------------- */

void sock_mark_dirty(slot_s *s) {
  if (s->is_dirty)
    return;
  uint32_t i = sock_slot_index(s);
  s->is_dirty = true;
  s->dirty_next = SLOT_NONE;
  if (dirty_tail == SLOT_NONE)
    dirty_head = i;
  else
    sock_slot_at(dirty_tail)->dirty_next = i;
  dirty_tail = i;
}

bool sock_has_dirty(void) {
  return dirty_head != SLOT_NONE;
}

bool sock_flush_dirty(uint32_t budget) {
  uint32_t last = dirty_tail; /* what comes while this runs waits a turn */
  while (dirty_head != SLOT_NONE && budget--) {
    uint32_t i = dirty_head;
    slot_s *s = sock_slot_at(i);
    dirty_head = s->dirty_next;
    if (dirty_head == SLOT_NONE)
      dirty_tail = SLOT_NONE;
    s->is_dirty = false;
    if (s->uuid > 0)
      sock_flush(s, s->want_ready);
    if (i == last)
      break;
  }
  return dirty_head != SLOT_NONE;
}

int sock_want_ready(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  if (!s) {
    errno = EBADF;
    return -1;
  }
  s->want_ready = true;
  sock_mark_dirty(s);
  return 0;
}

bool sock_is_blocked(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  return s && s->blocked;
}

uint32_t sock_blocked_ms(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  return s && s->blocked ? (uint32_t)facil_now_ms() - s->blocked_ms : 0;
}

/* ---- the flush --------------------------------------------------------- */

static void block(slot_s *s) {
  if (!s->blocked)
    s->blocked_ms = (uint32_t)facil_now_ms();
  s->blocked = true;
  (void)sock_arm(s, s->mask | EVIO_OUT);
}

static void queue_sent(slot_s *s, size_t n) {
  sock_queue_s *q = s->queue;
  for (packet_s *p; (p = q->head) && n;) {
    size_t left = p->len - p->at, took = n < left ? n : left;
    if (!p->borrowed)
      q->bytes -= took;
    p->at += took;
    n -= took;
    if (took < left)
      return;
    q->head = p->next;
    if (q->urgent == p)
      q->urgent = NULL;
    packet_free(p);
  }
  if (q->head)
    return;
  queue_drop(s);
}

static int gather(const sock_queue_s *q, struct iovec *iov) {
  int n = 0;
  for (packet_s *p = q->head; p && n < IOV_MAX_FLUSH; p = p->next)
    iov[n++] =
        (struct iovec){(void *)(uintptr_t)(p->data + p->at), p->len - p->at};
  return n;
}

static ssize_t send_iov(slot_s *s, struct iovec *iov, int n) {
  int fd = (int)sock_slot_index(s);
  ssize_t r;
  do {
    if (n == 1) {
      r = send(fd, iov->iov_base, iov->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else {
      struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n};
      r = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  } while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
}

/* `r` bytes, or -errno, is what a send of `total` came to. False: it was short
 * or the connection is lost. */
static bool sent_all(slot_s *s, ssize_t r, size_t total) {
  if (r < 0 && r != -EAGAIN) {
    sock_lose(s, r == -EPIPE || r == -ECONNRESET ? "peer gone" : "write");
    return false;
  }
  if (r > 0)
    s->blocked_ms = (uint32_t)facil_now_ms();
  if (r >= 0 && (size_t)r == total)
    return true;
  block(s);
  return false;
}

/* True: the queue is empty. */
static bool flush_queue(slot_s *s) {
  while (s->queue) {
    struct iovec iov[IOV_MAX_FLUSH];
    int n = gather(s->queue, iov);
    if (n == 0) { /* made, but never filled */
      sock_queue_free(s);
      break;
    }
    size_t total = 0;
    for (int i = 0; i < n; i++)
      total += iov[i].iov_len;
    ssize_t r = send_iov(s, iov, n);
    if (r > 0)
      queue_sent(s, (size_t)r);
    if (!sent_all(s, r, total))
      return false;
  }
  return true;
}

/* The rest of a begun frame becomes the connection's own, before all that it
 * has, but for the `*after` that was kept already: copied if short, else by
 * reference. */
static void keep_rest(slot_s *s, packet_s **after, const char *data, size_t len,
                      facil_buf_s *owner) {
  sock_queue_s *q = queue_of(s);
  bool copies = len <= KEEP_COPY;
  packet_s *p = q ? packet_new(copies ? len : 0) : NULL;
  if (!p) {
    sock_lose(s, "out of memory");
    return;
  }
  p->len = len;
  p->begun = true;
  if (copies) {
    memcpy(p->bytes, data, len);
  } else {
    p->data = data;
    p->shared = facil_buf_ref(owner);
    p->borrowed = true;
  }
  queue_insert(q, *after ? &(*after)->next : &q->head, p);
  *after = p;
}

/* `sent` bytes of the offer in `iov` are gone: tell the protocol that made it,
 * also if another one has taken over, and keep the rest of a frame. */
static void offer_sent(slot_s *s, protocol_s *by, const struct iovec *iov,
                       facil_buf_s *const *owner, int n, size_t sent) {
  size_t rest = by->ops->on_sent ? by->ops->on_sent(s->uuid, by, sent) : 0;
  packet_s *kept = NULL;
  for (int i = 0; i < n && rest && s->uuid > 0; i++) {
    if (sent >= iov[i].iov_len) {
      sent -= iov[i].iov_len;
      continue;
    }
    size_t here = iov[i].iov_len - sent;
    if (here > rest)
      here = rest;
    keep_rest(s, &kept, (const char *)iov[i].iov_base + sent, here, owner[i]);
    rest -= here;
    sent = 0;
  }
}

void sock_batch_done(const batched_s *b, ssize_t sent) {
  slot_s *s = sock_slot_at(b->slot);
  s->in_batch = false;
  if (s->uuid != b->uuid)
    return;
  if (!b->by) { /* its own queue */
    s->queue->head->batched = false;
    if (sent > 0)
      queue_sent(s, (size_t)sent);
  } else {
    offer_sent(s, b->by, &b->iov, &b->owner, 1, sent > 0 ? (size_t)sent : 0);
  }
  if (s->uuid != b->uuid || !sent_all(s, sent, b->iov.iov_len))
    return;
  if (s->queue || s->want_ready || s->state == SLOT_DRAINING)
    sock_mark_dirty(s);
}

static void send_offer(slot_s *s) {
  int n = offer.n;
  batched_s b = {s->uuid, offer.iov[0], offer.by, offer.owner[0],
                 sock_slot_index(s)};
  if (n == 1 && uring_send(s, &b))
    return;
  size_t total = 0;
  for (int i = 0; i < n; i++)
    total += offer.iov[i].iov_len;
  ssize_t r = send_iov(s, offer.iov, n);
  offer_sent(s, offer.by, offer.iov, offer.owner, n, r > 0 ? (size_t)r : 0);
  if (s->uuid > 0)
    (void)sent_all(s, r, total);
}

int sock_offer(intptr_t uuid, const struct iovec *iov,
               facil_buf_s *const *owner, int n) {
  if (!offer.slot || offer.slot->uuid != uuid) {
    errno = sock_slot(uuid) ? EINVAL : EBADF;
    return -1;
  }
  if (offer.slot->state == SLOT_DRAINING) {
    errno = EPIPE;
    return -1;
  }
  bool is_wrong = offer.n || n < 1 || n > SOCK_OFFER_MAX;
  for (int i = 0; !is_wrong && i < n; i++)
    is_wrong = !owner[i];
  if (is_wrong) {
    errno = EINVAL;
    return -1;
  }
  offer.by = offer.slot->protocol;
  memcpy(offer.iov, iov, (size_t)n * sizeof *iov);
  memcpy(offer.owner, owner, (size_t)n * sizeof *owner);
  offer.n = n;
  return 0;
}

/* A queue of one packet may join the batch. */
static bool batch_queue(slot_s *s) {
  packet_s *p = s->queue->head;
  if (!p || p->next)
    return false;
  batched_s b = {.uuid = s->uuid,
                 .iov = {(void *)(uintptr_t)(p->data + p->at), p->len - p->at},
                 .slot = sock_slot_index(s)};
  p->batched = uring_send(s, &b);
  return p->batched;
}

void sock_flush(slot_s *s, bool ready) {
  if (s->state == SLOT_CLOSED || s->state == SLOT_FREE)
    return;
  /* One send at a time: sock_batch_done and sock_can_write come back to it. */
  if (s->in_batch || s->blocked) {
    s->want_ready |= ready && s->state == SLOT_OPEN;
    return;
  }
  if (s->queue && (batch_queue(s) || !flush_queue(s))) {
    s->want_ready |= ready && s->state == SLOT_OPEN;
    return;
  }
  if (s->state == SLOT_DRAINING) {
    sock_shut(s);
    return;
  }
  if (!ready || s->state != SLOT_OPEN)
    return;
  s->want_ready = false;
  if (!s->protocol->ops->on_ready)
    return;
  offer.slot = s;
  offer.n = 0;
  s->protocol->ops->on_ready(s->uuid, s->protocol);
  offer.slot = NULL;
  if (!offer.n || s->uuid <= 0)
    return;
  if (s->queue) { /* on_ready has written too: that goes first */
    s->want_ready = s->state == SLOT_OPEN;
    offer_sent(s, offer.by, offer.iov, offer.owner, offer.n, 0);
  } else {
    send_offer(s);
  }
}

void sock_can_write(slot_s *s) {
  s->blocked = false;
  (void)sock_arm(s, s->mask & (uint8_t)~EVIO_OUT);
  s->want_ready |= s->state == SLOT_OPEN;
  sock_mark_dirty(s);
}
