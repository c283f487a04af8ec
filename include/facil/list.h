/* list.h - an intrusive, circular, doubly linked list.
 *
 * A node is in at most one list. A node that is in none points at itself, so
 * removing it again is harmless. Nothing here allocates. */
#ifndef FACIL_LIST_H
#define FACIL_LIST_H

#include "base.h"
#include <stdbool.h>

typedef struct list_s {
  struct list_s *next, *prev;
} list_s;

static inline void list_init(list_s *l) {
  l->next = l->prev = l;
}

static inline bool list_empty(const list_s *l) {
  return l->next == l;
}

/* Put `n`, which is in no list, at the end of the list that `head` heads. */
static inline void list_push(list_s *head, list_s *n) {
  n->prev = head->prev;
  n->next = head;
  head->prev->next = n;
  head->prev = n;
}

/* Take `n` out of its list, if it is in one. */
static inline void list_remove(list_s *n) {
  n->prev->next = n->next;
  n->next->prev = n->prev;
  list_init(n);
}

/* The first node, taken out, or NULL. */
static inline list_s *list_shift(list_s *head) {
  list_s *n = head->next;
  if (n == head)
    return NULL;
  list_remove(n);
  return n;
}

#endif
