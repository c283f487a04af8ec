/* The registry, its tails and the places of readers against a model, without
 * sockets: what a "socket" takes, and when, is decided here, so every edge is
 * met again and again. The sets are the real ones.
 *
 * The model is what api.md promises: a subscriber gets each message of its
 * channels once, in order of id, or is told of the gap, which begins behind
 * the last one that it got and ends with the last one that it lacks. */
#include "core.h"
#include "facil/defer.h"
#include "pubsub_internal.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>

/* ---- the world: an engine, and sockets as slots ------------------------ */

enum { CONNS = 24, CHANNELS = 6, IDS = 4000 };

typedef struct {
  reader_s reader; /* first */
  slot_s *slot;
  size_t room;       /* bytes that the socket takes now */
  facil_buf_s *rest; /* of a begun frame, from rest_data on */
  const char *rest_data;
  size_t rest_len;
  char *queue; /* own frames */
  size_t queue_len;
  char *out; /* all that left */
  size_t out_len, out_cap;
  bool is_open, was_aborted;
  bool is_subscribed[CHANNELS];
  uint64_t cursor[CHANNELS]; /* of the model: what is behind it is owed */
  uint64_t last;             /* id of the last message that it got */
  size_t parsed;
} conn_s;

static slot_s slots[CONNS];
static conn_s conns[CONNS];
static bool is_batching; /* offers of one piece leave at the end of a phase */
static struct {
  conn_s *conn;
  struct iovec iov;
  facil_buf_s *owner;
} batch[4096];
static size_t batched;
static uint64_t next_id = 1000, hash_mask = UINT64_MAX;
static size_t watched, offers_made;

static char data[1 << 20];

/* every message that was published: its channel, who does not get it */
static struct {
  uint8_t channel;
  bool is_lost; /* lapped */
  uint32_t len;
  intptr_t origin;
} messages[IDS];

slot_s *sock_slot(intptr_t uuid) {
  return uuid > 0 && uuid <= CONNS && slots[uuid - 1].uuid == uuid
             ? &slots[uuid - 1]
             : NULL;
}

slot_s *sock_slot_at(uint32_t i) {
  return &slots[i];
}

uint32_t sock_slot_index(const slot_s *s) {
  return (uint32_t)(s - slots);
}

static conn_s *conn_of(intptr_t uuid) {
  return &conns[uuid - 1];
}

int sock_want_ready(intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  if (!s)
    return -1;
  s->want_ready = true;
  return 0;
}

int sock_abort(intptr_t uuid, const char *reason) {
  (void)reason;
  conn_of(uuid)->was_aborted = true;
  return 0;
}

void sock_lose(slot_s *s, const char *reason) {
  (void)sock_abort(s->uuid, reason);
}

/* ---- what leaves ------------------------------------------------------- */

static void out_add(conn_s *c, const void *from, size_t n) {
  if (n > c->out_cap - c->out_len) {
    c->out_cap = 2 * c->out_cap + n;
    c->out = realloc(c->out, c->out_cap);
  }
  if (n)
    memcpy(c->out + c->out_len, from, n);
  c->out_len += n;
  c->room -= n;
}

static size_t out_some(conn_s *c, const void *from, size_t n) {
  if (n > c->room)
    n = c->room;
  out_add(c, from, n);
  return n;
}

static conn_s *offering;
static struct iovec offered[SOCK_OFFER_MAX];
static facil_buf_s *owners[SOCK_OFFER_MAX];
static int offer_count;

int sock_offer(intptr_t uuid, const struct iovec *iov,
               facil_buf_s *const *owner, int n) {
  cr_assert_eq(offering, conn_of(uuid), "not from on_ready");
  cr_assert(n > 0 && n <= SOCK_OFFER_MAX && !offer_count);
  for (int i = 0; i < n; i++) {
    cr_assert_gt(iov[i].iov_len, 0);
    const char *p = iov[i].iov_base;
    cr_assert(p >= owner[i]->data &&
              p + iov[i].iov_len <= owner[i]->data + owner[i]->len);
    offered[i] = iov[i];
    owners[i] = owner[i];
  }
  offer_count = n;
  offers_made++;
  return 0;
}

static void send_offer(conn_s *c, const struct iovec *iov,
                       facil_buf_s *const *owner, int n) {
  size_t sent = 0, total = 0;
  for (int i = 0; i < n; i++) {
    total += iov[i].iov_len;
    sent += out_some(c, iov[i].iov_base, iov[i].iov_len);
    if (sent < total)
      break;
  }
  size_t rest = reader_sent(&c->reader, sent), at = sent;
  c->slot->blocked |= sent < total;
  for (int i = 0; i < n && rest; at -= iov[i].iov_len, i++)
    if (at < iov[i].iov_len) {
      cr_assert_leq(rest, iov[i].iov_len - at, "a frame in two pieces");
      c->rest = facil_buf_ref(owner[i]);
      c->rest_data = (const char *)iov[i].iov_base + at;
      c->rest_len = rest;
      return;
    }
}

/* As the core flushes: a begun frame's rest, own frames, then on_ready. */
void sock_flush(slot_s *s, bool ready) {
  conn_s *c = conn_of(s->uuid);
  if (s->in_batch || s->blocked) {
    s->want_ready |= ready;
    return;
  }
  if (c->rest) {
    size_t n = out_some(c, c->rest_data, c->rest_len);
    c->rest_data += n;
    c->rest_len -= n;
    if (!c->rest_len) {
      facil_buf_unref(c->rest);
      c->rest = NULL;
    }
  }
  if (!c->rest && c->queue_len) {
    size_t n = out_some(c, c->queue, c->queue_len);
    memmove(c->queue, c->queue + n, c->queue_len - n);
    c->queue_len -= n;
  }
  if (c->rest || c->queue_len) {
    s->blocked = true;
    s->want_ready |= ready;
    return;
  }
  if (!ready)
    return;
  s->want_ready = false;
  offering = c;
  offer_count = 0;
  reader_ready(&c->reader);
  offering = NULL;
  if (!offer_count)
    return;
  if (c->queue_len) {
    s->want_ready = true;
  } else if (is_batching && offer_count == 1) {
    s->in_batch = true;
    batch[batched].conn = c;
    batch[batched].iov = offered[0];
    batch[batched++].owner = owners[0];
  } else {
    send_offer(c, offered, owners, offer_count);
  }
}

/* ---- messages as frames: 'M' or 'G', length, two ids, channel, bytes ---- */

typedef struct {
  uint32_t kind, len;
  uint64_t id, to;
  uint32_t channel;
} head_s;

static unsigned channel_number(view_s name) {
  return (unsigned)(name.data[name.len - 1] - '0');
}

static size_t frame_size(const message_s *m) {
  return m->data.len + sizeof(head_s);
}

static void frame_write(const message_s *m, char *out) {
  head_s h = {'M', (uint32_t)frame_size(m), m->id, 0,
              channel_number(m->channel)};
  memcpy(out, &h, sizeof h);
  memset(out + sizeof h, (int)(m->id & 0xff), m->data.len);
}

static void on_gap(reader_s *r, view_s channel, uint64_t from, uint64_t to,
                   bool is_slow) {
  (void)is_slow;
  conn_s *c = conn_of(r->uuid);
  head_s h = {'G', sizeof h, from, to, channel_number(channel)};
  c->queue = realloc(c->queue, c->queue_len + sizeof h);
  memcpy(c->queue + c->queue_len, &h, sizeof h);
  c->queue_len += sizeof h;
}

static const reader_kind_s kinds[2] = {{frame_size, frame_write, on_gap},
                                       {frame_size, frame_write, on_gap}};

/* ---- the engine -------------------------------------------------------- */

static uint64_t hash_of(view_s name) {
  uint64_t h = 14695981039346656037u;
  for (size_t i = 0; i < name.len; i++)
    h = (h ^ (uint8_t)name.data[i]) * 1099511628211u;
  return h & hash_mask;
}

static uint64_t watch(uint64_t hash, engine_ref_s *ref) {
  (void)hash;
  ref->opaque[0]++;
  watched++;
  return next_id - 1;
}

static void unwatch(uint64_t hash, engine_ref_s *ref) {
  (void)hash;
  cr_assert_gt(ref->opaque[0], 0);
  ref->opaque[0]--;
  watched--;
}

static view_s name_of(unsigned channel) {
  static char name[] = "channel-0";
  name[sizeof name - 2] = (char)('0' + channel);
  return view_of(name, sizeof name - 1);
}

static bool is_newer(uint64_t hash, uint64_t id) {
  for (uint64_t i = next_id - 1; i > id && i >= 1000; i--)
    if (hash_of(name_of(messages[i - 1000].channel)) == hash)
      return true;
  return false;
}

static uint64_t watch_all(void) {
  watched++;
  return next_id - 1;
}

static void unwatch_all(void) {
  watched--;
}

static uint64_t delivered(void) {
  return next_id - 1;
}

/* Channels from 3 on keep their last messages, where a test says so. */
static unsigned kept; /* of each; 0: nothing is kept anywhere */

static bool keeps_number(unsigned channel) {
  return kept && channel >= 3;
}

static bool keeps(view_s channel) {
  return !memchr(channel.data, '*', channel.len) &&
         keeps_number(channel_number(channel));
}

/* The last id that was dropped from a channel. */
static uint64_t trim_mark(unsigned channel) {
  unsigned n = 0;
  for (uint64_t id = next_id - 1; id >= 1000; id--)
    if (messages[id - 1000].channel == channel && ++n > kept)
      return id;
  return 0;
}

static int read_kept(view_s name, uint64_t since, engine_limit_s limit,
                     engine_each_f each, void *arg, engine_read_s *out) {
  unsigned channel = channel_number(name);
  uint64_t trim = trim_mark(channel);
  *out = (engine_read_s){.cursor = since};
  if (since < trim) {
    out->gap_from = since + 1;
    out->gap_to = out->cursor = trim;
  }
  for (uint64_t id = out->cursor + 1; id < next_id; id++) {
    if (messages[id - 1000].channel != channel)
      continue;
    if (!limit.messages--) {
      out->has_more = true;
      return 0;
    }
    message_s m = {.channel = name,
                   .data = view_of(data, messages[id - 1000].len),
                   .id = id};
    if (!each(arg, &m)) {
      out->has_more = true;
      return 0;
    }
    out->cursor = id;
  }
  out->cursor = next_id - 1;
  return 0;
}

int defer(void (*func)(void *, void *), void *arg1, void *arg2) {
  (void)func, (void)arg1, (void)arg2;
  return -1;
}

static const engine_s fake = {.hash = hash_of,
                              .watch = watch,
                              .unwatch = unwatch,
                              .is_newer = is_newer,
                              .watch_all = watch_all,
                              .unwatch_all = unwatch_all,
                              .delivered = delivered,
                              .now = delivered,
                              .keeps = keeps,
                              .read = read_kept};

/* ---- what the clients do ----------------------------------------------- */

static void conn_open(unsigned i) {
  conn_s *c = &conns[i];
  slots[i] = (slot_s){.uuid = (intptr_t)i + 1, .state = SLOT_OPEN};
  *c = (conn_s){.slot = &slots[i], .is_open = true, .room = SIZE_MAX / 2};
  reader_init(&c->reader, slots[i].uuid, &kinds[i % 3 == 0]);
}

static void conn_free(unsigned i) {
  conn_s *c = &conns[i];
  if (!c->is_open)
    return;
  reader_fini(&c->reader);
  slots[i].uuid = 0;
  facil_buf_unref(c->rest);
  free(c->queue);
  free(c->out);
  c->is_open = false;
}

static void subscribe(conn_s *c, unsigned channel) {
  uint64_t cursor = 0;
  int r = reader_subscribe(&c->reader, name_of(channel), &cursor);
  cr_assert_eq(r, c->is_subscribed[channel] ? -1 : 0);
  if (r == 0)
    c->cursor[channel] = next_id - 1;
  cr_assert_leq(cursor, next_id - 1);
  c->is_subscribed[channel] = true;
}

static void unsubscribe(conn_s *c, unsigned channel) {
  int r = reader_unsubscribe(&c->reader, name_of(channel));
  cr_assert_eq(r, c->is_subscribed[channel] ? 0 : -1);
  c->is_subscribed[channel] = false;
}

static void publish_as(unsigned channel, size_t len, intptr_t origin,
                       bool is_lost) {
  if (keeps_number(channel)) /* the store does not know who sent it */
    origin = 0;
  uint64_t id = next_id++;
  cr_assert_lt(id - 1000, IDS);
  messages[id - 1000].channel = (uint8_t)channel;
  messages[id - 1000].origin = origin;
  messages[id - 1000].is_lost = is_lost;
  messages[id - 1000].len = (uint32_t)len;
  view_s name = name_of(channel);
  message_s m = {.channel = name,
                 .data = view_of(data, len),
                 .origin = origin,
                 .id = id,
                 .hash = hash_of(name)};
  if (!is_lost)
    pubsub_deliver(&m);
}

static void publish(unsigned channel, size_t len) {
  publish_as(channel, len, 0, false);
}

/* ---- the phases of a turn ---------------------------------------------- */

static void flush_phase(uint32_t slice) {
  for (unsigned i = 0; i < CONNS; i++)
    if (slots[i].uuid && slots[i].want_ready)
      sock_flush(&slots[i], true);
  set_ready_slice(slice);
  for (size_t i = 0; i < batched; i++) {
    conn_s *c = batch[i].conn;
    c->slot->in_batch = false;
    send_offer(c, &batch[i].iov, &batch[i].owner, 1);
  }
  batched = 0;
}

static bool turn(uint32_t slice) {
  pubsub_turn();
  bool can_take = pubsub_can_take();
  flush_phase(slice);
  return can_take;
}

static void give_room(conn_s *c, size_t room) {
  c->room = room;
  c->slot->blocked = false;
  c->slot->want_ready = true;
}

/* ---- is it what was promised? ------------------------------------------ */

/* The next message of a channel above `id` that the connection is owed. */
static uint64_t owed_after(const conn_s *c, unsigned channel, uint64_t id) {
  for (id++; id < next_id; id++)
    if (messages[id - 1000].channel == channel &&
        messages[id - 1000].origin != c->slot->uuid)
      return id;
  return 0;
}

static uint64_t last_on(unsigned channel, uint64_t upto) {
  for (uint64_t id = upto; id >= 1000; id--)
    if (messages[id - 1000].channel == channel)
      return id;
  return 0;
}

/* Read what left since the last look. NULL, or what is wrong. */
static const char *check(conn_s *c) {
  while (c->out_len - c->parsed >= sizeof(head_s)) {
    head_s h;
    memcpy(&h, c->out + c->parsed, sizeof h);
    if ((h.kind != 'M' && h.kind != 'G') || h.channel >= CHANNELS)
      return "no frame begins here";
    if (c->out_len - c->parsed < h.len)
      return NULL;
    const char *bytes = c->out + c->parsed + sizeof h;
    c->parsed += h.len;
    if (!c->is_subscribed[h.channel] && h.id <= c->last)
      return "twice";
    if (h.kind == 'G') {
      uint64_t missing = owed_after(c, h.channel, c->cursor[h.channel]);
      if (!c->is_subscribed[h.channel])
        continue; /* left meanwhile */
      if (h.id > h.to || h.to >= next_id)
        return "a gap of nothing, or of the future";
      if (h.id > missing && missing)
        return "a gap that begins behind what is missing";
      if (last_on(h.channel, h.to) <= c->cursor[h.channel])
        return "a gap in which there is nothing";
      if (h.id <= c->cursor[h.channel])
        return "a gap over what it had";
      c->cursor[h.channel] = h.to;
      continue;
    }
    /* who catches up does so channel by channel */
    if (!kept && h.id <= c->last)
      return "not in order of id";
    c->last = h.id;
    if (messages[h.id - 1000].channel != h.channel ||
        messages[h.id - 1000].len != h.len - sizeof h ||
        (messages[h.id - 1000].is_lost && !keeps_number(h.channel)))
      return "another message";
    if (messages[h.id - 1000].origin == c->slot->uuid)
      return "its own, which it did not want";
    for (size_t i = 0; i < h.len - sizeof h; i++)
      if (bytes[i] != (char)(h.id & 0xff))
        return "damaged";
    if (!c->is_subscribed[h.channel])
      continue;
    if (owed_after(c, h.channel, c->cursor[h.channel]) != h.id)
      return "one is missing, and no gap was told";
    c->cursor[h.channel] = h.id;
  }
  return NULL;
}

/* Everything is read: nothing may be owed, and nothing kept. */
static const char *settle(void) {
  for (unsigned i = 0; i < CONNS; i++)
    if (conns[i].is_open)
      give_room(&conns[i], SIZE_MAX / 2);
  for (int t = 0; t < 4000; t++) {
    bool is_done = true;
    for (unsigned i = 0; i < CONNS; i++)
      if (conns[i].is_open && (slots[i].blocked || slots[i].want_ready ||
                               conns[i].rest || conns[i].queue_len)) {
        give_room(&conns[i], SIZE_MAX / 2);
        is_done = false;
      }
    turn(UINT32_MAX);
    if (is_done && !set_has_ready())
      break;
  }
  turn(UINT32_MAX);
  turn(UINT32_MAX);
  pubsub_stats_s s = pubsub_stats();
  if (s.tails || s.tail_bytes)
    return "a tail is kept that all have read";
  for (unsigned i = 0; i < CONNS; i++) {
    if (!conns[i].is_open)
      continue;
    const char *fault = check(&conns[i]);
    if (fault)
      return fault;
    if (conns[i].was_aborted)
      return "aborted";
    if (conns[i].parsed != conns[i].out_len)
      return "half a frame at the end";
    for (unsigned ch = 0; ch < CHANNELS; ch++)
      if (conns[i].is_subscribed[ch] &&
          owed_after(&conns[i], ch, conns[i].cursor[ch]))
        return "something is owed at the end";
  }
  return NULL;
}

static void world_begin(size_t tail_size, size_t tail_total) {
  pubsub_settings_s s = {tail_size, tail_total, 256};
  pubsub_set(&fake, &s);
}

static void world_end(void) {
  for (unsigned i = 0; i < CONNS; i++)
    conn_free(i);
  pubsub_turn();
  pubsub_stats_s s = pubsub_stats();
  cr_assert_eq(s.channels, 0);
  cr_assert_eq(s.subscriptions, 0);
  cr_assert_eq(s.tails, 0);
  cr_assert_eq(s.tail_bytes, 0);
  cr_assert_eq(watched, 0);
}

/* ---- tails ------------------------------------------------------------- */

static size_t received(const conn_s *c, uint32_t kind) {
  size_t n = 0;
  for (size_t at = 0; c->out_len - at >= sizeof(head_s);) {
    head_s h;
    memcpy(&h, c->out + at, sizeof h);
    n += h.kind == kind;
    at += h.len;
  }
  return n;
}

Test(tail, frames_of_every_size_arrive_whole_and_in_order) {
  world_begin(8 << 20, 64 << 20);
  conn_open(0);
  subscribe(&conns[0], 1);
  for (int round = 0; round < 2; round++) {
    give_room(&conns[0], round ? 1000 : 0); /* first as one lag, then so-so */
    for (size_t n = 1; n <= sizeof data; n = n < 40 ? n + 1 : n * 5 / 3)
      publish(1, n);
    publish(1, sizeof data);
    publish(1, 0);
  }
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'G'), 0);
  world_end();
}

Test(tail, every_place_in_it_is_found) {
  world_begin(1 << 20, 64 << 20);
  conn_open(0);
  subscribe(&conns[0], 1);
  give_room(&conns[0], 0);
  for (size_t n = 1; n <= 300; n++)
    publish(1, n * 7 % 61);
  flush_phase(UINT32_MAX);
  run_s *run = conns[0].reader.subs->run;
  uint64_t at = tail_start(run), id = 1000;
  cr_assert_eq(at, conns[0].reader.subs->at);
  for (; at < run->end; at++) {
    const frame_s *f = tail_frame(run, at);
    if (at >= f->end)
      cr_assert_fail("the frame ends before the place");
    cr_assert_eq(f->id, id);
    piece_s p = tail_piece(run, at, run->end);
    cr_assert(p.len > 0 && p.len <= run->end - at);
    head_s h;
    uint64_t begin = f->end - (sizeof h + messages[id - 1000].len);
    piece_s whole = tail_piece(run, begin, f->end);
    cr_assert_eq(whole.len, f->end - begin, "a frame in two chunks");
    memcpy(&h, whole.data, sizeof h);
    cr_assert_eq(h.id, id);
    cr_assert_eq(p.data, whole.data + (at - begin));
    if (at + 1 == f->end)
      id++;
  }
  cr_assert_eq(id, next_id);
  cr_assert_null(settle());
  world_end();
}

Test(tail, a_channel_without_news_holds_none) {
  world_begin(256 << 10, 64 << 20);
  for (unsigned i = 0; i < 3; i++) {
    conn_open(i);
    subscribe(&conns[i], i);
  }
  cr_assert_eq(pubsub_stats().tails, 0);
  publish(0, 10);
  publish(4, 10); /* which nobody reads */
  cr_assert_eq(pubsub_stats().tails, 1);
  flush_phase(UINT32_MAX);
  cr_assert_eq(pubsub_stats().tails, 1, "bytes of this turn's offers stay");
  pubsub_turn();
  cr_assert_eq(pubsub_stats().tails, 0);
  cr_assert_eq(pubsub_stats().tail_bytes, 0);
  cr_assert_null(settle());
  world_end();
}

Test(tail, a_tail_is_made_once_for_each_kind_that_is_there) {
  world_begin(256 << 10, 64 << 20);
  conn_open(1);
  conn_open(2);
  subscribe(&conns[1], 0);
  subscribe(&conns[2], 0);
  publish(0, 10);
  cr_assert_eq(pubsub_stats().tails, 1);
  conn_open(0); /* of the other kind */
  subscribe(&conns[0], 0);
  publish(0, 10);
  cr_assert_eq(pubsub_stats().tails, 2);
  cr_assert_null(settle());
  unsubscribe(&conns[1], 0);
  unsubscribe(&conns[2], 0);
  publish(0, 10);
  cr_assert_eq(pubsub_stats().tails, 1);
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'M'), 2);
  world_end();
}

Test(tail, it_is_trimmed_when_all_were_offered_what_it_holds_and_not_before) {
  world_begin(20000, 64 << 20);
  for (unsigned i = 0; i < 10; i++) {
    conn_open(i);
    subscribe(&conns[i], 0);
  }
  give_room(&conns[0], 0); /* one that is slow */
  for (int i = 0; i < 60; i++)
    publish(0, 1000);
  cr_assert_not(pubsub_can_take());
  cr_assert_gt(pubsub_stats().tail_bytes, 60000);
  while (set_has_ready()) {
    cr_assert_not(turn(3), "more is taken before all were offered this");
    publish(0, 1000); /* and when it comes all the same, nothing is lost */
    if (next_id > 1080)
      break;
  }
  flush_phase(UINT32_MAX);
  for (unsigned i = 1; i < 10; i++) {
    cr_assert_null(check(&conns[i]));
    cr_assert_eq(received(&conns[i], 'G'), 0);
  }
  for (int i = 0; i < 3; i++)
    (void)turn(UINT32_MAX);
  cr_assert(pubsub_can_take());
  cr_assert_lt(pubsub_stats().tail_bytes, 30000, "the slow one keeps it all");
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'G'), 1);
  world_end();
}

/* Its own answer left by the batch when the walk came by: it is not slow. */
Test(tail, a_quick_reader_that_was_busy_with_an_answer_loses_nothing) {
  world_begin(20000, 64 << 20);
  is_batching = true;
  for (unsigned i = 0; i < 2; i++) {
    conn_open(i);
    subscribe(&conns[i], 0);
  }
  for (unsigned round = 0; round < 30; round++) {
    pubsub_turn();
    if (pubsub_can_take())
      for (int i = 0; i < 40; i++)
        publish(0, 800);
    slots[0].in_batch = round % 2 == 0; /* its own answer is */
    flush_phase(UINT32_MAX);
    slots[0].in_batch = false;
  }
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'G'), 0);
  cr_assert_gt(received(&conns[0], 'M'), 400);
  world_end();
}

Test(tail, all_together_stay_under_the_total) {
  enum { TOTAL = 20000 };
  world_begin(1 << 20, TOTAL);
  for (unsigned i = 0; i < CHANNELS; i++) {
    conn_open(i);
    subscribe(&conns[i], i);
    give_room(&conns[i], 0);
  }
  for (int i = 0; i < 300; i++) {
    publish((unsigned)i % CHANNELS, 100);
    flush_phase(UINT32_MAX);
    cr_assert_lt(pubsub_stats().tail_bytes, TOTAL + 5000);
  }
  cr_assert_null(settle());
  for (unsigned i = 0; i < CHANNELS; i++)
    cr_assert_eq(received(&conns[i], 'G'), 1);
  world_end();
}

Test(tail, the_index_of_tiny_frames_is_counted) {
  world_begin(64 << 10, 64 << 20);
  conn_open(0);
  subscribe(&conns[0], 0);
  give_room(&conns[0], 0);
  for (int i = 0; i < 3000; i++) {
    publish(0, 0);
    flush_phase(UINT32_MAX);
  }
  cr_assert_lt(pubsub_stats().tail_bytes, 128 << 10);
  /* A frame of 32 bytes has an entry of 24 in the index. */
  cr_assert_lt(conns[0].reader.subs->run->end -
                   tail_start(conns[0].reader.subs->run),
               64 << 10);
  cr_assert_null(settle());
  world_end();
}

/* ---- readers ----------------------------------------------------------- */

Test(readers, more_pieces_than_one_offer_holds_follow_by_themselves) {
  world_begin(8 << 20, 64 << 20);
  conn_open(0);
  subscribe(&conns[0], 0);
  give_room(&conns[0], 0);
  for (int i = 0; i < 60; i++)
    publish(0, 70000);
  flush_phase(UINT32_MAX);
  give_room(&conns[0], SIZE_MAX / 2);
  for (int i = 0; i < 6; i++)
    flush_phase(UINT32_MAX);
  cr_assert_eq(received(&conns[0], 'M'), 60);
  cr_assert_null(settle());
  world_end();
}

Test(readers, channels_that_take_turns_come_in_order_of_id) {
  world_begin(256 << 10, 64 << 20);
  conn_open(0);
  for (unsigned ch = 0; ch < CHANNELS; ch++)
    subscribe(&conns[0], ch);
  give_room(&conns[0], 0);
  for (uint32_t i = 0, dice = 1; i < 500; i++) {
    dice = dice * 1664525u + 1013904223u;
    publish((dice >> 16) % CHANNELS, i % 40);
  }
  give_room(&conns[0], 10000); /* ends inside a frame and inside an offer */
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'M'), 500);
  world_end();
}

/* Every pattern of own and others' messages, and every short send. */
Test(readers, what_a_reader_does_not_want_back_is_stepped_over, .timeout = 60) {
  world_begin(256 << 10, 64 << 20);
  for (unsigned channels = 1; channels <= 2; channels++)
    for (unsigned pattern = 0; pattern < 64; pattern++)
      for (size_t room = 0; room <= 7 * 33; room += 11) {
        next_id = 1000;
        conn_open(0);
        for (unsigned ch = 0; ch < channels; ch++)
          subscribe(&conns[0], ch);
        for (unsigned i = 0; i < 6; i++)
          publish_as(i % channels, 1, pattern >> i & 1, false);
        give_room(&conns[0], room);
        flush_phase(UINT32_MAX);
        cr_assert_eq(room == 0 || conns[0].out_len <= room, 1);
        const char *fault = settle();
        cr_assert_null(fault, "%s: pattern %x room %zu", fault, pattern, room);
        cr_assert_eq(received(&conns[0], 'M'),
                     6u - (unsigned)__builtin_popcount(pattern));
        cr_assert_eq(conns[0].reader.subs->cursor >= 1004, 1);
        conn_free(0);
        pubsub_turn();
      }
  world_end();
}

Test(readers, only_messages_that_are_not_wanted_move_the_cursor) {
  world_begin(256 << 10, 64 << 20);
  conn_open(0);
  subscribe(&conns[0], 0);
  for (int i = 0; i < 50; i++)
    publish_as(0, 10, 1, false);
  cr_assert_eq(reader_cursor(&conns[0].reader), 0, "it lags");
  flush_phase(UINT32_MAX);
  cr_assert_eq(offers_made, 0);
  cr_assert_eq(reader_cursor(&conns[0].reader), next_id - 1);
  cr_assert_null(settle());
  world_end();
}

Test(readers, a_gap_ends_with_the_last_message_dropped) {
  world_begin(2048, 64 << 20);
  conn_open(0);
  subscribe(&conns[0], 0);
  publish(0, 10);
  flush_phase(UINT32_MAX);
  give_room(&conns[0], 0);
  uint64_t first = next_id;
  for (int i = 0; i < 100; i++) {
    publish(0, 400);
    publish(1, 10);
    turn(UINT32_MAX);
  }
  uint64_t dropped = tail_trimmed_id(conns[0].reader.subs->run);
  cr_assert_gt(dropped, first);
  give_room(&conns[0], SIZE_MAX / 2);
  flush_phase(UINT32_MAX);
  flush_phase(UINT32_MAX);
  head_s h;
  memcpy(&h, conns[0].out + sizeof h + 10, sizeof h);
  cr_assert_eq(h.kind, 'G');
  cr_assert_eq(h.id, first, "behind the last one that it got");
  cr_assert_eq(h.to, dropped);
  memcpy(&h, conns[0].out + 2 * sizeof h + 10, sizeof h);
  cr_assert_eq(h.kind, 'M');
  cr_assert_eq(h.id, dropped + 2, "the next one of the channel");
  cr_assert_null(settle());
  world_end();
}

Test(readers, a_begun_frame_outlives_its_tail) {
  world_begin(2048, 64 << 20);
  conn_open(0);
  subscribe(&conns[0], 0);
  give_room(&conns[0], 100);
  publish(0, 50000);
  flush_phase(UINT32_MAX);
  for (int i = 0; i < 40; i++) {
    publish(0, 3000);
    turn(UINT32_MAX);
  }
  for (int i = 0; i < 300; i++) {
    give_room(&conns[0], 301);
    turn(UINT32_MAX);
    cr_assert_null(check(&conns[0]));
  }
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'G'), 1);
  world_end();
}

Test(readers, who_leaves_in_the_middle_of_a_lag_lets_the_tail_go) {
  world_begin(256 << 10, 64 << 20);
  conn_open(0);
  conn_open(1);
  subscribe(&conns[0], 0);
  subscribe(&conns[1], 0);
  give_room(&conns[0], 0);
  for (int i = 0; i < 10; i++)
    publish(0, 1000);
  turn(UINT32_MAX);
  turn(UINT32_MAX);
  cr_assert_eq(pubsub_stats().tails, 1, "the slow one needs it");
  unsubscribe(&conns[0], 0);
  pubsub_turn();
  cr_assert_eq(pubsub_stats().tails, 0);
  subscribe(&conns[0], 0);
  publish(0, 10);
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'M'), 1, "what came before is not its");
  world_end();
}

Test(readers, leaving_and_closing_in_the_middle_of_a_walk_is_harmless) {
  world_begin(256 << 10, 64 << 20);
  for (unsigned i = 0; i < CONNS; i++) {
    conn_open(i);
    subscribe(&conns[i], 0);
    subscribe(&conns[i], 1);
  }
  for (unsigned i = 0; i < CONNS; i += 2) {
    publish(0, 100);
    publish(1, 100);
    flush_phase(3);
    unsubscribe(&conns[i], 0);
    conn_free(i + 1);
    flush_phase(1);
    subscribe(&conns[i], 2);
    publish(2, 10);
  }
  cr_assert_null(settle());
  world_end();
}

Test(readers, one_bucket_keeps_names_apart) { /* core.md 4.15, 38 */
  hash_mask = 0;
  world_begin(256 << 10, 64 << 20);
  for (unsigned i = 0; i < CONNS; i++) {
    conn_open(i);
    subscribe(&conns[i], i % CHANNELS);
  }
  for (unsigned i = 0; i < 100; i++)
    publish(i % CHANNELS, i);
  cr_assert_null(settle());
  for (unsigned i = 0; i < CONNS; i++)
    cr_assert_eq(received(&conns[i], 'M'), i % CHANNELS < 4 ? 17 : 16);
  world_end();
}

Test(readers, ten_thousand_names_that_collide_are_told_apart, .timeout = 60) {
  hash_mask = 0xfff; /* of the 64 bits: 4,096 hashes, each thrice or so */
  world_begin(256 << 10, 64 << 20);
  static reader_s readers[10000];
  conn_open(0);
  for (unsigned i = 0; i < 10000; i++) {
    char name[32];
    int n = snprintf(name, sizeof name, "name-%u", i);
    uint64_t cursor;
    reader_init(&readers[i], 1, &kinds[0]);
    cr_assert_eq(
        reader_subscribe(&readers[i], view_of(name, (size_t)n), &cursor), 0);
    cr_assert_eq(
        reader_subscribe(&readers[i], view_of(name, (size_t)n), &cursor), -1);
    cr_assert_eq(errno, EEXIST);
  }
  cr_assert_eq(pubsub_stats().channels, 10000);
  for (unsigned i = 0; i < 10000; i++) {
    char name[32];
    int n = snprintf(name, sizeof name, "name-%u", i);
    cr_assert(view_eq(reader_channel(&readers[i]), view_of(name, (size_t)n)));
    reader_fini(&readers[i]);
  }
  world_end();
}

Test(readers, a_connection_has_no_more_than_its_share_of_channels) {
  pubsub_settings_s s = {256 << 10, 64 << 20, 2};
  pubsub_set(&fake, &s);
  conn_open(0);
  subscribe(&conns[0], 0);
  subscribe(&conns[0], 1);
  uint64_t cursor;
  cr_assert_eq(reader_subscribe(&conns[0].reader, name_of(2), &cursor), -1);
  cr_assert_eq(errno, ENOSPC);
  cr_assert_eq(pubsub_stats().channels, 2);
  cr_assert_eq(reader_unsubscribe(&conns[0].reader, name_of(2)), -1);
  cr_assert_eq(errno, ENOENT);
  unsubscribe(&conns[0], 0);
  subscribe(&conns[0], 2);
  world_end();
}

/* ---- laps -------------------------------------------------------------- */

Test(laps, readers_of_channels_that_had_messages_are_told_and_no_others) {
  world_begin(256 << 10, 64 << 20);
  for (unsigned i = 0; i < 4; i++)
    conn_open(i);
  publish(2, 10); /* long ago: before anybody was there */
  subscribe(&conns[0], 0);
  subscribe(&conns[1], 1);
  subscribe(&conns[2], 2);
  subscribe(&conns[3], 0);
  subscribe(&conns[3], 1);
  publish(0, 10);
  publish(1, 10);
  cr_assert_null(settle());
  publish_as(0, 10, 0, true);
  publish_as(3, 10, 0, true);
  publish_as(0, 10, 0, true);
  uint64_t to = next_id - 1;
  pubsub_lapped(to);
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'G'), 1);
  cr_assert_eq(received(&conns[1], 'G'), 0);
  cr_assert_eq(received(&conns[2], 'G'), 0, "it lacks nothing");
  cr_assert_eq(received(&conns[3], 'G'), 1);
  publish(0, 10);
  publish(2, 10);
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'M'), 2);
  cr_assert_eq(received(&conns[2], 'M'), 1);
  cr_assert_eq(conns[0].cursor[0], next_id - 2);
  world_end();
}

Test(laps, a_slow_reader_is_told_one_gap_for_all_that_it_lacks) {
  world_begin(256 << 10, 64 << 20);
  conn_open(0);
  subscribe(&conns[0], 0);
  give_room(&conns[0], 50);
  publish(0, 10);
  publish(0, 10);
  publish(0, 10);
  flush_phase(UINT32_MAX);
  for (int i = 0; i < 3; i++) {
    publish_as(0, 10, 0, true);
    pubsub_lapped(next_id - 1);
  }
  publish(0, 10);
  cr_assert_null(settle());
  cr_assert_eq(received(&conns[0], 'M'), 3);
  cr_assert_eq(received(&conns[0], 'G'), 1);
  world_end();
}

/* ---- at random --------------------------------------------------------- */

static uint32_t dice_state;

static uint32_t dice(uint32_t n) {
  dice_state = dice_state * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)(dice_state >> 8) * n) >> 24);
}

static size_t some_size(void) {
  switch (dice(20)) {
  case 0:
    return 60000 + dice(20000);
  case 1:
  case 2:
    return 3000 + dice(3000);
  default:
    return dice(300);
  }
}

static void random_step(void) {
  unsigned i = dice(CONNS), channel = dice(CHANNELS);
  conn_s *c = &conns[i];
  switch (dice(16)) {
  case 0:
    if (c->is_open && dice(4) == 0)
      conn_free(i);
    else if (!c->is_open)
      conn_open(i);
    break;
  case 1:
    if (c->is_open && !c->is_subscribed[channel]) {
      subscribe(c, channel);
      if (keeps_number(channel) && next_id > 1010 && dice(2)) {
        c->cursor[channel] = next_id - 1 - dice(10);
        cr_assert_eq(
            reader_rewind(&c->reader, name_of(channel), c->cursor[channel]), 0);
      }
    }
    break;
  case 2:
    if (c->is_open && dice(3) == 0) {
      cr_assert_null(check(c));
      if (!c->is_subscribed[channel] || c->parsed == c->out_len)
        unsubscribe(c, channel);
    }
    break;
  case 3:
  case 4:
  case 5:
    if (c->is_open)
      give_room(c, dice(3) ? dice(5000) : 500000);
    break;
  case 6:
    /* where hashes are shared, a lap is told to more than it concerns */
    if (hash_mask > 1 && next_id - 1000 < IDS - 200 && dice(30) == 0) {
      for (uint32_t n = dice(5); n--;)
        publish_as(dice(CHANNELS), 10, 0, true);
      pubsub_lapped(next_id - 1);
    }
    break;
  default:
    if (turn(dice(4) ? dice(20) : UINT32_MAX))
      for (uint32_t n = dice(6); n-- && next_id - 1000 < IDS - 100;)
        publish_as(dice(CHANNELS), some_size(),
                   dice(5) ? 0 : (intptr_t)dice(CONNS) + 1, false);
  }
}

static void at_random(unsigned keep) {
  const char *soak = getenv("CRIER_SOAK");
  kept = keep;
  uint32_t seeds = soak && *soak == '1' ? 20000 : 300;
  for (uint32_t seed = 1; seed <= seeds; seed++) {
    dice_state = seed;
    next_id = 1000;
    is_batching = seed & 1;
    hash_mask = seed & 2 ? UINT64_MAX : 1;
    static const size_t sizes[] = {1000, 8000, 60000, 256 << 10};
    world_begin(sizes[seed % 4], seed % 5 ? 64 << 20 : 30000);
    for (int step = 0; step < 400; step++) {
      random_step();
      for (unsigned i = 0; i < CONNS; i++) {
        const char *fault = conns[i].is_open ? check(&conns[i]) : NULL;
        cr_assert_null(fault, "seed %u step %d conn %u: %s", seed, step, i,
                       fault);
      }
    }
    const char *fault = settle();
    cr_assert_null(fault, "seed %u: %s", seed, fault);
    world_end();
  }
}

Test(readers, get_each_message_once_in_order_or_are_told, .timeout = 120) {
  at_random(0);
}

Test(readers, get_what_was_kept_too, .timeout = 120) {
  at_random(30);
}

Test(readers, are_told_of_what_was_kept_and_dropped, .timeout = 120) {
  at_random(3);
}
