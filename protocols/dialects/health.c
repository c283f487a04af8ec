/* health.c - /healthz: the process lives; /readyz: it takes traffic. */
#include "dialects_internal.h"

static void healthz(http_s *h, view_s segment) {
  (void)segment;
  http_reply(h, .status = 200, .type = VIEW_LIT("text/plain"),
             .body = VIEW_LIT("ok\n"));
}

static void readyz(http_s *h, view_s segment) {
  (void)segment;
  if (facil_is_draining())
    http_problem(h, 503, "The broker is shutting down.", VIEW_LIT(""));
  else
    http_reply(h, .status = 200, .type = VIEW_LIT("text/plain"),
               .body = VIEW_LIT("ok\n"));
}

const http_route_s health_routes[] = {
    {"GET", "/healthz", healthz},
    {"GET", "/readyz", readyz},
    {0},
};
