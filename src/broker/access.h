/* access.h - which addresses are served, and which requests are let in, as long
 * as nothing but the place where a request comes from can be judged.
 *
 * Without --open the broker is for this machine alone: it listens on loopback
 * addresses and Unix sockets only, answers only to a Host that means loopback
 * (a page that reaches 127.0.0.1 by DNS rebinding sends the name it was loaded
 * from), and refuses what a proxy passed on. With or without it a page of
 * another site gets nothing: an Origin must be that of Host.
 *
 * A request without Origin is let in: programs send none, browsers send one
 * with each WebSocket and each POST. Everything here is a pure function of its
 * arguments: no socket, no memory, any thread. */
#ifndef CRIER_ACCESS_H
#define CRIER_ACCESS_H

#include <facil/view.h>
#include <sys/socket.h>

typedef struct {
  bool open; /* the setting `open`: serve every address, name and proxy */
} access_s;

/* Is it 127.0.0.0/8, ::1, ::ffff:127.0.0.0/104, or a Unix socket? */
bool access_is_loopback_address(const struct sockaddr *address);

/* Is the value of a Host field (RFC 9110 section 7.2) `localhost`, a name that
 * ends in `.localhost` (RFC 6761 section 6.3; one trailing dot is fine for
 * both), an address of 127.0.0.0/8 in four plain decimal parts, or a loopback
 * IPv6 address in brackets; each with or without a port of 1 to 65535? */
bool access_is_loopback_host(view_s host);

/* Does a header field of this name say that a proxy passed the request on?
 * Forwarded (RFC 7239) and everything that begins with X-Forwarded-. */
bool access_is_forwarding_field(view_s name);

/* May a request with this Host and Origin be served? `origin.data` is NULL
 * where the field is absent; an empty value, and several fields joined by a
 * comma (RFC 9110 section 5.3), are present and refused. `has_forwarded`: one
 * of its fields is an access_is_forwarding_field.
 *
 * Origin (RFC 6454 section 7) must be http or https with exactly the host and
 * port of Host, where the default port of its scheme may be left out; letter
 * case does not count.
 *
 * 0, or the status 403 with *detail set to a sentence for the answer, which is
 * static and says what to do about it. *detail is untouched at 0. */
FACIL_MUST_CHECK int access_check(const access_s *rules, view_s host,
                                  view_s origin, bool has_forwarded,
                                  const char **detail);

/* May the broker listen there? 0; or -1 and EACCES, with one line (without
 * its end) in `err` that says what to set. */
FACIL_MUST_CHECK int access_may_listen(const access_s *rules,
                                       const struct sockaddr *address,
                                       char *err, size_t err_len);

#endif
