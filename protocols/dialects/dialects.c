/* dialects.c - the table of routes, and small things that dialects share. */
#include "dialects_internal.h"
#include "native.h"

#define ROUTES_MAX 32

dialect_settings_s dialect_settings;

void dialects_set(const dialect_settings_s *s) {
  dialect_settings = *s;
}

void dialects_notice(void) {
  websocket_each(native_v1_notice);
  history_notice();
}

const http_route_s *dialects_routes(size_t *count) {
  static const http_route_s *const tables[] = {
      publish_routes,  batch_routes,  subscribe_routes,
      channels_routes, health_routes, assets_routes};
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
