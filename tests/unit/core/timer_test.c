/* timer_test.c - timers, idle time, deadlines and the wheel, mostly by a clock
 * that stands still but for the test; and the clock and the log themselves. */
#include "core.h" /* conn_next_due */
#include "core_support.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static int turn, client;
static intptr_t conn;

/* ---- 21: user timers
 * ------------------------------------------------------------- */

typedef struct {
  int runs, ends;
  uint64_t at[64];
  int64_t id;
  int cancel_at, make_at;
} tick_s;

static tick_s ticks[8];

static void tick(void *arg) {
  tick_s *t = arg;
  if (t->runs < 64)
    t->at[t->runs] = fake_now();
  t->runs++;
  cr_assert_eq(t->ends, 0, "after its end");
  if (t->cancel_at == t->runs) {
    cr_assert_eq(facil_timer_cancel(t->id), 0);
    cr_assert_eq(t->ends, 0, "never inside its task");
    cr_assert_eq(facil_timer_cancel(t->id), -1);
    cr_assert_eq(errno, ENOENT);
  }
}

static uint64_t ended_at;

static void tick_end(void *arg) {
  ended_at = real_ms();
  tick_s *t = arg;
  t->ends++;
  cr_assert_eq(t->ends, 1);
}

static uint64_t started;

static void ticks_begin(void) {
  started = fake_now();
  ticks[1].id = facil_run_every(10, 1, tick, &ticks[1], tick_end);
  ticks[2].id = facil_run_every(10, 5, tick, &ticks[2], tick_end);
  ticks[3].cancel_at = 3;
  ticks[3].id = facil_run_every(7, 0, tick, &ticks[3], tick_end);
}

static void make_in_timer(void *arg) {
  (void)arg;
  ticks[4].id = facil_run_every(10, 2, tick, &ticks[4], tick_end);
}

static void make_in_data(intptr_t uuid, probe_s *p) {
  probe_read_all(uuid, p);
  ticks[5].id = facil_run_every(10, 2, tick, &ticks[5], tick_end);
}

static bool ticks_step(void) {
  if (turn == 0) {
    cr_assert_geq(facil_run_every(5, 1, make_in_timer, NULL, NULL), 0);
    probe_s *p = probe_new(&probe_ops, 0);
    p->on_data = make_in_data;
    pair_with(&client, p);
    cr_assert_eq(write(client, "x", 1), 1);
  }
  fake_pass(1);
  return ++turn == 300;
}

Test(timer, runs_as_often_as_asked_at_the_exact_times_and_ends_once) {
  fake_clock();
  started = fake_now();
  ticks[0].id = facil_run_every(10, 0, tick, &ticks[0], tick_end);
  cr_assert_geq(ticks[0].id, 0);
  run_script(ticks_begin, ticks_step);
  int64_t last = -1;
  for (int i = 0; i < 6; i++) {
    cr_assert_eq(ticks[i].ends, 1, "timer %d", i);
    for (int k = 0; k < i; k++)
      cr_assert_neq(ticks[i].id, ticks[k].id);
    cr_assert_geq(ticks[i].id, 0);
    last = ticks[i].id;
  }
  (void)last;
  cr_assert_eq(ticks[0].runs, 30);
  cr_assert_eq(ticks[1].runs, 1);
  cr_assert_eq(ticks[2].runs, 5);
  cr_assert_eq(ticks[3].runs, 3);
  cr_assert_eq(ticks[4].runs, 2);
  cr_assert_eq(ticks[5].runs, 2);
  for (int i = 0; i < 5; i++)
    cr_assert_eq(ticks[2].at[i], started + 10 * (uint64_t)(i + 1));
  for (int i = 0; i < 30; i++)
    cr_assert_eq(ticks[0].at[i], started + 10 * (uint64_t)(i + 1));
}

Test(timer, no_task_and_no_time_are_einval_and_the_end_comes_all_the_same) {
  errno = 0;
  cr_assert_eq(facil_run_every(0, 1, tick, &ticks[0], tick_end), -1);
  cr_assert_eq(errno, EINVAL);
  cr_assert_eq(ticks[0].ends, 1);
  errno = 0;
  cr_assert_eq(facil_run_every(1, 1, NULL, &ticks[1], tick_end), -1);
  cr_assert_eq(errno, EINVAL);
  cr_assert_eq(ticks[1].ends, 1);
  cr_assert_eq(facil_timer_cancel(0), -1);
  cr_assert_eq(errno, ENOENT);
}

/* A stall of many periods: one tick for all that was missed, then in step. */
static bool stall_step(void) {
  if (turn == 0)
    ticks[0].id = facil_run_every(10, 0, tick, &ticks[0], tick_end);
  fake_pass(turn == 5 ? 1002 : 1);
  return ++turn == 60;
}

Test(timer, ticks_missed_by_a_stall_are_skipped_but_for_one) {
  fake_clock();
  started = fake_now();
  run_script(NULL, stall_step);
  uint64_t late = started + 5 + 1002;
  cr_assert_eq(ticks[0].at[0], late, "what was due");
  cr_assert_eq(ticks[0].at[1], late, "the one");
  cr_assert_eq(ticks[0].at[2], started + 1010, "in step with the first");
  cr_assert_eq(ticks[0].at[3], started + 1020);
}

/* Many timers, by a model. */
#define MANY 500
static uint64_t due[MANY], ran[MANY];
static int64_t many_id[MANY];
static int many_done;

static void many_tick(void *arg) {
  int i = (int)(intptr_t)arg;
  cr_assert_eq(ran[i], 0);
  ran[i] = fake_now();
  many_done++;
}

static bool many_step(void) {
  static uint64_t seed = 4;
  if (turn < MANY) {
    uint32_t ms = 1 + dice(&seed, 400);
    due[turn] = fake_now() + ms;
    many_id[turn] =
        facil_run_every(ms, 1, many_tick, (void *)(intptr_t)turn, NULL);
    int other = (int)dice(&seed, MANY);
    if (other < turn && !ran[other] && due[other] && dice(&seed, 2)) {
      cr_assert_eq(facil_timer_cancel(many_id[other]), 0);
      due[other] = 0;
    }
  }
  fake_pass(1);
  return ++turn == MANY + 500;
}

Test(timer, each_of_many_runs_at_its_time_and_no_cancelled_one) {
  fake_clock();
  run_script(NULL, many_step);
  for (int i = 0; i < MANY; i++)
    cr_assert_eq(ran[i], due[i], "timer %d", i);
}

/* One that makes itself anew at its end. */
static int rebirths;

static void rebirth(void *arg) {
  rebirths++;
  facil_run_every(10, 1, tick, arg, rebirth);
}

static bool rebirth_step(void) {
  if (turn == 0)
    rebirth(&ticks[7]);
  fake_pass(1);
  return ++turn == 100;
}

Test(timer, one_that_is_made_anew_at_its_end_does_not_keep_the_process,
     .timeout = 5) {
  fake_clock();
  run_script(NULL, rebirth_step);
  cr_assert_gt(rebirths, 8);
}

static void again(void *a, void *b) {
  (void)!defer(again, a, b);
}

static bool again_step(void) {
  if (turn == 0)
    cr_assert_eq(defer(again, NULL, NULL), 0);
  return ++turn == 20;
}

Test(timer, a_task_that_posts_itself_does_not_keep_the_process, .timeout = 5) {
  run_script(NULL, again_step);
}

static bool sleepy_step(void) {
  if (turn == 0) {
    started = real_ms();
    ticks[0].id = facil_run_every(30, 5, tick, &ticks[0], tick_end);
    facil_run_every(200, 1, script_wakes, NULL, NULL);
  }
  turn++;
  return ticks[0].ends > 0;
}

Test(timer, the_loop_wakes_for_its_timers_and_no_oftener) {
  script_sleeps = true;
  run_script(NULL, sleepy_step);
  int took = (int)(ended_at - started);
  cr_assert_eq(ticks[0].runs, 5);
  cr_assert_geq(took, 149);
  cr_assert_lt(took, 400);
  cr_assert_lt(turn, 30, "turns: %d", turn);
}

/* ---- 22: clocks
 * --------------------------------------------------------------------- */

static void pong(intptr_t uuid, probe_s *p) {
  probe_read_all(uuid, p);
}

static bool leap_step(void) {
  if (turn == 0) {
    probe_s *p = probe_new(&probe_ops, 0);
    p->on_data = pong;
    p->ping = NULL;
    conn = pair_with(&client, p);
    facil_set_timeout_ms(conn, FACIL_TIMEOUT_NEVER);
    ticks[0].id = facil_run_every(100, 0, tick, &ticks[0], tick_end);
  }
  fake_pass(turn % 2 ? 1000000 : 50);
  return ++turn == 200;
}

Test(timer, leaps_of_a_thousand_seconds_end_no_timer_and_no_connection) {
  fake_clock();
  run_script(NULL, leap_step);
  cr_assert_geq(ticks[0].runs, 100);
  cr_assert_eq(tally[0].ping, 0);
  cr_assert_eq(tally[0].close, 1, "at the end only");
}

/* ---- 23: idle time
 * --------------------------------------------------------------------- */

static int pinged_at, closed_at;
static bool peer_answers, server_writes;

static void note_ping(intptr_t uuid, probe_s *p) {
  (void)p;
  if (!pinged_at)
    pinged_at = (int)(fake_now() - started);
  cr_assert_eq(sock_write(uuid, "?", 1), 0);
}

static void note_close(intptr_t uuid, probe_s *p) {
  (void)uuid, (void)p;
  if (!closed_at)
    closed_at = (int)(fake_now() - started);
}

static void write_now(void *arg) {
  (void)arg;
  if (sock_isvalid(conn))
    cr_assert_eq(sock_write(conn, "!", 1), 0);
}

static bool idle_step(void) {
  if (turn == 0) {
    started = fake_now();
    probe_s *p = probe_new(&probe_ops, 0);
    p->ping = note_ping;
    p->on_close = note_close;
    conn = pair_with(&client, p);
    facil_set_timeout_ms(conn, 250);
    cr_assert_eq(facil_get_timeout_ms(conn), 250);
    if (server_writes)
      facil_run_every(50, 0, write_now, NULL, NULL);
  }
  char c;
  while (read(client, &c, 1) == 1)
    if (c == '?' && peer_answers)
      cr_assert_eq(write(client, ".", 1), 1);
  fake_pass(1);
  return ++turn == 3000 || closed_at;
}

Test(idle, a_silent_peer_is_pinged_once_and_lost_after_one_more_period) {
  fake_clock();
  run_script(NULL, idle_step);
  cr_assert(pinged_at >= 250 && pinged_at <= 260, "ping at %d", pinged_at);
  cr_assert(closed_at >= 500 && closed_at <= 520, "lost at %d", closed_at);
  cr_assert_eq(tally[0].ping, 1);
}

Test(idle, a_peer_that_answers_stays) {
  fake_clock();
  peer_answers = true;
  run_script(NULL, idle_step);
  cr_assert_geq(closed_at, 3000, "lost at %d", closed_at);
  cr_assert(tally[0].ping >= 10 && tally[0].ping <= 12, "%d pings",
            tally[0].ping);
}

Test(idle, writing_to_a_silent_peer_does_not_keep_it) {
  fake_clock();
  server_writes = true;
  run_script(NULL, idle_step);
  cr_assert(pinged_at >= 250 && pinged_at <= 260, "ping at %d", pinged_at);
  cr_assert(closed_at >= 500 && closed_at <= 520, "lost at %d", closed_at);
}

/* Bytes wait to be sent and the peer takes none: the protocol decides. */
static bool stuck_step(void) {
  if (turn == 0) {
    started = fake_now();
    probe_s *p = probe_new(&probe_ops, 0);
    p->on_close = note_close;
    conn = pair_with(&client, p);
    facil_set_timeout_ms(conn, 250);
    cr_assert_eq(sock_write2(.uuid = conn, .data = calloc(1, 9 << 20),
                             .len = 9 << 20, .move = true),
                 0);
  }
  if (turn == 1000)
    cr_assert_geq(sock_blocked_ms(conn), 900);
  fake_pass(1);
  return ++turn == 2000;
}

Test(idle, a_peer_that_bytes_wait_for_is_pinged_each_period_and_not_lost) {
  fake_clock();
  run_script(NULL, stuck_step);
  cr_assert_geq(closed_at, 2000);
  cr_assert(tally[0].ping >= 7 && tally[0].ping <= 8, "%d pings",
            tally[0].ping);
}

/* ---- 24
 * ---------------------------------------------------------------------------------
 */

static bool noop_step(void) {
  if (turn == 0) {
    probe_s *p = probe_new(&probe_ops, 0);
    conn = pair_with(&client, p);
    facil_set_timeout_ms(conn, 1000);
    started = fake_now();
  }
  fake_pass(1);
  if (turn % 1500 == 1499) /* it lives */
    cr_assert_eq(write(client, ".", 1), 1);
  return ++turn == 10000;
}

Test(idle, a_ping_that_does_nothing_comes_once_a_period) {
  fake_clock();
  run_script(NULL, noop_step);
  cr_assert_eq(tally[0].ping, 6, "%d pings", tally[0].ping);
  cr_assert_eq(tally[0].close, 1);
}

/* Without a ping of its own: lost at the first. */
static const protocol_ops_s mute_ops = {.service = "mute"};
static protocol_s mute = {&mute_ops};
static int gone_at;

static bool mute_step(void) {
  if (turn == 0) {
    started = fake_now();
    conn = pair_tcp(&client);
    cr_assert_eq(facil_attach(conn, &mute), 0);
    facil_set_timeout_ms(conn, 300);
  }
  if (!gone_at && !sock_isvalid(conn))
    gone_at = (int)(fake_now() - started);
  fake_pass(1);
  return ++turn == 1000;
}

Test(idle, a_protocol_without_a_ping_is_lost_at_its_time_out) {
  fake_clock();
  run_script(NULL, mute_step);
  cr_assert(gone_at >= 300 && gone_at <= 312, "at %d", gone_at);
}

/* ---- deadlines
 * -----------------------------------------------------------------------------
 */

static uint32_t deadline, step_ms;
static bool taken_away, moved_on, before_attach, replaced;

static bool deadline_step(void) {
  if (turn == 0) {
    started = fake_now();
    probe_s *p = probe_new(&probe_ops, 0);
    p->on_close = note_close;
    conn = pair_tcp(&client);
    if (before_attach)
      facil_set_deadline_ms(conn, deadline, "the test");
    cr_assert_eq(facil_attach(conn, &p->super), 0);
    facil_set_timeout_ms(conn, FACIL_TIMEOUT_NEVER);
    if (!before_attach)
      facil_set_deadline_ms(conn, deadline, "the test");
  }
  if (turn == 5 && taken_away)
    facil_set_deadline_ms(conn, 0, NULL);
  if (turn == 5 && moved_on)
    facil_set_deadline_ms(conn, 2 * deadline, "the test");
  if (turn == 5 && replaced) {
    probe_s *p = probe_new(&probe_ops, 1);
    cr_assert_eq(facil_attach(conn, &p->super), 0);
    closed_at = 0; /* of the first */
  }
  fake_pass(step_ms);
  if (turn % 3 == 0) /* activity does not extend it */
    (void)!write(client, "x", 1);
  if (turn > 7 && !gone_at && !sock_isvalid(conn))
    gone_at = (int)(fake_now() - started);
  return ++turn == 1500 || gone_at;
}

static int lost_after(uint32_t ms, uint32_t step) {
  fake_clock();
  deadline = ms;
  step_ms = step;
  run_script(NULL, deadline_step);
  return gone_at;
}

Test(deadline, loses_the_connection_at_its_time_whatever_happens) {
  int at = lost_after(1000, 1);
  cr_assert(at >= 1000 && at <= 1010, "at %d", at);
}

Test(deadline, of_many_rounds_of_the_wheel_is_kept) {
  int at = lost_after(250000, 1000);
  cr_assert(at >= 250000 && at <= 252000, "at %d", at);
}

Test(deadline, set_before_the_protocol_is_attached_holds) {
  before_attach = true;
  int at = lost_after(1000, 1);
  cr_assert(at >= 1000 && at <= 1010, "at %d", at);
}

Test(deadline, can_be_taken_away) {
  taken_away = true;
  cr_assert_eq(lost_after(1000, 1), 0);
}

Test(deadline, can_be_moved) {
  moved_on = true;
  int at = lost_after(500, 1);
  cr_assert(at >= 1005 && at <= 1016, "at %d", at);
}

Test(deadline, ends_when_another_protocol_takes_over) {
  replaced = true;
  cr_assert_eq(lost_after(1000, 1), 0);
}

Test(deadline, of_more_than_twenty_four_days_is_not_now) {
  cr_assert_eq(lost_after(3000000000u, 1), 0);
}

/* ---- the wheel
 * ------------------------------------------------------------------------------
 */

#define WHEEL_CONNS 400

static struct {
  intptr_t uuid;
  int peer;
  uint64_t due;
  uint64_t gone;
} spoke[WHEEL_CONNS];

static uint64_t wheel_seed = 21;

static void spoke_close(intptr_t uuid, probe_s *p) {
  (void)uuid;
  spoke[p->id].gone = fake_now();
}

static void wheel_begin(void) {
  for (int i = 0; i < WHEEL_CONNS; i++) {
    probe_s *p = probe_new(&probe_ops, i);
    p->on_close = spoke_close;
    spoke[i].uuid = pair_unix(&spoke[i].peer);
    cr_assert_eq(facil_attach(spoke[i].uuid, &p->super), 0);
    facil_set_timeout_ms(spoke[i].uuid, FACIL_TIMEOUT_NEVER);
    uint32_t ms = 1 + dice(&wheel_seed, 120000);
    facil_set_deadline_ms(spoke[i].uuid, ms, "the test");
    spoke[i].due = fake_now() + ms;
  }
}

static uint64_t last_pass;

static bool wheel_step(void) {
  static int left = WHEEL_CONNS;
  uint64_t now = fake_now();
  for (int i = 0; i < WHEEL_CONNS; i++) {
    if (!spoke[i].due)
      continue;
    if (!spoke[i].gone) {
      cr_assert_gt(spoke[i].due + 9, now - last_pass, "%d is overdue", i);
      if (dice(&wheel_seed, 3000) == 0) {
        uint32_t ms = 1 + dice(&wheel_seed, 90000);
        facil_set_deadline_ms(spoke[i].uuid, ms, "the test");
        spoke[i].due = now + ms;
      }
      continue;
    }
    cr_assert_geq(spoke[i].gone, spoke[i].due, "%d was lost early", i);
    spoke[i].due = 0;
    left--;
  }
  /* Mostly small steps, sometimes a stall of up to three rounds. */
  last_pass = 1 + (dice(&wheel_seed, 50) ? dice(&wheel_seed, 60)
                                         : dice(&wheel_seed, 100000) / 4);
  fake_pass(last_pass);
  return left == 0;
}

Test(wheel, deadlines_hold_over_stalls_and_many_rounds) {
  fake_clock();
  run_script(wheel_begin, wheel_step);
}

static bool rounds_step(void) {
  fake_pass(turn % 5 ? 7 : 140000); /* four rounds at once */
  int gone = 0;
  for (int i = 0; i < WHEEL_CONNS; i++)
    gone += spoke[i].gone != 0;
  if (turn == 2)
    cr_assert_eq(gone, WHEEL_CONNS, "%d", gone);
  return turn++ == 3;
}

Test(wheel, a_stall_of_whole_rounds_looks_at_everything) {
  fake_clock();
  run_script(wheel_begin, rounds_step);
}

/* 43, the short form: idle connections do not wake the loop one by one. */
static int idle_turns;

static bool quiet_step(void) {
  idle_turns++;
  return real_ms() - started > 2000;
}

static void quiet_begin(void) {
  started = real_ms();
  for (int i = 0; i < WHEEL_CONNS; i++) {
    probe_s *p = probe_new(&probe_ops, i);
    spoke[i].uuid = pair_unix(&spoke[i].peer);
    cr_assert_eq(facil_attach(spoke[i].uuid, &p->super), 0);
    if (i % 2)
      facil_set_timeout_ms(spoke[i].uuid, 1 + (uint32_t)i * 100000);
  }
}

Test(wheel, idle_connections_cost_two_wake_ups_a_second_at_most) {
  script_sleeps = true;
  run_script(quiet_begin, quiet_step);
  cr_assert_leq(idle_turns, 9, "%d turns", idle_turns);
}

/* The same seen by a fake clock: how often would the loop wake in ten minutes
 * if connections came one by one? */
static uint64_t wakes;
static int sleeps;

static bool spread_step(void) {
  static uint64_t pings;
  uint64_t now = 0;
  for (int i = 0; i < WHEEL_CONNS; i++)
    now += (uint64_t)tally[i].ping;
  wakes += now != pings;
  pings = now;
  if (turn < WHEEL_CONNS) {
    probe_s *p = probe_new(&probe_ops, turn);
    spoke[turn].uuid = pair_unix(&spoke[turn].peer);
    cr_assert_eq(facil_attach(spoke[turn].uuid, &p->super), 0);
  }
  turn++;
  if (turn <= WHEEL_CONNS) {
    fake_pass(8);
  } else { /* sleep as the loop would */
    int ms = conn_next_due(fake_now());
    fake_pass(ms > 0 ? (uint64_t)ms : 1);
    sleeps++;
  }
  return fake_now() - started > 500000;
}

Test(wheel, connections_that_came_one_by_one_are_pinged_together) {
  fake_clock();
  started = fake_now();
  run_script(NULL, spread_step);
  cr_assert_leq(wakes, 3, "%d pings at %d times", WHEEL_CONNS, (int)wakes);
  cr_assert_leq(sleeps, 100, "woken %d times", sleeps);
}

/* ---- the end of a close
 * ----------------------------------------------------------------------- */

static bool linger_step(void) {
  if (turn == 0) {
    started = fake_now();
    probe_s *p = probe_new(&probe_ops, 0);
    p->on_close = note_close;
    conn = pair_with(&client, p);
  }
  if (turn == 5)
    sock_close(conn);
  fake_pass(1);
  return ++turn == 4000 || closed_at;
}

Test(close, a_peer_that_does_not_end_its_half_is_left_after_two_seconds) {
  fake_clock();
  run_script(NULL, linger_step);
  cr_assert(closed_at >= 2005 && closed_at <= 2020, "at %d", closed_at);
}

static bool unread_step(void) {
  if (turn == 0) {
    started = fake_now();
    probe_s *p = probe_new(&probe_ops, 0);
    p->on_close = note_close;
    conn = pair_with(&client, p);
    cr_assert_eq(sock_write2(.uuid = conn, .data = calloc(1, 9 << 20),
                             .len = 9 << 20, .move = true),
                 0);
    sock_close(conn);
  }
  fake_pass(10);
  return ++turn == 4000 || closed_at;
}

Test(close, a_peer_that_takes_no_byte_is_lost_after_thirty_seconds) {
  fake_clock();
  run_script(NULL, unread_step);
  cr_assert(closed_at >= 30000 && closed_at <= 30040, "at %d", closed_at);
}

/* ---- the clock and the log
 * ---------------------------------------------------------------------- */

Test(clock, never_goes_back_and_is_never_0) {
  uint64_t last = clock_ms();
  cr_assert_gt(last, 0);
  for (int i = 0; i < 1000; i++) {
    uint64_t now = clock_ms();
    cr_assert_geq(now, last);
    last = now;
  }
  fake_clock();
  cr_assert_eq(clock_ms(), fake_now());
  clock_set_source(NULL);
  cr_assert_geq(clock_ms(), last);
}

/* What `write_it` logs. */
static size_t logged(char *out, size_t cap, void (*write_it)(void)) {
  int fds[2], saved = dup(STDERR_FILENO);
  cr_assert_eq(pipe(fds), 0);
  dup2(fds[1], STDERR_FILENO);
  write_it();
  dup2(saved, STDERR_FILENO);
  close(fds[1]);
  close(saved);
  ssize_t n = read(fds[0], out, cap - 1);
  close(fds[0]);
  out[n > 0 ? n : 0] = 0;
  return n > 0 ? (size_t)n : 0;
}

static void log_plain(void) {
  errno = 77;
  log_line(LOG_WARN, "event", "key=%d text=\"%s\"", 5, "a\nb\x01\x7f");
  cr_assert_eq(errno, 77);
  log_line(LOG_DEBUG, "dropped", "x=1");
}

Test(log, a_line_is_level_event_and_keys_without_control_characters) {
  char out[4096], want[128];
  cr_assert_not(log_on(LOG_DEBUG));
  logged(out, sizeof out, log_plain);
  snprintf(want, sizeof want, "warn event pid=%d key=5 text=\"a?b??\"\n",
           (int)getpid());
  cr_assert_str_eq(out, want);
}

static char longest[3000];

static void log_long(void) {
  memset(longest, 'y', sizeof longest - 1);
  log_line(LOG_ERROR, "event", "text=%s", longest);
}

static void log_long_event(void) {
  memset(longest, 'y', sizeof longest - 1);
  log_line(LOG_ERROR, longest, "key=%d", 1);
}

Test(log, long_lines_are_cut_at_1_KiB_and_end_in_a_newline) {
  char out[8192];
  for (int i = 0; i < 2; i++) {
    size_t n = logged(out, sizeof out, i ? log_long_event : log_long);
    cr_assert_gt(n, i ? 64 : 1000);
    cr_assert_leq(n, 1024);
    cr_assert_eq(out[n - 1], '\n');
    cr_assert_eq(strlen(out), n);
    cr_assert_eq(strchr(out, '\n'), out + n - 1, "one line");
  }
}

Test(log, seldom_is_once_a_second_for_each) {
  fake_clock();
  uint64_t a = 0, b = 0;
  cr_assert(log_seldom(&a));
  cr_assert_not(log_seldom(&a));
  cr_assert(log_seldom(&b));
  fake_pass(999);
  cr_assert_not(log_seldom(&a));
  fake_pass(1);
  cr_assert(log_seldom(&a));
}
