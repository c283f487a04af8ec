/* cli.h - the command line: `crier`, `crier serve`, `crier check`, and help.
 *
 * cli_parse is pure: it reads its arguments and fills a struct; cli_print
 * writes what --help, --version and check have to say. So the broker's main
 * does nothing but: parse; on an error write the line and leave; print or
 * serve. */
#ifndef CRIER_CLI_H
#define CRIER_CLI_H

#include "config.h"

#ifndef CRIER_VERSION
#define CRIER_VERSION "0.1.0"
#endif

/* What the process ends with. */
enum {
  CRIER_EXIT_OK = 0,
  CRIER_EXIT_FAILED = 1,  /* it failed: a port in use, output not written */
  CRIER_EXIT_USAGE = 2,   /* a bad flag, an unknown or wrong setting */
  CRIER_EXIT_WORKERS = 70 /* workers that keep dying at start */
};

typedef enum {
  CLI_SERVE,
  CLI_CHECK,
  CLI_HELP,       /* of the program */
  CLI_HELP_SERVE, /* of serve, with every setting */
  CLI_HELP_CHECK,
  CLI_VERSION
} cli_command_e;

typedef struct {
  cli_command_e command;
  crier_config_s config; /* of CLI_SERVE and CLI_CHECK: complete and checked */
} cli_s;

/* Read `argv` (argc entries, the program's name first) and, for serve and
 * check, the CRIER_ variables of `envp`. --help and --version end the reading:
 * what follows them is not looked at.
 *
 * 0 with *out filled; or an exit code with one line, without its end, in
 * `err`, and *out of no use. */
FACIL_MUST_CHECK int cli_parse(int argc, char *const argv[], char *const envp[],
                               cli_s *out, char *err, size_t err_len);

/* Write to `file` what the command asks for: help, the version, or for
 * CLI_CHECK the settings in force, one a line, with their origin. Nothing for
 * CLI_SERVE. The exit code: CRIER_EXIT_FAILED if it could not be written. */
FACIL_MUST_CHECK int cli_print(const cli_s *cli, FILE *file);

#endif
