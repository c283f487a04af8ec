/* ws_echo.c - a WebSocket echo server for conformance suites: what comes goes
 * back, as the type that it came.
 *
 * ws_echo [--port PORT]
 *
 * Messages of 16 MiB at most, of any number of fragments. A peer that sends and
 * does not read is not read from either, beyond one message or two. */
#include <facil/websocket.h>
#include <stdio.h>

#define MESSAGE_MAX ((size_t)16 << 20)

static void echo_on_message(websocket_s *ws, view_s data, bool is_text) {
  websocket_write(ws, data, is_text);
}

static void echo_on_close(websocket_s *ws) {
  (void)ws; /* it has nothing of its own */
}

static const websocket_handler_s echo_handler = {.on_message = echo_on_message,
                                                 .on_close = echo_on_close};

/* One entry without a name: clients that ask for no subprotocol of ours. */
static void echo_upgrade(http_s *h, view_s segment) {
  static const view_s names[] = {VIEW_INIT("")};
  static const websocket_handler_s *const handlers[] = {&echo_handler};
  (void)segment;
  websocket_upgrade(h, names, handlers, 1, NULL);
}

static const http_route_s routes[] = {{"GET", "/", echo_upgrade}};

static http_settings_s http = {
    .limits = {.header_bytes = 16384, .header_count = 64, .url_bytes = 4096},
    .routes = routes,
    .route_count = 1};

static const websocket_settings_s websocket = {
    .limits = {.message_max = MESSAGE_MAX, .expects_masked = true},
    .ping_ms = 30000,
    .close_timeout_ms = 2000,
    .slow_timeout_ms = 30000,
    .queue_limit = MESSAGE_MAX};

int main(int argc, char **argv) {
  const char *port = "3000";
  if (argc == 3 && strcmp(argv[1], "--port") == 0) {
    port = argv[2];
  } else if (argc != 1) {
    fprintf(stderr, "usage: %s [--port PORT]\n", argv[0]);
    return 2;
  }
  websocket_set(&websocket);
  if (facil_listen(.port = port, .on_open = http_open, .udata = &http) < 0) {
    perror("ws_echo: listen");
    return 1;
  }
  printf("ws_echo on %s\n", facil_listening_at());
  return facil_run(.processes = 1);
}
