/* facil.h - protocols, listeners, timers, sets, and the loop that runs them.
 *
 * One process, one loop, one thread: everything about a connection happens on
 * the loop that accepted it, one task at a time, in order. What a protocol's
 * author may rely on:
 *   - on_close exactly once, after every other callback, never inside one;
 *   - nothing is freed in the turn in which it is closed;
 *   - a callback never runs for a later connection on the same descriptor.
 *
 * All functions: loop thread, unless said otherwise. */
#ifndef FACIL_FACIL_H
#define FACIL_FACIL_H

#include "list.h"
#include "sock.h"
#include <time.h>

/* ---- protocols --------------------------------------------------------- */

typedef struct protocol_s protocol_s;

/* One const table per kind of protocol. NULL callbacks do nothing but for
 * `ping`, whose default ends the connection. */
typedef struct {
  /* The service tag: compared as a pointer, so use one string per kind. */
  const char *service;
  /* Bytes can be read, or the peer has ended its half. Called once a turn as
   * long as there are bytes. */
  void (*on_data)(intptr_t uuid, protocol_s *protocol);
  /* The write queue is empty and the socket takes bytes: offer more
   * (sock_offer). After sock_want_ready, facil_set_ready, or a full socket. */
  void (*on_ready)(intptr_t uuid, protocol_s *protocol);
  /* `sent` bytes of the offer made in on_ready have left. Returns how many
   * further bytes of the offer belong to a frame that was begun and not
   * finished; the connection keeps those by itself and sends them first: they
   * count as gone. 0 if `sent` ends on a frame's end. */
  size_t (*on_sent)(intptr_t uuid, protocol_s *protocol, size_t sent);
  /* The process winds down. The connection is closed by sock_close right after,
   * unless `holds_shutdown` is set: then the protocol closes it itself, soon.
   */
  void (*on_shutdown)(intptr_t uuid, protocol_s *protocol);
  /* The connection is gone (`uuid` is not valid any more), or another protocol
   * has taken it over. Free the object here. */
  void (*on_close)(intptr_t uuid, protocol_s *protocol);
  /* Nothing was read for the time-out. Without a byte read within one more
   * period the connection is lost, unless bytes wait to be sent. */
  void (*ping)(intptr_t uuid, protocol_s *protocol);
  /* The peer may end its half and still be written to: the protocol sees
   * ESHUTDOWN in sock_read and closes when it has answered. Otherwise the core
   * closes in order. */
  bool half_open;
  bool holds_shutdown;
} protocol_ops_s;

struct protocol_s {
  const protocol_ops_s *ops;
};

/* Give the connection to `protocol`, or from one protocol to another: the old
 * one's on_close comes at the end of the turn. From here on the object belongs
 * to the connection, also on failure, when its on_close is called. The same
 * object again: nothing happens. A deadline of the old one ends with it. -1:
 * EBADF, there is no such connection or it is closing; EINVAL, NULL, of which
 * nothing is called; what epoll_ctl(2) says of the first one, and the
 * connection is lost. */
FACIL_PUBLIC FACIL_MUST_CHECK int facil_attach(intptr_t uuid,
                                               protocol_s *protocol);

/* The protocol of a connection if it carries that tag (NULL: any), or NULL. */
FACIL_PUBLIC protocol_s *facil_protocol(intptr_t uuid, const char *service);

/* How many connections carry the tag, in this process; NULL: all. O(1). */
FACIL_PUBLIC size_t facil_count(const char *service);

/* ---- time-outs --------------------------------------------------------- */

#define FACIL_TIMEOUT_NEVER UINT32_MAX

/* Idle means: no byte read. 0: the default, 300 s. Restarts the period. */
FACIL_PUBLIC void facil_set_timeout_ms(intptr_t uuid, uint32_t ms);
FACIL_PUBLIC uint32_t facil_get_timeout_ms(intptr_t uuid);

/* The connection is lost `ms` from now (24 days at most) whatever happens,
 * unless this is called again or another protocol takes over; 0 takes the
 * deadline away. `reason` as for sock_abort. */
FACIL_PUBLIC void facil_set_deadline_ms(intptr_t uuid, uint32_t ms,
                                        const char *reason);

/* Monotonic milliseconds, read once at the start of the turn. */
FACIL_PUBLIC uint64_t facil_now_ms(void);

/* ---- input control ----------------------------------------------------- */

/* on_data will be called soon, whether bytes came or not; never inside this
 * call. Not while reading is suspended: force again when it goes on. */
FACIL_PUBLIC void facil_force_event(intptr_t uuid);

/* Stop and go on reading: no on_data in between. */
FACIL_PUBLIC void facil_suspend_read(intptr_t uuid);
FACIL_PUBLIC void facil_resume_read(intptr_t uuid);

/* ---- listening --------------------------------------------------------- */

struct facil_listen_args {
  const char *address; /* NULL: 127.0.0.1; a path ("/…" or "./…"): Unix */
  const char *port;    /* NULL: "3000"; "0": any */
  protocol_s *(*on_open)(intptr_t uuid, void *udata); /* required */
  void *udata;
  void (*on_finish)(void *udata); /* once per process, at its end */
  int backlog;                    /* 0: 4096 */
  unsigned mode;                  /* of a Unix socket's file; 0: 0660 */
};

/* Listen: before facil_run. `on_open` runs in the worker that accepted, and
 * returns the protocol to attach, or NULL to close. Strings are copied. A port
 * in use is an error also where SO_REUSEPORT would allow it.
 * 0; -1: EINVAL; EADDRINUSE; what socket(2), bind(2), listen(2) say; a name
 * that does not resolve is EADDRNOTAVAIL. */
#define facil_listen(...) facil_listen((struct facil_listen_args){__VA_ARGS__})
FACIL_PUBLIC FACIL_MUST_CHECK int(facil_listen)(struct facil_listen_args args);

/* Where the listener made last listens, e.g. "127.0.0.1:3000", "[::1]:3000" or
 * "unix:/path". */
FACIL_PUBLIC const char *facil_listening_at(void);

/* ---- tasks, walks, sets ------------------------------------------------ */

struct facil_defer_args {
  intptr_t uuid;
  void (*task)(intptr_t uuid, protocol_s *protocol, void *arg);
  void *arg;
  void (*fallback)(intptr_t uuid, void *arg);
};

/* Run `task` in a later turn if the connection still lives then, else
 * `fallback`: exactly one of the two, once. Any thread of this process.
 * -1: EINVAL, no task; ENOMEM, `fallback` is called before this returns. */
#define facil_defer(...) facil_defer((struct facil_defer_args){__VA_ARGS__})
FACIL_PUBLIC int(facil_defer)(struct facil_defer_args args);

/* A member of a set: lies in the object that joins. */
typedef struct {
  intptr_t uuid;
  uint32_t index;
} facil_member_s;

/* A set of connections that a module keeps, e.g. of a channel's subscribers.
 * Join and leave are O(1), a walk costs its members. Lies in the owner's
 * object; the fields are the core's. Set it up with facil_set_init. */
typedef struct facil_set_s {
  union {
    facil_member_s *one;   /* cap == 0 */
    facil_member_s **many; /* cap > 0 */
  };
  uint32_t count; /* members */
  uint32_t used;  /* places taken, those of members that left in a walk too */
  uint32_t cap;
  uint32_t at;    /* the next place of the ready walk */
  uint32_t left;  /* places that it has yet to visit */
  uint32_t walks; /* facil_each walks under way */
  list_s ready;   /* in the list of sets with news */
} facil_set_s;

FACIL_PUBLIC void facil_set_init(facil_set_s *set);

/* Free what the set holds. No facil_each may be under way; a ready walk ends.
 */
FACIL_PUBLIC void facil_set_fini(facil_set_s *set);

/* `member->uuid` joins. The member must stay where it is until it leaves. Legal
 * during a walk, which may or may not visit it. -1 and ENOMEM. */
FACIL_PUBLIC FACIL_MUST_CHECK int facil_set_add(facil_set_s *set,
                                                facil_member_s *member);

/* Leave; legal during a walk, which does not visit it any more. */
FACIL_PUBLIC void facil_set_remove(facil_set_s *set, facil_member_s *member);

/* There is news for all members: at the end of the turn each one's connection
 * is flushed (its on_ready called if it can write), in slices, in turn with the
 * other sets that have news; between slices sockets are polled. Called again
 * while that goes on, each member is visited at least once more. O(1). */
FACIL_PUBLIC void facil_set_ready(facil_set_s *set);

struct facil_each_args {
  intptr_t origin;     /* is left out; 0 and -1: nobody */
  const char *service; /* all connections of this process with this tag, … */
  facil_set_s *set; /* … or the members of this set, or, with neither, all */
  void (*task)(intptr_t uuid, protocol_s *protocol, void *arg);
  void *arg;
  void (*on_complete)(intptr_t origin, void *arg);
};

/* Run `task` once for each connection that is there at the call and stays, in
 * order of joining, in later turns; then `on_complete`, once, in every case,
 * also after -1. Walks of one service or set run one after the other, so two
 * broadcasts come in the same order for everyone. Joining, leaving and closing
 * meanwhile are legal. O(members). -1: EINVAL; ENOMEM. */
#define facil_each(...) facil_each((struct facil_each_args){__VA_ARGS__})
FACIL_PUBLIC int(facil_each)(struct facil_each_args args);

/* ---- timers ------------------------------------------------------------ */

/* Run `task(arg)` every `ms` milliseconds, `reps` times (0: for ever), at a
 * fixed rate; ticks missed by a stall are skipped, but for one.
 * `on_finish(arg)` comes once when the timer ends in any way, also after -1.
 * Returns an id >= 0; -1: EINVAL, ms is 0 or there is no task; ENOMEM. Before
 * facil_run: runs in each worker, and ends once in each and in the master. */
FACIL_PUBLIC int64_t facil_run_every(uint32_t ms, uint32_t reps,
                                     void (*task)(void *), void *arg,
                                     void (*on_finish)(void *));

/* End a timer; legal inside its task. -1 and ENOENT. */
FACIL_PUBLIC int facil_timer_cancel(int64_t id);

/* ---- running ----------------------------------------------------------- */

/* What an engine that lives beside the loop needs of it. All on the loop. */
typedef struct {
  /* Each turn, after sockets were read and tasks run. True if it did work. */
  bool (*turn)(void *arg);
  /* The loop has nothing to do: may it sleep? False: another turn at once. */
  bool (*may_sleep)(void *arg);
  /* The loop is back from its poll after may_sleep said true. */
  void (*woke)(void *arg);
  /* Whether a draining worker must stay for the engine's sake. */
  bool (*is_busy)(void *arg);
  int wake_fd; /* readable: wakes the loop; -1: none */
  void *arg;
} facil_engine_s;

/* In on_start. The struct is copied. */
FACIL_PUBLIC FACIL_MUST_CHECK int
facil_set_engine(const facil_engine_s *engine);

struct facil_run_args {
  uint16_t threads;         /* of the pool for blocking work; unused so far */
  uint16_t processes;       /* 0: one per usable core */
  bool master;              /* fork even for one process */
  uint32_t notice_ms;       /* still serving, before the drain time begins */
  uint32_t drain_ms;        /* 0: 10 s */
  uint32_t watchdog_ms;     /* 0: none; a loop that stands longer is killed */
  uint32_t max_connections; /* 0: what descriptors allow */
  bool no_uring;            /* plain send(2) everywhere */
  void *udata;              /* for all of these: */
  int (*on_start)(void *udata); /* in each worker before it serves; -1: fail */
  void (*on_shutdown)(void *udata); /* in each worker when it is told to stop,
                                     * before the notice */
  void (*on_idle)(void *udata);
  void (*on_finish)(void *udata);  /* in each worker, last */
  void (*on_running)(void *udata); /* in the master, once, all workers serve */
  void (*on_gone)(int worker, void *udata); /* in the master: one has ended */
  int (*on_check)(void *udata); /* in the master, every 100 ms: the worker that
                                 * must be killed, or -1 */
};

/* Serve until told to stop: SIGTERM or SIGINT drain, a second one ends at once.
 * With a master: it owns the listening sockets, forks the workers, restarts one
 * that dies (after 0, 100, 200 … 5000 ms), kills one that hangs, and returns
 * when all are gone; workers leave inside by _exit(2). Without: the loop runs
 * in the calling process. Signal dispositions are restored. May be called
 * again. Returns 0 after a stop, also one at whose end slow peers were cut off;
 * 1: a worker did not start, or did not stop and was killed; 70: workers keep
 * dying at their start. */
#define facil_run(...) facil_run((struct facil_run_args){__VA_ARGS__})
FACIL_PUBLIC int(facil_run)(struct facil_run_args args);

/* CPUs that this process may use (affinity and cgroup quota), 1 to 64. */
FACIL_PUBLIC uint16_t facil_usable_cores(void);

/* Ask the loop of this process to drain. Async-signal-safe, any thread. A
 * second time: it ends at once. Nothing is left of it for a later facil_run. */
FACIL_PUBLIC void facil_stop(void);

/* 0 … processes - 1 in a worker (and without a master 0), -1 in the master. */
FACIL_PUBLIC int facil_worker_id(void);

/* Whether this worker has been told to stop: it is in its notice, or drains. */
FACIL_PUBLIC bool facil_is_draining(void);

#endif
