/* view.h - borrowed bytes.
 *
 * A view names bytes that somebody else owns: it never allocates, never frees,
 * and is valid no longer than its owner. Views are passed by value. */
#ifndef FACIL_VIEW_H
#define FACIL_VIEW_H

#include "base.h"
#include <stdbool.h>
#include <string.h>
#include <strings.h>

typedef struct {
  const char *data; /* may be NULL only if len is 0 */
  size_t len;
} view_s;

/* A view of a string literal; VIEW_INIT where a constant is initialised. */
#define VIEW_INIT(s)                                                           \
  { .data = "" s, .len = sizeof(s) - 1 }
#define VIEW_LIT(s) ((view_s)VIEW_INIT(s))

static inline view_s view_of(const void *data, size_t len) {
  return (view_s){.data = (const char *)data, .len = len};
}

/* `s` may be NULL: an empty view. */
static inline view_s view_str(const char *s) {
  return (view_s){.data = s, .len = s ? strlen(s) : 0};
}

/* Equal byte by byte. */
static inline bool view_eq(view_s a, view_s b) {
  return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* Equal but for the case of ASCII letters. */
static inline bool view_eq_nocase(view_s a, view_s b) {
  return a.len == b.len &&
         (a.len == 0 || strncasecmp(a.data, b.data, a.len) == 0);
}

static inline bool view_starts(view_s a, view_s prefix) {
  return a.len >= prefix.len &&
         (prefix.len == 0 || memcmp(a.data, prefix.data, prefix.len) == 0);
}

/* The part of `v` from `from` on, at most `len` bytes; clamped to `v`. */
static inline view_s view_sub(view_s v, size_t from, size_t len) {
  if (from > v.len)
    from = v.len;
  if (len > v.len - from)
    len = v.len - from;
  return view_of(v.data ? v.data + from : NULL, len);
}

/* `v` without SP and HT at both ends (OWS of RFC 9110 section 5.6.3). */
static inline view_s view_trim(view_s v) {
  while (v.len && (v.data[0] == ' ' || v.data[0] == '\t'))
    v.data++, v.len--;
  while (v.len && (v.data[v.len - 1] == ' ' || v.data[v.len - 1] == '\t'))
    v.len--;
  return v;
}

/* Integers in network byte order; the caller has checked the length. */
static inline uint16_t view_u16(const void *p) {
  const uint8_t *b = (const uint8_t *)p;
  return (uint16_t)((unsigned)b[0] << 8 | b[1]);
}

static inline uint32_t view_u32(const void *p) {
  const uint8_t *b = (const uint8_t *)p;
  return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 |
         b[3];
}

static inline uint64_t view_u64(const void *p) {
  return (uint64_t)view_u32(p) << 32 | view_u32((const uint8_t *)p + 4);
}

#endif
