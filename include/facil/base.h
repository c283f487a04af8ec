/* base.h - what every header of facil shares: attributes and a cast.
 *
 * Nothing here allocates, and nothing here has a .c file. */
#ifndef FACIL_BASE_H
#define FACIL_BASE_H

#include <stddef.h>
#include <stdint.h>

#define FACIL_PUBLIC __attribute__((visibility("default")))
#define FACIL_MUST_CHECK __attribute__((warn_unused_result))
#define FACIL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* The object of type `type` whose member `member` lies at `ptr`. */
#define FACIL_CONTAINER(ptr, type, member)                                     \
  ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#endif
