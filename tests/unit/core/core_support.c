/* core_support.c - see core_support.h. */
#include "core_support.h"
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- probes ----------------------------------------------------------------
 */

tally_s tally[PROBES_MAX];
int probes_live;

probe_s *probe_of(protocol_s *p) {
  return (probe_s *)(void *)p;
}

static void count_data(intptr_t uuid, protocol_s *p) {
  tally[probe_of(p)->id].data++;
  if (probe_of(p)->on_data)
    probe_of(p)->on_data(uuid, probe_of(p));
  else
    probe_read_all(uuid, probe_of(p));
}

static void count_ready(intptr_t uuid, protocol_s *p) {
  tally[probe_of(p)->id].ready++;
  if (probe_of(p)->on_ready)
    probe_of(p)->on_ready(uuid, probe_of(p));
}

static size_t count_sent(intptr_t uuid, protocol_s *p, size_t sent) {
  tally[probe_of(p)->id].sent++;
  tally[probe_of(p)->id].sent_bytes += sent;
  return probe_of(p)->on_sent ? probe_of(p)->on_sent(uuid, probe_of(p), sent)
                              : 0;
}

static void count_shutdown(intptr_t uuid, protocol_s *p) {
  tally[probe_of(p)->id].shutdown++;
  if (probe_of(p)->on_shutdown)
    probe_of(p)->on_shutdown(uuid, probe_of(p));
}

static void count_close(intptr_t uuid, protocol_s *p) {
  tally[probe_of(p)->id].close++;
  probes_live--;
  if (probe_of(p)->on_close)
    probe_of(p)->on_close(uuid, probe_of(p));
  free(p);
}

static void count_ping(intptr_t uuid, protocol_s *p) {
  tally[probe_of(p)->id].ping++;
  if (probe_of(p)->ping)
    probe_of(p)->ping(uuid, probe_of(p));
}

#define PROBE_CALLBACKS                                                        \
  .on_data = count_data, .on_ready = count_ready, .on_sent = count_sent,       \
  .on_shutdown = count_shutdown, .on_close = count_close, .ping = count_ping

const protocol_ops_s probe_ops = {.service = "probe", PROBE_CALLBACKS};
const protocol_ops_s probe_half_ops = {
    .service = "half", PROBE_CALLBACKS, .half_open = true};
const protocol_ops_s probe_hold_ops = {
    .service = "hold", PROBE_CALLBACKS, .holds_shutdown = true};

probe_s *probe_new(const protocol_ops_s *ops, int id) {
  probe_s *p = calloc(1, sizeof *p);
  if (!p)
    abort();
  p->super.ops = ops;
  p->id = id;
  probes_live++;
  return p;
}

void probe_read_all(intptr_t uuid, probe_s *p) {
  (void)p;
  char waste[4096];
  while (sock_read(uuid, waste, sizeof waste) > 0)
    ;
}

void probe_echo(intptr_t uuid, probe_s *p) {
  (void)p;
  char chunk[65536];
  ssize_t n;
  while ((n = sock_read(uuid, chunk, sizeof chunk)) > 0)
    if (sock_write(uuid, chunk, (size_t)n) < 0)
      sock_abort(uuid, "echo is not read");
}

/* ---- a loop here
 * ------------------------------------------------------------- */

bool plain_send, script_sleeps;

static struct {
  void (*begin)(void);
  bool (*step)(void);
  bool done, is_fake;
  uint64_t fake_ms, give_up_ms;
} script;

static uint64_t fake_source(void) {
  return script.fake_ms;
}

void fake_clock(void) {
  script.is_fake = true;
  script.fake_ms = 1000003;
  clock_set_source(fake_source);
}

void fake_pass(uint64_t ms) {
  script.fake_ms += ms;
}

uint64_t fake_now(void) {
  return script.fake_ms;
}

void script_wakes(void *unused) {
  (void)unused;
}

static bool script_turn(void *arg) {
  (void)arg;
  if (!script.done && script.step)
    script.done = script.step();
  if (script.done)
    facil_stop(); /* each turn: the second one ends at once */
  cr_assert(real_ms() < script.give_up_ms, "the script does not end");
  return false;
}

static bool script_may_sleep(void *arg) {
  (void)arg;
  return script_sleeps && !script.is_fake && !script.done;
}

static void script_woke(void *arg) {
  (void)arg;
}

static void script_nothing(void *a, void *b) {
  (void)a, (void)b;
}

static int script_start(void *arg) {
  (void)arg;
  facil_engine_s engine = {.turn = script_turn,
                           .may_sleep = script_may_sleep,
                           .woke = script_woke,
                           .wake_fd = -1};
  if (facil_set_engine(&engine) < 0)
    return -1;
  if (script.begin)
    script.begin();
  return defer(script_nothing, NULL, NULL); /* so the first turn is now */
}

int run_script(void (*begin)(void), bool (*step)(void)) {
  script.begin = begin;
  script.step = step;
  script.done = false;
  script.give_up_ms = real_ms() + 20000;
  return facil_run(.processes = 1, .no_uring = plain_send,
                   .on_start = script_start);
}

static void set_nonblock(int fd) {
  (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

intptr_t pair_tcp(int *client) {
  struct sockaddr_in a = {.sin_family = AF_INET,
                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int one = 1;
  *client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || *client < 0 || bind(listener, (void *)&a, len) < 0 ||
      listen(listener, 1) < 0 || getsockname(listener, (void *)&a, &len) < 0 ||
      connect(*client, (void *)&a, len) < 0)
    abort();
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  close(listener);
  set_nonblock(*client);
  setsockopt(*client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  intptr_t uuid = sock_open(fd);
  if (uuid < 0)
    abort();
  return uuid;
}

intptr_t pair_unix(int *client) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) <
      0)
    abort();
  *client = fds[1];
  intptr_t uuid = sock_open(fds[0]);
  if (uuid < 0)
    abort();
  return uuid;
}

intptr_t pair_with(int *client, probe_s *p) {
  intptr_t uuid = pair_tcp(client);
  p->uuid = uuid;
  if (facil_attach(uuid, &p->super) < 0)
    abort();
  return uuid;
}

/* ---- servers in a process of their own
 * --------------------------------------- */

seen_s *seen;
static int port_pipe = -1;

void seen_make(void) {
  seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (seen == MAP_FAILED)
    abort();
}

void server_is_at(void) {
  const char *colon = strrchr(facil_listening_at(), ':');
  int port = colon ? (int)strtol(colon + 1, NULL, 10) : 0;
  ssize_t n = write(port_pipe, &port, sizeof port);
  (void)n;
  close(port_pipe);
  port_pipe = -1;
}

pid_t server_fork(int (*serve)(void *), void *arg, int *port) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) < 0)
    abort();
  fflush(NULL);
  pid_t test = getpid(), pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != test)
      _exit(1);
    close(fds[0]);
    port_pipe = fds[1];
    _exit(serve(arg));
  }
  close(fds[1]);
  *port = 0;
  ssize_t n = read(fds[0], port, sizeof *port);
  close(fds[0]);
  cr_assert(n == (ssize_t)sizeof *port, "the server did not start");
  return pid;
}

int server_wait(pid_t pid, int ms) {
  int how;
  for (uint64_t end = real_ms() + (uint64_t)ms;;) {
    if (waitpid(pid, &how, WNOHANG) == pid)
      return WIFSIGNALED(how) ? 256 + WTERMSIG(how) : WEXITSTATUS(how);
    if (real_ms() >= end)
      return -1;
    nap_ms(1);
  }
}

void server_end(pid_t pid) {
  kill(pid, SIGKILL);
  (void)server_wait(pid, 5000);
}

void server_forget(void) {
  if (port_pipe >= 0)
    close(port_pipe);
  port_pipe = -1;
}

/* ---- clients ---------------------------------------------------------------
 */

int client_to(int port) {
  struct sockaddr_in a = {.sin_family = AF_INET,
                          .sin_port = htons((uint16_t)port),
                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct timeval limit = {.tv_sec = 10};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(fd, (void *)&a, sizeof a) == 0)
    return fd;
  int saved = errno;
  close(fd);
  errno = saved;
  return -1;
}

bool write_full(int fd, const void *buf, size_t len) {
  for (size_t at = 0; at < len;) {
    ssize_t n = send(fd, (const char *)buf + at, len - at, MSG_NOSIGNAL);
    if (n <= 0)
      return false;
    at += (size_t)n;
  }
  return true;
}

size_t read_full(int fd, void *buf, size_t len) {
  size_t at = 0;
  while (at < len) {
    ssize_t n = recv(fd, (char *)buf + at, len - at, 0);
    if (n <= 0)
      break;
    at += (size_t)n;
  }
  return at;
}

bool echoes(int fd, char what) {
  char back = 0;
  return write_full(fd, &what, 1) && read_full(fd, &back, 1) == 1 &&
         back == what;
}

int end_of(int fd, int ms) {
  struct pollfd p = {fd, POLLIN, 0};
  if (poll(&p, 1, ms) <= 0)
    return ETIMEDOUT;
  char c;
  ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);
  return n == 0 ? 0 : n > 0 ? 1 : errno;
}

/* ---- small things
 * ------------------------------------------------------------ */

uint64_t real_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void nap_ms(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
  while (nanosleep(&t, &t) < 0 && errno == EINTR)
    ;
}

int children_of(pid_t pid, pid_t *out, int max) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC), n = 0;
  ssize_t len = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
  if (fd >= 0)
    close(fd);
  text[len > 0 ? len : 0] = 0;
  for (char *at = text, *end; n < max; at = end) {
    long child = strtol(at, &end, 10);
    if (end == at)
      break;
    out[n++] = (pid_t)child;
  }
  return n;
}

int fds_of(pid_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
  DIR *d = opendir(path);
  int n = 0;
  for (struct dirent *e; d && (e = readdir(d));)
    n += e->d_name[0] != '.';
  if (d)
    closedir(d);
  return pid == getpid() ? n - 1 : n; /* but for the one just opened */
}

long cpu_ms(pid_t pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *f = fopen(path, "re");
  size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f)
    fclose(f);
  text[n] = 0;
  char *at = strrchr(text, ')');
  unsigned long user = 0, sys = 0;
  for (int field = 2; at && field < 13; field++)
    at = strchr(at + 1, ' ');
  if (at) {
    user = strtoul(at, &at, 10);
    sys = strtoul(at, &at, 10);
  }
  return (long)(user + sys) * 1000 / sysconf(_SC_CLK_TCK);
}

int soak(int times, int longer) {
  return getenv("SOAK") ? longer : times;
}

uint32_t dice(uint64_t *state, uint32_t below) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33) % below;
}
