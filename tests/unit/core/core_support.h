/* core_support.h - a loop in the test's own process, and servers in others.
 *
 * run_script runs facil_run in this process: `begin` is its on_start, `step` is
 * called once a turn until it says that it is done, and may assert. Connections
 * are made by pair_tcp or pair_unix, whose other end the test holds. With the
 * fake clock the loop never sleeps, and time passes only by fake_pass.
 *
 * server_fork runs a server in a process of its own, which dies with the test;
 * nothing in it may assert: it tells what it saw in the shared page `seen`.
 *
 * A probe is a protocol whose callbacks a test fills in, and that counts. What
 * is counted outlives it: by id, in `tally`. */
#ifndef CORE_SUPPORT_H
#define CORE_SUPPORT_H

#include "facil/clock.h"
#include "facil/defer.h"
#include "facil/facil.h"
#include "facil/log.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- probes ----------------------------------------------------------------
 */

#define PROBES_MAX 16384

typedef struct {
  int data, ready, sent, shutdown, close, ping;
  size_t sent_bytes;
} tally_s;

extern tally_s tally[PROBES_MAX];
extern int probes_live;

typedef struct probe_s probe_s;

struct probe_s {
  protocol_s super;
  int id;
  intptr_t uuid; /* set by the test, if it likes */
  void *arg;
  facil_member_s member;
  void (*on_data)(intptr_t uuid, probe_s *p);
  void (*on_ready)(intptr_t uuid, probe_s *p);
  size_t (*on_sent)(intptr_t uuid, probe_s *p, size_t sent);
  void (*on_shutdown)(intptr_t uuid, probe_s *p);
  void (*on_close)(intptr_t uuid, probe_s *p);
  void (*ping)(intptr_t uuid, probe_s *p);
};

extern const protocol_ops_s probe_ops;      /* service "probe" */
extern const protocol_ops_s probe_half_ops; /* service "half", half_open */
extern const protocol_ops_s probe_hold_ops; /* service "hold", holds_shutdown */

probe_s *probe_new(const protocol_ops_s *ops, int id);
probe_s *probe_of(protocol_s *p);

/* on_data that sends back what it reads, and one that throws it away. */
void probe_echo(intptr_t uuid, probe_s *p);
void probe_read_all(intptr_t uuid, probe_s *p);

/* ---- a loop here
 * ------------------------------------------------------------- */

extern bool plain_send;    /* no io_uring in run_script */
extern bool script_sleeps; /* the loop may sleep; else a turn follows a turn */

/* Returns facil_run's status. `step` says true when the test is over: what is
 * still open is lost then. Fails the test after 20 s. `begin` may be NULL. */
int run_script(void (*begin)(void), bool (*step)(void));
/* A timer's task that does nothing: to end a sleep. */
void script_wakes(void *unused);

/* Time stands still but for fake_pass; run_script does not sleep. */
void fake_clock(void);
void fake_pass(uint64_t ms);
uint64_t fake_now(void);

/* A connected pair: one end as a connection without a protocol, the other one
 * a non-blocking descriptor. In begin or later. */
intptr_t pair_tcp(int *client);
intptr_t pair_unix(int *client);
/* The same, with `p` attached. */
intptr_t pair_with(int *client, probe_s *p);

/* ---- servers in a process of their own
 * --------------------------------------- */

typedef struct {
  atomic_int n[64];
  _Atomic int64_t big[64];
} seen_s;

extern seen_s *seen; /* shared with servers made after seen_make */
void seen_make(void);

/* Fork; in the child `serve` runs and its result is the exit status. It calls
 * server_is_at when it listens. The parent returns when it has, with the port.
 */
pid_t server_fork(int (*serve)(void *), void *arg, int *port);
void server_is_at(void);
/* In a worker that will not say so: its copy of the pipe is not needed. */
void server_forget(void);

/* Wait at most `ms`: the exit status, 256 + signal, or -1 for "lives". */
int server_wait(pid_t pid, int ms);
/* End it by SIGKILL, if it still lives. */
void server_end(pid_t pid);

/* ---- clients ---------------------------------------------------------------
 */

int client_to(int port);        /* blocking, with a time-out of 10 s; or -1 */
bool echoes(int fd, char what); /* one byte there and back */
/* Read until `len` bytes or the end: how many. */
size_t read_full(int fd, void *buf, size_t len);
bool write_full(int fd, const void *buf, size_t len);
/* 0: a clean end; 1: bytes; else errno. Waits at most `ms` (ETIMEDOUT). */
int end_of(int fd, int ms);

uint64_t real_ms(void);
void nap_ms(int ms);
/* Spin on `cond` for at most `ms`. */
#define WAIT_FOR(cond, ms)                                                     \
  do                                                                           \
    for (uint64_t end_ = real_ms() + (uint64_t)(ms);                           \
         !(cond) && real_ms() < end_;)                                         \
      nap_ms(2);                                                               \
  while (0)

/* Pids of the children of `pid`, ascending. */
int children_of(pid_t pid, pid_t *out, int max);
/* Lines of /proc/<pid>/fd: how many descriptors. */
int fds_of(pid_t pid);
/* User and system time of a process, ms. */
long cpu_ms(pid_t pid);

/* How often to do what CI does `times` times; SOAK=1 does it longer. */
int soak(int times, int longer);

/* Reproducible randomness. */
uint32_t dice(uint64_t *state, uint32_t below);

#endif
