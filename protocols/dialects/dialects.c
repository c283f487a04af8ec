/* dialects.c - the table of routes, and small things that dialects share. */
#include "dialects_internal.h"

#define ROUTES_MAX 32

dialect_settings_s dialect_settings;

void dialects_set(const dialect_settings_s *s) {
  dialect_settings = *s;
}

const http_route_s *dialects_routes(size_t *count) {
  static const http_route_s *const tables[] = {publish_routes, native_routes,
                                               health_routes, assets_routes};
  static http_route_s all[ROUTES_MAX];
  size_t n = 0;
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
    for (const http_route_s *r = tables[i]; r->method && n < ROUTES_MAX; r++)
      all[n++] = *r;
  *count = n;
  return all;
}

size_t number_write(char *out, uint64_t n) {
  char digits[NUMBER_MAX];
  size_t len = 0;
  do
    digits[len++] = (char)('0' + n % 10);
  while (n /= 10);
  for (size_t i = 0; i < len; i++)
    out[i] = digits[len - 1 - i];
  return len;
}

static bool is_escaped_well(view_s v) {
  char scratch[8192];
  return v.len <= sizeof scratch && http_percent_decode(v, scratch) >= 0;
}

const char *query_fault(const http_s *h, const view_s *known, size_t n) {
  view_s query = http_request(h)->query, name, value;
  unsigned seen = 0;
  while (http_query_next(&query, &name, &value)) {
    size_t i = 0;
    while (i < n && !view_eq(name, known[i]))
      i++;
    if (i == n)
      return "The query has a parameter that is not known here.";
    if (seen >> i & 1)
      return "The query has a parameter twice.";
    seen |= 1u << i;
    if (!is_escaped_well(value))
      return "The query has a '%' without two hexadecimal digits.";
  }
  return NULL;
}

ssize_t query_value(const http_s *h, view_s wanted, char *out, size_t cap) {
  view_s query = http_request(h)->query, name, value;
  while (http_query_next(&query, &name, &value))
    if (view_eq(name, wanted))
      return value.len <= cap ? http_percent_decode(value, out) : -1;
  return -1;
}
