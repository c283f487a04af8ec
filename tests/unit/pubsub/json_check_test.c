/* JSON is checked as it stands: what RFC 8259 allows passes, nothing else does,
 * and a member's value is found where it stands. */
#include <criterion/criterion.h>
#include <facil/json_check.h>
#include <jansson.h>
#include <stdlib.h>

Test(json_check, what_the_grammar_allows_passes) {
  static const char *const good[] = {
      "1",
      "-0",
      "1e400",
      "-1.5E+7",
      "[]",
      "{}",
      "[[]]",
      " [1 , 2] ",
      "\"x\"",
      "123456789012345678901234567890",
      "[[],[]]",
      "{\"a\":{}}",
      "[{},1]",
      "{\"a\":[1,{\"b\":null}],\"c\":\"\\u00e9\\n\"}",
      "\"\\ud800\"",
      "true",
      "\t\r\n null \n",
      "{\"a\":1,\"a\":2}",
      "\"\xc3\xa9\""};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    cr_expect_null(json_fault(view_str(good[i])), "%s", good[i]);
}

Test(json_check, nothing_else_does) {
  static const char *const bad[] = {"",
                                    " ",
                                    "01",
                                    "1.",
                                    "1e",
                                    ".5",
                                    "+1",
                                    "[1,]",
                                    "{,}",
                                    "{\"a\"}",
                                    "{\"a\":}",
                                    "[1 2]",
                                    "tru",
                                    "nulll",
                                    "\"\n\"",
                                    "\"\\x\"",
                                    "[",
                                    "{",
                                    "]",
                                    "1 2",
                                    "\"\\u12g4\"",
                                    "{\"a\":1,}",
                                    "'a'",
                                    "[1}",
                                    "{\"a\":1]",
                                    "{1:2}",
                                    "\"",
                                    "\"\\",
                                    "[,1]",
                                    "NaN",
                                    "\"\xff\"",
                                    "\xef\xbb\xbf[]",
                                    "[1]]"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    cr_expect_not_null(json_fault(view_str(bad[i])), "%s", bad[i]);
  cr_expect_not_null(json_fault(view_of("1\0", 2)));
}

Test(json_check, sixty_four_levels_pass_and_one_more_does_not) {
  char text[2 * JSON_DEPTH_MAX + 3];
  for (size_t depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
    memset(text, '[', depth);
    memset(text + depth, ']', depth);
    const char *fault = json_fault(view_of(text, 2 * depth));
    if (depth == JSON_DEPTH_MAX)
      cr_expect_null(fault);
    else
      cr_expect_str_eq(fault, "The JSON is nested more than 64 deep.");
  }
}

/* Another reader's word, on texts that are nearly JSON. */
Test(json_check, agrees_with_jansson_on_three_hundred_thousand_texts) {
  static const char alphabet[] = "[]{},:\"\\u0a1-.e tn";
  unsigned seed = 12345;
  for (int n = 0; n < 300000; n++) {
    char text[12];
    size_t len = 1 + (size_t)rand_r(&seed) % 10;
    for (size_t i = 0; i < len; i++)
      text[i] = alphabet[(size_t)rand_r(&seed) % (sizeof alphabet - 1)];
    json_t *theirs = json_loadb(
        text, len, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL,
        NULL);
    bool ours = json_fault(view_of(text, len)) == NULL;
    cr_assert_eq(ours, theirs != NULL, "%.*s", (int)len, text);
    json_decref(theirs);
  }
}

static void expect_member(const char *text, const char *name,
                          const char *want) {
  view_s got = json_member(view_str(text), view_str(name));
  cr_expect(view_eq(got, view_str(want)), "%s in %s is %.*s", name, text,
            (int)got.len, got.data ? got.data : "");
}

Test(json_check, a_member_is_found_as_it_stands) {
  expect_member("{\"op\":\"publish\", \"data\" : [1, 2.50,\"}\"] ,\"x\":1}",
                "data", "[1, 2.50,\"}\"]");
  expect_member("{\"a\":{\"data\":1},\"data\":2}", "data", "2");
  expect_member("{\"data\":1,\"data\":1e999}", "data", "1e999");
  expect_member("{\"a\":1}", "data", "");
  expect_member("[\"data\",1]", "data", "");
  expect_member("{}", "data", "");
  expect_member("{\"x\":\"\\\"data\\\":3\"}", "data", "");
}

Test(json_check, elements_come_one_by_one) {
  view_s rest = VIEW_LIT(" [ {\"a\":[1]} , \"x,]\" ,3 ] "), element;
  static const char *const want[] = {"{\"a\":[1]}", "\"x,]\"", "3"};
  for (size_t i = 0; i < 3; i++) {
    cr_assert(json_element(&rest, &element));
    cr_expect(view_eq(element, view_str(want[i])), "%.*s", (int)element.len,
              element.data);
  }
  cr_expect_not(json_element(&rest, &element));
  rest = VIEW_LIT("[]");
  cr_expect_not(json_element(&rest, &element));
}
