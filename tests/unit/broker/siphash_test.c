/* siphash_test.c - the keyed hash against the vectors published with it.
 *
 * Key 00 01 .. 0f, input 00 01 .. of growing length, as in the reference
 * package; and SipHash-1-3 under the key of zeros. */
#include <criterion/criterion.h>
#include <facil/siphash.h>

static const uint64_t sip24[] = {
    0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a,
    0x85676696d7fb7e2d, 0xcf2794e0277187b7, 0x18765564cd99a68d,
    0xcbc9466e58fee3ce, 0xab0200f58b01d137, 0x93f5f5799a932462,
    0x9e0082df0ba9e4b0, 0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7,
    0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee,
    0xa129ca6149be45e5, 0x3f2acc7f57c29bdb, 0x699ae9f52cbe4794};

static const uint64_t sip13[] = {
    0xabac0158050fc4dc, 0xc9f49bf37d57ca93, 0x82cb9b024dc7d44d,
    0x8bf80ab8e7ddf7fb, 0xcf75576088d38328, 0xdef9d52f49533b67,
    0xc50d2b50c59f22a7, 0xd3927d989bb11140, 0x369095118d299a8e,
    0x25a48eb36c063de4, 0x79de85ee92ff097f, 0x70c118c1f94dc352,
    0x78a384b157b4d9a2, 0x306f760c1229ffa7, 0x605aa111c0f95d34,
    0xd320d86d2a519956, 0xcc4fdd1a7d908b66, 0x9cf2689063dbd80c};

static const uint64_t sip13_zero_key[] = {
    0xd1fba762150c532c, 0x68a914128e01e473, 0x010bac45c41e3669,
    0x4d4c9a4a8ef6e0ad, 0x7cc43f98813e4dbd, 0x5abe2169dff36275,
    0xe3c25f87624f1cdb, 0x2f098ab0c751325a, 0xead411e67ebe2eea};

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Byte i of input and key is i. Malloc'd to the byte, so that ASan sees a read
 * beyond the end. */
static void check(uint64_t (*hash)(siphash_key_s, view_s), siphash_key_s key,
                  const uint64_t *want, size_t n) {
  for (size_t len = 0; len < n; len++) {
    uint8_t *in = malloc(len + !len);
    cr_assert_not_null(in);
    for (size_t i = 0; i < len; i++)
      in[i] = (uint8_t)i;
    cr_assert_eq(hash(key, view_of(in, len)), want[len], "length %zu", len);
    free(in);
  }
}

static siphash_key_s counting_key(void) {
  uint8_t bytes[16];
  for (uint8_t i = 0; i < 16; i++)
    bytes[i] = i;
  return siphash_key(bytes);
}

Test(siphash, the_2_4_form_gives_the_published_values) {
  check(siphash_24, counting_key(), sip24, COUNT(sip24));
}

Test(siphash, the_1_3_form_gives_the_published_values) {
  check(siphash_13, counting_key(), sip13, COUNT(sip13));
}

Test(siphash, the_1_3_form_under_the_zero_key_gives_the_published_values) {
  check(siphash_13, (siphash_key_s){0, 0}, sip13_zero_key,
        COUNT(sip13_zero_key));
}

Test(siphash, an_empty_view_of_nothing_is_hashed) {
  cr_assert_eq(siphash_13(counting_key(), view_str(NULL)), sip13[0]);
}

Test(siphash, another_key_gives_another_hash) {
  view_s name = VIEW_LIT("news");
  cr_assert_neq(siphash_13((siphash_key_s){1, 2}, name),
                siphash_13((siphash_key_s){1, 3}, name));
}
