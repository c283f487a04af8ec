/* chat.c - one room over WebSocket, without a broker: every text goes to all
 * who are in it, its sender included.
 *
 * chat [PORT]
 *
 * The room is a set of one process, so there is one process. The invariant: who
 * is in the room is open, for a member leaves in its on_close. */
#include <facil/websocket.h>
#include <stdio.h>

#define TEXT_MAX 4096

typedef struct {
  facil_member_s member; /* lies still as long as the connection lives */
} guest_s;

static facil_set_s room;

/* ---- saying ------------------------------------------------------------ */

static void say_to(intptr_t uuid, protocol_s *protocol, void *text) {
  (void)protocol;
  websocket_s *ws = websocket_find(uuid);
  if (ws)
    websocket_write(ws, facil_buf_view(text), true);
}

static void said(intptr_t origin, void *text) {
  (void)origin;
  facil_buf_unref(text);
}

/* The walk comes in later turns, when `text` has ended: it gets a copy, which
 * on_complete gives back in every case. Walks of one set follow each other, so
 * all read the same order. */
static void guest_on_message(websocket_s *ws, view_s text, bool is_text) {
  if (!is_text) {
    websocket_close(ws, WS_CLOSE_UNSUPPORTED, VIEW_LIT("texts only"));
    return;
  }
  facil_buf_s *copy = facil_buf_new(text.len);
  if (!copy) {
    websocket_close(ws, WS_CLOSE_TRY_LATER, VIEW_LIT("no memory"));
    return;
  }
  facil_buf_add(copy, text.data, text.len);
  facil_each(.set = &room, .task = say_to, .arg = copy, .on_complete = said);
}

/* ---- coming and going -------------------------------------------------- */

static void guest_on_open(websocket_s *ws, void *arg) {
  (void)arg;
  guest_s *guest = websocket_user(ws);
  guest->member.uuid = websocket_uuid(ws);
  if (facil_set_add(&room, &guest->member) < 0) {
    guest->member.uuid = 0;
    websocket_close(ws, WS_CLOSE_TRY_LATER, VIEW_LIT("no memory"));
  }
}

static void guest_on_close(websocket_s *ws) {
  guest_s *guest = websocket_user(ws);
  if (guest->member.uuid) /* 0: it never came in */
    facil_set_remove(&room, &guest->member);
}

static const websocket_handler_s guest_handler = {.size = sizeof(guest_s),
                                                  .on_open = guest_on_open,
                                                  .on_message =
                                                      guest_on_message,
                                                  .on_close = guest_on_close};

/* ---- the server -------------------------------------------------------- */

static void enter(http_s *h, view_s segment) {
  static const view_s names[] = {VIEW_INIT("")};
  static const websocket_handler_s *const handlers[] = {&guest_handler};
  (void)segment;
  websocket_upgrade(h, names, handlers, 1, NULL);
}

static const http_route_s routes[] = {{"GET", "/", enter}};

static http_settings_s http = {
    .limits = {.header_bytes = 16384, .header_count = 64, .url_bytes = 4096},
    .routes = routes,
    .route_count = 1};

static const websocket_settings_s websocket = {
    .limits = {.message_max = TEXT_MAX, .expects_masked = true},
    .ping_ms = 30000,
    .close_timeout_ms = 2000,
    .slow_timeout_ms = 30000,
    .queue_limit = 256 * TEXT_MAX};

int main(int argc, char **argv) {
  facil_set_init(&room);
  websocket_set(&websocket);
  sock_set_queue_limit(websocket.queue_limit);
  if (facil_listen(.port = argc > 1 ? argv[1] : "3000", .on_open = http_open,
                   .udata = &http) < 0) {
    perror("chat: listen");
    return 1;
  }
  printf("chat on %s\n", facil_listening_at());
  int status = facil_run(.processes = 1);
  facil_set_fini(&room);
  return status;
}
