/* live.h - a broker of its own for a test, and clients that speak to it.
 *
 * The broker is the real loop, ring, registry and dialects in a forked child,
 * with limits as small as the test wants them; what its workers count is seen
 * by the test in shared memory. The child reports by its exit status only.
 *
 * The clients are blocking sockets that see bytes: a frame is taken apart here
 * again, on purpose not by the product's decoder. */
#ifndef LIVE_H
#define LIVE_H

#include "engine_local.h"
#include <arpa/inet.h>
#include <errno.h>
#include <facil/dialects.h>
#include <facil/facil.h>
#include <facil/pubsub.h>
#include <facil/websocket.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define LIVE_ASAN 1
#include <sanitizer/lsan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LIVE_ASAN 1
#include <sanitizer/lsan_interface.h>
#endif
#endif

#define LIVE_WORKERS_MAX 4

/* Iterations: the long form under CRIER_SOAK=1. */
static inline unsigned live_soak(unsigned brief, unsigned full) {
  const char *s = getenv("CRIER_SOAK");
  return s && *s == '1' ? full : brief;
}

static inline uint64_t live_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static inline void live_pause(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

/* ---- the broker -------------------------------------------------------- */

/* Zero stands for the value in brackets. */
typedef struct {
  unsigned workers;       /* [1] in the child's own process; > 1: a master */
  size_t message_max;     /* [1 MiB] */
  size_t ring_size;       /* [16 x message_max] */
  size_t tail_size;       /* [256 KiB] */
  size_t tail_total;      /* [64 MiB] */
  size_t queue_limit;     /* [64 KiB] */
  uint32_t subscriptions; /* [256] */
  uint32_t ping_ms;       /* [25 s] */
  uint32_t close_ms;      /* [2 s] */
  uint32_t slow_ms;       /* [60 s] */
  uint32_t notice_ms;     /* drain.notice */
  uint32_t drain_ms;      /* [10 s] */
  uint32_t lowat;         /* [16 KiB] */
  uint32_t channels;      /* [4096] entries of the shared table */
  uint64_t history;       /* [0] messages kept of each channel */
  bool slow_closes, no_uring;
} live_options_s;

typedef struct {
  _Atomic int32_t pid;
  _Atomic size_t channels, subscriptions, tails, tail_bytes, connections, heap;
  _Atomic uint64_t turns; /* of the timer that counts */
} live_worker_s;

typedef struct {
  live_worker_s worker[LIVE_WORKERS_MAX];
} live_board_s;

typedef struct {
  pid_t pid;
  bool is_told; /* to stop */
  int port;
  ring_s *ring;
  rules_s *rules;
  engine_local_s engine;
  live_board_s *board;
  live_options_s options;
  http_settings_s http;
} live_s;

static live_s live; /* one a test, and each test has its process */

static void live_count(void *arg) {
  live_worker_s *w = arg;
  pubsub_stats_s s = pubsub_stats();
  w->channels = s.channels;
  w->subscriptions = s.subscriptions;
  w->tails = s.tails;
  w->tail_bytes = s.tail_bytes;
  w->connections = facil_count(NULL);
  struct mallinfo2 m = mallinfo2();
  w->heap = m.uordblks + m.hblkhd;
  w->turns++;
}

static int live_on_start(void *udata) {
  live_s *l = udata;
  const live_options_s *o = &l->options;
  int id = facil_worker_id();
  const engine_s *engine = engine_local_start(&l->engine, (unsigned)id);
  if (!engine)
    return -1;
  sock_set_queue_limit(o->queue_limit);
  pubsub_settings_s pubsub = {o->tail_size, o->tail_total, o->subscriptions};
  pubsub_set(engine, &pubsub);
  websocket_settings_s ws = {.limits = {.message_max = o->message_max,
                                        .fragments_max = 131072,
                                        .expects_masked = true},
                             .ping_ms = o->ping_ms,
                             .close_timeout_ms = o->close_ms,
                             .slow_timeout_ms = o->slow_ms,
                             .queue_limit = o->queue_limit};
  websocket_set(&ws);
  dialect_settings_s d = {.slow_closes = o->slow_closes,
                          .drain_notice_ms = o->notice_ms,
                          .message_max = o->message_max,
                          .replay_limit = 1000,
                          .poll_max_wait_ms = 60000,
                          .batch_max = 1000};
  dialects_set(&d);
  live_worker_s *w = &l->board->worker[id];
  if (facil_run_every(3, 0, live_count, w, NULL) < 0)
    return -1;
  w->pid = getpid();
  return 0;
}

static void live_on_shutdown(void *udata) {
  (void)udata;
  dialects_notice();
}

static void live_on_finish(void *udata) {
  (void)udata;
  engine_local_stop();
}

static void live_on_gone(int worker, void *udata) {
  live_s *l = udata;
  store_mark_dead(l->engine.store, (unsigned)worker);
  ring_mark_dead(l->ring, (unsigned)worker);
}

static void live_child(int tell) {
  live_options_s *o = &live.options;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sock_set_lowat(o->lowat);
  live.http = (http_settings_s){.limits = {.header_bytes = 16384,
                                           .header_count = 128,
                                           .url_bytes = 16384,
                                           .body_bytes = o->message_max}};
  live.http.routes = dialects_routes(&live.http.route_count);
  if (facil_listen(.address = "127.0.0.1", .port = "0", .on_open = http_open,
                   .udata = &live.http) < 0)
    _exit(90);
  const char *colon = strrchr(facil_listening_at(), ':');
  int port = colon ? (int)strtol(colon + 1, NULL, 10) : 0;
  if (write(tell, &port, sizeof port) != (ssize_t)sizeof port)
    _exit(91);
  close(tell);
  int status =
      facil_run(.processes = (uint16_t)o->workers, .master = o->workers > 1,
                .drain_ms = o->drain_ms, .no_uring = o->no_uring,
                .udata = &live, .on_start = live_on_start,
                .on_shutdown = live_on_shutdown, .notice_ms = o->notice_ms,
                .on_gone = live_on_gone, .on_finish = live_on_finish);
  store_release(live.engine.store);
#ifdef LIVE_ASAN
  if (o->workers == 1 && __lsan_do_recoverable_leak_check())
    status = 77;
#endif
  _exit(status);
}

#define LIVE_DEFAULT(field, value)                                             \
  do                                                                           \
    if (!o.field)                                                              \
      o.field = (value);                                                       \
  while (0)

/* Before the fork: rules, a store in memory, the ring. */
static inline bool live_engine(const live_options_s *o) {
  rule_s usual = {.count = o->history};
  char err[STORE_ERROR_MAX];
  live.rules = rules_new(&usual);
  store_config_s store = {.size = 64 << 20,
                          .may_evict = true,
                          .slots = o->workers + 1,
                          .rules = live.rules};
  if (store_prepare(&store, &live.engine.store, err, sizeof err) < 0) {
    fprintf(stderr, "# %s\n", err);
    return false;
  }
  ring_config_s ring = {.size = o->ring_size,
                        .message_max = o->message_max,
                        .workers = o->workers,
                        .channels = o->channels,
                        .floor = store_floor(live.engine.store)};
  live.ring = live.engine.ring = ring_new(&ring);
  live.engine.rules = live.rules;
  live.engine.birth = live.ring ? ring_clock(live.ring) : 0;
  return live.ring && live.rules;
}

/* False: it does not start. */
static inline bool live_start(live_options_s o) {
  LIVE_DEFAULT(workers, 1);
  LIVE_DEFAULT(message_max, 1u << 20);
  LIVE_DEFAULT(ring_size, 16 * o.message_max);
  LIVE_DEFAULT(tail_size, 256u << 10);
  LIVE_DEFAULT(tail_total, 64u << 20);
  LIVE_DEFAULT(queue_limit, 64u << 10);
  LIVE_DEFAULT(subscriptions, 256);
  LIVE_DEFAULT(ping_ms, 25000);
  LIVE_DEFAULT(close_ms, 2000);
  LIVE_DEFAULT(slow_ms, 60000);
  LIVE_DEFAULT(drain_ms, 10000);
  LIVE_DEFAULT(lowat, 16384);
  LIVE_DEFAULT(channels, 4096);
  live.options = o;
  if (!live_engine(&o))
    return false;
  live.board = mmap(NULL, sizeof *live.board, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int tell[2];
  if (live.board == MAP_FAILED || pipe(tell) < 0)
    return false;
  signal(SIGPIPE, SIG_IGN);
  live.pid = fork();
  if (live.pid == 0) {
    close(tell[0]);
    live_child(tell[1]);
  }
  close(tell[1]);
  bool ok =
      read(tell[0], &live.port, sizeof live.port) == (ssize_t)sizeof live.port;
  close(tell[0]);
  for (uint64_t from = live_ms(); ok && live_ms() - from < 5000;) {
    unsigned up = 0;
    for (unsigned i = 0; i < o.workers; i++)
      up += live.board->worker[i].pid != 0;
    if (up == o.workers)
      return true;
    live_pause(1);
  }
  return false;
}

/* SIGTERM, once: a second one ends at once. */
static inline void live_terminate(void) {
  if (!live.is_told)
    kill(live.pid, SIGTERM);
  live.is_told = true;
}

/* The exit status after a SIGTERM, or 1000 + the signal that it died of. */
static inline int live_stop(void) {
  int status = 0;
  live_terminate();
  while (waitpid(live.pid, &status, 0) < 0 && errno == EINTR)
    ;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* A fresh sum over the workers of what live_worker_s counts. */
#define live_sum(field)                                                        \
  (live.board->worker[0].field + live.board->worker[1].field +                 \
   live.board->worker[2].field + live.board->worker[3].field)

/* Wait until a condition holds, for at most 10 s: whether it does. */
#define live_until(condition)                                                  \
  __extension__({                                                              \
    uint64_t live_from = live_ms();                                            \
    while (!(condition) && live_ms() - live_from < 10000)                      \
      live_pause(1);                                                           \
    (condition);                                                               \
  })

/* Wait until the figures were counted anew, twice. */
static inline void live_recount(void) {
  for (unsigned i = 0; i < live.options.workers; i++) {
    uint64_t from = live.board->worker[i].turns;
    (void)live_until(live.board->worker[i].turns >= from + 2);
  }
}

/* ---- a client ---------------------------------------------------------- */

typedef struct {
  int fd;
  char *in;
  size_t at, len, cap; /* of `in`: what is not yet taken, what is there */
  bool has_ended;      /* the broker ended the stream */
} client_s;

/* One frame; the payload is valid until the next read. */
typedef struct {
  uint8_t first;
  view_s payload;
} live_frame_s;

static inline int live_connect(int receive_buffer) {
  struct sockaddr_in a = {.sin_family = AF_INET,
                          .sin_port = htons((uint16_t)live.port),
                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  if (receive_buffer)
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer,
               sizeof receive_buffer);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
    return -1;
  return fd;
}

static inline bool client_send(client_s *c, const void *data, size_t len) {
  const char *p = data;
  while (len) {
    ssize_t n = send(c->fd, p, len, MSG_NOSIGNAL);
    if (n <= 0)
      return false;
    p += n;
    len -= (size_t)n;
  }
  return true;
}

/* Read some more. False: nothing came in time, or the end. */
static inline bool client_more(client_s *c, int timeout_ms) {
  struct pollfd p = {.fd = c->fd, .events = POLLIN};
  if (c->has_ended || poll(&p, 1, timeout_ms) <= 0)
    return false;
  if (c->at) {
    memmove(c->in, c->in + c->at, c->len - c->at);
    c->len -= c->at;
    c->at = 0;
  }
  if (c->cap - c->len < 65536) {
    c->cap = c->cap * 2 + 131072;
    c->in = realloc(c->in, c->cap);
  }
  ssize_t n = recv(c->fd, c->in + c->len, c->cap - c->len, 0);
  c->has_ended = n <= 0;
  c->len += n > 0 ? (size_t)n : 0;
  return n > 0;
}

static inline view_s client_left(const client_s *c) {
  return view_of(c->in + c->at, c->len - c->at);
}

/* Take a whole HTTP head off the input. Its length, 0: it did not come. */
static inline size_t client_head(client_s *c) {
  for (;;) {
    view_s v = client_left(c);
    char *end = v.len ? memmem(v.data, v.len, "\r\n\r\n", 4) : NULL;
    if (end) {
      size_t n = (size_t)(end - v.data) + 4;
      c->at += n;
      return n;
    }
    if (!client_more(c, 5000))
      return 0;
  }
}

static inline void client_close(client_s *c) {
  if (c->fd >= 0)
    close(c->fd);
  free(c->in);
  *c = (client_s){.fd = -1};
}

/* Lose the connection as a peer that crashed would. */
static inline void client_reset(client_s *c) {
  struct linger l = {1, 0};
  setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
  client_close(c);
}

/* Ask for a WebSocket; `behind` follows the head in the same segment. The
 * answer's status, or 0. */
static inline int client_upgrade(client_s *c, const char *path,
                                 const char *protocol, view_s behind) {
  char head[16384];
  int n = snprintf(
      head, sizeof head,
      "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
      "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
      "Sec-WebSocket-Version: 13\r\n%s%s%s\r\n",
      path, protocol ? "Sec-WebSocket-Protocol: " : "",
      protocol ? protocol : "", protocol ? "\r\n" : "");
  char *all = malloc((size_t)n + behind.len);
  memcpy(all, head, (size_t)n);
  if (behind.len)
    memcpy(all + n, behind.data, behind.len);
  bool sent = client_send(c, all, (size_t)n + behind.len);
  free(all);
  size_t len = sent ? client_head(c) : 0;
  return len > 12 ? (int)strtol(c->in + c->at - len + 9, NULL, 10) : 0;
}

/* A WebSocket. fd is -1 if the broker did not say 101. */
static inline client_s client_open_with(const char *path, const char *protocol,
                                        int receive_buffer) {
  client_s c = {.fd = live_connect(receive_buffer)};
  if (c.fd >= 0 && client_upgrade(&c, path, protocol, VIEW_LIT("")) != 101)
    client_close(&c);
  return c;
}

static inline client_s client_open(const char *path, const char *protocol) {
  return client_open_with(path, protocol, 0);
}

/* The next frame. False: none came within the time, or what came is none that
 * a server may send. */
static inline bool client_frame(client_s *c, live_frame_s *f, int timeout_ms) {
  for (;;) {
    view_s v = client_left(c);
    const uint8_t *b = (const uint8_t *)v.data;
    size_t head = 2, len = v.len >= 2 ? b[1] : 0;
    if (len & 0x80)
      return false; /* masked */
    if (v.len >= 4 && len == 126)
      head = 4, len = view_u16(b + 2);
    else if (v.len >= 10 && len == 127)
      head = 10, len = (size_t)view_u64(b + 2);
    else if (len >= 126)
      len = SIZE_MAX / 2; /* not known yet */
    if (v.len >= head && v.len - head >= len) {
      *f = (live_frame_s){b[0], view_of(v.data + head, len)};
      c->at += head + len;
      return true;
    }
    if (!client_more(c, timeout_ms))
      return false;
  }
}

static inline bool client_write(client_s *c, uint8_t first, view_s payload) {
  static const uint8_t mask[4] = {0x12, 0xF3, 0x45, 0x99};
  char *frame = malloc(payload.len + 14);
  size_t n = ws_frame_client(frame, first, mask, payload);
  bool sent = client_send(c, frame, n);
  free(frame);
  return sent;
}

static inline bool client_text(client_s *c, const char *text) {
  return client_write(c, WS_FIN_TEXT, view_str(text));
}

/* The payload of the next text frame as a string, valid until the next call;
 * what else came is shown in brackets. */
static inline const char *client_next_within(client_s *c, int timeout_ms) {
  static char *text;
  static char other[256];
  live_frame_s f;
  if (!client_frame(c, &f, timeout_ms)) {
    snprintf(other, sizeof other, "(%s)", c->has_ended ? "end" : "nothing");
    return other;
  }
  if (f.first == WS_FIN_CLOSE) {
    snprintf(other, sizeof other, "(close %d %.*s)",
             f.payload.len >= 2 ? view_u16(f.payload.data) : 1005,
             (int)(f.payload.len >= 2 ? f.payload.len - 2 : 0),
             f.payload.len >= 2 ? f.payload.data + 2 : "");
    return other;
  }
  if (f.first != WS_FIN_TEXT) {
    snprintf(other, sizeof other, "(%02x %.*s)", f.first,
             f.payload.len < 100 ? (int)f.payload.len : 100, f.payload.data);
    return other;
  }
  text = realloc(text, f.payload.len + 1);
  if (f.payload.len)
    memcpy(text, f.payload.data, f.payload.len);
  text[f.payload.len] = '\0';
  return text;
}

static inline const char *client_next(client_s *c) {
  return client_next_within(c, 5000);
}

/* The number behind `"name":` in a JSON text, or 0. */
static inline uint64_t json_number(const char *text, const char *name) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\":", name);
  const char *at = strstr(text, key);
  return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* ---- publishing over HTTP ---------------------------------------------- */

typedef struct {
  client_s c;
  int status;
  char body[65536];
} poster_s;

/* The status; the answer's body in p->body. 0: no answer. */
static inline int post_raw(poster_s *p, const char *path, const char *fields,
                           view_s body) {
  char head[16384];
  if (p->c.fd <= 0) { /* new, or closed */
    free(p->c.in);
    p->c = (client_s){.fd = live_connect(0)};
  }
  int n =
      snprintf(head, sizeof head,
               "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n", path, fields);
  char *all = malloc((size_t)n + body.len);
  memcpy(all, head, (size_t)n);
  if (body.len)
    memcpy(all + n, body.data, body.len);
  bool sent = client_send(&p->c, all, (size_t)n + body.len);
  free(all);
  size_t len = sent ? client_head(&p->c) : 0;
  p->status = 0;
  if (len < 13)
    return 0;
  char answer[16384];
  snprintf(answer, sizeof answer, "%.*s", (int)len, p->c.in + p->c.at - len);
  const char *length = strstr(answer, "Content-Length: ");
  size_t want = length ? strtoul(length + 16, NULL, 10) : 0;
  while (client_left(&p->c).len < want && client_more(&p->c, 5000))
    ;
  view_s v = client_left(&p->c);
  if (v.len < want || want >= sizeof p->body)
    return 0;
  memcpy(p->body, v.data, want);
  p->body[want] = '\0';
  p->c.at += want;
  p->status = (int)strtol(answer + 9, NULL, 10);
  if (strstr(answer, "Connection: close"))
    client_close(&p->c);
  return p->status;
}

/* `type` NULL: none. */
static inline int post(poster_s *p, const char *path, const char *type,
                       view_s body) {
  char fields[8192];
  snprintf(fields, sizeof fields, "Content-Length: %zu\r\n%s%s%s", body.len,
           type ? "Content-Type: " : "", type ? type : "", type ? "\r\n" : "");
  return post_raw(p, path, fields, body);
}

#endif
