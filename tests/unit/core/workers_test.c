/* workers_test.c - the master and its workers: deaths, starts, hanging.
 *
 * Whole servers in processes of their own; the parent is the client and
 * asserts. Times of the design are in messages; a test fails at about ten times
 * that. */
#include "core_talk.h"

static int32_t pid_behind(int fd) {
  int32_t pid = 0;
  return write_full(fd, "p", 1) && read_full(fd, &pid, 4) == 4 ? pid : -1;
}

/* ---- 6: a worker dies
 * ---------------------------------------------------------------------- */

Test(workers, one_that_is_killed_is_replaced_and_the_others_notice_nothing) {
  how.processes = 4;
  how.master = true;
  int port, fds[4];
  pid_t pid = start(&port);
  client_each(port, 4, fds);
  int32_t before[4];
  for (int i = 0; i < 4; i++)
    before[i] = pid_behind(fds[i]);
  uint64_t began = real_ms();
  kill(before[1], SIGKILL);
  cr_assert_neq(end_of(fds[1], 3000), ETIMEDOUT);
  for (int i = 0; i < 200; i++) {
    int fd = client_to(port);
    cr_assert_geq(fd, 0, "refused");
    cr_assert(echoes(fd, 'x'), "client %d", i);
    close(fd);
  }
  pid_t now[8];
  WAIT_FOR(children_of(pid, now, 8) == 4, 3000);
  int again[4];
  client_each(port, 4, again);
  int32_t successor = pid_behind(again[1]);
  cr_assert_neq(successor, before[1]);
  cr_assert_lt(real_ms() - began, 3000, "300 ms are meant");
  for (int i = 0; i < 4; i++)
    if (i != 1) {
      cr_assert_eq(pid_behind(fds[i]), before[i]);
      cr_assert_eq(pid_behind(again[i]), before[i]);
    }
  for (int i = 0; i < 1000; i++) {
    int fd = client_to(port);
    cr_assert_geq(fd, 0);
    if (i % 10 == 0)
      cr_assert(echoes(fd, 'x'));
    close(fd);
  }
  /* 41: the successor holds no more descriptors than the first ones. */
  close(fds[2]);
  WAIT_FOR(fds_of(before[2]) == fds_of(successor), 1000);
  cr_assert_eq(fds_of(successor), fds_of(before[2]));
  for (int i = 0; i < 4; i++)
    close(fds[i]);
  finish(pid, again, 4);
}

/* ---- 7: the master dies
 * -------------------------------------------------------------------- */

Test(workers, they_drain_and_go_when_the_master_is_killed) {
  seen_make();
  how.processes = 2;
  how.master = true;
  how.drain_ms = 6000;
  int port;
  pid_t pid = start(&port), pids[2];
  cr_assert_eq(children_of(pid, pids, 2), 2);
  int fd = flooded(port);
  server_end(pid);
  cr_assert_eq(1 + read_slowly(fd, 0), FLOOD_LEN, "it drains: all arrives");
  close(fd);
  for (int i = 0; i < 2; i++) {
    WAIT_FOR(kill(pids[i], 0) < 0, 6000);
    cr_assert_eq(kill(pids[i], 0), -1, "a worker outlives its master");
  }
  cr_assert_lt(client_to(port), 0, "the port is free");
}

/* ---- 8: workers that cannot start
 * ------------------------------------------------------------ */

static int cannot(void *arg) {
  (void)arg;
  server_is_at();
  return facil_worker_id() == 1 ? -1 : 0;
}

static int aborts(void *arg) {
  (void)arg;
  if (facil_worker_id() != 1)
    return 0;
  server_is_at();
  _exit(3);
}

static void try_start(int (*on_start)(void *)) {
  how.processes = 3;
  how.master = true;
  how.on_start = on_start;
  int port;
  uint64_t began = real_ms();
  pid_t pid = start(&port);
  cr_assert_eq(server_wait(pid, 5000), 1);
  cr_assert_lt(real_ms() - began, 4000, "2 s are meant");
}

Test(workers, a_first_start_that_fails_ends_all) {
  try_start(cannot);
}

Test(workers, a_first_start_that_dies_ends_all) {
  try_start(aborts);
}

/* After the first start each worker `dies` this often, at its start. */
static int crash_starts, crash_workers;

static int crash(void *arg) {
  (void)arg;
  int id = facil_worker_id(), n = seen->n[32 + id]++;
  seen->big[id * 16 + (n & 15)] = (int64_t)real_ms();
  if (n > 0 && n <= crash_starts && id < crash_workers)
    raise(SIGKILL);
  return 0;
}

static void crash_all(int port, int workers) {
  int fds[4];
  client_each(port, workers, fds);
  for (int i = 0; i < crash_workers; i++)
    cr_assert(write_full(fds[i], "K", 1));
  for (int i = 0; i < workers; i++)
    close(fds[i]);
}

Test(workers, a_crash_loop_backs_off_and_is_given_up_with_status_70) {
  seen_make();
  how.processes = 2;
  how.master = true;
  how.on_start = crash;
  crash_starts = 100;
  crash_workers = 1;
  int port;
  pid_t pid = start(&port);
  nap_ms(1050); /* its first life is no early death */
  crash_all(port, 2);
  cr_assert_eq(server_wait(pid, 8000), 70);
  /* starts: first, after 0, 100, 200, 400, 800; and given up */
  cr_assert_eq(seen->n[32], 6, "%d starts", seen->n[32]);
  cr_assert_eq(seen->n[33], 1, "the other one stayed");
  static const int meant[] = {0, 100, 200, 400, 800};
  for (int i = 2; i < 6; i++) {
    int gap = (int)(seen->big[i] - seen->big[i - 1]);
    cr_assert(gap >= meant[i - 1] - 5 && gap < meant[i - 1] + 300,
              "start %d after %d ms", i, gap);
  }
}

/* "In a row" is of one worker: what two do together is no loop of one. */
Test(workers, deaths_of_several_workers_do_not_add_up) {
  seen_make();
  how.processes = 2;
  how.master = true;
  how.on_start = crash;
  crash_starts = 3;
  crash_workers = 2;
  int port;
  pid_t pid = start(&port);
  crash_all(port, 2);
  WAIT_FOR(seen->n[32] == 5 && seen->n[33] == 5, 4000);
  cr_assert_eq(seen->n[32], 5);
  cr_assert_eq(seen->n[33], 5);
  int fds[2];
  client_each(port, 2, fds);
  finish(pid, fds, 2);
}

/* ---- 46: a worker hangs
 * ------------------------------------------------------------------------ */

Test(workers, an_endless_loop_is_ended_by_the_watchdog_and_others_serve_on) {
  how.processes = 2;
  how.master = true;
  how.watchdog_ms = 300;
  int port, fds[2], again[2];
  pid_t pid = start(&port);
  client_each(port, 2, fds);
  int32_t first = pid_behind(fds[0]), second = pid_behind(fds[1]);
  uint64_t began = real_ms();
  cr_assert(write_full(fds[0], "L", 1));
  while (end_of(fds[0], 10) == ETIMEDOUT) {
    cr_assert(echoes(fds[1], 'x'));
    cr_assert_lt(real_ms() - began, 3000, "300 ms are meant");
  }
  cr_assert_geq(real_ms() - began, 250, "it had its time");
  client_each(port, 2, again);
  cr_assert_neq(pid_behind(again[0]), first);
  cr_assert_eq(pid_behind(again[1]), second);
  close(fds[1]);
  finish(pid, again, 2);
}

Test(workers, idle_ones_are_not_taken_for_hanging) {
  how.processes = 2;
  how.master = true;
  how.watchdog_ms = 300;
  int port;
  pid_t pid = start(&port), before[2], after[2];
  cr_assert_eq(children_of(pid, before, 2), 2);
  nap_ms(1200);
  cr_assert_eq(children_of(pid, after, 2), 2);
  cr_assert_arr_eq(before, after, sizeof before);
  kill(pid, SIGTERM);
  cr_assert_eq(server_wait(pid, 5000), 0);
}

/* ---- timers of before the fork */

static void count_tick(void *arg) {
  (void)arg;
  seen->n[40 + facil_worker_id()]++;
}

static void count_tick_end(void *arg) {
  (void)arg;
  seen->n[50 + facil_worker_id()]++;
}

static void make_timer(void) {
  facil_run_every(20, 3, count_tick, NULL, count_tick_end);
  facil_run_every(20, 0, count_tick, NULL, count_tick_end);
}

Test(workers, a_timer_of_before_the_run_runs_and_ends_in_each) {
  seen_make();
  how.processes = 2;
  how.master = true;
  how.before_run = make_timer;
  int port;
  pid_t pid = start(&port);
  WAIT_FOR(seen->n[40] > 7 && seen->n[41] > 7, 3000);
  cr_assert_eq(seen->n[39], 0, "the master runs none");
  cr_assert_eq(seen->n[50], 1, "the one of three ticks has ended");
  cr_assert_eq(seen->n[51], 1);
  kill(pid, SIGTERM);
  cr_assert_eq(server_wait(pid, 5000), 0);
  cr_assert_eq(seen->n[50], 2);
  cr_assert_eq(seen->n[51], 2);
  cr_assert_eq(seen->n[49], 2, "and the master's copies are given back");
}

/* ---- 41: what a worker holds
 * ---------------------------------------------------------------- */

static int worker_fds(uint16_t workers) {
  how.processes = workers;
  how.master = true;
  int port, least = 0, fds[4];
  pid_t pid = start(&port), pids[4];
  client_each(port, workers, fds);
  for (int i = 0; i < workers; i++)
    close(fds[i]);
  nap_ms(50);
  cr_assert_eq(children_of(pid, pids, 4), workers);
  for (int i = 0; i < workers; i++) {
    int n = fds_of(pids[i]);
    cr_assert(!least || n == least, "workers hold %d and %d", least, n);
    least = n;
  }
  kill(pid, SIGTERM);
  cr_assert_eq(server_wait(pid, 5000), 0);
  return least;
}

Test(workers, one_of_four_holds_as_many_descriptors_as_one_alone) {
  int alone = worker_fds(1);
  cr_assert_eq(worker_fds(4), alone);
}

static void never_here(void) {
  seen->n[5]++;
}

static int serve_text(void *arg) {
  dup2((int)(intptr_t)arg, STDOUT_FILENO);
  atexit(never_here);
  printf("once"); /* and it stays in the buffer */
  int status = serve(NULL);
  fflush(stdout);
  return status;
}

Test(workers, buffered_text_is_printed_once_and_atexit_is_the_masters) {
  seen_make();
  how.processes = 3;
  how.master = true;
  int out[2], port;
  cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
  pid_t pid = server_fork(serve_text, (void *)(intptr_t)out[1], &port);
  close(out[1]);
  kill(pid, SIGTERM);
  cr_assert_eq(server_wait(pid, 5000), 0);
  char text[64] = "";
  ssize_t n = 0, k;
  while ((k = read(out[0], text + n, sizeof text - 1 - (size_t)n)) > 0)
    n += k;
  cr_assert_str_eq(text, "once");
  cr_assert_eq(seen->n[5], 0);
}
