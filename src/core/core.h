/* core.h - what the files of the core share. Private to src/core.
 *
 * The table of slots is the heart: one slot per descriptor, found by uuid and
 * never scanned. A slot's states:
 *
 *   FREE -> OPENING -> OPEN -> DRAINING -> CLOSED -> FREE
 *
 * OPENING: no protocol yet. DRAINING: sock_close was called; the queue is sent,
 * then the peer's end awaited. CLOSED: the uuid is invalid already, on_close
 * and close(2) follow at the end of the turn. Nothing is released before that.
 */
#ifndef CRIER_CORE_H
#define CRIER_CORE_H

#include "facil/facil.h"
#include "facil/log.h"

enum slot_state {
  SLOT_FREE,
  SLOT_OPENING,
  SLOT_OPEN,
  SLOT_DRAINING,
  SLOT_CLOSED
};

typedef struct sock_queue_s sock_queue_s;

/* What few connections need. */
typedef struct {
  char *unread; /* pushed-back bytes, malloc'ed */
  size_t unread_len, unread_at;
} sock_extra_s;

#define SLOT_NONE UINT32_MAX

typedef struct slot_s {
  intptr_t uuid; /* valid while > 0; negated when closed or free */
  protocol_s *protocol;
  sock_queue_s *queue; /* NULL while nothing waits */
  sock_extra_s *extra;
  const char *reason; /* of the deadline; then of the loss */
  uint64_t joined;    /* sequence in its service */
  uint32_t svc_next, svc_prev;
  uint32_t dirty_next, forced_next, reap_next;
  uint32_t wheel_next, wheel_prev;
  uint32_t due;         /* its place in the wheel */
  uint32_t read_ms;     /* last byte read */
  uint32_t blocked_ms;  /* last byte taken while some waited */
  uint32_t timeout_ms;  /* 0: default */
  uint32_t deadline_ms; /* valid with has_deadline */
  uint16_t svc;         /* index of its service */
  uint8_t state;
  uint8_t mask; /* EVIO_IN | EVIO_OUT, as armed */
  bool is_dirty : 1, is_forced : 1, in_wheel : 1;
  bool has_deadline : 1, pinged : 1, eof : 1, suspended : 1;
  bool blocked : 1;    /* a short write: OUT is armed */
  bool want_ready : 1; /* on_ready is owed */
  bool in_batch : 1;   /* a send of it is in the io_uring batch */
  bool shut : 1;       /* our half is shut down */
  bool told : 1;       /* on_shutdown was called */
} slot_s;

/* ---- sock.c: the table ------------------------------------------------- */
int sock_table_init(size_t max_connections); /* idempotent */
size_t sock_capacity(void);
slot_s *sock_slot(intptr_t uuid);     /* NULL: not valid */
slot_s *sock_slot_at(uint32_t index); /* no check */
uint32_t sock_slot_index(const slot_s *s);
int sock_arm(slot_s *s, uint8_t mask); /* interest of epoll */
void sock_mark_dirty(slot_s *s);
void sock_lose(slot_s *s, const char *reason); /* OPENING…DRAINING -> CLOSED */
void sock_shut(slot_s *s);    /* drained: end our half, or close */
bool sock_discard(slot_s *s); /* in DRAINING; true: there is no more now */
bool sock_forced_run(void);   /* on_data of forced connections */
bool sock_has_forced(void);
bool sock_reap(void); /* phase 9; true if it did anything */
void sock_retire(intptr_t uuid, protocol_s *p); /* on_close at the end */
uint64_t sock_losses(void);

/* ---- sock_queue.c: the write queue and the flush ----------------------- */
void sock_flush(slot_s *s, bool ready); /* queue, then on_ready if asked */
bool sock_flush_dirty(uint32_t budget); /* true: some remain */
bool sock_has_dirty(void);
void sock_queue_free(slot_s *s);
void sock_can_write(slot_s *s); /* OUT came */
/* A send for the batch: of the queue (`by` is NULL) or of an offer. */
typedef struct {
  intptr_t uuid;
  struct iovec iov;
  protocol_s *by; /* who offered */
  facil_buf_s *owner;
  uint32_t slot;
} batched_s;

/* `sent` bytes (or -errno) of a batched send have left */
void sock_batch_done(const batched_s *b, ssize_t sent);
uint32_t sock_lowat(void);

/* ---- sock_uring.c: many sends by one system call ----------------------- */
int uring_open(void); /* -1: not to be had here; plain send then */
void uring_close(void);
bool uring_is_open(void);
/* Take a send into the batch; false: not possible now. */
bool uring_send(slot_s *s, const batched_s *b);
void uring_flush(void); /* submit all, and call sock_batch_done for each */

/* ---- sock_addr.c: addresses -------------------------------------------- */
int sock_bind(const char *address, const char *port, int backlog, unsigned mode,
              bool probe, struct sockaddr_storage *bound, socklen_t *bound_len);
int sock_bind_again(const struct sockaddr_storage *bound, socklen_t len,
                    int backlog);
void sock_std_fds(void); /* 0 to 2 are open from here on */
void sock_addr_print(const struct sockaddr_storage *a, socklen_t len, char *out,
                     size_t cap);

/* ---- facil_conn.c ------------------------------------------------------ */
int conn_enter(slot_s *s, bool reads); /* into epoll */
void conn_listed(slot_s *s);           /* into its service's list */
void conn_unlisted(slot_s *s);         /* out of it; walks step aside */
void conn_alive(slot_s *s);            /* a byte was read */
void conn_schedule(slot_s *s);         /* put the wheel right */
void conn_unschedule(slot_s *s);
bool conn_expire(uint64_t now_ms);  /* phase 2 */
int conn_next_due(uint64_t now_ms); /* ms, or -1 */
void conn_call_data(slot_s *s);
void conn_shutdown_all(void); /* on_shutdown of all, in slices */
void conn_reset(void);

/* ---- facil_set.c ------------------------------------------------------- */
bool set_walks_run(uint32_t members); /* true: some remain */
bool set_has_walks(void);
bool set_ready_slice(uint32_t members); /* true: some remain */
bool set_has_ready(void);
/* service lists, kept in facil_set.c beside the walks */
uint16_t service_id(const char *tag);
void service_join(slot_s *s);
void service_leave(slot_s *s);
size_t service_total(void);
void service_lose_all(const char *reason);

/* ---- facil_timer.c ----------------------------------------------------- */
bool timer_run(uint64_t now_ms);
int timer_next_due(uint64_t now_ms);
void timer_cancel_all(void);
void timer_start_all(uint64_t now_ms); /* in a worker, after the fork */

/* ---- defer.c ----------------------------------------------------------- */
int defer_open(void); /* makes the inbox's eventfd; returns it */
void defer_close(void);
bool defer_run(void);   /* what was queued when it began */
void defer_end(void);   /* all, but for what is posted for ever */
void defer_woken(void); /* the eventfd is readable */
void defer_wake(void);  /* end the loop's sleep; async-signal-safe */
void defer_inbox(void); /* other threads' tasks into the queue */

/* ---- facil_listen.c ---------------------------------------------------- */
int listen_spread(uint16_t workers); /* master: one socket a worker */
int listen_begin(uint16_t worker);   /* worker: arm its own, close the others */
void listen_ready(uint32_t listener);
void listen_end(bool accept_rest); /* stop listening */
void listen_finish(void);
void listen_close_all(void); /* master */
void listen_set_max(size_t connections);
bool listen_tick(uint64_t now_ms);
void listen_slot_freed(void);
int listen_next_due(uint64_t now_ms);

/* ---- facil.c ----------------------------------------------------------- */
/* Serve in this process as worker `id` until drained. `control`: the master's
 * socket or -1; `beat`: where the turn's time goes, or NULL. */
int loop_serve(const struct facil_run_args *args, int id, int control,
               _Atomic uint64_t *beat);
int master_serve(const struct facil_run_args *args, uint16_t workers);
void loop_set_master(bool is_master);
bool loop_is_ending(void); /* told to stop, and the notice is over */

/* tags of events that are no connection's: never a uuid, which is > 0 */
#define TAG_LISTENER (UINT64_C(1) << 63 | UINT64_C(1) << 32)
#define TAG_INBOX (UINT64_C(1) << 63 | UINT64_C(2) << 32)
#define TAG_ENGINE (UINT64_C(1) << 63 | UINT64_C(3) << 32)
#define TAG_CONTROL (UINT64_C(1) << 63 | UINT64_C(4) << 32)
#define TAG_SIGNAL (UINT64_C(1) << 63 | UINT64_C(5) << 32)

#endif
