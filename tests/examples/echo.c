/* echo.c - the smallest server on libfacil: what comes is sent back.
 *
 * echo [PORT] [WORKERS] */
#include <assert.h>
#include <facil/facil.h>
#include <stdio.h>

typedef struct {
  protocol_s super; /* first: a protocol_s with echo_ops is one of these */
  size_t bytes;
} echo_s;

static const protocol_ops_s echo_ops;

static echo_s *echo_of(protocol_s *p) {
  assert(p->ops == &echo_ops);
  return (echo_s *)p;
}

static void echo_on_data(intptr_t uuid, protocol_s *p) {
  char chunk[4096];
  ssize_t n = sock_read(uuid, chunk, sizeof chunk);
  if (n <= 0)
    return;
  echo_of(p)->bytes += (size_t)n;
  if (sock_write(uuid, chunk, (size_t)n) < 0)
    sock_abort(uuid, "echo: the peer reads too slowly");
}

static void echo_on_close(intptr_t uuid, protocol_s *p) {
  (void)uuid;
  free(echo_of(p));
}

static const protocol_ops_s echo_ops = {
    .service = "echo", .on_data = echo_on_data, .on_close = echo_on_close};

static protocol_s *echo_open(intptr_t uuid, void *udata) {
  (void)uuid, (void)udata;
  echo_s *e = calloc(1, sizeof *e);
  if (!e)
    return NULL;
  e->super.ops = &echo_ops;
  return &e->super;
}

int main(int argc, char **argv) {
  const char *port = argc > 1 ? argv[1] : "3000";
  int workers = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 1;
  if (facil_listen(.port = port, .on_open = echo_open) < 0) {
    perror("echo: listen");
    return 1;
  }
  printf("echo on %s\n", facil_listening_at());
  return facil_run(.processes = (uint16_t)workers);
}
