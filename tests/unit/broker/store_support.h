/* store_support.h - what the tests of the store share: a store of one process
 * with a clock and a slowest worker that the test sets, records as a ring would
 * hand them, and what is read as text: "id:body id:body".
 *
 * A child reports by its exit status only; the test asserts. */
#ifndef STORE_SUPPORT_H
#define STORE_SUPPORT_H

#include "store_lmdb.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000)
#define START (UINT64_C(1000) * SECOND)
#define ALL UINT64_MAX / 4

static char err[STORE_ERROR_MAX];
static rules_s *rules;
static store_config_s config;
static store_shared_s *shared;
static store_s *st;
static uint64_t now = START, low = UINT64_MAX;

static uint64_t test_clock(void *arg) {
  (void)arg;
  return now;
}

static uint64_t test_low(void *arg) {
  (void)arg;
  return low;
}

static inline const char *temp_folder(void) {
  static char path[] = "/tmp/crier-store-test-XXXXXX";
  cr_assert(mkdtemp(path), "no folder in /tmp");
  return path;
}

static inline void folder_remove(const char *path) {
  DIR *d = opendir(path);
  struct dirent *e;
  while (d && (e = readdir(d))) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%s", path, e->d_name);
    if (e->d_name[0] != '.')
      unlink(name);
  }
  if (d)
    closedir(d);
  rmdir(path);
}

/* Entries of a folder. */
static inline int folder_count(const char *path) {
  DIR *d = opendir(path);
  struct dirent *e;
  int n = 0;
  while (d && (e = readdir(d)))
    n += e->d_name[0] != '.';
  if (d)
    closedir(d);
  return n;
}

static inline void rule(const char *text) {
  cr_assert_eq(rules_add(rules, text, err, sizeof err), 0, "%s", err);
}

/* The defaults: 1,000 messages, 1 MiB, 10 minutes. */
static inline void config_usual(const char *folder) {
  static const rule_s usual = {1000, 1 << 20, 600 * SECOND, RULE_SKIP};
  rules = rules_new(&usual);
  config = (store_config_s){.memory = folder,
                            .size = 64 << 20,
                            .may_evict = true,
                            .slots = 3,
                            .key_us = 600 * SECOND,
                            .forget_us = 3600 * SECOND,
                            .lease_us = 10 * SECOND,
                            .now = START,
                            .rules = rules};
}

static inline store_s *open_slot(unsigned slot) {
  store_setup_s setup = {.slot = slot, .clock = test_clock, .low_id = test_low};
  return store_open(shared, &setup);
}

static inline void prepare(void) {
  cr_assert_eq(store_prepare(&config, &shared, err, sizeof err), 0, "%s", err);
  st = open_slot(0);
  cr_assert(st, "open: %s", strerror(errno));
}

static inline void release(void) {
  store_close(st);
  store_release(shared);
}

/* As a restart: of a durable store. */
static inline void restart(void) {
  release();
  config.now = now;
  prepare();
}

/* --- Putting --- */

static inline uint64_t hash_of(view_s name) {
  uint64_t h = 14695981039346656037u;
  for (size_t i = 0; i < name.len; i++)
    h = (h ^ (unsigned char)name.data[i]) * 1099511628211u;
  return h;
}

static inline ring_record_s record(uint64_t id, const char *channel,
                                   const char *body) {
  return (ring_record_s){.id = id,
                         .hash = hash_of(view_str(channel)),
                         .flags = RING_STORE,
                         .channel = view_str(channel),
                         .type = view_str("text/plain"),
                         .body = view_str(body)};
}

static inline ring_store_s *ring_side(void) {
  return store_ring(st);
}

static inline void begin(void) {
  uint64_t committed;
  cr_assert_eq(ring_side()->ops->begin(ring_side(), &committed), 0, "%s",
               strerror(errno));
}

static inline ring_verdict_s put(ring_record_s r) {
  ring_verdict_s v = {RING_PENDING, 0};
  if (r.id > now)
    now = r.id;
  ring_side()->ops->put(ring_side(), &r, 1, &v);
  return v;
}

static inline void commit(uint64_t last_id) {
  cr_assert_eq(ring_side()->ops->commit(ring_side(), last_id), 0, "%s",
               strerror(errno));
}

/* One record, in a transaction of its own. */
static inline ring_verdict_s publish_record(ring_record_s r) {
  begin();
  ring_verdict_s v = put(r);
  commit(r.id);
  return v;
}

static inline ring_verdict_e publish(uint64_t id, const char *channel,
                                     const char *body) {
  return publish_record(record(id, channel, body)).verdict;
}

static inline ring_verdict_s publish_key(uint64_t id, const char *channel,
                                         const char *key, const char *body) {
  ring_record_s r = record(id, channel, body);
  r.key = view_str(key);
  return publish_record(r);
}

static inline void publish_ttl(uint64_t id, const char *channel,
                               const char *body, uint32_t ttl) {
  ring_record_s r = record(id, channel, body);
  r.ttl = ttl;
  cr_assert_eq(publish_record(r).verdict, RING_KEPT);
}

static inline void delete_channel(uint64_t id, const char *channel) {
  ring_record_s r = record(id, channel, "");
  r.op = STORE_DROP;
  cr_assert_eq(publish_record(r).verdict, RING_KEPT);
}

static inline void tick(uint64_t id) {
  ring_record_s r = record(id, "", "");
  r.op = STORE_TICK;
  cr_assert_eq(publish_record(r).verdict, RING_KEPT);
}

/* --- Reading --- */

static char text[1 << 20];
static size_t text_len;
static store_result_s result;

static inline bool add_message(void *arg, const stored_s *m) {
  bool has_name = arg != NULL;
  text_len += (size_t)snprintf(
      text + text_len, sizeof text - text_len, "%s%" PRIu64 ":%.*s%s%.*s",
      text_len ? " " : "", m->id - START, has_name ? (int)m->channel.len : 0,
      m->channel.data, has_name ? "=" : "", (int)m->body.len, m->body.data);
  return true;
}

static inline const char *read_some(const char *channel, uint64_t since,
                                    uint64_t until, size_t messages,
                                    size_t bytes) {
  text_len = 0;
  text[0] = '\0';
  cr_assert_eq(store_read(st, view_str(channel), since, until,
                          (store_limit_s){messages, bytes}, add_message, NULL,
                          &result),
               0, "%s", strerror(errno));
  return text;
}

/* All that a channel has. */
static inline const char *kept(const char *channel) {
  return read_some(channel, 0, ALL, SIZE_MAX, SIZE_MAX);
}

static inline const char *read_all(uint64_t since, uint64_t until) {
  text_len = 0;
  text[0] = '\0';
  cr_assert_eq(store_read_all(st, since, until,
                              (store_limit_s){SIZE_MAX, SIZE_MAX}, add_message,
                              text, &result),
               0, "%s", strerror(errno));
  return text;
}

static inline store_info_s info(const char *channel) {
  store_info_s i;
  cr_assert_eq(store_channel(st, view_str(channel), &i), 0);
  return i;
}

/* "none", or "from-to", beside START. */
static inline const char *gap_until(const char *channel, uint64_t since,
                                    uint64_t until) {
  static char out[64];
  uint64_t from, to;
  int rc = store_gap(st, view_str(channel), since, until, &from, &to);
  cr_assert(rc >= 0);
  snprintf(out, sizeof out, "none");
  if (rc)
    snprintf(out, sizeof out, "%" PRId64 "-%" PRId64, (int64_t)(from - START),
             (int64_t)(to - START));
  return out;
}

static inline const char *gap(const char *channel, uint64_t since) {
  return gap_until(channel, since, ALL);
}

static inline store_figures_s figures(void) {
  store_figures_s f;
  store_figures(shared, &f);
  return f;
}

#endif
