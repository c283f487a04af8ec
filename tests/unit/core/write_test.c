/* write_test.c - the write queue and offers: accepted bytes leave once and in
 * order, whole frames only, and what was handed over is ended once. The client
 * side checks by itself what it gets: it knows nothing of the queue. */
#include "core_support.h"
#include <criterion/criterion.h>
#include <netinet/tcp.h>
#include <unistd.h>

static int client;
static intptr_t conn;
static probe_s *probe;
static uint64_t seed;
static int turn;

static void small_buffers(intptr_t uuid, int peer) {
  int size = 65536; /* less than a packet of loopback only makes it slow */
  setsockopt(sock_uuid2fd(uuid), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  size = 400000;
  setsockopt(peer, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
}

static void one_begin(void) {
  probe = probe_new(&probe_ops, 0);
  conn = pair_with(&client, probe);
  small_buffers(conn, client);
}

/* ---- frames, and their checker
 * -------------------------------------------------- */

/* A frame: length of all, kind, number; then bytes that follow from these. */
typedef struct {
  uint32_t len, kind, number;
} head_s;

enum { ORDINARY, URGENT, OFFERED, KINDS };

static void frame_write(char *out, uint32_t len, uint32_t kind,
                        uint32_t number) {
  head_s h = {len, kind, number};
  memcpy(out, &h, sizeof h);
  for (uint32_t i = sizeof h; i < len; i++)
    out[i] = (char)(number * 31 + i * 7 + kind);
}

static struct {
  char buf[1 << 16];
  head_s head;
  uint32_t have; /* of the frame */
  uint32_t next[KINDS];
  size_t bytes;
  bool ended;
  uint32_t order[64], order_count; /* kinds as they came */
} got;

static void got_byte(char c) {
  if (got.have < sizeof got.head) {
    ((char *)&got.head)[got.have++] = c;
    if (got.have < sizeof got.head)
      return;
    cr_assert_lt(got.head.kind, KINDS, "no frame begins here");
    cr_assert_geq(got.head.len, sizeof got.head);
    cr_assert_eq(got.head.number, got.next[got.head.kind]++,
                 "kind %u: out of order, lost or twice", got.head.kind);
    if (got.order_count < 64)
      got.order[got.order_count++] = got.head.kind;
  } else {
    char want = (char)(got.head.number * 31 + got.have * 7 + got.head.kind);
    cr_assert_eq(c, want, "a frame has foreign bytes");
    got.have++;
  }
  if (got.have == got.head.len)
    got.have = 0;
}

/* Read at most `max` bytes of what is there. */
static void client_reads(size_t max) {
  while (max && !got.ended) {
    ssize_t n =
        read(client, got.buf, max < sizeof got.buf ? max : sizeof got.buf);
    if (n < 0 && errno == EAGAIN)
      return;
    cr_assert_geq(n, 0, "errno %d", errno);
    got.ended = n == 0;
    for (ssize_t i = 0; i < n; i++)
      got_byte(got.buf[i]);
    got.bytes += (size_t)n;
    max -= (size_t)n;
  }
}

/* ---- 11: the queue
 * --------------------------------------------------------------- */

static int moved_live;
static uint32_t queued[KINDS];
static size_t accepted;

static void moved_end(void *p) {
  moved_live--;
  free(p);
}

static uint32_t some_length(void) {
  static const uint32_t lengths[] = {12,   13,    100,   999,   1000,  1001,
                                     1012, 16384, 16385, 40000, 300000};
  return lengths[dice(&seed, sizeof lengths / sizeof *lengths)];
}

static void write_some(void) {
  uint32_t kind = dice(&seed, 4) == 0 ? URGENT : ORDINARY, len = some_length();
  if (dice(&seed, 1200) == 0)
    len = 20 << 20;
  int how = (int)dice(&seed, 3), r;
  size_t before = sock_pending(conn);
  if (how == 2) {
    facil_buf_s *b = facil_buf_new(len);
    frame_write(b->data, len, kind, queued[kind]);
    b->len = len;
    r = sock_write2(.uuid = conn, .shared = b, .urgent = kind == URGENT);
  } else {
    char *data = malloc(len);
    frame_write(data, len, kind, queued[kind]);
    moved_live += how;
    r = sock_write2(.uuid = conn, .data = data, .len = len, .move = how,
                    .dealloc = how ? moved_end : NULL,
                    .urgent = kind == URGENT);
    if (!how)
      free(data);
  }
  if (r == 0) {
    queued[kind]++;
    accepted += len;
    cr_assert_eq(sock_pending(conn), before + len);
  } else {
    cr_assert_eq(errno, ENOBUFS);
    cr_assert_geq(before, (size_t)16 << 20);
    cr_assert_eq(sock_pending(conn), before);
  }
}

static bool queue_step(void) {
  if (turn++ < 2500) {
    for (uint32_t n = dice(&seed, 4); n; n--)
      write_some();
    cr_assert_eq(sock_write(conn, NULL, 0), 0, "nothing is success");
    moved_live++;
    cr_assert_eq(sock_write2(.uuid = conn, .data = malloc(1), .len = 0,
                             .move = true, .dealloc = moved_end),
                 0);
    client_reads(dice(&seed, 400000));
    return false;
  }
  client_reads(SIZE_MAX);
  return sock_pending(conn) == 0 && got.bytes == accepted;
}

static void try_queue(bool plain) {
  plain_send = plain;
  seed = 11;
  run_script(one_begin, queue_step);
  cr_assert_eq(got.bytes, accepted);
  cr_assert_eq(got.next[ORDINARY], queued[ORDINARY]);
  cr_assert_eq(got.next[URGENT], queued[URGENT]);
  cr_assert_gt(queued[URGENT], 100);
  cr_assert_eq(moved_live, 0, "what was moved is ended once each");
}

Test(queue, the_stream_is_what_was_written_whatever_lengths_and_kinds,
     .timeout = 25) {
  try_queue(true);
}

Test(queue, the_same_stream_with_io_uring, .timeout = 25) {
  try_queue(false);
}

/* A big one is begun; then ordinary, urgent, urgent. */
static void queue_frame(uint32_t len, uint32_t kind) {
  char *data = malloc(len);
  frame_write(data, len, kind, queued[kind]++);
  moved_live++;
  cr_assert_eq(sock_write2(.uuid = conn, .data = data, .len = len, .move = true,
                           .dealloc = moved_end, .urgent = kind == URGENT),
               0);
}

static bool urgent_step(void) {
  switch (turn++) {
  case 0:
    queue_frame(8 << 20, ORDINARY);
    break;
  case 3:
    cr_assert(sock_is_blocked(conn));
    cr_assert_lt(sock_pending(conn), (size_t)8 << 20, "it is begun");
    queue_frame(2000, ORDINARY);
    queue_frame(50, URGENT);
    queue_frame(5000, URGENT);
    queue_frame(20, ORDINARY);
    break;
  }
  if (turn > 4)
    client_reads(SIZE_MAX);
  return got.next[ORDINARY] == 3 && got.have == 0;
}

Test(queue, urgent_writes_go_behind_what_is_begun_in_their_own_order) {
  run_script(one_begin, urgent_step);
  static const uint32_t want[] = {ORDINARY, URGENT, URGENT, ORDINARY, ORDINARY};
  cr_assert_eq(got.order_count, 5);
  cr_assert_arr_eq(got.order, want, sizeof want);
  cr_assert_eq(moved_live, 0);
}

/* Urgent to a queue of which nothing has left: before all. */
static bool first_step(void) {
  if (turn++ == 0) {
    queue_frame(2000, ORDINARY);
    queue_frame(50, URGENT);
  }
  client_reads(SIZE_MAX);
  return got.next[ORDINARY] == 1 && got.have == 0;
}

Test(queue, an_urgent_write_goes_before_what_is_not_begun) {
  run_script(one_begin, first_step);
  cr_assert_eq(got.order[0], URGENT);
}

/* With a stopped reader and io_uring: the refused head has not begun. */
static bool refused_step(void) {
  static int fill;
  switch (fill) {
  case 0: { /* the kernel's buffers are filled behind the core's back */
    char zeros[4096] = {0};
    while (send(sock_uuid2fd(conn), zeros, sizeof zeros, MSG_DONTWAIT) > 0)
      ;
    fill++;
    queue_frame(2000, ORDINARY);
    return false;
  }
  case 1:
  case 2:
    fill++;
    return false;
  case 3:
    cr_assert(sock_is_blocked(conn));
    cr_assert_eq(sock_pending(conn), 2000);
    queue_frame(50, URGENT);
    fill++;
    return false;
  }
  char c;
  while (read(client, &c, 1) == 1)
    if (c || got.have || got.order_count)
      got_byte(c);
  return got.next[ORDINARY] == 1 && got.have == 0;
}

static void try_refused(bool plain) {
  plain_send = plain;
  run_script(one_begin, refused_step);
  cr_assert_eq(got.order[0], URGENT);
}

Test(queue, a_refused_send_has_begun_nothing) {
  try_refused(true);
}

Test(queue, a_send_refused_in_a_batch_has_begun_nothing) {
  try_refused(false);
}

/* The limit. */
static bool limit_step(void) {
  static int i;
  if (turn++ < 3)
    return false;
  if (turn == 4)
    sock_set_queue_limit(100000);
  for (; i < 1000; i++) {
    char data[10000] = {0};
    size_t before = sock_pending(conn);
    moved_live++;
    int r = sock_write2(.uuid = conn, .data = malloc(10000), .len = 10000,
                        .move = true, .dealloc = moved_end);
    cr_assert_eq(r == 0, before < 100000, "at %zu", before);
    if (r < 0) {
      cr_assert_eq(errno, ENOBUFS);
      cr_assert_eq(sock_write(conn, data, 1), -1);
      cr_assert_eq(errno, ENOBUFS);
      return true;
    }
  }
  return false;
}

Test(queue, a_full_queue_refuses_more_and_frees_what_it_refused) {
  run_script(one_begin, limit_step);
  cr_assert_eq(moved_live, 0);
}

/* Every way out ends moved data once: sent, closed with, lost with, refused. */
static bool lost_step(void) {
  switch (turn++) {
  case 0:
    for (int i = 0; i < 20; i++)
      queue_frame(300000, i % 3 ? ORDINARY : URGENT);
    return false;
  case 2:
    sock_close(conn);
    moved_live++;
    errno = 0;
    cr_assert_eq(sock_write2(.uuid = conn, .data = malloc(5), .len = 5,
                             .move = true, .dealloc = moved_end),
                 -1);
    cr_assert_eq(errno, EPIPE);
    return false;
  case 4:
    cr_assert_gt(moved_live, 0);
    sock_abort(conn, "the test");
    return false;
  case 6:
    cr_assert_eq(moved_live, 0);
    return true;
  }
  return false;
}

Test(queue, moved_data_of_a_lost_connection_is_ended_once) {
  run_script(one_begin, lost_step);
  cr_assert_eq(moved_live, 0);
  cr_assert_eq(tally[0].close, 1);
}

/* sock_close with a full queue: all of it arrives, then the end. */
static bool close_step(void) {
  if (turn++ == 0) {
    for (int i = 0; i < 30; i++)
      queue_frame(some_length(), ORDINARY);
    sock_close(conn);
  }
  client_reads(dice(&seed, 20000));
  return got.ended;
}

static void try_close(bool plain) {
  plain_send = plain;
  seed = 2;
  run_script(one_begin, close_step);
  cr_assert_eq(got.next[ORDINARY], 30);
  cr_assert_eq(got.have, 0);
}

Test(queue, close_sends_what_is_queued_and_then_ends) {
  try_close(true);
}

Test(queue, close_sends_what_is_queued_with_io_uring_too) {
  try_close(false);
}

/* ---- 10: half-close
 * ---------------------------------------------------------------- */

#define REPLY (2u << 20)

static void answer_at_end(intptr_t uuid, probe_s *p) {
  (void)p;
  char waste[16384];
  ssize_t n;
  while ((n = sock_read(uuid, waste, sizeof waste)) > 0)
    ;
  if (n == 0)
    return;
  cr_assert_eq(errno, ESHUTDOWN);
  cr_assert_eq(sock_read(uuid, waste, 1), -1, "said again");
  cr_assert_eq(errno, ESHUTDOWN);
  queue_frame(REPLY, ORDINARY);
}

static void answer_begin(void) {
  one_begin();
  probe->on_data = answer_at_end;
}

static bool half_step(void) {
  if (turn++ == 0) {
    cr_assert_eq(write(client, "request", 7), 7);
    shutdown(client, SHUT_WR);
  }
  client_reads(30000);
  return got.ended;
}

Test(half_close,
     a_client_that_ended_its_half_gets_the_whole_reply_and_the_end) {
  run_script(answer_begin, half_step);
  cr_assert_eq(got.bytes, REPLY);
  cr_assert_eq(tally[0].close, 1);
  cr_assert_eq(moved_live, 0);
}

/* The protocol wants to go on after the peer's end. */
static void half_data(intptr_t uuid, probe_s *p) {
  probe_read_all(uuid, p);
}

static bool half_open_step(void) {
  switch (turn++) {
  case 0:
    shutdown(client, SHUT_WR);
    return false;
  case 20:
    cr_assert_eq(tally[0].close, 0);
    cr_assert_leq(tally[0].data, 2, "no spinning on a half that ended");
    queue_frame(3000, ORDINARY);
    return false;
  case 40:
    cr_assert_eq(sock_close(conn), 0);
    return false;
  }
  client_reads(30000);
  return got.ended;
}

static void half_begin(void) {
  probe = probe_new(&probe_half_ops, 0);
  probe->on_data = half_data;
  conn = pair_with(&client, probe);
}

Test(half_close, a_half_open_protocol_writes_on_and_ends_when_it_likes) {
  run_script(half_begin, half_open_step);
  cr_assert_eq(got.bytes, 3000);
}

/* What the client sent too much must not destroy the reply: with unread bytes
 * in it a socket's close is a reset. */
static void answer_and_close(intptr_t uuid, probe_s *p) {
  (void)p;
  char c;
  cr_assert_eq(sock_read(uuid, &c, 1), 1);
  queue_frame(300000, ORDINARY);
  sock_close(uuid);
}

static void unread_begin(void) {
  probe = probe_new(&probe_ops, 0);
  probe->on_data = answer_and_close;
  conn = pair_with(&client, probe);
  int size = 1 << 20;
  setsockopt(sock_uuid2fd(conn), SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  setsockopt(sock_uuid2fd(conn), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  setsockopt(client, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
}

static bool unread_step(void) {
  if (turn++ == 0) {
    char *much = calloc(1, 400000);
    ssize_t n = 0, k;
    while (n < 400000 && (k = write(client, much, (size_t)(400000 - n))) > 0)
      n += k;
    free(much);
    cr_assert_gt(n, 100000);
    shutdown(client, SHUT_WR);
  }
  if (turn > 200)
    client_reads(2000);
  return got.ended;
}

Test(half_close, input_that_nobody_reads_does_not_destroy_the_reply) {
  run_script(unread_begin, unread_step);
  cr_assert_eq(got.bytes, 300000);
}

/* ---- offers
 * -------------------------------------------------------------------------- */

#define TAIL_BUFS 400

/* A tail: buffers of frames. What the cursor has passed is given back at once,
 * so the connection must hold what it still needs. */
static struct {
  facil_buf_s *buf[TAIL_BUFS];
  size_t ends[TAIL_BUFS][64]; /* of frames */
  int frames[TAIL_BUFS], count;
  int at_buf;
  size_t at;
  int offers, answers, shorts, by_copy, by_reference;
  bool stop;
  size_t offered;
} tail;

static void tail_make(void) {
  for (int i = 0; i < TAIL_BUFS; i++) {
    int frames = 1 + (int)dice(&seed, 12);
    size_t len = 0;
    uint32_t lens[64];
    for (int f = 0; f < frames; f++) {
      static const uint32_t most[] = {40, 600, 4000, 9000, 60000};
      lens[f] = 12 + dice(&seed, most[dice(&seed, 5)]);
      len += lens[f];
      tail.ends[i][f] = len;
    }
    tail.frames[i] = frames;
    tail.buf[i] = facil_buf_new(len);
    size_t at = 0;
    for (int f = 0; f < frames; f++) {
      frame_write(tail.buf[i]->data + at, lens[f], OFFERED, queued[OFFERED]++);
      at += lens[f];
    }
    tail.buf[i]->len = len;
  }
  tail.count = TAIL_BUFS;
}

static void offer_more(intptr_t uuid, probe_s *p) {
  (void)p;
  struct iovec iov[SOCK_OFFER_MAX];
  facil_buf_s *owner[SOCK_OFFER_MAX];
  int max = 1 + (int)dice(&seed, dice(&seed, 2) ? 1 : SOCK_OFFER_MAX), n = 0;
  tail.offered = 0;
  for (int b = tail.at_buf; b < tail.count && n < max; b++, n++) {
    size_t from = b == tail.at_buf ? tail.at : 0;
    iov[n] = (struct iovec){tail.buf[b]->data + from, tail.buf[b]->len - from};
    owner[n] = tail.buf[b];
    tail.offered += iov[n].iov_len;
  }
  if (!n || tail.stop)
    return;
  cr_assert_eq(tail.offers, tail.answers, "one offer at a time");
  if (dice(&seed, 5) == 0) /* it writes as well: that goes first */
    queue_frame(12 + dice(&seed, 3000), dice(&seed, 2) ? ORDINARY : URGENT);
  cr_assert_eq(sock_offer(uuid, iov, owner, n), 0);
  cr_assert_eq(sock_offer(uuid, iov, owner, n), -1, "once a call");
  cr_assert_eq(errno, EINVAL);
  tail.offers++;
}

/* Given back in the next turn, as a protocol may. */
static facil_buf_s *grave[TAIL_BUFS];
static int graves;

static void bury(facil_buf_s *b) {
  grave[graves++] = b;
}

static void grave_empty(void) {
  while (graves)
    facil_buf_unref(grave[--graves]);
}

static void tail_pass(size_t bytes) {
  while (bytes) {
    size_t left = tail.buf[tail.at_buf]->len - tail.at;
    size_t n = bytes < left ? bytes : left;
    tail.at += n;
    bytes -= n;
    if (tail.at == tail.buf[tail.at_buf]->len) {
      bury(tail.buf[tail.at_buf]);
      tail.buf[tail.at_buf++] = NULL;
      tail.at = 0;
    }
  }
}

static size_t offer_answer(intptr_t uuid, probe_s *p, size_t sent) {
  (void)p;
  tail.answers++;
  cr_assert_leq(sent, tail.offered);
  tail.shorts += sent < tail.offered;
  /* How far into a frame? */
  int b = tail.at_buf;
  size_t at = tail.at + sent, rest = 0;
  while (b < tail.count && at >= tail.buf[b]->len)
    at -= tail.buf[b++]->len;
  if (b < tail.count && (at || b > tail.at_buf || sent)) {
    size_t begun = 0;
    for (int f = 0; f < tail.frames[b]; f++) {
      if (at > begun && at < tail.ends[b][f]) {
        rest = tail.ends[b][f] - at;
        break;
      }
      begun = tail.ends[b][f];
    }
  }
  if (rest)
    *(rest <= 4096 ? &tail.by_copy : &tail.by_reference) += 1;
  tail_pass(sent + rest);
  if (tail.at_buf < tail.count)
    sock_want_ready(uuid);
  if (dice(&seed, 6) == 0)
    queue_frame(12 + dice(&seed, 300), dice(&seed, 2) ? ORDINARY : URGENT);
  return rest;
}

static void tail_end(void) {
  grave_empty();
  for (int i = tail.at_buf; i < tail.count; i++)
    facil_buf_unref(tail.buf[i]);
  tail.at_buf = tail.count;
}

static void offer_begin(void) {
  one_begin();
  probe->on_ready = offer_more;
  probe->on_sent = offer_answer;
  tail_make();
  sock_want_ready(conn);
}

static int close_at, abort_at;

static bool offer_step(void) {
  grave_empty();
  if (turn++ == close_at && close_at) {
    cr_assert_eq(sock_close(conn), 0);
    tail.stop = true;
  }
  if (turn == abort_at)
    sock_abort(conn, "the test");
  /* In bouts, so that the queue is empty now and then and offers are made. */
  static bool bout;
  static int offers_before;
  if (bout && sock_pending(conn) > 30000)
    bout = false, offers_before = tail.offers;
  if (tail.offers > offers_before + 2 || sock_pending(conn) == 0)
    bout = true;
  if (sock_isvalid(conn) && !tail.stop && bout) {
    if (dice(&seed, 4) == 0)
      queue_frame(12 + dice(&seed, 9000), dice(&seed, 2) ? ORDINARY : URGENT);
    if (dice(&seed, 9) == 0) { /* a reader may ask at any time */
      cr_assert_eq(sock_want_ready(conn), 0);
      cr_assert_eq(sock_offer(conn, NULL, NULL, 1), -1, "in on_ready only");
      cr_assert_eq(errno, EINVAL);
    }
  }
  client_reads(dice(&seed, 30) ? dice(&seed, 12000) : 200000);
  if (tail.at_buf == tail.count)
    tail.stop = true;
  return got.ended || abort_at ? turn > abort_at + 100 || got.ended
         : close_at            ? false
                    : tail.stop && !sock_pending(conn) && !got.have &&
                          got.next[OFFERED] == queued[OFFERED] &&
                          got.next[ORDINARY] == queued[ORDINARY];
}

static void try_offers(bool plain, uint64_t with, int closed_at) {
  plain_send = plain;
  seed = with;
  close_at = closed_at;
  run_script(offer_begin, offer_step);
  cr_log_info("offers %d short %d kept by copy %d by reference %d", tail.offers,
              tail.shorts, tail.by_copy, tail.by_reference);
  cr_assert_eq(tail.offers, tail.answers, "each offer is answered");
  cr_assert_eq(got.have, 0, "a frame was cut off");
  if (!closed_at) {
    cr_assert_eq(got.next[OFFERED], queued[OFFERED]);
    cr_assert_gt(tail.by_copy, 5);
    cr_assert_gt(tail.by_reference, 5);
  } else {
    cr_assert_lt(got.next[OFFERED], queued[OFFERED]);
    cr_assert(got.ended);
  }
  cr_assert_eq(got.next[ORDINARY], queued[ORDINARY]);
  cr_assert_eq(got.next[URGENT], queued[URGENT]);
  tail_end();
  cr_assert_eq(moved_live, 0);
}

Test(offer, frames_arrive_whole_and_in_order_with_writes_between) {
  try_offers(true, 1, 0);
}

Test(offer, frames_arrive_whole_and_in_order_by_io_uring) {
  try_offers(false, 2, 0);
}

static void try_close_at(int at, uint64_t with) {
  memset(&tail, 0, sizeof tail);
  memset(&got, 0, sizeof got);
  memset(queued, 0, sizeof queued);
  turn = 0;
  try_offers(at % 2, with, at);
}

Test(offer, a_close_in_the_middle_cuts_no_frame) {
  for (int round = 0; round < soak(1, 100); round++)
    for (int at = 3; at < 60; at += 7)
      try_close_at(at, (uint64_t)(at + 100 * round));
}

Test(offer, a_loss_in_the_middle_frees_what_was_kept) {
  abort_at = 40;
  seed = 8;
  run_script(offer_begin, offer_step);
  tail_end();
  cr_assert_eq(moved_live, 0);
  cr_assert_eq(tally[0].close, 1);
}

/* What sock_offer refuses. */
static void offer_wrong(intptr_t uuid, probe_s *p) {
  (void)p;
  facil_buf_s *b = facil_buf_new(10), *owner[17] = {b}, *none[1] = {NULL};
  struct iovec iov[17] = {{b->data, 1}};
  for (int i = 0; i < 17; i++)
    owner[i] = b, iov[i] = iov[0];
#define REFUSED(call, error)                                                   \
  do {                                                                         \
    errno = 0;                                                                 \
    cr_assert_eq((call), -1, #call);                                           \
    cr_assert_eq(errno, error, #call);                                         \
  } while (0)
  REFUSED(sock_offer(uuid, iov, owner, 0), EINVAL);
  REFUSED(sock_offer(uuid, iov, owner, 17), EINVAL);
  REFUSED(sock_offer(uuid, iov, none, 1), EINVAL);
  REFUSED(sock_offer(-1, iov, owner, 1), EBADF);
  sock_close(uuid);
  REFUSED(sock_offer(uuid, iov, owner, 1), EPIPE);
  facil_buf_unref(b);
}

static void wrong_begin(void) {
  one_begin();
  probe->on_ready = offer_wrong;
  sock_want_ready(conn);
}

static bool wrong_step(void) {
  return turn++ > 5;
}

Test(offer, wrong_offers_are_refused_with_the_right_errno) {
  run_script(wrong_begin, wrong_step);
  cr_assert_eq(tally[0].ready, 1);
  cr_assert_eq(tally[0].sent, 0);
}

/* A frame that lies in two pieces. */
static facil_buf_s *halves[2];

static void offer_halves(intptr_t uuid, probe_s *p) {
  (void)p;
  if (!halves[0])
    return;
  struct iovec iov[2] = {{halves[0]->data, halves[0]->len},
                         {halves[1]->data, halves[1]->len}};
  cr_assert_eq(sock_offer(uuid, iov, halves, 2), 0);
}

static size_t halves_sent(intptr_t uuid, probe_s *p, size_t sent) {
  (void)uuid, (void)p;
  size_t all = halves[0]->len + halves[1]->len;
  bury(halves[0]);
  bury(halves[1]);
  halves[0] = NULL;
  queue_frame(100, ORDINARY);
  cr_assert_lt(sent, (size_t)2 << 20, "short, and in the first piece");
  return all - sent;
}

static void halves_begin(void) {
  one_begin();
  size_t len = 6 << 20;
  char *frame = malloc(len);
  frame_write(frame, (uint32_t)len, OFFERED, 0);
  for (int i = 0; i < 2; i++) {
    halves[i] = facil_buf_new(len / 2);
    facil_buf_add(halves[i], frame + (size_t)i * len / 2, len / 2);
  }
  free(frame);
  probe->on_ready = offer_halves;
  probe->on_sent = halves_sent;
  sock_want_ready(conn);
}

static bool halves_step(void) {
  grave_empty();
  if (turn++ > 3)
    client_reads(SIZE_MAX);
  return got.next[ORDINARY] == 1 && !got.have;
}

Test(offer, a_begun_frame_in_two_pieces_is_kept_in_their_order) {
  run_script(halves_begin, halves_step);
  cr_assert_eq(got.order[0], OFFERED);
}

/* Another protocol takes over where an offer was made: the frame still ends,
 * and the answer goes to whom the offer was. */
static int taken_over;

static size_t first_sent(intptr_t uuid, probe_s *p, size_t sent) {
  (void)uuid;
  cr_assert_eq(p->id, 0, "the answer went to another protocol");
  size_t rest = halves[0]->len - sent;
  bury(halves[0]);
  halves[0] = NULL;
  return rest;
}

static void offer_and_leave(intptr_t uuid, probe_s *p) {
  (void)p;
  struct iovec iov = {halves[0]->data, halves[0]->len};
  cr_assert_eq(sock_offer(uuid, &iov, halves, 1), 0);
  cr_assert_eq(facil_attach(uuid, &probe_new(&probe_ops, 1)->super), 0);
  taken_over++;
}

static void leave_begin(void) {
  one_begin();
  halves[0] = facil_buf_new(1 << 20);
  frame_write(halves[0]->data, 1 << 20, OFFERED, 0);
  halves[0]->len = 1 << 20;
  probe->on_ready = offer_and_leave;
  probe->on_sent = first_sent;
  sock_want_ready(conn);
}

static bool leave_step(void) {
  grave_empty();
  if (turn++ == 10)
    queue_frame(100, ORDINARY);
  client_reads(SIZE_MAX);
  return got.next[ORDINARY] == 1 && !got.have;
}

static void try_leave(bool plain) {
  plain_send = plain;
  run_script(leave_begin, leave_step);
  cr_assert_eq(taken_over, 1);
  cr_assert_eq(tally[0].sent, 1);
  cr_assert_eq(tally[1].sent, 0);
  cr_assert_eq(tally[0].close, 1);
  cr_assert_eq(got.next[OFFERED], 1);
}

Test(offer, the_answer_comes_to_who_offered_though_another_took_over) {
  try_leave(true);
}

Test(offer, the_answer_comes_to_who_offered_with_io_uring_too) {
  try_leave(false);
}
