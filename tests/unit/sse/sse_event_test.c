/* Server-sent events as bytes: what a browser's parser makes of them is what
 * was meant, whatever the data holds. */
#include <criterion/criterion.h>
#include <facil/sse_event.h>
#include <stdlib.h>

static void expect(sse_event_s e, view_s want) {
  size_t n = sse_event_size(&e);
  char *out = malloc(n + 1);
  cr_assert_not_null(out);
  out[n] = '#';
  char *end = sse_event_write(out, &e);
  cr_expect_eq((size_t)(end - out), n, "sized %zu, wrote %zu", n,
               (size_t)(end - out));
  cr_expect_eq(out[n], '#');
  cr_expect(view_eq(view_of(out, n), want), "wrote \"%.*s\"", (int)n, out);
  free(out);
}

Test(sse_event, has_its_id_its_name_and_a_line_for_each_line) {
  expect((sse_event_s){.id = 7,
                       .event = VIEW_INIT("tick"),
                       .data = VIEW_INIT("a\nb")},
         VIEW_LIT("id: 7\nevent: tick\ndata: a\ndata: b\n\n"));
  expect((sse_event_s){.id = 1796125153866123, .data = VIEW_INIT("x")},
         VIEW_LIT("id: 1796125153866123\ndata: x\n\n"));
  expect((sse_event_s){.data = VIEW_INIT("no id")},
         VIEW_LIT("data: no id\n\n"));
}

/* F27: CR alone, LF alone and CRLF end a line each. */
Test(sse_event, F27_every_line_end_splits) {
  expect((sse_event_s){.id = 1, .data = VIEW_INIT("a\r\nb\rc\nd")},
         VIEW_LIT("id: 1\ndata: a\ndata: b\ndata: c\ndata: d\n\n"));
  expect((sse_event_s){.id = 1, .data = VIEW_INIT("\r\r\n\n")},
         VIEW_LIT("id: 1\ndata: \ndata: \ndata: \ndata: \n\n"));
  expect((sse_event_s){.id = 1, .data = VIEW_INIT("end\r")},
         VIEW_LIT("id: 1\ndata: end\ndata: \n\n"));
}

/* F25: an empty message is an event with empty data. */
Test(sse_event, F25_an_empty_message_is_an_event) {
  expect((sse_event_s){.id = 1}, VIEW_LIT("id: 1\ndata: \n\n"));
}

Test(sse_event, no_data_can_end_the_event_or_add_a_field) {
  expect(
      (sse_event_s){.id = 1, .data = VIEW_INIT("x\n\nevent: evil\ndata: y")},
      VIEW_LIT("id: 1\ndata: x\ndata: \ndata: event: evil\ndata: data: y\n\n"));
  expect((sse_event_s){.id = 1, .data = VIEW_INIT(" :a\0b: c")},
         VIEW_LIT("id: 1\ndata:  :a\0b: c\n\n"));
}

Test(sse_event, a_cursor_moves_the_id_and_fires_nothing) {
  char out[SSE_CURSOR_MAX];
  char *end = sse_cursor_write(out, UINT64_MAX);
  cr_expect(view_eq(view_of(out, (size_t)(end - out)),
                    VIEW_LIT("id: 18446744073709551615\n\n")));
}
