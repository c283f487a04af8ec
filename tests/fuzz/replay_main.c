/* replay_main.c - a fuzz target as a plain test, for any compiler: runs it on
 * every file of the folders that are named, and prints `N inputs`.
 *
 * An input that makes the target fail ends the process; its name is the last
 * one on stderr. A corpus without inputs is a failure. Each input lies in a
 * block of its exact size, so that a sanitizer sees reads past it. */
#include "fuzz.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The bytes of a file, to be freed; NULL and errno. */
static uint8_t *read_file(const char *path, size_t *len) {
  struct stat st;
  uint8_t *data = NULL;
  FILE *f = fopen(path, "rb");
  if (!f)
    return NULL;
  if (fstat(fileno(f), &st) == 0) {
    *len = (size_t)st.st_size;
    data = malloc(*len ? *len : 1);
  }
  if (data && fread(data, 1, *len, f) != *len) {
    free(data);
    data = NULL;
    errno = EIO;
  }
  fclose(f);
  return data;
}

static int replay_file(const char *path) {
  size_t len = 0;
  uint8_t *data = read_file(path, &len);
  if (!data) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return -1;
  }
  fprintf(stderr, "%s\n", path);
  LLVMFuzzerTestOneInput(data, len);
  free(data);
  return 0;
}

/* How many inputs were run; -1 if one could not be read. */
static long replay_folder(const char *folder) {
  long count = 0;
  const struct dirent *entry;
  DIR *dir = opendir(folder);
  if (!dir) {
    fprintf(stderr, "%s: %s\n", folder, strerror(errno));
    return -1;
  }
  while (count >= 0 && (entry = readdir(dir))) {
    char path[4096];
    if (entry->d_name[0] == '.')
      continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    count = replay_file(path) < 0 ? -1 : count + 1;
  }
  closedir(dir);
  return count;
}

int main(int argc, char **argv) {
  long total = 0;
  for (int i = 1; i < argc; i++) {
    const long count = replay_folder(argv[i]);
    if (count < 0)
      return 1;
    total += count;
  }
  printf("%ld inputs\n", total);
  return total > 0 ? 0 : 1;
}
