/* facil_set.c - sets of connections and the walks over them.
 *
 * Two kinds of set: a list per service tag, kept by the core, and the groups
 * that modules keep. Two kinds of walk:
 *
 *   facil_each       a task for each member that is there at the call and
 *                    stays, in order of joining, exactly once;
 *   facil_set_ready  flush each member's connection: the fan-out. It goes round
 *                    in a circle, so that news that comes while it runs is
 *                    joined with the old for all who were not yet served.
 *
 * Invariant: a walk's cursor always points at the next member to visit, however
 * members join, leave and close meanwhile. Costs depend on members only. */
#include "core.h"
#include <errno.h>
#include <string.h>

/* ---- services ---------------------------------------------------------- */

typedef struct {
  const char *tag;
  uint32_t head, tail, count;
  list_s walks; /* the first one is under way */
} service_s;

#define SERVICES_MAX 64

static service_s services[SERVICES_MAX];
static uint16_t service_count;
static uint64_t join_sequence;

uint16_t service_id(const char *tag) {
  for (uint16_t i = 0; i < service_count; i++)
    if (services[i].tag == tag)
      return i;
  if (service_count == SERVICES_MAX)
    abort(); /* kinds of protocol are made by programs, not by peers */
  services[service_count] =
      (service_s){.tag = tag, .head = SLOT_NONE, .tail = SLOT_NONE};
  list_init(&services[service_count].walks);
  return service_count++;
}

size_t service_total(void) {
  size_t n = 0;
  for (uint16_t i = 0; i < service_count; i++)
    n += services[i].count;
  return n;
}

size_t facil_count(const char *service) {
  if (!service)
    return service_total();
  for (uint16_t i = 0; i < service_count; i++)
    if (services[i].tag == service)
      return services[i].count;
  return 0;
}

void service_lose_all(const char *reason) {
  for (uint16_t i = 0; i < service_count; i++)
    while (services[i].head != SLOT_NONE)
      sock_lose(sock_slot_at(services[i].head), reason);
}

void service_join(slot_s *s) {
  service_s *v = &services[s->svc];
  uint32_t i = sock_slot_index(s);
  s->joined = ++join_sequence;
  s->svc_next = SLOT_NONE;
  s->svc_prev = v->tail;
  if (v->tail == SLOT_NONE)
    v->head = i;
  else
    sock_slot_at(v->tail)->svc_next = i;
  v->tail = i;
  v->count++;
}

/* ---- walks of facil_each ----------------------------------------------- */

typedef struct walk_s {
  list_s link; /* in its service's or set's queue of walks */
  struct facil_each_args args;
  uint64_t born; /* sequence of walks: one made in a phase waits for the next */
  uint64_t limit; /* of a service: join sequence; of a set: places */
  uint32_t next;  /* slot or place */
  bool begun;
  struct walk_s *whole; /* of which this is one service's part */
  uint32_t parts;
} walk_s;

static list_s set_walks = {&set_walks, &set_walks};
static uint32_t walk_count;
static uint64_t walk_sequence;

void service_leave(slot_s *s) {
  service_s *v = &services[s->svc];
  uint32_t i = sock_slot_index(s);
  for (list_s *l = v->walks.next; l != &v->walks; l = l->next) {
    walk_s *w = FACIL_CONTAINER(l, walk_s, link);
    if (w->begun && w->next == i)
      w->next = s->svc_next;
  }
  if (s->svc_prev == SLOT_NONE)
    v->head = s->svc_next;
  else
    sock_slot_at(s->svc_prev)->svc_next = s->svc_next;
  if (s->svc_next == SLOT_NONE)
    v->tail = s->svc_prev;
  else
    sock_slot_at(s->svc_next)->svc_prev = s->svc_prev;
  v->count--;
}

static int fail_each(const struct facil_each_args *a, int error) {
  if (a->on_complete)
    a->on_complete(a->origin, a->arg);
  errno = error;
  return -1;
}

static walk_s *walk_new(const struct facil_each_args *a) {
  walk_s *w = calloc(1, sizeof *w);
  if (!w)
    return NULL;
  w->args = *a;
  w->born = ++walk_sequence;
  w->limit = a->set ? a->set->used : join_sequence;
  list_init(&w->link);
  return w;
}

static void walk_queue(walk_s *w, list_s *walks) {
  list_push(walks, &w->link);
  walk_count++;
}

/* One part for each service; the whole is complete when its parts are. */
static int each_of_all(const struct facil_each_args *a) {
  walk_s *whole = walk_new(a), *parts[SERVICES_MAX];
  uint16_t n = 0;
  for (; whole && n < service_count; n++)
    if (!(parts[n] = walk_new(a)))
      break;
  if (!whole || n < service_count) {
    while (n)
      free(parts[--n]);
    free(whole);
    return fail_each(a, ENOMEM);
  }
  whole->parts = n;
  if (!n) /* nobody yet: it ends in its turn all the same */
    walk_queue(whole, &set_walks);
  for (uint16_t i = 0; i < n; i++) {
    parts[i]->whole = whole;
    walk_queue(parts[i], &services[i].walks);
  }
  return 0;
}

int(facil_each)(struct facil_each_args a) {
  if (!a.task)
    return fail_each(&a, EINVAL);
  if (!a.set && !a.service)
    return each_of_all(&a);
  walk_s *w = walk_new(&a);
  if (!w)
    return fail_each(&a, ENOMEM);
  if (a.set)
    a.set->walks++;
  walk_queue(w, a.set ? &set_walks : &services[service_id(a.service)].walks);
  return 0;
}

static void complete(walk_s *w) {
  walk_s *whole = w->whole;
  if (whole && --whole->parts == 0) {
    if (whole->args.on_complete)
      whole->args.on_complete(whole->args.origin, whole->args.arg);
    free(whole);
  } else if (!whole && w->args.on_complete) {
    w->args.on_complete(w->args.origin, w->args.arg);
  }
  free(w);
}

static void visit(const walk_s *w, intptr_t uuid) {
  slot_s *s = sock_slot(uuid);
  if (s && s->protocol && uuid != w->args.origin)
    w->args.task(uuid, s->protocol, w->args.arg);
}

/* True: the walk is through. */
static bool walk_service(walk_s *w, service_s *v, uint32_t *members) {
  if (!w->begun) {
    w->begun = true;
    w->next = v->head;
  }
  while (w->next != SLOT_NONE) {
    slot_s *s = sock_slot_at(w->next);
    if (s->joined > w->limit)
      break;
    if (!*members)
      return false;
    --*members;
    w->next = s->svc_next;
    visit(w, s->uuid);
  }
  return true;
}

static facil_member_s *member_at(const facil_set_s *set, uint32_t i) {
  return set->cap ? set->many[i] : set->one;
}

static bool walk_set(walk_s *w, uint32_t *members) {
  facil_set_s *set = w->args.set;
  while (set && w->next < w->limit && w->next < set->used) {
    if (!*members)
      return false;
    --*members;
    facil_member_s *m = member_at(set, w->next++);
    if (m)
      visit(w, m->uuid);
  }
  return true;
}

static void compact(facil_set_s *set);

bool set_has_walks(void) {
  return walk_count > 0;
}

/* A walk's end: its list first, for on_complete may do anything. */
static void walk_end(walk_s *w) {
  facil_set_s *set = w->args.set;
  list_remove(&w->link);
  walk_count--;
  if (set && --set->walks == 0)
    compact(set);
  complete(w);
}

bool set_walks_run(uint32_t members) {
  uint64_t last = walk_sequence;
  for (uint16_t i = 0; i < service_count && walk_count; i++) {
    service_s *v = &services[i];
    while (!list_empty(&v->walks)) {
      walk_s *w = FACIL_CONTAINER(v->walks.next, walk_s, link);
      if (w->born > last)
        break;
      if (!walk_service(w, v, &members))
        return true;
      walk_end(w);
    }
  }
  while (!list_empty(&set_walks)) {
    walk_s *w = FACIL_CONTAINER(set_walks.next, walk_s, link);
    if (w->born > last)
      break;
    if (!walk_set(w, &members))
      return true;
    walk_end(w);
  }
  return walk_count > 0;
}

/* ---- sets -------------------------------------------------------------- */

static list_s ready_sets = {&ready_sets, &ready_sets};
static facil_set_s *served; /* by set_ready_slice; NULL when it has ended */

void facil_set_init(facil_set_s *set) {
  *set = (facil_set_s){.one = NULL};
  list_init(&set->ready);
}

void facil_set_fini(facil_set_s *set) {
  list_remove(&set->ready);
  if (served == set)
    served = NULL;
  if (set->cap)
    free(set->many);
  facil_set_init(set);
}

static int grow(facil_set_s *set) {
  uint32_t cap = set->cap ? set->cap * 2 : 4;
  facil_member_s **many =
      realloc(set->cap ? set->many : NULL, cap * sizeof *many);
  if (!many) {
    errno = ENOMEM;
    return -1;
  }
  if (!set->cap && set->used)
    many[0] = set->one;
  set->many = many;
  set->cap = cap;
  return 0;
}

static void put(facil_set_s *set, uint32_t i, facil_member_s *m) {
  if (set->cap)
    set->many[i] = m;
  else
    set->one = m;
  if (m)
    m->index = i;
}

int facil_set_add(facil_set_s *set, facil_member_s *member) {
  if (set->used >= (set->cap ? set->cap : 1) && grow(set) < 0)
    return -1;
  put(set, set->used++, member);
  set->count++;
  if (set->left)
    set->left++; /* its place lies on the way of a walk that goes round */
  return 0;
}

static void shrink(facil_set_s *set) {
  while (set->used && !member_at(set, set->used - 1))
    set->used--;
  if (set->at >= set->used)
    set->at = 0;
  if (set->left > set->used)
    set->left = set->used;
}

static void compact(facil_set_s *set) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < set->used; i++) {
    facil_member_s *m = member_at(set, i);
    if (m)
      put(set, n++, m);
  }
  set->used = n;
  if (set->left)
    set->left = n; /* places moved: a ready walk begins again */
  shrink(set);
}

void facil_set_remove(facil_set_s *set, facil_member_s *member) {
  uint32_t i = member->index, last = set->used - 1;
  set->count--;
  put(set, i, NULL);
  if (!set->walks && i != last) {
    facil_member_s *m = member_at(set, last);
    put(set, i, m);
    put(set, last, NULL);
    if (set->left && m) /* a ready walk might miss it now */
      sock_want_ready(m->uuid);
  }
  if (!set->walks)
    shrink(set);
}

void facil_set_ready(facil_set_s *set) {
  set->left = set->used;
  if (set->left && list_empty(&set->ready))
    list_push(&ready_sets, &set->ready);
}

bool set_has_ready(void) {
  return !list_empty(&ready_sets);
}

/* The next lines of memory that a visit needs. */
static void prefetch(const facil_set_s *set, uint32_t ahead) {
  uint32_t i = set->at + ahead;
  if (set->cap && i < set->used && set->many[i])
    __builtin_prefetch(set->many[i]);
}

bool set_ready_slice(uint32_t members) {
  while (members && !list_empty(&ready_sets)) {
    facil_set_s *set = FACIL_CONTAINER(ready_sets.next, facil_set_s, ready);
    list_remove(&set->ready);
    list_push(&ready_sets, &set->ready);
    served = set;
    while (served && set->left && members) {
      members--;
      set->left--;
      prefetch(set, 4);
      facil_member_s *m = member_at(set, set->at);
      if (++set->at >= set->used)
        set->at = 0;
      slot_s *s = m ? sock_slot(m->uuid) : NULL;
      if (s)
        sock_flush(s, true); /* may be the end of the set */
    }
    if (served && !set->left)
      list_remove(&set->ready);
  }
  return !list_empty(&ready_sets);
}
