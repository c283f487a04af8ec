/* utf8.h - UTF-8 checked as it arrives (RFC 3629).
 *
 * A check may be fed in pieces of any size: one number holds what is known
 * between them. Bad bytes are found at the earliest place there is: no byte is
 * let through after which no valid text can follow, so surrogates, overlong
 * forms and what lies above U+10FFFF fall at their first or second byte.
 *
 * Nothing here allocates; any thread. */
#ifndef FACIL_UTF8_H
#define FACIL_UTF8_H

#include "view.h"

#define UTF8_START 0u /* the state of a new check, and between characters */

/* Check the next `len` bytes of a text. 0 if a valid text may begin with all
 * that was fed so far, else -1; after -1 each further call returns -1. */
FACIL_PUBLIC FACIL_MUST_CHECK int utf8_check(uint32_t *state, const void *data,
                                             size_t len);

/* Whether the text may end here: what was fed is valid and ends with a whole
 * character. */
static inline bool utf8_is_whole(uint32_t state) {
  return state == UTF8_START;
}

/* Whether `text` is valid as it stands; an empty text is. */
FACIL_PUBLIC bool utf8_is_valid(view_s text);

#endif
