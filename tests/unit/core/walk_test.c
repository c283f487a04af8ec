/* walk_test.c - facil_each, sets and facil_count: each member once, in one
 * order for everybody, whatever the tasks do. */
#include "core_support.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- 15: how many, and the end
 * ------------------------------------------------ */

static struct {
  int members, visits, ends, turn;
  bool in_call;
  int last;
  intptr_t uuids[10000], origin, end_origin;
} w;

/* Connections without a peer: what they are made of does not matter. */
static intptr_t lonely(probe_s *p) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) <
      0)
    abort();
  intptr_t uuid = sock_open(fds[0]);
  p->uuid = uuid;
  p->arg = (void *)(intptr_t)fds[1];
  if (facil_attach(uuid, &p->super) < 0)
    abort();
  return uuid;
}

static void lonely_close(intptr_t uuid, probe_s *p) {
  (void)uuid;
  close((int)(intptr_t)p->arg);
}

static probe_s *member_new(int id) {
  probe_s *p = probe_new(&probe_ops, id);
  p->on_close = lonely_close;
  return p;
}

static void members_begin(void) {
  for (int i = 0; i < w.members; i++)
    w.uuids[i] = lonely(member_new(i));
}

static void count_visit(intptr_t uuid, protocol_s *p, void *arg) {
  cr_assert_eq(arg, &w);
  cr_assert_not(w.in_call, "never inside the call");
  cr_assert_neq(uuid, w.origin, "the origin is left out");
  cr_assert_eq(uuid, probe_of(p)->uuid);
  cr_assert_eq(w.ends, 0, "the end is last");
  cr_assert_eq(tally[probe_of(p)->id].data++, 0, "once each");
  cr_assert_geq(probe_of(p)->id, w.last, "in order of joining");
  w.last = probe_of(p)->id;
  w.visits++;
}

static void count_end(intptr_t origin, void *arg) {
  cr_assert_eq(arg, &w);
  cr_assert_not(w.in_call, "never inside the call");
  w.end_origin = origin;
  w.ends++;
}

static bool each_step(void) {
  if (w.turn++ == 0) {
    w.in_call = true;
    cr_assert_eq(facil_each(.origin = w.origin, .service = probe_ops.service,
                            .task = count_visit, .arg = &w,
                            .on_complete = count_end),
                 0);
    w.in_call = false;
  }
  return w.ends && w.turn > 40;
}

static void try_each(int members) {
  memset(tally, 0, sizeof tally);
  memset(&w, 0, sizeof w);
  w.members = members;
  run_script(members_begin, each_step);
  cr_assert_eq(w.visits, members);
  cr_assert_eq(w.ends, 1);
}

Test(walk, each_visits_zero_one_three_and_ten_thousand_members_once) {
  try_each(0);
  try_each(1);
  try_each(3);
  try_each(9000);
}

static bool origin_step(void) {
  if (!w.turn)
    w.origin = w.uuids[1];
  return each_step();
}

Test(walk, each_leaves_the_origin_out) {
  w.members = 3;
  run_script(members_begin, origin_step);
  cr_assert_eq(w.visits, 2);
  cr_assert_eq(w.end_origin, w.uuids[1]);
}

/* The seed compared the origin with a descriptor. */
static bool number_step(void) {
  if (!w.turn)
    w.origin = sock_uuid2fd(w.uuids[1]);
  return each_step();
}

Test(walk, an_origin_that_is_the_number_of_a_descriptor_leaves_nobody_out) {
  w.members = 3;
  run_script(members_begin, number_step);
  cr_assert_eq(w.visits, 3);
}

static bool all_step(void) {
  if (w.turn++ == 0) {
    w.in_call = true;
    cr_assert_eq(
        facil_each(.task = count_visit, .arg = &w, .on_complete = count_end),
        0);
    w.in_call = false;
  }
  return w.turn > 10;
}

Test(walk, each_of_nobody_at_all_succeeds_and_ends_later) {
  run_script(NULL, all_step);
  cr_assert_eq(w.visits, 0);
  cr_assert_eq(w.ends, 1);
}

static void two_kinds(void) {
  for (int i = 0; i < 6; i++) {
    probe_s *p = probe_new(i < 3 ? &probe_ops : &probe_half_ops, i);
    p->on_close = lonely_close;
    w.uuids[i] = lonely(p);
  }
}

Test(walk, each_without_a_tag_visits_every_kind_and_ends_once) {
  run_script(two_kinds, all_step);
  cr_assert_eq(w.visits, 6);
  cr_assert_eq(w.ends, 1);
}

static bool error_step(void) {
  errno = 0;
  cr_assert_eq(facil_each(.origin = 5, .arg = &w, .on_complete = count_end),
               -1);
  cr_assert_eq(errno, EINVAL);
  return true;
}

Test(walk, each_without_a_task_is_einval_and_ends_all_the_same) {
  run_script(NULL, error_step);
  cr_assert_eq(w.ends, 1);
  cr_assert_eq(w.end_origin, 5);
}

/* ---- later turns
 * ---------------------------------------------------------------- */

static void start_over(intptr_t origin, void *arg) {
  (void)origin, (void)arg;
  w.ends++;
  if (w.turn < 1000)
    facil_each(.service = "nobody", .task = count_visit, .arg = &w,
               .on_complete = start_over);
}

static bool over_step(void) {
  static int before;
  if (w.turn++ == 0)
    start_over(0, NULL);
  cr_assert_leq(w.ends - before, 1,
                "a walk that starts another one: a turn "
                "lies between");
  before = w.ends;
  return w.turn > 50;
}

Test(walk, a_walk_that_starts_another_at_its_end_does_not_hold_the_loop) {
  w.turn = 0;
  run_script(NULL, over_step);
  cr_assert_gt(w.ends, 20);
}

static void restart_always(intptr_t origin, void *arg) {
  (void)origin;
  w.ends++;
  facil_each(.service = probe_ops.service, .task = count_visit, .arg = arg,
             .on_complete = restart_always);
}

static bool restart_step(void) {
  if (w.turn++ == 0)
    restart_always(0, &w);
  return w.turn > 20;
}

Test(walk, walks_that_go_on_for_ever_do_not_keep_the_process, .timeout = 5) {
  run_script(NULL, restart_step);
  cr_assert_gt(w.ends, 5);
}

/* ---- 16: anything in a task
 * ------------------------------------------------------- */

#define CROWD 40
#define WALKS 400

typedef struct {
  uint64_t snapshot[(CROWD * 64 + 63) / 64]; /* unused high part */
  int visited[CROWD * 64];
  bool there[CROWD * 64], stayed[CROWD * 64];
  bool done;
} model_s;

static struct {
  uint64_t seed;
  int next_id, live, walks, schedule, schedules;
  probe_s *member[CROWD * 64]; /* by id, while it is attached to "probe" */
  model_s *walk[WALKS];
  int order[CROWD * 64]; /* the last walk that visited a member */
} m;

static void start_walk(void);

static void member_gone(int id) {
  m.member[id] = NULL;
  m.live--;
  for (int i = 0; i < m.walks && m.walk[i]; i++)
    if (!m.walk[i]->done)
      m.walk[i]->stayed[id] = false;
}

static void join(void) {
  if (m.next_id == CROWD * 64 || m.live >= CROWD)
    return;
  probe_s *p = member_new(m.next_id);
  m.order[m.next_id] = -1;
  m.member[m.next_id++] = p;
  m.live++;
  lonely(p);
}

/* Something that a task may do. */
static void mischief(void) {
  int id = m.next_id ? (int)dice(&m.seed, (uint32_t)m.next_id) : 0;
  probe_s *p = m.next_id ? m.member[id] : NULL;
  switch (dice(&m.seed, 8)) {
  case 0:
  case 1:
    if (p) {
      intptr_t uuid = p->uuid;
      member_gone(id);
      sock_abort(uuid, NULL);
    }
    break;
  case 2:
    if (p) { /* to another service: it leaves this one */
      probe_s *q = probe_new(&probe_half_ops, PROBES_MAX - 1);
      q->on_close = lonely_close;
      q->arg = p->arg;
      p->on_close = NULL;
      member_gone(id);
      cr_assert_eq(facil_attach(p->uuid, &q->super), 0);
    }
    break;
  case 3:
  case 4:
  case 5:
    join();
    break;
  case 6:
    start_walk();
    break;
  default:
    break;
  }
}

static void walk_task(intptr_t uuid, protocol_s *p, void *arg) {
  int n = (int)(intptr_t)arg, id = probe_of(p)->id;
  model_s *walk = m.walk[n];
  cr_assert_eq(m.member[id], probe_of(p), "of another service, or gone");
  cr_assert_eq(uuid, probe_of(p)->uuid);
  cr_assert(walk->there[id], "joined after the call");
  cr_assert_eq(walk->visited[id]++, 0, "visited twice");
  cr_assert_gt(n, m.order[id], "two walks came in another order");
  m.order[id] = n;
  mischief();
}

static void walk_end(intptr_t origin, void *arg) {
  (void)origin;
  model_s *walk = m.walk[(intptr_t)arg];
  cr_assert_not(walk->done);
  walk->done = true;
  for (int id = 0; id < m.next_id; id++)
    if (walk->stayed[id])
      cr_assert_eq(walk->visited[id], 1, "a member that stayed was missed");
}

static void start_walk(void) {
  if (m.walks == WALKS)
    return;
  model_s *walk = calloc(1, sizeof *walk);
  if (!walk)
    abort();
  for (int id = 0; id < m.next_id; id++)
    walk->there[id] = walk->stayed[id] = m.member[id] != NULL;
  m.walk[m.walks] = walk;
  intptr_t n = m.walks++;
  cr_assert_eq(facil_each(.service = probe_ops.service, .task = walk_task,
                          .arg = (void *)n, .on_complete = walk_end),
               0);
}

static int random_turn;

static bool random_step(void) {
  int turn = random_turn;
  if (random_turn++ == 0)
    for (int i = 0; i < CROWD / 2; i++)
      join();
  if (turn % 3 == 0)
    start_walk();
  mischief();
  cr_assert_eq(facil_count(probe_ops.service), (size_t)m.live, "turn %d", turn);
  if (m.walks < WALKS)
    return false;
  for (int i = 0; i < m.walks; i++)
    if (!m.walk[i]->done)
      return false;
  return true;
}

static void random_walks(uint64_t seed) {
  m.seed = seed;
  m.next_id = m.live = m.walks = 0;
  memset(m.member, 0, sizeof m.member);
  memset(tally, 0, sizeof tally);
  random_turn = 0;
  run_script(NULL, random_step);
  for (int i = 0; i < m.walks; i++)
    free(m.walk[i]);
}

Test(walk, members_come_and_go_in_tasks_and_each_that_stays_is_visited_once) {
  random_walks(1);
  cr_assert_eq(m.walks, WALKS);
}

Test(walk, more_schedules_of_coming_and_going) {
  for (int i = 0; i < soak(3, 2500); i++) /* 2500 make 10^6 walks */
    random_walks((uint64_t)i + 77);
}

/* ---- 30: counting
 * ------------------------------------------------------------------ */

static bool churn_step(void) {
  static int turn;
  if (turn++ == 0)
    two_kinds();
  if (turn % 2)
    join();
  else
    mischief();
  size_t all = (size_t)m.live, half = facil_count(probe_half_ops.service);
  cr_assert_eq(facil_count(probe_ops.service), all + 3);
  cr_assert_eq(facil_count(NULL), all + 3 + half);
  cr_assert_eq(facil_count("nobody"), 0);
  return turn == 3000;
}

Test(walk, the_count_equals_a_model_under_churn) {
  m.seed = 5;
  m.next_id = 6;   /* of two_kinds, which the model does not know */
  m.walks = WALKS; /* none */
  run_script(NULL, churn_step);
  cr_assert_eq(facil_count(NULL), 0);
}

/* ---- sets
 * ---------------------------------------------------------------------------
 */

#define SET_MEMBERS 700

static struct {
  facil_set_s set;
  facil_member_s member[SET_MEMBERS];
  intptr_t uuid[SET_MEMBERS];
  bool in[SET_MEMBERS];
  uint32_t news[SET_MEMBERS], served[SET_MEMBERS]; /* numbers of news */
  uint32_t latest;
  uint64_t seed;
  int turn;
} s;

static void set_ready(intptr_t uuid, probe_s *p) {
  (void)uuid;
  s.served[p->id] = s.latest;
}

static void set_begin(void) {
  facil_set_init(&s.set);
  for (int i = 0; i < SET_MEMBERS; i++) {
    probe_s *p = member_new(i);
    p->on_ready = set_ready;
    s.uuid[i] = lonely(p);
    s.member[i].uuid = s.uuid[i];
  }
}

static void set_toggle(int i) {
  if (s.in[i])
    facil_set_remove(&s.set, &s.member[i]);
  else
    cr_assert_eq(facil_set_add(&s.set, &s.member[i]), 0);
  s.in[i] = !s.in[i];
  if (s.in[i])
    s.news[i] = 0; /* only what comes from now on is promised */
}

static bool set_step(void) {
  s.turn++;
  for (int k = 0; k < 4; k++)
    set_toggle((int)dice(&s.seed, SET_MEMBERS));
  bool quiet = s.turn % 40 > 30 || s.turn % 40 == 0;
  if (!quiet && dice(&s.seed, 2)) {
    s.latest++;
    for (int i = 0; i < SET_MEMBERS; i++)
      s.news[i] = s.in[i] ? s.latest : 0;
    facil_set_ready(&s.set);
  }
  uint32_t in = 0;
  for (int i = 0; i < SET_MEMBERS; i++)
    in += s.in[i];
  cr_assert_eq(s.set.count, in);
  if (s.turn % 40 == 0) /* all turns since the last news have served it */
    for (int i = 0; i < SET_MEMBERS; i++)
      if (s.in[i])
        cr_assert_geq(s.served[i], s.news[i], "member %d missed news", i);
  return s.turn == 20000;
}

static void try_set(bool plain) {
  plain_send = plain;
  s.seed = 3;
  run_script(set_begin, set_step);
  facil_set_fini(&s.set);
}

Test(set, after_news_each_member_is_flushed_while_others_come_and_go) {
  try_set(true);
}

Test(set, the_same_with_io_uring) {
  try_set(false);
}

/* A walk that goes round, and joins behind the place where it began. */
static bool join_step(void) {
  switch (s.turn++) {
  case 0:
    for (int i = 0; i < 600; i++)
      set_toggle(i);
    break;
  case 1: /* a slice of 256 is served */
  case 2:
    s.latest++;
    facil_set_ready(&s.set);
    break;
  case 3:
    for (int i = 600; i < SET_MEMBERS; i++)
      set_toggle(i);
    break;
  case 10:
    for (int i = 0; i < 600; i++)
      cr_assert_eq(s.served[i], 2, "member %d missed news", i);
    return true;
  }
  return false;
}

Test(set, members_that_join_in_the_middle_of_a_ready_walk_hide_nobody) {
  plain_send = true;
  run_script(set_begin, join_step);
  facil_set_fini(&s.set);
}

/* Members leave in the middle of their walk, each in the flush of another. */
static void leave_next(intptr_t uuid, probe_s *p) {
  (void)uuid;
  s.served[p->id] = s.latest;
  int other = (p->id * 7 + 3) % SET_MEMBERS;
  if (s.in[other] && dice(&s.seed, 3) == 0)
    set_toggle(other);
}

static bool leave_step(void) {
  if (s.turn++ % 20 == 0) {
    for (int i = 0; i < SET_MEMBERS; i++) {
      if (s.turn > 1 && s.in[i])
        cr_assert_geq(s.served[i], s.news[i], "member %d missed news", i);
      if (!s.in[i])
        set_toggle(i);
      s.news[i] = s.latest + 1;
    }
    s.latest++;
    facil_set_ready(&s.set);
  }
  return s.turn == 2000;
}

static void leave_begin(void) {
  set_begin();
  for (int i = 0; i < SET_MEMBERS; i++)
    probe_of(facil_protocol(s.uuid[i], NULL))->on_ready = leave_next;
}

Test(set, members_that_leave_in_the_middle_of_a_ready_walk_hide_nobody) {
  plain_send = true;
  run_script(leave_begin, leave_step);
}

/* The last member's flush ends the set itself. */
static facil_set_s *heap_set;

static void end_the_set(intptr_t uuid, probe_s *p) {
  (void)uuid, (void)p;
  if (!heap_set)
    return;
  facil_set_s *set = heap_set;
  heap_set = NULL;
  facil_set_remove(set, &s.member[0]);
  facil_set_fini(set);
  free(set);
}

static void ending_begin(void) {
  heap_set = malloc(sizeof *heap_set);
  facil_set_init(heap_set);
  probe_s *p = member_new(0);
  p->on_ready = end_the_set;
  s.member[0].uuid = lonely(p);
  cr_assert_eq(facil_set_add(heap_set, &s.member[0]), 0);
  facil_set_ready(heap_set);
}

static bool ending_step(void) {
  return s.turn++ > 5;
}

Test(set, a_set_may_end_in_the_flush_of_its_member) {
  plain_send = true;
  run_script(ending_begin, ending_step);
  cr_assert_null(heap_set);
}

/* Several sets with news: slices, in turn. */
static facil_set_s big, small;
static facil_member_s big_member[2000], small_member[10];
static int small_at, big_visits;

static void big_ready(intptr_t uuid, probe_s *p) {
  (void)uuid, (void)p;
  big_visits++;
}

static void small_ready(intptr_t uuid, probe_s *p) {
  (void)uuid, (void)p;
  small_at = big_visits;
}

static void slices_begin(void) {
  facil_set_init(&big);
  facil_set_init(&small);
  for (int i = 0; i < 2010; i++) {
    probe_s *p = member_new(i);
    facil_member_s *member =
        i < 2000 ? &big_member[i] : &small_member[i - 2000];
    p->on_ready = i < 2000 ? big_ready : small_ready;
    member->uuid = lonely(p);
    cr_assert_eq(facil_set_add(i < 2000 ? &big : &small, member), 0);
  }
  facil_set_ready(&big);
  facil_set_ready(&small);
}

static bool slices_step(void) {
  return s.turn++ > 30;
}

Test(set, a_small_set_waits_for_a_slice_of_a_great_one_and_no_more) {
  plain_send = true;
  run_script(slices_begin, slices_step);
  cr_assert_eq(big_visits, 2000);
  cr_assert_eq(small_at, 256);
  facil_set_fini(&big);
  facil_set_fini(&small);
}

/* facil_each over a set: removal by swap must not hide anybody. */
static int each_visits[SET_MEMBERS];
static int each_ends;

static void each_member(intptr_t uuid, protocol_s *p, void *arg) {
  (void)uuid;
  int id = probe_of(p)->id;
  cr_assert_eq(arg, &s.set);
  cr_assert(s.in[id], "a member that left was visited");
  cr_assert_eq(each_visits[id]++, 0);
  for (int k = 0; k < 2; k++) {
    int other = (int)dice(&s.seed, SET_MEMBERS);
    if (s.in[other])
      set_toggle(other);
  }
}

static void each_ended(intptr_t origin, void *arg) {
  (void)origin, (void)arg;
  each_ends++;
  for (int i = 0; i < SET_MEMBERS; i++)
    cr_assert(!s.in[i] || each_visits[i] == 1, "a member that stayed");
}

static bool set_each_step(void) {
  if (s.turn++ == 0) {
    for (int i = 0; i < SET_MEMBERS; i++)
      set_toggle(i);
    cr_assert_eq(facil_each(.set = &s.set, .task = each_member, .arg = &s.set,
                            .on_complete = each_ended),
                 0);
  }
  if (!each_ends)
    return false;
  uint32_t in = 0;
  for (int i = 0; i < SET_MEMBERS; i++)
    in += s.in[i];
  cr_assert_eq(s.set.count, in);
  cr_assert_eq(s.set.used, in, "no holes are left");
  return true;
}

Test(set, each_over_a_set_visits_those_that_stay_once) {
  s.seed = 9;
  run_script(set_begin, set_each_step);
  cr_assert_eq(each_ends, 1);
  facil_set_fini(&s.set);
}

/* ---- 18: a long walk, and a client that wants an answer
 * --------------------------- */

static int echo_client, long_ends;
static uint64_t asked_us;
static uint32_t waits_us[4000];
static int waits;

static void slow_task(intptr_t uuid, protocol_s *p, void *arg) {
  (void)uuid, (void)p, (void)arg;
}

static void long_end(intptr_t origin, void *arg) {
  (void)origin, (void)arg;
  long_ends++;
}

static void long_begin(void) {
  w.members = 9000;
  members_begin();
  probe_s *p = probe_new(&probe_half_ops, 9999);
  p->on_data = probe_echo;
  pair_with(&echo_client, p);
}

static bool long_step(void) {
  cr_assert_eq(facil_each(.service = probe_ops.service, .task = slow_task,
                          .on_complete = long_end),
               0);
  char c = 'x';
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  uint64_t now = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
  if (asked_us && read(echo_client, &c, 1) == 1) {
    waits_us[waits++] = (uint32_t)(now - asked_us);
    asked_us = 0;
  }
  if (!asked_us) {
    cr_assert_eq(write(echo_client, &c, 1), 1);
    asked_us = now;
  }
  return waits == 500;
}

static int by_size(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

Test(walk, an_echo_is_answered_at_once_while_long_walks_go_on) {
  run_script(long_begin, long_step);
  qsort(waits_us, (size_t)waits, sizeof *waits_us, by_size);
  cr_log_info("p99 %u us", waits_us[waits * 99 / 100]);
  cr_assert_lt(waits_us[waits * 99 / 100], 50000, "ten times the figure");
}
