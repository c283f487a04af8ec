/* sse.c - a stream's connection. Invariant: the head and `retry` are the first
 * bytes, and between events nothing leaves but whole lines. */
#include "facil/sse.h"
#include "facil/sse_event.h"
#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>

struct sse_s {
  protocol_s super;
  const sse_handler_s *handler;
  intptr_t uuid;
  _Alignas(max_align_t) char user[];
};

static sse_settings_s settings;
static const protocol_ops_s sse_ops;

static sse_s *sse_cast(protocol_s *p) {
  assert(p->ops == &sse_ops);
  return (sse_s *)p;
}

void *sse_user(sse_s *sse) {
  return sse->user;
}

sse_s *sse_of(void *user) {
  return FACIL_CONTAINER(user, sse_s, user);
}

intptr_t sse_uuid(const sse_s *sse) {
  return sse->uuid;
}

void sse_write(sse_s *sse, view_s bytes) {
  if (sock_write(sse->uuid, bytes.data, bytes.len) < 0)
    sock_abort(sse->uuid, "sse: events are not read");
}

void sse_end(sse_s *sse) {
  sock_close(sse->uuid);
}

/* ---- keep-alives ------------------------------------------------------- */

static void keep_one(intptr_t uuid, protocol_s *p, void *arg) {
  (void)arg;
  sse_s *sse = sse_cast(p);
  if (!sock_is_blocked(uuid))
    sse->handler->on_keepalive(sse);
  else if (sock_blocked_ms(uuid) >= settings.slow_timeout_ms)
    sock_abort(uuid, "slow.timeout: nothing is read");
}

/* One timer for all streams of a process. */
static void keep_all(void *arg) {
  (void)arg;
  facil_each(.service = sse_ops.service, .task = keep_one);
}

void sse_set(const sse_settings_s *s) {
  settings = *s;
  (void)facil_run_every(settings.keepalive_ms, 0, keep_all, NULL, NULL);
}

/* ---- the connection ------------------------------------------------------ */

/* Whatever the peer sends means nothing; its end ends the stream. */
static void sse_on_data(intptr_t uuid, protocol_s *p) {
  (void)p;
  char waste[1024];
  (void)sock_read(uuid, waste, sizeof waste);
}

static void sse_on_ready(intptr_t uuid, protocol_s *p) {
  (void)uuid;
  sse_s *sse = sse_cast(p);
  sse->handler->on_ready(sse);
}

static size_t sse_on_sent(intptr_t uuid, protocol_s *p, size_t sent) {
  (void)uuid;
  sse_s *sse = sse_cast(p);
  return sse->handler->on_sent(sse, sent);
}

static void sse_on_close(intptr_t uuid, protocol_s *p) {
  (void)uuid;
  sse_s *sse = sse_cast(p);
  sse->handler->on_close(sse);
  free(sse);
}

static const protocol_ops_s sse_ops = {.service = "sse",
                                       .on_data = sse_on_data,
                                       .on_ready = sse_on_ready,
                                       .on_sent = sse_on_sent,
                                       .on_close = sse_on_close};

/* A peer that is gone without a word is found by TCP: after half a minute of
 * silence it is asked, three times. */
static void watch_peer(int fd) {
  int on = 1, idle = 30, between = 10, times = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

void sse_start(http_s *h, const sse_handler_s *handler, void *arg) {
  intptr_t uuid = http_uuid(h);
  sse_s *sse = calloc(1, sizeof *sse + handler->size);
  if (!sse) {
    http_problem(h, 503, "There is no memory for another connection.",
                 VIEW_LIT(""));
    return;
  }
  *sse = (sse_s){.super = {&sse_ops}, .handler = handler, .uuid = uuid};
  char head[256];
  int n = snprintf(head, sizeof head,
                   "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                   "Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n"
                   "Connection: close\r\n\r\nretry: %u\n\n",
                   settings.retry_ms);
  if (http_upgrade(h, view_of(head, (size_t)n), &sse->super) < 0)
    return; /* its on_close follows */
  facil_set_timeout_ms(uuid, FACIL_TIMEOUT_NEVER);
  watch_peer(sock_uuid2fd(uuid));
  handler->on_open(sse, arg);
}
