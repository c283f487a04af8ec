/* json_check.h - is it JSON, and where does a member's value stand?
 *
 * What is published as JSON travels as it came, byte by byte, so it is checked
 * and never taken apart: numbers keep their digits, whatever their size, and
 * strings their escapes (RFC 8259). One pass, no allocation, any thread.
 *
 * To read a document's values, jansson is used. */
#ifndef FACIL_JSON_CHECK_H
#define FACIL_JSON_CHECK_H

#include "view.h"

#define JSON_DEPTH_MAX 64 /* arrays and objects inside one another */

/* NULL if `text` is one JSON text in UTF-8; else a static sentence. */
FACIL_PUBLIC const char *json_fault(view_s text);

/* The value of the member `name` (as it stands between its quotes) of the
 * object `text`, which json_fault has passed: its bytes as they came. Empty:
 * there is none, or `text` is no object. The last one counts where there are
 * several. */
FACIL_PUBLIC view_s json_member(view_s text, view_s name);

/* The next element of an array, taken off the front of `*rest`, which begins as
 * the whole array, passed by json_fault. False: there is none (or no array). */
FACIL_PUBLIC bool json_element(view_s *rest, view_s *element);

#endif
