/* sock_addr.c - listening sockets: addresses to descriptors.
 *
 * A TCP port is first probed without SO_REUSEPORT, so that a port that another
 * program listens on is an error and not a silent share of its traffic. A Unix
 * path that nobody answers on is a stale file and is replaced. */
#include "core.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define STREAM (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)

void sock_addr_print(const struct sockaddr_storage *a, socklen_t len, char *out,
                     size_t cap) {
  char host[64] = "?";
  if (a->ss_family == AF_UNIX) {
    const struct sockaddr_un *u = (const struct sockaddr_un *)a;
    snprintf(out, cap, "unix:%s", u->sun_path);
  } else if (a->ss_family == AF_INET6) {
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
    snprintf(out, cap, "[%s]:%u", host, ntohs(v6->sin6_port));
  } else {
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
    inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
    snprintf(out, cap, "%s:%u", host, ntohs(v4->sin_port));
  }
  (void)len;
}

static int fail_close(int fd) {
  int saved = errno;
  close(fd);
  errno = saved;
  return -1;
}

/* Or a connection would get the number of one, and what is logged with it. */
void sock_std_fds(void) {
  int fd;
  do
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0)
    close(fd);
}

/* ---- Unix -------------------------------------------------------------- */

/* A socket file that refuses connections belongs to nobody any more. */
static int remove_stale(const struct sockaddr_un *u, socklen_t len) {
  struct stat st;
  if (lstat(u->sun_path, &st) < 0)
    return errno == ENOENT ? 0 : -1;
  if (!S_ISSOCK(st.st_mode)) {
    errno = EADDRINUSE;
    return -1;
  }
  int fd = socket(AF_UNIX, STREAM, 0);
  if (fd < 0)
    return -1;
  int r = connect(fd, (const struct sockaddr *)u, len);
  int why = errno;
  close(fd);
  if (r == 0 || why != ECONNREFUSED) {
    errno = EADDRINUSE;
    return -1;
  }
  return unlink(u->sun_path);
}

static int bind_unix(const char *path, int backlog, unsigned mode,
                     struct sockaddr_storage *bound, socklen_t *bound_len) {
  struct sockaddr_un u = {.sun_family = AF_UNIX};
  size_t n = strlen(path);
  if (n >= sizeof u.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  memcpy(u.sun_path, path, n + 1);
  socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
  if (remove_stale(&u, len) < 0)
    return -1;
  int fd = socket(AF_UNIX, STREAM, 0);
  if (fd < 0)
    return -1;
  mode_t old = umask(0777 & ~(mode_t)mode);
  int r = bind(fd, (struct sockaddr *)&u, len);
  umask(old);
  if (r < 0 || listen(fd, backlog) < 0)
    return fail_close(fd);
  memset(bound, 0, sizeof *bound);
  memcpy(bound, &u, len);
  *bound_len = len;
  return fd;
}

/* ---- TCP --------------------------------------------------------------- */

static int bind_tcp(const struct sockaddr *a, socklen_t len, int backlog,
                    bool share) {
  int fd = socket(a->sa_family, STREAM, 0);
  if (fd < 0)
    return -1;
  int one = 1, zero = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (a->sa_family == AF_INET6) {
    /* The wildcard serves IPv4 too. */
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
    bool any = IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, any ? &zero : &one, sizeof one);
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (share && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) < 0)
    return fail_close(fd);
  if (bind(fd, a, len) < 0 || listen(fd, backlog) < 0)
    return fail_close(fd);
  return fd;
}

int sock_bind_again(const struct sockaddr_storage *bound, socklen_t len,
                    int backlog) {
  return bind_tcp((const struct sockaddr *)bound, len, backlog, true);
}

static int bind_first(const struct addrinfo *ai, int backlog, bool probe) {
  if (probe) {
    int fd = bind_tcp(ai->ai_addr, ai->ai_addrlen, 1, false);
    if (fd < 0)
      return -1;
    close(fd);
  }
  return bind_tcp(ai->ai_addr, ai->ai_addrlen, backlog, true);
}

int sock_bind(const char *address, const char *port, int backlog, unsigned mode,
              bool probe, struct sockaddr_storage *bound,
              socklen_t *bound_len) {
  if (address && (address[0] == '/' || address[0] == '.'))
    return bind_unix(address, backlog, mode, bound, bound_len);
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
  struct addrinfo *list = NULL;
  if (getaddrinfo(address ? address : "127.0.0.1", port, &hints, &list) != 0) {
    errno = EADDRNOTAVAIL;
    return -1;
  }
  int fd = -1;
  for (struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next)
    fd = bind_first(ai, backlog, probe);
  int saved = errno;
  freeaddrinfo(list);
  if (fd < 0) {
    errno = saved;
    return -1;
  }
  *bound_len = sizeof *bound;
  if (getsockname(fd, (struct sockaddr *)bound, bound_len) < 0)
    return fail_close(fd);
  return fd;
}
