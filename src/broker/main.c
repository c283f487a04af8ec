/* main.c - the broker: reads the command line, wires the parts, and serves.
 *
 * The only place that reads argv and the environment. Everything that a peer
 * sends is handled in workers; the master owns sockets, the ring and the pids.
 */
#include "access.h"
#include "cli.h"
#include "engine_local.h"
#include <errno.h>
#include <facil/clock.h>
#include <facil/dialects.h>
#include <facil/log.h>
#include <facil/pubsub.h>
#include <facil/sse.h>
#include <facil/websocket.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the shared table; beyond it all still works. */
#define CHANNELS_MAX (1u << 19)
#define LEASE_US 10000000u /* ids are leased ahead of the clock */
#define LOCK_LIMIT_MS 1000 /* holding a lock for longer is hanging */

extern char **environ;

static struct {
  crier_config_s config;
  http_settings_s http;
  engine_local_s engine;
  rules_s *rules;
  access_s access;
  char at[CONFIG_LISTEN_MAX][160];
} broker;

/* ---- in a worker ------------------------------------------------------- */

/* Whoever may not be served is told why, before a route is looked for. */
static bool gate(http_s *h) {
  const http_request_s *req = http_request(h);
  const char *detail = NULL;
  bool has_forwarded = false;
  for (size_t i = 0; i < req->header_count; i++)
    has_forwarded |= access_is_forwarding_field(req->headers[i].name);
  view_s origin = http_header(req, VIEW_LIT("Origin"));
  if (http_header_times(req, VIEW_LIT("Origin")) > 1)
    origin = VIEW_LIT(","); /* no origin is two: refused */
  int status =
      access_check(&broker.access, req->host, origin, has_forwarded, &detail);
  if (!status)
    return true;
  http_problem(h, status, detail, VIEW_LIT(""));
  return false;
}

static int on_start(void *udata) {
  (void)udata;
  const crier_config_s *c = &broker.config;
  const engine_s *engine =
      engine_local_start(&broker.engine, (unsigned)facil_worker_id());
  if (!engine) {
    log_line(LOG_ERROR, "start", "error=\"%s\"", strerror(errno));
    return -1;
  }
  sock_set_queue_limit(c->queue_limit);
  pubsub_settings_s pubsub = {.tail_size = c->tail_size,
                              .tail_total = c->tail_total,
                              .subscriptions_max =
                                  (uint32_t)c->channels_per_connection};
  pubsub_set(engine, &pubsub);
  websocket_settings_s ws = {
      .limits = {.message_max = c->message_max,
                 .fragments_max = (uint32_t)c->ws_fragments,
                 .expects_masked = true},
      .ping_ms = (uint32_t)c->ws_ping_ms,
      .close_timeout_ms = (uint32_t)c->ws_close_timeout_ms,
      .slow_timeout_ms = (uint32_t)c->slow_timeout_ms,
      .queue_limit = c->queue_limit};
  websocket_set(&ws);
  dialect_settings_s dialects = {.slow_closes = c->slow == CONFIG_SLOW_CLOSE,
                                 .drain_notice_ms =
                                     (uint32_t)c->drain_notice_ms,
                                 .message_max = c->message_max,
                                 .replay_limit = c->replay_limit,
                                 .poll_max_wait_ms = c->poll_max_wait_ms,
                                 .batch_max = c->batch_max};
  dialects_set(&dialects);
  sse_settings_s sse = {.keepalive_ms = (uint32_t)c->sse_keepalive_ms,
                        .retry_ms = (uint32_t)c->sse_retry_ms,
                        .slow_timeout_ms = (uint32_t)c->slow_timeout_ms};
  sse_set(&sse);
  return 0;
}

static void on_finish(void *udata) {
  (void)udata;
  engine_local_stop();
}

static void on_shutdown(void *udata) {
  (void)udata;
  dialects_notice();
}

/* ---- in the master ----------------------------------------------------- */

static void on_gone(int worker, void *udata) {
  (void)udata;
  store_mark_dead(broker.engine.store, (unsigned)worker);
  ring_mark_dead(broker.engine.ring, (unsigned)worker);
}

/* Who keeps a lock, or a view of the store that makes its file grow, for long.
 */
static int on_check(void *udata) {
  (void)udata;
  int slot;
  unsigned reader;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  uint64_t now = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
  if (ring_lock_holder(broker.engine.ring, now, LOCK_LIMIT_MS, &slot) == 1)
    return slot;
  if (store_reader_stuck(broker.engine.store, now, LOCK_LIMIT_MS, &reader) == 1)
    return (int)reader;
  return -1;
}

static void on_running(void *udata) {
  (void)udata;
  for (size_t i = 0; i < broker.config.listen_count; i++)
    printf("crier: listening on %s%s\n",
           strncmp(broker.at[i], "unix:", 5) == 0 ? "" : "http://",
           broker.at[i]);
  const char *at = broker.at[0];
  if (strncmp(at, "unix:", 5) == 0)
    printf("crier: try  curl --unix-socket %s -d 'hello' "
           "http://localhost/channels/news\n",
           at + 5);
  else
    printf("crier: try  curl -d 'hello' %s/channels/news\n", at);
  fflush(stdout);
}

static int listen_all(void) {
  for (size_t i = 0; i < broker.config.listen_count; i++) {
    const config_listen_s *l = &broker.config.listen[i];
    if (facil_listen(.address = l->address, .port = *l->port ? l->port : NULL,
                     .on_open = http_open, .udata = &broker.http,
                     .mode = (unsigned)broker.config.socket_file_mode) < 0) {
      fprintf(stderr, "crier: cannot listen on %s%s%s: %s\n", l->address,
              *l->port ? ":" : "", l->port, strerror(errno));
      return -1;
    }
    snprintf(broker.at[i], sizeof broker.at[i], "%s", facil_listening_at());
  }
  return 0;
}

static int make_rules(void) {
  const crier_config_s *c = &broker.config;
  rule_s usual = {.count = c->history_count,
                  .bytes = c->history_bytes,
                  .age_us = c->history_age_ms * 1000,
                  .slow =
                      c->slow == CONFIG_SLOW_CLOSE ? RULE_CLOSE : RULE_SKIP};
  char err[CONFIG_ERROR_MAX] = "crier: out of memory";
  broker.rules = rules_new(&usual);
  bool fine = broker.rules != NULL;
  for (size_t i = 0; fine && i < c->history_rule.count; i++)
    fine =
        rules_add(broker.rules, c->history_rule.text[i], err, sizeof err) == 0;
  if (!fine)
    fprintf(stderr, "%s\n", err);
  return fine ? 0 : -1;
}

static int make_store(uint16_t workers) {
  const crier_config_s *c = &broker.config;
  char err[STORE_ERROR_MAX];
  bool in_memory = strcmp(c->store, "memory") == 0;
  store_config_s config = {.path = in_memory ? NULL : c->store,
                           .size = c->store_size,
                           .may_evict = c->store_full == CONFIG_FULL_EVICT,
                           .slots = workers + 1u,
                           .key_us = c->idempotency_window_ms * 1000,
                           .forget_us = c->history_forget_ms * 1000,
                           .lease_us = LEASE_US,
                           .rules = broker.rules};
  broker.engine.is_durable = !in_memory;
  if (store_prepare(&config, &broker.engine.store, err, sizeof err) == 0)
    return 0;
  fprintf(stderr, "%s\n", err);
  return -1;
}

static int make_ring(uint16_t workers) {
  ring_config_s config = {.size = broker.config.ring_size,
                          .message_max = broker.config.message_max,
                          .workers = workers,
                          .channels = CHANNELS_MAX,
                          .floor = store_floor(broker.engine.store),
                          .is_durable = broker.engine.is_durable};
  broker.engine.ring = ring_new(&config);
  if (!broker.engine.ring) {
    fprintf(stderr, "crier: cannot make the ring: %s\n", strerror(errno));
    return -1;
  }
  broker.engine.birth = ring_clock(broker.engine.ring);
  broker.engine.rules = broker.rules;
  return 0;
}

static int serve(void) {
  const crier_config_s *c = &broker.config;
  uint16_t workers = c->workers ? (uint16_t)c->workers : facil_usable_cores();
  broker.access.open = c->open;
  log_set_level((log_level_e)c->log_level);
  sock_set_lowat((uint32_t)c->socket_lowat);
  broker.http =
      (http_settings_s){.limits = {.header_bytes = c->http_header_bytes,
                                   .header_count = c->http_header_count,
                                   .url_bytes = c->http_url,
                                   .body_bytes = c->message_max},
                        .head_timeout_ms = (uint32_t)c->http_timeout_ms,
                        .idle_ms = (uint32_t)c->http_idle_ms,
                        .body_rate = 100,
                        .gate = gate};
  broker.http.routes = dialects_routes(&broker.http.route_count);
  if (listen_all() < 0 || make_rules() < 0 || make_store(workers) < 0 ||
      make_ring(workers) < 0)
    return CRIER_EXIT_FAILED;
  int status = facil_run(.processes = workers, .master = true,
                         .notice_ms = (uint32_t)c->drain_notice_ms,
                         .drain_ms = (uint32_t)c->drain_time_ms,
                         .watchdog_ms = (uint32_t)c->watchdog_ms,
                         .max_connections = (uint32_t)c->connections_max,
                         .no_uring = c->socket_uring == CONFIG_URING_OFF,
                         .on_start = on_start, .on_shutdown = on_shutdown,
                         .on_running = on_running, .on_gone = on_gone,
                         .on_check = on_check, .on_finish = on_finish);
  store_release(broker.engine.store);
  return status;
}

int main(int argc, char **argv) {
  char err[CONFIG_ERROR_MAX];
  static cli_s cli;
  int status = cli_parse(argc, argv, environ, &cli, err, sizeof err);
  if (status) {
    fprintf(stderr, "%s\n", err);
    return status;
  }
  if (cli.command != CLI_SERVE)
    return cli_print(&cli, stdout);
  broker.config = cli.config;
  return serve();
}
