/* cli.c - reads the command line by the table of settings.
 *
 * Kept true: every word of the command line is understood or is an error that
 * names it and what is nearest to it; nothing is guessed. A flag without a
 * value is a setting that is true or false; it takes one only behind `=`, so
 * that no word after it is ever swallowed. */
#include "cli.h"
#include <stdarg.h>
#include <string.h>

typedef struct {
  int argc;
  char *const *argv;
  int next; /* the word to be read */
  cli_s *out;
  char *err;
  size_t err_len;
} reader_s;

static const char *const commands[] = {"serve", "check", "help"};
static const char *const options[] = {"--help", "--version", "-h"};

enum {
  COMMANDS = sizeof commands / sizeof *commands,
  OPTIONS = sizeof options / sizeof *options
};

FACIL_PRINTF(2, 3) static int usage(const reader_s *r, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(r->err, r->err_len, fmt, args);
  va_end(args);
  return CRIER_EXIT_USAGE;
}

/* ---- What is not known ------------------------------------------------- */

static const char *nearest_of(const char *word, const char *const *names,
                              size_t n) {
  const char *best = names[0];
  for (size_t i = 1; i < n; i++)
    if (config_distance(word, names[i]) < config_distance(word, best))
      best = names[i];
  return best;
}

static int unknown_command(const reader_s *r, const char *word) {
  char shown[CONFIG_SHOWN_MAX];
  return usage(r, "crier: unknown command '%s' (did you mean '%s'?)",
               config_shown(word, shown), nearest_of(word, commands, COMMANDS));
}

/* `flag` as it was written, without its value; `name` without its dashes. */
static int unknown_flag(const reader_s *r, const char *flag, const char *name) {
  char shown[CONFIG_SHOWN_MAX];
  const bool is_long = name - flag == 2;
  const char *setting = config_nearest(name)->name;
  const char *option = nearest_of(flag, options, OPTIONS);
  const bool is_option =
      config_distance(flag, option) < config_distance(name, setting);
  return usage(r, "crier: unknown %s '%s' (did you mean '%s%s'?)",
               is_long ? "setting" : "option",
               config_shown(is_long ? name : flag, shown),
               is_option || is_long ? "" : "--", is_option ? option : setting);
}

/* ---- Settings ---------------------------------------------------------- */

static int missing_value(const reader_s *r, const config_setting_s *s) {
  char space[128];
  return usage(r, "crier: %s: the value is missing (--%s %s)", s->name, s->name,
               config_placeholder(s, space, sizeof space));
}

/* `value` is what stood behind `=`, or NULL. */
static int read_setting(reader_s *r, const config_setting_s *s,
                        const char *value) {
  if (!value && s->type == CONFIG_BOOL)
    value = "true";
  if (!value && r->next == r->argc)
    return missing_value(r, s);
  if (!value)
    value = r->argv[r->next++];
  return config_set(&r->out->config, s, value, CONFIG_FROM_COMMAND_LINE, r->err,
                    r->err_len) < 0
             ? CRIER_EXIT_USAGE
             : 0;
}

/* The help of the command that is being read. */
static cli_command_e help_of(const reader_s *r, bool is_named) {
  if (!is_named)
    return CLI_HELP;
  return r->out->command == CLI_CHECK ? CLI_HELP_CHECK : CLI_HELP_SERVE;
}

/* One word and its value. *is_over: help or version was asked for. */
static int read_word(reader_s *r, bool is_named, bool *is_over) {
  char flag[128], shown[CONFIG_SHOWN_MAX];
  const char *word = r->argv[r->next++];
  if (word[0] != '-' || !word[1] || strcmp(word, "--") == 0)
    return usage(r, "crier: unexpected argument '%s'",
                 config_shown(word, shown));
  const size_t len = strcspn(word, "=");
  const char *value = word[len] ? word + len + 1 : NULL;
  snprintf(flag, sizeof flag, "%.*s", (int)(len < 127 ? len : 127), word);
  const char *name = flag + (flag[1] == '-' ? 2 : 1);
  const config_setting_s *s = name - flag == 2 ? config_find(name) : NULL;
  if (s)
    return read_setting(r, s, value);
  const bool is_help = !strcmp(flag, "--help") || !strcmp(flag, "-h");
  if (!is_help && strcmp(flag, "--version") != 0)
    return unknown_flag(r, flag, name);
  if (value)
    return usage(r, "crier: %s takes no value", flag);
  r->out->command = is_help ? help_of(r, is_named) : CLI_VERSION;
  *is_over = true;
  return 0;
}

/* ---- Commands ---------------------------------------------------------- */

/* `crier help`, `crier help serve`. */
static int read_topic(reader_s *r) {
  char shown[CONFIG_SHOWN_MAX];
  const char *topic = r->next < r->argc ? r->argv[r->next++] : NULL;
  if (!topic || strcmp(topic, "help") == 0)
    r->out->command = CLI_HELP;
  else if (strcmp(topic, "serve") == 0)
    r->out->command = CLI_HELP_SERVE;
  else if (strcmp(topic, "check") == 0)
    r->out->command = CLI_HELP_CHECK;
  else
    return unknown_command(r, topic);
  if (r->next < r->argc)
    return usage(r, "crier: unexpected argument '%s'",
                 config_shown(r->argv[r->next], shown));
  return 0;
}

/* The environment comes first, so that the command line wins; but a wrong
 * word on the command line is told first. */
static int read_settings(reader_s *r, char *const envp[], bool is_named) {
  bool is_over = false;
  char later[CONFIG_ERROR_MAX];
  const bool has_good_environment =
      config_environment(&r->out->config, envp, later, sizeof later) == 0;
  while (r->next < r->argc && !is_over) {
    const int code = read_word(r, is_named, &is_over);
    if (code)
      return code;
  }
  if (is_over)
    return 0;
  if (!has_good_environment)
    return usage(r, "%s", later);
  return config_check(&r->out->config, r->err, r->err_len) < 0
             ? CRIER_EXIT_USAGE
             : 0;
}

int cli_parse(int argc, char *const argv[], char *const envp[], cli_s *out,
              char *err, size_t err_len) {
  reader_s r = {argc, argv, 1, out, err, err_len};
  const bool is_named = argc > 1 && argv[1][0] != '-';
  out->command = CLI_SERVE;
  config_init(&out->config);
  if (is_named) {
    const char *command = argv[r.next++];
    if (strcmp(command, "help") == 0)
      return read_topic(&r);
    if (strcmp(command, "check") == 0)
      out->command = CLI_CHECK;
    else if (strcmp(command, "serve") != 0)
      return unknown_command(&r, command);
  }
  return read_settings(&r, envp, is_named);
}

/* ---- Printing ---------------------------------------------------------- */

static const char help_text[] =
    "crier: brings messages to browsers and programs over WebSocket, and "
    "takes\n"
    "them by HTTP.\n"
    "\n"
    "usage: crier [serve] [--listen ADDRESS]... [--workers N] [--open]\n"
    "                     [--SETTING VALUE]...\n"
    "       crier check   [--SETTING VALUE]...\n"
    "       crier help [serve|check]\n"
    "       crier --help | --version\n"
    "\n"
    "commands:\n"
    "  serve    serve until told to stop; without a command the same\n"
    "  check    say which settings would be in force, and serve nothing\n"
    "  help     this text, or that of a command\n"
    "\n"
    "`crier serve --help` lists every setting.\n"
    "\n"
    "exit codes: 0 all is well; 1 it failed; 2 a wrong flag or setting;\n"
    "70 the workers keep dying at start\n";

static const char serve_text[] =
    "usage: crier [serve] [--SETTING VALUE | --SETTING=VALUE]...\n"
    "\n"
    "Serves on 127.0.0.1:8080 unless told otherwise. SIGTERM ends it in "
    "peace,\n"
    "a second one at once.\n";

static const char check_text[] =
    "usage: crier check [--SETTING VALUE | --SETTING=VALUE]...\n"
    "\n"
    "Prints the settings that would be in force and where each comes from, or\n"
    "what is wrong with them. Serves nothing.\n";

static const char settings_text[] =
    "\n"
    "ADDRESS is HOST:PORT, [IPv6]:PORT or unix:/PATH. SIZE is a number with "
    "B,\n"
    "KiB, MiB or GiB. TIME is a number with ms, s, m or h. Each setting may "
    "also\n"
    "stand in the environment: CRIER_MESSAGE_MAX for message.max; addresses "
    "are\n"
    "separated by commas there, history rules by semicolons. The command line\n"
    "wins.\n"
    "\n"
    "settings, with their defaults:\n";

static void print_settings(FILE *file) {
  size_t n;
  const config_setting_s *s = config_settings(&n);
  char space[128];
  for (size_t i = 0; i < n; i++) {
    const char *value = config_placeholder(&s[i], space, sizeof space);
    fprintf(file, "  --%s%s%s (%s)\n      %s\n", s[i].name, *value ? " " : "",
            value, *s[i].usual ? s[i].usual : "none", s[i].help);
  }
}

static void print_check(const crier_config_s *config, FILE *file) {
  static const char *const origins[] = {"default", "environment",
                                        "command line"};
  size_t n;
  const config_setting_s *s = config_settings(&n);
  char value[CONFIG_VALUE_MAX];
  for (size_t i = 0; i < n; i++) {
    config_format(config, &s[i], value, sizeof value);
    fprintf(file, "%s = %s (%s)\n", s[i].name, *value ? value : "none",
            origins[config_from(config, &s[i])]);
  }
}

int cli_print(const cli_s *cli, FILE *file) {
  switch (cli->command) {
  case CLI_SERVE:
    return CRIER_EXIT_OK;
  case CLI_CHECK:
    print_check(&cli->config, file);
    break;
  case CLI_HELP:
    fputs(help_text, file);
    break;
  case CLI_HELP_SERVE:
  case CLI_HELP_CHECK:
    fputs(cli->command == CLI_HELP_SERVE ? serve_text : check_text, file);
    fputs(settings_text, file);
    print_settings(file);
    break;
  case CLI_VERSION:
    fputs("crier " CRIER_VERSION "\n", file);
    break;
  }
  return fflush(file) || ferror(file) ? CRIER_EXIT_FAILED : CRIER_EXIT_OK;
}
