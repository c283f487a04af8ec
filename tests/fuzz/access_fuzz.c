/* access_fuzz.c - the loopback rules, fed with Host and Origin.
 *
 * Input: a byte of bits, then Host, a line end, and Origin, with any bytes.
 * What is let in is judged again, in another way: a Host by what is left
 * without its port, an Origin by being that of Host but for a default port. */
#include "access.h"
#include "fuzz.h"
#include <arpa/inet.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { BIT_OPEN = 1, BIT_FORWARDED = 2, BIT_ORIGIN = 4 };

/* A string of its own, so that reading beyond its end is noticed. */
static char *copy_of(view_s v) {
  char *copy = malloc(v.len + 1);
  assert(copy);
  if (v.len)
    memcpy(copy, v.data, v.len);
  copy[v.len] = '\0';
  return copy;
}

static bool has_suffix(const char *text, const char *suffix) {
  const size_t n = strlen(text), m = strlen(suffix);
  return n >= m && strcasecmp(text + n - m, suffix) == 0;
}

/* `text` without the colon and the digits at its end, in place. */
static void cut_port(char *text) {
  char *colon = strrchr(text, ':');
  if (colon && strspn(colon + 1, "0123456789") == strlen(colon + 1))
    *colon = '\0';
}

static void judge_loopback(view_s host) {
  unsigned char address[16];
  char *text = copy_of(host), again[16];
  assert(strlen(text) == host.len);
  if (text[0] == '[') {
    text[strcspn(text, "]")] = '\0';
    assert(inet_pton(AF_INET6, text + 1, address) == 1);
    assert(memcmp(address, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1", 16) == 0 ||
           memcmp(address, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f", 13) == 0);
  } else {
    cut_port(text);
    assert(strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                        "0123456789.-_") == strlen(text));
    if (inet_pton(AF_INET, text, address) == 1) {
      snprintf(again, sizeof again, "127.%d.%d.%d", address[1], address[2],
               address[3]);
      assert(strcmp(text, again) == 0);
    } else {
      if (has_suffix(text, "."))
        text[strlen(text) - 1] = '\0';
      assert(strcasecmp(text, "localhost") == 0 ||
             has_suffix(text, ".localhost"));
      assert(text[0] != '.' && !strstr(text, ".."));
    }
  }
  free(text);
}

static void cut_suffix(char *text, const char *suffix) {
  if (has_suffix(text, suffix))
    text[strlen(text) - strlen(suffix)] = '\0';
}

static void judge_origin(view_s origin, view_s host) {
  char *page = copy_of(origin), *here = copy_of(host);
  const bool is_secure = strncasecmp(page, "https://", 8) == 0;
  assert(is_secure || strncasecmp(page, "http://", 7) == 0);
  cut_suffix(page, is_secure ? ":443" : ":80");
  cut_suffix(here, is_secure ? ":443" : ":80");
  assert(strcasecmp(page + (is_secure ? 8 : 7), here) == 0);
  assert(!strpbrk(here, "/@ ,?#\\"));
  free(page);
  free(here);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  const view_s text = view_of(data + 1, size - 1);
  const char *end = text.len ? memchr(text.data, '\n', text.len) : NULL;
  const size_t len = end ? (size_t)(end - text.data) : text.len;
  const bool has_origin = data[0] & BIT_ORIGIN;
  const view_s origin_text = view_sub(text, len + 1, text.len);
  char *host_bytes = malloc(len ? len : 1);
  char *origin_bytes = malloc(origin_text.len ? origin_text.len : 1);
  assert(host_bytes && origin_bytes);
  memcpy(host_bytes, text.data, len);
  if (origin_text.len)
    memcpy(origin_bytes, origin_text.data, origin_text.len);
  const view_s host = view_of(host_bytes, len);
  const view_s origin =
      has_origin ? view_of(origin_bytes, origin_text.len) : view_of(NULL, 0);
  const access_s rules = {.open = data[0] & BIT_OPEN};
  const bool has_forwarded = data[0] & BIT_FORWARDED;
  const char *detail = NULL;

  const int status = access_check(&rules, host, origin, has_forwarded, &detail);
  assert(status == 0 || status == 403);
  assert((status == 0) == (detail == NULL));
  if (status == 0 && !rules.open) {
    assert(!has_forwarded);
    judge_loopback(host);
  }
  if (status == 0 && has_origin)
    judge_origin(origin, host);
  (void)access_is_forwarding_field(host);
  free(host_bytes);
  free(origin_bytes);
  return 0;
}
