/* server_test.c - signals, draining, accepting.
 *
 * Whole servers in processes of their own; the parent is the client and
 * asserts. Times of the design are in messages; a test fails at about ten times
 * that. */
#include "core_talk.h"

/* ---- 4: what interrupts a poll
 * ------------------------------------------------------ */

static void handled(int n) {
  (void)n;
  seen->n[1]++;
}

static int handle_winch(void *arg) {
  (void)arg;
  struct sigaction act = {.sa_handler = handled}; /* no SA_RESTART */
  return sigaction(SIGWINCH, &act, NULL);
}

Test(signals, a_stop_and_a_thousand_handled_signals_leave_it_answering) {
  seen_make();
  how.processes = 1;
  how.on_start = handle_winch;
  int port;
  pid_t pid = start(&port);
  int fd = client_to(port);
  for (int i = 0; i < 5; i++) {
    kill(pid, SIGSTOP);
    nap_ms(20);
    kill(pid, SIGCONT);
    uint64_t began = real_ms();
    cr_assert(echoes(fd, 'a'));
    cr_assert_lt(real_ms() - began, 1000, "100 ms are meant");
  }
  for (int i = 0; i < 1000; i++) {
    kill(pid, SIGWINCH);
    if (i % 50 == 0)
      cr_assert(echoes(fd, 'b'));
    else if (i % 10 == 0)
      nap_ms(1);
  }
  cr_assert(echoes(fd, 'c'));
  cr_assert_gt(seen->n[1], 50);
  finish(pid, &fd, 1);
}

/* A job that was suspended and goes on: its workers did not hang. */
Test(signals, a_suspended_job_that_goes_on_keeps_its_workers) {
  how.processes = 2;
  how.master = true;
  how.watchdog_ms = 300;
  int port, fds[2];
  pid_t pid = start(&port), before[2], after[2];
  client_each(port, 2, fds);
  cr_assert_eq(children_of(pid, before, 2), 2);
  for (int round = 0; round < 2; round++) {
    kill(pid, SIGSTOP);
    kill(before[0], SIGSTOP);
    kill(before[1], SIGSTOP);
    nap_ms(600);
    kill(pid, SIGCONT);
    nap_ms(30); /* the master is awake first */
    kill(before[0], SIGCONT);
    kill(before[1], SIGCONT);
    cr_assert(echoes(fds[0], 'x'), "round %d", round);
    cr_assert(echoes(fds[1], 'x'), "round %d", round);
  }
  cr_assert_eq(children_of(pid, after, 2), 2);
  cr_assert_arr_eq(before, after, sizeof before);
  finish(pid, fds, 2);
}

/* ---- 5: TERM
 * -------------------------------------------------------------------------- */

static void sibling_signal(int n) {
  seen->n[2 + n % 8]++;
}

/* In a group of its own: the server, and a sibling that must hear nothing. */
static pid_t sibling_fork(pid_t group) {
  pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, group);
    for (int n = 1; n < 32; n++)
      if (n != SIGKILL && n != SIGSTOP && n != SIGSEGV && n != SIGCHLD)
        signal(n, sibling_signal);
    seen->n[1] = 1;
    for (;;)
      pause();
  }
  return pid;
}

Test(term, an_idle_server_ends_in_order_and_its_group_hears_nothing) {
  seen_make();
  how.processes = 2;
  how.master = true;
  int port;
  pid_t pid = start(&port);
  setpgid(pid, pid);
  pid_t sibling = sibling_fork(pid);
  WAIT_FOR(seen->n[1], 2000);
  uint64_t began = real_ms();
  kill(pid, SIGTERM);
  cr_assert_eq(server_wait(pid, 5000), 0);
  cr_assert_lt(real_ms() - began, 2000, "500 ms are meant");
  for (int i = 2; i < 12; i++)
    cr_assert_eq(seen->n[i], 0, "the sibling got a signal");
  server_end(sibling);
}

Test(term, an_idle_server_without_a_master_ends_in_order) {
  how.processes = 1;
  int port;
  pid_t pid = start(&port);
  kill(pid, SIGINT);
  cr_assert_eq(server_wait(pid, 2000), 0);
}

static void try_second(bool master) {
  seen_make();
  how.processes = 1;
  how.master = master;
  how.drain_ms = 8000;
  int port;
  pid_t pid = start(&port);
  int fd = client_to(port);
  cr_assert(write_full(fd, "H", 1) && echoes(fd, 'x'));
  kill(pid, SIGTERM);
  WAIT_FOR(seen->n[0], 2000);
  cr_assert_eq(seen->n[0], 1);
  cr_assert(echoes(fd, 'y'), "it drains, and the connection still lives");
  cr_assert_eq(server_wait(pid, 100), -1);
  uint64_t began = real_ms();
  kill(pid, SIGTERM);
  int status = server_wait(pid, 5000);
  cr_assert_lt(real_ms() - began, 1000, "100 ms are meant");
  cr_assert_eq(status, 0, "the workers obeyed: status %d", status);
  cr_assert_neq(end_of(fd, 1000), ETIMEDOUT);
}

Test(term, a_second_one_ends_the_drain_at_once) {
  try_second(false);
}

Test(term, a_second_one_ends_the_drain_of_all_workers_at_once) {
  try_second(true);
}

/* ---- 29: drain
 * ----------------------------------------------------------------------------
 */

static void try_drain(bool master, bool twice) {
  seen_make();
  how.processes = 1;
  how.master = master;
  how.drain_ms = 9000;
  int port;
  pid_t pid = start(&port);
  int fd = flooded(port);
  kill(pid, SIGTERM);
  pid_t worker = -1;
  if (twice) {
    WAIT_FOR(seen->n[0] == 1, 2000);
    cr_assert_eq(children_of(pid, &worker, 1), 1);
    kill(worker, SIGTERM);
  }
  cr_assert_eq(1 + read_slowly(fd, 25), FLOOD_LEN);
  close(fd);
  cr_assert_eq(server_wait(pid, 5000), 0);
  cr_assert_eq(seen->n[0], 1, "told once");
}

Test(drain, what_is_queued_arrives_at_a_slow_reader) {
  try_drain(false, false);
}

Test(drain, what_is_queued_at_a_worker_arrives_at_a_slow_reader) {
  try_drain(true, false);
}

/* A service manager tells every process of the group, and the master tells the
 * workers too: in either order. */
Test(drain, a_TERM_to_master_and_workers_is_one_stop) {
  try_drain(true, true);
}

static void try_stopped_reader(bool master) {
  how.processes = 1;
  how.master = master;
  how.drain_ms = 700;
  int port;
  pid_t pid = start(&port);
  int fd = flooded(port);
  uint64_t began = real_ms();
  kill(pid, SIGTERM);
  cr_assert_eq(server_wait(pid, 10000), 0);
  int took = (int)(real_ms() - began);
  cr_assert(took >= 680 && took < 1700, "%d ms; 700 and 100 are meant", took);
  close(fd);
}

Test(drain, a_stopped_reader_is_cut_off_when_the_time_is_over) {
  try_stopped_reader(false);
}

Test(drain, a_stopped_reader_of_a_worker_is_cut_off_when_the_time_is_over) {
  try_stopped_reader(true);
}

/* Clients that had connected when it was told are taken in and told. */
Test(drain, those_who_wait_to_be_accepted_are_served_to_an_end) {
  seen_make();
  how.processes = 1;
  how.drain_ms = 5000;
  int port, fds[20];
  pid_t pid = start(&port);
  kill(pid, SIGSTOP);
  for (int i = 0; i < 20; i++) {
    fds[i] = client_to(port);
    cr_assert_geq(fds[i], 0);
    cr_assert(write_full(fds[i], "z", 1));
  }
  kill(pid, SIGTERM);
  kill(pid, SIGCONT);
  int told = 0;
  for (int i = 0; i < 20; i++) {
    char c = 0;
    ssize_t n = recv(fds[i], &c, 1, 0);
    cr_assert_neq(n, -1, "client %d: reset", i);
    told += n == 0 || end_of(fds[i], 2000) == 0;
    close(fds[i]);
  }
  cr_assert_eq(told, 20);
  cr_assert_eq(server_wait(pid, 4000), 0);
  cr_assert_eq(seen->n[0], 20, "told %d", seen->n[0]);
}

/* A worker that hangs while it drains. */
Test(drain, a_worker_that_hangs_is_killed_and_the_status_says_so) {
  how.processes = 2;
  how.master = true;
  how.drain_ms = 500;
  how.watchdog_ms = 400;
  int port, fds[2];
  pid_t pid = start(&port), pids[2];
  client_each(port, 2, fds);
  cr_assert_eq(children_of(pid, pids, 2), 2);
  cr_assert(write_full(fds[0], "L", 1));
  nap_ms(20);
  kill(pid, SIGTERM);
  cr_assert_eq(server_wait(pid, 8000), 1);
  cr_assert_eq(end_of(fds[1], 1000), 0, "the other one ended in order");
  for (int i = 0; i < 2; i++)
    cr_assert_eq(kill(pids[i], 0), -1);
}

/* ---- 44: a thousand at once
 * -------------------------------------------------------------------- */

Test(accept, a_thousand_connects_are_shared_by_four_workers) {
  how.processes = 4;
  how.master = true;
  int port, count[4] = {0};
  static int fds[1000];
  pid_t pid = start(&port);
  uint64_t began = real_ms();
  for (int i = 0; i < 1000; i++) {
    fds[i] = client_to(port);
    cr_assert_geq(fds[i], 0, "client %d refused", i);
    cr_assert(write_full(fds[i], "w", 1));
  }
  for (int i = 0; i < 1000; i++) {
    char w = -1;
    cr_assert_eq(read_full(fds[i], &w, 1), 1, "client %d is not served", i);
    cr_assert(w >= 0 && w < 4);
    count[(int)w]++;
  }
  cr_assert_lt(real_ms() - began, 5000, "1 s is meant");
  for (int i = 0; i < 4; i++)
    cr_assert(count[i] >= 150 && count[i] <= 350, "worker %d: %d", i, count[i]);
  finish(pid, fds, 1000);
}

/* ---- 9: no descriptors left
 * ------------------------------------------------------------------------ */

static int lines_in(int fd) {
  static char text[1 << 16];
  ssize_t n = pread(fd, text, sizeof text, 0);
  int lines = 0;
  for (ssize_t i = 0; i < n; i++)
    lines += text[i] == '\n';
  return lines;
}

Test(accept, goes_on_without_a_new_connect_when_descriptors_are_free_again) {
  how.processes = 1;
  how.files = 80;
  char name[] = "/tmp/core-log-XXXXXX";
  how.log = mkostemp(name, O_CLOEXEC);
  unlink(name);
  int port, fds[100], served = 0;
  pid_t pid = start(&port);
  for (int i = 0; i < 100; i++) {
    fds[i] = client_to(port);
    cr_assert_geq(fds[i], 0);
    cr_assert(write_full(fds[i], "x", 1));
  }
  nap_ms(300);
  long cpu = cpu_ms(pid);
  nap_ms(1000);
  cpu = cpu_ms(pid) - cpu;
  cr_assert_leq(cpu, 100, "%ld ms of CPU while full; 50 are meant", cpu);
  cr_assert_leq(lines_in(how.log), 3, "a line a second at most");
  cr_assert_geq(lines_in(how.log), 1);
  bool answered[100];
  for (int i = 0; i < 100; i++) {
    struct pollfd p = {fds[i], POLLIN, 0};
    answered[i] = poll(&p, 1, 0) == 1;
    served += answered[i];
  }
  cr_assert(served > 50 && served < 80, "%d", served);
  int closed = 0;
  for (int i = 0; i < 100 && closed < 50; i++)
    if (answered[i]) {
      close(fds[i]);
      fds[i] = -1;
      closed++;
    }
  uint64_t began = real_ms();
  for (int i = 0; i < 100; i++) {
    char c = 0;
    if (fds[i] >= 0)
      cr_assert(read_full(fds[i], &c, 1) == 1 && c == 'x', "client %d", i);
  }
  cr_assert_lt(real_ms() - began, 2500, "500 ms are meant");
  finish(pid, fds, 100);
}

/* A limit of ours: the same pause. */
Test(accept, goes_on_when_there_is_room_under_the_limit_of_connections) {
  how.processes = 1;
  how.max_connections = 10;
  int port, fds[16];
  pid_t pid = start(&port);
  for (int i = 0; i < 16; i++) {
    fds[i] = client_to(port);
    cr_assert_geq(fds[i], 0, "client %d waits, and is not refused", i);
    cr_assert(write_full(fds[i], "x", 1));
  }
  for (int i = 0; i < 10; i++) {
    char c;
    cr_assert_eq(read_full(fds[i], &c, 1), 1, "client %d", i);
  }
  for (int i = 10; i < 16; i++)
    cr_assert_eq(end_of(fds[i], i == 10 ? 250 : 0), ETIMEDOUT, "client %d", i);
  for (int i = 0; i < 6; i++)
    close(fds[i]);
  for (int i = 10; i < 16; i++) {
    char c;
    cr_assert_eq(read_full(fds[i], &c, 1), 1, "client %d", i);
  }
  finish(pid, fds + 6, 10);
}

/* ---- closed standard descriptors
 * ------------------------------------------------------------------- */

static int serve_closed(void *arg) {
  close(STDIN_FILENO);
  close(STDOUT_FILENO);
  close(STDERR_FILENO);
  if (facil_listen(.port = "0", .on_open = talk_open) < 0)
    return 99;
  (void)arg;
  return facil_run(.processes = 1, .master = true, .on_running = all_serve);
}

Test(accept, no_client_gets_the_place_of_a_closed_standard_descriptor) {
  int port;
  pid_t pid = server_fork(serve_closed, NULL, &port), worker;
  cr_assert_eq(children_of(pid, &worker, 1), 1);
  for (int n = 0; n < 3; n++) {
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)worker, n);
    (void)!readlink(path, target, sizeof target - 1);
    cr_assert_str_eq(target, "/dev/null", "descriptor %d is %s", n, target);
  }
  int fd = client_to(port);
  cr_assert(echoes(fd, 'x'));
  finish(pid, &fd, 1);
}
