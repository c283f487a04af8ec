/* listen_test.c - where a server can listen, and what it is told when it
 * cannot.
 */
#include "core_support.h"
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int mark; /* what udata points at */

static protocol_s *echo_open(intptr_t uuid, void *udata) {
  cr_assert_eq(udata, &mark);
  probe_s *p = probe_new(&probe_ops, 0);
  p->uuid = uuid;
  p->on_data = probe_echo;
  return &p->super;
}

#define LISTEN(...)                                                            \
  facil_listen(.on_open = echo_open, .udata = &mark, __VA_ARGS__)

#define REFUSED(call, error)                                                   \
  do {                                                                         \
    errno = 0;                                                                 \
    cr_assert_eq((call), -1, #call);                                           \
    cr_assert_eq(errno, error, "%s: %s", #call, strerror(errno));              \
  } while (0)

static int port_of(const char *at) {
  const char *colon = strrchr(at, ':');
  return colon ? (int)strtol(colon + 1, NULL, 10) : -1;
}

Test(listen, says_where_it_listens) {
  cr_assert_str_eq(facil_listening_at(), "");
  cr_assert_eq(LISTEN(.port = "0"), 0);
  const char *at = facil_listening_at();
  cr_assert_eq(strncmp(at, "127.0.0.1:", 10), 0, "%s", at);
  cr_assert_gt(port_of(at), 0);
  int first = port_of(at);
  cr_assert_eq(LISTEN(.address = "::1", .port = "0"), 0);
  cr_assert_eq(strncmp(facil_listening_at(), "[::1]:", 6), 0, "%s",
               facil_listening_at());
  cr_assert_neq(port_of(facil_listening_at()), first);
}

Test(listen, a_port_in_use_is_eaddrinuse_even_if_it_would_be_shared) {
  struct sockaddr_in a = {.sin_family = AF_INET,
                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  char port[16];
  setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
  cr_assert_eq(bind(fd, (void *)&a, len), 0);
  cr_assert_eq(listen(fd, 1), 0);
  cr_assert_eq(getsockname(fd, (void *)&a, &len), 0);
  snprintf(port, sizeof port, "%d", ntohs(a.sin_port));
  int fds = fds_of(getpid());
  REFUSED(LISTEN(.port = port), EADDRINUSE);
  REFUSED(LISTEN(.address = "0.0.0.0", .port = port), EADDRINUSE);
  cr_assert_eq(fds_of(getpid()), fds, "nothing is left of it");
  close(fd);
  cr_assert_eq(LISTEN(.port = port), 0);
  REFUSED(LISTEN(.port = port), EADDRINUSE);
}

Test(listen, what_is_no_address_is_refused) {
  REFUSED(facil_listen(.port = "0"), EINVAL);
  REFUSED(LISTEN(.address = "no.such.host.invalid", .port = "0"),
          EADDRNOTAVAIL);
  REFUSED(LISTEN(.port = "no-port"), EADDRNOTAVAIL);
  REFUSED(LISTEN(.address = "192.0.2.1", .port = "0"), EADDRNOTAVAIL);
  cr_assert_str_eq(facil_listening_at(), "");
}

/* ---- Unix
 * --------------------------------------------------------------------- */

static char path[108];

static void path_make(void) {
  snprintf(path, sizeof path, "/tmp/listen-%d.sock", (int)getpid());
  unlink(path);
}

static int client_unix(void) {
  struct sockaddr_un u = {.sun_family = AF_UNIX};
  snprintf(u.sun_path, sizeof u.sun_path, "%s", path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, (void *)&u, sizeof u) == 0)
    return fd;
  close(fd);
  return -1;
}

static int unix_client = -1;
static bool answered;

static void unix_begin(void) {
  unix_client = client_unix();
  cr_assert_geq(unix_client, 0);
  cr_assert_eq(write(unix_client, "u", 1), 1);
}

static bool unix_step(void) {
  char c = 0;
  if (recv(unix_client, &c, 1, MSG_DONTWAIT) == 1)
    answered = c == 'u';
  return answered;
}

Test(listen, a_unix_path_serves_with_the_mode_that_was_asked_for) {
  struct stat st;
  path_make();
  cr_assert_eq(LISTEN(.address = path, .mode = 0600), 0);
  char want[128];
  snprintf(want, sizeof want, "unix:%s", path);
  cr_assert_str_eq(facil_listening_at(), want);
  cr_assert_eq(stat(path, &st), 0);
  cr_assert_eq(st.st_mode & 0777, 0600, "%o", st.st_mode & 0777);
  run_script(unix_begin, unix_step);
  cr_assert(answered);
}

Test(listen, a_stale_unix_path_is_replaced_and_a_living_one_is_not) {
  path_make();
  struct sockaddr_un u = {.sun_family = AF_UNIX};
  snprintf(u.sun_path, sizeof u.sun_path, "%s", path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  cr_assert_eq(bind(fd, (void *)&u, sizeof u), 0);
  cr_assert_eq(listen(fd, 1), 0);
  REFUSED(LISTEN(.address = path), EADDRINUSE);
  close(fd); /* the file stays, and nobody answers */
  cr_assert_eq(access(path, F_OK), 0);
  cr_assert_eq(LISTEN(.address = path), 0);
  int client = client_unix();
  cr_assert_geq(client, 0);
  unlink(path);
}

Test(listen, a_file_that_is_no_socket_is_left_alone) {
  path_make();
  int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  cr_assert_eq(write(fd, "mine", 4), 4);
  REFUSED(LISTEN(.address = path), EADDRINUSE);
  struct stat st;
  cr_assert_eq(fstat(fd, &st), 0);
  cr_assert_eq(st.st_size, 4);
  cr_assert_eq(st.st_nlink, 1);
  unlink(path);
}

Test(listen, a_unix_path_that_is_too_long_is_enametoolong) {
  char longest[200];
  memset(longest, 'x', sizeof longest);
  longest[0] = '/';
  longest[sizeof longest - 1] = 0;
  REFUSED(LISTEN(.address = longest), ENAMETOOLONG);
}

/* ---- several, and strings that do not outlive the call
 * --------------------------- */

static int two_clients[2];
static int ports[2];
static int finished;

static void finish_one(void *udata) {
  cr_assert_eq(udata, &mark);
  finished++;
}

static void two_begin(void) {
  for (int i = 0; i < 2; i++) {
    two_clients[i] = client_to(ports[i]);
    cr_assert_eq(write(two_clients[i], "t", 1), 1);
  }
}

static bool two_step(void) {
  static int got;
  char c;
  for (int i = 0; i < 2; i++)
    got += recv(two_clients[i], &c, 1, MSG_DONTWAIT) == 1;
  return got == 2;
}

Test(listen, on_several_at_once_and_each_is_told_of_the_end) {
  for (int i = 0; i < 2; i++) {
    char address[] = "127.0.0.1", port[] = "0";
    cr_assert_eq(
        LISTEN(.address = address, .port = port, .on_finish = finish_one), 0);
    memset(address, 'x', sizeof address - 1);
    ports[i] = port_of(facil_listening_at());
  }
  run_script(two_begin, two_step);
  cr_assert_eq(finished, 2);
  cr_assert_lt(client_to(ports[0]), 0);
}
