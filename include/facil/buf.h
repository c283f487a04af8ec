/* buf.h - shared immutable bytes, counted by reference.
 *
 * Bytes that were handed on never change: whoever makes a buffer may append to
 * it, and may go on appending behind the bytes that others already look at,
 * but what lies below `len` at the moment of handing on stays as it is.
 *
 * The count is not atomic: a buffer belongs to one loop. */
#ifndef FACIL_BUF_H
#define FACIL_BUF_H

#include "view.h"
#include <stdlib.h>

typedef struct facil_buf_s {
  uint32_t refs;
  uint32_t pad;
  size_t len; /* bytes in use */
  size_t cap; /* bytes that fit */
  char data[];
} facil_buf_s;

/* An empty buffer that holds `cap` bytes, with one reference, which is the
 * caller's. NULL and ENOMEM. */
static inline FACIL_MUST_CHECK facil_buf_s *facil_buf_new(size_t cap) {
  facil_buf_s *b =
      cap > SIZE_MAX / 2 ? NULL : (facil_buf_s *)malloc(sizeof *b + cap);
  if (!b)
    return NULL;
  b->refs = 1;
  b->pad = 0;
  b->len = 0;
  b->cap = cap;
  return b;
}

/* One more reference, which is the caller's. */
static inline facil_buf_s *facil_buf_ref(facil_buf_s *b) {
  b->refs++;
  return b;
}

/* Give a reference back; the last one frees. NULL is fine. */
static inline void facil_buf_unref(facil_buf_s *b) {
  if (b && --b->refs == 0)
    free(b);
}

/* Append `n` bytes for which there is room (n <= cap - len). */
static inline void facil_buf_add(facil_buf_s *b, const void *p, size_t n) {
  if (n)
    memcpy(b->data + b->len, p, n);
  b->len += n;
}

static inline view_s facil_buf_view(const facil_buf_s *b) {
  return view_of(b->data, b->len);
}

#endif
