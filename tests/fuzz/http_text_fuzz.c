/* http_text_fuzz.c - the small readers of fields and queries.
 *
 * Input: any bytes, read as a list, a query, a percent-encoding and an Accept
 * field. Parts lie in the input, in order; a query can be put together again;
 * decoding is the same in place, and undoes an encoding of what it gave. */
#include "facil/http_parse.h"
#include "fuzz.h"
#include <assert.h>
#include <stdlib.h>

/* `part` lies in `in`, not before `*at`, which moves behind it. */
static void check_part(view_s in, view_s part, size_t *at) {
  assert(part.data >= in.data + *at);
  assert(part.data + part.len <= in.data + in.len);
  *at = (size_t)(part.data - in.data) + part.len;
}

static void run_list(view_s in) {
  view_s rest = in, member;
  size_t at = 0, commas = 0, members = 0;
  for (size_t i = 0; i < in.len; i++)
    commas += in.data[i] == ',';
  while (http_list_next(&rest, &member)) {
    check_part(in, member, &at);
    assert(member.len && view_eq(member, view_trim(member)));
    assert(memchr(member.data, '"', member.len) ||
           !memchr(member.data, ',', member.len));
    members++;
  }
  assert(rest.len == 0 && members <= commas + 1);
  const http_header_s field = {VIEW_LIT("X"), in};
  http_header_s fields[] = {field};
  const http_request_s req = {.headers = fields, .header_count = 1};
  rest = in;
  if (http_list_next(&rest, &member))
    assert(http_header_has_token(&req, VIEW_LIT("x"), member));
}

static void run_query(view_s in) {
  view_s rest = in, name, value;
  size_t at = 0, used = 0;
  while (http_query_next(&rest, &name, &value)) {
    check_part(in, name, &at);
    check_part(in, value, &at);
    assert(!name.len || !memchr(name.data, '=', name.len));
    assert(!value.len || !memchr(value.data, '&', value.len));
    used += name.len + value.len + (value.data > name.data + name.len);
  }
  size_t ands = 0;
  for (size_t i = 0; i < in.len; i++)
    ands += in.data[i] == '&';
  assert(rest.len == 0 && used + ands == in.len);
}

static void run_percent(view_s in) {
  static const char digits[] = "0123456789abcdef";
  char *out = (char *)malloc(in.len + 1), *place = (char *)malloc(in.len + 1);
  char *encoded = (char *)malloc(in.len * 3 + 1);
  assert(out && place && encoded);
  if (in.len)
    memcpy(place, in.data, in.len);
  const ssize_t n = http_percent_decode(in, out);
  assert(http_percent_decode(view_of(place, in.len), place) == n);
  assert(n <= (ssize_t)in.len);
  for (ssize_t i = 0; i < n; i++) {
    const unsigned char c = (unsigned char)out[i];
    encoded[i * 3] = '%';
    encoded[i * 3 + 1] = digits[c >> 4];
    encoded[i * 3 + 2] = digits[c & 15];
  }
  if (n > 0) {
    assert(memcmp(place, out, (size_t)n) == 0);
    assert(http_percent_decode(view_of(encoded, (size_t)n * 3), encoded) == n);
    assert(memcmp(encoded, out, (size_t)n) == 0);
  }
  free(out);
  free(place);
  free(encoded);
}

static void run_accept(view_s in) {
  static const char type[] = "text/event-stream";
  bool has_type = false;
  for (size_t i = 0; i + sizeof type - 1 <= in.len; i++)
    has_type |= strncasecmp(in.data + i, type, sizeof type - 1) == 0;
  assert(has_type || !http_accepts_exactly(in, view_str(type)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const view_s in = view_of(data, size);
  run_list(in);
  run_query(in);
  run_percent(in);
  run_accept(in);
  return 0;
}
