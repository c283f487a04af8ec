/* http_text_test.c - fields, lists, queries, Accept and status codes. */
#include "facil/http_parse.h"
#include <criterion/criterion.h>
#include <stdlib.h>

/* ---- fields ---- */

#define LIT(s)                                                                 \
  { s, sizeof(s) - 1 }

static http_header_s fields[] = {
    {LIT("Host"), LIT("t")},
    {LIT("Accept"), LIT("a, b")},
    {LIT("X"), LIT("")},
    {LIT("accept"), LIT(",c ,, D")},
};
static const http_request_s request = {.headers = fields, .header_count = 4};

Test(http_text, a_field_is_found_in_any_case) {
  cr_assert(
      view_eq(http_header(&request, VIEW_LIT("aCCEPT")), VIEW_LIT("a, b")));
  cr_assert_null(http_header(&request, VIEW_LIT("Accep")).data);
  cr_assert_not_null(http_header(&request, VIEW_LIT("x")).data);
  cr_assert_eq(http_header(&request, VIEW_LIT("x")).len, 0);
}

Test(http_text, fields_of_one_name_are_counted) {
  cr_assert_eq(http_header_times(&request, VIEW_LIT("ACCEPT")), 2);
  cr_assert_eq(http_header_times(&request, VIEW_LIT("host")), 1);
  cr_assert_eq(http_header_times(&request, VIEW_LIT("none")), 0);
}

Test(http_text, a_token_is_found_in_any_field_of_that_name) {
  cr_assert(http_header_has_token(&request, VIEW_LIT("Accept"), VIEW_LIT("A")));
  cr_assert(http_header_has_token(&request, VIEW_LIT("Accept"), VIEW_LIT("d")));
  cr_assert_not(
      http_header_has_token(&request, VIEW_LIT("Accept"), VIEW_LIT("")));
  cr_assert_not(
      http_header_has_token(&request, VIEW_LIT("Accept"), VIEW_LIT("a,")));
  cr_assert_not(
      http_header_has_token(&request, VIEW_LIT("Host"), VIEW_LIT("a")));
}

/* ---- lists ---- */

/* The members of `list`, each in brackets. */
static const char *members(const char *list) {
  static char out[256];
  view_s rest = view_str(list), m;
  size_t n = 0;
  while (http_list_next(&rest, &m)) {
    out[n++] = '[';
    memcpy(out + n, m.data, m.len);
    n += m.len;
    out[n++] = ']';
  }
  out[n] = 0;
  return out;
}

Test(http_text, a_list_is_divided_at_commas) {
  cr_assert_str_eq(members("a,b"), "[a][b]");
  cr_assert_str_eq(members(" a\t,\t b c "), "[a][b c]");
  cr_assert_str_eq(members(""), "");
  cr_assert_str_eq(members(" , ,,\t"), "");
  cr_assert_str_eq(members(",a,,b,"), "[a][b]");
}

Test(http_text, a_comma_in_quotes_divides_nothing) {
  cr_assert_str_eq(members("a=\"b,c\",d"), "[a=\"b,c\"][d]");
  cr_assert_str_eq(members("a=\"\\\",\",d"), "[a=\"\\\",\"][d]");
  cr_assert_str_eq(members("\"a,b"), "[\"a,b]");
  cr_assert_str_eq(members("\"a\\"), "[\"a\\]");
  cr_assert_str_eq(members("a\\,b"), "[a\\][b]");
}

Test(http_text, a_list_of_60000_spaces_is_read_once) {
  static char list[60003];
  memset(list, ' ', sizeof list);
  list[0] = 'a';
  list[60002] = 'b';
  view_s rest = view_of(list, sizeof list), m;
  cr_assert(http_list_next(&rest, &m));
  cr_assert_eq(m.len, sizeof list);
  cr_assert_not(http_list_next(&rest, &m));
}

/* ---- queries ---- */

static const char *pairs(const char *query) {
  static char out[256];
  view_s rest = view_str(query), name, value;
  size_t n = 0;
  while (http_query_next(&rest, &name, &value)) {
    memcpy(out + n, name.data, name.len);
    n += name.len;
    out[n++] = ':';
    memcpy(out + n, value.data, value.len);
    n += value.len;
    out[n++] = ';';
  }
  out[n] = 0;
  return out;
}

Test(http_text, P15_a_query_is_divided_into_pairs) {
  cr_assert_str_eq(pairs("a=1&b=2"), "a:1;b:2;");
  cr_assert_str_eq(pairs(""), "");
  cr_assert_str_eq(pairs("&"), "");
  cr_assert_str_eq(pairs("&&a&&"), "a:;");
  cr_assert_str_eq(pairs("c"), "c:;");
  cr_assert_str_eq(pairs("c="), "c:;");
  cr_assert_str_eq(pairs("="), ":;");
  cr_assert_str_eq(pairs("=v"), ":v;");
  cr_assert_str_eq(pairs("a=b=c"), "a:b=c;");
  cr_assert_str_eq(pairs("c[]=1&c[a]=2"), "c[]:1;c[a]:2;");
  cr_assert_str_eq(pairs("a=%26&%3d=?"), "a:%26;%3d:?;");
}

static void decodes(view_s in, const char *out, ssize_t len) {
  char *memory = malloc(in.len ? in.len : 1);
  cr_assert(memory);
  memcpy(memory, in.data, in.len);
  cr_assert_eq(http_percent_decode(view_of(memory, in.len), memory), len,
               "%.*s", (int)in.len, in.data);
  if (len > 0)
    cr_assert_eq(memcmp(memory, out, (size_t)len), 0);
  free(memory);
}

Test(http_text, P15_percent_signs_are_decoded_once) {
  decodes(VIEW_LIT(""), "", 0);
  decodes(VIEW_LIT("a+b"), "a+b", 3);
  decodes(VIEW_LIT("%41%2f%2F%c3%A9"), "A//\xc3\xa9", 5);
  decodes(VIEW_LIT("%00"), "\0", 1);
  decodes(VIEW_LIT("%2541"), "%41", 3);
  decodes(VIEW_LIT("%25%32%35"), "%25", 3);
  decodes(VIEW_LIT("%"), NULL, -1);
  decodes(VIEW_LIT("%2"), NULL, -1);
  decodes(VIEW_LIT("a%2"), NULL, -1);
  decodes(VIEW_LIT("%zz"), NULL, -1);
  decodes(VIEW_LIT("%2g"), NULL, -1);
  decodes(VIEW_LIT("%%41"), NULL, -1);
  decodes(VIEW_LIT("%+1"), NULL, -1);
}

/* ---- Accept ---- */

static bool accepts(const char *accept) {
  return http_accepts_exactly(view_str(accept), VIEW_LIT("text/event-stream"));
}

Test(http_text, a_type_is_accepted_where_it_is_named) {
  cr_assert(accepts("text/event-stream"));
  cr_assert(accepts("Text/Event-Stream"));
  cr_assert(accepts("application/json, text/event-stream"));
  cr_assert(accepts("text/event-stream;charset=utf-8"));
  cr_assert(accepts("text/event-stream ; q=0.5"));
  cr_assert(accepts("text/event-stream;Q=1.000"));
  cr_assert(accepts("text/event-stream;q=0.001"));
  cr_assert(accepts("text/event-stream;q=0, text/event-stream"));
  cr_assert(accepts("a;b=\",\";c, text/event-stream"));
}

Test(http_text, a_type_is_not_accepted_by_a_wildcard_or_with_weight_0) {
  cr_assert_not(accepts(""));
  cr_assert_not(accepts("*/*"));
  cr_assert_not(accepts("text/*"));
  cr_assert_not(accepts("text/event-stream2"));
  cr_assert_not(accepts("text/event-strea"));
  cr_assert_not(accepts("text/event-stream;q=0"));
  cr_assert_not(accepts("text/event-stream; q=0.000"));
  cr_assert_not(accepts("text/event-stream;x=\";q=1\";q=0."));
  cr_assert_not(accepts("a;x=\"b, text/event-stream\""));
}

Test(http_text, P27_an_accept_field_that_does_not_parse_is_passed_over) {
  static char long_field[8192];
  cr_assert_not(accepts(";q="));
  cr_assert_not(accepts("*/*;q=2;"));
  cr_assert_not(accepts(",,,"));
  cr_assert_not(accepts(";;;"));
  cr_assert_not(accepts("text/event-stream;q="));
  cr_assert_not(accepts("text/event-stream;q"));
  cr_assert_not(accepts("text/event-stream;q=2"));
  cr_assert_not(accepts("text/event-stream;q=1.1"));
  cr_assert_not(accepts("text/event-stream;q=0.0001"));
  cr_assert_not(accepts("text/event-stream;q=-1"));
  cr_assert_not(accepts("text/event-stream;q=1x"));
  cr_assert(accepts(";q=,text/event-stream;"));
  memset(long_field, ';', sizeof long_field - 1);
  cr_assert_not(accepts(long_field));
  memset(long_field, '"', sizeof long_field - 2);
  cr_assert_not(accepts(long_field));
}

/* ---- status codes ---- */

Test(http_text, status_codes_have_their_reasons) {
  cr_assert_str_eq(http_status_text(200), "OK");
  cr_assert_str_eq(http_status_text(101), "Switching Protocols");
  cr_assert_str_eq(http_status_text(413), "Content Too Large");
  cr_assert_str_eq(http_status_text(431), "Request Header Fields Too Large");
  cr_assert_str_eq(http_status_text(505), "HTTP Version Not Supported");
  cr_assert_str_eq(http_status_text(507), "Insufficient Storage");
  cr_assert_str_eq(http_status_text(0), "Unknown");
  cr_assert_str_eq(http_status_text(-1), "Unknown");
  cr_assert_str_eq(http_status_text(299), "Unknown");
}
