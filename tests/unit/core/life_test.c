/* life_test.c - the life of a connection: attach, hand-over, every way to end
 * in every callback. on_close comes once and last, never inside another one,
 * and nothing that is over is called again (under ASan: nothing freed is
 * touched).
 */
#include "core_support.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int client, turn;
static intptr_t conn;

/* ---- 27: {an end} in {a callback}
 * -------------------------------------------- */

enum act { CLOSE, ABORT, ATTACH, SET_REMOVE, CANCEL, ACTS };
enum place {
  ON_OPEN,
  ON_DATA,
  ON_READY,
  ON_SENT,
  PING,
  ON_SHUTDOWN,
  EACH,
  DEFER,
  TIMER,
  PLACES
};

static struct {
  enum act act;
  enum place place;
  bool acted, in_callback, timer_ended;
  facil_set_s set;
  facil_member_s member;
  bool in_set;
  int64_t timer;
  int timer_runs;
  tally_s at_act;
  facil_buf_s *tail;
} cell;

static void act(intptr_t uuid) {
  if (cell.acted)
    return;
  cell.acted = true;
  switch (cell.act) {
  case CLOSE:
    cr_assert_eq(sock_close(uuid), 0);
    cr_assert_eq(sock_close(uuid), 0, "again: nothing");
    break;
  case ABORT:
    cr_assert_eq(sock_abort(uuid, "the test"), 0);
    cr_assert_eq(sock_abort(uuid, "the test"), -1);
    cr_assert_not(sock_isvalid(uuid));
    break;
  case ATTACH:
    cr_assert_eq(facil_attach(uuid, &probe_new(&probe_hold_ops, 1)->super), 0);
    break;
  case SET_REMOVE:
    if (cell.in_set)
      facil_set_remove(&cell.set, &cell.member);
    cell.in_set = false;
    break;
  case CANCEL:
    cr_assert_eq(facil_timer_cancel(cell.timer), 0);
    cr_assert_eq(facil_timer_cancel(cell.timer), -1);
    cr_assert_eq(errno, ENOENT);
    break;
  case ACTS:
    break;
  }
  cr_assert_eq(tally[0].close, 0, "never inside");
  cell.at_act = tally[0];
}

static void enter_callback(void) {
  cr_assert_not(cell.in_callback, "nested");
  cell.in_callback = true;
}

/* In a callback of the probe: act if it is the place. */
static void at_place(enum place place, intptr_t uuid) {
  enter_callback();
  if (cell.place == place)
    act(uuid);
  cell.in_callback = false;
}

static void cell_data(intptr_t uuid, probe_s *p) {
  probe_read_all(uuid, p);
  at_place(ON_DATA, uuid);
}

static void cell_ready(intptr_t uuid, probe_s *p) {
  (void)p;
  struct iovec iov = {cell.tail->data, cell.tail->len};
  if (cell.place == ON_READY || cell.place == ON_SENT)
    cr_assert_eq(sock_offer(uuid, &iov, &cell.tail, 1), 0);
  at_place(ON_READY, uuid);
}

static size_t cell_sent(intptr_t uuid, probe_s *p, size_t sent) {
  (void)p;
  at_place(ON_SENT, uuid);
  return cell.tail->len - sent;
}

static void cell_ping(intptr_t uuid, probe_s *p) {
  (void)p;
  at_place(PING, uuid);
}

static void cell_shutdown(intptr_t uuid, probe_s *p) {
  (void)p;
  at_place(ON_SHUTDOWN, uuid);
}

static void cell_close(intptr_t uuid, probe_s *p) {
  (void)p;
  enter_callback();
  cr_assert_eq(tally[0].close, 1);
  cr_assert_eq(sock_isvalid(uuid), cell.act == ATTACH &&
                                       cell.place != ON_OPEN &&
                                       sock_isvalid(uuid));
  if (cell.in_set)
    facil_set_remove(&cell.set, &cell.member);
  cell.in_set = false;
  cell.in_callback = false;
}

static void cell_task(intptr_t uuid, protocol_s *p, void *arg) {
  (void)p;
  at_place((enum place)(intptr_t)arg, uuid);
}

static void cell_tick(void *arg) {
  (void)arg;
  cr_assert_not(cell.timer_ended);
  cell.timer_runs++;
  if (sock_isvalid(conn))
    at_place(TIMER, conn);
}

static void cell_tick_end(void *arg) {
  (void)arg;
  cr_assert_not(cell.timer_ended);
  cell.timer_ended = true;
}

static probe_s *cell_probe(void) {
  probe_s *p = probe_new(&probe_ops, 0);
  p->on_data = cell_data;
  p->on_ready = cell_ready;
  p->on_sent = cell_sent;
  p->ping = cell_ping;
  p->on_shutdown = cell_shutdown;
  p->on_close = cell_close;
  return p;
}

static protocol_s *cell_open(intptr_t uuid, void *udata) {
  (void)udata;
  conn = uuid;
  probe_s *p = cell_probe();
  at_place(ON_OPEN, uuid);
  return &p->super;
}

static void cell_crowd(intptr_t uuid, probe_s *p) {
  (void)p;
  (void)!sock_write(uuid, "x", 1);
  sock_want_ready(uuid);
}

static void cell_begin(void) {
  cell.timer = facil_run_every(20, 0, cell_tick, NULL, cell_tick_end);
  cr_assert_geq(cell.timer, 0);
  facil_set_init(&cell.set);
  if (cell.place == ON_OPEN) {
    const char *colon = strrchr(facil_listening_at(), ':');
    client = client_to((int)strtol(colon + 1, NULL, 10));
    (void)fcntl(client, F_SETFL, O_NONBLOCK);
    return;
  }
  probe_s *p = cell_probe();
  conn = pair_with(&client, p);
  cell.member.uuid = conn;
  cr_assert_eq(facil_set_add(&cell.set, &cell.member), 0);
  cell.in_set = true;
  facil_set_timeout_ms(conn, 200);
}

static bool cell_step(void) {
  fake_pass(1);
  switch (turn++) {
  case 2:
    cr_assert_eq(write(client, "x", 1), 1);
    break;
  case 5:
    sock_want_ready(conn);
    break;
  case 8:
    facil_defer(.uuid = conn, .task = cell_task,
                .arg = (void *)(intptr_t)DEFER);
    facil_each(.service = probe_ops.service, .task = cell_task,
               .arg = (void *)(intptr_t)EACH);
    break;
  case 300: /* pinged by now, if it still lives */
    (void)!write(client, "x", 1);
    facil_force_event(conn);
    facil_set_ready(&cell.set);
    sock_want_ready(conn);
    break;
  case 310:
    facil_stop();
    break;
  }
  char waste[65536];
  if (turn > 320)
    while (read(client, waste, sizeof waste) > 0)
      ;
  return turn == 400;
}

static void try_cell(enum act act, enum place place, bool plain) {
  memset(tally, 0, sizeof tally);
  memset(&cell, 0, sizeof cell);
  cell.act = act;
  cell.place = place;
  cell.tail = facil_buf_new(3 << 20);
  cr_assert_not_null(cell.tail);
  memset(cell.tail->data, 'f', 3 << 20);
  cell.tail->len = 3 << 20;
  turn = 0;
  conn = -1;
  plain_send = plain;
  fake_clock();
  if (place == ON_OPEN)
    cr_assert_eq(facil_listen(.port = "0", .on_open = cell_open), 0);
  run_script(cell_begin, cell_step);
  close(client);
  int at = (int)act * 100 + (int)place;
  cr_assert(cell.acted, "cell %d: did not come to it", at);
  cr_assert_eq(tally[0].close, 1, "cell %d: %d closes", at, tally[0].close);
  cr_assert(cell.timer_ended, "cell %d", at);
  cr_assert_eq(probes_live, 0, "cell %d", at);
  tally_s then = cell.at_act, now = tally[0];
  if (act == CLOSE || act == ABORT || act == ATTACH) {
    if (place != ON_OPEN || act != ATTACH) {
      cr_assert_eq(now.data, then.data, "cell %d: on_data after the end", at);
      cr_assert_eq(now.ready, then.ready, "cell %d: on_ready after it", at);
      cr_assert_eq(now.ping, then.ping, "cell %d: ping after the end", at);
      cr_assert_eq(now.shutdown, then.shutdown, "cell %d: on_shutdown", at);
    }
  } else {
    cr_assert_gt(now.data, 0, "cell %d", at);
    cr_assert_eq(now.shutdown, 1, "cell %d", at);
  }
  if (act == ATTACH)
    cr_assert_eq(tally[1].close, 1, "cell %d", at);
  if (act == CANCEL && place != ON_SHUTDOWN)
    cr_assert_lt(cell.timer_runs, 12, "cell %d", at);
  facil_set_fini(&cell.set);
  facil_buf_unref(cell.tail);
}

static void try_places(enum act act) {
  for (int place = 0; place < PLACES; place++)
    for (int plain = 0; plain < 2; plain++)
      try_cell(act, (enum place)place, plain);
}

Test(life, sock_close_in_every_callback) {
  try_places(CLOSE);
}

Test(life, sock_abort_in_every_callback) {
  try_places(ABORT);
}

Test(life, another_protocol_attached_in_every_callback) {
  try_places(ATTACH);
}

Test(life, a_set_left_in_every_callback) {
  try_places(SET_REMOVE);
}

Test(life, a_timer_cancelled_in_every_callback) {
  try_places(CANCEL);
}

/* ---- many at once, at the very end */

#define CROWD 6000

static intptr_t crowd[CROWD];

/* More than a phase flushes, dirty, forced and lost, and then the loop ends. */
static bool crowd_step(void) {
  if (turn++ == 0)
    for (int i = 0; i < CROWD; i++) {
      int peer;
      probe_s *p = probe_new(&probe_ops, i);
      p->on_ready = cell_crowd;
      crowd[i] = pair_unix(&peer);
      cr_assert_eq(facil_attach(crowd[i], &p->super), 0);
      close(peer);
    }
  for (int i = 0; i < CROWD; i++) {
    facil_force_event(crowd[i]);
    sock_want_ready(crowd[i]);
    if (i % 2)
      sock_abort(crowd[i], NULL);
  }
  return true;
}

Test(life, thousands_that_are_queued_everywhere_end_once_each_with_the_loop) {
  int fds = fds_of(getpid());
  run_script(NULL, crowd_step);
  for (int i = 0; i < CROWD; i++)
    cr_assert_eq(tally[i].close, 1, "%d: %d", i, tally[i].close);
  cr_assert_eq(fds_of(getpid()), fds);
  cr_assert_eq(probes_live, 0);
}

/* ---- 25: attach
 * -------------------------------------------------------------------- */

static probe_s *same;

static void plain_begin(void) {
  same = probe_new(&probe_ops, 0);
  conn = pair_with(&client, same);
}

static bool same_step(void) {
  if (turn == 1) {
    cr_assert_eq(facil_attach(conn, &same->super), 0);
    cr_assert_eq(facil_count(probe_ops.service), 1);
  }
  if (turn == 4)
    cr_assert_eq(tally[0].close, 0);
  return turn++ == 5;
}

Test(attach, the_same_protocol_again_changes_nothing) {
  run_script(plain_begin, same_step);
  cr_assert_eq(tally[0].close, 1);
}

static bool closing_step(void) {
  if (turn == 1) {
    sock_close(conn);
    errno = 0;
    cr_assert_eq(facil_attach(conn, &probe_new(&probe_ops, 1)->super), -1);
    cr_assert_eq(errno, EBADF);
    cr_assert_eq(tally[1].close, 0, "never inside the call");
  }
  if (turn == 4)
    cr_assert_eq(tally[1].close, 1);
  return turn++ == 5;
}

Test(attach, to_a_closing_connection_is_ebadf_and_ends_the_protocol) {
  run_script(plain_begin, closing_step);
  cr_assert_eq(tally[0].close, 1);
  cr_assert_eq(tally[1].close, 1);
}

static bool null_step(void) {
  if (turn == 1) {
    errno = 0;
    cr_assert_eq(facil_attach(conn, NULL), -1);
    cr_assert_eq(errno, EINVAL);
    cr_assert_eq(facil_protocol(conn, NULL), &same->super);
  }
  return turn++ == 5;
}

Test(attach, nothing_is_einval) {
  run_script(plain_begin, null_step);
  cr_assert_eq(tally[0].close, 1);
}

/* What epoll does not take. */
static bool file_step(void) {
  if (turn == 1) {
    FILE *f = tmpfile();
    intptr_t uuid = sock_open(dup(fileno(f)));
    fclose(f);
    cr_assert_eq(facil_attach(uuid, &probe_new(&probe_ops, 1)->super), -1);
    cr_assert_eq(errno, EPERM);
    cr_assert_not(sock_isvalid(uuid));
    cr_assert_eq(facil_count(probe_ops.service), 1);
    cr_assert_eq(facil_count(NULL), 1);
  }
  if (turn == 4)
    cr_assert_eq(tally[1].close, 1);
  return turn++ == 5;
}

Test(attach, what_cannot_be_polled_is_lost_and_counted_nowhere) {
  run_script(plain_begin, file_step);
  cr_assert_eq(tally[0].close, 1);
  cr_assert_eq(facil_count(NULL), 0);
}

/* ---- OPENING: before there is a protocol
 * --------------------------------------------- */

static size_t arrived;

static bool early_step(void) {
  static char waste[1 << 16];
  ssize_t n;
  switch (turn++) {
  case 0:
    conn = pair_tcp(&client);
    cr_assert_eq(sock_write2(.uuid = conn, .data = calloc(1, 9 << 20),
                             .len = 9 << 20, .move = true),
                 0);
    return false;
  case 5:
    cr_assert(sock_is_blocked(conn));
    cr_assert_eq(facil_attach(conn, &probe_new(&probe_ops, 0)->super), 0);
    return false;
  }
  while (turn > 6 && (n = read(client, waste, sizeof waste)) > 0)
    arrived += (size_t)n;
  return arrived == 9 << 20;
}

Test(opening,
     what_was_written_before_attach_arrives_when_it_was_refused_first) {
  run_script(NULL, early_step);
}

static bool ended;

static bool unattached_step(void) {
  static char waste[1 << 16];
  ssize_t n = 1;
  if (turn++ == 0) {
    conn = pair_tcp(&client);
    cr_assert_eq(sock_write2(.uuid = conn, .data = calloc(1, 9 << 20),
                             .len = 9 << 20, .move = true),
                 0);
    cr_assert_eq(sock_close(conn), 0);
  }
  while (turn > 5 && !ended && (n = read(client, waste, sizeof waste)) > 0)
    arrived += (size_t)n;
  if (n == 0 && !ended) {
    ended = true;
    close(client);
    turn = 100;
  }
  if (ended && turn > 2000)
    cr_assert_not(sock_isvalid(conn), "it has seen the peer's end");
  return ended && turn > 2000;
}

Test(opening, a_connection_closed_before_it_has_a_protocol_sends_all_and_ends) {
  run_script(NULL, unattached_step);
  cr_assert_eq(arrived, 9 << 20);
}

/* ---- 26: bytes read too far
 * -------------------------------------------------------------- */

static const char LETTER[] = "HELLOthe rest of it, for whom comes next";
#define HEAD 5

static struct {
  size_t split;
  bool with_end, reads_early, ended;
  char head[64], rest[64];
  size_t head_len, rest_len;
  int opened;
} hand;

static void second_data(intptr_t uuid, probe_s *p) {
  (void)p;
  cr_assert_eq(hand.opened, 1, "before it was attached");
  ssize_t n = sock_read(uuid, hand.rest + hand.rest_len, 7);
  if (n > 0)
    hand.rest_len += (size_t)n;
  else if (n < 0)
    hand.ended = errno == ESHUTDOWN;
}

static void first_data(intptr_t uuid, probe_s *p) {
  (void)p;
  ssize_t n;
  do {
    n = sock_read(uuid, hand.head + hand.head_len,
                  sizeof hand.head - hand.head_len);
    hand.head_len += n > 0 ? (size_t)n : 0;
  } while (n > 0 && hand.reads_early);
  if (hand.head_len < HEAD)
    return;
  probe_s *q = probe_new(&probe_ops, 1);
  q->on_data = second_data;
  cr_assert_eq(sock_unread(uuid, hand.head + HEAD, hand.head_len - HEAD), 0);
  if (hand.head_len > HEAD) {
    cr_assert_eq(sock_unread(uuid, "x", 1), -1);
    cr_assert_eq(errno, EEXIST);
  }
  cr_assert_eq(facil_attach(uuid, &q->super), 0);
  hand.opened++;
}

static void hand_begin(void) {
  probe_s *p = probe_new(&probe_ops, 0);
  p->on_data = first_data;
  conn = pair_with(&client, p);
}

static bool hand_step(void) {
  size_t len = sizeof LETTER - 1;
  if (turn == 0 && hand.split)
    cr_assert_eq(write(client, LETTER, hand.split), (ssize_t)hand.split);
  if (turn == (hand.split ? 4 : 0)) {
    cr_assert_eq(write(client, LETTER + hand.split, len - hand.split),
                 (ssize_t)(len - hand.split));
    if (hand.with_end)
      shutdown(client, SHUT_WR);
  }
  return ++turn > 30;
}

static void try_hand(size_t split, bool with_end, bool reads_early) {
  memset(&hand, 0, sizeof hand);
  memset(tally, 0, sizeof tally);
  hand.split = split;
  hand.with_end = with_end;
  hand.reads_early = reads_early;
  turn = 0;
  run_script(hand_begin, hand_step);
  close(client);
  cr_assert_eq(hand.rest_len, sizeof LETTER - 1 - HEAD,
               "split at %zu: %zu bytes", split, hand.rest_len);
  cr_assert_arr_eq(hand.rest, LETTER + HEAD, hand.rest_len);
  cr_assert_eq(tally[0].close, 1);
  cr_assert_eq(tally[1].close, 1);
}

Test(unread, what_was_read_too_far_reaches_the_next_protocol_at_every_split) {
  for (size_t split = 0; split < sizeof LETTER - 1; split++)
    try_hand(split, false, false);
}

Test(unread, the_same_with_the_end_right_behind_it) {
  for (size_t split = 0; split < sizeof LETTER - 1; split++)
    try_hand(split, true, false);
}

Test(unread, the_same_when_the_end_was_read_before_the_hand_over) {
  for (size_t split = 0; split < sizeof LETTER - 1; split++)
    try_hand(split, true, true);
}

static void half_second_data(intptr_t uuid, probe_s *p) {
  (void)p;
  char c;
  while (sock_read(uuid, &c, 1) > 0)
    ;
  hand.ended = errno == ESHUTDOWN;
}

static void end_first_data(intptr_t uuid, probe_s *p) {
  (void)p;
  char c;
  while (sock_read(uuid, &c, 1) > 0)
    ;
  if (errno != ESHUTDOWN || hand.opened++)
    return;
  probe_s *q = probe_new(&probe_half_ops, 1);
  q->on_data = half_second_data;
  cr_assert_eq(facil_attach(uuid, &q->super), 0);
}

static void end_begin(void) {
  probe_s *p = probe_new(&probe_half_ops, 0);
  p->on_data = end_first_data;
  conn = pair_with(&client, p);
  shutdown(client, SHUT_WR);
}

static bool end_step(void) {
  return ++turn > 20;
}

Test(unread, the_next_protocol_is_told_of_an_end_that_came_before_it) {
  run_script(end_begin, end_step);
  cr_assert(hand.ended);
  cr_assert_leq(tally[1].data, 2);
}

/* ---- 31: again
 * ------------------------------------------------------------------------- */

static bool serve_step(void) {
  if (turn++ == 0)
    cr_assert_eq(write(client, "x", 1), 1);
  char c;
  return read(client, &c, 1) == 1 && c == 'x';
}

static void serve_begin(void) {
  probe_s *p = probe_new(&probe_ops, 0);
  p->on_data = probe_echo;
  conn = pair_with(&client, p);
}

Test(run, a_second_run_serves_and_each_leaves_nothing_behind) {
  static const int kinds[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGPIPE};
  struct sigaction before[5], after;
  sigset_t mask_before, mask_after;
  int fds = 0;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 5; i++)
      sigaction(kinds[i], NULL, &before[i]);
    sigprocmask(SIG_SETMASK, NULL, &mask_before);
    cr_assert_eq(facil_listen(.port = "0", .on_open = cell_open), 0);
    turn = 0;
    int status = run_script(serve_begin, serve_step);
    cr_assert_eq(status, 0);
    close(client);
    cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "no child is left");
    for (int i = 0; i < 5; i++) {
      sigaction(kinds[i], NULL, &after);
      cr_assert_eq(after.sa_handler, before[i].sa_handler);
    }
    sigprocmask(SIG_SETMASK, NULL, &mask_after);
    cr_assert_arr_eq(&mask_after, &mask_before, 8);
    if (round == 0)
      fds = fds_of(getpid());
    else
      cr_assert_eq(fds_of(getpid()), fds, "descriptors: %d, were %d",
                   fds_of(getpid()), fds);
  }
  cr_assert_eq(tally[0].close, 3);
}

/* A stop that came too late for one run does not end the next. */
Test(run, a_stop_between_runs_is_forgotten) {
  cr_assert_eq(run_script(serve_begin, serve_step), 0);
  close(client);
  facil_stop();
  facil_stop();
  turn = 0;
  cr_assert_eq(run_script(serve_begin, serve_step), 0);
  cr_assert_eq(turn > 1, true);
}

static int run_no_start(void *arg) {
  (void)arg;
  return -1;
}

Test(run, a_start_that_fails_is_status_1_and_leaves_no_descriptor) {
  int fds = fds_of(getpid());
  cr_assert_eq(facil_listen(.port = "0", .on_open = cell_open), 0);
  cr_assert_eq(facil_run(.processes = 1, .on_start = run_no_start), 1);
  cr_assert_eq(fds_of(getpid()), fds);
}

Test(run, a_unix_path_is_gone_after_the_run) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/facil-%d.sock", (int)getpid());
  cr_assert_eq(facil_listen(.address = path, .on_open = cell_open), 0);
  cr_assert_eq(access(path, F_OK), 0);
  cr_assert_eq(run_script(serve_begin, serve_step), 0);
  cr_assert_eq(access(path, F_OK), -1);
}

/* Signals that came while it ended are not left for the caller. */
static void second_term(void *arg) {
  (void)arg;
  raise(SIGTERM);
}

static int first_term(void *arg) {
  (void)arg;
  raise(SIGTERM);
  return 0;
}

static int serve_terms(void *arg) {
  (void)arg;
  server_is_at();
  return facil_run(.processes = 1, .on_start = first_term,
                   .on_finish = second_term);
}

Test(run, a_second_TERM_at_the_very_end_does_not_kill_the_caller) {
  int port;
  pid_t pid = server_fork(serve_terms, NULL, &port);
  cr_assert_eq(server_wait(pid, 5000), 0);
}
