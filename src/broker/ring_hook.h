/* ring_hook.h - named points at which a test may stop or kill a process.
 *
 * Built with -DRING_HOOKS each RING_POINT calls ring_hook, if it is set; in the
 * product there is nothing. Private to src/broker and its tests. */
#ifndef BROKER_RING_HOOK_H
#define BROKER_RING_HOOK_H

#ifdef RING_HOOKS
extern void (*ring_hook)(const char *point);
#define RING_POINT(name)                                                       \
  do                                                                           \
    if (ring_hook)                                                             \
      ring_hook(name);                                                         \
  while (0)
#else
#define RING_POINT(name) ((void)0)
#endif

#endif
