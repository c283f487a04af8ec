/* access.c - the loopback rules and the rule of the same origin.
 *
 * Kept true: what is not understood is refused. A Host or an Origin is first
 * split by one strict reader into host and port; a host that it cannot read
 * (an octet too many, a stray byte, a user, a path) equals nothing and is no
 * loopback. No name is ever resolved: only what must mean loopback by its
 * spelling counts, so an attacker's DNS has no say.
 *
 * Octal, hexadecimal and shortened IPv4 addresses are names like any other
 * here, therefore not loopback: browsers rewrite them before they send. */
#include "access.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>

enum { HOST_MAX = 255, PORT_DIGITS = 5, PORT_MAX = 65535, FORBIDDEN = 403 };

typedef struct {
  view_s host;   /* an IPv6 address with its brackets */
  unsigned port; /* 0: none was given */
} authority_s;

/* ---- Addresses --------------------------------------------------------- */

static bool is_loopback_v4(const void *octets) {
  return *(const uint8_t *)octets == 127;
}

static bool is_loopback_v6(const struct in6_addr *a) {
  if (IN6_IS_ADDR_V4MAPPED(a))
    return is_loopback_v4(a->s6_addr + 12);
  return IN6_IS_ADDR_LOOPBACK(a);
}

bool access_is_loopback_address(const struct sockaddr *address) {
  switch (address->sa_family) {
  case AF_UNIX:
    return true;
  case AF_INET: {
    struct sockaddr_in in;
    memcpy(&in, address, sizeof in);
    return is_loopback_v4(&in.sin_addr);
  }
  case AF_INET6: {
    struct sockaddr_in6 in6;
    memcpy(&in6, address, sizeof in6);
    return is_loopback_v6(&in6.sin6_addr);
  }
  default:
    return false;
  }
}

/* ---- Host and port, RFC 3986 section 3.2 without userinfo -------------- */

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static bool is_name_char(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         c == '-' || c == '.' || c == '_';
}

/* Letters, digits, `-` and `_`, in parts that are not empty; one dot may
 * follow the last. */
static bool is_name(view_s v) {
  if (v.len == 0 || v.len > HOST_MAX)
    return false;
  for (size_t i = 0; i < v.len; i++)
    if (!is_name_char(v.data[i]) ||
        (v.data[i] == '.' && (i == 0 || v.data[i - 1] == '.')))
      return false;
  return true;
}

/* The address that `v` spells, in network order in `out`. */
static bool read_address(int family, view_s v, void *out) {
  char text[INET6_ADDRSTRLEN];
  if (v.len == 0 || v.len >= sizeof text || memchr(v.data, 0, v.len))
    return false;
  memcpy(text, v.data, v.len);
  text[v.len] = '\0';
  return inet_pton(family, text, out) == 1;
}

static view_s without_brackets(view_s host) {
  return view_sub(host, 1, host.len - 2);
}

/* `v` is empty, or a colon and a port. */
static bool read_port(view_s v, unsigned *port) {
  *port = 0;
  if (v.len == 0)
    return true;
  if (v.len < 2 || v.len > 1 + PORT_DIGITS || v.data[0] != ':' ||
      v.data[1] == '0')
    return false;
  for (size_t i = 1; i < v.len; i++) {
    if (!is_digit(v.data[i]))
      return false;
    *port = *port * 10 + (unsigned)(v.data[i] - '0');
  }
  return *port <= PORT_MAX;
}

static bool read_authority(view_s v, authority_s *out) {
  if (v.len == 0)
    return false;
  const bool is_v6 = v.data[0] == '[';
  const char *end = memchr(v.data, is_v6 ? ']' : ':', v.len);
  if (is_v6 && !end)
    return false;
  const size_t len = end ? (size_t)(end - v.data) + is_v6 : v.len;
  struct in6_addr ignored;
  out->host = view_sub(v, 0, len);
  if (is_v6 ? !read_address(AF_INET6, without_brackets(out->host), &ignored)
            : !is_name(out->host))
    return false;
  return read_port(view_sub(v, len, v.len), &out->port);
}

/* ---- Loopback by spelling ---------------------------------------------- */

static bool is_localhost_name(view_s host) {
  const view_s tail = VIEW_LIT(".localhost");
  if (host.data[host.len - 1] == '.')
    host.len--;
  if (view_eq_nocase(host, VIEW_LIT("localhost")))
    return true;
  return host.len > tail.len &&
         view_eq_nocase(view_sub(host, host.len - tail.len, tail.len), tail);
}

bool access_is_loopback_host(view_s host) {
  authority_s a;
  struct in6_addr v6;
  struct in_addr v4;
  if (!read_authority(host, &a))
    return false;
  if (a.host.data[0] == '[')
    return read_address(AF_INET6, without_brackets(a.host), &v6) &&
           is_loopback_v6(&v6);
  if (read_address(AF_INET, a.host, &v4))
    return is_loopback_v4(&v4);
  return is_localhost_name(a.host);
}

bool access_is_forwarding_field(view_s name) {
  static const char prefix[] = "X-Forwarded-";
  const size_t prefix_len = sizeof prefix - 1;
  return view_eq_nocase(name, VIEW_LIT("Forwarded")) ||
         view_eq_nocase(view_sub(name, 0, prefix_len),
                        view_of(prefix, prefix_len));
}

/* ---- Origin, RFC 6454 section 7.1 -------------------------------------- */

/* Is there a scheme that pages have? Then `v` is left with what follows it,
 * and *port is its default port. */
static bool take_scheme(view_s *v, unsigned *port) {
  static const struct {
    view_s text;
    unsigned port;
  } schemes[] = {{{"http://", 7}, 80}, {{"https://", 8}, 443}};
  for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
    if (view_eq_nocase(view_sub(*v, 0, schemes[i].text.len), schemes[i].text)) {
      *v = view_sub(*v, schemes[i].text.len, v->len);
      *port = schemes[i].port;
      return true;
    }
  return false;
}

static bool is_origin_of(view_s origin, view_s host) {
  authority_s page, here;
  unsigned usual;
  if (!take_scheme(&origin, &usual) || !read_authority(origin, &page) ||
      !read_authority(host, &here))
    return false;
  return view_eq_nocase(page.host, here.host) &&
         (page.port ? page.port : usual) == (here.port ? here.port : usual);
}

/* ---- The two questions ------------------------------------------------- */

int access_check(const access_s *rules, view_s host, view_s origin,
                 bool has_forwarded, const char **detail) {
  if (!rules->open && !access_is_loopback_host(host))
    *detail = "The Host is not a loopback name or address, and only those are "
              "answered; start the broker with --open to answer to every name.";
  else if (!rules->open && has_forwarded)
    *detail = "The request came through a proxy (Forwarded or X-Forwarded-*), "
              "and only direct ones are answered; start the broker with --open "
              "to serve behind a proxy.";
  else if (origin.data && !is_origin_of(origin, host))
    *detail = "The Origin is not that of the Host, and pages of other sites "
              "are refused, also with --open; load the page from this Host, "
              "and let a proxy pass the Host on unchanged.";
  else
    return 0;
  return FORBIDDEN;
}

/* `[::]:80`, `0.0.0.0:80`; what is neither IPv4 nor IPv6 by its family. */
static void write_address(const struct sockaddr *address, char *out,
                          size_t len) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    struct sockaddr_in in;
    memcpy(&in, address, sizeof in);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    snprintf(out, len, "%s:%u", text, ntohs(in.sin_port));
  } else if (address->sa_family == AF_INET6) {
    struct sockaddr_in6 in6;
    memcpy(&in6, address, sizeof in6);
    inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof text);
    snprintf(out, len, "[%s]:%u", text, ntohs(in6.sin6_port));
  } else {
    snprintf(out, len, "an address of family %d", address->sa_family);
  }
}

int access_may_listen(const access_s *rules, const struct sockaddr *address,
                      char *err, size_t err_len) {
  char where[INET6_ADDRSTRLEN + sizeof "[]:65535"];
  if (rules->open || access_is_loopback_address(address))
    return 0;
  write_address(address, where, sizeof where);
  snprintf(err, err_len,
           "crier: listen: %s is not a loopback address "
           "(add --open to serve everyone who can reach it)",
           where);
  errno = EACCES;
  return -1;
}
