/* assets.c - the page at / and what belongs to it, embedded at build time. */
#include "assets.h"
#include "dialects_internal.h"

static const crier_asset_s *asset_at(view_s path) {
  for (size_t i = 0; i < crier_assets_count; i++)
    if (view_eq(path, view_str(crier_assets[i].path)))
      return &crier_assets[i];
  return NULL;
}

static bool is_known(const http_request_s *req, const crier_asset_s *a) {
  view_s list = http_header(req, VIEW_LIT("If-None-Match")), tag;
  while (http_list_next(&list, &tag)) {
    if (view_starts(tag, VIEW_LIT("W/")))
      tag = view_sub(tag, 2, tag.len);
    if (view_eq(tag, view_str(a->etag)) || view_eq(tag, VIEW_LIT("*")))
      return true;
  }
  return false;
}

static void serve(http_s *h, view_s segment) {
  (void)segment;
  const crier_asset_s *a = asset_at(http_request(h)->path);
  if (!a) {
    http_problem(h, 404, "There is nothing here.", VIEW_LIT(""));
    return;
  }
  char headers[512];
  size_t n = 0;
  view_s parts[] = {VIEW_LIT("Cache-Control: no-cache\r\nETag: "),
                    view_str(a->etag),
                    VIEW_LIT("\r\nX-Content-Type-Options: nosniff\r\n"
                             "Referrer-Policy: no-referrer\r\n"
                             "Content-Security-Policy: default-src 'self'; "
                             "img-src 'self' data:; frame-ancestors 'none'; "
                             "base-uri 'none'; form-action 'none'\r\n")};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    memcpy(headers + n, parts[i].data, parts[i].len);
    n += parts[i].len;
  }
  if (is_known(http_request(h), a))
    http_reply(h, .status = 304, .headers = view_of(headers, n));
  else
    http_reply(h, .status = 200, .type = view_str(a->type),
               .body = view_of(a->data, a->len),
               .headers = view_of(headers, n));
}

const http_route_s assets_routes[] = {
    {"GET", "/", serve},
    {"GET", "/style.css", serve},
    {"GET", "/page.js", serve},
    {"GET", "/crier.js", serve},
    {0},
};
