/* defer_test.c - the task queue and other threads; and the base headers: lists,
 * buffers, views. */
#include "core_support.h"
#include "facil/list.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static int turn, client;
static intptr_t conn;

/* ---- order and turns
 * ----------------------------------------------------------- */

static int order[4096], ordered;
static bool in_call;

static void note(void *arg, void *more) {
  cr_assert_not(in_call, "never inside the call that posted it");
  cr_assert_null(more);
  order[ordered++] = (int)(intptr_t)arg;
}

static int chained, chain_turn;

static void chain(void *arg, void *more) {
  (void)arg, (void)more;
  cr_assert_neq(chain_turn, turn, "a task that posts another: in a later turn");
  chain_turn = turn;
  if (++chained < 50)
    cr_assert_eq(defer(chain, NULL, NULL), 0);
}

static bool order_step(void) {
  if (turn++ == 0) {
    in_call = true;
    for (intptr_t i = 0; i < 3000; i++)
      cr_assert_eq(defer(note, (void *)i, NULL), 0);
    cr_assert_eq(defer(chain, NULL, NULL), 0);
    cr_assert(defer_has_queue());
    in_call = false;
    cr_assert_eq(defer(NULL, NULL, NULL), -1);
    cr_assert_eq(errno, EINVAL);
  }
  return chained == 50;
}

Test(defer, tasks_run_once_in_order_and_one_posted_by_another_a_turn_later) {
  run_script(NULL, order_step);
  cr_assert_eq(ordered, 3000);
  for (int i = 0; i < 3000; i++)
    cr_assert_eq(order[i], i);
  cr_assert_eq(turn, 51, "each in its turn: %d", turn);
}

Test(defer, tasks_run_without_a_loop_too) {
  for (intptr_t i = 0; i < 10; i++)
    cr_assert_eq(defer(note, (void *)i, NULL), 0);
  cr_assert_eq(ordered, 0);
  defer_perform();
  cr_assert_eq(ordered, 10);
  cr_assert_not(defer_has_queue());
}

/* ---- 13
 * ------------------------------------------------------------------------- */

static int tasks, fallbacks, told_uuid;

static void task(intptr_t uuid, protocol_s *p, void *arg) {
  cr_assert_not(in_call);
  cr_assert_eq(uuid, conn);
  cr_assert_eq(probe_of(p)->uuid, conn);
  cr_assert_eq(arg, &tasks);
  tasks++;
}

static void fallback(intptr_t uuid, void *arg) {
  cr_assert_not(in_call);
  cr_assert_eq(arg, &tasks);
  told_uuid += uuid == -1;
  fallbacks++;
}

static void defer_begin(void) {
  conn = pair_with(&client, probe_new(&probe_ops, 0));
}

static bool either_step(void) {
  switch (turn++) {
  case 0:
    in_call = true;
    cr_assert_eq(facil_defer(.uuid = -1, .task = task, .arg = &tasks,
                             .fallback = fallback),
                 0);
    cr_assert_eq(facil_defer(.uuid = conn, .task = task, .arg = &tasks,
                             .fallback = fallback),
                 0);
    in_call = false;
    return false;
  case 5:
    cr_assert_eq(tasks, 1);
    cr_assert_eq(fallbacks, 1);
    cr_assert_eq(told_uuid, 1);
    facil_defer(.uuid = conn, .task = task, .arg = &tasks,
                .fallback = fallback);
    sock_abort(conn, "before it runs");
    return false;
  case 10:
    cr_assert_eq(tasks, 1);
    cr_assert_eq(fallbacks, 2);
    return true;
  }
  return false;
}

Test(defer, a_task_or_its_fallback_runs_and_never_both) {
  run_script(defer_begin, either_step);
  errno = 0;
  cr_assert_eq(facil_defer(.uuid = -1, .arg = &tasks, .fallback = fallback),
               -1);
  cr_assert_eq(errno, EINVAL);
  cr_assert_eq(fallbacks, 3);
}

static void post_at_end(intptr_t uuid, probe_s *p) {
  (void)p;
  facil_defer(.uuid = uuid, .task = task, .arg = &tasks, .fallback = fallback);
}

static bool end_step(void) {
  if (turn++ == 0)
    probe_of(facil_protocol(conn, NULL))->on_close = post_at_end;
  return turn > 3;
}

Test(defer, what_is_posted_while_the_process_ends_falls_back) {
  run_script(defer_begin, end_step);
  cr_assert_eq(tasks, 0);
  cr_assert_eq(fallbacks, 1);
}

#define THREADS 8
#define POSTS 10000

static pthread_t threads[THREADS];
static atomic_int joined;
static int last_of[THREADS], from_threads, fell;
static pthread_t loop_thread;

static void threaded(intptr_t uuid, protocol_s *p, void *arg) {
  (void)uuid, (void)p;
  int *mine = arg;
  cr_assert(pthread_equal(loop_thread, pthread_self()));
  int thread = mine[0];
  cr_assert_eq(mine[1], last_of[thread]++, "those of one thread in order");
  free(arg);
  from_threads++;
}

static void threaded_fell(intptr_t uuid, void *arg) {
  (void)uuid;
  cr_assert(pthread_equal(loop_thread, pthread_self()));
  last_of[((int *)arg)[0]]++;
  free(arg);
  fell++;
}

static void *poster(void *arg) {
  int thread = (int)(intptr_t)arg;
  for (int i = 0; i < POSTS; i++) {
    int *mine = malloc(2 * sizeof *mine);
    if (!mine)
      abort();
    mine[0] = thread;
    mine[1] = i;
    facil_defer(.uuid = i % 3 ? conn : -1, .task = threaded, .arg = mine,
                .fallback = threaded_fell);
  }
  atomic_fetch_add(&joined, 1);
  return NULL;
}

static bool threads_step(void) {
  if (turn++ == 0) {
    loop_thread = pthread_self();
    for (intptr_t i = 0; i < THREADS; i++)
      cr_assert_eq(pthread_create(&threads[i], NULL, poster, (void *)i), 0);
  }
  return from_threads + fell == THREADS * POSTS;
}

Test(defer, eighty_thousand_tasks_of_eight_threads_run_once_each) {
  script_sleeps = true; /* so that a lost wake-up would be seen */
  uint64_t began = real_ms();
  run_script(defer_begin, threads_step);
  cr_assert_eq(joined, THREADS);
  cr_assert_eq(from_threads + fell, THREADS * POSTS);
  cr_assert_eq(fell, THREADS * ((POSTS + 2) / 3));
  cr_assert_lt(real_ms() - began, 10000);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
}

/* A post wakes a loop that sleeps. */
static uint64_t posted_ms, ran_ms;

static void woken(void *a, void *b) {
  (void)a, (void)b;
  ran_ms = real_ms();
}

static void *late_poster(void *arg) {
  (void)arg;
  nap_ms(100);
  posted_ms = real_ms();
  (void)!defer(woken, NULL, NULL);
  return NULL;
}

static bool woken_step(void) {
  if (turn++ == 0)
    cr_assert_eq(pthread_create(&threads[0], NULL, late_poster, NULL), 0);
  return ran_ms != 0;
}

Test(defer, a_task_of_another_thread_wakes_the_loop) {
  script_sleeps = true;
  run_script(NULL, woken_step);
  pthread_join(threads[0], NULL);
  cr_assert_leq(ran_ms - posted_ms, 100);
}

/* Posted by other threads before there is a loop, and after. */
static void *early_poster(void *arg) {
  for (int i = 0; i < 1000; i++)
    (void)!defer(note, arg, NULL);
  return NULL;
}

static bool early_step(void) {
  return turn++ > 5;
}

Test(defer, threads_may_post_before_there_is_a_loop) {
  pthread_t a, b;
  cr_assert_eq(pthread_create(&a, NULL, early_poster, NULL), 0);
  cr_assert_eq(pthread_create(&b, NULL, early_poster, NULL), 0);
  for (int i = 0; i < 1000; i++)
    cr_assert_eq(defer(note, NULL, NULL), 0);
  pthread_join(a, NULL);
  pthread_join(b, NULL);
  run_script(NULL, early_step);
  cr_assert_eq(ordered, 3000);
}

static void *stopper(void *arg) {
  (void)arg;
  nap_ms(100);
  posted_ms = real_ms();
  facil_stop();
  return NULL;
}

static int start_stopper(void *arg) {
  (void)arg;
  return pthread_create(&threads[0], NULL, stopper, NULL) ? -1 : 0;
}

Test(run, a_stop_from_another_thread_is_heard_at_once) {
  cr_assert_eq(facil_run(.processes = 1, .on_start = start_stopper), 0);
  cr_assert_lt(real_ms() - posted_ms, 300);
  pthread_join(threads[0], NULL);
}

/* ---- no spinning
 * ------------------------------------------------------------------ */

#define QUIET_MS 600

static int calm_turns;

static void quiet_begins(void) {
  posted_ms = real_ms();
  facil_run_every(QUIET_MS + 1, 1, script_wakes, NULL, NULL);
}

static bool calm_step(void) {
  calm_turns++;
  switch (turn++) {
  case 0:
    facil_suspend_read(conn);
    cr_assert_eq(write(client, "xxxx", 4), 4);
    shutdown(client, SHUT_WR);
    quiet_begins();
    break;
  }
  return real_ms() - posted_ms > QUIET_MS;
}

Test(spin, a_suspended_reader_whose_peer_has_ended_does_not_turn_the_loop) {
  script_sleeps = true;
  run_script(defer_begin, calm_step);
  cr_assert_lt(calm_turns, 10, "%d turns", calm_turns);
  cr_assert_eq(tally[0].data, 0);
}

static bool reset_step(void) {
  calm_turns++;
  if (turn++ == 0) {
    facil_suspend_read(conn);
    cr_assert_eq(write(client, "xxxx", 4), 4);
    struct linger hard = {1, 0};
    setsockopt(client, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(client);
    quiet_begins();
  }
  if (tally[0].close && !ran_ms)
    ran_ms = real_ms();
  return ran_ms || real_ms() - posted_ms > QUIET_MS;
}

Test(spin, a_suspended_reader_whose_peer_has_reset_is_lost_at_once) {
  script_sleeps = true;
  run_script(defer_begin, reset_step);
  cr_assert_neq(ran_ms, 0);
  cr_assert_lt(calm_turns, 10, "%d turns", calm_turns);
}

static void half_begin(void) {
  conn = pair_with(&client, probe_new(&probe_half_ops, 0));
}

static bool half_step(void) {
  calm_turns++;
  if (turn++ == 0) {
    shutdown(client, SHUT_WR);
    quiet_begins();
  }
  return real_ms() - posted_ms > QUIET_MS;
}

Test(spin, a_half_open_connection_does_not_turn_the_loop) {
  script_sleeps = true;
  run_script(half_begin, half_step);
  cr_assert_lt(calm_turns, 10, "%d turns", calm_turns);
}

static bool blocked_close_step(void) {
  calm_turns++;
  if (turn++ == 0) {
    cr_assert_eq(sock_write2(.uuid = conn, .data = calloc(1, 9 << 20),
                             .len = 9 << 20, .move = true),
                 0);
    sock_close(conn);
    shutdown(client, SHUT_WR);
    quiet_begins();
  }
  return real_ms() - posted_ms > QUIET_MS;
}

Test(spin, a_close_that_waits_for_a_stopped_reader_does_not_turn_the_loop) {
  script_sleeps = true;
  run_script(defer_begin, blocked_close_step);
  cr_assert_lt(calm_turns, 10, "%d turns", calm_turns);
}

/* A connection whose protocol has no on_data. */
static const protocol_ops_s deaf_ops = {.service = "deaf"};
static protocol_s deaf = {&deaf_ops};

static bool deaf_step(void) {
  calm_turns++;
  if (turn++ == 0) {
    conn = pair_tcp(&client);
    cr_assert_eq(facil_attach(conn, &deaf), 0);
    cr_assert_eq(write(client, "xxxx", 4), 4);
    quiet_begins();
  }
  return real_ms() - posted_ms > QUIET_MS;
}

Test(spin, a_protocol_without_on_data_does_not_turn_the_loop) {
  script_sleeps = true;
  run_script(NULL, deaf_step);
  cr_assert_lt(calm_turns, 10, "%d turns", calm_turns);
}

/* ---- on_idle
 * -------------------------------------------------------------------------- */

static int idles;

static void on_idle(void *arg) {
  (void)arg;
  if (++idles == 1)
    facil_stop();
}

Test(run, on_idle_comes_when_there_was_something_and_nothing_is_left) {
  (void)!defer(note, NULL, NULL);
  uint64_t began = real_ms();
  cr_assert_eq(facil_run(.processes = 1, .on_idle = on_idle), 0);
  cr_assert_eq(idles, 1);
  cr_assert_lt(real_ms() - began, 500, "before it sleeps");
}

/* ---- base
 * ------------------------------------------------------------------------------
 */

typedef struct {
  int value;
  list_s link;
} item_s;

Test(list, nodes_come_out_in_the_order_in_which_they_went_in) {
  list_s head;
  item_s item[5];
  list_init(&head);
  cr_assert(list_empty(&head));
  cr_assert_null(list_shift(&head));
  for (int i = 0; i < 5; i++) {
    item[i].value = i;
    list_push(&head, &item[i].link);
  }
  list_remove(&item[2].link);
  list_remove(&item[2].link); /* harmless */
  for (int i = 0; i < 5; i++)
    if (i != 2)
      cr_assert_eq(FACIL_CONTAINER(list_shift(&head), item_s, link)->value, i);
  cr_assert(list_empty(&head));
}

/* Not inlined, or the compiler warns of what is tested. */
static __attribute__((noinline)) void give_back(facil_buf_s *b) {
  facil_buf_unref(b);
}

Test(buf, bytes_stay_where_they_are_until_the_last_reference) {
  facil_buf_s *b = facil_buf_new(10);
  facil_buf_add(b, "hello", 5);
  facil_buf_s *c = facil_buf_ref(b);
  view_s v = facil_buf_view(c);
  facil_buf_add(b, " you!", 5);
  cr_assert(view_eq(v, VIEW_LIT("hello")));
  cr_assert(view_eq(facil_buf_view(b), VIEW_LIT("hello you!")));
  give_back(b);
  cr_assert_eq(c->refs, 1);
  give_back(c);
  facil_buf_unref(NULL);
  cr_assert_null(facil_buf_new(SIZE_MAX));
}

Test(view, is_compared_cut_and_trimmed_within_its_bytes) {
  view_s v = VIEW_LIT(" \tAbc def ");
  cr_assert(view_eq(view_trim(v), VIEW_LIT("Abc def")));
  cr_assert(view_eq_nocase(view_trim(v), VIEW_LIT("aBC DEF")));
  cr_assert_not(view_eq(VIEW_LIT("a"), VIEW_LIT("ab")));
  cr_assert(view_eq(view_str(NULL), VIEW_LIT("")));
  cr_assert(view_starts(VIEW_LIT("abc"), VIEW_LIT("ab")));
  cr_assert_not(view_starts(VIEW_LIT("ab"), VIEW_LIT("abc")));
  cr_assert(view_eq(view_sub(VIEW_LIT("abcdef"), 2, 2), VIEW_LIT("cd")));
  cr_assert(view_eq(view_sub(VIEW_LIT("abcdef"), 4, SIZE_MAX), VIEW_LIT("ef")));
  cr_assert_eq(view_sub(VIEW_LIT("abc"), SIZE_MAX, 1).len, 0);
  cr_assert_eq(view_trim(VIEW_LIT(" \t ")).len, 0);
  cr_assert_eq(view_u16("\x01\x02"), 0x0102);
  cr_assert_eq(view_u32("\xff\x02\x03\x04"), 0xff020304u);
  cr_assert_eq(view_u64("\x80\x02\x03\x04\x05\x06\x07\x08"),
               0x8002030405060708u);
}
